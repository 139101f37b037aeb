//! The host's own end of a queue: the same slot protocol as in a kernel, usable by several threads.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_abi::bar::doorbell_offset;
use ringbell_nic_abi::completion::COMPLETION_BYTES;
use ringbell_nic_abi::descriptor::DESCRIPTOR_BYTES;
use ringbell_nic_abi::queue::{PreparedEntry, QueueHandle};
use ringbell_nic_abi::{Completion, Descriptor, GpuVa, Opcode, QueueId};

use crate::progress::Progress;
use crate::queue::{QueueConfig, QueueMemory};

/// A host-side wait that ended without a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Every slot stayed in use until the deadline.
    #[error("{queue} is full: {holder}, and slots are used again in order; wait for it first, give it a queue of its own, or make the queue deeper")]
    QueueFull {
        /// The queue.
        queue: QueueId,
        /// What holds the slot that comes next.
        holder: Holder,
    },
    /// The completion did not come. The NIC retires every operation by its own deadline, so either
    /// the wait was shorter than the operation's time-out, or no thread steps the NIC.
    #[error("no completion for ticket {ticket} of {queue} within {waited:?}; wait longer than the operation's time-out, and check that the NIC is being stepped")]
    NoCompletion {
        /// The queue.
        queue: QueueId,
        /// The ticket; it stays outstanding.
        ticket: u32,
        /// How long the caller has waited.
        waited: Duration,
    },
}

/// The descriptor that holds the slot which the next ticket needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Its ticket.
    pub ticket: u32,
    /// Its opcode; `None`: its entry is not written yet.
    pub opcode: Option<Opcode>,
    /// It has ended, and nothing has waited for it.
    pub ended: bool,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.opcode.map_or("unwritten", Opcode::name);
        let state = match self.ended {
            true => "has ended and was not waited for",
            false => "has not ended",
        };
        write!(f, "ticket {} ({name}) {state}", self.ticket)
    }
}

/// A queue, its producer end, and its device handle. Clones are the same queue; the last one that
/// is dropped gives it back ([`Nic::create_queue`](crate::Nic::create_queue) says how its
/// operations end then).
///
/// The host and kernels may post at the same time. On a GPU that is not emulated each side then has
/// a ring of its own behind the one name: what one side has posted is not ordered with, fenced by,
/// or counted among what the other has.
#[derive(Clone)]
pub struct HostQueue {
    id: QueueId,
    config: QueueConfig,
    /// The ring that the host posts to.
    mem: Arc<QueueMemory>,
    /// The ring that kernels post to; the same one where they are threads of the host.
    kernels: Arc<QueueMemory>,
    progress: Arc<Progress>,
    /// Shared by all clones.
    _held: Arc<Held>,
}

/// A queue in use: dropped with the last handle, it closes the queue.
struct Held {
    id: QueueId,
    progress: Arc<Progress>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let returned = self.progress.with_core(|core| core.close_queue(self.id));
        drop(returned);
    }
}

impl std::fmt::Debug for HostQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostQueue({})", self.id)
    }
}

impl HostQueue {
    pub(crate) fn new(
        id: QueueId,
        config: QueueConfig,
        mem: Arc<QueueMemory>,
        kernels: Arc<QueueMemory>,
        progress: Arc<Progress>,
    ) -> HostQueue {
        let held = Held {
            id,
            progress: progress.clone(),
        };
        HostQueue {
            id,
            config,
            mem,
            kernels,
            progress,
            _held: Arc::new(held),
        }
    }

    /// Number of the queue.
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// Slots of a ring.
    pub fn depth(&self) -> u32 {
        self.config.depth
    }

    /// What a kernel holds. Valid while a handle of this queue lives: end the kernel first.
    pub fn handle(&self) -> QueueHandle {
        // Before the kernel can ring; and the progress thread starts to look for that.
        self.progress.exposed.store(true, Ordering::SeqCst);
        self.progress.tell();
        self.kernels.handle(self.id.0, &self.config)
    }

