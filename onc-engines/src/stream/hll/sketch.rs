//! [`Sketch`]: registers, the hash of its items, and its estimates.

use super::estimate::{improved, Bounds, HISTORY_ERROR, REGISTERS_ERROR};
use super::hash::{HashKind, ItemHash};
use super::registers::Registers;
use super::update::{update, Isa};

/// Log2 of the number of registers that a sketch can have: as in Apache DataSketches. An engine on
/// the path stops at 18, whose registers still lie in a core's second-level cache.
pub const PRECISIONS: std::ops::RangeInclusive<u8> = 4..=21;
/// Bytes that an item can have.
pub const WIDTHS: [usize; 5] = [1, 2, 4, 8, 16];

/// Why a sketch could not be made, or not be combined with another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SketchError {
    /// The precision is out of range.
    #[error(
        "HyperLogLog precision {given} is out of range; choose 4 to {most} (2^precision registers)"
    )]
    Precision {
        /// As given.
        given: u8,
        /// The highest.
        most: u8,
    },
    /// The width is none that an item can have.
    #[error("HyperLogLog item width {0} is not supported; choose 1, 2, 4, 8 or 16 bytes")]
    Width(usize),
    /// Registers that no items can have left.
    #[error("{count} registers, of which number {slot} is {value}, are no sketch: give 2^4 to 2^21 of 0 to {most}")]
    Registers {
        /// How many.
        count: usize,
        /// The first that is too high, or 0.
        slot: usize,
        /// Its value.
        value: u8,
        /// What it can be.
        most: u8,
    },
    /// A sketch cannot gain registers.
    #[error("a sketch of precision {from} cannot be folded to {to}; fold to {from} or less")]
    Fold {
        /// Its precision.
        from: u8,
        /// The precision asked for.
        to: u8,
    },
    /// The same item has different registers in the two sketches.
    #[error(
        "sketches of {width}-byte items hashed with {hash} and of {other_width}-byte items hashed with \
         {other_hash} do not count the same things; make both with the same hash and width"
    )]
    Mismatch {
        /// Hash of the first.
        hash: &'static str,
        /// Item width of the first.
        width: usize,
        /// Hash of the second.
        other_hash: &'static str,
        /// Item width of the second.
        other_width: usize,
    },
}

/// A HyperLogLog sketch of items of one width.
///
/// ```
/// use ringbell_onc_engines::stream::hll::{HashKind, Sketch};
///
/// let mut sketch = Sketch::new(14, HashKind::Mix, 4).unwrap();
/// for i in 0..100_000u32 {
///     sketch.insert(&(i % 25_000).to_le_bytes());
/// }
/// let bounds = sketch.bounds(3.0);
/// assert!(bounds.lower < 25_000.0 && 25_000.0 < bounds.upper);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Sketch {
    hash: HashKind,
    width: u8,
    pub(super) registers: Registers,
}

impl Sketch {
    /// An empty sketch of 2^`precision` registers for items of `width` bytes, little-endian.
    ///
    /// # Errors
    /// A precision outside 4 to 21, or a width other than 1, 2, 4, 8 and 16.
    pub fn new(precision: u8, hash: HashKind, width: usize) -> Result<Sketch, SketchError> {
        if !PRECISIONS.contains(&precision) {
            return Err(SketchError::Precision {
                given: precision,
                most: *PRECISIONS.end(),
            });
        }
        if !WIDTHS.contains(&width) {
            return Err(SketchError::Width(width));
        }
        Ok(Sketch {
            hash,
            width: width as u8,
            registers: Registers::new(precision),
        })
    }

    /// The sketch with these registers, as a kernel on a GPU leaves them. It has no history.
    ///
    /// # Errors
    /// A number of registers that is no power of two from 2^4 to 2^21, a register above what the
    /// hash can give, or a width as in [`new`](Sketch::new).
    pub fn from_registers(
        hash: HashKind,
        width: usize,
        registers: &[u8],
    ) -> Result<Sketch, SketchError> {
        let count = registers.len();
        let most = hash.rank_bits(width) + 1;
        let high = registers.iter().position(|&value| value > most);
        if !count.is_power_of_two() || high.is_some() {
            let slot = high.unwrap_or(0);
            return Err(SketchError::Registers {
                count,
                slot,
                value: registers.get(slot).copied().unwrap_or(0),
                most,
            });
        }
        let mut sketch = Sketch::new(count.trailing_zeros() as u8, hash, width)?;
        for (slot, &value) in (0u32..).zip(registers) {
            sketch.registers.insert(slot, value);
        }
        sketch.forget_history();
        Ok(sketch)
    }

    /// Log2 of the number of registers.
    pub fn precision(&self) -> u8 {
        self.registers.precision()
    }

    /// How items are hashed.
    pub fn hash(&self) -> HashKind {
        self.hash
    }

    /// Bytes of an item.
    pub fn width(&self) -> usize {
        usize::from(self.width)
    }

    /// The registers: 2^precision values of 0 to 63.
    pub fn registers(&self) -> &[u8] {
        self.registers.values()
    }

    /// Whether no item was taken.
    pub fn is_empty(&self) -> bool {
        self.registers.is_empty()
    }

    /// Takes one item.
    ///
    /// # Panics
    /// When it has not [`width`](Sketch::width) bytes.
    pub fn insert(&mut self, item: &[u8]) {
        assert_eq!(item.len(), self.width(), "bytes of an item");
        let (slot, rank) = self.hash.slot_and_rank(item);
        self.registers.insert(slot, rank);
    }

