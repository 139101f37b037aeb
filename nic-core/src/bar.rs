//! The BAR: registers and doorbells.
//!
//! The pages are plain shared memory. Kernels store to the doorbells and read the status half,
//! which the NIC refreshes every few milliseconds while it is stepped; the host goes through
//! `Nic::bar_read32` and `Nic::bar_write32`, which trap: a write acts at once, a read is up to
//! date.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use ringbell_gtlb::{DmaMemory, Exposed};
use ringbell_nic_abi::bar::{
    Access, Reg, BAR_BYTES, CONTROL_BYTES, DOORBELL_BASE, DOORBELL_STRIDE, MEMFD_NAME,
};

use ringbell_nic_abi::block::{BlockKind, HEADERS_BASE, HEADER_STRIDE, HEADER_WORDS};
use ringbell_nic_abi::GpuVa;

use crate::shmem::Mapping;

/// A BAR access that the NIC refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BarError {
    /// Not a multiple of four, or beyond the BAR.
    #[error(
        "BAR offset {offset:#x} is unaligned or past the end of the BAR ({BAR_BYTES:#x} bytes)"
    )]
    BadOffset {
        /// The offset given.
        offset: usize,
    },
    /// No register there.
    #[error("no register at BAR offset {offset:#x}; `ringbell regs` lists the map")]
    NoRegister {
        /// The offset given.
        offset: usize,
    },
    /// A status register was written.
    #[error("register {} is read-only", .reg.name())]
    ReadOnly {
        /// The register.
        reg: Reg,
    },
    /// A block header was written.
    #[error("BAR offset {offset:#x} is in a block header, which is read-only")]
    Header {
        /// The offset given.
        offset: usize,
    },
    /// The GTLB block refused it.
    #[error(transparent)]
    Gtlb(#[from] ringbell_gtlb::BarError),
    /// The value is out of range for the register.
    #[error("value {value:#x} is not allowed in register {}: {why}", .reg.name())]
    BadValue {
        /// The register.
        reg: Reg,
        /// The value given.
        value: u32,
        /// What would be allowed.
        why: &'static str,
    },
}

/// Target of an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A register of the control window.
    Reg(Reg, Access),
    /// A doorbell, at the first word of its line.
    Doorbell,
    /// A word of a block header.
    Header,
}

/// What lies at a byte offset.
///
/// # Errors
/// [`BarError::BadOffset`], [`BarError::NoRegister`].
pub fn target(offset: usize) -> Result<Target, BarError> {
    if !offset.is_multiple_of(4) || offset >= BAR_BYTES {
        return Err(BarError::BadOffset { offset });
    }
    if offset >= DOORBELL_BASE {
        let at = offset - DOORBELL_BASE;
        let first = at.is_multiple_of(DOORBELL_STRIDE);
        return first
            .then_some(Target::Doorbell)
            .ok_or(BarError::NoRegister { offset });
    }
    debug_assert!(offset < CONTROL_BYTES);
    if offset >= HEADERS_BASE {
        let (block, at) = (
            (offset - HEADERS_BASE) / HEADER_STRIDE,
            (offset - HEADERS_BASE) % HEADER_STRIDE,
        );
        let there = block < BlockKind::ALL.len() && at / 4 < HEADER_WORDS;
        return there
            .then_some(Target::Header)
            .ok_or(BarError::NoRegister { offset });
    }
    let reg = Reg::from_index((offset / 4) as u32).ok_or(BarError::NoRegister { offset })?;
    let access = Reg::ALL
        .iter()
        .find(|row| row.0 == reg)
        .map_or(Access::Ro, |row| row.1);
    Ok(Target::Reg(reg, access))
}

/// A device with the registers of the contract.
pub trait Registers {
    /// Reads one.
    ///
    /// # Errors
    /// [`BarError`].
    fn read_register(&self, reg: Reg) -> Result<u32, BarError>;
    /// Writes one; it acts at once.
    ///
    /// # Errors
    /// [`BarError`].
    fn write_register(&self, reg: Reg, value: u32) -> Result<(), BarError>;
}

/// The shared pages of the BAR.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    // Dropped before the mapping that it lets the GPU reach.
    exposed: Arc<Exposed>,
    pub(crate) map: Arc<Mapping>,
}

impl Bar {
    /// Zeroed BAR memory, where the GPU of `memory` reaches it.
    pub(crate) fn new(memory: &dyn DmaMemory) -> std::io::Result<Bar> {
        // A memfd with a name, so that `ringbell regs` finds the NICs that run.
        let map = Mapping::memfd(MEMFD_NAME, BAR_BYTES.next_multiple_of(4096))?;
        Ok(Bar {
            exposed: Arc::new(map.expose(memory)?),
            map: Arc::new(map),
        })
    }

    /// A name of the memfd, for this process.
    pub(crate) fn file(&self) -> std::path::PathBuf {
        // Made with a descriptor, which stays.
        let fd = self.map.fd().map_or(-1, |fd| fd.as_raw_fd());
        format!("/proc/self/fd/{fd}").into()
    }

    /// Where kernels see the first byte.
    pub(crate) fn va(&self) -> GpuVa {
        self.exposed.va()
    }

    /// The word at an offset that `target` has accepted.
    pub(crate) fn load(&self, offset: usize) -> u32 {
        self.map.words32(offset, 1)[0].load(Ordering::Acquire)
    }

    /// Stores the word at an offset that `target` has accepted.
    pub(crate) fn store(&self, offset: usize, value: u32) {
        // Release: pairs with the Acquire load of a doorbell, or of a status word by a kernel.
        self.map.words32(offset, 1)[0].store(value, Ordering::Release);
    }

    /// Sets a register's shared word.
    pub(crate) fn set(&self, reg: Reg, value: u32) {
        self.store(reg.offset(), value);
    }
}
