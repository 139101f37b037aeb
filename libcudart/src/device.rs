//! Devices: which one a thread uses, what it is, and its context.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

use crate::driver::{self, Code, Handle};
use crate::error::{
    call, check, keep, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, NO_DEVICE,
    PEER_ACCESS_UNSUPPORTED, SYMBOL_NOT_FOUND,
};
use crate::version::version;
use crate::{lock, put};

thread_local! {
    /// The device of this thread.
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
    /// The device whose context is current in this thread.
    static BOUND: Cell<c_int> = const { Cell::new(-1) };
}

/// Contexts that are held, by their devices.
static CONTEXTS: Mutex<Option<HashMap<c_int, usize>>> = Mutex::new(None);

pub(crate) fn current() -> c_int {
    DEVICE.get()
}

/// Before a call of the driver: the context of the thread's device is current.
pub(crate) fn ready() -> Result<(), Code> {
    let device = current();
    if BOUND.get() == device {
        return Ok(());
    }
    let mut all = lock(&CONTEXTS);
    let known = all.get_or_insert_with(HashMap::new);
    let context = match known.get(&device) {
        Some(context) => *context,
        None => {
            check(driver::init(0))?;
            let (mut handle, mut context) = (0, std::ptr::null_mut());
            check(driver::device_get(&mut handle, device))?;
            check(driver::retain(&mut context, handle))?;
            known.insert(device, context as usize);
            context as usize
        }
    };
    check(driver::set_current(context as Handle))?;
    BOUND.set(device);
    Ok(())
}

pub(crate) fn count() -> Result<c_int, Code> {
    check(driver::init(0))?;
    let mut n = 0;
    check(driver::device_count(&mut n))?;
    Ok(n)
}

pub(crate) fn attribute(attribute: c_int, device: c_int) -> Result<c_int, Code> {
    let mut value = 0;
    check(driver::device_attribute(&mut value, attribute, device))?;
    Ok(value)
}

#[no_mangle]
pub extern "C" fn cudaGetDeviceCount(to: *mut c_int) -> Code {
    call(|| {
        let n = count()?;
        put(to, n)?;
        if n == 0 {
            return Err(NO_DEVICE);
        }
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn cudaGetDevice(to: *mut c_int) -> Code {
    call(|| put(to, current()))
}

#[no_mangle]
pub extern "C" fn cudaSetDevice(device: c_int) -> Code {
    call(|| {
        if !(0..count()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        DEVICE.set(device);
        ready()
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceSynchronize() -> Code {
    call(|| {
        ready()?;
        check(driver::synchronize())
    })
}

/// Waits for all work. Memory and modules stay, because other threads may use them.
#[no_mangle]
pub extern "C" fn cudaDeviceReset() -> Code {
    cudaDeviceSynchronize()
}

#[no_mangle]
pub extern "C" fn cudaSetDeviceFlags(_flags: c_uint) -> Code {
    0
}

#[no_mangle]
pub extern "C" fn cudaDriverGetVersion(to: *mut c_int) -> Code {
    call(|| check(driver::driver_version(to)))
}

#[no_mangle]
pub extern "C" fn cudaRuntimeGetVersion(to: *mut c_int) -> Code {
    call(|| put(to, version().number()))
}

#[no_mangle]
pub extern "C" fn cudaDeviceGetAttribute(to: *mut c_int, id: c_int, device: c_int) -> Code {
    call(|| {
        if !(0..count()?).contains(&device) {
            return Err(INVALID_DEVICE);
        }
        put(to, attribute(id, device)?)
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceCanAccessPeer(to: *mut c_int, device: c_int, peer: c_int) -> Code {
    call(|| {
        count()?;
        check(driver::device_can_access_peer(to, device, peer))
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> Code {
    call(|| {
        ready()?;
        check(driver::priorities(least, greatest))
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceGetLimit(to: *mut usize, limit: c_uint) -> Code {
    call(|| {
        ready()?;
        check(driver::get_limit(to, limit))
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceSetLimit(limit: c_uint, value: usize) -> Code {
    call(|| {
        ready()?;
        check(driver::set_limit(limit, value))
    })
}

#[no_mangle]
pub extern "C" fn cudaDeviceGetPCIBusId(id: *mut c_char, bytes: c_int, device: c_int) -> Code {
    call(|| {
        count()?;
        check(driver::device_bus(id, bytes, device))
    })
}

/// There is no second GPU to reach.
#[no_mangle]
pub extern "C" fn cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> Code {
    call(|| {
        let n = count()?;
        match (flags, (0..n).contains(&peer) && peer != current()) {
            (0, true) => Err(PEER_ACCESS_UNSUPPORTED),
            (0, false) => Err(INVALID_DEVICE),
            _ => Err(INVALID_VALUE),
        }
    })
}

/// Whether caches or shared memory get more room changes nothing here.
#[no_mangle]
pub extern "C" fn cudaDeviceSetCacheConfig(_config: c_uint) -> Code {
    0
}

/// There is no profiler that could be told.
#[no_mangle]
pub extern "C" fn cudaProfilerStart() -> Code {
    0
}

#[no_mangle]
pub extern "C" fn cudaProfilerStop() -> Code {
    0
}

/// A function of the driver: 0 if it has it, 1 if not.
#[no_mangle]
pub extern "C" fn cudaGetDriverEntryPointByVersion(
    name: *const c_char,
    to: *mut *mut c_void,
    wanted: c_uint,
    flags: u64,
    status: *mut c_int,
) -> Code {
    call(|| {
        if name.is_null() || to.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut found = 0;
        let wanted = wanted as c_int;
        let code = driver::entry_point(name, to, wanted, flags, &mut found);
        if !status.is_null() {
            put(status, found)?;
        }
        // A function that is not there is told by the status alone.
        match code {
            SYMBOL_NOT_FOUND => Ok(()),
            code => check(code),
        }
    })
}

#[no_mangle]
pub extern "C" fn cudaGetDriverEntryPoint(
    name: *const c_char,
    to: *mut *mut c_void,
    flags: u64,
    status: *mut c_int,
) -> Code {
    let wanted = version().number() as c_uint;
    cudaGetDriverEntryPointByVersion(name, to, wanted, flags, status)
}

/// There are no textures.
#[no_mangle]
pub extern "C" fn cudaCreateTextureObject(
    _texture: *mut u64,
    _resource: *const c_void,
    _description: *const c_void,
    _view: *const c_void,
) -> Code {
    keep(NOT_SUPPORTED)
}

#[no_mangle]
pub extern "C" fn cudaDestroyTextureObject(_texture: u64) -> Code {
    keep(NOT_SUPPORTED)
}
