//! Loads, stores, atomics, fences, addresses (§9.7.9, §9.7.13.4, §9.7.13.5), and the check of each
//! access.
//!
//! x86-64 keeps loads in order, and stores in order: a load is an acquire and a store a release
//! there. Only the compiler must not move others past them. Elsewhere ordered accesses are
//! sequentially consistent.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{types, AtomicRmwOp, Endianness, InstBuilder, MemFlags, Value};

use super::check;
use super::emit::{clif, Place};
use super::emit::{Emit, Lowered};
use super::helper::Helper;
use super::operand::bits_of;
use crate::context::mark::{LOCAL, SHARED, STORE};
use crate::context::{BlockState, Thread};
use crate::hooks::How;
use crate::module::{
    Access, Address, AtomicOp, Base, FloatMode, Instruction, MemoryOrder, Op, Site, Space, Type,
};
use crate::number::{FloatOp, Task};
use crate::schedule::SITE_BITS;

impl Emit<'_, '_> {
    pub(super) fn memory(&mut self, i: &Instruction) -> Lowered<()> {
        match &i.op {
            Op::Load { access, to } => {
                let n = access.ty.bytes();
                let at =
                    self.checked(access, How::of(access, n * to.len() as u32, false), i.site)?;
                if i.op.observes() {
                    self.looks(at, n, i.site);
                }
                let values: Vec<Value> = (0..to.len())
                    .map(|k| self.load(access, at, k as i32 * n as i32))
                    .collect::<Lowered<_>>()?;
                for (t, v) in to.iter().zip(values) {
                    self.set(*t, v, access.ty.is_signed());
                }
            }
            Op::Store { access, from } => {
                let n = access.ty.bytes();
                let t = clif(access.ty);
                let values: Vec<Value> = from.iter().map(|o| self.value(o, t)).collect();
                let at =
                    self.checked(access, How::of(access, n * from.len() as u32, true), i.site)?;
                for (k, v) in values.into_iter().enumerate() {
                    self.store(access, at, v, k as i32 * n as i32);
                }
            }
            Op::Atomic {
                op,
                access,
                to,
                args,
            } => {
                let t = clif(access.ty);
                let int = bits_of(t);
                let args: Vec<Value> = args.iter().map(|o| self.value(o, t)).collect();
                let at = self.checked(
                    access,
                    How::of(access, access.ty.bytes(), true).atomic(),
                    i.site,
                )?;
                if i.op.observes() {
                    self.looks(at, access.ty.bytes(), i.site);
                }
                let v = self.atomic(*op, access.ty, at, &args)?;
                let v = if t.is_float() {
                    v
                } else {
                    self.cast(v, int, false)
                };
                self.set(*to, v, access.ty.is_signed());
            }
            Op::Fence { order, scope } => {
                check::fenced(self, *scope)?;
                if self.ordered && *order == MemoryOrder::AcqRel {
                    self.compiler_fence();
                } else {
                    self.b.ins().fence();
                }
            }
            Op::ConvertAddress { space, into, to, a } => {
                let v = self.value(a, types::I64);
                let base = match space {
                    Space::Shared => {
                        Some(self.block_field(types::I64, offset_of!(BlockState, shared)))
                    }
                    Space::Local => Some(self.local_base()),
                    _ => None,
                };
                let v = match base {
                    None => v,
                    Some(base) if *into => self.b.ins().isub(v, base),
                    Some(base) => self.b.ins().iadd(v, base),
                };
                self.set(*to, v, false);
            }
            Op::IsSpace { space, to, a } => {
                let v = self.value(a, types::I64);
                let (base, len) = match space {
                    Space::Shared => (
                        self.block_field(types::I64, offset_of!(BlockState, shared)),
                        self.block_field(types::I64, offset_of!(BlockState, shared_bytes)),
                    ),
                    Space::Local => (self.local_base(), self.local_bytes()),
                    Space::Param => {
                        let len =
                            self.block_field(types::I32, offset_of!(BlockState, parameter_bytes));
                        (
                            self.block_field(types::I64, offset_of!(BlockState, parameters)),
                            self.cast(len, types::I64, false),
                        )
                    }
                    // Host memory that kernels reach is global too (§5.1.4).
                    _ => self.gpu_memory(),
                };
                let offset = self.b.ins().isub(v, base);
                let p = self.b.ins().icmp(IntCC::UnsignedLessThan, offset, len);
                self.set(*to, p, false);
            }
            other => return Err(format!("no access {other:?}")),
        }
        Ok(())
    }

