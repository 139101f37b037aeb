//! Sums and products of halves without calls: both of a pair at once, in double precision (§9.7.4).
//!
//! Products of halves are exact there, and a sum of two is rounded again without harm, because
//! double precision has more than twice the digits and two more (Figueroa 1995). Of a fused sum
//! that is not so: its error is computed (Knuth, TAOCP vol. 2, §4.2.2), and the last bit of an
//! inexact one is set, rounded towards zero ("to odd"), so that the second rounding, to the half,
//! is that of the exact sum. `number` computes the same by integers, and all other forms.

use cranelift_codegen::ir::condcodes::FloatCC;
use cranelift_codegen::ir::{types, Endianness, InstBuilder, MemFlags, Value};

use super::emit::Emit;
use crate::module::{FloatMode, Type};
use crate::number::FloatOp;

/// A format of 16 bits in double precision.
#[derive(Clone, Copy)]
struct Half {
    fraction: u32,
    bias: u64,
}

impl Half {
    fn of(ty: Type) -> Option<(Half, bool)> {
        let f16 = Half {
            fraction: 10,
            bias: 15,
        };
        let bf16 = Half {
            fraction: 7,
            bias: 127,
        };
        Some(match ty {
            Type::F16 => (f16, false),
            Type::F16x2 => (f16, true),
            Type::Bf16 => (bf16, false),
            Type::Bf16x2 => (bf16, true),
            _ => return None,
        })
    }

    fn infinity(self) -> u64 {
        0x7fff >> self.fraction << self.fraction
    }

    /// Places of double precision below the last of the format.
    fn spare(self) -> u32 {
        52 - self.fraction
    }

    /// A power of two, as bits.
    fn power(exponent: i64) -> u64 {
        ((1023 + exponent) as u64) << 52
    }
}

impl Emit<'_, '_> {
    /// The bits of a sum or product, or `None` for what is computed elsewhere.
    pub(super) fn halves(
        &mut self,
        op: FloatOp,
        ty: Type,
        args: &[Value],
        mode: FloatMode,
    ) -> Option<Value> {
        let (half, pair) = Half::of(ty)?;
        let plain = FloatMode {
            relu: mode.relu,
            ..FloatMode::default()
        };
        let known = matches!(
            op,
            FloatOp::Add | FloatOp::Sub | FloatOp::Mul | FloatOp::Fma
        );
        if mode != plain || !known {
            return None;
        }
        let values: Vec<Value> = args
            .iter()
            .map(|v| {
                let v = self.lanes(*v, pair);
                self.widen(half, v)
            })
            .collect();
        let v = match op {
            FloatOp::Add => self.b.ins().fadd(values[0], values[1]),
            FloatOp::Sub => self.b.ins().fsub(values[0], values[1]),
            FloatOp::Mul => self.b.ins().fmul(values[0], values[1]),
            _ => {
                let product = self.b.ins().fmul(values[0], values[1]);
                self.sum_to_odd(product, values[2])
            }
        };
        let v = self.narrow(half, v, mode.relu);
        let low = self.b.ins().extractlane(v, 0);
        if !pair {
            return Some(self.b.ins().ireduce(types::I16, low));
        }
        let high = self.b.ins().extractlane(v, 1);
        let high = self.b.ins().ishl_imm(high, 16);
        let both = self.b.ins().bor(low, high);
        Some(self.b.ins().ireduce(types::I32, both))
    }

    /// 64 bits, twice.
    fn twice(&mut self, bits: u64) -> Value {
        let bytes = [bits.to_le_bytes(), bits.to_le_bytes()].concat();
        let constant = self.b.func.dfg.constants.insert(bytes.into());
        self.b.ins().vconst(types::I64X2, constant)
    }

    fn twice_float(&mut self, bits: u64) -> Value {
        let v = self.twice(bits);
        self.as_floats(v)
    }

    fn as_floats(&mut self, v: Value) -> Value {
        let little = MemFlags::new().with_endianness(Endianness::Little);
        self.b.ins().bitcast(types::F64X2, little, v)
    }

    fn as_words(&mut self, v: Value) -> Value {
        let little = MemFlags::new().with_endianness(Endianness::Little);
        self.b.ins().bitcast(types::I64X2, little, v)
    }

    /// Each half in a lane of its own.
    fn lanes(&mut self, v: Value, pair: bool) -> Value {
        let v = self.cast(v, types::I64, false);
        let first = self.b.ins().band_imm(v, 0xffff);
        let lanes = self.b.ins().scalar_to_vector(types::I64X2, first);
        if !pair {
            return lanes;
        }
        let second = self.b.ins().ushr_imm(v, 16);
        self.b.ins().insertlane(lanes, second, 1)
    }

