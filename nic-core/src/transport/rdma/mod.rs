//! RDMA: streams and one-sided operations over reliable connections of RoCEv2.
//!
//! ```text
//! network (ports, ARP) ─▶ serve (queue pair number) ─▶ qp ─▶ stream ─▶ posted receives ─▶ memory
//!                              │ queue pair 1           └───▶ one_sided ─▶ memory that the peer names
//!                              ▼                            ▲
//!                            manage ─▶ conn      memory ─▶ posted operations (serve: timers, ready list)
//! ```
//!
//! The wire is real RoCEv2: tshark reads it, and the invariant CRC is that of any RoCEv2 NIC. [`qp`] is the standard's reliable
//! connection without I/O. `stream` puts the bytes of a session into SENDs and has a window, so that the receiver is always
//! ready; `writes` puts messages for receives that the peer has announced between them. `one_sided` has a queue pair of its own. Connections are made by the standard's communication management over queue pair 1 (`manage`): the service is
//! the session's port, as of the RDMA connection manager of Linux; window, features and packet size travel as private data.
//!
//! **Packets.** Two NICs of this kind use the largest packets that both ports carry, and leave the invariant CRC out when both
//! ports share memory. Its four bytes stay.
//!
//! **Unauthenticated senders.** A packet must come from the peer's address and name a queue pair, whose number is drawn at random, and a number
//! inside the window, which began at random. A request for a connection costs an entry of the backlog until its deadline.
//!
//! **IPv6.** A peer is named by an IPv4 address in every case; the network knows the host behind it.
//!
//! **Limits.** Packet sizes are agreed once: when a port's MTU falls below, the connection ends.

mod conn;
mod manage;
mod one_sided;
mod outgoing;
pub mod qp;
mod serve;
mod stream;
mod writes;

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_abi::{InlineSend, PdId, Status, INLINE_MAX};
use rustc_hash::FxBuildHasher;

use self::conn::{Conn, Names, Phase};
use self::manage::Letter;
pub use self::qp::{Congestion, DcqcnConfig};
use self::stream::{Fin, WINDOW_MAX};
pub use super::connections::CONNECTIONS_MAX;
use super::connections::{check_remote, index_of, Connections, EphemeralPorts, Listeners};
use super::random::Numbers;
use super::ring::Waiting;
use super::turns::Turns;
use super::{PacketTransport, RecvWork, RemoteWork, SendWork, Target, Transport, TransportEvent};
use crate::datapath::{Datapath, ReceivePath};
use crate::engine::Direction;
use crate::memory::Sharer;
use crate::network::{Datagrams, Link, Network, Protocol, Routes, Waiter};
use crate::port::Batch;
use crate::types::{Buffer, ConnId, ListenerId, NicTime, WorkToken};
use crate::wire::roce::icrc::Flow;
use crate::wire::roce::{Psn, Qpn};

/// Whether the invariant CRC is computed and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Icrc {
    /// Unless the ports of both ends share memory.
    #[default]
    Auto,
    /// On every packet.
    Always,
    /// On none, when the peer agrees.
    Never,
}

/// Settings of an [`RdmaTransport`].
#[derive(Debug, Clone)]
pub struct RdmaConfig {
    /// Bytes that a connection may hold before the kernel receives them: its window. Rounded up to a power of two.
    pub rx_buffer: usize,
    /// Bytes that a connection may hold before the peer acknowledges them.
    pub tx_buffer: usize,
    /// Most connections, those that are ending included; at most [`CONNECTIONS_MAX`].
    pub connections: usize,
    /// Most payload bytes of a packet, when both ports carry more.
    pub payload_max: usize,
    /// Whether the invariant CRC is computed.
    pub icrc: Icrc,
    /// Most bytes in flight on a connection.
    pub window: usize,
    /// Shortest time after which a packet is sent again.
    pub timeout: Duration,
    /// A connection whose peer acknowledges nothing for this long is reset, after at least seven retries.
    pub give_up: Duration,
    /// Probe idle connections that their user watches this often: the links of communicators. A peer whose host
    /// refuses three packets in a row is gone.
    pub watch: Option<Duration>,
    /// What decides on window and rate of a connection.
    pub congestion: Congestion,
    /// Keep packets that come early and repeat lost ones alone, when the peer does so too; else all behind a lost one are repeated.
    pub selective: bool,
    /// Key of queue pair numbers, first packet numbers and ids.
    pub seed: u64,
}

