//! DMA: bytes between the NIC and GPU memory, always through the GTLB.
//!
//! The bus has a range each for GPU memory, the NIC's own memory and registered memory of the host
//! (see `nic_memory`). Directly mapped memory takes the fast path (translate, then copy). An
//! asynchronous memory goes through [`DmaMemory::submit`]: its reads are stored by their
//! parameters, so that the transport repeats the identical call until the bytes are there.
#![allow(unsafe_code)] // Raw copies through the memory's window.

mod access;
mod pending_copy;
mod remote;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use ringbell_gtlb::{
    BusError, BusSpan, DmaId, DmaMemory, DmaOp, Fault, Mmu, Need, Submitted, Window,
};
use ringbell_nic_abi::{GpuVa, PdId, Rkey, Status, INLINE_MAX};

use crate::card::SharedCard;
use crate::memory::nic_memory::{host_at_bus, Block, NicMemory, HOST_BUS, NIC_BUS};
use crate::types::{Buffer, Small};
pub(crate) use access::each_mapped;
pub use access::{DmaAccess, PeerDma, ReadStatus, StageRoom};
pub(crate) use pending_copy::{CopyError, CopyStart, CopyStatus};
pub use remote::{RemoteMemory, WordUpdate};
use ringbell_gtlb::copy;

/// Reads of an asynchronous memory that were not repeated after this many polls are
/// dropped: their operation was cancelled.
const ORPHAN_POLLS: u64 = 1 << 16;

/// Ticket of a read that is never repeated.
const ORPHAN: u64 = u64::MAX;

/// Polls of a memory that refuses a write before the operation faults instead of waiting on.
const BUSY_POLLS: u32 = 1 << 20;

/// One piece of a read, contiguous on the bus.
#[derive(Debug)]
struct Piece {
    id: Option<DmaId>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct PendingRead {
    /// 0, or what tells it from other reads of the same bytes.
    ticket: u64,
    region: u32,
    va: GpuVa,
    len: usize,
    pieces: Vec<Piece>,
    touched: u64,
}

/// One run of a copy on its way (`pending_copy`).
#[derive(Debug)]
struct PendingCopy {
    ticket: u64,
    len: u64,
    /// While it is in flight.
    id: Option<DmaId>,
    /// Where it goes.
    to: (Buffer, u64),
    /// What was read; without, the memory copies by itself.
    bytes: Option<Vec<u8>>,
    touched: u64,
}

/// What DMA keeps between steps.
pub(crate) struct DmaState {
    pub(crate) memory: Arc<dyn DmaMemory>,
    pub(crate) nic_memory: NicMemory,
    window: Option<Window>,
    /// Whether the memory finishes every operation at once.
    immediate: bool,
    pending: VecDeque<PendingRead>,
    /// Bytes on their way inside the memory.
    copies: Vec<PendingCopy>,
    /// Last number given to one of them.
    last_ticket: u64,
    polls: u64,
    /// Payload bytes copied.
    pub(crate) copied: u64,
    /// Those of them that were read into NIC memory for a peer.
    pub(crate) staged: u64,
    /// Those of them that went from memory to memory past the host.
    pub(crate) direct: u64,
    /// Hardware that reduces operands.
    pub(crate) card: Option<SharedCard>,
}

impl DmaState {
    pub(crate) fn new(memory: Arc<dyn DmaMemory>, nic_memory: NicMemory) -> DmaState {
        DmaState {
            window: memory.window(),
            immediate: memory.is_immediate(),
            memory,
            nic_memory,
            pending: VecDeque::new(),
            copies: Vec::new(),
            last_ticket: 0,
            polls: 0,
            copied: 0,
            staged: 0,
            direct: 0,
            card: None,
        }
    }

    /// Collects finished operations. Returns whether there were any.
    #[inline]
    pub(crate) fn poll(&mut self) -> bool {
        !self.is_immediate() && self.collect()
    }

    // Apart, so that the steps of a NIC whose memory is immediate do not pay for it.
    #[inline(never)]
    fn collect(&mut self) -> bool {
        self.polls += 1;
        let mut any = false;
        while let Some(id) = self.memory.poll() {
            any = true;
            let pieces = self.pending.iter_mut().flat_map(|r| r.pieces.iter_mut());
            if let Some(p) = pieces.into_iter().find(|p| p.id == Some(id)) {
                self.memory.take(id, &mut p.bytes);
                p.id = None;
            } else {
                self.finished(id);
            }
        }
        self.forget_copies();
        let polls = self.polls;
        self.pending.retain(|r| {
            let wanted = r.ticket != ORPHAN && polls - r.touched < ORPHAN_POLLS;
            wanted || r.pieces.iter().any(|p| p.id.is_some())
        });
        any
    }

