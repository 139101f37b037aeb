//! Conversions to and from small formats, by random bits, and to `tf32`.

use super::exact::{Round, Scaled, BF16, F16, F32};
use super::harness::{compare, kernel, random, triples};

/// Bits of fraction and exponent, bias, largest and NaN.
struct Small {
    name: &'static str,
    fraction: u32,
    bias: i32,
    largest: u64,
    nan: u64,
    sign: u64,
    width: u32,
}

const SMALL: [Small; 5] = [
    Small {
        name: "e4m3x2",
        fraction: 3,
        bias: 7,
        largest: 0x7e,
        nan: 0x7f,
        sign: 0x80,
        width: 8,
    },
    Small {
        name: "e5m2x2",
        fraction: 2,
        bias: 15,
        largest: 0x7b,
        nan: 0x7f,
        sign: 0x80,
        width: 8,
    },
    Small {
        name: "e2m1x2",
        fraction: 1,
        bias: 1,
        largest: 7,
        nan: 7,
        sign: 8,
        width: 4,
    },
    Small {
        name: "e2m3x2",
        fraction: 3,
        bias: 1,
        largest: 0x1f,
        nan: 0x1f,
        sign: 0x20,
        width: 8,
    },
    Small {
        name: "e3m2x2",
        fraction: 2,
        bias: 3,
        largest: 0x1f,
        nan: 0x1f,
        sign: 0x20,
        width: 8,
    },
];

impl Small {
    /// A magnitude's value; those above the largest are what would come next.
    fn value(&self, bits: u64) -> f64 {
        let fraction = (bits & ((1 << self.fraction) - 1)) as f64 / f64::from(1 << self.fraction);
        match (bits >> self.fraction) as i32 {
            0 => fraction * 2f64.powi(1 - self.bias),
            e => (1.0 + fraction) * 2f64.powi(e - self.bias),
        }
    }

    /// The nearest of all numbers, of two the even one.
    fn nearest(&self, v: f64) -> u64 {
        if v.is_nan() {
            return self.nan;
        }
        let all = 0..=self.largest;
        // Far above, all numbers would be equally far away in double precision.
        let magnitude = v.abs().min(2.0 * self.value(self.largest));
        let distance = |b: &u64| (self.value(*b) - magnitude).abs();
        let best = all.min_by(|a, b| {
            distance(a)
                .total_cmp(&distance(b))
                .then((a & 1).cmp(&(b & 1)))
        });
        best.unwrap() | if v.is_sign_negative() { self.sign } else { 0 }
    }
}

