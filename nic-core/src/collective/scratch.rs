//! Memory for partial results: NIC memory, or a range that the program has given.

use ringbell_gtlb::{Fault, Mmu, Need};
use ringbell_nic_abi::{GpuVa, Lkey, PdId};

use crate::memory::nic_memory::{Block, NicMemory, Space};
use crate::types::Buffer;

/// Registered memory that the program has given for partial results.
#[derive(Debug)]
pub(crate) struct Given {
    region: u32,
    va: u64,
    space: Space,
}

impl Given {
    /// A range, whose region stays pinned.
    pub(crate) fn new(
        mmu: &mut Mmu,
        (pd, lkey): (PdId, Lkey),
        (va, len): (GpuVa, u64),
    ) -> Result<Given, Fault> {
        // Both rights are needed; only one pin is kept.
        let readable = mmu.pin(pd, lkey, va, len, Need::Read)?;
        let written = mmu.pin(pd, lkey, va, len, Need::Write);
        mmu.unpin(readable);
        Ok(Given {
            region: written?.region,
            va: va.0,
            space: Space::new(0, len),
        })
    }
}

/// The memory of one communicator. A block of it has an offset that [`buffer`](Scratch::buffer)
/// takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    block: Block,
    region: u32,
    /// Of offset 0.
    va: u64,
    is_given: bool,
}

impl Scratch {
    /// So many bytes: what the program has given first. `None`: there are none.
    pub(super) fn take(
        len: u64,
        given: Option<&mut Given>,
        nic_memory: &mut NicMemory,
    ) -> Option<Scratch> {
        let of_given = given.and_then(|g| {
            Some(Scratch {
                block: g.space.alloc(len)?,
                region: g.region,
                va: g.va,
                is_given: true,
            })
        });
        of_given.or_else(|| {
            let block = nic_memory.alloc(len)?;
            let first = nic_memory.buffer(0, 0);
            Some(Scratch {
                block,
                region: first.region,
                va: first.va.0,
                is_given: false,
            })
        })
    }

    /// Gives the bytes back.
    pub(super) fn free(self, given: Option<&mut Given>, nic_memory: &mut NicMemory) {
        match given.filter(|_| self.is_given) {
            Some(given) => given.space.free(self.block),
            None => nic_memory.free(self.block),
        }
    }

    /// All of it, as offsets.
    pub(super) fn space(&self) -> Space {
        Space::new(self.block.at, self.block.len)
    }

    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.block.len
    }

    /// Whether it is NIC memory, which cards and the NIC itself reach by other ways than the GTLB.
    pub(super) fn is_on_nic(&self) -> bool {
        !self.is_given
    }

    /// `len` bytes at an offset.
    #[inline]
    pub(super) fn buffer(&self, at: u64, len: u32) -> Buffer {
        Buffer {
            region: self.region,
            va: GpuVa(self.va + at),
            len,
        }
    }
}