    /// What a kernel holds that rings the doorbell in another BAR than the NIC's own, which kernels
    /// see at `bar`.
    pub fn handle_at(&self, bar: GpuVa) -> QueueHandle {
        let mut h = self.handle();
        let number = self.kernels.doorbell().unwrap_or(self.id.0);
        h.doorbell = bar.0 + doorbell_offset(number) as u64;
        h.bar = bar.0;
        h
    }

    /// Posts a descriptor that is made for its ticket, if a slot is free, and rings the doorbell:
    /// for what names a predecessor by distance.
    pub fn try_post_with(&self, make: impl FnOnce(u32) -> Descriptor) -> Option<u32> {
        let slots = self.mem.slots();
        let ticket = slots.try_take()?;
        slots.publish(ticket, &make(ticket).encode(slots.lap(ticket)));
        self.progress.tell();
        Some(ticket)
    }

    /// Posts a descriptor if a slot is free, and rings the doorbell.
    pub fn try_post(&self, d: &Descriptor) -> Option<u32> {
        let slots = self.mem.slots();
        let ticket = slots.try_take()?;
        slots.publish(ticket, &d.encode(slots.lap(ticket)));
        self.progress.tell();
        Some(ticket)
    }

    /// Takes a slot and writes the entry but for its first word, which the GPU's stream stores when
    /// it gets there ([`PreparedEntry`]); `None` when no slot is free. Until then later entries of
    /// the queue wait: it is for one stream alone.
    pub fn prepare(&self, d: &Descriptor) -> Option<PreparedEntry> {
        let slots = self.mem.slots();
        let ticket = slots.try_take()?;
        let entry = d.encode(slots.lap(ticket));
        slots.prepare(ticket, &entry);
        // The GPU's stream rings without waking any thread, as kernels do.
        self.progress.exposed.store(true, Ordering::SeqCst);
        self.progress.tell();
        let handle = self.mem.handle(self.id.0, &self.config);
        let slot = u64::from(ticket & ((1 << handle.depth_log2) - 1));
        Some(PreparedEntry {
            ticket,
            word: (
                GpuVa(handle.sq + slot * DESCRIPTOR_BYTES as u64),
                entry.0[0],
            ),
            doorbell: (GpuVa(handle.doorbell), ticket.wrapping_add(1)),
            // The ticket is the high half of the line's first word.
            done: (
                GpuVa(handle.cq + slot * COMPLETION_BYTES as u64 + 4),
                ticket.wrapping_add(1),
            ),
        })
    }

    /// Whether the first word of a prepared entry was stored.
    pub fn is_published(&self, ticket: u32) -> bool {
        self.mem.slots().peek(ticket).is_some()
    }

    /// Longest time from a published entry to its completion: the operation's time-out (0: the
    /// queue's) and the grace.
    pub fn limit(&self, timeout_us: u32) -> Duration {
        let us = match timeout_us {
            0 => self.config.default_timeout_us,
            us => us,
        };
        Duration::from_micros(u64::from(us) + u64::from(self.config.silent_grace_us))
    }

    /// Completes a ticket by itself although the NIC is silent, so that its waiter continues: the
    /// completion says so. The slot must not be used again, because the NIC may still write its
    /// line.
    pub fn give_up(&self, ticket: u32) {
        let slots = self.mem.slots();
        if slots.completion(ticket).is_none() {
            slots.silence(ticket);
        }
    }

    /// Posts raw words as a hostile kernel could: the lap bits are set, the rest is as given.
    #[doc(hidden)]
    pub fn try_post_raw(&self, words: [u64; 8]) -> Option<u32> {
        let slots = self.mem.slots();
        let ticket = slots.try_take()?;
        let lap = slots.lap(ticket);
        let words = words.map(|w| (w & !ringbell_nic_abi::descriptor::LAP) | lap);
        slots.publish(ticket, &ringbell_nic_abi::WorkQueueEntry(words));
        self.progress.tell();
        Some(ticket)
    }

