//! Which connections of a transport of packets are served next, and how a service has ended.

use std::collections::VecDeque;

use super::timers::Timers;
use crate::types::NicTime;

/// Which connections are served next.
#[derive(Debug, Default)]
pub(super) struct Turns {
    ready: VecDeque<usize>,
    /// Those for which the port had no room at all. They are the first of the next step: behind one
    /// that has taken the room they would find none again, as long as that one has packets.
    crowded_out: VecDeque<usize>,
    pub(super) timers: Timers,
    /// The last step left work behind that no timer covers.
    again: Option<NicTime>,
    /// See [`Then::Step`](super::Then::Step).
    pub(super) wants_step: bool,
}

impl Turns {
    /// Queues a connection, unless it is: `queued` is its own note of that.
    pub(super) fn mark(&mut self, index: usize, queued: &mut bool) {
        if !std::mem::replace(queued, true) {
            self.ready.push_back(index);
        }
    }

    /// Queues a connection before those that have sent something, unless it is queued.
    pub(super) fn mark_crowded_out(&mut self, index: usize, queued: &mut bool) {
        if !std::mem::replace(queued, true) {
            self.crowded_out.push_back(index);
        }
    }

    /// A step begins, which serves so many connections.
    pub(super) fn begin(&mut self) -> usize {
        self.again = None;
        while let Some(index) = self.crowded_out.pop_back() {
            self.ready.push_front(index);
        }
        self.ready.len()
    }

    /// The next connection to be served.
    pub(super) fn next_ready(&mut self) -> Option<usize> {
        self.ready.pop_front()
    }

    /// Whether none is to be served before the clock is read.
    pub(super) fn is_quiet(&self) -> bool {
        self.ready.is_empty() && self.crowded_out.is_empty()
    }

    /// A step is due by then.
    pub(super) fn no_later(&mut self, at: NicTime) {
        self.again = Some(self.again.map_or(at, |a| a.min(at)));
    }

    /// When the next step is due.
    pub(super) fn next_timer(&self) -> Option<NicTime> {
        self.again.into_iter().chain(self.timers.next()).min()
    }
}

/// How the sending of a connection's packets ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// There is nothing more to send now.
    All,
    /// The budget was used up.
    More,
    /// The port has no room for more.
    Blocked,
    /// The port had no room for any packet.
    CrowdedOut,
    /// The port's MTU has fallen below the size that was agreed.
    TooSmall,
}
