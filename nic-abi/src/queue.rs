//! The plain-data handle by which a kernel drives one queue.
//!
//! It is the device's half of a queue, whose owner is on the host. All addresses are valid in the
//! kernel's address space.
//!
//! **Slot protocol.** `tail` is the next ticket. A producer reads `t = *tail`; slot `t mod depth`
//! is free when `released[t mod depth] == t` (32 bits, wrapping; initialised to the slot's index);
//! it takes the ticket by compare-and-swap `t → t + 1`, writes the entry with its lap bit, and
//! rings `*doorbell = t + 1` with Release. The waiter of the completion frees the slot by
//! `released[slot] = t + depth` with Release. A producer that finds no free slot before its
//! deadline returns `QUEUE_FULL` without having taken a ticket, so no hole is left.
//!
//! **Doorbells.** The value is a hint: on any *change* the NIC consumes every valid entry in order.
//! Producers may therefore ring out of order.

use crate::{abi_struct, GpuVa};

abi_struct! {
    /// Device-side handle of one queue.
    pub struct QueueHandle ["rb_queue"] {
        /// Send queue: `1 << depth_log2` entries of 64 bytes.
        sq: u64,
        /// Completion lines: same count, 64 bytes each.
        cq: u64,
        /// u32 per slot: ticket for which the slot is free.
        released: u64,
        /// u32: next ticket.
        tail: u64,
        /// u32 doorbell register of this queue in the BAR.
        doorbell: u64,
        /// Base of the BAR's control window, for status reads.
        bar: u64,
        /// log2 of the depth.
        depth_log2: u32,
        /// Number of the queue.
        queue: u32,
        /// Default time-out of every call that passes 0, in microseconds.
        default_timeout_us: u32,
        /// How long past a deadline the device waits before it reports NIC_SILENT, in microseconds.
        silent_grace_us: u32,
        /// 1 in the copy of one thread that has the queue for itself (`gpu_own_queue`); 0 as the
        /// host gives it.
        own: u32,
        /// In such a copy: the next ticket.
        own_next: u32,
        /// In such a copy: every ticket before this one has been waited for.
        own_oldest: u32,
        /// Zero.
        reserved: u32,
    }
}

/// An entry without its first word, and the stores and the wait by which a GPU stream posts it.
/// Addresses are the GPU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreparedEntry {
    /// Its ticket.
    pub ticket: u32,
    /// First stored: this word publishes the entry.
    pub word: (GpuVa, u64),
    /// Then stored: the doorbell, 32 bits.
    pub doorbell: (GpuVa, u32),
    /// Then waited for: 32 bits that are equal to this when the completion has come.
    pub done: (GpuVa, u32),
}
