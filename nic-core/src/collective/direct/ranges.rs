//! The plans of a communicator's direct path: one for each kind and root, and in bytes for one
//! count and type.

use ringbell_nic_abi::CollectiveKind;
use ringbell_onc_engines::program::Order;
use rustc_hash::FxHashMap;

use super::steps::{build, Chunks, Plan, Shape};
use super::Params;

/// The plans of every kind and root used so far.
#[derive(Debug)]
pub(super) struct Plans {
    rank: u32,
    ranks: u32,
    order: Order,
    shapes: FxHashMap<(CollectiveKind, u32), Option<Shape>>,
}

impl Plans {
    pub(super) fn new(rank: u32, ranks: u32, order: Order) -> Plans {
        Plans {
            rank,
            ranks,
            order,
            shapes: FxHashMap::default(),
        }
    }

    pub(super) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// For one count and type: this rank's own steps, then the parts of all ranks' steps whose
    /// results are this rank's.
    pub(super) fn ranges(&mut self, p: &Params) -> [Ranges; 2] {
        match self.shape(p) {
            Some(s) => [Ranges::of(&s.push, p), Ranges::of(&s.pull, p)],
            None => Default::default(),
        }
    }

    /// Chunks of this rank's source that other ranks read, and of its destination that they write,
    /// in order.
    pub(super) fn shared(&mut self, p: &Params) -> [Vec<u32>; 2] {
        self.shape(p).map(|s| s.shared.clone()).unwrap_or_default()
    }

    fn shape(&mut self, p: &Params) -> Option<&Shape> {
        let (rank, ranks, order) = (self.rank, self.ranks, self.order);
        let shape = self.shapes.entry((p.kind, p.root));
        shape
            .or_insert_with(|| build(order, p, rank, ranks))
            .as_ref()
    }
}

/// Where a step's value begins in a rank's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) rank: u32,
    /// Of the destination buffer, not the source.
    pub(super) output: bool,
    /// Offset in the buffer, in bytes.
    pub(super) at: u64,
}

/// One pass: sources combined, stored to all destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) elements: u64,
    pub(super) bytes: u64,
    first: u32,
    sources: u32,
    destinations: u32,
}

impl Step {
    /// Where its runs are among those of all steps: sources, then destinations.
    #[inline]
    pub(super) fn runs(&self) -> (std::ops::Range<usize>, usize) {
        let first = self.first as usize;
        let all = (self.sources + self.destinations) as usize;
        (first..first + all, self.sources as usize)
    }
}

/// All that this rank does.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// Bytes of the source buffers; ranks that have one have the same.
    pub(super) input_bytes: u64,
    /// Bytes of the largest destination buffer of any rank.
    pub(super) output_bytes: u64,
    /// Chunks of a block.
    pub(super) block_chunks: u32,
    pub(super) steps: Vec<Step>,
    /// Of all steps: a step's sources, then its destinations.
    pub(super) runs: Vec<Run>,
}

impl Ranges {
    /// The plan for these parameters.
    pub(super) fn of(plan: &Plan, p: &Params) -> Ranges {
        let (layout, size) = (plan.layout(p), p.dtype.bytes());
        let mut all = Ranges {
            input_bytes: plan.input_bytes(p),
            output_bytes: plan.output_bytes(p),
            block_chunks: layout.block_chunks,
            ..Ranges::default()
        };
        for s in &plan.steps {
            let elements = s.elements(&layout);
            let step = Step {
                elements,
                bytes: elements * size,
                first: all.runs.len() as u32,
                sources: s.sources.len() as u32,
                destinations: s.destinations.len() as u32,
            };
            let run = |c: &Chunks| Run {
                rank: c.rank,
                output: c.output,
                at: c.start(&layout) * size,
            };
            all.runs.extend(s.sources.iter().map(run));
            all.runs.extend(s.destinations.iter().map(run));
            if all.extends_last(&step) {
                all.runs.truncate(step.first as usize);
                if let Some(last) = all.steps.last_mut() {
                    last.elements += step.elements;
                    last.bytes += step.bytes;
                }
            } else {
                all.steps.push(step);
            }
        }
        all
    }

    /// Whether a step does to the bytes behind those of the last step what that one does: with two
    /// sources, in either order. Every reduction of two values gives the same bits both ways.
    fn extends_last(&self, step: &Step) -> bool {
        let Some(last) = self.steps.last().filter(|s| s.bytes > 0) else {
            return false;
        };
        let behind = |a: &Run, b: &Run| {
            (a.rank, a.output) == (b.rank, b.output) && a.at + last.bytes == b.at
        };
        let all_behind =
            |a: &[Run], b: &[Run]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| behind(a, b));
        let (were, are) = (self.sources(last), self.sources(step));
        let sources = match (were, are) {
            ([a, b], [c, d]) => all_behind(were, are) || (behind(a, d) && behind(b, c)),
            _ => false,
        };
        sources && all_behind(self.destinations(last), self.destinations(step))
    }

    /// What a step reads, in the order in which it combines.
    #[inline]
    pub(super) fn sources(&self, s: &Step) -> &[Run] {
        &self.runs[s.first as usize..][..s.sources as usize]
    }

    /// Where it stores.
    #[inline]
    pub(super) fn destinations(&self, s: &Step) -> &[Run] {
        &self.runs[(s.first + s.sources) as usize..][..s.destinations as usize]
    }
}
