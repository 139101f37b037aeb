//! Acceptance of segments, before smoltcp gets them: RFC 9293 §3.10.7.4 with the tests of RFC 5961.
//!
//! smoltcp 0.14 ends a connection for any reset inside the window (`process`, "RSTs in any other
//! state close the socket"), drops a SYN without ACK and an old acknowledgement without an answer
//! ("expecting an ACK", "duplicate ACK"), the latter with its data, and takes acknowledgements of
//! bytes that it has not sent (`ack_max`). An attacker who guesses a number could thus end, corrupt
//! or block a connection, while a restarted peer could not end its old one.

use smoltcp::socket::tcp::{Socket, State};

use super::forged::provoke_ack;
use super::socket::{is_synchronized, TcpSocket};
use super::stack::Stack;
use crate::types::NicTime;
use ringbell_net::wire::frame::TcpFrame;

/// What happens to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport::tcp) enum Verdict {
    /// It is for the socket.
    Take,
    /// It is for the socket, with the newest acknowledgement in the place of its own, overtaken
    /// one.
    TakeWithoutAck,
    /// Valid only from a sender that holds our sequence numbers: they are sent to the peer in a
    /// challenge ACK.
    Challenge,
    /// It may be a guess, and needs no answer.
    Drop,
}

/// Sorts a segment of this connection.
#[inline]
pub(in crate::transport::tcp) fn judge(s: &TcpSocket, seg: &TcpFrame) -> Verdict {
    if !seg.syn && !seg.rst {
        if let (Some(ack), true) = (seg.ack, is_synchronized(s.tcp().state())) {
            let first = s.unacknowledged();
            if ack.wrapping_sub(first) <= s.sent_end().wrapping_sub(first) {
                return Verdict::Take;
            }
        }
    }
    judge_unusual(s, seg)
}

#[cold]
fn judge_unusual(s: &TcpSocket, seg: &TcpFrame) -> Verdict {
    let socket: &Socket<'_> = s.tcp();
    let Some(next) = s.next_expected() else {
        // smoltcp checks the numbers of a handshake itself.
        return Verdict::Take;
    };
    let ahead = seg.seq.wrapping_sub(next);
    match socket.state() {
        State::Closed | State::Listen | State::SynSent => return Verdict::Take,
        State::SynReceived if seg.rst && ahead > 0 => return Verdict::Drop,
        State::SynReceived => return Verdict::Take,
        _ => {}
    }
    if seg.rst {
        // RFC 5961 §3.2.
        let window = (socket.recv_capacity() - socket.recv_queue()).max(1);
        return match ahead {
            0 => Verdict::Take,
            n if (n as usize) < window => Verdict::Challenge,
            _ => Verdict::Drop,
        };
    }
    if seg.syn {
        // RFC 5961 §4.2.
        return Verdict::Challenge;
    }
    // RFC 5961 §5.2. What may be under way at once stands for the largest window of the peer's.
    let Some(ack) = seg.ack else {
        return Verdict::Take;
    };
    let behind = s.unacknowledged().wrapping_sub(ack);
    match behind as usize {
        0 => Verdict::Take,
        n if n > socket.send_capacity() => Verdict::Challenge,
        // Acknowledges nothing new, but must not count as a duplicate of the newest one.
        _ if seg.pure_ack && ahead == 0 => Verdict::Take,
        _ => Verdict::TakeWithoutAck,
    }
}

/// Answers with a challenge ACK, in the reply buffer, unless there were many. Returns whether it
/// does.
pub(in crate::transport::tcp) fn challenge(
    stack: &mut Stack,
    s: &mut TcpSocket,
    now: NicTime,
) -> bool {
    let allowed = s.challenges.allow(now);
    if allowed {
        provoke_ack(stack, s, now);
    }
    allowed
}
