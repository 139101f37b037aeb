//! Conversions that the host does not have: of halves, and with directed rounding (§9.7.9.21).

use super::exact::{Finite, Format, Value};
use super::task::finish;
use crate::module::{FloatMode, Rounding, Type};

/// A conversion of one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conversion {
    pub(crate) to: Type,
    pub(crate) from: Type,
    /// To a whole number first.
    pub(crate) whole: Option<Rounding>,
    pub(crate) mode: FloatMode,
}

const TYPES: [Type; 12] = [
    Type::U8,
    Type::S8,
    Type::U16,
    Type::S16,
    Type::U32,
    Type::S32,
    Type::U64,
    Type::S64,
    Type::F16,
    Type::Bf16,
    Type::F32,
    Type::F64,
];

impl Conversion {
    /// As a constant of compiled code; `None` for other types than those of arithmetic.
    pub(crate) fn pack(self) -> Option<u32> {
        let number = |ty| TYPES.iter().position(|t| *t == ty).map(|n| n as u32);
        let whole = self.whole.map_or(0, |r| 1 + r.number());
        Some(number(self.to)? | number(self.from)? << 4 | whole << 8 | self.mode.pack() << 11)
    }

    fn unpack(word: u32) -> Conversion {
        let ty = |n: u32| TYPES[(n & 15) as usize];
        Conversion {
            to: ty(word),
            from: ty(word >> 4),
            whole: (word >> 8 & 7).checked_sub(1).map(Rounding::numbered),
            mode: FloatMode::unpack(word >> 11),
        }
    }

    fn apply(self, bits: u64) -> u64 {
        // `.ftz` is of single precision alone.
        let mode = |ty| FloatMode {
            ftz: self.mode.ftz && ty == Type::F32,
            ..self.mode
        };
        let v = match Format::of(self.from) {
            Some(f) if mode(self.from).ftz => f.read(f.flush(bits)),
            Some(f) => f.read(bits),
            None => integer(self.from, bits),
        };
        let v = match self.whole {
            Some(r) => v.whole(r),
            None => v,
        };
        let Some(f) = Format::of(self.to) else {
            return self.to_integer(v);
        };
        let written = f.write(v, self.mode.round);
        let largest = f.infinity() - 1;
        let written = match written & !f.sign() == f.infinity() && self.mode.finite {
            true => written & f.sign() | largest,
            false => written,
        };
        finish(f, written, mode(self.to))
    }

    /// Of halves: numbers beyond the range become its end, a NaN 0 or the highest of 64 bits.
    fn to_integer(self, v: Value) -> u64 {
        let bits = self.to.bits();
        let (least, most) = match self.to.is_signed() {
            true => (-1i128 << (bits - 1), (1i128 << (bits - 1)) - 1),
            false => (0, (1i128 << bits) - 1),
        };
        let v = match v.clamp(least, most) {
            Some(v) => v as u64,
            None if bits < 64 => 0,
            None => 1 << 63,
        };
        v & (u64::MAX >> (64 - bits))
    }
}

/// An integer of a type, whose bits above the type's are 0.
fn integer(ty: Type, bits: u64) -> Value {
    let spare = 64 - ty.bits();
    let (negative, magnitude) = match ty.is_signed() {
        true => {
            let v = (bits << spare) as i64 >> spare;
            (v < 0, v.unsigned_abs())
        }
        false => (false, bits),
    };
    Value::Finite(Finite {
        negative,
        sig: u128::from(magnitude),
        exp: 0,
    })
}

/// Executes a packed [`Conversion`]; the result's bits above its type are 0.
pub(crate) extern "C" fn convert(conversion: u32, bits: u64) -> u64 {
    Conversion::unpack(conversion).apply(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_conversion_says_what_it_was() {
        let rounds = [0, 1, 2, 3].map(Rounding::numbered);
        for to in TYPES {
            for from in TYPES {
                for whole in rounds.map(Some).into_iter().chain([None]) {
                    let mode = FloatMode {
                        relu: true,
                        round: Rounding::Up,
                        ..FloatMode::default()
                    };
                    let c = Conversion {
                        to,
                        from,
                        whole,
                        mode,
                    };
                    assert_eq!(c.pack().map(Conversion::unpack), Some(c));
                }
            }
        }
    }
}
