//! The CUDA driver: loading, error codes, its GPUs.
//!
//! `cudarc` panics when libcuda cannot be loaded, and when a function is missing from it. So
//! [`load`] checks both, before every other use of `cudarc` in this crate.
#![allow(unsafe_code)] // Calls into libcuda.

use std::ffi::{c_char, CStr};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};

use crate::cuda_error::{CudaError, DRIVER_NEEDED};
use crate::wait_hook;

/// Every function of the driver that is called without a look-up before, here or in `cudarc`'s
/// `CudaContext`.
const NEEDED: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxGetLimit",
    "cuCtxGetStreamPriorityRange",
    "cuCtxSetCurrent",
    "cuCtxSetLimit",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuInit",
    "cuLaunchCooperativeKernel",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetAddressRange_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuPointerGetAttribute",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
];

/// Results that lose the context (CUDA driver API, "CUresult": each of them "leaves the process in
/// an inconsistent state").
const LOST: [u32; 13] = [
    214, // ECC_UNCORRECTABLE
    220, // NVLINK_UNCORRECTABLE
    700, // ILLEGAL_ADDRESS
    702, // LAUNCH_TIMEOUT
    709, // CONTEXT_IS_DESTROYED
    710, // ASSERT
    714, // HARDWARE_STACK_ERROR
    715, // ILLEGAL_INSTRUCTION
    716, // MISALIGNED_ADDRESS
    717, // INVALID_ADDRESS_SPACE
    718, // INVALID_PC
    719, // LAUNCH_FAILED
    721, // TENSOR_MEMORY_LEAK
];

/// Whether the loaded driver has a function. Only after [`load`].
pub(super) fn has(symbol: &str) -> bool {
    // SAFETY: the library is loaded; the symbol is only looked for, not called.
    unsafe { sys::culib().get::<*const std::ffi::c_void>(symbol.as_bytes()) }.is_ok()
}

/// `cuEventElapsedTime`.
pub(super) type ElapsedTime =
    unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;

/// The function by its name since CUDA 12.8, else by the old one, which `cudarc` no longer has.
/// Only after [`load`].
pub(super) fn elapsed_time() -> Option<ElapsedTime> {
    ["cuEventElapsedTime_v2", "cuEventElapsedTime"]
        .into_iter()
        // SAFETY: both have this type (cuda.h of CUDA 12 and 13); the library stays loaded for
        // ever.
        .find_map(|name| unsafe { sys::culib().get::<ElapsedTime>(name.as_bytes()).ok() })
        .map(|f| *f)
}

/// The driver's function that takes NICs, which the emulated GPU's alone has. Only after [`load`].
pub(super) fn wait_hook() -> Option<wait_hook::Accept> {
    // SAFETY: a function of this name has this type; the library stays loaded for ever.
    let found = unsafe { sys::culib().get::<wait_hook::Accept>(wait_hook::SYMBOL.as_bytes()) };
    found.ok().map(|f| *f)
}

/// Loads the driver once and makes sure that it has what is needed.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::MissingSymbol`].
pub(super) fn load() -> Result<(), CudaError> {
    static LOADED: OnceLock<Result<(), CudaError>> = OnceLock::new();
    LOADED
        .get_or_init(|| {
            // SAFETY: loading the system's driver library runs its initialisers, which have no
            // preconditions.
            if !unsafe { sys::is_culib_present() } {
                return Err(CudaError::NoDriver);
            }
            match NEEDED.iter().find(|symbol| !has(symbol)) {
                Some(symbol) => Err(CudaError::MissingSymbol { symbol }),
                None => Ok(()),
            }
        })
        .clone()
}

/// Makes a context current on this thread. `cudarc`'s own function would also report errors of its
/// values that were dropped elsewhere.
pub(super) fn make_current(context: sys::CUcontext) -> Result<(), CudaError> {
    let mut now = std::ptr::null_mut();
    // SAFETY: the pointer is to a live handle.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut now) })?;
    if now == context {
        return Ok(());
    }
    // SAFETY: a context that the caller keeps.
    check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })
}

