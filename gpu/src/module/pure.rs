//! Instructions that the host computes of up to three words: dot products, bytes and halves side by
//! side, small floating-point formats.

/// Which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PureKind {
    /// `dp4a` (§9.7.1.23).
    Dot4,
    /// `dp2a` (§9.7.1.24).
    Dot2,
    /// `bmsk` (§9.7.1.22).
    Mask,
    /// `szext` (§9.7.1.21).
    Extend,
    /// `fns` (§9.7.1.16).
    NthSet,
    /// `slct` (§9.7.6.3).
    BySign,
    /// `testp` (§9.7.3.1), by the number of the property.
    Test,
    /// `vadd4` and its kin (§9.7.17), `add.u16x2`.
    SideAdd,
    SideSubtract,
    SideAverage,
    SideDifference,
    SideMin,
    SideMax,
    /// `min.relu.s32`, `max.relu.s32`.
    ReluMin,
    ReluMax,
    /// Two of `f32` to a small format (§9.7.9.21).
    SmallOfSingle,
    SmallOfHalves,
    HalvesOfSmall,
    /// Two of `f32` to `ue8m0`.
    ScaleOfSingle,
    ScaleOfBfloats,
    BfloatsOfScale,
    /// Two of `f32` to halves, by random bits.
    Random,
    Tf32,
    /// `cvt.pack` (§9.7.9.22).
    Pack,
    /// `mad24.hi`, `mul24.hi` (§9.7.1.5).
    High24,
    /// `mad.hi.sat.s32`.
    SaturatedHigh,
}

/// An instruction with its modifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PureOp {
    pub(crate) kind: PureKind,
    /// Bits of [`flag`], and a number above them.
    pub(crate) flags: u32,
}

/// Modifiers; what they mean depends on the instruction.
pub(crate) mod flag {
    /// The type of the first operand is signed.
    pub(crate) const FIRST: u32 = 1;
    pub(crate) const SECOND: u32 = 2;
    pub(crate) const RESULT: u32 = 4;
    pub(crate) const SATURATE: u32 = 8;
    /// Four bytes, not two halves.
    pub(crate) const BYTES: u32 = 16;
    /// The sum of all is added to the third operand.
    pub(crate) const SUM: u32 = 32;
    pub(crate) const RELU: u32 = 64;
    /// `.clamp`, `.hi`.
    pub(crate) const CLAMP: u32 = 128;
    pub(crate) const WIDE: u32 = 256;
    /// A number from here on.
    pub(crate) const NUMBER: u32 = 12;
}

impl PureOp {
    const KINDS: [PureKind; 26] = [
        PureKind::Dot4,
        PureKind::Dot2,
        PureKind::Mask,
        PureKind::Extend,
        PureKind::NthSet,
        PureKind::BySign,
        PureKind::Test,
        PureKind::SideAdd,
        PureKind::SideSubtract,
        PureKind::SideAverage,
        PureKind::SideDifference,
        PureKind::SideMin,
        PureKind::SideMax,
        PureKind::ReluMin,
        PureKind::ReluMax,
        PureKind::SmallOfSingle,
        PureKind::SmallOfHalves,
        PureKind::HalvesOfSmall,
        PureKind::ScaleOfSingle,
        PureKind::ScaleOfBfloats,
        PureKind::BfloatsOfScale,
        PureKind::Random,
        PureKind::Tf32,
        PureKind::Pack,
        PureKind::High24,
        PureKind::SaturatedHigh,
    ];

    /// As a constant of compiled code.
    pub(crate) fn pack(self) -> u32 {
        self.kind as u32 | self.flags << 8
    }

    pub(crate) fn unpack(word: u32) -> PureOp {
        let kind = (word as usize & 255).min(Self::KINDS.len() - 1);
        PureOp {
            kind: Self::KINDS[kind],
            flags: word >> 8,
        }
    }

    pub(crate) fn has(self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn number(self) -> u32 {
        self.flags >> flag::NUMBER
    }
}

/// Formats of 8 and fewer bits, by number: bits of fraction and exponent, and the largest number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SmallFormat {
    pub(crate) fraction: u32,
    pub(crate) bias: i32,
    pub(crate) largest: u8,
    /// Bits of a NaN; 0 if there is none.
    pub(crate) nan: u8,
    /// Bits of one number in a pair.
    pub(crate) bits: u32,
}

/// `e4m3`, `e5m2`, `e2m1`, `e2m3`, `e3m2` (§5.2.3).
pub(crate) const SMALL: [(&str, SmallFormat); 5] = [
    ("e4m3x2", small(3, 7, 0x7e, 0x7f, 8)),
    ("e5m2x2", small(2, 15, 0x7b, 0x7f, 8)),
    ("e2m1x2", small(1, 1, 0x07, 0, 4)),
    ("e2m3x2", small(3, 1, 0x1f, 0, 8)),
    ("e3m2x2", small(2, 3, 0x1f, 0, 8)),
];

const fn small(fraction: u32, bias: i32, largest: u8, nan: u8, bits: u32) -> SmallFormat {
    SmallFormat {
        fraction,
        bias,
        largest,
        nan,
        bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_operation_says_what_it_was() {
        for kind in PureOp::KINDS {
            for flags in [0, 1, 0xff, 5 << flag::NUMBER | flag::RELU] {
                let op = PureOp { kind, flags };
                assert_eq!(PureOp::unpack(op.pack()), op);
            }
        }
    }
}
