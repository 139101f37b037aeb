//! The byte format of Apache DataSketches, for the exchange of sketches with Spark, Druid and
//! others.
//!
//! An image begins with 8 bytes: length of the preamble in words, version 1, family 7, lg k, lg of
//! a table's length, flags, a state byte, and the mode: bits 0–1 what follows (LIST, SET, HLL),
//! bits 2–3 the form of the registers (4, 6, 8 bits). LIST and SET hold *coupons*: rank in the
//! upper 6 bits, register number in the lower 26. HLL holds the history's estimate, the two sums of
//! inverse powers, two counts, and the registers; with 4 bits a register, its offset from the
//! lowest one, and 15 for the exceptions that follow as coupons. Little-endian. An image has no
//! checksum. What follows from the registers is held against them: both sums, the lowest register
//! and how many have its value, and the range that a history can have come to. Registers that no
//! number of items leaves are refused, too. A change that keeps all that goes unnoticed.
//!
//! All of HLL_4, HLL_6 and HLL_8 are read, in each mode, compact or not; HLL_4 and HLL_8 are
//! written. Where the image comes from one stream it carries that stream's estimate, so both sides
//! give the same number. A merged sketch has none: Apache DataSketches then uses its composite
//! estimator with tables, and we Ertl's, which differ by a fraction of the standard error (the
//! tests hold a quarter).

use super::hash::HashKind;
use super::sketch::{Sketch, SketchError};

/// How an image stores registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataSketchesForm {
    /// 4 bits a register and a list of exceptions.
    Hll4,
    /// 8 bits a register.
    Hll8,
}

