//! The receiving half of a connection: receives that have not retired, and bytes that have arrived for them.

use std::collections::VecDeque;

use crate::transport::{RecvWork, TransportEvent};
use crate::types::ConnId;
use ringbell_nic_abi::Status;

/// A receive being filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct RxRecv {
    pub(super) work: RecvWork,
    pub(super) done: u32,
    /// Bytes behind those that are on their way.
    pub(super) copying: u32,
}

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
    /// The first `n` bytes, in two runs.
    pub(super) fn runs(&self, n: usize) -> (&[u8], &[u8]) {
        let (a, b) = self.bytes.as_slices();
        let first = n.min(a.len());
        (&a[..first], &b[..n - first])
    }
    pub(super) fn consume(&mut self, n: usize) {
        self.bytes.drain(..n);
    }
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// A run of bytes on its way into a receive.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) ticket: u64,
    pub(super) len: u32,
    pub(super) done: bool,
    /// Out of another process, which may have ended meanwhile.
    pub(super) foreign: bool,
}

/// What of a connection is on its way: the first bytes of its segments, in order.
#[derive(Debug, Default)]
pub(super) struct PendingCopies {
    pub(super) runs: VecDeque<Run>,
    pub(super) bytes: u64,
}

/// A read for what is no receive: early bytes, or an engine's.
#[derive(Debug)]
pub(super) struct PendingRead {
    pub(super) ticket: u64,
    /// Bus address at the peer.
    pub(super) bus: u64,
    pub(super) foreign: bool,
}

/// See the module text.
#[derive(Debug, Default)]
pub(super) struct Rx {
    pub(super) recvs: VecDeque<RxRecv>,
    pub(super) segs: VecDeque<Seg>,
    pub(super) staging: Staging,
    pub(super) refs_waiting: u32,
    pub(super) early_bytes: usize,
    /// Bytes of the first segments that are on their way into receives.
    pub(super) copies: PendingCopies,
    /// A read of some for what is no receive.
    pub(super) reading: Option<PendingRead>,
    /// An engine holds bytes for the next receive.
    pub(super) held: bool,
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

    /// Retires all receives with a status and its detail.
    pub(super) fn end(
        &mut self,
        conn: ConnId,
        (status, detail): (Status, u64),
        events: &mut VecDeque<TransportEvent>,
    ) {
        for r in self.recvs.drain(..) {
            events.push_back(TransportEvent::RecvDone {
                conn,
                token: r.work.token,
                status,
                bytes: r.done.into(),
                detail,
            });
        }
    }

    /// Forgets what has arrived.
    pub(super) fn drop_segs(&mut self) {
        self.forget_copies();
        self.reading = None;
        self.segs.clear();
        let staged = self.staging.len();
        self.staging.consume(staged);
        self.refs_waiting = 0;
        self.early_bytes = 0;
    }

    /// Discards the copies in flight: they restart.
    pub(super) fn forget_copies(&mut self) {
        self.copies = PendingCopies::default();
        self.recvs.iter_mut().for_each(|r| r.copying = 0);
    }

    /// The receive whose next bytes are not on their way: index and offset there.
    pub(super) fn next_receive(&self) -> Option<(usize, u32)> {
        let open = |r: &RxRecv| {
            let at = r.done + r.copying;
            at < r.work.buffer.len && !(r.work.some && at > 0)
        };
        let i = self.recvs.iter().position(open)?;
        Some((i, self.recvs[i].done + self.recvs[i].copying))
    }

    /// The bytes behind those that are on their way, if they are a reference.
    pub(super) fn next_reference(&self) -> Option<(u64, u32)> {
        let mut skip = self.copies.bytes;
        for seg in &self.segs {
            let Seg::Ref { bus, len } = seg else {
                return None;
            };
            if skip < u64::from(*len) {
                return Some((bus + skip, len - skip as u32));
            }
            skip -= u64::from(*len);
        }
        None
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
