//! Congestion control of a requester: how many packets may be in flight, and how fast they leave.
//!
//! | control | reacts to | source |
//! |---|---|---|
//! | [`Congestion::Fixed`] | nothing | IBTA vol. 1 §9.7.5 has no other |
//! | [`Congestion::Window`] | losses, and marks by switches | RFC 5681 §3.1 (additive increase, multiplicative decrease), RFC 3168 §6.1 |
//! | [`Congestion::Dcqcn`] | marks by switches | Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, §3 |
//!
//! A switch marks a packet (ECN) instead of dropping it. The responder answers with a congestion
//! notification packet (annex A17 §A17.9.3), at most one in [`NOTIFY_EVERY`].

use std::fmt::{self, Debug};
use std::str::FromStr;
use std::time::Duration;

use ringbell_net::NicTime;

/// Shortest time between two congestion notifications of a queue pair: N of DCQCN §3.2.
pub const NOTIFY_EVERY: Duration = Duration::from_micros(50);

/// Decides on window and rate of a requester. A control that does not react to an event leaves its
/// method out.
pub trait CongestionControl: Debug + Send {
    /// Most packets in flight.
    fn window(&self) -> u32;

    /// Bytes per second; `None`, the default: no limit.
    fn rate(&mut self, now: NicTime) -> Option<u64> {
        let _ = now;
        None
    }

    /// A packet of so many bytes has left.
    fn sent(&mut self, bytes: usize) {
        let _ = bytes;
    }

    /// The peer has so many packets more.
    fn acknowledged(&mut self, packets: u32) {
        let _ = packets;
    }

    /// So many packets were lost, as far as is known.
    fn lost(&mut self, packets: u32) {
        let _ = packets;
    }

    /// The peer says that a switch has marked a packet.
    fn marked(&mut self, now: NicTime) {
        let _ = now;
    }
}

/// A congestion control to choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Congestion {
    /// The window stays as it was set: for networks that lose nothing, and for measurements.
    Fixed,
    /// The window halves on a loss or mark and grows by a packet for each window that was
    /// acknowledged.
    #[default]
    Window,
    /// DCQCN: the rate follows the marks of switches. Losses change nothing, unless they are a good
    /// part of a window.
    Dcqcn(DcqcnConfig),
}

/// A text that names no congestion control.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no congestion control; write window, dcqcn or fixed")]
pub struct NoCongestionControl(String);

impl FromStr for Congestion {
    type Err = NoCongestionControl;

    fn from_str(text: &str) -> Result<Self, NoCongestionControl> {
        match text {
            "fixed" => Ok(Congestion::Fixed),
            "window" => Ok(Congestion::Window),
            "dcqcn" => Ok(Congestion::Dcqcn(DcqcnConfig::default())),
            _ => Err(NoCongestionControl(text.into())),
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Congestion::Fixed => "fixed",
            Congestion::Window => "window",
            Congestion::Dcqcn(_) => "dcqcn",
        })
    }
}

impl Congestion {
    /// A control for a window of so many packets.
    pub(super) fn control(self, window: u32) -> Box<dyn CongestionControl> {
        match self {
            Congestion::Fixed => Box::new(Fixed { window }),
            Congestion::Window => Box::new(Window::new(window)),
            Congestion::Dcqcn(config) => Box::new(Dcqcn::new(window, config)),
        }
    }
}

#[derive(Debug)]
struct Fixed {
    window: u32,
}

impl CongestionControl for Fixed {
    fn window(&self) -> u32 {
        self.window
    }
}

/// Fewest packets in flight after losses.
const WINDOW_MIN: u32 = 4;

#[derive(Debug)]
struct Window {
    max: u32,
    window: u32,
    /// Packets acknowledged since the window changed.
    acknowledged: u32,
}

impl Window {
    fn new(max: u32) -> Window {
        Window {
            max,
            window: max,
            acknowledged: 0,
        }
    }
}

impl CongestionControl for Window {
    fn window(&self) -> u32 {
        self.window
    }

    fn acknowledged(&mut self, packets: u32) {
        self.acknowledged += packets;
        if self.acknowledged >= self.window {
            self.acknowledged = 0;
            self.window = (self.window + 1).min(self.max);
        }
    }

    fn lost(&mut self, _: u32) {
        self.acknowledged = 0;
        self.window = (self.window / 2).max(WINDOW_MIN).min(self.max);
    }

    fn marked(&mut self, _: NicTime) {
        self.lost(1);
    }
}

