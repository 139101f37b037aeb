//! Settings and status of a communicator.

use std::net::SocketAddrV4;
use std::time::Duration;

use ringbell_nic_abi::{Algorithm, CollectiveKind, Status};
use ringbell_onc_engines::program::{HostRanks, Order, Thresholds};

use crate::config::ConfigError;
use crate::message::Terms;
use crate::types::CommId;

/// Most ranks of one communicator.
pub const MAX_RANKS: usize = 4096;

/// Ranks up to which all have links, where all share a host.
const LINKED_ON_A_HOST: usize = 256;
/// The same of ranks of several hosts: among more, links to all take more memory and time to make
/// than most jobs use of them.
const LINKED_BETWEEN_HOSTS: usize = 64;

/// Settings of a communicator. They are checked against each other when it is made, and every rank
/// must use the same `segment_bytes` and algorithms (the first message of an operation checks it).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectiveSettings {
    /// Messages up to this many bytes travel with their header (eager); longer ones wait until the
    /// receiver has named a buffer (rendezvous). Over `local` at most 8 KiB.
    pub eager_max: u64,
    /// Receive buffers of `eager_max` bytes that this rank keeps for each peer. A sender that has
    /// filled them falls back to rendezvous.
    pub eager_buffers: u32,
    /// Bytes of a chunk that are moved at once: longer chunks are split into segments.
    pub segment_bytes: u64,
    /// Segments of one operation that are under way at once.
    pub segments_in_flight: u32,
    /// NIC memory for partial results, shared by the operations of the communicator.
    pub scratch_bytes: u64,
    /// Kernels' streams: bytes of a message, and of a window of a collective, at most. The ring of
    /// a stream must hold as many. The same on every rank.
    pub stream_bytes: u64,
    /// Bytes of host memory that are staged through NIC memory at once when a message leaves from,
    /// or arrives in, memory that peers cannot map.
    pub staging_bytes: u64,
    /// Whether ranks that share the host reach each other's memory without messages (the direct
    /// path), when all of them do.
    pub direct: bool,
    /// Whether the cards of the NICs execute the steps of collectives between neighbours, where all
    /// ranks have one that can and set this. An all-reduce that names no algorithm is a `RING`
    /// then.
    pub card: bool,
    /// Direct path: inputs of up to this many bytes travel inside the operation's record, and one
    /// synchronisation is enough. Those of all ranks together are at most 8 KiB.
    pub direct_eager_bytes: u64,
    /// Whether every reduction runs in the order of the ranks, so that its bits depend neither on
    /// the count, the place of an element, the algorithm nor the path.
    pub deterministic: bool,
    /// Whether what goes to several ranks goes by frames that the NICs on the way copy, where the
    /// ranks are at least half of a mesh whose routes have trees. The same on every rank.
    pub trees: bool,
    /// Communicators of up to this many ranks have all their links when they are made, and the
    /// direct path. In larger ones a rank has links to few neighbours, and dials another with the
    /// first message or one-sided operation to it. 0: 256 where all ranks share a host or where
    /// that is not known (`host_ranks`), else 64. The same on every rank.
    pub linked_ranks: u32,
    /// Which ranks share a host, which `HIERARCHICAL` must know: as many consecutive ranks on each
    /// host, or the hosts of all ranks. 0: as the SDK finds it out when the ranks meet. The same on
    /// every rank.
    pub host_ranks: HostRanks,
    /// Where operations that name no algorithm change from one to another.
    pub thresholds: Thresholds,
    /// How long the ranks may take to find each other.
    pub connect_timeout: Duration,
}

impl Default for CollectiveSettings {
    fn default() -> CollectiveSettings {
        CollectiveSettings {
            eager_max: 64 << 10,
            eager_buffers: 8,
            segment_bytes: 256 << 10,
            segments_in_flight: 4,
            scratch_bytes: 16 << 20,
            stream_bytes: 4 << 10,
            staging_bytes: 1 << 20,
            direct: true,
            card: true,
            direct_eager_bytes: 1 << 10,
            deterministic: false,
            trees: true,
            linked_ranks: 0,
            host_ranks: HostRanks::default(),
            thresholds: Thresholds::default(),
            connect_timeout: Duration::from_secs(30),
        }
    }
}

fn refuse(setting: &'static str, why: String) -> Result<(), ConfigError> {
    Err(ConfigError { setting, why })
}

