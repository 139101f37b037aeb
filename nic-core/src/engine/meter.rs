//! How fast an engine is, and how fast its stream is without it.
#![allow(clippy::disallowed_methods)] // Measures only: nothing that the NIC does depends on it.

use std::time::Instant;

/// Pieces below this are not timed: reading the clock would cost more than the engine.
const TIMED_FROM: usize = 2048;
/// So many bytes are timed before anything is said about the speed.
const ENOUGH: u64 = 4 << 20;
/// Slower than promised by more than noise.
const TOLERANCE: f64 = 0.8;

/// Speeds in bytes per second. `None`: too few bytes passed in pieces that are worth timing.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// What the engine promises.
    pub declared: f64,
    /// What it took.
    pub engine: Option<f64>,
    /// What moving the same bytes took besides the engine, on the same core.
    pub stream: Option<f64>,
}

impl Rates {
    /// Whether the engine keeps its promise; `true` until enough was measured.
    pub fn keeps_promise(&self) -> bool {
        self.engine.is_none_or(|e| e >= TOLERANCE * self.declared)
    }

    /// Whether the engine is slower than the stream that passes it; `false` until enough was measured.
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
}

/// A clock reading, or none for a small piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark(Option<Instant>);

impl Mark {
    /// Before `bytes` bytes are worked on.
    #[inline]
    pub(super) fn before(bytes: usize) -> Mark {
        Mark((bytes >= TIMED_FROM).then(Instant::now))
    }

    fn elapsed(self) -> Option<u64> {
        // An engine that runs for 584 years is not our problem.
        self.0.map(|t| t.elapsed().as_nanos() as u64)
    }
}

impl Meter {
    /// The engine has worked on `bytes`.
    #[inline]
    pub(super) fn worked(&mut self, since: Mark, bytes: usize) {
        if let Some(ns) = since.elapsed() {
            self.bytes += bytes as u64;
            self.engine_ns += ns;
        }
    }

    /// `bytes` were moved.
    #[inline]
    pub(super) fn moved(&mut self, since: Mark, bytes: usize) {
        if let Some(ns) = since.elapsed() {
            self.moved += bytes as u64;
            self.move_ns += ns;
        }
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
    fn nothing_is_said_before_enough_was_measured() {
        let mut m = Meter {
            bytes: ENOUGH - 1,
            engine_ns: 1,
            moved: ENOUGH,
            move_ns: 1000,
        };
        assert_eq!(m.rates(1e9).engine, None);
        assert!(m.rates(1e9).keeps_promise() && !m.rates(1e9).is_bottleneck());
        m.bytes = ENOUGH;
        m.engine_ns = 4_000_000;
        // 4 MiB in 4 ms.
        let rates = m.rates(1e9);
        assert!(rates.is_bottleneck() && rates.keeps_promise(), "{rates:?}");
        assert!(!m.rates(2e9).keeps_promise());
    }
}
