//! RDMA: streams and one-sided operations over reliable connections of RoCEv2.
//!
//! ```text
//! network (ports, ARP) ─▶ serve (queue pair number) ─▶ qp ─▶ stream ─▶ posted receives ─▶ memory
//!                              │ queue pair 1           └───▶ one_sided ─▶ memory that the peer names
//!                              ▼                            ▲
//!                            manage ─▶ conn      memory ─▶ posted operations (serve: timers, ready list)
//! ```
//!
//! The wire is real RoCEv2: tshark reads it, and the invariant CRC is that of any RoCEv2 NIC.
//! [`qp`] is the standard's reliable connection without I/O. `stream` puts the bytes of a session
//! into SENDs and has a window, so that the receiver is always ready; `writes` puts messages for
//! receives that the peer has announced between them. `one_sided` has a queue pair of its own.
//! Connections are made by the standard's communication management over queue pair 1 (`manage`):
//! the service is the session's port, as of the RDMA connection manager of Linux; window, features
//! and packet size travel as private data.
//!
//! **Packets.** Two NICs of this kind use the largest packets that both ports carry, and leave the
//! invariant CRC out when both ports share memory. Its four bytes stay.
//!
//! **Unauthenticated senders.** A packet must come from the peer's address and name a queue pair,
//! whose number is drawn at random, and a number inside the window, which began at random. A
//! request for a connection costs an entry of the backlog until its deadline.
//!
//! **Ways.** Each connection has a UDP source port, by which networks with several ways choose
//! one. With [`RdmaConfig::udp_ports`] it has several, and packets of the stream take them in turn.
//! A receiver takes any port of the peer's address, and the sender waits for packets that are
//! overtaken.
//!
//! **IPv6.** A peer is named by an IPv4 address in every case; the network knows the host behind
//! it.
//!
//! **Limits.** Packet sizes are agreed once: when a port's MTU falls below, the connection ends.

mod config;
mod conn;
mod datagram;
mod manage;
mod one_sided;
mod outgoing;
mod serve;
mod stream;
mod terms;
mod writes;

use std::collections::VecDeque;

pub use self::config::{RdmaConfig, RdmaConfigError, UDP_PORTS_MAX};
use self::conn::{Conn, Names};
use self::terms::ControlMessage;

use super::carried::Carried;
use super::carrier::Carrier;
pub use super::connections::CONNECTIONS_MAX;
use super::life::Phase;
use super::sessions::Sessions;
use crate::network::{Network, Protocol};
use crate::types::ConnId;
use ringbell_net::wire::roce::{Psn, Qpn};
pub use ringbell_roce::qp::{self, Congestion, DcqcnConfig};

/// Longest message of a collective that is copied from and to the stream, and needs no
/// announcement.
const STREAMED_MAX: u64 = 32 << 10;

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
    /// The numbers of queue pairs are ours, drawn at random: no peer chooses which collide.
    sessions: Sessions<Conn>,
    /// Messages for queue pair 1 that came in since the last step.
    control: VecDeque<ControlMessage>,
    counters: RdmaCounters,
}

impl std::fmt::Debug for RdmaTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaTransport")
            .field("ip", &self.sessions.ip)
            .field("connections", &self.connections())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl RdmaTransport {
    /// A transport over a network: the one with which it is stepped.
    ///
    /// # Errors
    /// [`RdmaConfigError`] names the setting that cannot work.
    pub fn new(net: &Network, config: RdmaConfig) -> Result<RdmaTransport, RdmaConfigError> {
        let mut ports = net.ports().iter();
        config.check(ports.any(|p| p.capabilities().medium.has_frames()))?;
        let sizes = (config.connections, config.lent);
        Ok(RdmaTransport {
            sessions: Sessions::new(net, Protocol::Roce, sizes, config.seed),
            control: VecDeque::new(),
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
        self.sessions.table.len()
    }

    /// The number of our first packet on a connection.
    pub fn first_psn(&self, conn: ConnId) -> Option<Psn> {
        Some(self.sessions.table.get_by_id(conn)?.names.psn)
    }

    /// Whether packets of a connection carry an invariant CRC that counts.
    pub fn has_icrc(&self, conn: ConnId) -> Option<bool> {
        Some(self.sessions.table.get_by_id(conn)?.wire.icrc)
    }

    /// Numbers for a new connection.
    fn names(&mut self, peer: u32, peer_qpn: Qpn, transaction: Option<u64>) -> Names {
        let own = loop {
            // The next number is that of the pair of one-sided operations.
            let id = self.sessions.numbers.draw() as u32 & !1;
            let qpn = Qpn::new(id);
            // 0 and 1 are for management, all ones for multicast (IBTA vol. 1 §3.5.10).
            let is_reserved = qpn.value() < 2 || one_sided::number(qpn) == Qpn::new(u32::MAX);
            if !is_reserved && self.sessions.table.find(qpn).is_none() {
                break id;
            }
        };
        Names {
            own,
            peer,
            peer_qpn,
            transaction: transaction.unwrap_or_else(|| self.sessions.numbers.draw()),
            psn: Psn::new(self.sessions.numbers.draw() as u32),
        }
    }

    /// Takes the id from a connection; the peer is told that it ends, and whether in order.
    fn part(&mut self, index: usize, in_order: bool) {
        let s = &mut self.sessions;
        let Some(c) = s.table.at(index) else {
            return;
        };
        let is_known = c.names.peer_qpn != Qpn::default() && c.life.hop.is_some();
        if !is_known || c.finished {
            return self.free(index);
        }
        if let Some(listener) = c.life.listener() {
            s.listeners.handshake_over(listener, false);
        }
        c.cut(&mut s.events);
        c.life.phase = Phase::Ending;
        (c.life.deadline, c.probe_at) = (None, None);
        // The next step sends it.
        *c.ask() = Some(c.disconnect(in_order));
        s.mark(index);
    }
}
