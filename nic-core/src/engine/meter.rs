//! Measured speed of an engine, and of its stream without it.
#![allow(clippy::disallowed_methods)] // Measures only: nothing that the NIC does depends on it.

use std::time::Instant;

/// Pieces below this are not timed: reading the clock would cost more than the engine.
const TIMED_FROM: usize = 2048;
/// One of this many pieces is timed, for the same reason.
const TIMED_OF: u32 = 8;
/// Bytes that are timed before a speed is reported.
const ENOUGH: u64 = 512 << 10;
/// Slower than promised by more than noise.
const TOLERANCE: f64 = 0.8;

/// Speeds in bytes per second. `None`: too few bytes passed in pieces that are worth timing.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// Speed that the engine declares.
    pub declared: f64,
    /// Its measured speed.
    pub engine: Option<f64>,
    /// Measured speed of moving the same bytes without the engine, on the same core.
    pub stream: Option<f64>,
}

impl Rates {
    /// Whether the engine keeps its promise; `true` until enough was measured.
    pub fn keeps_promise(&self) -> bool {
        self.engine.is_none_or(|e| e >= TOLERANCE * self.declared)
    }

    /// Whether the engine is slower than the stream that passes it; `false` until enough was
    /// measured.
    pub fn is_bottleneck(&self) -> bool {
        matches!((self.engine, self.stream), (Some(e), Some(s)) if e < s)
    }
}

/// Sums what was timed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Meter {
    bytes: u64,
    engine_ns: u64,
    moved: u64,
    move_ns: u64,
    /// Pieces worked on, and moved.
    seen: [u32; 2],
}

/// A clock reading.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark(Instant);

impl Mark {
    fn elapsed(self) -> u64 {
        // Saturates after 584 years.
        self.0.elapsed().as_nanos() as u64
    }
}

impl Meter {
    #[inline]
    fn mark(seen: &mut u32, bytes: usize) -> Option<Mark> {
        if bytes < TIMED_FROM {
            return None;
        }
        *seen = seen.wrapping_add(1);
        seen.is_multiple_of(TIMED_OF).then(|| Mark(Instant::now()))
    }

    /// Before the engine works on `bytes`.
    #[inline]
    pub(super) fn work(&mut self, bytes: usize) -> Option<Mark> {
        Meter::mark(&mut self.seen[0], bytes)
    }

    /// The engine has worked on `bytes`.
    #[inline]
    pub(super) fn worked(&mut self, since: Option<Mark>, bytes: usize) {
        if let Some(mark) = since {
            self.bytes += bytes as u64;
            self.engine_ns += mark.elapsed();
        }
    }

    /// Before `bytes` are moved.
    #[inline]
    pub(super) fn moving(&mut self, bytes: usize) -> Option<Mark> {
        Meter::mark(&mut self.seen[1], bytes)
    }

    /// `bytes` were moved.
    #[inline]
    pub(super) fn moved(&mut self, since: Option<Mark>, bytes: usize) {
        if let Some(mark) = since {
            self.moved += bytes as u64;
            self.move_ns += mark.elapsed();
        }
    }

    /// Takes in what another has timed.
    pub(super) fn add(&mut self, other: &Meter) {
        self.bytes += other.bytes;
        self.engine_ns += other.engine_ns;
        self.moved += other.moved;
        self.move_ns += other.move_ns;
    }

    pub(super) fn rates(&self, declared: f64) -> Rates {
        let rate = |bytes: u64, ns: u64| {
            (bytes >= ENOUGH && ns > 0).then(|| bytes as f64 * 1e9 / ns as f64)
        };
        Rates {
            declared,
            engine: rate(self.bytes, self.engine_ns),
            stream: rate(self.moved, self.move_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rate_is_reported_before_enough_was_measured() {
        let mut m = Meter {
            bytes: ENOUGH - 1,
            engine_ns: 1,
            moved: ENOUGH,
            move_ns: 1000,
            ..Meter::default()
        };
        assert_eq!(m.rates(1e9).engine, None);
        assert!(m.rates(1e9).keeps_promise() && !m.rates(1e9).is_bottleneck());
        m.bytes = ENOUGH;
        m.engine_ns = 500_000;
        // 512 KiB in 0.5 ms.
        let rates = m.rates(1e9);
        assert!(rates.is_bottleneck() && rates.keeps_promise(), "{rates:?}");
        assert!(!m.rates(2e9).keeps_promise());
    }

    #[test]
    fn one_of_eight_pieces_is_timed_and_no_small_one() {
        let mut m = Meter::default();
        let timed = (0..64).filter(|_| m.work(4096).is_some()).count();
        assert_eq!(timed, 8);
        assert!((0..64).all(|_| m.moving(TIMED_FROM - 1).is_none()));
        let mark = m.work(4096);
        m.worked(mark, 4096);
        assert_eq!(m.bytes, 0, "nothing was timed: nothing is counted");
    }
}
