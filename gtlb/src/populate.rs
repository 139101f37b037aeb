//! Population of a range's pages, which also detects unmapped ones.
#![allow(unsafe_code)] // madvise on memory of the caller.

use std::ffi::c_void;

use ringbell_nic_abi::GpuVa;
use rustix::mm::{madvise, Advice};

/// A range whose pages are not there, or not with the right that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {va} cannot be {need}: a page of the range is not mapped, or not with that right; check pointer and length")]
pub struct NotMapped {
    /// First byte.
    pub va: GpuVa,
    /// Bytes.
    pub len: u64,
    /// `read` or `written`.
    pub need: &'static str,
}

/// Populates the pages of `len` bytes at `ptr`, for reading or for writing.
///
/// A DMA to an address without a page would end the process; and the first touch of a page costs
/// microseconds, which belong here and not into the first message. A kernel before Linux 5.14 has
/// no such advice; there the pages are taken as they are.
///
/// # Errors
/// [`NotMapped`], with nothing changed but pages of the range that are there now.
pub fn populate(ptr: *mut u8, len: usize, write: bool) -> Result<(), NotMapped> {
    let (advice, need) = match write {
        true => (Advice::LinuxPopulateWrite, "written"),
        false => (Advice::LinuxPopulateRead, "read"),
    };
    let page = rustix::param::page_size();
    let start = ptr.addr() & !(page - 1);
    let bytes = ptr.addr().saturating_add(len) - start;
    let refused = || NotMapped {
        va: GpuVa(ptr.addr() as u64),
        len: len as u64,
        need,
    };
    let advise = |p: *mut u8, len: usize| {
        // SAFETY: this advice changes no content; on a range that is not mapped it fails.
        unsafe { madvise(p.cast::<c_void>(), len, advice) }
    };
    match advise(ptr.with_addr(start), bytes) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::INVAL) => {
            // No such right, or no such advice: a page that has every right shows which.
            let mut own = vec![0_u8; 2 * page];
            let offset = own.as_ptr().align_offset(page);
            match advise(own[offset..].as_mut_ptr(), page) {
                Ok(()) => Err(refused()),
                Err(_) => Ok(()),
            }
        }
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(()),
        Err(_) => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Zeroed pages, which live as long as the process.
    fn memory(len: usize) -> *mut u8 {
        use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), len, rights, MapFlags::PRIVATE) };
        map.expect("memory").cast()
    }

    #[test]
    fn holes_and_missing_rights_are_found() {
        let page = rustix::param::page_size();
        let map = memory(4 * page);
        let at = |n: usize| map.wrapping_add(n);
        assert!(populate(at(17), 3 * page, true).is_ok());
        // SAFETY: the pages belong to the mapping, and nothing refers to them.
        unsafe {
            rustix::mm::mprotect(
                at(page).cast::<c_void>(),
                page,
                rustix::mm::MprotectFlags::READ,
            )
            .expect("mprotect");
        }
        assert!(populate(at(0), 2 * page, false).is_ok());
        let refused = populate(at(5), 2 * page, true).expect_err("read-only");
        assert!(
            refused.to_string().contains("cannot be written"),
            "{refused}"
        );
        let (null, len) = (std::ptr::without_provenance_mut(64), 100);
        let refused = populate(null, len, false).expect_err("no page at 0");
        assert!(refused.to_string().contains("cannot be read"), "{refused}");
    }
}