impl Default for RdmaConfig {
    /// 256 KiB buffers and window, 4,096 connections, the largest packets, a retry after 20 ms, 5 s without an answer, probes of
    /// watched connections every 500 ms, a window that halves on a loss, selective repeat, seed 0.
    fn default() -> RdmaConfig {
        RdmaConfig {
            rx_buffer: 256 << 10,
            tx_buffer: 256 << 10,
            connections: 4_096,
            payload_max: 60 << 10,
            icrc: Icrc::Auto,
            window: 256 << 10,
            timeout: Duration::from_millis(20),
            give_up: Duration::from_secs(5),
            watch: Some(Duration::from_millis(500)),
            congestion: Congestion::default(),
            selective: true,
            seed: 0,
        }
    }
}

/// An [`RdmaConfig`] that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaConfigError {
    /// A buffer is too small for a packet, or too large for a window.
    #[error("a buffer of transport rdma holds 4 KiB to 64 MiB, not {bytes} bytes")]
    Buffer {
        /// As given.
        bytes: usize,
    },
    /// A packet carries at least the smallest MTU of InfiniBand.
    #[error("a packet of transport rdma carries at least {PAYLOAD_MIN} bytes, not {bytes}")]
    Payload {
        /// As given.
        bytes: usize,
    },
    /// A packet would be sent again at once, or never.
    #[error("the time-out of transport rdma is 100 µs to 1 s, not {timeout:?}")]
    Timeout {
        /// As given.
        timeout: Duration,
    },
}

/// Longest message of a collective that is copied from and to the stream, and needs no announcement.
const STREAMED_MAX: u64 = 32 << 10;

/// Smallest MTU of InfiniBand (IBTA vol. 1 §7.7.8).
const PAYLOAD_MIN: usize = 256;

/// What a transport counted since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RdmaCounters {
    /// Packets that were malformed or had a wrong invariant CRC.
    pub invalid: u64,
    /// Packets of no queue pair, from an address that is not its peer's, or of another partition.
    pub foreign: u64,
    /// Requests for connections dropped because a backlog was full.
    pub overflowed: u64,
    /// Requests for connections that were refused.
    pub refused: u64,
    /// Packets that were sent again.
    pub repeated: u64,
    /// Packets behind a gap, dropped.
    pub out_of_order: u64,
    /// Packets that a switch has marked (ECN).
    pub marked: u64,
    /// Packets whose payload was received in its place, without a copy of ours.
    pub in_place: u64,
    /// Packets that had arrived before.
    pub duplicates: u64,
    /// Times that a receiver was not ready, at either end.
    pub not_ready: u64,
    /// Times that nothing came back in time.
    pub timeouts: u64,
}

/// The RDMA transport of a NIC. See the module text.
pub struct RdmaTransport {
    config: RdmaConfig,
    ip: Ipv4Addr,
    routes: Arc<Routes>,
    numbers: Numbers,
    /// The numbers of queue pairs are ours, drawn at random: no peer chooses which collide.
    table: Connections<Conn, FxBuildHasher>,
    listeners: Listeners,
    ports: EphemeralPorts,
    turns: Turns,
    /// Messages for queue pair 1 that came in since the last step.
    letters: VecDeque<Letter>,
    /// The connection whose long packets come now: the next may be received in place.
    streaming: Option<usize>,
    /// Connections that peers have asked for, by their address and number.
    requests: HashMap<(Ipv4Addr, u32), usize>,
    /// Packets that are being sent, and for whom, when they found no room.
    batch: Batch,
    unsent: Option<Unsent>,
    events: VecDeque<TransportEvent>,
    counters: RdmaCounters,
}

/// Whose packets wait for room in a port.
#[derive(Debug)]
struct Unsent {
    link: Link,
    flow: Flow,
    how: Datagrams,
}

