//! Which segments a socket is shown: RFC 9293 §3.10.7.4 with the tests of RFC 5961.
//!
//! smoltcp 0.14 ends a connection for any reset inside the window (`process`, "RSTs in any other state close the socket"),
//! drops a SYN without ACK and an old acknowledgement without an answer ("expecting an ACK", "duplicate ACK"), the
//! latter with its data, and takes acknowledgements of bytes that it has not sent (`ack_max`). Somebody who guesses a
//! number could so end, spoil or block a connection, and a peer that starts again could not.

use std::time::Duration;

use smoltcp::socket::tcp::{Socket, State};

use crate::transport::tcp::conn::{is_synchronized, Conn};
use crate::transport::tcp::TcpTransport;
use crate::types::NicTime;
use crate::wire::frame::TcpFrame;

/// At most so many challenge ACKs for a connection in this time (RFC 5961 §7). Not one count for all
/// connections: that would tell an attacker about others' (CVE-2016-5696).
const CHALLENGES: u8 = 10;
const CHALLENGE_TIME: Duration = Duration::from_secs(5);

/// What is to be done with a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport::tcp) enum Verdict {
    /// It is for the socket.
    Take,
    /// It is for the socket, with the newest acknowledgement in the place of its own, overtaken one.
    TakeWithoutAck,
    /// Only somebody who knows our numbers may mean this: the peer is told them.
    Challenge,
    /// It may be a guess, and needs no answer.
    Drop,
}

/// When a connection has sent challenge ACKs.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct Challenges {
    since: NicTime,
    sent: u8,
}

impl Challenges {
    /// Whether one more may go out now.
    fn allow(&mut self, now: NicTime) -> bool {
        if self.sent == 0 || now > self.since.plus(CHALLENGE_TIME) {
            (self.since, self.sent) = (now, 0);
        }
        let allowed = self.sent < CHALLENGES;
        self.sent += u8::from(allowed);
        allowed
    }
}

impl Conn {
    /// SND.UNA. smoltcp keeps it to itself, so it is counted from outside.
    pub(in crate::transport::tcp) fn unacknowledged(&self) -> u32 {
        let socket = self.tcp();
        // Our FIN is acknowledged.
        let fin = matches!(socket.state(), State::FinWait2 | State::TimeWait);
        let acknowledged = self.given - socket.send_queue() as u64;
        self.first
            .wrapping_add(acknowledged as u32)
            .wrapping_add(u32::from(fin))
    }

    /// SND.NXT, or one less while a FIN is about to be sent.
    pub(in crate::transport::tcp) fn sent_end(&self) -> u32 {
        let closed = matches!(
            self.tcp().state(),
            State::FinWait1 | State::FinWait2 | State::Closing | State::LastAck | State::TimeWait
        );
        let end = self.recovery.end().unwrap_or(self.first);
        end.wrapping_add(u32::from(closed))
    }

    /// Sorts a segment of this connection.
    #[inline]
    pub(in crate::transport::tcp) fn judge(&self, seg: &TcpFrame) -> Verdict {
        if !seg.syn && !seg.rst {
            if let (Some(ack), true) = (seg.ack, is_synchronized(self.tcp().state())) {
                let first = self.unacknowledged();
                if ack.wrapping_sub(first) <= self.sent_end().wrapping_sub(first) {
                    return Verdict::Take;
                }
            }
        }
        self.judge_unusual(seg)
    }

    #[cold]
    fn judge_unusual(&self, seg: &TcpFrame) -> Verdict {
        let socket: &Socket<'_> = self.tcp();
        let Some(next) = self.next_expected() else {
            // The handshake has numbers of its own, which smoltcp checks.
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
        let behind = self.unacknowledged().wrapping_sub(ack);
        match behind as usize {
            0 => Verdict::Take,
            n if n > socket.send_capacity() => Verdict::Challenge,
            // Nothing new: only that it counts as no duplicate of the newest one.
            _ if seg.pure_ack && ahead == 0 => Verdict::Take,
            _ => Verdict::TakeWithoutAck,
        }
    }
}

impl TcpTransport {
    /// Answers with a challenge ACK, in the reply buffer, unless there were many.
    pub(in crate::transport::tcp) fn challenge(&mut self, index: usize, now: NicTime) {
        let Some(c) = self.table.at(index) else {
            return;
        };
        if c.challenges.allow(now) {
            self.counters.challenged += 1;
            self.provoke_ack(index, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_challenges_in_five_seconds() {
        let mut c = Challenges::default();
        let at = |s: f64| NicTime((s * 1e9) as u64);
        let n = (0..100).filter(|_| c.allow(at(1.0))).count();
        assert_eq!(n, usize::from(CHALLENGES));
        assert!(!c.allow(at(5.9)));
        assert!(c.allow(at(6.1)));
    }
}