/// Why an image of Apache DataSketches could not be read or written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DataSketchesError {
    /// The image ends early.
    #[error("DataSketches image of {given} bytes is cut off: {what} needs {needed}")]
    Cut {
        /// What could not be read.
        what: &'static str,
        /// Bytes needed up to its end.
        needed: usize,
        /// Bytes given.
        given: usize,
    },
    /// A field has a value that no HLL sketch has.
    #[error("not an HLL sketch of Apache DataSketches, or a damaged one: {field} is {value} at byte {at}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
        /// Where it is.
        at: usize,
    },
    /// Its registers were not made with a hash of DataSketches.
    #[error(
        "a sketch hashed with {0} would merge wrongly with others of DataSketches; count with hash=datasketches"
    )]
    Hash(&'static str),
    /// Its precision is out of range.
    #[error("DataSketches image cannot be used: {0}")]
    Sketch(#[from] SketchError),
}

const FAMILY_HLL: u8 = 7;
const EMPTY: u8 = 4;
const COMPACT: u8 = 8;
const OUT_OF_ORDER: u8 = 16;
/// Sums and counts were not brought up to date after a merge (Java: `REBUILD_CURMIN_NUM_KXQ_MASK`).
const STALE: u8 = 32;
/// What others' sums and estimates may differ from ours by rounding, relative.
const ROUNDING: f64 = 1e-9;
const MODE_LIST: u8 = 0;
const MODE_SET: u8 = 1;
const MODE_HLL: u8 = 2;
/// Where coupons begin in LIST and SET mode, and registers in HLL mode.
const LIST_AT: usize = 8;
const SET_AT: usize = 12;
const HLL_AT: usize = 40;
/// Register numbers of a coupon.
const COUPON_SLOTS: u32 = 26;
/// The nibble of a register that is among the exceptions.
const EXCEPTION: u8 = 15;
/// Entries of a LIST.
const LIST_ENTRIES: usize = 8;

impl Sketch {
    /// The sketch as an image of Apache DataSketches.
    ///
    /// # Errors
    /// [`DataSketchesError::Hash`] when it was counted with another hash than DataSketches'.
    pub fn to_datasketches(&self, form: DataSketchesForm) -> Result<Vec<u8>, DataSketchesError> {
        check_hash(self.hash())?;
        let form_bits = match form {
            DataSketchesForm::Hll4 => 0u8,
            DataSketchesForm::Hll8 => 2,
        };
        let header = |words, lg_table, flags, state, mode| {
            let precision = self.precision();
            vec![
                words,
                1,
                FAMILY_HLL,
                precision,
                lg_table,
                flags,
                state,
                mode | form_bits << 2,
            ]
        };
        if self.is_empty() {
            return Ok(header(2, 3, EMPTY | COMPACT, 0, MODE_LIST));
        }
        let floor = match form {
            DataSketchesForm::Hll4 => self.registers.floor(),
            DataSketchesForm::Hll8 => 0,
        };
        let history = self.registers.history();
        let mut flags = match form {
            DataSketchesForm::Hll4 => COMPACT,
            DataSketchesForm::Hll8 => 0,
        };
        if history.is_none() {
            flags |= OUT_OF_ORDER;
        }
        let mut image = header(10, 0, flags, floor, MODE_HLL);
        let [low, high] = self.registers.inverse();
        for value in [history.unwrap_or(0.0), low, high] {
            image.extend_from_slice(&value.to_le_bytes());
        }
        let at_floor = self.registers.counts()[usize::from(floor)];
        image.extend_from_slice(&at_floor.to_le_bytes());
        match form {
            DataSketchesForm::Hll8 => {
                image.extend_from_slice(&[0; 4]);
                image.extend_from_slice(self.registers());
            }
            DataSketchesForm::Hll4 => {
                let is_exception = |value: u8| value - floor >= EXCEPTION;
                let nibble = |value: u8| (value - floor).min(EXCEPTION);
                let exceptions: Vec<u32> = (0u32..)
                    .zip(self.registers())
                    .filter(|&(_, &value)| is_exception(value))
                    .map(|(slot, &value)| u32::from(value) << COUPON_SLOTS | slot)
                    .collect();
                image.extend_from_slice(&(exceptions.len() as u32).to_le_bytes());
                let pairs = self.registers().chunks_exact(2);
                image.extend(pairs.map(|pair| nibble(pair[0]) | nibble(pair[1]) << 4));
                image.extend(exceptions.iter().flat_map(|coupon| coupon.to_le_bytes()));
            }
        }
        Ok(image)
    }

    /// Reads an HLL image of Apache DataSketches. It does not say how items were hashed: `hash`
    /// does, so that sketches which count different things are not merged. Precisions above 18,
    /// which an engine does not have, can be [folded](Sketch::folded).
    ///
    /// # Errors
    /// [`DataSketchesError`]; no bytes make it panic.
    pub fn from_datasketches(image: &[u8], hash: HashKind) -> Result<Sketch, DataSketchesError> {
        check_hash(hash)?;
        let image = Image(image);
        image.need("the header", LIST_AT)?;
        image.check("the version", 1, |v| v == 1)?;
        image.check("the family", 2, |v| v == FAMILY_HLL)?;
        let form = image.check("the form of registers", 7, |v| v >> 2 & 3 < 3)? >> 2 & 3;
        let mut sketch = Sketch::new(image.byte(3), hash, 8)?;
        let mode = image.byte(7) & 3;
        match mode {
            MODE_LIST => read_list(image, &mut sketch)?,
            MODE_SET => read_set(image, &mut sketch)?,
            MODE_HLL => {
                image.check("the length of the preamble", 0, |v| v == 10)?;
                image.need("the preamble", HLL_AT)?;
                match form {
                    0 => read_hll4(image, &mut sketch)?,
                    1 => read_packed::<6>(image, &mut sketch)?,
                    _ => read_packed::<8>(image, &mut sketch)?,
                }
                check_sums(image, &sketch)?;
                let history = check_history(image, &sketch)?;
                sketch.registers.set_history(history);
            }
            other => return Err(image.wrong("the mode", 7, f64::from(other))),
        }
        Ok(sketch)
    }
}

fn check_hash(hash: HashKind) -> Result<(), DataSketchesError> {
    match hash {
        HashKind::DataSketches | HashKind::DataSketchesBytes => Ok(()),
        other => Err(DataSketchesError::Hash(other.name())),
    }
}

/// That what is stored beside the registers follows from them, and that items can have left them.
fn check_sums(image: Image<'_>, sketch: &Sketch) -> Result<(), DataSketchesError> {
    let registers = &sketch.registers;
    if !sketch.estimate_from_registers().is_finite() {
        let highest = registers.values().iter().max().copied().unwrap_or(0);
        return Err(image.wrong("every register", HLL_AT, f64::from(highest)));
    }
    if image.byte(5) & STALE != 0 {
        return Ok(());
    }
    for (at, expected) in [(16, registers.inverse()[0]), (24, registers.inverse()[1])] {
        let sum = image.f64(at);
        // Not `>`: NaN agrees with nothing.
        let agrees = (sum - expected).abs() <= ROUNDING * expected;
        if !agrees {
            return Err(image.wrong("a sum of inverse powers", at, sum));
        }
    }
    let lowest = usize::from(image.byte(6));
    let (count, expected) = (image.u32(32), registers.counts()[lowest]);
    if count != expected {
        return Err(image.wrong("the number of lowest registers", 32, f64::from(count)));
    }
    // With 4 bits a register it rises as soon as none is left; the other forms leave it at 0.
    let four_bits = image.byte(7) >> 2 & 3 == 0;
    if four_bits && expected == 0 {
        return Err(image.wrong("the lowest register", 6, lowest as f64));
    }
    Ok(())
}

/// The history's estimate, when there is one, and if these registers can have it.
///
/// Each change of a register has added one over the probability of a change, which is at least 1
/// and at most what it is for the registers now. There was one for each register that is not 0, and
/// at most as many as the values add up to. A sketch that began as a list or set has brought the
/// estimate of its coupons, fewer than an eighth of the registers or 8.
fn check_history(image: Image<'_>, sketch: &Sketch) -> Result<Option<f64>, DataSketchesError> {
    let (history, registers) = (image.f64(8), &sketch.registers);
    let in_order = image.byte(5) & OUT_OF_ORDER == 0;
    let m = registers.values().len() as f64;
    let touched = m - f64::from(registers.counts()[0]);
    let changes: u64 = registers.values().iter().map(|&v| u64::from(v)).sum();
    let largest = m / registers.inverse().iter().sum::<f64>();
    let (least, most) = match in_order {
        true => (touched, changes as f64 * largest + m / 8.0 + 16.0),
        // The value is not used.
        false => (0.0, f64::MAX),
    };
    if !(least * (1.0 - ROUNDING)..=most * (1.0 + ROUNDING)).contains(&history)
        || !history.is_finite()
    {
        return Err(image.wrong("the history's estimate", 8, history));
    }
    Ok(in_order.then_some(history))
}

/// An image, of which only bytes that were asked for with `need` are read.
#[derive(Clone, Copy)]
struct Image<'a>(&'a [u8]);

