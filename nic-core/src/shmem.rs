//! Mapped memory: anonymous for private use, sealed memfds for memory that peers map.
#![allow(unsafe_code)] // mmap, and views of mapped bytes as atomics.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use ringbell_gtlb::{DmaMemory, Exposed};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A shared mapping, unmapped on drop. Page-aligned, zeroed when new.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
    fd: Option<OwnedFd>,
}

// SAFETY: a mapping is an address range; access goes through atomics or raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn anonymous(len: usize) -> std::io::Result<Mapping> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )?
        };
        Ok(Mapping {
            base: base.cast(),
            len,
            fd: None,
        })
    }

    /// Zeroed memory behind a memfd whose size is sealed, so that no peer can shrink it under us.
    pub(crate) fn memfd(name: &str, len: usize) -> std::io::Result<Mapping> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Mapping::of_fd(fd, 0, len, true)
    }

    /// Maps a descriptor that a peer has sent. Refused when the file could shrink or is too short:
    /// an access past the end of a file kills the process.
    pub(crate) fn of_peer(
        fd: OwnedFd,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> std::io::Result<Mapping> {
        let bad = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what);
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(bad("the peer's memfd is not sealed against shrinking"));
        }
        let size = rustix::fs::fstat(&fd)?.st_size as u64;
        if !offset.is_multiple_of(4096)
            || len == 0
            || offset.checked_add(len as u64).is_none_or(|e| e > size)
        {
            return Err(bad("the peer's memfd is shorter than it says"));
        }
        Mapping::of_fd(fd, offset, len, writable)
    }

    fn of_fd(fd: OwnedFd, offset: u64, len: usize, writable: bool) -> std::io::Result<Mapping> {
        let prot = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory;
        // the file is at least that long and sealed.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                prot,
                MapFlags::SHARED,
                &fd,
                offset,
            )?
        };
        Ok(Mapping {
            base: base.cast(),
            len,
            fd: Some(fd),
        })
    }

    /// Lets the GPU of `memory` reach the mapping, which must outlive the answer.
    ///
    /// # Errors
    /// The GPU cannot map it.
    pub fn expose(&self, memory: &dyn DmaMemory) -> std::io::Result<Exposed> {
        let base = NonNull::new(self.base).ok_or(std::io::ErrorKind::InvalidInput)?;
        memory.expose(base, self.len)
    }

    /// First byte.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.len
    }

    /// The memfd, when there is one.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Closes the descriptor; the mapping stays.
    pub(crate) fn forget_fd(&mut self) {
        self.fd = None;
    }

    /// `n` 32-bit words from byte `offset`.
    ///
    /// # Panics
    /// When the range leaves the mapping or is unaligned: offsets are ours, never a peer's.
    #[inline]
    pub fn words32(&self, offset: usize, n: usize) -> &[AtomicU32] {
        assert!(offset.is_multiple_of(4) && offset + n * 4 <= self.len);
        // SAFETY: in bounds and aligned (asserted; the base is page-aligned); the mapping lives as
        // long as `self` and is only accessed atomically or through raw copies.
        unsafe { std::slice::from_raw_parts(self.base.add(offset).cast::<AtomicU32>(), n) }
    }

    /// `n` 64-bit words from byte `offset`.
    ///
    /// # Panics
    /// As [`Mapping::words32`].
    #[inline]
    pub(crate) fn words64(&self, offset: usize, n: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8) && offset + n * 8 <= self.len);
        // SAFETY: as for words32.
        unsafe { std::slice::from_raw_parts(self.base.add(offset).cast::<AtomicU64>(), n) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len come from mmap; nothing borrows from `self` any more.
        let _ = unsafe { rustix::mm::munmap(self.base.cast::<c_void>(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;

    fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("t", flags).expect("memfd");
        rustix::fs::ftruncate(&fd, len).expect("length");
        rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
        fd
    }

    /// An access past the end of a file is a SIGBUS: a peer must not be able to cause one.
    #[test]
    fn files_that_could_end_before_their_mapping_are_refused() {
        let sealed = || memfd(8192, SealFlags::SHRINK);
        let unsealed = memfd(8192, SealFlags::GROW);
        let of = |fd, offset, len| Mapping::of_peer(fd, offset, len, true).map(|m| m.len);
        assert_eq!(of(sealed(), 4096, 4096).expect("inside"), 4096);
        let e = of(unsealed, 0, 4096).expect_err("it could shrink");
        assert!(e.to_string().contains("not sealed"), "{e}");
        for (offset, len) in [
            (0, 8193),
            (4096, 8192),
            (8192, 1),
            (1 << 40, 4096),
            (u64::MAX - 4095, 4096),
            (0, usize::MAX),
            (0, 0),
            (1, 4096),
        ] {
            let e = of(sealed(), offset, len).expect_err("outside");
            assert!(e.to_string().contains("shorter"), "{offset} {len}: {e}");
        }
        // Truncated before it was sealed, with the length that it had once.
        let cut = memfd(1 << 20, SealFlags::empty());
        rustix::fs::ftruncate(&cut, 4096).expect("length");
        rustix::fs::fcntl_add_seals(&cut, SealFlags::SHRINK).expect("seals");
        of(cut, 0, 1 << 20).expect_err("it is shorter now");
        // What cannot be sealed at all, or not be written.
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        of(file.into(), 0, 4096).expect_err("a file on disk");
        let (a, _b) = rustix::pipe::pipe().expect("pipe");
        of(a, 0, 4096).expect_err("a pipe");
        of(memfd(8192, SealFlags::SHRINK | SealFlags::WRITE), 0, 4096).expect_err("read-only");
    }

    #[test]
    fn memory_given_to_peers_cannot_be_resized() {
        let m = Mapping::memfd("t", 8192).expect("memfd");
        let fd = m.fd().expect("there").try_clone_to_owned().expect("copy");
        rustix::fs::ftruncate(fd.as_fd(), 4096).expect_err("sealed against shrinking");
        rustix::fs::ftruncate(fd.as_fd(), 1 << 20).expect_err("and growing");
        assert_eq!(
            Mapping::of_peer(fd, 0, 8192, true).expect("as it is").len,
            8192
        );
    }
}
