//! Calls of functions that have code of their own: recursion, calls by address; and memory of the
//! stack.
//!
//! All of a kernel's functions are one function of the host. A call keeps the live registers as a
//! wait does, notes the resume point behind it, and jumps to the function; `ret` goes to that point
//! by the dispatch. So a thread can wait at any depth. Its frame and its stack in local memory grow
//! by each call.

use std::collections::HashMap;
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{types, Block, InstBuilder, MemFlags, Value};
use cranelift_frontend::Switch;

use super::emit::Place;
use super::emit::{Emit, Lowered};
use crate::context::{why, Thread};
use crate::module::{
    formal_offsets, function_address, Formal, Module, Op, Operand, Reg, Site, Symbol, Target,
    Variable,
};

/// Words of the frame that a call takes for itself: state, stack, its top, the caller's frame.
const LINK: u32 = 4;

/// What is called.
pub(super) enum Callee<'a> {
    Function(u32),
    Address(&'a Operand),
}

/// What is copied to and from a call.
pub(super) struct Passed<'a> {
    pub(super) formals: Vec<&'a Variable>,
    pub(super) results: &'a [Symbol],
    pub(super) args: &'a [Symbol],
}

impl Emit<'_, '_> {
    /// A call of a function with code of its own.
    pub(super) fn call_out(
        &mut self,
        callee: &Callee<'_>,
        passed: &Passed<'_>,
        live: &[Reg],
        site: Site,
    ) -> Lowered<()> {
        let (offsets, bytes) = formal_offsets(passed.formals.iter().copied());
        let site = self.site(site);
        self.put(site, offset_of!(Thread, site));
        let top = self.field(types::I64, offset_of!(Thread, stack_top));
        self.reserve(top, bytes);
        let (mut results, mut args, mut back) =
            (passed.results.iter(), passed.args.iter(), Vec::new());
        for (v, at) in passed.formals.iter().zip(offsets) {
            let result = v.formal == Some(Formal::Result);
            let given = if result { results.next() } else { args.next() };
            let Some(Symbol::Own(own)) = given else {
                return Err("a parameter of the call is missing".to_owned());
            };
            if self.frame().function.variables[*own as usize].bytes < v.bytes {
                return Err(format!("parameter `{}` is given too few bytes", v.name));
            }
            let place = self.frame().places[*own as usize];
            if result {
                back.push((place, at, v.bytes));
            } else {
                let (from, to) = (self.host_address(place)?, self.on_stack(top, at));
                self.copy_bytes(from, to, v.bytes);
            }
        }
        if let Callee::Address(o) = callee {
            let v = self.value(o, types::I64);
            self.put(v, offset_of!(Thread, address));
        }
        let kept = self.keep_live(live, &[]);
        let (resume, state) = self.new_resume();
        let frame = self.field(types::I64, offset_of!(Thread, frame));
        let words = [offset_of!(Thread, stack), offset_of!(Thread, stack_top)];
        let [stack, stack_top] = words.map(|at| self.field(types::I64, at));
        let state = self.int(types::I64, i64::from(state));
        for (i, v) in [state, stack, stack_top, frame].into_iter().enumerate() {
            self.keep(v, kept.end + i as u32);
        }
        let end = kept.end + LINK;
        self.facts.frame_words = self.facts.frame_words.max(end);
        let next = self.b.ins().iadd_imm(frame, i64::from(end) * 8);
        let most = self.field(types::I64, offset_of!(Thread, frame_end));
        let fits = self
            .b
            .ins()
            .icmp(IntCC::UnsignedLessThanOrEqual, next, most);
        self.unless_overrun(fits);
        self.put(next, offset_of!(Thread, frame));
        let start = match callee {
            Callee::Function(f) => self.start_of(*f),
            Callee::Address(_) => {
                let known = self.outlined.by_address;
                let block = known.unwrap_or_else(|| self.b.create_block());
                self.outlined.by_address = Some(block);
                // Each function whose address is known may be meant.
                let module = self.module;
                for f in &module.addressed {
                    self.start_of(*f);
                }
                block
            }
        };
        self.b.ins().jump(start, &[]);
        self.b.switch_to_block(resume);
        self.restore(&kept);
        for (place, at, bytes) in back {
            let top = self.field(types::I64, offset_of!(Thread, stack_top));
            let (from, to) = (self.on_stack(top, at), self.host_address(place)?);
            self.copy_bytes(from, to, bytes);
        }
        Ok(())
    }

