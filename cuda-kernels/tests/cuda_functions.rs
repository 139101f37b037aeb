//! CUDA functions of 32 and 64 bits, each by a kernel of its own that clang has compiled with the
//! headers of include/cuda.
//!
//! The kernels are `kernels/cuda_functions.cu`; their PTX is kept, so that no compiler is needed.
//! The reference is Rust's own arithmetic. Functions of threads are in `cuda_threads.rs`, of
//! floating point in `cuda_single.rs`, `cuda_math.rs`.
#![allow(unsafe_code)] // Loads kernels.

use crate::ptx_files::{launch, numbers, with_ptx, Io, Seen};

fn f(v: u32) -> f32 {
    f32::from_bits(v)
}

/// NaN as PTX's instructions make it; of others the bits.
fn bits(v: f32) -> u64 {
    u64::from(if v.is_nan() { 0x7fff_ffff } else { v.to_bits() })
}

fn dbits(v: f64) -> u64 {
    if v.is_nan() {
        0x7fff_ffff_ffff_ffff
    } else {
        v.to_bits()
    }
}

/// Any NaN equals any other.
fn same(a: u64, b: u64, kernel: &str) -> bool {
    let single = |v: u64| v >> 32 == 0 && f(v as u32).is_nan();
    let double = |v: u64| f64::from_bits(v).is_nan();
    let float =
        kernel.starts_with('f') || kernel.starts_with("copysign") || kernel.starts_with('d');
    a == b || (float && ((single(a) && single(b)) || (double(a) && double(b))))
}

fn each<T: Copy>(a: u32, b: u32, from: fn(u32) -> T, step: u32, op: impl Fn(T, T) -> u32) -> u64 {
    let mask = if step == 8 { 0xff } else { 0xffff };
    let parts = (0..32).step_by(step as usize);
    u64::from(parts.fold(0, |r, i| r | (op(from(a >> i), from(b >> i)) & mask) << i))
}

/// The sum or product of two numbers, exact enough to round it to single precision in any
/// direction.
fn rounded(exact: f64, up: bool) -> u64 {
    let nearest = exact as f32;
    let wrong = if up {
        f64::from(nearest) < exact
    } else {
        f64::from(nearest) > exact
    };
    let fixed = match (wrong, up) {
        (true, true) => nearest.next_up(),
        (true, false) => nearest.next_down(),
        (false, _) => nearest,
    };
    bits(fixed)
}

