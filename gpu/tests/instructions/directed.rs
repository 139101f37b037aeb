//! Rounding towards zero, down and up, with `.ftz` and `.sat` (§9.7.3).

use super::exact::{Format, Round, F32, F64};
use super::harness::{compare, kernel, refused, triples};

const ROUNDS: [(&str, Round); 4] = [
    ("rn", Round::Nearest),
    ("rz", Round::Zero),
    ("rm", Round::Down),
    ("rp", Round::Up),
];

type Reference = fn(Format, [u64; 3], Round) -> u64;

/// Opcode, operands, reference.
const FORMS: [(&str, usize, Reference); 7] = [
    ("add", 2, |f, [a, b, _], r| f.add(a, b, r)),
    ("sub", 2, |f, [a, b, _], r| f.add(a, b ^ f.sign(), r)),
    ("mul", 2, |f, [a, b, _], r| f.mul(a, b, r)),
    ("fma", 3, |f, [a, b, c], r| f.fma(a, b, c, r)),
    ("div", 2, |f, [a, b, _], r| f.div(a, b, r)),
    ("sqrt", 1, |f, [a, ..], r| f.sqrt(a, r)),
    ("rcp", 1, |f, [a, ..], r| f.div(f.one(), a, r)),
];

fn check(f: Format, opcode: &str, operands: usize, reference: impl Fn([u64; 3]) -> u64) {
    let mut widths = [0; 4];
    widths[..operands].fill(f.bits);
    widths[3] = f.bits;
    compare(&kernel(opcode, widths), &triples(f, 17), reference);
}

/// The host says which NaN comes of rounding to the nearest; all others are the canonical one.
fn is_open(f: Format, round: &str, v: u64) -> bool {
    round == "rn" && f.is_nan(v)
}

#[test]
fn single_precision_is_rounded_in_each_direction() {
    for (base, operands, reference) in FORMS {
        for (round, r) in ROUNDS {
            let plain = format!("{base}.{round}.f32");
            let mut widths = [32; 4];
            widths[operands..3].fill(0);
            let inputs: Vec<[u64; 3]> = triples(F32, 17)
                .into_iter()
                .filter(|v| !is_open(F32, round, reference(F32, *v, r)))
                .collect();
            compare(&kernel(&plain, widths), &inputs, |v| reference(F32, v, r));
            let flushed = |v: [u64; 3]| F32.flush(reference(F32, v.map(|v| F32.flush(v)), r));
            let inputs: Vec<[u64; 3]> = triples(F32, 23)
                .into_iter()
                .filter(|v| !is_open(F32, round, flushed(*v)))
                .collect();
            compare(
                &kernel(&format!("{base}.{round}.ftz.f32"), widths),
                &inputs,
                flushed,
            );
            if !matches!(base, "add" | "sub" | "mul" | "fma") {
                continue;
            }
            let clamp = |v: u64| match F32.double(v) {
                x if x > 1.0 => F32.one(),
                x if x > 0.0 => v,
                _ => 0,
            };
            check(F32, &format!("{base}.{round}.sat.f32"), operands, |v| {
                clamp(reference(F32, v, r))
            });
            check(F32, &format!("{base}.{round}.ftz.sat.f32"), operands, |v| {
                clamp(flushed(v))
            });
        }
    }
}

#[test]
fn double_precision_is_rounded_in_each_direction() {
    for (base, operands, reference) in FORMS {
        for (round, r) in &ROUNDS[1..] {
            check(F64, &format!("{base}.{round}.f64"), operands, |v| {
                reference(F64, v, *r)
            });
        }
    }
}

#[test]
fn extremes_of_magnitudes_have_the_sign_of_the_product() {
    for (opcode, max) in [
        ("min.xorsign.abs.f32", false),
        ("max.xorsign.abs.f32", true),
    ] {
        check(F32, opcode, 2, |[a, b, _]| {
            let sign = (a ^ b) & F32.sign();
            let [x, y] = [a, b].map(|v| F32.magnitude(v));
            match (F32.is_nan(x), F32.is_nan(y)) {
                (true, true) => F32.nan(),
                (true, false) => y | sign,
                (false, true) => x | sign,
                _ if max => x.max(y) | sign,
                _ => x.min(y) | sign,
            }
        });
    }
}

#[test]
fn roundings_that_the_isa_does_not_have_are_refused() {
    for form in [
        "neg.rz.f32",
        "abs.rm.f64",
        "rsqrt.rp.f32",
        "rcp.approx.rz.f32",
        "sqrt.rn.sat.f32",
        "neg.NaN.f32",
    ] {
        refused(&format!("{form} %d, %a;"), form);
    }
    for form in [
        "add.rz.s32",
        "add.sat.f64",
        "div.rn.sat.f32",
        "mul.NaN.f32",
        "min.rm.f32",
        "div.rp.u32",
        "max.xorsign.f32",
        "min.xorsign.abs.f64",
    ] {
        refused(&format!("{form} %d, %a, %b;"), form);
    }
    refused("mad.lo.rz.s32 %d, %a, %b, %c;", "mad.lo.rz.s32");
}
