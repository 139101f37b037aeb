//! Partial-ACK recovery: several losses in one window cost round trips instead of time-outs.
//!
//! smoltcp sends the first missing segment again on the third duplicate acknowledgement (RFC 5681
//! §3.2), but not the next one when the acknowledgement that follows is partial (RFC 6582 §3.2),
//! and it ignores what a peer reports with SACK: every further hole of the window costs a
//! retransmission time-out. From outside, a partial acknowledgement advances, but not to where the
//! sender was when the recovery began. The socket then gets three duplicates of it, as in
//! `lost_timer`, and sends the next hole at once.

use super::forged::repeat_ack;
use super::socket::TcpSocket;
use super::stack::Stack;
use crate::types::NicTime;
use ringbell_net::wire::frame::TcpFrame;

/// Records the acknowledgement of a segment that went to the socket. Returns whether to send the
/// next hole now.
pub(in crate::transport::tcp) fn leaves_a_hole(s: &mut TcpSocket, seg: &TcpFrame) -> bool {
    let Some(ack) = seg.ack else { return false };
    s.recovery.acknowledged(ack, seg.window, seg.pure_ack)
}

/// Lets a socket send the next hole of its window again.
pub(in crate::transport::tcp) fn recover(stack: &mut Stack, s: &mut TcpSocket, now: NicTime) {
    let window = s.heard_window;
    repeat_ack(stack, s, now, &[window; 3]);
}
