//! Arithmetic with a carry, dot products, bytes and halves side by side, pairs, mixed precision,
//! small formats.

use super::exact::{Round, BF16, F16, F32};
use super::harness::{compare, kernel, kernel_of, random, refused, triples};
use super::launch::{launch, module};
use super::{check, inputs, Form};

/// Numbers of 128 and 96 bits by parts, as compilers and programs write them.
#[test]
fn carries_go_through_all_parts() {
    let sum = "{ .reg .b32 %w<9>; mov.b64 {%w0, %w1}, %a; mov.b64 {%w2, %w3}, %b; mov.b64 {%w4, %w5}, %c;\n\
         OP.cc.u32 %w0, %w0, %w2; OPc.cc.u32 %w1, %w1, %w3; OPc.cc.u32 %w4, %w4, %w5; OPc.u32 %w5, 0, 0;\n\
         xor.b32 %w0, %w0, %w4; xor.b32 %w1, %w1, %w5; mov.b64 %d, {%w0, %w1}; }";
    let split = |c: u64| (c & 0xffff_ffff, c >> 32);
    let text = |op: &str| kernel_of(&sum.replace("OP", op).replace('\n', ""), [64; 4]);
    compare(&text("add"), &inputs(), |[a, b, c]| {
        let (low, high) = split(c);
        let (sum, carry) = a.overflowing_add(b);
        let third = low + high + u64::from(carry);
        sum ^ (third & 0xffff_ffff) ^ (third >> 32 << 32)
    });
    compare(&text("sub"), &inputs(), |[a, b, c]| {
        let (low, high) = split(c);
        let (sum, borrow) = a.overflowing_sub(b);
        let third = i128::from(low) - i128::from(high) - i128::from(borrow);
        // Nothing less a borrow is all ones.
        let over = if third < 0 { 0xffff_ffff } else { 0 };
        sum ^ (third as u64 & 0xffff_ffff) ^ over << 32
    });
    // The product of 64 bits by four of 32.
    let product = "{ .reg .b32 %w<9>; mov.b64 {%w0, %w1}, %a; mov.b64 {%w2, %w3}, %b; mul.hi.u32 %w4, %w0, %w2;\n\
         mad.lo.cc.u32 %w4, %w1, %w2, %w4; madc.hi.u32 %w5, %w1, %w2, 0; mad.lo.cc.u32 %w4, %w0, %w3, %w4;\n\
         madc.hi.cc.u32 %w5, %w0, %w3, %w5; addc.u32 %w6, 0, 0; mad.lo.cc.u32 %w5, %w1, %w3, %w5; madc.hi.u32 %w6, %w1, %w3, %w6;\n\
         mov.b64 %d, {%w5, %w6}; }";
    let text = kernel_of(&product.replace('\n', ""), [64, 64, 0, 64]);
    compare(&text, &inputs(), |[a, b, _]| {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    });
    let wide = "add.cc.s64 %d, %a, %b; addc.u64 %d, %c, 0;";
    compare(&kernel_of(wide, [64; 4]), &inputs(), |[a, b, c]| {
        c.wrapping_add(u64::from(a.checked_add(b).is_none()))
    });
    // A code lives over waits and in loops.
    let text = module(
        "",
        "ld.global.u32 %r1, [%x1]; add.cc.u32 %r2, %r1, %r1; bar.sync 0; addc.u32 %r3, 0, 0; st.global.u32 [%x1], %r3;",
    );
    let mut words: Vec<u32> = (0..64).map(|i| i << 26).collect();
    launch(&text, 64, &mut words);
    assert_eq!(words, (0..64).map(|i| i >> 5).collect::<Vec<u32>>());
}

fn bytes(v: u64, n: usize, signed: bool) -> Vec<i64> {
    let bits = 32 / n;
    let one = |i: usize| {
        let v = v >> (i * bits) & ((1 << bits) - 1);
        let negative = signed && v >> (bits - 1) & 1 == 1;
        v as i64 - if negative { 1 << bits } else { 0 }
    };
    (0..n).map(one).collect()
}

