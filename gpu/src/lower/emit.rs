//! The code of a kernel while it is written: its functions' frames, registers and waits.

use std::collections::{BTreeMap, HashMap};
use std::mem::offset_of;

use cranelift_codegen::ir::{types, AliasRegion, Block, InstBuilder, MemFlags, Type, Value};
use cranelift_codegen::isa::CallConv;
use cranelift_frontend::{FunctionBuilder, Variable};

use super::masked::Condition;
use super::registers::Slots;
use crate::code::Facts;
use crate::context::Thread;
use crate::module::{self, Module, Reg, Site};

pub(super) type Lowered<T> = Result<T, String>;

/// A function that is being compiled into the kernel.
pub(super) struct Frame<'a> {
    pub(super) function: &'a module::Function,
    pub(super) registers: Vec<Option<Variable>>,
    /// Registers that live in memory, from word `first` of the thread's frame.
    pub(super) slots: Slots,
    pub(super) first: u32,
    /// Branches to each label that are not compiled yet.
    pub(super) branches: Vec<u32>,
    pub(super) places: Vec<Place>,
    pub(super) labels: Vec<Block>,
    /// Where its `ret` goes; `None` for the kernel.
    pub(super) leave: Option<Block>,
    /// Kept in each wait of a function that it calls.
    pub(super) across_call: Vec<Reg>,
    /// Loads that count as made under a condition alone, by position, for checks.
    pub(super) masked: HashMap<usize, Condition>,
}

pub(super) struct Emit<'a, 'f> {
    pub(super) b: FunctionBuilder<'f>,
    pub(super) module: &'a Module,
    pub(super) frames: Vec<Frame<'a>>,
    pub(super) thread: Value,
    /// Under which the access that is compiled counts as made.
    pub(super) masked: Option<Condition>,
    /// Address of the thread's frame.
    pub(super) kept: Value,
    pub(super) facts: Facts,
    /// Offsets in shared memory by function and variable; the module's have no function.
    pub(super) shared: HashMap<(Option<usize>, u32), u32>,
    pub(super) resumes: Vec<Block>,
    pub(super) fault: Block,
    /// Where the next variable in local memory lies.
    pub(super) local_top: u32,
    pub(super) statements: usize,
    pub(super) call_conv: CallConv,
    /// The processor keeps the order of loads, and that of stores.
    pub(super) ordered: bool,
    pub(super) outlined: Outlined,
}

/// What a wait or call has kept: from a word of the frame to another.
pub(super) struct Kept {
    pub(super) registers: Vec<(usize, Reg)>,
    pub(super) first: u32,
    pub(super) end: u32,
}

/// Where a variable of a function lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Offset among the kernel's parameters.
    Parameter(u32),
    /// Offset in the thread's local memory.
    Local(u32),
    /// Offset in the function's part of the thread's stack.
    Stack(u32),
    /// Offset in the block's shared memory.
    Shared(u32),
    /// The begin of dynamic shared memory.
    Dynamic,
    /// A variable of the module in GPU memory, by its number.
    Global(u32),
}

pub(super) fn clif(ty: module::Type) -> Type {
    use module::Type as T;
    match ty {
        T::F32 => types::F32,
        T::F64 => types::F64,
        _ => match ty.bytes() {
            1 => types::I8,
            2 => types::I16,
            4 => types::I32,
            8 => types::I64,
            _ => types::I128,
        },
    }
}

/// Functions with code of their own.
#[derive(Default)]
pub(super) struct Outlined {
    /// The kernel needs a stack.
    pub(super) stack: bool,
    /// Inside of such a function: its variables lie on the stack.
    pub(super) inside: bool,
    pub(super) starts: BTreeMap<u32, Block>,
    pub(super) done: Vec<u32>,
    /// Goes to the function whose address is in the thread.
    pub(super) by_address: Option<Block>,
    pub(super) leave: Option<Block>,
    pub(super) overrun: Option<Block>,
}

impl Outlined {
    pub(super) fn new(stack: bool) -> Outlined {
        Outlined {
            stack,
            ..Outlined::default()
        }
    }
}

