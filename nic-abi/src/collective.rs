//! Collective operations: the numbers that a `COLLECTIVE` descriptor carries.
//!
//! One descriptor starts one operation of a communicator on this rank (the off-path model, FpgaNIC
//! §3.4): the NIC's engine does the rest. Fields of the descriptor: `session` is the communicator,
//! `local_va` the source and `remote_va` the destination buffer, `operand` the count of elements
//! (per rank where the operation has a block per rank), `rkey` the root, or the peer of a send or
//! receive ([`ANY_RANK`]), `lkey` its tag ([`ANY_TAG`]) or the port of a streamed collective (at
//! most [`MAX_PORT`]; 0: the order of all others), `imm` what [`CollectiveSpec`] packs, and `len`
//! the wire type (bits 0–4), whether kernels' streams stand for the buffers (bits 5–7; see
//! [`kernel_stream`](crate::kernel_stream)), and the ticket distance of a predecessor (bits 8–31,
//! 0: none).

use crate::{bit_fields, coded_enum};

/// Receives from the rank that sends first.
pub const ANY_RANK: u32 = u32::MAX;
/// Receives the message that comes first, with any tag.
pub const ANY_TAG: u32 = u32::MAX;
/// Largest port of a streamed collective.
pub const MAX_PORT: u32 = u8::MAX as u32;

/// In the detail of `TIMED_OUT`: the communicator has ended with the operation. Without it, it
/// works on.
pub const COMM_ENDED: u64 = 1 << 33;
/// In the detail of `TIMED_OUT`: the low 32 bits are a rank that had not posted the operation.
pub const RANK_ABSENT: u64 = 1 << 32;

coded_enum! {
    /// Which operation.
    pub enum CollectiveKind: u8 ["COLL_"] {
        /// Completes when its predecessors have (ACCL's nop).
        Nop = 1 => "NOP",
        /// Sends `count` elements to rank `root` with a tag.
        Send = 2 => "SEND",
        /// Receives `count` elements from rank `root` (or ANY) with a tag (or ANY).
        Recv = 3 => "RECV",
        /// Copies `count` elements from source to destination on this rank.
        Copy = 4 => "COPY",
        /// Destination = destination op source, on this rank.
        Combine = 5 => "COMBINE",
        /// The root's source to every destination.
        Broadcast = 6 => "BROADCAST",
        /// The reduction of all sources to the root's destination.
        Reduce = 7 => "REDUCE",
        /// Block r of the root's source to rank r's destination; `count` per rank.
        Scatter = 8 => "SCATTER",
        /// Every source to block r of the root's destination; `count` per rank.
        Gather = 9 => "GATHER",
        /// Every source to block r of every destination; `count` per rank.
        AllGather = 10 => "ALL_GATHER",
        /// Block r of the reduction of all sources to rank r; `count` per rank.
        ReduceScatter = 11 => "REDUCE_SCATTER",
        /// The reduction of all sources to every destination.
        AllReduce = 12 => "ALL_REDUCE",
        /// Block j of rank i's source to block i of rank j's destination; `count` per block.
        AllToAll = 13 => "ALL_TO_ALL",
        /// Completes when every rank has come.
        Barrier = 14 => "BARRIER",
        /// Sends `count` elements to rank `root` in messages of a stream's size, as a kernel pushes
        /// them (ACCL+ Listing 2); the source may be memory too.
        StreamSend = 15 => "STREAM_SEND",
        /// Receives `count` elements that rank `root` sends with STREAM_SEND, as a kernel pops
        /// them; the destination may be memory too.
        StreamRecv = 16 => "STREAM_RECV",
    }
}

impl CollectiveKind {
    /// Whether elements are reduced.
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            CollectiveKind::Reduce
                | CollectiveKind::AllReduce
                | CollectiveKind::ReduceScatter
                | CollectiveKind::Combine
        )
    }

    /// Whether one rank differs from the others: the root.
    pub const fn has_root(self) -> bool {
        matches!(
            self,
            CollectiveKind::Broadcast
                | CollectiveKind::Reduce
                | CollectiveKind::Scatter
                | CollectiveKind::Gather
        )
    }
}

coded_enum! {
    /// Type of the elements.
    pub enum DataType: u8 ["DTYPE_"] {
        /// IEEE 754 binary16.
        F16 = 1 => "F16",
        /// bfloat16.
        Bf16 = 2 => "BF16",
        /// IEEE 754 binary32.
        F32 = 3 => "F32",
        /// IEEE 754 binary64.
        F64 = 4 => "F64",
        /// Signed 8-bit integer.
        I8 = 5 => "I8",
        /// Signed 32-bit integer.
        I32 = 6 => "I32",
        /// Signed 64-bit integer.
        I64 = 7 => "I64",
        /// Unsigned 8-bit integer.
        U8 = 8 => "U8",
        /// Unsigned 32-bit integer.
        U32 = 9 => "U32",
        /// Unsigned 64-bit integer.
        U64 = 10 => "U64",
        /// Signed 16-bit integer.
        I16 = 11 => "I16",
        /// Unsigned 16-bit integer.
        U16 = 12 => "U16",
    }
}

