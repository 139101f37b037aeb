//! Settings of transport `rdma`.

use std::time::Duration;

use super::stream::WINDOW_MAX;
use crate::transport::crc::Icrc;
use ringbell_roce::qp::Congestion;

/// Smallest MTU of InfiniBand (IBTA vol. 1 §7.7.8).
const PAYLOAD_MIN: usize = 256;
/// Most UDP source ports of a connection.
pub const UDP_PORTS_MAX: u16 = 64;

/// Settings of an [`RdmaTransport`](super::RdmaTransport).
#[derive(Debug, Clone)]
pub struct RdmaConfig {
    /// Bytes that a connection may hold before the kernel receives them: its window. Rounded up to
    /// a power of two.
    pub rx_buffer: usize,
    /// Bytes that a connection may hold before the peer acknowledges them.
    pub tx_buffer: usize,
    /// Bytes that all connections together may be lent for short sends that are not acknowledged,
    /// beside a kilobyte for each. What is more waits in memory.
    pub lent: usize,
    /// Most connections, those that are ending included; at most
    /// [`CONNECTIONS_MAX`](super::CONNECTIONS_MAX).
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
    /// UDP source ports over which each connection spreads the packets of its stream, one after the
    /// other, 1 to [`UDP_PORTS_MAX`]: networks that choose ways by a hash of the ports (ECMP) then
    /// send them by several ways. More than one needs a port of frames, as a kernel's socket has
    /// one. It has no effect without selective repeat, nor for one-sided operations: packets that
    /// overtake others are not kept there.
    pub udp_ports: u16,
    /// Key of queue pair numbers, first packet numbers and ids.
    pub seed: u64,
}

impl Default for RdmaConfig {
    /// 256 KiB buffers and window, 64 MiB for short sends, 4,096 connections, the largest packets,
    /// a retry after 20 ms, 5 s without an answer, probes of watched connections every 500 ms, a
    /// window that halves on a loss, selective repeat, one UDP port, seed 0.
    fn default() -> RdmaConfig {
        RdmaConfig {
            rx_buffer: 256 << 10,
            tx_buffer: 256 << 10,
            lent: 64 << 20,
            connections: 4_096,
            payload_max: 60 << 10,
            icrc: Icrc::Auto,
            window: 256 << 10,
            timeout: Duration::from_millis(20),
            give_up: Duration::from_secs(5),
            watch: Some(Duration::from_millis(500)),
            congestion: Congestion::default(),
            selective: true,
            udp_ports: 1,
            seed: 0,
        }
    }
}

impl RdmaConfig {
    /// Checks the settings for a network which has a port of frames, or not.
    pub(super) fn check(&self, has_frames: bool) -> Result<(), RdmaConfigError> {
        for bytes in [self.rx_buffer, self.tx_buffer, self.window] {
            if !(4_096..=WINDOW_MAX).contains(&bytes) {
                return Err(RdmaConfigError::Buffer { bytes });
            }
        }
        let bytes = self.payload_max;
        if bytes < PAYLOAD_MIN {
            return Err(RdmaConfigError::Payload { bytes });
        }
        let timeout = self.timeout;
        if !(Duration::from_micros(100)..=Duration::from_secs(1)).contains(&timeout) {
            return Err(RdmaConfigError::Timeout { timeout });
        }
        let ports = self.udp_ports;
        if !(1..=UDP_PORTS_MAX).contains(&ports) {
            return Err(RdmaConfigError::UdpPorts { ports });
        }
        if ports > 1 && !has_frames {
            return Err(RdmaConfigError::OneUdpPort { ports });
        }
        Ok(())
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
    /// None, or more than are told apart.
    #[error(
        "a connection of transport rdma has 1 to {UDP_PORTS_MAX} UDP source ports, not {ports}"
    )]
    UdpPorts {
        /// As given.
        ports: u16,
    },
    /// The kernel's socket sends by one UDP port.
    #[error("a kernel's socket sends by one UDP port, not {ports}; leave udp_ports at 1, or take a port of frames, such as mem or tap")]
    OneUdpPort {
        /// As given.
        ports: u16,
    },
}
