//! Operations of the direct path: what goes in, and what comes out.

use super::bounce::Bounce;
use super::pages::Pages;
use super::pass::{Cursor, Found};
use super::ranges::Ranges;
use super::record::{Form, Shape};
use super::Params;
use crate::memory::nic_memory::Block;

/// How an operation runs: the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Eager,
    Push,
    Pull,
    Bounce,
    Fallback,
}

/// How far a posted operation is.
#[derive(Debug)]
pub(super) enum Phase {
    /// Waits for the records of these ranks; those that have come and differ.
    Records { missing: u64, differ: u64 },
    /// Moves data.
    Pass { way: Way, cursor: Cursor },
    /// Waits for the flags of these ranks.
    Flags { missing: u64 },
    /// Goes through windows.
    Bounce(Box<Bounce>),
}

/// An operation of this rank as the path runs it: prepared once, posted as often as its buffers are pinned.
#[derive(Debug)]
pub(crate) struct DirectOp {
    /// The caller's name for it, since it was posted.
    pub(crate) token: u64,
    pub(super) seq: u64,
    pub(super) phase: Phase,
    /// An engine of this rank, or of one whose record has come, needs to see messages, which this path has not.
    pub(super) messages: bool,
    /// Of its record, once that is out.
    pub(super) flags: u8,
    pub(super) params: Params,
    /// The source buffer; empty where this rank has none.
    pub(super) input: Pages,
    /// The destination buffer; empty where this rank has none.
    pub(super) output: Pages,
    pub(super) form: Form,
    pub(super) shape: Shape,
    pub(super) push: Ranges,
    pub(super) pull: Ranges,
    /// Words of an eager record.
    pub(super) head: [u64; 3],
    /// The operands of an eager operation, where they can be found beforehand.
    pub(super) found: Option<Found>,
    /// Tables of pages that peers read during a call.
    pub(super) tables: [Option<Block>; 2],
}

impl DirectOp {
    /// Bytes that it occupies between calls, about.
    pub(crate) fn footprint(&self) -> usize {
        size_of::<DirectOp>() + (self.input.len() + self.output.len()) * size_of::<(u64, u64)>()
    }
}

/// An operation that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    pub(crate) op: Box<DirectOp>,
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Well.
    Done,
    /// Not started: a rank needs messages, or has no NIC memory for windows. All ranks conclude the same.
    Fallback,
    /// A rank gave other parameters; nothing was moved.
    Mismatch {
        /// The first that differs from this one.
        rank: u32,
    },
    /// A rank is gone, or published addresses that it does not export; no rank accesses the buffers any more.
    PeerFailed {
        /// Which.
        rank: u32,
    },
    /// A rank has aborted the communicator; no rank accesses the buffers any more.
    PeerAborted {
        /// Which.
        rank: u32,
    },
    /// After [`Direct::abort`](super::Direct::abort): no rank accesses the buffers any more.
    Aborted,
    /// As the three above, but a stopped peer may still write the buffers when it resumes.
    Unsafe {
        /// Which.
        rank: u32,
    },
}
