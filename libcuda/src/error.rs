//! What a call answers: CUresult and its numbers.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// CUresult.
pub type Result = u32;
pub const SUCCESS: Result = 0;
pub const INVALID_VALUE: Result = 1;
pub const OUT_OF_MEMORY: Result = 2;
pub const NOT_INITIALIZED: Result = 3;
pub const NO_DEVICE: Result = 100;
pub const INVALID_DEVICE: Result = 101;
pub const INVALID_IMAGE: Result = 200;
pub const INVALID_CONTEXT: Result = 201;
pub const NO_BINARY_FOR_GPU: Result = 209;
pub const INVALID_PTX: Result = 218;
pub const UNSUPPORTED_PTX_VERSION: Result = 222;
pub const FILE_NOT_FOUND: Result = 301;
pub const INVALID_HANDLE: Result = 400;
pub const NOT_FOUND: Result = 500;
pub const NOT_READY: Result = 600;
pub const ILLEGAL_ADDRESS: Result = 700;
pub const ASSERT: Result = 710;
pub const MISALIGNED_ADDRESS: Result = 716;
pub const LAUNCH_FAILED: Result = 719;
pub const HOST_MEMORY_ALREADY_REGISTERED: Result = 712;
pub const HOST_MEMORY_NOT_REGISTERED: Result = 713;
pub const NOT_PERMITTED: Result = 800;
pub const NOT_SUPPORTED: Result = 801;
pub const COOPERATIVE_LAUNCH_TOO_LARGE: Result = 720;
pub const STREAM_CAPTURE_UNSUPPORTED: Result = 900;
pub const UNKNOWN: Result = 999;

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What no error number says, on standard error.
pub(crate) fn say(text: &str) {
    eprintln!("ringbell libcuda: {text}");
}

/// Runs a call's body, whose error is its result.
pub(crate) fn call(body: impl FnOnce() -> std::result::Result<(), Result>) -> Result {
    match body() {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

/// Stores a result through a pointer of the caller, if it is one.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> std::result::Result<(), Result> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of the driver's function promises a pointer to such a value.
    unsafe { to.write(value) };
    Ok(())
}
