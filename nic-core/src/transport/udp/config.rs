//! Settings of transport `udp`, and what both ends must take.

use std::time::Duration;

/// Largest and smallest window of a session.
pub(super) const WINDOWS: std::ops::RangeInclusive<usize> = 4_096..=1 << 26;
/// Fewest payload bytes of a message that both ends must take.
pub(super) const PAYLOAD_MIN: usize = 256;

/// Settings of a [`UdpTransport`](super::UdpTransport).
#[derive(Debug, Clone)]
pub struct UdpConfig {
    /// Bytes that a session may hold before the kernel receives them: its window. Rounded up to a
    /// power of two.
    pub rx_buffer: usize,
    /// Most messages that may be under way to an end of a session.
    pub buffers: u16,
    /// Most sessions, those that are ending included; at most
    /// [`SESSIONS_MAX`](super::SESSIONS_MAX).
    pub connections: usize,
    /// Most payload bytes of a message, when both ports carry more.
    pub payload_max: usize,
    /// A session whose peer answers nothing for this long is reset.
    pub give_up: Duration,
    /// Ask peers of idle sessions that their user watches this often: the links of communicators. A
    /// peer whose host refuses three packets in a row is gone.
    pub watch: Option<Duration>,
    /// The first sequence number of each session; `None` draws one.
    pub first: Option<u32>,
    /// Key of tags and first sequence numbers.
    pub seed: u64,
}

impl Default for UdpConfig {
    /// 256 KiB and 256 messages, 4,096 sessions, the largest messages, 5 s without an answer,
    /// questions to watched peers every 500 ms, seed 0.
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

impl UdpConfig {
    pub(super) fn check(&self) -> Result<(), UdpConfigError> {
        let bytes = self.rx_buffer;
        if !WINDOWS.contains(&bytes) {
            return Err(UdpConfigError::Buffer { bytes });
        }
        let buffers = self.buffers;
        if buffers < 2 {
            return Err(UdpConfigError::Buffers { buffers });
        }
        let bytes = self.payload_max;
        if bytes < PAYLOAD_MIN {
            return Err(UdpConfigError::Payload { bytes });
        }
        Ok(())
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
