//! Instructions at which a thread waits for others or for time (§9.7.13).

use std::mem::offset_of;

use cranelift_codegen::ir::{types, InstBuilder};

use super::emit::clif;
use super::emit::{Emit, Lowered};
use super::helper::Helper;
use crate::context::{why, Thread, ALIGNED};
use crate::module::{BarrierOp, Instruction, Op, Operand, Reg, Type, WarpOp};
use crate::schedule;

impl Emit<'_, '_> {
    pub(super) fn waiting(&mut self, i: &Instruction, live: &[Reg]) -> Lowered<()> {
        let mut written = Vec::new();
        // A guard that is false goes around all this, and the old value is then not needed here.
        i.op.writes(&mut |r| written.push(r));
        let site = self.site(i.site);
        self.put(site, offset_of!(Thread, site));
        match &i.op {
            Op::Barrier {
                op,
                aligned,
                id,
                count,
                to,
                p,
            } => {
                let kind = match op {
                    BarrierOp::Sync => 0,
                    BarrierOp::Popc => 1,
                    BarrierOp::And => 2,
                    BarrierOp::Or => 3,
                };
                let kind = if *aligned { kind | ALIGNED } else { kind };
                self.put_int(kind, offset_of!(Thread, kind));
                self.put_operand(id, offset_of!(Thread, b));
                self.put_operand(&count.unwrap_or(Operand::Int(0)), offset_of!(Thread, c));
                let p = self.typed(&p.unwrap_or(Operand::Int(0)), Type::Pred);
                let p = self.cast(p, types::I64, false);
                self.put(p, offset_of!(Thread, value));
                self.wait(why::BARRIER, live, &written);
                if to.is_some() {
                    let v = self.field(types::I32, offset_of!(Thread, result));
                    self.set(*to, v, false);
                }
            }
            Op::Warp {
                op,
                ty,
                to,
                second,
                args,
                mask,
            } => {
                self.put_int(schedule::code(*op), offset_of!(Thread, kind));
                self.put_operand(mask, offset_of!(Thread, mask));
                if let Some(a) = args.first() {
                    let v = self.value(a, clif(*ty));
                    let v = self.cast(v, types::I64, false);
                    self.put(v, offset_of!(Thread, value));
                }
                if let WarpOp::Shuffle(_) = op {
                    self.put_operand(&args[1], offset_of!(Thread, b));
                    self.put_operand(&args[2], offset_of!(Thread, c));
                }
                self.wait(why::WARP, live, &written);
                if to.is_some() {
                    let v = self.field(types::I32, offset_of!(Thread, result));
                    self.set(*to, v, false);
                }
                if second.is_some() {
                    let v = self.field(types::I32, offset_of!(Thread, second));
                    self.set(*second, v, false);
                }
            }
            Op::Sleep { ns } => {
                let ns = self.value(ns, types::I32);
                let ns = self.cast(ns, types::I64, false);
                let thread = self.thread;
                let now = self.call_helper(Helper::Now, &[thread])?;
                let until = self.b.ins().iadd(now, ns);
                self.put(until, offset_of!(Thread, address));
                self.wait(why::SLEEP, live, &written);
            }
            other => return Err(format!("{other:?} does not wait")),
        }
        Ok(())
    }

    fn put_int(&mut self, v: u32, offset: usize) {
        let v = self.int(types::I32, i64::from(v));
        self.put(v, offset);
    }

    fn put_operand(&mut self, o: &Operand, offset: usize) {
        let v = self.value(o, types::I32);
        self.put(v, offset);
    }
}
