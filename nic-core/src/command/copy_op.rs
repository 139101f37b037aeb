//! `COPY`: bytes moved inside a protection domain by NIC DMA, in bursts.

use std::collections::VecDeque;

use ringbell_gtlb::{Fault, Need, Pin};
use ringbell_nic_abi::{Descriptor, GpuVa, Lkey, PdId, Status, PUT_INLINE_MAX};

use super::memory::Memory;
use super::refusal::Refusal;
use crate::dma::{
    CopyError, CopyStart, CopyStatus, Dma, DmaAccess, ReadStatus, RemoteMemory, WordUpdate,
};
use crate::types::{Buffer, WorkToken};

/// Bytes copied before the NIC looks at its queues again.
pub(super) const STEP_BYTES: u64 = 256 << 10;

/// A copy under way.
#[derive(Debug)]
struct CopyJob {
    token: WorkToken,
    src: Buffer,
    dst: Buffer,
    burst: u64,
    done: u64,
    /// What the memory's own engine is copying: ticket and bytes.
    pending: Option<(u64, u64)>,
    ending: Ending,
}

/// What follows a copy that a one-sided operation is on its own rank.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Bytes that came inside the descriptor, and how many.
    pub(super) write: Option<(Buffer, [u8; PUT_INLINE_MAX], u8)>,
    /// A signal, or an atomic.
    pub(super) update: Option<(Buffer, WordUpdate)>,
    /// The value before is the answer.
    pub(super) answers: bool,
}

impl Ending {
    /// Bytes and detail of the completion; `copied` is the first part's.
    fn run(&self, dma: &mut Dma<'_>, copied: u64) -> Result<(u64, u64), (Status, u64)> {
        let mut bytes = copied;
        if let Some((to, small, len)) = &self.write {
            let small = &small[..usize::from(*len)];
            dma.write(to, 0, small).map_err(Fault::status)?;
            bytes += u64::from(*len);
        }
        let Some((word, update)) = &self.update else {
            return Ok((bytes, 0));
        };
        let before = dma.update_word(word, *update)?;
        Ok(match self.answers {
            true => (8, before),
            false => (bytes, 0),
        })
    }
}

/// The copies under way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Copies(VecDeque<CopyJob>);

/// Result of a step of the oldest copy.
pub(super) enum Step {
    /// There is none, or its memory has not answered.
    Waits,
    Moved,
    /// Its status, bytes and detail.
    Ended(WorkToken, Status, u64, u64),
}

impl Copies {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Pins source and destination of a copy of at least one byte.
    pub(super) fn pin(
        memory: &mut Memory,
        pd: PdId,
        d: &Descriptor,
    ) -> Result<([Option<Pin>; 2], [Buffer; 2]), Refusal> {
        if d.local_va.0.abs_diff(d.remote_va.0) < u64::from(d.len) {
            // A copy in bursts onto itself would read what it wrote.
            return Err((Status::BadDescriptor, 3));
        }
        let (from, src) = memory.pin(pd, d.lkey, (d.local_va, d.len), Need::Read)?;
        match memory.pin(pd, Lkey(0), (d.remote_va, d.len), Need::Write) {
            Ok((to, dst)) => Ok(([Some(from), Some(to)], [src, dst])),
            Err(refusal) => {
                memory.mmu.unpin(from);
                Err(refusal)
            }
        }
    }

    /// Takes a copy on. `burst`: bytes at once, 0 for as many as possible.
    pub(super) fn begin(
        &mut self,
        token: WorkToken,
        [src, dst]: [Buffer; 2],
        burst: u32,
        ending: Ending,
    ) {
        self.0.push_back(CopyJob {
            token,
            src,
            dst,
            burst: if burst == 0 { u64::MAX } else { burst.into() },
            done: 0,
            pending: None,
            ending,
        });
    }

    /// Bytes of a copy that were moved, and the end of the copy: for its time-out.
    pub(super) fn cancel(&mut self, token: WorkToken) -> Option<u64> {
        let i = self.0.iter().position(|c| c.token == token)?;
        self.0.remove(i).map(|c| c.done)
    }

    /// Moves the oldest copy on.
    pub(super) fn step(&mut self, dma: &mut Dma<'_>, budget: &mut u64) -> Step {
        let Some(job) = self.0.front_mut() else {
            return Step::Waits;
        };
        let n = (u64::from(job.src.len) - job.done)
            .min(job.burst)
            .min(STEP_BYTES);
        let result = if n == 0 {
            Ok(Some(0))
        } else if dma.is_direct(&job.src) || dma.is_direct(&job.dst) {
            let copied = dma.copy(&job.dst, &job.src, job.done, n);
            copied.map(|status| (status == ReadStatus::Done).then_some(n))
        } else {
            by_the_memory(dma, job)
        };
        let (token, len) = (job.token, u64::from(job.src.len));
        match result {
            Ok(None) => Step::Waits,
            Ok(Some(n)) => {
                job.done += n;
                *budget = budget.saturating_sub(n);
                if job.done < len {
                    return Step::Moved;
                }
                let ended = job.ending.run(dma, len);
                self.0.pop_front();
                match ended {
                    Ok((bytes, detail)) => Step::Ended(token, Status::Ok, bytes, detail),
                    Err((status, detail)) => Step::Ended(token, status, 0, detail),
                }
            }
            Err(fault) => {
                let done = job.done;
                self.0.pop_front();
                let (status, detail) = fault.status();
                Step::Ended(token, status, done, detail)
            }
        }
    }
}

/// Lets a memory that no CPU maps copy by itself. The bytes that it has copied by now, once they
/// are.
fn by_the_memory(dma: &mut Dma<'_>, job: &mut CopyJob) -> Result<Option<u64>, Fault> {
    if let Some((ticket, len)) = job.pending {
        return Ok(match dma.poll_copy(ticket)? {
            CopyStatus::Pending => None,
            CopyStatus::Lost => {
                job.pending = None;
                None
            }
            CopyStatus::Done => {
                job.pending = None;
                Some(len)
            }
        });
    }
    let most = (u64::from(job.src.len) - job.done).min(job.burst);
    let from = dma.span(&job.src, job.done)?.prefix(most);
    match dma.start_copy(from, &job.dst, job.done) {
        Ok(CopyStart::Started { ticket, len }) => job.pending = Some((ticket, len)),
        Ok(CopyStart::Busy) => {}
        Err(CopyError::Fault(fault)) => return Err(fault),
        Err(CopyError::Bus(_)) => {
            let va = GpuVa(job.src.va.0.wrapping_add(job.done));
            return Err(Fault::NoTranslation { va });
        }
    }
    Ok(None)
}