impl DataType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            DataType::I8 | DataType::U8 => 1,
            DataType::F16 | DataType::Bf16 | DataType::I16 | DataType::U16 => 2,
            DataType::F32 | DataType::I32 | DataType::U32 => 4,
            DataType::F64 | DataType::I64 | DataType::U64 => 8,
        }
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DataType::F16 | DataType::Bf16 | DataType::F32 | DataType::F64
        )
    }
}

coded_enum! {
    /// How elements are reduced. Integers wrap; f16 and bf16 are rounded after every operation, to
    /// nearest even; min and max of a NaN and a number are NaN. The last three are of integers
    /// alone.
    pub enum ReduceOp: u8 ["REDOP_"] {
        /// Sum.
        Sum = 1 => "SUM",
        /// Product.
        Prod = 2 => "PROD",
        /// Smallest.
        Min = 3 => "MIN",
        /// Largest.
        Max = 4 => "MAX",
        /// Bits that all have.
        And = 5 => "AND",
        /// Bits that any has.
        Or = 6 => "OR",
        /// Bits that an odd number of them has.
        Xor = 7 => "XOR",
    }
}

impl ReduceOp {
    /// Whether elements of a type can be reduced so: floats have no operations on bits.
    pub const fn takes(self, dtype: DataType) -> bool {
        !self.is_bitwise() || !dtype.is_float()
    }

    /// Whether the bits of a result are the same in each order of the operands: sums and products
    /// of floats are rounded after every operation.
    pub const fn ignores_order(self, dtype: DataType) -> bool {
        !dtype.is_float() || matches!(self, ReduceOp::Min | ReduceOp::Max)
    }

    /// Whether it treats each bit alone.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, ReduceOp::And | ReduceOp::Or | ReduceOp::Xor)
    }
}

coded_enum! {
    /// Which algorithm; the defaults all reduce in the order of FpgaNIC's Table 8 (chunk i: rank i,
    /// i + 1, ...), so that the choice never changes a bit of the result.
    pub enum Algorithm: u8 ["ALGO_"] {
        /// The NIC chooses by size, ranks and transport.
        Auto = 1 => "AUTO",
        /// One host: every rank reads its peers' memory and stores to it, one pass.
        Direct = 2 => "DIRECT",
        /// Ring.
        Ring = 3 => "RING",
        /// Recursive doubling (binomial for a root): for small messages.
        RecursiveDoubling = 4 => "RECURSIVE_DOUBLING",
        /// Binary tree.
        Tree = 5 => "TREE",
        /// Every rank with the root.
        Flat = 6 => "FLAT",
        /// Pipelined chain.
        Chain = 7 => "CHAIN",
        /// All-to-all in rank order.
        Linear = 8 => "LINEAR",
        /// All-to-all in rounds of pairs.
        Pairwise = 9 => "PAIRWISE",
        /// A program that the user has loaded.
        User = 10 => "USER",
        /// All-reduce: every rank gets all sources, as in an all-gather, and reduces them itself;
        /// for small messages.
        AllGatherReduce = 11 => "ALL_GATHER_REDUCE",
        /// Inside each host, then between the ranks with the same place in their host, then inside
        /// each host again.
        Hierarchical = 12 => "HIERARCHICAL",
    }
}

coded_enum! {
    /// Type that f32 elements have on the wire; arithmetic stays in f32.
    pub enum WireType: u8 ["WIRE_"] {
        /// As in memory.
        Same = 1 => "SAME",
        /// Rounded to bfloat16.
        Bf16 = 2 => "BF16",
        /// Rounded to binary16.
        F16 = 3 => "F16",
    }
}

