//! Registers, constants, addresses of variables, predefined registers.

use std::mem::offset_of;

use cranelift_codegen::ir::{types, Endianness, InstBuilder, MemFlags, Type, Value};

use super::emit::{clif, Emit, Place};
use super::helper::Helper;
use crate::context::{BlockState, Thread};
use crate::module::{self, Operand, Reg, Space, Special, Symbol, Target};

/// The integer of the same size.
pub(super) fn bits_of(ty: Type) -> Type {
    Type::int(ty.bits() as u16).unwrap_or(types::I64)
}

/// A constant of the block's state while the function runs.
fn readonly() -> MemFlags {
    MemFlags::trusted().with_readonly().with_can_move()
}

impl Emit<'_, '_> {
    pub(super) fn register(&mut self, r: Reg) -> Value {
        self.read(self.frames.len() - 1, r)
    }

    /// A constant field of the block.
    pub(super) fn block_field(&mut self, ty: Type, offset: usize) -> Value {
        let t = self.thread;
        let at = offset_of!(Thread, block) as i32;
        let block = self.b.ins().load(types::I64, readonly(), t, at);
        self.b.ins().load(ty, readonly(), block, offset as i32)
    }

    pub(super) fn local_base(&mut self) -> Value {
        let t = self.thread;
        let at = offset_of!(Thread, local) as i32;
        self.b.ins().load(types::I64, readonly(), t, at)
    }

    /// Offset of a shared variable, given at its first use.
    pub(super) fn shared_place(
        &mut self,
        function: Option<usize>,
        i: u32,
        v: &module::Variable,
    ) -> Place {
        if v.bytes == 0 {
            self.facts.dynamic_shared = true;
            return Place::Dynamic;
        }
        if let Some(at) = self.shared.get(&(function, i)) {
            return Place::Shared(*at);
        }
        let (top, checked) = (self.facts.shared_bytes, self.facts.checks.memory);
        let (at, top) = self.facts.layouts[0]
            .place(top, (v.bytes, v.align), &v.name, checked)
            .unwrap_or((0, u32::MAX));
        self.facts.shared_bytes = top;
        self.shared.insert((function, i), at);
        Place::Shared(at)
    }

    pub(super) fn place(&mut self, s: Symbol) -> (Place, u32) {
        match s {
            Symbol::Own(i) => {
                let f = self.frame();
                (f.places[i as usize], f.function.variables[i as usize].bytes)
            }
            Symbol::Module(i) => {
                let module = self.module;
                let v = &module.variables[i as usize];
                let place = match v.space {
                    Space::Shared => self.shared_place(None, i, v),
                    _ => Place::Global(i),
                };
                (place, v.bytes)
            }
        }
    }

    /// A variable's address in its own space; of parameters, the generic address.
    pub(super) fn address_of(&mut self, s: Symbol, offset: i64) -> Value {
        let own_param = match s {
            Symbol::Own(i) => self.frame().function.variables[i as usize].space == Space::Param,
            Symbol::Module(_) => false,
        };
        match self.place(s).0 {
            Place::Parameter(at) => {
                let base = self.block_field(types::I64, offset_of!(BlockState, parameters));
                self.b.ins().iadd_imm(base, i64::from(at) + offset)
            }
            Place::Local(at) if own_param => {
                let base = self.local_base();
                self.b.ins().iadd_imm(base, i64::from(at) + offset)
            }
            Place::Stack(at) => {
                let base = match own_param {
                    true => self.stack_base(),
                    false => self.field(types::I64, offset_of!(Thread, stack)),
                };
                self.b.ins().iadd_imm(base, i64::from(at) + offset)
            }
            Place::Local(at) | Place::Shared(at) => self.int(types::I64, i64::from(at) + offset),
            Place::Dynamic => {
                let base = self.block_field(types::I64, offset_of!(BlockState, dynamic));
                self.b.ins().iadd_imm(base, offset)
            }
            Place::Global(i) => {
                let table = self.block_field(types::I64, offset_of!(BlockState, variables));
                let at = i as i32 * 8;
                let at = self.b.ins().load(types::I64, readonly(), table, at);
                self.b.ins().iadd_imm(at, offset)
            }
        }
    }

    /// An operand as a value of this type.
    pub(super) fn value(&mut self, o: &Operand, t: Type) -> Value {
        match o {
            Operand::Reg(r) => {
                let v = self.register(*r);
                self.cast(v, t, false)
            }
            Operand::Not(r) => {
                let v = self.register(*r);
                let v = self.b.ins().bxor_imm(v, 1);
                self.cast(v, t, false)
            }
            Operand::Int(v) if t == types::F32 => self.b.ins().f32const(*v as f32),
            Operand::Int(v) if t == types::F64 => self.b.ins().f64const(*v as f64),
            Operand::Int(v) if t == types::I128 => {
                let low = self.int(types::I64, *v);
                self.b.ins().sextend(types::I128, low)
            }
            // A constant has no bits beyond its type.
            Operand::Int(v) => {
                let spare = 64 - t.bits().min(64);
                self.int(t, ((*v as u64) << spare >> spare) as i64)
            }
            Operand::F32(v) => {
                let f = self.b.ins().f32const(f32::from_bits(*v));
                if t == types::F64 {
                    self.b.ins().fpromote(t, f)
                } else {
                    self.cast(f, t, false)
                }
            }
            Operand::F64(v) => {
                let f = f64::from_bits(*v);
                if t == types::F32 {
                    self.b.ins().f32const(f as f32)
                } else {
                    let f = self.b.ins().f64const(f);
                    self.cast(f, t, false)
                }
            }
            Operand::Symbol(s, offset) => {
                let v = self.address_of(*s, *offset);
                self.cast(v, t, false)
            }
            Operand::Special(s) => {
                let v = self.special(*s);
                self.cast(v, t, false)
            }
        }
    }

