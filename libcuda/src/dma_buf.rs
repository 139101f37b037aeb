//! GPU memory as a dma-buf: a memfd, which takes the place of the memory behind the GPU's addresses.
//!
//! As on most real GPUs the descriptor cannot be mapped unless the fault list has `dmabuf`.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::IntoRawFd;

use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::{call, faults, memory, put, ready, Result, INVALID_VALUE, OUT_OF_MEMORY};

/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
const DMA_BUF_FD: c_uint = 1;
const PAGE: u64 = 4096;

#[no_mangle]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    va: u64,
    bytes: usize,
    kind: c_uint,
    flags: c_ulonglong,
) -> Result {
    call(|| {
        ready()?;
        let aligned = va.is_multiple_of(PAGE) && (bytes as u64).is_multiple_of(PAGE);
        let asked = kind == DMA_BUF_FD && flags <= 1 && bytes > 0 && aligned;
        if !asked || !memory::is_device(va, bytes) {
            return Err(INVALID_VALUE);
        }
        let fd = match faults().dmabuf {
            true => share(va, bytes).map_err(|_| OUT_OF_MEMORY)?,
            false => unmappable()?,
        };
        // SAFETY: the caller's pointer, to an int for this kind of handle.
        unsafe { put(handle.cast::<c_int>(), fd) }
    })
}

/// A descriptor that is no memory: mapping it fails, as mapping the dma-buf of a GPU with memory of its own does.
fn unmappable() -> std::result::Result<c_int, Result> {
    let (reader, _) = rustix::pipe::pipe().map_err(|_| OUT_OF_MEMORY)?;
    Ok(reader.into_raw_fd())
}

/// Moves what lies at a range to a memfd, which is mapped there from now on.
fn share(va: u64, bytes: usize) -> rustix::io::Result<c_int> {
    let fd = rustix::fs::memfd_create("mock-dma-buf", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the range lies in one allocation (checked by the caller), which is mapped page by page; kernels and
    // copies reach it by these addresses alone, and nothing else may use memory while it is being exported.
    unsafe {
        let anywhere = std::ptr::null_mut();
        let new = rustix::mm::mmap(anywhere, bytes, protection, MapFlags::SHARED, &fd, 0)?;
        std::ptr::copy_nonoverlapping(va as *const u8, new.cast(), bytes);
        rustix::mm::munmap(new, bytes)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        rustix::mm::mmap(va as *mut c_void, bytes, protection, flags, &fd, 0)?;
    }
    Ok(fd.into_raw_fd())
}
