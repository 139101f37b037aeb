//! Queue memory, the NIC's consumer end, and the host's own producer end.
//!
//! One allocation per ring: send-queue entries, completion lines, the `released` words, and `tail`
//! on a line of its own (128 bytes apart, because CPUs prefetch lines in pairs).
//!
//! Where kernels are threads of the host, a queue is one ring, and both post to it. A real GPU's
//! kernels have a ring for themselves, whose `released` and `tail` lie in the GPU's memory, and the
//! host has another (docs/adr/0023).
#![allow(unsafe_code)] // Completion lines by address, and views that live as long as their mapping.

mod scatter;
mod table;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::Arc;

use ringbell_gtlb::{CompletionWrite, DmaMemory, EntryPlace, Exposed};
use ringbell_nic_abi::completion::{COMPLETION_BYTES, C_SCATTERED, SCATTER_MAX};
use ringbell_nic_abi::descriptor::{DESCRIPTOR_BYTES, LAP};
use ringbell_nic_abi::{
    bar as layout, Completion, Descriptor, Flags, GpuVa, PdId, QueueId, Status, WorkQueueEntry,
};

use crate::bar::Bar;
use crate::card::SharedCard;
use crate::memory::nic_memory::HOST_BUS;
use crate::outstanding::Operation;
use crate::permit::Permit;
use crate::shmem::Mapping;
use crate::slots::Slots;
use crate::types::Owner;
pub(crate) use scatter::ScatterSlots;
pub(crate) use table::Queues;

/// Most slots of a queue.
pub(crate) const MAX_DEPTH: u32 = 65_536;

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
    /// The fault of the configuration, as (setting, reason).
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if !self.depth.is_power_of_two() || !(2..=MAX_DEPTH).contains(&self.depth) {
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

/// The producers of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Producers {
    /// Kernels, and the host as well unless [`QueueMemory::is_shared`] says no; the doorbell is in
    /// the BAR.
    Kernels {
        /// Number of the doorbell.
        doorbell: u32,
    },
    /// The host alone; the doorbell is a word beside the ring.
    Host,
}

/// Where the parts of a ring lie, in bytes from its first.
#[derive(Debug, Clone, Copy)]
struct Places {
    cq: usize,
    released: usize,
    tail: usize,
    doorbell: usize,
    bytes: usize,
}

impl Places {
    fn of(depth: usize) -> Places {
        let cq = depth * DESCRIPTOR_BYTES;
        let released = cq + depth * COMPLETION_BYTES;
        let tail = released + (depth * 4).next_multiple_of(128);
        let doorbell = tail + 128;
        Places {
            cq,
            released,
            tail,
            doorbell,
            bytes: (doorbell + 128).next_multiple_of(4096),
        }
    }
}

/// The memory of one ring and where its doorbell is.
#[derive(Debug)]
pub(crate) struct QueueMemory {
    // Views into the two mappings below, computed once: they are used for every descriptor.
    slots: Slots<'static>,
    // Dropped before the mapping that it lets the GPU reach.
    exposed: Exposed,
    /// `released` and `tail` of a GPU's kernels, where these have memory of their own for it.
    device_words: Option<Exposed>,
    // Held for `slots`.
    _map: Mapping,
    bar: Bar,
    producers: Producers,
    depth_log2: u32,
}

impl QueueMemory {
    /// Memory for a ring of a checked shape.
    pub(crate) fn new(
        config: &QueueConfig,
        producers: Producers,
        bar: Bar,
        memory: &dyn DmaMemory,
    ) -> std::io::Result<QueueMemory> {
        let n = config.depth as usize;
        let at = Places::of(n);
        let map = Mapping::anonymous(at.bytes)?;
        let depth_log2 = config.depth.trailing_zeros();
        let (device_words, doorbell) = match producers {
            Producers::Kernels { doorbell } => (
                memory.device_words(&initial_words(config))?,
                &bar.map.words32(layout::doorbell_offset(doorbell), 1)[0],
            ),
            Producers::Host => (None, &map.words32(at.doorbell, 1)[0]),
        };
        let view = Slots {
            sq: map.words64(0, n * 8),
            cq: map.words64(at.cq, n * 8),
            released: map.words32(at.released, n),
            tail: &map.words32(at.tail, 1)[0],
            doorbell,
            depth_log2,
        };
        // SAFETY: the mappings stay where they are until they are dropped, which is not before this
        // structure; `slots` hands the views out with its lifetime only.
        let slots: Slots<'static> = unsafe { std::mem::transmute::<Slots<'_>, _>(view) };
        let mem = QueueMemory {
            slots,
            exposed: map.expose(memory)?,
            device_words,
            _map: map,
            bar,
            producers,
            depth_log2,
        };
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

