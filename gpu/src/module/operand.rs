//! What instructions name: registers, addresses, operands, and their modifiers.

use super::types::{Space, Type};

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

    /// What was packed. The bits above it are not read.
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
