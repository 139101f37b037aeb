//! A session, for users and tools.

use ringbell_nic_abi::SessionId;
use std::net::SocketAddr;

/// Status of one open session, for users and tools.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The id.
    pub id: SessionId,
    /// `idle`, `listening`, `connecting`, `established`, `reset` or `broken`.
    pub state: &'static str,
    /// The transport that carries it.
    pub transport: Option<&'static str>,
    /// Own address.
    pub local: Option<SocketAddr>,
    /// The peer's address: of IPv6 for one that is known by a short name.
    pub peer: Option<SocketAddr>,
    /// Payload bytes sent.
    pub tx_bytes: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
    /// Why this transport was chosen.
    pub why: &'static str,
}
