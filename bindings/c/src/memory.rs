//! GPU memory of the C API.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::c_void;
use std::sync::PoisonError;

use ringbell::abi::GpuVa;

use crate::failure::{entry, Failure};
use crate::nic::NICS;
use crate::pointer::{input, output, Out};

/// # Safety
/// `va` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_mem_alloc(nic: *mut c_void, bytes: usize, va: *mut *mut c_void) -> i32 {
    entry("rb_mem_alloc", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(va, "`va`")? };
        out.set(std::ptr::null_mut());
        let nic = NICS.get(nic.addr())?;
        if bytes == 0 {
            return Err(Failure::argument(
                "0 bytes were asked for; ask for at least one",
            ));
        }
        let buffer = nic
            .nic
            .alloc::<u8>(bytes as u64)
            .map_err(|e| Failure::host(&e))?;
        let va = buffer.va().0;
        let mut buffers = nic.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        buffers.insert(va, buffer);
        out.set(std::ptr::with_exposed_provenance_mut(va as usize));
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_mem_free(nic: *mut c_void, va: *mut c_void) -> i32 {
    entry("rb_mem_free", || {
        let nic = NICS.get(nic.addr())?;
        let mut buffers = nic.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let freed = buffers.remove(&(va.addr() as u64));
        // Dropped without the lock: it waits for DMA in flight.
        drop(buffers);
        freed.map(drop).ok_or_else(|| {
            Failure::argument(format!(
                "{va:p} is not the start of an allocation of this NIC; was it freed before?"
            ))
        })
    })
}

/// # Safety
/// `src` is null or `bytes` bytes may be read from it.
#[no_mangle]
unsafe extern "C" fn rb_mem_write(
    nic: *mut c_void,
    dst_va: *mut c_void,
    src: *const u8,
    bytes: usize,
) -> i32 {
    entry("rb_mem_write", || {
        let nic = NICS.get(nic.addr())?;
        // SAFETY: by this function's contract.
        let from = unsafe { input(src, bytes, "`src`")? };
        let to_nic = nic
            .others
            .with_nic_memory(dst_va.addr() as u64, |buffer, at| {
                let written = buffer.write(at, from);
                written.map_err(|e| Failure::argument(e.to_string()))
            });
        if let Some(done) = to_nic {
            return done;
        }
        nic.nic
            .gpu()
            .write(GpuVa(dst_va.addr() as u64), from)
            .map_err(|e| Failure::argument(e.to_string()))
    })
}

/// # Safety
/// `dst` is null or `bytes` bytes may be written to it.
#[no_mangle]
unsafe extern "C" fn rb_mem_read(
    nic: *mut c_void,
    dst: *mut u8,
    src_va: *const c_void,
    bytes: usize,
) -> i32 {
    entry("rb_mem_read", || {
        let nic = NICS.get(nic.addr())?;
        let from_nic = nic
            .others
            .with_nic_memory(src_va.addr() as u64, |buffer, at| {
                // Before the destination is touched: a refused call changes nothing.
                let mut copy = vec![0; bytes];
                let read = buffer.read(at, &mut copy);
                read.map_err(|e| Failure::argument(e.to_string()))?;
                // SAFETY: by this function's contract.
                unsafe { output(dst, bytes, "`dst`")? }.copy_from_slice(&copy);
                Ok(())
            });
        if let Some(done) = from_nic {
            return done;
        }
        let gpu = nic.nic.gpu();
        let va = GpuVa(src_va.addr() as u64);
        // Before the destination is touched: a refused call changes nothing.
        gpu.page_table(va, bytes as u64)
            .map_err(|e| Failure::argument(e.to_string()))?;
        // SAFETY: by this function's contract.
        let into = unsafe { output(dst, bytes, "`dst`")? };
        gpu.read(va, into)
            .map_err(|e| Failure::argument(e.to_string()))
    })
}
