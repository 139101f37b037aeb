//! The completion write: the last store of an operation, which tells its waiter.
//!
//! It uses nothing but atomics, so that the model checker runs this very file
//! (`nic-core/tests/loom_rings.rs`).
#![allow(unsafe_code)] // Stores into a queue's completion line by address.

use super::sync::{AtomicU64, Ordering};

/// A completion and the line of the queue that it is written to.
///
/// Words 1–3 are stored first, word 0 last with Release; it pairs with the Acquire load of word 0
/// in the device header (`rb::detail::poll`) and in the host's completion poll.
#[derive(Debug, Clone, Copy)]
pub struct CompletionWrite {
    line: *const AtomicU64,
    words: [u64; 4],
}

// SAFETY: the constructor's contract makes the line valid from any thread.
unsafe impl Send for CompletionWrite {}

impl CompletionWrite {
    /// # Safety
    /// `line` points to at least four `AtomicU64` that stay valid until the completion was stored
    /// or dropped, and that all accesses to it are atomic.
    pub unsafe fn new(line: *const AtomicU64, words: [u64; 4]) -> CompletionWrite {
        CompletionWrite { line, words }
    }

    /// The line's address in the host's memory.
    pub fn line(&self) -> u64 {
        self.line as u64
    }

    /// Makes the completion visible. For implementations of `DmaMemory::publish`.
    pub fn store(self) {
        // SAFETY: the contract of `new`.
        let line = unsafe { std::slice::from_raw_parts(self.line, 4) };
        for (word, value) in line[1..].iter().zip(&self.words[1..]) {
            word.store(*value, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire load of word 0 by the waiter.
        line[0].store(self.words[0], Ordering::Release);
    }
}
