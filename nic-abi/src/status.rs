//! Completion status: one code and one detail value.

use crate::{coded_enum, Opcode};

coded_enum! {
    /// Completion status. The meaning of the completion's `detail` word is given with each code.
    pub enum Status: u8 ["STATUS_"] {
        /// Success.
        Ok = 0 => "OK",
        /// The deadline passed; the operation is retired and the buffer is the caller's. Bytes
        /// moved so far are reported; a stream is closed after a partial transfer.
        TimedOut = 1 => "TIMED_OUT",
        /// Device-side watchdog: the NIC did not answer (process stopped, card gone). The buffer is
        /// NOT the caller's until the NIC was reset.
        NicSilent = 2 => "NIC_SILENT",
        /// No room in the queue before the deadline: wait for outstanding requests first. Detail:
        /// the descriptor whose slot comes next: its ticket, its opcode << 32, and bit 40 where it
        /// has ended and nothing has waited for it.
        QueueFull = 3 => "QUEUE_FULL",
        /// Unknown opcode, undefined flag, non-zero reserved bits, or a field out of range. Detail:
        /// the word at fault (0–7).
        BadDescriptor = 4 => "BAD_DESCRIPTOR",
        /// No such session, or it was closed. Detail: the id given.
        BadSession = 5 => "BAD_SESSION",
        /// The session is in a state that does not allow this (send before connect, listen twice),
        /// or an earlier operation on the kernel's stream has failed. Detail: the id given, or the
        /// stream's address.
        BadState = 6 => "BAD_STATE",
        /// No memory region covers this address in the queue's protection domain. Detail: the
        /// address that faulted.
        NotRegistered = 7 => "NOT_REGISTERED",
        /// The range runs past the end of its region. Detail: first address past the region.
        OutOfBounds = 8 => "OUT_OF_BOUNDS",
        /// The region does not grant this access (read-only memory as receive buffer). Detail: the
        /// address.
        AccessDenied = 9 => "ACCESS_DENIED",
        /// The key names no region, or one of another protection domain. Detail: the key.
        BadKey = 10 => "BAD_KEY",
        /// The GTLB holds no translation and cannot be refilled. Detail: the address that faulted.
        NoTranslation = 11 => "NO_TRANSLATION",
        /// The region was freed while the operation waited. Detail: the address.
        RegionFreed = 12 => "REGION_FREED",
        /// No listener at that address and port. Detail: ip << 16 | port; over rdma also the peer's
        /// reason << 48, by the codes of IBTA vol. 1 §12.6.7.2 (12: it does not know this NIC).
        ConnectionRefused = 13 => "CONNECTION_REFUSED",
        /// No route or no answer from that host. Detail: ip << 16 | port.
        HostUnreachable = 14 => "HOST_UNREACHABLE",
        /// The peer reset the connection or its process ended. Bytes moved so far are reported.
        /// Detail: over transport `udp` the gap that has ended the session (number expected << 32 |
        /// number that came), else 0.
        ConnectionReset = 15 => "CONNECTION_RESET",
        /// The peer closed its side: no more bytes will come. Bytes received before that are
        /// reported.
        EndOfStream = 16 => "END_OF_STREAM",
        /// This side was shut down or closed before the operation could run.
        NotConnected = 17 => "NOT_CONNECTED",
        /// The port is already listened on. Detail: the port.
        AddressInUse = 18 => "ADDRESS_IN_USE",
        /// No free session, listener, port or buffer; the limit is a setting. Detail: the limit.
        NoResources = 19 => "NO_RESOURCES",
        /// The session was aborted or its queue torn down locally.
        Aborted = 20 => "ABORTED",
        /// This NIC was not built or configured for the operation. Detail: the opcode.
        Unsupported = 21 => "UNSUPPORTED",
        /// The NIC is shutting down.
        ShuttingDown = 22 => "SHUTTING_DOWN",
        /// No such communicator, or it was freed. Detail: the id given.
        BadCommunicator = 23 => "BAD_COMMUNICATOR",
        /// Ranks disagree on operation, count, type, reduction, root or order. Detail: the first
        /// rank that differs.
        Mismatch = 24 => "MISMATCH",
        /// A rank of the communicator is gone, so the operation cannot end. Detail: the rank.
        PeerFailed = 25 => "PEER_FAILED",
        /// The communicator was aborted, here or by the rank in the detail; shrink it or make a new
        /// one.
        CommAborted = 26 => "COMM_ABORTED",
        /// A root, peer, count, type or algorithm that the communicator cannot do, buffers that
        /// overlap in a way it does not allow, or the address of an atomic that is no multiple
        /// of 8. Detail: the value at fault.
        InvalidArgument = 27 => "INVALID_ARGUMENT",
        /// A message is larger than the receive that it met; both sides end with this, unless a
        /// short message had been buffered, and so sent, before the receive came. Detail: bytes of
        /// the message.
        MessageTooLarge = 28 => "MESSAGE_TOO_LARGE",
        /// The operation was cancelled by its owner before it had begun.
        Cancelled = 29 => "CANCELLED",
        /// No such engine or kind of engine in this protection domain. Detail: the number given.
        BadEngine = 30 => "BAD_ENGINE",
        /// The result does not fit the buffer; nothing was written. Detail: its size in bytes.
        ResultTooLarge = 31 => "RESULT_TOO_LARGE",
        /// The engine has panicked or failed. On the path of a stream that it changes, the stream
        /// has ended; asked for its result, it has none. Detail: the engine's id.
        EngineFailed = 32 => "ENGINE_FAILED",
    }
}

