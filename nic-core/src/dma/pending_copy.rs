//! Pending copies inside a memory that no CPU maps: by the memory's own copies, else by reads.
//!
//! A copy without a waiting operation (it was cancelled) still ends: until then its region counts
//! as busy, and announcements wait behind it (`DmaMemory::publish`).

use ringbell_gtlb::{BusError, BusSpan, DmaId, DmaOp, Fault, Submitted};

use super::{at, Dma, DmaState, PendingCopy, ORPHAN_POLLS};
use crate::dma::DmaAccess;
use crate::memory::nic_memory::NIC_BUS;
use crate::types::Buffer;

/// Most bytes of one copy from memory to memory: one that is cancelled ends soon.
const COPIED: u64 = 16 << 20;
/// Most bytes of one read on behalf of memory that cannot be copied to: a few slots of a copy
/// engine.
const READ: u64 = 256 << 10;

/// Whether a copy has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum CopyStart {
    /// No room for another operation: try again in a later step.
    Busy,
    /// The first `len` bytes are on their way.
    Started {
        /// Names them.
        ticket: u64,
        /// Bytes, at least one.
        len: u64,
    },
}

/// Whether it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum CopyStatus {
    /// In place.
    Done,
    /// Ask again.
    Pending,
    /// It was not asked for in too many steps, and was dropped.
    Lost,
}

/// Why bytes cannot be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyError {
    /// The destination's fault.
    Fault(Fault),
    /// The source's memory, or the device.
    Bus(BusError),
}

impl From<Fault> for CopyError {
    fn from(fault: Fault) -> CopyError {
        CopyError::Fault(fault)
    }
}

impl From<BusError> for CopyError {
    fn from(e: BusError) -> CopyError {
        CopyError::Bus(e)
    }
}

impl DmaState {
    /// An operation has ended that is no read of [`DmaAccess::read`].
    pub(super) fn finished(&mut self, id: DmaId) {
        let Some(a) = self.copies.iter_mut().find(|a| a.id == Some(id)) else {
            return;
        };
        a.id = None;
        if let Some(bytes) = &mut a.bytes {
            self.memory.take(id, bytes);
        }
    }

    /// Drops arrived bytes that no operation polls for.
    pub(super) fn forget_copies(&mut self) {
        let polls = self.polls;
        self.copies
            .retain(|a| a.id.is_some() || polls - a.touched < ORPHAN_POLLS);
    }

    /// Whether a copy or a read into a region is in flight.
    pub(super) fn copies_into(&self, region: u32) -> bool {
        let into = |a: &PendingCopy| a.id.is_some() && a.to.0.region == region;
        self.copies.iter().any(into)
    }

    fn note(
        &mut self,
        len: u64,
        answer: Submitted,
        to: (Buffer, u64),
        bytes: Option<Vec<u8>>,
    ) -> CopyStart {
        self.last_ticket += 1;
        self.copies.push(PendingCopy {
            ticket: self.last_ticket,
            len,
            id: match answer {
                Submitted::Done => None,
                Submitted::Pending(id) => Some(id),
            },
            to,
            bytes,
            touched: self.polls,
        });
        let ticket = self.last_ticket;
        CopyStart::Started { ticket, len }
    }

    fn read_for_copy(&mut self, from: BusSpan, to: (Buffer, u64)) -> Result<CopyStart, BusError> {
        let from = from.prefix(READ);
        let mut bytes = vec![0; from.len as usize];
        let into = &mut bytes;
        match self.memory.submit(DmaOp::Read { from, into }) {
            Ok(answer) => Ok(self.note(from.len, answer, to, Some(bytes))),
            Err(BusError::Busy) => Ok(CopyStart::Busy),
            Err(e) => Err(e),
        }
    }
}

impl Dma<'_> {
    /// Starts to move bytes from `from` to `offset` of the buffer: as many as are contiguous, in
    /// one go from memory to memory where it can copy by itself.
    ///
    /// # Errors
    /// [`CopyError`]; nothing was started.
    pub(crate) fn start_copy(
        &mut self,
        from: BusSpan,
        buffer: &Buffer,
        offset: u64,
    ) -> Result<CopyStart, CopyError> {
        let to = self.span(buffer, offset)?.prefix(from.len.min(COPIED));
        let from = from.prefix(to.len);
        let place = (*buffer, offset);
        if to.addr.value() < NIC_BUS {
            match self.state.memory.submit(DmaOp::Copy { from, to }) {
                Ok(answer) => return Ok(self.state.note(from.len, answer, place, None)),
                Err(BusError::Busy) => return Ok(CopyStart::Busy),
                Err(BusError::NoCopy { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(self.state.read_for_copy(from, place)?)
    }

    /// Polls a copy of [`start_copy`](Dma::start_copy), in every step until it is over. Bytes of a
    /// copy that is no longer polled may still arrive: no later than an announcement that is
    /// published after them.
    ///
    /// # Errors
    /// The [`Fault`] of the buffer.
    pub(crate) fn poll_copy(&mut self, ticket: u64) -> Result<CopyStatus, Fault> {
        let all = &mut self.state.copies;
        let Some(i) = all.iter().position(|a| a.ticket == ticket) else {
            return Ok(CopyStatus::Lost);
        };
        all[i].touched = self.state.polls;
        if all[i].id.is_some() {
            return Ok(CopyStatus::Pending);
        }
        let a = all.swap_remove(i);
        let (buffer, offset) = a.to;
        match a.bytes {
            // `write` counts its own.
            Some(bytes) => self.write(&buffer, offset, &bytes)?,
            None => self.state.direct += a.len,
        }
        self.state.copied += a.len;
        // What was pinned when the copy began is pinned until its operation retires.
        at(&buffer, offset).map(|_| CopyStatus::Done)
    }
}
