//! The checksum engine: CRC-32C of a stream.
//!
//! The checksum of iSCSI (RFC 3720 §12.1), SCTP, ext4 and most storage formats: what a sender has
//! computed can be compared with what has arrived in GPU memory, without reading it there.

use crc_fast::{checksum_combine, CrcAlgorithm, Digest};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{EngineError, Hardware, StreamEngine};

/// The result of a [`ChecksumEngine`], 16 bytes, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Checksum {
    /// CRC-32C of the bytes; the upper half is 0.
    pub crc32c: u64,
    /// Bytes that it covers.
    pub bytes: u64,
}

/// Computes the CRC-32C of a stream, with a [`Checksum`] as result. A tap: the stream leaves as it
/// came.
///
/// The state goes on over the end of a stream: two streams through one engine give the checksum of
/// both, one after the other.
///
/// ```
/// use ringbell_onc_engines::stream::checksum::ChecksumEngine;
/// use ringbell_onc_engines::stream::StreamEngine;
///
/// let mut engine = ChecksumEngine::new();
/// engine.process(b"1234", &mut Vec::new());
/// engine.process(b"56789", &mut Vec::new());
/// // The check value of the algorithm's catalogue entry.
/// assert_eq!((engine.checksum(), engine.bytes()), (0xe306_9283, 9));
/// ```
#[derive(Debug, Clone)]
pub struct ChecksumEngine {
    digest: Digest,
    bytes: u64,
}

impl ChecksumEngine {
    /// An engine that has seen nothing.
    pub fn new() -> ChecksumEngine {
        ChecksumEngine {
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
            bytes: 0,
        }
    }

    /// The checksum of what has passed.
    pub fn checksum(&self) -> u32 {
        // A 32-bit algorithm fills the low half.
        self.digest.finalize() as u32
    }

    /// Bytes that have passed.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Default for ChecksumEngine {
    fn default() -> ChecksumEngine {
        ChecksumEngine::new()
    }
}

impl StreamEngine for ChecksumEngine {
    fn name(&self) -> &'static str {
        "checksum"
    }

    fn declared_rate(&self) -> f64 {
        // What carry-less multiplication reaches on a slow core; tables reach a tenth.
        4e9
    }

    fn is_tap(&self) -> bool {
        true
    }

    fn output_bound(&self, _input: usize) -> usize {
        0
    }

    fn process(&mut self, input: &[u8], _out: &mut Vec<u8>) {
        self.digest.update(input);
        self.bytes += input.len() as u64;
    }

    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        Ok(())
    }

    fn result(&self, into: &mut Vec<u8>) {
        let result = Checksum {
            crc32c: self.checksum().into(),
            bytes: self.bytes,
        };
        into.extend_from_slice(result.as_bytes());
    }

    fn hardware(&self) -> Option<Hardware> {
        Some(Hardware::Checksum)
    }

    fn absorb(&mut self, counted: &[u8]) -> bool {
        let Ok(behind) = Checksum::read_from_bytes(counted) else {
            return false;
        };
        let Ok(crc) = u32::try_from(behind.crc32c) else {
            return false;
        };
        let both = checksum_combine(
            CrcAlgorithm::Crc32Iscsi,
            self.checksum().into(),
            crc.into(),
            behind.bytes,
        );
        // The state of a digest is inverted at the end.
        let state = both ^ u64::from(u32::MAX);
        self.digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
        self.bytes += behind.bytes;
        true
    }

    fn reset(&mut self) {
        *self = ChecksumEngine::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::conformance;

    /// Bit by bit, from the polynomial alone.
    fn model(bytes: &[u8]) -> u32 {
        let mut crc = !0u32;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
            }
        }
        !crc
    }

    #[test]
    fn the_checksum_agrees_with_the_polynomial_at_every_length() {
        let noise = conformance::noise(5, 3000);
        for len in (0..300).chain([1023, 1024, 2999]) {
            let mut engine = ChecksumEngine::new();
            engine.process(&noise[..len], &mut Vec::new());
            assert_eq!(engine.checksum(), model(&noise[..len]), "{len} bytes");
        }
        let mut zeros = ChecksumEngine::new();
        zeros.process(&[0; 32], &mut Vec::new());
        // RFC 3720 §B.4.
        assert_eq!(zeros.checksum(), 0x8a91_36aa);
    }

    #[test]
    fn what_hardware_has_counted_is_added_behind_what_came_before() {
        let noise = conformance::noise(6, 700);
        for (cut, end) in [(0, 0), (0, 64), (300, 300), (1, 699), (257, 600)] {
            let [mut engine, mut behind, mut whole] = [(); 3].map(|()| ChecksumEngine::new());
            engine.process(&noise[..cut], &mut Vec::new());
            behind.process(&noise[cut..end], &mut Vec::new());
            whole.process(&noise, &mut Vec::new());
            let mut counted = Vec::new();
            behind.result(&mut counted);
            assert!(engine.absorb(&counted));
            engine.process(&noise[end..], &mut Vec::new());
            assert_eq!((engine.checksum(), engine.bytes()), (whole.checksum(), 700));
        }
        let mut engine = ChecksumEngine::new();
        assert!(!engine.absorb(&[0; 15]) && !engine.absorb(&[0xff; 16]) && engine.bytes() == 0);
    }

    #[test]
    fn the_engine_passes_the_conformance_suite() {
        conformance::check(|| Box::new(ChecksumEngine::new()));
    }
}