impl CollectiveSettings {
    /// The order of reductions.
    pub(crate) fn order(&self) -> Order {
        match self.deterministic {
            true => Order::Rank,
            false => Order::Ring,
        }
    }

    /// Whether so many ranks have all their links when they are made.
    pub fn links_all(&self, ranks: usize) -> bool {
        let most = match self.linked_ranks {
            // The direct path needs them.
            0 if self.host_ranks.may_be_one(ranks as u32) => LINKED_ON_A_HOST,
            0 => LINKED_BETWEEN_HOSTS,
            set => set as usize,
        };
        ranks <= most
    }

    /// In words, what a rank was given unlike the first; `what` counts the settings that all must
    /// give alike.
    pub(crate) fn why_unlike(&self, rank: u32, what: u8) -> String {
        let [names @ .., _] = self.agreed().map(|(name, _)| name);
        let mut names = names.into_iter().chain(["linked_ranks` or `host_ranks"]);
        match names.nth(what.into()) {
            Some(name) => format!("rank {rank} differs from rank 0 in the setting `{name}`"),
            None => format!("rank {rank} differs from rank 0 in the list of ranks"),
        }
    }

    /// Checks every setting, and the settings against each other.
    ///
    /// # Errors
    /// The first setting that cannot be, and why.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let s = self;
        if s.eager_max > 1 << 30 {
            return refuse(
                "collective.eager_max",
                format!("{} is above 1 GiB", s.eager_max),
            );
        }
        if s.eager_max > 0 && !(1..=4096).contains(&s.eager_buffers) {
            return refuse(
                "collective.eager_buffers",
                format!("{} is not between 1 and 4096", s.eager_buffers),
            );
        }
        if s.segment_bytes < 64 || s.segment_bytes > 1 << 30 || !s.segment_bytes.is_multiple_of(64)
        {
            return refuse(
                "collective.segment_bytes",
                format!(
                    "{} is not a multiple of 64 between 64 and 1 GiB",
                    s.segment_bytes
                ),
            );
        }
        if !(1..=64).contains(&s.segments_in_flight) {
            return refuse(
                "collective.segments_in_flight",
                format!("{} is not between 1 and 64", s.segments_in_flight),
            );
        }
        let least = s.segment_bytes.saturating_mul(2);
        if s.scratch_bytes < least {
            return refuse(
                "collective.scratch_bytes",
                format!(
                    "{} has no room for two segments of collective.segment_bytes, {least} bytes",
                    s.scratch_bytes
                ),
            );
        }
        if !s.stream_bytes.is_power_of_two() || !(32..=1 << 24).contains(&s.stream_bytes) {
            return refuse(
                "collective.stream_bytes",
                format!(
                    "{} is not a power of two between 32 and 16 MiB",
                    s.stream_bytes
                ),
            );
        }
        if !(4096..=1 << 30).contains(&s.staging_bytes) {
            return refuse(
                "collective.staging_bytes",
                format!("{} is not between 4096 and 1 GiB", s.staging_bytes),
            );
        }
        if s.direct_eager_bytes > 1 << 20 {
            return refuse(
                "collective.direct_eager_bytes",
                format!("{} is above 1 MiB", s.direct_eager_bytes),
            );
        }
        if let Err(why) = s.thresholds.check(s.scratch_bytes) {
            return refuse("collective.thresholds", why.to_string());
        }
        if s.connect_timeout.is_zero() {
            return refuse("collective.connect_timeout", "0 would never connect".into());
        }
        Ok(())
    }
}

/// What a communicator is made from. Every rank gives the same `ctx`, `peers` and settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommunicatorConfig {
    /// Number that is unique to this communicator, on all its ranks; it stands for job secret and
    /// epoch. Messages with another number are dropped.
    pub ctx: u64,
    /// This rank.
    pub rank: u32,
    /// Address of every rank's NIC, by rank; the port is the one on which its NIC serves
    /// collectives.
    pub peers: Vec<SocketAddrV4>,
    /// Settings.
    pub settings: CollectiveSettings,
}

