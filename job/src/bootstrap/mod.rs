//! Bootstrap of a job: its ranks find each other through one TCP address on the host's network.
//!
//! One process serves ([`BootstrapServer`]: the launcher, or rank 0 by [`UniqueId::create`]). Every rank joins with its rank and
//! the size of the job ([`Member::join`]), and stays connected: its end closes the connection, and so the others learn of it. A
//! launcher that sees a rank's process end reports it ([`BootstrapServer::rank_ended`]), for ranks that never came. Ranks agree
//! in rounds ([`Member::all_gather`]): on the table of NIC addresses, on the numbers of new communicators, and after a failure on
//! who is left ([`Member::survivors`]). A process may join the running job ([`Member::join_running`]): it gets a number that no
//! rank had before, and waits until a round of others takes it in ([`Member::grow`]).
//!
//! When the serving process ends, the lowest rank of the job that is left takes over: each listens from the start, and all hold
//! the list of addresses (`link`). A member notices it in its next round, or when it is asked for the job's id
//! ([`Member::id_now`]).
//!
//! Both ends of each connection prove that they hold the job's secret, by a challenge and a MAC (`proof`). The secret never
//! travels, so a process that takes the bootstrap's port first, or records the traffic, learns nothing. Later messages are
//! neither encrypted nor authenticated: an attacker who can change them can disturb a job. Against such an attacker use a network
//! that encrypts.

mod link;
mod member;
mod message;
mod proof;
mod rounds;
mod server;
#[cfg(test)]
mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

pub use member::{Member, Round};
pub use server::BootstrapServer;

use crate::id::UniqueId;

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

impl UniqueId {
    /// Makes an id for a job on this machine, and serves its bootstrap in the background until every rank has come and left.
    /// Other machines cannot reach it: see [`UniqueId::create_at`].
    ///
    /// # Errors
    /// [`BootstrapError::Serve`] when no address can be listened on.
    pub fn create() -> Result<UniqueId, BootstrapError> {
        UniqueId::create_at((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// The same at an address of this machine that all ranks reach; port 0 is a free one.
    ///
    /// # Errors
    /// [`BootstrapError::Serve`] when it cannot be listened on.
    pub fn create_at(bind: SocketAddr) -> Result<UniqueId, BootstrapError> {
        server::detach(bind)
    }

    /// Serves the bootstrap of an id that each rank has computed for itself, as [`Job`](super::Job) does from an environment.
    ///
    /// # Errors
    /// [`BootstrapError::Serve`] when its address cannot be listened on.
    pub fn serve(&self, ranks: u32) -> Result<(), BootstrapError> {
        server::detach_with(self.address(), Some(ranks), *self.secret()).map(drop)
    }
}
