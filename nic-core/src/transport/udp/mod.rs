//! UDP: streams over plain datagrams, as ACCL has them, without retransmission.
//!
//! ```text
//! network (ports, ARP) ─▶ serve (session, tag, sequence number) ─▶ conn ─▶ posted receives ─▶ memory
//!                              ▲                                            │ ring of receive buffers
//!                              └── messages ◀── posted sends ◀── memory ◀───┘
//! ```
//!
//! A message is one packet with ACCL's signature ([`wire::accl`](crate::wire::accl)). For networks that lose nothing: a link, a lossless
//! fabric, sockets of one host. Nothing is sent twice but requests for sessions.
//!
//! **Loss.** Messages are numbered. One that is lost or overtaken leaves a gap, and the session ends at both ends: operations retire
//! with `CONNECTION_RESET` and the gap as detail (`expected << 32 | got`), and a warning names peer and gap. A sender that hears nothing asks after 10 ms
//! with the number of its next message, so that a lost last message leaves a gap, too. A copy of an earlier message is dropped.
//! A CRC covers each message, so a damaged one is as if lost.
//!
//! **Credits.** As in ACCL, a message that comes before its receive waits in a receive buffer. The receiver says how many messages and bytes it
//! takes, and its answers carry what it has got and given to its program. ACCL has no credits over UDP, and loses what finds no buffer. A socket
//! of the host is shared: its buffer holds the messages of four peers that all send at once.
//!
//! **Sessions.** A request, an answer, and the first message of the requester. ACCL has none: its host gives each rank a table of the others.
//!
//! **Unauthenticated senders.** A message must come from the peer's address and carry the session's number and its tag, which was drawn at random. One
//! that names no session is answered with a reset to its sender, which is no longer than it. A request costs an entry of the backlog until its deadline.
//!
//! **Copies.** One of ours at either end, beside the kernel's: a send is copied into its messages and retires; arriving bytes go from the packet to
//! the posted receive, or through the ring.
//!
//! **Limits.** IPv4, and NICs that the port names; 65,536 sessions, no one-sided operations, no congestion control.

mod conn;
mod serve;
mod sessions;

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_abi::Status;
use rustc_hash::FxBuildHasher;

use self::conn::{Conn, Fin, Phase};
use self::serve::Unsent;
use self::sessions::{Answer, Letter};
use super::connections::{check_remote, index_of, Connections, EphemeralPorts, Listeners};
use super::random::Numbers;
use super::ring::Waiting;
use super::turns::Turns;
use super::{PacketTransport, RecvWork, SendWork, Transport, TransportEvent};
use crate::datapath::{Datapath, ReceivePath};
use crate::engine::Direction;
use crate::memory::Sharer;
use crate::network::{Network, Protocol, Routes, Waiter};
use crate::port::Batch;
use crate::types::{Buffer, ConnId, ListenerId, NicTime, WorkToken};
use crate::wire::accl::{End, Gap};

/// Most sessions: what ACCL's `destination` can tell apart.
pub const SESSIONS_MAX: usize = 1 << 16;
/// Largest and smallest window of a session.
const WINDOWS: std::ops::RangeInclusive<usize> = 4_096..=1 << 26;
/// Fewest payload bytes of a message that both ends must take.
const PAYLOAD_MIN: usize = 256;
/// Freed sessions whose gap is kept for a peer that has not got the reset.
const GAPS_KEPT: usize = 32;

/// Settings of a [`UdpTransport`].
#[derive(Debug, Clone)]
pub struct UdpConfig {
    /// Bytes that a session may hold before the kernel receives them: its window. Rounded up to a power of two.
    pub rx_buffer: usize,
    /// Most messages that may be under way to an end of a session.
    pub buffers: u16,
    /// Most sessions, those that are ending included; at most [`SESSIONS_MAX`].
    pub connections: usize,
    /// Most payload bytes of a message, when both ports carry more.
    pub payload_max: usize,
    /// A session whose peer answers nothing for this long is reset.
    pub give_up: Duration,
    /// Ask peers of idle sessions that their user watches this often: the links of communicators. A peer whose host
    /// refuses three packets in a row is gone.
    pub watch: Option<Duration>,
    /// The first sequence number of each session; `None` draws one.
    pub first: Option<u32>,
    /// Key of tags and first sequence numbers.
    pub seed: u64,
}