/// A communicator that could not be made or found; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A setting is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The number of ranks is wrong.
    #[error("a communicator has 1 to {MAX_RANKS} ranks, not {ranks}")]
    Ranks {
        /// Ranks given.
        ranks: usize,
    },
    /// The rank is not among the peers.
    #[error("rank {rank} is outside of 0..{ranks}; give each rank its own number")]
    Rank {
        /// Rank given.
        rank: u32,
        /// Ranks given.
        ranks: usize,
    },
    /// Two ranks have one address.
    #[error("ranks {a} and {b} both have the address {address}; a rank is a NIC with an `ip` of its own")]
    Twice {
        /// One.
        a: usize,
        /// The other.
        b: usize,
        /// Their address.
        address: SocketAddrV4,
    },
    /// The rank's own address is another NIC's.
    #[error("rank {rank} is listed at {address}, but this NIC has the address {ip}; list the ranks in the same order everywhere")]
    NotMine {
        /// Rank given.
        rank: u32,
        /// Its address in the list.
        address: SocketAddrV4,
        /// The NIC's own address.
        ip: std::net::Ipv4Addr,
    },
    /// The number of a living communicator.
    #[error(
        "this NIC already has a communicator with the number {ctx:#x}; make a new one for each"
    )]
    CtxInUse {
        /// The number.
        ctx: u64,
    },
    /// A window lists another number of ranks.
    #[error("a window of a communicator of {ranks} ranks lists {given}")]
    WindowRanks {
        /// Ranks given.
        given: usize,
        /// Ranks of the communicator.
        ranks: u32,
    },
    /// No window has that number.
    #[error("communicator {} has no window {window}; it was freed, or never made", id.0)]
    UnknownWindow {
        /// The communicator.
        id: CommId,
        /// Number given.
        window: u16,
    },
    /// The numbers of windows are used up.
    #[error("communicator {} has had 65535 windows; make a new communicator, or keep windows longer", id.0)]
    TooManyWindows {
        /// The communicator.
        id: CommId,
    },
    /// Another port already serves collectives.
    #[error(
        "this NIC serves collectives on port {port}, so rank {rank} cannot be at port {asked}"
    )]
    Port {
        /// In use.
        port: u16,
        /// This rank.
        rank: u32,
        /// Asked for.
        asked: u16,
    },
    /// Memory for partial results was refused.
    #[error(
        "memory for partial results: {why}; give registered memory that the NIC may write, once"
    )]
    Scratch {
        /// The reason.
        why: String,
    },
    /// NIC memory is short.
    #[error("NIC memory: {needed} bytes needed, {free} of {nic_memory} are free; raise the setting `nic_memory_bytes`, or lower collective.eager_buffers, eager_max or scratch_bytes")]
    Memory {
        /// Needed.
        needed: u64,
        /// Free.
        free: u64,
        /// Size of NIC memory.
        nic_memory: u64,
    },
    /// A transport cannot listen on the port.
    #[error("cannot serve collectives on port {port}: {status}")]
    Listen {
        /// The port.
        port: u16,
        /// Why.
        status: Status,
    },
    /// No such communicator.
    #[error("communicator {id:?} does not exist; it was never made, or it has been freed")]
    Unknown {
        /// The id given.
        id: CommId,
    },
    /// All ids are in use.
    #[error("all {limit} communicators of this NIC are in use; free some")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The NIC's own region could not be registered.
    #[error("NIC memory could not be registered: {why}")]
    Register {
        /// Why.
        why: String,
    },
}

/// How far a communicator is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommStatus {
    /// Ranks have not answered yet. Operations may be posted; they wait.
    Connecting {
        /// Which ranks.
        missing: Vec<u32>,
    },
    /// All ranks are there.
    Ready,
    /// Nothing runs any more; free it, and make another with a new number.
    Aborted {
        /// The rank that caused or requested it.
        rank: u32,
        /// What its operations ended with.
        status: Status,
    },
}

/// How a peer is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Rank.
    pub rank: u32,
    /// Address of its NIC.
    pub address: SocketAddrV4,
    /// The transport that carries its messages; none for this rank itself, or not connected yet.
    pub transport: Option<&'static str>,
    /// Why this transport.
    pub why: &'static str,
    /// What decides how messages to it travel; none for this rank itself, or not connected yet.
    pub terms: Option<Terms>,
}

