//! Sequences of one-sided operations over `local`, and over `rdma` on a wire with faults: every end
//! and every byte is that of a plain model of memory.
//!
//! Input: a byte for the transport, then as `sequences.rs` says.
#![no_main]

#[path = "../../nic-core/tests/nic_support/mod.rs"]
mod nic_support;
#[path = "../../nic-core/tests/nic_support/sequences.rs"]
mod sequences;

use libfuzzer_sys::fuzz_target;
use nic_support::Via;

fuzz_target!(|bytes: &[u8]| {
    if let [via, rest @ ..] = bytes {
        let via = if via % 2 == 0 { Via::Local } else { Via::Rdma };
        // Longer sequences take longer, and find no more.
        sequences::run(via, &rest[..rest.len().min(4 + 8 * 64)]);
    }
});
