//! Operations on memory that peers cannot map, or must not write: pieces of it go through windows in NIC memory.
//!
//! The operation is cut into *slices*: the same few elements of every chunk, so that the order of operands stays as it
//! is, and with it every bit. A rank has two windows for sources and two for results, used in turn. For each slice it
//!
//! 1. copies its pieces into a source window, and tells its peers how many slices it has *filled*;
//! 2. once all ranks have filled theirs, runs its steps as a push between the windows, and tells how many it has *passed*;
//! 3. once all ranks have passed, copies its pieces out of the result window.
//!
//! While one slice is passed the next is filled. A window is filled again when its last slice has been copied out here,
//! so when all ranks have passed that: none of them reads or writes the windows any more. Slices are numbered through all
//! such operations of a communicator, so the flags only grow.
#![allow(unsafe_code)] // Copies between own buffers and windows.

use ringbell_gtlb::PAGE_BYTES;
use ringbell_onc_engines::program::Layout;

use super::area::Flag;
use super::pages::{Access, Pages, INLINE_PAGES};
use super::ranges::{Plans, Ranges};
use super::record::Record;
use super::Params;
use crate::copy;
use crate::memory::nic_memory::{Block, NicMemory, NIC_BUS};

/// Bytes of a window: as many pages as a record names itself.
const WINDOW: u64 = INLINE_PAGES as u64 * PAGE_BYTES;
/// Windows in turn.
const TURNS: u64 = 2;
/// Windows of both sides.
pub(super) const ALL: u64 = 2 * TURNS * WINDOW;

/// What a rank without room for windows gives as their address.
pub(super) const NO_WINDOWS: u64 = 1;

/// The windows of this rank.
#[derive(Debug)]
pub(super) struct Windows {
    block: Block,
    base: *mut u8,
}

// SAFETY: an address range of NIC memory, accessed by raw copies only.
unsafe impl Send for Windows {}

impl Windows {
    pub(super) fn new(nic_memory: &mut NicMemory) -> Option<Windows> {
        let block = nic_memory.alloc(ALL)?;
        let base = nic_memory.at_bus(NIC_BUS + block.at, ALL)?;
        Some(Windows { block, base })
    }

    pub(super) fn bus(&self) -> u64 {
        NIC_BUS + self.block.at
    }

    pub(super) fn free(self, nic_memory: &mut NicMemory) {
        nic_memory.free(self.block);
    }

    fn at(&self, slice: u64, output: bool) -> *mut u8 {
        self.base.wrapping_add(offset(slice, output) as usize)
    }

    /// The window of a slice as a buffer of so many bytes.
    pub(super) fn buffer(&self, slice: u64, output: bool, bytes: u64) -> Pages {
        let access = Access {
            exported: true,
            writable: true,
        };
        let at = |offset: u64| self.at(slice, output).wrapping_add(offset as usize);
        let bus = self.bus() + offset(slice, output);
        let span = |offset: u64| Ok::<_, ()>((bus + offset, at(offset), bytes - offset));
        // Addresses of its own, from 0 on: a window is two pages.
        Pages::new(0, bytes, access, span).unwrap_or_else(|()| Pages::none())
    }
}

fn offset(slice: u64, output: bool) -> u64 {
    (slice % TURNS * 2 + u64::from(output)) * WINDOW
}

/// A peer's windows of a slice, as its record would name them.
pub(super) fn record(bus: u64, slice: u64) -> Record {
    Record::of_windows([false, true].map(|output| bus.saturating_add(offset(slice, output))))
}

/// Progress of one such operation. Counts of slices are relative to its first.
#[derive(Debug)]
pub(super) struct Bounce {
    /// Slices before it.
    base: u64,
    pub(super) slices: u64,
    /// Elements of each chunk in a slice, but in the last.
    each: u64,
    /// All but the last slice, and the last.
    shapes: [(Params, Ranges); 2],
    /// Blocks of this rank's source and destination.
    blocks: [u64; 2],
    pub(super) filled: u64,
    pub(super) passed: u64,
    pub(super) taken: u64,
}

