//! One-sided operations on windows that wait for the link to their rank.
//!
//! The ranks of a large communicator dial each other with the first message. The first operation on
//! a rank's window dials it, too. Those behind it wait as well, so that they stay in order.

use ringbell_nic_abi::{GpuVa, Rkey, Status};

use super::refusal::Refusal;
use super::streams::Conn;
use crate::collective::Collectives;
use crate::transport::{RemoteOp, RemoteWork};
use crate::types::{CommId, WorkToken};

/// What the peer is asked for.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) rkey: Rkey,
    pub(super) va: GpuVa,
    pub(super) op: RemoteOp,
}

impl Remote {
    /// The work for a transport.
    pub(super) fn work(&self, token: WorkToken) -> RemoteWork {
        RemoteWork {
            token,
            rkey: self.rkey,
            va: self.va,
            op: self.op,
        }
    }
}

/// One that waits.
#[derive(Debug)]
struct Waiting {
    comm: CommId,
    rank: u32,
    token: WorkToken,
    remote: Remote,
}

impl Waiting {
    /// The link to its rank, if there is one by now.
    fn to(&self, collectives: &Collectives) -> Result<Option<Conn>, Refusal> {
        let unknown = (Status::BadCommunicator, self.comm.0.into());
        let slot = collectives.table.find(self.comm.0).ok_or(unknown)?;
        match collectives.table.ended(slot) {
            Some(end) => Err(end),
            None => link_to(collectives, slot, self.rank),
        }
    }
}

/// Those of all communicators, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Dialled {
    waiting: Vec<Waiting>,
}

/// Where an operation goes that has waited.
pub(super) type Next = (WorkToken, Result<(Conn, Remote), Refusal>);

impl Dialled {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether an operation waits for a rank.
    pub(super) fn has(&self, comm: CommId, rank: u32) -> bool {
        let mut all = self.waiting.iter();
        all.any(|w| (w.comm, w.rank) == (comm, rank))
    }

    /// An operation waits for a rank's link.
    pub(super) fn put(&mut self, comm: CommId, rank: u32, token: WorkToken, remote: Remote) {
        self.waiting.push(Waiting {
            comm,
            rank,
            token,
            remote,
        });
    }

    /// Takes an operation back. `false`: it does not wait.
    pub(super) fn cancel(&mut self, token: WorkToken) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|w| w.token != token);
        self.waiting.len() < before
    }

    /// Takes the operations whose rank has a link now, or will not have one.
    pub(super) fn take(&mut self, collectives: &Collectives) -> Vec<Next> {
        let mut next = Vec::new();
        for w in std::mem::take(&mut self.waiting) {
            match w.to(collectives) {
                Ok(None) => self.waiting.push(w),
                Ok(Some(conn)) => next.push((w.token, Ok((conn, w.remote)))),
                Err(gone) => next.push((w.token, Err(gone))),
            }
        }
        next
    }
}

/// The link to a rank of a communicator; none, if the rank is to be dialled.
///
/// # Errors
/// The rank is gone.
#[inline]
pub(super) fn link_to(
    collectives: &Collectives,
    slot: u32,
    rank: u32,
) -> Result<Option<Conn>, Refusal> {
    let conn = collectives.conn_to(slot, rank);
    match conn.is_some() || collectives.dials(slot, rank) {
        true => Ok(conn),
        false => Err((Status::PeerFailed, rank.into())),
    }
}
