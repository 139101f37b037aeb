//! What the functions of both tables share: handles, errors to NCCL's log and codes, devices and
//! registered memory.
#![allow(unsafe_code)] // C: pointers of NCCL.

use std::ffi::{c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::{
    Code, End10, End11, End12, Properties, Properties10, Properties11, Properties12, VDevice,
    HANDLE_BYTES, ID_UNDEFINED, PTR_HOST,
};
use crate::device::{self, Device};
use crate::failure::Failure;
use crate::log;
use crate::memory::Registered;
use crate::table::Table;
use crate::wire::GROUP;

/// Number of connections in the properties. A NIC has room for more.
const MAX_COMMS: c_int = 512;
/// Longest message: its length fits an `int`, in which NCCL is told it.
pub(crate) const MESSAGE_MAX: usize = 1 << 30;

static MEMORY: Table<Registered> = Table::new("registered memory");

/// Each change of what it protects is one step.
pub(crate) fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn number(handle: *mut c_void) -> u64 {
    handle.addr() as u64
}

pub(crate) fn handle(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(number as usize)
}

/// Runs a function of the plug-in: what fails is logged, and a panic does not reach C.
pub(crate) fn run(name: &str, call: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return Code::Success as c_int,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(Code::InternalError, "a fault of the plug-in (panic)"),
    };
    if !failure.text.is_empty() {
        log::warn(&format!("{name}: {}", failure.text));
    }
    failure.code as c_int
}

/// Writes a result to the caller's variable.
///
/// # Safety
/// The pointer is null, or the caller's.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::argument("a result's pointer is null"));
    }
    // SAFETY: the caller's contract.
    unsafe { to.write(value) };
    Ok(())
}

pub(crate) unsafe extern "C" fn devices(count: *mut c_int) -> c_int {
    run("devices", || {
        let all = device::count() as c_int;
        // SAFETY: the caller's variable.
        unsafe { give(count, all) }
    })
}

fn properties<const DEVICES: usize, E>(
    number: c_int,
    end: E,
) -> Result<Properties<DEVICES, E>, Failure> {
    let device = device::get(number)?;
    let mut devices = [0; DEVICES];
    devices[0] = number;
    Ok(Properties {
        name: device.name.as_ptr(),
        pci_path: std::ptr::null(),
        guid: u64::from(u32::from(device.nic.ip().ip)),
        ptr_support: PTR_HOST,
        // A registration holds for all connections of its device.
        reg_is_global: 1,
        force_flush: 0,
        speed: device.speed,
        port: 1,
        latency: 0.0,
        max_comms: MAX_COMMS,
        max_recvs: GROUP as c_int,
        // NCCL_NET_DEVICE_HOST: no code of ours on the GPU.
        device_type: 0,
        device_version: 0,
        virtual_device: VDevice { count: 1, devices },
        max_p2p_bytes: MESSAGE_MAX,
        max_coll_bytes: MESSAGE_MAX,
        end,
    })
}

pub(crate) unsafe extern "C" fn properties10(number: c_int, to: *mut Properties10) -> c_int {
    run("getProperties", || {
        let properties = properties(number, End10)?;
        // SAFETY: the caller's variable.
        unsafe { give(to, properties) }
    })
}

pub(crate) unsafe extern "C" fn properties11(number: c_int, to: *mut Properties11) -> c_int {
    run("getProperties", || {
        let end = End11 {
            max_multi_request_size: 1,
        };
        let properties = properties(number, end)?;
        // SAFETY: the caller's variable.
        unsafe { give(to, properties) }
    })
}

pub(crate) unsafe extern "C" fn properties12(number: c_int, to: *mut Properties12) -> c_int {
    run("getProperties", || {
        let end = End12 {
            max_multi_request_size: 1,
            rail: ID_UNDEFINED,
            plane: ID_UNDEFINED,
        };
        let properties = properties(number, end)?;
        // SAFETY: the caller's variable.
        unsafe { give(to, properties) }
    })
}

/// The caller's handle.
pub(crate) fn handle_bytes(at: *mut c_void) -> Result<*mut [u8; HANDLE_BYTES], Failure> {
    match at.is_null() {
        true => Err(Failure::argument("the handle's pointer is null")),
        false => Ok(at.cast()),
    }
}

/// Registers memory with a device, and gives its handle.
///
/// # Safety
/// It stays mapped until it was deregistered; the pointer of the result is null, or the caller's.
pub(crate) unsafe fn register(
    device: &Device,
    (data, size): (*mut c_void, usize),
    kind: c_int,
    memory: *mut *mut c_void,
) -> Result<(), Failure> {
    if kind != PTR_HOST {
        let text = format!(
            "memory of type {kind}: the plug-in takes host memory alone, as its properties say"
        );
        return Err(Failure::new(Code::InvalidUsage, text));
    }
    // SAFETY: the caller's contract.
    let registered = unsafe { device.memory.register(data.cast(), size)? };
    let made = MEMORY.insert(registered);
    // SAFETY: the caller's variable.
    unsafe { give(memory, handle(made)) }
}

/// Ends a registration.
pub(crate) fn deregister(memory: *mut c_void) -> Result<(), Failure> {
    MEMORY.remove(number(memory)).map(drop)
}

/// The memory of a handle; a null one stands for memory of short messages.
pub(crate) fn memory(at: *mut c_void) -> Result<Option<Arc<Registered>>, Failure> {
    match at.is_null() {
        true => Ok(None),
        false => MEMORY.get(number(at)).map(Some),
    }
}
