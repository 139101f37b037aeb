//! The native byte format of sketches.
//!
//! | bytes | what |
//! |---|---|
//! | 0–3 | `RBHL` |
//! | 4 | version, 1 |
//! | 5 | precision |
//! | 6 | item width in bytes |
//! | 7 | hash, by its place in [`HashKind::ALL`] |
//! | 8 | flags: bit 0, the history follows from one stream |
//! | 9–15 | zero |
//! | 16–23 | history's estimate (`f64`), else zero |
//! | 24–31 | checksum: first half of MurmurHash3_x64_128 of the registers, seeded with that of bytes 0–23 (seed 24) |
//! | 32– | registers, a byte each |
//!
//! All numbers are little-endian. Everything that follows from the registers is recomputed.

use super::hash::{murmur3_of_bytes, HashKind};
use super::sketch::{Sketch, SketchError};

const MAGIC: &[u8; 4] = b"RBHL";
const VERSION: u8 = 1;
const HEADER: usize = 32;
const CHECKSUM: std::ops::Range<usize> = 24..32;
const HAS_HISTORY: u8 = 1;

/// What is wrong with the image of a sketch.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// It begins like no sketch.
    #[error(
        "not a sketch: the bytes do not begin with \"RBHL\"; was it written by another program?"
    )]
    Magic,
    /// A later version.
    #[error("sketch image of version {0}; this program reads version 1: use a newer one")]
    Version(u8),
    /// It is shorter or longer than its header says.
    #[error("sketch image of {given} bytes where {expected} are needed; it is cut off, or more follows it")]
    Length {
        /// Bytes that the header asks for.
        expected: usize,
        /// Bytes given.
        given: usize,
    },
    /// The bytes were changed.
    #[error(
        "sketch image is damaged: its checksum is {stored:#018x}, its bytes give {computed:#018x}"
    )]
    Checksum {
        /// As written.
        stored: u64,
        /// As computed.
        computed: u64,
    },
    /// A field has a value that no sketch has.
    #[error("sketch image is damaged: {field} is {value} at byte {at}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
        /// Where it is.
        at: usize,
    },
    /// Its precision or width is out of range, or a register is.
    #[error("sketch image cannot be used: {0}")]
    Sketch(#[from] SketchError),
}

impl Sketch {
    /// Bytes that [`write`](Sketch::write) appends.
    pub fn image_bytes(&self) -> usize {
        HEADER + self.registers().len()
    }

    /// Appends the sketch in our own format.
    pub fn write(&self, into: &mut Vec<u8>) {
        let at = into.len();
        into.extend_from_slice(MAGIC);
        let hash = HashKind::ALL.iter().position(|&h| h == self.hash());
        let history = self.registers.history();
        into.extend_from_slice(&[
            VERSION,
            self.precision(),
            self.width() as u8,
            hash.expect("ALL has every hash") as u8,
            if history.is_some() { HAS_HISTORY } else { 0 },
        ]);
        into.extend_from_slice(&[0; 7]);
        into.extend_from_slice(&history.unwrap_or(0.0).to_le_bytes());
        into.extend_from_slice(&[0; 8]);
        into.extend_from_slice(self.registers());
        let sum = checksum(&into[at..]);
        into[at + CHECKSUM.start..at + CHECKSUM.end].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads an image of [`write`](Sketch::write).
    ///
    /// # Errors
    /// [`ImageError`]; no bytes make it panic.
    pub fn read(image: &[u8]) -> Result<Sketch, ImageError> {
        if !image.starts_with(MAGIC) {
            return Err(ImageError::Magic);
        }
        if image.len() < HEADER {
            return Err(ImageError::Length {
                expected: HEADER,
                given: image.len(),
            });
        }
        if image[4] != VERSION {
            return Err(ImageError::Version(image[4]));
        }
        let field = |field, at: usize| ImageError::Field {
            field,
            value: f64::from(image[at]),
            at,
        };
        let &hash = HashKind::ALL
            .get(usize::from(image[7]))
            .ok_or(field("the hash", 7))?;
        let sketch = Sketch::new(image[5], hash, usize::from(image[6]))?;
        let expected = sketch.image_bytes();
        if image.len() != expected {
            return Err(ImageError::Length {
                expected,
                given: image.len(),
            });
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| image[at + i]));
        let (stored, computed) = (word(CHECKSUM.start), checksum(image));
        if stored != computed {
            return Err(ImageError::Checksum { stored, computed });
        }
        if image[8] > HAS_HISTORY {
            return Err(field("the flags byte", 8));
        }
        if let Some(at) = (9..16).find(|&at| image[at] != 0) {
            return Err(field("a reserved byte", at));
        }
        let mut sketch = Sketch::from_registers(hash, sketch.width(), &image[HEADER..])?;
        let history = (image[8] == HAS_HISTORY).then(|| f64::from_bits(word(16)));
        if let Some(value) = history.filter(|h| !(h.is_finite() && h.is_sign_positive())) {
            return Err(ImageError::Field {
                field: "the history's estimate",
                value,
                at: 16,
            });
        }
        sketch.registers.set_history(history);
        Ok(sketch)
    }
}

/// Of an image, without its checksum.
fn checksum(image: &[u8]) -> u64 {
    let header = murmur3_of_bytes(&image[..CHECKSUM.start], CHECKSUM.start as u64);
    murmur3_of_bytes(&image[HEADER..], header)
}