    /// An operation on a region has ended early: bytes read for it are stale as soon as its owner
    /// writes the buffer again. Other operations' reads of the region restart.
    pub(crate) fn forget_reads(&mut self, region: u32) {
        for r in self.pending.iter_mut().filter(|r| r.region == region) {
            r.ticket = ORPHAN;
        }
    }

    /// Whether [`poll`](DmaState::poll) never finds anything.
    #[inline]
    pub(crate) fn is_immediate(&self) -> bool {
        self.immediate
    }

    /// Whether the CPU reaches all GPU memory.
    #[inline]
    pub(crate) fn is_mapped(&self) -> bool {
        self.window.is_some()
    }

    /// The bytes of a span, little-endian, when it has as many and the CPU can read them at once:
    /// at most [`INLINE_MAX`].
    #[inline(always)]
    pub(crate) fn read_small(&self, span: BusSpan, len: usize) -> Option<[u64; INLINE_MAX / 8]> {
        let from = self.direct(span)?;
        if span.len < len as u64 || len > INLINE_MAX {
            return None;
        }
        let mut words = [0u64; INLINE_MAX / 8];
        // SAFETY: the span is mapped for `len` bytes (checked above); the words have room for them.
        unsafe { copy::copy(words.as_mut_ptr().cast(), from, len) };
        Some(words.map(u64::from_le))
    }

    /// Writes a small payload to a span, if that has room and the CPU can write it.
    #[inline(always)]
    pub(crate) fn write_small(&mut self, span: BusSpan, small: &Small) -> bool {
        let Some(to) = self
            .direct(span)
            .filter(|_| u64::from(small.len) <= span.len)
        else {
            return false;
        };
        // SAFETY: the span is mapped (checked by `direct`), and no shorter than the payload.
        unsafe { copy::copy(to, small.words.as_ptr().cast(), small.len.into()) };
        self.copied += u64::from(small.len);
        true
    }

    /// The CPU address of a span that it can reach.
    #[inline]
    fn direct(&self, span: BusSpan) -> Option<*mut u8> {
        let bus = span.addr.value();
        if bus < NIC_BUS {
            return self.window.as_ref()?.at(span);
        }
        if bus < HOST_BUS {
            return self.nic_memory.at_bus(bus, span.len);
        }
        host_at_bus(bus, span.len)
    }

    /// Whether an operation on the region is in flight.
    pub(crate) fn is_busy(&self, region: u32) -> bool {
        let reads = |r: &PendingRead| r.region == region && r.pieces.iter().any(|p| p.id.is_some());
        self.pending.iter().any(reads) || self.copies_into(region)
    }

    /// Operations in flight, over all regions.
    pub(crate) fn in_flight(&self) -> usize {
        self.pending.len() + self.copies.len()
    }
}

/// DMA for the length of one step.
pub(crate) struct Dma<'a> {
    pub(crate) mmu: &'a mut Mmu,
    pub(crate) state: &'a mut DmaState,
}

fn at(buffer: &Buffer, offset: u64) -> Result<GpuVa, Fault> {
    // A pinned buffer does not wrap; an offset beyond it is our defect and faults like any other.
    buffer.va.checked_add(offset).ok_or(Fault::OutOfBounds {
        va: buffer.va,
        end: GpuVa(u64::MAX),
    })
}