impl Default for UdpConfig {
    /// 256 KiB and 256 messages, 4,096 sessions, the largest messages, 5 s without an answer, questions to watched peers every 500 ms,
    /// seed 0.
    fn default() -> UdpConfig {
        UdpConfig {
            rx_buffer: 256 << 10,
            buffers: 256,
            connections: 4_096,
            payload_max: 60 << 10,
            give_up: Duration::from_secs(5),
            watch: Some(Duration::from_millis(500)),
            first: None,
            seed: 0,
        }
    }
}

/// A [`UdpConfig`] that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UdpConfigError {
    /// The window is too small for a message, or too large.
    #[error("a buffer of transport udp holds 4 KiB to 64 MiB, not {bytes} bytes")]
    Buffer {
        /// As given.
        bytes: usize,
    },
    /// A message could not leave before the last one was confirmed.
    #[error("transport udp needs at least 2 receive buffers for a session, not {buffers}")]
    Buffers {
        /// As given.
        buffers: u16,
    },
    /// Messages too short for any use.
    #[error("a message of transport udp carries at least {PAYLOAD_MIN} bytes, not {bytes}")]
    Payload {
        /// As given.
        bytes: usize,
    },
}

/// What a transport counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UdpCounters {
    /// Messages that were malformed or had a wrong CRC.
    pub invalid: u64,
    /// Messages of no session, or from an address that is not its peer's.
    pub foreign: u64,
    /// Requests for sessions dropped because a backlog was full.
    pub overflowed: u64,
    /// Requests for sessions that were refused.
    pub refused: u64,
    /// Messages that had arrived before.
    pub duplicates: u64,
    /// Sessions that have ended because a message was missing.
    pub gaps: u64,
}

/// The UDP transport of a NIC. See the module text.
pub struct UdpTransport {
    config: UdpConfig,
    ip: Ipv4Addr,
    routes: Arc<Routes>,
    numbers: Numbers,
    table: Connections<Conn, FxBuildHasher>,
    listeners: Listeners,
    ports: EphemeralPorts,
    turns: Turns,
    /// Requests that came in since the last step, and answers to messages of no session.
    letters: VecDeque<Letter>,
    answers: VecDeque<Answer>,
    /// Sessions that peers have asked for, by their address and end.
    requests: HashMap<(Ipv4Addr, End), usize>,
    /// Our ends of sessions that a gap has ended and that are freed, oldest first.
    gaps: VecDeque<(End, Gap)>,
    /// Packets that are being sent, and for whom, when they found no room.
    batch: Batch,
    unsent: Option<Unsent>,
    events: VecDeque<TransportEvent>,
    counters: UdpCounters,
}

