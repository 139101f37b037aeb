//! [`Schedule`]: operations of ranks.

use std::fmt;

use ringbell_nic_abi::CollectiveKind;

use super::needs::{circle, Need};

/// The operations of each rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    ranks: Vec<Vec<Op>>,
}

/// An operation of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// Its label, where it has one.
    pub label: Option<Box<str>>,
    /// Its line in the file, from 1 on; 0 where there is none.
    pub line: u32,
    /// What it does.
    pub work: Work,
    /// The processor of the rank that does it.
    pub cpu: u8,
    /// For what it waits.
    pub needs: Vec<Need>,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Sends a message.
    Send {
        /// Rank of the receiver.
        to: u32,
        /// Bytes.
        bytes: u64,
        /// Tag.
        tag: u32,
    },
    /// Receives a message.
    Recv {
        /// Rank of the sender; `None`: any.
        from: Option<u32>,
        /// Bytes, at most.
        bytes: u64,
        /// Tag; `None`: any.
        tag: Option<u32>,
    },
    /// Keeps its processor for so many nanoseconds.
    Calc {
        /// Nanoseconds.
        ns: u64,
    },
    /// Takes part in a collective of all ranks, of f32, with sums and root 0. All ranks have the
    /// same ones, and begin them in one order.
    Collective {
        /// Which.
        kind: CollectiveKind,
        /// Bytes, counted as nccl-tests does: of all blocks, where each rank has one.
        bytes: u64,
    },
}

/// Bytes of an element of collectives.
pub(crate) const ELEMENT: u64 = 4;

/// Whether a rank's source or destination has a block for each rank.
pub(crate) fn has_blocks(kind: CollectiveKind) -> bool {
    use CollectiveKind as K;
    matches!(kind, K::AllGather | K::ReduceScatter | K::AllToAll)
}

/// Whether a schedule may have a collective.
pub(super) fn is_simulated(kind: CollectiveKind) -> bool {
    use CollectiveKind as K;
    matches!(
        kind,
        K::AllReduce
            | K::AllGather
            | K::ReduceScatter
            | K::Broadcast
            | K::Reduce
            | K::AllToAll
            | K::Barrier
    )
}

impl Schedule {
    /// Of the operations of each rank; `None`: one waits for an operation that is not there, for
    /// itself, or for others in a circle, or has a peer that is not there.
    pub fn new(ranks: Vec<Vec<Op>>) -> Option<Schedule> {
        let count = ranks.len() as u32;
        let is_right = |ops: &Vec<Op>| {
            let of_one = |op: &Op| {
                let peer = match op.work {
                    Work::Send { to, .. } => Some(to),
                    Work::Recv { from, .. } => from,
                    Work::Calc { .. } | Work::Collective { .. } => None,
                };
                peer.is_none_or(|p| p < count)
                    && op.needs.iter().all(|n| (n.op as usize) < ops.len())
            };
            ops.iter().all(of_one) && circle(ops.len(), |i| &ops[i].needs).is_none()
        };
        ranks.iter().all(is_right).then_some(Schedule { ranks })
    }

    /// Of operations that are known to be right.
    pub(super) fn of(ranks: Vec<Vec<Op>>) -> Schedule {
        Schedule { ranks }
    }

    /// By rank.
    pub fn ranks(&self) -> &[Vec<Op>] {
        &self.ranks
    }

    /// How many sends there are, and their bytes.
    pub fn sent(&self) -> (u64, u64) {
        let sends = self.ranks.iter().flatten().filter_map(|op| match op.work {
            Work::Send { bytes, .. } => Some(bytes),
            _ => None,
        });
        sends.fold((0, 0), |(n, sum), bytes| (n + 1, bytes.saturating_add(sum)))
    }
}

impl Op {
    /// Where it stands: its line, or its label where a file has no lines.
    pub(crate) fn place(&self) -> String {
        match (self.line, &self.label) {
            (0, Some(label)) => format!("`{label}`"),
            (line, _) => format!("line {line}"),
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Work::Send { to, bytes, tag } => write!(f, "send {bytes}b to {to} tag {tag}"),
            Work::Recv { from, bytes, tag } => {
                let any = |n: Option<u32>| n.map_or_else(|| "-1".into(), |n| n.to_string());
                write!(f, "recv {bytes}b from {} tag {}", any(from), any(tag))
            }
            Work::Calc { ns } => write!(f, "calc {ns}"),
            Work::Collective { kind, bytes } => {
                write!(f, "coll {} {bytes}b", kind.name().to_ascii_lowercase())
            }
        }
    }
}

/// The operation as a report names it: its label, and what it does.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(label) = &self.label {
            write!(f, "{label}: ")?;
        }
        write!(f, "{}", self.work)
    }
}