impl Dma<'_> {
    /// Whether every span of a buffer has an address of the CPU.
    #[inline]
    pub(crate) fn is_direct(&self, buffer: &Buffer) -> bool {
        self.state.window.is_some() || self.mmu.is_flat(buffer.region)
    }

    /// Copies inside GPU memory. `Pending` as for a read.
    pub(crate) fn copy(
        &mut self,
        dst: &Buffer,
        src: &Buffer,
        offset: u64,
        len: u64,
    ) -> Result<ReadStatus, Fault> {
        let mut done = 0;
        if self.is_direct(src) && self.is_direct(dst) {
            while done < len {
                let s = self.span(src, offset + done)?;
                let d = self.span(dst, offset + done)?;
                let n = s.len.min(d.len).min(len - done);
                let (Some(sp), Some(dp)) = (self.direct(s.prefix(n)), self.direct(d.prefix(n)))
                else {
                    return Err(Fault::NoTranslation {
                        va: at(src, offset + done)?,
                    });
                };
                // SAFETY: both spans are mapped (checked by `direct`).
                unsafe {
                    if u64::from(dst.len) >= copy::streaming_bytes() {
                        copy::copy_streaming(dp, sp, n as usize);
                    } else {
                        copy::copy(dp, sp, n as usize);
                    }
                }
                done += n;
            }
            self.state.copied += len;
            return Ok(ReadStatus::Done);
        }
        let mut bounce = vec![0; len as usize];
        match self.read(src, offset, &mut bounce)? {
            ReadStatus::Pending => Ok(ReadStatus::Pending),
            ReadStatus::Done => {
                self.write(dst, offset, &bounce)?;
                Ok(ReadStatus::Done)
            }
        }
    }

    /// A word that a kernel shares with the NIC, with Acquire; `None` in memory that the CPU does
    /// not reach, or when it is not aligned.
    pub(crate) fn load_word(&mut self, word: &Buffer) -> Result<Option<u64>, Fault> {
        self.access_word(word, false, |w| w.load(Ordering::Acquire))
    }

    /// Stores such a word with Release, after everything that was written before.
    pub(crate) fn store_word(&mut self, word: &Buffer, value: u64) -> Result<(), Fault> {
        self.access_word(word, true, |w| w.store(value, Ordering::Release))?;
        Ok(())
    }

    /// One access of such a word, which may be a store.
    fn access_word<T>(
        &mut self,
        word: &Buffer,
        store: bool,
        access: impl FnOnce(&AtomicU64) -> T,
    ) -> Result<Option<T>, Fault> {
        let span = self.span(word, 0)?.prefix(8);
        let direct = self.direct(span).map(<*mut u8>::cast::<u64>);
        let memory = &self.state.memory;
        let p = direct.or_else(|| Some(memory.word(span, store)?.as_ptr().cast()));
        let Some(p) = p.filter(|p| p.is_aligned() && span.len == 8) else {
            return Ok(None);
        };
        // SAFETY: the span is mapped for 8 bytes (checked by `direct`, or the memory's answer) and
        // aligned; kernels and NICs access it only atomically, and it stays mapped while the borrow
        // of the DMA lives.
        let value = access(unsafe { AtomicU64::from_ptr(p) });
        if direct.is_none() {
            memory.word_was_read(span);
        }
        Ok(Some(value))
    }

    /// Reads an asynchronous memory.
    ///
    /// # Safety
    /// `dst` is writable for `len` bytes and accessed by others only through raw copies.
    unsafe fn read_slow(
        &mut self,
        buffer: &Buffer,
        offset: u64,
        dst: *mut u8,
        len: usize,
        ticket: u64,
    ) -> Result<ReadStatus, Fault> {
        let va = at(buffer, offset)?;
        let key = |r: &PendingRead| {
            r.ticket == ticket && r.region == buffer.region && r.va == va && r.len == len
        };
        if let Some(i) = self.state.pending.iter().position(key) {
            let polls = self.state.polls;
            let r = &mut self.state.pending[i];
            r.touched = polls;
            if r.pieces.iter().any(|p| p.id.is_some()) {
                return Ok(ReadStatus::Pending);
            }
            let mut done = 0;
            for p in &r.pieces {
                // SAFETY: the pieces add up to `len`; the caller's contract.
                unsafe { copy::copy(dst.add(done), p.bytes.as_ptr(), p.bytes.len()) };
                done += p.bytes.len();
            }
            self.state.pending.remove(i);
            self.state.copied += len as u64;
            return Ok(ReadStatus::Done);
        }
        let mut pieces = Vec::new();
        let mut done = 0;
        while done < len {
            let span = self.span(buffer, offset + done as u64)?;
            let span = span.prefix((len - done) as u64);
            let mut bytes = vec![0; span.len as usize];
            let op = DmaOp::Read {
                from: span,
                into: &mut bytes,
            };
            let id = match self.state.memory.submit(op) {
                Ok(Submitted::Done) => None,
                Ok(Submitted::Pending(id)) => Some(id),
                Err(BusError::Busy) if pieces.is_empty() => return Ok(ReadStatus::Pending),
                Err(BusError::Busy) => {
                    // Pieces already started would be lost with the read: wait for one of them.
                    let started = PendingRead {
                        ticket,
                        region: buffer.region,
                        va,
                        len: 0,
                        pieces: std::mem::take(&mut pieces),
                        touched: self.state.polls,
                    };
                    self.state.pending.push_back(started);
                    return Ok(ReadStatus::Pending);
                }
                Err(_) => {
                    return Err(Fault::NoTranslation {
                        va: at(buffer, offset + done as u64)?,
                    })
                }
            };
            done += bytes.len();
            pieces.push(Piece { id, bytes });
        }
        self.state.pending.push_back(PendingRead {
            ticket,
            region: buffer.region,
            va,
            len,
            pieces,
            touched: self.state.polls,
        });
        let last = self.state.pending.back();
        if last.is_some_and(|r| r.pieces.iter().all(|p| p.id.is_none())) {
            // SAFETY: the caller's contract.
            return unsafe { self.read_slow(buffer, offset, dst, len, ticket) };
        }
        Ok(ReadStatus::Pending)
    }

    /// Reads a memory that is not mapped and finishes reads at once.
    fn read_at_once(&mut self, buffer: &Buffer, offset: u64, dst: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < dst.len() {
            let span = self.span(buffer, offset + done as u64)?;
            let from = span.prefix((dst.len() - done) as u64);
            let into = &mut dst[done..done + from.len as usize];
            let answer = self.state.memory.submit(DmaOp::Read { from, into });
            if !matches!(answer, Ok(Submitted::Done)) {
                let va = at(buffer, offset + done as u64)?;
                return Err(Fault::NoTranslation { va });
            }
            done += from.len as usize;
        }
        self.state.copied += dst.len() as u64;
        Ok(())
    }

    /// Reads directly mapped memory.
    ///
    /// # Safety
    /// As [`Dma::read_slow`].
    unsafe fn read_direct(
        &mut self,
        buffer: &Buffer,
        offset: u64,
        dst: *mut u8,
        len: usize,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let span = self
                .span(buffer, offset + done as u64)?
                .prefix((len - done) as u64);
            let Some(p) = self.direct(span) else {
                return Err(Fault::NoTranslation {
                    va: at(buffer, offset + done as u64)?,
                });
            };
            // SAFETY: the span is mapped (checked by `direct`), `dst` has that many bytes left.
            unsafe { copy::copy(dst.add(done), p, span.len as usize) };
            done += span.len as usize;
        }
        self.state.copied += len as u64;
        Ok(())
    }

    /// Writes bytes in any number of spans, to any memory.
    #[inline(never)]
    fn write_spans(&mut self, buffer: &Buffer, offset: u64, src: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < src.len() {
            let span = self
                .span(buffer, offset + done as u64)?
                .prefix((src.len() - done) as u64);
            let part = &src[done..done + span.len as usize];
            if let Some(p) = self.direct(span) {
                // SAFETY: the span is mapped (checked by `direct`); `part` has exactly its length.
                unsafe { copy::copy(p, part.as_ptr(), part.len()) };
            } else {
                let mut refused = 0u32;
                loop {
                    let op = DmaOp::Write {
                        to: span,
                        from: part,
                    };
                    match self.state.memory.submit(op) {
                        Ok(_) => break,
                        // The contract of `write` has no "later"; finishing operations makes room.
                        Err(BusError::Busy) if refused < BUSY_POLLS => {
                            refused += 1;
                            self.state.poll();
                        }
                        Err(_) => {
                            return Err(Fault::NoTranslation {
                                va: at(buffer, offset + done as u64)?,
                            })
                        }
                    }
                }
            }
            done += part.len();
        }
        self.state.copied += src.len() as u64;
        Ok(())
    }
}

