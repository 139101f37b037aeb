//! Integer and floating-point arithmetic, logic, comparison, selection (§9.7.1, §9.7.3, §9.7.6,
//! §9.7.7).

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{types, InstBuilder, Type, Value};

use super::emit::clif;
use super::emit::{Emit, Lowered};
use super::helper::Helper;
use super::operand::bits_of;
use crate::module::{
    self, BinaryOp, BoolOp, Compare, FloatMode, Half, Instruction, Op, Operand, UnaryOp,
};

impl Emit<'_, '_> {
    /// An instruction that neither waits nor branches.
    pub(super) fn plain(&mut self, i: &Instruction) -> Lowered<()> {
        if self.soft(&i.op)? {
            return Ok(());
        }
        match &i.op {
            Op::Move { ty, to, from } => {
                let v = self.typed(from, *ty);
                self.set(*to, v, false);
            }
            Op::Select { ty, to, a, b, p } => {
                let (a, b) = (self.typed(a, *ty), self.typed(b, *ty));
                let p = self.typed(p, module::Type::Pred);
                let v = self.b.ins().select(p, a, b);
                self.set(*to, v, ty.is_signed());
            }
            Op::Unary {
                op,
                ty,
                to,
                a,
                mode,
            } => {
                let x = self.typed(a, *ty);
                let v = self.unary(*op, *ty, x, *mode)?;
                self.set(*to, v, ty.is_signed());
            }
            Op::Binary {
                op,
                ty,
                to,
                a,
                b,
                mode,
            } => {
                let x = self.typed(a, *ty);
                let v = match op {
                    BinaryOp::Shl | BinaryOp::Shr => self.shift(*op, *ty, x, b),
                    _ => {
                        let y = self.typed(b, *ty);
                        self.binary(*op, *ty, x, y, *mode)
                    }
                };
                self.set(*to, v, ty.is_signed());
            }
            Op::Multiply {
                half,
                ty,
                to,
                a,
                b,
                mode,
            } => {
                let t = clif(*ty);
                let (x, y) = (self.value(a, t), self.value(b, t));
                let v = if ty.is_float() {
                    let (x, y) = (self.flush(x, *mode), self.flush(y, *mode));
                    let v = self.b.ins().fmul(x, y);
                    self.finish(v, *mode)
                } else {
                    self.product(*half, *ty, x, y)
                };
                self.set(*to, v, ty.is_signed());
            }
            Op::MultiplyAdd {
                half,
                ty,
                to,
                args: [a, b, c],
                mode,
            } => {
                let t = clif(*ty);
                let (x, y) = (self.value(a, t), self.value(b, t));
                let v = if ty.is_float() {
                    let z = self.value(c, t);
                    let [x, y, z] = [x, y, z].map(|v| self.flush(v, *mode));
                    let v = self.b.ins().fma(x, y, z);
                    self.finish(v, *mode)
                } else {
                    let m = self.product(*half, *ty, x, y);
                    let z = self.value(c, self.b.func.dfg.value_type(m));
                    self.b.ins().iadd(m, z)
                };
                self.set(*to, v, ty.is_signed());
            }
            Op::Multiply24 { ty, to, a, b, add } => {
                let signed = ty.is_signed();
                let [x, y] = [a, b].map(|o| {
                    let v = self.value(o, types::I32);
                    let v = self.b.ins().ishl_imm(v, 8);
                    if signed {
                        self.b.ins().sshr_imm(v, 8)
                    } else {
                        self.b.ins().ushr_imm(v, 8)
                    }
                });
                let mut v = self.b.ins().imul(x, y);
                if let Some(c) = add {
                    let c = self.value(c, types::I32);
                    v = self.b.ins().iadd(v, c);
                }
                self.set(*to, v, signed);
            }
            Op::SumOfDifferences {
                ty,
                to,
                args: [a, b, c],
            } => {
                let t = clif(*ty);
                let [x, y, z] = [a, b, c].map(|o| self.value(o, t));
                let cc = if ty.is_signed() {
                    IntCC::SignedLessThan
                } else {
                    IntCC::UnsignedLessThan
                };
                let less = self.b.ins().icmp(cc, x, y);
                let (d, e) = (self.b.ins().isub(y, x), self.b.ins().isub(x, y));
                let d = self.b.ins().select(less, d, e);
                let v = self.b.ins().iadd(z, d);
                self.set(*to, v, ty.is_signed());
            }
            Op::Compare {
                compare,
                ty,
                to,
                a,
                b,
                combine,
                ftz,
            } => {
                let c = self.compare(*compare, *ty, a, b, *ftz)?;
                let p = self.combine(c, combine);
                self.set(to[0], p, false);
                if to[1].is_some() {
                    // The second is combined with the comparison's opposite (§9.7.6.2).
                    let not = self.b.ins().bxor_imm(c, 1);
                    let q = self.combine(not, combine);
                    self.set(to[1], q, false);
                }
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
            } => {
                let c = self.compare(*compare, *ty, a, b, *ftz)?;
                let p = self.combine(c, combine);
                let yes = self.truth(*result);
                let no = self.value(&Operand::Int(0), clif(*result));
                let v = self.b.ins().select(p, yes, no);
                self.set(*to, v, result.is_signed());
            }
            Op::Convert { .. } => self.convert(i)?,
            Op::Load { .. }
            | Op::Store { .. }
            | Op::Atomic { .. }
            | Op::Fence { .. }
            | Op::ConvertAddress { .. }
            | Op::IsSpace { .. } => {
                self.memory(i)?;
            }
            Op::Extended(op) => self.extended(op, i)?,
            Op::Nothing => {}
            _ => self.bits(i)?,
        }
        Ok(())
    }

