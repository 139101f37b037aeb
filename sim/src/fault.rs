//! What breaks during a run, and how the ranks' operation ends then.

use std::fmt;

use ringbell_nic_abi::Status;

/// Something that breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breaks {
    /// A rank's NIC stops: frames to it vanish. What it has given to its link still leaves.
    Rank(usize),
    /// Both directions of a wire, by its place in the topology; over one switch, by its rank. What
    /// has not arrived is lost, and switches take the ways that are left at once.
    Wire(usize),
}

impl fmt::Display for Breaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Breaks::Rank(rank) => write!(f, "rank {rank}"),
            Breaks::Wire(wire) => write!(f, "wire {wire}"),
        }
    }
}

/// A fault to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When, from the first post on.
    pub at_ns: u64,
    /// What breaks.
    pub what: Breaks,
}

/// A rank whose NIC and link take longer than the others'.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slow {
    /// Which.
    pub rank: usize,
    /// How many times as long its link and its NIC's processor take; 1 and more.
    pub factor: f64,
}

/// How an operation ended that did not end well on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Its bytes.
    pub bytes: u64,
    /// When it was posted, from the first post on.
    pub posted_ns: u64,
    /// By rank.
    pub ranks: Vec<RankEnd>,
}

/// How an operation ended on a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankEnd {
    /// Its status; none on a rank that was killed before.
    pub status: Option<Status>,
    /// The rank that it names as the cause.
    pub names: Option<usize>,
    /// When, from the first post on; on a rank that was killed, when that was seen.
    pub at_ns: u64,
}

impl RankEnd {
    pub(crate) fn of(status: Status, detail: u64, at_ns: u64) -> RankEnd {
        use Status as S;
        let names = matches!(status, S::PeerFailed | S::CommAborted | S::Mismatch);
        RankEnd {
            status: Some(status),
            names: names.then_some(detail as usize),
            at_ns,
        }
    }

    /// Of a rank that was killed.
    pub(crate) fn killed(at_ns: u64) -> RankEnd {
        RankEnd {
            status: None,
            names: None,
            at_ns,
        }
    }

    /// Whether it was an error.
    pub fn is_error(&self) -> bool {
        self.status.is_some_and(|s| s != Status::Ok)
    }
}
