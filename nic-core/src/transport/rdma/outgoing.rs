//! Bytes of a stream that are not acknowledged: short sends in a ring, long ones by reference to
//! the memory where they lie.
//!
//! Both have their positions in the stream, and both count against the capacity. The ring has the
//! short ones alone, one behind the other, with positions of its own. What is referred to is read
//! again when a packet is repeated, so its send retires with the acknowledgement.
#![allow(unsafe_code)] // Memory goes to the port by address.

use std::collections::VecDeque;

use crate::dma::{each_mapped, DmaAccess, ReadStatus};
use crate::memory::lender::Lender;
use crate::transport::ring::Ring;
use crate::types::{Buffer, WorkToken};
use ringbell_net::port::Batch;
use ringbell_roce::qp::Unavailable;

/// Bytes that stay in memory.
#[derive(Debug)]
struct Referred {
    /// Their positions in the stream.
    start: u64,
    end: u64,
    /// Bytes of the stream before them that are not in the ring.
    before: u64,
    /// The send that they belong to, and its memory. `None`: it was taken back, and the bytes are
    /// lost.
    from: Option<(WorkToken, Buffer)>,
    /// Where they begin there.
    at: u64,
}

/// Where the next bytes are.
enum Part {
    /// In the ring, from its position on.
    Ring(u64),
    Memory(Buffer, u64),
    Lost,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Outgoing {
    ring: Ring,
    referred: VecDeque<Referred>,
    /// Bytes of the stream so far that are not in the ring.
    beside: u64,
    /// Position of the first byte.
    start: u64,
    /// Position behind the last.
    end: u64,
}

impl Outgoing {
    pub(super) fn new(capacity: usize, lender: &Lender) -> Outgoing {
        Outgoing {
            ring: Ring::new(capacity, lender),
            referred: VecDeque::new(),
            beside: 0,
            start: 0,
            end: 0,
        }
    }

    /// Gives back memory for more sends in memory than there are.
    pub(super) fn shrink(&mut self) {
        self.referred.shrink_to_fit();
    }

    pub(super) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Position of the first byte.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Position behind the last.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn free(&self) -> usize {
        // At most the capacity is kept.
        self.capacity() - (self.end - self.start) as usize
    }

    /// Contiguous room behind the last byte for `wanted` bytes, as far as there is memory.
    pub(super) fn room(&mut self, wanted: usize) -> &mut [u8] {
        let free = self.free();
        let room = self.ring.room(wanted.min(free));
        let n = room.len().min(free);
        &mut room[..n]
    }

    /// The first `n` bytes of the room belong to the stream.
    pub(super) fn filled(&mut self, n: usize) {
        self.ring.filled(n);
        self.end += n as u64;
    }

    /// The next bytes of the stream. `false`: they have to wait.
    pub(super) fn try_push(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.free() && self.ring.try_push(bytes);
        if fits {
            self.end += bytes.len() as u64;
        }
        fits
    }

    /// The next `n` bytes of the stream are those of a send from `at` on; there must be room for
    /// them.
    pub(super) fn refer(&mut self, token: WorkToken, from: Buffer, at: u32, n: u32) {
        let start = self.end;
        self.end += u64::from(n);
        self.referred.push_back(Referred {
            start,
            end: self.end,
            before: self.beside,
            from: Some((token, from)),
            at: at.into(),
        });
        self.beside += u64::from(n);
    }

    /// The memory of a send is read no more, or of all.
    pub(super) fn withdraw(&mut self, token: Option<WorkToken>) {
        for r in &mut self.referred {
            r.from
                .take_if(|(t, _)| token.is_none_or(|token| *t == token));
        }
    }

    /// Drops the first `n` bytes.
    pub(super) fn take(&mut self, n: usize) {
        self.start += n as u64;
        let start = self.start;
        while self.referred.front().is_some_and(|r| r.end <= start) {
            self.referred.pop_front();
        }
        let first = match self.referred.front() {
            None => start - self.beside,
            Some(r) => start.min(r.start) - r.before,
        };
        self.ring.take((first - self.ring.start()) as usize);
    }

