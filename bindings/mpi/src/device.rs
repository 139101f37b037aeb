//! GPU memory of the program: how it is found, and its copies to and from memory of the host.
//!
//! The one-shot staged design of FPGA-aware MPI (ICS 2023, §3.1). A program that gives it has a
//! CUDA driver in its process. Its kernels that write the memory have ended, as MPI demands.
#![allow(unsafe_code)] // The program's memory, by its pointers.

#[cfg(feature = "cuda")]
use ringbell::parts::cuda_kernels::cuda::{self, CudaError, DeviceCopies};

use crate::trace;

#[cfg(feature = "cuda")]
static COPIES: DeviceCopies = DeviceCopies::new();

/// Whether there may be such memory: a driver can be loaded.
pub(crate) fn present() -> bool {
    #[cfg(feature = "cuda")]
    return cuda::has_driver();
    #[cfg(not(feature = "cuda"))]
    false
}

/// Whether a pointer is to memory of a GPU.
pub(crate) fn holds(at: *const u8) -> bool {
    #[cfg(feature = "cuda")]
    return cuda::gpu_of(at).is_some();
    #[cfg(not(feature = "cuda"))]
    {
        let _ = at;
        false
    }
}

/// Copies from a GPU.
///
/// # Errors
/// A text: what the driver says.
///
/// # Safety
/// The memory is the program's, for this call; `into` has room.
pub(crate) unsafe fn read(from: *const u8, into: *mut u8, bytes: usize) -> Result<(), String> {
    trace::note_copy("from", bytes as u64);
    #[cfg(feature = "cuda")]
    {
        // SAFETY: the caller's contract.
        let into = unsafe { std::slice::from_raw_parts_mut(into, bytes) };
        // SAFETY: the caller's contract.
        told(unsafe { COPIES.read(from, into) })
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (from, into);
        Err("it was built without CUDA".into())
    }
}

/// Copies to a GPU.
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// As [`read`]; nothing uses the memory meanwhile.
pub(crate) unsafe fn write(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), String> {
    trace::note_copy("to", bytes as u64);
    #[cfg(feature = "cuda")]
    {
        // SAFETY: the caller's contract.
        let from = unsafe { std::slice::from_raw_parts(from, bytes) };
        // SAFETY: the caller's contract.
        told(unsafe { COPIES.write(to, from) })
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (to, from);
        Err("it was built without CUDA".into())
    }
}

#[cfg(feature = "cuda")]
fn told(result: Result<(), CudaError>) -> Result<(), String> {
    result.map_err(|e| format!("memory of a GPU cannot be copied: {e}"))
}
