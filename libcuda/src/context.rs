//! Contexts of a program's own, and the stack of current ones. There is one context in truth, the
//! primary one.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};

use crate::device::cuDevicePrimaryCtxRetain;
use crate::device::{cuCtxGetCurrent, cuCtxSetCurrent, cuDevicePrimaryCtxRelease_v2};
use crate::gpu::capability;
use crate::{call, put, ready, Result, INVALID_CONTEXT, INVALID_VALUE, NOT_FOUND};

thread_local! {
    /// Contexts below the current one.
    static BELOW: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxCreate_v2(
    ctx: *mut *mut c_void,
    _flags: c_uint,
    device: c_int,
) -> Result {
    // SAFETY: the caller's arguments.
    match unsafe { cuDevicePrimaryCtxRetain(ctx, device) } {
        // SAFETY: written just now.
        0 => unsafe { cuCtxPushCurrent_v2(*ctx) },
        error => error,
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxDestroy_v2(ctx: *mut c_void) -> Result {
    let mut current = std::ptr::null_mut();
    // SAFETY: a live pointer.
    let known = unsafe { cuCtxGetCurrent(&mut current) };
    if known == 0 && current == ctx {
        // SAFETY: a live pointer.
        unsafe { cuCtxPopCurrent_v2(&mut current) };
    }
    // SAFETY: no pointers.
    unsafe { cuDevicePrimaryCtxRelease_v2(0) }
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxPushCurrent_v2(ctx: *mut c_void) -> Result {
    let mut current = std::ptr::null_mut();
    // SAFETY: a live pointer.
    match unsafe { cuCtxGetCurrent(&mut current) } {
        0 => BELOW.with_borrow_mut(|b| b.push(current as usize)),
        error => return error,
    }
    // SAFETY: the caller's context.
    unsafe { cuCtxSetCurrent(ctx) }
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(ctx: *mut *mut c_void) -> Result {
    let mut current = std::ptr::null_mut();
    // SAFETY: a live pointer.
    let known = unsafe { cuCtxGetCurrent(&mut current) };
    if known != 0 || current.is_null() {
        return INVALID_CONTEXT;
    }
    let below = BELOW.with_borrow_mut(Vec::pop).unwrap_or(0);
    if !ctx.is_null() {
        // SAFETY: the caller's pointer.
        unsafe { ctx.write(current) };
    }
    // SAFETY: a context that was current before, or none.
    unsafe { cuCtxSetCurrent(below as *mut c_void) }
}

#[no_mangle]
pub unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's pointer.
        unsafe { put(device, 0) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceComputeCapability(
    major: *mut c_int,
    minor: *mut c_int,
    _device: c_int,
) -> Result {
    // SAFETY: the caller's pointers.
    call(|| unsafe {
        put(major, capability() / 10)?;
        put(minor, capability() % 10)
    })
}

/// There is no other GPU.
#[no_mangle]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, _: c_int, _: c_int) -> Result {
    // SAFETY: the caller's pointer.
    call(|| unsafe { put(can, 0) })
}

/// The address of a function of this driver: the newest version that it has of what a program
/// names.
#[no_mangle]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    to: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    status: *mut c_int,
) -> Result {
    call(|| {
        if name.is_null() || to.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's terminated string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let found = ["_v3", "_v2", ""]
            .iter()
            .find_map(|v| own(&format!("{name}{v}")));
        if !status.is_null() {
            // CU_GET_PROC_ADDRESS_SUCCESS, or _SYMBOL_NOT_FOUND.
            // SAFETY: the caller's pointer.
            unsafe { status.write(if found.is_some() { 0 } else { 1 }) };
        }
        // SAFETY: the caller's pointer.
        unsafe { to.write(found.unwrap_or(std::ptr::null_mut())) };
        found.map(drop).ok_or(NOT_FOUND)
    })
}

/// As it was before CUDA 12.
#[no_mangle]
pub unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    to: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuGetProcAddress_v2(name, to, version, flags, std::ptr::null_mut()) }
}

/// A function of this shared object.
fn own(name: &str) -> Option<*mut c_void> {
    let name = std::ffi::CString::new(name).ok()?;
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here: fn(&str) -> Option<*mut c_void> = own;
    // SAFETY: an address of this object, and a live structure; the object stays loaded while its
    // code runs.
    unsafe {
        if libc::dladdr(here as *const c_void, &mut info) == 0 {
            return None;
        }
        let library = libc::dlopen(info.dli_fname, libc::RTLD_NOLOAD | libc::RTLD_LAZY);
        let found = (!library.is_null()).then(|| libc::dlsym(library, name.as_ptr()));
        found.filter(|f| !f.is_null())
    }
}
