//! A rank's connection to the bootstrap's server, and failover when that server ends.
//!
//! The successors are the ranks of the job in their order; each runs a standby server. All ranks
//! hold the same list and try it in order from the same place, so they meet at the lowest rank that
//! is left. An address that refuses belongs to a process that has ended. An address that does not
//! answer (a host without power, a stopped process) is given up after a time-out. A stopped process
//! that resumes later finds itself excluded.
#![allow(clippy::disallowed_methods)] // The edge: every wait has a deadline on the host's clock.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::error::BootstrapError;
use super::message::{Answer, Contribution, Hello, FRAME_MAX, NEW_RANK};
use super::proof::{nonce, Handshake, CHALLENGE_BYTES};
use crate::id::UniqueId;

/// How much later than the round's deadline the server's answer may come.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// Pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);
/// Longest wait for a successor's answer before the next one is asked.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest search for a successor outside a round.
const TAKE_OVER: Duration = Duration::from_secs(20);
/// Longest wait for a connection that checks whether a rank is alive; the address of a process that
/// has ended refuses at once.
const PROBE: Duration = Duration::from_secs(1);

/// Connection to the current server.
#[derive(Debug)]
pub(super) struct Link {
    who: Who,
    at: SocketAddr,
    /// `None` after it broke.
    stream: Option<TcpStream>,
    local_ip: IpAddr,
    /// By rank of the job.
    successors: Vec<Option<SocketAddr>>,
    /// The successor to ask next; 0: still at the first server.
    next: usize,
}

/// What a member sends and proves on each connection.
#[derive(Clone, Copy)]
struct Who {
    secret: [u8; 16],
    rank: u32,
    ranks: u32,
}

/// Omits the secret: other users may read a log.
impl std::fmt::Debug for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.ranks)
    }
}

