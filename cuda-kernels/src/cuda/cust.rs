//! Adopted buffers of the crate `cust` (feature `cust`).
//!
//! `cust` uses the GPU's primary context, as this crate does, so that its pointers are valid here.
//! It links libcuda when a program is built, which is why the feature is off by default: see
//! docs/architecture.md, "Memory of other libraries".
#![allow(unsafe_code)] // Adopts memory whose owner it holds.

use std::fmt;

use cust::memory::{DeviceBuffer, DeviceCopy};
use ringbell_nic_abi::GpuVa;

use super::adopt::ForeignMemory;
use super::gpu::CudaGpu;
use crate::cuda_error::CudaError;

/// A buffer of `cust` that the NIC may reach. It comes back by [`AdoptedBuffer::into_inner`].
pub struct AdoptedBuffer<T: DeviceCopy> {
    // Before the buffer: the NIC may not reach freed memory.
    memory: ForeignMemory,
    buffer: DeviceBuffer<T>,
}

impl<T: DeviceCopy> fmt::Debug for AdoptedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdoptedBuffer({:?})", self.memory)
    }
}

impl<T: DeviceCopy> AsRef<ForeignMemory> for AdoptedBuffer<T> {
    fn as_ref(&self) -> &ForeignMemory {
        &self.memory
    }
}

impl<T: DeviceCopy> AdoptedBuffer<T> {
    /// The memory, to be registered.
    pub fn memory(&self) -> &ForeignMemory {
        &self.memory
    }

    /// The buffer, which the NIC may no longer reach. Deregister it first.
    pub fn into_inner(self) -> DeviceBuffer<T> {
        drop(self.memory);
        self.buffer
    }
}

impl CudaGpu {
    /// Lets the NIC reach a buffer of `cust`. The program's streams must have finished with it.
    ///
    /// # Errors
    /// As [`CudaGpu::adopt`], among them [`CudaError::Range`] for a buffer without elements; the
    /// buffer is dropped then.
    pub fn adopt_buffer<T: DeviceCopy>(
        &self,
        buffer: DeviceBuffer<T>,
    ) -> Result<AdoptedBuffer<T>, CudaError> {
        let va = GpuVa(buffer.as_device_ptr().as_raw());
        let bytes = buffer.len() as u64 * size_of::<T>() as u64;
        // SAFETY: the buffer is owned until the memory was dropped.
        let memory = unsafe { self.adopt(va, bytes) }?;
        Ok(AdoptedBuffer { memory, buffer })
    }
}