/// Turns a result of the driver into an error.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    let code = result as u32;
    if code == 0 {
        return Ok(());
    }
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the pointer is to a live pointer; the driver makes it null or a static string.
    let named = unsafe { sys::cuGetErrorName(result, &mut text) };
    let name = if named == CUresult::CUDA_SUCCESS && !text.is_null() {
        // SAFETY: a terminated static string of the driver.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    } else {
        format!("{result:?}")
    };
    Err(match (code, LOST.contains(&code)) {
        (100, _) => CudaError::NoDevice,
        (_, true) => CudaError::Lost { call, code, name },
        (_, false) => CudaError::Call { call, code, name },
    })
}

/// As [`check`], for a call that asks for memory.
pub(super) fn check_memory(
    call: &'static str,
    result: CUresult,
    bytes: u64,
    what: &'static str,
) -> Result<(), CudaError> {
    if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return Err(CudaError::OutOfMemory { bytes, what });
    }
    check(call, result)
}

/// A GPU that the driver sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// The driver's version and its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverInfo {
    /// CUDA version of the driver: 1000 × major + 10 × minor.
    pub version: i32,
    /// Its GPUs, at least one.
    pub devices: Vec<DeviceInfo>,
}

/// Asks the driver, without making a context.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::MissingSymbol`], [`CudaError::OldDriver`],
/// [`CudaError::NoDevice`], [`CudaError::Call`].
pub fn find() -> Result<DriverInfo, CudaError> {
    load()?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: the pointer is to a live integer; this call is allowed before cuInit.
    check("cuDriverGetVersion", unsafe {
        sys::cuDriverGetVersion(&mut version)
    })?;
    if version < DRIVER_NEEDED {
        return Err(CudaError::OldDriver {
            found: version,
            needed: DRIVER_NEEDED,
        });
    }
    // SAFETY: flags must be 0.
    check("cuInit", unsafe { sys::cuInit(0) })?;
    // SAFETY: the pointer is to a live integer.
    check("cuDeviceGetCount", unsafe {
        sys::cuDeviceGetCount(&mut count)
    })?;
    if count < 1 {
        return Err(CudaError::NoDevice);
    }
    let devices = (0..count).map(device).collect::<Result<_, _>>()?;
    Ok(DriverInfo { version, devices })
}

fn device(ordinal: i32) -> Result<DeviceInfo, CudaError> {
    let mut handle = 0;
    // SAFETY: the pointer is to a live handle; the ordinal is below the count.
    check("cuDeviceGet", unsafe {
        sys::cuDeviceGet(&mut handle, ordinal)
    })?;
    let mut name = [0 as c_char; 128];
    // SAFETY: the buffer has the length that is given with it.
    check("cuDeviceGetName", unsafe {
        sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, handle)
    })?;
    name[name.len() - 1] = 0;
    let mut memory = 0;
    // SAFETY: the pointer is to a live size.
    check("cuDeviceTotalMem", unsafe {
        sys::cuDeviceTotalMem_v2(&mut memory, handle)
    })?;
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    Ok(DeviceInfo {
        ordinal: ordinal as usize,
        // SAFETY: the last byte was just made zero.
        name: unsafe { CStr::from_ptr(name.as_ptr()) }
            .to_string_lossy()
            .into_owned(),
        capability: (attribute(handle, MAJOR)?, attribute(handle, MINOR)?),
        memory_bytes: memory as u64,
    })
}

/// An attribute of a device.
pub(super) fn attribute(
    device: sys::CUdevice,
    which: CUdevice_attribute,
) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: the pointer is to a live integer.
    check("cuDeviceGetAttribute", unsafe {
        sys::cuDeviceGetAttribute(&mut value, which, device)
    })?;
    Ok(value)
}
