//! The generators' builder of programs.

use ringbell_nic_abi::{Algorithm, CollectiveKind};

use crate::program::{Operand, Order, Program, Step, Target};

/// A program under construction.
#[derive(Debug)]
pub(super) struct Builder {
    program: Program,
    /// The order of programs that can have both.
    wanted: Order,
}

impl Builder {
    /// No buffers and no steps yet.
    pub(super) fn new(
        wanted: Order,
        kind: CollectiveKind,
        algo: Algorithm,
        ranks: u32,
        rank: u32,
        root: u32,
    ) -> Builder {
        Builder {
            program: Program {
                kind,
                algo,
                ranks,
                rank,
                root,
                block_chunks: 1,
                input_chunks: 0,
                output_chunks: 0,
                scratch_chunks: 0,
                order: Order::None,
                steps: Vec::new(),
            },
            wanted,
        }
    }

    /// Ranks.
    pub(super) fn n(&self) -> u32 {
        self.program.ranks
    }

    /// The collective.
    pub(super) fn kind(&self) -> CollectiveKind {
        self.program.kind
    }

    /// This rank, the next, and so on round the ring.
    pub(super) fn ring(&self) -> impl Iterator<Item = u32> {
        let (n, rank) = (self.n(), self.program.rank);
        (0..n).map(move |k| (rank + k) % n)
    }

    /// The rank with which the reduction of a chunk starts, of which this is the number.
    pub(super) fn first(&self, chunk: u32) -> u32 {
        match self.wanted {
            Order::Rank => 0,
            _ => chunk % self.n(),
        }
    }

    /// The ranks in the order in which this rank reduces its own chunk.
    pub(super) fn contributors(&self) -> impl Iterator<Item = u32> + use<> {
        let (n, first) = (self.n(), self.first(self.rank()));
        (0..n).map(move |k| (first + k) % n)
    }

    /// This rank.
    pub(super) fn rank(&self) -> u32 {
        self.program.rank
    }

    /// Root.
    pub(super) fn root(&self) -> u32 {
        self.program.root
    }

    /// Whether this rank is it.
    pub(super) fn is_root(&self) -> bool {
        self.program.rank == self.program.root
    }

    /// This rank counted from the root.
    pub(super) fn relative(&self) -> u32 {
        (self.program.rank + self.n() - self.program.root) % self.n()
    }

    /// The rank that is `v` after the root.
    pub(super) fn absolute(&self, v: u32) -> u32 {
        (self.program.root + v) % self.n()
    }

    /// The rank `by` places after this one in the ring.
    pub(super) fn after(&self, by: u32) -> u32 {
        (self.program.rank + by % self.n()) % self.n()
    }

    /// The rank (or chunk) `by` places before this one in the ring.
    pub(super) fn before(&self, by: u32) -> u32 {
        (self.program.rank + self.n() - by % self.n()) % self.n()
    }

    /// Chunks of a block, and of source and destination.
    pub(super) fn buffers(mut self, block_chunks: u32, input: u32, output: u32) -> Builder {
        self.program.block_chunks = block_chunks;
        self.program.input_chunks = input;
        self.program.output_chunks = output;
        self
    }

    /// It reduces in the order that was wanted.
    pub(super) fn reducing(self) -> Builder {
        let order = self.wanted;
        self.order(order)
    }

    /// The order in which it reduces.
    pub(super) fn order(mut self, order: Order) -> Builder {
        self.program.order = order;
        self
    }

    /// Appends a step on one chunk.
    pub(super) fn step<const O: usize, const R: usize>(
        &mut self,
        round: u32,
        operands: [Operand; O],
        results: [Target; R],
    ) {
        self.push(round, operands.to_vec(), results.to_vec(), 1);
    }

    /// Appends a step.
    pub(super) fn push(
        &mut self,
        round: u32,
        operands: Vec<Operand>,
        results: Vec<Target>,
        chunks: u32,
    ) {
        self.program.steps.push(Step {
            round,
            operands,
            results,
            chunks,
        });
    }

    /// The program with `scratch` slots of NIC memory.
    pub(super) fn finish(mut self, scratch: u32) -> Program {
        self.program.scratch_chunks = scratch;
        self.program
    }
}
