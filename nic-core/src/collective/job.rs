//! The constant part of an operation that runs a program: its buffers, and the elements of each
//! segment.
//!
//! In the order of a stream a segment is a *window*: a part of one chunk, and all other chunks are
//! empty in it. Where the blocks of all ranks follow each other too, a rank with one of them takes
//! part in the windows of that block alone.

use std::ops::Range;
use std::sync::Arc;

use ringbell_nic_abi::GpuVa;
use ringbell_onc_engines::program::{Chunks, Layout, Place};

use super::number::Number;
use super::params::{Params, Side};
use super::plan::{Plan, PlanStep};
use super::scratch::Scratch;
use crate::link::Pieces;
use crate::types::Buffer;

/// How the windows of an operation follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Of each chunk.
    pub(crate) parts: u64,
    /// This rank, where the blocks of all ranks follow each other.
    pub(crate) own: Option<u32>,
}

/// The constant part of an operation.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) plan: Arc<Plan>,
    pub(crate) params: Params,
    pub(crate) ctx: u64,
    pub(crate) seq: Number,
    /// Hash that every message carries.
    pub(crate) hash: u32,
    pub(crate) input: Side,
    pub(crate) output: Side,
    pub(crate) layout: Layout,
    pub(crate) segments: u64,
    /// Bytes of a slot of NIC memory.
    pub(crate) slot_bytes: u64,
    /// In the order of a stream; segments are windows then.
    pub(crate) windows: Option<Windows>,
    /// Whether source and destination are kernels' streams. A window of each is in NIC memory while
    /// the program works on it.
    pub(crate) streams: [bool; 2],
    /// What a step sends to several goes by frames that the network copies.
    pub(crate) by_copies: bool,
    /// Where slots and windows are.
    pub(crate) scratch: Scratch,
}

impl Job {
    pub(super) fn size(&self) -> u64 {
        self.params.dtype.bytes()
    }

    pub(super) fn converts(&self) -> bool {
        self.params.converts()
    }

    /// Whether its messages end when they are met. Those without elements need no buffer of the
    /// peer, which would limit how far ahead a rank can be; a port's numbers must not wrap
    /// meanwhile.
    pub(super) fn must_meet(&self) -> bool {
        self.seq.port() != 0 && self.layout.count < self.layout.block_chunks.max(1).into()
    }

    /// Bytes of NIC memory of one instance.
    pub(crate) fn instance_bytes(&self) -> u64 {
        let slots = self.plan.slots.all(self.converts());
        let slots = u64::from(slots) + u64::from(self.plan.program.scratch_chunks);
        let windows = self.streams.iter().filter(|s| **s).count() as u64;
        (slots + windows) * self.slot_bytes
    }

    /// Where the window of the source, or of the destination, is, behind the slots of the program.
    pub(super) fn window_at(&self, scratch: u64, side: usize) -> u64 {
        let before = u64::from(self.plan.program.scratch_chunks);
        let other = u64::from(side == 1 && self.streams[0]);
        scratch + (before + other) * self.slot_bytes
    }

    /// The segments that this rank takes part in: the windows of others' blocks need nothing of it.
    pub(super) fn own_segments(&self) -> Range<u64> {
        let one_block = |chunks: u32| chunks <= self.layout.block_chunks.max(1);
        let p = &self.plan.program;
        match self.windows {
            Some(Windows {
                parts,
                own: Some(own),
            }) if one_block(p.input_chunks) && one_block(p.output_chunks) => {
                let own = u64::from(own);
                own * parts..(own + 1) * parts
            }
            _ => 0..self.segments,
        }
    }

    /// Bytes of the window of a side in one segment.
    pub(super) fn window_bytes(&self, side: usize, segment: u64) -> u64 {
        let p = &self.plan.program;
        let n = self.layout.block_chunks.max(1);
        let has_all = [p.input_chunks, p.output_chunks][side] > n;
        // Of all the blocks only one has elements in this segment.
        let first = match self.windows {
            Some(Windows {
                parts,
                own: Some(_),
            }) if has_all => (segment / parts) as u32,
            _ => 0,
        };
        let place = |i: u32| match side {
            0 => Place::Input(i.into()),
            _ => Place::Output(i.into()),
        };
        let all = (first..first + n).map(|i| self.elements(place(i), segment));
        all.sum::<u64>() * self.size()
    }

    /// Elements of a chunk of a buffer in one segment.
    #[inline]
    fn range(&self, place: Place, chunk: u32, segment: u64) -> Range<u64> {
        match self.windows {
            None => self.layout.segment(chunk, segment, self.segments),
            Some(windows) => self.window(windows, place, chunk, segment),
        }
    }

    /// Those of a window.
    #[cold]
    fn window(&self, w: Windows, place: Place, chunk: u32, segment: u64) -> Range<u64> {
        let Some(own) = w.own else {
            return self.layout.window(chunk, segment, w.parts);
        };
        let block = self.block_of(place, chunk).unwrap_or(own);
        self.layout.block_window(chunk, block, segment, w.parts)
    }

    /// Whether its only segment is all of it.
    #[inline]
    fn is_whole(&self) -> bool {
        self.segments == 1 && self.windows.is_none()
    }