/// Parameters of DCQCN, with the names of its paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DcqcnConfig {
    /// Rate of the port in bytes per second: where a queue pair begins, and the most that it sends.
    pub line_rate: u64,
    /// Least rate in bytes per second.
    pub rate_min: u64,
    /// Bytes per second that an additive increase adds: R_AI.
    pub additive: u64,
    /// Bytes per second that a hyper increase adds for each of its rounds: R_HAI.
    pub hyper: u64,
    /// Weight of a mark in the estimate of congestion is 1/2^n of the whole: g.
    pub weight_shift: u32,
    /// Time without a mark after which the estimate falls: K.
    pub estimate_every: Duration,
    /// Time after which the rate rises: T.
    pub increase_every: Duration,
    /// Bytes after which the rate rises: B.
    pub increase_bytes: u64,
    /// Rounds of fast recovery: F.
    pub recovery: u32,
}

impl Default for DcqcnConfig {
    /// The values of the paper (§5.2) for a port of 100 Gb/s; a hyper increase adds ten times as
    /// much as an additive one.
    fn default() -> DcqcnConfig {
        DcqcnConfig {
            line_rate: 12_500_000_000,
            rate_min: 1_250_000,
            additive: 5_000_000,
            hyper: 50_000_000,
            weight_shift: 8,
            estimate_every: Duration::from_micros(55),
            increase_every: Duration::from_micros(55),
            increase_bytes: 10_000_000,
            recovery: 5,
        }
    }
}

/// Losses of more than this part of a window mean that a buffer on the way is too small for it,
/// which DCQCN leaves to the link layer. A kernel's socket neither marks nor pauses. Then the
/// window halves, and grows again as [`Congestion::Window`]'s.
const OVERFLOW: u32 = 8;

/// Increases that are made up for at once after a pause. They reach any line rate.
const PERIODS_MAX: u64 = 4_096;

/// The reaction point of DCQCN (§3.1, algorithm 1).
#[derive(Debug)]
struct Dcqcn {
    config: DcqcnConfig,
    window: Window,
    /// Packets lost in this window.
    lost: u32,
    /// R_C and R_T, bytes per second.
    current: f64,
    target: f64,
    /// Estimate of congestion, 0 to 1.
    alpha: f64,
    /// Rounds by time and by bytes since the last cut.
    rounds_by_time: u32,
    rounds_by_bytes: u32,
    bytes: u64,
    /// When the estimate and the rate were brought up to date; `None`: no packet was marked yet.
    estimated: Option<NicTime>,
    increased: NicTime,
}

impl Dcqcn {
    fn new(window: u32, config: DcqcnConfig) -> Dcqcn {
        let rate = config.line_rate as f64;
        Dcqcn {
            config,
            window: Window::new(window),
            lost: 0,
            current: rate,
            target: rate,
            alpha: 1.0,
            rounds_by_time: 0,
            rounds_by_bytes: 0,
            bytes: 0,
            estimated: None,
            increased: NicTime(0),
        }
    }

    fn weight(&self) -> f64 {
        1.0 / f64::from(1_u32 << self.config.weight_shift.min(31))
    }

    /// Fast recovery, additive and hyper increase (§3.1, algorithm 1, lines 20 to 31).
    fn increase(&mut self) {
        let (time, bytes, f) = (
            self.rounds_by_time,
            self.rounds_by_bytes,
            self.config.recovery,
        );
        if time.min(bytes) > f {
            self.target += f64::from(time.min(bytes) - f) * self.config.hyper as f64;
        } else if time.max(bytes) > f {
            self.target += self.config.additive as f64;
        }
        self.target = self.target.min(self.config.line_rate as f64);
        self.current = (self.current + self.target) / 2.0;
    }

    /// Periods that have gone since `at`, which moves on.
    fn periods(at: &mut NicTime, now: NicTime, every: Duration) -> u64 {
        let every = (every.as_nanos() as u64).max(1);
        let n = now.0.saturating_sub(at.0) / every;
        at.0 += n * every;
        n.min(PERIODS_MAX)
    }
}

impl CongestionControl for Dcqcn {
    fn window(&self) -> u32 {
        self.window.window()
    }

    fn acknowledged(&mut self, packets: u32) {
        self.window.acknowledged(packets);
        if self.window.acknowledged == 0 {
            self.lost = 0;
        }
    }

    fn lost(&mut self, packets: u32) {
        self.lost = self.lost.saturating_add(packets);
        if self.lost > self.window() / OVERFLOW {
            self.lost = 0;
            self.window.lost(packets);
        }
    }

