//! What this rank reads and writes, from the `DIRECT` programs, by rank and chunk.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_onc_engines::program::{generate_all, Layout, Operand, Place, Program, Target};
use rustc_hash::FxHashMap;

use super::ranges::Ranges;
use super::DirectParams;

/// A run of chunks of a rank's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    pub(super) rank: u32,
    /// Of the destination buffer, not the source.
    pub(super) output: bool,
    first: u32,
}

impl Chunks {
    /// First element.
    pub(super) fn start(&self, layout: &Layout) -> u64 {
        layout.chunk(self.first).start
    }
}

/// One pass: sources combined, stored to all destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlanStep {
    pub(super) sources: Vec<Chunks>,
    pub(super) destinations: Vec<Chunks>,
    chunks: u32,
}

impl PlanStep {
    /// Elements of the value.
    pub(super) fn elements(&self, layout: &Layout) -> u64 {
        // The value has as many elements as any of its places.
        let Some(place) = self.destinations.first().or(self.sources.first()) else {
            return 0;
        };
        layout.chunk(place.first + self.chunks - 1).end - layout.chunk(place.first).start
    }
}

/// All that this rank does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    block_chunks: u32,
    input_blocks: u32,
    output_blocks: u32,
    pub(super) steps: Vec<PlanStep>,
}

impl Plan {
    pub(super) fn layout(&self, p: &DirectParams) -> Layout {
        Layout {
            count: p.count,
            block_chunks: self.block_chunks,
        }
    }

    /// Bytes of the source buffers; ranks that have one have the same.
    pub(super) fn input_bytes(&self, p: &DirectParams) -> u64 {
        let elements = p.count.saturating_mul(self.input_blocks.into());
        elements.saturating_mul(p.dtype.bytes())
    }

    /// Bytes of the largest destination buffer of any rank.
    pub(super) fn output_bytes(&self, p: &DirectParams) -> u64 {
        let elements = p.count.saturating_mul(self.output_blocks.into());
        elements.saturating_mul(p.dtype.bytes())
    }
}

#[derive(Debug)]
struct Shape {
    push: Plan,
    pull: Plan,
}

/// The plans of every shape used so far.
#[derive(Debug)]
pub(super) struct Plans {
    rank: u32,
    ranks: u32,
    shapes: FxHashMap<(CollectiveKind, u32), Shape>,
    /// In bytes, for the last call that pushed and the last that did not.
    push: Ranges,
    pull: Ranges,
}

impl Plans {
    pub(super) fn new(rank: u32, ranks: u32) -> Plans {
        Plans {
            rank,
            ranks,
            shapes: FxHashMap::default(),
            push: Ranges::default(),
            pull: Ranges::default(),
        }
    }

    /// Bytes that the largest source buffer of any rank has; all ranks come to the same.
    #[inline]
    pub(super) fn input_bytes(&mut self, p: &DirectParams) -> u64 {
        if self.pull.is_of(p) {
            return self.pull.input_bytes;
        }
        self.shape(p).map_or(0, |s| s.push.input_bytes(p))
    }

    /// This rank's own steps.
    pub(super) fn push(&mut self, p: &DirectParams) -> &Ranges {
        if !self.push.is_of(p) {
            let plan = self.shapes.get(&(p.kind, p.root)).map(|s| &s.push);
            self.push.fill(plan.unwrap_or(&Plan::default()), p);
        }
        &self.push
    }

    /// The parts of all ranks' steps whose results are this rank's.
    pub(super) fn pull(&mut self, p: &DirectParams) -> &Ranges {
        if !self.pull.is_of(p) {
            let plan = self.shapes.get(&(p.kind, p.root)).map(|s| &s.pull);
            self.pull.fill(plan.unwrap_or(&Plan::default()), p);
        }
        &self.pull
    }

    fn shape(&mut self, p: &DirectParams) -> Option<&Shape> {
        let key = (p.kind, p.root);
        if !self.shapes.contains_key(&key) {
            let shape = build(p, self.rank, self.ranks)?;
            self.shapes.insert(key, shape);
        }
        self.shapes.get(&key)
    }
}

/// `None` when the operation has no such program; the caller has chosen `DIRECT` only where it has.
fn build(p: &DirectParams, rank: u32, ranks: u32) -> Option<Shape> {
    let all = generate_all(p.kind, Algorithm::Direct, ranks, p.root).ok()?;
    let mine = all.get(rank as usize)?;
    let blocks = |chunks: fn(&Program) -> u32| {
        let most = all.iter().map(chunks).max().unwrap_or(0);
        most / mine.block_chunks.max(1)
    };
    let (input_blocks, output_blocks) = (blocks(|p| p.input_chunks), blocks(|p| p.output_chunks));
    let plan = |steps| Plan {
        block_chunks: mine.block_chunks,
        input_blocks,
        output_blocks,
        steps,
    };
    let push = mine.steps.iter().map(|s| step(mine, s, None)).collect();
    let pull = all
        .iter()
        .flat_map(|q| q.steps.iter().map(move |s| step(q, s, Some(rank))))
        .filter(|s| !s.destinations.is_empty())
        .collect();
    Some(Shape {
        push: plan(push),
        pull: plan(pull),
    })
}

/// A step of `program`; with `only`, the part of it whose results are that rank's.
fn step(
    program: &Program,
    step: &ringbell_onc_engines::program::Step,
    only: Option<u32>,
) -> PlanStep {
    let place = |rank: u32, place: Place| Chunks {
        rank,
        output: matches!(place, Place::Output(_)),
        first: place.chunks().first,
    };
    let source = |o: &Operand| match *o {
        Operand::Local(p) => Some(place(program.rank, p)),
        Operand::Peer { rank, place: p } => Some(place(rank, p)),
        // `DIRECT` programs have no other operands (the checker's rule).
        Operand::Net { .. } | Operand::Stream => None,
    };
    let destination = |t: &Target| match *t {
        Target::Local(p) => Some(place(program.rank, p)),
        Target::Peer { rank, place: p } => Some(place(rank, p)),
        Target::Net { .. } | Target::Stream => None,
    };
    let destinations = step.results.iter().filter_map(destination);
    PlanStep {
        sources: step.operands.iter().filter_map(source).collect(),
        destinations: destinations
            .filter(|d| only.is_none_or(|r| r == d.rank))
            .collect(),
        chunks: step.chunks,
    }
}
