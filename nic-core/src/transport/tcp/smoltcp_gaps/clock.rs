//! The clock passed to smoltcp, scaled from the NIC's.

use smoltcp::time::Instant;

use crate::types::NicTime;

/// smoltcp's clock in microseconds, `rate` times as fast as the NIC's.
///
/// smoltcp's least retransmission time-out is a constant of 1 s (RFC 6298 §2.4). Behind a NIC a
/// round trip takes microseconds, and Linux waits 200 ms; a clock that runs five times as fast
/// gives the same without touching smoltcp, whose other timers are given to it in its own time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport::tcp) struct Clock {
    rate: u64,
}

/// smoltcp's least retransmission time-out in its own time.
const RTO_MIN_OWN: std::time::Duration = std::time::Duration::from_secs(1);

impl Clock {
    /// The clock on which smoltcp's 1 s lasts `rto_min`.
    pub(in crate::transport::tcp) fn new(rto_min: std::time::Duration) -> Clock {
        let rate = RTO_MIN_OWN.as_micros() / rto_min.as_micros().max(1);
        Clock {
            rate: u64::try_from(rate).unwrap_or(1).max(1),
        }
    }

    /// What smoltcp's clock shows.
    pub(in crate::transport::tcp) fn instant(self, now: NicTime) -> Instant {
        let us = now.0 / 1_000 * self.rate + now.0 % 1_000 * self.rate / 1_000;
        Instant::from_micros(i64::try_from(us).unwrap_or(i64::MAX))
    }

    /// The first NIC time at which smoltcp's clock shows `t`.
    pub(in crate::transport::tcp) fn nic_time(self, t: Instant) -> NicTime {
        let us = u64::try_from(t.total_micros()).unwrap_or(0);
        NicTime(
            (us / self.rate)
                .saturating_mul(1_000)
                .saturating_add((us % self.rate * 1_000).div_ceil(self.rate)),
        )
    }

    /// A duration of ours in smoltcp's time.
    pub(in crate::transport::tcp) fn duration(
        self,
        d: std::time::Duration,
    ) -> smoltcp::time::Duration {
        let us = u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        smoltcp::time::Duration::from_micros(us.saturating_mul(self.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_clock_runs_faster_and_never_wakes_early() {
        for ms in [20, 200, 333, 1000] {
            let clock = Clock::new(Duration::from_millis(ms));
            let second = clock.nic_time(Instant::from_millis(1_000));
            let shown = clock.instant(second);
            assert!(shown >= Instant::from_millis(1_000), "{ms} ms: {shown}");
            let off = second.0.abs_diff(ms * 1_000_000);
            // A rate is a whole number: 333 ms becomes 1/3 s.
            assert!(off <= ms * 10_000, "{ms} ms became {} ns", second.0);
            for t in [0, 1, 999, 1_000, 1_001, u64::MAX / 2] {
                let at = clock.nic_time(clock.instant(NicTime(t)));
                assert!(at <= NicTime(t), "waking at the time shown is not late");
            }
        }
    }
}
