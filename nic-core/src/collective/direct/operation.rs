//! Operations of the direct path: what goes in, and what comes out.

use super::pages::Pages;
use super::pass::Found;
use super::ranges::Ranges;
use super::record::{Form, Shape};
use super::Params;
use crate::memory::nic_memory::Block;

/// An operation of this rank as the path runs it: prepared once, posted as often as its buffers are pinned.
#[derive(Debug)]
pub(crate) struct DirectOp {
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
    /// The caller's name for it.
    pub(crate) token: u64,
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
