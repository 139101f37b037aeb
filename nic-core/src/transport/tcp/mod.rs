//! TCP: smoltcp's sockets behind our own demultiplexer.
//!
//! ```text
//! network (ports, ARP) ─▶ connection by 4-tuple ─▶ one smoltcp socket ─▶ pump ─▶ GPU memory
//!                                                       ▲
//!                                                       │ timers, ready list
//!                                                     GPU memory
//! ```
//!
//! smoltcp scans its whole socket set for each packet and for each poll; here each connection has a
//! set of one, found by a hash of its 4-tuple, and is polled only when a segment came for it, an
//! operation was posted on it, or its timer fired. An idle connection costs memory, not time.
//!
//! **Copies.** A payload byte is copied once from GPU memory into the socket's transmit buffer and
//! once into the frame; on the other side once into the receive buffer and once into GPU memory. A
//! send retires when its last byte is in the transmit buffer: the NIC does not read the GPU's
//! buffer again, so the rule "retires when its buffer may be reused" is kept without waiting for
//! the acknowledgement.
//!
//! **smoltcp's gaps** are worked around from outside: `smoltcp_gaps` lists them.
//!
//! **Unauthenticated senders.** Half-open handshakes that fill a backlog keep no client out: see
//! `isn`. A reset, a SYN or an acknowledgement with guessed numbers neither ends nor corrupts a
//! connection (RFC 5961): see `smoltcp_gaps::acceptance`. An attacker who reads the wire can still
//! do both.
//!
//! **Limits.** The retransmission time-out is at least [`TcpConfig::rto_min`], backs off to a
//! minute, and recovers only with a clean round-trip sample: lossy links work, but slowly. IPv4,
//! one address, no fragments, no options beyond smoltcp's (MSS, window scale). Initial sequence
//! numbers and cookies are keyed by the seed: give each NIC one of its own from the system's random
//! source.

mod compose;
mod config;
mod conn;
mod device;
mod isn;
mod key;
mod memory;
mod poll;
mod pump;
mod ready;
mod receive;
mod sequence;
mod smoltcp_gaps;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use ringbell_nic_abi::Status;
use smoltcp::socket::tcp::State;

use self::config::check;
pub use self::config::{TcpConfig, TcpConfigError};
use self::conn::Conn;
use self::isn::Keys;
use self::key::{Key, KeyHash};
use self::ready::Ready;
use self::smoltcp_gaps::stack::Stack;
pub use super::connections::CONNECTIONS_MAX;
use super::connections::{check_remote, index_of, Connections, EphemeralPorts, Listeners};
use super::timers::Timers;
use super::{
    Caps, Close, ConnState, PacketTransport, RecvWork, SendWork, Transport, TransportEvent, Work,
};
use crate::datapath::Datapath;
use crate::network::{Link, Network, Protocol, Routes, Waiter};
use crate::transport::life::Phase;
use crate::types::{ConnId, ListenerId, NicTime, WorkToken};
use ringbell_net::wire::frame::TcpFrame;

/// What a transport counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpCounters {
    /// SYNs and handshakes with a bad checksum or bad options.
    pub dropped: u64,
    /// Segments answered with a reset, because they were of no connection.
    pub refused: u64,
    /// SYNs and handshakes dropped because a backlog was full or no connection was free.
    pub overflowed: u64,
    /// SYNs answered with a cookie, because half-open handshakes filled the backlog.
    pub cookies: u64,
    /// Segments answered with a challenge ACK (RFC 5961), because their numbers may have been
    /// guessed.
    pub challenged: u64,
    /// Connections ended because smoltcp's own assertions failed on what the peer sent.
    pub defects: u64,
    /// Times that a socket's retransmission was restarted because it had bytes but no timer.
    pub restarted: u64,
    /// Times that a partial acknowledgement made a socket send the next hole again.
    pub partial_acks: u64,
}

/// The TCP transport of a NIC. See the module text.
pub struct TcpTransport {
    config: TcpConfig,
    ip: Ipv4Addr,
    routes: Arc<Routes>,
    stack: Stack,
    keys: Keys,
    table: Connections<Conn, KeyHash>,
    turns: Turns,
    timers: Timers,
    listeners: Listeners,
    ports: EphemeralPorts,
    events: VecDeque<TransportEvent>,
    counters: TcpCounters,
    /// For segments that a socket gets with another number.
    scratch: Box<[u8]>,
    /// What the last segment asks for.
    after: Option<After>,
}

