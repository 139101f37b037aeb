//! Queue memory, the NIC's consumer end, and the host's own producer end.
//!
//! One allocation per queue: send-queue entries, completion lines, the `released` words, and `tail`
//! on a line of its own (128 bytes apart, because CPUs prefetch lines in pairs).
#![allow(unsafe_code)] // Completion lines by address, and views that live as long as their mapping.

use std::sync::Arc;

use ringbell_gtlb::{Announce, DmaMemory, Exposed};
use ringbell_nic_abi::completion::COMPLETION_BYTES;
use ringbell_nic_abi::descriptor::DESCRIPTOR_BYTES;
use ringbell_nic_abi::{bar as layout, Completion, PdId, WorkQueueEntry};

use crate::bar::Bar;
use crate::shmem::Mapping;
use crate::slots::Slots;

/// Shape of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// Slots; a power of two, 2 to 65,536.
    pub depth: u32,
    /// First ticket; a multiple of twice the depth. Anything but 0 serves tests of the wrap past
    /// 2^32.
    pub first_ticket: u32,
    /// Time-out of calls that pass 0, in microseconds.
    pub default_timeout_us: u32,
    /// How long past a deadline the device waits before it reports `NIC_SILENT`, in microseconds.
    pub silent_grace_us: u32,
}

impl Default for QueueConfig {
    fn default() -> QueueConfig {
        QueueConfig {
            depth: 256,
            first_ticket: 0,
            default_timeout_us: 10_000_000,
            silent_grace_us: 5_000_000,
        }
    }
}

impl QueueConfig {
    /// What is wrong with the configuration, as (setting, reason).
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if !self.depth.is_power_of_two() || !(2..=65536).contains(&self.depth) {
            let why = format!("{} is not a power of two from 2 to 65,536", self.depth);
            return Err(("queue.depth", why));
        }
        if !self.first_ticket.is_multiple_of(2 * self.depth) {
            let why = format!(
                "{} is not a multiple of twice the depth ({})",
                self.first_ticket,
                2 * self.depth
            );
            return Err(("queue.first_ticket", why));
        }
        if self.default_timeout_us == 0 {
            return Err(("queue.default_timeout_us", "0 would never wait".into()));
        }
        Ok(())
    }
}

/// The memory of one queue and where its doorbell is.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    // Views into the two mappings below, computed once: they are used for every descriptor.
    slots: Slots<'static>,
    // Dropped before the mapping that it lets the GPU reach.
    exposed: Exposed,
    // Held for `slots`.
    _map: Mapping,
    bar: Bar,
    doorbell: usize,
    depth_log2: u32,
}

impl QueueMemory {
    /// Memory for a queue of a checked shape whose doorbell is number `queue` of the BAR.
    pub(crate) fn new(
        config: &QueueConfig,
        queue: u32,
        bar: Bar,
        memory: &dyn DmaMemory,
    ) -> std::io::Result<QueueMemory> {
        let n = config.depth as usize;
        let bytes = n * (DESCRIPTOR_BYTES + COMPLETION_BYTES) + (n * 4).next_multiple_of(128) + 128;
        let map = Mapping::anonymous(bytes.next_multiple_of(4096))?;
        let doorbell = layout::doorbell_offset(queue);
        let depth_log2 = config.depth.trailing_zeros();
        let released = n * (DESCRIPTOR_BYTES + COMPLETION_BYTES);
        let tail = released + (n * 4).next_multiple_of(128);
        let view = Slots {
            sq: map.words64(0, n * 8),
            cq: map.words64(n * DESCRIPTOR_BYTES, n * 8),
            released: map.words32(released, n),
            tail: &map.words32(tail, 1)[0],
            doorbell: &bar.map.words32(doorbell, 1)[0],
            depth_log2,
        };
        // SAFETY: the mappings stay where they are until they are dropped, which is not before this
        // structure; `slots` hands the views out with its lifetime only.
        let slots: Slots<'static> = unsafe { std::mem::transmute::<Slots<'_>, _>(view) };
        let mem = QueueMemory {
            slots,
            exposed: map.expose(memory)?,
            _map: map,
            bar,
            doorbell,
            depth_log2,
        };
        use std::sync::atomic::Ordering::Relaxed;
        for (i, word) in slots.released.iter().enumerate() {
            word.store(config.first_ticket.wrapping_add(i as u32), Relaxed);
        }
        slots.tail.store(config.first_ticket, Relaxed);
        slots.doorbell.store(config.first_ticket, Relaxed);
        // Completion lines are zero: word 0 of a zeroed line reads as ticket 2^32 - 1, whose own
        // completion must not seem to be there.
        for line in 0..n {
            slots.cq[line * 8].store(
                (config.first_ticket.wrapping_add(line as u32) as u64) << 32,
                Relaxed,
            );
        }
        Ok(mem)
    }

    fn depth(&self) -> usize {
        1 << self.depth_log2
    }
    fn released_offset(&self) -> usize {
        self.depth() * (DESCRIPTOR_BYTES + COMPLETION_BYTES)
    }
    fn tail_offset(&self) -> usize {
        self.released_offset() + (self.depth() * 4).next_multiple_of(128)
    }

    /// The queue as atomics.
    #[inline]
    pub(crate) fn slots(&self) -> Slots<'_> {
        self.slots
    }

    /// Whether kernels can call the NIC while they wait.
    pub(crate) fn calls_back(&self) -> bool {
        self.exposed.calls_back()
    }

    /// The device's half: addresses as the GPU sees them. The hook is filled in by the NIC.
    pub(crate) fn handle(
        &self,
        queue: u32,
        config: &QueueConfig,
    ) -> ringbell_nic_abi::queue::QueueHandle {
        let base = self.exposed.va().0;
        let bar = self.bar.va().0;
        ringbell_nic_abi::queue::QueueHandle {
            sq: base,
            cq: base + (self.depth() * DESCRIPTOR_BYTES) as u64,
            released: base + self.released_offset() as u64,
            tail: base + self.tail_offset() as u64,
            doorbell: bar + self.doorbell as u64,
            bar,
            depth_log2: self.depth_log2,
            queue,
            default_timeout_us: config.default_timeout_us,
            silent_grace_us: config.silent_grace_us,
            wait_hook: 0,
            wait_ctx: 0,
        }
    }
}

