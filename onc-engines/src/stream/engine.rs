//! [`StreamEngine`]: the interface between the NIC and an engine.

/// What an engine could not do with its stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The stream ended inside an item.
    #[error("engine {engine}: the stream ended inside an item: {left} of {item} bytes; send whole items")]
    CutItem {
        /// The engine.
        engine: &'static str,
        /// Bytes that were there.
        left: usize,
        /// Bytes of an item.
        item: usize,
    },
    /// It cannot give the end of its stream. A stream that it changes ends with an error at both
    /// sides.
    #[error("engine {engine} has failed: {why}")]
    Failed {
        /// The engine.
        engine: &'static str,
        /// What has happened.
        why: &'static str,
    },
}

/// An engine of a card that can count in an engine's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hardware {
    /// HyperLogLog of 32-bit items with the hash `Mix`, 2^14 or 2^16 registers. Its result: items
    /// (8 bytes), then 56 bytes of which the last 53 are zero, then the registers, a byte each.
    Hll {
        /// 14 or 16.
        precision: u8,
    },
    /// CRC-32C, with a [`Checksum`](super::checksum::Checksum) as result.
    Checksum,
}

impl Hardware {
    /// Bytes of an item.
    pub fn item(self) -> usize {
        match self {
            Hardware::Hll { .. } => 4,
            Hardware::Checksum => 1,
        }
    }
}

/// An engine on the path of a stream: beats in, beats out, a result.
///
/// The NIC calls [`process`](StreamEngine::process) with the bytes of the stream in order, each
/// exactly once, in pieces of any length: where a piece ends means nothing, so state must be kept
/// across calls and the result must not depend on the cuts (the conformance suite checks that).
/// Pieces lie in the NIC's own memory and have no other writer meanwhile.
pub trait StreamEngine: Send {
    /// Short name, as in `checksum`, `hll`.
    fn name(&self) -> &'static str;

    /// Bytes per second that the engine promises on one core with its input in cache; the
    /// conformance suite measures it, and a stream that is faster is reported.
    fn declared_rate(&self) -> f64;

    /// Whether the stream leaves as it came: [`process`](StreamEngine::process) then leaves `out`
    /// alone, and the NIC passes its input on without a copy.
    fn is_tap(&self) -> bool;

    /// Most bytes that one call of [`process`](StreamEngine::process) appends for `input` bytes,
    /// and, for 0, that [`finish`](StreamEngine::finish) appends.
    fn output_bound(&self, input: usize) -> usize;

    /// Takes the next bytes of the stream; appends what leaves to `out` unless it is a tap.
    fn process(&mut self, input: &[u8], out: &mut Vec<u8>);

    /// The stream has ended: appends what was held back. Bytes that come later begin another
    /// stream, counted into the same state.
    ///
    /// # Errors
    /// [`EngineError::CutItem`] when it ended inside an item: that is dropped, the state is of the
    /// whole items. [`EngineError::Failed`] when the engine cannot go on: it is then never called
    /// again.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EngineError>;

    /// Appends the result so far, in the engine's own format; changes nothing.
    fn result(&self, into: &mut Vec<u8>);

    /// The engine of a card that does the same for the bytes to come, if there is one.
    fn hardware(&self) -> Option<Hardware> {
        None
    }

    /// Adds what such an engine has counted of the bytes behind those so far. `false`: that is no
    /// result of it, and nothing has changed.
    fn absorb(&mut self, counted: &[u8]) -> bool {
        let _ = counted;
        false
    }

    /// Back to the state of a new engine.
    fn reset(&mut self);
}