    /// Notes where the thread looks at memory of others: what it waits for, if it loops.
    fn looks(&mut self, at: Value, bytes: u32, site: Site) {
        self.put(at, offset_of!(Thread, looked));
        let site = self.site(site);
        let noted = self.b.ins().bor_imm(site, i64::from(bytes) << SITE_BITS);
        self.put(noted, offset_of!(Thread, looked_at));
    }

    /// First address and bytes of GPU memory.
    pub(super) fn gpu_memory(&mut self) -> (Value, Value) {
        (
            self.field(types::I64, offset_of!(Thread, memory)),
            self.field(types::I64, offset_of!(Thread, items)),
        )
    }

    fn local_bytes(&mut self) -> Value {
        let n = self.block_field(types::I32, offset_of!(BlockState, local_bytes));
        self.cast(n, types::I64, false)
    }

    /// The host's address of an access, which was found to be allowed.
    pub(super) fn checked(&mut self, a: &Access, how: How, site: Site) -> Lowered<Value> {
        if let Some(v) = self.known(&a.at, how.bytes() as u32)? {
            if let Base::Symbol(s) = a.at.base {
                if let (Place::Shared(_), _) = self.place(s) {
                    check::touched(self, v, how, site)?;
                }
            }
            return Ok(v);
        }
        let v = self.raw_address(&a.at);
        self.permitted_as(a.space, v, how, site)
    }

    /// An address in its own space, unchecked.
    pub(super) fn raw_address(&mut self, at: &Address) -> Value {
        let Address { base, offset } = *at;
        match base {
            Base::Reg(r) => {
                let v = self.register(r);
                let v = self.cast(v, types::I64, false);
                self.b.ins().iadd_imm(v, offset)
            }
            Base::Symbol(s) => self.address_of(s, offset),
            Base::Absolute => self.int(types::I64, offset),
        }
    }

    /// The host's address of an address in a space, which was found to be allowed.
    pub(super) fn permitted(
        &mut self,
        space: Space,
        v: Value,
        bytes: u32,
        store: bool,
        site: Site,
    ) -> Lowered<Value> {
        self.permitted_as(space, v, How::new(bytes, store), site)
    }

    pub(super) fn permitted_as(
        &mut self,
        space: Space,
        v: Value,
        how: How,
        site: Site,
    ) -> Lowered<Value> {
        let bytes = how.bytes() as u32;
        let mark = if how.is_store() { STORE } else { 0 };
        match space {
            Space::Shared => {
                let len = self.block_field(types::I64, offset_of!(BlockState, shared_bytes));
                self.inside(v, len, bytes, bytes | mark | SHARED, site)?;
                let base = self.block_field(types::I64, offset_of!(BlockState, shared));
                let at = self.b.ins().iadd(base, v);
                check::touched(self, at, how, site)?;
                Ok(at)
            }
            Space::Local => {
                let len = self.local_bytes();
                self.inside(v, len, bytes, bytes | mark | LOCAL, site)?;
                let base = self.local_base();
                Ok(self.b.ins().iadd(base, v))
            }
            _ => {
                self.in_memory(v, bytes, bytes | mark, site)?;
                check::touched(self, v, how, site)?;
                Ok(v)
            }
        }
    }