impl<'a> Emit<'a, '_> {
    pub(super) fn frame(&self) -> &Frame<'a> {
        self.frames.last().expect("inside a function")
    }

    pub(super) fn field(&mut self, ty: Type, offset: usize) -> Value {
        let t = self.thread;
        self.b.ins().load(ty, MemFlags::trusted(), t, offset as i32)
    }

    pub(super) fn put(&mut self, v: Value, offset: usize) {
        let t = self.thread;
        self.b.ins().store(MemFlags::trusted(), v, t, offset as i32);
    }

    pub(super) fn int(&mut self, ty: Type, v: i64) -> Value {
        self.b.ins().iconst(ty, v)
    }

    /// Returns to the scheduler.
    pub(super) fn leave(&mut self, why: u32) {
        let v = self.int(types::I32, i64::from(why));
        self.b.ins().return_(&[v]);
    }

    pub(super) fn site(&mut self, site: Site) -> Value {
        let i = self.site_index(site);
        self.int(types::I32, i64::from(i))
    }

    pub(super) fn site_index(&mut self, site: Site) -> u32 {
        if self.facts.sites.last() != Some(&site) {
            self.facts.sites.push(site);
        }
        self.facts.sites.len() as u32 - 1
    }

    /// Keeps what is live, here and in the callers, and returns; the code goes on at the resume
    /// point. `written` is set by the instruction itself afterwards.
    pub(super) fn wait(&mut self, why: u32, live: &[Reg], written: &[Reg]) -> (Kept, u32) {
        let kept = self.keep_live(live, written);
        let (resume, number) = self.new_resume();
        let state = self.int(types::I32, i64::from(number));
        self.put(state, offset_of!(Thread, state));
        self.leave(why);
        self.b.switch_to_block(resume);
        self.restore(&kept);
        (kept, number)
    }

    /// The word of the frame that has a register of the innermost function while it waits.
    pub(super) fn word_kept(&self, r: Reg, kept: &Kept) -> Option<u32> {
        let depth = self.frames.len() - 1;
        if let Some(word) = self.word_of(depth, r) {
            return Some(word);
        }
        let words = |(d, r): &(usize, Reg)| self.type_of(*d, *r).bytes().div_ceil(8);
        let at = kept.registers.iter().position(|k| *k == (depth, r))?;
        Some(kept.first + kept.registers[..at].iter().map(words).sum::<u32>())
    }

    /// A resume point and its number.
    pub(super) fn new_resume(&mut self) -> (Block, u32) {
        let resume = self.b.create_block();
        self.resumes.push(resume);
        (resume, self.resumes.len() as u32)
    }

    /// Keeps what is live, here and in the callers.
    pub(super) fn keep_live(&mut self, live: &[Reg], written: &[Reg]) -> Kept {
        let depth = self.frames.len() - 1;
        let mut registers = Vec::new();
        for d in 0..=depth {
            let regs = if d == depth {
                live.to_vec()
            } else {
                self.frames[d].across_call.clone()
            };
            let keeps = regs
                .into_iter()
                .filter(|r| d < depth || !written.contains(r));
            registers.extend(keeps.map(|r| (d, r)));
        }
        registers.retain(|(d, r)| self.frames[*d].slots.of_register(*r).is_none());
        let first = self.frame().first + self.frame().slots.words;
        let mut end = first;
        for (d, r) in &registers {
            let v = self.read(*d, *r);
            let words = self.b.func.dfg.value_type(v).bytes().div_ceil(8);
            self.keep(v, end);
            end += words;
        }
        self.facts.frame_words = self.facts.frame_words.max(end);
        Kept {
            registers,
            first,
            end,
        }
    }

    pub(super) fn restore(&mut self, kept: &Kept) {
        let mut at = kept.first;
        for (d, r) in &kept.registers {
            let (variable, ty) = self.variable(*d, *r);
            let v = self.kept(ty, at);
            self.b.def_var(variable, v);
            at += ty.bytes().div_ceil(8);
        }
    }

    /// Calls move it, where there are some.
    fn frame_base(&mut self) -> Value {
        match self.outlined.stack {
            true => self.field(types::I64, offset_of!(Thread, frame)),
            false => self.kept,
        }
    }

    /// A word of the thread's frame, which only the thread's own code accesses.
    fn kept(&mut self, ty: Type, word: u32) -> Value {
        let (frame, at) = (self.frame_base(), word as i32 * 8);
        self.b.ins().load(ty, frame_flags(), frame, at)
    }

    pub(super) fn keep(&mut self, v: Value, word: u32) {
        let (frame, at) = (self.frame_base(), word as i32 * 8);
        self.b.ins().store(frame_flags(), v, frame, at);
    }

    /// The word of a register that lives in memory.
    fn word_of(&self, depth: usize, r: Reg) -> Option<u32> {
        let frame = &self.frames[depth];
        frame.slots.of_register(r).map(|at| frame.first + at)
    }

    pub(super) fn type_of(&self, depth: usize, Reg(r): Reg) -> Type {
        clif(self.frames[depth].function.registers[r as usize])
    }

    pub(super) fn read(&mut self, depth: usize, r: Reg) -> Value {
        match self.word_of(depth, r) {
            Some(word) => {
                let ty = self.type_of(depth, r);
                self.kept(ty, word)
            }
            None => {
                let (v, _) = self.variable(depth, r);
                self.b.use_var(v)
            }
        }
    }

    /// Writes a register of the innermost function.
    pub(super) fn write(&mut self, r: Reg, v: Value) {
        let depth = self.frames.len() - 1;
        match self.word_of(depth, r) {
            Some(word) => self.keep(v, word),
            None => {
                let (variable, _) = self.variable(depth, r);
                self.b.def_var(variable, v);
            }
        }
    }

    /// A register's variable, declared when it is first met: a text may declare a million.
    fn variable(&mut self, depth: usize, r: Reg) -> (Variable, Type) {
        let ty = self.type_of(depth, r);
        let known = self.frames[depth].registers[r.0 as usize];
        let variable = known.unwrap_or_else(|| {
            let v = self.b.declare_var(ty);
            self.frames[depth].registers[r.0 as usize] = Some(v);
            v
        });
        (variable, ty)
    }

    /// Goes on in a block to which no further branch comes.
    pub(super) fn enter(&mut self, block: Block) {
        self.b.switch_to_block(block);
        self.b.seal_block(block);
    }

    /// Goes on in a new, cold block if the condition is false. It is to branch to the block that is
    /// returned, which is entered then.
    pub(super) fn unless_cold(&mut self, ok: Value) -> Block {
        let (next, cold) = (self.b.create_block(), self.b.create_block());
        self.b.ins().brif(ok, next, &[], cold, &[]);
        self.enter(cold);
        self.b.set_cold_block(cold);
        next
    }
}

/// Tells the compiler that nothing else is at the same place.
fn frame_flags() -> MemFlags {
    MemFlags::trusted().with_alias_region(Some(AliasRegion::Table))
}
