//! [`BootstrapError`]: why ranks did not find each other.

use std::net::SocketAddr;
use std::time::Duration;

/// Why ranks did not find each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// The server's address cannot be listened on.
    #[error("cannot serve the job's bootstrap at {bind}; choose another address or port (port 0 is a free one)")]
    Serve {
        /// As given.
        bind: SocketAddr,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// No process serves there.
    #[error("no process serves the job's bootstrap at {at}, tried for {waited:?}; check that rank 0 or the launcher runs and that the address is right")]
    Unreachable {
        /// Where.
        at: SocketAddr,
        /// Time spent trying.
        waited: Duration,
        /// Error of the last attempt.
        #[source]
        source: std::io::Error,
    },
    /// The server did not admit this rank, or did not accept its request.
    #[error("the job's bootstrap at {at} refused: {why}")]
    Refused {
        /// Where.
        at: SocketAddr,
        /// The server's reason.
        why: String,
    },
    /// This process has no descriptor left for a connection.
    #[error("this process cannot open a socket to the job's bootstrap at {at}; it has too many open files, raise the limit with `ulimit -n`")]
    NoSocket {
        /// Where.
        at: SocketAddr,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The process that listens there does not hold the job's secret.
    #[error("what listens at {at} is not this job's bootstrap: it does not know the job's secret, and was told nothing of it; another job or another user has the port. Give every rank the same RINGBELL_ID (and RINGBELL_SECRET), or another port in RINGBELL_BOOTSTRAP")]
    WrongSecret {
        /// Where.
        at: SocketAddr,
    },
    /// Ranks did not come in time.
    #[error("no sign of rank(s) {} within {waited:?}{notes}; see why they did not start or are late, or raise the time-out", Ranks(.ranks))]
    Missing {
        /// The missing ranks of the job.
        ranks: Vec<u32>,
        /// Time waited.
        waited: Duration,
        /// Ranks that were refused meanwhile.
        notes: String,
    },
    /// Ranks have ended.
    #[error("rank(s) {} of the job have ended{notes}; shrink the communicator to go on without them", Ranks(.ranks))]
    Gone {
        /// The ranks of the job.
        ranks: Vec<u32>,
        /// How they ended, where the launcher has reported it.
        notes: String,
    },
    /// New ranks did not come in time.
    #[error("{came} of {wanted} new rank(s) had joined the job after {waited:?}{notes}; the communicator works on. See why they did not start, or grow it by fewer")]
    NotJoined {
        /// New ranks that wait.
        came: u32,
        /// New ranks that were to come.
        wanted: u32,
        /// Time waited.
        waited: Duration,
        /// Processes that were refused meanwhile.
        notes: String,
    },
    /// A new rank was not taken in.
    #[error("no communicator of the job took this new rank in within {waited:?}; the ranks of one must call grow")]
    Unwanted {
        /// Time waited.
        waited: Duration,
    },
    /// The others have gone on without this rank.
    #[error("the other ranks went on without rank {rank} of the job, which came too late; it can only end or join a new job")]
    Excluded {
        /// Own rank in the job.
        rank: u32,
    },
    /// The connection to the server broke.
    #[error("lost the job's bootstrap at {at}: the process that serves it (rank 0, or the launcher) has ended or does not answer, and no rank has taken over")]
    Lost {
        /// Where.
        at: SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A rank of another version.
    #[error("rank {rank} says something that this version does not understand; run the same version of ringbell everywhere")]
    Version {
        /// Rank of the job.
        rank: u32,
    },
    /// A part longer than a round allows.
    #[error("a rank says at most {max} bytes in a round of the bootstrap, not {bytes}")]
    PartTooLong {
        /// As given.
        bytes: usize,
        /// The limit.
        max: usize,
    },
}

/// Ranks as text: `1, 2, 5`.
struct Ranks<'a>(&'a [u32]);

impl std::fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, r) in self.0.iter().enumerate() {
            write!(f, "{}{r}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}