    /// `.ftz`: a subnormal becomes zero of its sign (§9.7.3).
    pub(super) fn flush(&mut self, v: Value, mode: FloatMode) -> Value {
        if !mode.ftz || self.b.func.dfg.value_type(v) != types::F32 {
            return v;
        }
        let bits = self.cast(v, types::I32, false);
        let exponent = self.b.ins().band_imm(bits, 0x7f80_0000);
        let sign = self.b.ins().band_imm(bits, i64::from(0x8000_0000u32));
        let bits = self.b.ins().select(exponent, bits, sign);
        self.cast(bits, types::F32, false)
    }

    /// `.ftz` and `.sat` of a result; a NaN of single precision has one form (§9.7.3).
    pub(super) fn finish(&mut self, v: Value, mode: FloatMode) -> Value {
        let v = self.flush(v, mode);
        if !mode.sat {
            return self.canonical(v);
        }
        let t = self.b.func.dfg.value_type(v);
        let (zero, one) = (
            self.value(&Operand::Int(0), t),
            self.value(&Operand::Int(1), t),
        );
        let low = self.b.ins().fcmp(FloatCC::GreaterThan, v, zero);
        let high = self.b.ins().fcmp(FloatCC::LessThan, v, one);
        let cut = self.b.ins().select(high, v, one);
        // A NaN is not greater than 0.
        self.b.ins().select(low, cut, zero)
    }

    /// A NaN of single precision becomes 0x7fffffff.
    fn canonical(&mut self, v: Value) -> Value {
        if self.b.func.dfg.value_type(v) != types::F32 {
            return v;
        }
        let nan = self.value(&Operand::F32(0x7fff_ffff), types::F32);
        let is_nan = self.b.ins().fcmp(FloatCC::Unordered, v, v);
        self.b.ins().select(is_nan, nan, v)
    }

