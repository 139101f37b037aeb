//! Formats, exact values, and the one rounding of a result (§9.7.3, §9.7.4).

use crate::module::{Rounding, Type};

/// A binary format: a sign, an exponent, a fraction (§5.2.1, §5.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    fraction: u32,
    exponent: u32,
}

/// What the bits of a format stand for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Nan,
    Infinite { negative: bool },
    Finite(Finite),
}

/// `sig` times two to `exp`; zero has a sign too.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finite {
    pub(super) negative: bool,
    pub(super) sig: u128,
    pub(super) exp: i32,
}

impl Format {
    pub(super) const F16: Format = Format::new(10, 5);
    pub(super) const BF16: Format = Format::new(7, 8);
    pub(super) const F32: Format = Format::new(23, 8);
    pub(super) const F64: Format = Format::new(52, 11);

    const fn new(fraction: u32, exponent: u32) -> Format {
        Format { fraction, exponent }
    }

    /// Of a type, or of the halves of a pair.
    pub(super) fn of(ty: Type) -> Option<Format> {
        match ty {
            Type::F16 | Type::F16x2 => Some(Format::F16),
            Type::Bf16 | Type::Bf16x2 => Some(Format::BF16),
            Type::F32 => Some(Format::F32),
            Type::F64 => Some(Format::F64),
            _ => None,
        }
    }

    pub(super) fn fraction_bits(self) -> u32 {
        self.fraction
    }

    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    pub(super) fn sign(self) -> u64 {
        1 << (self.exponent + self.fraction)
    }

    pub(super) fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }

    pub(super) fn one(self) -> u64 {
        (self.bias() as u64) << self.fraction
    }

    /// The canonical NaN: 0x7fff of halves, 0x7fffffff of single precision (§9.7.3).
    pub(super) fn nan(self) -> u64 {
        self.sign() - 1
    }

    pub(super) fn is_nan(self, bits: u64) -> bool {
        bits & !self.sign() > self.infinity()
    }

    /// `.ftz`: a subnormal becomes zero of its sign.
    pub(super) fn flush(self, bits: u64) -> u64 {
        if bits & self.infinity() == 0 {
            bits & self.sign()
        } else {
            bits
        }
    }

    pub(super) fn read(self, bits: u64) -> Value {
        let negative = bits & self.sign() != 0;
        let fraction = bits & ((1 << self.fraction) - 1);
        let exponent = (bits & self.infinity()) >> self.fraction;
        let least = 1 - self.bias() - self.fraction as i32;
        if bits & self.infinity() == self.infinity() {
            return match fraction {
                0 => Value::Infinite { negative },
                _ => Value::Nan,
            };
        }
        let (sig, exp) = match exponent {
            0 => (fraction, least),
            e => (fraction | 1 << self.fraction, least + e as i32 - 1),
        };
        Value::Finite(Finite {
            negative,
            sig: u128::from(sig),
            exp,
        })
    }

    fn signed(self, negative: bool, bits: u64) -> u64 {
        bits | if negative { self.sign() } else { 0 }
    }

    /// The nearest bits in the direction of the rounding.
    ///
    /// The lowest bit of `sig` may stand for all that is below it, when the format has at least two
    /// bits less.
    pub(super) fn write(self, v: Value, r: Rounding) -> u64 {
        let Finite { negative, sig, exp } = match v {
            Value::Nan => return self.nan(),
            Value::Infinite { negative } => return self.signed(negative, self.infinity()),
            Value::Finite(f) => f,
        };
        if sig == 0 {
            return self.signed(negative, 0);
        }
        let top = 127 - sig.leading_zeros() as i32;
        let least = 1 - self.bias() - self.fraction as i32;
        // The place of the last bit that is kept; subnormals have the same as the least normal
        // number.
        let last = (top + exp - self.fraction as i32).max(least);
        let kept = match last - exp {
            drop @ 1.. => cut(sig, drop as u32, negative, r) as u64,
            keep => (sig << -keep) as u64,
        };
        // A carry out of the fraction raises the exponent, and makes the least normal number of a
        // subnormal.
        let biased = (last - least) as u64;
        let bits = if biased < 1 << self.exponent {
            kept + (biased << self.fraction)
        } else {
            self.infinity()
        };
        let bits = if bits < self.infinity() {
            bits
        } else if r == Rounding::Nearest || away(negative, r) {
            self.infinity()
        } else {
            self.infinity() - 1
        };
        self.signed(negative, bits)
    }

    pub(super) fn add(self, a: u64, b: u64, r: Rounding) -> u64 {
        self.write(sum(self.read(a), self.read(b), r), r)
    }

    pub(super) fn mul(self, a: u64, b: u64, r: Rounding) -> u64 {
        self.write(product(self.read(a), self.read(b)), r)
    }

    /// `a * b + c`, rounded once: the product of 106 bits at most is exact.
    pub(super) fn fma(self, [a, b, c]: [u64; 3], r: Rounding) -> u64 {
        self.write(sum(product(self.read(a), self.read(b)), self.read(c), r), r)
    }

    pub(super) fn div(self, a: u64, b: u64, r: Rounding) -> u64 {
        self.write(quotient(self.read(a), self.read(b)), r)
    }

    pub(super) fn sqrt(self, a: u64, r: Rounding) -> u64 {
        self.write(root(self.read(a)), r)
    }
}

