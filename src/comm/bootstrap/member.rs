//! A rank's end of the bootstrap.
#![allow(clippy::disallowed_methods)] // The edge: every wait has a deadline on the host's clock.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::message::{Answer, Contribution, Hello, RoundKind, FRAME_MAX, PART_MAX};
use super::BootstrapError;
use crate::comm::UniqueId;

/// How much later than the round's deadline the server's answer may come.
const GRACE: Duration = Duration::from_secs(2);
/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);

/// A rank that was admitted to a job, and can meet the others.
#[derive(Debug)]
pub struct Member {
    id: UniqueId,
    rank: u32,
    ranks: u32,
    stream: Mutex<TcpStream>,
}

/// What a round gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// The same number for all who took part, and another one for every round of the job; the next
    /// 65,535 numbers are not given either.
    pub id: u64,
    /// Who took part, rising, with what each contributed.
    pub parts: Vec<(u32, Vec<u8>)>,
}

impl Member {
    /// Joins the job as `rank` of `ranks`; keeps trying while nobody serves there.
    ///
    /// # Errors
    /// [`BootstrapError::Unreachable`] after `timeout`, [`BootstrapError::Refused`] with the reason.
    pub fn join(
        id: &UniqueId,
        rank: u32,
        ranks: u32,
        timeout: Duration,
    ) -> Result<Member, BootstrapError> {
        let deadline = Instant::now() + timeout;
        let at = id.address();
        let mut stream = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A timeout of zero is none for the system.
            match TcpStream::connect_timeout(&at, left.max(Duration::from_millis(1))) {
                Ok(stream) => break stream,
                Err(source) if left <= RETRY => {
                    return Err(BootstrapError::Unreachable {
                        at,
                        waited: timeout,
                        source,
                    })
                }
                // The one that serves may start later than we.
                Err(_) => std::thread::sleep(RETRY),
            }
        };
        let lost = |source| BootstrapError::Lost { at, source };
        stream.set_nodelay(true).map_err(lost)?;
        let hello = Hello {
            secret: *id.secret(),
            rank,
            ranks,
        };
        stream.write_all(&hello.encode()).map_err(lost)?;
        match receive(&mut stream, deadline + GRACE).map_err(lost)? {
            Answer::Welcome => Ok(Member {
                id: *id,
                rank,
                ranks,
                stream: Mutex::new(stream),
            }),
            Answer::Refused(why) => Err(BootstrapError::Refused { at, why }),
            _ => Err(lost(ErrorKind::InvalidData.into())),
        }
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

    /// Everybody of `members` (rising ranks of the job, own one included) gives a part and gets all
    /// parts. Rounds of the same members and `tag` meet; parts have at most 4 KiB.
    ///
    /// # Errors
    /// [`BootstrapError::Missing`] names who did not come within the shortest of the members'
    /// time-outs, [`BootstrapError::Gone`] who has ended.
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

    /// As [`Member::all_gather`] among those who are left: who has ended, or does not come within the
    /// time-out, is left out, and everybody else learns the same list.
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
        let at = self.id.address();
        let lost = |source| BootstrapError::Lost { at, source };
        let contribution = Contribution {
            kind,
            tag,
            members: members.to_vec(),
            timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            part: part.to_vec(),
        };
        let body = contribution.encode();
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&body);
        let deadline = Instant::now() + timeout + GRACE;
        // Nothing that holds the lock can panic half-way through a change.
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(&frame).map_err(lost)?;
        match receive(&mut stream, deadline).map_err(lost)? {
            Answer::Done { id, parts } => Ok(Round { id, parts }),
            Answer::Missing { ranks, notes } => Err(BootstrapError::Missing {
                ranks,
                waited: timeout,
                notes: if notes.is_empty() {
                    notes
                } else {
                    format!(" (meanwhile: {notes})")
                },
            }),
            Answer::Gone { ranks } => Err(BootstrapError::Gone { ranks }),
            Answer::Refused(why) => Err(BootstrapError::Refused { at, why }),
            Answer::Excluded => Err(BootstrapError::Excluded { rank: self.rank }),
            Answer::Welcome => Err(lost(ErrorKind::InvalidData.into())),
        }
    }
}

/// Reads one answer until the deadline.
fn receive(stream: &mut TcpStream, deadline: Instant) -> std::io::Result<Answer> {
    let mut len = [0; 4];
    fill(stream, &mut len, deadline)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > FRAME_MAX {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; len];
    fill(stream, &mut body, deadline)?;
    Answer::decode(&body).ok_or_else(|| ErrorKind::InvalidData.into())
}

fn fill(stream: &mut TcpStream, mut into: &mut [u8], deadline: Instant) -> std::io::Result<()> {
    while !into.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(into) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => into = &mut into[n..],
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