    fn start_of(&mut self, f: u32) -> Block {
        match self.outlined.starts.get(&f) {
            Some(block) => *block,
            None => {
                let block = self.b.create_block();
                self.outlined.starts.insert(f, block);
                block
            }
        }
    }

    /// Compiles the functions that were called, and those that they call.
    pub(super) fn outlined_bodies(&mut self, dispatch: Block) -> Lowered<()> {
        let mut sizes = HashMap::new();
        loop {
            let starts = &self.outlined.starts;
            let next = starts
                .iter()
                .find(|(f, _)| !self.outlined.done.contains(*f));
            let Some((&f, &start)) = next else {
                break;
            };
            self.outlined.done.push(f);
            self.b.switch_to_block(start);
            let size = stack_bytes(self.module, f as usize, &mut sizes);
            let top = self.field(types::I64, offset_of!(Thread, stack_top));
            self.reserve(top, size);
            self.put(top, offset_of!(Thread, stack));
            let end = self.b.ins().iadd_imm(top, i64::from(size));
            self.put(end, offset_of!(Thread, stack_top));
            let known = self.outlined.leave;
            let leave = known.unwrap_or_else(|| self.b.create_block());
            self.outlined.leave = Some(leave);
            self.outlined.inside = true;
            let (offsets, bytes) = formal_offsets(self.module.functions[f as usize].formals());
            let places = offsets.into_iter().map(Place::Stack).collect();
            self.body_on_stack(f as usize, places, leave, bytes)?;
        }
        self.outlined.inside = false;
        if let Some(block) = self.outlined.by_address {
            self.b.switch_to_block(block);
            let v = self.field(types::I64, offset_of!(Thread, address));
            let mut switch = Switch::new();
            for f in &self.module.addressed {
                switch.set_entry(function_address(*f) as u128, self.outlined.starts[f]);
            }
            let wrong = self.b.create_block();
            switch.emit(&mut self.b, v, wrong);
            self.b.switch_to_block(wrong);
            let bytes = self.int(types::I32, 1);
            self.put(bytes, offset_of!(Thread, bytes));
            self.leave(why::FAULT);
        }
        if let Some(block) = self.outlined.leave {
            self.b.switch_to_block(block);
            let frame = self.field(types::I64, offset_of!(Thread, frame));
            let flags = MemFlags::trusted();
            let at = -(LINK as i32) * 8;
            let words: Vec<Value> = (0..4)
                .map(|i| self.b.ins().load(types::I64, flags, frame, at + i * 8))
                .collect();
            let state = self.b.ins().ireduce(types::I32, words[0]);
            self.put(state, offset_of!(Thread, state));
            self.put(words[1], offset_of!(Thread, stack));
            self.put(words[2], offset_of!(Thread, stack_top));
            self.put(words[3], offset_of!(Thread, frame));
            self.b.ins().jump(dispatch, &[]);
        }
        if let Some(block) = self.outlined.overrun {
            self.b.switch_to_block(block);
            self.b.set_cold_block(block);
            self.leave(why::OVERRUN);
        }
        Ok(())
    }

    fn unless_overrun(&mut self, fits: Value) {
        let known = self.outlined.overrun;
        let overrun = known.unwrap_or_else(|| self.b.create_block());
        self.outlined.overrun = Some(overrun);
        let next = self.b.create_block();
        self.b.ins().brif(fits, next, &[], overrun, &[]);
        self.enter(next);
    }

