//! CUDA's IPC handles (CUDA driver API, `cuIpcGetMemHandle`): names of GPU memory for other
//! processes.
//!
//! The driver shares whole allocations; a part is a handle and an offset.
#![allow(unsafe_code)] // Calls into libcuda.
#![allow(clippy::disallowed_methods)] // A process draws its random number once.

use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUpointer_attribute, CUresult};
use ringbell_nic_abi::GpuVa;

use super::context::Context;
use super::{driver, ipc_handles, pointer};
use crate::cuda_error::CudaError;
use crate::gpu::SharedMemory;

/// A random number of this process. It stays unique where process numbers are used again.
pub(super) fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| {
        let mut bytes = [0_u8; 8];
        let flags = rustix::rand::GetRandomFlags::empty();
        // Eight bytes are never cut short; without a generator the clock still tells processes
        // apart.
        match rustix::rand::getrandom(&mut bytes, flags) {
            Ok(8) => u64::from_ne_bytes(bytes),
            _ => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                (now.tv_sec as u64) << 32 ^ now.tv_nsec as u64 ^ u64::from(std::process::id())
            }
        }
    })
}

/// The driver's name of a GPU; zeros when it has none.
pub(super) fn uuid(context: &Context) -> [u8; 16] {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    if driver::has("cuDeviceGetUuid_v2") {
        // SAFETY: the pointer is to a live value; the device is the context's.
        let r = unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, context.cuda.cu_device()) };
        if r != CUresult::CUDA_SUCCESS {
            return [0; 16];
        }
    }
    uuid.bytes.map(|b| b as u8)
}

/// Exports `len` bytes from `va` for other processes.
pub(super) fn share(context: &Context, va: GpuVa, len: u64) -> Result<SharedMemory, CudaError> {
    ipc_handles::needed()?;
    let (base, _) = pointer::check_range(context, va, len)?;
    let mut identity = 0_u64;
    // SAFETY: the attribute has 64 bits, and the pointer is to a live word of them.
    context.check("cuPointerGetAttribute", unsafe {
        sys::cuPointerGetAttribute(
            std::ptr::from_mut(&mut identity).cast(),
            CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID,
            va.0,
        )
    })?;
    // A bool in the interface, and older than any driver that is used; the rest of the word
    // stays 0.
    let mut capable = 0_u32;
    let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    let known = pointer::attribute(context, va, which, &mut capable)?;
    if known && capable & 0xff == 0 {
        let why = "the driver shares only memory of cuMemAlloc: none of a pool, of cuMemCreate or of another process";
        return Err(CudaError::NotExportable { va, why });
    }
    let (result, handle) = ipc_handles::get(base);
    match result {
        CUresult::CUDA_ERROR_INVALID_VALUE | CUresult::CUDA_ERROR_NOT_SUPPORTED => {
            let why = "the driver gives no handle for it (cuIpcGetMemHandle)";
            return Err(CudaError::NotExportable { va, why });
        }
        r => context.check("cuIpcGetMemHandle", r)?,
    }
    Ok(SharedMemory {
        handle,
        gpu: uuid(context),
        pid: std::process::id(),
        process: process(),
        identity,
        offset: va.0 - base,
        len,
    })
}