/// Counts of a communicator; they only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CollectiveCounters {
    /// Operations that ended well.
    pub completed: u64,
    /// Operations that did not.
    pub failed: u64,
    /// Steps of programs that this NIC has run.
    pub steps: u64,
    /// Messages sent with their payload.
    pub eager: u64,
    /// Messages sent after the receiver had named a buffer.
    pub rendezvous: u64,
    /// Messages written straight to receives that the receiver had announced.
    pub written: u64,
    /// Those of `written` that went to several ranks at once.
    pub copied: u64,
    /// Messages longer than nothing that would have been eager, but found no free receive buffer.
    pub without_credit: u64,
    /// Messages that came before their receive, and announced receives that came before their
    /// message.
    pub unexpected: u64,
    /// Elements that this NIC has reduced.
    pub reduced: u64,
    /// Operations over the direct path whose inputs travelled inside the records.
    pub direct_eager: u64,
    /// Operations over the direct path that were one pass over the ranks' memory.
    pub direct: u64,
    /// Those of `direct` that went through NIC memory piece by piece, because peers cannot map, or
    /// must not write, some rank's memory.
    pub direct_bounced: u64,
    /// Operations that went over messages, because an engine is to see them or NIC memory is short.
    pub direct_refused: u64,
    /// Operations over messages whose steps the card behind this NIC has executed.
    pub card: u64,
}

/// A communicator's status, for users and tools.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommInfo {
    /// Its number.
    pub ctx: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks.
    pub ranks: u32,
    /// How far it is.
    pub status: CommStatus,
    /// NIC memory that it holds: receive buffers and scratch, in bytes.
    pub nic_memory: u64,
    /// How each rank is reached.
    pub peers: Vec<PeerInfo>,
    /// How often each algorithm was chosen.
    pub chosen: Vec<(CollectiveKind, Algorithm, u64)>,
    /// Counts.
    pub counters: CollectiveCounters,
    /// In what ranks differ, after `MISMATCH`; which setting is too small, after `NO_RESOURCES`.
    pub why: Option<String>,
}

/// How far an operation is that runs a program over messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProgramProgress {
    /// The algorithm that runs, never `AUTO`.
    pub algo: Algorithm,
    /// Segments that this rank takes part in.
    pub segments: u64,
    /// How many segments may be under way at once.
    pub at_once: u64,
    /// Steps of this rank that have run, of all segments.
    pub steps_run: u64,
    /// All its steps.
    pub steps: u64,
}

/// An operation that cannot be cancelled; it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CancelError {
    /// No such operation: the ticket was never taken, has retired, or is no `COLLECTIVE`.
    #[error("ticket {ticket} of queue {queue} is no collective operation under way; it may have ended: poll it")]
    NotUnderWay {
        /// The queue.
        queue: u32,
        /// The ticket.
        ticket: u32,
    },
    /// Other ranks depend on it.
    #[error("ticket {ticket} of queue {queue} has begun, and other ranks wait for it; wait for its end, or abort the communicator")]
    Begun {
        /// The queue.
        queue: u32,
        /// The ticket.
        ticket: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_contradict_each_other_are_named() {
        assert_eq!(CollectiveSettings::default().validate(), Ok(()));
        let d = CollectiveSettings::default;
        for (s, name) in [
            (
                CollectiveSettings {
                    eager_buffers: 0,
                    ..d()
                },
                "collective.eager_buffers",
            ),
            (
                CollectiveSettings {
                    segment_bytes: 100,
                    ..d()
                },
                "collective.segment_bytes",
            ),
            (
                CollectiveSettings {
                    scratch_bytes: d().segment_bytes,
                    ..d()
                },
                "collective.scratch_bytes",
            ),
            (
                CollectiveSettings {
                    segments_in_flight: 0,
                    ..d()
                },
                "collective.segments_in_flight",
            ),
            (
                CollectiveSettings {
                    stream_bytes: 16,
                    ..d()
                },
                "collective.stream_bytes",
            ),
            (
                CollectiveSettings {
                    stream_bytes: 96,
                    ..d()
                },
                "collective.stream_bytes",
            ),
            (
                CollectiveSettings {
                    staging_bytes: 1,
                    ..d()
                },
                "collective.staging_bytes",
            ),
            (
                CollectiveSettings {
                    thresholds: Thresholds {
                        whole_sources: 64 << 20,
                        all_reduce_ring: 64 << 20,
                        ..Thresholds::default()
                    },
                    ..d()
                },
                "collective.thresholds",
            ),
            (
                CollectiveSettings {
                    connect_timeout: Duration::ZERO,
                    ..d()
                },
                "collective.connect_timeout",
            ),
        ] {
            assert_eq!(s.validate().expect_err(name).setting, name);
        }
        // Without eager messages no buffer is needed.
        let none = CollectiveSettings {
            eager_max: 0,
            eager_buffers: 0,
            ..d()
        };
        assert_eq!(none.validate(), Ok(()));
    }
}
