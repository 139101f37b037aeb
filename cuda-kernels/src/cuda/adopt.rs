//! Memory that somebody else allocated on the same GPU: `cudarc`, PyTorch, a program's own CUDA.
#![allow(unsafe_code)] // Calls into libcuda.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUpointer_attribute, CUresult};
use cudarc::driver::{CudaSlice, DevicePtr};
use ringbell_gtlb::PageTable;
use ringbell_nic_abi::GpuVa;

use super::context::Context;
use super::engine::PATIENCE;
use super::error::CudaError;
use super::gpu::CudaGpu;
use super::handles::RawEvent;
use super::ipc::{Import, OF_ANOTHER_PROCESS};
use super::memory::CudaMemory;
use crate::gpu::GpuError;

/// GPU memory that belongs to somebody else and that the NIC may reach until this is dropped.
/// Deregister it from the NIC first.
#[derive(Debug)]
pub struct ForeignMemory {
    va: GpuVa,
    len: u64,
    memory: Arc<CudaMemory>,
    way: String,
    /// What holds the range when several share it; without, the range ends with this.
    import: Option<Import>,
}

impl ForeignMemory {
    pub(super) fn of_import(va: GpuVa, len: u64, gpu: &CudaGpu, import: Import) -> ForeignMemory {
        ForeignMemory {
            va,
            len,
            memory: gpu.parts().1.clone(),
            way: format!("copy engine on a side stream, because {OF_ANOTHER_PROCESS}"),
            import: Some(import),
        }
    }

    /// First address.
    pub fn va(&self) -> GpuVa {
        self.va
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: an empty range is refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// By which way the NIC reaches it, and why.
    pub fn path(&self) -> &str {
        &self.way
    }

    /// The 64 KiB pages around it. Others' memory may lie in them too: register `va` and `len` alone.
    pub fn page_table(&self) -> PageTable {
        CudaMemory::pages_around(self.va, self.len)
    }

    /// Copies to it at `offset`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), GpuError> {
        self.memory.write(self.at(offset, from.len())?, from)
    }

    /// Copies from it at `offset`.
    ///
    /// # Errors
    /// [`GpuError`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), GpuError> {
        self.memory.read(self.at(offset, into.len())?, into)
    }

    /// The address of `len` bytes at `offset`, inside.
    fn at(&self, offset: u64, len: usize) -> Result<GpuVa, GpuError> {
        let end = offset.checked_add(len as u64);
        match end.filter(|end| *end <= self.len) {
            Some(_) => Ok(GpuVa(self.va.0 + offset)),
            None => Err(GpuError::NotAllocated {
                va: GpuVa(self.va.0.wrapping_add(offset)),
                len: len as u64,
            }),
        }
    }
}

impl AsRef<ForeignMemory> for ForeignMemory {
    fn as_ref(&self) -> &ForeignMemory {
        self
    }
}

impl<T> AsRef<ForeignMemory> for AdoptedSlice<T> {
    fn as_ref(&self) -> &ForeignMemory {
        &self.memory
    }
}

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        if self.import.is_none() {
            self.memory.free(self.va);
        }
    }
}

/// A `cudarc` slice that the NIC may reach. It comes back by [`AdoptedSlice::into_inner`].
#[derive(Debug)]
pub struct AdoptedSlice<T> {
    // Before the slice: the NIC may not reach freed memory.
    memory: ForeignMemory,
    slice: CudaSlice<T>,
}

impl<T> AdoptedSlice<T> {
    /// The memory, to be registered.
    pub fn memory(&self) -> &ForeignMemory {
        &self.memory
    }

    /// The slice, which the NIC may no longer reach. Deregister it first.
    pub fn into_inner(self) -> CudaSlice<T> {
        drop(self.memory);
        self.slice
    }
}

