//! Reference arithmetic: formats, exact comparison, and rounding by a search among a format's
//! numbers.
//!
//! A result is found without computing it: of all numbers of the format, which are in order by
//! their bits, the greatest that is not above the exact result is searched, and the rounding
//! chooses it or the next.

use std::cmp::Ordering;
use std::hint::black_box;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    pub(crate) bits: u32,
    fraction: u32,
}

pub(crate) const F16: Format = Format {
    bits: 16,
    fraction: 10,
};
pub(crate) const BF16: Format = Format {
    bits: 16,
    fraction: 7,
};
pub(crate) const F32: Format = Format {
    bits: 32,
    fraction: 23,
};
pub(crate) const F64: Format = Format {
    bits: 64,
    fraction: 52,
};

/// A magnitude: a number times a power of two.
pub(crate) type Scaled = (u128, i32);

impl Format {
    pub(crate) fn sign(self) -> u64 {
        1 << (self.bits - 1)
    }

    pub(crate) fn magnitude(self, v: u64) -> u64 {
        v & (self.sign() - 1)
    }

    pub(crate) fn infinity(self) -> u64 {
        self.sign() - (1 << self.fraction)
    }

    pub(crate) fn one(self) -> u64 {
        (self.sign() / 2 - 1) >> self.fraction << self.fraction
    }

    pub(crate) fn is_nan(self, v: u64) -> bool {
        self.magnitude(v) > self.infinity()
    }

    pub(crate) fn is_finite(self, v: u64) -> bool {
        self.magnitude(v) < self.infinity()
    }

    pub(crate) fn is_negative(self, v: u64) -> bool {
        v & self.sign() != 0
    }

    /// All bits below the sign are set (§9.7.3, §9.7.4).
    pub(crate) fn nan(self) -> u64 {
        self.sign() - 1
    }

    pub(crate) fn flush(self, v: u64) -> u64 {
        if self.magnitude(v) < 1 << self.fraction {
            v & self.sign()
        } else {
            v
        }
    }

    /// The magnitude of finite bits; of infinity, what would come after the largest number.
    pub(crate) fn scaled(self, v: u64) -> Scaled {
        let v = self.magnitude(v);
        let bias = (1i32 << (self.bits - self.fraction - 2)) - 1;
        let least = 1 - bias - self.fraction as i32;
        let exponent = (v >> self.fraction) as i32;
        let fraction = u128::from(v) & ((1 << self.fraction) - 1);
        if exponent == 0 {
            (fraction, least)
        } else {
            (fraction | 1 << self.fraction, least + exponent - 1)
        }
    }

    /// The same number in double precision, which has all of the other formats.
    pub(crate) fn double(self, v: u64) -> f64 {
        if self == F64 {
            return f64::from_bits(v);
        }
        let (sig, exp) = self.scaled(v);
        let magnitude = match self.magnitude(v) {
            m if m > self.infinity() => f64::NAN,
            m if m == self.infinity() => f64::INFINITY,
            _ => sig as f64 * 2f64.powi(exp),
        };
        if self.is_negative(v) {
            -magnitude
        } else {
            magnitude
        }
    }

    fn signed(self, negative: bool, v: u64) -> u64 {
        v | if negative { self.sign() } else { 0 }
    }

    /// A NaN, infinity or zero that the host has computed.
    fn special(self, v: f64) -> u64 {
        assert!(!v.is_normal(), "{v} is to be rounded");
        match v.is_nan() {
            true => self.nan(),
            false if v == 0.0 => self.signed(v.is_sign_negative(), 0),
            false => self.signed(v < 0.0, self.infinity()),
        }
    }

    /// `order` compares a magnitude with the exact one.
    pub(crate) fn round(self, negative: bool, order: impl Fn(Scaled) -> Ordering, r: Round) -> u64 {
        let (mut low, mut high) = (0, self.infinity());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match order(self.scaled(middle)) {
                Ordering::Greater => high = middle,
                _ => low = middle,
            }
        }
        let (sig, exp) = self.scaled(low);
        let v = match r {
            _ if order((sig, exp)).is_eq() => low,
            Round::Zero => low,
            Round::Down if negative => high,
            Round::Up if !negative => high,
            Round::Down | Round::Up => low,
            Round::Nearest => match order((2 * sig + 1, exp - 1)) {
                Ordering::Less => high,
                Ordering::Greater => low,
                Ordering::Equal => low + low % 2,
            },
        };
        self.signed(negative, v)
    }

    pub(crate) fn add(self, a: u64, b: u64, r: Round) -> u64 {
        if !self.is_finite(a) || !self.is_finite(b) {
            return self.special(self.double(a) + self.double(b));
        }
        self.sum(
            (self.is_negative(a), self.scaled(a)),
            (self.is_negative(b), self.scaled(b)),
            r,
        )
    }

    pub(crate) fn fma(self, a: u64, b: u64, c: u64, r: Round) -> u64 {
        if ![a, b, c].iter().all(|v| self.is_finite(*v)) {
            let [a, b, c] = [a, b, c].map(|v| self.double(v));
            return self.special(a.mul_add(b, c));
        }
        let negative = self.is_negative(a) != self.is_negative(b);
        let product = times(self.scaled(a), self.scaled(b));
        self.sum(
            (negative, product),
            (self.is_negative(c), self.scaled(c)),
            r,
        )
    }

    fn sum(self, (n, a): (bool, Scaled), (m, b): (bool, Scaled), r: Round) -> u64 {
        let (x, y) = (Fixed::of(a), Fixed::of(b));
        let (negative, sum) = match (n == m, x.cmp(&y)) {
            (true, _) => (n, x.plus(&y)),
            // The sign of an exact zero (IEEE 754 §6.3).
            (false, Ordering::Equal) => return self.signed(r == Round::Down, 0),
            (false, Ordering::Greater) => (n, x.minus(&y)),
            (false, Ordering::Less) => (m, y.minus(&x)),
        };
        self.round(negative, |v| Fixed::of(v).cmp(&sum), r)
    }

    pub(crate) fn mul(self, a: u64, b: u64, r: Round) -> u64 {
        if !self.is_finite(a) || !self.is_finite(b) {
            return self.special(self.double(a) * self.double(b));
        }
        let exact = times(self.scaled(a), self.scaled(b));
        let negative = self.is_negative(a) != self.is_negative(b);
        self.round(negative, |v| compare(v, exact), r)
    }

    pub(crate) fn div(self, a: u64, b: u64, r: Round) -> u64 {
        let zero = |v| self.magnitude(v) == 0;
        if !self.is_finite(a) || !self.is_finite(b) || zero(a) || zero(b) {
            return self.special(self.double(a) / self.double(b));
        }
        let (x, y) = (self.scaled(a), self.scaled(b));
        let negative = self.is_negative(a) != self.is_negative(b);
        // v <=> a / b is v * b <=> a.
        self.round(negative, |v| compare(times(v, y), x), r)
    }

    pub(crate) fn sqrt(self, a: u64, r: Round) -> u64 {
        if !self.is_finite(a) || self.magnitude(a) == 0 || self.is_negative(a) {
            return self.special(self.double(a).sqrt());
        }
        let x = self.scaled(a);
        self.round(false, |v| compare(times(v, v), x), r)
    }
}

