//! Each arithmetic form against Rust's own, with edge values and random inputs.
//!
//! A form is compiled into a kernel of one thread for each pair of inputs: three operands in, one
//! result out.
#![allow(missing_docs)] // Tests.

mod approximate;
mod asynchronous;
mod calls;
mod conversions;
mod directed;
mod exact;
mod extended;
mod half;
mod harness;
mod launch;
mod litmus;
mod matrix;
mod refused;
mod small;
mod system;
mod waits;

use harness::{kernel, run};

/// Edge values in all combinations, then random ones.
fn inputs() -> Vec<[u64; 3]> {
    let edges = [
        0u64,
        1,
        2,
        7,
        31,
        32,
        33,
        63,
        64,
        0x7f,
        0x80,
        0xff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x3f80_0000,
        0x7f80_0000,
        0x7fc0_0000,
        0x0000_0001_0000_0000,
        0x7fff_ffff_ffff_ffff,
        0x8000_0000_0000_0000,
        0xffff_ffff_ffff_ffff,
        0x3ff0_0000_0000_0000,
        0x7ff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0xc1e0_0000_0000_0000,
        0x4f00_0000,
        0xbf00_0000,
    ];
    let mut all = Vec::new();
    for a in edges {
        for b in edges {
            all.push([a, b, edges[(a ^ b) as usize % edges.len()]]);
        }
    }
    let mut x = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for _ in 0..4000 {
        all.push([next(), next(), next()]);
    }
    // Shift amounts, positions and lengths are small in programs.
    for _ in 0..1000 {
        all.push([next(), next() % 70, next() % 70]);
    }
    all
}

type Reference = fn(u64, u64, u64) -> u64;