#[test]
fn dot_products_of_bytes() {
    for (first, signed) in [("u32", false), ("s32", true)] {
        for (second, other) in [("u32", false), ("s32", true)] {
            let text = kernel(&format!("dp4a.{first}.{second}"), [32; 4]);
            compare(&text, &inputs32(), |[a, b, c]| {
                let pairs = bytes(a, 4, signed).into_iter().zip(bytes(b, 4, other));
                let sum: i64 = pairs.map(|(x, y)| x * y).sum();
                (c as i64 + sum) as u64 & 0xffff_ffff
            });
            for (part, skip) in [("lo", 0), ("hi", 2)] {
                let text = kernel(&format!("dp2a.{part}.{first}.{second}"), [32; 4]);
                compare(&text, &inputs32(), |[a, b, c]| {
                    let pairs = bytes(a, 2, signed)
                        .into_iter()
                        .zip(bytes(b, 4, other).into_iter().skip(skip));
                    let sum: i64 = pairs.map(|(x, y)| x * y).sum();
                    (c as i64 + sum) as u64 & 0xffff_ffff
                });
            }
        }
    }
}

fn inputs32() -> Vec<[u64; 3]> {
    let cut = |v: [u64; 3]| v.map(|v| v & 0xffff_ffff);
    inputs().into_iter().map(cut).collect()
}

#[test]
fn masks_extensions_and_bits() {
    let forms: &[Form] = &[
        ("bmsk.clamp.b32", [32, 32, 0, 32], |a, b, _| {
            (0..32).fold(0, |m, i| m | u64::from(i >= a && i < a + b.min(32)) << i)
        }),
        ("bmsk.wrap.b32", [32, 32, 0, 32], |a, b, _| {
            (0..32).fold(0, |m, i| {
                m | u64::from(i >= a % 32 && i < a % 32 + b % 32) << i
            })
        }),
        ("szext.clamp.s32", [32, 32, 0, 32], |a, b, _| {
            let n = b.min(32);
            (0..32).fold(0, |v, i| {
                v | if n > 0 { a >> i.min(n - 1) & 1 } else { 0 } << i
            })
        }),
        ("szext.wrap.u32", [32, 32, 0, 32], |a, b, _| {
            a & ((1 << (b % 32)) - 1)
        }),
        ("mul24.hi.s32", [32, 32, 0, 32], |a, b, _| {
            let low = |v: u64| (v as i32) << 8 >> 8;
            ((i64::from(low(a)) * i64::from(low(b))) >> 16) as u64
        }),
        ("mad24.hi.u32", [32; 4], |a, b, c| {
            (((a & 0xff_ffff) * (b & 0xff_ffff)) >> 16).wrapping_add(c)
        }),
        ("mad.hi.sat.s32", [32; 4], |a, b, c| {
            let high = (i64::from(a as i32) * i64::from(b as i32)) >> 32;
            (high + i64::from(c as i32)).clamp(i32::MIN.into(), i32::MAX.into()) as u64
        }),
        ("slct.b64.s32", [64, 64, 32, 64], |a, b, c| {
            if c >> 31 == 0 {
                a
            } else {
                b
            }
        }),
        ("slct.f32.f32", [32; 4], |a, b, c| {
            let c = f32::from_bits(c as u32);
            if c.is_nan() || c < 0.0 {
                b
            } else {
                a
            }
        }),
        ("slct.ftz.u16.f32", [16, 16, 32, 32], |a, b, c| {
            let c = f32::from_bits(c as u32);
            let flushed = c.is_subnormal();
            (if !flushed && (c.is_nan() || c < 0.0) {
                b
            } else {
                a
            }) & 0xffff
        }),
        ("min.relu.s32", [32, 32, 0, 32], |a, b, _| {
            (a as i32).min(b as i32).max(0) as u64
        }),
        ("max.relu.s32", [32, 32, 0, 32], |a, b, _| {
            (a as i32).max(b as i32).max(0) as u64
        }),
    ];
    check(forms);
    let mut next = random(3);
    let found: Vec<[u64; 3]> = (0..10_000)
        .map(|_| {
            [
                next() & 0xffff_ffff,
                next() % 32,
                (next() % 71).wrapping_sub(35) & 0xffff_ffff,
            ]
        })
        .collect();
    compare(
        &kernel("fns.b32", [32; 4]),
        &found,
        |[mask, base, offset]| {
            // The ISA's own search: steps from `base` until the wanted bit.
            let offset = offset as u32 as i32;
            let (mut at, step) = (base as i32, if offset < 0 { -1 } else { 1 });
            let mut left = if offset == 0 { 1 } else { offset.abs() };
            while (0..32).contains(&at) {
                left -= (mask >> at & 1) as i32;
                if left == 0 {
                    return at as u64;
                }
                if offset == 0 {
                    break;
                }
                at += step;
            }
            0xffff_ffff
        },
    );
}

