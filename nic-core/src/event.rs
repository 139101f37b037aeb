//! The event queue: events without a descriptor of their own, read by the host.

use std::collections::VecDeque;

use ringbell_nic_abi::{Event, EventKind};

use crate::types::NicTime;

/// A bounded queue of events. When it is full the newest is lost and counted; the reader learns the
/// number from an `Overflow` event and from the gap in the sequence numbers.
#[derive(Debug)]
pub(crate) struct EventQueue {
    events: VecDeque<Event>,
    capacity: usize,
    sequence: u64,
    lost_unreported: u64,
    lost: u64,
}

impl EventQueue {
    /// A queue of at most `capacity` unread events.
    pub(crate) fn new(capacity: usize) -> EventQueue {
        EventQueue {
            events: VecDeque::with_capacity(capacity),
            capacity,
            sequence: 0,
            lost_unreported: 0,
            lost: 0,
        }
    }

    /// Adds an event, or counts it as lost.
    pub(crate) fn push(&mut self, now: NicTime, kind: EventKind, session: u32, data: u64) {
        let sequence = self.sequence;
        self.sequence += 1;
        if self.events.len() == self.capacity {
            self.lost += 1;
            self.lost_unreported += 1;
            return;
        }
        self.events.push_back(Event {
            kind: kind.code(),
            session,
            data,
            time_ns: now.0,
            sequence,
        });
    }

    /// The oldest unread event. After a loss, an `Overflow` event follows what was kept.
    pub(crate) fn pop(&mut self, now: NicTime) -> Option<Event> {
        if let Some(e) = self.events.pop_front() {
            return Some(e);
        }
        let lost = std::mem::take(&mut self.lost_unreported);
        if lost == 0 {
            return None;
        }
        let sequence = self.sequence;
        self.sequence += 1;
        Some(Event {
            kind: EventKind::Overflow.code(),
            session: 0,
            data: lost,
            time_ns: now.0,
            sequence,
        })
    }

    /// Events lost since the NIC was made.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_is_counted_and_reported_once() {
        let mut q = EventQueue::new(2);
        for i in 0..5 {
            q.push(NicTime(i), EventKind::PeerClosed, 1, i);
        }
        let seen: Vec<_> = std::iter::from_fn(|| q.pop(NicTime(9)))
            .map(|e| (e.kind, e.data, e.sequence))
            .collect();
        let closed = EventKind::PeerClosed.code();
        let over = EventKind::Overflow.code();
        assert_eq!(seen, [(closed, 0, 0), (closed, 1, 1), (over, 3, 5)]);
        assert_eq!(q.lost(), 3);
        assert!(q.pop(NicTime(9)).is_none());
    }
}
