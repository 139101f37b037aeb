//! The registers of a sketch, with their histogram, sums and running estimate.

/// Highest rank of any hash, plus one.
const RANKS: usize = 64;

/// `2^precision` registers of a byte each, with values derived from them: the number of registers
/// of each value, the lowest value, the sum of their inverse powers, and the running estimate of
/// one stream's history.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Registers {
    precision: u8,
    /// `m` registers.
    bytes: Vec<u8>,
    /// How many registers have each value.
    counts: [u32; RANKS],
    /// Lowest value of a register: an item of this rank or less changes nothing.
    floor: u8,
    /// Sum of 2^-value over registers below 32, and over the others: apart, both are exact in a
    /// double up to 2^21 registers, in any order of changes.
    inverse: [f64; 2],
    /// The estimate by historic inverse probability (Ting, KDD 2014; Cohen, TKDE 2015): each change
    /// adds one over the probability that a new item changes something. `None` once registers came
    /// from elsewhere than one stream.
    history: Option<f64>,
}

impl Registers {
    /// All zero.
    pub(super) fn new(precision: u8) -> Registers {
        let m = 1usize << precision;
        let mut counts = [0; RANKS];
        counts[0] = m as u32;
        Registers {
            precision,
            bytes: vec![0; m],
            counts,
            floor: 0,
            inverse: [m as f64, 0.0],
            history: Some(0.0),
        }
    }

    /// Log2 of the number of registers.
    pub(super) fn precision(&self) -> u8 {
        self.precision
    }

    /// The registers.
    pub(super) fn values(&self) -> &[u8] {
        &self.bytes
    }

    /// How many registers have each value.
    pub(super) fn counts(&self) -> &[u32; RANKS] {
        &self.counts
    }

    /// Lowest value of a register.
    pub(super) fn floor(&self) -> u8 {
        self.floor
    }

    /// Sums of 2^-value over registers below 32, and over the others.
    pub(super) fn inverse(&self) -> [f64; 2] {
        self.inverse
    }

    /// The estimate by historic inverse probability, if there is one history.
    pub(super) fn history(&self) -> Option<f64> {
        self.history
    }

    /// Sets or drops the history's estimate.
    pub(super) fn set_history(&mut self, history: Option<f64>) {
        self.history = history;
    }

    /// Takes an item: the register becomes at least `rank` (1 to 63).
    #[inline(always)]
    pub(super) fn insert(&mut self, slot: u32, rank: u8) {
        let slot = slot as usize & ((1 << self.precision) - 1);
        if rank > self.bytes[slot] {
            self.raise(slot, rank);
        }
    }

    /// The rare part of [`insert`](Registers::insert).
    #[inline(never)]
    fn raise(&mut self, slot: usize, rank: u8) {
        let old = std::mem::replace(&mut self.bytes[slot], rank);
        if let Some(history) = &mut self.history {
            let m = (1u64 << self.precision) as f64;
            *history += m / (self.inverse[0] + self.inverse[1]);
        }
        self.inverse[usize::from(old >= 32)] -= inverse_power(old);
        self.inverse[usize::from(rank >= 32)] += inverse_power(rank);
        self.counts[usize::from(old)] -= 1;
        self.counts[usize::from(rank)] += 1;
        while self.counts[usize::from(self.floor)] == 0 {
            self.floor += 1;
        }
    }

    /// Takes registers of the same precision or a higher one, keeping the larger of each. The
    /// history ends, unless these were empty or the others are.
    pub(super) fn merge(&mut self, other: &Registers) {
        debug_assert!(other.precision >= self.precision, "the caller folds first");
        if other.is_empty() {
            return;
        }
        let history = if self.is_empty() && other.precision == self.precision {
            other.history
        } else {
            None
        };
        self.history = None;
        let mask = (1usize << self.precision) - 1;
        for (slot, &value) in other.values().iter().enumerate() {
            if value > self.bytes[slot & mask] {
                self.raise(slot & mask, value);
            }
        }
        self.history = history;
    }

    /// Whether no item was taken.
    pub(super) fn is_empty(&self) -> bool {
        self.counts[0] == 1 << self.precision
    }
}

/// 2^-value.
fn inverse_power(value: u8) -> f64 {
    f64::from_bits((1023 - u64::from(value)) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_sums_follow_the_registers() {
        let mut r = Registers::new(4);
        let mut state = 1u64;
        for _ in 0..2000 {
            state = super::super::hash::fmix64(state + 1);
            r.insert(state as u32, 1 + (state >> 32).leading_zeros() as u8 % 63);
            let values = r.values();
            assert_eq!(r.floor(), *values.iter().min().unwrap());
            let sum: f64 = values.iter().map(|&v| 2f64.powi(-i32::from(v))).sum();
            assert_eq!(r.inverse().iter().sum::<f64>(), sum);
            for v in 0..64u8 {
                let n = values.iter().filter(|&&x| x == v).count();
                assert_eq!(r.counts()[usize::from(v)] as usize, n);
            }
        }
    }

    #[test]
    fn merging_into_empty_registers_keeps_the_history() {
        let mut a = Registers::new(6);
        for i in 0..100u32 {
            a.insert(i * 7, 1 + (i % 5) as u8);
        }
        let mut b = Registers::new(6);
        b.merge(&a);
        assert_eq!(a, b);
        b.merge(&a);
        assert_eq!((b.values(), b.history()), (a.values(), None));
        a.merge(&Registers::new(6));
        assert!(a.history().is_some());
    }
}
