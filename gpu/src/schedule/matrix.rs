//! Matrices of a warp: rows whose addresses lanes exchange, and products (§9.7.14).
//!
//! Products of numbers of 8 to 19 bits are exact in double precision. They are added to `C` in the
//! order of k, in double precision, and the sum is rounded once; the ISA leaves order and rounding
//! open. Products of `f64` are fused additions in the order of k. Integers are exact, and wrap
//! unless they saturate.

use super::lanes::each;
use crate::context::Thread;
use crate::module::{Element, Product};
use crate::number;

/// Numbers of operations in `Thread::kind`: behind those of the warp.
pub(crate) const ROWS: u32 = 32;
pub(crate) const COLUMNS: u32 = 33;
pub(crate) const TRANSPOSE: u32 = 34;
pub(crate) const MULTIPLY: u32 = 35;

/// Most elements of an operand, and of a sum.
const MOST: usize = 1024;
const SUMS: usize = 256;

pub(super) fn complete(warp: &mut [Thread], mask: u32, kind: u32) {
    match kind {
        ROWS | COLUMNS => exchange(warp, mask, kind == COLUMNS),
        TRANSPOSE => transpose(warp, mask),
        _ => multiply(warp, mask),
    }
}

/// Lane `8 * j + i` has given the address of row `i` of matrix `j`.
fn exchange(warp: &mut [Thread], mask: u32, columns: bool) {
    let rows: [u64; 32] = std::array::from_fn(|i| warp.get(i).map_or(0, |t| t.value));
    for i in each(mask) {
        let t = &mut warp[i];
        let count = t.b.min(4) as usize;
        for j in 0..count {
            if columns {
                let row = 8 * j + 2 * (i % 4);
                t.words[2 * j..2 * j + 2].copy_from_slice(&rows[row..row + 2]);
            } else {
                t.words[j] = rows[8 * j + i / 4];
            }
        }
    }
}

fn transpose(warp: &mut [Thread], mask: u32) {
    let before: [u32; 32] = std::array::from_fn(|i| warp.get(i).map_or(0, |t| t.words[0] as u32));
    let at = |row: usize, column: usize| {
        let pair = before[row * 4 + column / 2];
        u64::from(pair >> (16 * (column % 2)) & 0xffff)
    };
    for i in each(mask) {
        let (row, column) = (i / 4, 2 * (i % 4));
        warp[i].words[0] = at(column, row) | at(column + 1, row) << 16;
    }
}

fn word(t: &Thread, i: usize) -> u32 {
    (t.words[i / 2] >> (32 * (i % 2))) as u32
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    A,
    B,
    Sum,
}

/// Row and column of the lane's element `i`; `B` counts as n by k (§9.7.14.5).
fn position(p: &Product, part: Part, e: Element, lane: usize, i: usize) -> (usize, usize) {
    let (m, n, k) = (p.m as usize, p.n as usize, p.k as usize);
    let (rows, columns) = match part {
        Part::A => (m, k),
        Part::B => (n, k),
        Part::Sum => (m, n),
    };
    if p.linear {
        let at = lane * (rows * columns / 32) + i;
        return (at / columns, at % columns);
    }
    let (group, quarter) = (lane / 4, lane % 4);
    if part == Part::Sum {
        return (group + 8 * (i / 2), 2 * quarter + i % 2);
    }
    let together = (32 / e.bits()).max(1) as usize;
    let register = i / together;
    let (upper, block) = match rows {
        16 => (register % 2, register / 2),
        _ => (0, register),
    };
    let column = block * 4 * together + quarter * together + i % together;
    (group + 8 * upper, column)
}

/// The bits of the lane's element `i`, of words from `first` on.
fn bits(t: &Thread, first: usize, e: Element, i: usize) -> u64 {
    let n = e.bits() as usize;
    if n == 64 {
        let [low, high] = [0, 1].map(|w| u64::from(word(t, first + 2 * i + w)));
        return low | high << 32;
    }
    let at = i * n;
    let word = u64::from(word(t, first + at / 32));
    word >> (at % 32) & ((1 << n) - 1)
}