    fn unary(
        &mut self,
        op: UnaryOp,
        ty: module::Type,
        x: Value,
        mode: FloatMode,
    ) -> Lowered<Value> {
        let t = clif(ty);
        let bits = i64::from(t.bits());
        let x = self.flush(x, mode);
        let v = match op {
            UnaryOp::Neg if t.is_float() => self.b.ins().fneg(x),
            UnaryOp::Neg => self.b.ins().ineg(x),
            UnaryOp::Abs if t.is_float() => self.b.ins().fabs(x),
            UnaryOp::Abs => self.b.ins().iabs(x),
            UnaryOp::Not if ty == module::Type::Pred => self.b.ins().bxor_imm(x, 1),
            UnaryOp::Not => self.b.ins().bnot(x),
            UnaryOp::Cnot => {
                let is_zero = self.b.ins().icmp_imm(IntCC::Equal, x, 0);
                self.cast(is_zero, t, false)
            }
            UnaryOp::Popc => {
                let v = self.b.ins().popcnt(x);
                self.cast(v, types::I32, false)
            }
            UnaryOp::Clz => {
                let v = self.b.ins().clz(x);
                self.cast(v, types::I32, false)
            }
            UnaryOp::Brev => self.b.ins().bitrev(x),
            UnaryOp::Bfind(shift) => {
                let x = if ty.is_signed() {
                    let sign = self.b.ins().sshr_imm(x, bits - 1);
                    self.b.ins().bxor(x, sign)
                } else {
                    x
                };
                let clz = self.b.ins().clz(x);
                let clz = self.cast(clz, types::I32, false);
                let found = if shift {
                    clz
                } else {
                    let top = self.int(types::I32, bits - 1);
                    self.b.ins().isub(top, clz)
                };
                let none = self.int(types::I32, 0xffff_ffff);
                self.b.ins().select(x, found, none)
            }
            UnaryOp::Sqrt => self.b.ins().sqrt(x),
            UnaryOp::Rcp | UnaryOp::Rsqrt => {
                let x = if op == UnaryOp::Rsqrt {
                    self.b.ins().sqrt(x)
                } else {
                    x
                };
                let one = self.value(&Operand::Int(1), t);
                self.b.ins().fdiv(one, x)
            }
            UnaryOp::Ex2 | UnaryOp::Lg2 | UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tanh => {
                let h = match op {
                    UnaryOp::Ex2 => Helper::Ex2,
                    UnaryOp::Lg2 => Helper::Lg2,
                    UnaryOp::Sin => Helper::Sin,
                    UnaryOp::Cos => Helper::Cos,
                    _ => Helper::Tanh,
                };
                self.call_helper(h, &[x])?
            }
        };
        Ok(match op {
            // Signs are changed, and nothing else.
            UnaryOp::Neg | UnaryOp::Abs => self.flush(v, mode),
            _ if t.is_float() => self.finish(v, mode),
            _ => v,
        })
    }

    fn binary(
        &mut self,
        op: BinaryOp,
        ty: module::Type,
        x: Value,
        y: Value,
        mode: FloatMode,
    ) -> Value {
        let signed = ty.is_signed();
        if ty.is_float() {
            let (x, y) = (self.flush(x, mode), self.flush(y, mode));
            let v = match op {
                BinaryOp::Add => self.b.ins().fadd(x, y),
                BinaryOp::Sub => self.b.ins().fsub(x, y),
                BinaryOp::Div => self.b.ins().fdiv(x, y),
                // The sign is the first operand's (§9.7.3.2).
                BinaryOp::CopySign => return self.b.ins().fcopysign(y, x),
                BinaryOp::Min => self.extreme(x, y, mode, true),
                _ => self.extreme(x, y, mode, false),
            };
            return self.finish(v, mode);
        }
        match op {
            BinaryOp::Add | BinaryOp::Sub if mode.sat => {
                let [x, y] = [x, y].map(|v| self.b.ins().sextend(types::I64, v));
                let v = match op {
                    BinaryOp::Add => self.b.ins().iadd(x, y),
                    _ => self.b.ins().isub(x, y),
                };
                let (low, high) = (
                    self.int(types::I64, i64::from(i32::MIN)),
                    self.int(types::I64, i64::from(i32::MAX)),
                );
                let v = self.b.ins().smax(v, low);
                let v = self.b.ins().smin(v, high);
                self.b.ins().ireduce(types::I32, v)
            }
            BinaryOp::Add => self.b.ins().iadd(x, y),
            BinaryOp::Sub => self.b.ins().isub(x, y),
            BinaryOp::And => self.b.ins().band(x, y),
            BinaryOp::Or => self.b.ins().bor(x, y),
            BinaryOp::Xor => self.b.ins().bxor(x, y),
            BinaryOp::Min if signed => self.b.ins().smin(x, y),
            BinaryOp::Min => self.b.ins().umin(x, y),
            BinaryOp::Max if signed => self.b.ins().smax(x, y),
            BinaryOp::Max => self.b.ins().umax(x, y),
            _ => self.divide(op, signed, x, y),
        }
    }

