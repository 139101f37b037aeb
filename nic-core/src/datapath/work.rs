//! The work of streams: posted sends and receives, and the events by which transports report.

use std::net::SocketAddrV4;

use ringbell_nic_abi::{Status, INLINE_MAX};

use crate::types::{Buffer, ConnId, ListenerId, Owner, WorkToken};

/// What a send carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Bytes that came inside the descriptor.
    Inline {
        /// Valid up to `len`.
        bytes: [u8; INLINE_MAX],
        /// Bytes.
        len: u8,
    },
    /// Bytes in GPU memory; the buffer must not be reused before the send retires.
    Memory(Buffer),
}

impl Payload {
    /// Length in bytes.
    pub const fn len(&self) -> u32 {
        match self {
            Payload::Inline { len, .. } => *len as u32,
            Payload::Memory(b) => b.len,
        }
    }
    /// Whether there is nothing to send.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A send handed to a transport. Sends of one connection leave, and retire, in order.
#[derive(Debug, Clone, Copy)]
pub struct SendWork {
    /// Returned when it retires.
    pub token: WorkToken,
    /// Owner of the operation, for attached engines.
    pub by: Owner,
    /// The bytes.
    pub payload: Payload,
    /// No further send is expected soon.
    pub push: bool,
}

/// A receive handed to a transport. Receives of one connection are filled, and retire, in order.
#[derive(Debug, Clone, Copy)]
pub struct RecvWork {
    /// Returned when it retires.
    pub token: WorkToken,
    /// Owner of the operation, for attached engines.
    pub by: Owner,
    /// Where the bytes go.
    pub buffer: Buffer,
    /// Retire with the first bytes instead of waiting for all of `buffer.len`.
    pub some: bool,
}

/// An event of a transport. Each posted operation yields exactly one `SendDone`, `RecvDone` or
/// `RemoteDone`, unless it was cancelled with `Transport::cancel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportEvent {
    /// An outgoing connection is established.
    Connected {
        /// Which.
        conn: ConnId,
    },
    /// An outgoing connection failed; the id is free again.
    ConnectFailed {
        /// Which.
        conn: ConnId,
        /// `ConnectionRefused`, `HostUnreachable`, `TimedOut` or `NoResources`.
        status: Status,
        /// The peer's NIC has answered: its code for the reason (IBTA vol. 1 §12.6.7.2), 0 where it
        /// gives none. `None`: no NIC has, and another transport may find it.
        answer: Option<u16>,
    },
    /// A peer has connected to a listener; the connection is established and may already hold
    /// bytes.
    Incoming {
        /// The listener.
        listener: ListenerId,
        /// The new connection.
        conn: ConnId,
        /// The peer's address.
        peer: SocketAddrV4,
    },
    /// A send retired.
    SendDone {
        /// The connection.
        conn: ConnId,
        /// The work.
        token: WorkToken,
        /// `Ok`, or why not all bytes went.
        status: Status,
        /// Bytes that the peer's NIC has taken.
        bytes: u64,
        /// Detail word of the completion.
        detail: u64,
    },
    /// A receive retired.
    RecvDone {
        /// The connection.
        conn: ConnId,
        /// The work.
        token: WorkToken,
        /// `Ok`, `EndOfStream`, `ConnectionReset`, or a memory fault.
        status: Status,
        /// Bytes written to the buffer.
        bytes: u64,
        /// Detail word of the completion.
        detail: u64,
    },
    /// A one-sided operation retired.
    RemoteDone {
        /// The connection.
        conn: ConnId,
        /// The work.
        token: WorkToken,
        /// `Ok`, a fault of the memory here or there, or `ConnectionReset`.
        status: Status,
        /// Bytes in place.
        bytes: u64,
        /// Detail word of the completion.
        detail: u64,
    },
    /// The peer has closed its sending side (seen once, when the FIN arrived).
    PeerClosed {
        /// Which.
        conn: ConnId,
    },
    /// The peer reset the connection or is gone. Posted operations retire with `ConnectionReset`,
    /// or `HostUnreachable` if no way leads to it; the id stays until `Transport::close`.
    Reset {
        /// Which.
        conn: ConnId,
    },
    /// A closed connection has ended in order; the id is free again.
    Closed {
        /// Which.
        conn: ConnId,
    },
}

impl TransportEvent {
    /// The end of a send that was not queued.
    pub(crate) fn send_refused(
        conn: ConnId,
        token: WorkToken,
        (status, detail): (Status, u64),
    ) -> TransportEvent {
        TransportEvent::SendDone {
            conn,
            token,
            status,
            bytes: 0,
            detail,
        }
    }

    /// The end of a receive that was not queued.
    pub(crate) fn recv_refused(
        conn: ConnId,
        token: WorkToken,
        (status, detail): (Status, u64),
    ) -> TransportEvent {
        TransportEvent::RecvDone {
            conn,
            token,
            status,
            bytes: 0,
            detail,
        }
    }
}
