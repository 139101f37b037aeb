//! GPU memory that the NIC and the host may reach: allocations, adopted ranges, and the host's
//! copies.
//!
//! A bus address is the GPU's own virtual address: the NIC is software and has no pages to pin, and
//! only kernel modules know the driver's physical pages. The path of the bytes is chosen for each
//! allocation when it is made: through a mapping ([`GpuMapper`]), or by the copy engine
//! ([`super::copy_engine`]). Long reads of mapped memory use the copy engine too, because loads
//! from a mapping wait for the GPU line by line.
#![allow(unsafe_code)] // Calls into libcuda.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use cudarc::driver::sys;
use ringbell_gtlb::{PageTable, PAGE_BYTES};
use ringbell_nic_abi::GpuVa;

use super::context::Context;
use super::copy_engine::{CopyEngine, CopyRefused, PATIENCE};
use super::deferred_release::Resource;
use super::driver;
use super::handles::PinnedBlock;
use super::mapper::{GpuMapper, GpuMapping, PartOf, READ_BY_MAPPING};
use super::pinned::PinnedMapping;
use crate::cuda_error::CudaError;
use crate::gpu::GpuError;
use crate::locks::{lock, read, write};

/// Allocations from this size on are aligned by the driver.
const LARGE: u64 = 2 << 20;

/// How long the first copy may take.
const FIRST_COPY: Duration = Duration::from_secs(2);

/// A range that the NIC may reach.
#[derive(Debug)]
struct GpuRange {
    len: u64,
    /// The driver's allocation, to be freed: it begins before the range when it was not aligned.
    owned: Option<u64>,
    mapping: Option<Box<dyn GpuMapping>>,
    /// Memory of the host, at an address of the GPU.
    pinned: bool,
}

/// All of a GPU's memory that a NIC may reach.
#[derive(Debug)]
pub(super) struct CudaMemory {
    context: Arc<Context>,
    mapper: Option<Arc<dyn GpuMapper>>,
    ranges: RwLock<BTreeMap<u64, GpuRange>>,
    /// Two pages for the first copy, freed with everything else.
    scratch: OnceLock<u64>,
    /// Copies for the NIC.
    dma: Mutex<CopyEngine>,
    /// Copies for the host, which must not wait for the NIC's.
    host: Mutex<CopyEngine>,
    /// Whether the last allocation was mapped, or why not.
    outcome: Mutex<Option<Result<(), String>>>,
}

impl CudaMemory {
    pub(super) fn new(
        context: Arc<Context>,
        mapper: Option<Arc<dyn GpuMapper>>,
        staging_slots: u32,
    ) -> Result<CudaMemory, CudaError> {
        let slots = staging_slots.max(2);
        Ok(CudaMemory {
            dma: Mutex::new(CopyEngine::new(context.clone(), slots)?),
            host: Mutex::new(CopyEngine::new(context.clone(), 16)?),
            context,
            mapper,
            ranges: RwLock::default(),
            scratch: OnceLock::new(),
            outcome: Mutex::new(None),
        })
    }

    /// How the NIC reaches the memory, and why.
    pub(super) fn path(&self) -> String {
        match (&self.mapper, &*lock(&self.outcome)) {
            (None, _) => "copy engine on a side stream, because no mapping was asked for".into(),
            (Some(m), None) => format!(
                "to be mapped for the CPU by {}, where that can be, else by the copy engine",
                m.name()
            ),
            (Some(m), Some(Ok(()))) => format!("mapped for the CPU by {}", m.name()),
            (Some(_), Some(Err(why))) => {
                format!("copy engine on a side stream, because no mapping could be made: {why}")
            }
        }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The copy engine of the NIC's operations.
    pub(super) fn dma(&self) -> MutexGuard<'_, CopyEngine> {
        lock(&self.dma)
    }

