//! Floating point that the host does not have: half precision (§9.7.4, §9.7.7), and roundings other
//! than to the nearest (§9.7.3). Most of it is computed by functions of `number`.

use cranelift_codegen::ir::{types, InstBuilder, Value};

use super::emit::clif;
use super::emit::{Emit, Lowered};
use super::helper::Helper;
use crate::module::{
    BinaryOp, BoolOp, Compare, FloatMode, Op, Operand, Rounding, Target, Type, UnaryOp,
};
use crate::number::{Conversion, FloatOp, Task};

/// 1.0 in half precision.
fn one(ty: Type) -> Option<i64> {
    match ty {
        Type::F16 | Type::F16x2 => Some(0x3c00),
        Type::Bf16 | Type::Bf16x2 => Some(0x3f80),
        _ => None,
    }
}

fn is_pair(ty: Type) -> bool {
    matches!(ty, Type::F16x2 | Type::Bf16x2)
}

/// Whether the host's own instructions do not compute it.
fn is_soft(ty: Type, mode: FloatMode) -> bool {
    ty.is_half() || ty.is_float() && (mode.round != Rounding::Nearest || mode.xorsign)
}

impl Emit<'_, '_> {
    /// Compiles an instruction of this group; false if it is of another.
    pub(super) fn soft(&mut self, op: &Op) -> Lowered<bool> {
        let (op, ty, to, args, mode) = match op {
            Op::Unary {
                op: sign @ (UnaryOp::Neg | UnaryOp::Abs),
                ty,
                to,
                a,
                mode,
            } if ty.is_half() && !mode.ftz => {
                self.sign_of_halves(*sign, *ty, *to, a);
                return Ok(true);
            }
            Op::Unary {
                op,
                ty,
                to,
                a,
                mode,
            } if is_soft(*ty, *mode) => {
                let op = match op {
                    UnaryOp::Neg => FloatOp::Neg,
                    UnaryOp::Abs => FloatOp::Abs,
                    UnaryOp::Sqrt => FloatOp::Sqrt,
                    UnaryOp::Rcp => FloatOp::Rcp,
                    UnaryOp::Ex2 => FloatOp::Ex2,
                    UnaryOp::Tanh => FloatOp::Tanh,
                    other => return Err(format!("no code for {other:?} of {ty:?}")),
                };
                (op, *ty, *to, vec![*a], *mode)
            }
            Op::Binary {
                op,
                ty,
                to,
                a,
                b,
                mode,
            } if is_soft(*ty, *mode) => {
                let op = match op {
                    BinaryOp::Add => FloatOp::Add,
                    BinaryOp::Sub => FloatOp::Sub,
                    BinaryOp::Div => FloatOp::Div,
                    BinaryOp::Min => FloatOp::Min,
                    BinaryOp::Max => FloatOp::Max,
                    other => return Err(format!("no code for {other:?} of {ty:?}")),
                };
                (op, *ty, *to, vec![*a, *b], *mode)
            }
            Op::Multiply {
                ty, to, a, b, mode, ..
            } if is_soft(*ty, *mode) => (FloatOp::Mul, *ty, *to, vec![*a, *b], *mode),
            Op::MultiplyAdd {
                ty, to, args, mode, ..
            } if is_soft(*ty, *mode) => (FloatOp::Fma, *ty, *to, args.to_vec(), *mode),
            Op::Compare {
                compare,
                ty,
                to,
                a,
                b,
                combine,
                ftz,
            } if ty.is_half() => {
                let [first, second] = self.compare_halves(*compare, *ty, a, b, *ftz)?;
                // A single comparison has its opposite as second (§9.7.7.2).
                let second = if is_pair(*ty) {
                    second
                } else {
                    self.b.ins().bxor_imm(first, 1)
                };
                for (to, p) in to.iter().zip([first, second]) {
                    let p = self.combine(p, combine);
                    self.set(*to, p, false);
                }
                return Ok(true);
            }
            Op::Set {
                compare,
                result,
                ty,
                to,
                a,
                b,
                combine,
                ftz,
            } if ty.is_half() => {
                let p = self.compare_halves(*compare, *ty, a, b, *ftz)?;
                self.set_by_halves(p, *ty, *result, *to, combine);
                return Ok(true);
            }
            Op::Convert {
                to_ty,
                ty,
                to,
                a,
                round,
                mode,
            } => {
                let asked = mode.round != Rounding::Nearest && to_ty.is_float();
                if !(to_ty.is_half() || ty.is_half() || asked) {
                    return Ok(false);
                }
                let c = Conversion {
                    to: *to_ty,
                    from: *ty,
                    whole: *round,
                    mode: *mode,
                };
                let v = self.convert_soft(c, a)?;
                self.set(*to, v, to_ty.is_signed());
                return Ok(true);
            }
            Op::ConvertPair { ty, to, a, b, mode } => {
                let half = if *ty == Type::F16x2 {
                    Type::F16
                } else {
                    Type::Bf16
                };
                let c = Conversion {
                    to: half,
                    from: Type::F32,
                    whole: None,
                    mode: *mode,
                };
                let high = self.convert_soft(c, a)?;
                let low = self.convert_soft(c, b)?;
                let v = self.pair(low, high);
                self.set(*to, v, false);
                return Ok(true);
            }
            _ => return Ok(false),
        };
        let t = clif(ty);
        let args: Vec<Value> = args.iter().map(|o| self.value(o, t)).collect();
        let v = match self.halves(op, ty, &args, mode) {
            Some(v) => v,
            None => self.call_float(Task { op, ty, mode }, &args)?,
        };
        let v = self.cast(v, t, false);
        self.set(to, v, false);
        Ok(true)
    }

