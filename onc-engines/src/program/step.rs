//! The step language.

use ringbell_nic_abi::{Algorithm, CollectiveKind};

/// A run of consecutive chunks of one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chunks {
    /// First chunk.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl Chunks {
    /// A single chunk.
    pub const fn one(first: u32) -> Chunks {
        Chunks { first, count: 1 }
    }
    /// One past the last chunk.
    pub const fn end(self) -> u32 {
        self.first + self.count
    }
}

/// Memory of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The source buffer ("G" of FpgaNIC's Table 8), never written.
    Input(Chunks),
    /// The destination buffer ("G").
    Output(Chunks),
    /// NIC memory ("E"): slots of one chunk each.
    Scratch(Chunks),
}

impl Place {
    /// The chunks.
    pub const fn chunks(self) -> Chunks {
        match self {
            Place::Input(c) | Place::Output(c) | Place::Scratch(c) => c,
        }
    }
}

/// What a step reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operand {
    /// Memory of this rank.
    Local(Place),
    /// The next message of a channel from a rank; as many chunks as the step's results.
    Net {
        /// Sender.
        from: u32,
        /// Channel; messages of one (sender, receiver, channel) arrive in order.
        channel: u8,
    },
    /// Memory of another rank of this host, read in place (`DIRECT` only).
    Peer {
        /// Whose.
        rank: u32,
        /// What; `Scratch` is refused.
        place: Place,
    },
    /// The stream that a kernel on this rank pushes into.
    Stream,
}

/// Where a step's value goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// Memory of this rank; `Input` is refused.
    Local(Place),
    /// A message to a rank.
    Net {
        /// Receiver.
        to: u32,
        /// Channel.
        channel: u8,
    },
    /// Memory of another rank of this host, written in place (`DIRECT` only); only `Output`.
    Peer {
        /// Whose.
        rank: u32,
        /// What.
        place: Place,
    },
    /// The stream that a kernel on this rank pops from.
    Stream,
}

/// One step: read the operands, combine them left to right when there are several, store to every
/// result.
///
/// Two operands and two results at most, as the data path of ACCL+ (§4.3) has them; only steps of
/// `DIRECT` programs, which one thread runs as one pass over memory, may have one operand and one
/// result per rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step {
    /// Column of the state table: steps of one round overlap.
    pub round: u32,
    /// Operands, reduced in this order.
    pub operands: Vec<Operand>,
    /// Results; each gets the same value.
    pub results: Vec<Target>,
    /// Chunks that the value has.
    pub chunks: u32,
}

/// In which order a program reduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// As FpgaNIC's Table 8: chunk i starts at rank i, then i + 1, ...: same bits whatever the
    /// algorithm.
    Ring,
    /// Another: only on request, and the result's bits may differ.
    Other,
    /// Nothing is reduced.
    None,
}

/// What one rank does.
///
/// A buffer consists of blocks of `count` elements, each split into `block_chunks` chunks. Steps are
/// begun in list order; a step waits for its operands. A `Net` result may still be on its way when
/// later steps run: the executor keeps its memory unchanged until then.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// What it computes.
    pub kind: CollectiveKind,
    /// How.
    pub algo: Algorithm,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// This rank.
    pub rank: u32,
    /// Root; 0 where there is none.
    pub root: u32,
    /// Chunks per block of `count` elements.
    pub block_chunks: u32,
    /// Chunks of the source buffer; 0: this rank has none.
    pub input_chunks: u32,
    /// Chunks of the destination buffer; 0: this rank has none.
    pub output_chunks: u32,
    /// Slots of NIC memory, one chunk each.
    pub scratch_chunks: u32,
    /// Order of reduction.
    pub order: Order,
    /// The steps.
    pub steps: Vec<Step>,
}