    /// Leaves the thread unless its stack has so many bytes from `top` on.
    fn reserve(&mut self, top: Value, bytes: u32) {
        let end = self.b.ins().iadd_imm(top, i64::from(bytes));
        let most = self.field(types::I64, offset_of!(Thread, stack_end));
        let fits = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, end, most);
        self.unless_overrun(fits);
    }

    fn on_stack(&mut self, top: Value, at: u32) -> Value {
        let base = self.local_base();
        let v = self.b.ins().iadd(base, top);
        self.b.ins().iadd_imm(v, i64::from(at))
    }

    /// The host's address of a variable of the caller.
    fn host_address(&mut self, place: Place) -> Lowered<Value> {
        let (base, at) = match place {
            Place::Local(at) => (self.local_base(), at),
            Place::Stack(at) => (self.stack_base(), at),
            _ => return Err("a parameter of a call is no variable of the function".to_owned()),
        };
        Ok(self.b.ins().iadd_imm(base, i64::from(at)))
    }

    /// The host's address of the function's part of the stack.
    pub(super) fn stack_base(&mut self) -> Value {
        let base = self.local_base();
        let stack = self.field(types::I64, offset_of!(Thread, stack));
        self.b.ins().iadd(base, stack)
    }

    fn copy_bytes(&mut self, from: Value, to: Value, bytes: u32) {
        let flags = MemFlags::new().with_notrap();
        let mut at = 0;
        for (t, n) in [
            (types::I64, 8),
            (types::I32, 4),
            (types::I16, 2),
            (types::I8, 1),
        ] {
            while bytes - at >= n {
                let v = self.b.ins().load(t, flags, from, at as i32);
                self.b.ins().store(flags, v, to, at as i32);
                at += n;
            }
        }
    }

    /// `alloca` (§9.7.17): the address in local memory.
    pub(super) fn stack_allocate(&mut self, to: Target, bytes: &Operand, align: u32, site: Site) {
        let site = self.site(site);
        self.put(site, offset_of!(Thread, site));
        let bytes = self.value(bytes, types::I64);
        let top = self.field(types::I64, offset_of!(Thread, stack_top));
        let align = i64::from(align.max(16));
        let at = self.b.ins().iadd_imm(top, align - 1);
        let at = self.b.ins().band_imm(at, -align);
        let end = self.b.ins().iadd(at, bytes);
        let end = self.b.ins().iadd_imm(end, 15);
        let end = self.b.ins().band_imm(end, -16);
        let most = self.field(types::I64, offset_of!(Thread, stack_end));
        // A size near 2^64 would wrap.
        let fits = self.b.ins().icmp(IntCC::UnsignedLessThanOrEqual, end, most);
        let grows = self
            .b
            .ins()
            .icmp(IntCC::UnsignedGreaterThanOrEqual, end, top);
        let fits = self.b.ins().band(fits, grows);
        self.unless_overrun(fits);
        self.put(end, offset_of!(Thread, stack_top));
        self.set(to, at, false);
    }

    /// `stacksave`, `stackrestore` (§9.7.17). Only a top that was saved can be restored.
    pub(super) fn stack_restore(&mut self, from: &Operand) {
        let v = self.value(from, types::I64);
        let stack = self.field(types::I64, offset_of!(Thread, stack));
        let top = self.field(types::I64, offset_of!(Thread, stack_top));
        let v = self.b.ins().umax(v, stack);
        let v = self.b.ins().umin(v, top);
        let v = self.b.ins().band_imm(v, -16);
        self.put(v, offset_of!(Thread, stack_top));
    }
}

/// Bytes of the stack for parameters and variables of a function and of those that are compiled
/// into it.
fn stack_bytes(module: &Module, f: usize, known: &mut HashMap<usize, u32>) -> u32 {
    if let Some(n) = known.get(&f) {
        return *n;
    }
    let function = &module.functions[f];
    let own = function.variables.iter().fold(0u32, |top, v| {
        let at = top
            .checked_next_multiple_of(v.align.max(16))
            .unwrap_or(u32::MAX);
        at.saturating_add(v.bytes)
    });
    let inner = function.ops().map(|(op, _)| match op {
        Op::Call { function, .. } if !module.outlined[*function as usize] => {
            stack_bytes(module, *function as usize, known)
        }
        _ => 0,
    });
    let n = own
        .saturating_add(inner.max().unwrap_or(0))
        .saturating_add(16);
    let n = n.checked_next_multiple_of(16).unwrap_or(!15);
    known.insert(f, n);
    n
}
