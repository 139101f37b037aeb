//! Memory for one-sided operations of kernels: `rb_mem_alloc_remote`, and symmetric memory of a
//! communicator.
#![allow(unsafe_code)] // Writes through pointers of the caller.

use std::ffi::c_void;
use std::sync::PoisonError;

use crate::communicator::COMMS;
use crate::failure::{entry, Failure};
use crate::nic::NICS;
use crate::pointer::Out;

fn asked(bytes: usize) -> Result<u64, Failure> {
    match bytes {
        0 => Err(Failure::argument(
            "0 bytes were asked for; ask for at least one",
        )),
        bytes => Ok(bytes as u64),
    }
}

/// # Safety
/// `va` and `rkey` are null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_mem_alloc_remote(
    nic: *mut c_void,
    bytes: usize,
    va: *mut *mut c_void,
    rkey: *mut u32,
) -> i32 {
    entry("rb_mem_alloc_remote", || {
        // SAFETY: by this function's contract.
        let (out, key) = unsafe { (Out::new(va, "`va`")?, Out::new(rkey, "`rkey`")?) };
        out.set(std::ptr::null_mut());
        let nic = NICS.get(nic.addr())?;
        let buffer = nic.nic.alloc_remote::<u8>(asked(bytes)?);
        let buffer = buffer.map_err(|e| Failure::host(&e))?;
        let va = buffer.va().0;
        key.set(buffer.region().rkey.0);
        let mut buffers = nic.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.insert(va, buffer);
        out.set(std::ptr::with_exposed_provenance_mut(va as usize));
        Ok(())
    })
}

/// # Safety
/// `va` and `window` are null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_comm_alloc_symmetric(
    comm: *mut c_void,
    bytes: usize,
    va: *mut *mut c_void,
    window: *mut u32,
) -> i32 {
    entry("rb_comm_alloc_symmetric", || {
        // SAFETY: by this function's contract.
        let (out, number) = unsafe { (Out::new(va, "`va`")?, Out::new(window, "`window`")?) };
        out.set(std::ptr::null_mut());
        let open = COMMS.get(comm.addr())?;
        let made = open.comm.alloc_symmetric::<u8>(asked(bytes)?);
        let made = made.map_err(|e| Failure::collective(&e))?;
        let va = made.va().0;
        number.set(made.window());
        let mut windows = open.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.insert(va, made);
        out.set(std::ptr::with_exposed_provenance_mut(va as usize));
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_comm_free_symmetric(comm: *mut c_void, va: *mut c_void) -> i32 {
    entry("rb_comm_free_symmetric", || {
        let open = COMMS.get(comm.addr())?;
        let mut windows = open.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let freed = windows.remove(&(va.addr() as u64));
        // Dropped without the lock: it waits for DMA in flight.
        drop(windows);
        freed.map(drop).ok_or_else(|| {
            Failure::argument(format!(
                "{va:p} is not the start of symmetric memory of this communicator; was it freed before?"
            ))
        })
    })
}
