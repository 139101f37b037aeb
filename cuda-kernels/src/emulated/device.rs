//! The shared state of one emulated GPU: its memory, allocations, kernels and threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use ringbell_gtlb::page_table::{LARGE_PAGE_BYTES, PAGES_PER_LARGE, PAGE_BYTES};
use ringbell_nic_abi::GpuVa;

use super::memory::EmulatedMemory;
use super::module::{EmulatedKernel, KernelRegistry};
use super::pool::Pool;
use super::suballocator::Suballocator;
use crate::gpu::GpuError;
use crate::launch::LaunchError;
use crate::locks::{lock, read};

/// The state that buffers, streams and running kernels share.
#[derive(Debug)]
pub(super) struct EmulatedDevice {
    // Before `memory`: workers are told to end first. A running kernel holds this value.
    pub(super) pool: Pool,
    /// Kernels that have not ended, those that wait in a stream included.
    pub(super) running: AtomicUsize,
    pub(super) memory: Arc<EmulatedMemory>,
    pub(super) allocations: Mutex<Suballocator>,
    pub(super) registry: RwLock<KernelRegistry>,
}

impl EmulatedDevice {
    pub(super) fn allocations(&self) -> MutexGuard<'_, Suballocator> {
        lock(&self.allocations)
    }

    /// Whether a kernel has not ended.
    pub(super) fn is_running(&self) -> bool {
        // Acquire: pairs with the Release at a kernel's end. What it has accessed may be freed.
        self.running.load(Ordering::Acquire) > 0
    }

    pub(super) fn kernel(&self, name: &str) -> Result<EmulatedKernel, LaunchError> {
        read(&self.registry).find(name)
    }

    /// Populated and aligned: to 2 MiB from that size on, as `cudaMalloc` does (so that its pages
    /// coalesce), else to 64 KiB.
    pub(super) fn alloc(&self, bytes: u64) -> Result<GpuVa, GpuError> {
        let out_of_memory = |largest: usize| GpuError::OutOfMemory {
            asked: bytes,
            largest: largest as u64 * PAGE_BYTES,
        };
        if bytes > self.memory.len() {
            return Err(out_of_memory(self.allocations().largest_free()));
        }
        let pages = bytes.div_ceil(PAGE_BYTES) as usize;
        let align = if bytes >= LARGE_PAGE_BYTES {
            PAGES_PER_LARGE
        } else {
            1
        };
        let first = {
            let mut a = self.allocations();
            a.alloc(pages, align)
                .ok_or_else(|| out_of_memory(a.largest_free()))?
        };
        if let Err(source) = self.memory.populate(first, pages) {
            self.allocations().free(first);
            return Err(GpuError::Populate { bytes, source });
        }
        let va = self.memory.base_va() + first as u64 * PAGE_BYTES;
        self.memory.watched.allocated(va, bytes);
        Ok(GpuVa(va))
    }

    pub(super) fn free(&self, va: GpuVa) {
        let page = ((va.0 - self.memory.base_va()) / PAGE_BYTES) as usize;
        {
            self.memory.watched.freed(va.0);
            // An access of freed memory is found as long as the memory has no other owner.
            if self.memory.watched.checker().is_some() {
                self.allocations().retire(page);
                return;
            }
        }
        self.allocations().free(page);
    }

    /// Byte offset of a word inside an allocation.
    pub(super) fn word(&self, va: GpuVa) -> usize {
        (va.0 - self.memory.base_va()) as usize
    }

    /// Byte offset of a range, if it lies inside one allocation.
    pub(super) fn offset_of(&self, va: GpuVa, len: u64) -> Result<usize, GpuError> {
        let refuse = || GpuError::NotAllocated { va, len };
        let offset = va.0.checked_sub(self.memory.base_va()).ok_or_else(refuse)?;
        let last = offset
            .checked_add(len.max(1) - 1)
            .filter(|l| *l < self.memory.len())
            .ok_or_else(refuse)?;
        let page = |o: u64| (o / PAGE_BYTES) as usize;
        if !self.allocations().covers(page(offset), page(last)) {
            return Err(refuse());
        }
        Ok(offset as usize)
    }
}
