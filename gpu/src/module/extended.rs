//! Arithmetic with a carry, of mixed precision, of three operands, of pairs in 64 bits; atomics of
//! vectors.

use super::operand::{Access, AtomicOp, FloatMode, Operand, Reg, Target};
use super::pure::PureOp;
use super::types::Type;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CarryOp {
    Add,
    Subtract,
    /// Low or high half of a product, and a sum.
    MultiplyAdd {
        high: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SingleOp {
    Add,
    Subtract,
    Multiply,
    Fma,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ExtendedOp {
    Pure {
        op: PureOp,
        to: Target,
        args: Vec<(Operand, Type)>,
    },
    /// `add.cc` and its kin (§9.7.2). The condition code is a register of the function.
    Carry {
        op: CarryOp,
        ty: Type,
        to: Target,
        args: Vec<Operand>,
        input: Option<Reg>,
        output: Option<Reg>,
    },
    /// `f32x2` (§9.7.3).
    Pair {
        op: SingleOp,
        to: Target,
        args: Vec<Operand>,
        mode: FloatMode,
    },
    /// Operands of half precision in single precision; the last is of single precision (§9.7.5).
    Mixed {
        op: SingleOp,
        half: Type,
        to: Target,
        args: Vec<Operand>,
        mode: FloatMode,
    },
    /// `min` and `max` of three (§9.7.3.11).
    Extreme {
        min: bool,
        to: Target,
        args: [Operand; 3],
        mode: FloatMode,
    },
    /// `atom` and `red` of a vector; each element by itself (§9.7.13.5). `to` is empty for `red`.
    Atomics {
        op: AtomicOp,
        access: Access,
        to: Vec<Target>,
        args: Vec<Operand>,
    },
}

impl ExtendedOp {
    pub(super) fn reads(&self, f: &mut dyn FnMut(Reg)) {
        let (other, operands): (Option<Reg>, Vec<&Operand>) = match self {
            ExtendedOp::Pure { args, .. } => (None, args.iter().map(|(o, _)| o).collect()),
            ExtendedOp::Carry { args, input, .. } => (*input, args.iter().collect()),
            ExtendedOp::Pair { args, .. } | ExtendedOp::Mixed { args, .. } => {
                (None, args.iter().collect())
            }
            ExtendedOp::Extreme { args, .. } => (None, args.iter().collect()),
            ExtendedOp::Atomics { access, args, .. } => {
                (access.at.register(), args.iter().collect())
            }
        };
        let operands = operands.iter().filter_map(|o| o.register());
        other.into_iter().chain(operands).for_each(f);
    }

    pub(super) fn writes(&self, f: &mut dyn FnMut(Reg)) {
        match self {
            ExtendedOp::Carry { to, output, .. } => {
                [to, output].into_iter().flatten().for_each(|r| f(*r));
            }
            ExtendedOp::Pure { to, .. }
            | ExtendedOp::Pair { to, .. }
            | ExtendedOp::Mixed { to, .. }
            | ExtendedOp::Extreme { to, .. } => to.iter().for_each(|r| f(*r)),
            ExtendedOp::Atomics { to, .. } => to.iter().flatten().for_each(|r| f(*r)),
        }
    }
}
