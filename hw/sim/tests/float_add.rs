//! `float_add.sv` at f16 against `onc_engines::reduce`: the adder of which `reduce` has 80, with
//! other widths of exponent and fraction.
//!
//! All 2^32 pairs take minutes: `cargo xtask hw exhaust`.

#![allow(unsafe_code)] // The model takes raw operands.
#![allow(clippy::disallowed_methods)] // Tells how long the exhaustive run takes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use ringbell_hw_sim::float_add_f16::Block;
use ringbell_nic_abi::{DataType, ReduceOp};
use ringbell_onc_engines::reduce::fused;

const ALL: usize = 1 << 16;
/// Adders of the bench.
const LANES: usize = 32;

type Line = [u32; LANES / 2];

/// Cycles from a pair to its sum.
const LATENCY: usize = 5;

/// The elements of a line as words.
fn packed(elements: &[u16]) -> Line {
    std::array::from_fn(|i| u32::from(elements[2 * i]) | (u32::from(elements[2 * i + 1]) << 16))
}

/// All pairs whose first value is in the range, a line a cycle; gives their number. The model
/// computes all sums of a value in one call.
fn all_pairs(first: impl Iterator<Item = u16>) -> u64 {
    let mut rtl = Block::new();
    let ys: Vec<u16> = (0..=u16::MAX).collect();
    let lines: Vec<Line> = ys.chunks(LANES).map(packed).collect();
    let (mut xs, mut sums) = (vec![0_u16; ALL], vec![0_u16; ALL]);
    let mut pairs = 0;
    for x in first {
        xs.fill(x);
        let srcs = [xs.as_ptr().cast(), ys.as_ptr().cast()];
        let into = [sums.as_mut_ptr().cast()];
        // SAFETY: each operand and the result have `ALL` elements, and lie apart.
        unsafe { fused(DataType::F16, ReduceOp::Sum, &into, &srcs, ALL, false) };
        rtl.a_i(x.into());
        // What follows the last line is the first again.
        for n in 0..lines.len() + LATENCY - 1 {
            rtl.b_i(&lines[n % lines.len()]);
            rtl.tick();
            if let Some(at) = (n + 1).checked_sub(LATENCY) {
                let (sum, y) = (rtl.sum_o(), at * LANES);
                let wanted = packed(&sums[y..y + LANES]);
                assert!(
                    sum == wanted,
                    "{x:#06x} + {y:#06x} and the next 31 is {sum:08x?}, not {wanted:08x?}"
                );
                pairs += LANES as u64;
            }
        }
    }
    pairs
}

#[test]
fn edges_of_f16_with_all_of_f16() {
    let edges = [
        0_u16, 1, 0x3ff, 0x400, 0x3c00, 0x7bff, 0x7c00, 0x7e01, 0x8000,
    ];
    assert_eq!(all_pairs(edges.into_iter()), 9 << 16);
}

#[test]
#[ignore = "takes minutes: cargo xtask hw exhaust"]
fn all_pairs_of_f16() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    // Values are given out one by one, so that all threads end together.
    let next = AtomicU32::new(0);
    let values = || {
        std::iter::from_fn(|| {
            let x = next.fetch_add(1, Ordering::Relaxed);
            if x & 0xfff == 0xfff && x < 1 << 16 {
                println!(
                    "{} of 65536 values, {:.0} s",
                    x + 1,
                    start.elapsed().as_secs_f64()
                );
            }
            u16::try_from(x).ok()
        })
    };
    let pairs: u64 = std::thread::scope(|scope| {
        let run = |_| scope.spawn(|| all_pairs(values()));
        let running: Vec<_> = (0..threads).map(run).collect();
        running
            .into_iter()
            .map(|t| t.join().expect("right sums"))
            .sum()
    });
    assert_eq!(pairs, 1 << 32);
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{pairs} pairs in {seconds:.0} s on {threads} threads: {:.1} M a second",
        pairs as f64 / seconds / 1e6
    );
}
