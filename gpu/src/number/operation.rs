//! An operation on numbers, and the word by which compiled code asks for it.

use crate::module::{Compare, FloatMode, Type};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatOp {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    Sqrt,
    Rcp,
    Min,
    Max,
    Neg,
    Abs,
    Ex2,
    Tanh,
    Compare(Compare),
}

/// An operation, for all values of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) op: FloatOp,
    /// A type of floating point, alone or as a pair.
    pub(crate) ty: Type,
    pub(crate) mode: FloatMode,
}

/// What an operation may be, by its number in a packed task; comparisons follow.
const OPS: [FloatOp; 13] = [
    FloatOp::Add,
    FloatOp::Sub,
    FloatOp::Mul,
    FloatOp::Fma,
    FloatOp::Div,
    FloatOp::Sqrt,
    FloatOp::Rcp,
    FloatOp::Min,
    FloatOp::Max,
    FloatOp::Neg,
    FloatOp::Abs,
    FloatOp::Ex2,
    FloatOp::Tanh,
];
const TYPES: [Type; 6] = [
    Type::F16,
    Type::Bf16,
    Type::F16x2,
    Type::Bf16x2,
    Type::F32,
    Type::F64,
];

/// The number of an element; all of them are in their table.
fn number<T: PartialEq>(table: &[T], v: &T) -> u32 {
    table.iter().position(|t| t == v).unwrap_or(0) as u32
}

impl Task {
    /// As a constant of compiled code: operation, type, and modes above them.
    pub(crate) fn pack(self) -> u32 {
        let op = match self.op {
            FloatOp::Compare(c) => OPS.len() as u32 + number(&Compare::ALL, &c),
            op => number(&OPS, &op),
        };
        op | number(&TYPES, &self.ty) << 5 | self.mode.pack() << 8
    }

    #[inline]
    pub(super) fn unpack(word: u32) -> Task {
        let op = (word & 31) as usize;
        Task {
            op: match OPS.get(op) {
                Some(op) => *op,
                None => FloatOp::Compare(Compare::ALL[op - OPS.len()]),
            },
            ty: TYPES[(word >> 5 & 7) as usize],
            mode: FloatMode::unpack(word >> 8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::Rounding;

    #[test]
    fn a_packed_task_says_what_it_was() {
        let comparisons = Compare::ALL.map(FloatOp::Compare);
        let rounds = [0, 1, 2, 3].map(Rounding::numbered);
        for op in OPS.iter().chain(&comparisons) {
            for ty in TYPES {
                for bits in 0..256u32 {
                    let flag = |n: u32| bits >> n & 1 == 1;
                    let mode = FloatMode {
                        ftz: flag(0),
                        sat: flag(1),
                        nan: flag(2),
                        relu: flag(3),
                        xorsign: flag(4),
                        finite: flag(5),
                        round: rounds[(bits >> 6) as usize],
                    };
                    let task = Task { op: *op, ty, mode };
                    assert_eq!(Task::unpack(task.pack()), task);
                }
            }
        }
    }
}