impl std::fmt::Debug for RdmaTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaTransport")
            .field("ip", &self.ip)
            .field("connections", &self.table.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// A connection as the network knows it.
fn waiter(index: usize) -> Waiter {
    let protocol = Protocol::Roce;
    Waiter { protocol, index }
}

impl RdmaTransport {
    /// A transport over a network: the one with which it is stepped.
    ///
    /// # Errors
    /// [`RdmaConfigError`] names the setting that cannot work.
    pub fn new(net: &Network, config: RdmaConfig) -> Result<RdmaTransport, RdmaConfigError> {
        for bytes in [config.rx_buffer, config.tx_buffer, config.window] {
            if !(4_096..=WINDOW_MAX).contains(&bytes) {
                return Err(RdmaConfigError::Buffer { bytes });
            }
        }
        let bytes = config.payload_max;
        if bytes < PAYLOAD_MIN {
            return Err(RdmaConfigError::Payload { bytes });
        }
        let timeout = config.timeout;
        if !(Duration::from_micros(100)..=Duration::from_secs(1)).contains(&timeout) {
            return Err(RdmaConfigError::Timeout { timeout });
        }
        let mut numbers = Numbers::new(config.seed);
        let ports = EphemeralPorts::new(numbers.draw());
        Ok(RdmaTransport {
            ip: net.ip(),
            routes: net.table(),
            numbers,
            table: Connections::new(config.connections, FxBuildHasher),
            listeners: Listeners::default(),
            ports,
            turns: Turns::default(),
            letters: VecDeque::new(),
            streaming: None,
            requests: HashMap::new(),
            batch: Batch::new(),
            unsent: None,
            events: VecDeque::new(),
            counters: RdmaCounters::default(),
            config,
        })
    }

    /// What was counted since the transport was made.
    pub fn counters(&self) -> RdmaCounters {
        self.counters
    }

    /// Connections in use, those that are ending included.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// The number of our first packet on a connection.
    pub fn first_psn(&self, conn: ConnId) -> Option<Psn> {
        Some(self.table.get_by_id(conn)?.names.psn)
    }

    /// Whether packets of a connection carry an invariant CRC that counts.
    pub fn has_icrc(&self, conn: ConnId) -> Option<bool> {
        Some(self.table.get_by_id(conn)?.wire.icrc)
    }

    fn mark(&mut self, index: usize) {
        if let Some(c) = self.table.at(index) {
            self.turns.mark(index, &mut c.seen.queued);
        }
    }

    /// Queues a send, of the stream or to a receive that the peer has exposed.
    fn post(&mut self, conn: ConnId, work: SendWork, to: Option<Target>) {
        let refused = match self.table.by_id(conn) {
            None => Status::NotConnected,
            Some(c) if c.phase == Phase::Dead => Status::ConnectionReset,
            Some(c) if c.stream.fin != Fin::Open => Status::NotConnected,
            // The peer's end was in order, but it takes nothing any more.
            Some(c) if c.seen.finished => Status::ConnectionReset,
            Some(c) => {
                if let Some(to) = to {
                    c.stream.writes.post(work.token, to);
                }
                c.sends.post(work);
                return self.mark(index_of(conn));
            }
        };
        self.events
            .push_back(TransportEvent::send_refused(conn, work.token, (refused, 0)));
    }

    /// Frees a connection that has nothing left to send.
    fn free(&mut self, index: usize) {
        let Some(mut c) = self.table.remove(index) else {
            return;
        };
        c.cut(&mut self.events);
        let request = (*c.peer.ip(), c.names.peer);
        if self.requests.get(&request) == Some(&index) {
            self.requests.remove(&request);
        }
        let all = &mut self.counters;
        for n in [c.qp.counters(), c.one_sided.counters()] {
            all.repeated += n.repeated;
            all.out_of_order += n.out_of_order;
            all.duplicates += n.duplicates;
            all.not_ready += n.not_ready;
            all.timeouts += n.timeouts;
        }
    }

    /// Numbers for a new connection.
    fn names(&mut self, peer: u32, peer_qpn: Qpn, transaction: Option<u64>) -> Names {
        let own = loop {
            // The next number is that of the pair of one-sided operations.
            let id = self.numbers.draw() as u32 & !1;
            let qpn = Qpn::new(id);
            // 0 and 1 are for management, all ones for multicast (IBTA vol. 1 §3.5.10).
            let is_reserved = qpn.value() < 2 || one_sided::number(qpn) == Qpn::new(u32::MAX);
            if !is_reserved && self.table.find(qpn).is_none() {
                break id;
            }
        };
        Names {
            own,
            peer,
            peer_qpn,
            transaction: transaction.unwrap_or_else(|| self.numbers.draw()),
            psn: Psn::new(self.numbers.draw() as u32),
        }
    }

    /// Takes the id from a connection; the peer is told that it ends.
    fn dismiss(&mut self, index: usize) {
        self.part(index, false);
    }

    /// The same, and the peer is told whether in order.
    fn part(&mut self, index: usize, in_order: bool) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        if let Phase::Incoming(listener) = c.phase {
            self.listeners.handshake_over(listener, false);
        }
        let is_known = c.names.peer_qpn != Qpn::default() && c.hop.is_some();
        if !is_known || c.seen.finished {
            return self.free(index);
        }
        c.cut(&mut self.events);
        c.phase = Phase::Ending;
        c.deadline = None;
        c.probes = conn::Probes::default();
        // The next step sends it.
        c.ask = Some(c.goodbye(in_order));
        self.mark(index);
    }
}

