//! The copy engine on a side stream: DMA for GPU memory that the CPU cannot reach.
//!
//! Bytes travel through slots of pinned memory. All operations are in one stream, so they finish in
//! order, and a completion only waits for the writes before it.
#![allow(unsafe_code)] // Calls into libcuda, raw copies.

use std::collections::{HashMap, VecDeque};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys;
use ringbell_gtlb::{CompletionWrite, DmaId};

use super::context::Context;
use super::handles::{PinnedBlock, RawEvent, RawStream};
use crate::cuda_error::CudaError;

/// Bytes of a slot.
pub(super) const SLOT: usize = 64 << 10;

/// Most copies inside the GPU in flight. Each has an event, and a full launch queue blocks its
/// thread.
const COPIES: usize = 64;

/// Longest wait for a copy: seconds, because another process may use the GPU in turns.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
enum Flight {
    Write {
        id: DmaId,
        slots: Vec<u32>,
    },
    Read {
        id: DmaId,
        slots: Vec<u32>,
        len: usize,
    },
    /// Inside the GPU: without slots.
    Copy {
        id: DmaId,
    },
    Completion(CompletionWrite),
}

/// A copy engine's stream, its staging slots and its operations.
#[derive(Debug)]
pub(super) struct CopyEngine {
    context: Arc<Context>,
    stream: RawStream,
    staging: ManuallyDrop<PinnedBlock>,
    slots: u32,
    free: Vec<u32>,
    /// Each with the event behind it. A completion has none, and is stored when it is first.
    flight: VecDeque<(Flight, Option<RawEvent>)>,
    done: VecDeque<DmaId>,
    read: HashMap<DmaId, (Vec<u32>, usize)>,
    /// Copies inside the GPU in flight.
    copies: usize,
    next: u64,
}

/// No slots are free: poll first.
#[derive(Debug)]
pub(super) enum CopyRefused {
    Busy,
    Cuda(CudaError),
}

impl From<CudaError> for CopyRefused {
    fn from(e: CudaError) -> CopyRefused {
        CopyRefused::Cuda(e)
    }
}

impl CopyEngine {
    pub(super) fn new(context: Arc<Context>, slots: u32) -> Result<CopyEngine, CudaError> {
        Ok(CopyEngine {
            stream: RawStream::for_copies(context.clone())?,
            staging: ManuallyDrop::new(PinnedBlock::new(context.clone(), slots as usize * SLOT)?),
            context,
            slots,
            free: (0..slots).rev().collect(),
            flight: VecDeque::new(),
            done: VecDeque::new(),
            read: HashMap::new(),
            copies: 0,
            next: 0,
        })
    }

    /// Most bytes of one operation.
    pub(super) fn capacity(&self) -> usize {
        self.slots as usize * SLOT
    }

    /// Slots for `len` bytes.
    fn take(&mut self, len: usize) -> Result<Vec<u32>, CopyRefused> {
        let n = len.div_ceil(SLOT);
        if n > self.free.len() {
            return Err(CopyRefused::Busy);
        }
        Ok(self.free.split_off(self.free.len() - n))
    }

    fn id(&mut self) -> DmaId {
        self.next += 1;
        DmaId(self.next)
    }

    /// Starts to copy `from` to the GPU address `va`; `from` is read at once.
    pub(super) fn write(&mut self, va: u64, from: &[u8]) -> Result<DmaId, CopyRefused> {
        self.context.bind()?;
        let slots = self.take(from.len())?;
        for (i, part) in from.chunks(SLOT).enumerate() {
            let slot = self.staging.at(slots[i] as usize * SLOT);
            // SAFETY: the slot is ours alone and as long as the longest part.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), slot, part.len()) };
            // SAFETY: the caller has checked the GPU's range; the slot stays until the event
            // behind.
            let r = unsafe {
                sys::cuMemcpyHtoDAsync_v2(
                    va + (i * SLOT) as u64,
                    slot.cast(),
                    part.len(),
                    self.stream.stream,
                )
            };
            self.context.check("cuMemcpyHtoDAsync", r)?;
        }
        let (id, event) = (self.id(), self.stream.record()?);
        self.flight
            .push_back((Flight::Write { id, slots }, Some(event)));
        Ok(id)
    }

