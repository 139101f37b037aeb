//! Sources of a collective, and what must come out.

use ringbell_nic_abi::CollectiveKind;

use crate::goal::{has_blocks, ELEMENT};
use crate::pattern::{repeat, Pattern, ELEMENTS, PERIOD};

/// One operation over whole numbers in f32, which sums hold exactly in any order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Data {
    pub(crate) kind: CollectiveKind,
    pub(crate) ranks: u64,
    /// Elements, of each block where the operation has a block for each rank.
    pub(crate) count: u64,
}

fn value(rank: u64, i: u64) -> f32 {
    ((i * 7 + rank * 5) % ELEMENTS) as f32
}

/// The elements that the source of a rank repeats.
pub(crate) fn pattern(rank: u64) -> Pattern {
    pattern_of(|i| value(rank, i))
}

fn pattern_of(value: impl Fn(u64) -> f32) -> Pattern {
    let mut pattern = [0; PERIOD];
    for (word, i) in pattern.chunks_exact_mut(ELEMENT as usize).zip(0..) {
        word.copy_from_slice(&value(i).to_le_bytes());
    }
    pattern
}

/// So many elements of the source of a rank: those of a shorter one begin those of a longer one.
pub(crate) fn source(rank: u64, elements: u64) -> Vec<u8> {
    let mut bytes = vec![0; (elements * ELEMENT) as usize];
    repeat(&pattern(rank), 0, &mut bytes);
    bytes
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

    /// What must come out.
    pub(crate) fn wanted(&self) -> Wanted {
        let sum = |i| (0..self.ranks).map(|r| value(r, i)).sum::<f32>();
        Wanted {
            data: *self,
            sums: pattern_of(sum),
        }
    }
}

/// What must come out of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    data: Data,
    /// Sums over all ranks of the elements that sources repeat.
    sums: Pattern,
}

impl Wanted {
    /// Elements that are wrong among those of a rank's destination from an element on.
    pub(crate) fn wrong(&self, rank: u64, mut first: u64, mut bytes: &[u8]) -> u64 {
        let mut wrong = 0;
        while bytes.len() >= ELEMENT as usize {
            let (pattern, start, left) = self.block(rank, first);
            let n = left.min(bytes.len() as u64 / ELEMENT);
            let (now, rest) = bytes.split_at((n * ELEMENT) as usize);
            let mut right = vec![0; now.len()];
            repeat(&pattern, (start % ELEMENTS * ELEMENT) as usize, &mut right);
            if now != right {
                let size = ELEMENT as usize;
                let words = now.chunks_exact(size).zip(right.chunks_exact(size));
                wrong += words.filter(|(a, b)| a != b).count() as u64;
            }
            (first, bytes) = (first + n, rest);
        }
        wrong
    }

    /// What a rank's destination repeats from an element on, which element of a source that is, and
    /// how many follow until others repeat.
    fn block(&self, rank: u64, at: u64) -> (Pattern, u64, u64) {
        use CollectiveKind as K;
        let Data { kind, count, .. } = self.data;
        let (block, inside) = (at / count, at % count);
        match kind {
            K::AllGather => (pattern(block), inside, count - inside),
            K::ReduceScatter => (self.sums, rank * count + at, count - at),
            K::AllToAll => (pattern(block), rank * count + inside, count - inside),
            K::Broadcast => (pattern(0), at, count - at),
            _ => (self.sums, at, count - at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_element_has_one_value_that_is_right() {
        use CollectiveKind as K;
        for kind in [
            K::AllReduce,
            K::AllGather,
            K::ReduceScatter,
            K::Broadcast,
            K::Reduce,
            K::AllToAll,
        ] {
            let data = Data {
                kind,
                ranks: 3,
                count: 31,
            };
            let wanted = data.wanted();
            for rank in 0..3 {
                let n = data.lengths(rank).1;
                let right = |i: u64| {
                    let sum = |i| (0..3).map(|r| value(r, i)).sum::<f32>();
                    match kind {
                        K::AllGather => value(i / 31, i % 31),
                        K::ReduceScatter => sum(rank * 31 + i),
                        K::AllToAll => value(i / 31, rank * 31 + i % 31),
                        K::Broadcast => value(0, i),
                        _ => sum(i),
                    }
                };
                let bytes: Vec<u8> = (0..n).flat_map(|i| right(i).to_le_bytes()).collect();
                for first in 0..n {
                    let rest = &bytes[(first * ELEMENT) as usize..];
                    assert_eq!(
                        wanted.wrong(rank, first, rest),
                        0,
                        "{kind:?} {rank} {first}"
                    );
                    let mut one = rest.to_vec();
                    let last = one.len() - 1;
                    one[last] ^= 1;
                    one[0] ^= u8::from(last > 3);
                    let changed = if last > 3 { 2 } else { 1 };
                    assert_eq!(wanted.wrong(rank, first, &one), changed, "{kind:?} {rank}");
                }
            }
        }
    }
}