    /// Elements of chunks that follow each other, all of them.
    #[inline]
    fn whole(&self, chunks: Chunks) -> Range<u64> {
        match chunks.end().checked_sub(1) {
            Some(last) if last >= chunks.first => {
                self.layout.chunk(chunks.first).start..self.layout.chunk(last).end
            }
            _ => 0..0,
        }
    }

    /// The block that a chunk of a buffer belongs to; `None`: this rank's, the only one there.
    fn block_of(&self, place: Place, chunk: u32) -> Option<u32> {
        let p = &self.plan.program;
        let chunks = match place {
            Place::Input(_) => p.input_chunks,
            Place::Output(_) => p.output_chunks,
            Place::Scratch(_) => 0,
        };
        let n = self.layout.block_chunks.max(1);
        (chunks > n).then_some(chunk / n)
    }

    /// Elements of a place in one segment.
    fn elements(&self, place: Place, segment: u64) -> u64 {
        let c = place.chunks();
        if self.is_whole() {
            // Chunks of any buffer are as long as those of the blocks that follow each other.
            let all = self.whole(c);
            return all.end - all.start;
        }
        let n = self.layout.block_chunks.max(1);
        let in_blocks = matches!(self.windows, Some(Windows { own: Some(_), .. }));
        let of = |i: u32| {
            // Slots of NIC memory are as long as the chunks of a block.
            let i = if in_blocks { i } else { i % n };
            let r = self.range(place, i, segment);
            r.end - r.start
        };
        (c.first..c.end()).map(of).sum()
    }

    /// Whether a step has nothing to do in one segment, on any rank: the block that it moves has
    /// windows of its own. Without any elements the ranks still exchange the step's messages.
    pub(super) fn skips(&self, s: &PlanStep, segment: u64) -> bool {
        matches!(self.windows, Some(Windows { own: Some(_), .. }))
            && self.step_elements(s, segment) == 0
    }

    /// A place of one chunk in the user's memory: its buffer, and offset and length there in bytes.
    pub(super) fn local(&self, place: Place, segment: u64) -> (Side, u64, u64) {
        let side = match place {
            Place::Output(_) => self.output,
            _ => self.input,
        };
        let r = self.range(place, place.chunks().first, segment);
        (side, r.start * self.size(), (r.end - r.start) * self.size())
    }

    /// Bytes of a step's value.
    pub(super) fn step_bytes(&self, s: &PlanStep, segment: u64) -> u64 {
        self.step_elements(s, segment) * self.size()
    }

    pub(super) fn step_elements(&self, s: &PlanStep, segment: u64) -> u64 {
        s.shape.map_or(0, |p| self.elements(p, segment))
    }

    /// The buffer of a place that is the program's memory, and no stream.
    #[inline]
    fn side(&self, place: Place) -> Option<&Side> {
        match place {
            Place::Input(_) if !self.streams[0] => Some(&self.input),
            Place::Output(_) if !self.streams[1] => Some(&self.output),
            _ => None,
        }
    }

    /// The memory of a place in an operation of one segment, if it is one buffer: found without a
    /// look at each chunk.
    #[inline]
    pub(super) fn single(&self, place: Place, scratch: u64) -> Option<Buffer> {
        if !self.is_whole() {
            return None;
        }
        let c = place.chunks();
        let r = self.whole(c);
        let len = u32::try_from((r.end - r.start) * self.size()).ok()?;
        match self.side(place) {
            Some(side) => Some(Buffer {
                region: side.region,
                va: GpuVa(side.va + r.start * self.size()),
                len,
            }),
            None if matches!(place, Place::Scratch(_)) => {
                // Slots adjoin where each is full.
                let slots = u64::from(c.end() - c.first);
                let adjoin = slots == 1 || u64::from(len) == slots * self.slot_bytes;
                let at = scratch + u64::from(c.first) * self.slot_bytes;
                adjoin.then(|| self.scratch.buffer(at, len))
            }
            None => None,
        }
    }

    /// The memory of a place in one segment.
    pub(super) fn pieces(&self, place: Place, segment: u64, scratch: u64) -> Pieces {
        let mut out = Pieces::default();
        let c = place.chunks();
        let size = self.size();
        if let Some(buffer) = self.single(place, scratch) {
            return Pieces::one(buffer);
        }
        for i in c.first..c.end() {
            let (side, stream) = match place {
                Place::Input(_) => (self.input, 0),
                Place::Output(_) => (self.output, 1),
                Place::Scratch(_) => {
                    let n = self.layout.block_chunks.max(1);
                    let r = self.range(place, i % n, segment);
                    let len = (r.end - r.start) * size;
                    let at = scratch + u64::from(i) * self.slot_bytes;
                    out.push(self.scratch.buffer(at, len as u32));
                    continue;
                }
            };
            let r = self.range(place, i, segment);
            if self.streams[stream] {
                let at = self.window_at(scratch, stream);
                let len = (r.end - r.start) * size;
                out.push(self.scratch.buffer(at, len as u32));
                continue;
            }
            out.push(Buffer {
                region: side.region,
                va: GpuVa(side.va + r.start * size),
                len: ((r.end - r.start) * size) as u32,
            });
        }
        out
    }

    pub(super) fn tag(&self, segment: u64, channel: u8, index: u32) -> u64 {
        self.seq.tag() | segment << 21 | u64::from(channel) << 13 | u64::from(index)
    }
}
