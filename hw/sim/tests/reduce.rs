//! `reduce.sv` against `onc_engines::reduce`: the same bits for all values that are hard, and for
//! random ones.
//!
//! All 2^32 pairs of f16: `float_add.rs`.

#![allow(unsafe_code)] // The model takes raw operands.

use std::collections::VecDeque;

use ringbell_gtlb::testing::Rng;
use ringbell_hw_sim::reduce::Block;
use ringbell_hw_sim::stream::{words, BEAT as LINE};
use ringbell_nic_abi::{DataType, ReduceOp};
use ringbell_onc_engines::reduce::fused;

type Line = [u8; LINE];
const TYPES: [(DataType, usize); 4] = [
    (DataType::F32, 4),
    (DataType::F16, 2),
    (DataType::Bf16, 2),
    (DataType::I32, 4),
];
const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max];
/// Cycles from a beat to its result.
const LATENCY: u64 = 6;

fn model(dtype: DataType, op: ReduceOp, bytes: usize, a: &Line, b: &Line) -> Line {
    let mut out = [0; LINE];
    let srcs = [a.as_ptr(), b.as_ptr()];
    // SAFETY: each operand is a line of `LINE / bytes` elements, and the result lies apart.
    unsafe { fused(dtype, op, &[out.as_mut_ptr()], &srcs, LINE / bytes, false) };
    out
}

/// A result that is due: its data, kept bytes and mark of the last beat.
struct Due {
    data: [u32; LINE / 4],
    keep: u64,
    last: u64,
    error: u64,
    /// Type, operation and operands.
    what: (u8, u8, Line, Line),
}

struct Bench {
    rtl: Block,
    rng: Rng,
    due: VecDeque<Due>,
    /// The next beat is to be copied.
    copy: bool,
    results: u64,
    cycles: u64,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let mut rtl = Block::new();
        rtl.rst_ni(0);
        rtl.tick();
        rtl.rst_ni(1);
        Bench {
            rtl,
            rng: Rng::new(seed),
            due: VecDeque::new(),
            copy: false,
            results: 0,
            cycles: 0,
        }
    }

    /// One cycle; true when an offered beat was taken.
    fn cycle(&mut self, offered: bool, ready: bool) -> bool {
        self.rtl.in_valid_i(u64::from(offered));
        self.rtl.out_ready_i(u64::from(ready));
        self.rtl.eval();
        if self.rtl.out_valid_o() == 1 && ready {
            let due = self.due.pop_front().expect("a result without a beat");
            assert_eq!(self.rtl.out_error_o(), due.error, "{:02x?}", due.what);
            assert_eq!(self.rtl.out_o(), due.data, "{:02x?}", due.what);
            let marks = (self.rtl.out_keep_o(), self.rtl.out_last_o());
            assert_eq!(marks, (due.keep, due.last), "{:02x?}", due.what);
            self.results += 1;
        }
        let taken = offered && self.rtl.in_ready_o() == 1;
        self.rtl.tick();
        self.cycles += 1;
        taken
    }

    /// Sends a beat; `stalls`: with random pauses on both sides.
    fn beat(&mut self, dtype: u8, op: u8, a: &Line, b: &Line, data: Option<Line>, stalls: bool) {
        let (keep, last) = (self.rng.bits(), self.rng.below(2));
        self.rtl.dtype_i(u64::from(dtype));
        self.rtl.redop_i(u64::from(op));
        self.rtl.copy_i(u64::from(self.copy));
        self.rtl.a_i(&words(a));
        self.rtl.b_i(&words(b));
        self.rtl.keep_i(keep);
        self.rtl.last_i(last);
        loop {
            let offered = !stalls || self.rng.below(4) != 0;
            let ready = !stalls || self.rng.below(3) != 0;
            if self.cycle(offered, ready) {
                break;
            }
            assert!(self.cycles < 1 << 40, "the beat is not taken");
        }
        self.due.push_back(Due {
            data: words(&data.unwrap_or([0; LINE])),
            keep,
            last,
            error: u64::from(data.is_none()),
            what: (dtype, op, *a, *b),
        });
    }

    fn drain(&mut self) {
        for _ in 0..LATENCY {
            self.cycle(false, true);
        }
        assert!(
            self.due.is_empty(),
            "{} results are missing",
            self.due.len()
        );
    }
}

/// Elements that are hard for a format: zeros, subnormal numbers, edges of exponents and fractions,
/// infinities, NaNs.
fn hard(rng: &mut Rng, bytes: usize, exponent: u32) -> u32 {
    let bits = 8 * bytes as u32;
    let fraction = bits - 1 - exponent;
    let most = (1 << exponent) - 1;
    let e = match rng.below(6) {
        0 => 0,
        1 => 1,
        2 => most,
        3 => most - 1,
        // Near the middle, so that two meet within the digits of each other.
        _ => most / 2 + rng.below(u64::from(fraction)) as u32 / 2,
    };
    let all = (1 << fraction) - 1;
    let f = match rng.below(6) {
        0 => 0,
        1 => 1,
        2 => all,
        3 => all ^ 1,
        4 => 1 << rng.below(u64::from(fraction)),
        _ => rng.bits() as u32 & all,
    };
    let sign = rng.below(2) as u32;
    sign << (bits - 1) | (e & most) << fraction | f
}

