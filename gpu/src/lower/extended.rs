//! Arithmetic with a carry, pairs in 64 bits, mixed precision, atomics of vectors; `number`
//! computes what is pure.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{types, InstBuilder, Value};

use super::emit::clif;
use super::emit::{Emit, Lowered};
use super::helper::Helper;
use crate::hooks::How;
use crate::module::{
    CarryOp, ExtendedOp, FloatMode, Half, Instruction, Operand, Reg, Rounding, SingleOp, Target,
    Type,
};
use crate::number::{FloatOp, Task};

impl Emit<'_, '_> {
    pub(super) fn extended(&mut self, op: &ExtendedOp, i: &Instruction) -> Lowered<()> {
        match op {
            ExtendedOp::Pure { op, to, args } => {
                let word = self.int(types::I32, i64::from(op.pack()));
                let zero = self.int(types::I64, 0);
                let mut all = [word, zero, zero, zero];
                for (place, (o, ty)) in all[1..].iter_mut().zip(args) {
                    let v = self.value(o, clif(*ty));
                    *place = self.cast(v, types::I64, ty.is_signed());
                }
                let v = self.call_helper(Helper::Pure, &all)?;
                self.set(*to, v, false);
            }
            ExtendedOp::Carry {
                op,
                ty,
                to,
                args,
                input,
                output,
            } => self.carry(*op, *ty, *to, args, (*input, *output)),
            ExtendedOp::Pair { op, to, args, mode } => {
                let mut halves = [Vec::new(), Vec::new()];
                for o in args {
                    let v = self.value(o, types::I64);
                    let high = self.b.ins().ushr_imm(v, 32);
                    for (list, v) in halves.iter_mut().zip([v, high]) {
                        let bits = self.b.ins().ireduce(types::I32, v);
                        list.push(self.cast(bits, types::F32, false));
                    }
                }
                let [low, high] = halves;
                let (low, high) = (
                    self.single(*op, &low, *mode)?,
                    self.single(*op, &high, *mode)?,
                );
                let [low, high] = [low, high].map(|v| self.cast(v, types::I64, false));
                let high = self.b.ins().ishl_imm(high, 32);
                let v = self.b.ins().bor(low, high);
                self.set(*to, v, false);
            }
            ExtendedOp::Mixed {
                op,
                half,
                to,
                args,
                mode,
            } => {
                let mut values = Vec::new();
                let last = args.len() - 1;
                for o in &args[..last] {
                    values.push(self.single_of_half(o, *half)?);
                }
                values.push(self.value(&args[last], types::F32));
                let v = self.single(*op, &values, *mode)?;
                self.set(*to, v, false);
            }
            ExtendedOp::Extreme {
                min,
                to,
                args,
                mode,
            } => {
                let op = if *min { FloatOp::Min } else { FloatOp::Max };
                let values = args.map(|o| self.value(&o, types::F32));
                let bits = values.map(|v| self.cast(v, types::I32, false));
                let ty = Type::F32;
                // The sign is that of all three, also of those that are NaN.
                let plain = FloatMode {
                    xorsign: false,
                    ..*mode
                };
                let operands = match mode.xorsign {
                    true => bits.map(|v| self.b.ins().band_imm(v, 0x7fff_ffff)),
                    false => bits,
                };
                let [a, b, c] = operands;
                let task = Task {
                    op,
                    ty,
                    mode: plain,
                };
                let v = self.call_float(task, &[a, b])?;
                let v = self.b.ins().ireduce(types::I32, v);
                let v = self.call_float(task, &[v, c])?;
                let mut v = self.b.ins().ireduce(types::I32, v);
                if mode.xorsign {
                    let signs = self.b.ins().bxor(bits[0], bits[1]);
                    let signs = self.b.ins().bxor(signs, bits[2]);
                    let sign = self.b.ins().band_imm(signs, 0x8000_0000);
                    let signed = self.b.ins().bor(v, sign);
                    let number =
                        self.b
                            .ins()
                            .icmp_imm(IntCC::UnsignedLessThanOrEqual, v, 0x7f80_0000);
                    v = self.b.ins().select(number, signed, v);
                }
                self.set(*to, v, false);
            }
            ExtendedOp::Atomics {
                op,
                access,
                to,
                args,
            } => {
                let n = access.ty.bytes();
                let t = clif(access.ty);
                let values: Vec<Value> = args.iter().map(|o| self.value(o, t)).collect();
                let at = self.checked(
                    access,
                    How::of(access, n * args.len() as u32, true).atomic(),
                    i.site,
                )?;
                let mut old = Vec::new();
                for (k, v) in values.into_iter().enumerate() {
                    let at = self.b.ins().iadd_imm(at, k as i64 * i64::from(n));
                    old.push(self.atomic(*op, access.ty, at, &[v])?);
                }
                for (to, v) in to.iter().zip(old) {
                    let v = self.cast(v, t, false);
                    self.set(*to, v, false);
                }
            }
        }
        Ok(())
    }

