//! Registration of GPU memory that other code allocated: `cudarc`, PyTorch, the program itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ringbell_cuda_kernels::cuda::ForeignMemory;
use ringbell_gtlb::{Access, MapError, MemoryRegion, PageTable, PAGE_BYTES};
use ringbell_nic_abi::{GpuVa, PdId};

use crate::backend::Backend;
use crate::buffer::AllocError;
use crate::{Nic, Span};

/// Pages that several registrations share: the driver puts small allocations beside each other.
///
/// Only the first and the last page of a range can be shared; those between hold nothing else.
#[derive(Debug, Default)]
pub(crate) struct SharedPages {
    users: Mutex<HashMap<u64, u32>>,
}

/// Splits a table of pages into its two ends and the pages between.
fn parts(table: &PageTable) -> (Vec<u64>, Option<PageTable>) {
    let n = table.pages.len();
    let at = |i: usize| table.base.0 + i as u64 * PAGE_BYTES;
    let ends = if n == 1 {
        vec![at(0)]
    } else {
        vec![at(0), at(n - 1)]
    };
    let between = (n > 2).then(|| PageTable {
        base: GpuVa(at(1)),
        pages: table.pages[1..n - 1].to_vec(),
    });
    (ends, between)
}

fn forget(nic: &dyn Backend, va: u64, len: u64) {
    if let Err(error) = nic.unmap(GpuVa(va), len) {
        tracing::error!(va, %error, "cannot take back a mapping");
    }
}

impl SharedPages {
    fn map(&self, nic: &dyn Backend, table: &PageTable) -> Result<(), MapError> {
        let (ends, between) = parts(table);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(between) = &between {
            nic.map(between)?;
        }
        for (i, page) in ends.iter().enumerate() {
            let count = users.entry(*page).or_default();
            // A bus address belongs to the GPU: every registration of the page has the same one.
            let single = PageTable {
                base: GpuVa(*page),
                pages: vec![*page],
            };
            if *count == 0 {
                if let Err(e) = nic.map(&single) {
                    users.remove(page);
                    drop(users);
                    self.release(nic, &ends[..i], between.as_ref());
                    return Err(e);
                }
            }
            *users.entry(*page).or_default() += 1;
        }
        Ok(())
    }

    fn unmap(&self, nic: &dyn Backend, table: &PageTable) {
        let (ends, between) = parts(table);
        self.release(nic, &ends, between.as_ref());
    }

    fn release(&self, nic: &dyn Backend, ends: &[u64], between: Option<&PageTable>) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        for page in ends {
            let left = users.get(page).copied().unwrap_or(0).saturating_sub(1);
            if left > 0 {
                users.insert(*page, left);
            } else {
                users.remove(page);
                forget(nic, *page, PAGE_BYTES);
            }
        }
        if let Some(t) = between {
            forget(nic, t.base.0, t.pages.len() as u64 * PAGE_BYTES);
        }
    }
}

/// GPU memory that other code owns, registered with the NIC, held in `M` (a [`ForeignMemory`], or an `AdoptedSlice` of `cudarc`)
/// and given back by [`ForeignRegion::into_inner`].
///
/// Dropping it unregisters first. Memory that DMA still uses after the deadline is not given back for
/// the life of the process.
#[derive(Debug)]
pub struct ForeignRegion<M: AsRef<ForeignMemory>> {
    /// `None` only after the end.
    memory: Option<M>,
    region: MemoryRegion,
    table: PageTable,
    pages: Arc<SharedPages>,
    nic: Arc<dyn Backend>,
}

impl<M: AsRef<ForeignMemory>> ForeignRegion<M> {
    fn new(
        nic: &Arc<dyn Backend>,
        pages: &Arc<SharedPages>,
        pd: PdId,
        memory: M,
    ) -> Result<ForeignRegion<M>, AllocError> {
        let foreign = memory.as_ref();
        let (va, bytes, table) = (foreign.va(), foreign.len(), foreign.page_table());
        pages
            .map(&**nic, &table)
            .map_err(|source| AllocError::Map { bytes, source })?;
        match nic.register(pd, va, bytes, Access::COLLECTIVE) {
            Ok(region) => Ok(ForeignRegion {
                memory: Some(memory),
                region,
                table,
                pages: pages.clone(),
                nic: nic.clone(),
            }),
            Err(source) => {
                pages.unmap(&**nic, &table);
                Err(AllocError::Register { bytes, source })
            }
        }
    }

    /// Its address in descriptors and kernels.
    pub fn va(&self) -> GpuVa {
        self.region.va
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.region.len
    }

    /// Never: an empty range is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys and range.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Ends the registration and gives the memory back; `None` when DMA still uses it after the deadline.
    pub fn into_inner(mut self) -> Option<M> {
        self.end()
    }

    fn end(&mut self) -> Option<M> {
        let memory = self.memory.take()?;
        match self.nic.deregister(self.region.lkey) {
            Ok(()) => {
                self.pages.unmap(&*self.nic, &self.table);
                Some(memory)
            }
            Err(error) => {
                tracing::error!(va = %self.region.va, %error, "memory is still in use by DMA and is not given back");
                // Freed, another owner could get it while the NIC writes it.
                std::mem::forget(memory);
                None
            }
        }
    }
}

impl<M: AsRef<ForeignMemory>> Drop for ForeignRegion<M> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<M: AsRef<ForeignMemory>> From<&ForeignRegion<M>> for Span {
    fn from(region: &ForeignRegion<M>) -> Span {
        Span::of(region.va(), region.len())
    }
}

impl Nic {
    /// Registers memory of the real GPU that was allocated elsewhere and adopted by
    /// [`CudaGpu::adopt`](ringbell_cuda_kernels::cuda::CudaGpu::adopt) or
    /// [`adopt_slice`](ringbell_cuda_kernels::cuda::CudaGpu::adopt_slice) of [`Nic::cuda`].
    ///
    /// # Errors
    /// [`AllocError`]: a limit of the NIC was reached; the memory is dropped then.
    pub fn register_foreign<M: AsRef<ForeignMemory>>(
        &self,
        memory: M,
    ) -> Result<ForeignRegion<M>, AllocError> {
        ForeignRegion::new(self.backend(), self.shared_pages(), self.pd(), memory)
    }
}
