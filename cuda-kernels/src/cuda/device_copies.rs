//! Copies between memory of the host and GPU memory of the program, of any GPU in the process, for
//! callers that get plain pointers (MPI).
//!
//! The copies go through pinned slots, in a stream of their own in the GPU's primary context, which
//! is the runtime API's and PyTorch's. Memory of another context of the same GPU was not tried.
#![allow(unsafe_code)] // Calls into libcuda.

use std::collections::btree_map::{BTreeMap, Entry};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{self, CUpointer_attribute as A, CUresult};
use cudarc::driver::CudaContext;
use ringbell_nic_abi::GpuVa;

use super::context::Context;
use super::copy_engine::CopyEngine;
use super::driver;
use crate::cuda_error::CudaError;

/// Slots of pinned memory for each GPU.
const SLOTS: u32 = 16;

/// Whether the CUDA driver can be loaded.
pub fn has_driver() -> bool {
    driver::load().is_ok()
}

/// The number of the GPU that a pointer's memory belongs to, managed memory included; `None` for
/// memory of the host, and where no driver is loaded or CUDA was not started.
pub fn gpu_of(at: *const u8) -> Option<usize> {
    driver::load().ok()?;
    match owner(at) {
        Ok(found) => found,
        // The driver may want a context, and this thread has none.
        Err(CUresult::CUDA_ERROR_INVALID_CONTEXT) => {
            let _current = Current::keep().ok()?;
            let active = active_context()?;
            driver::make_current(active.cu_ctx()).ok()?;
            owner(at).ok()?
        }
        Err(_) => None,
    }
}

/// What the driver says of a pointer: its GPU, or none.
fn owner(at: *const u8) -> Result<Option<usize>, CUresult> {
    let ask = |which| {
        let mut value = 0_u32;
        let into = (&raw mut value).cast::<c_void>();
        // SAFETY: the pointer is to a live word, as long as these attributes.
        match unsafe { sys::cuPointerGetAttribute(into, which, at.addr() as u64) } {
            CUresult::CUDA_SUCCESS => Ok(value),
            refused => Err(refused),
        }
    };
    let kind = ask(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?;
    if kind != sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 {
        return Ok(None);
    }
    ask(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL).map(|ordinal| Some(ordinal as usize))
}

/// The primary context of the first GPU that has one.
fn active_context() -> Option<Arc<CudaContext>> {
    let mut count = 0;
    // SAFETY: the pointer is to a live integer.
    if unsafe { sys::cuDeviceGetCount(&mut count) } != CUresult::CUDA_SUCCESS {
        return None;
    }
    let is_active = |ordinal: &i32| {
        let (mut device, mut flags, mut active) = (0, 0, 0);
        // SAFETY: the pointers are to live integers, and the ordinal is below the count.
        unsafe {
            sys::cuDeviceGet(&mut device, *ordinal) == CUresult::CUDA_SUCCESS
                && sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active)
                    == CUresult::CUDA_SUCCESS
                && active != 0
        }
    };
    let ordinal = (0..count).find(is_active)?;
    CudaContext::new(ordinal as usize).ok()
}

/// A copy engine for each GPU whose memory was copied.
#[derive(Debug, Default)]
pub struct DeviceCopies {
    engines: Mutex<BTreeMap<usize, CopyEngine>>,
}

impl DeviceCopies {
    /// Without engines: each starts at its GPU's first copy.
    pub const fn new() -> DeviceCopies {
        DeviceCopies {
            engines: Mutex::new(BTreeMap::new()),
        }
    }

    /// Copies from GPU memory, and waits.
    ///
    /// # Errors
    /// [`CudaError::NotGpuMemory`]; what the driver says of the range; [`CudaError::Stuck`] when
    /// the GPU does not copy in time.
    ///
    /// # Safety
    /// The program writes nothing there meanwhile.
    pub unsafe fn read(&self, from: *const u8, into: &mut [u8]) -> Result<(), CudaError> {
        self.with_engine(from, |engine| engine.read_all(from.addr() as u64, into))
    }

    /// Copies to GPU memory, and waits.
    ///
    /// # Errors
    /// As [`DeviceCopies::read`].
    ///
    /// # Safety
    /// The program neither reads nor writes there meanwhile.
    pub unsafe fn write(&self, to: *mut u8, from: &[u8]) -> Result<(), CudaError> {
        self.with_engine(to, |engine| engine.write_all(to.addr() as u64, from))
    }

    fn with_engine(
        &self,
        at: *const u8,
        copy: impl FnOnce(&mut CopyEngine) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let va = GpuVa(at.addr() as u64);
        let ordinal = gpu_of(at).ok_or(CudaError::NotGpuMemory { va })?;
        let _current = Current::keep()?;
        // An engine that a panic left behind has its operations in order.
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        match engines.entry(ordinal) {
            Entry::Occupied(engine) => copy(engine.into_mut()),
            Entry::Vacant(place) => {
                let context = Arc::new(Context::new(ordinal)?);
                copy(place.insert(CopyEngine::new(context, SLOTS)?))
            }
        }
    }
}

/// The program's own current context, which comes back when this is dropped.
struct Current(sys::CUcontext);

impl Current {
    fn keep() -> Result<Current, CudaError> {
        let mut now = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        driver::check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut now) })?;
        Ok(Current(now))
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // SAFETY: it was current on this thread before, or none was. A failure would say that the
        // context is gone, which the program's next call says too.
        let _ = unsafe { sys::cuCtxSetCurrent(self.0) };
    }
}