    /// Where the bytes from a position on are, and how many of them.
    fn part(&self, position: u64, len: usize) -> (Part, usize) {
        let next = self.referred.partition_point(|r| r.end <= position);
        let until = |end: u64| len.min((end - position) as usize);
        match self.referred.get(next) {
            None => (Part::Ring(position - self.beside), len),
            Some(r) if position < r.start => (Part::Ring(position - r.before), until(r.start)),
            Some(r) => match r.from {
                Some((_, from)) => (
                    Part::Memory(from, r.at + (position - r.start)),
                    until(r.end),
                ),
                None => (Part::Lost, until(r.end)),
            },
        }
    }

    /// Adds bytes from a position on, all of which are kept, to a packet by reference.
    ///
    /// # Errors
    /// [`Unavailable`].
    ///
    /// # Safety
    /// The batch is cleared before anything else is done with the stream, and before memory is
    /// unmapped.
    pub(super) unsafe fn append(
        &self,
        mut position: u64,
        mut len: usize,
        batch: &mut Batch,
        dma: &mut dyn DmaAccess,
    ) -> Result<(), Unavailable> {
        while len > 0 {
            let (part, n) = self.part(position, len);
            match part {
                // SAFETY: the caller's contract.
                Part::Ring(at) => unsafe { self.ring.refer(at, n, batch) },
                Part::Memory(from, at) => {
                    // SAFETY: the caller's contract; the region is pinned until the send retires.
                    let done = unsafe { refer(&from, at, n, batch, dma) };
                    read(&from, at + done as u64, batch.room(n - done), dma)?;
                }
                Part::Lost => return Err(Unavailable::Fault),
            }
            position += n as u64;
            len -= n;
        }
        Ok(())
    }

    /// Copies bytes from a position on, all of which are kept.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub(super) fn copy(
        &self,
        mut position: u64,
        mut to: &mut [u8],
        dma: &mut dyn DmaAccess,
    ) -> Result<(), Unavailable> {
        while !to.is_empty() {
            let (part, n) = self.part(position, to.len());
            let (now, rest) = to.split_at_mut(n);
            match part {
                Part::Ring(at) => self.ring.copy(at, now),
                Part::Memory(from, at) => read(&from, at, now, dma)?,
                Part::Lost => return Err(Unavailable::Fault),
            }
            position += n as u64;
            to = rest;
        }
        Ok(())
    }
}

fn read(from: &Buffer, at: u64, to: &mut [u8], dma: &mut dyn DmaAccess) -> Result<(), Unavailable> {
    if to.is_empty() {
        return Ok(());
    }
    match dma.read(from, at, to) {
        Ok(ReadStatus::Done) => Ok(()),
        Ok(ReadStatus::Pending) => Err(Unavailable::Pending),
        Err(_) => Err(Unavailable::Fault),
    }
}

/// Adds bytes of memory to a packet by reference, as far as they are mapped. Returns how many.
///
/// # Safety
/// The region is pinned until the batch is cleared.
pub(super) unsafe fn refer(
    from: &Buffer,
    at: u64,
    len: usize,
    batch: &mut Batch,
    dma: &mut dyn DmaAccess,
) -> usize {
    each_mapped(dma, from, at, len, |bytes, n| {
        // SAFETY: the span is mapped (checked by `direct`), and stays so (the caller's contract).
        unsafe { batch.memory(bytes, n) };
    })
}

/// Whether all those bytes can be read at once, whenever a packet needs them.
pub(super) fn is_at_hand(from: &Buffer, at: u64, len: usize, dma: &mut dyn DmaAccess) -> bool {
    dma.is_immediate() || each_mapped(dma, from, at, len, |_, _| {}) == len
}
