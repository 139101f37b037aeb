//! Instructions that are computed of up to three words: dot products, bytes and halves side by
//! side, small formats.

use super::exact::Format;
use crate::module::{flag, PureKind, PureOp, SmallFormat, SMALL};

/// Executes a packed [`PureOp`].
pub(crate) extern "C" fn pure(op: u32, a: u64, b: u64, c: u64) -> u64 {
    let op = PureOp::unpack(op);
    let (x, y, z) = (a as u32, b as u32, c as u32);
    match op.kind {
        PureKind::Dot4 | PureKind::Dot2 => u64::from(dot(op, x, y).wrapping_add(z)),
        PureKind::Mask => u64::from(mask(op, x, y)),
        PureKind::Extend => u64::from(extend(op, x, y)),
        PureKind::NthSet => u64::from(nth_set(x, y, c as i32)),
        PureKind::BySign => {
            let positive = match op.has(flag::FIRST) {
                // A NaN is not at or above 0, and -0 is, which `.ftz` makes of subnormals.
                true => {
                    let flushed = op.has(flag::RELU) && f32::from_bits(z).is_subnormal();
                    flushed || f32::from_bits(z) >= 0.0
                }
                false => c as i32 >= 0,
            };
            if positive {
                a
            } else {
                b
            }
        }
        PureKind::Test => u64::from(has_property(op, a)),
        PureKind::ReluMin => (x as i32).min(y as i32).max(0) as u64,
        PureKind::ReluMax => (x as i32).max(y as i32).max(0) as u64,
        PureKind::SmallOfSingle => {
            let high = to_small(op, f64::from(f32::from_bits(x)));
            let low = to_small(op, f64::from(f32::from_bits(y)));
            join(op, low, high)
        }
        PureKind::SmallOfHalves => {
            let high = to_small(op, Format::F16.double(u64::from(x >> 16)));
            let low = to_small(op, Format::F16.double(u64::from(x & 0xffff)));
            join(op, low, high)
        }
        PureKind::HalvesOfSmall => {
            let f = format(op);
            let part = |v: u32| {
                let v = from_small(f, (v & ((1 << f.bits) - 1)) as u8);
                let bits = Format::F16.of_double(v);
                let negative = bits & 0x8000 != 0 && !v.is_nan();
                if op.has(flag::RELU) && negative {
                    0
                } else {
                    bits
                }
            };
            part(x) | part(x >> f.bits) << 16
        }
        PureKind::ScaleOfSingle => scale(op, y) | scale(op, x) << 8,
        PureKind::ScaleOfBfloats => scale(op, x << 16) | scale(op, x & 0xffff_0000) << 8,
        PureKind::BfloatsOfScale => of_scale(x & 0xff) | of_scale(x >> 8 & 0xff) << 16,
        PureKind::Random => random(op, y, z & 0xffff) | random(op, x, z >> 16) << 16,
        PureKind::Tf32 => u64::from(tf32(op, x)),
        PureKind::Pack => u64::from(pack(op, x, y, z)),
        PureKind::High24 => {
            let v = match op.has(flag::FIRST) {
                true => (i64::from((x as i32) << 8 >> 8) * i64::from((y as i32) << 8 >> 8)) >> 16,
                false => ((u64::from(x & 0xff_ffff) * u64::from(y & 0xff_ffff)) >> 16) as i64,
            };
            match op.has(flag::SATURATE) {
                true => saturated(i64::from(v as i32) + i64::from(z as i32)),
                false => u64::from((v as u32).wrapping_add(z)),
            }
        }
        PureKind::SaturatedHigh => {
            let v = (i64::from(x as i32) * i64::from(y as i32)) >> 32;
            saturated(v + i64::from(z as i32))
        }
        _ => u64::from(side_by_side(op, x, y, z)),
    }
}

fn saturated(v: i64) -> u64 {
    u64::from(v.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32)
}

/// The low `n` bits as a number.
fn part(v: u32, n: u32, signed: bool) -> i32 {
    match signed {
        true => (v << (32 - n)) as i32 >> (32 - n),
        false => (v & (u32::MAX >> (32 - n))) as i32,
    }
}

fn dot(op: PureOp, a: u32, b: u32) -> u32 {
    let (first, second) = (op.has(flag::FIRST), op.has(flag::SECOND));
    let two = op.kind == PureKind::Dot2;
    let b = if two && op.has(flag::CLAMP) {
        b >> 16
    } else {
        b
    };
    let (n, width) = if two { (2, 16) } else { (4, 8) };
    let products = (0..n).map(|i| {
        let x = i64::from(part(a >> (i * width), width, first));
        x * i64::from(part(b >> (i * 8), 8, second))
    });
    products.sum::<i64>() as u32
}