impl std::fmt::Debug for UdpTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UdpTransport")
            .field("ip", &self.ip)
            .field("connections", &self.table.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// How operations of a session end that is reset, because of a gap if there is one.
fn reset_by(gap: Option<Gap>) -> (Status, u64) {
    let detail = gap.map_or(0, |g| u64::from(g.expected) << 32 | u64::from(g.got));
    (Status::ConnectionReset, detail)
}

/// A session as the network knows it.
fn waiter(index: usize) -> Waiter {
    let protocol = Protocol::Udp;
    Waiter { protocol, index }
}

impl UdpTransport {
    /// A transport over a network: the one with which it is stepped. Its ports of datagrams carry
    /// [`Protocol::Udp`](Network::carry_by_datagrams).
    ///
    /// # Errors
    /// [`UdpConfigError`] names the setting that cannot work.
    pub fn new(net: &Network, config: UdpConfig) -> Result<UdpTransport, UdpConfigError> {
        let bytes = config.rx_buffer;
        if !WINDOWS.contains(&bytes) {
            return Err(UdpConfigError::Buffer { bytes });
        }
        let buffers = config.buffers;
        if buffers < 2 {
            return Err(UdpConfigError::Buffers { buffers });
        }
        let bytes = config.payload_max;
        if bytes < PAYLOAD_MIN {
            return Err(UdpConfigError::Payload { bytes });
        }
        let mut numbers = Numbers::new(config.seed);
        let ports = EphemeralPorts::new(numbers.draw());
        Ok(UdpTransport {
            ip: net.ip(),
            routes: net.table(),
            numbers,
            table: Connections::new(config.connections.min(SESSIONS_MAX), FxBuildHasher),
            listeners: Listeners::default(),
            ports,
            turns: Turns::default(),
            letters: VecDeque::new(),
            answers: VecDeque::new(),
            requests: HashMap::new(),
            gaps: VecDeque::new(),
            batch: Batch::new(),
            unsent: None,
            events: VecDeque::new(),
            counters: UdpCounters::default(),
            config,
        })
    }

    /// What was counted since the transport was made.
    pub fn counters(&self) -> UdpCounters {
        self.counters
    }

    /// Sessions in use, those that are ending included.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    fn mark(&mut self, index: usize) {
        if let Some(c) = self.table.at(index) {
            self.turns.mark(index, &mut c.seen.queued);
        }
    }

    /// A tag and a first sequence number for a new session.
    fn draw(&mut self) -> (u32, u32) {
        let drawn = self.numbers.draw();
        let first = self.config.first.unwrap_or((drawn >> 32) as u32);
        (drawn as u32, first)
    }

    /// Frees a session.
    fn free(&mut self, index: usize) {
        if let Some(c) = self.table.remove(index) {
            if let Some(gap) = c.gap() {
                if self.gaps.len() == GAPS_KEPT {
                    self.gaps.pop_front();
                }
                self.gaps.push_back((c.end(), gap));
            }
            let request = (*c.peer.ip(), c.far.end);
            if self.requests.get(&request) == Some(&index) {
                self.requests.remove(&request);
            }
        }
    }

    /// The messages whose loss has ended a session that is freed, by our end of it.
    fn gap_of_freed(&self, end: End) -> Option<Gap> {
        let kept = self.gaps.iter().rev().find(|(of, _)| *of == end);
        kept.map(|(_, gap)| *gap)
    }

    /// Frees a session whose peer may not know that it ends, and says so once.
    fn dismiss(&mut self, index: usize) {
        if let Some(c) = self.table.at(index) {
            if let Phase::Incoming(listener) = c.phase {
                self.listeners.handshake_over(listener, false);
            }
            self.answers.extend(Answer::goodbye(c));
        }
        self.free(index);
    }
}

impl Sharer for UdpTransport {}

impl Transport for UdpTransport {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, Status> {
        self.listeners.listen(port, backlog)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.listeners.unlisten(listener);
        for index in self.table.half_open(listener) {
            self.dismiss(index);
        }
    }

    fn connect(
        &mut self,
        now: NicTime,
        remote: SocketAddrV4,
        deadline: NicTime,
    ) -> Result<ConnId, Status> {
        check_remote(&self.routes, Protocol::Udp, self.ip, remote)?;
        // It only names the session; the program sees it.
        let port = self.ports.once().next().unwrap_or_default();
        let numbers = self.draw();
        let addresses = (SocketAddrV4::new(self.ip, port), remote);
        let config = &self.config;
        let made = self.table.insert(|id| {
            let mut c = Conn::new(id, addresses, numbers, Phase::Resolving, config);
            c.deadline = Some(deadline);
            c
        });
        let conn = made.ok_or(Status::NoResources)?;
        self.mark(index_of(conn));
        // No packet wakes the NIC for it.
        self.turns.no_later(now);
        Ok(conn)
    }

    fn post_send(&mut self, conn: ConnId, work: SendWork) {
        let refused = match self.table.by_id(conn) {
            None => (Status::NotConnected, 0),
            Some(c) => match c.phase {
                Phase::Dead(gap) => reset_by(gap),
                _ if c.tx.fin != Fin::Open => (Status::NotConnected, 0),
                _ => {
                    c.sends.post(work);
                    return self.mark(index_of(conn));
                }
            },
        };
        self.events
            .push_back(TransportEvent::send_refused(conn, work.token, refused));
    }

    fn post_recv(&mut self, conn: ConnId, work: RecvWork) {
        let refused = match self.table.by_id(conn) {
            None => (Status::NotConnected, 0),
            Some(c) => match c.phase {
                Phase::Dead(gap) => reset_by(gap),
                Phase::Closing => (Status::NotConnected, 0),
                _ => {
                    c.recvs.post(work);
                    return self.mark(index_of(conn));
                }
            },
        };
        self.events
            .push_back(TransportEvent::recv_refused(conn, work.token, refused));
    }

