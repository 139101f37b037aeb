//! The filter engine: keeps the records whose field passes a comparison, or a part of each.

use std::ops::Range;

use super::{EngineError, StreamEngine};

/// Longest record, in bytes.
pub const MAX_RECORD: usize = 65_536;

/// How the field is compared with the constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Equal.
    Eq,
    /// Not equal. The only one that holds for a NaN (IEEE 754-2019 §5.11).
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

impl Compare {
    /// All, with their names.
    pub const NAMES: [(&'static str, Compare); 6] = [
        ("eq", Compare::Eq),
        ("ne", Compare::Ne),
        ("lt", Compare::Lt),
        ("le", Compare::Le),
        ("gt", Compare::Gt),
        ("ge", Compare::Ge),
    ];
}

/// The constant, and with it the type of the field; little-endian in the record.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // The names are the types.
pub enum Constant {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    F32(f32),
    F64(f64),
}

impl Constant {
    /// The names of the types.
    pub const TYPES: [&'static str; 10] = [
        "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64",
    ];

    /// The constant of type `ty` that `text` writes; `None` when there is none.
    pub fn parse(ty: &str, text: &str) -> Option<Constant> {
        Some(match ty {
            "u8" => Constant::U8(text.parse().ok()?),
            "u16" => Constant::U16(text.parse().ok()?),
            "u32" => Constant::U32(text.parse().ok()?),
            "u64" => Constant::U64(text.parse().ok()?),
            "i8" => Constant::I8(text.parse().ok()?),
            "i16" => Constant::I16(text.parse().ok()?),
            "i32" => Constant::I32(text.parse().ok()?),
            "i64" => Constant::I64(text.parse().ok()?),
            "f32" => Constant::F32(text.parse().ok()?),
            "f64" => Constant::F64(text.parse().ok()?),
            _ => return None,
        })
    }

    /// Bytes of the field.
    pub fn bytes(self) -> usize {
        match self {
            Constant::U8(_) | Constant::I8(_) => 1,
            Constant::U16(_) | Constant::I16(_) => 2,
            Constant::U32(_) | Constant::I32(_) | Constant::F32(_) => 4,
            Constant::U64(_) | Constant::I64(_) | Constant::F64(_) => 8,
        }
    }
}

/// Which records are kept, and what of them.
#[derive(Debug, Clone, PartialEq)]
pub struct FilterConfig {
    /// Bytes of a record.
    pub record: usize,
    /// Where the field begins in a record.
    pub field_at: usize,
    /// A record is kept when `field compare constant` holds.
    pub compare: Compare,
    /// What the field is compared with.
    pub constant: Constant,
    /// The bytes that are kept of such a record; all: `0..record`.
    pub keep: Range<usize>,
}

/// Why a filter cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// The record is empty or too long.
    #[error("a filter's record of {0} bytes is out of range; choose 1 to {MAX_RECORD}")]
    Record(usize),
    /// The field does not lie in the record.
    #[error(
        "a filter's field of {bytes} bytes at {at} does not lie in a record of {record} bytes"
    )]
    Field {
        /// Where it begins.
        at: usize,
        /// Its size.
        bytes: usize,
        /// Bytes of the record.
        record: usize,
    },
    /// The kept part is empty or does not lie in the record.
    #[error("a filter cannot keep bytes {start}..{end} of a record of {record} bytes")]
    Keep {
        /// Its start.
        start: usize,
        /// Its end.
        end: usize,
        /// Bytes of the record.
        record: usize,
    },
}

/// Keeps the matching records of a stream. Its result is two `u64`: records seen, records kept.
///
/// ```
/// use ringbell_onc_engines::stream::filter::{Compare, Constant, FilterConfig, FilterEngine};
/// use ringbell_onc_engines::stream::StreamEngine;
///
/// // Records of (u32 key, i32 value): the keys of negative values.
/// let mut negative = FilterEngine::new(FilterConfig {
///     record: 8,
///     field_at: 4,
///     compare: Compare::Lt,
///     constant: Constant::I32(0),
///     keep: 0..4,
/// })
/// .unwrap();
/// let mut out = Vec::new();
/// for (key, value) in [(1u32, 5i32), (2, -5), (3, 0), (4, -1)] {
///     negative.process(&key.to_le_bytes(), &mut out);
///     negative.process(&value.to_le_bytes(), &mut out);
/// }
/// assert_eq!(out, [2, 0, 0, 0, 4, 0, 0, 0]);
/// ```
#[derive(Debug, Clone)]
pub struct FilterEngine {
    config: FilterConfig,
    /// The first bytes of a record whose rest has not come.
    carry: Vec<u8>,
    records: u64,
    kept: u64,
}

