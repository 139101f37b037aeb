//! Conversions among integers and floating point, with all roundings (§9.7.9.21).

use super::exact::{compare as order, Format, Round, BF16, F16, F32, F64};
use super::harness::{compare, edges, floats, kernel, random, refused};

const ROUNDS: [(&str, &str, Round); 4] = [
    ("rn", "rni", Round::Nearest),
    ("rz", "rzi", Round::Zero),
    ("rm", "rmi", Round::Down),
    ("rp", "rpi", Round::Up),
];

const FLOATS: [(&str, Format); 4] = [("f16", F16), ("bf16", BF16), ("f32", F32), ("f64", F64)];

const INTEGERS: [(&str, u32, bool); 8] = [
    ("u8", 8, false),
    ("s8", 8, true),
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

fn is_half(f: Format) -> bool {
    f.bits == 16
}

/// All halves; edges, what lies between them and 10,000 at random of the others.
fn inputs(f: Format) -> Vec<[u64; 3]> {
    if is_half(f) {
        return (0..0x1_0000).map(|v| [v, 0, 0]).collect();
    }
    let mut next = random(29);
    let mut all: Vec<[u64; 3]> = edges(f).into_iter().map(|v| [v, 0, 0]).collect();
    // Half way between two halves, and next to it.
    for half in FLOATS.iter().filter(|h| is_half(h.1)) {
        for v in (0..half.1.infinity()).step_by(37) {
            let between = (half.1.double(v) + half.1.double(v + 1)) / 2.0;
            let bits = match f == F32 {
                true => u64::from((between as f32).to_bits()),
                false => between.to_bits(),
            };
            for bits in [bits - 1, bits, bits + 1] {
                all.push([bits | if v % 2 == 0 { f.sign() } else { 0 }, 0, 0]);
            }
        }
    }
    all.extend((0..10_000).map(|_| floats(f, &mut next)));
    all
}

/// A number in another format.
fn between(from: Format, to: Format, v: u64, r: Round) -> u64 {
    if from.is_nan(v) {
        return to.nan();
    }
    let negative = from.is_negative(v);
    if !from.is_finite(v) {
        return to.infinity() | if negative { to.sign() } else { 0 };
    }
    to.round(negative, |m| order(m, from.scaled(v)), r)
}

fn saturate(f: Format, v: u64) -> u64 {
    match f.double(v) {
        x if x > 1.0 => f.one(),
        x if x > 0.0 => v,
        _ => 0,
    }
}

#[test]
fn floating_point_to_other_formats() {
    for (from_name, from) in FLOATS {
        let inputs = inputs(from);
        for (to_name, to) in FLOATS {
            if !is_half(from) && !is_half(to) || from == to {
                continue;
            }
            let widths = [from.bits, 0, 0, to.bits];
            for (round, _, r) in ROUNDS {
                // No rounding is allowed where each number has its equal.
                let widens = to.bits > from.bits;
                let round = if widens {
                    String::new()
                } else {
                    format!(".{round}")
                };
                if widens && r != Round::Nearest {
                    continue;
                }
                let text = kernel(&format!("cvt{round}.{to_name}.{from_name}"), widths);
                let open = |v: u64| from == BF16 && to == F32 && from.is_nan(v);
                let known: Vec<[u64; 3]> = inputs.iter().filter(|v| !open(v[0])).copied().collect();
                compare(&text, &known, |[a, ..]| between(from, to, a, r));
                if to != BF16 {
                    let text = kernel(&format!("cvt{round}.sat.{to_name}.{from_name}"), widths);
                    compare(&text, &inputs, |[a, ..]| {
                        saturate(to, between(from, to, a, r))
                    });
                }
            }
        }
    }
}

#[test]
fn single_precision_to_halves_flushed_clamped_and_in_pairs() {
    let inputs = inputs(F32);
    for (name, to) in [("f16", F16), ("bf16", BF16)] {
        let widths = [32, 0, 0, 16];
        for (round, _, r) in &ROUNDS[..2] {
            let text = kernel(&format!("cvt.{round}.ftz.{name}.f32"), widths);
            compare(&text, &inputs, |[a, ..]| between(F32, to, F32.flush(a), *r));
            let relu = |v: u64| match to.is_negative(v) && !to.is_nan(v) {
                true => 0,
                false => v,
            };
            let text = kernel(&format!("cvt.{round}.relu.{name}.f32"), widths);
            compare(&text, &inputs, |[a, ..]| relu(between(F32, to, a, *r)));
            let finite = |v: u64| match to.magnitude(v) == to.infinity() {
                true => v - 1,
                false => v,
            };
            let text = kernel(&format!("cvt.{round}.satfinite.{name}.f32"), widths);
            compare(&text, &inputs, |[a, ..]| finite(between(F32, to, a, *r)));
            let text = kernel(&format!("cvt.{round}.relu.satfinite.{name}.f32"), widths);
            compare(&text, &inputs, |[a, ..]| {
                relu(finite(between(F32, to, a, *r)))
            });
            // The first operand goes to the high half.
            let pairs: Vec<[u64; 3]> = inputs
                .iter()
                .zip(inputs.iter().rev())
                .map(|(a, b)| [a[0], b[0], 0])
                .collect();
            for (modes, relus) in [("", false), (".relu", true)] {
                let text = kernel(&format!("cvt.{round}{modes}.{name}x2.f32"), [32, 32, 0, 32]);
                compare(&text, &pairs, |[a, b, _]| {
                    let [high, low] = [a, b].map(|v| {
                        let v = between(F32, to, v, *r);
                        if relus {
                            relu(v)
                        } else {
                            v
                        }
                    });
                    low | high << 16
                });
            }
        }
    }
    let halves: Vec<[u64; 3]> = (0..0x1_0000).map(|v| [v, 0, 0]).collect();
    let text = kernel("cvt.ftz.f32.bf16", [16, 0, 0, 32]);
    compare(&text, &halves, |[a, ..]| {
        F32.flush(between(BF16, F32, a, Round::Nearest))
    });
}

/// A whole number of a double, in which halves and single precision have their equals.
fn whole(v: f64, r: Round) -> f64 {
    match r {
        Round::Nearest => v.round_ties_even(),
        Round::Zero => v.trunc(),
        Round::Down => v.floor(),
        Round::Up => v.ceil(),
    }
}

#[test]
fn floating_point_to_whole_numbers() {
    for (name, f) in FLOATS {
        // The host says which NaN it is in single and double precision.
        let all = inputs(f).into_iter();
        let all: Vec<[u64; 3]> = all.filter(|v| is_half(f) || !f.is_nan(v[0])).collect();
        for (_, round, r) in ROUNDS {
            let text = kernel(
                &format!("cvt.{round}.{name}.{name}"),
                [f.bits, 0, 0, f.bits],
            );
            compare(&text, &all, |[a, ..]| {
                let v = whole(f.double(a), r);
                let bits = between(F64, f, v.to_bits(), Round::Nearest);
                assert!(v.is_nan() || f.double(bits) == v);
                bits
            });
        }
    }
}

#[test]
fn floating_point_to_integers() {
    for (name, f) in FLOATS {
        let all = inputs(f);
        for (_, round, r) in ROUNDS {
            for (to, bits, signed) in INTEGERS {
                let text = kernel(
                    &format!("cvt.{round}.{to}.{name}"),
                    [f.bits, 0, 0, bits.max(32)],
                );
                compare(&text, &all, |[a, ..]| {
                    let v = whole(f.double(a), r);
                    // Rust's casts go to the nearest end of the range too, and to 0 of a NaN.
                    let v = match (bits, signed) {
                        _ if v.is_nan() && (bits == 64 || f == F64) => {
                            let top = 1u64 << (bits - 1);
                            if signed {
                                top.wrapping_neg()
                            } else {
                                top
                            }
                        }
                        (8, true) => v as i8 as i64 as u64,
                        (8, false) => u64::from(v as u8),
                        (16, true) => v as i16 as i64 as u64,
                        (16, false) => u64::from(v as u16),
                        (32, true) => v as i32 as i64 as u64,
                        (32, false) => u64::from(v as u32),
                        (_, true) => v as i64 as u64,
                        _ => v as u64,
                    };
                    // The register is extended to its 32 bits.
                    if bits < 64 {
                        v & 0xffff_ffff
                    } else {
                        v
                    }
                });
            }
        }
    }
}

#[test]
fn integers_to_floating_point_in_each_direction() {
    for (from, bits, signed) in INTEGERS {
        let mut next = random(31);
        let mut all: Vec<[u64; 3]> = Vec::new();
        for shift in 0..64 {
            for v in [
                1u64 << shift,
                (1 << shift) - 1,
                u64::MAX << shift,
                (1 << shift) + 1,
            ] {
                all.push([v, 0, 0]);
            }
        }
        all.extend((0..10_000).map(|_| [next() >> (next() % 64), 0, 0]));
        for (to, f) in FLOATS {
            for (round, _, r) in ROUNDS {
                let text = kernel(
                    &format!("cvt.{round}.{to}.{from}"),
                    [bits.max(16), 0, 0, f.bits],
                );
                compare(&text, &all, |[a, ..]| {
                    let spare = 64 - bits;
                    let v = match signed {
                        true => i128::from((a << spare) as i64 >> spare),
                        false => i128::from(a << spare >> spare),
                    };
                    f.round(v < 0, |m| order(m, (v.unsigned_abs(), 0)), r)
                });
            }
        }
    }
}

#[test]
fn double_to_single_precision_in_each_direction() {
    let all = inputs(F64);
    for (round, _, r) in &ROUNDS[1..] {
        let text = kernel(&format!("cvt.{round}.f32.f64"), [64, 0, 0, 32]);
        compare(&text, &all, |[a, ..]| between(F64, F32, a, *r));
        let text = kernel(&format!("cvt.{round}.ftz.sat.f32.f64"), [64, 0, 0, 32]);
        compare(&text, &all, |[a, ..]| {
            saturate(F32, F32.flush(between(F64, F32, a, *r)))
        });
    }
}

#[test]
fn conversions_that_the_isa_does_not_have_are_refused() {
    for form in [
        "cvt.rn.sat.bf16.f32",
        "cvt.rm.relu.f16.f32",
        "cvt.rn.relu.f16.f64",
        "cvt.rn.satfinite.f32.f64",
        "cvt.rni.rz.f16.f16",
        "cvt.rn.s32.f16",
        "cvt.s32.f16",
        "cvt.rni.f32.f16",
        "cvt.rzi.f16.s32",
        "cvt.rn.ftz.f16.f64",
        "cvt.rn.f16.b32",
        "cvt.rn.f16x2.f16x2",
        "cvt.rz.satfinite.e4m3x2.f32",
        "cvt.rna.relu.tf32.f32",
        "cvt.rn.satfinite.f16x2.e4m3x2",
    ] {
        refused(&format!("{form} %d, %a;"), form);
    }
    refused("cvt.rm.f16x2.f32 %d, %a, %b;", "cvt.rm.f16x2.f32");
    refused("cvt.rn.f16x2.f32 %d, %a;", "3 operands");
}
