//! Messages that came before their receives, and the buffers in which their payloads wait.

use super::head::Envelope;

/// Messages of one member that may wait for a receive; more is no program but a fault.
pub(super) const MAX_EARLY: usize = 1 << 16;

/// How a message that came before its receive waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyKind {
    /// In a receive buffer; `ready` once it is there as a whole.
    Buffered { buffer: Option<u32>, ready: bool },
    /// At the sender.
    Requested,
    /// In this member's own memory: the sender is this one.
    Own,
    /// The same, in a copy that is kept here.
    Kept,
    /// It is the receive of a message that this member will send, under this key.
    Receive(u32),
}

/// A message without a receive.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) ctx: u64,
    pub(super) from: u32,
    pub(super) tag: u64,
    pub(super) len: u64,
    pub(super) hash: u32,
    pub(super) send: u32,
    pub(super) kind: EarlyKind,
    /// The receive that has met it while it was arriving, or the claim that has met it.
    pub(super) claimed: Option<u32>,
    /// Of a kept one.
    pub(super) kept: Option<Box<Kept>>,
}

impl Early {
    /// A message that a head has announced, without a receive.
    pub(super) fn new(e: &Envelope, kind: EarlyKind) -> Early {
        Early {
            ctx: e.ctx,
            from: e.from,
            tag: e.tag,
            len: e.len,
            hash: e.hash,
            send: e.send,
            kind,
            claimed: None,
            kept: None,
        }
    }
}

/// A copy of a message of this member to itself.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) bytes: Vec<u8>,
    /// What is told when it meets a receive, if that is asked for.
    pub(super) key: Option<u64>,
}

/// Receive buffers of a context: as many for each member to which this one has a link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Buffers {
    /// Bytes of one.
    pub(crate) bytes: u64,
    /// For each member.
    pub(crate) count: u32,
}

impl Buffers {
    /// Bytes of NIC memory that those for one member take.
    pub(crate) fn of_one(&self) -> u64 {
        self.bytes * u64::from(self.count)
    }
}

/// The buffers of one pair of members, in both directions.
#[derive(Debug)]
pub(super) struct Credits {
    /// Eager messages that we may send before the peer frees a buffer.
    pub(super) ours: u32,
    /// Buffers that are free again but not yet announced to the peer.
    pending: u32,
    /// Our free receive buffers for this peer.
    free: Vec<u32>,
}

impl Credits {
    /// There are no buffers here yet, and ours there are not known.
    pub(super) fn new() -> Credits {
        Credits {
            ours: 0,
            pending: 0,
            free: Vec::new(),
        }
    }

    /// There are buffers for the peer now, and all are free.
    pub(super) fn provide(&mut self, buffers: &Buffers) {
        self.free = (0..buffers.count).collect();
    }

    /// The peer has freed buffers.
    pub(super) fn add(&mut self, n: u32) {
        self.ours = self.ours.saturating_add(n);
    }

    /// A buffer for an eager message that has come. `None`: the peer has sent more than its
    /// credits.
    pub(super) fn take_buffer(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// A buffer is free again. The peer is told with the next message to it, or of half of them at
    /// once: then of how many is returned.
    pub(super) fn give_back(&mut self, buffer: u32, of: &Buffers) -> Option<u32> {
        self.free.push(buffer);
        self.pending += 1;
        let is_due = self.pending >= (of.count / 2).max(1);
        is_due.then(|| self.take_pending())
    }

    /// The free buffers that a message to the peer announces.
    pub(super) fn take_pending(&mut self) -> u32 {
        std::mem::take(&mut self.pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_announced_by_half_of_them_or_with_a_message() {
        let of = Buffers {
            bytes: 10,
            count: 4,
        };
        assert_eq!(of.of_one(), 40);
        let mut c = Credits::new();
        assert_eq!(c.take_buffer(), None);
        c.provide(&of);
        let mut taken: Vec<u32> = (0..4).filter_map(|_| c.take_buffer()).collect();
        assert_eq!(c.take_buffer(), None);
        assert_eq!(c.give_back(taken[0], &of), None);
        assert_eq!(c.take_pending(), 1);
        assert_eq!(c.give_back(taken[1], &of), None);
        assert_eq!(c.give_back(taken[2], &of), Some(2));
        assert_eq!(c.take_pending(), 0);
        // Each is given out once.
        assert_eq!(c.give_back(taken[3], &of), None);
        let mut again: Vec<u32> = (0..4).filter_map(|_| c.take_buffer()).collect();
        taken.sort_unstable();
        again.sort_unstable();
        assert_eq!(again, taken);
        // A context with one buffer for each member announces each.
        let one = Buffers { count: 1, ..of };
        let mut c = Credits::new();
        c.provide(&one);
        assert_eq!(c.take_buffer(), Some(0));
        assert_eq!(c.give_back(0, &one), Some(1));
        c.add(u32::MAX);
        c.add(7);
        assert_eq!(c.ours, u32::MAX);
    }
}
