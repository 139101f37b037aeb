//! Control flow: basic blocks, calls, resume points.

use std::collections::HashMap;
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{types, AbiParam, Block, Function, InstBuilder, MemFlags};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Switch};

use super::calls::{Callee, Passed};
use super::emit::{Emit, Frame, Lowered, Outlined, Place};
use super::helper::Helper;
use super::liveness::Liveness;
use super::masked;
use super::polls::{polls, POLL};
use super::registers::Slots;
use crate::code::Facts;
use crate::context::{why, Thread};
use crate::hooks::Checks;
use crate::module::{
    self, Formal, Instruction, Label, Module, Op, Reg, Site, Space, Statement, Symbol,
};

/// Bytes of local memory for the stack of a thread, in kernels that need one.
const STACK_BYTES: u32 = 16 << 10;

/// Statements of a kernel with all that it calls: beyond, compiling would take minutes.
const MOST: usize = 400_000;

pub(super) fn lower(
    (module, kernel): (&Module, usize),
    (checks, lines): (Checks, bool),
    f: &mut Function,
    isa: &dyn TargetIsa,
) -> Lowered<Facts> {
    f.signature.call_conv = isa.default_call_conv();
    f.signature.params.push(AbiParam::new(types::I64));
    f.signature.returns.push(AbiParam::new(types::I32));
    let mut context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(f, &mut context);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    let thread = b.block_params(entry)[0];
    let kept = offset_of!(Thread, frame) as i32;
    let kept = b.ins().load(types::I64, MemFlags::trusted(), thread, kept);
    let [dispatch, start, fault] = std::array::from_fn(|_| b.create_block());
    let mut e = Emit {
        b,
        module,
        frames: Vec::new(),
        thread,
        masked: None,
        kept,
        facts: Facts {
            shared_bytes: 0,
            local_bytes: 0,
            frame_words: 0,
            stack_begin: 0,
            dynamic_shared: false,
            sites: Vec::new(),
            checks,
            layouts: Default::default(),
            thread: None,
            wanted: Vec::new(),
        },
        shared: HashMap::new(),
        resumes: Vec::new(),
        fault,
        local_top: 0,
        statements: 0,
        call_conv: isa.default_call_conv(),
        ordered: isa.name() == "x64",
        outlined: Outlined::new(module.needs_stack(kernel)),
    };
    e.facts.thread = lines.then(|| e.keep_thread());
    // The first block of the layout is the entry; where to go on is decided when all resume points
    // are known.
    e.b.ins().jump(dispatch, &[]);
    e.b.switch_to_block(start);
    let parameters = module.functions[kernel].parameters();
    let places = parameters.iter().map(|p| Place::Parameter(p.offset));
    e.body(kernel, places.collect(), None)?;
    e.outlined_bodies(dispatch)?;
    if e.outlined.stack {
        e.lay_out_stack()?;
    }
    if lines {
        e.mark_dispatch();
    }
    e.b.switch_to_block(fault);
    e.b.set_cold_block(fault);
    e.leave(why::FAULT);
    e.b.switch_to_block(dispatch);
    if e.resumes.is_empty() {
        e.b.ins().jump(start, &[]);
    } else {
        let state = e.field(types::I32, offset_of!(Thread, state));
        let mut switch = Switch::new();
        for (i, block) in e.resumes.iter().enumerate() {
            switch.set_entry(i as u128 + 1, *block);
        }
        switch.emit(&mut e.b, state, start);
    }
    e.b.seal_all_blocks();
    let facts = e.facts;
    e.b.finalize();
    Ok(facts)
}