    /// The result's bits, in 64.
    pub(super) fn call_float(&mut self, task: Task, args: &[Value]) -> Lowered<Value> {
        let task = self.int(types::I32, i64::from(task.pack()));
        let zero = self.int(types::I64, 0);
        let mut all = [task, zero, zero, zero];
        for (place, v) in all[1..].iter_mut().zip(args) {
            *place = self.cast(*v, types::I64, false);
        }
        self.call_helper(Helper::Float, &all)
    }

    /// A sign bit is changed, a NaN's too.
    fn sign_of_halves(&mut self, op: UnaryOp, ty: Type, to: Target, a: &Operand) {
        let t = clif(ty);
        let x = self.value(a, t);
        let v = if op == UnaryOp::Neg {
            let signs = self.int(t, if is_pair(ty) { 0x8000_8000 } else { 0x8000 });
            self.b.ins().bxor(x, signs)
        } else {
            let rest = self.int(t, if is_pair(ty) { 0x7fff_7fff } else { 0x7fff });
            self.b.ins().band(x, rest)
        };
        self.set(to, v, false);
    }

    /// The comparisons of the low and of the high half; without a pair the second is false.
    fn compare_halves(
        &mut self,
        compare: Compare,
        ty: Type,
        a: &Operand,
        b: &Operand,
        ftz: bool,
    ) -> Lowered<[Value; 2]> {
        let t = clif(ty);
        let args = [a, b].map(|o| self.value(o, t));
        let mode = FloatMode {
            ftz,
            ..FloatMode::default()
        };
        let op = FloatOp::Compare(compare);
        let v = self.call_float(Task { op, ty, mode }, &args)?;
        let v = self.b.ins().ireduce(types::I8, v);
        let first = self.b.ins().band_imm(v, 1);
        let second = self.b.ins().ushr_imm(v, 1);
        Ok([first, second])
    }

    /// `set` (§9.7.7.1): of a pair each half has its own result, 1.0 or all ones.
    fn set_by_halves(
        &mut self,
        p: [Value; 2],
        ty: Type,
        result: Type,
        to: Target,
        combine: &Option<(BoolOp, Operand)>,
    ) {
        let pair = is_pair(ty);
        let t = if pair { types::I16 } else { clif(result) };
        let (no, yes) = (self.int(t, 0), one(result).unwrap_or(-1));
        let yes = self.value(&Operand::Int(yes), t);
        let [low, high] = p.map(|p| {
            let p = self.combine(p, combine);
            self.b.ins().select(p, yes, no)
        });
        let v = if pair { self.pair(low, high) } else { low };
        self.set(to, v, result.is_signed());
    }

    fn pair(&mut self, low: Value, high: Value) -> Value {
        let [low, high] = [low, high].map(|v| self.b.ins().uextend(types::I32, v));
        let high = self.b.ins().ishl_imm(high, 16);
        self.b.ins().bor(low, high)
    }

    /// What `set` writes if the comparison holds.
    pub(super) fn truth(&mut self, result: Type) -> Value {
        let t = clif(result);
        let v = match one(result) {
            Some(bits) => bits,
            None if t.is_float() => 1,
            None => -1,
        };
        self.value(&Operand::Int(v), t)
    }

    pub(super) fn convert_soft(&mut self, c: Conversion, a: &Operand) -> Lowered<Value> {
        let x = self.value(a, clif(c.from));
        let x = self.cast(x, types::I64, false);
        let d = clif(c.to);
        // The upper half of single precision.
        if c.from == Type::Bf16 && c.to == Type::F32 && c.mode == FloatMode::default() {
            let v = self.b.ins().ireduce(types::I32, x);
            let v = self.b.ins().ishl_imm(v, 16);
            return Ok(self.cast(v, d, false));
        }
        let word = c.pack().ok_or("no such conversion")?;
        let word = self.int(types::I32, i64::from(word));
        let v = self.call_helper(Helper::Convert, &[word, x])?;
        Ok(self.cast(v, d, false))
    }
}
