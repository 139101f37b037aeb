//! Reports to the host: events, counters, and the page of the status registers.

use ringbell_nic_abi::{EventKind, SessionId};

use super::mailbox::Mailbox;
use crate::engine::{Engines, Notice};
use crate::event::EventQueue;
use crate::types::NicTime;

/// Numbers that only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Descriptors accepted.
    pub accepted: u64,
    /// Descriptors retired.
    pub retired: u64,
    /// Malformed descriptors, a part of the accepted.
    pub bad_descriptors: u64,
    /// Operations that retired because their time was up.
    pub timed_out: u64,
    /// DMA faults.
    pub faults: u64,
    /// Payload bytes sent.
    pub tx_bytes: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
    /// Payload bytes copied by this NIC.
    pub copied_bytes: u64,
    /// Payload bytes that went through NIC memory because the peer could not reach them, a part of
    /// the copied.
    pub staged_bytes: u64,
    /// Payload bytes that the memory's own engine copied inside it, past host and NIC memory; a
    /// part of the copied.
    pub direct_bytes: u64,
    /// Times that an engine was measured slower than it declares or than its stream.
    pub engines_slow: u64,
    /// Streams that ended inside an item of an engine, and engines that have failed.
    pub engine_errors: u64,
    /// Events lost.
    pub events_lost: u64,
    /// Steps.
    pub steps: u64,
}

/// See the module text.
pub(crate) struct Report {
    pub(crate) events: EventQueue,
    pub(crate) counters: Counters,
    /// Queue and word of the last malformed descriptor.
    pub(super) last_bad: u32,
    /// What kernels tell the host.
    pub(super) mailbox: Mailbox,
}

impl Report {
    pub(super) fn new(event_capacity: usize) -> Report {
        Report {
            events: EventQueue::new(event_capacity),
            counters: Counters::default(),
            last_bad: 0,
            mailbox: Mailbox::default(),
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
