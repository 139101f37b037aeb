//! Instructions in typed form. The parser makes them, and refuses what is not among them.

use super::asynchronous::AsyncOp;
use super::extended::ExtendedOp;
use super::matrix::MatrixOp;
use super::types::{Space, Type};
use super::Variable;
use crate::check::How;

/// A register of a function: an index into `Function::registers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Reg(pub(crate) u32);

/// A label of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Label(pub(crate) u32);

/// A name that stands for an address (§6.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Symbol {
    /// A variable of the function, its parameters included.
    Own(u32),
    /// A variable of the module.
    Module(u32),
}

/// A predefined register (§10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    /// Axis 0 to 2.
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NwarpId,
    WarpSize,
    LanemaskEq,
    LanemaskLt,
    LanemaskLe,
    LanemaskGt,
    LanemaskGe,
    Clock,
    Clock64,
    GlobalTimer,
    GlobalTimerLo,
    GlobalTimerHi,
    /// Number of the launch (§10.14).
    GridId,
    /// `%envreg1` and `%envreg2`, the halves of an address (§10.28): 1 is the upper one.
    Environment(u8),
    /// `%smid`, ...: there is one of it, number 0.
    Zero,
    /// `%nsmid`, `%cluster_nctaid`, ...: there is one of it.
    One,
    DynamicSharedBytes,
    TotalSharedBytes,
}

/// What an instruction reads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Operand {
    Reg(Reg),
    /// A negated predicate.
    Not(Reg),
    /// Two's complement, cut to the type's width.
    Int(i64),
    F32(u32),
    F64(u64),
    /// The address of a variable, in its own space.
    Symbol(Symbol, i64),
    Special(Special),
}

impl Operand {
    /// The register that it reads.
    pub(crate) fn register(&self) -> Option<Reg> {
        match self {
            Operand::Reg(r) | Operand::Not(r) => Some(*r),
            _ => None,
        }
    }
}

/// What an instruction writes; `None` is `_`.
pub(crate) type Target = Option<Reg>;

/// `[base + offset]` (§6.4.1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Address {
    pub(crate) base: Base,
    pub(crate) offset: i64,
}

impl Address {
    /// The register that it reads.
    pub(crate) fn register(&self) -> Option<Reg> {
        match self.base {
            Base::Reg(r) => Some(r),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Base {
    Reg(Reg),
    Symbol(Symbol),
    Absolute,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnaryOp {
    Neg,
    Abs,
    Not,
    Cnot,
    Popc,
    Clz,
    Brev,
    /// Position of the highest bit that is not the sign (§9.7.1.17); true: as a shift amount.
    Bfind(bool),
    Sqrt,
    Rsqrt,
    Rcp,
    Ex2,
    Lg2,
    Sin,
    Cos,
    Tanh,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Add,
    Sub,
    Div,
    Rem,
    Min,
    Max,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    CopySign,
}

/// Which half of a product (§9.7.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    Low,
    High,
    Wide,
}

/// Modifiers of floating-point instructions (§9.7.3, §9.7.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FloatMode {
    /// Subnormal inputs and results become zero of the same sign.
    pub(crate) ftz: bool,
    /// The result is clamped to [0, 1], a NaN to 0; of integers, to the type's range.
    pub(crate) sat: bool,
    /// `min` and `max` of a NaN are NaN.
    pub(crate) nan: bool,
    /// A negative result becomes 0, a NaN the canonical one.
    pub(crate) relu: bool,
    /// `.xorsign.abs`: of magnitudes, with the sign of the product.
    pub(crate) xorsign: bool,
    /// `.satfinite`: the largest number instead of infinity.
    pub(crate) finite: bool,
    pub(crate) round: Rounding,
}

impl FloatMode {
    /// As 8 bits, for helpers of compiled code.
    pub(crate) fn pack(self) -> u32 {
        let flags = [
            self.ftz,
            self.sat,
            self.nan,
            self.relu,
            self.xorsign,
            self.finite,
        ];
        let flags = flags.iter().rev().fold(0, |v, f| v << 1 | u32::from(*f));
        flags | self.round.number() << 6
    }

    /// What was packed, whatever is above its bits.
    pub(crate) fn unpack(bits: u32) -> FloatMode {
        let flag = |n: u32| bits >> n & 1 == 1;
        FloatMode {
            ftz: flag(0),
            sat: flag(1),
            nan: flag(2),
            relu: flag(3),
            xorsign: flag(4),
            finite: flag(5),
            round: Rounding::numbered(bits >> 6),
        }
    }
}

/// A comparison (§9.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Unsigned, also for signed types.
    Lo,
    Ls,
    Hi,
    Hs,
    /// True if an operand is NaN.
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    Num,
    Nan,
}

impl Compare {
    pub(crate) const ALL: [Compare; 18] = [
        Compare::Eq,
        Compare::Ne,
        Compare::Lt,
        Compare::Le,
        Compare::Gt,
        Compare::Ge,
        Compare::Lo,
        Compare::Ls,
        Compare::Hi,
        Compare::Hs,
        Compare::Equ,
        Compare::Neu,
        Compare::Ltu,
        Compare::Leu,
        Compare::Gtu,
        Compare::Geu,
        Compare::Num,
        Compare::Nan,
    ];

