//! Operations on memory that peers cannot map, or must not write: pieces of it go through windows
//! in NIC memory.
//!
//! The operation is cut into *slices*: the same few elements of every chunk, so that the order of
//! operands stays as it is, and with it every bit. A rank has two windows, used in turn. For each
//! slice it
//!
//! 1. copies the pieces that its peers will read into a window, and tells them how many slices it
//!    has *filled*;
//! 2. once all ranks have filled theirs, runs its steps as a push between its own memory and the
//!    peers' windows, and tells how many it has *passed*;
//! 3. once all ranks have passed, copies the pieces that its peers have written out of the window.
//!
//! While one slice is passed the next is filled. A window is filled again when its last slice has
//! been copied out here, so when all ranks have passed that: none of them reads or writes the
//! windows any more. Slices are numbered through all such operations of a communicator, so the
//! flags only grow.
//!
//! A result has the place of the source in the window. In a `DIRECT` program the step that writes a
//! chunk of a rank's result is the only one that reads that chunk of its source, if any does. So a
//! step stores to lines that it has just loaded, and only two transfers between two cores' caches
//! remain of four.
#![allow(unsafe_code)] // Copies between own buffers and windows.

use ringbell_onc_engines::program::Layout;

use super::area::{Area, Flag};
use super::pages::Pages;
use super::ranges::{Plans, Ranges};
use super::Params;
use crate::memory::nic_memory::{Block, NicMemory, NIC_BUS};
use ringbell_gtlb::copy;

/// Windows in turn.
const TURNS: u64 = 2;

/// Bytes of a window. Those of two ranks stay in a core's own cache. More ranks often share cores,
/// and take turns for each slice, which costs more than the cache saves.
pub(super) fn window_bytes(ranks: u32) -> u64 {
    match ranks {
        ..=2 => 128 << 10,
        _ => 512 << 10,
    }
}

/// What a rank without room for windows gives as their address.
pub(super) const NO_WINDOWS: u64 = 1;

/// The windows of this rank.
#[derive(Debug)]
pub(super) struct Windows {
    block: Block,
    base: *mut u8,
    /// Of each.
    bytes: u64,
}

// SAFETY: an address range of NIC memory, accessed by raw copies only.
unsafe impl Send for Windows {}

impl Windows {
    pub(super) fn new(ranks: u32, nic_memory: &mut NicMemory) -> Option<Windows> {
        let bytes = window_bytes(ranks);
        let all = TURNS * bytes;
        let block = nic_memory.alloc(all)?;
        let base = nic_memory.at_bus(NIC_BUS + block.at, all)?;
        Some(Windows { block, base, bytes })
    }

    /// Bytes of NIC memory that they take.
    pub(super) fn bytes(&self) -> u64 {
        TURNS * self.bytes
    }

    pub(super) fn bus(&self) -> u64 {
        NIC_BUS + self.block.at
    }

    pub(super) fn free(self, nic_memory: &mut NicMemory) {
        nic_memory.free(self.block);
    }

    fn at(&self, slice: u64) -> *mut u8 {
        self.base.wrapping_add(offset(self.bytes, slice) as usize)
    }
}

fn offset(window: u64, slice: u64) -> u64 {
    slice % TURNS * window
}

/// The windows of all ranks in a slice.
#[derive(Debug)]
pub(super) struct Theirs<'a> {
    area: &'a Area,
    window: u64,
    slice: u64,
}

