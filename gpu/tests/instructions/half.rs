//! Half precision: arithmetic, comparison, moves (§9.7.4, §9.7.7, §9.7.9.3 to §9.7.9.11).

use super::exact::{Format, Round, BF16, F16, F32};
use super::harness::{compare, floats, kernel, kernel_of, random, refused, triples};

const FORMATS: [(Format, &str); 2] = [(F16, "f16"), (BF16, "bf16")];

type Reference<'a> = &'a dyn Fn(Format, [u64; 3]) -> u64;

/// What comes behind an operation.
#[derive(Clone, Copy, Default)]
struct Modes {
    ftz: bool,
    sat: bool,
    relu: bool,
}

impl Modes {
    fn of(opcode: &str) -> Modes {
        let has = |part: &str| opcode.split('.').any(|p| p == part);
        Modes {
            ftz: has("ftz"),
            sat: has("sat"),
            relu: has("relu"),
        }
    }

    fn apply(self, f: Format, operands: [u64; 3], reference: Reference<'_>) -> u64 {
        let flush = |v| if self.ftz { f.flush(v) } else { v };
        let v = flush(reference(f, operands.map(flush)));
        let value = f.double(v);
        let clamps = self.sat || self.relu;
        if self.sat && value.is_nan() || clamps && value <= 0.0 {
            return 0;
        }
        if self.sat && value > 1.0 {
            return f.one();
        }
        v
    }
}

/// The form on one value and on pairs. Where one operand is read, on all values.
fn check(f: Format, opcode: &str, operands: usize, reference: Reference<'_>) {
    let modes = Modes::of(opcode);
    let expected = |v: [u64; 3]| modes.apply(f, v, reference);
    let mut widths = [0; 4];
    widths[..operands].fill(16);
    widths[3] = 16;
    let inputs = match operands {
        1 => (0..0x1_0000).map(|v| [v, 0, 0]).collect(),
        _ => triples(f, 5),
    };
    compare(&kernel(opcode, widths), &inputs, expected);
    let mut next = random(11);
    let pairs: Vec<[u64; 3]> = (0..5_000)
        .map(|_| {
            let (low, high) = (floats(f, &mut next), floats(f, &mut next));
            [0, 1, 2].map(|i| low[i] | high[i] << 16)
        })
        .collect();
    let widths = widths.map(|w| w * 2);
    compare(&kernel(&format!("{opcode}x2"), widths), &pairs, |v| {
        expected(v.map(|v| v & 0xffff)) | expected(v.map(|v| v >> 16)) << 16
    });
}

#[test]
fn sums_and_products_of_halves_are_rounded_once() {
    let nearest = Round::Nearest;
    let add = |f: Format, [a, b, _]: [u64; 3]| f.add(a, b, nearest);
    let sub = |f: Format, [a, b, _]: [u64; 3]| f.add(a, b ^ f.sign(), nearest);
    let mul = |f: Format, [a, b, _]: [u64; 3]| f.mul(a, b, nearest);
    let fma = |f: Format, [a, b, c]: [u64; 3]| f.fma(a, b, c, nearest);
    for (f, name) in FORMATS {
        check(f, &format!("add.{name}"), 2, &add);
        check(f, &format!("add.rn.{name}"), 2, &add);
        check(f, &format!("sub.{name}"), 2, &sub);
        check(f, &format!("mul.rn.{name}"), 2, &mul);
        check(f, &format!("fma.rn.{name}"), 3, &fma);
        check(f, &format!("fma.rn.relu.{name}"), 3, &fma);
    }
    for modes in ["ftz", "sat", "ftz.sat"] {
        check(F16, &format!("add.{modes}.f16"), 2, &add);
        check(F16, &format!("sub.rn.{modes}.f16"), 2, &sub);
        check(F16, &format!("mul.{modes}.f16"), 2, &mul);
        check(F16, &format!("fma.rn.{modes}.f16"), 3, &fma);
    }
    check(F16, "fma.rn.ftz.relu.f16", 3, &fma);
}

