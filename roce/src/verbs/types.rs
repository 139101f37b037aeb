//! What programs post and what they get back, in ibverbs' words.

use crate::qp::{BadTransition, Request};

/// A piece of registered memory, laid out as `struct ibv_sge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Sge {
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// Local key of the region.
    pub lkey: u32,
}

/// Flags of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendFlags {
    /// It completes with an entry of the completion queue also when it succeeds.
    pub signaled: bool,
    /// The receiver's completion counts as solicited.
    pub solicited: bool,
    /// It begins when all READs and atomic operations before it have ended.
    pub fence: bool,
}

/// The local bytes of a request.
#[derive(Debug, Clone, Copy)]
pub enum Local<'a> {
    /// Registered memory, which belongs to the NIC until the request completes.
    Registered(&'a [Sge]),
    /// Bytes that are taken when the request is posted (`IBV_SEND_INLINE`), for a SEND or a WRITE.
    Inline(&'a [&'a [u8]]),
}

/// A request to post.
#[derive(Debug, Clone, Copy)]
pub struct SendRequest<'a> {
    /// The program's name for it.
    pub id: u64,
    /// What it does.
    pub request: Request,
    /// Its bytes, or where the answer goes; of an atomic operation 8.
    pub local: Local<'a>,
    /// Flags.
    pub flags: SendFlags,
}

/// A receive to post.
#[derive(Debug, Clone, Copy)]
pub struct ReceiveRequest<'a> {
    /// The program's name for it.
    pub id: u64,
    /// Where a message goes.
    pub local: &'a [Sge],
}

/// What a queue pair promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Service {
    /// Reliable connection: every operation, in order, to one peer.
    #[default]
    Connected,
    /// Unreliable datagrams: messages of one packet, to any peer.
    Datagram,
}

/// What has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkKind {
    /// SEND of any form.
    Send,
    /// WRITE of any form.
    Write,
    /// READ.
    Read,
    /// FETCH_ADD.
    FetchAdd,
    /// CMP_SWAP.
    CompareSwap,
    /// A receive, by a SEND.
    Receive,
    /// A receive, by a WRITE with immediate data.
    ReceiveWrite,
}

/// How it ended (IBTA vol. 1 §11.6.2), with the codes of `enum ibv_wc_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// Done.
    Success = 0,
    /// A message was longer than its receive.
    LocalLength = 1,
    /// Local memory cannot be accessed so.
    LocalProtection = 4,
    /// The queue pair was in ERR, or went there before.
    Flushed = 5,
    /// The peer's answer has another length than the request.
    BadResponse = 7,
    /// The peer could not do such a request.
    RemoteInvalidRequest = 9,
    /// The peer's memory cannot be accessed so.
    RemoteAccess = 10,
    /// The peer could not finish it.
    RemoteOperation = 11,
    /// The peer did not acknowledge it within all retries.
    RetryExceeded = 12,
    /// The peer had no receive for it within all retries.
    ReceiverNotReady = 13,
}

/// An entry of a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The program's name for the request.
    pub id: u64,
    /// How it ended; of a failed one, only `id`, `status` and `queue_pair` say anything.
    pub status: Status,
    /// What it was.
    pub kind: WorkKind,
    /// Bytes received, read, or written by the peer; of a datagram with the 40 of the network's
    /// header.
    pub len: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Key that the peer has invalidated.
    pub invalidated: Option<u32>,
    /// The sending queue pair, of a datagram.
    pub source: Option<u32>,
    /// Number of the queue pair.
    pub queue_pair: u32,
}

impl Completion {
    /// An entry to be overwritten.
    pub const EMPTY: Completion = Completion {
        id: 0,
        status: Status::Success,
        kind: WorkKind::Send,
        len: 0,
        immediate: None,
        invalidated: None,
        source: None,
        queue_pair: 0,
    };
}

/// What peers may do through a queue pair; a region must grant it as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights {
    /// READ.
    pub read: bool,
    /// WRITE.
    pub write: bool,
    /// Atomic operations.
    pub atomic: bool,
}

impl Rights {
    /// All of them.
    pub const ALL: Rights = Rights {
        read: true,
        write: true,
        atomic: true,
    };
}

/// Sizes of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpLimits {
    /// Requests posted and not completed.
    pub sends: u32,
    /// Receives posted and not completed.
    pub receives: u32,
    /// Pieces of a request.
    pub send_pieces: u32,
    /// Pieces of a receive.
    pub receive_pieces: u32,
    /// Inline bytes.
    pub inline: u32,
}

/// Most that a context grants.
pub const QP_LIMITS_MAX: QpLimits = QpLimits {
    sends: 1 << 15,
    receives: 1 << 15,
    send_pieces: 32,
    receive_pieces: 32,
    inline: 1 << 10,
};
/// Most entries of a completion queue.
pub const CQ_ENTRIES_MAX: u32 = 1 << 22;
/// Most queue pairs of a context.
pub const QPS_MAX: usize = 1 << 16;
/// READs and atomic operations in flight of a queue pair, each way.
pub const DEPTH_MAX: u8 = 128;
/// Bytes of a receive before the message of a datagram: the network's header.
pub const GRH_BYTES: usize = 40;
/// Longest datagram, on a path that carries it: the largest payload of the standard.
pub const DATAGRAM_MAX: usize = 4096;
/// Longest message, in bytes (IBTA vol. 1 §9.7.7.1.1).
pub const MESSAGE_MAX: u32 = 1 << 31;

impl Default for QpLimits {
    /// 128 requests and receives of 4 pieces, 256 inline bytes.
    fn default() -> QpLimits {
        QpLimits {
            sends: 128,
            receives: 128,
            send_pieces: 4,
            receive_pieces: 4,
            inline: 256,
        }
    }
}

/// A call that was refused; nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// A value is out of range.
    #[error("{what} is {value}; it can be up to {limit}")]
    Range {
        /// Which.
        what: &'static str,
        /// As given.
        value: u64,
        /// The largest.
        limit: u64,
    },
    /// A queue has no room.
    #[error(
        "all {limit} entries of the {what} are in use; poll completions first, or make it larger"
    )]
    Full {
        /// Which queue.
        what: &'static str,
        /// Its entries.
        limit: u32,
    },
    /// The queue pair takes no such work in its state.
    #[error("a queue pair in {state} takes no {what}")]
    State {
        /// Its state.
        state: crate::qp::State,
        /// What was posted.
        what: &'static str,
    },
    /// The states do not follow each other.
    #[error(transparent)]
    Transition(#[from] BadTransition),
    /// No context has this address.
    #[error(
        "{gid} is no address that this context reaches: that is an IPv6 address, or zeros and an IPv4 address behind them, of the version of IP that the context has"
    )]
    Address {
        /// As given.
        gid: super::Gid,
    },
    /// The call does not fit the object.
    #[error("{0}")]
    Misuse(&'static str),
    /// Memory cannot be used.
    #[error(transparent)]
    Memory(#[from] ringbell_gtlb::populate::NotMapped),
    /// A region cannot be registered.
    #[error(transparent)]
    Register(#[from] ringbell_gtlb::RegisterError),
    /// A protection domain cannot be made or freed.
    #[error(transparent)]
    Domain(#[from] ringbell_gtlb::PdError),
    /// The system refuses.
    #[error("the system refuses: {0}")]
    System(#[from] std::io::Error),
    /// More completions came than the queue has entries: some are lost.
    #[error("a completion queue of {entries} entries has overrun; make it as large as all that is posted to its queue pairs")]
    Overrun {
        /// Its entries.
        entries: u32,
    },
}