/// Whether a result that is not exact is rounded away from zero.
fn away(negative: bool, r: Rounding) -> bool {
    match r {
        Rounding::Up => !negative,
        Rounding::Down => negative,
        Rounding::Nearest | Rounding::Zero => false,
    }
}

/// Drops the lowest bits, of which there is at least one, by rounding.
fn cut(sig: u128, drop: u32, negative: bool, r: Rounding) -> u128 {
    let kept = sig.checked_shr(drop).unwrap_or(0);
    let rest = sig ^ kept.checked_shl(drop).unwrap_or(0);
    // Beyond 128 bits, half of the last place is more than all that `sig` can hold.
    let half = 1u128.checked_shl(drop - 1);
    let nearer = half.is_some_and(|half| rest > half || rest == half && kept & 1 == 1);
    let up = match r {
        Rounding::Nearest => nearer,
        r => rest != 0 && away(negative, r),
    };
    kept + u128::from(up)
}

/// Shifts to the right; the lowest bit stays set if any that was lost was.
fn jam(sig: u128, n: u32) -> u128 {
    let kept = sig.checked_shr(n).unwrap_or(0);
    let lost = sig != kept.checked_shl(n).unwrap_or(0);
    kept | u128::from(lost)
}

impl Finite {
    /// With its leading one at bit 125, so that a sum of two has room.
    fn normal(self) -> Finite {
        let n = self.sig.leading_zeros() - 2;
        Finite {
            sig: self.sig << n,
            exp: self.exp - n as i32,
            ..self
        }
    }
}

/// Products have at most 106 bits, and so at least 20 zeros below them at bit 125. Bits are lost
/// only of an operand whose leading one is 20 bits or more below the other's; the difference then
/// has its leading one at bit 124 at least, and the lost bits stay far below the last place of any
/// format.
fn sum(x: Value, y: Value, r: Rounding) -> Value {
    let (x, y) = match (x, y) {
        (Value::Nan, _) | (_, Value::Nan) => return Value::Nan,
        (Value::Infinite { negative: a }, Value::Infinite { negative: b }) if a != b => {
            return Value::Nan;
        }
        (Value::Infinite { .. }, _) => return x,
        (_, Value::Infinite { .. }) => return y,
        (Value::Finite(x), Value::Finite(y)) => (x, y),
    };
    let zero = |negative| {
        Value::Finite(Finite {
            negative,
            sig: 0,
            exp: 0,
        })
    };
    let opposite = x.negative != y.negative;
    match (x.sig, y.sig) {
        (0, 0) if opposite => return zero(r == Rounding::Down),
        (0, 0) => return zero(x.negative),
        (0, _) => return Value::Finite(y),
        (_, 0) => return Value::Finite(x),
        _ => {}
    }
    let (x, y) = (x.normal(), y.normal());
    let (x, y) = if x.exp >= y.exp { (x, y) } else { (y, x) };
    let low = jam(y.sig, (x.exp - y.exp) as u32);
    let (negative, sig) = match (opposite, x.sig >= low) {
        (false, _) => (x.negative, x.sig + low),
        (true, true) => (x.negative, x.sig - low),
        (true, false) => (y.negative, low - x.sig),
    };
    if sig == 0 {
        return zero(r == Rounding::Down);
    }
    Value::Finite(Finite {
        negative,
        sig,
        exp: x.exp,
    })
}