/// `b` bits from position `a` on.
fn mask(op: PureOp, a: u32, b: u32) -> u32 {
    let (a, b) = match op.has(flag::CLAMP) {
        true => (a.min(32), b.min(32)),
        false => (a & 31, b & 31),
    };
    (((1u64 << b) - 1) << a) as u32
}

/// The low `b` bits of `a`, extended.
fn extend(op: PureOp, a: u32, b: u32) -> u32 {
    let n = match op.has(flag::CLAMP) {
        true => b.min(32),
        false => b & 31,
    };
    match n {
        0 => 0,
        n => part(a, n, op.has(flag::FIRST)) as u32,
    }
}

/// The position of the set bit that comes `offset` bits behind `base`, or before it.
fn nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    let set = |i: &u32| mask >> i & 1 == 1;
    let nth = offset.unsigned_abs() as usize;
    let found = match offset {
        0 => Some(base).filter(|b| *b < 32 && set(b)),
        1.. => (base..32).filter(set).nth(nth - 1),
        _ => (0..=base.min(31)).rev().filter(set).nth(nth - 1),
    };
    found.unwrap_or(u32::MAX)
}

fn has_property(op: PureOp, a: u64) -> bool {
    use std::num::FpCategory as Category;
    let category = match op.has(flag::WIDE) {
        true => f64::from_bits(a).classify(),
        false => f32::from_bits(a as u32).classify(),
    };
    match op.number() {
        0 => !matches!(category, Category::Nan | Category::Infinite),
        1 => category == Category::Infinite,
        2 => category != Category::Nan,
        3 => category == Category::Nan,
        4 => category == Category::Normal,
        _ => category == Category::Subnormal,
    }
}

/// Bytes or halves of two words (§9.7.17), each by itself.
fn side_by_side(op: PureOp, a: u32, b: u32, c: u32) -> u32 {
    let (n, width) = if op.has(flag::BYTES) { (4, 8) } else { (2, 16) };
    let (least, most) = match op.has(flag::RESULT) {
        true => (-(1i64 << (width - 1)), (1 << (width - 1)) - 1),
        false => (0, (1 << width) - 1),
    };
    let (mut all, mut sum) = (0u32, 0i64);
    for i in 0..n {
        let x = i64::from(part(a >> (i * width), width, op.has(flag::FIRST)));
        let y = i64::from(part(b >> (i * width), width, op.has(flag::SECOND)));
        let v = match op.kind {
            PureKind::SideAdd => x + y,
            PureKind::SideSubtract => x - y,
            // Of two equally near, the one away from zero.
            PureKind::SideAverage if x + y < 0 => (x + y) >> 1,
            PureKind::SideAverage => (x + y + 1) >> 1,
            PureKind::SideDifference => (x - y).abs(),
            PureKind::SideMin => x.min(y),
            _ => x.max(y),
        };
        let v = if op.has(flag::SATURATE) {
            v.clamp(least, most)
        } else {
            v
        };
        let v = if op.has(flag::RELU) { v.max(0) } else { v };
        sum += v;
        all |= (v as u32 & (u32::MAX >> (32 - width))) << (i * width);
    }
    match op.has(flag::SUM) {
        true => c.wrapping_add(sum as u32),
        false => all,
    }
}

fn format(op: PureOp) -> SmallFormat {
    let i = (op.number() as usize).min(SMALL.len() - 1);
    SMALL[i].1
}

/// The nearest, of two the even one, and the largest instead of more.
fn to_small(op: PureOp, v: f64) -> u64 {
    let f = format(op);
    let sign = 1u64 << (f.sign_bit());
    if v.is_nan() {
        // What has no NaN gives its largest number.
        return u64::from(if f.nan == 0 { f.largest } else { f.nan });
    }
    if v.is_sign_negative() && op.has(flag::RELU) {
        return 0;
    }
    let magnitude = v.abs();
    let least = 1 - f.bias;
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(least);
    let place = 2f64.powi(exponent - f.fraction as i32);
    let units = (magnitude / place).round_ties_even();
    let bits = units + f64::from((exponent - least) << f.fraction);
    let bits = if bits > f64::from(f.largest) {
        u64::from(f.largest)
    } else {
        bits as u64
    };
    bits | if v.is_sign_negative() { sign } else { 0 }
}

fn from_small(f: SmallFormat, bits: u8) -> f64 {
    let sign = 1u8 << f.sign_bit();
    let magnitude = bits & (sign - 1);
    let fraction = f64::from(magnitude & ((1 << f.fraction) - 1));
    let v = match magnitude >> f.fraction {
        _ if f.nan != 0 && magnitude >= f.nan => f64::NAN,
        // Only one of the formats has infinities and more than one NaN.
        _ if f.fraction == 2 && f.bias == 15 && magnitude > f.largest => match magnitude {
            0x7c => f64::INFINITY,
            _ => f64::NAN,
        },
        0 => fraction * 2f64.powi(1 - f.bias - f.fraction as i32),
        e => {
            let whole = fraction + f64::from(1 << f.fraction);
            whole * 2f64.powi(i32::from(e) - f.bias - f.fraction as i32)
        }
    };
    if bits & sign != 0 {
        -v
    } else {
        v
    }
}

