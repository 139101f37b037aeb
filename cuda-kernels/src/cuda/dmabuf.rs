//! GPU memory mapped for the CPU as a dma-buf, by the driver alone (CUDA 11.7 and later).
//!
//! `cuMemGetHandleForAddressRange` gives a descriptor for a range, which is mapped like a file.
//! Linux asks for two calls of `DMA_BUF_IOCTL_SYNC` around CPU accesses (kernel documentation,
//! driver-api/dma-buf.rst), so that an exporter with cached memory can write back. Here one pair is
//! always open for writes, and each flush closes it and opens a new one.
//!
//! **On most GPUs this is refused.** NVIDIA's open kernel module lets a dma-buf be mapped only when
//! the GPU has no memory of its own (`can_mmap` in `nv-dmabuf.c`, as of 580): integrated GPUs, not
//! an H100 or H200. Elsewhere `mmap` fails, and the copy engine serves the memory and names that
//! reason. Such GPUs need GDRCopy.
//!
//! Not measured, and not run on a real GPU yet: in tests a mock driver gives a memfd.
#![allow(unsafe_code)] // Calls into libcuda, maps memory, ioctl.

use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;

use cudarc::driver::sys::{self, CUmemRangeHandleType};
use ringbell_nic_abi::GpuVa;
use rustix::mm::{MapFlags, ProtFlags};

use super::driver;
use super::mapper::{GpuMapper, GpuMapping};
use super::posted::{drain, PostedWrites};

/// The driver's function, which drivers before CUDA 11.7 lack.
const EXPORT: &str = "cuMemGetHandleForAddressRange";

/// Flags of `DMA_BUF_IOCTL_SYNC` (linux/dma-buf.h).
const SYNC_READ: u64 = 1;
const SYNC_WRITE: u64 = 2;
const SYNC_END: u64 = 4;

/// Maps GPU memory through dma-bufs of the driver. A context of the GPU is current where it is
/// used.
#[derive(Debug, Clone, Copy, Default)]
pub struct DmaBufMapper;

impl GpuMapper for DmaBufMapper {
    fn name(&self) -> String {
        "a dma-buf".into()
    }

    fn map(&self, va: GpuVa, len: u64) -> Result<Box<dyn GpuMapping>, String> {
        let len = usize::try_from(len).map_err(|_| format!("{len} bytes do not fit"))?;
        let fd = export(va, len)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe {
            let anywhere = std::ptr::null_mut();
            rustix::mm::mmap(anywhere, len, protection, MapFlags::SHARED, &fd, 0)
        };
        let at = at.map_err(|e| {
            format!("mmap: {e} (NVIDIA's driver maps only GPUs without memory of their own so)")
        })?;
        let base = NonNull::new(at.cast::<u8>()).ok_or("it was mapped at 0")?;
        let mut mapping = DmaBufMapping {
            base,
            len,
            sync: false,
            posted: PostedWrites::new(),
            fd,
        };
        mapping.sync = mapping.bracket(SYNC_WRITE);
        Ok(Box::new(mapping))
    }
}

/// A descriptor for a range of whole pages.
fn export(va: GpuVa, len: usize) -> Result<OwnedFd, String> {
    driver::load().map_err(|e| e.to_string())?;
    if !driver::has(EXPORT) {
        return Err(format!("the driver has no {EXPORT}"));
    }
    let mut fd: c_int = -1;
    let handle = std::ptr::from_mut(&mut fd).cast::<c_void>();
    let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    // SAFETY: the handle of this type is a descriptor, an int, which lives here; the driver checks
    // the range.
    let r = unsafe { sys::cuMemGetHandleForAddressRange(handle, va.0, len, kind, 0) };
    driver::check(EXPORT, r).map_err(|e| e.to_string())?;
    if fd < 0 {
        return Err(format!("{EXPORT} gave descriptor {fd}"));
    }
    // SAFETY: a fresh descriptor that the driver has given to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A range, mapped.
#[derive(Debug)]
struct DmaBufMapping {
    base: NonNull<u8>,
    len: usize,
    /// Whether the descriptor knows `DMA_BUF_IOCTL_SYNC`.
    sync: bool,
    posted: PostedWrites,
    fd: OwnedFd,
}

// SAFETY: accesses are raw copies, which the GPU's own may meet at any time; unmapping needs the
// only reference.
unsafe impl Send for DmaBufMapping {}
// SAFETY: as for Send.
unsafe impl Sync for DmaBufMapping {}

impl DmaBufMapping {
    /// Begins, or with [`SYNC_END`] ends, accesses by the CPU; false when the exporter does not
    /// support the call.
    fn bracket(&self, flags: u64) -> bool {
        // SAFETY: `struct dma_buf_sync` is one word, which lives here and is only read.
        unsafe {
            type Request =
                rustix::ioctl::Setter<{ rustix::ioctl::opcode::write::<u64>(b'b', 0) }, u64>;
            rustix::ioctl::ioctl(&self.fd, Request::new(flags)).is_ok()
        }
    }

    /// Where the bytes at an offset are mapped.
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let inside = usize::try_from(offset).ok().filter(|o| {
            let end = o.checked_add(len);
            end.is_some_and(|end| end <= self.len)
        });
        let offset = inside
            .unwrap_or_else(|| panic!("{len} bytes at {offset} leave a mapping of {}", self.len));
        // SAFETY: inside the mapping (checked).
        unsafe { self.base.add(offset) }.as_ptr()
    }
}

impl GpuMapping for DmaBufMapping {
    fn write(&self, offset: u64, from: &[u8]) {
        let to = self.at(offset, from.len());
        match <[u8; 8]>::try_from(from) {
            // One store, so that a reader never sees half of a flag.
            Ok(word) if (to as usize).is_multiple_of(8) => {
                // SAFETY: eight mapped bytes, aligned (checked).
                unsafe { to.cast::<u64>().write_volatile(u64::from_ne_bytes(word)) };
            }
            // SAFETY: mapped bytes (checked), and a slice of as many elsewhere.
            _ => unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) },
        }
        drain();
        self.posted.wrote(offset);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        if self.sync {
            self.bracket(SYNC_READ);
        }
        // SAFETY: mapped bytes (checked), and a slice of as many elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        if self.sync {
            self.bracket(SYNC_READ | SYNC_END);
        }
    }

    /// A GPU whose dma-bufs can be mapped has no memory of its own: this is the host's.
    fn reads_quickly(&self) -> bool {
        true
    }

    fn word(&self, offset: u64) -> Option<NonNull<u64>> {
        NonNull::new(self.at(offset, size_of::<u64>()).cast())
    }

    fn flush(&self) {
        self.posted.flush(|written| {
            if self.sync {
                self.bracket(SYNC_WRITE | SYNC_END);
                self.bracket(SYNC_WRITE);
            }
            // SAFETY: a mapped byte (checked), because a write was noted there.
            unsafe { self.at(written, 1).read_volatile() }
        });
    }
}

impl Drop for DmaBufMapping {
    fn drop(&mut self) {
        if self.sync {
            self.bracket(SYNC_WRITE | SYNC_END);
        }
        // SAFETY: mapped by `map`, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
