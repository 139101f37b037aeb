//! Bit fields, bytes, tables, vectors of parts (§9.7.1.19, §9.7.8, §9.7.9.4).

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{types, InstBuilder, Type, Value};

use super::emit::clif;
use super::emit::{Emit, Lowered};
use crate::module::{Instruction, Op, Operand, Target};

impl Emit<'_, '_> {
    pub(super) fn bits(&mut self, i: &Instruction) -> Lowered<()> {
        match &i.op {
            Op::Pack { ty, to, from } => {
                let whole = Type::int(ty.bits() as u16).ok_or("no such width")?;
                let part =
                    Type::int((ty.bits() / from.len() as u32) as u16).ok_or("no such part")?;
                let mut all = self.zero(whole);
                for (k, o) in from.iter().enumerate() {
                    let v = self.value(o, part);
                    let v = self.b.ins().uextend(whole, v);
                    let v = self.b.ins().ishl_imm(v, i64::from(part.bits()) * k as i64);
                    all = self.b.ins().bor(all, v);
                }
                self.set(*to, all, false);
            }
            Op::Unpack { ty, to, from } => {
                let whole = Type::int(ty.bits() as u16).ok_or("no such width")?;
                let part = Type::int((ty.bits() / to.len() as u32) as u16).ok_or("no such part")?;
                let all = self.value(from, whole);
                for (k, t) in to.iter().enumerate() {
                    let v = self
                        .b
                        .ins()
                        .ushr_imm(all, i64::from(part.bits()) * k as i64);
                    let v = self.b.ins().ireduce(part, v);
                    self.set(*t, v, false);
                }
            }
            Op::Funnel {
                left,
                clamp,
                to,
                args: [low, high, n],
            } => {
                let [low, high, n] = [low, high, n].map(|o| self.value(o, types::I32));
                let [low, high] = [low, high].map(|v| self.b.ins().uextend(types::I64, v));
                let high = self.b.ins().ishl_imm(high, 32);
                let both = self.b.ins().bor(low, high);
                let n = if *clamp {
                    let most = self.int(types::I32, 32);
                    self.b.ins().umin(n, most)
                } else {
                    self.b.ins().band_imm(n, 31)
                };
                let v = if *left {
                    let v = self.b.ins().ishl(both, n);
                    self.b.ins().ushr_imm(v, 32)
                } else {
                    self.b.ins().ushr(both, n)
                };
                self.set_low(*to, v);
            }
            Op::Extract {
                ty,
                to,
                args: [a, at, len],
            } => {
                let signed = ty.is_signed();
                let x = self.value(a, clif(*ty));
                let x = self.cast(x, types::I64, signed);
                let (at, len) = (self.byte(at), self.byte(len));
                let most = self.int(types::I32, 63);
                let n = self.b.ins().umin(at, most);
                let zero = self.int(types::I64, 0);
                let shifted = if signed {
                    self.b.ins().sshr(x, n)
                } else {
                    let v = self.b.ins().ushr(x, n);
                    let inside = self.b.ins().icmp_imm(IntCC::UnsignedLessThan, at, 64);
                    self.b.ins().select(inside, v, zero)
                };
                // The field to the top and back: its sign, or zeros, come in.
                let width = self.int(types::I32, 64);
                let len = self.b.ins().umin(len, width);
                let spare = self.b.ins().isub(width, len);
                let v = self.b.ins().ishl(shifted, spare);
                let v = if signed {
                    self.b.ins().sshr(v, spare)
                } else {
                    self.b.ins().ushr(v, spare)
                };
                let v = self.b.ins().select(len, v, zero);
                let v = self.cast(v, clif(*ty), false);
                self.set(*to, v, signed);
            }
            Op::Insert {
                ty,
                to,
                args: [a, b, at, len],
            } => {
                let t = clif(*ty);
                let [a, b] = [a, b].map(|o| {
                    let v = self.value(o, t);
                    self.cast(v, types::I64, false)
                });
                let (at, len) = (self.byte(at), self.byte(len));
                let one = self.int(types::I64, 1);
                let ones = self.b.ins().ishl(one, len);
                let ones = self.b.ins().iadd_imm(ones, -1);
                let all = self.int(types::I64, -1);
                let zero = self.int(types::I64, 0);
                let short = self.b.ins().icmp_imm(IntCC::UnsignedLessThan, len, 64);
                let ones = self.b.ins().select(short, ones, all);
                let mask = self.b.ins().ishl(ones, at);
                let inside = self.b.ins().icmp_imm(IntCC::UnsignedLessThan, at, 64);
                let mask = self.b.ins().select(inside, mask, zero);
                let a = self.b.ins().ishl(a, at);
                let a = self.b.ins().band(a, mask);
                let b = self.b.ins().band_not(b, mask);
                let v = self.b.ins().bor(a, b);
                let v = self.cast(v, t, false);
                self.set(*to, v, false);
            }
            Op::Permute {
                to,
                args: [a, b, selector],
            } => {
                let [a, b, s] = [a, b, selector].map(|o| self.value(o, types::I32));
                let [a, b] = [a, b].map(|v| self.b.ins().uextend(types::I64, v));
                let b = self.b.ins().ishl_imm(b, 32);
                let bytes = self.b.ins().bor(a, b);
                let mut all = self.int(types::I32, 0);
                for k in 0..4 {
                    let n = self.b.ins().ushr_imm(s, 4 * k);
                    let at = self.b.ins().band_imm(n, 7);
                    let at = self.b.ins().ishl_imm(at, 3);
                    let v = self.b.ins().ushr(bytes, at);
                    let v = self.b.ins().ireduce(types::I8, v);
                    let sign = self.b.ins().sshr_imm(v, 7);
                    let copies = self.b.ins().band_imm(n, 8);
                    let v = self.b.ins().select(copies, sign, v);
                    let v = self.b.ins().uextend(types::I32, v);
                    let v = self.b.ins().ishl_imm(v, 8 * k);
                    all = self.b.ins().bor(all, v);
                }
                self.set(*to, all, false);
            }
            Op::Lop3 {
                to,
                args: [a, b, c],
                table,
            } => {
                let x = [a, b, c].map(|o| self.value(o, types::I32));
                let not = x.map(|v| self.b.ins().bnot(v));
                let mut all = self.int(types::I32, 0);
                for row in (0..8).filter(|r| table >> r & 1 == 1) {
                    let pick = |k: usize| {
                        if row >> (2 - k) & 1 == 1 {
                            x[k]
                        } else {
                            not[k]
                        }
                    };
                    let v = self.b.ins().band(pick(0), pick(1));
                    let v = self.b.ins().band(v, pick(2));
                    all = self.b.ins().bor(all, v);
                }
                self.set(*to, all, false);
            }
            other => return Err(format!("no code for {other:?}")),
        }
        Ok(())
    }

    /// Positions and lengths are the low 8 bits (§9.7.1.20).
    fn byte(&mut self, o: &Operand) -> Value {
        let v = self.value(o, types::I32);
        self.b.ins().band_imm(v, 255)
    }

    fn set_low(&mut self, to: Target, v: Value) {
        let v = self.b.ins().ireduce(types::I32, v);
        self.set(to, v, false);
    }

    fn zero(&mut self, t: Type) -> Value {
        self.value(&Operand::Int(0), t)
    }
}
