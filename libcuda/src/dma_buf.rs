//! GPU memory as a dma-buf: a memfd, which takes the place of the memory behind the GPU's
//! addresses.
//!
//! This GPU has no memory of its own, so the descriptor can be mapped. The test double refuses, as
//! most real GPUs do, unless the fault list has `dmabuf`.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use ringbell_cuda_kernels::Gpu;
use ringbell_nic_abi::GpuVa;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::allocation::{is_device, PAGE};
use crate::{call, faults, gpu, lock, put, ready, strict, Result, INVALID_VALUE, OUT_OF_MEMORY};

/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
const DMA_BUF_FD: c_uint = 1;
/// Of the host, as which a range is exported.
const HOST_PAGE: u64 = 4096;

/// Ranges whose memory is a memfd of their own, by address, until their allocation is freed. The
/// test double has none: its descriptors are counted, and memory that it has exported is not shared
/// by handles as well.
static SHARED: Mutex<BTreeMap<u64, (usize, OwnedFd)>> = Mutex::new(BTreeMap::new());

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
        let aligned = va.is_multiple_of(HOST_PAGE) && (bytes as u64).is_multiple_of(HOST_PAGE);
        let asked = kind == DMA_BUF_FD && flags <= 1 && bytes > 0 && aligned;
        if !asked || !is_device(va, bytes) {
            return Err(INVALID_VALUE);
        }
        // Without a file of its own memory cannot be moved and put back: under checks.
        let exports = !Gpu::memory(gpu()).exports().is_empty();
        let fd = match exports && (faults().dmabuf || !strict::is_on()) {
            true => share(va, bytes).map_err(|_| OUT_OF_MEMORY)?,
            false => unmappable()?,
        };
        // SAFETY: the caller's pointer, to an int for this kind of handle.
        unsafe { put(handle.cast::<c_int>(), fd) }
    })
}

/// A descriptor that is no memory: mapping it fails, as mapping the dma-buf of a GPU with memory of
/// its own does.
fn unmappable() -> std::result::Result<c_int, Result> {
    let (reader, _) = rustix::pipe::pipe().map_err(|_| OUT_OF_MEMORY)?;
    Ok(reader.into_raw_fd())
}

/// Moves what lies at a range to a memfd, which is mapped there from now on. Again: the same memfd.
fn share(va: u64, bytes: usize) -> rustix::io::Result<c_int> {
    let mut shared = lock(&SHARED);
    if let Some((len, fd)) = shared.get(&va) {
        if *len == bytes {
            return Ok(fd
                .try_clone()
                .map_err(|_| rustix::io::Errno::MFILE)?
                .into_raw_fd());
        }
    }
    // Another part of such memory would be another file.
    let before = shared.range(..va + bytes as u64).next_back();
    if before.is_some_and(|(at, (len, _))| at + *len as u64 > va) {
        return Err(rustix::io::Errno::BUSY);
    }
    let fd = rustix::fs::memfd_create("mock-dma-buf", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the range lies in one allocation (checked by the caller), which is mapped page by
    // page; kernels and copies reach it by these addresses alone, and nothing else may use memory
    // while it is being exported.
    unsafe {
        let anywhere = std::ptr::null_mut();
        let new = rustix::mm::mmap(anywhere, bytes, protection, MapFlags::SHARED, &fd, 0)?;
        std::ptr::copy_nonoverlapping(va as *const u8, new.cast(), bytes);
        rustix::mm::munmap(new, bytes)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        rustix::mm::mmap(va as *mut c_void, bytes, protection, flags, &fd, 0)?;
    }
    if !strict::is_on() {
        let kept = fd.try_clone().map_err(|_| rustix::io::Errno::MFILE)?;
        shared.insert(va, (bytes, kept));
    }
    Ok(fd.into_raw_fd())
}

/// The file behind a page of the GPU, and its place there, when it is exported; `None` within when
/// only a part of it is.
pub(crate) fn page(va: u64) -> Option<Option<(RawFd, u64)>> {
    let shared = lock(&SHARED);
    let (at, (len, fd)) = shared.range(..va + PAGE).next_back()?;
    let end = at + *len as u64;
    match (*at <= va, va + PAGE <= end) {
        (true, true) => Some(Some((fd.as_raw_fd(), va - at))),
        _ if end <= va => None,
        _ => Some(None),
    }
}

/// Puts the GPU's own memory back behind the addresses of an allocation that is freed.
pub(crate) fn forget(va: u64, len: u64) {
    let mut shared = lock(&SHARED);
    let real: &Gpu = gpu();
    let inside: Vec<u64> = shared.range(va..va + len).map(|(at, _)| *at).collect();
    for at in inside {
        let Some((bytes, _)) = shared.remove(&at) else {
            continue;
        };
        let Ok(table) = real.page_table(GpuVa(at), bytes as u64) else {
            continue;
        };
        let memory = real.memory();
        let exports = memory.exports();
        let Some(export) = exports.first() else {
            continue;
        };
        for (i, bus) in table.pages.iter().enumerate() {
            let page = table.base.0 + i as u64 * PAGE;
            let (first, end) = (page.max(at), (page + PAGE).min(at + bytes as u64));
            let offset = bus - export.bus + export.file_offset + (first - page);
            // SAFETY: pages of the freed allocation, which nothing uses any more; they were mapped
            // like this before.
            let _ = unsafe {
                rustix::mm::mmap(
                    first as *mut c_void,
                    (end - first) as usize,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED | MapFlags::FIXED,
                    export.fd,
                    offset,
                )
            };
        }
    }
}