    /// One NaN gives the other operand, and -0 is below +0 (§9.7.3.11).
    fn extreme(&mut self, x: Value, y: Value, mode: FloatMode, min: bool) -> Value {
        let v = if min {
            self.b.ins().fmin(x, y)
        } else {
            self.b.ins().fmax(x, y)
        };
        if mode.nan {
            return v;
        }
        let x_nan = self.b.ins().fcmp(FloatCC::Unordered, x, x);
        let y_nan = self.b.ins().fcmp(FloatCC::Unordered, y, y);
        let v = self.b.ins().select(y_nan, x, v);
        self.b.ins().select(x_nan, y, v)
    }

    /// By zero, which the ISA leaves open (§9.7.1.8), all bits are set, and the remainder is the
    /// dividend; the host would trap.
    fn divide(&mut self, op: BinaryOp, signed: bool, x: Value, y: Value) -> Value {
        let t = self.b.func.dfg.value_type(x);
        // The host divides 32 and 64 bits.
        if t.bits() < 32 {
            let [x, y] = [x, y].map(|v| self.cast(v, types::I32, signed));
            let v = self.divide(op, signed, x, y);
            return self.b.ins().ireduce(t, v);
        }
        let is_zero = self.b.ins().icmp_imm(IntCC::Equal, y, 0);
        let one = self.int(t, 1);
        let mut bad = is_zero;
        if signed {
            let least = self.int(
                t,
                if t.bits() == 64 {
                    i64::MIN
                } else {
                    i64::from(i32::MIN as u32)
                },
            );
            let is_least = self.b.ins().icmp(IntCC::Equal, x, least);
            let minus_one = self.b.ins().icmp_imm(IntCC::Equal, y, -1);
            let overflows = self.b.ins().band(is_least, minus_one);
            bad = self.b.ins().bor(is_zero, overflows);
        }
        let y = self.b.ins().select(bad, one, y);
        if op == BinaryOp::Rem {
            let r = if signed {
                self.b.ins().srem(x, y)
            } else {
                self.b.ins().urem(x, y)
            };
            return self.b.ins().select(is_zero, x, r);
        }
        let q = if signed {
            self.b.ins().sdiv(x, y)
        } else {
            self.b.ins().udiv(x, y)
        };
        let all = self.value(&Operand::Int(-1), t);
        self.b.ins().select(is_zero, all, q)
    }

    /// Amounts beyond the width are the width (§9.7.8.7).
    fn shift(&mut self, op: BinaryOp, ty: module::Type, x: Value, amount: &Operand) -> Value {
        let t = clif(ty);
        let bits = i64::from(t.bits());
        let n = self.value(amount, types::I32);
        if op == BinaryOp::Shr && ty.is_signed() {
            let most = self.int(types::I32, bits - 1);
            let n = self.b.ins().umin(n, most);
            return self.b.ins().sshr(x, n);
        }
        let v = match op {
            BinaryOp::Shl => self.b.ins().ishl(x, n),
            _ => self.b.ins().ushr(x, n),
        };
        if let Operand::Int(k) = amount {
            if (0..bits).contains(k) {
                return v;
            }
        }
        let zero = self.int(t, 0);
        let inside = self.b.ins().icmp_imm(IntCC::UnsignedLessThan, n, bits);
        self.b.ins().select(inside, v, zero)
    }

