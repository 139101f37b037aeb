//! Stream memory operations.
#![allow(clippy::disallowed_methods)] // A stream that waits looks again and again.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringbell_nic_abi::GpuVa;

use crate::allocation::{is_device, is_mapped};
use crate::stream::on;
use crate::{call, faults, gpu, ready, strict, Result, INVALID_VALUE};

/// Longer than any test: the real ones wait for ever.
const PATIENCE: Duration = Duration::from_secs(100);

/// Whether a word of the GPU's address space can be named.
fn check(va: u64, bytes: usize) -> std::result::Result<(), Result> {
    ready()?;
    let known = is_device(va, bytes) || is_mapped(va, bytes);
    if faults().no_words || !known || !va.is_multiple_of(bytes as u64) {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamWriteValue64_v2(
    s: *mut c_void,
    va: u64,
    value: u64,
    flags: c_uint,
) -> Result {
    call(|| {
        check(va, 8)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let store = move || {
            // SAFETY: an aligned word that was checked when the store was queued, and lives until
            // the stream has reached it, as the interface demands.
            let word = unsafe { AtomicU64::from_ptr(va as *mut u64) };
            gpu().accessed_in_order(GpuVa(va), 8, true);
            word.store(value, Ordering::SeqCst);
        };
        on(s, |s| {
            s.host(store);
            Ok(())
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamWriteValue32_v2(
    s: *mut c_void,
    va: u64,
    value: u32,
    flags: c_uint,
) -> Result {
    call(|| {
        check(va, 4)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let store = move || {
            // SAFETY: as above.
            let word = unsafe { AtomicU32::from_ptr(va as *mut u32) };
            gpu().accessed_in_order(GpuVa(va), 4, true);
            word.store(value, Ordering::SeqCst);
        };
        on(s, |s| {
            s.host(store);
            Ok(())
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamWaitValue32_v2(
    s: *mut c_void,
    va: u64,
    value: u32,
    flags: c_uint,
) -> Result {
    call(|| {
        check(va, 4)?;
        // CU_STREAM_WAIT_VALUE_EQ; the others are not used.
        if flags != 1 {
            return Err(INVALID_VALUE);
        }
        let wait = move || {
            // SAFETY: as above.
            let word = unsafe { AtomicU32::from_ptr(va as *mut u32) };
            let start = Instant::now();
            while word.load(Ordering::SeqCst) != value && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_micros(20));
            }
            gpu().accessed_in_order(GpuVa(va), 4, false);
        };
        on(s, |real| {
            real.host(wait);
            strict::note("cuStreamWaitValue32", s as usize, real);
            Ok(())
        })
    })
}
