//! Bytes of a stream that are kept: sent and not acknowledged, or received and not taken.
#![allow(unsafe_code)] // Lends bytes to a batch, which is sent before they change.

use crate::datapath::{Run, Source};
use ringbell_net::port::Batch;

/// A ring of bytes, addressed by their positions in the stream. Its memory is taken with the first
/// byte.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: Vec<u8>,
    capacity: usize,
    /// Position of the first byte that is kept.
    start: u64,
    /// Position behind the last.
    end: u64,
}

impl Ring {
    /// A ring for that many bytes, rounded up to a power of two.
    pub(super) fn new(capacity: usize) -> Ring {
        Ring {
            bytes: Vec::new(),
            capacity: capacity.next_power_of_two(),
            start: 0,
            end: 0,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(super) fn free(&self) -> usize {
        // At most the capacity is kept.
        self.capacity - (self.end - self.start) as usize
    }

    fn index(&self, position: u64) -> usize {
        position as usize & (self.capacity - 1)
    }

    /// Contiguous room behind the last byte.
    pub(super) fn room(&mut self) -> &mut [u8] {
        self.room_behind(0)
    }

    /// Contiguous room that begins `skip` bytes behind the last one, of which so many must be free.
    pub(super) fn room_behind(&mut self, skip: usize) -> &mut [u8] {
        if self.bytes.is_empty() {
            self.bytes = vec![0; self.capacity];
        }
        let at = self.index(self.end + skip as u64);
        let n = (self.free() - skip).min(self.capacity - at);
        &mut self.bytes[at..at + n]
    }

    /// The first `n` bytes of the room belong to the stream.
    pub(super) fn filled(&mut self, n: usize) {
        debug_assert!(n <= self.free());
        self.end += n as u64;
    }

    /// Keeps bytes; there must be room for them.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.room();
            let n = room.len().min(bytes.len());
            debug_assert!(n > 0, "the window keeps the peer from sending more");
            if n == 0 {
                return;
            }
            room[..n].copy_from_slice(&bytes[..n]);
            self.filled(n);
            bytes = &bytes[n..];
        }
    }

    /// Bytes pass by an empty ring.
    pub(super) fn pass(&mut self, n: usize) {
        debug_assert!(self.is_empty());
        self.end += n as u64;
        self.start = self.end;
    }

    /// The first bytes that are kept, as far as they are contiguous.
    pub(super) fn head(&self) -> &[u8] {
        let at = self.index(self.start);
        let n = (self.end - self.start) as usize;
        &self.bytes[at.min(self.bytes.len())..][..n.min(self.capacity - at)]
    }

    /// Drops the first `n` bytes.
    pub(super) fn take(&mut self, n: usize) {
        self.start = (self.start + n as u64).min(self.end);
    }

    /// Adds bytes from a position on, all of which are kept, to a packet by reference.
    ///
    /// # Safety
    /// The batch is cleared before the ring is changed.
    pub(super) unsafe fn refer(&self, position: u64, len: usize, batch: &mut Batch) {
        let at = self.index(position);
        let n = len.min(self.capacity - at);
        for part in [&self.bytes[at..at + n], &self.bytes[..len - n]] {
            // SAFETY: the ring's memory is freed or written only after the batch is cleared (the
            // caller's contract).
            unsafe { batch.kept(part) };
        }
    }

    /// Copies bytes from a position on, all of which are kept.
    pub(super) fn copy(&self, position: u64, to: &mut [u8]) {
        let at = self.index(position);
        let n = to.len().min(self.capacity - at);
        let (first, second) = to.split_at_mut(n);
        first.copy_from_slice(&self.bytes[at..at + n]);
        let rest = second.len();
        second.copy_from_slice(&self.bytes[..rest]);
    }
}

/// The bytes that wait for receives.
pub(super) struct Waiting<'a> {
    pub(super) rx: &'a mut Ring,
    /// The end of the stream was reported.
    pub(super) ended: bool,
}

impl Source for Waiting<'_> {
    fn next(&mut self) -> Run<'_> {
        match self.rx.is_empty() {
            true => Run::Empty,
            false => Run::Own(self.rx.head()),
        }
    }

    fn consume(&mut self, n: usize) {
        self.rx.take(n);
    }

    fn is_ended(&self) -> bool {
        self.ended && self.rx.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_keep_their_positions_over_the_edge() {
        let mut ring = Ring::new(7);
        assert_eq!(
            (ring.capacity(), ring.free(), ring.head()),
            (8, 8, &b""[..])
        );
        ring.pass(5);
        ring.push(b"abcdef");
        assert_eq!((ring.head(), ring.free()), (&b"abc"[..], 2));
        let mut got = [0; 4];
        ring.copy(6, &mut got);
        assert_eq!(&got, b"bcde");
        ring.take(3);
        assert_eq!(
            (ring.head(), ring.start(), ring.end()),
            (&b"def"[..], 8, 11)
        );
        assert_eq!(ring.room().len(), 5);
        ring.take(9);
        assert!(ring.is_empty());
    }
}
