//! What happens next, in the order of time.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use super::flow::Frame;
use super::link::LinkId;
use crate::fault::Breaks;

/// What happens to a node.
#[derive(Debug)]
pub(crate) enum What {
    /// A whole frame is at the end of a link.
    Crossed(LinkId, Box<Frame>),
    /// A link is free for the next frame that waits.
    Free(LinkId),
    /// A NIC has fetched a frame that it sends by a link.
    Fetched(LinkId, Box<Frame>),
    /// A NIC has taken a frame from one of its links, by its place among them.
    Received(usize),
    /// The switch at the end of a link pauses it, or lets it go on.
    Paused(LinkId, bool),
    /// A timer is due.
    Due,
    /// A kernel begins, or time may let its threads go on.
    Kernel,
    /// Its host looks at it.
    Looks,
    /// Something breaks.
    Breaks(Breaks),
    /// What its lane has done already.
    Ahead,
}

/// Something that happens. Times are picoseconds.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) at: u64,
    seq: u64,
    /// A rank, or a node behind them.
    pub(crate) node: usize,
    pub(crate) what: What,
}

impl Event {
    /// The order of time, then of the events' making.
    fn order(&self) -> (u64, u64) {
        (self.at, self.seq)
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> Ordering {
        self.order().cmp(&other.order())
    }
}

/// Events that have not happened yet.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    events: BinaryHeap<Reverse<Event>>,
    /// Those of a window, in their order. Others may be between them.
    near: VecDeque<Event>,
    seq: u64,
}

impl Queue {
    pub(crate) fn add(&mut self, at: u64, node: usize, what: What) {
        self.seq += 1;
        let seq = self.seq;
        let event = Event {
            at,
            seq,
            node,
            what,
        };
        self.events.push(Reverse(event));
    }

    pub(crate) fn next(&mut self) -> Option<Event> {
        match self.is_near_first() {
            true => self.near.pop_front(),
            false => self.events.pop().map(|e| e.0),
        }
    }

    fn is_near_first(&self) -> bool {
        match (self.near.front(), self.events.peek()) {
            (Some(near), Some(Reverse(other))) => near < other,
            (near, _) => near.is_some(),
        }
    }

    fn peek(&self) -> Option<&Event> {
        match self.is_near_first() {
            true => self.near.front(),
            false => self.events.peek().map(|e| &e.0),
        }
    }

    /// When the next event is.
    pub(crate) fn peek_at(&self) -> Option<u64> {
        self.peek().map(|e| e.at)
    }

    /// The node of the next event.
    pub(super) fn peek_node(&self) -> Option<usize> {
        self.peek().map(|e| e.node)
    }

    /// Whether a window has not passed.
    pub(crate) fn has_window(&self) -> bool {
        !self.near.is_empty()
    }

    /// Takes the events of a window: those before a time, and before something breaks. Returns
    /// them, and the time before which there are no others but those that they make.
    pub(crate) fn window(&mut self, mut end: u64) -> (VecDeque<Event>, u64) {
        let mut near = std::mem::take(&mut self.near);
        while let Some(Reverse(next)) = self.events.peek().filter(|e| e.0.at < end) {
            if matches!(next.what, What::Breaks(_)) {
                end = next.at;
                break;
            }
            near.extend(self.events.pop().map(|e| e.0));
        }
        (near, end)
    }

    /// Puts the events of a window back.
    pub(crate) fn put_back(&mut self, near: VecDeque<Event>) {
        self.near = near;
    }
}