/// The case in which double precision, rounded again, is wrong: the product lies half way between
/// two numbers, and the addend is beyond 53 bits of it.
#[test]
fn a_fused_product_of_bf16_is_not_rounded_twice() {
    // (1 + 2^-7) * (1 + 2^-1) is half way between two numbers; 2^-100 decides.
    let (a, b, tiny) = (0x3f81, 0x3fc0, 0x0d80);
    let inputs = [[a, b, 0], [a, b, tiny], [a, b, tiny | 0x8000]];
    let text = kernel("fma.rn.bf16", [16; 4]);
    let want = [0x3fc2, 0x3fc2, 0x3fc1];
    let all = inputs.iter().zip(want);
    for (input, want) in all {
        compare(&text, &[*input], |_| want);
        assert_eq!(BF16.fma(input[0], input[1], input[2], Round::Nearest), want);
    }
}

#[test]
fn signs_and_extremes_of_halves() {
    let extreme = |f: Format, [a, b, _]: [u64; 3], max: bool, nan: bool| {
        let (x, y) = (f.double(a), f.double(b));
        if x.is_nan() && y.is_nan() || nan && (x.is_nan() || y.is_nan()) {
            return f.nan();
        }
        if x.is_nan() || y.is_nan() {
            return if x.is_nan() { b } else { a };
        }
        // Zeros differ by their signs.
        let less = x < y || x == y && x.is_sign_negative();
        if less == max {
            b
        } else {
            a
        }
    };
    let xorsign = |f: Format, v: [u64; 3], max: bool| {
        let sign = (v[0] ^ v[1]) & f.sign();
        let v = extreme(f, v.map(|v| f.magnitude(v)), max, false);
        if f.is_nan(v) {
            v
        } else {
            v | sign
        }
    };
    for (f, name) in FORMATS {
        check(f, &format!("neg.{name}"), 1, &|f, [a, ..]| a ^ f.sign());
        check(f, &format!("abs.{name}"), 1, &|f, [a, ..]| f.magnitude(a));
        for (base, max) in [("min", false), ("max", true)] {
            let plain = |f: Format, v: [u64; 3]| extreme(f, v, max, false);
            let nan = |f: Format, v: [u64; 3]| extreme(f, v, max, true);
            check(f, &format!("{base}.{name}"), 2, &plain);
            check(f, &format!("{base}.NaN.{name}"), 2, &nan);
            let signed = |f: Format, v: [u64; 3]| xorsign(f, v, max);
            check(f, &format!("{base}.xorsign.abs.{name}"), 2, &signed);
        }
    }
    check(F16, "neg.ftz.f16", 1, &|f, [a, ..]| a ^ f.sign());
    check(F16, "abs.ftz.f16", 1, &|f, [a, ..]| f.magnitude(a));
    check(F16, "max.ftz.f16", 2, &|f, v| extreme(f, v, true, false));
    check(F16, "min.ftz.NaN.f16", 2, &|f, v| {
        extreme(f, v, false, true)
    });
}

/// Largest errors of §9.7.4.9 and §9.7.4.10, for all values.
#[test]
fn approximations_of_halves_keep_their_error() {
    let all: Vec<[u64; 3]> = (0..0x1_0000).map(|v| [v, 0, 0]).collect();
    let check = |f: Format, opcode: &str, ftz: bool, close: &dyn Fn(f64, f64) -> bool| {
        let text = kernel(opcode, [16, 0, 0, 16]);
        let results = super::run(&text, &all);
        for ([a, ..], got) in all.iter().zip(results) {
            let a = if ftz { f.flush(*a) } else { *a };
            let (x, y) = (f.double(a), f.double(got));
            assert!(close(x, y), "{opcode} of {x:e} is {y:e}");
        }
    };
    let same = |x: f64, y: f64| x == y || x.is_nan() && y.is_nan();
    let tanh = |x: f64, y: f64| same(x.tanh(), y) || (x.tanh() - y).abs() <= 2f64.powf(-10.987);
    check(F16, "tanh.approx.f16", false, &tanh);
    let tanh = |x: f64, y: f64| {
        same(x.tanh(), y)
            || (x.tanh() - y).abs() <= x.tanh().abs() * 2f64.powi(-8) + 2f64.powi(-134)
    };
    check(BF16, "tanh.approx.bf16", false, &tanh);
    let ex2 = |error: f64, f: Format| {
        move |x: f64, y: f64| {
            let (want, largest) = (x.exp2(), f.double(f.infinity() - 1));
            let place = f.double(1);
            same(want, y)
                || (want - y).abs() <= want * error + place
                || want > largest && y.is_infinite()
        }
    };
    check(F16, "ex2.approx.f16", false, &ex2(2f64.powf(-9.9), F16));
    let coarse = ex2(2f64.powi(-7), BF16);
    // Subnormal results are flushed.
    let flushed = move |x: f64, y: f64| coarse(x, y) || x < -125.9 && y == 0.0;
    check(BF16, "ex2.approx.ftz.bf16", true, &flushed);
}

