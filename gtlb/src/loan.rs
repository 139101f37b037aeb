//! Memory that one NIC lends to another: how a NIC reads memory of a peer that no CPU can map.
//!
//! The owner's memory names an allocation ([`DmaMemory::lend`]); the [`Loan`] travels to the peer, whose own
//! memory borrows it ([`DmaMemory::borrow`]) and says some time later at which bus address it appears there, or
//! why it does not. A copy from it is then [`DmaOp::Copy`] or [`DmaOp::Read`] like any other. To open memory of another
//! process may take long, and may wait for what the GPU is doing: so a borrowing is asked, never waited for.
//!
//! [`DmaMemory::lend`]: crate::DmaMemory::lend
//! [`DmaMemory::borrow`]: crate::DmaMemory::borrow
//! [`DmaOp::Copy`]: crate::DmaOp::Copy
//! [`DmaOp::Read`]: crate::DmaOp::Read

use crate::memory::{BusAddr, BusSpan};

/// Bytes of a token.
pub const TOKEN_BYTES: usize = 160;

/// An allocation that other NICs of the host may borrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loan {
    /// What names the allocation in its memory; never given to another one.
    pub key: u64,
    /// Bus address of its first byte, at its owner.
    pub bus: u64,
    /// Bytes.
    pub len: u64,
    /// What the borrowing memory needs to find it; only memories of the same kind understand it.
    pub token: [u8; TOKEN_BYTES],
}

impl Loan {
    /// Whether `len` bytes at the owner's bus address lie inside.
    pub fn covers(&self, bus: u64, len: u64) -> bool {
        let at = bus.checked_sub(self.bus).and_then(|at| at.checked_add(len));
        at.is_some_and(|end| end <= self.len)
    }
}

/// Why memory is not reached by copies from GPU to GPU, and goes through NIC memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NotReached {
    /// One of the two memories has no such thing.
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
    /// The handle names nothing any more.
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

/// How far a borrowing has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BorrowState {
    /// Ask again.
    Opening,
    /// The allocation's first byte is at this bus address here.
    Open {
        /// The address.
        bus: u64,
    },
    /// It is not to be had.
    Refused(NotReached),
    /// Given back, or never had: the owner may free it.
    Closed,
}

/// Memory of a peer, borrowed or on its way. Dropping it gives it back too.
pub trait Borrow: Send + Sync + std::fmt::Debug {
    /// How far it is. Never waits.
    fn state(&self) -> BorrowState;

    /// Starts to give it back; [`BorrowState::Closed`] says when that is over. No operation on it may be in
    /// flight, nor be submitted any more.
    fn close(&mut self);

    /// Whether it belongs to another process, which may end at any time.
    fn is_foreign(&self) -> bool;
}

/// Where the memory of a [`Loan`] lies here: the owner's bus addresses to ours.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    theirs: u64,
    len: u64,
    ours: u64,
}

impl Reach {
    /// A translation of a loan that is open at `bus` here.
    pub fn new(loan: &Loan, bus: u64) -> Reach {
        Reach {
            theirs: loan.bus,
            len: loan.len,
            ours: bus,
        }
    }

    /// Our span for `len` bytes at the owner's bus address; `None` when they leave the loan.
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
    fn a_reach_ends_where_its_loan_ends() {
        let loan = Loan {
            key: 1,
            bus: 0x7000,
            len: 0x100,
            token: [0; TOKEN_BYTES],
        };
        let reach = Reach::new(&loan, 0x9_0000);
        let span = reach.span(0x70ff, 1).expect("inside");
        assert_eq!((span.addr.value(), span.len), (0x9_00ff, 1));
        for (bus, len) in [(0x70ff, 2), (0x6fff, 1), (0x7100, 1), (0x7001, u64::MAX)] {
            assert!(reach.span(bus, len).is_none(), "{bus:#x} + {len}");
            assert!(!loan.covers(bus, len), "{bus:#x} + {len}");
        }
        assert!(loan.covers(0x7000, 0x100));
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
