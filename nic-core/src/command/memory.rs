//! Memory access of the NIC's operations: translation, DMA, and exports to peers.

use ringbell_gtlb::{Access, Mmu, Need, Pin};
use ringbell_nic_abi::{GpuVa, InlineSend, Lkey, PdId, Transfer, INLINE_MAX};

use super::refusal::Refusal;
use crate::config::EngineThread;
use crate::datapath::Datapath;
use crate::dma::{Dma, DmaState};
use crate::engine::Engines;
use crate::memory::exports::Exports;
use crate::memory::nic_memory::{Block, NIC_BUS, NIC_VA};
use crate::queue::ScatterSlots;
use crate::types::{Buffer, Small};

/// See the module text.
pub(crate) struct Memory {
    pub(crate) dma: DmaState,
    /// Engines on the paths of streams.
    pub(crate) engines: Engines,
    pub(crate) mmu: Mmu,
    /// The numbers of memory that local peers map.
    pub(crate) exports: Exports,
}

impl Memory {
    pub(super) fn new(mmu: Mmu, dma: DmaState, thread: EngineThread) -> Memory {
        Memory {
            dma,
            engines: Engines::new(thread),
            mmu,
            exports: Exports::default(),
        }
    }

    /// DMA for the length of one step.
    #[inline]
    pub(super) fn dma(&mut self) -> Dma<'_> {
        Dma {
            mmu: &mut self.mmu,
            state: &mut self.dma,
        }
    }

    /// What moves bytes of streams of the transport with that index, for the length of one step.
    #[inline]
    pub(super) fn with_datapath<R>(
        &mut self,
        transport: usize,
        f: impl FnOnce(&mut Datapath<'_>) -> R,
    ) -> R {
        let mut dma = Dma {
            mmu: &mut self.mmu,
            state: &mut self.dma,
        };
        f(&mut Datapath::new(&mut dma, &mut self.engines, transport))
    }

    /// Whether polling would find nothing, and no engine has anything to report.
    pub(super) fn is_quiet(&self) -> bool {
        self.dma.is_immediate() && !self.engines.has_news()
    }

    /// Checks and pins a range.
    pub(super) fn pin(
        &mut self,
        pd: PdId,
        lkey: Lkey,
        (va, len): (GpuVa, u32),
        need: Need,
    ) -> Result<(Pin, Buffer), Refusal> {
        let pinned = self.mmu.pin(pd, lkey, va, len.into(), need);
        let pin = pinned.map_err(|fault| fault.status())?;
        let region = pin.region;
        Ok((pin, Buffer { region, va, len }))
    }

    /// The bytes of a small send from memory, when the CPU can read them at once. They count as
    /// copied when the caller has used them.
    #[inline(always)]
    pub(super) fn read_small(&mut self, pd: PdId, d: &Transfer) -> Option<InlineSend> {
        if d.len as usize > INLINE_MAX {
            return None;
        }
        let (va, len) = (d.local_va, u64::from(d.len));
        let span = self.mmu.span_once(pd, d.lkey, va, len, Need::Read).ok()?;
        Some(InlineSend {
            session: d.session,
            len: d.len as u8,
            words: self.dma.read_small(span, d.len as usize)?,
        })
    }

    /// Writes a small payload where a receive wants it, when the CPU can at once.
    #[inline(always)]
    pub(super) fn write_small(&mut self, pd: PdId, d: &Transfer, small: &Small) -> bool {
        let (va, len) = (d.local_va, u64::from(d.len));
        match self.mmu.span_once(pd, d.lkey, va, len, Need::Write) {
            Ok(span) => self.dma.write_small(span, small),
            Err(_) => false,
        }
    }

    /// `len` bytes of NIC memory, registered in a protection domain of their own; `None` when
    /// memory, domains or regions are used up, and then nothing was allocated.
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

    /// Frees a region of [`own_region`](Memory::own_region). `false`: operations are in flight, and
    /// it is kept.
    pub(super) fn free_own_region(&mut self, pd: PdId, lkey: Lkey, block: Block) -> bool {
        let freed =
            self.mmu.begin_deregister(lkey).is_ok() && self.mmu.finish_deregister(lkey).is_ok();
        if freed {
            self.dma.nic_memory.free(block);
            let _ = self.mmu.free_pd(pd);
        }
        freed
    }

    /// Places for a ring of so many slots; `None` when the NIC's memory or its regions are used up,
    /// and its receives take the general path.
    pub(crate) fn scatter_slots(&mut self, slots: u32) -> Option<ScatterSlots> {
        let region = self.own_region(ScatterSlots::bytes(slots))?;
        Some(ScatterSlots::new(region, slots))
    }

    /// Frees the places of a ring whose operations have retired.
    pub(super) fn free_scatter_slots(&mut self, slots: &ScatterSlots) {
        let (pd, lkey, block) = slots.region();
        if !self.free_own_region(pd, lkey, block) {
            tracing::warn!(%lkey, "small receives of a closed queue are in flight; their NIC memory is not given back");
        }
    }
}