#[test]
fn properties_of_numbers() {
    type Property = fn(f32) -> bool;
    let names: [(&str, Property); 6] = [
        ("finite", f32::is_finite),
        ("infinite", f32::is_infinite),
        ("number", |v| !v.is_nan()),
        ("notanumber", f32::is_nan),
        ("normal", f32::is_normal),
        ("subnormal", f32::is_subnormal),
    ];
    for (name, property) in names {
        let single = format!("testp.{name}.f32 %p0, %a; selp.b32 %d, 1, 0, %p0;");
        compare(
            &kernel_of(&single, [32, 0, 0, 32]),
            &triples(F32, 3),
            |[a, ..]| u64::from(property(f32::from_bits(a as u32))),
        );
        let double =
            format!("cvt.f64.f32 %d, %b; testp.{name}.f64 %p0, %d; selp.b64 %d, 1, 0, %p0;");
        compare(
            &kernel_of(&double, [0, 32, 0, 64]),
            &triples(F32, 3),
            |[_, b, _]| {
                let v = f32::from_bits(b as u32);
                // In double precision no number of single precision is subnormal.
                u64::from(match name {
                    "normal" => v.is_normal() || v.is_subnormal(),
                    "subnormal" => false,
                    _ => property(v),
                })
            },
        );
    }
}

#[test]
fn bytes_and_halves_side_by_side() {
    for n in [2usize, 4] {
        for types in ["u32.u32.u32", "s32.s32.s32", "s32.u32.u32", "u32.s32.u32"] {
            let signed: Vec<bool> = types.split('.').map(|t| t == "s32").collect();
            for name in ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"] {
                for mode in ["", ".sat", ".add"] {
                    let text = kernel(&format!("{name}{n}.{types}{mode}"), [32; 4]);
                    let bits = 32 / n;
                    compare(&text, &inputs32(), |[a, b, c]| {
                        let (x, y) = (bytes(a, n, signed[1]), bytes(b, n, signed[2]));
                        let results: Vec<i64> = x
                            .iter()
                            .zip(&y)
                            .map(|(x, y)| {
                                let v = match name {
                                    "vadd" => x + y,
                                    "vsub" => x - y,
                                    "vavrg" => (x + y + i64::from(x + y >= 0)).div_euclid(2),
                                    "vabsdiff" => (x - y).abs(),
                                    "vmin" => *x.min(y),
                                    _ => *x.max(y),
                                };
                                let (least, most) = match signed[0] {
                                    true => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
                                    false => (0, (1i64 << bits) - 1),
                                };
                                if mode == ".sat" {
                                    v.clamp(least, most)
                                } else {
                                    v
                                }
                            })
                            .collect();
                        if mode == ".add" {
                            return (c as i64 + results.iter().sum::<i64>()) as u64 & 0xffff_ffff;
                        }
                        let mask = (1u64 << bits) - 1;
                        results
                            .iter()
                            .rev()
                            .fold(0, |all, v| all << bits | *v as u64 & mask)
                    });
                }
            }
        }
    }
    for (form, signed) in [
        ("add.u16x2", false),
        ("add.s16x2", true),
        ("min.u16x2", false),
        ("max.u16x2", false),
        ("min.s16x2", true),
        ("max.relu.s16x2", true),
    ] {
        compare(&kernel(form, [32, 32, 0, 32]), &inputs32(), |[a, b, _]| {
            let pairs = bytes(a, 2, signed).into_iter().zip(bytes(b, 2, signed));
            let one = |(x, y): (i64, i64)| match form.split('.').next() {
                Some("add") => x + y,
                Some("min") => x.min(y),
                _ => x.max(y),
            };
            let relu = |v: i64| if form.contains("relu") { v.max(0) } else { v };
            let all: Vec<i64> = pairs.map(|p| relu(one(p))).collect();
            all[0] as u64 & 0xffff | (all[1] as u64 & 0xffff) << 16
        });
    }
}