fn line(rng: &mut Rng, dtype: DataType, bytes: usize) -> Line {
    let exponent = match dtype {
        DataType::F32 | DataType::Bf16 => 8,
        _ => 5,
    };
    let mut line = [0; LINE];
    for element in line.chunks_mut(bytes) {
        let value = match rng.below(3) {
            0 => rng.bits() as u32,
            _ => hard(rng, bytes, exponent),
        };
        element.copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
    line
}

#[test]
fn results_have_the_bits_of_the_software_nic() {
    let mut bench = Bench::new(3);
    for n in 0..24_000 {
        let (dtype, bytes) = TYPES[n % 4];
        let op = OPS[n / 4 % 3];
        let a = line(&mut bench.rng, dtype, bytes);
        let mut b = line(&mut bench.rng, dtype, bytes);
        // Sums that cancel, wholly or in all but their last digits.
        if bench.rng.below(4) == 0 {
            for (i, (to, from)) in b.chunks_mut(bytes).zip(a.chunks(bytes)).enumerate() {
                to.copy_from_slice(from);
                to[bytes - 1] ^= 0x80;
                to[0] ^= (i % 3) as u8;
            }
        }
        let wanted = model(dtype, op, bytes, &a, &b);
        let stalls = n % 2_000 < 1_000;
        bench.beat(dtype as u8, op as u8, &a, &b, Some(wanted), stalls);
    }
    bench.drain();
    assert_eq!(bench.results, 24_000);
}

#[test]
fn what_is_not_here_is_an_error_and_a_beat_leaves_each_cycle() {
    let mut bench = Bench::new(4);
    let (ones, twos) = ([1; LINE], [2; LINE]);
    let start = bench.cycles;
    for n in 0..2_000u32 {
        let (dtype, op) = (n as u8 % 16, (n / 16) as u8 % 8);
        let known = TYPES
            .iter()
            .find(|t| t.0 as u8 == dtype)
            .zip(OPS.iter().find(|o| **o as u8 == op));
        let data = known.map(|(t, o)| model(t.0, *o, t.1, &ones, &twos));
        // A copy of anything, among them.
        bench.copy = n % 5 == 0;
        let data = if bench.copy { Some(ones) } else { data };
        bench.beat(dtype, op, &ones, &twos, data, false);
    }
    assert_eq!(bench.cycles - start, 2_000, "a beat a cycle");
    bench.drain();
}

/// All pairs whose first value is in the range; a beat a cycle. Gives their number.
///
/// Beside the simulation this costs next to nothing: the model computes all sums of a value in one
/// call, and a text is made of an error alone.
fn all_pairs(first: impl Iterator<Item = u16>) -> u64 {
    const ALL: usize = 1 << 16;
    let mut rtl = Bench::new(5).rtl;
    rtl.dtype_i(DataType::F16 as u64);
    rtl.redop_i(ReduceOp::Sum as u64);
    rtl.copy_i(0);
    rtl.out_ready_i(1);
    let ys: Vec<u16> = (0..=u16::MAX).collect();
    let beats: Vec<[u32; LINE / 4]> = ys.chunks(LINE / 2).map(packed).collect();
    let (mut xs, mut sums) = (vec![0_u16; ALL], vec![0_u16; ALL]);
    let mut due: VecDeque<([u32; LINE / 4], u16, u16)> = VecDeque::new();
    let mut pairs = 0;
    let mut step = |rtl: &mut Block, due: &mut VecDeque<_>| {
        rtl.tick();
        if rtl.out_valid_o() == 1 {
            let (wanted, x, y): ([u32; LINE / 4], _, _) = due.pop_front().expect("a beat");
            let out = rtl.out_o();
            assert!(
                out == wanted,
                "{x:#06x} + {y:#06x}.. is {out:08x?}, not {wanted:08x?}"
            );
            pairs += LINE as u64 / 2;
        }
    };
    for x in first {
        xs.fill(x);
        rtl.a_i(&packed(&xs[..LINE / 2]));
        let srcs = [xs.as_ptr().cast(), ys.as_ptr().cast()];
        let into = [sums.as_mut_ptr().cast()];
        // SAFETY: each operand and the result have `ALL` elements, and lie apart.
        unsafe { fused(DataType::F16, ReduceOp::Sum, &into, &srcs, ALL, false) };
        rtl.in_valid_i(1);
        for ((beat, wanted), y) in beats
            .iter()
            .zip(sums.chunks(LINE / 2))
            .zip((0..=u16::MAX).step_by(LINE / 2))
        {
            rtl.b_i(beat);
            due.push_back((packed(wanted), x, y));
            step(&mut rtl, &mut due);
        }
    }
    rtl.in_valid_i(0);
    for _ in 0..LATENCY {
        step(&mut rtl, &mut due);
    }
    assert!(due.is_empty(), "{} results are missing", due.len());
    pairs
}

/// The elements of a beat as words.
fn packed(elements: &[u16]) -> [u32; LINE / 4] {
    std::array::from_fn(|i| u32::from(elements[2 * i]) | u32::from(elements[2 * i + 1]) << 16)
}

#[test]
fn a_sample_of_f16_with_all_of_f16() {
    // Zero, subnormal numbers, one, the largest, infinity, NaN, with their neighbours and signs.
    let edges = [0, 1, 0x3ff, 0x400, 0x3c00, 0x7bff, 0x7c00, 0x7e01];
    let pairs = all_pairs(edges.into_iter().flat_map(|x: u16| [x, x | 0x8000]));
    assert_eq!(pairs, 16 << 16);
}
