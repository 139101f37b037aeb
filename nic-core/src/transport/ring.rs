//! Bytes of a stream that are kept: sent and not acknowledged, or received and not taken.
#![allow(unsafe_code)] // Lends bytes to a batch, which is sent before they change.

use crate::datapath::{Run, Source};
use crate::memory::lender::{Lender, Lent};
use ringbell_net::port::Batch;

/// Memory that a ring keeps when it is empty: short messages need no loan.
const AT_REST: usize = 1 << 10;

/// A ring of bytes, addressed by their positions in the stream. Its memory is lent as bytes come,
/// and goes back with the last.
#[derive(Debug)]
pub(super) struct Ring {
    /// As many bytes as a power of two, or none.
    memory: Lent,
    capacity: usize,
    /// The position at the memory's first byte: an empty ring begins there, so that what comes next
    /// lies in one piece.
    base: u64,
    /// Position of the first byte that is kept.
    start: u64,
    /// Position behind the last.
    end: u64,
    /// A write to the room behind the last byte may be under way.
    has_draft: bool,
}

impl Ring {
    /// A ring for that many bytes, rounded up to a power of two.
    pub(super) fn new(capacity: usize, lender: &Lender) -> Ring {
        Ring {
            memory: lender.nothing(),
            capacity: capacity.next_power_of_two(),
            base: 0,
            start: 0,
            end: 0,
            has_draft: false,
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

    fn len(&self) -> usize {
        // At most the capacity is kept.
        (self.end - self.start) as usize
    }

    pub(super) fn free(&self) -> usize {
        self.capacity - self.len()
    }

    fn index(&self, position: u64) -> usize {
        (position - self.base) as usize & self.memory.bytes.len().wrapping_sub(1)
    }

    /// Has memory for `n` bytes more, of which so many must be free. What was `promised` to a peer
    /// is always lent, else less may be there.
    #[inline]
    fn reserve(&mut self, n: usize, promised: bool) {
        if self.is_empty() && !self.has_draft {
            self.base = self.end;
        }
        if self.len() + n > self.memory.bytes.len() {
            self.grow(self.len() + n, promised);
        }
    }

    #[cold]
    fn grow(&mut self, needed: usize, promised: bool) {
        let mut len = needed.next_power_of_two().max(AT_REST).min(self.capacity);
        while len > self.memory.bytes.len() {
            if let Some(mut more) = self.memory.another(len, promised) {
                let kept = self.len();
                self.copy(self.start, &mut more.bytes[..kept]);
                self.base = self.start;
                self.memory = more;
                return;
            }
            len /= 2;
        }
    }

    /// Contiguous room behind the last byte for `wanted` bytes, as far as it is lent.
    pub(super) fn room(&mut self, wanted: usize) -> &mut [u8] {
        self.reserve(wanted.min(self.free()), false);
        self.rest_of(0)
    }

    /// Contiguous room that begins `skip` bytes behind the last one, of which so many must be free.
    /// It stays where it is until it is filled.
    pub(super) fn room_behind(&mut self, skip: usize) -> &mut [u8] {
        self.reserve(self.free(), true);
        self.rest_of(skip)
    }

    fn rest_of(&mut self, skip: usize) -> &mut [u8] {
        let (at, all) = (self.index(self.end + skip as u64), self.memory.bytes.len());
        let n = (all - self.len() - skip).min(all - at);
        self.has_draft = n > 0;
        &mut self.memory.bytes[at..at + n]
    }

    /// The first `n` bytes of the room belong to the stream.
    pub(super) fn filled(&mut self, n: usize) {
        debug_assert!(self.len() + n <= self.memory.bytes.len());
        self.end += n as u64;
        self.has_draft = false;
        self.rest();
    }

    /// Gives memory back that nothing is in, unless it is little.
    #[inline]
    fn rest(&mut self) {
        if self.is_empty() && self.memory.bytes.len() > AT_REST && !self.has_draft {
            self.memory.give_back();
        }
    }

    /// Keeps bytes that a peer may send by its window.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        debug_assert!(
            bytes.len() <= self.free(),
            "the window keeps the peer from sending more"
        );
        self.reserve(bytes.len().min(self.free()), true);
        self.add(bytes);
    }

    /// Keeps all of the bytes or none: `false`, and they have to wait.
    pub(super) fn try_push(&mut self, bytes: &[u8]) -> bool {
        if self.free() < bytes.len() {
            return false;
        }
        self.reserve(bytes.len(), false);
        let has_room = self.memory.bytes.len() - self.len() >= bytes.len();
        if has_room {
            self.add(bytes);
        }
        has_room
    }

