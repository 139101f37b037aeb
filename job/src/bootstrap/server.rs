//! The bootstrap's server: one thread with one poll loop over [`Rounds`].
#![allow(clippy::disallowed_methods)] // The edge: reads the clock for the rounds' deadlines.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringbell_nic_core::descriptors;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};

use super::error::BootstrapError;
use super::link::is_shortage;
use super::message::{Answer, Contribution, Hello, FRAME_MAX, HELLO_BYTES};
use super::proof::{nonce, Handshake, MAC_BYTES};
use super::rounds::{Answers, Past, Rounds};
use crate::id::UniqueId;

/// Longest silence of an unauthenticated peer.
const IDENTIFY: Duration = Duration::from_secs(5);
/// Most connections, unauthenticated ones included.
const CONNECTIONS_MAX: usize = 8192;
/// A server that ends with its job ends also after so long without a connection.
const IDLE_END: Duration = Duration::from_secs(3600);
/// Pause between two attempts to take a connection for which there was no descriptor.
const SHORTAGE_LOOK: Duration = Duration::from_millis(50);
/// Longest wait for each message of a member that is refused for lack of descriptors.
const REFUSAL: Duration = Duration::from_millis(200);
/// Longest shortage of descriptors before the server reports that the bootstrap cannot continue.
const SHORTAGE: Duration = Duration::from_millis(500);
/// Longest frame from a member: its part, and the ranks of its round.
const MEMBER_FRAME_MAX: usize = 64 << 10;

