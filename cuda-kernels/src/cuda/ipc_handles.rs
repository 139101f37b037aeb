//! The driver's calls for IPC handles (CUDA driver API, `cuIpcGetMemHandle`).
#![allow(unsafe_code)] // Calls into libcuda.

use cudarc::driver::sys::{self, CUipcMemHandle, CUresult};

use super::driver;
use crate::cuda_error::CudaError;

/// The bytes of a handle.
pub(super) type Handle = [u8; 64];

/// Whether the driver has the calls. They are old; a driver without them is no reason to refuse a
/// GPU.
pub(super) fn needed() -> Result<(), CudaError> {
    let all = [
        "cuIpcGetMemHandle",
        "cuIpcOpenMemHandle_v2",
        "cuIpcCloseMemHandle",
    ];
    match all.into_iter().find(|symbol| !driver::has(symbol)) {
        Some(symbol) => Err(CudaError::MissingSymbol { symbol }),
        None => Ok(()),
    }
}

/// The handle of the allocation at `base`. Only after [`needed`], in the allocation's context.
pub(super) fn get(base: u64) -> (CUresult, Handle) {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    // SAFETY: the pointer is to a live handle; the driver checks the address.
    let r = unsafe { sys::cuIpcGetMemHandle(&mut handle, base) };
    (r, handle.reserved.map(|b| b as u8))
}

/// Opens an allocation in the current context, and returns its base here. Only after [`needed`].
pub(super) fn open(handle: &Handle) -> (CUresult, u64) {
    let handle = CUipcMemHandle {
        reserved: handle.map(|b| b as core::ffi::c_char),
    };
    let flags = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    let mut base = 0;
    // SAFETY: the pointer is to a live address; the driver checks the handle.
    let r = unsafe { sys::cuIpcOpenMemHandle_v2(&mut base, handle, flags) };
    (r, base)
}

/// Closes an allocation.
///
/// # Safety
/// [`open`] returned the base, it is closed once, and the context is current.
pub(super) unsafe fn close(base: u64) -> CUresult {
    // SAFETY: the caller's promise; an allocation was opened, so the driver has the call.
    unsafe { sys::cuIpcCloseMemHandle(base) }
}