#[test]
fn pairs_and_mixed_precision_are_rounded_once() {
    let rounds = [
        ("rn", Round::Nearest),
        ("rz", Round::Zero),
        ("rm", Round::Down),
        ("rp", Round::Up),
    ];
    let nan = |v: u64| if F32.is_nan(v) { F32.nan() } else { v };
    for (name, round) in rounds {
        let reference = |op: &str, [a, b, c]: [u64; 3]| {
            nan(match op {
                "add" => F32.add(a, b, round),
                "sub" => F32.add(a, b ^ F32.sign(), round),
                "mul" => F32.mul(a, b, round),
                _ => F32.fma(a, b, c, round),
            })
        };
        for op in ["add", "sub", "mul", "fma"] {
            let (singles, others) = (triples(F32, 7), triples(F32, 8));
            let pairs: Vec<[u64; 3]> = singles
                .iter()
                .zip(&others)
                .map(|(a, b)| [0, 1, 2].map(|i| a[i] | b[i] << 32))
                .collect();
            let widths = [64, 64, if op == "fma" { 64 } else { 0 }, 64];
            let canonical = |v: u64| nan(v & 0xffff_ffff) | nan(v >> 32) << 32;
            let text = kernel(&format!("{op}.{name}.f32x2"), widths);
            for (input, got) in pairs.iter().zip(super::run(&text, &pairs)) {
                let want = reference(op, input.map(|v| v & 0xffff_ffff))
                    | reference(op, input.map(|v| v >> 32)) << 32;
                assert_eq!(canonical(got), want, "{op}.{name} {input:#x?}");
            }
        }
        for (f, half) in [(F16, "f16"), (BF16, "bf16")] {
            let wide = |v: u64| u64::from((f.double(v) as f32).to_bits());
            let halves = triples(f, 9);
            let singles = triples(F32, 10);
            let inputs: Vec<[u64; 3]> = halves
                .iter()
                .zip(&singles)
                .map(|(h, s)| [h[0], h[1], s[2]])
                .collect();
            let text = kernel(&format!("fma.{name}.f32.{half}"), [16, 16, 32, 32]);
            for (input, got) in inputs.iter().zip(super::run(&text, &inputs)) {
                let want = reference("fma", [wide(input[0]), wide(input[1]), input[2]]);
                assert_eq!(nan(got & 0xffff_ffff), want, "{input:#x?}");
            }
            for op in ["add", "sub"] {
                let text = kernel_of(
                    &format!("{op}.{name}.f32.{half} %d, %a, %c;"),
                    [16, 0, 32, 32],
                );
                for (input, got) in inputs.iter().zip(super::run(&text, &inputs)) {
                    let want = reference(op, [wide(input[0]), input[2], 0]);
                    assert_eq!(nan(got & 0xffff_ffff), want, "{op} {input:#x?}");
                }
            }
        }
    }
}

#[test]
fn extremes_of_three() {
    let all = triples(F32, 12);
    for (base, max) in [("min", false), ("max", true)] {
        for mode in ["", ".NaN", ".xorsign.abs", ".ftz"] {
            compare(&kernel(&format!("{base}{mode}.f32"), [32; 4]), &all, |v| {
                let sign = (v[0] ^ v[1] ^ v[2]) & F32.sign();
                let v = v.map(|v| match mode {
                    ".xorsign.abs" => F32.magnitude(v),
                    ".ftz" => F32.flush(v),
                    _ => v,
                });
                let numbers: Vec<u64> = v.iter().copied().filter(|v| !F32.is_nan(*v)).collect();
                if numbers.is_empty() || mode == ".NaN" && numbers.len() < 3 {
                    return F32.nan();
                }
                let key = |v: &u64| (F32.double(*v), !F32.is_negative(*v));
                let order = |a: &u64, b: &u64| key(a).partial_cmp(&key(b)).unwrap();
                let best = match max {
                    true => numbers.iter().copied().max_by(order),
                    false => numbers.iter().copied().min_by(order),
                };
                best.unwrap() | if mode == ".xorsign.abs" { sign } else { 0 }
            });
        }
    }
}