/// Remaining work for a segment once the port has its buffer back.
struct After {
    from: Link,
    /// The hop of its connection.
    known: Option<usize>,
    /// A connection whose peer still misses a segment.
    hole: Option<usize>,
    what: Rest,
}

enum Rest {
    /// At most the answer that lies in the reply buffer.
    Answer,
    /// A SYN that may open a connection.
    Opens(TcpFrame, Vec<u8>),
    /// A segment that may complete a handshake by a cookie.
    Completes(TcpFrame, Vec<u8>),
    /// Answer this connection's peer with a challenge ACK.
    Challenge(usize),
}

/// Which connections are served next, and what this step has left behind.
#[derive(Debug, Default)]
struct Turns {
    /// Connections that have something to do.
    ready: Ready,
    /// Those that found no room in the port in this step.
    stopped: Vec<usize>,
    /// How many these are.
    blocked: u32,
    /// The neighbour of the last of them.
    full_way: Option<usize>,
    /// The last step left work behind that no timer covers.
    again: Option<NicTime>,
}

impl std::fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpTransport")
            .field("ip", &self.ip)
            .field("connections", &self.table.len())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl TcpTransport {
    /// A transport over a network: the one with which it is stepped.
    ///
    /// # Errors
    /// [`TcpConfigError`] names the setting that cannot work.
    pub fn new(net: &Network, config: TcpConfig) -> Result<TcpTransport, TcpConfigError> {
        check(&config)?;
        let mut stack = Stack::new(&config, net);
        // Segments may arrive before the first step.
        stack.follow_ports(net, NicTime(0));
        let hash = KeyHash(config.seed ^ 0x5851_f42d_4c95_7f2d);
        Ok(TcpTransport {
            ip: net.ip(),
            routes: net.table(),
            stack,
            keys: Keys::new(config.seed),
            table: Connections::new(config.connections, hash),
            turns: Turns::default(),
            timers: Timers::default(),
            listeners: Listeners::default(),
            ports: EphemeralPorts::new(config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            events: VecDeque::new(),
            counters: TcpCounters::default(),
            scratch: vec![0; 2048].into(),
            after: None,
            config,
        })
    }

    /// What was counted since the transport was made.
    pub fn counters(&self) -> TcpCounters {
        TcpCounters {
            defects: self.stack.defects,
            ..self.counters
        }
    }

    /// Connections in use, those that are ending included.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    fn mark(&mut self, index: usize) {
        if self.table.has(index) {
            self.turns.ready.queue(index);
        }
    }

    /// The next free ephemeral port towards a peer.
    fn ephemeral(&mut self, remote: SocketAddrV4) -> Option<u16> {
        self.ports.once().find(|&port| {
            let taken = self.table.find(Key::of(remote, port)).is_some();
            !taken && self.listeners.at(port).is_none()
        })
    }
}

/// A connection as the network knows it.
fn waiter(index: usize) -> Waiter {
    let protocol = Protocol::Tcp;
    Waiter { protocol, index }
}

impl Transport for TcpTransport {
    fn caps(&self) -> Caps {
        Caps {
            protocol: Some(Protocol::Tcp),
            ..Caps::streams("tcp")
        }
    }

    fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, Status> {
        self.listeners.listen(port, backlog)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.listeners.unlisten(listener);
        // Handshakes under way end with a reset.
        for index in self.table.half_open(listener) {
            self.reset_orphan(index);
        }
    }

    fn connect(
        &mut self,
        now: NicTime,
        remote: SocketAddrV4,
        deadline: NicTime,
    ) -> Result<ConnId, Status> {
        check_remote(&self.routes, Protocol::Tcp, self.ip, remote)?;
        self.make_room();
        if !self.table.has_room() {
            return Err(Status::NoResources);
        }
        let port = self.ephemeral(remote).ok_or(Status::NoResources)?;
        let local = SocketAddrV4::new(self.ip, port);
        let config = &self.config;
        let made = self.table.insert(|id| {
            let mut c = Conn::new(id, local, remote, Phase::Resolving, config);
            c.life.deadline = Some(deadline);
            c
        });
        // `has_room` was asked above.
        let conn = made.ok_or(Status::NoResources)?;
        self.mark(index_of(conn));
        // No frame wakes the NIC for it.
        self.turns.again = Some(now);
        Ok(conn)
    }

    fn post(&mut self, conn: ConnId, work: Work) {
        match work {
            Work::Send(work) => self.post_send(conn, work),
            Work::Receive(work) => self.post_recv(conn, work),
            Work::Write(..) | Work::Remote(_) => self.events.push_back(work.unsupported(conn)),
        }
    }

