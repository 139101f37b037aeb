//! The HyperLogLog engine: a sketch on the path of a stream.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::sketch::{Sketch, SketchError};
use super::update::Isa;
use super::HashKind;
use crate::stream::{EngineError, Hardware, StreamEngine};

/// Log2 of the number of registers that an engine can have.
pub const ENGINE_PRECISIONS: std::ops::RangeInclusive<u8> = 4..=18;

/// What an [`HllEngine`] counts, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HllConfig {
    /// Log2 of the number of registers, 4 to 18.
    pub precision: u8,
    /// Bytes of an item: 1, 2, 4, 8 or 16.
    pub width: usize,
    /// How items are hashed.
    pub hash: HashKind,
    /// Whether the result ends with the sketch's image, or is the summary alone.
    pub image: bool,
}

impl Default for HllConfig {
    /// The paper's: 2^16 registers (FpgaNIC §A.3), 4-byte items; the fast hash.
    fn default() -> HllConfig {
        HllConfig {
            precision: 16,
            width: 4,
            hash: HashKind::default(),
            image: true,
        }
    }
}

/// The fixed part of an [`HllEngine`]'s result, 32 bytes, little-endian: a GPU kernel reads the
/// estimate as the `double` at its start.
#[derive(Debug, Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct HllSummary {
    /// Distinct items, estimated.
    pub estimate: f64,
    /// Relative standard error of the estimate.
    pub relative_error: f64,
    /// Items that were counted, each as often as it came.
    pub items: u64,
    /// Bytes of the sketch's image that follow.
    pub image_bytes: u64,
}

impl HllSummary {
    /// Bytes of a summary.
    pub const BYTES: usize = 32;

    /// Reads a summary from the start of a result; `None` when it is too short.
    pub fn read(result: &[u8]) -> Option<HllSummary> {
        let (summary, _image) = HllSummary::read_from_prefix(result).ok()?;
        Some(summary)
    }
}

/// Counts the distinct items of a stream as it passes. A tap: the stream leaves as it came.
///
/// ```
/// use ringbell_onc_engines::stream::hll::{HllConfig, HllEngine, HllSummary};
/// use ringbell_onc_engines::stream::StreamEngine;
///
/// let mut engine = HllEngine::new(HllConfig::default()).unwrap();
/// let stream: Vec<u8> = (0..10_000u32).flat_map(|i| (i % 777).to_le_bytes()).collect();
/// for piece in stream.chunks(1408) {
///     engine.process(piece, &mut Vec::new());
/// }
/// engine.finish(&mut Vec::new()).unwrap();
/// let mut result = Vec::new();
/// engine.result(&mut result);
/// let summary = HllSummary::read(&result).unwrap();
/// assert_eq!(summary.items, 10_000);
/// assert!((summary.estimate / 777.0 - 1.0).abs() < 0.01);
/// ```
#[derive(Debug, Clone)]
pub struct HllEngine {
    config: HllConfig,
    isa: Isa,
    sketch: Sketch,
    /// The first bytes of an item whose rest has not come.
    carry: [u8; 16],
    carried: usize,
    items: u64,
}

impl HllEngine {
    /// An engine on the best instruction set of this machine.
    ///
    /// # Errors
    /// A precision or width out of range.
    pub fn new(config: HllConfig) -> Result<HllEngine, SketchError> {
        HllEngine::on(Isa::best(), config)
    }

    /// An engine on a given instruction set of this machine.
    ///
    /// # Errors
    /// A precision or width out of range.
    pub fn on(isa: Isa, config: HllConfig) -> Result<HllEngine, SketchError> {
        if !ENGINE_PRECISIONS.contains(&config.precision) {
            return Err(SketchError::Precision {
                given: config.precision,
                most: *ENGINE_PRECISIONS.end(),
            });
        }
        Ok(HllEngine {
            config,
            isa,
            sketch: Sketch::new(config.precision, config.hash, config.width)?,
            carry: [0; 16],
            carried: 0,
            items: 0,
        })
    }