bit_fields! { SPEC_FIELDS:
    /// Which collective.
    S_KIND = word 4 [0 +: 8] => "COLL_KIND";
    /// Element type.
    S_DTYPE = word 4 [8 +: 8] => "COLL_DTYPE";
    /// Reduction; SUM where there is none.
    S_REDOP = word 4 [16 +: 8] => "COLL_REDOP";
    /// Algorithm.
    S_ALGO = word 4 [24 +: 8] => "COLL_ALGO";
    /// Wire type.
    S_WIRE = word 2 [0 +: 5] => "COLL_WIRE";
    /// The elements move in the order of a stream, window by window; the same on every rank.
    S_STREAMED = word 2 [5 +: 1] => "COLL_STREAMED";
    /// `local_va` names a kernel's stream instead of a buffer.
    S_FROM_STREAM = word 2 [6 +: 1] => "COLL_FROM_STREAM";
    /// `remote_va` names a kernel's stream instead of a buffer.
    S_TO_STREAM = word 2 [7 +: 1] => "COLL_TO_STREAM";
    /// How many tickets back, in the same queue, the operation lies that must have ended before
    /// this one starts; 0: none.
    S_AFTER = word 2 [8 +: 24] => "COLL_AFTER";
}

/// The fields in `imm` and `len` of a `COLLECTIVE` descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CollectiveSpec {
    /// Operation.
    pub kind: CollectiveKind,
    /// Element type.
    pub dtype: DataType,
    /// Reduction.
    pub op: ReduceOp,
    /// Algorithm.
    pub algo: Algorithm,
    /// Type on the wire.
    pub wire: WireType,
    /// Ticket distance of the predecessor, below 2^24; 0: none.
    pub after: u32,
    /// Elements move in the order of a stream; the same on every rank.
    pub streamed: bool,
    /// The source is a kernel's stream.
    pub from_stream: bool,
    /// The destination is a kernel's stream.
    pub to_stream: bool,
}

impl CollectiveSpec {
    /// Sum of f32 with the automatic algorithm.
    pub const fn new(kind: CollectiveKind) -> CollectiveSpec {
        CollectiveSpec {
            kind,
            dtype: DataType::F32,
            op: ReduceOp::Sum,
            algo: Algorithm::Auto,
            wire: WireType::Same,
            after: 0,
            streamed: false,
            from_stream: false,
            to_stream: false,
        }
    }

    /// The descriptor's `(imm, len)`.
    pub const fn encode(&self) -> (u32, u32) {
        let imm = S_KIND.put(self.kind as u64)
            | S_DTYPE.put(self.dtype as u64)
            | S_REDOP.put(self.op as u64)
            | S_ALGO.put(self.algo as u64);
        let len = S_WIRE.put(self.wire as u64)
            | S_STREAMED.put(self.streamed as u64)
            | S_FROM_STREAM.put(self.from_stream as u64)
            | S_TO_STREAM.put(self.to_stream as u64)
            | S_AFTER.put(self.after as u64);
        (imm as u32, len as u32)
    }

    /// Which of source and destination are kernels' streams by a descriptor's `len`; its other bits
    /// are not checked.
    pub const fn streams(len: u32) -> (bool, bool) {
        let l = len as u64;
        (S_FROM_STREAM.of(l) != 0, S_TO_STREAM.of(l) != 0)
    }

    /// Ticket distance of the predecessor by a descriptor's `len`; 0: none. Its other bits are not
    /// checked.
    pub const fn distance(len: u32) -> u32 {
        S_AFTER.of(len as u64) as u32
    }

    /// Decodes `(imm, len)`; `None` when a code is unknown.
    pub const fn decode(imm: u32, len: u32) -> Option<CollectiveSpec> {
        let (i, l) = (imm as u64, len as u64);
        match (
            CollectiveKind::from_code(S_KIND.of(i) as u8),
            DataType::from_code(S_DTYPE.of(i) as u8),
            ReduceOp::from_code(S_REDOP.of(i) as u8),
            Algorithm::from_code(S_ALGO.of(i) as u8),
            WireType::from_code(S_WIRE.of(l) as u8),
        ) {
            (Some(kind), Some(dtype), Some(op), Some(algo), Some(wire)) => Some(CollectiveSpec {
                kind,
                dtype,
                op,
                algo,
                wire,
                after: CollectiveSpec::distance(len),
                streamed: S_STREAMED.of(l) != 0,
                from_stream: S_FROM_STREAM.of(l) != 0,
                to_stream: S_TO_STREAM.of(l) != 0,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_survives_the_descriptor() {
        for kind in CollectiveKind::ALL {
            for dtype in DataType::ALL {
                let spec = CollectiveSpec {
                    dtype: *dtype,
                    op: ReduceOp::Max,
                    algo: Algorithm::Ring,
                    wire: WireType::Bf16,
                    after: (1 << 24) - 1,
                    from_stream: true,
                    to_stream: (*dtype as u8).is_multiple_of(2),
                    streamed: (*kind as u8).is_multiple_of(2),
                    ..CollectiveSpec::new(*kind)
                };
                let (imm, len) = spec.encode();
                assert_eq!(CollectiveSpec::decode(imm, len), Some(spec));
            }
        }
        assert_eq!(CollectiveSpec::decode(0, 0), None);
    }
}