    fn recv_now(
        &mut self,
        conn: ConnId,
        buffer: &Buffer,
        some: bool,
        data: &mut Datapath<'_>,
    ) -> Option<u32> {
        let c = self.table.by_id(conn)?;
        let is_next = c.recvs.is_empty() && !c.recvs.holds();
        if c.phase != Phase::Open || !is_next || data.on_path(conn, Direction::Receive) {
            return None;
        }
        let mut waiting = Waiting {
            rx: &mut c.rx.ring,
            ended: c.seen.peer_closed,
        };
        let n = ReceivePath::receive_now(&mut waiting, buffer, some, data.dma)?;
        if c.rx.must_announce() {
            self.mark(index_of(conn));
        }
        Some(n)
    }

    fn is_quiet(&self) -> bool {
        // Timers fire when the clock is read.
        self.turns.is_quiet()
            && self.letters.is_empty()
            && self.answers.is_empty()
            && self.events.is_empty()
            && self.unsent.is_none()
            && !self.table.has_released()
    }

    fn cancel(&mut self, conn: ConnId, token: WorkToken) -> Option<u64> {
        let c = self.table.by_id(conn)?;
        if let Some(s) = c.sends.cancel(token) {
            return Some(s.bytes);
        }
        Some(c.recvs.cancel(token)?.0)
    }

    fn undelivered(&self, conn: ConnId) -> u64 {
        let c = self.table.get_by_id(conn);
        c.map_or(0, |c| c.tx.unconfirmed())
    }

    fn watch(&mut self, conn: ConnId) {
        if let Some(c) = self.table.by_id(conn) {
            c.probes.watched = true;
            self.mark(index_of(conn));
        }
    }

    fn shutdown(&mut self, conn: ConnId) {
        if let Some(c) = self.table.by_id(conn) {
            c.tx.fin = c.tx.fin.max(Fin::Wanted);
            self.mark(index_of(conn));
        }
    }

    fn close(&mut self, conn: ConnId) {
        let Some(c) = self.table.by_id(conn) else {
            return;
        };
        c.tx.fin = c.tx.fin.max(Fin::Wanted);
        c.recvs
            .fail_all((Status::NotConnected, 0), &mut self.events);
        match c.phase {
            Phase::Open => {
                c.phase = Phase::Closing;
                self.mark(index_of(conn));
            }
            Phase::Closing => {}
            _ => {
                // Never established, or reset: there is nothing to wait for.
                c.fail_all((Status::NotConnected, 0), &mut self.events);
                self.events.push_back(TransportEvent::Closed { conn });
                self.dismiss(index_of(conn));
            }
        }
    }

    fn abort(&mut self, conn: ConnId) {
        let Some(c) = self.table.by_id(conn) else {
            return;
        };
        c.fail_all((Status::Aborted, 0), &mut self.events);
        self.dismiss(index_of(conn));
    }

    fn step(&mut self, now: NicTime, net: &mut Network, data: &mut Datapath<'_>) -> bool {
        self.table.release_hops(net, Protocol::Udp);
        let mut moved = self.read_letters(now, net);
        while let Some(index) = self.turns.timers.pop(now) {
            match self.table.at(index).and_then(|c| c.wake_at()) {
                Some(at) if at > now => self.turns.timers.set(index, at),
                Some(_) => self.mark(index),
                None => {}
            }
        }
        moved |= self.serve_ready(now, net, data);
        self.send_answers(now, net);
        net.flush(now);
        moved
    }

    fn poll_event(&mut self) -> Option<TransportEvent> {
        self.listeners.poll(&mut self.events)
    }

    fn next_timer(&self) -> Option<NicTime> {
        self.turns.next_timer()
    }

    fn reset_detail(&self, conn: ConnId) -> u64 {
        let gap = self.table.get_by_id(conn).and_then(Conn::gap);
        reset_by(gap).1
    }

    fn endpoints(&self, conn: ConnId) -> Option<(SocketAddrV4, SocketAddrV4)> {
        self.table.get_by_id(conn).map(|c| (c.local, c.peer))
    }

    fn packets(&mut self) -> Option<&mut dyn PacketTransport> {
        Some(self)
    }
}
