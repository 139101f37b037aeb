//! The cast engine: f32 to bf16 or f16 and back.
//!
//! Narrowing rounds to nearest even and keeps a NaN one; widening is exact. The conversion itself
//! is [`reduce::narrow`](crate::reduce::narrow), which collectives use on the wire: a gradient that
//! a cast engine narrows has the bits that a compressed collective would send.
#![allow(unsafe_code)] // hands slices to the conversion, which takes addresses

use ringbell_nic_abi::WireType;

use super::{EngineError, StreamEngine};
use crate::reduce::{narrow, widen};

/// A conversion of a stream's elements, little-endian on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cast {
    /// f32 becomes bf16.
    F32ToBf16,
    /// bf16 becomes f32.
    Bf16ToF32,
    /// f32 becomes f16.
    F32ToF16,
    /// f16 becomes f32.
    F16ToF32,
}

impl Cast {
    /// All.
    pub const ALL: [Cast; 4] = [
        Cast::F32ToBf16,
        Cast::Bf16ToF32,
        Cast::F32ToF16,
        Cast::F16ToF32,
    ];

    /// As in `cast:f32-bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Cast::F32ToBf16 => "f32-bf16",
            Cast::Bf16ToF32 => "bf16-f32",
            Cast::F32ToF16 => "f32-f16",
            Cast::F16ToF32 => "f16-f32",
        }
    }

    /// The cast of that name.
    pub fn from_name(name: &str) -> Option<Cast> {
        Cast::ALL.into_iter().find(|c| c.name() == name)
    }

    /// Bytes of an element before and after.
    fn sizes(self) -> (usize, usize) {
        match self {
            Cast::F32ToBf16 | Cast::F32ToF16 => (4, 2),
            Cast::Bf16ToF32 | Cast::F16ToF32 => (2, 4),
        }
    }

    /// Appends the elements of `input`, which holds whole ones.
    fn append(self, input: &[u8], out: &mut Vec<u8>) {
        let (before, after) = self.sizes();
        let n = input.len() / before;
        out.reserve(n * after);
        let (dst, src) = (out.spare_capacity_mut().as_mut_ptr().cast::<u8>(), input);
        // SAFETY: `src` has `n` elements of `before` bytes, and `n` of `after` bytes were reserved
        // at `dst`, all of which the conversion writes.
        unsafe {
            match self {
                Cast::F32ToBf16 => narrow(WireType::Bf16, dst, src.as_ptr(), n),
                Cast::F32ToF16 => narrow(WireType::F16, dst, src.as_ptr(), n),
                Cast::Bf16ToF32 => widen(WireType::Bf16, dst, src.as_ptr(), n),
                Cast::F16ToF32 => widen(WireType::F16, dst, src.as_ptr(), n),
            }
            out.set_len(out.len() + n * after);
        }
    }
}

/// Converts the elements of a stream. Its result is their number, a `u64`.
#[derive(Debug, Clone)]
pub struct CastEngine {
    cast: Cast,
    /// The first bytes of an element whose rest has not come.
    carry: [u8; 4],
    carried: usize,
    elements: u64,
}

impl CastEngine {
    /// An engine for one conversion.
    pub fn new(cast: Cast) -> CastEngine {
        CastEngine {
            cast,
            carry: [0; 4],
            carried: 0,
            elements: 0,
        }
    }
}

impl StreamEngine for CastEngine {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn declared_rate(&self) -> f64 {
        2e9
    }

    fn is_tap(&self) -> bool {
        false
    }

    fn output_bound(&self, input: usize) -> usize {
        let (before, after) = self.cast.sizes();
        // One element more than fit in: the one that an earlier piece began.
        (input / before + usize::from(input > 0)) * after
    }

    fn process(&mut self, mut input: &[u8], out: &mut Vec<u8>) {
        let (before, _) = self.cast.sizes();
        if self.carried > 0 {
            let (rest, after) = input.split_at(input.len().min(before - self.carried));
            self.carry[self.carried..][..rest.len()].copy_from_slice(rest);
            self.carried += rest.len();
            input = after;
            if self.carried < before {
                return;
            }
            self.cast.append(&self.carry[..before], out);
            self.elements += 1;
            self.carried = 0;
        }
        let (whole, rest) = input.split_at(input.len() - input.len() % before);
        self.cast.append(whole, out);
        self.elements += (whole.len() / before) as u64;
        self.carry[..rest.len()].copy_from_slice(rest);
        self.carried = rest.len();
    }

    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        match std::mem::take(&mut self.carried) {
            0 => Ok(()),
            left => Err(EngineError::CutItem {
                engine: self.name(),
                left,
                item: self.cast.sizes().0,
            }),
        }
    }

    fn result(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.elements.to_le_bytes());
    }

    fn reset(&mut self) {
        *self = CastEngine::new(self.cast);
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::stream::conformance;

    /// The crate `half`, element by element.
    fn model(cast: Cast, input: &[u8]) -> Vec<u8> {
        let f32s = || {
            let words = input.chunks_exact(4);
            words.map(|c| f32::from_le_bytes(c.try_into().unwrap()))
        };
        let u16s = || {
            let words = input.chunks_exact(2);
            words.map(|c| u16::from_le_bytes(c.try_into().unwrap()))
        };
        match cast {
            Cast::F32ToBf16 => f32s()
                .flat_map(|v| bf16::from_f32(v).to_le_bytes())
                .collect(),
            Cast::F32ToF16 => f32s()
                .flat_map(|v| f16::from_f32(v).to_le_bytes())
                .collect(),
            Cast::Bf16ToF32 => u16s()
                .flat_map(|v| bf16::from_bits(v).to_f32().to_le_bytes())
                .collect(),
            Cast::F16ToF32 => u16s()
                .flat_map(|v| f16::from_bits(v).to_f32().to_le_bytes())
                .collect(),
        }
    }

    /// Equal, or both NaN: the payload of a NaN is not promised.
    fn assert_same(cast: Cast, got: &[u8], expected: &[u8]) {
        assert_eq!(got.len(), expected.len());
        let size = cast.sizes().1;
        for (i, (g, e)) in got.chunks(size).zip(expected.chunks(size)).enumerate() {
            let is_nan = |b: &[u8]| match cast {
                Cast::F32ToBf16 => bf16::from_le_bytes(b.try_into().unwrap()).is_nan(),
                Cast::F32ToF16 => f16::from_le_bytes(b.try_into().unwrap()).is_nan(),
                _ => f32::from_le_bytes(b.try_into().unwrap()).is_nan(),
            };
            assert!(
                g == e || is_nan(g) && is_nan(e),
                "{cast:?} {i}: {g:?} {e:?}"
            );
        }
    }

    #[test]
    fn every_small_value_and_the_borders_of_rounding() {
        let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        // Around every bf16: exactly it, just below and above its midpoint, the midpoint, and NaNs.
        let singles: Vec<u8> = (0..=u16::MAX)
            .flat_map(|high| {
                [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| u32::from(high) << 16 | low)
            })
            .flat_map(u32::to_le_bytes)
            .collect();
        for cast in Cast::ALL {
            let input = if cast.sizes().0 == 2 {
                &halves
            } else {
                &singles
            };
            let mut out = Vec::new();
            CastEngine::new(cast).process(input, &mut out);
            assert_same(cast, &out, &model(cast, input));
            assert_eq!(Cast::from_name(cast.name()), Some(cast));
        }
    }

    #[test]
    fn the_engine_passes_the_conformance_suite() {
        for cast in Cast::ALL {
            conformance::check(|| Box::new(CastEngine::new(cast)));
        }
    }
}
