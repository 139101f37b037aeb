//! Upper limits of this machine: the copy speed of one thread, and the latency of a cache line
//! between two cores. Every benchmark measures them in its own run and quotes ratios against them.
#![allow(clippy::disallowed_methods)] // Measuring needs the clock.

use std::collections::BTreeMap;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam::utils::CachePadded;

use crate::{machine, Limits, Samples};

/// Number of batches; the median counts.
const BATCHES: usize = 7;
/// Time of one batch of copies.
const BATCH: Duration = Duration::from_millis(4);
/// Round trips of one batch of the ping-pong.
const ROUND_TRIPS: u64 = 20_000;
/// A ping-pong that takes longer than this was not run on two cores at once and is given up.
const GIVE_UP: Duration = Duration::from_secs(5);
/// A ping-pong on a shared machine ends with the batches that it has by then.
const ENOUGH: Duration = Duration::from_secs(2);
/// Largest buffer that is copied, so that measuring the limit does not take the machine's memory.
const LARGEST: u64 = 256 << 20;

/// Measures memcpy at each of `sizes` (0 and sizes above 256 MiB are left out) and the ping-pong.
pub fn measure(sizes: &[u64]) -> Limits {
    let by_size: BTreeMap<u64, f64> = sizes
        .iter()
        .filter(|&&s| s > 0 && s <= LARGEST)
        .map(|&s| (s, memcpy(s as usize).gbs))
        .collect();
    Limits {
        memcpy_gbs: by_size.values().next_back().copied(),
        memcpy_gbs_by_size: by_size,
        cacheline_pingpong_ns: cacheline_pingpong_ns(),
        ..Limits::default()
    }
}

/// Result of copying one size.
#[derive(Debug, Clone, Copy)]
pub struct Memcpy {
    /// Median of the batches, 10^9 payload bytes per second.
    pub gbs: f64,
    /// Copies that were timed.
    pub count: u64,
    /// Time of one copy in the slowest batch, microseconds.
    pub slowest_us: f64,
}

/// One thread copies one buffer of `bytes` to another, both warm.
pub fn memcpy(bytes: usize) -> Memcpy {
    let from = vec![0x5a_u8; bytes];
    let mut to = vec![0_u8; bytes];
    let mut copy = |times: u64| {
        let start = Instant::now();
        for _ in 0..times {
            black_box(&mut to[..]).copy_from_slice(black_box(&from[..]));
        }
        start.elapsed()
    };
    copy(1);
    // The clock costs tens of nanoseconds: copy often enough that it does not show.
    let mut times = 1_u64;
    while copy(times) < BATCH && times < 1 << 30 {
        times *= 2;
    }
    let mut samples = Samples::with_capacity(BATCHES);
    for _ in 0..BATCHES {
        samples.push(copy(times).as_nanos() as f64 / times as f64);
    }
    Memcpy {
        gbs: bytes as f64 / samples.median(),
        count: times * BATCHES as u64,
        slowest_us: samples.percentile(100.0) / 1e3,
    }
}

/// Half a round trip between two pinned threads, each writing a line of its own, in nanoseconds.
///
/// None when the process may use one core only, or when a thread cannot be pinned. Also when other
/// work took the other core for so long that the number would mean nothing.
pub fn cacheline_pingpong_ns() -> Option<f64> {
    let cores = machine::cores();
    let (&near, &far) = (cores.first()?, cores.get(1)?);
    let line = || CachePadded::new(AtomicU64::new(0));
    let (ping, pong) = (line(), line());
    let stop = AtomicBool::new(false);
    let total = ROUND_TRIPS * (BATCHES as u64 + 1);
    std::thread::scope(|scope| {
        let thread = || std::thread::Builder::new();
        let echo = thread().spawn_scoped(scope, || {
            let pinned = machine::pin_to(far);
            for round in 1..=total {
                if !pinned || !wait_for(&ping, round, &stop) {
                    break;
                }
                // Release: pairs with the Acquire load of the other thread's `wait_for`.
                pong.store(round, Ordering::Release);
            }
            pinned
        });
        // Without a thread there is no number; the waiting one is stopped.
        let echo = echo.ok()?;
        let serve = thread().spawn_scoped(scope, || {
            let mut samples = Samples::with_capacity(BATCHES);
            let mut done = machine::pin_to(near);
            let mut round = 0;
            let begin = Instant::now();
            for batch in 0..=BATCHES {
                if samples.len() > 1 && begin.elapsed() > ENOUGH {
                    break;
                }
                let start = Instant::now();
                for _ in 0..ROUND_TRIPS {
                    round += 1;
                    // Release: pairs with the Acquire load of the echo's `wait_for`.
                    ping.store(round, Ordering::Release);
                    done = done && wait_for(&pong, round, &stop);
                    if !done {
                        break;
                    }
                }
                // The first batch warms the lines and waits for the other thread to start.
                if batch > 0 {
                    samples.push(start.elapsed().as_nanos() as f64 / (2 * ROUND_TRIPS) as f64);
                }
            }
            stop.store(true, Ordering::Relaxed);
            done.then(|| samples.median())
        });
        if serve.is_err() {
            stop.store(true, Ordering::Relaxed);
        }
        let pinned = echo.join().unwrap_or(false);
        serve.ok()?.join().ok().flatten().filter(|_| pinned)
    })
}

/// Spins until the line holds `value`; false when the other side stopped or the time is up.
fn wait_for(line: &AtomicU64, value: u64, stop: &AtomicBool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..10_000 {
            // Acquire: pairs with the Release store of the other thread.
            if line.load(Ordering::Acquire) == value {
                return true;
            }
            spin_loop();
        }
        if stop.load(Ordering::Relaxed)
            || start.get_or_insert_with(Instant::now).elapsed() > GIVE_UP
        {
            stop.store(true, Ordering::Relaxed);
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_is_measured_and_impossible_ones_are_skipped() {
        let limits = measure(&[0, 64, 4096, u64::MAX]);
        let sizes: Vec<u64> = limits.memcpy_gbs_by_size.keys().copied().collect();
        assert_eq!(sizes, [64, 4096]);
        assert!(limits.memcpy_gbs_by_size.values().all(|g| *g > 0.0));
        assert_eq!(limits.memcpy_gbs, limits.memcpy_at(4096));
        assert_eq!(limits.memcpy_at(0), None);
    }

    #[test]
    fn a_wait_ends_when_the_other_side_stopped() {
        let (line, stop) = (AtomicU64::new(0), AtomicBool::new(true));
        assert!(!wait_for(&line, 1, &stop));
        line.store(1, Ordering::Release);
        assert!(wait_for(&line, 1, &stop));
    }

    #[test]
    fn pingpong_needs_two_cores() {
        let alone = std::thread::spawn(|| {
            let core = machine::cores()[0];
            machine::pin_to(core).then(cacheline_pingpong_ns)
        });
        assert_eq!(alone.join().ok().flatten(), Some(None));
    }
}