type WordCase = (&'static str, fn(u32, u32, u32) -> u64);

fn i(v: u32) -> i64 {
    i64::from(v as i32)
}

fn u(v: u32) -> u64 {
    u64::from(v)
}

fn low(v: i64) -> u64 {
    u64::from(v as u32)
}

fn signed24(v: u32) -> i64 {
    i64::from((v << 8) as i32 >> 8)
}

fn byte(v: u32, n: u32) -> u32 {
    v >> (8 * n) & 0xff
}

fn find_nth(mask: u32, base: u32, offset: i32) -> u64 {
    let set = |at: i64| (0..32).contains(&at) && mask >> at & 1 == 1;
    let base = i64::from(base);
    if offset == 0 {
        return if set(base) { base as u64 } else { 0xffff_ffff };
    }
    let step = i64::from(offset.signum());
    let found = (0..32).map(|k| base + k * step).filter(|at| set(*at));
    let mut found = found.skip(offset.unsigned_abs() as usize - 1);
    found.next().map_or(0xffff_ffff, |at| at as u64)
}

const WORDS: &[WordCase] = &[
    ("popc", |a, _, _| u(a.count_ones())),
    ("clz", |a, _, _| u(a.leading_zeros())),
    (
        "ffs",
        |a, _, _| if a == 0 { 0 } else { u(a.trailing_zeros() + 1) },
    ),
    ("brev", |a, _, _| u(a.reverse_bits())),
    ("byte_perm", |a, b, c| {
        let at = |n: u32| c >> (4 * n) & 7;
        let pick = |k: u32| if k < 4 { byte(a, k) } else { byte(b, k - 4) };
        u((0..4).fold(0, |r, n| r | pick(at(n)) << (8 * n)))
    }),
    ("funnelshift_l", |a, b, c| {
        (u(b) << 32 | u(a)) << (c & 31) >> 32
    }),
    ("funnelshift_lc", |a, b, c| {
        if c >= 32 {
            u(a)
        } else {
            (u(b) << 32 | u(a)) << c >> 32
        }
    }),
    ("funnelshift_r", |a, b, c| {
        u(((u(b) << 32 | u(a)) >> (c & 31)) as u32)
    }),
    ("funnelshift_rc", |a, b, c| {
        u(((u(b) << 32 | u(a)) >> c.min(32)) as u32)
    }),
    ("mulhi", |a, b, _| low((i(a) * i(b)) >> 32)),
    ("umulhi", |a, b, _| (u(a) * u(b)) >> 32),
    (
        "mul24",
        |a, b, _| low(signed24(a).wrapping_mul(signed24(b))),
    ),
    ("umul24", |a, b, _| {
        u(((u(a) & 0xff_ffff) * (u(b) & 0xff_ffff)) as u32)
    }),
    ("hadd", |a, b, _| low((i(a) + i(b)) >> 1)),
    ("rhadd", |a, b, _| low((i(a) + i(b) + 1) >> 1)),
    ("uhadd", |a, b, _| (u(a) + u(b)) >> 1),
    ("urhadd", |a, b, _| (u(a) + u(b) + 1) >> 1),
    ("sad", |a, b, c| {
        u((a as i32).abs_diff(b as i32).wrapping_add(c))
    }),
    ("usad", |a, b, c| u(a.abs_diff(b).wrapping_add(c))),
    ("dp4a", |a, b, c| {
        let dot = |n| i64::from(byte(a, n) as i8) * i64::from(byte(b, n) as i8);
        low(i(c) + (0..4).map(dot).sum::<i64>())
    }),
    ("dp4a_u", |a, b, c| {
        u(c.wrapping_add((0..4).map(|n| byte(a, n) * byte(b, n)).sum()))
    }),
    ("dp2a_lo", |a, b, c| {
        let one = i64::from(a as i16) * i64::from(byte(b, 0) as i8);
        low(i(c) + one + i64::from((a >> 16) as i16) * i64::from(byte(b, 1) as i8))
    }),
    ("dp2a_hi_u", |a, b, c| {
        u(c.wrapping_add((a & 0xffff) * byte(b, 2))
            .wrapping_add((a >> 16) * byte(b, 3)))
    }),
    ("vadd4", |a, b, _| {
        each(a, b, |v| v as u8, 8, |x, y| u32::from(x.wrapping_add(y)))
    }),
    ("vsub2", |a, b, _| {
        each(a, b, |v| v as u16, 16, |x, y| u32::from(x.wrapping_sub(y)))
    }),
    ("vaddss2", |a, b, _| {
        each(a, b, |v| v as i16, 16, |x, y| x.saturating_add(y) as u32)
    }),
    ("vsubus4", |a, b, _| {
        each(a, b, |v| v as u8, 8, |x, y| u32::from(x.saturating_sub(y)))
    }),
    ("vabsdiffu4", |a, b, _| {
        each(a, b, |v| v as u8, 8, |x, y| u32::from(x.abs_diff(y)))
    }),
    ("vsadu4", |a, b, _| {
        (0..4).map(|n| u(byte(a, n).abs_diff(byte(b, n)))).sum()
    }),
    ("vmaxs4", |a, b, _| {
        each(a, b, |v| v as i8, 8, |x, y| x.max(y) as u32)
    }),
    ("vminu2", |a, b, _| {
        each(a, b, |v| v as u16, 16, |x, y| u32::from(x.min(y)))
    }),
    ("vavgu4", |a, b, _| {
        each(
            a,
            b,
            |v| v as u8,
            8,
            |x, y| (u32::from(x) + u32::from(y)).div_ceil(2),
        )
    }),
    ("vcmpeq4", |a, b, _| {
        each(a, b, |v| v as u8, 8, |x, y| if x == y { 0xff } else { 0 })
    }),
    ("vcmpgts2", |a, b, _| {
        each(
            a,
            b,
            |v| v as i16,
            16,
            |x, y| if x > y { 0xffff } else { 0 },
        )
    }),
    ("min", |a, b, _| low(i(a).min(i(b)))),
    ("max", |a, b, _| u(a.max(b))),
    ("abs", |a, _, _| u((a as i32).unsigned_abs())),
    ("fns", |a, b, c| find_nth(a, b & 31, (c % 9) as i32 - 4)),
    ("float2int_rn", |a, _, _| {
        u(f(a).round_ties_even() as i32 as u32)
    }),
    ("float2int_rz", |a, _, _| u(f(a) as i32 as u32)),
    ("float2uint_ru", |a, _, _| u(f(a).ceil() as u32)),
    ("float2ll_rd", |a, _, _| {
        if f(a).is_nan() {
            1 << 63
        } else {
            f(a).floor() as i64 as u64
        }
    }),
    ("int2float_rz", |a, _, _| {
        rounded(f64::from(a as i32), (a as i32) < 0)
    }),
    ("uint2float_ru", |a, _, _| rounded(f64::from(a), true)),
    ("fadd_rd", |a, b, _| {
        let (x, y) = (f64::from(f(a)), f64::from(f(b)));
        // A sum of numbers far apart is not exact in double precision either: what the rounding
        // dropped decides.
        let (s, exact) = (x + y, (x + y) - x == y && (x + y) - y == x);
        if exact || !s.is_finite() {
            if s == 0.0 && (f(a) != f(b) || a != b) && (x != 0.0 || a >> 31 != b >> 31) {
                1 << 31
            } else {
                rounded(s, false)
            }
        } else {
            let dropped = if x.abs() > y.abs() {
                y - (s - x)
            } else {
                x - (s - y)
            };
            rounded(
                if dropped < 0.0 {
                    s.next_down()
                } else {
                    s.next_up()
                },
                false,
            )
        }
    }),
    ("fmul_ru", |a, b, _| {
        rounded(f64::from(f(a)) * f64::from(f(b)), true)
    }),
    ("fmaf_rz", |a, b, c| {
        let (x, y, z) = (f64::from(f(a)), f64::from(f(b)), f64::from(f(c)));
        let p = x * y;
        let s = p + z;
        let dropped = if !s.is_finite() {
            0.0
        } else if p.abs() > z.abs() {
            z - (s - p)
        } else {
            p - (s - z)
        };
        let s = if dropped < 0.0 {
            s.next_down()
        } else if dropped > 0.0 {
            s.next_up()
        } else {
            s
        };
        rounded(s, s < 0.0)
    }),
    ("fdiv_rn", |a, b, _| bits(f(a) / f(b))),
    ("frcp_rn", |a, _, _| bits(1.0 / f(a))),
    ("fsqrt_rn", |a, _, _| bits(f(a).sqrt())),
    ("frsqrt_rn", |a, _, _| {
        bits((1.0 / f64::from(f(a)).sqrt()) as f32)
    }),
    ("fminf", |a, b, _| least(f(a), f(b))),
    ("fmaxf", |a, b, _| {
        least(-f(a), -f(b))
            ^ if f(a).is_nan() && f(b).is_nan() {
                0
            } else {
                1 << 31
            }
    }),
    ("copysignf", |a, b, _| u(a & 0x7fff_ffff | b & 0x8000_0000)),
    ("saturatef", |a, _, _| {
        bits(if f(a) > 0.0 { f(a).min(1.0) } else { 0.0 })
    }),
    ("isnan", |a, _, _| {
        let v = f(a);
        u64::from(v.is_nan())
            + 2 * u64::from(v.is_infinite())
            + 4 * u64::from(v.is_finite())
            + 8 * u(a >> 31)
    }),
    ("double2float_rz", |a, _, _| {
        let v = f64::from(f(a)) * 1.1;
        rounded(v, v < 0.0)
    }),
    ("hiloint2double", |a, b, _| u(a) << 32 | u(b)),
    (
        "vectors",
        |a, _, _| u(a.wrapping_add(7 + 3 + 3 + 2 + 2 + 4)),
    ),
];

/// The smaller one; a NaN loses, and -0 is below 0.
fn least(a: f32, b: f32) -> u64 {
    if a.is_nan() || b.is_nan() {
        return bits(if a.is_nan() { b } else { a });
    }
    bits(if a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    })
}

