//! Errors of collectives and of making a communicator.

use std::net::Ipv4Addr;

use ringbell_nic_abi::collective::{COMM_ENDED, RANK_ABSENT};
use ringbell_nic_abi::{CollectiveKind, Status};
use ringbell_nic_core::{NicError, WaitError};
use ringbell_onc_engines::program::UserProgramError;

use ringbell_job::{BootstrapError, JobError};

use crate::socket::also;
use crate::OpenError;

/// A communicator could not be made, or one of its operations failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The ranks did not find each other.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The environment does not say which rank this is.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A NIC could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The NIC refused to make the communicator.
    #[error("the NIC cannot make the communicator")]
    Create(#[from] ringbell_nic_core::collective::CommError),
    /// A user's program is refused: it cannot be read, or it is wrong.
    #[error(transparent)]
    Program(#[from] UserProgramError),
    /// The NIC refused a user's program.
    #[error("the NIC refuses the program")]
    Load(#[from] ringbell_nic_core::collective::ProgramError),
    /// A program for another number of ranks.
    #[error(
        "the program is for {has} ranks, the communicator has {wanted}: load one for {wanted}"
    )]
    ProgramRanks {
        /// Ranks of the program.
        has: u32,
        /// Ranks of the communicator.
        wanted: u32,
    },
    /// A communicator that would not grow.
    #[error("a communicator of {size} ranks cannot grow to {ranks}: give the number of ranks that the new one is to have")]
    NoGrowth {
        /// As given.
        ranks: u32,
        /// Ranks of the communicator.
        size: u32,
    },
    /// Ranks do not have the same symmetric memory.
    #[error("symmetric memory: rank {rank} has {has} bytes (0: none was left), this rank {wanted}; allocate the same on every rank")]
    Symmetric {
        /// The rank.
        rank: u32,
        /// Its bytes.
        has: u64,
        /// Bytes here.
        wanted: u64,
    },
    /// GPU memory for the NIC could not be allocated.
    #[error(transparent)]
    Alloc(#[from] crate::AllocError),
    /// The NIC has no queue for it.
    #[error("the NIC has no queue for the communicator")]
    Queue(#[from] NicError),
    /// Ranks have no transport in common.
    #[error("rank {a} ({a_ip}) and rank {b} ({b_ip}) cannot reach each other: {why}")]
    NoPath {
        /// One rank.
        a: u32,
        /// Its NIC.
        a_ip: Ipv4Addr,
        /// The other rank.
        b: u32,
        /// Its NIC.
        b_ip: Ipv4Addr,
        /// The missing capability and the remedy.
        why: &'static str,
    },
    /// The NICs did not find each other in time.
    #[error("the NICs of rank(s) {} did not answer within the communicator's time-out; check that they are on the same port or host, and use the same local directory and secret", listed(.ranks))]
    NotConnected {
        /// Ranks of the communicator, with the addresses of their NICs where this rank knows them.
        ranks: Vec<(u32, Option<Ipv4Addr>)>,
    },
    /// Ranks gave different settings. Every rank gets this error, with the same rank.
    #[error("rank {rank} has the setting `{setting}` at {has}, rank 0 at {first}; give every rank of a communicator the same")]
    Settings {
        /// Name of the setting, as in `CollectiveSettings::NAMES`.
        setting: &'static str,
        /// First rank of the communicator that differs from rank 0.
        rank: u32,
        /// Its value; 1 is on and 0 off.
        has: u64,
        /// Rank 0's value.
        first: u64,
    },
    /// This process has no file descriptor left for the links between NICs.
    #[error("no file descriptors are left for the NIC's links to other ranks ({open} are open, {limit} is the limit): a rank needs about 15, one for each other rank in its process and two for each in another process of this host, so {ranks} ranks in one process need about {needed}; raise the limit (`ulimit -n {needed}`), or run the ranks as processes")]
    Descriptors {
        /// Descriptors open in this process when the shortage was noticed.
        open: u64,
        /// Most that this process may have open.
        limit: u64,
        /// Ranks of the communicator.
        ranks: u32,
        /// Descriptors that they would need if all of them were in this process.
        needed: u64,
    },
    /// The system maps no more memory into this process for the links between NICs.
    #[error("cannot map the memory of other ranks' NICs: {}; or use fewer ranks on this host, or less GPU and NIC memory for each (`gpu_memory_bytes`, `nic_memory_bytes`)", room(*limit))]
    NoRoomToMap {
        /// Bytes of addresses that this process may map (`ulimit -v`), when there is a limit.
        limit: Option<u64>,
    },
    /// The system starts no thread.
    #[error("cannot start a thread; raise `ulimit -u`, or use fewer")]
    Thread(#[from] std::io::Error),
    /// An operation cannot be posted like this.
    #[error("{kind:?}: {why}")]
    Misuse {
        /// Operation.
        kind: CollectiveKind,
        /// What is wrong.
        why: String,
    },
    /// The NIC would refuse the operation with INVALID_ARGUMENT.
    #[error("{kind:?}: INVALID_ARGUMENT: {why}")]
    Argument {
        /// Operation.
        kind: CollectiveKind,
        /// The argument and the remedy.
        why: String,
    },
    /// The NIC ended the operation with an error.
    #[error("{kind:?} on rank {rank}: {}{}", explain(*.kind, *.rank, *.status, *.detail), also(why.as_deref()))]
    Failed {
        /// Operation.
        kind: CollectiveKind,
        /// Own rank.
        rank: u32,
        /// How it ended.
        status: Status,
        /// The status's detail.
        detail: u64,
        /// How the ranks differ, which setting is too small, or which wires are missing on every
        /// way to the rank that failed, when the NIC reports it.
        why: Option<String>,
    },
    /// No completion came.
    #[error("{kind:?}")]
    Wait {
        /// Operation.
        kind: CollectiveKind,
        /// The cause.
        #[source]
        source: WaitError,
    },
    /// Operations of a communicator to be freed did not end in time.
    #[error("{under_way} operation(s) of the communicator were under way after its time-out: wait for their requests before it is freed, or abort it first")]
    Busy {
        /// How many.
        under_way: usize,
    },
    /// An operation could not be cancelled; it continues, or has ended.
    #[error("{kind:?} cannot be cancelled")]
    Cancel {
        /// Operation.
        kind: CollectiveKind,
        /// The cause and the remedy.
        #[source]
        source: ringbell_nic_core::collective::CancelError,
    },
    /// The GPU refused memory or a kernel.
    #[error(transparent)]
    Gpu(#[from] ringbell_cuda_kernels::GpuError),
    /// A kernel could not be launched, or failed.
    #[error(transparent)]
    Launch(#[from] ringbell_cuda_kernels::LaunchError),
}

impl CollectiveError {
    /// The NIC's status of the operation, when there is one.
    pub fn status(&self) -> Option<Status> {
        match self {
            CollectiveError::Failed { status, .. } => Some(*status),
            CollectiveError::Argument { .. } => Some(Status::InvalidArgument),
            CollectiveError::Settings { .. } => Some(Status::Mismatch),
            _ => None,
        }
    }

    /// Whether the communicator is lost, so that the caller must shrink it or make a new one.
    pub fn is_fatal(&self) -> bool {
        match self {
            CollectiveError::Failed {
                status: Status::TimedOut,
                detail,
                ..
            } => detail & COMM_ENDED != 0,
            CollectiveError::Failed { status, .. } => matches!(
                status,
                Status::PeerFailed
                    | Status::CommAborted
                    | Status::Mismatch
                    | Status::ShuttingDown
                    | Status::NicSilent
            ),
            _ => false,
        }
    }
}

/// `1 (10.0.0.2), 3`, of ranks and the addresses of their NICs.
fn listed(ranks: &[(u32, Option<Ipv4Addr>)]) -> String {
    let one = |(rank, ip): &(u32, Option<Ipv4Addr>)| match ip {
        Some(ip) => format!("{rank} ({ip})"),
        None => rank.to_string(),
    };
    ranks.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// The limit that keeps a process from mapping more, and the remedy.
fn room(limit: Option<u64>) -> String {
    match limit {
        Some(bytes) => format!(
            "this process may map {} KiB of addresses; raise the limit (`ulimit -v`)",
            bytes >> 10
        ),
        None => "the system has no memory left for it; free some".to_string(),
    }
}

/// The status in words, with the rank or value that its detail names.
fn explain(kind: CollectiveKind, rank: u32, status: Status, detail: u64) -> String {
    match status {
        Status::Mismatch => format!("rank {detail} called something else: {status}"),
        Status::PeerFailed => format!("rank {detail} failed: {status}"),
        Status::CommAborted => format!("rank {detail} aborted: {status}"),
        Status::MessageTooLarge => format!("a message of {detail} bytes: {status}"),
        Status::TimedOut => late(kind, rank, detail),
        _ => format!("{status} (detail {detail:#x})"),
    }
}

/// What was missing when the time of an operation was up, and whether its communicator works on.
/// "Timed out" is what programs of PyTorch look for.
fn late(kind: CollectiveKind, rank: u32, detail: u64) -> String {
    const LOST: &str = "the communicator is aborted: shrink it or make a new one, and raise the time-out if ranks are only slow";
    let absent = (detail & RANK_ABSENT != 0).then_some(detail as u32);
    match (kind, absent) {
        _ if detail & COMM_ENDED == 0 => {
            let missing = match kind {
                CollectiveKind::Send => "no rank has received the message: the peer must call recv with this rank and tag",
                CollectiveKind::Recv => "no message has come: the peer must call send to this rank with this tag",
                CollectiveKind::StreamSend | CollectiveKind::StreamRecv => {
                    "nothing was moved: the peer must call the other half with this rank and tag, and the kernel use its stream"
                }
                _ => "what it comes after had not ended",
            };
            format!("Timed out (TIMED_OUT): {missing}, or the time-out be longer; the communicator works on")
        }
        (_, Some(r)) if r == rank => {
            format!("Timed out (TIMED_OUT): this rank had not called it when the others' time was up; {LOST}")
        }
        (_, Some(r)) => {
            format!("Timed out (TIMED_OUT): rank {r} had not called it before the operation's time-out; {LOST}")
        }
        _ => format!("Timed out (TIMED_OUT): the ranks were not done before the operation's time-out; {LOST}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_is_printed_with_its_remedy() {
        let error = CollectiveError::Failed {
            kind: CollectiveKind::AllReduce,
            rank: 0,
            status: Status::Mismatch,
            detail: 1,
            why: None,
        };
        // As Rust prints it.
        let shown = format!("{:?}", anyhow::Error::from(error));
        assert!(shown.contains("rank 1 called something else"), "{shown}");
        assert!(
            shown.contains("shrink the communicator or make a new one"),
            "{shown}"
        );
        let tutorial = include_str!("../../docs/tutorial.md");
        let mains: Vec<_> = tutorial
            .lines()
            .filter(|l| l.starts_with("fn main()"))
            .collect();
        assert!(mains.len() > 2);
        assert_eq!(
            mains,
            vec!["fn main() -> anyhow::Result<()> {"; mains.len()]
        );
    }
}
