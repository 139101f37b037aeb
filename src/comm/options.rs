//! Settings of a communicator.

use std::time::Duration;

use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::{Algorithm, WireType};
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_nic_core::HostQueue;

/// Longest time-out of an operation: the limit of the descriptor's field.
pub(super) const MAX_TIMEOUT: Duration = Duration::from_micros(u32::MAX as u64);

/// Port at which NICs serve collectives.
pub const COLLECTIVE_PORT: u16 = 18_620;

/// Settings of a communicator; every rank must give the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommOptions {
    /// Longest time for the ranks to find each other.
    pub init_timeout: Duration,
    /// Time-out of operations that give none of their own, those of kernels too. At most what 32
    /// bits of microseconds hold.
    pub timeout: Duration,
    /// Algorithm of operations that ask for none.
    pub algo: Algorithm,
    /// Wire type of f32 operations that ask for none.
    pub wire: WireType,
    /// Segment sizes, thresholds and NIC memory.
    pub settings: CollectiveSettings,
    /// Port of the NIC at which it serves collectives.
    pub port: u16,
    /// Queues for blocks of kernels, besides the one that host and kernels share:
    /// `gpu_comm_queue(comm, blockIdx.x)` gives a block one. On a queue slots are used again in
    /// order, so the oldest operation that waits holds up all that come a depth behind it. None by
    /// default; at most what the NIC's `max_queues` leaves. Communicators made from this one have
    /// as many of their own. Each rank may have another number.
    pub block_queues: u32,
}

impl CommOptions {
    /// What kernels hold of a queue of the communicator, whose time-out is that of operations.
    pub(super) fn handle_of(&self, queue: &HostQueue) -> QueueHandle {
        let us = self.timeout.min(MAX_TIMEOUT).as_micros() as u32;
        QueueHandle {
            // 0 would be the queue's own.
            default_timeout_us: us.max(1),
            ..queue.handle()
        }
    }
}

impl Default for CommOptions {
    fn default() -> CommOptions {
        CommOptions {
            init_timeout: Duration::from_secs(30),
            timeout: Duration::from_secs(30),
            algo: Algorithm::Auto,
            wire: WireType::Same,
            settings: CollectiveSettings::default(),
            port: COLLECTIVE_PORT,
            block_queues: 0,
        }
    }
}
