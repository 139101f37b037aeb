//! A rank's end of the bootstrap.
#![allow(clippy::disallowed_methods)] // The edge: every wait has a deadline on the host's clock.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::BootstrapError;
use super::link::{Link, GRACE};
use super::message::{Answer, Contribution, RoundKind};
use super::rounds::Past;
use super::server::BootstrapServer;
use crate::id::UniqueId;

/// A rank that was admitted to a job, and can meet the others.
///
/// Each member runs a standby server: when the serving process has ended, the lowest rank that is
/// left takes over (`link.rs`).
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
    /// The same number for all who took part, and a different one for every round of the job; the
    /// next 65,535 numbers are reserved too.
    pub id: u64,
    /// Ranks that took part, rising, with the part of each.
    pub parts: Vec<(u32, Vec<u8>)>,
}

impl Member {
    /// Joins the job as `rank` of `ranks`; retries while no process serves there.
    ///
    /// # Errors
    /// [`BootstrapError::Unreachable`] after `timeout`, [`BootstrapError::Refused`] with the
    /// reason.
    pub fn join(
        id: &UniqueId,
        rank: u32,
        ranks: u32,
        timeout: Duration,
    ) -> Result<Member, BootstrapError> {
        Member::admitted(id, Some((rank, ranks)), timeout)
    }

    /// Joins the running job as a new rank, whose number no rank had before; [`Member::rank`] is
    /// the number. `id` is the job's, or [`Member::id_now`] of any of its ranks. A round of
    /// [`Member::grow`] of the others takes it in.
    ///
    /// # Errors
    /// As [`Member::join`]; [`BootstrapError::Refused`] when the job has not begun.
    pub fn join_running(id: &UniqueId, timeout: Duration) -> Result<Member, BootstrapError> {
        Member::admitted(id, None, timeout)
    }

