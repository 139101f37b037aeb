//! Sources of a collective, and what must come out.

use ringbell_nic_abi::CollectiveKind;

use crate::goal::{has_blocks, ELEMENT};

/// One operation over whole numbers in f32, which sums hold exactly in any order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) kind: CollectiveKind,
    pub(crate) ranks: u64,
    /// Elements, of each block where the operation has a block for each rank.
    pub(crate) count: u64,
}

/// A source repeats after this many elements.
const PERIOD: u64 = 13;

fn value(rank: u64, i: u64) -> f32 {
    ((i * 7 + rank * 5) % PERIOD) as f32
}

/// So many elements of the source of a rank: those of a shorter one begin those of a longer one.
pub(crate) fn source(rank: u64, elements: u64) -> Vec<u8> {
    let values = (0..elements).map(|i| value(rank, i));
    values.flat_map(f32::to_le_bytes).collect()
}

impl Data {
    /// As many whole elements as so many bytes hold, which nccl-tests counts over all blocks.
    pub(crate) fn of(kind: CollectiveKind, ranks: u64, bytes: u64) -> Data {
        let data = Data {
            kind,
            ranks,
            count: 1,
        };
        let count = bytes / data.bytes();
        Data { count, ..data }
    }

    /// Bytes of all blocks.
    pub(crate) fn bytes(&self) -> u64 {
        let blocks = if has_blocks(self.kind) { self.ranks } else { 1 };
        self.count * ELEMENT * blocks
    }

    /// Elements of source and destination on a rank; the root is rank 0.
    pub(crate) fn lengths(&self, rank: u64) -> (u64, u64) {
        use CollectiveKind as K;
        let (one, all) = (self.count, self.count * self.ranks);
        let at_root = if rank == 0 { one } else { 0 };
        match self.kind {
            K::AllGather => (one, all),
            K::ReduceScatter => (all, one),
            K::AllToAll => (all, all),
            K::Broadcast => (at_root, one),
            K::Reduce => (one, at_root),
            _ => (one, one),
        }
    }

    /// Bytes of source and destination on a rank.
    pub(crate) fn operands(&self, rank: u64) -> [u64; 2] {
        let (source, result) = self.lengths(rank);
        [source * ELEMENT, result * ELEMENT]
    }

    /// The source of a rank.
    pub(crate) fn source(&self, rank: u64) -> Vec<u8> {
        source(rank, self.lengths(rank).0)
    }

    /// Elements of a rank's destination that are wrong.
    pub(crate) fn wrong(&self, rank: u64, bytes: &[u8]) -> u64 {
        use CollectiveKind as K;
        let sum = |i| (0..self.ranks).map(|r| value(r, i)).sum::<f32>();
        let sums: Vec<f32> = (0..PERIOD).map(sum).collect();
        let sum = |i: u64| sums[(i % PERIOD) as usize];
        let wanted = |i: u64| match self.kind {
            K::AllGather => value(i / self.count, i % self.count),
            K::ReduceScatter => sum(rank * self.count + i),
            K::AllToAll => value(i / self.count, rank * self.count + i % self.count),
            K::Broadcast => value(0, i),
            _ => sum(i),
        };
        let words = bytes.chunks_exact(4).zip(0..);
        words
            .filter(|(w, i)| **w != wanted(*i).to_le_bytes())
            .count() as u64
    }
}
