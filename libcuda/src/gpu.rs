//! The one GPU that does the work: its memory, and what it has of the rest.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use ringbell_cuda_kernels::{EmulatedGpu, EmulatedGpuConfig, GpuError};
use ringbell_gtlb::{DmaMemory as _, Exposed};

use crate::{faults, say, strict, Result, OUT_OF_MEMORY, UNKNOWN};

/// Shared memory of a block without `cuFuncSetAttribute`.
pub(crate) const SHARED_BYTES: u32 = 48 << 10;
/// And with it (compute capability 9.0).
pub(crate) const MOST_SHARED_BYTES: u32 = 227 << 10;
/// Of a multiprocessor, of which each block takes 1 KiB more than it asks for.
pub(crate) const SHARED_BYTES_OF_SM: u64 = 228 << 10;

/// Bytes of the GPU's memory, of which the host gives what is allocated.
pub(crate) fn memory_bytes() -> u64 {
    let usual = if strict::is_on() { 128 << 20 } else { 4 << 30 };
    faults().memory.unwrap_or(usual)
}

/// The GPU, or why there is none: `RINGBELL_CHECK` names no check, or the host has no memory.
fn made() -> &'static std::result::Result<EmulatedGpu, GpuError> {
    static GPU: OnceLock<std::result::Result<EmulatedGpu, GpuError>> = OnceLock::new();
    GPU.get_or_init(|| {
        EmulatedGpu::new(EmulatedGpuConfig {
            memory_bytes: memory_bytes(),
            // Scattered pages are for tests of translation, and take address space in pieces.
            scatter: if strict::is_on() { 0.25 } else { 0.0 },
            ..EmulatedGpuConfig::default()
        })
    })
}

/// Whether it can be made; says why not.
pub(crate) fn make() -> std::result::Result<(), Result> {
    made().as_ref().map(drop).map_err(|error| {
        say(&format!("no emulated GPU: {error}"));
        UNKNOWN
    })
}

/// The GPU that does the work. A program that went on after `cuInit` failed ends here.
pub(crate) fn gpu() -> &'static EmulatedGpu {
    made().as_ref().unwrap_or_else(|error| {
        say(&format!("no emulated GPU: {error}"));
        std::process::exit(1)
    })
}

/// Lets kernels access memory outside of the GPU's.
pub(crate) fn expose(at: u64, len: u64) -> Option<Exposed> {
    let base = NonNull::new(at as *mut u8)?;
    gpu().memory().expose(base, len as usize).ok()
}

/// Bytes of its memory that are in use.
static USED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn used_bytes() -> u64 {
    USED.load(Ordering::Relaxed)
}

/// So many bytes of its memory are in use, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room(u64);

impl Room {
    /// If they are free.
    pub(crate) fn take(bytes: u64) -> std::result::Result<Room, Result> {
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= memory_bytes());
        let taken = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(|_| Room(bytes)).map_err(|_| OUT_OF_MEMORY)
    }

    /// Of another process, which may be more than there is.
    pub(crate) fn of_other(bytes: u64) -> Room {
        USED.fetch_add(bytes, Ordering::Relaxed);
        Room(bytes)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        USED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Multiprocessors: as an H100, or so few that the blocks which fit on them all begin, which is
/// what cooperative kernels need.
pub(crate) fn sms() -> c_int {
    faults()
        .sms
        .unwrap_or(if strict::is_on() { 132 } else { 16 })
}

/// 10 × major + minor of the compute capability.
pub(crate) fn capability() -> c_int {
    faults().capability.unwrap_or(90)
}
