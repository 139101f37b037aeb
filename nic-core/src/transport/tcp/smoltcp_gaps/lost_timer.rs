//! Retransmission timers that smoltcp loses.
//!
//! A sender that has bytes under way must have a timer (RFC 6298 §5.1). smoltcp loses it when a
//! closed window opens again over bytes that were sent into it before: an edge that scaling rounds
//! down moves back by a few bytes, the receiver cuts them off, and the probe timer of the closed
//! window ends without the retransmission timer taking its place. Usually the next segment starts
//! it; the last bytes of a burst would never be sent, nor anything behind them.
//!
//! From outside, the symptom is a non-empty queue while no timer runs. After the shortest
//! retransmission time-out the socket then gets three duplicates of the peer's last
//! acknowledgement, and retransmits (RFC 5681 §3.2); with a closed window it starts to probe.

use super::forged::repeat_ack;
use super::socket::{is_synchronized, TcpSocket};
use super::stack::Stack;
use crate::types::NicTime;

/// Whether a socket has bytes to send but no timer that would send them.
pub(in crate::transport::tcp) fn is_forgotten(s: &TcpSocket, has_timer: bool) -> bool {
    !has_timer && is_synchronized(s.state()) && s.tcp().send_queue() > 0
}

/// Passes a socket that lost its timer the segments that restart it.
pub(in crate::transport::tcp) fn restart(stack: &mut Stack, s: &mut TcpSocket, now: NicTime) {
    let window = s.heard_window;
    tracing::debug!(peer = %s.peer, "TCP has lost its retransmission timer; it starts again");
    // Another window first: it makes the segment no duplicate, so that counting restarts.
    repeat_ack(stack, s, now, &[window ^ 1, window, window, window, window]);
}
