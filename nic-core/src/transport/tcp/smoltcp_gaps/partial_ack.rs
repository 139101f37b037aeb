//! Recovery from several losses in one window at the pace of round trips instead of time-outs.
//!
//! smoltcp sends the first missing segment again on the third duplicate acknowledgement (RFC 5681 §3.2), but not
//! the next one when the acknowledgement that follows is partial (RFC 6582 §3.2), and it ignores what a
//! peer says with SACK: every further hole of the window costs a retransmission time-out. From outside, a partial
//! acknowledgement shows as one that moves, but not to where the sender was when the recovery began. The
//! socket then hears three duplicates of it, as in `lost_timer`, and sends the next hole at once.

use crate::transport::tcp::conn::Conn;
use crate::transport::tcp::TcpTransport;
use crate::types::NicTime;
use crate::wire::frame::TcpFrame;

/// Duplicates that tell of a loss (RFC 5681 §3.2).
const DUPLICATES: u32 = 3;

/// What the peer has acknowledged, and how far a recovery goes.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct Recovery {
    /// The end of what was sent, once something was.
    sent: Option<u32>,
    /// The newest acknowledgement and its window.
    acked: Option<(u32, u16)>,
    duplicates: u32,
    /// What had been sent when the recovery began.
    until: Option<u32>,
}

/// Whether sequence number `a` comes before `b` (RFC 9293 §3.4).
pub(in crate::transport::tcp) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Recovery {
    /// The end of what was sent.
    pub(in crate::transport::tcp) fn end(&self) -> Option<u32> {
        self.sent
    }

    /// Notes segments sent: the farthest end, and how many were sent before.
    pub(in crate::transport::tcp) fn sent(&mut self, end: u32, repeated: u32) {
        // A recovery repeats one segment at a time. More at once: a time-out, after which smoltcp goes on from
        // there by itself.
        if repeated > 1 {
            self.until = None;
        }
        if self.sent.is_none_or(|s| is_before(s, end)) {
            self.sent = Some(end);
        }
    }

    /// Notes an acknowledgement. Returns whether it leaves a hole open.
    pub(in crate::transport::tcp) fn acknowledged(
        &mut self,
        ack: u32,
        window: u16,
        pure: bool,
    ) -> bool {
        let before = self.acked.replace((ack, window));
        match before {
            Some((b, w)) if b == ack => {
                if pure && w == window && self.sent.is_some_and(|s| is_before(ack, s)) {
                    self.duplicates += 1;
                    if self.duplicates == DUPLICATES && self.until.is_none() {
                        self.until = self.sent;
                    }
                }
                false
            }
            // An old one, overtaken.
            Some((b, _)) if is_before(ack, b) => {
                self.acked = before;
                false
            }
            _ => {
                self.duplicates = 0;
                match self.until {
                    Some(until) if is_before(ack, until) => true,
                    _ => {
                        self.until = None;
                        false
                    }
                }
            }
        }
    }
}

impl Conn {
    /// Notes the acknowledgement of a segment that went to the socket. Returns whether the next hole is to
    /// be sent now.
    pub(in crate::transport::tcp) fn leaves_a_hole(&mut self, seg: &TcpFrame) -> bool {
        let Some(ack) = seg.ack else { return false };
        self.recovery.acknowledged(ack, seg.window, seg.pure_ack)
    }
}

impl TcpTransport {
    /// Lets a connection send the next hole of its window again.
    pub(in crate::transport::tcp) fn mend(&mut self, index: usize, now: NicTime) {
        if let Some(window) = self.table.at(index).map(|c| c.heard_window) {
            self.counters.mended += 1;
            self.repeat_ack(index, now, &[window; 3]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_acknowledgement_inside_a_recovery_leaves_a_hole() {
        // Near the end of sequence numbers, so that they wrap.
        let at = |n: u32| (u32::MAX - 5_000).wrapping_add(n);
        let mut r = Recovery::default();
        r.sent(at(10_000), 0);
        assert!(!r.acknowledged(at(1_000), 9, true));
        for _ in 0..DUPLICATES {
            assert!(!r.acknowledged(at(1_000), 9, true));
        }
        r.sent(at(2_000), 1);
        r.sent(at(12_000), 0);
        assert!(r.acknowledged(at(4_000), 9, true), "partial");
        assert!(!r.acknowledged(at(3_000), 9, true), "old");
        assert!(r.acknowledged(at(7_000), 9, false), "partial, with data");
        assert!(!r.acknowledged(at(10_000), 9, true), "full");
        assert!(!r.acknowledged(at(11_000), 9, true), "over");
    }

    #[test]
    fn a_time_out_ends_a_recovery_and_window_updates_do_not_begin_one() {
        let mut r = Recovery::default();
        r.sent(10_000, 0);
        for window in 1..9 {
            assert!(!r.acknowledged(1_000, window, true));
        }
        assert!(!r.acknowledged(2_000, 9, true));
        for _ in 0..DUPLICATES {
            assert!(!r.acknowledged(2_000, 9, true));
        }
        r.sent(6_000, 4);
        assert!(!r.acknowledged(3_000, 9, true));
    }
}
