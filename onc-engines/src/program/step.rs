//! The step language: programs, their steps, and the places that steps read and write.

use ringbell_nic_abi::{Algorithm, CollectiveKind};

/// A run of consecutive chunks of one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chunks {
    /// First chunk.
    pub first: u32,
    /// Number of chunks.
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

impl From<u32> for Chunks {
    fn from(first: u32) -> Chunks {
        Chunks::one(first)
    }
}

/// Memory of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The source buffer ("G" of FpgaNIC's Table 8), never written.
    Input(Chunks),
    /// The destination buffer ("G").
    Output(Chunks),
    /// NIC memory ("E"), laid out as the buffers are: slot s is as long as chunk s modulo
    /// `block_chunks`, so that a run of slots is contiguous and holds a run of chunks.
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

/// An operand of a step.
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
    /// The stream that a kernel on this rank pushes into: the chunks of its source, in order.
    Stream,
}

impl Operand {
    /// Chunks of the source buffer.
    pub fn input(chunks: impl Into<Chunks>) -> Operand {
        Operand::Local(Place::Input(chunks.into()))
    }
    /// Chunks of the destination buffer.
    pub fn output(chunks: impl Into<Chunks>) -> Operand {
        Operand::Local(Place::Output(chunks.into()))
    }
    /// Slots of NIC memory.
    pub fn scratch(chunks: impl Into<Chunks>) -> Operand {
        Operand::Local(Place::Scratch(chunks.into()))
    }
    /// The next message from a rank, on channel 0.
    pub const fn from(rank: u32) -> Operand {
        Operand::Net {
            from: rank,
            channel: 0,
        }
    }
}

/// A result of a step.
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
    /// The stream that a kernel on this rank pops from: the chunks of its destination, in order.
    Stream,
}

impl Target {
    /// Chunks of the destination buffer.
    pub fn output(chunks: impl Into<Chunks>) -> Target {
        Target::Local(Place::Output(chunks.into()))
    }
    /// Slots of NIC memory.
    pub fn scratch(chunks: impl Into<Chunks>) -> Target {
        Target::Local(Place::Scratch(chunks.into()))
    }
    /// A message to a rank, on channel 0.
    pub const fn to(rank: u32) -> Target {
        Target::Net {
            to: rank,
            channel: 0,
        }
    }
}

/// One step: read the operands, combine them left to right when there are several, store to every
/// result.
///
/// All places of a step start at the same chunk of a block (chunk numbers are equal modulo
/// `block_chunks`), so any of them tells how many elements the value has; a step without a place
/// moves a message without payload (a barrier's), and has no chunks.
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

impl Step {
    /// The memory from which the step's messages are sent, and which stays as it is until they were
    /// taken: the operand of a plain move, or else the local result.
    ///
    /// The checker refuses a step that sends a value with no home; `None` for one that sends
    /// nothing, or a message without payload.
    pub fn home(&self) -> Option<Place> {
        if !self.results.iter().any(|r| matches!(r, Target::Net { .. })) {
            return None;
        }
        if let [Operand::Local(place)] = self.operands[..] {
            return Some(place);
        }
        self.results.iter().find_map(|r| match r {
            Target::Local(place) => Some(*place),
            _ => None,
        })
    }

    /// Messages that it sends.
    pub fn messages(&self) -> usize {
        let net = |r: &&Target| matches!(r, Target::Net { .. });
        self.results.iter().filter(net).count()
    }
}

/// The order in which a program reduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// As FpgaNIC's Table 8: chunk i starts at rank i, then i + 1, ...: the same bits with every
    /// algorithm.
    Ring,
    /// Rank 0, then 1, ..., for every chunk: the bits of an element depend neither on its place in
    /// the buffer nor on the algorithm.
    Rank,
    /// Another: only on request, and the result's bits may differ.
    Other,
    /// Nothing is reduced.
    None,
}

/// One rank's part of a collective.
///
/// A buffer consists of blocks of `count` elements, each split into `block_chunks` chunks. Steps
/// run in list order: a step waits for its messages, then combines, stores, and issues its
/// messages; it does not wait for these to be taken. The checker proves that no later step writes
/// to the memory that a message is sent from ([`Step::home`]) before the receiver has taken it: the
/// write comes causally after the receive, so an executor needs no bookkeeping for it.
///
/// All ranks of a `DIRECT` program meet at a barrier before the first and after the last step of
/// it.
///
/// In place: where the collective has such a form, source and destination may be the same memory
/// ([`Program::in_place`]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// The collective.
    pub kind: CollectiveKind,
    /// The algorithm.
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
    /// Slots of NIC memory, one chunk each; slot s as long as chunk s modulo `block_chunks`.
    pub scratch_chunks: u32,
    /// Order of reduction.
    pub order: Order,
    /// The steps.
    pub steps: Vec<Step>,
}

impl Program {
    /// Whether it runs as one pass over the memory of all ranks, between two barriers.
    pub fn is_direct(&self) -> bool {
        let reads = |o: &Operand| matches!(o, Operand::Peer { .. });
        let writes = |t: &Target| matches!(t, Target::Peer { .. });
        self.algo == Algorithm::Direct
            || self
                .steps
                .iter()
                .any(|s| s.operands.iter().any(reads) || s.results.iter().any(writes))
    }

    /// Columns of the state table that hold an operand.
    pub fn rounds(&self) -> u32 {
        self.steps.iter().map(|s| s.round + 1).max().unwrap_or(0)
    }

    /// Chunks of all messages that it sends.
    pub fn sent_chunks(&self) -> u64 {
        let sent = |s: &Step| s.messages() as u64 * u64::from(s.chunks);
        self.steps.iter().map(sent).sum()
    }

    /// The chunk of the destination buffer at which the source buffer lies in the in-place form of
    /// the collective (as in NCCL and MPI), as `(input chunk, output chunk)` that coincide; `None`
    /// where this rank has no such form.
    ///
    /// All-reduce, and broadcast and reduce at the root: both buffers are one. All-gather, and
    /// gather at the root: the source is this rank's block of the destination. Reduce-scatter, and
    /// scatter at the root: the destination is this rank's block of the source. All-to-all has
    /// none.
    pub fn in_place(&self) -> Option<(u32, u32)> {
        use CollectiveKind as K;
        let block = self.rank * self.block_chunks;
        let at_root = self.rank == self.root;
        match self.kind {
            K::AllReduce => Some((0, 0)),
            K::Broadcast | K::Reduce if at_root => Some((0, 0)),
            K::AllGather => Some((0, block)),
            K::Gather if at_root => Some((0, block)),
            K::ReduceScatter => Some((block, 0)),
            K::Scatter if at_root => Some((block, 0)),
            _ => None,
        }
    }
}

/// Blocks of `count` elements that source and destination of a rank have, in this order; `None` for
/// an operation that is no collective.
pub const fn buffer_blocks(kind: CollectiveKind, ranks: u32, at_root: bool) -> Option<(u32, u32)> {
    use CollectiveKind as K;
    let (one, all) = if at_root { (1, ranks) } else { (0, 0) };
    Some(match kind {
        K::Broadcast => (one, 1),
        K::Reduce => (1, one),
        K::Scatter => (all, 1),
        K::Gather => (1, all),
        K::AllGather => (1, ranks),
        K::ReduceScatter => (ranks, 1),
        K::AllReduce => (1, 1),
        K::AllToAll => (ranks, ranks),
        K::Barrier => (0, 0),
        _ => return None,
    })
}