    pub(super) fn product(&mut self, half: Half, ty: module::Type, x: Value, y: Value) -> Value {
        let (t, signed) = (clif(ty), ty.is_signed());
        match (
            half,
            Type::int(t.bits() as u16 * 2).filter(|w| w.bits() <= 64),
        ) {
            (Half::Low, _) => self.b.ins().imul(x, y),
            (_, Some(wide)) => {
                let [x, y] = [x, y].map(|v| self.cast(v, wide, signed));
                let v = self.b.ins().imul(x, y);
                if half == Half::Wide {
                    return v;
                }
                let v = self.b.ins().ushr_imm(v, i64::from(t.bits()));
                self.b.ins().ireduce(t, v)
            }
            _ if signed => self.b.ins().smulhi(x, y),
            _ => self.b.ins().umulhi(x, y),
        }
    }

    fn compare(
        &mut self,
        c: Compare,
        ty: module::Type,
        a: &Operand,
        b: &Operand,
        ftz: bool,
    ) -> Lowered<Value> {
        let t = clif(ty);
        let (x, y) = (self.value(a, t), self.value(b, t));
        if t.is_float() {
            let mode = FloatMode {
                ftz,
                ..FloatMode::default()
            };
            let (x, y) = (self.flush(x, mode), self.flush(y, mode));
            // Two comparisons, because the compiler lacks these on aarch64.
            let both = match c {
                Compare::Ne => Some([FloatCC::LessThan, FloatCC::GreaterThan]),
                Compare::Equ => Some([FloatCC::Equal, FloatCC::Unordered]),
                _ => None,
            };
            if let Some(both) = both {
                let [p, q] = both.map(|cc| self.b.ins().fcmp(cc, x, y));
                return Ok(self.b.ins().bor(p, q));
            }
            let cc = match c {
                Compare::Eq => FloatCC::Equal,
                Compare::Lt => FloatCC::LessThan,
                Compare::Le => FloatCC::LessThanOrEqual,
                Compare::Gt => FloatCC::GreaterThan,
                Compare::Ge => FloatCC::GreaterThanOrEqual,
                Compare::Neu => FloatCC::NotEqual,
                Compare::Ltu => FloatCC::UnorderedOrLessThan,
                Compare::Leu => FloatCC::UnorderedOrLessThanOrEqual,
                Compare::Gtu => FloatCC::UnorderedOrGreaterThan,
                Compare::Geu => FloatCC::UnorderedOrGreaterThanOrEqual,
                Compare::Num => FloatCC::Ordered,
                Compare::Nan => FloatCC::Unordered,
                _ => return Err("an unsigned comparison of floating-point numbers".to_owned()),
            };
            return Ok(self.b.ins().fcmp(cc, x, y));
        }
        let signed = ty.is_signed();
        let cc = match (c, signed) {
            (Compare::Eq, _) => IntCC::Equal,
            (Compare::Ne, _) => IntCC::NotEqual,
            (Compare::Lt, true) => IntCC::SignedLessThan,
            (Compare::Le, true) => IntCC::SignedLessThanOrEqual,
            (Compare::Gt, true) => IntCC::SignedGreaterThan,
            (Compare::Ge, true) => IntCC::SignedGreaterThanOrEqual,
            (Compare::Lt, _) | (Compare::Lo, _) => IntCC::UnsignedLessThan,
            (Compare::Le, _) | (Compare::Ls, _) => IntCC::UnsignedLessThanOrEqual,
            (Compare::Gt, _) | (Compare::Hi, _) => IntCC::UnsignedGreaterThan,
            (Compare::Ge, _) | (Compare::Hs, _) => IntCC::UnsignedGreaterThanOrEqual,
            _ => return Err("a comparison of NaN of integers".to_owned()),
        };
        Ok(self.b.ins().icmp(cc, x, y))
    }

    pub(super) fn combine(&mut self, c: Value, with: &Option<(BoolOp, Operand)>) -> Value {
        let Some((op, p)) = with else { return c };
        let p = self.typed(p, module::Type::Pred);
        match op {
            BoolOp::And => self.b.ins().band(c, p),
            BoolOp::Or => self.b.ins().bor(c, p),
            BoolOp::Xor => self.b.ins().bxor(c, p),
        }
    }

    /// The bits of a value as an integer of its size.
    pub(super) fn as_int(&mut self, v: Value) -> Value {
        let t = bits_of(self.b.func.dfg.value_type(v));
        self.cast(v, t, false)
    }
}
