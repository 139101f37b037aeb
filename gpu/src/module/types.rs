//! Types and state spaces (§5.1, §5.2).

/// A fundamental type (§5.2.1), or a packed one (§5.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the ISA's.
pub enum Type {
    Pred,
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    F16,
    Bf16,
    B32,
    U32,
    S32,
    F32,
    F16x2,
    Bf16x2,
    B64,
    U64,
    S64,
    F64,
    B128,
}

impl Type {
    /// By its name, without the dot.
    pub(crate) fn named(name: &str) -> Option<Type> {
        Some(match name {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "u8" => Type::U8,
            "s8" => Type::S8,
            "b16" => Type::B16,
            "u16" => Type::U16,
            "s16" => Type::S16,
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            "b32" => Type::B32,
            "u32" => Type::U32,
            "s32" => Type::S32,
            "f32" => Type::F32,
            "f16x2" => Type::F16x2,
            "bf16x2" => Type::Bf16x2,
            "b64" => Type::B64,
            "u64" => Type::U64,
            "s64" => Type::S64,
            "f64" => Type::F64,
            "b128" => Type::B128,
            _ => return None,
        })
    }

    /// Bytes in memory.
    pub fn bytes(self) -> u32 {
        match self {
            Type::Pred | Type::B8 | Type::U8 | Type::S8 => 1,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => 2,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 8,
            Type::B128 => 16,
            _ => 4,
        }
    }

    pub(crate) fn bits(self) -> u32 {
        self.bytes() * 8
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// Single or double precision.
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Type::F32 | Type::F64)
    }

    /// Half precision, alone or as a pair.
    pub(crate) fn is_half(self) -> bool {
        matches!(self, Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2)
    }
}

/// A state space of memory (§5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    /// None named: the address tells (§6.4.1).
    Generic,
    Param,
    Global,
    Const,
    Shared,
    Local,
}

impl Space {
    /// By its name, without the dot; `shared::cta` is `shared`, a cluster is one block.
    pub(crate) fn named(name: &str) -> Option<Space> {
        Some(match name {
            "param" | "param::entry" | "param::func" => Space::Param,
            "global" => Space::Global,
            "const" => Space::Const,
            "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
            "local" => Space::Local,
            _ => return None,
        })
    }
}