const COMPARISONS: [&str; 14] = [
    "eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
];

fn holds(name: &str, x: f64, y: f64) -> bool {
    let unordered = x.is_nan() || y.is_nan();
    match name {
        "eq" => x == y,
        "ne" => x != y && !unordered,
        "lt" => x < y,
        "le" => x <= y,
        "gt" => x > y,
        "ge" => x >= y,
        "equ" => x == y || unordered,
        "neu" => x != y,
        "ltu" => x < y || unordered,
        "leu" => x <= y || unordered,
        "gtu" => x > y || unordered,
        "geu" => x >= y || unordered,
        "num" => !unordered,
        _ => unordered,
    }
}

#[test]
fn comparisons_of_halves() {
    for (f, name) in FORMATS {
        let holds = |c: &str, a: u64, b: u64| u64::from(holds(c, f.double(a), f.double(b)));
        let (inputs, singles) = (triples(f, 9), triples(F32, 9));
        for c in COMPARISONS {
            let bits = |v: u64| v & 1 | (v & 2) << 15;
            // Both results, each combined with a third operand's lowest bit.
            let all = format!(
                "setp.ne.b16 %p2, %c, 0; setp.{c}.xor.{name} %p0|%p1, %a, %b, %p2; selp.b32 %d, 1, 0, %p0; \
                 @%p1 or.b32 %d, %d, 65536;"
            );
            let third = |v: u64| u64::from(v != 0);
            compare(&kernel_of(&all, [16, 16, 16, 32]), &inputs, |[a, b, d]| {
                let p = holds(c, a, b);
                bits(p ^ third(d) | ((1 - p) ^ third(d)) << 1)
            });
            let set = format!("set.{c}.u16.{name}");
            compare(&kernel(&set, [16, 16, 0, 16]), &inputs, |[a, b, _]| {
                holds(c, a, b) * 0xffff
            });
            let set = format!("set.{c}.s32.{name}");
            compare(&kernel(&set, [16, 16, 0, 32]), &inputs, |[a, b, _]| {
                holds(c, a, b) * 0xffff_ffff
            });
            let set = format!("set.{c}.{name}.f32");
            compare(&kernel(&set, [32, 32, 0, 16]), &singles, |[a, b, _]| {
                let [x, y] = [a, b].map(|v| F32.double(v));
                u64::from(self::holds(c, x, y)) * f.one()
            });
            // Pairs: each of three operands' halves is another of the inputs.
            let n = inputs.len();
            let pairs: Vec<[u64; 3]> = (0..n)
                .map(|i| {
                    let (low, high) = (inputs[i], inputs[(i * 5 + 1) % n]);
                    [low[0] | high[0] << 16, low[1] | high[1] << 16, low[2] & 1]
                })
                .collect();
            let low_high = |[a, b, _]: [u64; 3]| {
                [holds(c, a & 0xffff, b & 0xffff), holds(c, a >> 16, b >> 16)]
            };
            let all = format!(
                "setp.ne.b32 %p2, %c, 0; setp.{c}.and.{name}x2 %p0|%p1, %a, %b, %p2; selp.b32 %d, 1, 0, %p0; \
                 @%p1 or.b32 %d, %d, 65536;"
            );
            compare(&kernel_of(&all, [32; 4]), &pairs, |v| {
                let [low, high] = low_high(v);
                (low | high << 16) * v[2]
            });
            for (result, one) in [("u32", 0xffff), ("s32", 0xffff), ("x2", f.one())] {
                let result = result.replace("x2", &format!("{name}x2"));
                let set = format!("set.{c}.{result}.{name}x2");
                compare(&kernel(&set, [32, 32, 0, 32]), &pairs, |v| {
                    let [low, high] = low_high(v);
                    (low | high << 16) * one
                });
            }
        }
    }
    // Subnormals are equal when they are flushed.
    let (least, less) = ([1, 2, 0], [0x8001, 0x8000, 0]);
    let text = kernel("set.eq.ftz.f16.f16", [16, 16, 0, 16]);
    compare(&text, &[least, less], |_| 0x3c00);
    let text = kernel("set.lt.ftz.u32.f32", [32, 32, 0, 32]);
    compare(&text, &[least], |_| 0);
}

