//! What is asked of a simulation, and what it answers.

use ringbell_nic_abi::{Algorithm, CollectiveKind, Status};
use ringbell_nic_core::collective::HostRanks;
use ringbell_nic_core::ConfigError;

use crate::{Breaks, Cluster, Ended, Projection};

/// How the operands of a collective are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kept {
    /// Bytes that repeat once, with how many there are; others as they are. NICs read and write
    /// real bytes, and all are compared.
    #[default]
    Once,
    /// Every byte.
    Whole,
}

/// Whether operations are fast-forwarded: simulated until a steady phase is recognised, which then
/// says how long they take. Their results are not compared. Runs with losses or faults, and those
/// that are watched, never are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Forward {
    /// None.
    Never,
    /// Those that take millions of frames.
    #[default]
    Long,
    /// All that have a steady phase.
    Always,
}

/// A collective on a cluster.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The operation.
    pub kind: CollectiveKind,
    /// Where.
    pub cluster: Cluster,
    /// Bytes of each size, as nccl-tests counts them.
    pub sizes: Vec<u64>,
    /// Algorithm.
    pub algo: Algorithm,
    /// How operands are kept. It changes nothing but what a run takes of memory and time.
    pub kept: Kept,
    /// Which operations are fast-forwarded.
    pub forward: Forward,
}

impl Plan {
    /// One size, by the algorithm that the NIC chooses.
    pub fn new(kind: CollectiveKind, cluster: Cluster, bytes: u64) -> Plan {
        Plan {
            kind,
            cluster,
            sizes: vec![bytes],
            algo: Algorithm::Auto,
            kept: Kept::default(),
            forward: Forward::default(),
        }
    }
}

/// One size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Bytes.
    pub bytes: u64,
    /// Elements, per rank where the operation has a block for each.
    pub count: u64,
    /// Virtual time from the post on all ranks to the last completion.
    pub time_ns: u64,
    /// Bytes by time, in GB/s.
    pub algbw_gbs: f64,
    /// As nccl-tests corrects it for the operation.
    pub busbw_gbs: f64,
    /// Elements that were not as the model has them, on all ranks; 0 where none was compared.
    pub wrong: u64,
    /// How its time was found, where it was fast-forwarded. No result was compared then.
    pub projection: Option<Projection>,
}

/// What has happened in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Events that were handled.
    pub events: u64,
    /// Frames that NICs sent.
    pub packets: u64,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Frames that were lost: at switches, on wires that were cut, to ranks that were killed.
    pub lost: u64,
    /// Frames that switches marked (ECN).
    pub marked: u64,
    /// How often a switch paused a link (PFC).
    pub pauses: u64,
    /// Most bytes that waited at an output of a switch.
    pub deepest: u64,
    /// Virtual time at the end.
    pub virtual_ns: u64,
    /// Digest of all events: time, node, kind and length of each.
    pub hash: u64,
}

impl Counts {
    /// With what has happened in another world after it.
    #[must_use]
    pub(crate) fn and(self, then: Counts) -> Counts {
        Counts {
            events: self.events + then.events,
            packets: self.packets + then.packets,
            bytes: self.bytes + then.bytes,
            lost: self.lost + then.lost,
            marked: self.marked + then.marked,
            pauses: self.pauses + then.pauses,
            deepest: self.deepest.max(then.deepest),
            virtual_ns: self.virtual_ns + then.virtual_ns,
            hash: self.hash.rotate_left(1) ^ then.hash,
        }
    }
}

/// The end of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// By size.
    pub sizes: Vec<Measured>,
    /// Payload that a link of the profile carries at best, in GB/s, in packets of the length that
    /// was used.
    pub payload_gbs: f64,
    /// Bus bandwidth that no cut of the network allows to exceed, in GB/s, in such packets.
    pub best_gbs: f64,
    /// How the last operation ended, if not well on every rank that lives.
    pub ended: Option<Ended>,
    /// What has happened.
    pub counts: Counts,
}

