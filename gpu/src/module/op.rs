//! Instructions in typed form. The parser makes them, and refuses what is not among them.

use super::asynchronous::{AsyncOp, Place};
use super::extended::ExtendedOp;
use super::matrix::MatrixOp;
use super::operand::{
    Access, Address, AtomicOp, BarrierOp, BinaryOp, BoolOp, Compare, FloatMode, Half, Label,
    MemoryOrder, Operand, Reg, Rounding, Scope, Symbol, Target, UnaryOp, WarpOp,
};
use super::types::{Space, Type};
use super::variable::Variable;

/// An instruction without its guard.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Op {
    Move {
        ty: Type,
        to: Target,
        from: Operand,
    },
    Pack {
        ty: Type,
        to: Target,
        from: Vec<Operand>,
    },
    Unpack {
        ty: Type,
        to: Vec<Target>,
        from: Operand,
    },
    Select {
        ty: Type,
        to: Target,
        a: Operand,
        b: Operand,
        p: Operand,
    },
    Unary {
        op: UnaryOp,
        ty: Type,
        to: Target,
        a: Operand,
        mode: FloatMode,
    },
    Binary {
        op: BinaryOp,
        ty: Type,
        to: Target,
        a: Operand,
        b: Operand,
        mode: FloatMode,
    },
    Multiply {
        half: Half,
        ty: Type,
        to: Target,
        a: Operand,
        b: Operand,
        mode: FloatMode,
    },
    MultiplyAdd {
        half: Half,
        ty: Type,
        to: Target,
        args: [Operand; 3],
        mode: FloatMode,
    },
    /// Product of the low 24 bits (§9.7.1.5).
    Multiply24 {
        ty: Type,
        to: Target,
        a: Operand,
        b: Operand,
        add: Option<Operand>,
    },
    SumOfDifferences {
        ty: Type,
        to: Target,
        args: [Operand; 3],
    },
    /// `true`: to the left (§9.7.8.8).
    Funnel {
        left: bool,
        clamp: bool,
        to: Target,
        args: [Operand; 3],
    },
    Extract {
        ty: Type,
        to: Target,
        args: [Operand; 3],
    },
    Insert {
        ty: Type,
        to: Target,
        args: [Operand; 4],
    },
    Permute {
        to: Target,
        args: [Operand; 3],
    },
    /// Three inputs by a table (§9.7.8.6).
    Lop3 {
        to: Target,
        args: [Operand; 3],
        table: u8,
    },
    Compare {
        compare: Compare,
        ty: Type,
        to: [Target; 2],
        a: Operand,
        b: Operand,
        combine: Option<(BoolOp, Operand)>,
        ftz: bool,
    },
    /// `set`: the type of the result is the first.
    Set {
        compare: Compare,
        result: Type,
        ty: Type,
        to: Target,
        a: Operand,
        b: Operand,
        combine: Option<(BoolOp, Operand)>,
        ftz: bool,
    },
    Convert {
        to_ty: Type,
        ty: Type,
        to: Target,
        a: Operand,
        /// To a whole number.
        round: Option<Rounding>,
        mode: FloatMode,
    },
    /// Two single-precision numbers to a pair of halves, the first to the high one (§9.7.9.21).
    ConvertPair {
        ty: Type,
        to: Target,
        a: Operand,
        b: Operand,
        mode: FloatMode,
    },
    Load {
        access: Access,
        to: Vec<Target>,
    },
    Store {
        access: Access,
        from: Vec<Operand>,
    },
    /// `to` is `None` for `red`.
    Atomic {
        op: AtomicOp,
        access: Access,
        to: Target,
        args: Vec<Operand>,
    },
    Fence {
        order: MemoryOrder,
        scope: Scope,
    },
    /// `true`: from generic to the space.
    ConvertAddress {
        space: Space,
        into: bool,
        to: Target,
        a: Operand,
    },
    IsSpace {
        space: Space,
        to: Target,
        a: Operand,
    },
    Branch {
        to: Label,
    },
    /// `brx.idx` (§9.7.12.4); beyond its labels is undefined, and a trap here.
    BranchTable {
        index: Operand,
        to: Vec<Label>,
    },
    Call {
        function: u32,
        results: Vec<Symbol>,
        args: Vec<Symbol>,
    },
    /// A function by its address (§9.7.12.5), with the parameters that a prototype says.
    CallAddress {
        function: Operand,
        formals: Vec<Variable>,
        results: Vec<Symbol>,
        args: Vec<Symbol>,
    },
    /// `alloca` and its kin (§9.7.17).
    StackAllocate {
        to: Target,
        bytes: Operand,
        align: u32,
    },
    StackSave {
        to: Target,
    },
    StackRestore {
        from: Operand,
    },
    Return,
    Exit,
    Trap,
    Barrier {
        op: BarrierOp,
        aligned: bool,
        id: Operand,
        count: Option<Operand>,
        to: Target,
        p: Option<Operand>,
    },
    Warp {
        op: WarpOp,
        ty: Type,
        to: Target,
        second: Target,
        args: Vec<Operand>,
        mask: Operand,
    },
    Sleep {
        ns: Operand,
    },
    Async(AsyncOp),
    /// `st.async`, `red.async`: a store or an atomic operation, whose bytes an mbarrier object
    /// counts.
    Told {
        what: Box<Op>,
        bytes: u32,
        done: Place,
    },
    Matrix(MatrixOp),
    Extended(ExtendedOp),
    /// A hint.
    Nothing,
}

impl Op {
    /// Whether a thread may wait here, so that its registers must be kept.
    pub(crate) fn waits(&self) -> bool {
        match self {
            Op::Barrier { .. } | Op::Warp { .. } | Op::Sleep { .. } => true,
            Op::Async(op) => op.waits(),
            Op::Matrix(op) => op.waits(),
            _ => false,
        }
    }