impl Image<'_> {
    /// That it has at least `needed` bytes.
    fn need(self, what: &'static str, needed: usize) -> Result<(), DataSketchesError> {
        if self.0.len() >= needed {
            return Ok(());
        }
        Err(DataSketchesError::Cut {
            what,
            needed,
            given: self.0.len(),
        })
    }

    fn byte(self, at: usize) -> u8 {
        self.0[at]
    }

    fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        std::array::from_fn(|i| self.0[at + i])
    }

    fn u32(self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn f64(self, at: usize) -> f64 {
        f64::from_bits(u64::from_le_bytes(self.bytes(at)))
    }

    fn wrong(self, field: &'static str, at: usize, value: f64) -> DataSketchesError {
        DataSketchesError::Field { field, value, at }
    }

    /// The byte, if it has a value that it may have.
    fn check(
        self,
        field: &'static str,
        at: usize,
        valid: impl Fn(u8) -> bool,
    ) -> Result<u8, DataSketchesError> {
        let value = self.byte(at);
        if valid(value) {
            Ok(value)
        } else {
            Err(self.wrong(field, at, f64::from(value)))
        }
    }
}

fn read_list(image: Image<'_>, sketch: &mut Sketch) -> Result<(), DataSketchesError> {
    image.check("the length of the preamble", 0, |v| v == 2)?;
    let count = usize::from(image.check("the number of coupons", 6, |v| {
        usize::from(v) <= LIST_ENTRIES
    })?);
    let empty = image.byte(5) & EMPTY != 0;
    if empty != (count == 0) {
        return Err(image.wrong("the flags byte", 5, f64::from(image.byte(5))));
    }
    // A list fills from its start, so that entries behind the coupons need not be looked at.
    read_coupons(image, sketch, LIST_AT, count, count)
}

fn read_set(image: Image<'_>, sketch: &mut Sketch) -> Result<(), DataSketchesError> {
    image.check("the length of the preamble", 0, |v| v == 3)?;
    image.need("the number of coupons", SET_AT)?;
    let most = sketch.precision().saturating_sub(3);
    let lg_table = image.check("the size of the set", 4, |v| (5..=most).contains(&v))?;
    let (count, table) = (image.u32(8) as usize, 1usize << lg_table);
    if count >= table {
        return Err(image.wrong("the number of coupons", 8, count as f64));
    }
    let compact = image.byte(5) & COMPACT != 0;
    let entries = if compact { count } else { table };
    read_coupons(image, sketch, SET_AT, entries, count)
}