    /// An operand of a type; a constant that is a predicate is 0 or 1, where compilers write -1
    /// too.
    pub(super) fn typed(&mut self, o: &Operand, ty: module::Type) -> Value {
        match (o, ty) {
            (Operand::Int(v), module::Type::Pred) => self.int(types::I8, i64::from(*v != 0)),
            _ => self.value(o, clif(ty)),
        }
    }

    /// The bits of a value in another type, cut or extended.
    pub(super) fn cast(&mut self, v: Value, t: Type, signed: bool) -> Value {
        let from = self.b.func.dfg.value_type(v);
        if from == t {
            return v;
        }
        let flags = MemFlags::new().with_endianness(Endianness::Little);
        if from.bits() == t.bits() {
            return self.b.ins().bitcast(t, flags, v);
        }
        let v = if from.is_float() {
            self.b.ins().bitcast(bits_of(from), flags, v)
        } else {
            v
        };
        let int = bits_of(t);
        let v = if from.bits() > t.bits() {
            self.b.ins().ireduce(int, v)
        } else if signed {
            self.b.ins().sextend(int, v)
        } else {
            self.b.ins().uextend(int, v)
        };
        if t.is_float() {
            self.b.ins().bitcast(t, flags, v)
        } else {
            v
        }
    }

    /// Writes a register; a value that is narrower is extended (§9.4.1).
    pub(super) fn set(&mut self, to: Target, v: Value, signed: bool) {
        let Some(r) = to else { return };
        let t = self.type_of(self.frames.len() - 1, r);
        let v = self.cast(v, t, signed);
        self.write(r, v);
    }

    fn special(&mut self, s: Special) -> Value {
        let t = types::I32;
        let axis = |base: usize, a: u8| base + usize::from(a) * 4;
        let lane = offset_of!(Thread, lane);
        match s {
            Special::Tid(a) => self.field(t, axis(offset_of!(Thread, tid), a)),
            Special::Ntid(a) => self.block_field(t, axis(offset_of!(BlockState, ntid), a)),
            Special::Ctaid(a) => self.block_field(t, axis(offset_of!(BlockState, ctaid), a)),
            Special::GridId => self.block_field(types::I32, offset_of!(BlockState, grid)),
            Special::Environment(half) => {
                self.block_field(t, axis(offset_of!(BlockState, environment), half))
            }
            Special::Nctaid(a) => self.block_field(t, axis(offset_of!(BlockState, nctaid), a)),
            Special::LaneId => self.field(t, lane),
            Special::WarpId => self.warp_number(),
            Special::NwarpId => {
                let n = self.threads();
                let n = self.b.ins().iadd_imm(n, 31);
                self.b.ins().ushr_imm(n, 5)
            }
            Special::WarpSize => self.int(t, 32),
            Special::LanemaskEq
            | Special::LanemaskLt
            | Special::LanemaskLe
            | Special::LanemaskGt
            | Special::LanemaskGe => {
                let l = self.field(t, lane);
                let one = self.int(t, 1);
                let eq = self.b.ins().ishl(one, l);
                let lt = self.b.ins().iadd_imm(eq, -1);
                match s {
                    Special::LanemaskEq => eq,
                    Special::LanemaskLt => lt,
                    Special::LanemaskLe => self.b.ins().bor(eq, lt),
                    Special::LanemaskGe => self.b.ins().bnot(lt),
                    _ => {
                        let le = self.b.ins().bor(eq, lt);
                        self.b.ins().bnot(le)
                    }
                }
            }
            Special::Clock
            | Special::Clock64
            | Special::GlobalTimer
            | Special::GlobalTimerLo
            | Special::GlobalTimerHi => {
                let thread = self.thread;
                let v = self.call_helper(Helper::Now, &[thread]).unwrap_or(thread);
                match s {
                    Special::GlobalTimerHi => self.b.ins().ushr_imm(v, 32),
                    _ => v,
                }
            }
            Special::Zero => self.int(t, 0),
            Special::One => self.int(t, 1),
            Special::DynamicSharedBytes | Special::TotalSharedBytes => {
                let all = self.block_field(types::I64, offset_of!(BlockState, shared_bytes));
                if s == Special::TotalSharedBytes {
                    return all;
                }
                let dynamic = self.block_field(types::I64, offset_of!(BlockState, dynamic));
                self.b.ins().isub(all, dynamic)
            }
        }
    }

    pub(super) fn warp_number(&mut self) -> Value {
        let t = types::I32;
        let tid = offset_of!(Thread, tid);
        let ntid = offset_of!(BlockState, ntid);
        let [x, y, z] = [0, 4, 8].map(|o| self.field(t, tid + o));
        let [nx, ny] = [0, 4].map(|o| self.block_field(t, ntid + o));
        let v = self.b.ins().imul(z, ny);
        let v = self.b.ins().iadd(v, y);
        let v = self.b.ins().imul(v, nx);
        let v = self.b.ins().iadd(v, x);
        self.b.ins().ushr_imm(v, 5)
    }

    fn threads(&mut self) -> Value {
        let ntid = offset_of!(BlockState, ntid);
        let [x, y, z] = [0, 4, 8].map(|o| self.block_field(types::I32, ntid + o));
        let v = self.b.ins().imul(x, y);
        self.b.ins().imul(v, z)
    }
}