    /// Posts a descriptor, waiting for a slot while stepping the NIC.
    ///
    /// # Errors
    /// [`WaitError::QueueFull`] after `timeout`; no ticket was taken.
    pub fn post(&self, d: &Descriptor, timeout: Duration) -> Result<u32, WaitError> {
        let mut ticket = None;
        self.progress.wait_until(timeout, || {
            ticket = self.try_post(d);
            ticket.is_some()
        });
        ticket.ok_or_else(|| self.full())
    }

    /// That no slot was free, and what holds the next one.
    pub fn full(&self) -> WaitError {
        let (ticket, opcode, ended) = self.mem.slots().holder();
        WaitError::QueueFull {
            queue: self.id,
            holder: Holder {
                ticket,
                opcode: opcode.and_then(Opcode::from_code),
                ended,
            },
        }
    }

    /// The completion of a ticket when it is there; its slot is free afterwards.
    #[inline]
    pub fn poll(&self, ticket: u32) -> Option<Completion> {
        let slots = self.mem.slots();
        let c = slots.completion(ticket)?;
        slots.release(ticket);
        Some(c)
    }

    /// Whether the completion of a ticket is there; its slot stays taken.
    pub fn has_ended(&self, ticket: u32) -> bool {
        self.mem.slots().completion(ticket).is_some()
    }

    /// Waits for the completion of a ticket, stepping the NIC.
    ///
    /// # Errors
    /// [`WaitError::NoCompletion`] after `timeout`; the ticket stays outstanding.
    pub fn wait(&self, ticket: u32, timeout: Duration) -> Result<Completion, WaitError> {
        let slots = self.mem.slots();
        let done = self
            .progress
            .wait_until(timeout, || slots.completion(ticket).is_some());
        done.then(|| self.poll(ticket))
            .flatten()
            .ok_or(WaitError::NoCompletion {
                queue: self.id,
                ticket,
                waited: timeout,
            })
    }

    /// Posts a descriptor and waits for its completion: for the operation's own time-out and grace.
    ///
    /// # Errors
    /// [`WaitError`] when the queue stays full or the NIC is silent.
    pub fn call(&self, d: &Descriptor) -> Result<Completion, WaitError> {
        let us = match d.timeout_us {
            0 => self.config.default_timeout_us,
            us => us,
        };
        let limit = Duration::from_micros(u64::from(us) + u64::from(self.config.silent_grace_us));
        let ticket = self.post(d, limit)?;
        self.wait(ticket, limit)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    use ringbell_nic_abi::{Descriptor, Opcode, Status};

    use crate::slots::{Slots, LINE_WORDS};

    #[test]
    fn a_prepared_entry_is_whole_only_with_its_first_word() {
        let words = |n: usize| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (sq, cq) = (words(2 * LINE_WORDS), words(2 * LINE_WORDS));
        let released = [AtomicU32::new(0), AtomicU32::new(1)];
        let (tail, doorbell) = (AtomicU32::new(0), AtomicU32::new(0));
        let slots = Slots {
            sq: &sq,
            cq: &cq,
            released: &released,
            tail: &tail,
            doorbell: &doorbell,
            depth_log2: 1,
        };
        // Three laps, so that a slot holds an entry of an earlier one.
        for lap in 0..6_u32 {
            let ticket = slots.try_take().expect("free");
            assert_eq!(ticket, lap);
            let mut d = Descriptor::new(Opcode::Send);
            d.wr_id = u64::from(ticket) << 60 | 5;
            let entry = d.encode(slots.lap(ticket));
            slots.prepare(ticket, &entry);
            assert!(slots.peek(ticket).is_none(), "lap {lap}");
            let first = (ticket & 1) as usize * LINE_WORDS;
            sq[first].store(entry.0[0], Ordering::Release);
            assert_eq!(slots.peek(ticket), Some(entry));
            assert!(slots.completion(ticket).is_none());
            slots.silence(ticket);
            let c = slots.completion(ticket).expect("it says so itself");
            assert_eq!(c.status, Status::NicSilent);
            slots.release(ticket);
        }
    }
}
