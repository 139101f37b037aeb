//! What is asked of a run of a schedule, and what it answers.

use crate::goal::Schedule;
use crate::{Cluster, Counts, RankEnd};

/// Memory of a rank for messages that come straight to it.
const ROOM: u64 = 256 << 20;

/// A schedule on a cluster: a rank of it on each rank.
#[derive(Debug, Clone)]
pub struct GoalPlan {
    /// What the ranks do.
    pub schedule: Schedule,
    /// Where, with as many ranks. Its seed is also that of the messages' bytes.
    pub cluster: Cluster,
    /// Memory of a rank for messages that come straight to it; more where one of them needs it.
    /// Those for which there is no room wait.
    pub room_bytes: u64,
}

impl GoalPlan {
    /// On a cluster, with as much room as most schedules need.
    pub fn new(schedule: Schedule, cluster: Cluster) -> GoalPlan {
        GoalPlan {
            schedule,
            cluster,
            room_bytes: ROOM,
        }
    }
}

/// An operation of the schedule, and what is to be said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// Its rank.
    pub rank: usize,
    /// Its line in the file; 0 where there is none.
    pub line: u32,
    /// Its label, and what it does.
    pub text: String,
    /// What became of it.
    pub why: String,
}

/// A message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// Ranks of sender and receiver.
    pub ends: [u32; 2],
    /// Line of the send in the file; 0 where there is none.
    pub line: u32,
    /// Bytes.
    pub bytes: u64,
    /// When its send began, from the begin on.
    pub begin_ns: u64,
    /// From then until its receiver's host has seen its end: htsim's flow completion time.
    pub took_ns: u64,
}

/// Why a schedule did not end well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GoalTrouble {
    /// How each rank ended, one of them at least by an error.
    Failed(Vec<RankEnd>),
    /// Nothing goes on any more.
    Stuck {
        /// Since then, from the begin on.
        since_ns: u64,
        /// Operations that have begun and cannot end.
        waiting: Vec<Operation>,
        /// How many have not begun.
        behind: usize,
    },
    /// Receives of fewer bytes than the message has that they have met.
    TooLong(Vec<Operation>),
    /// Messages that no receive has met.
    Unreceived(Vec<Operation>),
}

/// The end of such a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoalReport {
    /// By rank, when its last operation ended, from the begin on.
    pub ends_ns: Vec<u64>,
    /// The latest of them.
    pub time_ns: u64,
    /// Messages that were received.
    pub messages: u64,
    /// The same, in the order in which hosts have seen their ends.
    pub deliveries: Vec<Delivery>,
    /// Their bytes.
    pub bytes: u64,
    /// Ends of collectives, of each rank its own.
    pub collectives: u64,
    /// Bytes that are not as they were sent, or not the collective's result.
    pub wrong: u64,
    /// Receives that waited for memory of their rank.
    pub waited: u64,
    /// What went wrong.
    pub trouble: Option<GoalTrouble>,
    /// What has happened.
    pub counts: Counts,
}
