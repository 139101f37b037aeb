//! Engines on the path of a stream: between network and GPU memory (FpgaNIC §3.5, Figure 5).
//!
//! ```text
//! network ─▶ transport ─▶ [engine] ─▶ GPU memory        Direction::Receive
//! GPU memory ─▶ [engine] ─▶ transport ─▶ network        Direction::Send
//! ```
//!
//! An engine is a stage of the byte path (`datapath`), where a transport's bytes meet memory:
//! behind TCP's reassembly, so that each byte enters once and in order, independent of loss and
//! reordering. The transports know only that an engine is on the path; the processing is here.
//!
//! **Copies.** On `tcp` an engine reads the socket's buffer where it lies: none is added. On
//! `local` the bytes lie in the peer's memory, which the peer may write meanwhile: they are copied
//! in pieces of at most [`PIECE`] to memory of the NIC as well as to GPU memory, in one pass: the
//! engine sees what GPU memory gets. The second copy is counted, and stays in the cache.
//!
//! **Lengths.** A tap leaves the stream unchanged. Behind an engine that changes it, a receive of
//! `len` bytes waits for `len` bytes *behind the engine*. Output for which no receive has room is
//! held, at most that of one piece; meanwhile the stream is not read and the window closes. At a
//! sender, a send counts the bytes of its buffer, and retires when the output for them has left.
//!
//! **Failures.** An engine that panics, or reports a failure in `finish`, is never called again,
//! and has no result. A failed tap is bypassed. A stream that the engine changes ends: operations
//! on it with `ENGINE_FAILED`, the peer's with `CONNECTION_RESET`.
//!
//! **Threads.** An engine runs on the thread that steps the NIC. Taps of long messages may run
//! beside the copy, on a thread of their own (`beside.rs`, [`EngineThread`](crate::EngineThread)).
//!
//! **Hardware.** A card behind the NIC may count in an engine's place (`hardware.rs`): the bytes
//! are counted here, and pass the card's engine on their way to memory. What it has counted is
//! added to the engine's own state when a result is asked for, or when it goes on in software.
//!
//! **Time.** An engine's time is measured, for [`EngineInfo`] and the event `ENGINE_SLOW`, and that
//! of long runs, to choose their thread. No result depends on either.

mod beside;
mod hardware;
mod meter;
mod path;
mod running;
mod table;
mod watch;

use ringbell_nic_abi::{EngineId, QueueId, SessionId};

use crate::types::{CommId, Owner};

pub use hardware::{Counter, Tally};
pub use meter::Rates;
pub use path::EngineFailed;
pub(crate) use path::Stage;
pub(crate) use running::Notice;
pub(crate) use table::{Engines, Outcome, MAX_ENGINES};
pub(crate) use watch::Sharing;

/// Bytes that pass an engine at once. Half of a core's first-level cache of data, so that what the
/// engine has read is still there when it is stored.
pub const PIECE: usize = 16 << 10;

/// Bytes that pass a tap at once, on their way from a peer's memory to ours.
pub(crate) const TAPPED: usize = 16 << 10;

/// The same when it is stored around the cache: two pages, so that such stores, which wait in a few
/// buffers of the core, reach memory while the engine works. With the next bytes prefetched 8 KiB
/// measured best.
pub(crate) const TAPPED_AROUND: usize = 8 << 10;

/// Which bytes of a stream pass an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Those that come from the peer.
    Receive,
    /// Those that go to it.
    Send,
}

/// Where an engine stands at a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// It sees the source of each operation, in order, before the operation begins.
    Input,
    /// It sees the result of each operation that ends well, in order, before the operation
    /// completes.
    Output,
    /// It sees the payload of the messages that leave this rank, each peer's in its order.
    Sent,
    /// It sees the payload of the messages that come, each peer's in its order.
    Received,
}

impl Place {
    /// The same in two questions: does it leave this rank or its memory, and is it a message?
    pub(crate) const fn of(direction: Direction, message: bool) -> Place {
        match (direction, message) {
            (Direction::Send, false) => Place::Input,
            (Direction::Receive, false) => Place::Output,
            (Direction::Send, true) => Place::Sent,
            (Direction::Receive, true) => Place::Received,
        }
    }

    /// The key of engines of the communicator in a slot.
    pub(crate) const fn at(self, slot: u32) -> (Owner, Direction) {
        match self {
            Place::Input => (Owner::operands(slot), Direction::Send),
            Place::Output => (Owner::operands(slot), Direction::Receive),
            Place::Sent => (Owner::communicator(slot), Direction::Send),
            Place::Received => (Owner::communicator(slot), Direction::Receive),
        }
    }
}

/// What the NIC sends back over a session by itself, without a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Return {
    /// What leaves the engine, as it comes.
    Stream,
    /// The engine's result, when the stream has ended.
    Result,
}