impl SmallFormat {
    fn sign_bit(&self) -> u32 {
        // The largest number has all bits below the sign but, at most, the last two.
        8 - self.largest.leading_zeros()
    }
}

fn join(op: PureOp, low: u64, high: u64) -> u64 {
    low | high << format(op).bits
}

/// The exponent of `f32` as `ue8m0` (§5.2.3), which has no sign, no 0 and no infinity. The number
/// of the operation is the rounding: 0 towards zero, 1 up.
fn scale(op: PureOp, v: u32) -> u64 {
    const LEAST: u32 = 0x0040_0000;
    const INFINITY: u32 = 0x7f80_0000;
    let magnitude = v & 0x7fff_ffff;
    // What is below the least number becomes it.
    let up = magnitude & 0x7f_ffff != 0 && magnitude > LEAST && magnitude < INFINITY;
    let exponent = (magnitude >> 23) + u32::from(up && op.number() == 1);
    match op.has(flag::SATURATE) && magnitude <= INFINITY {
        true => u64::from(exponent.min(0xfe)),
        false => u64::from(exponent),
    }
}

/// `ue8m0` as `bf16`.
fn of_scale(v: u32) -> u64 {
    match v {
        0 => 0x0040,
        0xff => 0x7fff,
        v => u64::from(v) << 7,
    }
}

/// `f32` as a half: what it has no bits for is added to as many random bits, and a carry rounds
/// away from zero. The number of the operation is 1 for `bf16`. Of subnormal results, which lack
/// more bits, the first are added to.
fn random(op: PureOp, v: u32, random: u32) -> u64 {
    let (fraction, least) = if op.number() == 1 {
        (7, -126)
    } else {
        (10, -14)
    };
    let bits = 23 - fraction;
    let f = if op.number() == 1 {
        Format::BF16
    } else {
        Format::F16
    };
    let v = f64::from(f32::from_bits(v));
    if v.is_nan() {
        return 0x7fff;
    }
    if v.is_sign_negative() && op.has(flag::RELU) {
        return 0;
    }
    let exponent = ((v.abs().to_bits() >> 52) as i32 - 1023).max(least);
    let units = v.abs() / 2f64.powi(exponent - fraction);
    let ones = 2f64.powi(bits);
    let carry = units.fract() * ones + f64::from(random & ((1 << bits) - 1)) >= ones;
    let sum = units.floor() + f64::from(carry) + f64::from((exponent - least) << fraction);
    let most = f.infinity() - u64::from(op.has(flag::SATURATE));
    let magnitude = if sum > most as f64 { most } else { sum as u64 };
    magnitude | if v.is_sign_negative() { f.sign() } else { 0 }
}

/// 10 bits of fraction. The number of the operation is the rounding: 0 to the nearest even, 1
/// towards zero, 2 to the nearest, of two the one away from zero.
fn tf32(op: PureOp, v: u32) -> u32 {
    const LAST: u32 = 1 << 13;
    if f32::from_bits(v).is_nan() {
        return 0x7fff_ffff;
    }
    if v >> 31 == 1 && op.has(flag::RELU) {
        return 0;
    }
    let add = match op.number() {
        0 => LAST / 2 - 1 + (v >> 13 & 1),
        1 => 0,
        _ => LAST / 2,
    };
    let magnitude = v & 0x7fff_ffff;
    let rounded = match magnitude {
        0x7f80_0000 => magnitude,
        m => (m + add) & !(LAST - 1),
    };
    let rounded = if rounded == 0x7f80_0000 && op.has(flag::SATURATE) {
        rounded - LAST
    } else {
        rounded
    };
    v & 1 << 31 | rounded
}

/// Two integers to narrower ones, in the low bits; the third operand is shifted above them.
fn pack(op: PureOp, a: u32, b: u32, c: u32) -> u32 {
    let width = op.number();
    let (least, most) = match op.has(flag::RESULT) {
        true => (-(1i64 << (width - 1)), (1i64 << (width - 1)) - 1),
        false => (0, (1i64 << width) - 1),
    };
    let narrow = |v: u32| {
        let v = match op.has(flag::FIRST) {
            true => i64::from(v as i32),
            false => i64::from(v),
        };
        v.clamp(least, most) as u32 & (u32::MAX >> (32 - width))
    };
    let both = narrow(b) | narrow(a) << width;
    match width {
        16 => both,
        width => both | c << (2 * width),
    }
}