#[test]
fn integers_are_packed_with_saturation() {
    for (form, width, signed) in [
        ("cvt.pack.sat.s16.s32", 16, true),
        ("cvt.pack.sat.u16.s32", 16, false),
        ("cvt.pack.sat.u8.s32.b32", 8, false),
        ("cvt.pack.sat.s8.s32.b32", 8, true),
        ("cvt.pack.sat.s4.s32.b32", 4, true),
        ("cvt.pack.sat.u2.s32.b32", 2, false),
    ] {
        let text = kernel(
            form,
            if width == 16 {
                [32, 32, 0, 32]
            } else {
                [32; 4]
            },
        );
        compare(&text, &inputs32(), |[a, b, c]| {
            let (least, most) = match signed {
                true => (-(1i64 << (width - 1)), (1 << (width - 1)) - 1),
                false => (0, (1 << width) - 1),
            };
            let one = |v: u64| i64::from(v as i32).clamp(least, most) as u64 & ((1 << width) - 1);
            let above = if width == 16 { 0 } else { c << (2 * width) };
            (one(b) | one(a) << width | above) & 0xffff_ffff
        });
    }
}

#[test]
fn vectors_are_added_to_memory() {
    let text = module(
        "",
        "atom.global.add.v4.f32 {%f0, %f1, %f2, %f3}, [%x0], {0f3F800000, 0f40000000, 0f40400000, 0f40800000};\n\
         st.global.v4.f32 [%x0+32], {%f0, %f1, %f2, %f3}; mov.b32 %r1, 0x3c004000;\n\
         red.relaxed.gpu.global.add.noftz.v2.f16x2 [%x0+16], {%r1, %r1}; multimem.red.relaxed.sys.global.add.u32 [%x0+24], 5;\n\
         multimem.ld_reduce.relaxed.sys.global.add.v2.f32 {%f4, %f5}, [%x0]; multimem.st.global.v2.f32 [%x0+48], {%f4, %f5};\n\
         multimem.ld_reduce.global.add.f32 %f6, [%x0+8]; multimem.st.relaxed.sys.global.f32 [%x0+56], %f6;\n\
         multimem.red.release.gpu.global.max.s32 [%x0+28], -3;",
    );
    let ones = [1f32; 4].map(f32::to_bits);
    let mut words = ones.to_vec();
    words.extend([0x3c00_3c00, 0x4000_4000, 7, -9i32 as u32]);
    words.extend([0; 8]);
    launch(&text, 1, &mut words);
    let sums = [2f32, 3.0, 4.0, 5.0].map(f32::to_bits);
    assert_eq!(words[..4], sums);
    assert_eq!(words[4..8], [0x4000_4200, 0x4200_4400, 12, -3i32 as u32]);
    assert_eq!(words[8..12], ones);
    assert_eq!(words[12..15], [sums[0], sums[1], sums[2]]);
}

#[test]
fn lanes_agree_on_the_extreme_of_single_precision() {
    let mut next = random(31);
    let edges = super::harness::edges(F32);
    for round in 0..60 {
        for (form, max, abs, nan) in [
            ("min", false, false, false),
            ("max.NaN", true, false, true),
            ("max.abs", true, true, false),
            ("min.abs.NaN", false, true, true),
        ] {
            let text = module("", &format!("ld.global.f32 %f1, [%x1]; redux.sync.{form}.f32 %f2, %f1, -1; st.global.f32 [%x1], %f2;"));
            let mut words: Vec<u32> = (0..32)
                .map(|_| match round {
                    0 => 0x7fc0_0001,
                    r if r % 2 == 0 => edges[next() as usize % edges.len()] as u32,
                    _ => next() as u32,
                })
                .collect();
            let mut numbers: Vec<u64> = words
                .iter()
                .map(|w| u64::from(if abs { w & 0x7fff_ffff } else { *w }))
                .collect();
            let count = numbers.len();
            numbers.retain(|v| !F32.is_nan(*v));
            let key = |v: &u64| (F32.double(*v), !F32.is_negative(*v));
            numbers.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap());
            let best = if max { numbers.last() } else { numbers.first() };
            let want = match best {
                Some(v) if !nan || numbers.len() == count => *v as u32,
                _ => 0x7fff_ffff,
            };
            launch(&text, 32, &mut words);
            assert_eq!(words, [want; 32], "{form}");
        }
    }
}

