//! Pending copies out of a peer's memory that no CPU maps: by the memory's own copies, else by reads.
//!
//! A copy without a waiting operation (its receive was cancelled, its connection broke) still ends: until then its
//! region counts as busy, and announcements wait behind it (`DmaMemory::publish`).

use ringbell_gtlb::{BusError, BusSpan, DmaId, DmaOp, Fault, Submitted};
use ringbell_nic_abi::GpuVa;

use super::{at, Dma, DmaState, ORPHAN_POLLS};
use crate::dma::{CopyError, CopyStart, CopyStatus, DmaAccess, ReadOutcome};
use crate::memory::nic_memory::NIC_BUS;
use crate::types::Buffer;

/// Most bytes of one copy from memory to memory: a receive that is cancelled waits for no more than a few.
const COPIED: u64 = 16 << 20;
/// Most bytes of one read on behalf of memory that cannot be copied to: a few slots of a copy engine.
const READ: u64 = 256 << 10;

/// One run on its way.
#[derive(Debug)]
pub(super) struct PendingCopy {
    ticket: u64,
    from: BusSpan,
    /// While it is in flight.
    id: Option<DmaId>,
    /// Where it goes; without, it is read into the NIC.
    to: Option<(Buffer, u64)>,
    /// What was read; without, the memory copies by itself.
    bytes: Option<Vec<u8>>,
    touched: u64,
}

impl DmaState {
    /// An operation has ended that is no read of our own memory.
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
        let into = |a: &PendingCopy| a.to.is_some_and(|(b, _)| b.region == region);
        self.copies.iter().any(|a| a.id.is_some() && into(a))
    }

    /// Whether a copy out of a range of the bus is in flight.
    pub(super) fn reads_from(&self, bus: u64, len: u64) -> bool {
        let meets = |s: BusSpan| {
            let first = s.addr.value();
            first < bus.saturating_add(len) && bus < first.saturating_add(s.len)
        };
        self.copies.iter().any(|a| a.id.is_some() && meets(a.from))
    }

    fn note(
        &mut self,
        from: BusSpan,
        answer: Submitted,
        to: Option<(Buffer, u64)>,
        bytes: Option<Vec<u8>>,
    ) -> CopyStart {
        self.last_ticket += 1;
        self.copies.push(PendingCopy {
            ticket: self.last_ticket,
            from,
            id: match answer {
                Submitted::Done => None,
                Submitted::Pending(id) => Some(id),
            },
            to,
            bytes,
            touched: self.polls,
        });
        CopyStart::Started {
            ticket: self.last_ticket,
            len: from.len,
        }
    }

    fn begin_read(
        &mut self,
        from: BusSpan,
        to: Option<(Buffer, u64)>,
    ) -> Result<CopyStart, BusError> {
        let from = from.prefix(READ);
        let mut bytes = vec![0; from.len as usize];
        let into = &mut bytes;
        match self.memory.submit(DmaOp::Read { from, into }) {
            Ok(answer) => Ok(self.note(from, answer, to, Some(bytes))),
            Err(BusError::Busy) => Ok(CopyStart::Busy),
            Err(e) => Err(e),
        }
    }

    pub(super) fn begin_read_alone(&mut self, from: BusSpan) -> Result<CopyStart, BusError> {
        self.begin_read(from, None)
    }

    pub(super) fn end_read(&mut self, ticket: u64) -> ReadOutcome {
        let Some(i) = self.copies.iter().position(|a| a.ticket == ticket) else {
            return ReadOutcome::Lost;
        };
        self.copies[i].touched = self.polls;
        if self.copies[i].id.is_some() {
            return ReadOutcome::Pending;
        }
        let bytes = self.copies.swap_remove(i).bytes.unwrap_or_default();
        self.copied += bytes.len() as u64;
        ReadOutcome::Bytes(bytes)
    }
}

impl Dma<'_> {
    pub(super) fn begin_copy(
        &mut self,
        from: BusSpan,
        buffer: &Buffer,
        offset: u64,
    ) -> Result<CopyStart, CopyError> {
        let to = self.span(buffer, offset)?.prefix(from.len.min(COPIED));
        let from = from.prefix(to.len);
        let place = Some((*buffer, offset));
        if to.addr.value() < NIC_BUS {
            match self.state.memory.submit(DmaOp::Copy { from, to }) {
                Ok(answer) => return Ok(self.state.note(from, answer, place, None)),
                Err(BusError::Busy) => return Ok(CopyStart::Busy),
                Err(BusError::NoCopy { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(self.state.begin_read(from, place)?)
    }

    pub(super) fn end_copy(&mut self, ticket: u64) -> Result<CopyStatus, Fault> {
        let all = &mut self.state.copies;
        let Some(i) = all.iter().position(|a| a.ticket == ticket) else {
            return Ok(CopyStatus::Lost);
        };
        all[i].touched = self.state.polls;
        if all[i].id.is_some() {
            return Ok(CopyStatus::Pending);
        }
        let a = all.swap_remove(i);
        let Some((buffer, offset)) = a.to else {
            return Err(Fault::NoTranslation { va: GpuVa(0) });
        };
        match a.bytes {
            // `write` counts its own.
            Some(bytes) => self.write(&buffer, offset, &bytes)?,
            None => self.state.direct += a.from.len,
        }
        self.state.copied += a.from.len;
        // What was pinned when the copy began is pinned until its receive retires.
        at(&buffer, offset).map(|_| CopyStatus::Done)
    }
}