    /// Exact: a product moves the exponent, also that of subnormals.
    fn widen(&mut self, half: Half, v: Value) -> Value {
        let rest = self.twice(0x7fff);
        let magnitude = self.b.ins().band(v, rest);
        let moved = self.b.ins().ishl_imm(magnitude, i64::from(half.spare()));
        let moved = self.as_floats(moved);
        let scale = self.twice_float(Half::power(1023 - half.bias as i64));
        let scaled = self.b.ins().fmul(moved, scale);
        let bits = self.as_words(scaled);
        // Infinities and NaN keep the highest exponent.
        let limit = self.twice_float(Half::power(half.bias as i64 + 1));
        let special = self
            .b
            .ins()
            .fcmp(FloatCC::GreaterThanOrEqual, scaled, limit);
        let exponent = self.twice(0x7ff << 52);
        let exponent = self.b.ins().band(special, exponent);
        let bits = self.b.ins().bor(bits, exponent);
        let sign = self.twice(0x8000);
        let sign = self.b.ins().band(v, sign);
        let sign = self.b.ins().ishl_imm(sign, 48);
        let bits = self.b.ins().bor(bits, sign);
        self.as_floats(bits)
    }

    /// A sum whose last bit says whether it is exact.
    fn sum_to_odd(&mut self, x: Value, y: Value) -> Value {
        let s = self.b.ins().fadd(x, y);
        let z = self.b.ins().fsub(s, x);
        let w = self.b.ins().fsub(s, z);
        let of_x = self.b.ins().fsub(x, w);
        let of_y = self.b.ins().fsub(y, z);
        let error = self.b.ins().fadd(of_x, of_y);
        let zero = self.twice_float(0);
        let above = self.b.ins().fcmp(FloatCC::GreaterThan, error, zero);
        let below = self.b.ins().fcmp(FloatCC::LessThan, error, zero);
        // Not of infinities, whose error is no number.
        let inexact = self.b.ins().bor(above, below);
        let (bits, error) = (self.as_words(s), self.as_words(error));
        let opposite = self.b.ins().bxor(bits, error);
        let opposite = self.b.ins().ushr_imm(opposite, 63);
        let toward = self.b.ins().isub(bits, opposite);
        let one = self.twice(1);
        let odd = self.b.ins().bor(toward, one);
        let bits = self.b.ins().bitselect(inexact, odd, bits);
        self.as_floats(bits)
    }

    /// To the nearest half, of two the even one; a NaN is the canonical one.
    fn narrow(&mut self, half: Half, v: Value, relu: bool) -> Value {
        let spare = i64::from(half.spare());
        let bits = self.as_words(v);
        let rest = self.twice(u64::MAX >> 1);
        let magnitude = self.b.ins().band(bits, rest);
        let absolute = self.as_floats(magnitude);
        let sign = self.b.ins().ushr_imm(bits, 63);
        // Half of the last place, less one unless the last bit is set.
        let last = self.b.ins().ushr_imm(magnitude, spare);
        let one = self.twice(1);
        let last = self.b.ins().band(last, one);
        let below = self.twice((1 << (spare - 1)) - 1);
        let rounded = self.b.ins().iadd(magnitude, below);
        let rounded = self.b.ins().iadd(rounded, last);
        let rounded = self.b.ins().ushr_imm(rounded, spare);
        let rebias = self.twice((1023 - half.bias) << half.fraction);
        let normal = self.b.ins().isub(rounded, rebias);
        // Of subnormals the host's own sum drops the places.
        let least = 1 - half.bias as i64;
        let place = least - i64::from(half.fraction) + 52;
        let magic = self.twice_float(Half::power(place));
        let small = self.b.ins().fadd(absolute, magic);
        let small = self.as_words(small);
        let magic = self.as_words(magic);
        let small = self.b.ins().isub(small, magic);
        let limit = self.twice_float(Half::power(least));
        let is_small = self.b.ins().fcmp(FloatCC::LessThan, absolute, limit);
        let r = self.b.ins().bitselect(is_small, small, normal);
        let limit = self.twice_float(Half::power(half.bias as i64 + 1));
        let infinite = self
            .b
            .ins()
            .fcmp(FloatCC::GreaterThanOrEqual, absolute, limit);
        let infinity = self.twice(half.infinity());
        let r = self.b.ins().bitselect(infinite, infinity, r);
        let r = if relu {
            // Bits of the sign everywhere: 0 less 1.
            let zero = self.twice(0);
            let negative = self.b.ins().isub(zero, sign);
            self.b.ins().band_not(r, negative)
        } else {
            let sign = self.b.ins().ishl_imm(sign, 15);
            self.b.ins().bor(r, sign)
        };
        let nan = self.b.ins().fcmp(FloatCC::Unordered, v, v);
        let canonical = self.twice(0x7fff);
        self.b.ins().bitselect(nan, canonical, r)
    }
}
