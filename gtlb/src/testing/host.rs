//! Host memory as a NIC's memory, finished at once.
#![allow(unsafe_code)] // maps a memfd and copies through raw pointers

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::bus::BusSpan;
use crate::completion_write::CompletionWrite;
use crate::memory::{BusError, DmaId, DmaMemory, DmaOp, Export, Submitted, Window};

/// Bus address of the first byte: not 0, so that an offset taken for an address is noticed.
const BUS_BASE: u64 = 1 << 40;

/// Memory that is mapped once, as a sealed memfd or as memory of the process alone. Every operation
/// is done at once.
#[derive(Debug)]
pub struct HostMemory {
    /// None: it is not to be exported.
    fd: Option<OwnedFd>,
    base: *mut u8,
    len: u64,
}

// SAFETY: the mapping lives as long as the value, and is accessed through raw copies only.
unsafe impl Send for HostMemory {}
// SAFETY: as for Send; concurrent copies may tear, which the protocol above excludes or tolerates.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Makes a memory of `len` bytes, zeroed.
    ///
    /// # Errors
    /// What the kernel says, for example when `len` is 0 or memory is short.
    pub fn new(len: u64) -> io::Result<HostMemory> {
        let fd = rustix::fs::memfd_create(
            "ringbell-host-memory",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&fd, len)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlays nothing.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &fd,
                0,
            )?
        };
        Ok(HostMemory {
            fd: Some(fd),
            base: base.cast(),
            len,
        })
    }

    /// Makes a memory of `len` bytes, zeroed, that peers cannot map: it takes no descriptor, of
    /// which thousands of simulated NICs would need as many.
    ///
    /// # Errors
    /// As [`new`](HostMemory::new).
    pub fn unshared(len: u64) -> io::Result<HostMemory> {
        // SAFETY: as in `new`.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        Ok(HostMemory {
            fd: None,
            base: base.cast(),
            len,
        })
    }

    /// Bus address of the first byte.
    pub fn bus(&self) -> u64 {
        BUS_BASE
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: the kernel refuses a memory of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads bytes by bus address, past the NIC.
    ///
    /// # Errors
    /// [`BusError::OutOfRange`].
    pub fn peek(&self, bus: u64, into: &mut [u8]) -> Result<(), BusError> {
        let at = self.at(bus, into.len() as u64)?;
        // SAFETY: `at` has checked that the range lies in the mapping; `into` is ours alone.
        unsafe { std::ptr::copy_nonoverlapping(at.cast_const(), into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Writes bytes by bus address, past the NIC.
    ///
    /// # Errors
    /// [`BusError::OutOfRange`].
    pub fn poke(&self, bus: u64, from: &[u8]) -> Result<(), BusError> {
        let at = self.at(bus, from.len() as u64)?;
        // SAFETY: `at` has checked that the range lies in the mapping; `from` cannot overlap it,
        // because no reference to the mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), at, from.len()) };
        Ok(())
    }

    /// Copies bytes inside, past the NIC.
    pub(super) fn copy(&self, from: BusSpan, to: BusSpan) -> Result<(), BusError> {
        check_length(from, to.len as usize)?;
        let source = self.at(from.addr.value(), from.len)?;
        let target = self.at(to.addr.value(), to.len)?;
        // SAFETY: `at` has checked both ranges; `copy` allows them to overlap.
        unsafe { std::ptr::copy(source.cast_const(), target, to.len as usize) };
        Ok(())
    }

    fn at(&self, bus: u64, len: u64) -> Result<*mut u8, BusError> {
        let offset = bus
            .checked_sub(BUS_BASE)
            .filter(|offset| offset.checked_add(len).is_some_and(|end| end <= self.len))
            .ok_or(BusError::OutOfRange { addr: bus, len })?;
        Ok(self.base.wrapping_add(offset as usize))
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: made by `new`, unmapped once; users of the window's address do not outlive the
        // memory (`DmaMemory::window`). Failure could only leak the mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len as usize) };
    }
}

impl DmaMemory for HostMemory {
    fn submit(&self, op: DmaOp<'_>) -> Result<Submitted, BusError> {
        match op {
            DmaOp::Read { from, into } => {
                check_length(from, into.len())?;
                self.peek(from.addr.value(), into)?;
            }
            DmaOp::Write { to, from } => {
                check_length(to, from.len())?;
                self.poke(to.addr.value(), from)?;
            }
            DmaOp::Copy { from, to } => {
                self.copy(from, to)?;
            }
        }
        Ok(Submitted::Done)
    }

    fn poll(&self) -> Option<DmaId> {
        None
    }

    fn take(&self, id: DmaId, _into: &mut [u8]) {
        // Nothing is ever pending here, so no caller can hold an id.
        debug_assert!(false, "{id:?} was not answered by this memory");
    }

    fn publish(&self, completion: CompletionWrite) {
        completion.store(); // its Release orders the copies above before it
    }

    fn window(&self) -> Option<Window> {
        Some(Window {
            base: self.base,
            bus: BUS_BASE,
            len: self.len,
        })
    }

    fn exports(&self) -> Vec<Export<'_>> {
        let fd = self.fd.iter();
        fd.map(|fd| Export {
            fd: fd.as_fd(),
            file_offset: 0,
            bus: BUS_BASE,
            len: self.len,
        })
        .collect()
    }
}

/// A span and its buffer have one length; otherwise bytes without a translation would be touched.
pub(super) fn check_length(span: BusSpan, len: usize) -> Result<(), BusError> {
    if span.len == len as u64 {
        Ok(())
    } else {
        Err(BusError::OutOfRange {
            addr: span.addr.value(),
            len: len as u64,
        })
    }
}
