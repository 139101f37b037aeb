//! Adopted memory: GPU memory that other code of the program, or another process, has allocated.
#![allow(unsafe_code)] // Promises about memory and streams of other owners.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, DevicePtr};
use ringbell_gtlb::PageTable;
use ringbell_nic_abi::GpuVa;

use super::copy_engine::PATIENCE;
use super::gpu::CudaGpu;
use super::handles::RawEvent;
use super::memory::CudaMemory;
use super::open_allocations::{self, OpenAllocation, OF_ANOTHER_PROCESS};
use super::{ipc, ipc_handles, pointer};
use crate::cuda_error::CudaError;
use crate::gpu::{GpuError, SharedMemory};

/// GPU memory with another owner, which the NIC may reach until this is dropped. Deregister it from
/// the NIC first.
#[derive(Debug)]
pub struct ForeignMemory {
    va: GpuVa,
    len: u64,
    memory: Arc<CudaMemory>,
    path: String,
    /// One use of an allocation of another process. Without it, dropping this ends the NIC's
    /// access.
    opened: Option<OpenAllocation>,
}

impl ForeignMemory {
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

    /// How the NIC reaches it, and why.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The 64 KiB pages around it. Other memory may lie in them too: register `va` and `len` alone.
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
        if self.opened.is_none() {
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
    /// [`CudaError::Foreign`], [`CudaError::Range`], [`CudaError::Shared`] when a part of it is
    /// known already.
    ///
    /// # Safety
    /// The memory is not freed before the answer was dropped, and its other users expect that the
    /// NIC writes it.
    pub unsafe fn adopt(&self, va: GpuVa, len: u64) -> Result<ForeignMemory, CudaError> {
        let (context, memory) = self.parts();
        let allocation = pointer::check_range(context, va, len)?;
        let path = memory.adopt(va, len, Ok(allocation))?;
        Ok(ForeignMemory {
            va,
            len,
            path,
            memory: memory.clone(),
            opened: None,
        })
    }

    /// Waits until the present work of a stream has ended. 1 is the legacy default stream, 2 that
    /// of the calling thread; others are the driver's handles.
    ///
    /// # Errors
    /// [`CudaError::Stuck`] when it has not ended in time; what the driver says of the stream.
    ///
    /// # Safety
    /// It is a live stream of this GPU's primary context.
    pub unsafe fn wait_for_stream(&self, stream: u64) -> Result<(), CudaError> {
        let (context, _) = self.parts();
        let stream = std::ptr::with_exposed_provenance_mut(stream as usize);
        // SAFETY: the caller's promise.
        let end = unsafe { RawEvent::behind(context.clone(), stream) }?;
        match end.wait(PATIENCE)? {
            true => Ok(()),
            false => Err(CudaError::Stuck {
                what: "the stream of the memory's owner",
                waited_ms: PATIENCE.as_millis() as u64,
            }),
        }
    }

    /// Lets the NIC reach a `cudarc` slice of this GPU's context, once the work of its stream has
    /// ended.
    ///
    /// # Errors
    /// As [`CudaGpu::adopt`], and [`CudaError::Stuck`]; the slice is dropped then.
    pub fn adopt_slice<T>(&self, slice: CudaSlice<T>) -> Result<AdoptedSlice<T>, CudaError> {
        let (va, sync) = slice.device_ptr(slice.stream());
        drop(sync);
        let stream = slice.stream().cu_stream();
        // SAFETY: the slice holds its stream.
        unsafe { self.wait_for_stream(stream as u64) }?;
        // SAFETY: the slice is owned until the memory was dropped.
        let memory = unsafe { self.adopt(GpuVa(va), slice.num_bytes() as u64) }?;
        Ok(AdoptedSlice { memory, slice })
    }

    /// Opens memory that another process has named by [`GpuBuffer::share`](crate::GpuBuffer::share)
    /// or [`CudaGpu::share`]. Kernels use it at its address here, and the NIC reaches it once it is
    /// registered (`Nic::register_foreign`). Parts of one allocation share one mapping, which the
    /// last of them closes.
    ///
    /// # Errors
    /// [`CudaError::SameProcess`]: it is our own memory, use its address. [`CudaError::Stale`]: it was freed, or its process
    /// has ended. [`CudaError::OtherGpu`], [`CudaError::MissingSymbol`],
    /// [`CudaError::OutOfMemory`].
    ///
    /// # Safety
    /// The owning process does not free the memory before the answer was dropped: the driver leaves
    /// undefined what is read and written then (`cuIpcOpenMemHandle`).
    pub unsafe fn open_shared(&self, shared: &SharedMemory) -> Result<ForeignMemory, CudaError> {
        ipc_handles::needed()?;
        let (pid, (context, memory)) = (shared.pid, self.parts());
        if shared.process == ipc::process() {
            return Err(CudaError::SameProcess { pid });
        }
        let own = ipc::uuid(context);
        if own != shared.gpu && own != [0; 16] && shared.gpu != [0; 16] {
            return Err(CudaError::OtherGpu { pid });
        }
        let (opened, base, size) = open_allocations::open(context, memory, self.opened(), shared)?;
        let inside = shared.offset.checked_add(shared.len);
        if inside.is_none_or(|end| end > size) {
            return Err(CudaError::Stale { pid });
        }
        Ok(ForeignMemory {
            va: GpuVa(base + shared.offset),
            len: shared.len,
            memory: memory.clone(),
            path: format!("copy engine on a side stream, because {OF_ANOTHER_PROCESS}"),
            opened: Some(opened),
        })
    }
}
