//! The receiving half of a connection: bytes that have arrived and wait for receives.

use std::collections::VecDeque;

/// Bytes that have arrived and were not taken.
#[derive(Debug)]
pub(super) enum Seg {
    /// The next bytes of the staging buffer.
    Staged { len: u32 },
    /// Bytes in the sender's memory.
    Ref { bus: u64, len: u32 },
    /// Bytes copied early out of the sender's memory.
    Early { bytes: Vec<u8>, at: usize },
}

/// A byte ring that grows up to the window and then stays: small payloads without a receive.
#[derive(Debug, Default)]
pub(super) struct Staging {
    bytes: VecDeque<u8>,
}

impl Staging {
    pub(super) fn push(&mut self, b: &[u8]) {
        self.bytes.extend(b);
    }
    /// The first contiguous run.
    pub(super) fn front(&self) -> &[u8] {
        self.bytes.as_slices().0
    }
    pub(super) fn consume(&mut self, n: usize) {
        self.bytes.drain(..n);
    }
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Rx {
    pub(super) segs: VecDeque<Seg>,
    pub(super) staging: Staging,
    pub(super) refs_waiting: u32,
    pub(super) early_bytes: usize,
    pub(super) spans_taken: u64,
    pub(super) inline_taken: u64,
    pub(super) spans_told: u64,
    pub(super) inline_told: u64,
    /// The peer waits for the acknowledgement, to recycle NIC memory.
    pub(super) tell_now: bool,
    pub(super) peer_fin: bool,
}

impl Rx {
    /// Keeps payload for which no receive is waiting.
    #[inline]
    pub(super) fn stage(&mut self, bytes: &[u8]) {
        self.staging.push(bytes);
        match self.segs.back_mut() {
            Some(Seg::Staged { len }) => *len += bytes.len() as u32,
            _ => self.segs.push_back(Seg::Staged {
                len: bytes.len() as u32,
            }),
        }
    }

    /// Forgets what has arrived.
    pub(super) fn drop_segs(&mut self) {
        self.segs.clear();
        let staged = self.staging.len();
        self.staging.consume(staged);
        self.refs_waiting = 0;
        self.early_bytes = 0;
    }

    /// Takes `n` bytes of a reference off the stream.
    pub(super) fn consume_reference(&mut self, i: usize, n: u32) -> bool {
        let Some(Seg::Ref { bus, len }) = self.segs.get_mut(i) else {
            return false;
        };
        *bus += u64::from(n);
        *len -= n.min(*len);
        if *len == 0 {
            self.segs.remove(i);
            self.refs_waiting -= 1;
            self.spans_taken += 1;
        }
        true
    }
}