    fn ranges(&self) -> RwLockReadGuard<'_, BTreeMap<u64, GpuRange>> {
        read(&self.ranges)
    }

    fn ranges_mut(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, GpuRange>> {
        write(&self.ranges)
    }

    /// Allocates whole pages of 64 KiB. The driver aligns small allocations to less.
    pub(super) fn alloc(&self, bytes: u64) -> Result<GpuVa, CudaError> {
        let what = "GPU memory";
        let refuse = CudaError::OutOfMemory { bytes, what };
        let len = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(refuse)?;
        self.context.bind()?;
        // One page more at once, instead of freeing an allocation that is not aligned: freeing
        // memory waits for every kernel, and one of them may be waiting for this thread.
        let slack = if len < LARGE { PAGE_BYTES } else { 0 };
        let mut base = self.allocate(len + slack, bytes)?;
        if slack == 0 && !base.is_multiple_of(PAGE_BYTES) {
            self.release(base);
            base = self.allocate(len + PAGE_BYTES, bytes)?;
        }
        let va = base.next_multiple_of(PAGE_BYTES);
        self.ranges_mut().insert(
            va,
            GpuRange {
                len,
                owned: Some(base),
                mapping: self.map(va, len),
                pinned: false,
            },
        );
        Ok(GpuVa(va))
    }

    /// Allocates whole pages of 64 KiB of pinned host memory, at an address of the GPU.
    pub(super) fn alloc_pinned(&self, bytes: u64) -> Result<GpuVa, CudaError> {
        let what = "pinned host memory";
        let refuse = || CudaError::OutOfMemory { bytes, what };
        let len = bytes
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or_else(refuse)?;
        let whole = usize::try_from(len + PAGE_BYTES).map_err(|_| refuse())?;
        let memory = PinnedBlock::new(self.context.clone(), whole)?;
        let base = memory.device()?;
        let va = base.next_multiple_of(PAGE_BYTES);
        let mapping = PinnedMapping {
            memory,
            start: (va - base) as usize,
        };
        self.ranges_mut().insert(
            va,
            GpuRange {
                len,
                owned: None,
                mapping: Some(Box::new(mapping)),
                pinned: true,
            },
        );
        Ok(GpuVa(va))
    }

    fn map(&self, va: u64, len: u64) -> Option<Box<dyn GpuMapping>> {
        let (mapping, outcome) = match self.mapper.as_ref()?.map(GpuVa(va), len) {
            Ok(mapping) => (Some(mapping), Ok(())),
            Err(why) => (None, Err(why)),
        };
        *lock(&self.outcome) = Some(outcome);
        mapping
    }

    /// Removes a range, and frees its allocation once no copy uses it. When a copy hangs, the
    /// memory stays allocated.
    pub(super) fn free(&self, va: GpuVa) {
        let Some(range) = self.ranges_mut().remove(&va.0) else {
            return;
        };
        drop(range.mapping);
        let idle = lock(&self.dma).drain(PATIENCE);
        if let (true, Some(base)) = (idle, range.owned) {
            self.release(base);
        }
    }

    /// Maps a range of a foreign allocation (its base and size) by whole pages, or says why not.
    /// The pages must lie inside the allocation: another owner's memory in them must not become
    /// reachable.
    fn map_part(
        &self,
        va: u64,
        len: u64,
        (base, size): (u64, u64),
    ) -> Result<Box<dyn GpuMapping>, String> {
        let mapper = self.mapper.as_ref().ok_or("no mapping was asked for")?;
        let first = va / PAGE_BYTES * PAGE_BYTES;
        let end = (va + len).next_multiple_of(PAGE_BYTES);
        if first < base || end > base + size {
            return Err(format!(
                "its pages of 64 KiB, {first:#x} to {end:#x}, reach beyond its allocation, {base:#x} to {:#x}; allocate whole pages (2 MiB and more are aligned)",
                base + size
            ));
        }
        let whole = mapper.map(GpuVa(first), end - first)?;
        let start = va - first;
        Ok(Box::new(PartOf { whole, start }))
    }

    /// Lets the NIC reach memory of another owner. `allocation` is the base and size of the
    /// allocation around it, or why it is not to be mapped. Returns how the NIC reaches it, and
    /// why.
    pub(super) fn adopt(
        &self,
        va: GpuVa,
        len: u64,
        allocation: Result<(u64, u64), &str>,
    ) -> Result<String, CudaError> {
        let shared = self
            .ranges()
            .range(..va.0 + len)
            .next_back()
            .is_some_and(|(first, range)| first + range.len > va.0);
        if shared {
            return Err(CudaError::Shared { va });
        }
        let mapped = match allocation {
            Ok(allocation) => self.map_part(va.0, len, allocation),
            Err(why) => Err(why.to_owned()),
        };
        let name = || self.mapper.as_ref().map_or(String::new(), |m| m.name());
        let path = match &mapped {
            Ok(_) => format!("mapped for the CPU by {}", name()),
            Err(why) => format!("copy engine on a side stream, because {why}"),
        };
        self.ranges_mut().insert(
            va.0,
            GpuRange {
                len,
                owned: None,
                mapping: mapped.ok(),
                pinned: false,
            },
        );
        Ok(path)
    }

    /// Calls `f` with the mapping of a range that lies inside one allocation, and the offset there.
    pub(super) fn with<R>(
        &self,
        va: u64,
        len: u64,
        f: impl FnOnce(Option<&dyn GpuMapping>, u64) -> R,
    ) -> Option<R> {
        let all = self.ranges();
        let found = all.range(..=va).next_back();
        let inside = |first: &u64, r: &GpuRange| {
            let end = (va - first).checked_add(len);
            end.is_some_and(|end| end <= r.len)
        };
        let (first, range) = found.filter(|(first, range)| inside(first, range))?;
        Some(f(range.mapping.as_deref(), va - first))
    }

    /// Copies from the host.
    pub(super) fn write(&self, va: GpuVa, from: &[u8]) -> Result<(), GpuError> {
        let done = self.with(va.0, from.len() as u64, |mapping, offset| match mapping {
            Some(m) => {
                m.write(offset, from);
                m.flush();
                Ok(())
            }
            None => lock(&self.host).write_all(va.0, from),
        });
        let len = from.len() as u64;
        Ok(done.ok_or(GpuError::NotAllocated { va, len })??)
    }

    /// Copies to the host.
    pub(super) fn read(&self, va: GpuVa, into: &mut [u8]) -> Result<(), GpuError> {
        let len = into.len() as u64;
        let done = self.with(va.0, len, |mapping, offset| {
            if let Some(m) = mapping.filter(|m| reads_by_mapping(*m, into.len())) {
                m.read(offset, into);
                return Ok(());
            }
            lock(&self.host).read_all(va.0, into)
        });
        Ok(done.ok_or(GpuError::NotAllocated { va, len })??)
    }

    /// The pages around a range: bus addresses are virtual ones.
    pub(super) fn page_table(&self, va: GpuVa, len: u64) -> Result<PageTable, GpuError> {
        let len = len.max(1);
        self.with(va.0, len, |_, _| ())
            .ok_or(GpuError::NotAllocated { va, len })?;
        Ok(CudaMemory::pages_around(va, len))
    }

    pub(super) fn pages_around(va: GpuVa, len: u64) -> PageTable {
        let first = va.0 / PAGE_BYTES;
        let last = (va.0 + len - 1) / PAGE_BYTES;
        PageTable {
            base: GpuVa(first * PAGE_BYTES),
            pages: (first..=last).map(|p| p * PAGE_BYTES).collect(),
        }
    }
}