#[test]
fn small_formats_are_rounded_to_the_nearest() {
    for f in SMALL {
        let mut next = random(19);
        let mut some = |edges: &[u64]| -> Vec<[u64; 3]> {
            let mut near = || {
                let r = next();
                // Halfway between two of the format's numbers, or next to that.
                let at = r % (f.largest + 2);
                let middle = (f.value(at) + f.value(at + 1)) / 2.0;
                let v = [f.value(at), middle, middle, f.value(r % (2 * f.largest))]
                    [(r >> 20) as usize % 4];
                let bits = (v as f32).to_bits() as u64;
                (bits + (r >> 30) % 3).wrapping_sub(1) & 0x7fff_ffff | (r >> 40 & 1) << 31
            };
            let mut all: Vec<[u64; 3]> = (0..10_000).map(|_| [near(), near(), 0]).collect();
            all.extend(edges.iter().flat_map(|a| edges.iter().map(|b| [*a, *b, 0])));
            all
        };
        let edges = super::harness::edges(F32);
        let inputs = some(&edges);
        for relu in ["", ".relu"] {
            let one = |v: f64| match relu {
                ".relu" if v.is_sign_negative() && !v.is_nan() => 0,
                _ => f.nearest(v),
            };
            let text = kernel(
                &format!("cvt.rn.satfinite{relu}.{}.f32", f.name),
                [32, 32, 0, 32],
            );
            compare(&text, &inputs, |[a, b, _]| {
                one(F32.double(b)) | one(F32.double(a)) << f.width
            });
            let halves: Vec<[u64; 3]> = (0..0x1_0000u64)
                .map(|v| [v | ((v * 40503) & 0xffff) << 16, 0, 0])
                .collect();
            let text = kernel(
                &format!("cvt.rn.satfinite{relu}.{}.f16x2", f.name),
                [32, 0, 0, 32],
            );
            compare(&text, &halves, |[a, ..]| {
                one(F16.double(a & 0xffff)) | one(F16.double(a >> 16)) << f.width
            });
            // All pairs.
            let all: Vec<[u64; 3]> = (0..1u64 << (2 * f.width)).map(|v| [v, 0, 0]).collect();
            let text = kernel(&format!("cvt.rn{relu}.f16x2.{}", f.name), [16, 0, 0, 32]);
            compare(&text, &all, |[a, ..]| {
                let back = |v: u64| {
                    let v = v & (2 * f.sign - 1);
                    let magnitude = v & (f.sign - 1);
                    let negative = v & f.sign != 0;
                    match f.name {
                        "e4m3x2" if magnitude == 0x7f => return 0x7fff,
                        "e5m2x2" if magnitude > 0x7c => return 0x7fff,
                        _ if negative && relu == ".relu" => return 0,
                        "e5m2x2" => return v << 8,
                        _ => {}
                    }
                    let exact = f.value(magnitude);
                    let order =
                        |(sig, exp): Scaled| (sig as f64 * 2f64.powi(exp)).total_cmp(&exact);
                    let bits = if magnitude == 0 {
                        0
                    } else {
                        F16.round(false, order, Round::Nearest)
                    };
                    bits | if negative { 0x8000 } else { 0 }
                };
                back(a) | back(a >> f.width) << 16
            });
        }
    }
}

/// Edges of single precision with each other, and then 10,000 of any bits, each with random bits.
fn singles() -> Vec<[u64; 3]> {
    let mut next = random(37);
    let edges = super::harness::edges(F32);
    let pairs = edges.iter().flat_map(|a| edges.iter().map(|b| [*a, *b]));
    let mut all: Vec<[u64; 3]> = pairs.map(|[a, b]| [a, b, next() & 0xffff_ffff]).collect();
    all.extend((0..10_000).map(|_| [next(), next(), next()].map(|v| v & 0xffff_ffff)));
    // About as large as halves, whose ends are near.
    let mut half = || {
        let magnitude = ((88 + next() % 24) << 23) + next() % (32 << 23);
        magnitude | (next() & 1) << 31
    };
    all.extend((0..10_000).map(|_| [half(), half(), half()]));
    all
}

#[test]
fn exponents_alone_are_powers_of_two() {
    let power = |e: u64| 2f64.powi(e as i32 - 127);
    for (rounding, finite) in [
        ("rz", ""),
        ("rz", ".satfinite"),
        ("rp", ""),
        ("rp", ".satfinite"),
    ] {
        let one = |v: f64| {
            let magnitude = v.abs();
            let among = match rounding {
                "rz" => (0..=254)
                    .rev()
                    .find(|e| power(*e) <= magnitude)
                    .unwrap_or(0),
                _ => (0..=254).find(|e| power(*e) >= magnitude).unwrap_or(255),
            };
            match (v.is_nan() || magnitude.is_infinite(), finite) {
                (true, "") => 255,
                (true, _) if v.is_nan() => 255,
                (_, "") => among,
                _ => among.min(254),
            }
        };
        let text = kernel(
            &format!("cvt.{rounding}{finite}.ue8m0x2.f32"),
            [32, 32, 0, 32],
        );
        compare(&text, &singles(), |[a, b, _]| {
            one(F32.double(b)) | one(F32.double(a)) << 8
        });
        let halves: Vec<[u64; 3]> = (0..0x1_0000u64)
            .map(|v| [v | ((v * 40503) & 0xffff) << 16, 0, 0])
            .collect();
        let text = kernel(
            &format!("cvt.{rounding}{finite}.ue8m0x2.bf16x2"),
            [32, 0, 0, 32],
        );
        compare(&text, &halves, |[a, ..]| {
            one(BF16.double(a & 0xffff)) | one(BF16.double(a >> 16)) << 8
        });
    }
    let all: Vec<[u64; 3]> = (0..0x1_0000).map(|v| [v, 0, 0]).collect();
    compare(
        &kernel("cvt.rn.bf16x2.ue8m0x2", [16, 0, 0, 32]),
        &all,
        |[a, ..]| {
            let one = |e: u64| match e {
                255 => 0x7fff,
                e => u64::from((power(e) as f32).to_bits() >> 16),
            };
            one(a & 255) | one(a >> 8) << 16
        },
    );
}