/// Status of an engine of a NIC, for users and tools.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EngineInfo {
    /// The id.
    pub id: EngineId,
    /// Name.
    pub name: &'static str,
    /// The streams that pass it now.
    pub streams: Vec<(SessionId, Direction)>,
    /// The queues whose operations it sees, on any stream.
    pub queues: Vec<(QueueId, Direction)>,
    /// The communicators whose operations it sees.
    pub communicators: Vec<(CommId, Place)>,
    /// Bytes that entered.
    pub bytes_in: u64,
    /// Bytes that left. For a tap the same.
    pub bytes_out: u64,
    /// Its speed as it promises and as measured, and that of its stream.
    pub rates: Rates,
    /// Bytes of an item that the end of a stream has cut off.
    pub cut: Option<usize>,
    /// It has panicked or failed. The bytes bypass a tap; a stream that it changes has ended.
    pub failed: bool,
}

/// Why an engine cannot be attached, or asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineUseError {
    /// No such engine.
    #[error("{id} of this NIC does not exist; attach it first, and use it before it is detached")]
    Unknown {
        /// The id.
        id: EngineId,
    },
    /// No such session, or no stream.
    #[error("{session} is no established stream; attach an engine after connect or accept")]
    NoStream {
        /// The session.
        session: SessionId,
    },
    /// No such queue.
    #[error(
        "{queue} of this NIC does not exist, or is of another protection domain; create it first"
    )]
    NoQueue {
        /// The queue.
        queue: QueueId,
    },
    /// An engine is on the queue already.
    #[error("{queue} has {id} in this direction; detach it, or attach a chain of both")]
    Watched {
        /// The queue.
        queue: QueueId,
        /// The engine that is there.
        id: EngineId,
    },
    /// No such communicator.
    #[error(
        "communicator {id:?} of this NIC does not exist; it was never made, or it has been freed"
    )]
    NoCommunicator {
        /// The communicator.
        id: CommId,
    },
    /// An engine is at the communicator already.
    #[error(
        "communicator {comm:?} has {id} at its {place:?}; detach it, or attach a chain of both"
    )]
    Taken {
        /// The communicator.
        comm: CommId,
        /// Where.
        place: Place,
        /// The engine that is there.
        id: EngineId,
    },
    /// Sources and results are one stream each.
    #[error(
        "only messages come from, or go to, several peers; at the {place:?} there is one state"
    )]
    OneStream {
        /// Where.
        place: Place,
    },
    /// That rank is unknown.
    #[error("no stream to or from rank {rank} has passed {id}, or no engine could be made for it")]
    NoRank {
        /// The engine.
        id: EngineId,
        /// The rank.
        rank: u32,
    },
    /// Each stream of that engine has a state of its own.
    #[error("each stream of {id} has a state of its own; ask for one stream's")]
    Apart {
        /// The engine.
        id: EngineId,
    },
    /// The engine has failed.
    #[error("{id} has panicked or failed and has no result, and a stream that it changes has ended; mend it and attach a new one")]
    Failed {
        /// The engine.
        id: EngineId,
    },
    /// That stream has never passed the engine.
    #[error("{session} has not passed {id}, or no engine could be made for it")]
    NotSeen {
        /// The engine.
        id: EngineId,
        /// The session.
        session: SessionId,
    },
    /// Another engine is there already.
    #[error(
        "{session} has {id} on its path in this direction; detach it, or attach a chain of both"
    )]
    Occupied {
        /// The session.
        session: SessionId,
        /// The engine that is there.
        id: EngineId,
    },
    /// An engine that changes the stream cannot stand there.
    #[error(
        "engine {name} changes the stream, which {what}; use a tap, or an engine for each stream"
    )]
    NotATap {
        /// The engine.
        name: &'static str,
        /// The effect that rules it out.
        what: &'static str,
    },
    /// The engine belongs to another protection domain than the session.
    #[error("{id} and {session} belong to different protection domains")]
    Domain {
        /// The engine.
        id: EngineId,
        /// The session.
        session: SessionId,
    },
    /// The engine belongs to another protection domain than the queue.
    #[error("{id} and {queue} belong to different protection domains")]
    QueueDomain {
        /// The engine.
        id: EngineId,
        /// The queue.
        queue: QueueId,
    },
    /// NIC memory is short.
    #[error("{bytes} bytes of NIC memory are not there; give the NIC more (`nic_memory_bytes`), or fewer streams to answer")]
    NoMemory {
        /// What was asked for.
        bytes: u32,
    },
    /// All places are taken.
    #[error("all {limit} engines of the NIC are in use; detach some")]
    TooMany {
        /// How many there can be.
        limit: usize,
    },
    /// The kind is taken, or out of range.
    #[error(
        "kind {kind} of engines is registered already, or is 0; choose another number up to 65,535"
    )]
    Kind {
        /// As given.
        kind: u16,
    },
}
