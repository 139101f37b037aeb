//! [`Invalid`]: why bytes are no valid packet.

/// Why bytes are no valid packet. A fault of the peer or the wire: counted, never an error of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// Shorter than its headers, or a length that is no packet of the operation.
    #[error("too short, or no length of this operation")]
    Length,
    /// A version of the transport other than 0.
    #[error("unknown version of the transport header")]
    Version,
    /// An operation that this NIC does not know.
    #[error("unknown operation")]
    Opcode,
    /// A reserved syndrome.
    #[error("reserved syndrome")]
    Syndrome,
    /// The invariant CRC is not that of the packet.
    #[error("wrong invariant CRC")]
    Icrc,
}