/// The NIC's end of a queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    pub(crate) mem: Arc<QueueMemory>,
    pub(crate) pd: PdId,
    pub(crate) default_timeout_us: u32,
    next: u32,
    seen_doorbell: u32,
    hungry: bool,
    /// Per slot: a permit is out. A hostile kernel that overruns its ring waits here.
    busy: Vec<bool>,
    pub(crate) outstanding: u32,
}

impl SendQueue {
    pub(crate) fn new(mem: Arc<QueueMemory>, pd: PdId, config: &QueueConfig) -> SendQueue {
        SendQueue {
            busy: vec![false; mem.depth()],
            mem,
            pd,
            default_timeout_us: config.default_timeout_us,
            next: config.first_ticket,
            seen_doorbell: config.first_ticket,
            hungry: false,
            outstanding: 0,
        }
    }

    /// A copy of the next entry when there is one and its completion line is free. Costs one load
    /// while the doorbell does not change.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<(u32, WorkQueueEntry)> {
        let slots = self.mem.slots();
        // Acquire: pairs with the Release store of the doorbell by the producer.
        let rung = slots.doorbell.load(std::sync::atomic::Ordering::Acquire);
        if rung != self.seen_doorbell {
            self.seen_doorbell = rung;
            self.hungry = true;
        }
        if !self.hungry || self.busy[self.slot(self.next)] {
            return None;
        }
        match slots.peek(self.next) {
            Some(e) => Some((self.next, e)),
            None => {
                self.hungry = false;
                None
            }
        }
    }

    /// Whether [`peek`](SendQueue::peek) may find something. One load, and touches nothing.
    #[inline]
    pub(crate) fn is_rung(&self) -> bool {
        // Relaxed: `peek` loads it again with Acquire before it looks at entries.
        let rung = self
            .mem
            .slots()
            .doorbell
            .load(std::sync::atomic::Ordering::Relaxed);
        self.hungry || rung != self.seen_doorbell
    }

    #[inline]
    fn slot(&self, ticket: u32) -> usize {
        ticket as usize & (self.busy.len() - 1)
    }

    /// Whether a consumed ticket has not retired.
    pub(crate) fn is_outstanding(&self, ticket: u32) -> bool {
        // A slot is consumed again only after its ticket has retired.
        let age = self.next.wrapping_sub(ticket);
        (1..=self.busy.len() as u32).contains(&age) && self.busy[self.slot(ticket)]
    }

    /// Whether any ticket before this one has not retired.
    pub(crate) fn is_outstanding_before(&self, ticket: u32) -> bool {
        let depth = self.busy.len() as u32;
        let age = self.next.wrapping_sub(ticket);
        (1..depth.saturating_sub(age) + 1).any(|d| self.is_outstanding(ticket.wrapping_sub(d)))
    }

    /// Consumes the entry that `peek` has shown; its line is reserved from now on.
    #[inline]
    pub(crate) fn consume(&mut self) {
        let slot = self.slot(self.next);
        self.busy[slot] = true;
        self.outstanding += 1;
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes a completion, after the data it announces.
    #[inline]
    pub(crate) fn complete(&mut self, ticket: u32, c: &Completion, memory: &dyn DmaMemory) {
        let slot = self.slot(ticket);
        self.busy[slot] = false;
        self.outstanding -= 1;
        let line = self.mem.slots().line(ticket).as_ptr();
        // SAFETY: the line lies in this queue's mapping. A memory may hold the announcement back,
        // but the NIC keeps every queue's memory until it has dropped its `DmaMemory`.
        let announce = unsafe { Announce::new(line, c.encode(ticket)) };
        memory.publish(announce);
    }
}
