//! `cvt` (§9.7.9.21) of integers, single and double precision, rounded to the nearest; `float` has
//! the others.

use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::{types, InstBuilder, Value};

use super::emit::clif;
use super::emit::{Emit, Lowered};
use crate::module::{Instruction, Op, Rounding, Type};

impl Emit<'_, '_> {
    pub(super) fn convert(&mut self, i: &Instruction) -> Lowered<()> {
        let Op::Convert {
            to_ty,
            ty,
            to,
            a,
            round,
            mode,
        } = &i.op
        else {
            return Err("no conversion".to_owned());
        };
        let (from, d) = (clif(*ty), clif(*to_ty));
        let x = self.value(a, from);
        let v = match (from.is_float(), d.is_float()) {
            (false, false) if mode.sat => self.clamp(x, *ty, *to_ty),
            (false, false) => self.cast(x, d, ty.is_signed()),
            (false, true) => {
                let wide = if from.bits() < 32 { types::I32 } else { from };
                let x = self.cast(x, wide, ty.is_signed());
                let v = if ty.is_signed() {
                    self.b.ins().fcvt_from_sint(d, x)
                } else {
                    self.b.ins().fcvt_from_uint(d, x)
                };
                self.finish(v, *mode)
            }
            (true, false) => {
                let x = self.flush(x, *mode);
                let x = self.integral(x, *round);
                self.integer_of(x, *ty, *to_ty)
            }
            (true, true) => {
                let x = self.flush(x, *mode);
                let x = self.integral(x, *round);
                let v = match (from == types::F32, d == types::F32) {
                    (true, false) => self.b.ins().fpromote(d, x),
                    (false, true) => self.b.ins().fdemote(d, x),
                    _ => x,
                };
                self.finish(v, *mode)
            }
        };
        self.set(*to, v, to_ty.is_signed());
        Ok(())
    }

    fn integral(&mut self, x: Value, round: Option<Rounding>) -> Value {
        match round {
            None => x,
            Some(Rounding::Nearest) => self.b.ins().nearest(x),
            Some(Rounding::Zero) => self.b.ins().trunc(x),
            Some(Rounding::Down) => self.b.ins().floor(x),
            Some(Rounding::Up) => self.b.ins().ceil(x),
        }
    }

    /// Numbers beyond the range become its end; a NaN 0, or the highest bit where 64 bits take
    /// part.
    fn integer_of(&mut self, x: Value, ty: Type, to_ty: Type) -> Value {
        let (d, signed) = (clif(to_ty), to_ty.is_signed());
        let wide = if d.bits() < 32 { types::I32 } else { d };
        let v = if signed {
            self.b.ins().fcvt_to_sint_sat(wide, x)
        } else {
            self.b.ins().fcvt_to_uint_sat(wide, x)
        };
        let v = if wide == d {
            v
        } else {
            let from = if signed { Type::S32 } else { Type::U32 };
            self.clamp(v, from, to_ty)
        };
        if ty != Type::F64 && d != types::I64 {
            return v;
        }
        let top = self.int(types::I64, 1);
        let top = self.b.ins().ishl_imm(top, i64::from(d.bits()) - 1);
        let top = self.cast(top, d, false);
        let nan = self.b.ins().fcmp(FloatCC::Unordered, x, x);
        self.b.ins().select(nan, top, v)
    }

    /// An integer to the nearest of another type.
    fn clamp(&mut self, x: Value, ty: Type, to_ty: Type) -> Value {
        let (bits, to_signed) = (to_ty.bits(), to_ty.is_signed());
        let most = match (to_signed, bits) {
            (true, _) => i64::MAX >> (64 - bits),
            (false, 64) => {
                if ty.is_signed() {
                    i64::MAX
                } else {
                    -1
                }
            }
            (false, _) => (1i64 << bits) - 1,
        };
        let least = if to_signed {
            i64::MIN >> (64 - bits)
        } else {
            0
        };
        let x = self.cast(x, types::I64, ty.is_signed());
        let (least, most) = (self.int(types::I64, least), self.int(types::I64, most));
        let v = if ty.is_signed() {
            let v = self.b.ins().smax(x, least);
            self.b.ins().smin(v, most)
        } else {
            self.b.ins().umin(x, most)
        };
        self.cast(v, clif(to_ty), false)
    }
}