impl Sharer for RdmaTransport {}

impl Transport for RdmaTransport {
    fn name(&self) -> &'static str {
        "rdma"
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
        check_remote(&self.routes, Protocol::Roce, self.ip, remote)?;
        // It only names the connection; the peer's program sees it.
        let port = self.ports.once().next().unwrap_or_default();
        let names = self.names(0, Qpn::default(), None);
        let local = SocketAddrV4::new(self.ip, port);
        let config = &self.config;
        let made = self.table.insert(|id| {
            let mut c = Conn::new(id, names, local, remote, Phase::Resolving, config);
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
        self.post(conn, work, None);
    }

    fn send_now(&mut self, conn: ConnId, payload: &InlineSend) -> bool {
        let Some(c) = self.table.by_id(conn) else {
            return false;
        };
        let is_open = c.phase == Phase::Open && c.stream.fin == Fin::Open && !c.seen.finished;
        if !is_open || !c.sends.is_empty() || c.stream.tx.free() < INLINE_MAX {
            return false;
        }
        let mut bytes = [0; INLINE_MAX];
        for (to, word) in bytes.chunks_exact_mut(8).zip(payload.words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        c.stream.tx.push(&bytes[..payload.len.into()]);
        self.mark(index_of(conn));
        true
    }

    fn post_recv(&mut self, conn: ConnId, work: RecvWork) {
        let refused = match self.table.by_id(conn) {
            None => Status::NotConnected,
            Some(c) if c.phase == Phase::Closing => Status::NotConnected,
            Some(c) if c.phase == Phase::Dead => Status::ConnectionReset,
            Some(c) => {
                c.recvs.post(work);
                return self.mark(index_of(conn));
            }
        };
        self.events
            .push_back(TransportEvent::recv_refused(conn, work.token, (refused, 0)));
    }

    fn recv_now(
        &mut self,
        conn: ConnId,
        buffer: &Buffer,
        some: bool,
        data: &mut Datapath<'_>,
    ) -> Option<u32> {
        // What has ended before is reported before.
        let is_it = |e: &TransportEvent| matches!(e, TransportEvent::RecvDone { conn: c, .. } if *c == conn);
        if self.events.iter().any(is_it) {
            return None;
        }
        let c = self.table.by_id(conn)?;
        let is_next = c.recvs.is_empty() && !c.recvs.holds();
        if c.phase != Phase::Open || !is_next || data.on_path(conn, Direction::Receive) {
            return None;
        }
        let mut waiting = Waiting {
            rx: &mut c.stream.rx,
            ended: c.seen.peer_closed,
        };
        let n = ReceivePath::receive_now(&mut waiting, buffer, some, data.dma)?;
        if c.stream.must_announce() {
            self.mark(index_of(conn));
        }
        Some(n)
    }

    fn exposes(&self) -> Option<u64> {
        Some(STREAMED_MAX)
    }

    fn expose(&mut self, conn: ConnId, work: &RecvWork, in_use: bool) -> Option<u32> {
        let c = self.table.by_id(conn)?;
        if c.phase != Phase::Open || work.buffer.len == 0 {
            return None;
        }
        let numbers = &mut self.numbers;
        let key = c
            .stream
            .exposed
            .open(*work, in_use, || numbers.draw() as u32);
        // What comes next may go straight there.
        self.streaming = Some(index_of(conn));
        Some(key)
    }

    fn post_write(&mut self, conn: ConnId, work: SendWork, to: Target) {
        self.post(conn, work, Some(to));
    }

    fn expects_places(&self) -> bool {
        self.streaming.is_some()
    }

    fn is_quiet(&self) -> bool {
        // Timers fire when the clock is read.
        self.turns.is_quiet()
            && self.letters.is_empty()
            && self.events.is_empty()
            && self.unsent.is_none()
            && !self.table.has_released()
    }

    fn post_remote(&mut self, conn: ConnId, work: RemoteWork) -> Result<(), Status> {
        let status = match self.table.by_id(conn) {
            None => Status::NotConnected,
            Some(c) if c.phase == Phase::Dead || c.seen.finished => Status::ConnectionReset,
            Some(c) if c.stream.fin != Fin::Open => Status::NotConnected,
            Some(c) => {
                c.one_sided.post(work);
                self.mark(index_of(conn));
                return Ok(());
            }
        };
        self.events.push_back(TransportEvent::RemoteDone {
            conn,
            token: work.token,
            status,
            bytes: 0,
            detail: 0,
        });
        Ok(())
    }

    fn grant(&mut self, conn: ConnId, pd: PdId) {
        if let Some(c) = self.table.by_id(conn) {
            c.one_sided.grant(pd);
        }
    }

    fn cancel(&mut self, conn: ConnId, token: WorkToken) -> Option<u64> {
        let c = self.table.by_id(conn)?;
        if let Some(n) = c.one_sided.cancel(conn, token, &mut self.events) {
            return Some(n);
        }
        if let Some(n) = c.stream.exposed.cancel(token) {
            return Some(n);
        }
        if let Some(s) = c.sends.cancel(token) {
            c.stream.writes.drop_target(Some(token));
            c.stream.tx.withdraw(Some(token));
            // What lies in its memory is lost to the stream.
            return Some(s.bytes.max(s.referred.into()));
        }
        Some(c.recvs.cancel(token)?.0)
    }

    fn undelivered(&self, conn: ConnId) -> u64 {
        let c = self.table.get_by_id(conn);
        c.map_or(0, |c| c.stream.unacknowledged())
    }

    fn watch(&mut self, conn: ConnId) {
        if let Some(c) = self.table.by_id(conn) {
            c.probes.watched = true;
            self.mark(index_of(conn));
        }
    }

    fn shutdown(&mut self, conn: ConnId) {
        if let Some(c) = self.table.by_id(conn) {
            c.stream.fin = c.stream.fin.max(Fin::Wanted);
            self.mark(index_of(conn));
        }
    }

    fn close(&mut self, conn: ConnId) {
        let Some(c) = self.table.by_id(conn) else {
            return;
        };
        c.stream.fin = c.stream.fin.max(Fin::Wanted);
        c.one_sided.revoke();
        let ended = (Status::NotConnected, 0);
        c.recvs.fail_all(ended, &mut self.events);
        c.stream.exposed.fail_all(conn, ended, &mut self.events);
        match c.phase {
            Phase::Open if !c.seen.finished => {
                c.phase = Phase::Closing;
                self.mark(index_of(conn));
            }
            Phase::Closing => {}
            _ => {
                // Never established, reset, or over: there is nothing to wait for.
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

    fn end(&mut self) {
        let orphans = self.table.iter().filter(|(_, c)| c.phase == Phase::Orphan);
        let orphans: Vec<_> = orphans.map(|(i, c)| (i, c.has_lost_nothing())).collect();
        for (index, in_order) in orphans {
            self.part(index, in_order);
        }
    }

    fn step(&mut self, now: NicTime, net: &mut Network, data: &mut Datapath<'_>) -> bool {
        self.table.release_hops(net, Protocol::Roce);
        let mut moved = self.read_letters(now, net);
        while let Some(index) = self.turns.timers.pop(now) {
            match self.table.at(index).and_then(|c| c.wake_at()) {
                Some(at) if at > now => self.turns.timers.set(index, at),
                Some(_) => self.mark(index),
                None => {}
            }
        }
        moved |= self.serve_ready(now, net, data);
        net.flush(now);
        moved
    }

    fn poll_event(&mut self) -> Option<TransportEvent> {
        self.listeners.poll(&mut self.events)
    }

    fn next_timer(&self) -> Option<NicTime> {
        self.turns.next_timer()
    }

    fn endpoints(&self, conn: ConnId) -> Option<(SocketAddrV4, SocketAddrV4)> {
        self.table.get_by_id(conn).map(|c| (c.local, c.peer))
    }

    fn packets(&mut self) -> Option<&mut dyn PacketTransport> {
        Some(self)
    }
}