    /// The ring as atomics. Its `released` and `tail` are the host's, and mean nothing unless it
    /// [posts](Self::is_shared).
    #[inline]
    pub(crate) fn slots(&self) -> &Slots<'_> {
        &self.slots
    }

    /// Whether the host posts to the ring: always, but for one that a GPU's kernels have for
    /// themselves.
    pub(crate) fn is_shared(&self) -> bool {
        self.device_words.is_none()
    }

    /// Bus addresses of the entries and of the completion lines.
    fn on_bus(&self) -> (u64, u64) {
        let at = |words: &[AtomicU64]| HOST_BUS + words.as_ptr().expose_provenance() as u64;
        (at(self.slots.sq), at(self.slots.cq))
    }

    /// Number of the doorbell in the BAR; `None` for a ring of the host alone.
    pub(crate) fn doorbell(&self) -> Option<u32> {
        match self.producers {
            Producers::Kernels { doorbell } => Some(doorbell),
            Producers::Host => None,
        }
    }

    /// The device's half: addresses as the GPU sees them.
    pub(crate) fn handle(
        &self,
        queue: u32,
        config: &QueueConfig,
    ) -> ringbell_nic_abi::queue::QueueHandle {
        let base = self.exposed.va().0;
        let at = Places::of(self.depth());
        let bar = self.bar.va().0;
        let (released, tail) = match &self.device_words {
            Some(words) => (
                words.va().0,
                words.va().0 + device_tail(self.depth()) as u64,
            ),
            None => (base + at.released as u64, base + at.tail as u64),
        };
        let doorbell = match self.producers {
            Producers::Kernels { doorbell } => bar + layout::doorbell_offset(doorbell) as u64,
            Producers::Host => base + at.doorbell as u64,
        };
        ringbell_nic_abi::queue::QueueHandle {
            sq: base,
            cq: base + at.cq as u64,
            released,
            tail,
            doorbell,
            bar,
            depth_log2: self.depth_log2,
            queue,
            default_timeout_us: config.default_timeout_us,
            silent_grace_us: config.silent_grace_us,
            own: 0,
            own_next: 0,
            own_oldest: 0,
            reserved: 0,
        }
    }
}

/// Where the tail lies behind the `released` words in a GPU's memory: on a line of its own, 128
/// bytes there.
fn device_tail(depth: usize) -> usize {
    (depth * 4).next_multiple_of(128)
}

/// What the words in a GPU's memory hold at first.
fn initial_words(config: &QueueConfig) -> Vec<u32> {
    let n = config.depth;
    let mut words: Vec<u32> = (0..n)
        .map(|i| config.first_ticket.wrapping_add(i))
        .collect();
    words.resize(device_tail(n as usize) / 4, 0);
    words.push(config.first_ticket);
    words
}

/// The NIC's end of a ring.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// Those of `mem`, which keeps the memory.
    slots: Slots<'static>,
    /// `None` when the queue is gone.
    mem: Option<Arc<QueueMemory>>,
    pub(crate) pd: PdId,
    /// The queue that this ring belongs to, by which users know it: its kernels' ring.
    pub(crate) queue: QueueId,
    /// Index of the host's ring; this one, where the host has none for itself.
    pub(crate) host: u32,
    /// Where small receives arrive that end inside their completion lines.
    pub(crate) scatter: Option<ScatterSlots>,
    default_timeout_us: u32,
    next: u32,
    /// Slot of that ticket, and the lap bit of its entry.
    next_slot: usize,
    next_lap: u64,
    seen_doorbell: u32,
    may_have_more: bool,
    /// The doorbell names entries that were not there at the last look: a producer's stores may
    /// arrive in any order. Polled in every step from then on, but it keeps no thread awake:
    /// kernels die with entries half written.
    pending: bool,
    /// Per slot: a permit is out. A hostile kernel that overruns its ring waits here.
    busy: Vec<bool>,
    card: Option<CardRing>,
}

