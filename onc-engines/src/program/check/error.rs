//! Errors of the checker: the fault, its rank and step, and the remedy.

use std::fmt;

use super::value::Value;
use crate::program::Place;

/// A program is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct CheckError {
    /// The rank whose program is at fault.
    pub rank: u32,
    /// The step at fault, by its index; `None` when it is the program as a whole.
    pub step: Option<usize>,
    /// What.
    pub problem: Problem,
}

impl CheckError {
    pub(super) fn new(rank: u32, step: impl Into<Option<usize>>, problem: Problem) -> CheckError {
        CheckError {
            rank,
            step: step.into(),
            problem,
        }
    }
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        if let Some(step) = self.step {
            write!(f, ", step {step}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Not one program for each rank.
    #[error("{programs} programs for {ranks} ranks: give one for each rank, in order")]
    Programs {
        /// Given.
        programs: usize,
        /// What this program says.
        ranks: u32,
    },
    /// A program that differs from rank 0's in what all must share.
    #[error("its {what} is {ours}, rank 0's is {theirs}: all ranks must run the same collective")]
    Disagrees {
        /// Field.
        what: &'static str,
        /// Of this rank.
        ours: String,
        /// Of rank 0.
        theirs: String,
    },
    /// The operation has no program.
    #[error("{kind} is not a collective, so no program can be checked for it")]
    NotCollective {
        /// Given.
        kind: String,
    },
    /// The root is no rank.
    #[error("root {root} of {ranks} ranks: ranks count from 0")]
    Root {
        /// Given.
        root: u32,
        /// Ranks.
        ranks: u32,
    },
    /// A buffer of the wrong size.
    #[error(
        "its {buffer} has {chunks} chunks, the collective wants {wanted} ({block_chunks} a block)"
    )]
    Buffer {
        /// Which.
        buffer: &'static str,
        /// Given.
        chunks: u32,
        /// By the collective.
        wanted: u64,
        /// Chunks of a block.
        block_chunks: u32,
    },
    /// More than the executor holds.
    #[error("{what}: {has}, the limit is {limit}: use fewer, or raise the limit")]
    Limit {
        /// What.
        what: &'static str,
        /// Given.
        has: u64,
        /// At most.
        limit: u64,
    },
    /// An order that the collective or its chunks cannot have.
    #[error("order {order} does not fit: {why}")]
    Order {
        /// Claimed.
        order: String,
        /// Why not.
        why: &'static str,
    },
    /// A step without operands, or results, or chunks.
    #[error("{operands} operands, {results} results, {chunks} chunks: a step that moves data has at least one of each")]
    Empty {
        /// Chunks.
        chunks: u32,
        /// Operands.
        operands: usize,
        /// Results.
        results: usize,
    },
    /// A place beyond the end of its memory.
    #[error("{place} is out of bounds: there are {chunks} chunks")]
    OutOfBounds {
        /// What the step names.
        place: Where,
        /// How many there are.
        chunks: u32,
    },
    /// A place of another length than the step's value.
    #[error("{place} is not as long as the step's value of {chunks} chunks")]
    Length {
        /// What the step names.
        place: Where,
        /// Of the step.
        chunks: u32,
    },
    /// Places that start at different chunks of a block, so that they may have different lengths.
    #[error("{a} and {b} are different parts of a block, which may differ in length: use chunks whose numbers are equal modulo {block_chunks}")]
    Misaligned {
        /// One.
        a: Where,
        /// Another.
        b: Where,
        /// Chunks of a block.
        block_chunks: u32,
    },
    /// A step that writes to the source buffer.
    #[error("{place} would be written: the source is only read")]
    WritesInput {
        /// What the step names.
        place: Where,
    },
    /// Memory of peers in a program that goes over the network, or the reverse.
    #[error("{what}")]
    Direct {
        /// What.
        what: &'static str,
    },
    /// Something that this executor cannot do.
    #[error(
        "uses {what}, which this executor does not run: use the network and this rank's memory"
    )]
    Unsupported {
        /// What.
        what: &'static str,
    },
    /// No such rank.
    #[error("rank {rank} does not exist: there are {ranks}")]
    NoSuchRank {
        /// Named.
        rank: u32,
        /// Ranks.
        ranks: u32,
    },
    /// A message to itself, or itself as a peer.
    #[error("names itself as a peer: use Local")]
    Itself,
    /// A message whose value lies nowhere.
    #[error(
        "sends a value that lies in no memory until it was taken: store it too, in a local result"
    )]
    NoHome,
    /// Places of one step that overlap without being the same.
    #[error("{a} and {b} overlap: places of one step are the same or apart")]
    Overlap {
        /// One.
        a: Where,
        /// Another.
        b: Where,
    },
    /// A message without a receive.
    #[error("sends to rank {to} (channel {channel}), which has no receive left for it: add one there, or send to another rank")]
    MissingReceive {
        /// Receiver.
        to: u32,
        /// Channel.
        channel: u8,
    },
    /// A receive without a message.
    #[error("receives from rank {from} (channel {channel}), which has no send left for it: add one there, or receive from another rank")]
    MissingSend {
        /// Sender.
        from: u32,
        /// Channel.
        channel: u8,
    },
    /// Message and receive differ in length.
    #[error("receives {wanted}, but the message that comes (step {step} of rank {from}, channel {channel}) has {sent}")]
    MessageLength {
        /// Sender.
        from: u32,
        /// Its step.
        step: usize,
        /// Channel.
        channel: u8,
        /// Sent.
        sent: Extent,
        /// Wanted.
        wanted: Extent,
    },
    /// More messages overtaken than the receiver can put aside.
    #[error("takes a message of rank {from} before {ahead} that were sent earlier, and a receiver can put {limit} aside: receive in the order of sending, or raise the limit")]
    PutAside {
        /// Sender.
        from: u32,
        /// Overtaken.
        ahead: usize,
        /// At most.
        limit: usize,
    },
    /// Ranks that wait for each other.
    #[error("waits for ever: {}", cycle_text(cycle))]
    CyclicWait {
        /// Rank, its step, and the rank that it waits for; the last waits for the first.
        cycle: Vec<(u32, usize, u32)>,
    },
    /// Memory that holds nothing yet.
    #[error("reads {place}, chunk {chunk} of which nothing was written to")]
    ReadBeforeWrite {
        /// What the step names.
        place: Where,
        /// Which of its chunks.
        chunk: u32,
    },
    /// Memory that a message may still be sent from.
    #[error("overwrites chunk {chunk} of {place}, while the message to rank {to} that step {sent} sends from it may not have been taken: use another slot, or receive something first that tells that it was")]
    OverwritesMessage {
        /// What the step names.
        place: Where,
        /// Which of its chunks.
        chunk: u32,
        /// Step that sent.
        sent: usize,
        /// Receiver.
        to: u32,
    },
    /// Two ranks at one chunk at once.
    #[error("touches chunk {chunk} of {place} while rank {other} does, and one of them writes: nothing orders them")]
    Race {
        /// What the step names.
        place: Where,
        /// Which of its chunks.
        chunk: u32,
        /// The other.
        other: u32,
    },
    /// A reduction in a collective that has none.
    #[error("reduces, but the collective moves data only")]
    Reduces,
    /// Different chunks are reduced with each other.
    #[error("reduces {a} with {b}: these are different chunks")]
    MixesChunks {
        /// Left.
        a: Value,
        /// Right.
        b: Value,
    },
    /// A contribution counts twice.
    #[error("reduces {a} with {b}: rank {contributor}'s contribution would count twice")]
    ReducedTwice {
        /// Left.
        a: Value,
        /// Right.
        b: Value,
        /// Whose.
        contributor: u32,
    },
    /// Another order than the ring's.
    #[error("reduces {a} with {b} (in this order), but in the order of the ring {wanted}; or claim another order")]
    OutOfOrder {
        /// Left.
        a: Value,
        /// Right.
        b: Value,
        /// What would be right.
        wanted: String,
    },
    /// The destination holds something else than the collective's result.
    #[error("{place} ends as {has}, the collective wants {wanted}")]
    WrongResult {
        /// Where.
        place: Where,
        /// Is.
        has: Value,
        /// Should be.
        wanted: String,
    },
    /// A rank leaves the barrier too early.
    #[error(
        "may leave the barrier before rank {other} has come: no chain of messages leads from there"
    )]
    Barrier {
        /// Who.
        other: u32,
    },
    /// A stream that is read or written beyond its end.
    #[error("the kernel's stream has {chunks} chunks, and the steps use {used}")]
    Stream {
        /// There are.
        chunks: u32,
        /// Used.
        used: u32,
    },
}

