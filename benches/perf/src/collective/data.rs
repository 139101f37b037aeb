//! Test data of an operation: its source differs from rank to rank, its result can be computed.
//!
//! Values are small whole numbers, so that every type holds sums and products of them exactly in
//! any order: one wrong, lost or doubled contribution is seen.

use ringbell::comm::CollectiveKind;
use ringbell::{DataType, ReduceOp};

/// Parameters of an operation: the same on all ranks but for `rank`.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The operation.
    pub kind: CollectiveKind,
    /// Type of an element.
    pub dtype: DataType,
    /// Reduction, where the operation reduces.
    pub op: ReduceOp,
    /// Elements, or their form on the wire, hold whole numbers up to 256 only.
    pub narrow: bool,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// This rank.
    pub rank: u32,
    /// Root, where the operation has one.
    pub root: u32,
    /// Elements, per rank where the operation has a block per rank.
    pub count: u64,
}

impl Shape {
    /// Whether source or destination has a block for each rank.
    pub fn has_blocks(kind: CollectiveKind) -> bool {
        use CollectiveKind as K;
        matches!(
            kind,
            K::Scatter | K::Gather | K::AllGather | K::ReduceScatter | K::AllToAll
        )
    }

    /// Elements of the source and of the destination on this rank.
    pub fn lengths(&self) -> (u64, u64) {
        use CollectiveKind as K;
        let (one, all) = (self.count, self.count * u64::from(self.ranks));
        let at_root = |n| if self.rank == self.root { n } else { 0 };
        match self.kind {
            K::Scatter => (at_root(all), one),
            K::Gather => (one, at_root(all)),
            K::AllGather => (one, all),
            K::ReduceScatter => (all, one),
            K::AllToAll => (all, all),
            K::Broadcast => (at_root(one), one),
            K::Reduce => (one, at_root(one)),
            K::Barrier => (0, 0),
            _ => (one, one),
        }
    }

    /// Element `i` of the source of a rank.
    fn value(&self, rank: u32, i: u64) -> i64 {
        let rank = u64::from(rank);
        match self.op {
            // At most three factors of 2.
            ReduceOp::Prod if self.reduces() => {
                1 + i64::from((i + rank) % u64::from(self.ranks) < 3)
            }
            // bf16 holds whole numbers up to 256: 64 ranks of at most 3.
            _ if self.narrow => ((i * 7 + rank * 5 + (i >> 11)) % 4) as i64,
            _ => ((i * 7 + rank * 5 + (i >> 11)) % 13) as i64,
        }
    }

    fn reduces(&self) -> bool {
        use CollectiveKind as K;
        matches!(self.kind, K::AllReduce | K::Reduce | K::ReduceScatter)
    }

    fn reduced(&self, i: u64) -> i64 {
        let values = (0..self.ranks).map(|r| self.value(r, i));
        match self.op {
            ReduceOp::Sum => values.sum(),
            ReduceOp::Prod => values.product(),
            ReduceOp::Min => values.min().unwrap_or(0),
            ReduceOp::Max => values.max().unwrap_or(0),
            ReduceOp::And => values.fold(-1, |a, b| a & b),
            ReduceOp::Or => values.fold(0, |a, b| a | b),
            ReduceOp::Xor => values.fold(0, |a, b| a ^ b),
        }
    }

    /// Element `i` of the destination.
    fn expected(&self, i: u64) -> i64 {
        use CollectiveKind as K;
        let own_block = u64::from(self.rank) * self.count;
        match self.kind {
            K::AllReduce | K::Reduce => self.reduced(i),
            K::ReduceScatter => self.reduced(own_block + i),
            K::Broadcast => self.value(self.root, i),
            K::Scatter => self.value(self.root, own_block + i),
            K::Gather | K::AllGather => self.value((i / self.count) as u32, i % self.count),
            K::AllToAll => self.value((i / self.count) as u32, own_block + i % self.count),
            // Each rank sends to the next one.
            K::Recv | K::Send => self.value((self.rank + self.ranks - 1) % self.ranks, i),
            _ => 0,
        }
    }

    /// Elements `from..to` of the source, as bytes.
    pub fn source(&self, from: u64, to: u64) -> Vec<u8> {
        encode(self.dtype, (from..to).map(|i| self.value(self.rank, i)))
    }

