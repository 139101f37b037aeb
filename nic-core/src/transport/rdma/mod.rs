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
//! **IPv6.** A peer is named by an IPv4 address in every case; the network knows the host behind
//! it.
//!
//! **Limits.** Packet sizes are agreed once: when a port's MTU falls below, the connection ends.

mod conn;
mod datagram;
mod manage;
mod one_sided;
mod outgoing;
mod serve;
mod stream;
mod writes;

use std::collections::VecDeque;
use std::time::Duration;

use self::conn::{Conn, Names};
use self::manage::ControlMessage;
use self::stream::WINDOW_MAX;
use super::carried::Carried;
use super::carrier::Carrier;
pub use super::connections::CONNECTIONS_MAX;
use super::life::Phase;
use super::sessions::Sessions;
use crate::memory::Sharer;
use crate::network::{Network, Protocol};
use crate::types::ConnId;
use ringbell_net::wire::roce::{Psn, Qpn};
pub use ringbell_roce::qp::{self, Congestion, DcqcnConfig};

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
    /// Bytes that a connection may hold before the kernel receives them: its window. Rounded up to
    /// a power of two.
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
    /// A connection whose peer acknowledges nothing for this long is reset, after at least seven
    /// retries.
    pub give_up: Duration,
    /// Probe idle connections that their user watches this often: the links of communicators. A
    /// peer whose host refuses three packets in a row is gone.
    pub watch: Option<Duration>,
    /// What decides on window and rate of a connection.
    pub congestion: Congestion,
    /// Keep packets that come early and repeat lost ones alone, when the peer does so too; else all
    /// behind a lost one are repeated.
    pub selective: bool,
    /// Key of queue pair numbers, first packet numbers and ids.
    pub seed: u64,
}

impl Default for RdmaConfig {
    /// 256 KiB buffers and window, 4,096 connections, the largest packets, a retry after 20 ms, 5 s
    /// without an answer, probes of watched connections every 500 ms, a window that halves on a
    /// loss, selective repeat, seed 0.
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

/// Longest message of a collective that is copied from and to the stream, and needs no
/// announcement.
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
        Ok(RdmaTransport {
            sessions: Sessions::new(net, Protocol::Roce, config.connections, config.seed),
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

impl Sharer for RdmaTransport {}