/// Whether a read uses the mapping. If not, earlier stores through it are flushed.
pub(super) fn reads_by_mapping(mapping: &dyn GpuMapping, len: usize) -> bool {
    let by_mapping = len <= READ_BY_MAPPING || mapping.reads_quickly();
    if !by_mapping {
        mapping.flush();
    }
    by_mapping
}

impl CudaMemory {
    fn allocate(&self, len: u64, asked: u64) -> Result<u64, CudaError> {
        self.context.deferred.release_pending();
        let mut base = 0;
        // SAFETY: the pointer is to a live address; a context is current.
        let r = unsafe { sys::cuMemAlloc_v2(&mut base, len as usize) };
        driver::check_memory("cuMemAlloc", r, asked, "GPU memory")
            .map_err(|e| self.context.note(e))?;
        Ok(base)
    }

    /// Frees an allocation of `allocate`, once no kernel runs.
    fn release(&self, base: u64) {
        self.context.deferred.release(Resource::Device(base));
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        let all = std::mem::take(&mut *self.ranges_mut());
        if lock(&self.dma).drain(PATIENCE) {
            let owned = all.into_values().filter_map(|r| r.owned);
            let all = owned.chain(self.scratch.get().copied());
            all.for_each(|base| self.release(base));
        }
    }
}

/// Copies inside the GPU.
impl CudaMemory {
    /// Whether `len` bytes lie inside one range on the GPU itself.
    pub(super) fn is_on_gpu(&self, va: u64, len: u64) -> bool {
        let all = self.ranges();
        let inside = |(first, r): (&u64, &GpuRange)| {
            !r.pinned && (va - first).checked_add(len).is_some_and(|n| n <= r.len)
        };
        all.range(..=va).next_back().is_some_and(inside)
    }

    /// Flushes the stores through all mappings.
    pub(super) fn flush(&self) {
        for range in self.ranges().values() {
            if let Some(m) = &range.mapping {
                m.flush();
            }
        }
    }

    /// Writes a block that no range has.
    pub(super) fn fill(&self, va: u64, from: &[u8]) -> Result<(), CudaError> {
        lock(&self.host).write_all(va, from)
    }

    /// Copies between two pages of its own, so that the driver loads its code for such copies
    /// before a kernel waits for one: a later load could wait for that kernel
    /// (microsoft/mscclpp#394). The pages stay allocated: freeing them would wait for every kernel.
    pub(super) fn first_copy(&self) -> Result<(), CudaError> {
        self.context.bind()?;
        let base = self.allocate(2 * PAGE_BYTES, 2 * PAGE_BYTES)?;
        let mut engine = lock(&self.host);
        // A few bytes and many, aligned or not, may be different code of the driver.
        for (to, len) in [(PAGE_BYTES, PAGE_BYTES), (PAGE_BYTES + 1, 3)] {
            let started = engine.copy(base + to, base, len);
            let id = started.map_err(CopyRefused::into_cuda)?;
            if !engine.drain(FIRST_COPY) {
                // The scratch stays allocated: the copy may still write it.
                return Err(CudaError::Stuck {
                    what: "a first copy inside its memory",
                    waited_ms: FIRST_COPY.as_millis() as u64,
                });
            }
            engine.forget(id);
        }
        let _ = self.scratch.set(base);
        Ok(())
    }
}
