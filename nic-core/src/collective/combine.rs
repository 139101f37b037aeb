//! The data path of a step: operands in, one pass, results out.
//!
//! Runs over the longest stretch that is contiguous on the bus for all operands and results. Memory
//! that the CPU cannot reach, and elements split across two separate pages, go through a bounce
//! buffer.
#![allow(unsafe_code)] // Reductions over memory that peers and kernels may write.

use ringbell_gtlb::Fault;
use ringbell_nic_abi::{DataType, ReduceOp, WireType};
use ringbell_onc_engines::reduce;
use smallvec::SmallVec;

use super::params::Params;
use crate::dma::{Dma, DmaAccess, ReadStatus};
use crate::link::Pieces;
use crate::types::Buffer;
use ringbell_gtlb::copy;

/// Bytes of one element type at most, so that the bounce buffers stay in the first-level cache.
const BLOCK: usize = 8 << 10;

/// Operands or results of a pass, and whether they have the wire's type. Few have more than two.
pub(crate) type Operands = SmallVec<[(Pieces, bool); 2]>;

/// One pass.
#[derive(Debug, Clone)]
pub(crate) struct Combine {
    pub(crate) dtype: DataType,
    pub(crate) op: ReduceOp,
    /// Type of those operands that came over the wire in another.
    pub(crate) wire: WireType,
    /// Operands, in order of reduction, and whether they have the wire's type.
    pub(crate) sources: Operands,
    /// Results, and whether they get the wire's type.
    pub(crate) results: Operands,
    /// Elements.
    pub(crate) count: u64,
    /// Elements done.
    pub(crate) done: u64,
    /// What slow memory has given for the next block.
    pub(crate) held: Held,
}

/// Operands that are read piece by piece, in the order in which slow memory gives them. Kept until
/// the block is whole: discarded bytes would be read again and again, and forever where two
/// operands are the same memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    /// Elements of the block; 0: none was begun.
    count: u64,
    sources: Vec<Gathered>,
}

#[derive(Debug, Clone)]
struct Gathered {
    bytes: Vec<u8>,
    done: usize,
}

enum At {
    Direct(*mut u8),
    Bounce,
}

/// Buffer and offset of a byte of a message.
pub(super) fn locate(p: &Pieces, mut offset: u64) -> Option<(Buffer, u64)> {
    for b in p.iter() {
        if offset < u64::from(b.len) {
            return Some((*b, offset));
        }
        offset -= u64::from(b.len);
    }
    None
}

impl Combine {
    fn bytes(&self, wire: bool) -> u64 {
        if wire {
            reduce::wire_bytes(self.wire) as u64
        } else {
            self.dtype.bytes()
        }
    }

    /// Runs on, at most `budget` elements. `Done` when all are done; `Pending` when the budget is
    /// used up or the memory is slow: call again.
    pub(crate) fn run(&mut self, dma: &mut Dma<'_>, budget: &mut u64) -> Result<ReadStatus, Fault> {
        while self.done < self.count {
            if *budget == 0 {
                return Ok(ReadStatus::Pending);
            }
            let left = (self.count - self.done).min(*budget);
            let n = match self.direct_block(dma, left)? {
                0 => self.block(dma, left)?,
                n => n,
            };
            if n == 0 {
                return Ok(ReadStatus::Pending);
            }
            self.done += n;
            *budget = budget.saturating_sub(n);
        }
        Ok(ReadStatus::Done)
    }

    /// One block where everything has an address of the CPU and no type changes, which is usual:
    /// each operand and result is looked up once. 0: it is not so.
    fn direct_block(&self, dma: &mut Dma<'_>, left: u64) -> Result<u64, Fault> {
        if self.held.count > 0 {
            return Ok(0);
        }
        let mut at = SmallVec::<[(Buffer, u64); 4]>::new();
        for (p, wire) in self.sources.iter().chain(&self.results) {
            let part = locate(p, self.done * self.dtype.bytes());
            match part.filter(|_| !*wire) {
                Some(part) => at.push(part),
                None => return Ok(0),
            }
        }
        let Some(spans) = direct_spans(self.dtype, at.into_iter(), left, dma)? else {
            return Ok(0);
        };
        spans.pass((self.dtype, self.op), self.sources.len(), dma);
        Ok(spans.count)
    }

