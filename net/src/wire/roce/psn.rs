//! Numbers of 24 bits: packet sequence numbers and queue pair numbers.

use ringbell_nic_abi::roce::{PSN_BITS, QPN_BITS};

const MASK: u32 = (1 << PSN_BITS) - 1;
/// Half of the numbers lie before a given one, half behind (IBTA vol. 1 §9.7.1).
const HALF: u32 = 1 << (PSN_BITS - 1);

/// A packet sequence number: counts modulo 2^24, so that it has distances and no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of a number.
    pub const fn new(n: u32) -> Psn {
        Psn(n & MASK)
    }
    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }
    /// The number `n` behind this one.
    #[must_use]
    pub const fn plus(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }
    /// The number before this one.
    #[must_use]
    pub const fn previous(self) -> Psn {
        Psn::new(self.0.wrapping_sub(1))
    }
    /// How far this number lies behind `earlier`, from -2^23 to 2^23 - 1.
    pub const fn distance(self, earlier: Psn) -> i32 {
        let d = self.0.wrapping_sub(earlier.0) & MASK;
        if d < HALF {
            d as i32
        } else {
            // 2^23 to 2^24 - 1: the signed value fits.
            d as i32 - (MASK as i32 + 1)
        }
    }
    /// Whether this number comes before `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.distance(other) < 0
    }
}

impl std::fmt::Display for Psn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The number of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The low 24 bits of a number.
    pub const fn new(n: u32) -> Qpn {
        Qpn(n & ((1 << QPN_BITS) - 1))
    }
    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl std::fmt::Display for Qpn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_wrap() {
        let last = Psn::new(MASK);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!(Psn::new(2).distance(last), 3);
        assert_eq!(last.distance(Psn::new(2)), -3);
        assert!(last.is_before(Psn::new(0)) && !Psn::new(0).is_before(last));
        assert_eq!(Psn::new(HALF - 1).distance(Psn::new(0)), HALF as i32 - 1);
        assert_eq!(Psn::new(HALF).distance(Psn::new(0)), -(HALF as i32));
    }
}
