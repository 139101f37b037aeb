//! NIC memory for a ring's small receives that end inside their completion lines (`SCATTERED` of
//! `nic-abi`).
//!
//! Where the memory is asynchronous every write is a copy of its own, several microseconds for a
//! few bytes. So the transport gets a place in the NIC's own memory instead of the buffer, and the
//! waiter for the completion stores the bytes. Only in a ring that kernels alone post to: the
//! host's waiters do not store into GPU memory.

use ringbell_nic_abi::{GpuVa, Lkey, PdId};

use crate::memory::nic_memory::{Block, NIC_VA};
use crate::types::Buffer;

/// Bytes from one slot's place to the next.
const STRIDE: u64 = 32;

/// A place in NIC memory for each slot of a ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScatterSlots {
    pd: PdId,
    lkey: Lkey,
    block: Block,
    slots: u32,
}

impl ScatterSlots {
    /// Bytes of NIC memory for a ring of so many slots.
    pub(crate) fn bytes(slots: u32) -> u64 {
        u64::from(slots) * STRIDE
    }

    /// The places of a ring in a block of [`bytes`](ScatterSlots::bytes), registered under a key of
    /// a domain.
    pub(crate) fn new((pd, lkey, block): (PdId, Lkey, Block), slots: u32) -> ScatterSlots {
        ScatterSlots {
            pd,
            lkey,
            block,
            slots,
        }
    }

    /// The region that the places lie in.
    pub(crate) fn region(&self) -> (PdId, Lkey, Block) {
        (self.pd, self.lkey, self.block)
    }

    /// Offset in NIC memory of a ticket's place.
    pub(crate) fn at(&self, ticket: u32) -> u64 {
        self.block.at + u64::from(ticket & (self.slots - 1)) * STRIDE
    }

    /// Where the receive of a ticket arrives.
    pub(crate) fn buffer(&self, ticket: u32, len: u32) -> Buffer {
        Buffer {
            region: self.lkey.0,
            va: GpuVa(NIC_VA + self.at(ticket)),
            len,
        }
    }
}
