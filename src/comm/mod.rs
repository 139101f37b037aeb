//! Communicators: collectives of a job's ranks.
//!
//! `card`: descriptions of the ranks' NICs. `inner`: how a communicator is made. `membership`:
//! splitting, shrinking, growing and merging. `communicator`: the handle. `operation` and `calls`:
//! its operations. `inbox`: messages of a host thread without a queue. `peers`: such messages of
//! NICs that know each other by other means. `kernel_stream`: rings that
//! kernels push and pop instead of buffers. `request` and `stream`: how operations end.

mod agreement;
mod block_queues;
mod calls;
mod card;
mod communicator;
mod element;
mod engines;
mod error;
mod inbox;
mod inner;
mod kernel_stream;
mod membership;
mod operation;
mod options;
mod peers;
mod request;
mod results;
mod stream;
mod stream_queue;
mod symmetric;

pub use communicator::Communicator;
pub use element::Element;
pub use error::CollectiveError;
pub use inbox::Inbox;
pub use kernel_stream::KernelStream;
pub use operation::Operation;
pub use options::{CommOptions, COLLECTIVE_PORT};
pub use peers::Peers;
pub use request::{Done, Request};
pub use ringbell_nic_abi::{CollectiveKind, WireType};
pub use ringbell_nic_core::collective::{
    CollectiveSettings, CommError, CommInfo, CommStatus, Found, HostRanks, MessageError,
    MessageEvent, MessageId, PeerInfo, Thresholds, Wants, MAX_CONTEXTS, MAX_RANKS,
};
pub use ringbell_nic_core::message::{Candidate, Protocol, Terms, Traffic};
pub use stream::Enqueued;
pub use symmetric::SymmetricBuffer;