impl FilterEngine {
    /// An engine for one comparison.
    ///
    /// # Errors
    /// A record that is empty or longer than [`MAX_RECORD`]; a field or a kept part outside of it.
    pub fn new(config: FilterConfig) -> Result<FilterEngine, FilterError> {
        let record = config.record;
        if record == 0 || record > MAX_RECORD {
            return Err(FilterError::Record(record));
        }
        let (at, bytes) = (config.field_at, config.constant.bytes());
        if at.checked_add(bytes).is_none_or(|end| end > record) {
            return Err(FilterError::Field { at, bytes, record });
        }
        let Range { start, end } = config.keep;
        if start >= end || end > record {
            return Err(FilterError::Keep { start, end, record });
        }
        Ok(FilterEngine {
            carry: Vec::with_capacity(record),
            config,
            records: 0,
            kept: 0,
        })
    }

    /// Records seen, and records kept.
    pub fn counts(&self) -> (u64, u64) {
        (self.records, self.kept)
    }

    /// Takes whole records.
    fn select(&mut self, records: &[u8], out: &mut Vec<u8>) {
        macro_rules! by_type {
            ($($Type:ident($ty:ty)),+) => {
                match self.config.constant {
                    $(Constant::$Type(c) => {
                        let value = |b: &[u8]| <$ty>::from_le_bytes(std::array::from_fn(|i| b[i]));
                        match self.config.compare {
                            Compare::Eq => self.keep(records, out, |b| value(b) == c),
                            Compare::Ne => self.keep(records, out, |b| value(b) != c),
                            Compare::Lt => self.keep(records, out, |b| value(b) < c),
                            Compare::Le => self.keep(records, out, |b| value(b) <= c),
                            Compare::Gt => self.keep(records, out, |b| value(b) > c),
                            Compare::Ge => self.keep(records, out, |b| value(b) >= c),
                        }
                    })+
                }
            };
        }
        by_type!(
            U8(u8),
            U16(u16),
            U32(u32),
            U64(u64),
            I8(i8),
            I16(i16),
            I32(i32),
            I64(i64),
            F32(f32),
            F64(f64)
        );
    }

    /// Appends what is kept of the records whose field `matches`.
    #[inline(always)]
    fn keep(&mut self, records: &[u8], out: &mut Vec<u8>, matches: impl Fn(&[u8]) -> bool) {
        let (keep, at) = (self.config.keep.clone(), self.config.field_at);
        let field = at..at + self.config.constant.bytes();
        let before = out.len();
        out.reserve(records.len() / self.config.record * keep.len());
        for record in records.chunks_exact(self.config.record) {
            if matches(&record[field.clone()]) {
                out.extend_from_slice(&record[keep.clone()]);
            }
        }
        self.records += (records.len() / self.config.record) as u64;
        self.kept += ((out.len() - before) / keep.len()) as u64;
    }
}

