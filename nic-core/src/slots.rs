//! The slot protocol of a queue, on plain slices of atomics.
//!
//! Free of memory layout and of system calls, so that the model checker runs this very file. See
//! `ringbell_nic_abi::queue` for the protocol's text.

use super::sync::{fence, AtomicU32, AtomicU64, Ordering};
use ringbell_nic_abi::completion::C_TICKET;
use ringbell_nic_abi::descriptor::{lap_bit, LAP};
use ringbell_nic_abi::{Completion, Status, WorkQueueEntry};

/// Words of 64 bits in one line.
pub(crate) const LINE_WORDS: usize = 8;

/// Both sides of one queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots<'a> {
    /// Entries: eight words per slot.
    pub(crate) sq: &'a [AtomicU64],
    /// Completion lines: eight words per slot.
    pub(crate) cq: &'a [AtomicU64],
    /// Ticket for which each slot is free.
    pub(crate) released: &'a [AtomicU32],
    /// Next ticket.
    pub(crate) tail: &'a AtomicU32,
    /// Doorbell register.
    pub(crate) doorbell: &'a AtomicU32,
    /// log2 of the number of slots.
    pub(crate) depth_log2: u32,
}

impl Slots<'_> {
    #[inline(always)]
    fn slot(&self, ticket: u32) -> usize {
        // As many as there are slots, a power of two.
        ticket as usize & (self.released.len() - 1)
    }

    /// The words of the entry of a ticket.
    #[inline(always)]
    fn entry(&self, ticket: u32) -> &[AtomicU64; LINE_WORDS] {
        let at = self.slot(ticket) * LINE_WORDS;
        self.sq[at..]
            .first_chunk()
            .expect("a line for every slot of the depth")
    }

    /// Producer: takes the next ticket, or `None` when its slot is still in use.
    #[inline(always)]
    pub(crate) fn try_take(&self) -> Option<u32> {
        let mut t = self.tail.load(Ordering::Relaxed);
        loop {
            // Acquire: pairs with the Release in `release`; the previous user has read its line.
            if self.released[self.slot(t)].load(Ordering::Acquire) != t {
                let again = self.tail.load(Ordering::Relaxed);
                if again == t {
                    return None;
                }
                t = again;
                continue;
            }
            match self.tail.compare_exchange_weak(
                t,
                t.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(t),
                Err(now) => t = now,
            }
        }
    }

    /// Producer: what holds the slot of the next ticket: its ticket, its opcode byte when it was
    /// written, and whether it has ended.
    pub(crate) fn holder(&self) -> (u32, Option<u8>, bool) {
        let ticket = self
            .tail
            .load(Ordering::Relaxed)
            .wrapping_sub(1 << self.depth_log2);
        let opcode = self.peek(ticket).map(|e| e.0[0] as u8);
        (ticket, opcode, self.completion(ticket).is_some())
    }

    /// Producer: the lap bit that the entry of `ticket` carries.
    #[inline(always)]
    pub(crate) fn lap(&self, ticket: u32) -> u64 {
        lap_bit(ticket, self.depth_log2)
    }

    /// Producer: writes the entry and rings the doorbell.
    #[inline(always)]
    pub(crate) fn publish(&self, ticket: u32, entry: &WorkQueueEntry) {
        for (slot, w) in self.entry(ticket).iter().zip(&entry.0) {
            // Release: pairs with the Acquire fence in `peek`. The NIC may consume this entry on
            // another producer's doorbell, so the doorbell alone does not order the payload.
            slot.store(*w, Ordering::Release);
        }
        // Release: pairs with the Acquire load of the doorbell by the NIC.
        self.doorbell
            .store(ticket.wrapping_add(1), Ordering::Release);
    }

    /// Producer: writes the entry except its first word, whose lap bit keeps it invalid until that
    /// word is stored.
    pub(crate) fn prepare(&self, ticket: u32, entry: &WorkQueueEntry) {
        for (slot, w) in self.entry(ticket).iter().zip(&entry.0).skip(1) {
            // Release: pairs with the Acquire fence in `peek`.
            slot.store(*w, Ordering::Release);
        }
    }

    /// Waiter: puts a completion of its own into the line, because the NIC writes none.
    pub(crate) fn silence(&self, ticket: u32) {
        let silent = Completion {
            status: Status::NicSilent,
            opcode: 0,
            wr_id: 0,
            bytes: 0,
            detail: 0,
        };
        let words = silent.encode(ticket);
        let line = self.line(ticket);
        for (at, word) in line.iter().zip(words).skip(1) {
            at.store(word, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire of word 0 by the waiter.
        line[0].store(words[0], Ordering::Release);
    }

    /// NIC: a copy of the entry of `ticket` when all of it was written.
    #[inline]
    pub(crate) fn peek(&self, ticket: u32) -> Option<WorkQueueEntry> {
        self.peek_at(self.slot(ticket), self.lap(ticket))
    }

    /// NIC: the same for the slot and the lap bit of a ticket.
    #[inline(always)]
    pub(crate) fn peek_at(&self, slot: usize, lap: u64) -> Option<WorkQueueEntry> {
        let line: &[AtomicU64; LINE_WORDS] = self.sq[slot * LINE_WORDS..].first_chunk()?;
        // Most polls find an entry that was not written: one word shows it.
        if (line[0].load(Ordering::Relaxed) ^ lap) & LAP != 0 {
            return None;
        }
        let e = WorkQueueEntry(std::array::from_fn(|i| line[i].load(Ordering::Relaxed)));
        if !e.is_valid(lap) {
            return None;
        }
        // Acquire: pairs with the Release stores in `publish` and in the device header.
        fence(Ordering::Acquire);
        Some(e)
    }

    /// NIC: the four words of the line where the completion of `ticket` goes.
    #[inline(always)]
    pub(crate) fn line(&self, ticket: u32) -> &[AtomicU64] {
        let at = self.slot(ticket) * LINE_WORDS;
        &self.cq[at..at + 4]
    }

    /// NIC: where the entry and the completion line of a ticket lie.
    pub(crate) fn place(&self, ticket: u32) -> [u64; 2] {
        [&self.entry(ticket)[..], self.line(ticket)].map(|words| words.as_ptr() as u64)
    }

    /// NIC: all eight words of that line.
    pub(crate) fn whole_line(&self, ticket: u32) -> &[AtomicU64] {
        let at = self.slot(ticket) * LINE_WORDS;
        &self.cq[at..at + LINE_WORDS]
    }

    /// Waiter: the completion of `ticket`, when it is there.
    #[inline(always)]
    pub(crate) fn completion(&self, ticket: u32) -> Option<Completion> {
        let line = self.line(ticket);
        // Acquire: pairs with the Release store of word 0 in `CompletionWrite::store`.
        let w0 = line[0].load(Ordering::Acquire);
        if C_TICKET.of(w0) as u32 != ticket.wrapping_add(1) {
            return None;
        }
        let rest = [1, 2, 3].map(|i: usize| line[i].load(Ordering::Relaxed));
        Completion::decode([w0, rest[0], rest[1], rest[2]], ticket)
    }

    /// Waiter: frees the slot after its completion was read.
    #[inline(always)]
    pub(crate) fn release(&self, ticket: u32) {
        // Release: pairs with the Acquire in `try_take`.
        self.released[self.slot(ticket)]
            .store(ticket.wrapping_add(1 << self.depth_log2), Ordering::Release);
    }
}