impl DmaAccess for Dma<'_> {
    fn read(&mut self, buffer: &Buffer, offset: u64, dst: &mut [u8]) -> Result<ReadStatus, Fault> {
        if self.state.is_immediate() && !self.is_direct(buffer) {
            return self
                .read_at_once(buffer, offset, dst)
                .map(|()| ReadStatus::Done);
        }
        let (to, len) = (dst.as_mut_ptr(), dst.len());
        if !self.is_direct(buffer) {
            // SAFETY: a slice, ours alone.
            return unsafe { self.read_slow(buffer, offset, to, len, 0) };
        }
        // SAFETY: as above.
        unsafe { self.read_direct(buffer, offset, to, len) }.map(|()| ReadStatus::Done)
    }

    fn write(&mut self, buffer: &Buffer, offset: u64, src: &[u8]) -> Result<(), Fault> {
        if src.is_empty() {
            return Ok(());
        }
        let span = self.span(buffer, offset)?;
        let Some(to) = self.direct(span).filter(|_| src.len() as u64 <= span.len) else {
            return self.write_spans(buffer, offset, src);
        };
        // SAFETY: the span is mapped (checked by `direct`) and no shorter than `src`.
        unsafe { copy::copy(to, src.as_ptr(), src.len()) };
        self.state.copied += src.len() as u64;
        Ok(())
    }

    #[inline]
    fn span(&mut self, buffer: &Buffer, offset: u64) -> Result<BusSpan, Fault> {
        let left = u64::from(buffer.len).saturating_sub(offset);
        self.mmu.span(buffer.region, at(buffer, offset)?, left)
    }

    #[inline]
    fn direct(&self, span: BusSpan) -> Option<*mut u8> {
        self.state.direct(span)
    }

    fn is_immediate(&self) -> bool {
        self.state.is_immediate()
    }

    fn count_copied(&mut self, bytes: u64) {
        self.state.copied += bytes;
    }

    fn peers(&mut self) -> Option<&mut dyn PeerDma> {
        Some(self)
    }
}

