//! Loss recovery from a peer's acknowledgements (RFC 6582).

use crate::transport::tcp::sequence::is_before;
use crate::types::NicTime;

/// Duplicates that indicate a loss (RFC 5681 §3.2).
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
    /// When a lost retransmission is restarted.
    pub(in crate::transport::tcp) restart_at: Option<NicTime>,
}

impl Recovery {
    /// The end of what was sent.
    pub(in crate::transport::tcp) fn end(&self) -> Option<u32> {
        self.sent
    }

    /// Whether segments are repeated because the peer's duplicates have asked for them.
    pub(in crate::transport::tcp) fn is_under_way(&self) -> bool {
        self.until.is_some()
    }

    /// Records segments sent: the farthest end, and how many were sent before.
    pub(in crate::transport::tcp) fn sent(&mut self, end: u32, repeated: u32) {
        // A recovery repeats one segment at a time. More at once: a time-out, after which smoltcp
        // goes on from there by itself.
        if repeated > 1 {
            self.until = None;
        }
        if self.sent.is_none_or(|s| is_before(s, end)) {
            self.sent = Some(end);
        }
    }

    /// Records an acknowledgement. Returns whether it leaves a hole open.
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
    fn fewer_duplicates_are_a_reordering_and_begin_no_recovery() {
        for duplicates in 0..DUPLICATES {
            let mut r = Recovery::default();
            r.sent(10_000, 0);
            assert!(!r.acknowledged(1_000, 9, true));
            for _ in 0..duplicates {
                assert!(!r.acknowledged(1_000, 9, true));
            }
            assert!(!r.acknowledged(4_000, 9, true), "after {duplicates}");
        }
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