/// The bootstrap of one job, served by a thread of this process until it is dropped.
#[derive(Debug)]
pub struct BootstrapServer {
    id: UniqueId,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Stop {
    asked: AtomicBool,
    wake: OwnedFd,
    /// Ranks whose processes have ended, and how.
    ended: Mutex<Vec<(u32, String)>>,
}

impl Stop {
    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl BootstrapServer {
    /// Serves at `bind` (port 0: a free one), for a job of `ranks` ranks, or of as many as the
    /// first one says.
    ///
    /// # Errors
    /// [`BootstrapError::Serve`] when the address cannot be listened on.
    pub fn start(bind: SocketAddr, ranks: Option<u32>) -> Result<BootstrapServer, BootstrapError> {
        let secret = nonce().map_err(|source| BootstrapError::Serve { bind, source })?;
        BootstrapServer::start_with(bind, ranks, secret)
    }

    /// As [`BootstrapServer::start`], with a secret that the ranks hold already.
    ///
    /// # Errors
    /// As [`BootstrapServer::start`].
    pub fn start_with(
        bind: SocketAddr,
        ranks: Option<u32>,
        secret: [u8; 16],
    ) -> Result<BootstrapServer, BootstrapError> {
        BootstrapServer::start_after(bind, ranks, secret, None)
    }

    /// The same for a standby server, which keeps the results of the servers before it; the first
    /// of them had this port.
    pub(super) fn start_after(
        bind: SocketAddr,
        ranks: Option<u32>,
        secret: [u8; 16],
        before: Option<(Past, u16)>,
    ) -> Result<BootstrapServer, BootstrapError> {
        let (id, stop, server) = prepare(bind, ranks, secret, false, before)?;
        let thread = std::thread::Builder::new()
            .name("ringbell-boot".into())
            .spawn(move || server.run())
            .map_err(|source| BootstrapError::Serve { bind, source })?;
        Ok(BootstrapServer {
            id,
            stop,
            thread: Some(thread),
        })
    }

    /// The id with which ranks join.
    pub fn id(&self) -> UniqueId {
        self.id
    }

    /// Reports to the job that a rank's process has ended, and how ("rank 3 ended with status 1"):
    /// the others stop waiting for it, whether it had joined or not. For launchers.
    pub fn rank_ended(&self, rank: u32, how: &str) {
        self.stop
            .ended
            .lock()
            // Nothing that holds the lock can panic half-way through a change.
            .unwrap_or_else(PoisonError::into_inner)
            .push((rank, how.into()));
        self.stop.wake();
    }
}

impl Drop for BootstrapServer {
    fn drop(&mut self) {
        // Release: pairs with the Acquire load in `run`.
        self.stop.asked.store(true, Ordering::Release);
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl UniqueId {
    /// Makes an id for a job on this machine, and serves its bootstrap in the background until
    /// every rank has come and left. Other machines cannot reach it: see [`UniqueId::create_at`].
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
        detach(bind)
    }

    /// Serves the bootstrap of an id that each rank has computed for itself, as [`Job`](crate::Job)
    /// does from an environment.
    ///
    /// # Errors
    /// [`BootstrapError::Serve`] when its address cannot be listened on.
    pub fn serve(&self, ranks: u32) -> Result<(), BootstrapError> {
        detach_with(self.address(), Some(ranks), *self.secret()).map(drop)
    }
}

/// Serves in the background until every rank has come and left.
pub(super) fn detach(bind: SocketAddr) -> Result<UniqueId, BootstrapError> {
    let failed = |source| BootstrapError::Serve { bind, source };
    let secret = nonce().map_err(failed)?;
    detach_with(bind, None, secret)
}

/// As [`detach`], with a secret that the ranks hold already.
pub(super) fn detach_with(
    bind: SocketAddr,
    ranks: Option<u32>,
    secret: [u8; 16],
) -> Result<UniqueId, BootstrapError> {
    let (id, _stop, server) = prepare(bind, ranks, secret, true, None)?;
    std::thread::Builder::new()
        .name("ringbell-boot".into())
        .spawn(move || server.run())
        .map_err(|source| BootstrapError::Serve { bind, source })?;
    Ok(id)
}

fn prepare(
    bind: SocketAddr,
    ranks: Option<u32>,
    secret: [u8; 16],
    ends_with_job: bool,
    before: Option<(Past, u16)>,
) -> Result<(UniqueId, Arc<Stop>, Server), BootstrapError> {
    let failed = |source| BootstrapError::Serve { bind, source };
    let listener = TcpListener::bind(bind).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let wake =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| failed(e.into()))?;
    let stop = Arc::new(Stop {
        asked: AtomicBool::new(false),
        wake,
        ended: Mutex::default(),
    });
    let first = nonce().map_err(failed)?;
    let mut id = [0; 8];
    id.copy_from_slice(&first[..8]);
    let standby = before.is_some();
    let (past, port) = before.unwrap_or_else(|| (Past::default(), address.port()));
    let server = Server {
        listener,
        stop: stop.clone(),
        secret,
        rounds: Rounds::new(ranks, u64::from_le_bytes(id), past, port, standby),
        spare: spare(),
        short_since: None,
        connections: HashMap::new(),
        next: 0,
        start: Instant::now(),
        ends_with_job,
    };
    Ok((UniqueId::new(address, secret), stop, server))
}

/// A reserve descriptor, closed to accept and refuse connections when there is none left.
fn spare() -> Option<std::fs::File> {
    std::fs::File::open("/dev/null").ok()
}

/// One connection.
struct Connection {
    stream: TcpStream,
    /// The handshake of a peer that sent its hello, until it is answered.
    asked: Option<Handshake>,
    /// The member, once admitted.
    rank: Option<u32>,
    since: Duration,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The connection closes once its output is written.
    closing: bool,
}

struct Server {
    listener: TcpListener,
    stop: Arc<Stop>,
    secret: [u8; 16],
    rounds: Rounds,
    spare: Option<std::fs::File>,
    /// Since when there has been no descriptor for the next connection.
    short_since: Option<Duration>,
    connections: HashMap<u64, Connection>,
    next: u64,
    start: Instant,
    ends_with_job: bool,
}

impl Server {
    fn run(mut self) {
        loop {
            // Emptied before anything is looked at: a later event wakes the thread again.
            let _ = rustix::io::read(&self.stop.wake, &mut [0; 8]);
            // Acquire: pairs with the Release store of `drop`.
            if self.stop.asked.load(Ordering::Acquire) {
                return;
            }
            let now = self.start.elapsed();
            let answers = self.rounds.expire(now);
            self.deliver(answers);
            self.hear_of_ends(now);
            self.drop_unidentified(now);
            if self.ends_with_job && (self.rounds.is_over() || self.no_member_came(now)) {
                return;
            }
            let ready = match self.wait(now) {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(%error, "the bootstrap's server ends: cannot wait for its sockets");
                    return;
                }
            };
            let now = self.start.elapsed();
            self.accept(now);
            for key in ready {
                self.serve(key, now);
            }
        }
    }

    /// Processes what the launcher has reported.
    fn hear_of_ends(&mut self, now: Duration) {
        let ended = self.stop.ended.lock();
        let ended = std::mem::take(&mut *ended.unwrap_or_else(PoisonError::into_inner));
        for (rank, how) in ended {
            let answers = self.rounds.ended(now, rank, how);
            self.deliver(answers);
        }
    }