impl StreamEngine for FilterEngine {
    fn name(&self) -> &'static str {
        "filter"
    }

    fn declared_rate(&self) -> f64 {
        // 10 ns a record, mispredicted branch included.
        1e8 * self.config.record as f64
    }

    fn is_tap(&self) -> bool {
        false
    }

    fn output_bound(&self, input: usize) -> usize {
        // One record more than fit in: the one that an earlier piece began.
        (input / self.config.record + usize::from(input > 0)) * self.config.keep.len()
    }

    fn process(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        let record = self.config.record;
        if !self.carry.is_empty() {
            let (rest, after) = input.split_at(input.len().min(record - self.carry.len()));
            self.carry.extend_from_slice(rest);
            input = after;
            if self.carry.len() < record {
                return;
            }
            let mut carry = std::mem::take(&mut self.carry);
            self.select(&carry, out);
            carry.clear();
            self.carry = carry;
        }
        let (whole, rest) = input.split_at(input.len() - input.len() % record);
        self.select(whole, out);
        self.carry.extend_from_slice(rest);
    }

    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        let left = self.carry.len();
        self.carry.clear();
        if left == 0 {
            return Ok(());
        }
        Err(EngineError::CutItem {
            engine: self.name(),
            left,
            item: self.config.record,
        })
    }

    fn result(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.records.to_le_bytes());
        into.extend_from_slice(&self.kept.to_le_bytes());
    }

    fn reset(&mut self) {
        self.carry.clear();
        (self.records, self.kept) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::*;
    use crate::stream::conformance;

    /// Every type by way of the widest: what order the field and the constant have, `None` for NaN.
    fn order(constant: Constant, field: &[u8]) -> Option<Ordering> {
        let bits = field.iter().rev().fold(0u64, |w, &b| w << 8 | u64::from(b));
        let unused = 64 - 8 * field.len() as u32;
        let signed = i128::from((bits << unused) as i64 >> unused);
        let unsigned = i128::from(bits);
        match constant {
            Constant::U8(c) => Some(unsigned.cmp(&c.into())),
            Constant::U16(c) => Some(unsigned.cmp(&c.into())),
            Constant::U32(c) => Some(unsigned.cmp(&c.into())),
            Constant::U64(c) => Some(unsigned.cmp(&c.into())),
            Constant::I8(c) => Some(signed.cmp(&c.into())),
            Constant::I16(c) => Some(signed.cmp(&c.into())),
            Constant::I32(c) => Some(signed.cmp(&c.into())),
            Constant::I64(c) => Some(signed.cmp(&c.into())),
            Constant::F32(c) => f32::from_bits(bits as u32).partial_cmp(&c),
            Constant::F64(c) => f64::from_bits(bits).partial_cmp(&c),
        }
    }

    fn model(config: &FilterConfig, stream: &[u8]) -> Vec<u8> {
        let field = config.field_at..config.field_at + config.constant.bytes();
        let keeps = |record: &&[u8]| {
            let order = order(config.constant, &record[field.clone()]);
            match config.compare {
                Compare::Eq => order == Some(Ordering::Equal),
                Compare::Ne => order != Some(Ordering::Equal),
                Compare::Lt => order == Some(Ordering::Less),
                Compare::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
                Compare::Gt => order == Some(Ordering::Greater),
                Compare::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
            }
        };
        let records = stream.chunks_exact(config.record).filter(keeps);
        records
            .flat_map(|r| r[config.keep.clone()].to_vec())
            .collect()
    }

    /// Constants around zero and in the middle, so that every comparison keeps some and drops some.
    const CONSTANTS: [Constant; 12] = [
        Constant::U8(100),
        Constant::U16(40_000),
        Constant::U32(1 << 31),
        Constant::U64(u64::MAX / 3),
        Constant::I8(-3),
        Constant::I16(0),
        Constant::I32(-1),
        Constant::I64(i64::MIN / 2),
        Constant::F32(-0.0),
        Constant::F32(f32::NAN),
        Constant::F64(1.5),
        Constant::F64(f64::INFINITY),
    ];

    #[test]
    fn every_comparison_of_every_type_agrees_with_the_model() {
        for (constant, seed) in CONSTANTS.into_iter().zip(1..) {
            for (_, compare) in Compare::NAMES {
                let config = FilterConfig {
                    record: 13,
                    field_at: 4,
                    compare,
                    constant,
                    keep: 2..13,
                };
                let mut stream = conformance::noise(seed, 13 * 999);
                // Some fields equal the constant, and some are NaN where there are such.
                for (i, record) in stream.chunks_exact_mut(13).enumerate() {
                    match i % 5 {
                        0 => {
                            let (c, n) = (bits(constant), constant.bytes());
                            record[4..4 + n].copy_from_slice(&c.to_le_bytes()[..n]);
                        }
                        1 => record[4..12].fill(0xff),
                        _ => {}
                    }
                }
                let mut engine = FilterEngine::new(config.clone()).unwrap();
                let mut out = Vec::new();
                engine.process(&stream, &mut out);
                let expected = model(&config, &stream);
                assert_eq!(out, expected, "{compare:?} {constant:?}");
                assert_eq!(engine.counts(), (999, expected.len() as u64 / 11));
            }
        }
    }

    fn bits(constant: Constant) -> u64 {
        match constant {
            Constant::U8(c) => c.into(),
            Constant::U16(c) => c.into(),
            Constant::U32(c) => c.into(),
            Constant::U64(c) => c,
            Constant::I8(c) => c as u64,
            Constant::I16(c) => c as u64,
            Constant::I32(c) => c as u64,
            Constant::I64(c) => c as u64,
            Constant::F32(c) => c.to_bits().into(),
            Constant::F64(c) => c.to_bits(),
        }
    }

    #[test]
    fn the_engine_passes_the_conformance_suite() {
        for (record, keep) in [(1, 0..1), (8, 0..8), (24, 3..5), (1000, 0..999)] {
            conformance::check(|| {
                let config = FilterConfig {
                    record,
                    field_at: 0,
                    compare: Compare::Lt,
                    constant: Constant::U8(128),
                    keep: keep.clone(),
                };
                Box::new(FilterEngine::new(config).unwrap())
            });
        }
    }

    #[test]
    fn fields_outside_the_record_are_refused() {
        let new = |record, field_at, keep| {
            let config = FilterConfig {
                record,
                field_at,
                compare: Compare::Eq,
                constant: Constant::U32(1),
                keep,
            };
            FilterEngine::new(config).map(|_| ())
        };
        assert_eq!(new(8, 4, 0..8), Ok(()));
        assert_eq!(new(0, 0, 0..0), Err(FilterError::Record(0)));
        assert_eq!(new(65_537, 0, 0..1), Err(FilterError::Record(65_537)));
        for at in [5, 8, usize::MAX] {
            let outside = FilterError::Field {
                at,
                bytes: 4,
                record: 8,
            };
            assert_eq!(new(8, at, 0..8), Err(outside));
        }
        for keep in [3..3, 0..9] {
            let (start, end) = (keep.start, keep.end);
            let outside = FilterError::Keep {
                start,
                end,
                record: 8,
            };
            assert_eq!(new(8, 0, keep), Err(outside));
        }
    }
}
