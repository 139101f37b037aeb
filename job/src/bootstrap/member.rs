//! A rank's end of the bootstrap.
#![allow(clippy::disallowed_methods)] // The edge: every wait has a deadline on the host's clock.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::link::{Link, GRACE};
use super::message::{Answer, Contribution, RoundKind, PART_MAX};
use super::rounds::Past;
use super::{BootstrapError, BootstrapServer};
use crate::id::UniqueId;

/// A rank that was admitted to a job, and can meet the others.
///
/// Each member runs a standby server: when the serving process has ended, the lowest rank that is left takes over (`link.rs`).
#[derive(Debug)]
pub struct Member {
    id: UniqueId,
    rank: u32,
    ranks: u32,
    link: Mutex<Link>,
    /// `None` when no port was available: then the next rank takes over.
    standby: Option<BootstrapServer>,
    past: Past,
}

/// Result of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// The same number for all who took part, and a different one for every round of the job; the next 65,535 numbers are
    /// reserved too.
    pub id: u64,
    /// Ranks that took part, rising, with the part of each.
    pub parts: Vec<(u32, Vec<u8>)>,
}

impl Member {
    /// Joins the job as `rank` of `ranks`; retries while no process serves there.
    ///
    /// # Errors
    /// [`BootstrapError::Unreachable`] after `timeout`, [`BootstrapError::Refused`] with the reason.
    pub fn join(
        id: &UniqueId,
        rank: u32,
        ranks: u32,
        timeout: Duration,
    ) -> Result<Member, BootstrapError> {
        let link = Link::first(id, rank, ranks, timeout)?;
        let past = Past::default();
        // The address at which the others reach this host, taken from the route to the server.
        let bind = SocketAddr::new(link.local_ip(), 0);
        let standby = BootstrapServer::start_after(bind, Some(ranks), *id.secret(), past.clone());
        let standby = standby
            .inspect_err(|error| tracing::warn!(%error, "this rank cannot take the bootstrap over"))
            .ok();
        Ok(Member {
            id: *id,
            rank,
            ranks,
            link: Mutex::new(link),
            standby,
            past,
        })
    }

    /// Address at which this rank would serve the bootstrap.
    pub fn standby_address(&self) -> Option<SocketAddr> {
        self.standby.as_ref().map(|s| s.id().address())
    }

    /// Sets the address at which each rank of the job would serve the bootstrap; the same list on all ranks.
    pub fn set_successors(&self, addresses: Vec<Option<SocketAddr>>) {
        self.link().set_successors(addresses);
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        // Nothing that holds the lock can panic half-way through a change.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Own rank in the job.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks of the job.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The job.
    pub fn id(&self) -> &UniqueId {
        &self.id
    }

    /// Ranks among `ranks` whose processes were on this host and have ended. For a rank that waits for them outside a round,
    /// because a round reports it. Needs the addresses of [`Member::set_successors`].
    pub fn ended_here(&self, ranks: &[u32]) -> Vec<u32> {
        self.link().ended_here(ranks)
    }

    /// Each of `members` (rising ranks of the job, own one included) gives a part and gets all parts. Rounds of the same members
    /// and `tag` meet; parts have at most 4 KiB.
    ///
    /// # Errors
    /// [`BootstrapError::Missing`] names the ranks that did not come within the shortest of the members' time-outs,
    /// [`BootstrapError::Gone`] those that have ended.
    pub fn all_gather(
        &self,
        members: &[u32],
        tag: u64,
        part: &[u8],
        timeout: Duration,
    ) -> Result<Round, BootstrapError> {
        self.round(RoundKind::All, members, tag, part, timeout)
    }

    /// Waits until all `members` are here.
    ///
    /// # Errors
    /// As [`Member::all_gather`].
    pub fn barrier(
        &self,
        members: &[u32],
        tag: u64,
        timeout: Duration,
    ) -> Result<(), BootstrapError> {
        self.all_gather(members, tag, &[], timeout).map(drop)
    }

    /// As [`Member::all_gather`] among the ranks that are left. A rank that has ended, or does not come within the time-out, is
    /// left out, and all others get the same list. Each round needs a tag of its own: one that has ended gives the same answer
    /// again.
    ///
    /// # Errors
    /// [`BootstrapError::Excluded`] when the others have gone on without this rank.
    pub fn survivors(
        &self,
        members: &[u32],
        tag: u64,
        part: &[u8],
        timeout: Duration,
    ) -> Result<Round, BootstrapError> {
        self.round(RoundKind::Survivors, members, tag, part, timeout)
    }

    fn round(
        &self,
        kind: RoundKind,
        members: &[u32],
        tag: u64,
        part: &[u8],
        timeout: Duration,
    ) -> Result<Round, BootstrapError> {
        if part.len() > PART_MAX {
            return Err(BootstrapError::PartTooLong {
                bytes: part.len(),
                max: PART_MAX,
            });
        }
        let deadline = Instant::now() + timeout;
        let mut link = self.link();
        let answer = loop {
            let contribution = Contribution {
                kind,
                tag,
                members: members.to_vec(),
                dead: link.dead_among(members),
                timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
                part: part.to_vec(),
            };
            if let Some(answer) = link.exchange(&contribution, deadline + GRACE)? {
                break answer;
            }
            // The server has ended, and the contribution sent to it is lost.
            link.move_on(deadline)?;
        };
        match answer {
            Answer::Done { id, parts } => {
                if kind == RoundKind::Survivors {
                    let done = Answer::Done {
                        id,
                        parts: parts.clone(),
                    };
                    self.past.remember(tag, members, &done);
                }
                Ok(Round { id, parts })
            }
            Answer::Missing { ranks, notes } => Err(BootstrapError::Missing {
                ranks,
                waited: timeout,
                notes: if notes.is_empty() {
                    notes
                } else {
                    format!(" (meanwhile: {notes})")
                },
            }),
            Answer::Gone { ranks, notes } => Err(BootstrapError::Gone {
                ranks,
                notes: if notes.is_empty() {
                    notes
                } else {
                    format!(" ({notes})")
                },
            }),
            Answer::Refused(why) => Err(BootstrapError::Refused { at: link.at(), why }),
            Answer::Excluded => Err(BootstrapError::Excluded { rank: self.rank }),
            Answer::Welcome => Err(link.nonsense()),
        }
    }
}
