//! GPU memory that the NIC may reach.

use std::sync::Arc;

use ringbell_cuda_kernels::{GpuBuffer, GpuError, KernelArg};
use ringbell_gtlb::{Access, MapError, MemoryRegion, RegisterError};
use ringbell_nic_abi::{GpuVa, PdId};
use ringbell_nic_core::Nic as SoftNic;

/// Why memory could not be allocated for the NIC.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// The GPU has no room, or refused.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The GTLB has no room for the pages.
    #[error("cannot make {bytes} bytes known to the GTLB")]
    Map {
        /// Bytes asked for.
        bytes: u64,
        /// The limit that was reached.
        #[source]
        source: MapError,
    },
    /// The region was refused.
    #[error("cannot register {bytes} bytes")]
    Register {
        /// Bytes asked for.
        bytes: u64,
        /// Why.
        #[source]
        source: RegisterError,
    },
}

/// GPU memory, mapped in the GTLB and registered with the NIC's protection domain.
///
/// Dropping it unregisters the region first: operations still waiting on it retire with
/// `REGION_FREED`, DMA in flight is waited for. Memory that DMA still uses after the deadline is kept
/// from the allocator for the life of the process.
#[derive(Debug)]
pub struct DeviceBuffer {
    /// `None` only while dropping.
    memory: Option<GpuBuffer>,
    region: MemoryRegion,
    /// What the GTLB holds for it: whole pages.
    mapped: (GpuVa, u64),
    nic: Arc<SoftNic>,
}

impl DeviceBuffer {
    pub(crate) fn new(
        nic: &Arc<SoftNic>,
        pd: PdId,
        memory: GpuBuffer,
        pages: &ringbell_gtlb::PageTable,
        access: Access,
    ) -> Result<DeviceBuffer, AllocError> {
        let bytes = memory.len();
        nic.map(pages)
            .map_err(|source| AllocError::Map { bytes, source })?;
        let mapped = (
            pages.base,
            pages.pages.len() as u64 * ringbell_gtlb::PAGE_BYTES,
        );
        match nic.register(pd, memory.va(), bytes, access) {
            Ok(region) => Ok(DeviceBuffer {
                memory: Some(memory),
                region,
                mapped,
                nic: nic.clone(),
            }),
            Err(source) => {
                if let Err(e) = nic.unmap(mapped.0, mapped.1) {
                    tracing::error!(error = %e, "cannot take back a mapping");
                }
                Err(AllocError::Register { bytes, source })
            }
        }
    }

    /// The allocation below, for what takes plain GPU memory.
    pub fn memory(&self) -> &GpuBuffer {
        self.memory.as_ref().expect("taken only by drop")
    }

    /// Address as kernels see it.
    pub fn va(&self) -> GpuVa {
        self.memory().va()
    }

    /// Bytes, as asked for.
    pub fn len(&self) -> u64 {
        self.memory().len()
    }

    /// Never: an empty allocation is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys and range of the region.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Copies from the host to `offset`.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the range leaves the buffer.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), GpuError> {
        self.memory().write(offset, from)
    }

    /// Copies from `offset` to the host.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the range leaves the buffer.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), GpuError> {
        self.memory().read(offset, into)
    }
}

/// For what works on any GPU memory, such as a pump, and keeps this registered while it does.
impl std::borrow::Borrow<GpuBuffer> for DeviceBuffer {
    fn borrow(&self) -> &GpuBuffer {
        self.memory()
    }
}

impl From<&DeviceBuffer> for KernelArg {
    fn from(b: &DeviceBuffer) -> KernelArg {
        KernelArg::Ptr(b.va())
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        let freed = self
            .nic
            .deregister(self.region.lkey)
            .map_err(|e| e.to_string())
            .and_then(|()| {
                self.nic
                    .unmap(self.mapped.0, self.mapped.1)
                    .map_err(|e| e.to_string())
            });
        if let Err(error) = freed {
            tracing::error!(va = %memory.va(), %error, "memory is still in use by DMA and is kept from reuse");
            // Giving the pages back would let a late DMA write into somebody else's buffer.
            std::mem::forget(memory);
        }
    }
}