    /// The address of a part of a variable of the function, which needs no check.
    pub(super) fn known(&mut self, at: &Address, bytes: u32) -> Lowered<Option<Value>> {
        let Base::Symbol(s) = at.base else {
            return Ok(None);
        };
        let (place, len) = self.place(s);
        let end = at.offset.checked_add(i64::from(bytes));
        let fits = at.offset >= 0 && end.is_some_and(|e| e <= i64::from(len));
        let base = match place {
            Place::Parameter(_) | Place::Local(_) | Place::Stack(_) | Place::Shared(_) if !fits => {
                return Err("the access is outside of its variable".to_owned());
            }
            Place::Parameter(at) => (
                self.block_field(types::I64, offset_of!(BlockState, parameters)),
                at,
            ),
            Place::Local(at) => (self.local_base(), at),
            Place::Stack(at) => (self.stack_base(), at),
            Place::Shared(at) => (
                self.block_field(types::I64, offset_of!(BlockState, shared)),
                at,
            ),
            Place::Global(_) | Place::Dynamic => return Ok(None),
        };
        let v = self.b.ins().iadd_imm(base.0, i64::from(base.1) + at.offset);
        Ok(Some(v))
    }

    /// A rotation puts the bits that must be 0 to the top: one comparison finds both what is
    /// outside and what is not aligned.
    fn rotated(&mut self, offset: Value, bytes: u32) -> Value {
        match bytes.trailing_zeros() {
            0 => offset,
            n => self.b.ins().rotr_imm(offset, i64::from(n)),
        }
    }

    fn inside(
        &mut self,
        offset: Value,
        len: Value,
        bytes: u32,
        mark: u32,
        site: Site,
    ) -> Lowered<()> {
        let at = self.rotated(offset, bytes);
        let n = self
            .b
            .ins()
            .ushr_imm(len, i64::from(bytes.trailing_zeros()));
        let ok = self.b.ins().icmp(IntCC::UnsignedLessThan, at, n);
        let next = self.unless_cold(ok);
        self.ask(Helper::Refused, offset, mark, site)?;
        let fault = self.fault;
        self.b.ins().jump(fault, &[]);
        self.enter(next);
        check::allocated(self, offset, bytes, mark, site)
    }

    fn in_memory(&mut self, address: Value, bytes: u32, mark: u32, site: Site) -> Lowered<()> {
        // Operands in memory, so that no register is kept for them.
        let base = self.field(types::I64, offset_of!(Thread, memory));
        let offset = self.b.ins().isub(address, base);
        let at = self.rotated(offset, bytes);
        let items = offset_of!(Thread, items) + 8 * bytes.trailing_zeros() as usize;
        let n = self.field(types::I64, items);
        let ok = self.b.ins().icmp(IntCC::UnsignedLessThan, at, n);
        let [inside, other, next] = std::array::from_fn(|_| self.b.create_block());
        self.b.ins().brif(ok, inside, &[], other, &[]);
        self.enter(other);
        self.b.set_cold_block(other);
        let allowed = self.ask(Helper::Check, address, mark, site)?;
        let fault = self.fault;
        self.b.ins().brif(allowed, next, &[], fault, &[]);
        self.enter(inside);
        check::allocated(self, offset, bytes, mark, site)?;
        self.b.ins().jump(next, &[]);
        self.enter(next);
        Ok(())
    }

    pub(super) fn ask(
        &mut self,
        h: Helper,
        address: Value,
        mark: u32,
        site: Site,
    ) -> Lowered<Value> {
        let thread = self.thread;
        let mark = self.int(types::I32, i64::from(mark));
        let site = self.site(site);
        self.call_helper(h, &[thread, address, mark, site])
    }

    fn load(&mut self, a: &Access, at: Value, offset: i32) -> Lowered<Value> {
        let t = clif(a.ty);
        let flags = MemFlags::trusted();
        if a.ty == Type::B128 && a.order != MemoryOrder::Weak {
            if !self.ordered {
                return Err("128-bit ordered loads are there on x86-64 alone".to_owned());
            }
            // 16 aligned bytes in one load, which processors with AVX do not tear.
            let v = self.b.ins().load(types::I8X16, flags, at, offset);
            self.compiler_fence();
            let little = MemFlags::new().with_endianness(Endianness::Little);
            return Ok(self.b.ins().bitcast(types::I128, little, v));
        }
        if a.order == MemoryOrder::Weak {
            return Ok(self.b.ins().load(t, flags, at, offset));
        }
        let at = self.b.ins().iadd_imm(at, i64::from(offset));
        let v = self.b.ins().atomic_load(bits_of(t), flags, at);
        Ok(self.cast(v, t, false))
    }