    /// Adds bytes as far as there is memory.
    fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.rest_of(0);
            let n = room.len().min(bytes.len());
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
        let all = &self.memory.bytes[..];
        let at = self.index(self.start).min(all.len());
        &all[at..][..self.len().min(all.len() - at)]
    }

    /// Drops the first `n` bytes.
    pub(super) fn take(&mut self, n: usize) {
        self.start = (self.start + n as u64).min(self.end);
        self.rest();
    }

    /// Adds bytes from a position on, all of which are kept, to a packet by reference.
    ///
    /// # Safety
    /// The batch is cleared before the ring is changed.
    pub(super) unsafe fn refer(&self, position: u64, len: usize, batch: &mut Batch) {
        let at = self.index(position);
        let n = len.min(self.memory.bytes.len() - at);
        for part in [
            &self.memory.bytes[at..at + n],
            &self.memory.bytes[..len - n],
        ] {
            // SAFETY: the ring's memory is freed or written only after the batch is cleared (the
            // caller's contract).
            unsafe { batch.kept(part) };
        }
    }

    /// Copies bytes from a position on, all of which are kept.
    pub(super) fn copy(&self, position: u64, to: &mut [u8]) {
        let at = self.index(position).min(self.memory.bytes.len());
        let n = to.len().min(self.memory.bytes.len() - at);
        let (first, second) = to.split_at_mut(n);
        first.copy_from_slice(&self.memory.bytes[at..at + n]);
        let rest = second.len();
        second.copy_from_slice(&self.memory.bytes[..rest]);
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
        let mut ring = Ring::new(7, &Lender::new(0));
        assert_eq!(
            (ring.capacity(), ring.free(), ring.head()),
            (8, 8, &b""[..])
        );
        ring.pass(5);
        ring.push(b"abcdef");
        assert_eq!((ring.head(), ring.free()), (&b"abcdef"[..], 2));
        let mut got = [0; 4];
        ring.copy(6, &mut got);
        assert_eq!(&got, b"bcde");
        ring.take(3);
        assert_eq!(
            (ring.head(), ring.start(), ring.end()),
            (&b"def"[..], 8, 11)
        );
        assert_eq!(ring.room(9).len(), 2, "up to the edge");
        ring.take(9);
        assert!(ring.is_empty());
    }

    /// The bytes that a ring keeps.
    fn kept(ring: &Ring) -> Vec<u8> {
        let mut all = vec![0; ring.len()];
        ring.copy(ring.start(), &mut all);
        all
    }

    #[test]
    fn memory_grows_with_what_is_kept_and_goes_back_with_the_last_byte() {
        let (lender, capacity) = (Lender::new(1 << 20), 64 << 10);
        let mut ring = Ring::new(capacity, &lender);
        let mut expected = std::collections::VecDeque::new();
        let mut next = 0_u32;
        // Begins close to every edge, and crosses it.
        for round in 0..200_u64 {
            ring.pass(300 * round as usize % 999);
            for n in [1, 700, 900, 5_000, 30_000] {
                let bytes: Vec<u8> = (0..n).map(|k| (next + k) as u8).collect();
                next += 7 * n;
                expected.extend(bytes.iter().copied());
                ring.push(&bytes);
                let gone = (round as usize * 13) % 600;
                ring.take(gone);
                expected.drain(..gone.min(expected.len()));
                assert!(kept(&ring) == expected.make_contiguous(), "{round} {n}");
            }
            assert!(lender.lent() >= ring.len() && lender.lent() <= capacity);
            ring.take(capacity);
            expected.clear();
            assert_eq!(lender.lent(), 0);
        }
    }

    #[test]
    fn without_a_loan_a_ring_has_the_memory_that_it_keeps_at_rest() {
        let lender = Lender::new(0);
        let mut ring = Ring::new(1 << 16, &lender);
        assert_eq!(ring.room(9_000).len(), 2 * AT_REST);
        ring.filled(2_024);
        assert!(ring.try_push(&[1; 24]) && !ring.try_push(&[1]));
        assert_eq!((ring.room(1).len(), ring.free() > 60_000), (0, true));
        ring.take(40);
        assert!(ring.try_push(&[2; 40]) && !ring.try_push(&[2; 40]));
        // What a peer was promised is there.
        let mut rx = Ring::new(1 << 16, &lender);
        rx.push(&[3; 1 << 16]);
        assert_eq!((rx.len(), lender.lent()), (1 << 16, 1 << 16));
        // Room in which a write may be under way stays.
        let room = rx.room(1).len();
        assert_eq!(room, 0);
        rx.take(5);
        assert_eq!(rx.room_behind(0).len(), 5);
        rx.take(1 << 16);
        assert_eq!(lender.lent(), 1 << 16);
        rx.filled(5);
        rx.take(5);
        assert_eq!(lender.lent(), 0);
        // Room that got nothing goes back too.
        assert_eq!(rx.room_behind(0).len(), 1 << 16);
        rx.filled(0);
        assert_eq!(lender.lent(), 0);
    }
}
