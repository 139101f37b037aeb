//! The driver, its one GPU, and the primary context.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::{
    call, faults, gpu, put, ready, Result, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, UNKNOWN,
};

/// The one context.
const CONTEXT: usize = 0xc0de_0000;

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn has_current() -> bool {
    CURRENT.get() == CONTEXT
}

#[no_mangle]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> Result {
    match flags {
        0 if faults().broken => UNKNOWN,
        0 if faults().no_device => NO_DEVICE,
        0 => 0,
        _ => INVALID_VALUE,
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Result {
    let v = if faults().old_driver { 11_080 } else { 13_000 };
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(version, v) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Result {
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(count, i32::from(!faults().no_device)) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Result {
    call(|| match ordinal {
        // SAFETY: the caller's pointer.
        0 => unsafe { put(device, 0) },
        _ => Err(INVALID_DEVICE),
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> Result {
    let text = b"Mock GPU\0";
    if device != 0 || name.is_null() || (len as usize) < text.len() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's buffer has `len` bytes, enough for the text.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
    0
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int) -> Result {
    // In capitals, as the driver writes it; there is no such device.
    let text = b"0000:FE:1F.7\0";
    if device != 0 || id.is_null() || (len as usize) < text.len() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's buffer has `len` bytes, enough for the text.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), id, text.len()) };
    0
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> Result {
    let total = faults().memory.unwrap_or(128 << 20) as usize;
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(bytes, total) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    _device: c_int,
) -> Result {
    let v = match attribute {
        75 => 9,      // COMPUTE_CAPABILITY_MAJOR: as an H100
        76 => 0,      // COMPUTE_CAPABILITY_MINOR
        19 | 41 => 1, // CAN_MAP_HOST_MEMORY, UNIFIED_ADDRESSING
        1 => 1024,    // MAX_THREADS_PER_BLOCK
        crate::words::ATTRIBUTE => c_int::from(!faults().no_words),
        _ => 0, // among them memory pools: not here
    };
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(value, v) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(ctx: *mut *mut c_void, _device: c_int) -> Result {
    gpu(); // So that a lack of memory is seen here.
           // SAFETY: the caller's pointer.
    call(|| unsafe { put(ctx, CONTEXT as *mut c_void) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Result {
    0
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxGetCurrent(ctx: *mut *mut c_void) -> Result {
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(ctx, CURRENT.get() as *mut c_void) })
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxSetCurrent(ctx: *mut c_void) -> Result {
    CURRENT.set(ctx as usize);
    0
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxSynchronize() -> Result {
    call(|| {
        ready()?;
        crate::stream::synchronize_all()
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuGetErrorName(error: Result, name: *mut *const c_char) -> Result {
    let text = match error {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        100 => c"CUDA_ERROR_NO_DEVICE",
        200 => c"CUDA_ERROR_INVALID_IMAGE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        209 => c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(name, text.as_ptr()) })
}
