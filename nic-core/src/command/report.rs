//! Reports to the host: events, counters, and the page of the status registers.

use ringbell_nic_abi::{EventKind, SessionId};

use super::Counters;
use crate::engine::{Engines, Notice};
use crate::event::EventQueue;
use crate::types::NicTime;

/// See the module text.
pub(crate) struct Report {
    pub(crate) events: EventQueue,
    pub(crate) counters: Counters,
    /// Queue and word of the last malformed descriptor.
    pub(super) last_bad: u32,
}

impl Report {
    pub(super) fn new(event_capacity: usize) -> Report {
        Report {
            events: EventQueue::new(event_capacity),
            counters: Counters::default(),
            last_bad: 0,
        }
    }

    /// A DMA fault of an operation on a session.
    pub(super) fn fault(&mut self, now: NicTime, session: SessionId, va: u64) {
        self.counters.faults += 1;
        self.events.push(now, EventKind::Fault, session.0, va);
    }

    /// Reports the state of engines to the host.
    #[inline]
    pub(super) fn tell_engine_notices(&mut self, now: NicTime, engines: &mut Engines) {
        if engines.has_news() {
            self.tell_news(now, engines);
        }
    }

    fn tell_news(&mut self, now: NicTime, engines: &mut Engines) {
        while let Some((id, notice)) = engines.poll_notice() {
            let (kind, data) = match notice {
                Notice::Slow(rate) => (EventKind::EngineSlow, rate),
                Notice::Cut(left) => (EventKind::EngineError, left),
                Notice::Failed => (EventKind::EngineError, u64::MAX),
            };
            tracing::warn!(engine = %id, ?notice, "see Nic::engines");
            match kind {
                EventKind::EngineSlow => self.counters.engines_slow += 1,
                _ => self.counters.engine_errors += 1,
            }
            self.events.push(now, kind, id.0, data);
        }
    }
}