    fn admitted(
        id: &UniqueId,
        place: Option<(u32, u32)>,
        timeout: Duration,
    ) -> Result<Member, BootstrapError> {
        let (link, port) = Link::first(id, place, timeout)?;
        let (rank, ranks) = link.place();
        // The ranks derive common names from the port of the first server.
        let id = UniqueId::new(SocketAddr::new(id.address().ip(), port), *id.secret());
        let past = Past::default();
        // The address at which the others reach this host, taken from the route to the server.
        let bind = SocketAddr::new(link.local_ip(), 0);
        let before = Some((past.clone(), port));
        let standby = BootstrapServer::start_after(bind, Some(ranks), *id.secret(), before);
        let standby = standby
            .inspect_err(|error| tracing::warn!(%error, "this rank cannot take the bootstrap over"))
            .ok();
        Ok(Member {
            id,
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

    /// Sets the address at which each rank of the job would serve the bootstrap; the same list on
    /// all ranks.
    pub fn set_successors(&self, addresses: Vec<Option<SocketAddr>>) {
        self.link().set_successors(addresses);
    }

    /// The addresses of [`Member::set_successors`].
    pub fn successors(&self) -> Vec<Option<SocketAddr>> {
        self.link().successors().to_vec()
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        // Nothing that holds the lock can panic half-way through a change.
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Own rank in the job.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Ranks with which the job began.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The job's id at the address where it is served now: for ranks that join it. Where the
    /// serving process has ended, the lowest rank that is left takes over first. Waits for a round
    /// of this rank that is under way.
    ///
    /// # Errors
    /// [`BootstrapError::Lost`] when no rank takes over: none is left, or no communicator was made
    /// yet.
    pub fn id_now(&self) -> Result<UniqueId, BootstrapError> {
        let at = self.link().serving()?;
        Ok(UniqueId::new(at, *self.id.secret()))
    }

    /// The job.
    pub fn id(&self) -> &UniqueId {
        &self.id
    }

    /// Ranks among `ranks` whose processes were on this host and have ended. For a rank that waits
    /// for them outside a round, because a round reports it. Needs the addresses of
    /// [`Member::set_successors`].
    pub fn ended_here(&self, ranks: &[u32]) -> Vec<u32> {
        self.link().ended_here(ranks)
    }

    /// Each of `members` (rising ranks of the job, own one included) gives a part and gets all
    /// parts. Rounds of the same members and `tag` meet; parts have at most 4 KiB.
    ///
    /// # Errors
    /// [`BootstrapError::Missing`] names the ranks that did not come within the shortest of the
    /// members' time-outs, [`BootstrapError::Gone`] those that have ended.
    pub fn all_gather(
        &self,
        members: &[u32],
        tag: u64,
        part: &[u8],
        timeout: Duration,
    ) -> Result<Round, BootstrapError> {
        self.round(RoundKind::All, members, tag, 0, part, timeout)
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

    /// As [`Member::all_gather`] among the ranks that are left. A rank that has ended, or does not
    /// come within the time-out, is left out, and all others get the same list. Each round needs a
    /// tag of its own: one that has ended gives the same answer again.
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
        self.round(RoundKind::Survivors, members, tag, 0, part, timeout)
    }

    /// As [`Member::all_gather`] with `wanted` new ranks, which call [`Member::enter`] at any time.
    /// Parts have at most 24 KiB here.
    ///
    /// # Errors
    /// As [`Member::all_gather`]; [`BootstrapError::NotJoined`] when too few new ranks came in
    /// time. Those that came wait on, for another call.
    pub fn grow(
        &self,
        members: &[u32],
        tag: u64,
        wanted: u32,
        part: &[u8],
        timeout: Duration,
    ) -> Result<Round, BootstrapError> {
        self.round(RoundKind::Grow, members, tag, wanted, part, timeout)
    }

    /// Waits as a new rank for a round of [`Member::grow`], and returns its result.
    ///
    /// # Errors
    /// [`BootstrapError::Unwanted`] after `timeout`.
    pub fn enter(&self, part: &[u8], timeout: Duration) -> Result<Round, BootstrapError> {
        self.round(RoundKind::Join, &[self.rank], 0, 0, part, timeout)
    }

    fn round(
        &self,
        kind: RoundKind,
        members: &[u32],
        tag: u64,
        wanted: u32,
        part: &[u8],
        timeout: Duration,
    ) -> Result<Round, BootstrapError> {
        let (bytes, max) = (part.len(), kind.part_max());
        if bytes > max {
            return Err(BootstrapError::PartTooLong { bytes, max });
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
                wanted,
                part: part.to_vec(),
            };
            if let Some(answer) = link.exchange(&contribution, deadline + GRACE)? {
                break answer;
            }
            // The server has ended, and the contribution sent to it is lost.
            link.move_on(deadline)?;
        };
        if let Answer::Done { .. } = answer {
            self.past.remember(kind, tag, members, &answer);
        }
        let noted = |notes: String, word: &str| match notes.is_empty() {
            true => notes,
            false => format!(" ({word}{notes})"),
        };
        let waited = timeout;
        Err(match answer {
            Answer::Done { id, parts } => return Ok(Round { id, parts }),
            Answer::Missing { ranks, notes } => BootstrapError::Missing {
                ranks,
                waited,
                notes: noted(notes, "meanwhile: "),
            },
            Answer::Gone { ranks, notes } => BootstrapError::Gone {
                ranks,
                notes: noted(notes, ""),
            },
            Answer::Few { came, notes } => BootstrapError::NotJoined {
                came,
                wanted,
                waited,
                notes: noted(notes, "meanwhile: "),
            },
            Answer::Refused(why) => BootstrapError::Refused { at: link.at(), why },
            Answer::Excluded => BootstrapError::Excluded { rank: self.rank },
            Answer::Unwanted => BootstrapError::Unwanted { waited },
            Answer::Welcome | Answer::Entered { .. } => link.nonsense(),
        })
    }
}
