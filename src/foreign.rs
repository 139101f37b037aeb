//! Registration of GPU memory that other code allocated: `cudarc`, PyTorch, the program itself.

use std::sync::Arc;

use ringbell_cuda_kernels::cuda::ForeignMemory;
use ringbell_gtlb::{Access, MemoryRegion, PageTable};
use ringbell_nic_abi::{GpuVa, PdId};

use crate::backend::Backend;
use crate::buffer::AllocError;
use crate::shared_pages::SharedPages;
use crate::{Nic, Span};

/// GPU memory that other code owns, registered with the NIC, held in `M` (a [`ForeignMemory`], or
/// an `AdoptedSlice` of `cudarc`) and given back by [`ForeignRegion::into_inner`].
///
/// Dropping it unregisters first. Memory that DMA still uses after the deadline is not given back
/// for the life of the process.
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

    /// Ends the registration and gives the memory back; `None` when DMA still uses it after the
    /// deadline.
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
