//! Sequences of verbs calls: each request completes once, and no byte changes that none may write.
//!
//! Input: as `sequences.rs` says.
#![no_main]

#[path = "../../roce/tests/verbs_support/sequences.rs"]
mod sequences;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Longer sequences take longer, and find no more.
    sequences::run(&bytes[..bytes.len().min(8 * 100)]);
});
