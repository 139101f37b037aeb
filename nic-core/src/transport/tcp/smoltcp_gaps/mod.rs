//! Workarounds for what smoltcp 0.14 lacks, from outside, one function each (ADR 30).
//!
//! Each row can go when smoltcp has the right-hand column. The words in quotes are in
//! `src/socket/tcp.rs` of [smoltcp
//! 0.14.0](https://github.com/smoltcp-rs/smoltcp/blob/v0.14.0/src/socket/tcp.rs).
//!
//! | gap | where smoltcp has it | workaround | what smoltcp would need |
//! |---|---|---|---|
//! | the least retransmission time-out is 1 s | `RTTE_MIN_RTO` | [`clock::Clock`] | a setter |
//! | no retransmission timer after a closed window opens over bytes sent before | `process`, "stopping zero-window-probe timer" | `lost_timer::restart` | to start it there (RFC 6298 §5.1) |
//! | the second hole of a window waits for a time-out | `process`, "set for retransmit if we just received the third duplicate" | `partial_ack::recover` | RFC 6582 §3.2, or SACK's blocks |
//! | an acknowledgement beyond the window that was offered last is ignored | `process`, "zero-length segment not inside window" | `closed_window::sequence_of_ack` | "special allowance" (RFC 9293 §3.10.7.4) |
//! | a keep-alive probe carries a byte in the place of the last one sent | `dispatch`, "RFC 1122 says we should do this" | `keep_alive::mind_keep_alive` | a probe without payload |
//! | a fast retransmission is lost when the device is full | `dispatch`, "Clear the `should_retransmit` state" | `Egress::has_room` before each poll | to clear it once the packet is out |
//! | any reset in the window counts | `process`, "RSTs in any other state close the socket" | [`acceptance`] | RFC 5961 §3.2 |
//! | a SYN on a live connection has no answer | `process`, "expecting an ACK" | [`acceptance`] | RFC 5961 §4.2 |
//! | old acknowledgements have no answer, and their data is lost | `process`, "duplicate ACK" | [`acceptance`] | RFC 5961 §5.2 |
//! | bytes that were never sent can be acknowledged | `process`, `ack_max` | [`acceptance`] | SND.NXT in its place |
//! | initial sequence numbers can be foretold, and cannot be chosen | `random_seq_no` | [`initial_sequence`] | RFC 9293 §3.4.1, a setter for cookies |
//! | an assertion fails on a hostile peer's segments | `process`, `remote_last_win` | [`guarded`] | to drop the segment |

pub(super) mod acceptance;
mod challenges;
mod clock;
pub(super) mod closed_window;
pub(super) mod forged;
mod initial_sequence;
pub(super) mod keep_alive;
pub(super) mod lost_timer;
pub(super) mod partial_ack;
mod probes;
mod recovery;
pub(super) mod socket;
pub(super) mod stack;

/// Runs smoltcp and keeps a panic of its assertions inside.
///
/// Fuzzing has found segments after which smoltcp's receive window is larger than its buffer, which
/// it asserts cannot be. One hostile peer must not end the NIC of all others: the connection ends.
pub(super) fn guarded<R>(f: impl FnOnce() -> R) -> Option<R> {
    // The socket that was at work is never used again, except to be dropped; the interface holds no
    // state of a packet between two calls.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).ok()
}
