//! Estimators: the number of distinct items from the registers.

use super::registers::Registers;

/// Standard error times √m of the estimate from registers alone: √(3 ln 2 − 1) (Flajolet et al.
/// 2007).
pub(super) const REGISTERS_ERROR: f64 = 1.038_96;
/// Standard error times √m of the estimate from one stream's history: √(ln 2) (Ting, KDD 2014).
pub(super) const HISTORY_ERROR: f64 = 0.832_55;

/// An estimate and the range it is meant to lie in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Lower end.
    pub lower: f64,
    /// The estimate.
    pub estimate: f64,
    /// Upper end.
    pub upper: f64,
}

impl Bounds {
    /// The range of `estimate`, of which `relative` is the deviation that is allowed for.
    pub(super) fn of(estimate: f64, relative: f64, at_least: f64) -> Bounds {
        let upper = if relative < 1.0 {
            estimate / (1.0 - relative)
        } else {
            f64::INFINITY
        };
        Bounds {
            lower: (estimate / (1.0 + relative)).max(at_least),
            estimate,
            upper: upper.max(at_least),
        }
    }
}

/// The improved raw estimator (Ertl 2017, arXiv:1702.01284, Algorithm 6): right from 0 up to
/// where registers saturate, without tables and without switching between formulas. `rank_bits` is
/// Ertl's q: the largest value of a register is one more.
pub(super) fn improved(registers: &Registers, rank_bits: u8) -> f64 {
    let m = (1u64 << registers.precision()) as f64;
    let counts = registers.counts();
    let count = |value: u8| f64::from(counts[usize::from(value)]);
    let saturated: u32 = counts[usize::from(rank_bits) + 1..].iter().sum();
    let mut z = m * tau(1.0 - f64::from(saturated) / m);
    for value in (1..=rank_bits).rev() {
        z = 0.5 * (z + count(value));
    }
    z += m * sigma(count(0) / m);
    m * m / (2.0 * std::f64::consts::LN_2 * z)
}

/// σ(x) = x + Σ x^(2^k) 2^(k−1): the share of registers that are still zero.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// τ(x) = (1 − x − Σ (1 − x^(2^−k))² 2^−k) / 3: the share of registers that are saturated.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers as they are in the mean after `n` items: each value as often as its probability
    /// says.
    fn ideal(precision: u8, n: f64, rank_bits: u8) -> Registers {
        let m = (1u64 << precision) as f64;
        let at_most = |v: i32| match v {
            v if v < 0 => 0.0,
            v if v > i32::from(rank_bits) => 1.0,
            v => (-n / m * 2f64.powi(-v)).exp(),
        };
        let mut registers = Registers::new(precision);
        let mut slot = 0;
        for value in 0..=rank_bits + 1 {
            // As many registers as bring the total up to the distribution function.
            let until = (m * at_most(i32::from(value))).round() as u32;
            while slot < until {
                registers.insert(slot, value);
                slot += 1;
            }
        }
        registers
    }

    #[test]
    fn ideal_registers_give_the_number_back_at_every_scale() {
        for rank_bits in [32, 43, 62] {
            for n in [10.0, 1e3, 1e4, 1e5, 1e6, 1e9, 1e12] {
                let got = improved(&ideal(14, n, rank_bits), rank_bits);
                // Saturation begins at m × 2^32 = 7e13.
                assert!(
                    (got / n - 1.0).abs() < 0.006,
                    "q {rank_bits}: {n} became {got}"
                );
            }
        }
        let near = 3e13;
        let got = improved(&ideal(14, near, 32), 32);
        assert!((got / near - 1.0).abs() < 0.006, "{got}");
    }

    #[test]
    fn empty_and_full_registers() {
        assert_eq!(improved(&Registers::new(4), 32), 0.0);
        let mut full = Registers::new(4);
        for slot in 0..16 {
            full.insert(slot, 33);
        }
        assert_eq!(improved(&full, 32), f64::INFINITY);
    }

    #[test]
    fn bounds_never_fall_below_the_certain_count() {
        let b = Bounds::of(100.0, 0.25, 90.0);
        assert_eq!((b.lower, b.upper), (90.0, 100.0 / 0.75));
        assert_eq!(Bounds::of(5.0, 1.5, 1.0).upper, f64::INFINITY);
    }
}