    /// The sketch of the whole items so far.
    pub fn sketch(&self) -> &Sketch {
        &self.sketch
    }

    /// Items so far.
    pub fn items(&self) -> u64 {
        self.items
    }

    /// The fixed part of the result.
    pub fn summary(&self) -> HllSummary {
        HllSummary {
            estimate: self.sketch.estimate(),
            relative_error: self.sketch.relative_error(),
            items: self.items,
            image_bytes: if self.config.image {
                self.sketch.image_bytes() as u64
            } else {
                0
            },
        }
    }
}

impl StreamEngine for HllEngine {
    fn name(&self) -> &'static str {
        "hll"
    }

    fn declared_rate(&self) -> f64 {
        // About half of what a core of 2022 measured in the bench on streams of few distinct items,
        // where the filter by the lowest register never helps. The first 2^precision items of a
        // sketch change registers and are slower: 10 ns each.
        let items = match (self.isa, self.config.hash, self.config.width) {
            (Isa::Avx512, HashKind::Mix, 1..=4) => 0.5e9,
            (Isa::Avx512, HashKind::Mix, _) => 0.35e9,
            (Isa::Avx512, ..) => 0.25e9,
            (Isa::Avx2, HashKind::Mix, 1..=4) => 0.3e9,
            (_, HashKind::Mix, _) => 0.15e9,
            _ => 0.08e9,
        };
        items * self.config.width as f64
    }

    fn is_tap(&self) -> bool {
        true
    }

    fn output_bound(&self, _input: usize) -> usize {
        0
    }

    fn process(&mut self, mut input: &[u8], _out: &mut Vec<u8>) {
        let width = self.config.width;
        if self.carried > 0 {
            let (rest, after) = input.split_at(input.len().min(width - self.carried));
            self.carry[self.carried..][..rest.len()].copy_from_slice(rest);
            self.carried += rest.len();
            input = after;
            if self.carried < width {
                return;
            }
            self.sketch.insert(&self.carry[..width]);
            self.items += 1;
            self.carried = 0;
        }
        let (whole, rest) = input.split_at(input.len() - input.len() % width);
        self.sketch.update_on(self.isa, whole);
        self.items += (whole.len() / width) as u64;
        self.carry[..rest.len()].copy_from_slice(rest);
        self.carried = rest.len();
    }

    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        match std::mem::take(&mut self.carried) {
            0 => Ok(()),
            left => Err(EngineError::CutItem {
                engine: self.name(),
                left,
                item: self.config.width,
            }),
        }
    }

    fn result(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(self.summary().as_bytes());
        if self.config.image {
            self.sketch.write(into);
        }
    }

    fn hardware(&self) -> Option<Hardware> {
        let HllConfig {
            precision,
            width,
            hash,
            ..
        } = self.config;
        let same = (width, hash) == (4, HashKind::Mix) && matches!(precision, 14 | 16);
        // An item that has begun here cannot end there.
        (same && self.carried == 0).then_some(Hardware::Hll { precision })
    }

    fn absorb(&mut self, counted: &[u8]) -> bool {
        let Some((head, registers)) = counted.split_first_chunk::<64>() else {
            return false;
        };
        let Some((items, about)) = head.split_first_chunk::<8>() else {
            return false;
        };
        // Precision, hash and faults. A fault is a cut item, which the NIC counts.
        if about[..2] != [self.config.precision, 0] || registers.len() != 1 << about[0] {
            return false;
        }
        let sketch = Sketch::from_registers(self.config.hash, self.config.width, registers);
        let merged = sketch.and_then(|sketch| self.sketch.merge(&sketch));
        if merged.is_ok() {
            self.items += u64::from_le_bytes(*items);
        }
        merged.is_ok()
    }

    fn reset(&mut self) {
        // The configuration was valid when the engine was made.
        if let Ok(fresh) = HllEngine::on(self.isa, self.config) {
            *self = fresh;
        }
    }
}
