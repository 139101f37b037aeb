//! Pace of a requester: how many packets may be in flight, and when one counts as lost.
//!
//! The time-out follows the measured round trip (RFC 6298 §2) and doubles while nothing comes back. The window halves on a loss
//! and grows by a packet for each window that was acknowledged, so that a queue on the way that is too short does not lose every
//! round anew.

use std::time::Duration;

use crate::types::NicTime;
use crate::wire::roce::Psn;

/// Limits of a requester's pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaceConfig {
    /// Most packets in flight.
    pub window: u32,
    /// Shortest time after which a packet counts as lost.
    pub timeout_min: Duration,
    /// Longest such time.
    pub timeout_max: Duration,
}

/// Fewest packets in flight after losses.
const WINDOW_MIN: u32 = 4;
/// Doublings of the time-out.
const BACKOFF_MAX: u32 = 16;

#[derive(Debug)]
pub(super) struct Pace {
    config: PaceConfig,
    window: u32,
    /// Packets acknowledged since the window grew.
    acknowledged: u32,
    round_trip_ns: Option<(u64, u64)>,
    /// A packet whose acknowledgement is timed, and when it left.
    timed: Option<(Psn, NicTime)>,
    backoff: u32,
}

impl Pace {
    pub(super) fn new(config: PaceConfig) -> Pace {
        Pace {
            window: config.window,
            config,
            acknowledged: 0,
            round_trip_ns: None,
            timed: None,
            backoff: 0,
        }
    }

    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// A packet that asks for an acknowledgement leaves for the first time.
    pub(super) fn sent(&mut self, psn: Psn, now: NicTime) {
        if self.timed.is_none() {
            self.timed = Some((psn, now));
        }
    }

    /// Packets were acknowledged, all those before `next`.
    pub(super) fn acknowledged(&mut self, packets: u32, next: Psn, now: NicTime) {
        self.backoff = 0;
        if let Some((_, at)) = self.timed.filter(|(psn, _)| psn.is_before(next)) {
            self.timed = None;
            let sample = now.0.saturating_sub(at.0);
            self.round_trip_ns = Some(match self.round_trip_ns {
                None => (sample, sample / 2),
                Some((mean, spread)) => (
                    mean - mean / 8 + sample / 8,
                    spread - spread / 4 + mean.abs_diff(sample) / 4,
                ),
            });
        }
        self.acknowledged += packets;
        if self.acknowledged >= self.window {
            self.acknowledged = 0;
            self.window = (self.window + 1).min(self.config.window);
        }
    }

    /// A packet was lost.
    pub(super) fn lost(&mut self) {
        // An acknowledgement may be for either copy from now on.
        self.timed = None;
        self.acknowledged = 0;
        self.window = (self.window / 2).max(WINDOW_MIN).min(self.config.window);
    }

    /// Nothing came back in time.
    pub(super) fn timed_out(&mut self) {
        self.lost();
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// Time until a packet counts as lost.
    pub(super) fn timeout(&self) -> Duration {
        let measured = self
            .round_trip_ns
            .map_or(0, |(mean, spread)| mean + 4 * spread);
        let base = Duration::from_nanos(measured).max(self.config.timeout_min);
        base.saturating_mul(1 << self.backoff)
            .min(self.config.timeout_max)
    }
}
