//! NIC memory that the NIC itself receives into: no queue's descriptor reaches it.

use ringbell_gtlb::Access;
use ringbell_nic_abi::{GpuVa, Lkey, PdId};

use super::Core;
use crate::memory::nic_memory::{Block, NIC_BUS, NIC_VA};

impl Core {
    /// `len` bytes of NIC memory, registered in a protection domain of their own; `None` when memory, domains or regions
    /// are used up, and then nothing was taken.
    pub(super) fn own_region(&mut self, len: u64) -> Option<(PdId, Lkey, Block)> {
        let pd = self.mmu.alloc_pd().ok()?;
        let Some(block) = self.dma.nic_memory.alloc(len) else {
            let _ = self.mmu.free_pd(pd);
            return None;
        };
        let (va, bus) = (GpuVa(NIC_VA + block.at), NIC_BUS + block.at);
        match self.mmu.register_flat(pd, va, len, Access::LOCAL, bus) {
            Ok(region) => Some((pd, region.lkey, block)),
            Err(_) => {
                self.dma.nic_memory.free(block);
                let _ = self.mmu.free_pd(pd);
                None
            }
        }
    }
}