fn times(a: Scaled, b: Scaled) -> Scaled {
    (a.0 * b.0, a.1 + b.1)
}

pub(crate) fn compare(a: Scaled, b: Scaled) -> Ordering {
    if a.0 == 0 || b.0 == 0 {
        return (a.0 != 0).cmp(&(b.0 != 0));
    }
    let top = |v: Scaled| v.1 - v.0.leading_zeros() as i32;
    let left = |v: Scaled| v.0 << v.0.leading_zeros();
    top(a).cmp(&top(b)).then(left(a).cmp(&left(b)))
}

/// A magnitude in fixed point, with room for products of any two numbers; the last place is two to
/// -2,304.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Fixed(
    /// The highest first.
    [u64; LIMBS],
);

const LIMBS: usize = 72;
const LAST: i32 = 2304;

impl Fixed {
    fn of((sig, exp): Scaled) -> Fixed {
        let mut limbs = [0; LIMBS];
        let at = (exp + LAST) as u32;
        let (limb, shift) = ((at / 64) as usize, at % 64);
        let parts = [sig as u64, (sig >> 64) as u64];
        for (i, part) in parts.into_iter().enumerate() {
            let wide = u128::from(part) << shift;
            limbs[LIMBS - 1 - limb - i] |= wide as u64;
            limbs[LIMBS - 2 - limb - i] |= (wide >> 64) as u64;
        }
        Fixed(limbs)
    }

    fn plus(&self, other: &Fixed) -> Fixed {
        let (mut out, mut carry) = ([0; LIMBS], 0u128);
        for i in (0..LIMBS).rev() {
            let v = u128::from(self.0[i]) + u128::from(other.0[i]) + carry;
            (out[i], carry) = (v as u64, v >> 64);
        }
        Fixed(out)
    }

    /// `other` is not larger.
    fn minus(&self, other: &Fixed) -> Fixed {
        let (mut out, mut borrow) = ([0; LIMBS], false);
        for i in (0..LIMBS).rev() {
            let (v, a) = self.0[i].overflowing_sub(other.0[i]);
            let (v, b) = v.overflowing_sub(u64::from(borrow));
            (out[i], borrow) = (v, a || b);
        }
        Fixed(out)
    }
}

#[test]
fn the_reference_rounds_to_the_nearest_as_the_host_does() {
    let mut next = super::harness::random(3);
    for _ in 0..5000 {
        let [a, b, c] = super::harness::floats(F64, &mut next);
        let [x, y, z] = [a, b, c].map(f64::from_bits);
        let same = |got: u64, want: f64| {
            let want = if want.is_nan() {
                F64.nan()
            } else {
                want.to_bits()
            };
            assert_eq!(got, want, "{x:e} {y:e} {z:e}");
        };
        same(F64.add(a, b, Round::Nearest), x + y);
        same(F64.mul(a, b, Round::Nearest), x * y);
        same(F64.div(a, b, Round::Nearest), x / y);
        // LLVM 22 folds `is_nan` of a root that it sees, wrongly for roots of negative numbers.
        same(F64.sqrt(a, Round::Nearest), black_box(x.sqrt()));
        same(F64.fma(a, b, c, Round::Nearest), x.mul_add(y, z));
        let [a, b, c] = super::harness::floats(F32, &mut next);
        let [x, y, z] = [a, b, c].map(|v| f32::from_bits(v as u32));
        let same = |got: u64, want: f32| {
            let want = if want.is_nan() {
                F32.nan()
            } else {
                u64::from(want.to_bits())
            };
            assert_eq!(got, want, "{x:e} {y:e} {z:e}");
        };
        same(F32.add(a, b, Round::Nearest), x + y);
        same(F32.mul(a, b, Round::Nearest), x * y);
        same(F32.div(a, b, Round::Nearest), x / y);
        same(F32.sqrt(a, Round::Nearest), black_box(x.sqrt()));
        same(F32.fma(a, b, c, Round::Nearest), x.mul_add(y, z));
    }
}