    fn cancel(&mut self, conn: ConnId, token: WorkToken) -> Option<u64> {
        let c = self.table.by_id(conn)?;
        let sent = c.life.sends.cancel(token).map(|s| s.bytes);
        sent.or_else(|| c.life.recvs.cancel(token))
    }

    #[inline]
    fn is_quiet(&self) -> bool {
        // Timers fire when the clock is read.
        self.turns.ready.len() == 0 && self.events.is_empty() && !self.table.has_released()
    }

    fn close(&mut self, conn: ConnId, how: Close) {
        let Some(c) = self.table.by_id(conn) else {
            return;
        };
        if how == Close::Now {
            c.fail_all((Status::Aborted, 0), &mut self.events);
            return self.reset_orphan(index_of(conn));
        }
        c.fin_wanted = true;
        if how == Close::Sending {
            return self.mark(index_of(conn));
        }
        c.life
            .recvs
            .fail_all((Status::NotConnected, 0), &mut self.events);
        match c.life.phase {
            Phase::Open => {
                c.life.phase = Phase::Closing;
                self.mark(index_of(conn));
            }
            Phase::Closing => {}
            _ => {
                // Never established, or reset: there is nothing to wait for.
                c.life
                    .sends
                    .fail_all((Status::NotConnected, 0), &mut self.events);
                self.events.push_back(TransportEvent::Closed { conn });
                self.reset_orphan(index_of(conn));
            }
        }
    }

    fn watch(&mut self, conn: ConnId) {
        if let Some(c) = self.table.by_id(conn) {
            c.tcp.probes.watched = true;
            self.mark(index_of(conn));
        }
    }

    fn step(&mut self, now: NicTime, net: &mut Network, data: &mut Datapath<'_>) -> bool {
        self.stack.follow_ports(net, now);
        self.table.release_hops(net, Protocol::Tcp);
        while let Some(index) = self.timers.pop(now) {
            match self.table.at(index).and_then(|c| c.wake_at(&self.config)) {
                Some(at) if at > now => self.timers.set(index, at),
                Some(_) => self.mark(index),
                None => {}
            }
        }
        let moved = self.serve_ready(now, net, data);
        net.flush(now);
        moved
    }

    fn poll_event(&mut self) -> Option<TransportEvent> {
        self.listeners.poll(&mut self.events)
    }

    fn next_timer(&self) -> Option<NicTime> {
        self.turns.again.into_iter().chain(self.timers.next()).min()
    }

    fn conn_state(&self, conn: ConnId) -> Option<ConnState> {
        let c = self.table.get_by_id(conn)?;
        Some(ConnState {
            undelivered: c.tcp.unconfirmed(),
            reset: c.life.end(0),
            ..ConnState::between(c.life.local, c.life.peer)
        })
    }

    fn packets(&mut self) -> Option<&mut dyn PacketTransport> {
        Some(self)
    }
}

impl TcpTransport {
    /// Queues a send.
    fn post_send(&mut self, conn: ConnId, work: SendWork) {
        let refused = match self.table.by_id(conn) {
            None => (Status::NotConnected, 0),
            Some(c) if c.life.phase == Phase::Dead => c.life.end(0),
            Some(c) if c.fin_wanted => (Status::NotConnected, 0),
            Some(c) => {
                c.life.sends.post(work);
                return self.mark(index_of(conn));
            }
        };
        self.events
            .push_back(TransportEvent::send_refused(conn, work.token, refused));
    }

    /// Queues a receive.
    fn post_recv(&mut self, conn: ConnId, work: RecvWork) {
        let refused = match self.table.by_id(conn) {
            None => Status::NotConnected,
            Some(c) if c.life.phase == Phase::Closing => Status::NotConnected,
            // A reset connection may still hold bytes: service decides.
            Some(c) => {
                let moves = c.has_news_for(&work);
                c.life.recvs.post(work);
                if moves {
                    self.mark(index_of(conn));
                }
                return;
            }
        };
        self.events
            .push_back(TransportEvent::recv_refused(conn, work.token, (refused, 0)));
    }

    /// Takes the id from a connection and lets TCP end it with a reset.
    fn reset_orphan(&mut self, index: usize) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        if let Phase::Incoming(listener) = c.life.phase {
            self.listeners.handshake_over(listener, false);
        }
        let silent = c.tcp.broken
            || matches!(
                c.tcp.state(),
                State::Closed | State::Listen | State::SynSent
            );
        c.life.phase = Phase::Orphan;
        if silent {
            self.table.remove(index);
        } else {
            c.tcp.socket().abort();
            self.mark(index);
        }
    }
}