impl Status {
    /// The cause and the remedy in one sentence, for messages.
    pub const fn help(self) -> &'static str {
        match self {
            Status::Ok => "success",
            Status::TimedOut => "the deadline passed before the operation finished; raise the time-out or check that the peer is sending and receiving",
            Status::NicSilent => "the NIC did not answer; check that the process that drives it is running, then reset the NIC before the buffer is used again",
            Status::QueueFull => "every slot of the queue is in use; wait for outstanding requests, create the queue with a larger depth, or give blocks that wait for each other a queue each",
            Status::BadDescriptor => "the NIC refused a malformed descriptor; the detail names the word at fault",
            Status::BadSession => "no such session: it was never opened, or it has been closed",
            Status::BadState => "the session does not allow this operation now: connect or accept first, and listen only once; or reset the kernel's stream, on which an earlier operation has failed",
            Status::NotRegistered => "no memory region covers this address; register the buffer with the NIC before using it",
            Status::OutOfBounds => "the range runs past the end of its memory region; check the length or register more",
            Status::AccessDenied => "the memory region does not grant this access; register it with the access that the operation needs",
            Status::BadKey => "the key names no region of this protection domain",
            Status::NoTranslation => "the GTLB has no translation for this address; raise its size or enable refill",
            Status::RegionFreed => "the memory region was freed while the operation was waiting",
            Status::ConnectionRefused => "no program listens at that address and port; start the server first",
            Status::HostUnreachable => "no answer from that host, or no route to it; check the address, the port that the NIC is attached to, and its routes",
            Status::ConnectionReset => "the peer reset the connection or its process ended",
            Status::EndOfStream => "the peer closed its sending side; no more bytes will come",
            Status::NotConnected => "this side of the session was already shut down or never connected",
            Status::AddressInUse => "that port is already listened on; choose another or close the listener",
            Status::NoResources => "a limit of the NIC was reached; raise the setting named in the error",
            Status::Aborted => "the session was aborted locally",
            Status::Unsupported => "this NIC does not offer the operation",
            Status::ShuttingDown => "the NIC is shutting down",
            Status::BadCommunicator => "no such communicator: it was never made, or it has been freed",
            Status::Mismatch => "the ranks called different operations, counts, types, reductions or roots, or in another order, and the communicator has ended; the detail names the first rank that differs: make the calls alike, and shrink the communicator or make a new one",
            Status::PeerFailed => "the rank in the detail has ended or cannot be reached; shrink the communicator to go on without it",
            Status::CommAborted => "the communicator was aborted; shrink it or make a new one",
            Status::InvalidArgument => "the operation cannot have that argument: of a collective a root, peer, count, type, algorithm or overlap of buffers, of an atomic an address that is no multiple of 8; the detail is the value at fault",
            Status::MessageTooLarge => "the message is larger than the receive posted for it; post a larger buffer or send less",
            Status::Cancelled => "the operation was cancelled before it had begun",
            Status::BadEngine => "no such engine: it was never attached, it has been detached, or the host has not registered its kind",
            Status::ResultTooLarge => "the engine's result does not fit the buffer; the detail is the size that it needs",
            Status::EngineFailed => "the engine in the detail has panicked or failed, so a stream that it changes has ended and it has no result; mend it, connect again and attach a new one",
        }
    }
}

impl Status {
    /// [`Status::help`] with what the detail of the completion says, for messages.
    pub const fn with_detail(self, detail: u64) -> WithDetail {
        WithDetail(self, detail)
    }
}

/// Place of a peer's reason in the detail of `CONNECTION_REFUSED`.
pub const REASON_SHIFT: u32 = 48;
/// Such a reason: the peer does not know this NIC by its address (IBTA vol. 1 §12.6.7.2, invalid
/// GID).
pub const REASON_UNKNOWN_SENDER: u16 = 12;

/// Text of a [`Status`] and its detail.
#[derive(Debug, Clone, Copy)]
pub struct WithDetail(Status, u64);

impl core::fmt::Display for WithDetail {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            WithDetail(Status::ConnectionReset, gap) if gap != 0 => write!(
                f,
                "message {} of the session was lost on its way, {} came in its place; transport udp sends none again: use rdma or tcp over this network",
                gap >> 32,
                gap as u32
            ),
            WithDetail(Status::ConnectionRefused, why)
                if why >> REASON_SHIFT == REASON_UNKNOWN_SENDER as u64 =>
            {
                f.write_str("the NIC there refuses this one, which it does not know by the address that it sends from; name this NIC among the peers of its port")
            }
            WithDetail(Status::QueueFull, holder) => {
                let (ticket, ended) = (holder as u32, holder >> 40 & 1 != 0);
                f.write_str(Status::QueueFull.help())?;
                match (Opcode::from_code((holder >> 32) as u8), ended) {
                    (None, _) => Ok(()),
                    (Some(opcode), true) => write!(f, "; ticket {ticket} ({}) has ended, and nothing has waited for it", opcode.name()),
                    (Some(opcode), false) => write!(f, "; ticket {ticket} ({}) holds the next slot", opcode.name()),
                }
            }
            WithDetail(status, _) => f.write_str(status.help()),
        }
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.name(), self.help())
    }
}
