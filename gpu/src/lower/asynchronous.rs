//! Copies that a thread does not wait for, mbarrier objects, barriers in two parts (§9.7.9.25,
//! §9.7.13).
//!
//! A copy is done when it is issued, which the ISA allows: groups of copies are then always
//! complete.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{types, InstBuilder, MemFlags, Value};

use super::check;
use super::emit::{Emit, Lowered};
use super::helper::Helper;
use crate::context::{why, BlockState, Thread};
use crate::hooks::How;
use crate::module::{
    AsyncOp, Instruction, MemoryOrder, Op, Operand, PhaseOp, Place, Reg, Scope, Site, Space, Target,
};
use crate::schedule::Transfer;

impl Emit<'_, '_> {
    /// `live` is what lives over a wait.
    pub(super) fn asynchronous(&mut self, op: &AsyncOp, site: Site, live: &[Reg]) -> Lowered<()> {
        match op {
            AsyncOp::Copy {
                to,
                from,
                bytes,
                size,
                ignore,
            } => self.copy(to, from, *bytes, size, ignore, site)?,
            AsyncOp::Bulk {
                to,
                from,
                bytes,
                reduce,
                done,
            } => {
                let transfer = Transfer {
                    to_shared: to.space == Space::Shared,
                    from_shared: from.space == Space::Shared,
                    reduce: *reduce,
                };
                self.bulk(to, from, bytes, transfer, site)?;
                if let Some(done) = done {
                    self.phase(PhaseOp::Complete, done, None, bytes, site, live)?;
                }
            }
            AsyncOp::Phase { op, at, to, arg } => self.phase(*op, at, *to, arg, site, live)?,
            AsyncOp::Pending { to, state } => {
                let state = self.value(state, types::I64);
                let v = self.call_helper(Helper::PhasePending, &[state])?;
                self.set(*to, v, false);
            }
            AsyncOp::Arrive { id, count } => {
                let [id, count] = [id, count].map(|o| self.value(o, types::I32));
                let thread = self.thread;
                self.call_helper(Helper::BarrierArrive, &[thread, id, count])?;
            }
            AsyncOp::ClusterArrive => {
                let thread = self.thread;
                self.call_helper(Helper::ClusterArrive, &[thread])?;
            }
            AsyncOp::ClusterWait => {
                let site = self.site(site);
                self.put(site, offset_of!(Thread, site));
                self.wait(why::CLUSTER, live, &[]);
            }
        }
        Ok(())
    }

    /// An access, of whose bytes an mbarrier object is told.
    pub(super) fn told(
        &mut self,
        (what, bytes): (&Op, u32),
        done: &Place,
        site: Site,
        live: &[Reg],
    ) -> Lowered<()> {
        self.plain(&Instruction {
            guard: None,
            op: what.clone(),
            site,
        })?;
        let bytes = Operand::Int(i64::from(bytes));
        self.phase(PhaseOp::Complete, done, None, &bytes, site, live)
    }

    /// The generic address of a place, unchecked.
    fn generic(&mut self, place: &Place) -> Value {
        let v = self.raw_address(&place.at);
        match place.space {
            Space::Shared => {
                let base = self.block_field(types::I64, offset_of!(BlockState, shared));
                self.b.ins().iadd(base, v)
            }
            _ => v,
        }
    }

    fn bulk(
        &mut self,
        to: &Place,
        from: &Place,
        bytes: &Operand,
        transfer: Transfer,
        site: Site,
    ) -> Lowered<()> {
        let (to, from) = (self.generic(to), self.generic(from));
        let bytes = self.value(bytes, types::I32);
        let transfer = transfer.pack().ok_or("no such reduction")?;
        let transfer = self.int(types::I32, i64::from(transfer));
        let (base, len) = self.gpu_memory();
        let (thread, site) = (self.thread, self.site(site));
        let args = [thread, to, from, bytes, transfer, site, base, len];
        let failed = self.call_helper(Helper::Bulk, &args)?;
        let next = self.b.create_block();
        let fault = self.fault;
        self.b.ins().brif(failed, fault, &[], next, &[]);
        self.enter(next);
        Ok(())
    }

