//! Reports to the host: events, counters, and the page of the status registers.

use ringbell_nic_abi::{EventKind, SessionId};

use super::status::StatusPage;
use super::Counters;
use crate::event::EventQueue;
use crate::types::NicTime;

/// See the module text.
pub(crate) struct Report {
    pub(crate) events: EventQueue,
    pub(crate) counters: Counters,
    /// Queue and word of the last malformed descriptor.
    pub(super) last_bad: u32,
    pub(super) status: StatusPage,
}

impl Report {
    pub(super) fn new(event_capacity: usize) -> Report {
        Report {
            events: EventQueue::new(event_capacity),
            counters: Counters::default(),
            last_bad: 0,
            status: StatusPage::default(),
        }
    }

    /// A DMA fault of an operation on a session.
    pub(super) fn fault(&mut self, now: NicTime, session: SessionId, va: u64) {
        self.counters.faults += 1;
        self.events.push(now, EventKind::Fault, session.0, va);
    }
}
