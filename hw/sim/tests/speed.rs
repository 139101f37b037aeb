//! The simulator's own speed: cycles of each block in a second of wall clock, with random bits at
//! all inputs in every cycle.
//!
//! It says nothing about hardware. Given to `cargo xtask hw`, which prints it; nothing is asserted
//! about it.
#![allow(clippy::disallowed_methods)] // Measures the simulator.

use std::time::{Duration, Instant};

use ringbell_gtlb::testing::Rng;
use ringbell_hw_sim::figure::record;
use ringbell_hw_sim::RUNS;

/// Cycles between two readings of the clock, and readings for each block. The first half of them is
/// left out: memories are cleared.
const SLICE: u64 = 1_000;
const SLICES: u32 = 60;

#[test]
fn speed_of_the_simulator_with_random_inputs() {
    let mut rows = String::new();
    for (name, run) in RUNS {
        let mut rng = Rng::new(1);
        // Other programs take the processor at times: the fastest part has had it for itself.
        let (mut parts, mut best, mut last) = (0, Duration::MAX, Instant::now());
        run(SLICE, &mut || rng.bits(), &mut || {
            let now = Instant::now();
            if parts > SLICES / 2 {
                best = best.min(now - last);
            }
            parts += 1;
            last = now;
            parts <= SLICES
        });
        let rate = SLICE as f64 / best.as_secs_f64();
        rows.push_str(&format!("{name}\t{rate:.0}\n"));
    }
    print!("{rows}");
    record("speed.tsv", &rows);
}