    /// Takes one item of any length, by its hash. A sketch of such items is made with a width of
    /// 16, and counts what has as many bytes as one of those.
    ///
    /// # Panics
    /// When the sketch hashes otherwise.
    pub fn insert_hashed(&mut self, item: &ItemHash) {
        assert_eq!(item.kind(), self.hash, "hash of an item");
        let (slot, rank) = item.slot_and_rank();
        self.registers.insert(slot, rank);
    }

    /// Takes whole items, one behind the other, on the best instruction set of this machine.
    ///
    /// # Panics
    /// When the bytes are no whole items.
    pub fn update(&mut self, items: &[u8]) {
        self.update_on(Isa::best(), items);
    }

    /// As [`update`](Sketch::update), on a given instruction set. The result is the same.
    ///
    /// # Panics
    /// When the bytes are no whole items, or this machine does not have the instruction set.
    pub fn update_on(&mut self, isa: Isa, items: &[u8]) {
        let width = self.width();
        update(&mut self.registers, isa, self.hash, width, items);
    }

    /// How many distinct items there were. While all came as one stream this is the estimate from
    /// its history, of standard error 0.83/√m; after a merge or a fold the estimate from the
    /// registers, 1.04/√m.
    pub fn estimate(&self) -> f64 {
        let history = self.registers.history();
        history.unwrap_or_else(|| self.estimate_from_registers())
    }

    /// The estimate from the registers alone (Ertl's improved estimator): the same for the same set
    /// of items, in any order and division.
    pub fn estimate_from_registers(&self) -> f64 {
        improved(&self.registers, self.hash.rank_bits(self.width()))
    }

    /// Whether the estimate is that of one stream's history.
    pub fn has_history(&self) -> bool {
        self.registers.history().is_some()
    }

    /// Forgets the history, so that [`estimate`](Sketch::estimate) depends on the registers alone.
    /// For sketches that several streams update in an undefined order.
    pub fn forget_history(&mut self) {
        self.registers.set_history(None);
    }

    /// The relative standard error of [`estimate`](Sketch::estimate).
    pub fn relative_error(&self) -> f64 {
        let factor = if self.has_history() {
            HISTORY_ERROR
        } else {
            REGISTERS_ERROR
        };
        factor / (self.registers().len() as f64).sqrt()
    }

    /// The estimate and the range of `sigmas` standard deviations around it.
    pub fn bounds(&self, sigmas: f64) -> Bounds {
        let touched = self.registers().len() - self.registers.counts()[0] as usize;
        Bounds::of(
            self.estimate(),
            sigmas * self.relative_error(),
            touched as f64,
        )
    }

    /// Takes all that `other` counted. The result has the lower of the two precisions.
    ///
    /// # Errors
    /// [`SketchError::Mismatch`]: other hash or width.
    pub fn merge(&mut self, other: &Sketch) -> Result<(), SketchError> {
        self.check_same_items(other)?;
        if other.precision() < self.precision() {
            *self = self.folded(other.precision())?;
        }
        self.registers.merge(&other.registers);
        Ok(())
    }

    /// The union of two sketches.
    ///
    /// # Errors
    /// As [`merge`](Sketch::merge).
    pub fn union(&self, other: &Sketch) -> Result<Sketch, SketchError> {
        let mut both = self.clone();
        both.merge(other)?;
        Ok(both)
    }

    /// The sketch that a lower precision would have given for the same items.
    ///
    /// # Errors
    /// A precision that is higher, or below 4.
    pub fn folded(&self, precision: u8) -> Result<Sketch, SketchError> {
        if precision == self.precision() {
            return Ok(self.clone());
        }
        if precision > self.precision() {
            return Err(SketchError::Fold {
                from: self.precision(),
                to: precision,
            });
        }
        let mut folded = Sketch::new(precision, self.hash, self.width())?;
        folded.registers.merge(&self.registers);
        Ok(folded)
    }

    /// How many items both sketches counted, by inclusion and exclusion: |A| + |B| − |A ∪ B|. The
    /// range allows for `sigmas` standard deviations of each of the three, added up, because they
    /// are not independent. It is absolute: a small intersection of large sets is lost in it.
    ///
    /// # Errors
    /// As [`merge`](Sketch::merge).
    pub fn intersection(&self, other: &Sketch, sigmas: f64) -> Result<Bounds, SketchError> {
        let precision = self.precision().min(other.precision());
        let sizes = [
            self.folded(precision)?,
            other.folded(precision)?,
            self.union(other)?,
        ];
        // All three by the same estimator, whose errors cancel in part.
        let [a, b, both] = sizes.map(|mut s| {
            s.forget_history();
            s.bounds(sigmas)
        });
        let estimate = (a.estimate + b.estimate - both.estimate).max(0.0);
        let deviation = |x: Bounds| x.upper - x.estimate;
        let slack = deviation(a) + deviation(b) + deviation(both);
        let most = a.upper.min(b.upper);
        Ok(Bounds {
            lower: (estimate - slack).max(0.0),
            estimate: estimate.min(most),
            upper: (estimate + slack).min(most),
        })
    }

    fn check_same_items(&self, other: &Sketch) -> Result<(), SketchError> {
        // DataSketches hashes integers of any width alike, and its images do not say the width.
        let any_width = matches!(
            self.hash,
            HashKind::DataSketches | HashKind::DataSketchesBytes
        );
        if self.hash == other.hash && (any_width || self.width == other.width) {
            return Ok(());
        }
        Err(SketchError::Mismatch {
            hash: self.hash.name(),
            width: self.width(),
            other_hash: other.hash.name(),
            other_width: other.width(),
        })
    }
}
