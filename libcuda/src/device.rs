//! The driver, its one GPU, and the primary context.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use crate::gpu::{capability, sms, MOST_SHARED_BYTES, SHARED_BYTES, SHARED_BYTES_OF_SM};
use crate::primary::{is_forked, stack, CONTEXT, CURRENT, PROCESS, RETAINED, STACK};
use crate::{
    call, faults, gpu, put, ready, strict, Result, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE,
    NOT_INITIALIZED, NOT_PERMITTED, NO_DEVICE, SUCCESS, UNKNOWN,
};

#[no_mangle]
pub unsafe extern "C" fn cuInit(flags: c_uint) -> Result {
    if is_forked() {
        return NOT_INITIALIZED;
    }
    PROCESS.store(std::process::id(), Ordering::Relaxed);
    match (flags, faults().init) {
        (0, Some(code)) => code,
        (0, _) if faults().broken => UNKNOWN,
        (0, _) if faults().no_device => NO_DEVICE,
        (0, _) => gpu::make().err().unwrap_or(SUCCESS),
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
    let text: &[u8] = match strict::is_on() {
        true => b"Mock GPU\0",
        false => b"Ringbell emulated GPU\0",
    };
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
    let total = crate::memory_bytes() as usize;
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(bytes, total) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    _device: c_int,
) -> Result {
    let capability = capability();
    let told = faults().attributes.iter().find(|(id, _)| *id == attribute);
    let v = match attribute {
        _ if told.is_some() => told.map_or(0, |(_, value)| *value),
        75 => capability / 10,      // COMPUTE_CAPABILITY_MAJOR: as an H100
        76 => capability % 10,      // COMPUTE_CAPABILITY_MINOR
        16 => sms(),                // MULTIPROCESSOR_COUNT
        19 | 41 => 1,               // CAN_MAP_HOST_MEMORY, UNIFIED_ADDRESSING
        91 => 1, // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: said, though what is shared lies elsewhere
        95 => 1, // COOPERATIVE_LAUNCH
        116 => 1, // GPU_DIRECT_RDMA_SUPPORTED
        117 => 1, // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: by the host
        118 => 0, // GPU_DIRECT_RDMA_WRITES_ORDERING: none
        1..=3 => 1024, // MAX_THREADS_PER_BLOCK, MAX_BLOCK_DIM_X, _Y
        4 => 64, // MAX_BLOCK_DIM_Z
        5 => i32::MAX, // MAX_GRID_DIM_X
        6 | 7 => 65_535, // MAX_GRID_DIM_Y, _Z
        8 => SHARED_BYTES as c_int, // MAX_SHARED_MEMORY_PER_BLOCK
        9 => 64 << 10, // TOTAL_CONSTANT_MEMORY
        10 => 32, // WARP_SIZE
        11 => i32::MAX, // MAX_PITCH
        12 | 82 => 65_536, // MAX_REGISTERS_PER_BLOCK, _PER_MULTIPROCESSOR
        14 => 512, // TEXTURE_ALIGNMENT
        31 => 1, // CONCURRENT_KERNELS
        39 => 2048, // MAX_THREADS_PER_MULTIPROCESSOR
        40 => 1, // ASYNC_ENGINE_COUNT
        78 => 1, // STREAM_PRIORITIES_SUPPORTED
        81 => SHARED_BYTES_OF_SM as c_int, // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        83 | 89 => 1, // MANAGED_MEMORY, CONCURRENT_MANAGED_ACCESS
        97 => MOST_SHARED_BYTES as c_int, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        102 | 103 => 1, // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        // MEMORY_POOLS_SUPPORTED; the SDK does without, as it must on GPUs that have none.
        115 => c_int::from(!strict::is_on()),
        106 => 32,                              // MAX_BLOCKS_PER_MULTIPROCESSOR
        111 => 1024,                            // RESERVED_SHARED_MEMORY_PER_BLOCK
        122 => c_int::from(!faults().no_words), // CAN_USE_64_BIT_STREAM_MEM_OPS
        _ => 0,
    };
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(value, v) })
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(ctx: *mut *mut c_void, _device: c_int) -> Result {
    call(|| {
        if let Some(code) = faults().context {
            return Err(code);
        }
        gpu(); // So that a lack of memory is seen here.
        RETAINED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's pointer.
        unsafe { put(ctx, CONTEXT as *mut c_void) }
    })
}

