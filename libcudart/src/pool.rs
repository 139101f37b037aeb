//! Memory pools.

use std::ffi::{c_int, c_uint, c_void};

use crate::driver::{self, Code, Handle};
use crate::error::{call, check};
use crate::put;
use crate::stream::{in_context, stream};

#[no_mangle]
pub extern "C" fn cudaDeviceGetDefaultMemPool(pool: *mut Handle, device: c_int) -> Code {
    in_context(|| driver::default_pool(pool, device))
}

#[no_mangle]
pub extern "C" fn cudaDeviceGetMemPool(pool: *mut Handle, device: c_int) -> Code {
    in_context(|| driver::device_pool(pool, device))
}

#[no_mangle]
pub extern "C" fn cudaDeviceSetMemPool(device: c_int, pool: Handle) -> Code {
    in_context(|| driver::set_device_pool(device, pool))
}

/// cudaMemPoolProps has the driver's layout and numbers.
#[no_mangle]
pub extern "C" fn cudaMemPoolCreate(pool: *mut Handle, properties: *const c_void) -> Code {
    in_context(|| driver::pool_create(pool, properties))
}

#[no_mangle]
pub extern "C" fn cudaMemPoolDestroy(pool: Handle) -> Code {
    in_context(|| driver::pool_destroy(pool))
}

#[no_mangle]
pub extern "C" fn cudaMemPoolTrimTo(pool: Handle, keep: usize) -> Code {
    in_context(|| driver::pool_trim(pool, keep))
}

#[no_mangle]
pub extern "C" fn cudaMemPoolSetAttribute(pool: Handle, id: c_uint, value: *mut c_void) -> Code {
    in_context(|| driver::set_pool_attribute(pool, id, value))
}

#[no_mangle]
pub extern "C" fn cudaMemPoolGetAttribute(pool: Handle, id: c_uint, value: *mut c_void) -> Code {
    in_context(|| driver::pool_attribute(pool, id, value))
}

#[no_mangle]
pub extern "C" fn cudaMemPoolSetAccess(pool: Handle, access: *const c_void, count: usize) -> Code {
    in_context(|| driver::set_pool_access(pool, access, count))
}

#[no_mangle]
pub extern "C" fn cudaMemPoolGetAccess(
    flags: *mut c_int,
    pool: Handle,
    location: *const c_void,
) -> Code {
    in_context(|| driver::pool_access(flags, pool, location))
}

#[no_mangle]
pub extern "C" fn cudaMallocFromPoolAsync(
    to: *mut *mut c_void,
    bytes: usize,
    pool: Handle,
    s: Handle,
) -> Code {
    call(|| {
        let s = stream(s)?;
        let mut va = 0;
        check(driver::alloc_from_pool(&mut va, bytes, pool, s))?;
        put(to, va as *mut c_void)
    })
}
