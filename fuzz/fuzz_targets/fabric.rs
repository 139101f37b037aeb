//! Frames of communicators from members and other peers, as the input decides: every operation
//! ends, nothing else is written, and all NIC memory comes back.
#![no_main]

#[path = "../../nic-core/tests/hostile_support/mod.rs"]
mod hostile_support;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hostile_support::play(bytes));
