//! Export and import of allocations between NICs: how one NIC reads a peer's memory that no CPU can map.
//!
//! The owner's memory names an allocation ([`DmaMemory::export_allocation`]). The [`ExportRecord`] travels to the
//! peer, whose memory imports it ([`DmaMemory::import_allocation`]). Some time later the import says at which bus
//! address the allocation appears there, or why it does not. A copy from it is then [`DmaOp::Copy`] or
//! [`DmaOp::Read`] like any other. Opening memory of another process may take long, and may wait for running
//! kernels. So an import is polled, never waited for.
//!
//! [`DmaMemory::export_allocation`]: crate::DmaMemory::export_allocation
//! [`DmaMemory::import_allocation`]: crate::DmaMemory::import_allocation
//! [`DmaOp::Copy`]: crate::DmaOp::Copy
//! [`DmaOp::Read`]: crate::DmaOp::Read

use crate::bus::{BusAddr, BusSpan};

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 160;

/// The name of an allocation that other NICs of the host may import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportRecord {
    /// What names the allocation in its memory; never given to another one.
    pub key: u64,
    /// Bus address of its first byte, at its owner.
    pub bus: u64,
    /// Bytes.
    pub len: u64,
    /// What the importing memory needs to find it; only memories of the same kind understand it.
    pub token: [u8; TOKEN_BYTES],
}

impl ExportRecord {
    /// Whether `len` bytes at the owner's bus address lie inside.
    pub fn covers(&self, bus: u64, len: u64) -> bool {
        let at = bus.checked_sub(self.bus).and_then(|at| at.checked_add(len));
        at.is_some_and(|end| end <= self.len)
    }
}

/// Why data goes through NIC memory instead of by copies from GPU to GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NotReached {
    /// One of the two memories cannot export, or cannot import.
    #[error("the two memories are not of one kind")]
    OtherKind,
    /// It was turned off.
    #[error("it was turned off on one side")]
    TurnedOff,
    /// The driver gives no handle for it.
    #[error("the driver exports no such memory: pinned, of a pool, of cuMemCreate, or opened from another process")]
    NotExportable,
    /// The peer is beside another GPU, or another part of it.
    #[error("the peer is beside another GPU, or another MIG instance of it")]
    OtherGpu,
    /// The exported allocation was freed.
    #[error("the allocation behind the handle is gone")]
    Stale,
    /// The driver has no IPC handles, or refuses them here.
    #[error(
        "the driver refuses IPC handles here; containers need a common IPC and process namespace"
    )]
    NoIpc,
    /// No address space, or too many allocations.
    #[error("there is no room for another allocation of a peer")]
    NoRoom,
}

impl NotReached {
    /// All of them.
    pub const ALL: [NotReached; 7] = [
        NotReached::OtherKind,
        NotReached::TurnedOff,
        NotReached::NotExportable,
        NotReached::OtherGpu,
        NotReached::Stale,
        NotReached::NoIpc,
        NotReached::NoRoom,
    ];

    /// Its number on the wire.
    pub fn code(self) -> u64 {
        self as u64 + 1
    }

    /// What a number on the wire says.
    pub fn from_code(code: u64) -> Option<NotReached> {
        NotReached::ALL.into_iter().find(|n| n.code() == code)
    }
}

/// Progress of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportState {
    /// Ask again.
    Opening,
    /// The allocation's first byte is at this bus address here.
    Open {
        /// The address.
        bus: u64,
    },
    /// It cannot be opened.
    Refused(NotReached),
    /// Closed, or never open: the owner may free it.
    Closed,
}

/// An allocation of a peer that is open here, or being opened. Dropping it closes it too.
pub trait Import: Send + Sync + std::fmt::Debug {
    /// Its progress. Never waits.
    fn state(&self) -> ImportState;

    /// Starts to close it; [`ImportState::Closed`] says when that is over. No operation on it may be in
    /// flight, nor be submitted any more.
    fn close(&mut self);

    /// Whether it belongs to another process, which may end at any time.
    fn is_foreign(&self) -> bool;
}

/// The translation of an open import: the owner's bus addresses to ours.
#[derive(Debug, Clone, Copy)]
pub struct ImportedRange {
    theirs: u64,
    len: u64,
    ours: u64,
}

impl ImportedRange {
    /// The translation of an exported allocation that is open at `bus` here.
    pub fn new(record: &ExportRecord, bus: u64) -> ImportedRange {
        ImportedRange {
            theirs: record.bus,
            len: record.len,
            ours: bus,
        }
    }

    /// Our span for `len` bytes at the owner's bus address; `None` when they leave the allocation.
    #[inline]
    pub fn span(&self, bus: u64, len: u64) -> Option<BusSpan> {
        let at = bus.checked_sub(self.theirs)?;
        if at.checked_add(len)? > self.len {
            return None;
        }
        let addr = BusAddr::mint(self.ours.checked_add(at)?);
        Some(BusSpan { addr, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_imported_range_ends_where_its_export_ends() {
        let record = ExportRecord {
            key: 1,
            bus: 0x7000,
            len: 0x100,
            token: [0; TOKEN_BYTES],
        };
        let range = ImportedRange::new(&record, 0x9_0000);
        let span = range.span(0x70ff, 1).expect("inside");
        assert_eq!((span.addr.value(), span.len), (0x9_00ff, 1));
        for (bus, len) in [(0x70ff, 2), (0x6fff, 1), (0x7100, 1), (0x7001, u64::MAX)] {
            assert!(range.span(bus, len).is_none(), "{bus:#x} + {len}");
            assert!(!record.covers(bus, len), "{bus:#x} + {len}");
        }
        assert!(record.covers(0x7000, 0x100));
    }

    #[test]
    fn every_reason_survives_the_wire() {
        for why in NotReached::ALL {
            assert_eq!(NotReached::from_code(why.code()), Some(why));
        }
        assert_eq!(NotReached::from_code(0), None);
        assert_eq!(NotReached::from_code(8), None);
    }
}