    /// Number of wrong elements in `from..to` of the destination.
    pub fn differences(&self, from: u64, to: u64, got: &[u8]) -> u64 {
        let (size, want) = (self.dtype.bytes() as usize, self.result(from, to));
        if got == want {
            return 0;
        }
        let both = got.chunks(size).zip(want.chunks(size));
        both.filter(|(g, w)| g != w).count() as u64
    }

    /// Elements `from..to` that the destination must hold, as bytes.
    pub fn result(&self, from: u64, to: u64) -> Vec<u8> {
        // The sum over many ranks is the same again every so often: 13 · 2^11 elements at most.
        encode(self.dtype, (from..to).map(|i| self.expected(i)))
    }
}

/// Whole numbers as elements.
fn encode(dtype: DataType, values: impl Iterator<Item = i64>) -> Vec<u8> {
    macro_rules! bytes {
        ($of:expr) => {
            values.flat_map(|v| ($of)(v).to_ne_bytes()).collect()
        };
    }
    match dtype {
        DataType::F16 => bytes!(|v: i64| half::f16::from_f64(v as f64)),
        DataType::Bf16 => bytes!(|v: i64| half::bf16::from_f64(v as f64)),
        DataType::F32 => bytes!(|v: i64| v as f32),
        DataType::F64 => bytes!(|v: i64| v as f64),
        DataType::I8 => bytes!(|v: i64| v as i8),
        DataType::I16 => bytes!(|v: i64| v as i16),
        DataType::U16 => bytes!(|v: i64| v as u16),
        DataType::I32 => bytes!(|v: i64| v as i32),
        DataType::I64 => bytes!(|v: i64| v),
        DataType::U8 => bytes!(|v: i64| v as u8),
        DataType::U32 => bytes!(|v: i64| v as u32),
        DataType::U64 => bytes!(|v: i64| v as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(kind: CollectiveKind, rank: u32) -> Shape {
        Shape {
            kind,
            dtype: DataType::I32,
            op: ReduceOp::Sum,
            narrow: false,
            ranks: 3,
            rank,
            root: 1,
            count: 5,
        }
    }

    fn ints(bytes: &[u8]) -> Vec<i32> {
        let words = bytes.chunks_exact(4);
        words
            .map(|w| i32::from_ne_bytes(w.try_into().expect("four")))
            .collect()
    }

    #[test]
    fn ranks_differ_and_results_follow_from_all_of_them() {
        use CollectiveKind as K;
        let src = |kind, r, n| ints(&shape(kind, r).source(0, n));
        assert_ne!(src(K::AllReduce, 0, 5), src(K::AllReduce, 1, 5));
        let sum = ints(&shape(K::AllReduce, 2).result(0, 5));
        for (i, got) in sum.iter().enumerate() {
            let want: i32 = (0..3).map(|r| src(K::AllReduce, r, 5)[i]).sum();
            assert_eq!(*got, want);
        }
        let all = ints(&shape(K::AllToAll, 2).result(0, 15));
        for from in 0..3 {
            let block = &src(K::AllToAll, from as u32, 15)[10..15];
            assert_eq!(&all[from * 5..from * 5 + 5], block);
        }
        assert_eq!(shape(K::Gather, 0).lengths(), (5, 0));
        assert_eq!(shape(K::Gather, 1).lengths(), (5, 15));
    }

    #[test]
    fn every_type_holds_the_largest_results_exactly() {
        for dtype in DataType::ALL {
            for op in ReduceOp::ALL.iter().filter(|op| op.takes(*dtype)) {
                let s = Shape {
                    dtype: *dtype,
                    op: *op,
                    narrow: *dtype == DataType::Bf16,
                    ranks: 64,
                    ..shape(CollectiveKind::AllReduce, 0)
                };
                let most = (0..5000).map(|i| s.reduced(i)).max().unwrap_or(0);
                let exact = match dtype {
                    DataType::Bf16 => most <= 256,
                    DataType::F16 => most <= 2048,
                    // Integers wrap, the model with them.
                    _ => true,
                };
                assert!(exact, "{dtype:?} {op:?}: {most}");
            }
        }
    }
}