/// A place in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Where {
    /// Whose, when not the rank's own.
    pub of: Option<u32>,
    /// What.
    pub place: Place,
}

impl From<Place> for Where {
    fn from(place: Place) -> Where {
        Where { of: None, place }
    }
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.of {
            write!(f, "rank {rank}'s ")?;
        }
        let name = match self.place {
            Place::Input(_) => "input",
            Place::Output(_) => "output",
            Place::Scratch(_) => "scratch",
        };
        let chunks = self.place.chunks();
        match chunks.count {
            1 => write!(f, "{name}[{}]", chunks.first),
            // The end of a run that is out of bounds may not fit 32 bits.
            n => write!(
                f,
                "{name}[{}..{}]",
                chunks.first,
                u64::from(chunks.first) + u64::from(n)
            ),
        }
    }
}

/// How long a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First chunk of it, in its block; `None` for a message without payload.
    pub first: Option<u32>,
    /// Chunks.
    pub chunks: u32,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first {
            None => write!(f, "no payload"),
            Some(first) => write!(
                f,
                "{} chunks that start as chunk {first} of a block",
                self.chunks
            ),
        }
    }
}

fn cycle_text(cycle: &[(u32, usize, u32)]) -> String {
    let waits: Vec<String> = cycle
        .iter()
        .map(|(rank, step, on)| format!("rank {rank} in step {step} for rank {on}"))
        .collect();
    waits.join(", ")
}