    fn store(&mut self, a: &Access, at: Value, v: Value, offset: i32) {
        let flags = MemFlags::trusted();
        if a.order != MemoryOrder::Weak {
            // A thread that waits stores nothing.
            let one = self.int(types::I32, 1);
            self.put(one, offset_of!(Thread, moved));
        }
        if a.ty == Type::B128 {
            let little = MemFlags::new().with_endianness(Endianness::Little);
            let v = self.b.ins().bitcast(types::I8X16, little, v);
            self.b.ins().store(flags, v, at, offset);
        } else if a.order == MemoryOrder::Weak || self.ordered {
            self.b.ins().store(flags, v, at, offset);
        } else {
            let at = self.b.ins().iadd_imm(at, i64::from(offset));
            let v = self.as_int(v);
            self.b.ins().atomic_store(flags, v, at);
        }
    }

    /// An atomic load of the thread's own memory: the compiler moves no access past it.
    fn compiler_fence(&mut self) {
        let at = self
            .b
            .ins()
            .iadd_imm(self.thread, offset_of!(Thread, state) as i64);
        self.b
            .ins()
            .atomic_load(types::I32, MemFlags::trusted(), at);
    }

    pub(super) fn atomic(
        &mut self,
        op: AtomicOp,
        ty: Type,
        at: Value,
        args: &[Value],
    ) -> Lowered<Value> {
        let flags = MemFlags::trusted();
        let t = clif(ty);
        let helper = match (op, ty) {
            (AtomicOp::Add, Type::F32) => Some(Helper::AddF32),
            (AtomicOp::Add, Type::F64) => Some(Helper::AddF64),
            (AtomicOp::Inc, _) => Some(Helper::Increment),
            (AtomicOp::Dec, _) => Some(Helper::Decrement),
            _ => None,
        };
        if let Some(h) = helper {
            return self.call_helper(h, &[at, args[0]]);
        }
        if ty.is_half() {
            let op = match op {
                AtomicOp::Min => FloatOp::Min,
                AtomicOp::Max => FloatOp::Max,
                _ => FloatOp::Add,
            };
            let task = Task {
                op,
                ty,
                mode: FloatMode::default(),
            };
            let task = self.int(types::I32, i64::from(task.pack()));
            let v = self.cast(args[0], types::I32, false);
            let helper = match ty.bytes() {
                2 => Helper::AddHalf,
                _ => Helper::AddHalves,
            };
            return self.call_helper(helper, &[at, v, task]);
        }
        if ty == Type::B128 && !self.ordered {
            return Err("128-bit atomic operations are there on x86-64 alone".to_owned());
        }
        let signed = ty.is_signed();
        let rmw = match op {
            AtomicOp::Cas => return Ok(self.b.ins().atomic_cas(flags, at, args[0], args[1])),
            AtomicOp::Add => AtomicRmwOp::Add,
            AtomicOp::Exch => AtomicRmwOp::Xchg,
            AtomicOp::And => AtomicRmwOp::And,
            AtomicOp::Or => AtomicRmwOp::Or,
            AtomicOp::Xor => AtomicRmwOp::Xor,
            AtomicOp::Min if signed => AtomicRmwOp::Smin,
            AtomicOp::Min => AtomicRmwOp::Umin,
            AtomicOp::Max if signed => AtomicRmwOp::Smax,
            AtomicOp::Max => AtomicRmwOp::Umax,
            AtomicOp::Inc | AtomicOp::Dec => return Err("no such atomic operation".to_owned()),
        };
        Ok(self.b.ins().atomic_rmw(t, flags, rmw, at, args[0]))
    }
}
