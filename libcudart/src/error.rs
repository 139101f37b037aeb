//! Errors: numbers, names, what they mean, and the last one of each thread.

use std::cell::Cell;
use std::ffi::{c_char, CStr};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::driver::Code;

thread_local! {
    /// The last error of this thread that was not asked for.
    static LAST: Cell<Code> = const { Cell::new(0) };
}

/// An error that no call recovers from.
static LOST: AtomicI32 = AtomicI32::new(0);

macro_rules! errors {
    ($($Const:ident = $number:literal, $name:literal, $text:literal;)+) => {
        $(#[allow(dead_code)] pub(crate) const $Const: Code = $number;)+

        /// Name and meaning.
        fn describe(error: Code) -> Option<(&'static CStr, &'static CStr)> {
            match error {
                $($number => Some(($name, $text)),)+
                _ => None,
            }
        }
    };
}

errors! {
    SUCCESS = 0, c"cudaSuccess", c"no error";
    INVALID_VALUE = 1, c"cudaErrorInvalidValue", c"an argument is out of its range";
    MEMORY_ALLOCATION = 2, c"cudaErrorMemoryAllocation", c"there is not enough memory";
    INITIALIZATION = 3, c"cudaErrorInitializationError", c"the driver is not initialised";
    INVALID_CONFIGURATION = 9, c"cudaErrorInvalidConfiguration", c"the grid or the block has a size that the GPU cannot run";
    INVALID_PITCH = 12, c"cudaErrorInvalidPitchValue", c"the rows are further apart than they may be, or nearer";
    INVALID_SYMBOL = 13, c"cudaErrorInvalidSymbol", c"no variable of the device has this address on the host";
    INVALID_DIRECTION = 21, c"cudaErrorInvalidMemcpyDirection", c"the copy has a direction that is none";
    INSUFFICIENT_DRIVER = 35, c"cudaErrorInsufficientDriver", c"there is no CUDA driver, or it lacks a function";
    MISSING_CONFIGURATION = 52, c"cudaErrorMissingConfiguration", c"a kernel was called without a configuration";
    INVALID_DEVICE_FUNCTION = 98, c"cudaErrorInvalidDeviceFunction", c"no kernel has this address on the host, or it is not for this GPU";
    NO_DEVICE = 100, c"cudaErrorNoDevice", c"there is no GPU";
    INVALID_DEVICE = 101, c"cudaErrorInvalidDevice", c"there is no GPU of this number";
    INVALID_KERNEL_IMAGE = 200, c"cudaErrorInvalidKernelImage", c"the image of a module is damaged";
    DEVICE_UNINITIALIZED = 201, c"cudaErrorDeviceUninitialized", c"there is no current context";
    NO_KERNEL_IMAGE = 209, c"cudaErrorNoKernelImageForDevice", c"the program has no code for this GPU: build it with PTX";
    PEER_ACCESS_UNSUPPORTED = 217, c"cudaErrorPeerAccessUnsupported", c"the GPUs do not reach each other's memory";
    INVALID_PTX = 218, c"cudaErrorInvalidPtx", c"PTX could not be compiled";
    FILE_NOT_FOUND = 301, c"cudaErrorFileNotFound", c"there is no such file";
    INVALID_HANDLE = 400, c"cudaErrorInvalidResourceHandle", c"this is no handle, or it was destroyed";
    ILLEGAL_STATE = 401, c"cudaErrorIllegalState", c"this cannot be done in this state";
    SYMBOL_NOT_FOUND = 500, c"cudaErrorSymbolNotFound", c"the module has no such name";
    NOT_READY = 600, c"cudaErrorNotReady", c"the work has not ended";
    ILLEGAL_ADDRESS = 700, c"cudaErrorIllegalAddress", c"a kernel has accessed memory that is not its own";
    LAUNCH_OUT_OF_RESOURCES = 701, c"cudaErrorLaunchOutOfResources", c"a block needs more than the GPU has";
    LAUNCH_TIMEOUT = 702, c"cudaErrorLaunchTimeout", c"a kernel took too long";
    ASSERT = 710, c"cudaErrorAssert", c"an assertion in a kernel does not hold";
    HOST_ALREADY_REGISTERED = 712, c"cudaErrorHostMemoryAlreadyRegistered", c"this memory is registered";
    HOST_NOT_REGISTERED = 713, c"cudaErrorHostMemoryNotRegistered", c"this memory is not registered";
    MISALIGNED_ADDRESS = 716, c"cudaErrorMisalignedAddress", c"a kernel has accessed memory at an address that is not aligned";
    LAUNCH_FAILURE = 719, c"cudaErrorLaunchFailure", c"a kernel has ended with an error";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, c"cudaErrorCooperativeLaunchTooLarge", c"the blocks of the grid do not fit on the GPU at once";
    NOT_PERMITTED = 800, c"cudaErrorNotPermitted", c"this call is not allowed here: a host function of a stream may not call CUDA";
    NOT_SUPPORTED = 801, c"cudaErrorNotSupported", c"this GPU or driver does not have it";
    STREAM_CAPTURE_UNSUPPORTED = 900, c"cudaErrorStreamCaptureUnsupported", c"no graph can hold this operation";
    CAPTURE_INVALIDATED = 901, c"cudaErrorStreamCaptureInvalidated", c"an earlier call has spoiled the capture";
    CAPTURE_MERGE = 902, c"cudaErrorStreamCaptureMerge", c"two captures cannot become one";
    CAPTURE_UNMATCHED = 903, c"cudaErrorStreamCaptureUnmatched", c"the capture began in another stream";
    CAPTURE_UNJOINED = 904, c"cudaErrorStreamCaptureUnjoined", c"the capture has work in another stream for which its own does not wait";
    CAPTURE_ISOLATION = 905, c"cudaErrorStreamCaptureIsolation", c"a graph cannot wait for what was queued outside of it";
    CAPTURE_IMPLICIT = 906, c"cudaErrorStreamCaptureImplicit", c"the null stream would wait for a stream that captures";
    CAPTURED_EVENT = 907, c"cudaErrorCapturedEvent", c"the event was recorded in a graph";
    UNKNOWN = 999, c"cudaErrorUnknown", c"an error of which the driver says no more";
}

/// Remembers an error; what a call returns.
pub(crate) fn keep(code: Code) -> Code {
    if code != SUCCESS && code != NOT_READY {
        LAST.set(code);
    }
    if matches!(
        code,
        ILLEGAL_ADDRESS | ASSERT | MISALIGNED_ADDRESS | LAUNCH_FAILURE
    ) {
        let _ = LOST.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
    }
    code
}

/// A call's body, whose error is its result and the thread's last.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Code>) -> Code {
    keep(body().err().unwrap_or(SUCCESS))
}

/// A result of the driver.
pub(crate) fn check(code: Code) -> Result<(), Code> {
    match code {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}

#[no_mangle]
pub extern "C" fn cudaGetLastError() -> Code {
    LAST.replace(LOST.load(Ordering::Relaxed))
}

#[no_mangle]
pub extern "C" fn cudaPeekAtLastError() -> Code {
    LAST.get()
}

#[no_mangle]
pub extern "C" fn cudaGetErrorName(error: Code) -> *const c_char {
    describe(error)
        .map_or(c"unrecognized error code", |(name, _)| name)
        .as_ptr()
}

#[no_mangle]
pub extern "C" fn cudaGetErrorString(error: Code) -> *const c_char {
    describe(error)
        .map_or(
            c"an error of a number that this library does not know",
            |(_, text)| text,
        )
        .as_ptr()
}
