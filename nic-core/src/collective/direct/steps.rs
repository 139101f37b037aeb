//! Reads and writes of this rank, from the `DIRECT` programs, by rank and chunk.

use std::collections::BTreeSet;

use ringbell_nic_abi::Algorithm;
use ringbell_onc_engines::program::{
    generate_all_in, Layout, Operand, Order, Place, Program, Target,
};

use super::Params;

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
    pub(super) fn layout(&self, p: &Params) -> Layout {
        Layout {
            count: p.count,
            block_chunks: self.block_chunks,
        }
    }

    /// Bytes of the source buffers; ranks that have one have the same.
    pub(super) fn input_bytes(&self, p: &Params) -> u64 {
        let elements = p.count.saturating_mul(self.input_blocks.into());
        elements.saturating_mul(p.dtype.bytes())
    }

    /// Bytes of the largest destination buffer of any rank.
    pub(super) fn output_bytes(&self, p: &Params) -> u64 {
        let elements = p.count.saturating_mul(self.output_blocks.into());
        elements.saturating_mul(p.dtype.bytes())
    }
}

/// Both plans of a kind and root.
#[derive(Debug)]
pub(super) struct Shape {
    /// This rank's own steps.
    pub(super) push: Plan,
    /// The parts of all ranks' steps whose results are this rank's.
    pub(super) pull: Plan,
    /// Chunks of this rank's source that other ranks read, and of its destination that they write,
    /// in order.
    pub(super) shared: [Vec<u32>; 2],
}

/// `None` when the operation has no such program; the caller has chosen `DIRECT` only where it has.
pub(super) fn build(order: Order, p: &Params, rank: u32, ranks: u32) -> Option<Shape> {
    let all = generate_all_in(order, p.kind, Algorithm::Direct, ranks, p.root).ok()?;
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
    let mut shared = [BTreeSet::new(), BTreeSet::new()];
    for program in all.iter().filter(|q| q.rank != rank) {
        for s in program.steps.iter().map(|s| step(program, s, None)) {
            let places = s.sources.iter().chain(&s.destinations);
            for c in places.filter(|c| c.rank == rank) {
                shared[usize::from(c.output)].extend(c.first..c.first + s.chunks);
            }
        }
    }
    let pull = all
        .iter()
        .flat_map(|q| q.steps.iter().map(move |s| step(q, s, Some(rank))))
        .filter(|s| !s.destinations.is_empty())
        .collect();
    Some(Shape {
        push: plan(push),
        pull: plan(pull),
        shared: shared.map(|s| s.into_iter().collect()),
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

#[cfg(test)]
mod tests {
    use ringbell_nic_abi::CollectiveKind as K;

    use super::*;

    /// What windows in NIC memory rely on: a result is stored where the source lay (`bounce`).
    #[test]
    fn who_writes_a_chunk_of_a_peer_is_the_only_one_to_read_it() {
        let kinds = [
            K::AllReduce,
            K::Reduce,
            K::Broadcast,
            K::ReduceScatter,
            K::AllGather,
            K::Scatter,
            K::Gather,
            K::AllToAll,
        ];
        let mut shared = 0;
        for (kind, ranks) in kinds.into_iter().flat_map(|k| (1..=9).map(move |n| (k, n))) {
            for (root, order) in [(0, Order::Ring), (ranks - 1, Order::Rank)] {
                let root = if kind.has_root() { root } else { 0 };
                let all = generate_all_in(order, kind, Algorithm::Direct, ranks, root);
                let all = all.expect("a program");
                // Of every rank's steps: the chunks of other ranks, with the place of their value
                // in the step.
                let of = |output: bool| {
                    let mut found = Vec::new();
                    for program in &all {
                        for (i, s) in program.steps.iter().enumerate() {
                            let s = step(program, s, None);
                            let places = if output { &s.destinations } else { &s.sources };
                            for c in places.iter().filter(|c| c.rank != program.rank) {
                                let chunks = (0..s.chunks).map(|k| (c.rank, c.first + k, k));
                                found.extend(chunks.map(|at| (at, (program.rank, i))));
                            }
                        }
                    }
                    found
                };
                let (read, written) = (of(false), of(true));
                for ((rank, chunk, place), writer) in written {
                    for (at, reader) in &read {
                        if (at.0, at.1) == (rank, chunk) {
                            assert_eq!((at.2, *reader), (place, writer), "{kind:?} {ranks}");
                            shared += 1;
                        }
                    }
                }
            }
        }
        assert!(shared > 0);
    }
}