#[test]
fn forms_that_are_not_there_are_refused() {
    for form in [
        "dp4a.u32.u16 %d, %a, %b, %c;",
        "addc.u16 %d, %a, %b;",
        "vadd4.u32.u32.u32.sat.add %d, %a, %b, %c;",
        "vset4.u32.u32.eq %d, %a, %b, %c;",
        "cvt.rn.e4m3x2.f32 %d, %a, %b;",
        "cvt.rs.satfinite.e4m3x4.f32 %d, {%a, %b, %a, %b}, %c;",
        "cvt.rn.satfinite.ue8m0x2.f32 %d, %a, %b;",
        "red.global.add.v2.u32 [%at], {%a, %b};",
        "multimem.st.add.u32 [%at], %a;",
        "bmsk.b32 %d, %a, %b;",
        "prefetch.tensormap [%at];",
    ] {
        refused(form, form.split(' ').next().unwrap());
    }
}

#[test]
fn atomic_operations_of_128_bits() {
    if cfg!(not(target_arch = "x86_64")) {
        return;
    }
    // Threads count in both halves of one number.
    let text = module(
        "",
        ".reg .b128 %q<4>; ld.global.b128 %q0, [%x0];\n\
         again: mov.b128 {%x2, %x3}, %q0; add.u64 %x2, %x2, 1; add.u64 %x3, %x3, 3; mov.b128 %q1, {%x2, %x3};\n\
         atom.acq_rel.gpu.global.cas.b128 %q2, [%x0], %q0, %q1; mov.b128 {%x4, %x5}, %q0; mov.b128 {%x6, %x7}, %q2; mov.b128 %q0, %q2;\n\
         setp.ne.u64 %p1, %x4, %x6; @%p1 bra again; bar.sync 0; setp.ne.u32 %p2, %r0, 0; @%p2 ret; mov.u64 %x8, 5;\n\
         mov.b128 %q3, {%x8, %x8}; atom.relaxed.sys.exch.b128 %q2, [%x0], %q3; st.global.b128 [%x0+16], %q2;",
    );
    let mut words = vec![0; 8];
    launch(&text, 64, &mut words);
    assert_eq!(words, [5, 0, 5, 0, 64, 0, 192, 0]);
}

/// 32 bytes at once, which are checked to the last.
#[test]
fn vectors_of_32_bytes_are_loaded_and_stored() {
    let copy = |at: u32| {
        module(
            "",
            &format!(
                "ld.global.v8.b32 {{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}}, [%x0]; ld.global.v4.b64 {{%x2, %x3, %x4, %x5}}, [%x0];\n\
                 st.global.v4.u64 [%x0+{at}], {{%x5, %x4, %x3, %x2}}; st.global.v8.b32 [%x0+64], {{%r8, %r7, %r6, %r5, %r4, %r3, %r2, %r1}};"
            ),
        )
    };
    let mut words: Vec<u32> = (0..24).collect();
    launch(&copy(32), 1, &mut words);
    assert_eq!(words[8..16], [6, 7, 4, 5, 2, 3, 0, 1]);
    assert_eq!(words[16..], [7, 6, 5, 4, 3, 2, 1, 0]);
    for at in [80, 96, 48] {
        let fault = super::launch::try_launch(&copy(at), 1, &mut words).unwrap_err();
        assert!(
            matches!(
                fault.kind,
                ringbell_gpu::FaultKind::Access {
                    bytes: 32,
                    store: true,
                    ..
                }
            ),
            "{fault:?}"
        );
    }
    refused(
        "ld.global.v8.u64 {%a, %a, %a, %a, %a, %a, %a, %a}, [%at];",
        "ld.global.v8.u64",
    );
    refused(
        "ld.shared.v4.u64 {%n, %n, %n, %n}, [%at];",
        "ld.shared.v4.u64",
    );
    refused(
        "ld.global.v4.b128 {%n, %n, %n, %n}, [%at];",
        "ld.global.v4.b128",
    );
}