    /// Of unsigned integers alone.
    pub(crate) fn is_unsigned(self) -> bool {
        matches!(self, Compare::Lo | Compare::Ls | Compare::Hi | Compare::Hs)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BoolOp {
    And,
    Or,
    Xor,
}

/// Rounding to a format (§9.7.3), or to a whole number (§9.7.9.21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Rounding {
    /// To the nearest, of two the even one.
    #[default]
    Nearest,
    Zero,
    Down,
    Up,
}

impl Rounding {
    pub(crate) fn number(self) -> u32 {
        self as u32
    }

    /// By the low two bits of its number.
    pub(crate) fn numbered(n: u32) -> Rounding {
        match n & 3 {
            0 => Rounding::Nearest,
            1 => Rounding::Zero,
            2 => Rounding::Down,
            _ => Rounding::Up,
        }
    }
}

/// Memory order of an access (§8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryOrder {
    Weak,
    /// `.relaxed`, `.volatile`, `.mmio`.
    Relaxed,
    Acquire,
    Release,
    AcqRel,
    SeqCst,
}

/// Which threads an ordered access or a fence is for (§8.5). A cluster is one block. For checks:
/// compiled code orders for the whole system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Block,
    Gpu,
    System,
}

impl Scope {
    pub(crate) fn named(name: &str) -> Option<Scope> {
        Some(match name {
            "cta" | "cluster" => Scope::Block,
            "gpu" | "gl" => Scope::Gpu,
            "sys" => Scope::System,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Exch,
    Min,
    Max,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Cas,
}

impl AtomicOp {
    pub(crate) fn named(name: &str) -> Option<AtomicOp> {
        Some(match name {
            "add" => AtomicOp::Add,
            "exch" => AtomicOp::Exch,
            "min" => AtomicOp::Min,
            "max" => AtomicOp::Max,
            "and" => AtomicOp::And,
            "or" => AtomicOp::Or,
            "xor" => AtomicOp::Xor,
            "inc" => AtomicOp::Inc,
            "dec" => AtomicOp::Dec,
            "cas" => AtomicOp::Cas,
            _ => return None,
        })
    }
}

/// What a barrier returns (§9.7.13.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierOp {
    Sync,
    Popc,
    And,
    Or,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShuffleOp {
    Up,
    Down,
    Bfly,
    Idx,
}

/// What the lanes of a warp agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WarpOp {
    /// `bar.warp.sync` (§9.7.13.2).
    Sync,
    Ballot,
    Any,
    All,
    Uni,
    /// Operands: value, lane or distance, clamp and segment mask (§9.7.9.6).
    Shuffle(ShuffleOp),
    MatchAny,
    MatchAll,
    ReduxAdd(bool),
    ReduxMin(bool),
    ReduxMax(bool),
    ReduxAnd,
    ReduxOr,
    ReduxXor,
    /// Bit 0: of magnitudes; 1: a NaN if there is one; 2: the greatest.
    ReduxFloat(u8),
    Elect,
    /// `activemask` (§9.7.13.10): the lanes that have come to the same instruction when none of the
    /// warp can run.
    Active,
}

/// Loads and stores of one to four elements (§9.7.9.8).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Access {
    pub(crate) space: Space,
    pub(crate) order: MemoryOrder,
    pub(crate) scope: Scope,
    pub(crate) ty: Type,
    pub(crate) at: Address,
}

impl Access {
    /// What it does, for checks.
    pub(crate) fn how(&self, bytes: u32, store: bool) -> How {
        How::new(bytes, store).ordered(self.order, self.scope)
    }
}

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
