//! The setting for the CRC of a transport's packets.

/// Whether the CRC of packets of RoCEv2 and of units of iWARP is computed and checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Icrc {
    /// Unless the ports of both ends share memory, or are sockets of the loopback.
    #[default]
    Auto,
    /// On every packet.
    Always,
    /// On none, when the peer agrees.
    Never,
}
