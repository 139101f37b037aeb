//! One direction of a wire, and the frames that wait for it.

use std::collections::VecDeque;

use super::flow::Frame;
use crate::profile::LINE_BYTES;

/// One direction of a wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkId(u32);

impl LinkId {
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) fn of(index: usize) -> LinkId {
        LinkId(index as u32)
    }

    /// The other direction of the wire.
    #[inline]
    pub(crate) fn back(self) -> LinkId {
        LinkId(self.0 ^ 1)
    }
}

/// Time that a frame occupies a link of this rate.
pub(super) fn frame_ps(gbps: f64, frame: usize) -> u64 {
    ((frame + LINE_BYTES) as f64 * 8_000.0 / gbps).round() as u64
}

/// A frame that waits for a link.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) frame: Box<Frame>,
    /// When it was given to the link.
    pub(super) given: u64,
    /// The link by which it came to the switch; none before a NIC's own link.
    pub(super) from: Option<LinkId>,
}

/// A link. Times are picoseconds.
#[derive(Debug)]
pub(super) struct Link {
    /// The node at its end.
    pub(super) to: usize,
    pub(super) gbps: f64,
    pub(super) delay_ps: u64,
    pub(super) is_cut: bool,
    /// The switch at its end has no room for more of its frames (PFC).
    pub(super) is_paused: bool,
    /// An event will start the next frame.
    pub(super) is_awaited: bool,
    /// When the frame that crosses it has left.
    pub(super) busy: u64,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// Bytes that came by it, and wait at the switch at its end.
    pub(super) stored: u64,
    /// That switch has paused it, which it may not know yet.
    pub(super) has_asked: bool,
}

impl Link {
    pub(super) fn new(to: usize, gbps: f64, delay_ps: u64) -> Link {
        Link {
            to,
            gbps,
            delay_ps,
            is_cut: false,
            is_paused: false,
            is_awaited: false,
            busy: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            stored: 0,
            has_asked: false,
        }
    }

    /// Time that a frame occupies the link.
    pub(super) fn frame_ps(&self, frame: usize) -> u64 {
        frame_ps(self.gbps, frame)
    }

    /// Bytes of the frames that wait, without the one that crosses.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Time that the frames that wait occupy it.
    pub(super) fn waiting_ps(&self) -> u64 {
        let frames = self.waiting.iter();
        frames.map(|w| self.frame_ps(w.frame.bytes.len())).sum()
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.waiting_bytes += waiting.frame.bytes.len() as u64;
        self.waiting.push_back(waiting);
    }

    /// The next frame, which leaves now.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        let next = self.waiting.pop_front()?;
        self.waiting_bytes -= next.frame.bytes.len() as u64;
        Some(next)
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}
