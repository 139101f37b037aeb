//! Libraries and kernels (CUDA 12): a library is a module here, and a kernel its function, because
//! there is one context.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::function::{cuFuncGetAttribute, cuFuncGetName, cuFuncSetAttribute};
use crate::module::{cuModuleEnumerateFunctions, cuModuleGetFunction, cuModuleGetFunctionCount};
use crate::module::{cuModuleGetGlobal_v2, cuModuleLoadDataEx, cuModuleUnload};
use crate::{call, put, Result};

#[no_mangle]
pub unsafe extern "C" fn cuLibraryLoadData(
    library: *mut *mut c_void,
    code: *const c_void,
    jit: *mut c_int,
    values: *mut *mut c_void,
    count: c_uint,
    _library_options: *mut c_int,
    _library_values: *mut *mut c_void,
    _library_count: c_uint,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuModuleLoadDataEx(library, code, count, jit, values) }
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryUnload(library: *mut c_void) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuModuleUnload(library) }
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryGetKernel(
    kernel: *mut *mut c_void,
    library: *mut c_void,
    name: *const c_char,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuModuleGetFunction(kernel, library, name) }
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryGetModule(
    module: *mut *mut c_void,
    library: *mut c_void,
) -> Result {
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(module, library) })
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryGetGlobal(
    va: *mut u64,
    bytes: *mut usize,
    library: *mut c_void,
    name: *const c_char,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuModuleGetGlobal_v2(va, bytes, library, name) }
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryGetKernelCount(
    count: *mut c_uint,
    library: *mut c_void,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuModuleGetFunctionCount(count, library) }
}

#[no_mangle]
pub unsafe extern "C" fn cuLibraryEnumerateKernels(
    kernels: *mut *mut c_void,
    count: c_uint,
    library: *mut c_void,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuModuleEnumerateFunctions(kernels, count, library) }
}

#[no_mangle]
pub unsafe extern "C" fn cuKernelGetFunction(
    function: *mut *mut c_void,
    kernel: *mut c_void,
) -> Result {
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(function, kernel) })
}

/// A managed variable is one of the GPU's memory, which the host reaches too.
#[no_mangle]
pub unsafe extern "C" fn cuLibraryGetManaged(
    va: *mut u64,
    bytes: *mut usize,
    library: *mut c_void,
    name: *const c_char,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuModuleGetGlobal_v2(va, bytes, library, name) }
}

#[no_mangle]
pub unsafe extern "C" fn cuKernelGetAttribute(
    value: *mut c_int,
    attribute: c_uint,
    kernel: *mut c_void,
    _device: c_int,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuFuncGetAttribute(value, attribute, kernel) }
}

#[no_mangle]
pub unsafe extern "C" fn cuKernelSetAttribute(
    attribute: c_uint,
    value: c_int,
    kernel: *mut c_void,
    _device: c_int,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuFuncSetAttribute(kernel, attribute, value) }
}

#[no_mangle]
pub unsafe extern "C" fn cuKernelGetName(name: *mut *const c_char, kernel: *mut c_void) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuFuncGetName(name, kernel) }
}