#[test]
fn halves_are_moved_packed_and_stored() {
    let words: Vec<[u64; 3]> = triples(F16, 2);
    let pack = "mov.b32 %d, {%a, %b};";
    compare(&kernel_of(pack, [16, 16, 0, 32]), &words, |[a, b, _]| {
        a | b << 16
    });
    let swap = ".reg .f16 %h, %l; .reg .f16x2 %w; mov.b32 {%l, %h}, %a; mov.b32 %w, {%h, %l}; mov.b32 %d, %w;";
    let both: Vec<[u64; 3]> = words.iter().map(|[a, b, _]| [a | b << 16, 0, 0]).collect();
    compare(&kernel_of(swap, [32, 0, 0, 32]), &both, |[a, ..]| {
        a >> 16 | (a & 0xffff) << 16
    });
    let through =
        ".local .align 4 .b8 m[8]; st.local.v2.b16 [m+4], {%b, %a}; ld.local.b32 %d, [m+4];";
    compare(&kernel_of(through, [16, 16, 0, 32]), &words, |[a, b, _]| {
        b | a << 16
    });
    let selected = "setp.gt.f16 %p0, %a, %b; selp.b16 %d, %a, %b, %p0;";
    compare(&kernel_of(selected, [16, 16, 0, 16]), &words, |[a, b, _]| {
        if F16.double(a) > F16.double(b) {
            a
        } else {
            b
        }
    });
}

#[test]
fn halves_are_added_atomically() {
    let atomic = |ty: &str, bits: u32| {
        format!(
            ".shared .align 4 .b32 m; .reg .b{bits} %old; st.shared.b{bits} [m], %a; \
             atom.shared.add.noftz.{ty} %old, [m], %b; red.relaxed.cta.shared.add.noftz.{ty} [m], %old; \
             ld.shared.b{bits} %d, [m];"
        )
    };
    for (f, name) in FORMATS {
        // The old value, the first operand, is added once more.
        let twice = |[a, b, _]: [u64; 3]| f.add(f.add(a, b, Round::Nearest), a, Round::Nearest);
        let inputs = triples(f, 13);
        let text = kernel_of(&atomic(name, 16), [16, 16, 0, 16]);
        compare(&text, &inputs, twice);
        let pairs: Vec<[u64; 3]> = inputs
            .iter()
            .map(|[a, b, c]| [a | c << 16, b | a << 16, 0])
            .collect();
        let text = kernel_of(&atomic(&format!("{name}x2"), 32), [32, 32, 0, 32]);
        compare(&text, &pairs, |v| {
            twice(v.map(|v| v & 0xffff)) | twice(v.map(|v| v >> 16)) << 16
        });
    }
    for form in ["atom.shared.add.f16", "atom.shared.max.noftz.bf16x2"] {
        refused(&format!(".shared .b32 m; {form} %d, [m], %a;"), form);
    }
}

#[test]
fn forms_of_halves_that_the_isa_does_not_have_are_refused() {
    for form in [
        "add.rz.f16",
        "add.ftz.bf16",
        "add.sat.bf16x2",
        "sub.relu.f16",
        "mul.f32.f16",
        "max.xorsign.f16",
        "min.sat.f16",
    ] {
        refused(&format!("{form} %d, %a, %b;"), form);
    }
    for form in ["fma.rm.f16", "fma.rn.sat.relu.f16", "fma.rn.oob.f16"] {
        refused(&format!("{form} %d, %a, %b, %c;"), form);
    }
    for form in ["tanh.f16", "ex2.approx.bf16", "abs.ftz.bf16", "sqrt.rn.f16"] {
        refused(&format!("{form} %d, %a;"), form);
    }
    for form in [
        "set.lo.f16.f16",
        "set.lt.u64.f16",
        "set.eq.ftz.u32.bf16",
        "set.eq.f16.bf16x2",
    ] {
        refused(&format!("{form} %d, %a, %b;"), form);
    }
    refused("setp.hi.f16 %p0, %a, %b;", "setp.hi.f16");
    refused("add.f16 %d, %a, 0f3F800000;", "a register");
    refused("add.f16 %d, %a;", "3 operands");
}
