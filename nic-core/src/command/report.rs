//! Reports to the host: events, counters, and the page of the status registers.

use super::status::StatusPage;
use super::Counters;
use crate::event::EventQueue;

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
}