/// Opcode, widths of operands and result, reference.
type Form = (&'static str, [u32; 4], Reference);

fn check(forms: &[Form]) {
    let inputs = inputs();
    for (opcode, widths, reference) in forms {
        let text = kernel(opcode, *widths);
        let cut = |v: u64, w: u32| if w == 32 { u64::from(v as u32) } else { v };
        for (input, got) in inputs.iter().zip(run(&text, &inputs)) {
            let [a, b, c] = *input;
            let want = reference(cut(a, widths[0]), cut(b, widths[1]), cut(c, widths[2]));
            let (got, want) = (cut(got, widths[3]), cut(want, widths[3]));
            // Single precision has one NaN; the ISA leaves open which it is in double precision.
            let both_nan = match widths[3] {
                _ if !opcode.contains(".f") => false,
                32 => f32::from_bits(want as u32).is_nan() && got == 0x7fff_ffff,
                _ => f64::from_bits(got).is_nan() && f64::from_bits(want).is_nan(),
            };
            assert!(
                got == want || both_nan,
                "{opcode} {a:#x} {b:#x} {c:#x}: {got:#x}, not {want:#x}"
            );
        }
    }
}

macro_rules! int {
    ($v:ident, $t:ty) => {
        $v as $t
    };
}

macro_rules! f2 {
    ($f:expr) => {
        |a, b, _| {
            let f: fn(f32, f32) -> f32 = $f;
            u64::from(f(f32::from_bits(a as u32), f32::from_bits(b as u32)).to_bits())
        }
    };
}

macro_rules! d2 {
    ($f:expr) => {
        |a, b, _| {
            let f: fn(f64, f64) -> f64 = $f;
            f(f64::from_bits(a), f64::from_bits(b)).to_bits()
        }
    };
}

const W32: [u32; 4] = [32, 32, 0, 32];
const W64: [u32; 4] = [64, 64, 0, 64];
const U32: [u32; 4] = [32, 0, 0, 32];
const U64: [u32; 4] = [64, 0, 0, 64];

fn flush(v: f32) -> f32 {
    if v.is_subnormal() {
        0f32.copysign(v)
    } else {
        v
    }
}

#[test]
fn integer_arithmetic() {
    check(&[
        ("add.s32", W32, |a, b, _| a.wrapping_add(b)),
        ("add.sat.s32", W32, |a, b, _| {
            u64::from(int!(a, i32).saturating_add(b as i32) as u32)
        }),
        ("sub.sat.s32", W32, |a, b, _| {
            u64::from(int!(a, i32).saturating_sub(b as i32) as u32)
        }),
        ("sub.u64", W64, |a, b, _| a.wrapping_sub(b)),
        ("mul.lo.s32", W32, |a, b, _| a.wrapping_mul(b)),
        ("mul.hi.u32", W32, |a, b, _| (a * b) >> 32),
        ("mul.hi.s32", W32, |a, b, _| {
            ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u64
        }),
        ("mul.hi.u64", W64, |a, b, _| {
            ((u128::from(a) * u128::from(b)) >> 64) as u64
        }),
        ("mul.hi.s64", W64, |a, b, _| {
            ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
        }),
        ("mul.wide.u32", [32, 32, 0, 64], |a, b, _| a * b),
        ("mul.wide.s32", [32, 32, 0, 64], |a, b, _| {
            (i64::from(a as i32) * i64::from(b as i32)) as u64
        }),
        ("mad.lo.s32", [32; 4], |a, b, c| {
            a.wrapping_mul(b).wrapping_add(c)
        }),
        ("mad.wide.u32", [32, 32, 64, 64], |a, b, c| {
            (a * b).wrapping_add(c)
        }),
        ("mul24.lo.s32", W32, |a, b, _| {
            let low = |v: u64| (v as i32) << 8 >> 8;
            u64::from(low(a).wrapping_mul(low(b)) as u32)
        }),
        ("sad.s32", [32; 4], |a, b, c| {
            c.wrapping_add(u64::from((a as i32).abs_diff(b as i32)))
        }),
        ("sad.u64", [64; 4], |a, b, c| c.wrapping_add(a.abs_diff(b))),
        ("div.u32", W32, |a, b, _| a.checked_div(b).unwrap_or(!0)),
        ("div.s32", W32, |a, b, _| {
            if b == 0 {
                !0
            } else {
                u64::from((a as i32).wrapping_div(b as i32) as u32)
            }
        }),
        ("div.s64", W64, |a, b, _| {
            if b == 0 {
                !0
            } else {
                (a as i64).wrapping_div(b as i64) as u64
            }
        }),
        ("div.u64", W64, |a, b, _| a.checked_div(b).unwrap_or(!0)),
        ("rem.u32", W32, |a, b, _| a.checked_rem(b).unwrap_or(a)),
        ("rem.s64", W64, |a, b, _| {
            if b == 0 {
                a
            } else {
                (a as i64).wrapping_rem(b as i64) as u64
            }
        }),
        ("min.s32", W32, |a, b, _| {
            u64::from((a as i32).min(b as i32) as u32)
        }),
        ("max.u64", W64, |a, b, _| a.max(b)),
        ("neg.s32", U32, |a, _, _| a.wrapping_neg()),
        ("abs.s64", U64, |a, _, _| (a as i64).wrapping_abs() as u64),
        ("not.b64", U64, |a, _, _| !a),
        ("cnot.b32", U32, |a, _, _| u64::from(a == 0)),
    ]);
}

#[test]
fn bits_and_bytes() {
    check(&[
        ("and.b32", W32, |a, b, _| a & b),
        ("or.b64", W64, |a, b, _| a | b),
        ("xor.b32", W32, |a, b, _| a ^ b),
        ("shl.b32", W32, |a, b, _| if b < 32 { a << b } else { 0 }),
        ("shr.u32", W32, |a, b, _| if b < 32 { a >> b } else { 0 }),
        ("shr.s32", W32, |a, b, _| {
            u64::from((a as i32 >> b.min(31)) as u32)
        }),
        (
            "shl.b64",
            [64, 32, 0, 64],
            |a, b, _| if b < 64 { a << b } else { 0 },
        ),
        ("shr.s64", [64, 32, 0, 64], |a, b, _| {
            ((a as i64) >> b.min(63)) as u64
        }),
        ("shf.l.wrap.b32", [32; 4], |a, b, c| {
            ((b << 32 | a) << (c & 31)) >> 32
        }),
        ("shf.r.clamp.b32", [32; 4], |a, b, c| {
            (b << 32 | a) >> c.min(32)
        }),
        ("popc.b64", [64, 0, 0, 32], |a, _, _| {
            u64::from(a.count_ones())
        }),
        ("clz.b32", U32, |a, _, _| {
            u64::from((a as u32).leading_zeros())
        }),
        ("clz.b64", [64, 0, 0, 32], |a, _, _| {
            u64::from(a.leading_zeros())
        }),
        ("brev.b32", U32, |a, _, _| {
            u64::from((a as u32).reverse_bits())
        }),
        ("bfind.u32", U32, |a, _, _| {
            if a == 0 {
                !0
            } else {
                31 - u64::from((a as u32).leading_zeros())
            }
        }),
        ("bfind.s64", [64, 0, 0, 32], |a, _, _| {
            let v = if (a as i64) < 0 { !a } else { a };
            if v == 0 {
                !0
            } else {
                63 - u64::from(v.leading_zeros())
            }
        }),
        ("bfind.shiftamt.u32", U32, |a, _, _| {
            if a == 0 {
                !0
            } else {
                u64::from((a as u32).leading_zeros())
            }
        }),
        ("bfe.u32", [32; 4], |a, b, c| {
            let bits = (0..c & 255).filter(|i| i + (b & 255) < 32);
            bits.fold(0, |v, i| {
                if i < 32 {
                    v | (a >> (i + (b & 255)) & 1) << i
                } else {
                    v
                }
            })
        }),
        ("bfe.s64", [64, 32, 32, 64], |a, b, c| {
            let (at, len) = (b & 255, c & 255);
            if len == 0 {
                return 0;
            }
            let sign = a >> (at + len - 1).min(63) & 1;
            (0..64).fold(0, |v, i| {
                let bit = if i < len && at + i <= 63 {
                    a >> (at + i) & 1
                } else {
                    sign
                };
                v | bit << i
            })
        }),
        ("prmt.b32", [32; 4], |a, b, c| {
            let bytes = b << 32 | a;
            (0..4).fold(0, |v, k| {
                let n = c >> (4 * k) & 15;
                let byte = bytes >> (8 * (n & 7)) & 255;
                let byte = if n & 8 == 0 { byte } else { (byte >> 7) * 255 };
                v | byte << (8 * k)
            })
        }),
    ]);
}

#[test]
fn floating_point() {
    check(&[
        ("add.rn.f32", W32, f2!(|a, b| a + b)),
        ("add.ftz.f32", W32, f2!(|a, b| flush(flush(a) + flush(b)))),
        (
            "add.sat.f32",
            W32,
            f2!(|a, b| if (a + b).is_nan() {
                0.0
            } else {
                (a + b).clamp(0.0, 1.0) + 0.0
            }),
        ),
        ("sub.f32", W32, f2!(|a, b| a - b)),
        ("mul.rn.f32", W32, f2!(|a, b| a * b)),
        ("div.rn.f32", W32, f2!(|a, b| a / b)),
        ("add.f64", W64, d2!(|a, b| a + b)),
        ("mul.f64", W64, d2!(|a, b| a * b)),
        ("div.rn.f64", W64, d2!(|a, b| a / b)),
        ("fma.rn.f32", [32; 4], |a, b, c| {
            let [a, b, c] = [a, b, c].map(|v| f32::from_bits(v as u32));
            u64::from(a.mul_add(b, c).to_bits())
        }),
        ("fma.rn.f64", [64; 4], |a, b, c| {
            let [a, b, c] = [a, b, c].map(f64::from_bits);
            a.mul_add(b, c).to_bits()
        }),
        ("sqrt.rn.f32", U32, f2!(|a, _| a.sqrt())),
        ("sqrt.rn.f64", U64, d2!(|a, _| a.sqrt())),
        ("rcp.rn.f32", U32, f2!(|a, _| 1.0 / a)),
        ("neg.f32", U32, |a, _, _| a ^ 0x8000_0000),
        ("abs.f64", U64, |a, _, _| a & !(1 << 63)),
        ("copysign.f32", W32, |a, b, _| {
            (b & 0x7fff_ffff) | (a & 0x8000_0000)
        }),
        (
            "min.f32",
            W32,
            f2!(|a, b| match (a.is_nan(), b.is_nan()) {
                (true, _) => b,
                (_, true) => a,
                _ if a == b =>
                    if a.is_sign_negative() {
                        a
                    } else {
                        b
                    },
                _ =>
                    if a < b {
                        a
                    } else {
                        b
                    },
            }),
        ),
        (
            "max.NaN.f64",
            W64,
            d2!(|a, b| {
                if a.is_nan() || b.is_nan() {
                    return f64::NAN;
                }
                if a == b {
                    return if a.is_sign_negative() { b } else { a };
                }
                if a > b {
                    a
                } else {
                    b
                }
            }),
        ),
    ]);
}

#[test]
fn comparisons_and_conversions() {
    check(&[
        ("setp.lt.s32", W32, |a, b, _| {
            u64::from((a as i32) < b as i32)
        }),
        ("setp.hi.u64", [64, 64, 0, 32], |a, b, _| u64::from(a > b)),
        ("setp.ne.f32", W32, |a, b, _| {
            let (a, b) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            u64::from(!a.is_nan() && !b.is_nan() && a != b)
        }),
        ("setp.geu.f64", [64, 64, 0, 32], |a, b, _| {
            let (a, b) = (f64::from_bits(a), f64::from_bits(b));
            u64::from(a >= b || a.is_nan() || b.is_nan())
        }),
        ("setp.num.f32", W32, |a, b, _| {
            u64::from(!f32::from_bits(a as u32).is_nan() && !f32::from_bits(b as u32).is_nan())
        }),
        ("set.lt.u32.s32", W32, |a, b, _| {
            if (a as i32) < b as i32 {
                0xffff_ffff
            } else {
                0
            }
        }),
        ("cvt.s64.s32", [32, 0, 0, 64], |a, _, _| {
            i64::from(a as i32) as u64
        }),
        ("cvt.u64.u32", [32, 0, 0, 64], |a, _, _| a),
        ("cvt.s32.s8", U32, |a, _, _| i64::from(a as i8) as u64),
        ("cvt.u32.u16", U32, |a, _, _| a & 0xffff),
        ("cvt.sat.s8.s32", U32, |a, _, _| {
            u64::from((a as i32).clamp(-128, 127) as u32)
        }),
        ("cvt.sat.u16.s32", U32, |a, _, _| {
            (a as i32).clamp(0, 65535) as u64
        }),
        ("cvt.rn.f32.s32", U32, |a, _, _| {
            u64::from((a as i32 as f32).to_bits())
        }),
        ("cvt.rn.f32.u64", [64, 0, 0, 32], |a, _, _| {
            u64::from((a as f32).to_bits())
        }),
        ("cvt.rn.f64.s64", U64, |a, _, _| (a as i64 as f64).to_bits()),
        ("cvt.rzi.s32.f32", U32, |a, _, _| {
            u64::from(f32::from_bits(a as u32) as i32 as u32)
        }),
        ("cvt.rni.u32.f32", U32, |a, _, _| {
            u64::from(f32::from_bits(a as u32).round_ties_even() as u32)
        }),
        ("cvt.rmi.s64.f64", U64, |a, _, _| {
            let v = f64::from_bits(a);
            if v.is_nan() {
                1 << 63
            } else {
                v.floor() as i64 as u64
            }
        }),
        ("cvt.rzi.u8.f32", U32, |a, _, _| {
            u64::from(f32::from_bits(a as u32) as u8)
        }),
        ("cvt.rpi.f32.f32", U32, f2!(|a, _| a.ceil())),
        ("cvt.f64.f32", [32, 0, 0, 64], |a, _, _| {
            f64::from(f32::from_bits(a as u32)).to_bits()
        }),
        ("cvt.rn.f32.f64", [64, 0, 0, 32], |a, _, _| {
            u64::from((f64::from_bits(a) as f32).to_bits())
        }),
    ]);
}

/// A predicate is one bit: compilers write the constant that is true as -1.
#[test]
fn predicates_of_constants() {
    let text = |op: &str| {
        harness::kernel_of(
            &format!("setp.ne.u64 %p0, %a, 0; mov.pred %p1, -1; {op} selp.b32 %d, 1, 0, %p2;"),
            [64, 64, 64, 32],
        )
    };
    let inputs = [[0; 3], [5; 3]];
    type Case = (&'static str, fn(bool) -> bool);
    let cases: [Case; 7] = [
        ("not.pred %p2, %p1;", |_| false),
        ("xor.pred %p2, %p1, %p0;", |a| !a),
        ("xor.pred %p2, -1, %p0;", |a| !a),
        ("and.pred %p2, %p1, %p0;", |a| a),
        ("or.pred %p2, %p0, 0;", |a| a),
        ("mov.pred %p2, 0; @!%p1 mov.pred %p2, 1;", |_| false),
        ("setp.eq.and.u64 %p2, %a, %a, !%p1;", |_| false),
    ];
    for (op, want) in cases {
        let got = harness::run(&text(op), &inputs);
        let want = inputs.map(|[a, ..]| u64::from(want(a != 0)));
        assert_eq!(got, want, "{op}");
    }
}

/// The SDK's own kernels, for the other kind of host.
#[cfg(feature = "arm64")]
#[test]
fn kernels_of_the_sdk_are_compiled_for_aarch64() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda-kernels/ptx");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "ptx") {
            harness::also_for_aarch64(&std::fs::read_to_string(path).unwrap());
        }
    }
}
