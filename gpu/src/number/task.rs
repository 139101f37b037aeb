//! Arithmetic and comparison of one value or a pair of halves (§9.7.3, §9.7.4, §9.7.7).

use std::cmp::Ordering;

use super::exact::Format;
use super::fast;
use super::operation::{FloatOp, Task};
use crate::module::{Compare, FloatMode, Rounding, Type};

impl Task {
    /// One value, or one half of a pair.
    fn one(&self, f: Format, operands: [u64; 3]) -> u64 {
        let r = self.mode.round;
        let [a, b, c] = match self.mode.ftz {
            true => operands.map(|v| f.flush(v)),
            false => operands,
        };
        let quick = match self.ty {
            Type::F32 | Type::F64 => None,
            _ => fast::nearest(f, self.op, [a, b, c]),
        };
        if let Some(v) = quick {
            return match self.mode == FloatMode::default() {
                true => v,
                false => finish(f, v, self.mode),
            };
        }
        let v = match self.op {
            FloatOp::Add => f.add(a, b, r),
            FloatOp::Sub => f.add(a, b ^ f.sign(), r),
            FloatOp::Mul => f.mul(a, b, r),
            FloatOp::Fma => f.fma([a, b, c], r),
            FloatOp::Div => f.div(a, b, r),
            FloatOp::Sqrt => f.sqrt(a, r),
            FloatOp::Rcp => f.div(f.one(), a, r),
            FloatOp::Min => self.extreme(f, a, b, Ordering::Less),
            FloatOp::Max => self.extreme(f, a, b, Ordering::Greater),
            FloatOp::Neg => a ^ f.sign(),
            FloatOp::Abs => a & !f.sign(),
            // In double precision, rounded: within the stated error by far.
            FloatOp::Ex2 => f.of_double(f.double(a).exp2()),
            FloatOp::Tanh => f.of_double(f.double(a).tanh()),
            FloatOp::Compare(c) => return u64::from(compare(f, c, a, b)),
        };
        finish(f, v, self.mode)
    }

    /// One NaN gives the other operand unless `.NaN` is there, and -0 is below +0 (§9.7.4.7,
    /// §9.7.4.8).
    fn extreme(&self, f: Format, a: u64, b: u64, wanted: Ordering) -> u64 {
        let sign = (a ^ b) & f.sign();
        let [a, b] = match self.mode.xorsign {
            true => [a, b].map(|v| v & !f.sign()),
            false => [a, b],
        };
        let v = match (f.is_nan(a), f.is_nan(b)) {
            (true, true) => return f.nan(),
            (true, false) | (false, true) if self.mode.nan => return f.nan(),
            (true, false) => b,
            (false, true) => a,
            _ if f.order(a).cmp(&f.order(b)) == wanted => a,
            _ => b,
        };
        if self.mode.xorsign {
            v | sign
        } else {
            v
        }
    }
}

/// `.ftz`, `.relu` and `.sat` of a result. `.relu` and `.sat` make +0 of -0.
pub(super) fn finish(f: Format, v: u64, mode: FloatMode) -> u64 {
    let v = if mode.ftz { f.flush(v) } else { v };
    let negative = v & f.sign() != 0;
    match f.is_nan(v) {
        true if mode.sat => 0,
        true if mode.relu => f.nan(),
        false if (mode.sat || mode.relu) && negative => 0,
        false if mode.sat => v.min(f.one()),
        _ => v,
    }
}

impl Format {
    /// A rank in which -0 is below +0. The bits are no NaN's.
    fn order(self, bits: u64) -> i64 {
        let magnitude = (bits & !self.sign()) as i64;
        if bits & self.sign() != 0 {
            -1 - magnitude
        } else {
            magnitude
        }
    }

    pub(super) fn double(self, bits: u64) -> f64 {
        f64::from_bits(Format::F64.write(self.read(bits), Rounding::Nearest))
    }

    pub(super) fn of_double(self, v: f64) -> u64 {
        self.write(Format::F64.read(v.to_bits()), Rounding::Nearest)
    }
}

/// The nearest number of `f16`.
pub(crate) fn half_of_double(v: f64) -> u64 {
    Format::F16.of_double(v)
}

fn compare(f: Format, c: Compare, a: u64, b: u64) -> bool {
    if f.is_nan(a) || f.is_nan(b) {
        return matches!(
            c,
            Compare::Equ
                | Compare::Neu
                | Compare::Ltu
                | Compare::Leu
                | Compare::Gtu
                | Compare::Geu
                | Compare::Nan
        );
    }
    let zeros = (a | b) & !f.sign() == 0;
    let order = match zeros {
        true => Ordering::Equal,
        false => f.order(a).cmp(&f.order(b)),
    };
    match c {
        Compare::Eq | Compare::Equ => order.is_eq(),
        Compare::Ne | Compare::Neu => order.is_ne(),
        Compare::Lt | Compare::Ltu | Compare::Lo => order.is_lt(),
        Compare::Le | Compare::Leu | Compare::Ls => order.is_le(),
        Compare::Gt | Compare::Gtu | Compare::Hi => order.is_gt(),
        Compare::Ge | Compare::Geu | Compare::Hs => order.is_ge(),
        Compare::Num => true,
        Compare::Nan => false,
    }
}

/// Executes a packed [`Task`] on bits. Of a pair, the low half of the word is the first; results of
/// comparisons are bits 0 and 1.
pub(crate) extern "C" fn float(task: u32, a: u64, b: u64, c: u64) -> u64 {
    let task = Task::unpack(task);
    let operands = [a, b, c];
    let (f, pair) = match task.ty {
        Type::F16 => (Format::F16, false),
        Type::Bf16 => (Format::BF16, false),
        Type::F16x2 => (Format::F16, true),
        Type::Bf16x2 => (Format::BF16, true),
        Type::F64 => (Format::F64, false),
        _ => (Format::F32, false),
    };
    if !pair {
        return task.one(f, operands);
    }
    let low = task.one(f, operands.map(|v| v & 0xffff));
    let high = task.one(f, operands.map(|v| v >> 16 & 0xffff));
    match task.op {
        FloatOp::Compare(_) => low | high << 1,
        _ => low | high << 16,
    }
}