/// Why a simulation did not end as it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The number of ranks.
    #[error("{ranks} ranks cannot be simulated; give 2 to {most}")]
    Ranks {
        /// As given.
        ranks: usize,
        /// Most there can be.
        most: usize,
    },
    /// The ranks are no whole number of hosts.
    #[error("{ranks} ranks cannot have these hosts: {}; give a divisor of the ranks, or the ranks of each host one after the other, as 3,2,4", host_ranks.why_not(*ranks as u32))]
    Hosts {
        /// Ranks.
        ranks: usize,
        /// Hosts, as given.
        host_ranks: HostRanks,
    },
    /// Settings of the communicator contradict each other.
    #[error("{}: {}; change one of them", .0.setting, .0.why)]
    Settings(ConfigError),
    /// The topology has fewer hosts.
    #[error("{topology} has {ends} hosts, and {ranks} ranks need one each; give fewer ranks or a larger network")]
    TooFewHosts {
        /// Its name.
        topology: String,
        /// Hosts that it has.
        ends: usize,
        /// Ranks that were asked for.
        ranks: usize,
    },
    /// A rank's NIC would forward beside switches.
    #[error("{node} of {topology} has {wires} wires, and NICs that forward are not simulated beside switches; give hosts of switches one wire each, as fat-tree:2x3, or a network without switches, as torus:2x4")]
    Forwards {
        /// Its name.
        topology: String,
        /// The node.
        node: String,
        /// Wires that end there.
        wires: usize,
    },
    /// A NIC that forwards is no rank.
    #[error("the {nodes} NICs of {topology} forward for each other, and each is a rank; give {nodes} ranks, or a network of {ranks}")]
    NotAllRanks {
        /// Its name.
        topology: String,
        /// NICs that it has.
        nodes: usize,
        /// Ranks that were asked for.
        ranks: usize,
    },
    /// What switches do is asked for where there are none.
    #[error("{what} is for switches, and {topology} has none; leave it out, or give a network of switches")]
    NoSwitches {
        /// Its name.
        topology: String,
        /// What was asked for.
        what: &'static str,
    },
    /// The NICs of a network without switches have no routes.
    #[error("{topology} has no routes: {why}; `ringbell routes {topology}` shows what there is")]
    NoRoutes {
        /// Its name.
        topology: String,
        /// The reason.
        why: String,
    },
    /// The schedule is of more ranks, or of fewer.
    #[error("a schedule of {of_schedule} ranks cannot run on {ranks}; give the cluster as many")]
    Schedule {
        /// Ranks of the cluster.
        ranks: usize,
        /// Ranks of the schedule.
        of_schedule: usize,
    },
    /// Not a share.
    #[error("a loss of {0} is not a share from 0 to below 1; give for example 0.01")]
    Loss(String),
    /// Less than an element.
    #[error("{bytes} bytes are less than an element of 4 bytes for each block; give larger sizes")]
    Small {
        /// The size.
        bytes: u64,
    },
    /// More memory than is made.
    #[error("{bytes} bytes on each rank need more than the {gib} GiB that all may have; give a smaller size or fewer ranks")]
    Large {
        /// The size.
        bytes: u64,
        /// What all may have.
        gib: u64,
    },
    /// The operation is not simulated.
    #[error("{0:?} is not simulated; all-reduce, all-gather, reduce-scatter, broadcast, reduce and all-to-all are")]
    Kind(CollectiveKind),
    /// Its link cannot be captured.
    #[error("there is no rank {rank} to capture; give one of the {ranks} ranks, from 0 on")]
    Captured {
        /// As given.
        rank: usize,
        /// How many there are.
        ranks: usize,
    },
    /// A NIC could not be made.
    #[error("rank {rank} could not be made: {why}")]
    Made {
        /// Which.
        rank: usize,
        /// The reason.
        why: String,
    },
    /// A kernel cannot be loaded or launched.
    #[error("{0}")]
    Kernel(String),
    /// The timeline's file.
    #[error("the timeline cannot be written: {0}; check that its disk has room")]
    Timeline(String),
    /// The ranks have not met.
    #[error("the ranks have not met: {status:?} names rank {rank}; a smaller loss may pass")]
    Apart {
        /// Which is named.
        rank: usize,
        /// The status of the communicator.
        status: Status,
    },
    /// A fault of a rank or a wire that is not there.
    #[error(
        "{what} is to break, and there are {ranks} ranks and {wires} wires; count them from 0 on"
    )]
    NothingToBreak {
        /// What breaks.
        what: Breaks,
        /// How many ranks there are.
        ranks: usize,
        /// How many wires there are.
        wires: usize,
    },
    /// A rank is to be slow that is not there, or faster than the others.
    #[error("rank {rank} is to be {factor} times slower, and there are {ranks} ranks; count them from 0 on, and give a factor of 1 or more")]
    NotSlow {
        /// The rank.
        rank: usize,
        /// As given.
        factor: String,
        /// How many ranks there are.
        ranks: usize,
    },
    /// No wire has this name.
    #[error(
        "no wire of {network} is named {text}; name one end as {example}, or both nodes as A-B"
    )]
    NoSuchWire {
        /// As given.
        text: String,
        /// The network.
        network: String,
        /// An end of a wire.
        example: String,
    },
    /// Several wires have this name.
    #[error("several wires are named {text}; name one by an end, as {first} or {second}")]
    SeveralWires {
        /// As given.
        text: String,
        /// An end of one.
        first: String,
        /// An end of another.
        second: String,
    },
    /// Virtual time is over.
    #[error("ranks {ranks:?} still wait for {what} after {virtual_ms} ms of virtual time; run again with the same seed to see the same")]
    Hung {
        /// Who.
        ranks: Vec<usize>,
        /// For what.
        what: &'static str,
        /// The deadline.
        virtual_ms: u64,
    },
}

impl Failure {
    /// A size that is too large where all ranks together may have so many bytes.
    pub(crate) fn large(bytes: u64, all: u64) -> Failure {
        let gib = all >> 30;
        Failure::Large { bytes, gib }
    }
}
