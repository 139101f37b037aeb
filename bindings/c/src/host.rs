//! Host and NIC memory of the C API.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use ringbell::abi::GpuVa;
use ringbell::parts::nic_core::MemoryKind;

use crate::failure::{entry, Failure};
use crate::nic::{OpenNic, NICS};
use crate::pointer::Out;

/// `rb_pointer_info`. Fields are only ever appended.
#[repr(C)]
#[derive(Clone, Copy)]
struct PointerInfo {
    kind: u32,
    lkey: u32,
    base: u64,
    bytes: u64,
    operations: u32,
    reserved: u32,
}

/// Takes an entry out and drops it without the lock: that waits for DMA in flight.
fn remove<T>(table: &Mutex<BTreeMap<u64, T>>, ptr: *mut c_void, what: &str) -> Result<T, Failure> {
    let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
    table.remove(&(ptr.addr() as u64)).ok_or_else(|| {
        Failure::argument(format!(
            "{ptr:p} is not the start of {what} of this NIC; was it ended before, or is it an interior address?"
        ))
    })
}

fn nonzero(bytes: usize) -> Result<usize, Failure> {
    match bytes {
        0 => Err(Failure::argument(
            "0 bytes were asked for; ask for at least one",
        )),
        n => Ok(n),
    }
}

/// # Safety
/// `ptr` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_host_alloc(nic: *mut c_void, bytes: usize, ptr: *mut *mut c_void) -> i32 {
    entry("rb_host_alloc", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(ptr, "`ptr`")? };
        out.set(std::ptr::null_mut());
        let nic = NICS.get(nic.addr())?;
        let buffer = nic.nic.alloc_host(nonzero(bytes)?);
        let buffer = buffer.map_err(|e| Failure::host(&e))?;
        let at = buffer.as_ptr();
        let mut all = nic
            .others
            .host
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.insert(buffer.va().0, buffer);
        out.set(at.cast());
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_host_free(nic: *mut c_void, ptr: *mut c_void) -> i32 {
    entry("rb_host_free", || {
        let nic = NICS.get(nic.addr())?;
        let buffer = remove(&nic.others.host, ptr, "an allocation of host memory")?;
        buffer.free().map_err(|e| Failure::host(&e))
    })
}

/// # Safety
/// `ptr` is null, or `bytes` bytes from there on stay mapped until they are unregistered.
#[no_mangle]
unsafe extern "C" fn rb_host_register(nic: *mut c_void, ptr: *mut u8, bytes: usize) -> i32 {
    entry("rb_host_register", || {
        let nic = NICS.get(nic.addr())?;
        let start =
            NonNull::new(ptr).ok_or_else(|| Failure::argument("`ptr` is a null pointer"))?;
        // SAFETY: by this function's contract.
        let region = unsafe { nic.nic.register_host(start, nonzero(bytes)?) };
        let region = region.map_err(|e| Failure::host(&e))?;
        let mut all = nic
            .others
            .registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.insert(region.va().0, region);
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_host_unregister(nic: *mut c_void, ptr: *mut c_void) -> i32 {
    entry("rb_host_unregister", || {
        let nic = NICS.get(nic.addr())?;
        let mut region = remove(&nic.others.registered, ptr, "a registration")?;
        region.end().map_err(|e| Failure::host(&e))
    })
}

/// # Safety
/// `va` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_nic_mem_alloc(nic: *mut c_void, bytes: usize, va: *mut *mut c_void) -> i32 {
    entry("rb_nic_mem_alloc", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(va, "`va`")? };
        out.set(std::ptr::null_mut());
        let nic = NICS.get(nic.addr())?;
        let buffer = nic.nic.alloc_on_nic(nonzero(bytes)? as u64);
        let buffer = buffer.map_err(|e| Failure::host(&e))?;
        let at = buffer.va().0;
        let mut all = nic
            .others
            .on_nic
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.insert(at, buffer);
        // Never dereferenced: the address lies outside even the program's own address space.
        out.set(std::ptr::without_provenance_mut(at as usize));
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_nic_mem_free(nic: *mut c_void, va: *mut c_void) -> i32 {
    entry("rb_nic_mem_free", || {
        let nic = NICS.get(nic.addr())?;
        let buffer = remove(&nic.others.on_nic, va, "an allocation of NIC memory")?;
        buffer.free().map_err(|e| Failure::host(&e))
    })
}

/// # Safety
/// `info` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_pointer_query(
    nic: *mut c_void,
    ptr: *const c_void,
    info: *mut c_void,
) -> i32 {
    entry("rb_pointer_query", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(info.cast::<PointerInfo>(), "`info`")? };
        let nic = NICS.get(nic.addr())?;
        let found = nic.nic.pointer_info(GpuVa(ptr.addr() as u64));
        let none = PointerInfo {
            kind: 0,
            lkey: 0,
            base: 0,
            bytes: 0,
            operations: 0,
            reserved: 0,
        };
        out.set(found.map_or(none, |i| PointerInfo {
            kind: match i.kind {
                MemoryKind::Gpu => 1,
                MemoryKind::Host => 2,
                MemoryKind::Nic => 3,
            },
            lkey: i.region.lkey.0,
            base: i.region.va.0,
            bytes: i.region.len,
            operations: i.operations,
            reserved: 0,
        }));
        Ok(())
    })
}

/// Whether a kernel of the emulated GPU may read the range itself: it lies in GPU memory, or in
/// registered host memory. The NIC reads its own memory.
pub(super) fn is_readable(nic: &OpenNic, va: u64, bytes: u64) -> bool {
    if nic.nic.gpu().page_table(GpuVa(va), bytes).is_ok() {
        return true;
    }
    let info = nic.nic.pointer_info(GpuVa(va));
    info.is_some_and(|i| bytes <= i.region.len - i.offset)
}