impl Bounce {
    /// Of an operation with these parameters, whose own source and destination have so many bytes.
    pub(super) fn new(
        p: Params,
        push: &Ranges,
        bytes: [u64; 2],
        base: u64,
        plans: &mut Plans,
    ) -> Bounce {
        let size = p.dtype.bytes();
        let block = (p.count * size).max(1);
        let chunks = u64::from(push.block_chunks.max(1));
        let most_blocks = push
            .input_bytes
            .max(push.output_bytes)
            .div_ceil(block)
            .max(1);
        let each = (WINDOW / (size * most_blocks * chunks)).max(1);
        let slices = p.count.div_ceil(chunks).div_ceil(each).max(1);
        let of = |plans: &mut Plans, count: u64| {
            let p = Params { count, ..p };
            let [push, _] = plans.ranges(&p);
            (p, push)
        };
        Bounce {
            base,
            slices,
            each,
            shapes: [
                of(plans, each * chunks),
                of(plans, p.count - (slices - 1) * each * chunks),
            ],
            blocks: bytes.map(|b| b / block),
            filled: 0,
            passed: 0,
            taken: 0,
        }
    }

    /// Whether a source window is free for the next slice.
    pub(super) fn can_fill(&self) -> bool {
        self.filled < self.slices && self.filled - self.taken < TURNS
    }

    /// Whether there is anything to do; `all_have` returns whether all other ranks' flags have come to a number.
    pub(super) fn can_move(&self, all_have: &dyn Fn(Flag, u64) -> bool) -> bool {
        self.can_fill()
            || self.taken < self.passed && all_have(Flag::Passed, self.number(self.taken + 1))
            || self.passed < self.filled && all_have(Flag::Filled, self.number(self.passed + 1))
    }

    /// How many slices the communicator has seen when this one has so many.
    pub(super) fn number(&self, slices: u64) -> u64 {
        self.base + slices
    }

    pub(super) fn shape(&self, slice: u64) -> &(Params, Ranges) {
        &self.shapes[usize::from(slice + 1 == self.slices)]
    }

    /// Bytes of this rank's source and destination in a slice.
    pub(super) fn bytes(&self, slice: u64) -> [u64; 2] {
        let (p, _) = self.shape(slice);
        self.blocks.map(|b| b * p.count * p.dtype.bytes())
    }

    /// Copies this rank's pieces of a slice from `buffer` into its source window, or there from its result window. The
    /// operation has `count` elements. Returns how many bytes.
    pub(super) fn copy(
        &self,
        count: u64,
        buffer: &Pages,
        windows: &Windows,
        slice: u64,
        output: bool,
    ) -> u64 {
        let (p, ranges) = self.shape(slice);
        let (chunks, size) = (ranges.block_chunks.max(1), p.dtype.bytes());
        let of = |count: u64| Layout {
            count,
            block_chunks: chunks,
        };
        let (whole, part) = (of(count), of(p.count));
        let window = windows.at(self.base + slice, output);
        let blocks = self.blocks[usize::from(output)];
        let mut copied = 0;
        for i in 0..blocks as u32 * chunks {
            let piece = part.chunk(i);
            let (from, len) = (piece.start * size, (piece.end - piece.start) * size);
            let at = (whole.chunk(i).start + slice * self.each) * size;
            let mut done = 0;
            while done < len {
                let (own, run) = buffer.at(at + done);
                let n = (run as u64).min(len - done);
                let inside = window.wrapping_add((from + done) as usize);
                let (to, from) = if output { (own, inside) } else { (inside, own) };
                // SAFETY: the pieces of all slices tile the buffer, which is pinned, and those of one slice its window.
                unsafe { copy::copy(to, from, n as usize) };
                done += n;
            }
            copied += len;
        }
        copied
    }
}
