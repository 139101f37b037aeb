//! [`GpuBuffer`]: an allocation of GPU memory.

use std::sync::Arc;

use ringbell_nic_abi::GpuVa;

use super::{GpuBackend, GpuError, SharedMemory};
use crate::launch::KernelArg;

/// An allocation; freed when dropped. Deregister it from the NIC first.
#[derive(Debug)]
pub struct GpuBuffer {
    va: GpuVa,
    len: u64,
    gpu: Arc<dyn GpuBackend>,
}

impl GpuBuffer {
    pub(super) fn of(va: GpuVa, len: u64, gpu: Arc<dyn GpuBackend>) -> GpuBuffer {
        GpuBuffer { va, len, gpu }
    }

    /// First address.
    pub fn va(&self) -> GpuVa {
        self.va
    }

    /// Bytes, as asked for.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: an empty allocation is refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies to the buffer at `offset`.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the range leaves the buffer.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), GpuError> {
        let at = self.range(offset, from.len() as u64)?;
        self.gpu.write(at, from)
    }

    /// Copies from the buffer at `offset`.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the range leaves the buffer.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), GpuError> {
        let at = self.range(offset, into.len() as u64)?;
        self.gpu.read(at, into)
    }

    /// Loads a word that a kernel stores with Release (Acquire).
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when it leaves the buffer, [`GpuError::Misaligned`].
    pub fn load_u64(&self, offset: u64) -> Result<u64, GpuError> {
        self.gpu.load_u64(self.aligned(offset, 8)?)
    }

    /// Stores a word that a kernel loads with Acquire (Release).
    ///
    /// # Errors
    /// As for [`GpuBuffer::load_u64`].
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), GpuError> {
        self.gpu.store_u64(self.aligned(offset, 8)?, value)
    }

    /// As [`GpuBuffer::load_u64`], for 32 bits.
    ///
    /// # Errors
    /// As for [`GpuBuffer::load_u64`].
    pub fn load_u32(&self, offset: u64) -> Result<u32, GpuError> {
        self.gpu.load_u32(self.aligned(offset, 4)?)
    }

    /// As [`GpuBuffer::store_u64`], for 32 bits.
    ///
    /// # Errors
    /// As for [`GpuBuffer::load_u64`].
    pub fn store_u32(&self, offset: u64, value: u32) -> Result<(), GpuError> {
        self.gpu.store_u32(self.aligned(offset, 4)?, value)
    }

    /// Names `len` bytes at `offset` for another process, which opens them with
    /// `CudaGpu::open_shared`. The buffer must live until every process has closed what it opened.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the range leaves the buffer, [`GpuError::NotShareable`] on
    /// the emulated GPU, [`GpuError::Cuda`] when the driver shares no such memory.
    pub fn share(&self, offset: u64, len: u64) -> Result<SharedMemory, GpuError> {
        let at = self.range(offset, len)?;
        self.gpu.share(at, len)
    }

    fn aligned(&self, offset: u64, size: u64) -> Result<GpuVa, GpuError> {
        if !offset.is_multiple_of(size) {
            return Err(GpuError::Misaligned { offset, size });
        }
        self.range(offset, size)
    }

    fn range(&self, offset: u64, len: u64) -> Result<GpuVa, GpuError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(GpuVa(self.va.0 + offset)),
            _ => Err(GpuError::NotAllocated {
                va: GpuVa(self.va.0.wrapping_add(offset)),
                len,
            }),
        }
    }
}

impl From<&GpuBuffer> for KernelArg {
    fn from(b: &GpuBuffer) -> KernelArg {
        KernelArg::Ptr(b.va)
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        self.gpu.free(self.va);
    }
}