impl PeerDma for Dma<'_> {
    fn stage_take(&mut self, len: u32) -> Option<StageRoom> {
        let block = self.state.nic_memory.alloc(len.into())?;
        // What rounding up has added is not used.
        Some(StageRoom {
            bus: NIC_BUS + block.at,
            len,
        })
    }

    fn stage_give(&mut self, room: StageRoom) {
        self.state
            .nic_memory
            .free(Block::of(room.bus - NIC_BUS, room.len.into()));
    }

    fn stage_fill(
        &mut self,
        buffer: &Buffer,
        offset: u64,
        to: u64,
        len: u32,
        ticket: u64,
    ) -> Result<ReadStatus, Fault> {
        let Some(dst) = self.state.nic_memory.at_bus(to, len.into()) else {
            return Err(Fault::NoTranslation { va: buffer.va });
        };
        // SAFETY: `dst` lies in NIC memory for `len` bytes (checked by `at_bus`), which every side
        // reaches through raw copies.
        let status = unsafe {
            match self.is_direct(buffer) {
                false => self.read_slow(buffer, offset, dst, len as usize, ticket)?,
                true => {
                    self.read_direct(buffer, offset, dst, len as usize)?;
                    ReadStatus::Done
                }
            }
        };
        if status == ReadStatus::Done {
            self.state.staged += u64::from(len);
        }
        Ok(status)
    }

    fn stage_read(&mut self, from: u64, to: &mut [u8]) -> Result<(), Fault> {
        let len = to.len() as u64;
        let Some(from) = self.state.nic_memory.at_bus(from, len) else {
            return Err(Fault::NoTranslation { va: GpuVa(from) });
        };
        // SAFETY: `from` lies in NIC memory for so many bytes (checked by `at_bus`); the slice is
        // ours alone.
        unsafe { copy::copy(to.as_mut_ptr(), from, to.len()) };
        self.state.copied += len;
        Ok(())
    }
}

impl RemoteMemory for Dma<'_> {
    fn remote(
        &mut self,
        domains: &[PdId],
        rkey: Rkey,
        va: GpuVa,
        len: u32,
        need: Need,
    ) -> Result<Buffer, Fault> {
        let (region, _) = self.mmu.check_remote(domains, rkey, va, len.into(), need)?;
        Ok(Buffer { region, va, len })
    }

    fn remote_word(
        &mut self,
        domains: &[PdId],
        rkey: Rkey,
        within: GpuVa,
        index: u32,
    ) -> Result<Buffer, Fault> {
        let need = Need::RemoteWrite;
        let (region, start) = self.mmu.check_remote(domains, rkey, within, 0, need)?;
        let va = GpuVa(start.0.saturating_add(u64::from(index) * 8));
        self.mmu.check_remote(domains, rkey, va, 8, need)?;
        Ok(Buffer { region, va, len: 8 })
    }

    fn update_word(&mut self, word: &Buffer, update: WordUpdate) -> Result<u64, (Status, u64)> {
        if !word.va.0.is_multiple_of(8) {
            return Err((Status::InvalidArgument, word.va.0));
        }
        // Release: after the bytes that a signal announces; pairs with the Acquire load of a
        // kernel's wait. Acquire: what follows in the same session comes after what the value has
        // shown.
        let before = self.access_word(word, true, |w| match update {
            WordUpdate::Add(n) => w.fetch_add(n, Ordering::AcqRel),
            WordUpdate::Set(n) => w.swap(n, Ordering::AcqRel),
            WordUpdate::CompareSwap { compare, swap } => w
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|other| other),
        });
        before
            .map_err(Fault::status)?
            .ok_or((Status::Unsupported, word.va.0))
    }

    #[inline]
    fn mark(&self) -> Option<u64> {
        (!self.state.is_immediate()).then(|| self.state.memory.mark())
    }

    fn has_landed(&self, mark: u64) -> bool {
        self.state.memory.has_landed(mark)
    }

    fn hold(&mut self, region: u32) {
        // A pin has no destructor: it counts until `release`.
        let _pin = self.mmu.hold(region);
    }

    fn release(&mut self, region: u32) {
        self.mmu.unpin(ringbell_gtlb::Pin { region });
    }
}
