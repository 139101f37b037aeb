//! Reduction operators on one element.

/// An element that operations are computed in.
pub(super) trait Number: Copy {
    /// `self + o`.
    fn sum(self, o: Self) -> Self;
    /// `self * o`.
    fn prod(self, o: Self) -> Self;
    /// The smaller.
    fn min(self, o: Self) -> Self;
    /// The larger.
    fn max(self, o: Self) -> Self;
    /// Bits of both.
    fn and(self, o: Self) -> Self;
    /// Bits of either.
    fn or(self, o: Self) -> Self;
    /// Bits of one.
    fn xor(self, o: Self) -> Self;
    /// The value with one of the many bit patterns of "not a number" replaced by the canonical one.
    fn canonical(self) -> Self;
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn sum(self, o: $t) -> $t {
                self.wrapping_add(o)
            }
            #[inline(always)]
            fn prod(self, o: $t) -> $t {
                self.wrapping_mul(o)
            }
            #[inline(always)]
            fn min(self, o: $t) -> $t {
                if o < self { o } else { self }
            }
            #[inline(always)]
            fn max(self, o: $t) -> $t {
                if o > self { o } else { self }
            }
            #[inline(always)]
            fn and(self, o: $t) -> $t {
                self & o
            }
            #[inline(always)]
            fn or(self, o: $t) -> $t {
                self | o
            }
            #[inline(always)]
            fn xor(self, o: $t) -> $t {
                self ^ o
            }
            #[inline(always)]
            fn canonical(self) -> $t {
                self
            }
        }
    )*};
}
integers!(i8 i16 i32 i64 u8 u16 u32 u64);

/// All bits but the sign are inverted in negative numbers: float bits to ordered integer, and back.
macro_rules! flip {
    ($v:expr, $bits:ty, $signed:ty) => {{
        let v = $v as $signed;
        v ^ ((v >> (<$bits>::BITS - 1)) as $bits >> 1) as $signed
    }};
}
macro_rules! floats {
    ($($t:ty, $bits:ty, $signed:ty;)*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn sum(self, o: $t) -> $t {
                self + o
            }
            #[inline(always)]
            fn prod(self, o: $t) -> $t {
                self * o
            }
            // As integers whose order is that of the floats, −0 below +0: selections between floats
            // stay branches, integer minima become vectors (35 against 1 GB/s). A NaN gets the
            // pattern that wins.
            #[inline(always)]
            fn min(self, o: $t) -> $t {
                let order = |v: $t| {
                    let bits = if v.is_nan() { <$bits>::MAX } else { v.to_bits() };
                    flip!(bits, $bits, $signed)
                };
                let (a, b) = (order(self), order(o));
                let least = if b < a { b } else { a };
                <$t>::from_bits(flip!(least, $bits, $signed) as $bits)
            }
            #[inline(always)]
            fn max(self, o: $t) -> $t {
                let order = |v: $t| {
                    let bits = if v.is_nan() { <$bits>::MAX >> 1 } else { v.to_bits() };
                    flip!(bits, $bits, $signed)
                };
                let (a, b) = (order(self), order(o));
                let most = if b > a { b } else { a };
                <$t>::from_bits(flip!(most, $bits, $signed) as $bits)
            }
            #[inline(always)]
            fn and(self, o: $t) -> $t {
                <$t>::from_bits(self.to_bits() & o.to_bits())
            }
            #[inline(always)]
            fn or(self, o: $t) -> $t {
                <$t>::from_bits(self.to_bits() | o.to_bits())
            }
            #[inline(always)]
            fn xor(self, o: $t) -> $t {
                <$t>::from_bits(self.to_bits() ^ o.to_bits())
            }
            #[inline(always)]
            fn canonical(self) -> $t {
                // `NAN` is the positive quiet NaN without payload on every target of ours.
                if self.is_nan() { <$t>::NAN } else { self }
            }
        }
    )*};
}

floats! { f32, u32, i32; f64, u64, i64; }

/// An operation as a type, so that the loops are compiled for each.
pub(super) trait Operator {
    /// `a op b`.
    fn apply<N: Number>(a: N, b: N) -> N;
}

macro_rules! ops {
    ($($name:ident $method:ident)*) => {$(
        pub(super) struct $name;
        impl Operator for $name {
            #[inline(always)]
            fn apply<N: Number>(a: N, b: N) -> N {
                a.$method(b)
            }
        }
    )*};
}
ops!(Sum sum Prod prod Min min Max max And and Or or Xor xor);
