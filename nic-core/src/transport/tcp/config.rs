//! Settings of the transport over TCP.

use std::time::Duration;

/// Largest socket buffer: beyond it TCP's window scale ends.
const BUFFER_MAX: usize = 1 << 30;

/// Settings of a [`TcpTransport`](super::TcpTransport).
#[derive(Debug, Clone)]
pub struct TcpConfig {
    /// Bytes that a connection may hold before the kernel receives them; bounds its window.
    pub rx_buffer: usize,
    /// Bytes that a connection may hold before the peer acknowledges them.
    pub tx_buffer: usize,
    /// Most connections, those that are ending included; at most
    /// [`CONNECTIONS_MAX`](super::CONNECTIONS_MAX).
    pub connections: usize,
    /// A connection whose peer owes an answer (to data, FIN or a keep-alive probe) for this long is
    /// reset, after at least five attempts; `None` waits forever.
    pub user_timeout: Option<Duration>,
    /// Probe idle connections this often, so that a vanished peer is noticed.
    pub keep_alive: Option<Duration>,
    /// As `keep_alive`, for connections that their user watches: the links of communicators. A peer
    /// whose host refuses three segments in a row is gone, and never merely slow; `None` leaves it
    /// to `user_timeout`.
    pub watch: Option<Duration>,
    /// Shortest time after which a segment is sent again, 20 ms to 1 s: more than the peer may
    /// delay its acknowledgement. TIME-WAIT lasts ten times as long.
    pub rto_min: Duration,
    /// Key of sequence numbers and cookies, seed of ephemeral ports and of the demultiplexer's
    /// hash.
    pub seed: u64,
}

impl Default for TcpConfig {
    /// 256 KiB buffers, 4,096 connections, 120 s without an answer, no keep-alive but every 500 ms
    /// on links of communicators, 200 ms before a segment is sent again (as Linux does), seed 0.
    fn default() -> TcpConfig {
        TcpConfig {
            rx_buffer: 256 << 10,
            tx_buffer: 256 << 10,
            connections: 4_096,
            user_timeout: Some(Duration::from_secs(120)),
            keep_alive: None,
            watch: Some(Duration::from_millis(500)),
            rto_min: Duration::from_millis(200),
            seed: 0,
        }
    }
}

/// A [`TcpConfig`] that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TcpConfigError {
    /// Keep-alive probes come too seldom for the time-out.
    #[error("keep-alive every {keep_alive:?} cannot find out within the time-out of {user_timeout:?}; make it at most half of that")]
    KeepAlive {
        /// As given.
        keep_alive: Duration,
        /// As given.
        user_timeout: Duration,
    },
    /// A buffer is too small for a segment, or too large for a window.
    #[error("a socket buffer holds 4 KiB to 1 GiB, not {bytes} bytes")]
    Buffer {
        /// As given.
        bytes: usize,
    },
    /// A segment would be sent again too soon, or too late.
    #[error("rto_min is 20 ms to 1 s, not {rto_min:?}")]
    RtoMin {
        /// As given.
        rto_min: Duration,
    },
}

pub(super) fn check(config: &TcpConfig) -> Result<(), TcpConfigError> {
    if let (Some(keep_alive), Some(user_timeout)) = (config.keep_alive, config.user_timeout) {
        if keep_alive > user_timeout / 2 {
            return Err(TcpConfigError::KeepAlive {
                keep_alive,
                user_timeout,
            });
        }
    }
    let rto_min = config.rto_min;
    if rto_min < Duration::from_millis(20) || rto_min > Duration::from_secs(1) {
        return Err(TcpConfigError::RtoMin { rto_min });
    }
    for bytes in [config.rx_buffer, config.tx_buffer] {
        if !(4_096..=BUFFER_MAX).contains(&bytes) {
            return Err(TcpConfigError::Buffer { bytes });
        }
    }
    Ok(())
}
