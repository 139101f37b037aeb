//! The two ends of a ring of frames. One sender and one receiver, in any threads or processes.
#![allow(unsafe_code)] // Slots of a private segment are used in place.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::segment::{Ring, Segment, Slot};
use crate::wire::MacAddr;

/// The producing end.
#[derive(Debug)]
pub(super) struct Sender {
    ring: Ring,
    slots: u64,
    /// Frames written.
    head: u64,
    /// Frames that the receiver may see.
    published: u64,
    /// The receiver's progress when last looked at; looked at again only when the ring seems full.
    seen: u64,
}

impl Sender {
    pub(super) fn new(segment: &Arc<Segment>, from: usize, to: usize) -> Sender {
        let ring = segment.ring(from, to);
        let head = segment.produced(&ring).load(Ordering::Acquire);
        Sender {
            ring,
            slots: segment.shape().slots() as u64,
            head,
            published: head,
            seen: segment.consumed(&ring).load(Ordering::Acquire),
        }
    }

    /// What the receiver had consumed when last looked at.
    pub(super) fn consumed(&self) -> u64 {
        self.seen
    }

    pub(super) fn is_full(&mut self, segment: &Segment) -> bool {
        if self.head.wrapping_sub(self.seen) < self.slots {
            return false;
        }
        // Acquire: pairs with the Release in `Receiver::release`; the receiver's reads of the slot
        // are over before we write it again.
        let seen = segment.consumed(&self.ring).load(Ordering::Acquire);
        // A receiver's claim to have consumed more than was sent is ignored.
        if self.published.wrapping_sub(seen) <= self.slots {
            self.seen = seen;
        }
        self.head.wrapping_sub(self.seen) >= self.slots
    }

    /// The next slot, in place. Only for private segments, and only when the ring is not full.
    pub(super) fn room<'a>(&'a mut self, segment: &'a Segment) -> &'a mut [u8] {
        assert!(segment.is_private() && self.head.wrapping_sub(self.seen) < self.slots);
        // SAFETY: the segment is private; this sender is the ring's only one (the port was claimed)
        // and the slot was returned by the receiver, so it is ours until `publish`.
        unsafe { segment.slot(&self.ring, self.head).in_place() }
    }

    /// Takes the slot written with [`Sender::room`]. Returns how many frames are unpublished.
    pub(super) fn commit(&mut self, segment: &Segment, len: usize) -> u64 {
        segment.slot(&self.ring, self.head).set_len(len);
        self.head = self.head.wrapping_add(1);
        self.head.wrapping_sub(self.published)
    }

    /// Copies a frame into the next slot; the ring must not be full. Returns how many frames are
    /// unpublished.
    pub(super) fn push(&mut self, segment: &Segment, frame: &[u8]) -> u64 {
        segment.slot(&self.ring, self.head).copy_in(frame);
        self.head = self.head.wrapping_add(1);
        self.head.wrapping_sub(self.published)
    }

    /// Whether the receiver was shown all that was written.
    #[inline]
    pub(super) fn is_published(&self) -> bool {
        self.published == self.head
    }

    /// Shows the receiver what was written. Returns whether there was anything new.
    pub(super) fn publish(&mut self, segment: &Segment) -> bool {
        if self.published == self.head {
            return false;
        }
        self.published = self.head;
        // Release: pairs with the Acquire in `Receiver::next`; the frame is visible before its
        // number.
        segment
            .produced(&self.ring)
            .store(self.head, Ordering::Release);
        true
    }
}

/// What a receiver found.
pub(super) enum Next {
    Empty,
    /// The ring's numbers contradict each other; it was skipped to its end.
    Broken,
    Frame(Slot, usize),
}

/// The consuming end.
#[derive(Debug)]
pub(super) struct Receiver {
    ring: Ring,
    slots: u64,
    /// Frames taken.
    tail: u64,
    /// Frames known to be there.
    head: u64,
    /// Frames given back to the sender.
    released: u64,
    /// Source address of the last frame, so that the address table is asked only when it changes.
    pub(super) last_src: MacAddr,
}

impl Receiver {
    pub(super) fn new(segment: &Arc<Segment>, from: usize, to: usize) -> Receiver {
        let ring = segment.ring(from, to);
        let tail = segment.consumed(&ring).load(Ordering::Acquire);
        Receiver {
            ring,
            slots: segment.shape().slots() as u64,
            tail,
            head: tail,
            released: tail,
            last_src: MacAddr::default(),
        }
    }

    fn release(&mut self, word: &AtomicU64) {
        if self.released != self.tail {
            self.released = self.tail;
            // Release: pairs with the Acquire in `Sender::is_full`; our reads come before it.
            word.store(self.tail, Ordering::Release);
        }
    }

    /// Whether no frame is there, and the sender has every slot back.
    #[inline]
    pub(super) fn is_empty(&self, segment: &Segment) -> bool {
        // Relaxed: `next` loads it again with Acquire before it looks at slots.
        let produced = segment.produced(&self.ring).load(Ordering::Relaxed);
        self.released == self.tail && produced == self.tail
    }

    /// Takes the next frame; the one before it goes back to the sender, a few at a time.
    pub(super) fn next(&mut self, segment: &Segment) -> Next {
        if self.tail == self.head {
            let consumed = segment.consumed(&self.ring);
            self.release(consumed);
            // Acquire: pairs with the Release in `Sender::publish`.
            let head = segment.produced(&self.ring).load(Ordering::Acquire);
            if head == self.tail {
                return Next::Empty;
            }
            if head.wrapping_sub(self.tail) > self.slots {
                self.tail = head;
                self.head = head;
                self.release(consumed);
                return Next::Broken;
            }
            self.head = head;
        } else if self.tail.wrapping_sub(self.released) >= self.slots / 4 {
            self.release(segment.consumed(&self.ring));
        }
        let slot = segment.slot(&self.ring, self.tail);
        self.tail = self.tail.wrapping_add(1);
        match slot.len() {
            Some(len) => Next::Frame(slot, len),
            None => Next::Broken,
        }
    }

    /// The frame that [`Receiver::next`] has just given, in place. Only for private segments.
    pub(super) fn frame<'a>(&'a self, segment: &'a Segment, slot: Slot, len: usize) -> &'a [u8] {
        assert!(segment.is_private());
        // SAFETY: the segment is private, this receiver is the ring's only one (the port was
        // claimed), and the slot goes back to the sender only in a later `next`, which needs
        // `&mut self`.
        let room = unsafe { slot.in_place() };
        &room[..len]
    }
}
