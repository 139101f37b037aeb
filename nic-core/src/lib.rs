//! The NIC. One module per step of a message, in this order:
//! `bar` → `queue` → `command` → `transport` → `port`, with `dma` beside them.
//! A module uses only those below it: docs/architecture.md shows the floors.
//!
//! [`Nic`] is what a program holds: it registers memory, makes queues and hands their plain-data
//! handles to kernels. [`progress`] describes which threads step the NIC.

// One seed gives one trace of packets.
#![cfg_attr(not(test), warn(clippy::disallowed_types))]

// For the tests that share `tests/collective_support` with those outside of the crate.
#[cfg(test)]
extern crate self as ringbell_nic_core;
pub mod bar;
pub mod card;
pub mod collective;
mod command;
mod config;
pub mod datapath;
pub mod descriptors;
pub mod dma;
pub mod engine;
mod event;
mod host_queue;
mod link;
mod marks;
mod memory;
pub mod message;
pub mod network;
mod nic;
mod outstanding;
mod permit;
pub mod progress;
mod queue;
pub mod scratch;
mod session;
pub mod shmem;
pub mod slab;
mod slots;
mod sync;
pub mod threads;
pub mod transport;
pub mod types;
mod wait_policy;
mod wake;

pub use bar::BarError;
pub use command::{Counters, RankMemory, Undelivered, Window};
pub use config::{ConfigError, EngineThread, LocalConfig, NicConfig, ProgressMode, StagingConfig};
pub use host_queue::{Holder, HostQueue, WaitError};
pub use memory::{FreeError, MemoryError, MemoryKind, PointerInfo, RangeError, Sharer};
pub use nic::{
    EngineResult, HostBuffer, HostRegion, Inbox, Nic, NicBuffer, NicBuilder, NicError,
    NotDelivered, SessionInfo,
};
pub use permit::leaked_permits;
pub use queue::QueueConfig;
pub use ringbell_net::{port, wire};
