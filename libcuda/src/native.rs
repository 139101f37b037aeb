//! A shared object made by `ringbell cc`, by g++: its kernels become those of the GPU, known by name.

use std::ffi::c_void;
use std::fs::File;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use crate::{gpu, Result, INVALID_IMAGE, OUT_OF_MEMORY};

/// Bytes of a shared object for this machine: a cubin says the same in its header, but is for another machine.
pub(crate) fn shared_object(image: *const c_void) -> Option<usize> {
    // SAFETY: an ELF image has at least its header of 64 bytes.
    let header = unsafe { image.cast::<[u8; 64]>().read_unaligned() };
    let half = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    // ET_DYN, EM_X86_64 or EM_AARCH64.
    if half(16) != 3 || !matches!(half(18), 62 | 183) {
        return None;
    }
    // Linkers put the table of sections last: e_shoff, e_shentsize, e_shnum.
    let sections = header[40..48].try_into().map(u64::from_le_bytes).ok()?;
    Some(sections as usize + half(58) * half(60))
}

/// Makes the kernels of a shared object those of the GPU.
pub(crate) fn load(image: *const c_void, len: usize) -> std::result::Result<(), Result> {
    // SAFETY: the image's own header says how long it is.
    let bytes = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), len) };
    let invalid = |_| INVALID_IMAGE;
    let name = c"mock-cubin";
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create(name, flags).map_err(|_| OUT_OF_MEMORY)?;
    // Open for good: the loader takes two objects of the same name for one, and numbers of descriptors come again.
    let mut file = ManuallyDrop::new(File::from(file));
    file.write_all(bytes).map_err(|_| OUT_OF_MEMORY)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: a test's own kernels.
    unsafe { gpu().load_module(Path::new(&path)) }.map_err(invalid)
}
