//! What waits for the link to a member: messages, heads, and receives to be announced.
//!
//! The layer above dials a member that something waits for. When the member has said that it takes
//! part, all of it leaves in the order in which it came.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::head::Head;
use super::work::SendRequest;

/// One thing that waits.
#[derive(Debug)]
pub(super) enum Late {
    /// A message.
    Send(Box<SendRequest>),
    /// A head without a payload.
    Head(Head),
    /// A receive of an agreed message, to be announced if it still waits.
    Receive(u32),
}

/// All of a NIC, by context and member.
#[derive(Debug, Default)]
pub(super) struct Unlinked {
    late: FxHashMap<(u64, u32), Vec<Late>>,
    /// Members that the layer above has not been told of.
    wanted: VecDeque<(u64, u32)>,
}

impl Unlinked {
    /// Something waits for a member, or, if nothing, its link is wanted.
    pub(super) fn put(&mut self, of: (u64, u32), late: Option<Late>) {
        let is_known = self.late.contains_key(&of);
        self.late.entry(of).or_default().extend(late);
        if !is_known {
            self.wanted.push_back(of);
        }
    }

    /// The next member whose link is wanted.
    pub(super) fn next_wanted(&mut self) -> Option<(u64, u32)> {
        self.wanted.pop_front()
    }

    /// Whether there is one.
    #[inline]
    pub(super) fn has_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Takes what waits for a member.
    pub(super) fn take(&mut self, of: (u64, u32)) -> Vec<Late> {
        match self.late.is_empty() {
            true => Vec::new(),
            false => self.late.remove(&of).unwrap_or_default(),
        }
    }

    /// Whether a message waits for a member.
    pub(super) fn has_message(&self, of: (u64, u32)) -> bool {
        let all = self.late.get(&of);
        all.is_some_and(|all| all.iter().any(|l| matches!(l, Late::Send(_))))
    }

    /// Whether a message with this key waits.
    pub(super) fn has_key(&self, key: u64) -> bool {
        let mut all = self.late.values().flatten();
        all.any(|l| matches!(l, Late::Send(r) if r.key == key))
    }

    /// Takes a message back. `false`: it does not wait here.
    pub(super) fn cancel(&mut self, key: u64) -> bool {
        let is_it = |l: &mut Late| matches!(l, Late::Send(r) if r.key == key);
        let mut all = self.late.values_mut();
        all.any(|late| late.extract_if(.., is_it).next().is_some())
    }

    /// A context has ended.
    pub(super) fn end(&mut self, ctx: u64) {
        self.late.retain(|(c, _), _| *c != ctx);
        self.wanted.retain(|(c, _)| *c != ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Pieces;

    #[test]
    fn what_waits_is_told_once_and_leaves_in_order() {
        let message = |key| {
            Some(Late::Send(Box::new(SendRequest {
                ctx: 1,
                to: 2,
                tag: 0,
                hash: 0,
                pieces: Pieces::default(),
                when_met: false,
                key,
            })))
        };
        let mut u = Unlinked::default();
        u.put((1, 2), None);
        for key in 5..8 {
            u.put((1, 2), message(key));
        }
        u.put((1, 3), Some(Late::Receive(9)));
        assert!(u.has_message((1, 2)) && !u.has_message((1, 3)));
        assert_eq!(
            (u.next_wanted(), u.next_wanted()),
            (Some((1, 2)), Some((1, 3)))
        );
        assert!(!u.has_wanted());
        assert!(u.has_key(6) && u.cancel(6) && !u.has_key(6) && !u.cancel(6));
        let keys = u.take((1, 2)).into_iter().map(|l| match l {
            Late::Send(r) => r.key,
            _ => 0,
        });
        assert!(keys.eq([5, 7]));
        u.end(1);
        assert!(u.take((1, 3)).is_empty());
    }
}