/// Takes the flags of how a CPU waits, which change nothing here.
#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxSetFlags_v2(_device: c_int, _flags: c_uint) -> Result {
    0
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxGetState(
    _device: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Result {
    call(|| {
        let retained = RETAINED.load(Ordering::Relaxed) > 0;
        // SAFETY: the caller's pointers.
        unsafe {
            put(flags, 0)?;
            put(active, retained.into())
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> Result {
    match RETAINED.load(Ordering::Relaxed) {
        0 => return INVALID_CONTEXT,
        // The context ends, with everything in it.
        1 => {
            strict::wait_for_all("cuDevicePrimaryCtxRelease");
            crate::stream::forget_all();
        }
        _ => {}
    }
    RETAINED.fetch_sub(1, Ordering::Relaxed);
    0
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxGetLimit(value: *mut usize, limit: c_uint) -> Result {
    call(|| {
        ready()?;
        match limit {
            // SAFETY: the caller's pointer.
            0 => unsafe { put(value, stack()) },
            _ => Err(INVALID_VALUE),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxSetLimit(limit: c_uint, value: usize) -> Result {
    call(|| {
        ready()?;
        if limit != 0 {
            return Err(INVALID_VALUE);
        }
        // "if necessary, the device will block until all preceding requested tasks are complete"
        strict::wait_for_all("cuCtxSetLimit");
        STACK.store(value, Ordering::Relaxed);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(least, 0)?;
            put(greatest, -5)
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuModuleGetLoadingMode(mode: *mut c_uint) -> Result {
    let eager = std::env::var("CUDA_MODULE_LOADING").is_ok_and(|v| v == "EAGER");
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(mode, if eager { 1 } else { 2 }) })
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxGetCurrent(ctx: *mut *mut c_void) -> Result {
    if crate::IN_HOST_FUNCTION.get() {
        return NOT_PERMITTED;
    }
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(ctx, CURRENT.get() as *mut c_void) })
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxSetCurrent(ctx: *mut c_void) -> Result {
    if crate::IN_HOST_FUNCTION.get() {
        return NOT_PERMITTED;
    }
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

/// The name: descriptions are the driver's own.
#[no_mangle]
pub unsafe extern "C" fn cuGetErrorString(error: Result, text: *mut *const c_char) -> Result {
    // SAFETY: the caller's pointer.
    unsafe { cuGetErrorName(error, text) }
}

#[no_mangle]
pub unsafe extern "C" fn cuGetErrorName(error: Result, name: *mut *const c_char) -> Result {
    let text = match error {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        34 => c"CUDA_ERROR_STUB_LIBRARY",
        46 => c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        100 => c"CUDA_ERROR_NO_DEVICE",
        101 => c"CUDA_ERROR_INVALID_DEVICE",
        200 => c"CUDA_ERROR_INVALID_IMAGE",
        201 => c"CUDA_ERROR_INVALID_CONTEXT",
        209 => c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        214 => c"CUDA_ERROR_ECC_UNCORRECTABLE",
        218 => c"CUDA_ERROR_INVALID_PTX",
        222 => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        301 => c"CUDA_ERROR_FILE_NOT_FOUND",
        400 => c"CUDA_ERROR_INVALID_HANDLE",
        401 => c"CUDA_ERROR_ILLEGAL_STATE",
        500 => c"CUDA_ERROR_NOT_FOUND",
        600 => c"CUDA_ERROR_NOT_READY",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        710 => c"CUDA_ERROR_ASSERT",
        712 => c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        713 => c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        716 => c"CUDA_ERROR_MISALIGNED_ADDRESS",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        720 => c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        800 => c"CUDA_ERROR_NOT_PERMITTED",
        801 => c"CUDA_ERROR_NOT_SUPPORTED",
        802 => c"CUDA_ERROR_SYSTEM_NOT_READY",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        804 => c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        900 => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        901 => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        902 => c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
        903 => c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        904 => c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        905 => c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        906 => c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        907 => c"CUDA_ERROR_CAPTURED_EVENT",
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(name, text.as_ptr()) })
}
