//! GPU memory that is registered with the NIC.

use std::marker::PhantomData;
use std::sync::Arc;

use ringbell_cuda_kernels::{GpuBuffer, GpuError, KernelArg};
use ringbell_gtlb::{Access, MapError, MemoryRegion, RegisterError};
use ringbell_nic_abi::{GpuVa, PdId};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::backend::Backend;

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
        /// Requested bytes.
        bytes: u64,
        /// The limit that was reached.
        #[source]
        source: MapError,
    },
    /// The region was refused.
    #[error("cannot register {bytes} bytes")]
    Register {
        /// Requested bytes.
        bytes: u64,
        /// Why.
        #[source]
        source: RegisterError,
    },
}

/// GPU memory for elements of type `T`, mapped in the GTLB and registered with the NIC's protection
/// domain. Offsets and lengths count elements.
///
/// ```
/// # use ringbell::{Nic};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let nic = Nic::builder().ip("10.9.9.3/24").open()?;
/// let numbers = nic.alloc::<f32>(1000)?;
/// numbers.write(10, &[1.5, 2.5])?;
/// assert_eq!(numbers.to_vec()?[9..13], [0.0, 1.5, 2.5, 0.0]);
/// assert_eq!((numbers.len(), numbers.slice(10..12).bytes()), (1000, 8));
/// # Ok(()) }
/// ```
///
/// A kernel that was launched with the buffer as an argument keeps the memory until it has ended.
///
/// Dropping it unregisters the region first: operations still waiting on it end with
/// `REGION_FREED`, and DMA in flight is waited for. Memory that DMA still uses after the deadline
/// is kept from the allocator for the life of the process.
#[derive(Debug)]
pub struct DeviceBuffer<T = u8> {
    allocation: Arc<Allocation>,
    of: PhantomData<fn(T) -> T>,
}

/// The memory of a buffer of any element type.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// `None` only while dropping.
    memory: Option<GpuBuffer>,
    region: MemoryRegion,
    /// Its range in the GTLB: whole pages.
    mapped: (GpuVa, u64),
    nic: Arc<dyn Backend>,
}

impl Allocation {
    pub(crate) fn new(
        nic: &Arc<dyn Backend>,
        pd: PdId,
        memory: GpuBuffer,
        pages: &ringbell_gtlb::PageTable,
        access: Access,
    ) -> Result<Allocation, AllocError> {
        let bytes = memory.len();
        nic.map(pages)
            .map_err(|source| AllocError::Map { bytes, source })?;
        let mapped = (
            pages.base,
            pages.pages.len() as u64 * ringbell_gtlb::PAGE_BYTES,
        );
        match nic.register(pd, memory.va(), bytes, access) {
            Ok(region) => Ok(Allocation {
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

    fn memory(&self) -> &GpuBuffer {
        self.memory.as_ref().expect("taken only by drop")
    }
}

/// Element type of a buffer: every pattern of bytes is a value, and there is no padding.
pub trait Plain: FromBytes + IntoBytes + Immutable {}

impl<T: FromBytes + IntoBytes + Immutable> Plain for T {}

impl<T> DeviceBuffer<T> {
    pub(crate) fn new(allocation: Allocation) -> DeviceBuffer<T> {
        DeviceBuffer {
            allocation: Arc::new(allocation),
            of: PhantomData,
        }
    }

    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    /// The allocation below, for calls that take plain GPU memory.
    pub fn memory(&self) -> &GpuBuffer {
        self.allocation.memory()
    }

    /// Address as kernels see it.
    pub fn va(&self) -> GpuVa {
        self.memory().va()
    }

    /// Number of elements, as requested.
    pub fn len(&self) -> u64 {
        self.bytes() / size_of::<T>() as u64
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.memory().len()
    }

    /// Never: an empty allocation is refused.
    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Keys and range of the region.
    pub fn region(&self) -> &MemoryRegion {
        &self.allocation.region
    }
}

impl<T: Plain> DeviceBuffer<T> {
    /// Copies from the host to element `offset` and those behind it.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the range leaves the buffer.
    pub fn write(&self, offset: u64, from: &[T]) -> Result<(), GpuError> {
        let at = offset.saturating_mul(size_of::<T>() as u64);
        self.memory().write(at, from.as_bytes())
    }

    /// Copies from element `offset` and those behind it to the host.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the range leaves the buffer.
    pub fn read(&self, offset: u64, into: &mut [T]) -> Result<(), GpuError> {
        let at = offset.saturating_mul(size_of::<T>() as u64);
        self.memory().read(at, into.as_mut_bytes())
    }

    /// All elements, copied to the host.
    ///
    /// # Errors
    /// [`GpuError`]: the GPU's copy failed.
    pub fn to_vec(&self) -> Result<Vec<T>, GpuError> {
        let mut all: Vec<T> = (0..self.len()).map(|_| T::new_zeroed()).collect();
        self.read(0, &mut all)?;
        Ok(all)
    }
}

/// For code that works on any GPU memory, such as a pump: the registration lives as long as its
/// use.
impl<T> std::borrow::Borrow<GpuBuffer> for DeviceBuffer<T> {
    fn borrow(&self) -> &GpuBuffer {
        self.memory()
    }
}

impl<T> From<&DeviceBuffer<T>> for KernelArg {
    fn from(b: &DeviceBuffer<T>) -> KernelArg {
        KernelArg::Ptr(b.va())
    }
}

impl Drop for Allocation {
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
            // Giving the pages back would let a late DMA write into the next owner's buffer.
            std::mem::forget(memory);
        }
    }
}
