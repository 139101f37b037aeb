//! Pace of a requester: when a packet counts as lost, and when the next may leave.
//!
//! The time-out follows the measured round trip (RFC 6298 §2) and doubles while nothing comes back.
//! It has a lower bound, as a peer may be busy. A probe comes sooner: the last packet leaves once
//! more after twice the round trip, so that the peer says what it lacks (RFC 8985 §7).
//! Window and rate are those of the [congestion control](super::CongestionControl).

use std::time::Duration;

use super::congestion::{Congestion, CongestionControl};
use super::reordering::RoundTrip;
use ringbell_net::wire::roce::Psn;
use ringbell_net::NicTime;

/// Limits of a requester's pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaceConfig {
    /// Most packets in flight.
    pub window: u32,
    /// Shortest time after which a packet counts as lost.
    pub timeout_min: Duration,
    /// Longest such time.
    pub timeout_max: Duration,
    /// What decides on window and rate.
    pub congestion: Congestion,
}

/// Doublings of the time-out.
const BACKOFF_MAX: u32 = 16;
/// Time by which a rate that was not used may be made up for.
const BURST: Duration = Duration::from_micros(20);

#[derive(Debug)]
pub(super) struct Pace {
    timeout_min: Duration,
    timeout_max: Duration,
    control: Box<dyn CongestionControl>,
    /// When the next packet may leave.
    next: NicTime,
    /// Mean and spread.
    round_trip_ns: Option<(u64, u64)>,
    least_ns: u64,
    /// A packet whose acknowledgement is timed, and when it left.
    timed: Option<(Psn, NicTime)>,
    backoff: u32,
    /// When the last packet leaves once more.
    probe: Option<NicTime>,
}

impl Pace {
    pub(super) fn new(config: &PaceConfig) -> Pace {
        Pace {
            timeout_min: config.timeout_min,
            timeout_max: config.timeout_max,
            control: config.congestion.control(config.window),
            next: NicTime(0),
            round_trip_ns: None,
            least_ns: u64::MAX,
            timed: None,
            backoff: 0,
            probe: None,
        }
    }

    pub(super) fn window(&self) -> u32 {
        self.control.window()
    }

    /// When the next packet may leave, if not now.
    pub(super) fn wait(&self, now: NicTime) -> Option<NicTime> {
        (now < self.next).then_some(self.next)
    }

    /// A packet of so many bytes leaves.
    pub(super) fn leaves(&mut self, bytes: usize, now: NicTime) {
        self.control.sent(bytes);
        if let Some(rate) = self.control.rate(now) {
            let earliest = NicTime(now.0.saturating_sub(BURST.as_nanos() as u64));
            let time = bytes as u64 * 1_000_000_000 / rate.max(1);
            self.next = NicTime(self.next.0.max(earliest.0) + time);
        }
    }

    /// That packet, which asks for an acknowledgement, leaves for the first time.
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
            self.least_ns = self.least_ns.min(sample);
            self.round_trip_ns = Some(match self.round_trip_ns {
                None => (sample, sample / 2),
                Some((mean, spread)) => (
                    mean - mean / 8 + sample / 8,
                    spread - spread / 4 + mean.abs_diff(sample) / 4,
                ),
            });
        }
        self.control.acknowledged(packets);
    }

    /// Round trips, once one was measured.
    pub(super) fn round_trip(&self) -> Option<RoundTrip> {
        let (mean, least) = (self.round_trip_ns?.0, self.least_ns);
        Some(RoundTrip { mean, least })
    }

    /// When the last packet leaves once more, if nothing comes back.
    pub(super) fn probe(&self) -> Option<NicTime> {
        self.probe
    }

    /// A packet has left, or an acknowledgement has come, and others are in flight.
    pub(super) fn expect_answer(&mut self, now: NicTime) {
        let Some((mean, spread)) = self.round_trip_ns else {
            return;
        };
        let wait = (2 * mean).max(mean + 4 * spread);
        let is_sooner = Duration::from_nanos(wait) < self.timeout_min;
        self.probe = is_sooner.then(|| NicTime(now.0 + wait));
    }

    /// Nothing is in flight, or the probe leaves.
    pub(super) fn expect_none(&mut self) {
        self.probe = None;
    }

    /// A packet leaves again: an acknowledgement may be for either copy.
    pub(super) fn leaves_again(&mut self) {
        self.timed = None;
    }

    /// So many packets were lost, as far as is known.
    pub(super) fn lost(&mut self, packets: u32) {
        self.leaves_again();
        self.control.lost(packets);
    }

    /// Nothing came back in time, and so many packets are on their way.
    pub(super) fn timed_out(&mut self, packets: u32) {
        self.lost(packets.max(1));
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// A switch has marked a packet of ours.
    pub(super) fn marked(&mut self, now: NicTime) {
        self.control.marked(now);
    }

    /// Time until a packet counts as lost.
    pub(super) fn timeout(&self) -> Duration {
        let measured = self
            .round_trip_ns
            .map_or(0, |(mean, spread)| mean + 4 * spread);
        let base = Duration::from_nanos(measured).max(self.timeout_min);
        base.saturating_mul(1 << self.backoff).min(self.timeout_max)
    }
}