    fn rate(&mut self, now: NicTime) -> Option<u64> {
        let estimated = self.estimated.as_mut()?;
        let n = Dcqcn::periods(estimated, now, self.config.estimate_every);
        self.alpha *= (1.0 - self.weight()).powi(n as i32);
        for _ in 0..Dcqcn::periods(&mut self.increased, now, self.config.increase_every) {
            self.rounds_by_time = self.rounds_by_time.saturating_add(1);
            self.increase();
        }
        Some(self.current as u64)
    }

    fn sent(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if self.bytes >= self.config.increase_bytes.max(1) {
            self.bytes = 0;
            self.rounds_by_bytes = self.rounds_by_bytes.saturating_add(1);
            if self.estimated.is_some() {
                self.increase();
            }
        }
    }

    fn marked(&mut self, now: NicTime) {
        // What time has done to the estimate before.
        self.rate(now);
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(self.config.rate_min as f64);
        self.alpha = (1.0 - self.weight()) * self.alpha + self.weight();
        (self.rounds_by_time, self.rounds_by_bytes, self.bytes) = (0, 0, 0);
        (self.estimated, self.increased) = (Some(now), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    #[test]
    fn dcqcn_halves_at_the_first_mark_and_recovers_half_of_the_cut_each_period() {
        let config = DcqcnConfig::default();
        let mut c = Dcqcn::new(8, config);
        assert_eq!(c.rate(NicTime(0)), None, "no limit before a mark");
        c.marked(NicTime(US));
        assert_eq!(c.rate(NicTime(US)), Some(config.line_rate / 2));
        // Fast recovery: 3/4, 7/8, ... of the target.
        let after = |n: u64| NicTime(US + n * 55 * US);
        assert_eq!(c.rate(after(1)), Some(config.line_rate / 4 * 3));
        assert_eq!(c.rate(after(2)), Some(config.line_rate / 8 * 7));
        // And to the line rate in the end, never beyond.
        let late = c.rate(NicTime(10_000_000 * US)).unwrap();
        assert!(late <= config.line_rate && late > config.line_rate / 100 * 99);
    }

    #[test]
    fn dcqcn_falls_to_its_least_rate_under_marks_without_end_and_cuts_less_after_quiet_times() {
        let config = DcqcnConfig::default();
        let mut c = Dcqcn::new(8, config);
        let mut now = NicTime(US);
        for _ in 0..200 {
            c.marked(now);
            now = now.plus(NOTIFY_EVERY);
        }
        assert_eq!(c.rate(now), Some(config.rate_min));
        // The estimate of congestion has fallen by the time of the next mark: the cut is smaller
        // than a half.
        let later = now.plus(Duration::from_millis(200));
        let before = c.rate(later).unwrap();
        c.marked(later);
        let cut = c.rate(later).unwrap();
        assert!(before < cut * 2 && cut > before / 10 * 9, "{before} {cut}");
    }

    #[test]
    fn bytes_raise_the_rate_as_time_does() {
        let config = DcqcnConfig::default();
        let mut c = Dcqcn::new(8, config);
        c.marked(NicTime(US));
        for _ in 0..10 {
            c.sent(1_000_000);
        }
        assert_eq!(c.rate(NicTime(US)), Some(config.line_rate / 4 * 3));
    }

    #[test]
    fn dcqcn_keeps_its_window_under_single_losses_and_halves_it_when_a_buffer_overflows() {
        let mut c = Dcqcn::new(64, DcqcnConfig::default());
        for _ in 0..1_000 {
            c.lost(1);
            c.acknowledged(64);
        }
        assert_eq!(c.window(), 64);
        for _ in 0..9 {
            c.lost(1);
        }
        assert_eq!(c.window(), 32);
        c.lost(60);
        assert_eq!(c.window(), 16);
        for _ in 0..1_000 {
            c.acknowledged(64);
        }
        assert_eq!(c.window(), 64);
        assert_eq!(c.rate(NicTime(0)), None, "no mark, no limit");
    }

    #[test]
    fn a_window_halves_and_grows_within_its_limits() {
        let mut w = Window::new(64);
        w.lost(1);
        w.marked(NicTime(0));
        assert_eq!(w.window(), 16);
        for _ in 0..5 {
            w.lost(1);
        }
        assert_eq!(w.window(), WINDOW_MIN);
        w.acknowledged(4);
        assert_eq!(w.window(), WINDOW_MIN + 1);
        for _ in 0..10_000 {
            w.acknowledged(64);
        }
        assert_eq!(w.window(), 64);
    }
}