impl<'a> Theirs<'a> {
    pub(super) fn new(area: &'a Area, ranks: u32, slice: u64) -> Theirs<'a> {
        Theirs {
            area,
            window: window_bytes(ranks),
            slice,
        }
    }

    /// Bus address of the byte at an offset of a rank's window. `None`: its last byte of `bytes` is
    /// behind the window.
    pub(super) fn at(&self, rank: u32, inside: u64, bytes: u64) -> Option<u64> {
        let end = inside.checked_add(bytes)?;
        let start = self.area.windows_of(rank);
        let start = start.checked_add(offset(self.window, self.slice))?;
        (end <= self.window).then_some(start.checked_add(inside)?)
    }
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
    /// Chunks of them that go through windows.
    shared: [Vec<u32>; 2],
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
        let window = window_bytes(plans.ranks());
        let size = p.dtype.bytes();
        let block = (p.count * size).max(1);
        let chunks = u64::from(push.block_chunks.max(1));
        let most_blocks = push
            .input_bytes
            .max(push.output_bytes)
            .div_ceil(block)
            .max(1);
        let each = (window / (size * most_blocks * chunks)).max(1);
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
            shared: plans.shared(&p),
            filled: 0,
            passed: 0,
            taken: 0,
        }
    }

    /// Whether a window is free for the next slice.
    pub(super) fn can_fill(&self) -> bool {
        self.filled < self.slices && self.filled - self.taken < TURNS
    }

    /// Whether there is anything to do; `all_have` returns whether all other ranks' flags have come
    /// to a number.
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

    /// A slice of this rank's source or destination, of which the operation has `count` elements.
    pub(super) fn slice<'a>(
        &self,
        count: u64,
        buffer: &'a Pages,
        slice: u64,
        output: bool,
    ) -> Slice<'a> {
        let (p, ranges) = self.shape(slice);
        let of = |count: u64| Layout {
            count,
            block_chunks: ranges.block_chunks.max(1),
        };
        let size = p.dtype.bytes();
        Slice {
            buffer,
            whole: of(count),
            part: of(p.count),
            before: slice * self.each,
            size,
            bytes: self.blocks[usize::from(output)] * p.count * size,
        }
    }

    /// Copies the pieces of a slice that peers read from `buffer` into its window, or those that
    /// they have written there to `buffer`. The operation has `count` elements. Returns how many
    /// bytes.
    pub(super) fn copy(
        &self,
        count: u64,
        buffer: &Pages,
        windows: &Windows,
        slice: u64,
        output: bool,
    ) -> u64 {
        let own = self.slice(count, buffer, slice, output);
        let window = windows.at(self.base + slice);
        let mut copied = 0;
        for chunk in &self.shared[usize::from(output)] {
            let piece = own.part.chunk(*chunk);
            let (mut at, end) = (piece.start * own.size, piece.end * own.size);
            while at < end.min(own.bytes) {
                let (own, n) = own.in_chunk(*chunk, at);
                let inside = window.wrapping_add(at as usize);
                let (to, from) = if output { (own, inside) } else { (inside, own) };
                // SAFETY: the pieces of all slices tile the buffer, which is pinned, and those of
                // one slice its window.
                unsafe { copy::copy(to, from, n as usize) };
                at += n;
                copied += n;
            }
        }
        copied
    }
}

/// The pieces of an own buffer in a slice, as if they lay together, as they do in a window.
#[derive(Debug)]
pub(super) struct Slice<'a> {
    buffer: &'a Pages,
    whole: Layout,
    part: Layout,
    /// Elements of each chunk before the slice.
    before: u64,
    /// Of an element.
    size: u64,
    bytes: u64,
}

impl Slice<'_> {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes at an offset, and how many of them lie together.
    pub(super) fn at(&self, offset: u64) -> (*mut u8, u64) {
        let chunks = u64::from(self.part.block_chunks);
        let element = offset / self.size;
        let (block, inside) = (element / self.part.count, element % self.part.count);
        // The first chunk of the block that ends behind the element. Those before it may be empty.
        let ends = ((inside + 1) * chunks).div_ceil(self.part.count);
        self.in_chunk((block * chunks + ends - 1) as u32, offset)
    }

    /// The same, in a chunk.
    fn in_chunk(&self, chunk: u32, offset: u64) -> (*mut u8, u64) {
        let piece = self.part.chunk(chunk);
        let inside = offset - piece.start * self.size;
        let start = (self.whole.chunk(chunk).start + self.before) * self.size;
        let (at, run) = self.buffer.at(start + inside);
        (at, (run as u64).min(piece.end * self.size - offset))
    }
}
