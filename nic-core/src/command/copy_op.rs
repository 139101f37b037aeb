//! `COPY`: bytes moved inside a protection domain by NIC DMA, in bursts.

use std::collections::VecDeque;

use ringbell_gtlb::{Fault, Need};
use ringbell_nic_abi::{Descriptor, GpuVa, PdId, Status};

use super::Core;
use crate::dma::{CopyError, CopyStart, CopyStatus, Dma, DmaAccess, ReadStatus};
use crate::permit::Permit;
use crate::types::{Buffer, WorkToken};

/// Bytes copied before the NIC looks at its queues again.
const STEP_BYTES: u64 = 256 << 10;

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
}

impl Core {
    pub(super) fn copy_op(&mut self, permit: Permit, pd: PdId, d: &Descriptor) {
        if d.len == 0 {
            return self.finish(permit, Status::Ok, 0, 0);
        }
        let apart = d.local_va.0.abs_diff(d.remote_va.0) >= u64::from(d.len);
        if !apart {
            // A copy in bursts onto itself would read what it wrote.
            return self.finish(permit, Status::BadDescriptor, 0, 3);
        }
        let none = u32::MAX;
        let Some((permit, from, src)) =
            self.pin(permit, pd, d.lkey.0, (d.local_va, d.len), Need::Read, none)
        else {
            return;
        };
        let queue = permit.queue;
        let second = self.pin(permit, pd, 0, (d.remote_va, d.len), Need::Write, none);
        let Some((permit, to, dst)) = second else {
            self.memory.mmu.unpin(from);
            return;
        };
        debug_assert_eq!(queue, permit.queue);
        let mut work = self.operation(permit, d, none);
        work.pins = [Some(from), Some(to)];
        let token = self.outstanding.insert(work);
        self.copies.0.push_back(CopyJob {
            token,
            src,
            dst,
            burst: if d.imm == 0 { u64::MAX } else { d.imm.into() },
            done: 0,
            pending: None,
        });
    }

    /// Moves the oldest copies on. Returns whether any byte moved.
    #[inline]
    pub(super) fn step_copies(&mut self) -> bool {
        let mut budget = STEP_BYTES;
        let mut moved = false;
        while budget > 0 {
            match self.copies.step(&mut self.memory.dma(), &mut budget) {
                Step::Waits => break,
                Step::Moved => moved = true,
                Step::Ended(token, status, bytes, detail) => {
                    moved = true;
                    self.retire(token, status, bytes, detail);
                }
            }
        }
        moved
    }
}

/// The copies under way, oldest first.
#[derive(Debug, Default)]
pub(super) struct Copies(VecDeque<CopyJob>);

/// Result of a step of the oldest copy.
enum Step {
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

    /// Bytes of a copy that were moved, and the end of the copy: for its time-out.
    pub(super) fn cancel(&mut self, token: WorkToken) -> Option<u64> {
        let i = self.0.iter().position(|c| c.token == token)?;
        self.0.remove(i).map(|c| c.done)
    }

    fn step(&mut self, dma: &mut Dma<'_>, budget: &mut u64) -> Step {
        let Some(job) = self.0.front_mut() else {
            return Step::Waits;
        };
        let n = (u64::from(job.src.len) - job.done)
            .min(job.burst)
            .min(STEP_BYTES);
        let result = if dma.is_direct(&job.src) || dma.is_direct(&job.dst) {
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
                self.0.pop_front();
                Step::Ended(token, Status::Ok, len, 0)
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

/// Lets a memory that no CPU maps copy by itself. The bytes that it has copied by now, once they are.
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