impl Link {
    /// Connects to the job's server; retries while no process serves there. `place` is the own rank
    /// and the ranks of the job; `None` joins a running job. Returns the place, and the port of the
    /// job's first server.
    pub(super) fn first(
        id: &UniqueId,
        place: Option<(u32, u32)>,
        timeout: Duration,
    ) -> Result<(Link, u16), BootstrapError> {
        let deadline = Instant::now() + timeout;
        let at = id.address();
        let (rank, ranks) = place.unwrap_or((NEW_RANK, 0));
        let mut who = Who {
            secret: *id.secret(),
            rank,
            ranks,
        };
        let stream = loop {
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
                // Waiting does not help this process.
                Err(source) if is_shortage(&source) => {
                    return Err(BootstrapError::NoSocket { at, source })
                }
                // The server may start later than this process.
                Err(_) => std::thread::sleep(RETRY),
            }
        };
        let lost = |source| BootstrapError::Lost { at, source };
        let local_ip = stream.local_addr().map_err(lost)?.ip();
        let (stream, answer) = enter(stream, at, &who, deadline + GRACE)?;
        let mut first_port = at.port();
        if let (None, Answer::Entered { rank, ranks, port }) = (place, answer) {
            (who.rank, who.ranks, first_port) = (rank, ranks, port);
        }
        let link = Link {
            who,
            at,
            stream: Some(stream),
            local_ip,
            successors: Vec::new(),
            next: 0,
        };
        Ok((link, first_port))
    }

    /// Own rank, and the ranks with which the job began.
    pub(super) fn place(&self) -> (u32, u32) {
        (self.who.rank, self.who.ranks)
    }

    /// By rank of the job.
    pub(super) fn successors(&self) -> &[Option<SocketAddr>] {
        &self.successors
    }

    /// Address of the current server.
    pub(super) fn at(&self) -> SocketAddr {
        self.at
    }

    /// The same after a check that it serves: a server that has ended is left for the next one,
    /// where a new rank finds it.
    pub(super) fn serving(&mut self) -> Result<SocketAddr, BootstrapError> {
        if self.is_closed() {
            self.stream = None;
            self.move_on(Instant::now() + TAKE_OVER)?;
        }
        Ok(self.at)
    }

    /// Whether the server has closed the connection. One that is only unreachable has not: the
    /// others may still be with it.
    fn is_closed(&self) -> bool {
        let Some(stream) = &self.stream else {
            return true;
        };
        if stream.set_nonblocking(true).is_err() {
            return false;
        }
        let seen = stream.peek(&mut [0]);
        // It was blocking before; a failure shows in the next round.
        let _ = stream.set_nonblocking(false);
        match seen {
            Ok(bytes) => bytes == 0,
            Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// Own address on the route to the first server.
    pub(super) fn local_ip(&self) -> IpAddr {
        self.local_ip
    }

    pub(super) fn set_successors(&mut self, addresses: Vec<Option<SocketAddr>>) {
        self.successors = addresses;
    }

    /// Error for an answer that cannot be decoded.
    pub(super) fn nonsense(&self) -> BootstrapError {
        self.lost(ErrorKind::InvalidData.into())
    }

    fn lost(&self, source: std::io::Error) -> BootstrapError {
        BootstrapError::Lost {
            at: self.at,
            source,
        }
    }

    /// Sends a contribution to the server and returns its answer; `None` when the server has ended.
    pub(super) fn exchange(
        &mut self,
        contribution: &Contribution,
        deadline: Instant,
    ) -> Result<Option<Answer>, BootstrapError> {
        let Some(stream) = &mut self.stream else {
            return Ok(None);
        };
        let body = contribution.encode();
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend_from_slice(&body);
        let answer = stream
            .write_all(&frame)
            .and_then(|()| receive(stream, deadline));
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(source) => {
                // Any later byte on this connection answers this question, not the next one.
                self.stream = None;
                match source.kind() {
                    // No time is left: the next call looks for a successor.
                    ErrorKind::TimedOut => Err(self.lost(source)),
                    _ if self.successors.is_empty() => Err(self.lost(source)),
                    _ => Ok(None),
                }
            }
        }
    }

    /// Finds the next successor that serves.
    pub(super) fn move_on(&mut self, deadline: Instant) -> Result<(), BootstrapError> {
        while let Some(successor) = self.successors.get(self.next) {
            self.next += 1;
            let Some(at) = *successor else { continue };
            let limit = deadline.min(Instant::now() + ANSWER);
            let left = limit.saturating_duration_since(Instant::now());
            let found = TcpStream::connect_timeout(&at, left.max(Duration::from_millis(1)))
                .map_err(|source| BootstrapError::Lost { at, source })
                .and_then(|stream| enter(stream, at, &self.who, limit));
            match found {
                Ok((stream, _)) => {
                    tracing::info!(%at, "another rank serves the bootstrap now");
                    self.at = at;
                    self.stream = Some(stream);
                    return Ok(());
                }
                // The server is alive and refuses this rank.
                Err(e @ BootstrapError::Refused { .. }) => return Err(e),
                Err(error) => tracing::debug!(%error, "a rank does not take the bootstrap over"),
            }
        }
        Err(self.lost(ErrorKind::NotConnected.into()))
    }

    /// Ranks among `ranks` whose processes were on this host and have ended: nothing listens at
    /// their standby addresses any more. On another host a refusal may come from a firewall.
    pub(super) fn ended_here(&self, ranks: &[u32]) -> Vec<u32> {
        let ended = |rank: &u32| {
            let Some(Some(at)) = self.successors.get(*rank as usize) else {
                return false;
            };
            at.ip() == self.local_ip
                && TcpStream::connect_timeout(at, PROBE)
                    .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
        };
        ranks.iter().copied().filter(ended).collect()
    }

    /// Members of a round that have ended, for a server that took over and sees only the ranks that
    /// connected to it. The lowest rank that is left checks for all.
    pub(super) fn dead_among(&self, members: &[u32]) -> Vec<u32> {
        let mut dead = Vec::new();
        if self.next == 0 {
            return dead;
        }
        for &m in members.iter().filter(|m| **m != self.who.rank) {
            let Some(Some(at)) = self.successors.get(m as usize) else {
                continue;
            };
            match TcpStream::connect_timeout(at, PROBE) {
                Ok(_) if m < self.who.rank => break,
                Ok(_) => {}
                Err(_) => dead.push(m),
            }
        }
        dead
    }
}

/// Whether the system has no descriptor left.
pub(super) fn is_shortage(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE))
}

/// Sends the hello, checks the server's proof, sends its own, and waits to be admitted; returns the
/// answer, too.
fn enter(
    mut stream: TcpStream,
    at: SocketAddr,
    who: &Who,
    deadline: Instant,
) -> Result<(TcpStream, Answer), BootstrapError> {
    let lost = |source| BootstrapError::Lost { at, source };
    stream.set_nodelay(true).map_err(lost)?;
    let hello = Hello {
        rank: who.rank,
        ranks: who.ranks,
        nonce: nonce().map_err(lost)?,
    };
    stream.write_all(&hello.encode()).map_err(lost)?;
    let mut challenge = [0; CHALLENGE_BYTES];
    fill(&mut stream, &mut challenge, deadline).map_err(lost)?;
    let Some(handshake) = Handshake::answer(hello, &who.secret, &challenge) else {
        return Err(BootstrapError::WrongSecret { at });
    };
    let proof = handshake.proof(&who.secret);
    stream.write_all(&proof).map_err(lost)?;
    match receive(&mut stream, deadline).map_err(lost)? {
        answer @ (Answer::Welcome | Answer::Entered { .. }) => Ok((stream, answer)),
        Answer::Refused(why) => Err(BootstrapError::Refused { at, why }),
        _ => Err(lost(ErrorKind::InvalidData.into())),
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
