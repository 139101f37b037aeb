//! Attributes of kernels, and how many of their blocks fit.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use crate::gpu::{capability, sms, MOST_SHARED_BYTES};
use crate::launch::{needs, resident};
use crate::module::function;
use crate::{call, put, ready, Result, INVALID_VALUE};

#[no_mangle]
pub unsafe extern "C" fn cuFuncLoad(f: *mut c_void) -> Result {
    call(|| {
        ready()?;
        function(f)?.load("cuFuncLoad")
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuFuncGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    f: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        let f = function(f)?;
        f.load("cuFuncGetAttribute")?;
        let needs = f.needs()?;
        let v = match attribute {
            0 => f.max_threads() as c_int,
            1 => needs.shared_bytes as c_int,
            2 => 0, // CONST_SIZE_BYTES: constants lie in GPU memory.
            3 => needs.local_bytes as c_int,
            // NUM_REGS: registers have no bound; as many as let a multiprocessor be full.
            4 => 32,
            // PTX_VERSION: that of the text, by which libraries know which of their kernels it is.
            // BINARY_VERSION.
            5 => f.target(),
            6 => capability(),
            7 => 0, // CACHE_MODE_CA
            8 => f.most_dynamic.load(Ordering::Relaxed) as c_int,
            9 => -1, // PREFERRED_SHARED_MEMORY_CARVEOUT: the default
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(value, v) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuFuncSetAttribute(
    f: *mut c_void,
    attribute: c_uint,
    value: c_int,
) -> Result {
    call(|| {
        ready()?;
        let f = function(f)?;
        match attribute {
            8 => {
                let room = MOST_SHARED_BYTES.saturating_sub(f.needs()?.shared_bytes);
                let bytes = u32::try_from(value).ok().filter(|b| *b <= room);
                f.most_dynamic
                    .store(bytes.ok_or(INVALID_VALUE)?, Ordering::Relaxed);
                Ok(())
            }
            9 if (-1..=100).contains(&value) => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    })
}

/// Caches are not emulated.
#[no_mangle]
pub unsafe extern "C" fn cuFuncSetCacheConfig(f: *mut c_void, _config: c_uint) -> Result {
    call(|| {
        ready()?;
        function(f).map(drop)
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuFuncGetName(name: *mut *const c_char, f: *mut c_void) -> Result {
    call(|| {
        ready()?;
        let f = function(f)?;
        let text = std::ffi::CString::new(f.name.as_str()).map_err(|_| INVALID_VALUE)?;
        // Never freed: the caller keeps it as long as the module.
        // SAFETY: the caller's pointer.
        unsafe { put(name, text.into_raw().cast_const()) }
    })
}

/// Bytes and offset of a parameter, by its index.
#[no_mangle]
pub unsafe extern "C" fn cuFuncGetParamInfo(
    f: *mut c_void,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> Result {
    call(|| {
        ready()?;
        let f = function(f)?;
        let (size, at) = *f.parameters.get(index).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's pointers; the second may be null.
        unsafe {
            put(offset, at)?;
            if !bytes.is_null() {
                put(bytes, size)?;
            }
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    f: *mut c_void,
    threads: c_int,
    dynamic_shared: usize,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe {
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, dynamic_shared, 0)
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut c_int,
    f: *mut c_void,
    threads: c_int,
    dynamic_shared: usize,
    _flags: c_uint,
) -> Result {
    call(|| {
        ready()?;
        let f = function(f)?;
        let threads = u64::try_from(threads).ok().filter(|n| *n > 0);
        let threads = threads.ok_or(INVALID_VALUE)?;
        let fit = match threads <= f.max_threads() {
            true => resident(threads, needs(&f, dynamic_shared as u64)?),
            false => 0,
        };
        // SAFETY: the caller's pointer.
        unsafe { put(blocks, fit as c_int) }
    })
}

/// Bytes of dynamic shared memory for a block of so many threads.
type BytesOfBlock = unsafe extern "C" fn(c_int) -> usize;

#[no_mangle]
pub unsafe extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut c_int,
    block: *mut c_int,
    f: *mut c_void,
    bytes_of: Option<BytesOfBlock>,
    dynamic_shared: usize,
    limit: c_int,
) -> Result {
    call(|| {
        ready()?;
        let f = function(f)?;
        let most = match limit {
            0 => f.max_threads(),
            n => f.max_threads().min(n.max(1) as u64),
        };
        // Whole warps, the largest first; the first of those that fill a multiprocessor best.
        let mut best = (0, 0, 0);
        for threads in (1..=most.div_ceil(32)).rev().map(|w| (w * 32).min(most)) {
            let bytes = match bytes_of {
                // SAFETY: the caller's function.
                Some(of) => unsafe { of(threads as c_int) },
                None => dynamic_shared,
            };
            let fit = resident(threads, needs(&f, bytes as u64)?);
            if fit * threads > best.0 {
                best = (fit * threads, threads, fit);
            }
        }
        // SAFETY: the caller's pointers.
        unsafe {
            put(grid, (best.2 * sms() as u64) as c_int)?;
            put(block, best.1 as c_int)
        }
    })
}
