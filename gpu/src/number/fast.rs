//! The short way for normal halves, rounded to the nearest: in double precision, where its result
//! is exact.
//!
//! A product of halves has 22 bits at most, so it is always exact; a sum is if its error is zero.
//! What is exact can be rounded to the format without a second rounding. All else takes the long
//! way.

use super::exact::Format;
use super::operation::FloatOp;

/// The bits of the result; `None` for what is not exact, not normal or not of these operations.
pub(super) fn nearest(f: Format, op: FloatOp, operands: [u64; 3]) -> Option<u64> {
    // Compiled once for each format: its widths are constants then.
    if f == Format::F16 {
        of(Format::F16, op, operands)
    } else {
        of(Format::BF16, op, operands)
    }
}

#[inline(always)]
fn of(f: Format, op: FloatOp, [a, b, c]: [u64; 3]) -> Option<u64> {
    let v = match op {
        FloatOp::Add => sum(widen(f, a)?, widen(f, b)?)?,
        FloatOp::Sub => sum(widen(f, a)?, -widen(f, b)?)?,
        FloatOp::Mul => widen(f, a)? * widen(f, b)?,
        FloatOp::Fma => sum(widen(f, a)? * widen(f, b)?, widen(f, c)?)?,
        _ => return None,
    };
    narrow(f, v)
}

/// The sum, if it is exact: its error is computed without one (Knuth, TAOCP vol. 2, §4.2.2, theorem
/// B).
#[inline(always)]
fn sum(x: f64, y: f64) -> Option<f64> {
    let s = x + y;
    let z = s - x;
    let error = (x - (s - z)) + (y - z);
    (error == 0.0).then_some(s)
}

/// How far the exponents of double precision are above those of the format, at its last place.
#[inline(always)]
fn rebias(f: Format) -> u64 {
    (1023 << f.fraction_bits()) - f.one()
}

#[inline(always)]
fn widen(f: Format, v: u64) -> Option<f64> {
    let magnitude = v & !f.sign();
    let normal = magnitude & f.infinity() != 0 && magnitude < f.infinity();
    if !normal && magnitude != 0 {
        return None;
    }
    let sign = if v & f.sign() != 0 { 1 << 63 } else { 0 };
    let wide = if normal { magnitude + rebias(f) } else { 0 };
    Some(f64::from_bits(sign | wide << (52 - f.fraction_bits())))
}

#[inline(always)]
fn narrow(f: Format, v: f64) -> Option<u64> {
    let bits = v.to_bits();
    let sign = if v.is_sign_negative() { f.sign() } else { 0 };
    let magnitude = bits & (u64::MAX >> 1);
    if magnitude == 0 {
        return Some(sign);
    }
    let drop = 52 - f.fraction_bits();
    // Half of the last place, less one unless the last bit is set: ties go to the even number.
    let half = (1 << (drop - 1)) - 1 + ((magnitude >> drop) & 1);
    let rounded = ((magnitude + half) >> drop).checked_sub(rebias(f))?;
    // Subnormals have coarser places. What reaches the least normal number by the finer ones does
    // by those too.
    let normal = rounded & f.infinity() != 0 && rounded < f.infinity();
    normal.then_some(sign | rounded)
}
