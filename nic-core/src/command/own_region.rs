//! NIC memory that the NIC itself receives into: no queue's descriptor reaches it.

use ringbell_gtlb::Access;
use ringbell_nic_abi::{GpuVa, Lkey, PdId};

use super::Core;
use crate::board::{Block, BOARD_BUS, BOARD_VA};

impl Core {
    /// `len` bytes of NIC memory, registered in a protection domain of their own; `None` when memory, domains or regions
    /// are used up, and then nothing was taken.
    pub(super) fn own_region(&mut self, len: u64) -> Option<(PdId, Lkey, Block)> {
        let pd = self.mmu.alloc_pd().ok()?;
        let Some(block) = self.dma.board.alloc(len) else {
            let _ = self.mmu.free_pd(pd);
            return None;
        };
        let (va, bus) = (GpuVa(BOARD_VA + block.at), BOARD_BUS + block.at);
        match self.mmu.register_flat(pd, va, len, Access::LOCAL, bus) {
            Ok(region) => Some((pd, region.lkey, block)),
            Err(_) => {
                self.dma.board.free(block);
                let _ = self.mmu.free_pd(pd);
                None
            }
        }
    }
}