    /// One contiguous block; 0: a read is pending.
    #[inline(never)]
    fn block(&mut self, dma: &mut Dma<'_>, left: u64) -> Result<u64, Fault> {
        // As long as all direct operands are contiguous.
        let mut n = left;
        let mut whole = true;
        let all = self.sources.iter().chain(&self.results);
        for (p, wire) in all.clone() {
            let size = self.bytes(*wire);
            let Some((b, at)) = locate(p, self.done * size) else {
                continue;
            };
            let run = u64::from(b.len) - at;
            let run = if dma.is_direct(&b) {
                dma.span(&b, at)?.len
            } else {
                run
            };
            whole &= run >= size && dma.is_direct(&b);
            n = n.min((run / size).max(1));
        }
        let converts = self.sources.iter().any(|s| s.1) || self.results.iter().any(|r| r.1);
        if !whole || converts {
            n = n.min((BLOCK / 8) as u64);
        }
        // A block that waits for memory keeps its length, independent of the present budget.
        if self.held.count > 0 {
            n = self.held.count;
        }
        let Some(held) = self.gather_all(dma, n)? else {
            return Ok(0);
        };
        let mut held = held.into_iter();
        let mut bounces: Vec<Vec<u8>> = Vec::new();
        let mut srcs: Vec<*const u8> = Vec::with_capacity(self.sources.len());
        for (p, wire) in &self.sources {
            let size = self.bytes(*wire);
            let ptr = match self.at(dma, p, size, n)? {
                At::Direct(ptr) => ptr.cast_const(),
                At::Bounce => {
                    bounces.push(held.next().unwrap_or_default());
                    bounces.last().map_or(std::ptr::null(), |b| b.as_ptr())
                }
            };
            if *wire {
                let mut wide = vec![0u8; n as usize * 4];
                // SAFETY: `ptr` has n elements of the wire's type (direct, or the bounce buffer);
                // `wide` has n of four bytes.
                unsafe { reduce::widen(self.wire, wide.as_mut_ptr(), ptr, n as usize) };
                bounces.push(wide);
                srcs.push(bounces.last().map_or(std::ptr::null(), |b| b.as_ptr()));
            } else {
                srcs.push(ptr);
            }
        }
        let mut dsts: Vec<*mut u8> = Vec::with_capacity(self.results.len());
        // What goes elsewhere afterwards: result, and its bounce buffer.
        let mut late: Vec<(usize, Vec<u8>)> = Vec::new();
        for (i, (p, wire)) in self.results.iter().enumerate() {
            let size = self.bytes(*wire);
            match self.at(dma, p, size, n)? {
                At::Direct(ptr) if !*wire => dsts.push(ptr),
                _ => {
                    let mut bytes = vec![0u8; (n * self.dtype.bytes()) as usize];
                    dsts.push(bytes.as_mut_ptr());
                    late.push((i, bytes));
                }
            }
        }
        // SAFETY: every source and destination has n elements: directly mapped spans of at least
        // that length, or bounce buffers of it, which live to the end of this function. A
        // destination is identical with a source (in place) or apart from it, as the checker has
        // proved.
        unsafe {
            if !self.in_hardware(dma, &dsts, &srcs, n) {
                reduce::fused(self.dtype, self.op, &dsts, &srcs, n as usize, false);
            }
        }
        let moved = n * self.dtype.bytes() * self.results.len() as u64;
        dma.count_copied(moved);
        for (i, bytes) in late {
            let (p, wire) = &self.results[i];
            if *wire {
                let mut narrow = vec![0u8; (n * self.bytes(true)) as usize];
                // SAFETY: both are vectors of n elements.
                unsafe {
                    reduce::narrow(self.wire, narrow.as_mut_ptr(), bytes.as_ptr(), n as usize);
                }
                scatter(dma, p, self.done * self.bytes(true), &narrow)?;
            } else {
                scatter(dma, p, self.done * self.bytes(false), &bytes)?;
            }
        }
        Ok(n)
    }

    /// Reduces in the card behind the NIC. `false`: there is none, it cannot do that, or there is
    /// nothing to reduce.
    ///
    /// # Safety
    /// As [`reduce::fused`].
    unsafe fn in_hardware(
        &self,
        dma: &Dma<'_>,
        dsts: &[*mut u8],
        srcs: &[*const u8],
        n: u64,
    ) -> bool {
        let Some(card) = dma.state.card.as_ref().filter(|_| srcs.len() > 1) else {
            return false;
        };
        let len = (n * self.dtype.bytes()) as usize;
        let copy = |src: &*const u8| {
            let mut operand = vec![0; len];
            // SAFETY: n elements are readable (the caller's contract); the vector has room for
            // them.
            unsafe { copy::copy(operand.as_mut_ptr(), *src, len) };
            operand
        };
        let operands: Vec<Vec<u8>> = srcs.iter().map(copy).collect();
        let operands: Vec<&[u8]> = operands.iter().map(Vec::as_slice).collect();
        let Some(sum) = card.lock().reduce(self.dtype, self.op, &operands) else {
            return false;
        };
        for dst in dsts {
            // SAFETY: n elements are writable (the caller's contract), and none of them is the
            // vector's.
            unsafe { copy::copy(*dst, sum.as_ptr(), len) };
        }
        true
    }

