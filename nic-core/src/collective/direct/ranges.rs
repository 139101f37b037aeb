//! A plan in bytes: for one count and type. Programs repeat their calls, so the last one is kept.

use super::steps::{Chunks, Plan};
use super::DirectParams;

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

/// All that this rank does.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    of: Option<DirectParams>,
    /// Bytes of the source buffers; ranks that have one have the same.
    pub(super) input_bytes: u64,
    /// Bytes of the largest destination buffer of any rank.
    pub(super) output_bytes: u64,
    pub(super) steps: Vec<Step>,
    /// Of all steps: a step's sources, then its destinations.
    runs: Vec<Run>,
}

impl Ranges {
    pub(super) fn is_of(&self, p: &DirectParams) -> bool {
        self.of.as_ref() == Some(p)
    }

    /// Makes it the plan's for these parameters; allocates only while it grows.
    pub(super) fn fill(&mut self, plan: &Plan, p: &DirectParams) {
        let (layout, size) = (plan.layout(p), p.dtype.bytes());
        self.steps.clear();
        self.runs.clear();
        for s in &plan.steps {
            let elements = s.elements(&layout);
            self.steps.push(Step {
                elements,
                bytes: elements * size,
                first: self.runs.len() as u32,
                sources: s.sources.len() as u32,
                destinations: s.destinations.len() as u32,
            });
            let run = |c: &Chunks| Run {
                rank: c.rank,
                output: c.output,
                at: c.start(&layout) * size,
            };
            self.runs.extend(s.sources.iter().map(run));
            self.runs.extend(s.destinations.iter().map(run));
        }
        self.input_bytes = plan.input_bytes(p);
        self.output_bytes = plan.output_bytes(p);
        self.of = Some(*p);
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