    fn no_member_came(&self, now: Duration) -> bool {
        self.rounds.here().is_empty() && now > IDLE_END
    }

    /// Sleeps until a socket has something, or a deadline passes.
    fn wait(&self, now: Duration) -> rustix::io::Result<Vec<u64>> {
        let unidentified = self.connections.values().filter(|c| c.rank.is_none());
        let next = unidentified
            .map(|c| c.since + IDENTIFY)
            .chain(self.rounds.next_deadline())
            .min()
            .unwrap_or(now + IDLE_END)
            .saturating_sub(now)
            .min(match self.short_since {
                Some(_) => SHORTAGE_LOOK,
                None => IDLE_END,
            })
            // After the wait a deadline is past, not only reached.
            + Duration::from_millis(1);
        let mut keys = Vec::new();
        let mut fds = vec![
            PollFd::new(&self.stop.wake, PollFlags::IN),
            // A connection that cannot be accepted would end every wait at once.
            PollFd::new(
                &self.listener,
                match self.short_since {
                    Some(_) => PollFlags::empty(),
                    None => PollFlags::IN,
                },
            ),
        ];
        for (key, c) in &self.connections {
            keys.push(*key);
            let mut want = PollFlags::IN;
            if !c.output.is_empty() {
                want |= PollFlags::OUT;
            }
            fds.push(PollFd::from_borrowed_fd(c.stream.as_fd(), want));
        }
        let timeout = Timespec {
            tv_sec: next.as_secs() as i64,
            tv_nsec: next.subsec_nanos().into(),
        };
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        let with_events = fds[2..].iter().zip(keys);
        Ok(with_events
            .filter(|(fd, _)| !fd.revents().is_empty())
            .map(|(_, key)| key)
            .collect())
    }