    /// The bytes of all operands that cannot be reached directly; `None`: memory is not done. All
    /// reads are begun before one is waited for.
    fn gather_all(&mut self, dma: &mut Dma<'_>, n: u64) -> Result<Option<Vec<Vec<u8>>>, Fault> {
        let mut held = std::mem::take(&mut self.held);
        let begun = held.count > 0;
        let mut whole = true;
        let mut i = 0;
        for (p, wire) in &self.sources {
            let size = self.bytes(*wire);
            if matches!(self.at(dma, p, size, n)?, At::Direct(_)) {
                continue;
            }
            if !begun {
                held.sources.push(Gathered {
                    bytes: vec![0; (n * size) as usize],
                    done: 0,
                });
            }
            if let Some(into) = held.sources.get_mut(i) {
                whole &= gather(dma, p, self.done * size, into)?;
            }
            i += 1;
        }
        if whole {
            let bytes = held.sources.into_iter().map(|g| g.bytes);
            return Ok(Some(bytes.collect()));
        }
        held.count = n;
        self.held = held;
        Ok(None)
    }

    fn at(&self, dma: &mut Dma<'_>, p: &Pieces, size: u64, n: u64) -> Result<At, Fault> {
        let Some((b, at)) = locate(p, self.done * size) else {
            // Our own sums are wrong; nothing is touched.
            return Err(Fault::OutOfBounds {
                va: ringbell_nic_abi::GpuVa(0),
                end: ringbell_nic_abi::GpuVa(0),
            });
        };
        let span = dma.span(&b, at)?;
        if span.len < n * size {
            return Ok(At::Bounce);
        }
        Ok(match dma.direct(span.prefix(n * size)) {
            Some(ptr) => At::Direct(ptr),
            None => At::Bounce,
        })
    }
}

/// A whole pass over `count` elements of buffers that no type changes, `sources` of them operands.
/// `false`: nothing happened, because some memory is not reached at once, or in pieces.
pub(super) fn pass(
    params: &Params,
    (buffers, sources): (&[Buffer], usize),
    count: u64,
    dma: &mut Dma<'_>,
) -> Result<bool, Fault> {
    let at = buffers.iter().map(|b| (*b, 0));
    let spans = direct_spans(params.dtype, at, count, dma)?;
    let Some(spans) = spans.filter(|s| s.count == count) else {
        return Ok(false);
    };
    spans.pass((params.dtype, params.op), sources, dma);
    Ok(true)
}

/// Where operands and results lie, and how many elements of each are mapped there.
struct Spans {
    at: SmallVec<[*mut u8; 4]>,
    count: u64,
}

/// Looks up each buffer once, from an offset on, for at most `most` elements. `None`: some memory
/// has no address of the CPU, or splits an element, or a card is to reduce.
fn direct_spans(
    dtype: DataType,
    buffers: impl Iterator<Item = (Buffer, u64)>,
    most: u64,
    dma: &mut Dma<'_>,
) -> Result<Option<Spans>, Fault> {
    if dma.state.card.is_some() {
        return Ok(None);
    }
    let size = dtype.bytes();
    let (mut at, mut count) = (SmallVec::new(), most);
    for (b, offset) in buffers {
        let span = dma.span(&b, offset)?;
        let Some(ptr) = dma.direct(span).filter(|_| span.len >= size) else {
            return Ok(None);
        };
        count = count.min(span.len / size);
        at.push(ptr);
    }
    Ok(Some(Spans { at, count }))
}

impl Spans {
    /// One pass over all elements; the first `sources` are operands.
    fn pass(&self, (dtype, op): (DataType, ReduceOp), sources: usize, dma: &mut Dma<'_>) {
        let (srcs, dsts) = self.at.split_at(sources);
        let srcs: SmallVec<[*const u8; 4]> = srcs.iter().map(|p| p.cast_const()).collect();
        // SAFETY: all are directly mapped spans of at least so many elements. A destination is
        // identical with a source or apart from it, as the checker has proved.
        unsafe { reduce::fused(dtype, op, dsts, &srcs, self.count as usize, false) };
        dma.count_copied(self.count * dtype.bytes() * dsts.len() as u64);
    }
}

/// Reads on with the bytes of a message; `false`: the memory is not done.
fn gather(dma: &mut Dma<'_>, p: &Pieces, from: u64, into: &mut Gathered) -> Result<bool, Fault> {
    while into.done < into.bytes.len() {
        let Some((b, at)) = locate(p, from + into.done as u64) else {
            return Ok(true);
        };
        let rest = &mut into.bytes[into.done..];
        let n = rest.len().min((u64::from(b.len) - at) as usize);
        if dma.read(&b, at, &mut rest[..n])? == ReadStatus::Pending {
            return Ok(false);
        }
        into.done += n;
    }
    Ok(true)
}

/// Writes bytes of a message.
fn scatter(dma: &mut Dma<'_>, p: &Pieces, to: u64, from: &[u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < from.len() {
        let Some((b, at)) = locate(p, to + done as u64) else {
            return Ok(());
        };
        let n = (from.len() - done).min((u64::from(b.len) - at) as usize);
        dma.write(&b, at, &from[done..done + n])?;
        done += n;
    }
    Ok(())
}