    /// The labels that it branches to.
    pub(crate) fn targets(&self, f: &mut dyn FnMut(Label)) {
        match self {
            Op::Branch { to } => f(*to),
            Op::BranchTable { to, .. } => to.iter().for_each(|l| f(*l)),
            _ => {}
        }
    }

    /// Whether a loop around it may wait for another thread: it looks at memory that others write.
    pub(crate) fn observes(&self) -> bool {
        match self {
            Op::Load { access, .. } => access.order != MemoryOrder::Weak,
            Op::Atomic { to, .. } => to.is_some(),
            Op::Async(op) => op.observes(),
            _ => false,
        }
    }

    /// The registers that it reads.
    pub(crate) fn reads(&self, f: &mut dyn FnMut(Reg)) {
        let address = |a: &Address, f: &mut dyn FnMut(Reg)| a.register().into_iter().for_each(f);
        let mut each = |operands: &[Operand]| {
            let registers = operands.iter().filter_map(Operand::register);
            registers.for_each(&mut *f);
        };
        match self {
            Op::Move { from, .. } | Op::Unpack { from, .. } => each(&[*from]),
            Op::Pack { from, .. } => each(from),
            Op::Select { a, b, p, .. } => each(&[*a, *b, *p]),
            Op::Unary { a, .. }
            | Op::Convert { a, .. }
            | Op::ConvertAddress { a, .. }
            | Op::IsSpace { a, .. } => each(&[*a]),
            Op::Binary { a, b, .. } | Op::Multiply { a, b, .. } | Op::ConvertPair { a, b, .. } => {
                each(&[*a, *b]);
            }
            Op::MultiplyAdd { args, .. }
            | Op::SumOfDifferences { args, .. }
            | Op::Funnel { args, .. }
            | Op::Extract { args, .. }
            | Op::Permute { args, .. }
            | Op::Lop3 { args, .. } => each(args),
            Op::Insert { args, .. } => each(args),
            Op::Multiply24 { a, b, add, .. } => {
                each(&[*a, *b]);
                each(add.as_slice());
            }
            Op::Compare { a, b, combine, .. } | Op::Set { a, b, combine, .. } => {
                each(&[*a, *b]);
                each(combine.map(|c| c.1).as_slice());
            }
            Op::Load { access, .. } => address(&access.at, f),
            Op::Store { access, from } => {
                each(from);
                address(&access.at, f);
            }
            Op::Atomic { access, args, .. } => {
                each(args);
                address(&access.at, f);
            }
            Op::Barrier { id, count, p, .. } => {
                each(&[*id]);
                each(count.as_slice());
                each(p.as_slice());
            }
            Op::Warp { args, mask, .. } => {
                each(args);
                each(&[*mask]);
            }
            Op::Sleep { ns } => each(&[*ns]),
            Op::BranchTable { index, .. } => each(&[*index]),
            Op::CallAddress { function, .. } => each(&[*function]),
            Op::StackAllocate { bytes, .. } => each(&[*bytes]),
            Op::StackRestore { from } => each(&[*from]),
            Op::StackSave { .. } => {}
            Op::Async(op) => op.reads(f),
            Op::Told { what, done, .. } => {
                what.reads(f);
                address(&done.at, f);
            }
            Op::Matrix(op) => op.reads(f),
            Op::Extended(op) => op.reads(f),
            Op::Fence { .. }
            | Op::Branch { .. }
            | Op::Call { .. }
            | Op::Return
            | Op::Exit
            | Op::Trap
            | Op::Nothing => {}
        }
    }

    /// The registers that it writes.
    pub(crate) fn writes(&self, f: &mut dyn FnMut(Reg)) {
        match self {
            Op::Unpack { to, .. } | Op::Load { to, .. } => to.iter().flatten().for_each(|r| f(*r)),
            Op::Compare { to, .. } => to.iter().flatten().for_each(|r| f(*r)),
            Op::Warp { to, second, .. } => {
                [to, second].into_iter().flatten().for_each(|r| f(*r));
            }
            Op::Async(op) => op.writes(f),
            Op::Matrix(op) => op.writes(f),
            Op::Extended(op) => op.writes(f),
            Op::Move { to, .. }
            | Op::Pack { to, .. }
            | Op::Select { to, .. }
            | Op::Unary { to, .. }
            | Op::Binary { to, .. }
            | Op::Multiply { to, .. }
            | Op::MultiplyAdd { to, .. }
            | Op::Multiply24 { to, .. }
            | Op::SumOfDifferences { to, .. }
            | Op::Funnel { to, .. }
            | Op::Extract { to, .. }
            | Op::Insert { to, .. }
            | Op::Permute { to, .. }
            | Op::Lop3 { to, .. }
            | Op::Set { to, .. }
            | Op::Convert { to, .. }
            | Op::ConvertPair { to, .. }
            | Op::Atomic { to, .. }
            | Op::ConvertAddress { to, .. }
            | Op::IsSpace { to, .. }
            | Op::Barrier { to, .. }
            | Op::StackAllocate { to, .. }
            | Op::StackSave { to } => to.iter().for_each(|r| f(*r)),
            Op::Store { .. }
            | Op::Told { .. }
            | Op::Fence { .. }
            | Op::Branch { .. }
            | Op::BranchTable { .. }
            | Op::Call { .. }
            | Op::CallAddress { .. }
            | Op::StackRestore { .. }
            | Op::Return
            | Op::Exit
            | Op::Trap
            | Op::Sleep { .. }
            | Op::Nothing => {}
        }
    }
}