fn number(e: Element, bits: u64) -> f64 {
    match e {
        Element::F64 => f64::from_bits(bits),
        Element::F32 => f64::from(f32::from_bits(bits as u32)),
        // The lowest 13 bits are none of the format's.
        Element::Tf32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
        Element::Bf16 => f64::from(f32::from_bits((bits as u32) << 16)),
        Element::E5m2 => half(bits << 8),
        Element::E4m3 if bits & 0x7f == 0x7f => f64::NAN,
        Element::E4m3 => {
            // Exponents have 4 bits, of bias 7: those of double precision, 1016 too small.
            let magnitude =
                f64::from_bits((bits & 0x7f) << 49) * f64::from_bits((1023 + 1016) << 52);
            if bits & 0x80 != 0 {
                -magnitude
            } else {
                magnitude
            }
        }
        _ => half(bits),
    }
}

fn half(bits: u64) -> f64 {
    let magnitude = bits & 0x7fff;
    let v = if magnitude < 0x7c00 {
        f64::from_bits(magnitude << 42) * f64::from_bits((1023 + 1008) << 52)
    } else if magnitude == 0x7c00 {
        f64::INFINITY
    } else {
        f64::NAN
    };
    if bits & 0x8000 != 0 {
        -v
    } else {
        v
    }
}

fn integer(e: Element, bits: u64) -> i32 {
    match e {
        Element::S8 => i32::from(bits as i8),
        Element::S4 => (bits as i32) << 28 >> 28,
        _ => bits as i32,
    }
}

fn multiply(warp: &mut [Thread], mask: u32) {
    let first = mask.trailing_zeros() as usize;
    let p = Product::unpack(warp[first].address);
    let (m, n, k) = (p.m as usize, p.n as usize, p.k as usize);
    let [a, b, c, d] = p.words().map(|w| w as usize);
    let largest = (m * k).max(n * k);
    let of_bits = p.a == Element::B1;
    if m * n > SUMS || (largest > MOST && !of_bits) || a + b + c > 32 || d > 32 {
        return;
    }
    if of_bits {
        return multiply_bits(warp, mask, &p);
    }
    let per_lane = |rows: usize, columns: usize| rows * columns / 32;
    if p.a.is_integer() {
        let (mut x, mut y, mut z) = ([0i32; MOST], [0i32; MOST], [0i64; SUMS]);
        for i in each(mask) {
            let t = &warp[i];
            for j in 0..per_lane(m, k) {
                let (r, q) = position(&p, Part::A, p.a, i, j);
                x[r * k + q] = integer(p.a, bits(t, 0, p.a, j));
            }
            for j in 0..per_lane(n, k) {
                let (r, q) = position(&p, Part::B, p.b, i, j);
                y[r * k + q] = integer(p.b, bits(t, a, p.b, j));
            }
            for j in 0..per_lane(m, n) {
                let (r, q) = position(&p, Part::Sum, p.c, i, j);
                z[r * n + q] = i64::from(integer(Element::S32, bits(t, a + b, p.c, j)));
            }
        }
        for r in 0..m {
            for q in 0..n {
                let rows = x[r * k..][..k].iter().zip(&y[q * k..][..k]);
                z[r * n + q] += rows.map(|(x, y)| i64::from(x * y)).sum::<i64>();
            }
        }
        return give(warp, mask, &p, &|at| {
            let v = z[at];
            let v = if p.saturate {
                v.clamp(i64::from(i32::MIN), i64::from(i32::MAX))
            } else {
                v
            };
            u64::from(v as u32)
        });
    }
    let (mut x, mut y, mut z) = ([0f64; MOST], [0f64; MOST], [0f64; SUMS]);
    for i in each(mask) {
        let t = &warp[i];
        for j in 0..per_lane(m, k) {
            let (r, q) = position(&p, Part::A, p.a, i, j);
            x[r * k + q] = number(p.a, bits(t, 0, p.a, j));
        }
        // By rows of k, so that sums of a row go on side by side.
        for j in 0..per_lane(n, k) {
            let (r, q) = position(&p, Part::B, p.b, i, j);
            y[q * n + r] = number(p.b, bits(t, a, p.b, j));
        }
        for j in 0..per_lane(m, n) {
            let (r, q) = position(&p, Part::Sum, p.c, i, j);
            z[r * n + q] = number(p.c, bits(t, a + b, p.c, j));
        }
    }
    let fused = p.a == Element::F64;
    for r in 0..m {
        let sums = &mut z[r * n..][..n];
        for (q, x) in x[r * k..][..k].iter().enumerate() {
            for (sum, y) in sums.iter_mut().zip(&y[q * n..][..n]) {
                *sum = if fused {
                    x.mul_add(*y, *sum)
                } else {
                    *sum + x * y
                };
            }
        }
    }
    give(warp, mask, &p, &|at| rounded(&p, z[at]));
}