impl<'a> Emit<'a, '_> {
    /// Compiles a function's body. `places` has those of its parameters.
    fn body(&mut self, index: usize, places: Vec<Place>, leave: Option<Block>) -> Lowered<()> {
        let module: &'a Module = self.module;
        let function: &'a module::Function = &module.functions[index];
        self.statements += function.body.len();
        if self.statements > MOST {
            return Err(format!(
                "with the functions it calls it has more than {MOST} statements"
            ));
        }
        let local_top = self.local_top;
        let places = self.lay_out(index, places)?;
        let traced = self.facts.checks.traced();
        let yields = |i: usize, op: &Op, at: &[usize]| match op {
            op @ (Op::Branch { .. } | Op::BranchTable { .. }) => {
                let mut first = usize::MAX;
                op.targets(&mut |Label(l)| first = first.min(at[l as usize]));
                first <= i && observes(function, first, i, traced)
            }
            op => op.waits() || matches!(op, Op::Call { .. } | Op::CallAddress { .. }),
        };
        let live = Liveness::of(function, &yields);
        let waits = |op: &Op| self.waits_in(op);
        let slots = Slots::of(function, &live, &waits);
        let first = self.frames.last().map_or(0, |f| f.first + f.slots.words);
        self.facts.frame_words = self.facts.frame_words.max(first + slots.words);
        let branches = branches(function);
        let labels = (0..function.labels).map(|_| self.b.create_block());
        let labels = labels.collect();
        self.frames.push(Frame {
            function,
            registers: vec![None; function.registers.len()],
            slots,
            first,
            branches,
            masked: match self.facts.checks.traced() {
                true => masked::conditions(function),
                false => HashMap::new(),
            },
            places,
            labels,
            leave,
            across_call: Vec::new(),
        });
        let mut open = true;
        for (i, s) in function.body.iter().enumerate() {
            match s {
                Statement::Label(l) => {
                    let block = self.label(*l);
                    if open {
                        self.b.ins().jump(block, &[]);
                    }
                    self.b.switch_to_block(block);
                    if self.frame().branches[l.0 as usize] == 0 {
                        self.b.seal_block(block);
                    }
                    open = true;
                }
                Statement::Instruction(s) => {
                    if !open {
                        let block = self.b.create_block();
                        self.enter(block);
                    }
                    open = self
                        .guarded(s, i, &live)
                        .map_err(|e| format!("line {}: {e}", s.site.line))?;
                }
            }
        }
        if open {
            self.leave_function();
        }
        self.frames.pop();
        self.local_top = local_top;
        Ok(())
    }

    /// Places of a function's variables behind its parameters.
    fn lay_out(&mut self, index: usize, mut places: Vec<Place>) -> Lowered<Vec<Place>> {
        let function = &self.module.functions[index];
        for (i, v) in function.variables.iter().enumerate().skip(places.len()) {
            places.push(match v.space {
                Space::Shared => self.shared_place(Some(index), i as u32, v),
                _ if self.outlined.inside => {
                    let at = self.local_top.next_multiple_of(v.align.max(1));
                    self.local_top = at.saturating_add(v.bytes);
                    Place::Stack(at)
                }
                _ => {
                    let (top, checked) = (self.local_top, self.facts.checks.memory);
                    let (at, top) = self.facts.layouts[1]
                        .place(top, (v.bytes, v.align), &v.name, checked)
                        .filter(|(_, top)| *top <= 1 << 24)
                        .ok_or("a thread's local memory is larger than 16 MiB")?;
                    self.local_top = top;
                    self.facts.local_bytes = self.facts.local_bytes.max(self.local_top);
                    Place::Local(at)
                }
            });
        }
        Ok(places)
    }

    fn label(&self, l: Label) -> Block {
        self.frame().labels[l.0 as usize]
    }

    /// `ret`.
    fn leave_function(&mut self) {
        match self.frame().leave {
            Some(block) => {
                self.b.ins().jump(block, &[]);
            }
            None => self.leave(why::DONE),
        }
    }

    /// Whether control goes on behind the instruction.
    fn guarded(&mut self, i: &Instruction, at: usize, live: &Liveness) -> Lowered<bool> {
        if self.facts.thread.is_some() {
            self.mark_line(i.site);
        }
        let Some((reg, negated)) = i.guard else {
            return self.instruction(i, at, live);
        };
        let p = self.register(reg);
        let (hit, next) = (self.b.create_block(), self.b.create_block());
        if negated {
            self.b.ins().brif(p, next, &[], hit, &[]);
        } else {
            self.b.ins().brif(p, hit, &[], next, &[]);
        }
        self.enter(hit);
        if self.instruction(i, at, live)? {
            self.b.ins().jump(next, &[]);
        }
        self.enter(next);
        Ok(true)
    }

    fn instruction(&mut self, i: &Instruction, at: usize, live: &Liveness) -> Lowered<bool> {
        match &i.op {
            // §9.7.12.2. Each loop can be ended, and one that looks at memory of others lets them
            // run.
            Op::Branch { to } => {
                self.branch(*to, i.site, at, live)?;
                return Ok(false);
            }
            Op::BranchTable { index, to } => {
                let index = self.value(index, types::I32);
                let site = self.site(i.site);
                self.put(site, offset_of!(Thread, site));
                let mut switch = Switch::new();
                let edges: Vec<Block> = to.iter().map(|_| self.b.create_block()).collect();
                for (n, edge) in edges.iter().enumerate() {
                    switch.set_entry(n as u128, *edge);
                }
                let beyond = self.b.create_block();
                switch.emit(&mut self.b, index, beyond);
                for (to, edge) in to.iter().zip(edges) {
                    self.b.switch_to_block(edge);
                    self.branch(*to, i.site, at, live)?;
                }
                self.b.switch_to_block(beyond);
                self.b.set_cold_block(beyond);
                self.leave(why::TRAP);
                return Ok(false);
            }
            Op::Return => {
                self.leave_function();
                return Ok(false);
            }
            Op::Exit => {
                self.leave(why::DONE);
                return Ok(false);
            }
            Op::Trap => {
                let site = self.site(i.site);
                self.put(site, offset_of!(Thread, site));
                self.leave(why::TRAP);
                return Ok(false);
            }
            Op::Call {
                function,
                results,
                args,
            } => {
                let callee = &self.module.functions[*function as usize];
                if let Some(system) = callee.system() {
                    return self.system(system, results, args, i.site);
                }
                let across = live.behind(at).unwrap_or(&[]).to_vec();
                if self.module.outlined[*function as usize] {
                    let passed = Passed {
                        formals: callee.formals().collect(),
                        results,
                        args,
                    };
                    self.call_out(&Callee::Function(*function), &passed, &across, i.site)?;
                    return Ok(true);
                }
                self.call(*function as usize, results, args, across)?;
            }
            Op::CallAddress {
                function,
                formals,
                results,
                args,
            } => {
                let passed = Passed {
                    formals: formals.iter().collect(),
                    results,
                    args,
                };
                let live = live.behind(at).unwrap_or(&[]);
                self.call_out(&Callee::Address(function), &passed, live, i.site)?;
            }
            Op::StackAllocate { to, bytes, align } => {
                self.stack_allocate(*to, bytes, *align, i.site);
            }
            Op::StackSave { to } => {
                let v = self.field(types::I64, offset_of!(Thread, stack_top));
                self.set(*to, v, false);
            }
            Op::StackRestore { from } => self.stack_restore(from),
            Op::Async(op) => self.asynchronous(op, i.site, live.behind(at).unwrap_or(&[]))?,
            Op::Told { what, bytes, done } => {
                self.told((what, *bytes), done, i.site, live.behind(at).unwrap_or(&[]))?;
            }
            Op::Matrix(op) => self.matrix(op, i.site, live.behind(at).unwrap_or(&[]))?,
            op if op.waits() => self.waiting(i, live.behind(at).unwrap_or(&[]))?,
            _ => {
                self.masked = self.frame().masked.get(&at).copied();
                self.plain(i)?;
                self.masked = None;
            }
        }
        Ok(true)
    }

    fn branch(&mut self, to: Label, site: Site, at: usize, live: &Liveness) -> Lowered<()> {
        let place = live.at[to.0 as usize];
        if place <= at {
            let polls = polls(self.frame().function, place, at);
            let cost = if polls { POLL } else { 1 };
            self.back_edge(site, (place, at), live.behind(at), cost)?;
        }
        let block = self.label(to);
        self.b.ins().jump(block, &[]);
        self.branched(to, place <= at);
        Ok(())
    }

    /// A call is compiled as the function's body; its parameters are the caller's variables
    /// (§9.7.12.5).
    fn call(
        &mut self,
        function: usize,
        results: &[Symbol],
        args: &[Symbol],
        across: Vec<Reg>,
    ) -> Lowered<()> {
        let callee = &self.module.functions[function];
        let (mut results, mut args) = (results.iter(), args.iter());
        let mut places = Vec::new();
        for v in &callee.variables {
            let given = match v.formal {
                Some(Formal::Result) => results.next(),
                Some(Formal::Argument) => args.next(),
                None => break,
            };
            let Some(Symbol::Own(own)) = given else {
                return Err("a parameter of the call is missing".to_owned());
            };
            if self.frame().function.variables[*own as usize].bytes < v.bytes {
                return Err(format!("parameter `{}` is given too few bytes", v.name));
            }
            places.push(self.frame().places[*own as usize]);
        }
        let behind = self.b.create_block();
        let frame = self.frames.last_mut().expect("inside a function");
        frame.across_call = across;
        self.body(function, places, Some(behind))?;
        self.enter(behind);
        Ok(())
    }

    /// Counts the budget down, and gives way when it is spent: `live` has what is kept.
    fn back_edge(
        &mut self,
        site: Site,
        range: (usize, usize),
        live: Option<&[Reg]>,
        cost: i64,
    ) -> Lowered<()> {
        let offset = offset_of!(Thread, budget);
        let left = self.field(types::I32, offset);
        let left = self.b.ins().iadd_imm(left, -cost);
        self.put(left, offset);
        let (spent, on) = (self.b.create_block(), self.b.create_block());
        let left = if cost == 1 {
            left
        } else {
            // What the thread has published may be what others need to answer.
            let moved = self.field(types::I32, offset_of!(Thread, moved));
            let none = self.int(types::I32, 0);
            self.b.ins().select(moved, none, left)
        };
        let some = self.b.ins().icmp_imm(IntCC::SignedGreaterThan, left, 0);
        self.b.ins().brif(some, on, &[], spent, &[]);
        self.enter(spent);
        self.b.set_cold_block(spent);
        let thread = self.thread;
        let site = self.site(site);
        self.put(site, offset_of!(Thread, site));
        let stop = self.call_helper(Helper::Renew, &[thread])?;
        let end = self.b.create_block();
        match live {
            Some(live) => {
                let give_way = self.b.create_block();
                self.b.ins().brif(stop, end, &[], give_way, &[]);
                self.enter(give_way);
                self.b.set_cold_block(give_way);
                if cost == 1 {
                    // It does not only wait: nothing may sleep for it.
                    let one = self.int(types::I32, 1);
                    self.put(one, offset_of!(Thread, moved));
                }
                let (kept, state) = self.wait(why::BUDGET, live, &[]);
                self.note_wanted(range, &kept, state);
                self.b.ins().jump(on, &[]);
            }
            None => {
                self.b.ins().brif(stop, end, &[], on, &[]);
            }
        }
        self.enter(end);
        self.b.set_cold_block(end);
        self.leave(why::STOPPED);
        self.enter(on);
        Ok(())
    }

    /// Compiles a function whose parameters and variables lie on the stack.
    pub(super) fn body_on_stack(
        &mut self,
        index: usize,
        places: Vec<Place>,
        leave: Block,
        top: u32,
    ) -> Lowered<()> {
        self.local_top = top;
        self.body(index, places, Some(leave))
    }

    /// The stack lies behind all variables of local memory.
    fn lay_out_stack(&mut self) -> Lowered<()> {
        let (top, checked) = (
            self.facts.local_bytes.next_multiple_of(16),
            self.facts.checks.memory,
        );
        let (at, end) = self.facts.layouts[1]
            .place(top, (STACK_BYTES, 16), "stack", checked)
            .ok_or("a thread's local memory is too large")?;
        // An empty stack begins behind byte 0 too, so that its begin says that there is one.
        self.facts.stack_begin = at + 16;
        self.facts.local_bytes = end.max(at + STACK_BYTES);
        Ok(())
    }

    /// How often a statement lets a thread wait.
    fn waits_in(&self, op: &Op) -> u64 {
        let Op::Call { function, .. } = op else {
            return 1;
        };
        let body = &self.module.functions[*function as usize].body;
        let waits = body.iter().filter(|s| match s {
            Statement::Instruction(i) => i.op.waits() || i.op.observes(),
            Statement::Label(_) => false,
        });
        waits.count() as u64
    }

    /// Counts a branch to a label, which was placed before if `back`.
    fn branched(&mut self, to: Label, back: bool) {
        let frame = self.frames.last_mut().expect("inside a function");
        let left = &mut frame.branches[to.0 as usize];
        *left -= 1;
        if *left == 0 && back {
            let block = frame.labels[to.0 as usize];
            self.b.seal_block(block);
        }
    }
}

/// How many branches lead to each label.
fn branches(f: &module::Function) -> Vec<u32> {
    let mut n = vec![0; f.labels as usize];
    for s in &f.body {
        if let Statement::Instruction(i) = s {
            i.op.targets(&mut |Label(l)| n[l as usize] += 1);
        }
    }
    n
}

/// Whether the loop looks at memory that other threads write, itself or in a function that it
/// calls. The NIC waits for a step of `traced` code, so that a loop over a plain load, which is
/// wrong, must not keep it up.
fn observes(f: &module::Function, from: usize, to: usize, traced: bool) -> bool {
    f.body[from..=to].iter().any(|s| match s {
        Statement::Instruction(i) => match i.op {
            Op::Call { .. } | Op::CallAddress { .. } => true,
            Op::Load { .. } if traced => true,
            _ => i.op.observes(),
        },
        Statement::Label(_) => false,
    })
}