fn product(x: Value, y: Value) -> Value {
    match (x, y) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinite { .. }, Value::Finite(f)) | (Value::Finite(f), Value::Infinite { .. })
            if f.sig == 0 =>
        {
            Value::Nan
        }
        (Value::Finite(x), Value::Finite(y)) => Value::Finite(Finite {
            negative: x.negative != y.negative,
            sig: x.sig * y.sig,
            exp: x.exp + y.exp,
        }),
        _ => Value::Infinite {
            negative: x.is_negative() != y.is_negative(),
        },
    }
}

fn quotient(x: Value, y: Value) -> Value {
    let negative = x.is_negative() != y.is_negative();
    match (x, y) {
        (Value::Nan, _) | (_, Value::Nan) => Value::Nan,
        (Value::Infinite { .. }, Value::Infinite { .. }) => Value::Nan,
        (Value::Infinite { .. }, _) => Value::Infinite { negative },
        (_, Value::Infinite { .. }) => Value::Finite(Finite {
            negative,
            sig: 0,
            exp: 0,
        }),
        (Value::Finite(x), Value::Finite(y)) => match (x.sig, y.sig) {
            (0, 0) => Value::Nan,
            (_, 0) => Value::Infinite { negative },
            (0, _) => Value::Finite(Finite {
                negative,
                sig: 0,
                exp: 0,
            }),
            _ => {
                // 126 bits by 53 at most: a quotient of 73 bits or more, whose lowest stands for
                // the remainder.
                let x = x.normal();
                let rest = u128::from(x.sig % y.sig != 0);
                Value::Finite(Finite {
                    negative,
                    sig: (x.sig / y.sig) | rest,
                    exp: x.exp - y.exp,
                })
            }
        },
    }
}

fn root(x: Value) -> Value {
    match x {
        Value::Finite(f) if f.sig == 0 => x,
        Value::Infinite { negative: false } => x,
        Value::Finite(f) if !f.negative => {
            let mut f = f.normal();
            if f.exp % 2 != 0 {
                f.sig <<= 1;
                f.exp -= 1;
            }
            // 63 bits, whose lowest stands for the remainder.
            let sig = f.sig.isqrt();
            let rest = u128::from(sig * sig != f.sig);
            Value::Finite(Finite {
                negative: false,
                sig: sig | rest,
                exp: f.exp / 2,
            })
        }
        _ => Value::Nan,
    }
}

impl Value {
    fn is_negative(self) -> bool {
        match self {
            Value::Nan => false,
            Value::Infinite { negative } | Value::Finite(Finite { negative, .. }) => negative,
        }
    }

    /// Rounded to a whole number (§9.7.9.21).
    pub(super) fn whole(self, r: Rounding) -> Value {
        match self {
            Value::Finite(f) if f.exp < 0 => Value::Finite(Finite {
                sig: cut(f.sig, f.exp.unsigned_abs(), f.negative, r),
                exp: 0,
                ..f
            }),
            other => other,
        }
    }

    /// A whole number, cut to the range that is given; `None` for a NaN.
    pub(super) fn clamp(self, least: i128, most: i128) -> Option<i128> {
        let (negative, magnitude) = match self {
            Value::Nan => return None,
            Value::Infinite { negative } => (negative, i128::MAX),
            Value::Finite(f) if f.sig == 0 => (false, 0),
            // No range has more than 64 bits.
            Value::Finite(f) if f.exp > 66 => (f.negative, i128::MAX),
            Value::Finite(f) => (f.negative, (f.sig << f.exp.max(0)) as i128),
        };
        let v = if negative { -magnitude } else { magnitude };
        Some(v.clamp(least, most))
    }
}