    fn accept(&mut self, now: Duration) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) => return self.on_refused_accept(now, &e),
            };
            self.short_since = None;
            if self.connections.len() >= CONNECTIONS_MAX || stream.set_nonblocking(true).is_err() {
                continue;
            }
            let _ = stream.set_nodelay(true);
            self.next += 1;
            self.connections.insert(
                self.next,
                Connection {
                    stream,
                    asked: None,
                    rank: None,
                    since: now,
                    input: Vec::new(),
                    output: Vec::new(),
                    closing: false,
                },
            );
        }
    }

    /// No connection, or no descriptor for it: then ranks would wait for an answer until their
    /// time-out.
    fn on_refused_accept(&mut self, now: Duration, error: &std::io::Error) {
        if !is_shortage(error) {
            // No connection is pending, or the peer has closed it again.
            self.short_since = None;
            return;
        }
        let since = *self.short_since.get_or_insert(now);
        if now.saturating_sub(since) < SHORTAGE {
            return;
        }
        let limit = descriptors::limit().map_or("none".into(), |l| l.to_string());
        let why = format!("the process that serves it has no file descriptor left (its limit is {limit}); raise it with `ulimit -n`");
        let answers = self.rounds.break_off(why.clone());
        self.deliver(answers);
        // Ranks that still come get the reason, one after the other.
        self.spare = None;
        while let Ok((stream, _)) = self.listener.accept() {
            let _ = self.refuse(stream, &why);
        }
        self.spare = spare();
    }

    /// Sends a member the reason why it cannot be admitted, and drops it; `None` where that fails.
    fn refuse(&self, mut stream: TcpStream, why: &str) -> Option<()> {
        stream.set_nonblocking(false).ok()?;
        stream.set_read_timeout(Some(REFUSAL)).ok()?;
        stream.set_write_timeout(Some(REFUSAL)).ok()?;
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).ok()?;
        let handshake = Handshake::new(Hello::decode(&hello)?, nonce().ok()?);
        stream.write_all(&handshake.challenge(&self.secret)).ok()?;
        let mut proof = [0; MAC_BYTES];
        stream.read_exact(&mut proof).ok()?;
        if handshake.is_proved_by(&self.secret, &proof) {
            let mut answer = Vec::new();
            put_frame(&mut answer, &Answer::Refused(why.into()));
            stream.write_all(&answer).ok()?;
        }
        Some(())
    }

    fn drop_unidentified(&mut self, now: Duration) {
        self.connections
            .retain(|_, c| c.rank.is_some() || c.since + IDENTIFY > now);
    }

    /// Reads what a connection has received, and acts on it.
    fn serve(&mut self, key: u64, now: Duration) {
        let Some(c) = self.connections.get_mut(&key) else {
            return;
        };
        let mut open = true;
        let mut bytes = [0; 4096];
        // Bounded, so that one flooding peer does not delay the others.
        for _ in 0..16 {
            match c.stream.read(&mut bytes) {
                Ok(0) => open = false,
                Ok(n) => {
                    c.input.extend_from_slice(&bytes[..n]);
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => open = false,
            }
            break;
        }
        open = open && self.understand(key, now) && self.flush(key);
        if !open {
            self.close(key, now);
        }
    }

    fn close(&mut self, key: u64, now: Duration) {
        let Some(c) = self.connections.remove(&key) else {
            return;
        };
        if c.asked.is_some() {
            // A member of another job closes when the server's proof does not fit.
            self.rounds
                .note("somebody without this job's secret was refused");
        }
        if let Some(rank) = c.rank {
            let answers = self.rounds.leave(now, rank);
            self.deliver(answers);
        }
    }

    /// Acts on complete messages. False: the connection is to be closed.
    fn understand(&mut self, key: u64, now: Duration) -> bool {
        loop {
            let Some(c) = self.connections.get_mut(&key) else {
                return false;
            };
            if c.closing {
                c.input.clear();
                return true;
            }
            if let Some(handshake) = &c.asked {
                let Some(proof) = c.input.first_chunk::<MAC_BYTES>() else {
                    return true;
                };
                // An unauthenticated peer: no answer, and nothing more of it is parsed.
                if !handshake.is_proved_by(&self.secret, proof) {
                    return false;
                }
                c.input.drain(..MAC_BYTES);
                let answer = match self.rounds.admit(handshake.hello()) {
                    Ok((rank, answer)) => {
                        c.rank = Some(rank);
                        answer
                    }
                    Err(why) => {
                        c.closing = true;
                        Answer::Refused(why)
                    }
                };
                c.asked = None;
                put_frame(&mut c.output, &answer);
                continue;
            }
            let Some(rank) = c.rank else {
                let Some(hello) = c.input.first_chunk::<HELLO_BYTES>() else {
                    return true;
                };
                // Unauthenticated, as above.
                let (Some(hello), Ok(nonce)) = (Hello::decode(hello), nonce()) else {
                    return false;
                };
                c.input.drain(..HELLO_BYTES);
                let handshake = Handshake::new(hello, nonce);
                c.output
                    .extend_from_slice(&handshake.challenge(&self.secret));
                c.asked = Some(handshake);
                continue;
            };
            let Some(len) = c.input.first_chunk::<4>().map(|b| u32::from_le_bytes(*b)) else {
                return true;
            };
            let len = len as usize;
            if len > MEMBER_FRAME_MAX {
                return false;
            }
            let Some(frame) = c.input.get(4..4 + len) else {
                return true;
            };
            let Some(contribution) = Contribution::decode(frame) else {
                return false;
            };
            c.input.drain(..4 + len);
            let answers = self.rounds.contribute(now, rank, contribution);
            self.deliver(answers);
        }
    }

    /// Queues answers and writes what can be written.
    fn deliver(&mut self, answers: Answers) {
        for (rank, answer) in answers {
            let to = self
                .connections
                .iter_mut()
                .find(|(_, c)| c.rank == Some(rank));
            if let Some((key, c)) = to {
                put_frame(&mut c.output, &answer);
                let key = *key;
                // A connection that fails here is seen closed by the next poll.
                self.flush(key);
            }
        }
    }

    /// Writes what the socket takes. False: it takes no more.
    fn flush(&mut self, key: u64) -> bool {
        let Some(c) = self.connections.get_mut(&key) else {
            return false;
        };
        while !c.output.is_empty() {
            match c.stream.write(&c.output) {
                Ok(0) => return false,
                Ok(n) => drop(c.output.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return c.output.len() < FRAME_MAX,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        if c.closing {
            // The reason must arrive: shut down this side, and let the peer close.
            let _ = c.stream.shutdown(std::net::Shutdown::Write);
        }
        true
    }
}

fn put_frame(out: &mut Vec<u8>, answer: &Answer) {
    let body = answer.encode();
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&body);
}