    fn carry(
        &mut self,
        op: CarryOp,
        ty: Type,
        to: Target,
        args: &[Operand],
        (input, output): (Option<Reg>, Option<Reg>),
    ) {
        let t = clif(ty);
        let args: Vec<Value> = args.iter().map(|o| self.value(o, t)).collect();
        let (x, y) = match op {
            CarryOp::MultiplyAdd { high } => {
                let half = if high { Half::High } else { Half::Low };
                (self.product(half, ty, args[0], args[1]), args[2])
            }
            _ => (args[0], args[1]),
        };
        let subtracts = op == CarryOp::Subtract;
        let step = |e: &mut Self, x: Value, y: Value| {
            let v = match subtracts {
                true => e.b.ins().isub(x, y),
                false => e.b.ins().iadd(x, y),
            };
            let over = match subtracts {
                true => e.b.ins().icmp(IntCC::UnsignedLessThan, x, y),
                false => e.b.ins().icmp(IntCC::UnsignedLessThan, v, x),
            };
            (v, over)
        };
        let (mut v, mut over) = step(self, x, y);
        if let Some(input) = input {
            let c = self.register(input);
            let c = self.cast(c, t, false);
            let (w, again) = step(self, v, c);
            v = w;
            over = self.b.ins().bor(over, again);
        }
        self.set(to, v, ty.is_signed());
        if output.is_some() {
            self.set(output, over, false);
        }
    }

    /// Exact.
    fn single_of_half(&mut self, o: &Operand, half: Type) -> Lowered<Value> {
        let c = crate::number::Conversion {
            to: Type::F32,
            from: half,
            whole: None,
            mode: FloatMode::default(),
        };
        self.convert_soft(c, o)
    }

    /// Arithmetic of single precision.
    fn single(&mut self, op: SingleOp, args: &[Value], mode: FloatMode) -> Lowered<Value> {
        if mode.round != Rounding::Nearest {
            let op = match op {
                SingleOp::Add => FloatOp::Add,
                SingleOp::Subtract => FloatOp::Sub,
                SingleOp::Multiply => FloatOp::Mul,
                SingleOp::Fma => FloatOp::Fma,
            };
            let ty = Type::F32;
            let v = self.call_float(Task { op, ty, mode }, args)?;
            let v = self.b.ins().ireduce(types::I32, v);
            return Ok(self.cast(v, types::F32, false));
        }
        let a: Vec<Value> = args.iter().map(|v| self.flush(*v, mode)).collect();
        let v = match op {
            SingleOp::Add => self.b.ins().fadd(a[0], a[1]),
            SingleOp::Subtract => self.b.ins().fsub(a[0], a[1]),
            SingleOp::Multiply => self.b.ins().fmul(a[0], a[1]),
            SingleOp::Fma => self.b.ins().fma(a[0], a[1], a[2]),
        };
        Ok(self.finish(v, mode))
    }
}