#[test]
fn functions_of_32_bits_give_what_rust_computes() {
    let gpu = with_ptx("cuda_functions.ptx");
    let seen = Seen::of(&gpu, "w_");
    let n = 256;
    let inputs: Vec<u32> = numbers(3 * n, 1).iter().map(|v| *v as u32).collect();
    let io = Io::new(&gpu, &inputs, n * 8);
    for (name, reference) in WORDS {
        let kernel = format!("w_{name}");
        seen.mark(&kernel);
        launch(&gpu, &kernel, 2, n as u32 / 2, &io.args()).unwrap();
        for (v, got) in inputs.chunks(3).zip(io.words()) {
            let want = reference(v[0], v[1], v[2]);
            assert!(
                same(got, want, name),
                "{name}({:#x}, {:#x}, {:#x}) = {got:#x}, not {want:#x}",
                v[0],
                v[1],
                v[2]
            );
        }
    }
}

type LongCase = (&'static str, fn(u64, u64) -> u64);

fn d(v: u64) -> f64 {
    f64::from_bits(v)
}

const LONGS: &[LongCase] = &[
    ("popcll", |a, _| u(a.count_ones())),
    ("clzll", |a, _| u(a.leading_zeros())),
    (
        "ffsll",
        |a, _| if a == 0 { 0 } else { u(a.trailing_zeros() + 1) },
    ),
    ("brevll", |a, _| a.reverse_bits()),
    ("mul64hi", |a, b| {
        ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
    }),
    ("umul64hi", |a, b| {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    }),
    ("min", |a, b| (a as i64).min(b as i64) as u64),
    ("double2ll_rn", |a, _| {
        if d(a).is_nan() {
            1 << 63
        } else {
            d(a).round_ties_even() as i64 as u64
        }
    }),
    ("double2int_ru", |a, _| {
        if d(a).is_nan() {
            1 << 31
        } else {
            u(d(a).ceil() as i32 as u32)
        }
    }),
    ("ll2double_rd", |a, _| {
        let (v, near) = (a as i64, a as i64 as f64);
        dbits(if near as i128 > i128::from(v) {
            near.next_down()
        } else {
            near
        })
    }),
    ("ull2float_rn", |a, _| bits(a as f32)),
    ("dadd_ru", |a, b| {
        let s = d(a) + d(b);
        if !s.is_finite() {
            return dbits(s);
        }
        let t = s - d(a);
        let rest = (d(a) - (s - t)) + (d(b) - t);
        dbits(if rest > 0.0 { s.next_up() } else { s })
    }),
    ("dmul_rz", |a, b| {
        let p = d(a) * d(b);
        if !p.is_finite() && d(a).is_finite() && d(b).is_finite() {
            return dbits(f64::MAX.copysign(p));
        }
        if !p.is_finite() || p.abs() < 1e-290 {
            // The rest of such a product is below the smallest number: by integers.
            return if p.abs() < 1e-290 {
                product_to_zero(a, b)
            } else {
                dbits(p)
            };
        }
        let rest = d(a).mul_add(d(b), -p);
        let away = rest != 0.0 && (rest < 0.0) == (p > 0.0);
        dbits(if !away {
            p
        } else if p > 0.0 {
            p.next_down()
        } else {
            p.next_up()
        })
    }),
    ("ddiv_rn", |a, b| dbits(d(a) / d(b))),
    ("dsqrt_rn", |a, _| dbits(d(a).sqrt())),
    ("double2hiint", |a, _| {
        (a >> 32).wrapping_add((a & 0xffff_ffff) * 3)
    }),
];

/// The product of small finite numbers, cut off.
fn product_to_zero(a: u64, b: u64) -> u64 {
    let parts = |v: u64| {
        let (e, m) = ((v >> 52 & 0x7ff) as i32, v & ((1 << 52) - 1));
        if e == 0 {
            (m, -1074)
        } else {
            (m | 1 << 52, e - 1075)
        }
    };
    let ((m, e), (n, g)) = (parts(a), parts(b));
    let (mut p, mut x) = (u128::from(m) * u128::from(n), e + g);
    while p >> 53 != 0 || (x < -1074 && p != 0) {
        p >>= 1;
        x += 1;
    }
    while p != 0 && p >> 52 == 0 && x > -1074 {
        p <<= 1;
        x -= 1;
    }
    let biased = if p >> 52 == 0 { 0 } else { (x + 1075) as u64 };
    (a ^ b) & 1 << 63
        | if p == 0 {
            0
        } else {
            biased << 52 | p as u64 & ((1 << 52) - 1)
        }
}

#[test]
fn functions_of_64_bits_give_what_rust_computes() {
    let gpu = with_ptx("cuda_functions.ptx");
    let seen = Seen::of(&gpu, "l_");
    let n = 256;
    let inputs = numbers(2 * n, 2);
    let io = Io::new(&gpu, &inputs, n * 8);
    for (name, reference) in LONGS {
        let kernel = format!("l_{name}");
        seen.mark(&kernel);
        launch(&gpu, &kernel, 2, n as u32 / 2, &io.args()).unwrap();
        for (v, got) in inputs.chunks(2).zip(io.words()) {
            let want = reference(v[0], v[1]);
            let ok = same(got, want, name);
            assert!(
                ok,
                "{name}({:#x}, {:#x}) = {got:#x}, not {want:#x}",
                v[0], v[1]
            );
        }
    }
}