impl CudaGpu {
    /// Lets the NIC reach memory of this GPU that was allocated elsewhere.
    ///
    /// # Errors
    /// [`CudaError::NotGpuMemory`], [`CudaError::HostMemory`], [`CudaError::Managed`],
    /// [`CudaError::Foreign`], [`CudaError::Range`], [`CudaError::Shared`] when a part of it is known
    /// already.
    ///
    /// # Safety
    /// The memory is not freed before the answer was dropped, and what else uses it expects that
    /// the NIC writes it.
    pub unsafe fn adopt(&self, va: GpuVa, len: u64) -> Result<ForeignMemory, CudaError> {
        let (context, memory) = self.parts();
        let allocation = check(context, va, len)?;
        let way = memory.adopt(va, len, Ok(allocation))?;
        Ok(ForeignMemory {
            va,
            len,
            way,
            memory: memory.clone(),
            import: None,
        })
    }

    /// Lets the NIC reach a `cudarc` slice of this GPU's context, once its stream has done what it
    /// holds.
    ///
    /// # Errors
    /// As [`CudaGpu::adopt`], and [`CudaError::Stuck`]; the slice is dropped then.
    pub fn adopt_slice<T>(&self, slice: CudaSlice<T>) -> Result<AdoptedSlice<T>, CudaError> {
        let (context, _) = self.parts();
        let (va, sync) = slice.device_ptr(slice.stream());
        drop(sync);
        let stream = slice.stream().cu_stream();
        // SAFETY: the slice holds its stream.
        let filled = unsafe { RawEvent::behind(context.clone(), stream) }?;
        if !filled.wait(PATIENCE)? {
            return Err(CudaError::Stuck {
                what: "the slice's own stream",
                waited_ms: PATIENCE.as_millis() as u64,
            });
        }
        // SAFETY: the slice is owned until the memory was dropped.
        let memory = unsafe { self.adopt(GpuVa(va), slice.num_bytes() as u64) }?;
        Ok(AdoptedSlice { memory, slice })
    }
}

/// Whether the range is plain memory of this GPU, inside one allocation: whose base and size it returns.
pub(super) fn check(context: &Context, va: GpuVa, len: u64) -> Result<(u64, u64), CudaError> {
    context.bind()?;
    let mut kind = 0_u32;
    if !attribute(
        context,
        va,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        &mut kind,
    )? {
        return Err(CudaError::NotGpuMemory { va });
    }
    // A bool in the interface; the rest of the word stays 0.
    let mut managed = 0_u32;
    attribute(
        context,
        va,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        &mut managed,
    )?;
    if managed & 0xff != 0 {
        return Err(CudaError::Managed { va });
    }
    if kind != sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 {
        return Err(CudaError::HostMemory { va });
    }
    let mut found = 0_u32;
    attribute(
        context,
        va,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        &mut found,
    )?;
    let (found, wanted) = (found as i32, context.device.ordinal as i32);
    if found != wanted {
        return Err(CudaError::Foreign { va, found, wanted });
    }
    let (base, size) = around(context, va.0)?;
    let inside = va.0.checked_add(len).is_some_and(|end| end <= base + size);
    if len == 0 || !inside {
        return Err(CudaError::Range {
            va,
            len,
            base: GpuVa(base),
            size,
        });
    }
    Ok((base, size))
}

/// Base and size of the allocation around an address.
pub(super) fn around(context: &Context, va: u64) -> Result<(u64, u64), CudaError> {
    let (mut base, mut size) = (0, 0);
    // SAFETY: the pointers are to live values.
    context.check("cuMemGetAddressRange", unsafe {
        sys::cuMemGetAddressRange_v2(&mut base, &mut size, va)
    })?;
    Ok((base, size as u64))
}

/// An attribute of at most 32 bits; false when the driver knows no such pointer.
pub(super) fn attribute(
    context: &Context,
    va: GpuVa,
    which: CUpointer_attribute,
    value: &mut u32,
) -> Result<bool, CudaError> {
    let data = std::ptr::from_mut(value).cast::<c_void>();
    // SAFETY: the pointer is to a live word, as long as the longest of these attributes.
    match unsafe { sys::cuPointerGetAttribute(data, which, va.0) } {
        CUresult::CUDA_ERROR_INVALID_VALUE => Ok(false),
        r => context.check("cuPointerGetAttribute", r).map(|()| true),
    }
}
