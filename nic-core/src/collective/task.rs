//! What an operation does, and when it may begin.

use smallvec::smallvec;

use super::combine::{Combine, Held};
use super::direct::Prepared;
use super::Side;
use crate::link::Pieces;

/// What an operation waits for before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing.
    Nothing,
    /// A ticket of a queue.
    Ticket { queue: u32, ticket: u32 },
    /// Every ticket of a queue before this one.
    Fence { queue: u32, ticket: u32 },
}

/// What an operation does.
#[derive(Debug)]
pub(crate) enum Task {
    /// Nothing.
    Nop,
    /// A message to a rank.
    Send { to: u32, tag: u32, pieces: Pieces },
    /// A message from a rank, or any.
    Recv {
        from: Option<u32>,
        tag: Option<u32>,
        pieces: Pieces,
    },
    /// One pass over this rank's memory.
    Local(Box<Combine>),
    /// Elements to or from a peer, in messages of a stream's size.
    Channel(ChannelTask),
    /// A program.
    Program(Box<Prepared>),
}

/// State of an operation after a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Everything is done.
    Done,
    /// It waits for messages.
    Waits,
    /// It can go on at once.
    More,
}

/// See [`Task::Channel`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChannelTask {
    pub(crate) sends: bool,
    pub(crate) peer: u32,
    pub(crate) tag: u32,
    /// Type and count.
    pub(crate) elements: (ringbell_nic_abi::DataType, u64),
    /// The memory, when there is no stream.
    pub(crate) side: Side,
}

/// A message on its way from one buffer of this rank to another.
#[derive(Debug)]
pub(super) struct OwnCopy {
    pub(super) pass: Combine,
    /// The operation that sends.
    pub(super) sender: u32,
    pub(super) len: u64,
    /// What the receive reports.
    pub(super) detail: u64,
}

/// One pass over this rank's memory: a copy, or destination = destination op source.
#[derive(Debug)]
pub(crate) struct LocalPass {
    pub(crate) dtype: ringbell_nic_abi::DataType,
    pub(crate) op: ringbell_nic_abi::ReduceOp,
    pub(crate) source: Pieces,
    pub(crate) result: Pieces,
    pub(crate) combine: bool,
    pub(crate) count: u64,
}

impl From<LocalPass> for Combine {
    fn from(p: LocalPass) -> Combine {
        let mut sources = smallvec![(p.source, false)];
        if p.combine {
            sources.insert(0, (p.result.clone(), false));
        }
        Combine {
            dtype: p.dtype,
            op: p.op,
            wire: ringbell_nic_abi::WireType::Same,
            sources,
            results: smallvec![(p.result, false)],
            count: p.count,
            done: 0,
            held: Held::default(),
        }
    }
}

impl Combine {
    /// A copy of bytes from one place in this rank's memory to another as long.
    pub(super) fn copy(from: Pieces, to: Pieces) -> Combine {
        let count = from.len();
        Combine::from(LocalPass {
            dtype: ringbell_nic_abi::DataType::U8,
            op: ringbell_nic_abi::ReduceOp::Sum,
            source: from,
            result: to,
            combine: false,
            count,
        })
    }
}

impl Task {
    /// A pass over this rank's memory.
    pub(crate) fn local(p: LocalPass) -> Task {
        Task::Local(Box::new(p.into()))
    }
}
