//! Verbs of the host: queue pairs on host memory, in ibverbs' vocabulary (IBTA vol. 1 chapters 10
//! and 11).
//!
//! ```text
//! Context ─┬─ ProtectionDomain ─┬─ MemoryRegion, AddressHandle
//!          │                    ├─ QueuePair ───── SharedReceiveQueue
//!          └─ CompletionQueue ──┴─ CompletionChannel
//! ```
//!
//! A [`Context`] is one plain UDP socket without privileges, and the RoCEv2 queue pairs behind it
//! ([`qp`](crate::qp)). It needs no GPU and no NIC.
//!
//! **Progress.** A program that polls a completion queue receives and sends itself; so does one
//! that posts. While no program polls, a thread does it (`shared.rs`), which sleeps when there is
//! nothing to do.
//!
//! **Memory.** Each access, of a peer or of a request, is checked against region, bounds and rights
//! when it is made, and none goes on after the region is deregistered. Keys of peers and numbers of
//! queue pairs cannot be guessed; a packet must name both, in the order of its connection, and come
//! from the peer's address. Datagrams come from anywhere; they must name the queue pair's own key,
//! which the program chooses.
//!
//! **Copies.** A payload byte is copied once at each end, beside the kernel's copies: memory →
//! packet, and packet → memory.
//!
//! **Addresses.** A [`Gid`] names address and UDP port ([`gid`]).
//!
//! **Deadlines.** A peer that answers nothing is given up after the time-outs that the program
//! chose ([`Rts`]). No call waits for a peer.

mod address;
mod completions;
mod context;
mod datagram;
mod endpoint;
mod engine;
pub mod faults;
pub mod gid;
mod memory;
mod outbox;
mod queue_pair;
mod service;
mod shared;
mod types;

pub use self::address::{sender, AddressHandle, Destination};
pub use self::context::{
    CompletionChannel, CompletionQueue, Context, ContextConfig, MemoryRegion, OpenError,
    ProtectionDomain,
};
pub use self::gid::Gid;
pub use self::queue_pair::{
    Modify, Posting, QpAttributes, QueuePair, Rtr, Rts, SharedReceiveQueue,
};
pub use self::types::{
    Completion, Local, QpLimits, ReceiveRequest, Rights, SendFlags, SendRequest, Service, Sge,
    Status, VerbsError, WorkKind, CQ_ENTRIES_MAX, DATAGRAM_MAX, DEPTH_MAX, GRH_BYTES, MESSAGE_MAX,
    QPS_MAX, QP_LIMITS_MAX,
};
pub use crate::qp::{QpCounters, Remote, Request, State};
pub use ringbell_gtlb::Access;