/// Reads `entries` words of which `count` must be coupons, the others zero.
fn read_coupons(
    image: Image<'_>,
    sketch: &mut Sketch,
    from: usize,
    entries: usize,
    count: usize,
) -> Result<(), DataSketchesError> {
    image.need("the coupons", from + 4 * entries)?;
    let mut seen = std::collections::BTreeSet::new();
    for at in (from..).step_by(4).take(entries) {
        let coupon = image.u32(at);
        if coupon == 0 && entries != count {
            continue;
        }
        let rank = (coupon >> COUPON_SLOTS) as u8;
        if rank == 0 || !seen.insert(coupon) {
            return Err(image.wrong("a coupon", at, f64::from(coupon)));
        }
        sketch.registers.insert(coupon, rank);
    }
    if seen.len() != count {
        return Err(image.wrong("the number of coupons", 8, seen.len() as f64));
    }
    let history = (count > 0).then(|| distinct_of_coupons(count as f64));
    sketch.registers.set_history(Some(history.unwrap_or(0.0)));
    Ok(())
}

/// How many items give that many different coupons in the mean. A coupon of rank v has the
/// probability 2^-26 · 2^-v, so n items leave N·(x − x²/6 + x³/42 − …) of them with N = 2^26, x =
/// n/N; solved by repeated substitution. Sets end at 3/4 · 2^18 coupons, where x is 0.003.
fn distinct_of_coupons(count: f64) -> f64 {
    let all = f64::from(1u32 << COUPON_SLOTS);
    let mut x = count / all;
    for _ in 0..8 {
        x = count / all + x * x / 6.0 - x * x * x / 42.0;
    }
    x * all
}

/// Registers of `BITS` bits each, one behind the other.
fn read_packed<const BITS: usize>(
    image: Image<'_>,
    sketch: &mut Sketch,
) -> Result<(), DataSketchesError> {
    let m = 1usize << sketch.precision();
    // With 6 bits, a byte more than they need, so that two bytes can be read at each register.
    let bytes = m * BITS / 8 + usize::from(BITS < 8);
    image.need("the registers", HLL_AT + bytes)?;
    image.check("the lowest register", 6, |v| v == 0)?;
    for slot in 0..m {
        let (at, shift) = (HLL_AT + slot * BITS / 8, slot * BITS % 8);
        let next = if BITS < 8 { image.byte(at + 1) } else { 0 };
        let value = u16::from_le_bytes([image.byte(at), next]) >> shift;
        let value = if BITS < 8 { value & 0x3f } else { value };
        if value > 63 {
            return Err(image.wrong("a register", at, f64::from(value)));
        }
        sketch.registers.insert(slot as u32, value as u8);
    }
    Ok(())
}

fn read_hll4(image: Image<'_>, sketch: &mut Sketch) -> Result<(), DataSketchesError> {
    let m = 1usize << sketch.precision();
    let floor = image.check("the lowest register", 6, |v| v <= 63)?;
    let exceptions = image.u32(36) as usize;
    if exceptions > m {
        return Err(image.wrong("the number of exceptions", 36, exceptions as f64));
    }
    let from = HLL_AT + m / 2;
    image.need("the registers", from)?;
    let entries = if image.byte(5) & COMPACT != 0 || exceptions == 0 {
        exceptions
    } else {
        let lg_table = image.check("the size of the table of exceptions", 4, |v| v <= 21)?;
        1 << lg_table
    };
    image.need("the exceptions", from + 4 * entries)?;
    let nibble = |slot: usize| image.byte(HLL_AT + slot / 2) >> (slot % 2 * 4) & 15;
    let mut expected = 0;
    for slot in 0..m {
        let offset = nibble(slot);
        if offset == EXCEPTION {
            expected += 1;
            continue;
        }
        if floor + offset > 63 {
            return Err(image.wrong("a register", HLL_AT + slot / 2, f64::from(floor + offset)));
        }
        sketch.registers.insert(slot as u32, floor + offset);
    }
    for at in (from..).step_by(4).take(entries) {
        let coupon = image.u32(at);
        if coupon == 0 && entries != exceptions {
            continue;
        }
        let (rank, number) = (
            (coupon >> COUPON_SLOTS) as u8,
            (coupon & ((1 << COUPON_SLOTS) - 1)) as usize,
        );
        let slot = number & (m - 1);
        let fits = nibble(slot) == EXCEPTION && rank >= floor.saturating_add(EXCEPTION);
        if !fits || sketch.registers()[slot] != 0 {
            return Err(image.wrong("an exception", at, f64::from(coupon)));
        }
        expected -= 1;
        sketch.registers.insert(slot as u32, rank);
    }
    if expected != 0 {
        return Err(image.wrong("the number of exceptions", 36, exceptions as f64));
    }
    Ok(())
}