/// The carry of the bits that are cut off and as many random ones (§9.7.9.21).
#[test]
fn random_bits_decide_how_halves_are_rounded() {
    let bfloat = |v: u64, r: u64| (v + (r & 0xffff)) >> 16;
    let half = |v: u64, r: u64| match F32.double(v) {
        v if v < 2f64.powi(-14) => ((v * 2f64.powi(37)) as u64 + (r & 0x1fff)) >> 13,
        _ => (((v + (r & 0x1fff)) >> 13) - (112 << 10)).min(0x7c00),
    };
    type Reference<'a> = (&'a str, u64, &'a dyn Fn(u64, u64) -> u64);
    let formats: [Reference<'_>; 2] = [("bf16x2", 0x7f80, &bfloat), ("f16x2", 0x7c00, &half)];
    for (name, infinity, reference) in formats {
        for relu in ["", ".relu"] {
            for finite in ["", ".satfinite"] {
                let one = |v: u64, r: u64| {
                    let (sign, magnitude) = (v >> 31, v & 0x7fff_ffff);
                    match (magnitude > 0x7f80_0000, relu) {
                        (true, _) => return 0x7fff,
                        (_, ".relu") if sign == 1 => return 0,
                        _ => {}
                    }
                    let most = infinity - u64::from(finite == ".satfinite");
                    reference(magnitude, r).min(most) | sign << 15
                };
                let text = kernel(&format!("cvt.rs{relu}{finite}.{name}.f32"), [32; 4]);
                compare(&text, &singles(), |[a, b, c]| {
                    one(b, c & 0xffff) | one(a, c >> 16) << 16
                });
            }
        }
    }
}

/// 10 bits of fraction, in the upper bits of single precision.
#[test]
fn tf32_has_ten_bits_of_fraction() {
    let rounded = |v: u64, mode: &str| -> u64 {
        let (low, high) = (v & !0x1fff, (v & !0x1fff) + 0x2000);
        let (rest, half) = (v & 0x1fff, 0x1000);
        match mode {
            "rz" => low,
            "rna" if rest >= half => high,
            "rn" if rest > half || rest == half && low & 0x2000 != 0 => high,
            _ => low,
        }
    };
    for (form, mode) in [
        ("cvt.rna.tf32.f32", "rna"),
        ("cvt.rn.tf32.f32", "rn"),
        ("cvt.rz.relu.tf32.f32", "rz"),
        ("cvt.rna.satfinite.tf32.f32", "rna"),
        ("cvt.rn.relu.satfinite.tf32.f32", "rn"),
    ] {
        compare(
            &kernel(form, [32, 0, 0, 32]),
            &triples(F32, 23),
            |[a, ..]| {
                let infinite = F32.magnitude(a) == F32.infinity();
                let v = match () {
                    () if F32.is_nan(a) => return F32.nan(),
                    () if F32.is_negative(a) && form.contains("relu") => return 0,
                    () if infinite => a,
                    () => rounded(F32.magnitude(a), mode) | a & F32.sign(),
                };
                match F32.magnitude(v) == F32.infinity() && form.contains("satfinite") {
                    true => v - 0x2000,
                    false => v,
                }
            },
        );
    }
}