/// A ring whose entries a card fetches, and whose completion lines it writes.
#[derive(Debug)]
struct CardRing {
    card: SharedCard,
    /// Its number there.
    number: u32,
    /// Descriptors that the card has fetched.
    fetched: u32,
    /// The one that was shown and not consumed.
    shown: Option<WorkQueueEntry>,
}

impl CardRing {
    #[cold]
    fn complete(&self, ticket: u32, c: &Completion) {
        let status = c.status as u8;
        let mut card = self.card.lock();
        card.complete(self.number, ticket, status, c.bytes, c.detail);
    }

    #[cold]
    fn consumed(&mut self) {
        self.shown = None;
    }
}

impl SendQueue {
    pub(crate) fn new(
        mem: Arc<QueueMemory>,
        pd: PdId,
        queue: QueueId,
        host: u32,
        config: &QueueConfig,
    ) -> SendQueue {
        SendQueue {
            busy: vec![false; mem.depth()],
            slots: mem.slots,
            mem: Some(mem),
            pd,
            queue,
            host,
            scatter: None,
            default_timeout_us: config.default_timeout_us,
            next: config.first_ticket,
            // The first ticket is a multiple of twice the depth.
            next_slot: 0,
            next_lap: LAP,
            seen_doorbell: config.first_ticket,
            may_have_more: false,
            pending: false,
            card: None,
        }
    }

    /// Gives the ring to a card, under a number.
    pub(crate) fn give_to(&mut self, card: SharedCard, number: u32) {
        let Some(mem) = &self.mem else { return };
        card.lock()
            .setup_queue(number, mem.on_bus(), mem.depth_log2, self.next);
        self.card = Some(CardRing {
            card,
            number,
            fetched: self.next,
            shown: None,
        });
    }

    /// Tells the card of a doorbell that was rung.
    pub(crate) fn pass_doorbell(&mut self) {
        let Some(ring) = &mut self.card else { return };
        // Acquire: pairs with the Release store of the doorbell by the producer.
        let rung = self.slots.doorbell.load(Acquire);
        if rung != self.seen_doorbell {
            self.seen_doorbell = rung;
            ring.card.lock().ring(ring.number, rung);
        }
        // As the card sees it: 0 means that no producer is ahead.
        let ahead = rung.wrapping_sub(ring.fetched).wrapping_sub(1);
        self.pending = ahead < self.busy.len() as u32;
        self.may_have_more = self.pending && ring.card.lock().is_busy();
    }

    /// [`peek`](SendQueue::peek) of a card's ring.
    #[cold]
    fn peek_fetched(&mut self) -> Option<(u32, WorkQueueEntry)> {
        let ring = self.card.as_mut()?;
        if ring.shown.is_none() {
            let (ticket, entry) = ring.card.lock().next_entry(ring.number)?;
            debug_assert_eq!(ticket, ring.fetched, "in the order of tickets");
            ring.fetched = ticket.wrapping_add(1);
            ring.shown = Some(entry);
        }
        Some((self.next, ring.shown?))
    }

    /// Where the entry of a ticket lies, and its completion line.
    pub(crate) fn place(&self, ticket: u32) -> EntryPlace {
        let [entry, line] = self.slots.place(ticket);
        EntryPlace { entry, line }
    }

    /// Owner of this ring's operations, for engines: the queue.
    #[inline]
    pub(crate) fn owner(&self) -> Owner {
        Owner::queue(self.queue.0)
    }