    /// `cp.async`: what is not copied is zero, and its source is not looked at.
    fn copy(
        &mut self,
        to: &Place,
        from: &Place,
        bytes: u32,
        size: &Option<Operand>,
        ignore: &Option<Operand>,
        site: Site,
    ) -> Lowered<()> {
        let t = match bytes {
            4 => types::I32,
            8 => types::I64,
            _ => types::I8X16,
        };
        let v = self.raw_address(&to.at);
        let to = self.permitted(to.space, v, bytes, true, site)?;
        let from_at = self.raw_address(&from.at);
        let space = from.space;
        let size = match (size, ignore) {
            (Some(Operand::Int(n)), _) if *n >= i64::from(bytes) => None,
            (Some(n), _) => Some(self.value(n, types::I32)),
            (None, Some(p)) => {
                let p = self.value(p, types::I8);
                let (none, all) = (
                    self.int(types::I32, 0),
                    self.int(types::I32, i64::from(bytes)),
                );
                Some(self.b.ins().select(p, none, all))
            }
            (None, None) => None,
        };
        let flags = MemFlags::trusted();
        let Some(size) = size else {
            let from = self.permitted(space, from_at, bytes, false, site)?;
            let v = self.b.ins().load(t, flags, from, 0);
            self.b.ins().store(flags, v, to, 0);
            return Ok(());
        };
        let [full, part, byte, end] = std::array::from_fn(|_| self.b.create_block());
        let all = self
            .b
            .ins()
            .icmp_imm(IntCC::UnsignedGreaterThanOrEqual, size, i64::from(bytes));
        self.b.ins().brif(all, full, &[], part, &[]);
        self.b.switch_to_block(full);
        let from = self.permitted(space, from_at, bytes, false, site)?;
        let v = self.b.ins().load(t, flags, from, 0);
        self.b.ins().store(flags, v, to, 0);
        self.b.ins().jump(end, &[]);
        self.b.switch_to_block(part);
        let zero = self.int(types::I64, 0);
        for at in (0..bytes).step_by(4) {
            let zero = self.int(types::I32, 0);
            self.b.ins().store(flags, zero, to, at as i32);
        }
        // Byte after byte.
        let size = self.b.ins().uextend(types::I64, size);
        let head = self.b.create_block();
        self.b.append_block_param(head, types::I64);
        self.b.ins().jump(head, &[zero.into()]);
        self.b.switch_to_block(head);
        let i = self.b.block_params(head)[0];
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, i, size);
        self.b.ins().brif(more, byte, &[], end, &[]);
        self.b.switch_to_block(byte);
        let at = self.b.ins().iadd(from_at, i);
        let from = self.permitted(space, at, 1, false, site)?;
        let v = self.b.ins().load(types::I8, flags, from, 0);
        let into = self.b.ins().iadd(to, i);
        self.b.ins().store(flags, v, into, 0);
        let i = self.b.ins().iadd_imm(i, 1);
        self.b.ins().jump(head, &[i.into()]);
        self.b.switch_to_block(end);
        Ok(())
    }

    fn phase(
        &mut self,
        op: PhaseOp,
        place: &Place,
        to: Target,
        arg: &Operand,
        site: Site,
        live: &[Reg],
    ) -> Lowered<()> {
        let at = self.raw_address(&place.at);
        // Operations on the object order what is before and behind them for the block's threads;
        // its first does not.
        let how = How::new(8, true);
        let how = match op {
            PhaseOp::Init | PhaseOp::Invalidate => how,
            _ => how.ordered(MemoryOrder::AcqRel, Scope::Block).atomic(),
        };
        let at = self.permitted_as(place.space, at, how, site)?;
        let arg = self.value(arg, types::I64);
        match op {
            PhaseOp::Init | PhaseOp::Invalidate => {
                self.call_helper(Helper::PhaseInit, &[at, arg])?;
            }
            PhaseOp::Expect => {
                self.call_helper(Helper::PhaseExpect, &[at, arg])?;
            }
            PhaseOp::Complete => {
                self.call_helper(Helper::PhaseComplete, &[at, arg])?;
            }
            PhaseOp::Arrive { expect, drop } => {
                let mut arrivals = arg;
                if expect {
                    self.call_helper(Helper::PhaseExpect, &[at, arg])?;
                    arrivals = self.int(types::I64, 1);
                }
                let f = match drop {
                    true => Helper::PhaseDrop,
                    false => Helper::PhaseArrive,
                };
                let state = self.call_helper(f, &[at, arrivals])?;
                self.set(to, state, false);
            }
            PhaseOp::Test { parity, wait } => {
                let f = match parity {
                    true => Helper::PhaseParity,
                    false => Helper::PhaseTest,
                };
                let over = self.call_helper(f, &[at, arg])?;
                if !wait {
                    self.set(to, over, false);
                    return Ok(());
                }
                // Others run once before it looks again. Only the thread's own fields survive that.
                let (later, end) = (self.b.create_block(), self.b.create_block());
                self.b.append_block_param(end, types::I64);
                self.b.ins().brif(over, end, &[over.into()], later, &[]);
                self.b.switch_to_block(later);
                let waits_at = self.site(site);
                self.put(waits_at, offset_of!(Thread, site));
                self.put(at, offset_of!(Thread, address));
                self.put(arg, offset_of!(Thread, value));
                let written: Vec<Reg> = to.into_iter().collect();
                self.wait(why::BUDGET, live, &written);
                let at = self.field(types::I64, offset_of!(Thread, address));
                let arg = self.field(types::I64, offset_of!(Thread, value));
                check::touched(self, at, how, site)?;
                let over = self.call_helper(f, &[at, arg])?;
                self.b.ins().jump(end, &[over.into()]);
                self.b.switch_to_block(end);
                let over = self.b.block_params(end)[0];
                self.set(to, over, false);
            }
        }
        Ok(())
    }
}