/// A sum in the format of `D`.
fn rounded(p: &Product, v: f64) -> u64 {
    match p.d {
        Element::F64 => v.to_bits(),
        Element::F16 => {
            let v = number::half_of_double(v);
            if p.saturate && v & 0x7fff == 0x7c00 {
                v - 1
            } else {
                v
            }
        }
        _ if v.is_nan() => 0x7fff_ffff,
        _ => {
            let v = v as f32;
            let v = if p.saturate && v.is_infinite() {
                f32::MAX.copysign(v)
            } else {
                v
            };
            u64::from(v.to_bits())
        }
    }
}

/// Gives each lane its elements of the sum.
fn give(warp: &mut [Thread], mask: u32, p: &Product, sum: &dyn Fn(usize) -> u64) {
    let per_lane = (p.m * p.n / 32) as usize;
    let n = p.d.bits() as usize;
    for i in each(mask) {
        let mut words = [0u64; 16];
        for j in 0..per_lane {
            let (r, q) = position(p, Part::Sum, p.d, i, j);
            let at = j * n;
            words[at / 64] |= sum(r * p.n as usize + q) << (at % 64);
        }
        warp[i].words = words;
    }
}

/// Bits that are equal to 1 in the exclusive or, or in the conjunction, of a row and a column.
fn multiply_bits(warp: &mut [Thread], mask: u32, p: &Product) {
    let (n, row) = (p.n as usize, p.k as usize / 32);
    let [a, b, ..] = p.words().map(|w| w as usize);
    // A register has 32 bits of a row.
    let (mut x, mut y, mut z) = ([0u32; 128], [0u32; 64], [0u32; SUMS]);
    for i in each(mask) {
        let t = &warp[i];
        for j in 0..a {
            let (r, q) = position(p, Part::A, p.a, i, j * 32);
            x[r * row + q / 32] = word(t, j);
        }
        for j in 0..b {
            let (r, q) = position(p, Part::B, p.b, i, j * 32);
            y[r * row + q / 32] = word(t, a + j);
        }
        for j in 0..(p.m * p.n / 32) as usize {
            let (r, q) = position(p, Part::Sum, p.c, i, j);
            z[r * n + q] = word(t, a + b + j);
        }
    }
    for r in 0..p.m as usize {
        for q in 0..n {
            let rows = x[r * row..][..row].iter().zip(&y[q * row..][..row]);
            let ones = rows.map(|(x, y)| if p.and { x & y } else { x ^ y }.count_ones());
            z[r * n + q] = z[r * n + q].wrapping_add(ones.sum());
        }
    }
    give(warp, mask, p, &|at| u64::from(z[at]));
}