    /// Ticket and copy of the next entry when there is one and its completion line is free. Costs
    /// one load while the doorbell does not change, two while it names an entry that has not come.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<(u32, WorkQueueEntry)> {
        if self.card.is_some() {
            return self.peek_fetched();
        }
        // Acquire: pairs with the Release store of the doorbell by the producer.
        let rung = self.slots.doorbell.load(Acquire);
        if rung != self.seen_doorbell {
            self.seen_doorbell = rung;
            self.may_have_more = true;
        }
        if !self.is_pending() || self.busy[self.next_slot] {
            return None;
        }
        if let Some(entry) = self.slots.peek_at(self.next_slot, self.next_lap) {
            return Some((self.next, entry));
        }
        self.may_have_more = false;
        // The doorbell holds some producer's ticket plus one; 0 here means that no producer is
        // ahead.
        let ahead = rung.wrapping_sub(self.next).wrapping_sub(1);
        self.pending = ahead < self.busy.len() as u32;
        None
    }

    /// Whether the doorbell was rung since [`peek`](SendQueue::peek) saw it, or more may lie behind
    /// the entry that it has shown. One load, and touches nothing.
    #[inline]
    pub(crate) fn is_rung(&self) -> bool {
        // Relaxed: `peek` loads it again with Acquire before it looks at entries.
        self.may_have_more || self.slots.doorbell.load(Relaxed) != self.seen_doorbell
    }

    /// Whether the doorbell was rung since `peek` saw it. One load.
    #[inline]
    pub(crate) fn is_rung_anew(&self) -> bool {
        // Relaxed: as above.
        self.slots.doorbell.load(Relaxed) != self.seen_doorbell
    }

    /// Whether `peek` is to look although the doorbell does not change.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.may_have_more | self.pending
    }

    #[inline]
    fn slot(&self, ticket: u32) -> usize {
        ticket as usize & (self.busy.len() - 1)
    }

    /// Its slots; none when the queue is gone.
    pub(crate) fn slots(&self) -> usize {
        self.busy.len()
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
        self.busy[self.next_slot] = true;
        self.advance();
    }

    #[inline]
    fn advance(&mut self) {
        if let Some(ring) = &mut self.card {
            ring.consumed();
        }
        self.next = self.next.wrapping_add(1);
        self.next_slot += 1;
        if self.next_slot == self.busy.len() {
            (self.next_slot, self.next_lap) = (0, self.next_lap ^ LAP);
        }
    }

    /// An operation for a descriptor of the queue, with its time-out.
    pub(crate) fn operation(&self, permit: Permit, d: &Descriptor, slot: u32) -> Operation {
        Operation {
            opcode: d.opcode,
            session: slot,
            chain: d.flags.contains(Flags::CHAIN).then_some(d.session),
            conn: None,
            pins: [None, None],
            va: d.local_va.0,
            scatter_to_cqe: false,
            timeout_us: self.timeout_us(d.timeout_us),
            extra_us: 0,
            permit,
        }
    }

    /// The time-out of a descriptor: its own or, for 0, the queue's.
    #[inline]
    pub(crate) fn timeout_us(&self, own: u32) -> u32 {
        match own {
            0 => self.default_timeout_us,
            us => us,
        }
    }

    /// Consumes the entry that `peek` has shown and completes it at once.
    #[inline]
    pub(crate) fn complete_next(&mut self, c: &Completion, memory: &dyn DmaMemory) {
        let ticket = self.next;
        self.advance();
        self.write_completion(ticket, c, memory);
    }

    /// Retires a descriptor: publishes its completion.
    #[inline]
    pub(crate) fn retire(
        &mut self,
        permit: Permit,
        status: Status,
        bytes: u64,
        detail: u64,
        memory: &dyn DmaMemory,
    ) {
        let ticket = permit.ticket;
        self.complete(ticket, &permit.retire(status, bytes, detail), memory);
    }

    /// Publishes a completion, after its data.
    #[inline]
    pub(crate) fn complete(&mut self, ticket: u32, c: &Completion, memory: &dyn DmaMemory) {
        let slot = self.slot(ticket);
        self.busy[slot] = false;
        self.write_completion(ticket, c, memory);
    }

    /// The same for a receive whose bytes travel in the line, as many as the completion says;
    /// kernels store them at `va`.
    pub(crate) fn complete_scattered(
        &mut self,
        ticket: u32,
        c: &Completion,
        (va, bytes): (GpuVa, [u64; SCATTER_MAX / 8]),
        memory: &dyn DmaMemory,
    ) {
        let line = self.slots.whole_line(ticket);
        line[4].store(va.0, Relaxed);
        for (word, value) in line[5..].iter().zip(bytes) {
            // Before word 0, which `CompletionWrite::store` stores with Release.
            word.store(value, Relaxed);
        }
        let slot = self.slot(ticket);
        self.busy[slot] = false;
        let mut words = c.encode(ticket);
        words[0] |= C_SCATTERED.put(1);
        self.write_line(ticket, words, memory);
    }

    #[inline]
    fn write_completion(&self, ticket: u32, c: &Completion, memory: &dyn DmaMemory) {
        match &self.card {
            None => self.write_line(ticket, c.encode(ticket), memory),
            Some(ring) => ring.complete(ticket, c),
        }
    }

    #[inline]
    fn write_line(&self, ticket: u32, words: [u64; 4], memory: &dyn DmaMemory) {
        let line = self.slots.line(ticket).as_ptr();
        // SAFETY: the line lies in this queue's mapping. A memory may hold the completion back,
        // but the NIC keeps every queue's memory until it has dropped its `DmaMemory`.
        let completion = unsafe { CompletionWrite::new(line, words) };
        memory.publish(completion);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Release;
    use std::sync::Mutex;

    use ringbell_gtlb::testing::HostMemory;
    use ringbell_gtlb::{BusError, DmaId, DmaOp, Submitted};
    use ringbell_nic_abi::{Descriptor, Opcode};

    use super::*;

    const DEPTH: u32 = 4;

    fn config(first_ticket: u32) -> QueueConfig {
        QueueConfig {
            depth: DEPTH,
            first_ticket,
            ..QueueConfig::default()
        }
    }

    fn queue(memory: &dyn DmaMemory, first_ticket: u32) -> SendQueue {
        let config = config(first_ticket);
        let bar = Bar::new(memory).expect("memory");
        let producers = Producers::Kernels { doorbell: 0 };
        let mem = QueueMemory::new(&config, producers, bar, memory).expect("memory");
        SendQueue::new(Arc::new(mem), PdId(0), QueueId(0), 0, &config)
    }

    /// Stores the entry of a ticket as a kernel does, without ringing.
    fn store(q: &SendQueue, ticket: u32) {
        let mut d = Descriptor::new(Opcode::Nop);
        d.wr_id = ticket.into();
        let slots = q.slots;
        let at = (ticket % DEPTH) as usize * 8;
        for (slot, word) in slots.sq[at..].iter().zip(d.encode(slots.lap(ticket)).0) {
            slot.store(word, Release);
        }
    }

    fn ring(q: &SendQueue, ticket: u32) {
        q.slots.doorbell.store(ticket.wrapping_add(1), Relaxed);
    }

    fn take(q: &mut SendQueue) -> Option<u32> {
        let (ticket, _) = q.peek()?;
        q.consume();
        Some(ticket)
    }

    #[test]
    fn an_entry_that_comes_after_its_doorbell_is_taken_without_another() {
        // Near the wrap of tickets too.
        for first in [0, 0u32.wrapping_sub(2 * DEPTH)] {
            let memory = HostMemory::new(1 << 16).expect("memory");
            let mut q = queue(&memory, first);
            assert_eq!(take(&mut q), None);
            ring(&q, first);
            assert!(q.is_rung());
            assert_eq!(take(&mut q), None, "rung, and not there");
            assert!(!q.is_rung(), "it keeps no thread awake");
            assert_eq!(take(&mut q), None);
            store(&q, first);
            assert_eq!(take(&mut q), Some(first));
            assert_eq!(take(&mut q), None);
            assert!(!q.pending, "all that was rung has come");
        }
    }

    #[test]
    fn an_entry_that_lacks_any_one_word_is_not_taken() {
        let memory = HostMemory::new(1 << 16).expect("memory");
        let mut q = queue(&memory, 0);
        // Both laps: the second finds a whole entry of the first in the slot.
        for ticket in 0..2 * DEPTH {
            for late in 0..8 {
                let slots = q.slots;
                let word = &slots.sq[(ticket % DEPTH) as usize * 8 + late];
                let before = word.load(Relaxed);
                store(&q, ticket);
                let stored = word.swap(before, Relaxed);
                ring(&q, ticket);
                assert!(q.peek().is_none(), "ticket {ticket} without word {late}");
                let slots = q.slots;
                slots.sq[(ticket % DEPTH) as usize * 8 + late].store(stored, Relaxed);
                let (t, entry) = q.peek().expect("whole");
                assert_eq!((t, entry.wr_id()), (ticket, ticket.into()));
                // As it was, for the next word to be late.
                for word in &q.slots.sq[(ticket % DEPTH) as usize * 8..][..8] {
                    word.store(word.load(Relaxed) ^ LAP, Relaxed);
                }
            }
            store(&q, ticket);
            assert_eq!(take(&mut q), Some(ticket));
            let done = Completion {
                status: ringbell_nic_abi::Status::Ok,
                opcode: 0,
                wr_id: 0,
                bytes: 0,
                detail: 0,
            };
            q.complete(ticket, &done, &memory);
        }
    }

    #[test]
    fn the_doorbell_of_a_later_ticket_waits_for_the_earlier_one() {
        let memory = HostMemory::new(1 << 16).expect("memory");
        let mut q = queue(&memory, 0);
        store(&q, 1);
        ring(&q, 1);
        assert_eq!(take(&mut q), None);
        // Its own doorbell was overtaken, and is never seen.
        store(&q, 0);
        assert_eq!(
            [take(&mut q), take(&mut q), take(&mut q)],
            [Some(0), Some(1), None]
        );
        assert!(!q.pending);
    }

    #[test]
    fn an_invalid_doorbell_does_not_make_the_nic_poll_for_ever() {
        let memory = HostMemory::new(1 << 16).expect("memory");
        let mut q = queue(&memory, 8);
        for rung in [8, 7, 8 + DEPTH + 1, u32::MAX, 1 << 31] {
            q.slots.doorbell.store(rung, Relaxed);
            assert_eq!(take(&mut q), None);
            assert!(!q.pending && !q.is_rung(), "{rung}");
        }
        q.slots.doorbell.store(8 + DEPTH, Relaxed);
        assert_eq!(take(&mut q), None);
        assert!(q.pending && !q.is_rung());
    }

    /// A GPU whose kernels have memory of their own for their words.
    struct Apart(HostMemory, Mutex<Vec<Vec<u32>>>);

    const DEVICE_WORDS: u64 = 0x7000_0000;

    impl DmaMemory for Apart {
        fn submit(&self, op: DmaOp<'_>) -> Result<Submitted, BusError> {
            self.0.submit(op)
        }
        fn poll(&self) -> Option<DmaId> {
            self.0.poll()
        }
        fn take(&self, id: DmaId, into: &mut [u8]) {
            self.0.take(id, into);
        }
        fn publish(&self, completion: CompletionWrite) {
            self.0.publish(completion);
        }
        fn device_words(&self, initial: &[u32]) -> std::io::Result<Option<Exposed>> {
            self.1.lock().expect("unpoisoned").push(initial.into());
            Ok(Some(Exposed::pinned(GpuVa(DEVICE_WORDS), Box::new(()))))
        }
    }

    #[test]
    fn kernels_words_lie_in_the_memory_that_the_gpu_gives_for_them() {
        let memory = Apart(HostMemory::new(1 << 16).expect("memory"), Mutex::default());
        let q = queue(&memory, 8);
        let mem = q.mem.as_ref().expect("in use");
        assert!(!mem.is_shared());
        let h = mem.handle(3, &config(8));
        assert_eq!((h.released, h.tail), (DEVICE_WORDS, DEVICE_WORDS + 128));
        let words = memory.1.lock().expect("unpoisoned").remove(0);
        assert_eq!(words[..4], [8, 9, 10, 11]);
        assert_eq!(words[128 / 4..], [8], "the tail");
        let bar = Bar::new(&memory).expect("memory");
        let own = QueueMemory::new(&config(8), Producers::Host, bar, &memory).expect("memory");
        assert!(own.is_shared() && own.doorbell().is_none());
        let h = own.handle(3, &config(8));
        let span = h.sq..h.sq + 4096;
        for inside in [h.cq, h.released, h.tail, h.doorbell] {
            assert!(span.contains(&inside));
        }
        assert!(memory.1.lock().expect("unpoisoned").is_empty());
    }
}