    /// Starts to copy from the GPU address `va`; [`CopyEngine::take_read`] fetches the bytes.
    pub(super) fn read(&mut self, va: u64, len: usize) -> Result<DmaId, CopyRefused> {
        self.context.bind()?;
        let slots = self.take(len)?;
        for (i, slot) in slots.iter().enumerate() {
            let n = SLOT.min(len - i * SLOT);
            // SAFETY: as for `write`.
            let r = unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    self.staging.at(*slot as usize * SLOT).cast(),
                    va + (i * SLOT) as u64,
                    n,
                    self.stream.stream,
                )
            };
            self.context.check("cuMemcpyDtoHAsync", r)?;
        }
        let (id, event) = (self.id(), self.stream.record()?);
        self.flight
            .push_back((Flight::Read { id, slots, len }, Some(event)));
        Ok(id)
    }

    /// Starts to copy inside the GPU, between addresses of its context.
    pub(super) fn copy(&mut self, to: u64, from: u64, len: u64) -> Result<DmaId, CopyRefused> {
        if self.copies >= COPIES {
            return Err(CopyRefused::Busy);
        }
        self.context.bind()?;
        // SAFETY: the caller has checked both ranges, which stay until the event behind.
        let r = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len as usize, self.stream.stream) };
        self.context.check("cuMemcpyDtoDAsync", r)?;
        let (id, event) = (self.id(), self.stream.record()?);
        self.copies += 1;
        self.flight.push_back((Flight::Copy { id }, Some(event)));
        Ok(id)
    }

    /// Removes a finished operation from those that [`CopyEngine::finished`] reports.
    pub(super) fn forget(&mut self, id: DmaId) {
        self.done.retain(|d| *d != id);
    }

    /// Number of the last operation that was submitted.
    pub(super) fn mark(&self) -> u64 {
        self.next
    }

    /// Whether all operations up to that one have ended. They end in order.
    pub(super) fn has_ended(&mut self, mark: u64) -> bool {
        self.advance();
        let mut under_way = self.flight.iter().filter_map(|(flight, _)| match flight {
            Flight::Write { id, .. } | Flight::Read { id, .. } | Flight::Copy { id } => Some(id.0),
            Flight::Completion(_) => None,
        });
        under_way.next().is_none_or(|first| first > mark)
    }

    /// Stores the completion behind every write submitted so far.
    pub(super) fn publish(&mut self, completion: CompletionWrite) {
        if self.flight.is_empty() && self.context.lost().is_none() {
            completion.store();
        } else {
            let flight = Flight::Completion(completion);
            self.flight.push_back((flight, None));
        }
    }

    /// Retires the operations that the GPU has finished, in order. When the context is lost, no
    /// operation finishes any more: they end by their own time-outs, and no completion is stored
    /// without its data.
    pub(super) fn advance(&mut self) {
        while let Some((_, event)) = self.flight.front() {
            let reached = match event {
                Some(event) => event.is_reached(),
                None => self.context.lost().map_or(Ok(true), |e| Err(e.clone())),
            };
            if !matches!(reached, Ok(true)) {
                return;
            }
            match self.flight.pop_front() {
                Some((Flight::Write { id, slots }, _)) => {
                    self.free.extend(slots);
                    self.done.push_back(id);
                }
                Some((Flight::Read { id, slots, len }, _)) => {
                    self.read.insert(id, (slots, len));
                    self.done.push_back(id);
                }
                Some((Flight::Copy { id }, _)) => {
                    self.copies -= 1;
                    self.done.push_back(id);
                }
                Some((Flight::Completion(completion), _)) => completion.store(),
                None => return,
            }
        }
    }

    /// The next operation that has finished.
    pub(super) fn finished(&mut self) -> Option<DmaId> {
        self.advance();
        self.done.pop_front()
    }

    /// Copies out the bytes of a finished read, once.
    ///
    /// # Panics
    /// When `id` is no finished read: a defect of the caller.
    pub(super) fn take_read(&mut self, id: DmaId, into: &mut [u8]) {
        let (slots, len) = self
            .read
            .remove(&id)
            .unwrap_or_else(|| panic!("DMA operation {} is no finished read", id.0));
        for (part, slot) in into[..len].chunks_mut(SLOT).zip(&slots) {
            let from = self.staging.at(*slot as usize * SLOT);
            // SAFETY: the GPU has finished with the slot, which is ours until it is given back
            // below.
            unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len()) };
        }
        self.free.extend(slots);
    }

    /// Waits for all operations and completions in flight; false when the time-out comes first.
    pub(super) fn drain(&mut self, timeout: Duration) -> bool {
        let last = self.flight.iter().rev().find_map(|(_, e)| e.as_ref());
        if last.is_some_and(|e| !matches!(e.wait(timeout), Ok(true))) {
            return false;
        }
        self.advance();
        self.flight.is_empty()
    }
}

impl CopyEngine {
    /// Copies bytes of any number to the GPU and waits.
    pub(super) fn write_all(&mut self, va: u64, from: &[u8]) -> Result<(), CudaError> {
        for (i, part) in from.chunks(self.capacity()).enumerate() {
            self.make_room()?;
            let at = va + (i * self.capacity()) as u64;
            let id = self.write(at, part).map_err(CopyRefused::into_cuda)?;
            self.make_room()?;
            self.forget(id);
        }
        Ok(())
    }

    /// Copies bytes of any number from the GPU and waits.
    pub(super) fn read_all(&mut self, va: u64, into: &mut [u8]) -> Result<(), CudaError> {
        let capacity = self.capacity();
        for (i, part) in into.chunks_mut(capacity).enumerate() {
            self.make_room()?;
            let at = va + (i * capacity) as u64;
            let id = self.read(at, part.len()).map_err(CopyRefused::into_cuda)?;
            self.make_room()?;
            self.forget(id);
            self.take_read(id, part);
        }
        Ok(())
    }

    /// Waits until no operation is in flight. Slots of finished reads stay in use until the bytes
    /// are taken.
    fn make_room(&mut self) -> Result<(), CudaError> {
        if self.drain(PATIENCE) {
            return Ok(());
        }
        Err(match self.context.lost() {
            Some(lost) => lost.clone(),
            None => CudaError::Stuck {
                what: "a copy",
                waited_ms: PATIENCE.as_millis() as u64,
            },
        })
    }
}

impl CopyRefused {
    pub(super) fn into_cuda(self) -> CudaError {
        match self {
            CopyRefused::Cuda(e) => e,
            CopyRefused::Busy => CudaError::Stuck {
                what: "earlier copies",
                waited_ms: 0,
            },
        }
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        // The slots stay allocated when a copy hangs: the GPU may still use them.
        if self.drain(PATIENCE) || self.context.lost().is_some() {
            // SAFETY: dropped here and never used again.
            unsafe { ManuallyDrop::drop(&mut self.staging) };
        }
    }
}
