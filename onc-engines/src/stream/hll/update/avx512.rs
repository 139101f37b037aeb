//! The update with AVX-512: 16 items a step.
//!
//! An item becomes a *packed* word: the rank in bits 24–29, the register number below. While the
//! floor is 0 every packed vector fetches its registers and compares. Above, the items that pass
//! the floor are compressed into a small buffer first, and registers are fetched only for what it
//! holds.
#![allow(unsafe_code)] // vector loads by address

use std::arch::x86_64::*;

use super::super::hash::{
    is_narrow, kind, murmur_parameters, rank_bits, FMIX64, MURMUR, MURMUR_ADD, RANK_OFFSET,
    SLOT_OFFSET, WIDE_OFFSET,
};
use super::super::registers::Registers;
use super::portable;

/// Items a step.
const LANES: usize = 16;
/// Steps whose candidates are tested by one branch.
const STEPS: usize = 4;
/// Floor from which most groups have no candidate. Below, a branch on that would be mispredicted
/// too often: every group is compressed then.
const FLOOR_TO_SKIP: u8 = 9;
/// Candidates that are kept before their registers are looked at.
const BUFFER: usize = 512;
/// Bit at which the rank begins in a packed word.
const RANK_AT: u32 = 24;

/// Whether the processor has what [`update`] needs.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && portable::has_avx2()
}

/// Takes whole items; the caller has checked for AVX-512.
pub(super) fn update<const KIND: u8, const W: usize>(registers: &mut Registers, items: &[u8]) {
    // SAFETY: `super::update` asserts that the processor has the features of `Isa::Avx512`.
    unsafe { update_inner::<KIND, W>(registers, items) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,lzcnt,bmi1,bmi2")]
fn update_inner<const KIND: u8, const W: usize>(registers: &mut Registers, items: &[u8]) {
    let mut buffer = [0u32; BUFFER + LANES];
    let mut kept = 0;
    let group = STEPS * LANES * W;
    let mut groups = items.chunks_exact(group);
    for block in &mut groups {
        let at = |step: usize| block[step * LANES * W..].as_ptr();
        let floor = registers.floor();
        if floor == 0 {
            for step in 0..STEPS {
                // SAFETY: `block` holds STEPS × LANES items of W bytes, and `step` is below STEPS.
                let packed = unsafe { packed::<KIND, W>(at(step)) };
                apply(registers, packed, !0);
            }
            continue;
        }
        let mut words = [_mm512_setzero_si512(); STEPS];
        let mut masks = [0u16; STEPS];
        for step in 0..STEPS {
            // SAFETY: as above.
            (words[step], masks[step]) = unsafe { candidates::<KIND, W>(at(step), floor) };
        }
        if floor >= FLOOR_TO_SKIP && masks.iter().fold(0, |any, m| any | m) == 0 {
            continue;
        }
        for (word, mask) in words.into_iter().zip(masks) {
            let dense = _mm512_maskz_compress_epi32(mask, word);
            // SAFETY: `kept` is at most BUFFER here, because a buffer with less than a group's room
            // was emptied, and LANES words lie behind BUFFER.
            unsafe { _mm512_storeu_si512(buffer.as_mut_ptr().add(kept).cast(), dense) };
            kept += mask.count_ones() as usize;
        }
        if kept > BUFFER - STEPS * LANES {
            drain::<KIND, W>(registers, &buffer, kept);
            kept = 0;
        }
    }
    drain::<KIND, W>(registers, &buffer, kept);
    portable::update::<KIND, W>(registers, groups.remainder());
}

/// What is kept of a candidate: the item itself where a second hash gives the register number, so
/// that it is computed for candidates only; else the packed word. And which of the 16 are
/// candidates.
///
/// # Safety
/// 16 items of W bytes are readable at `items`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
unsafe fn candidates<const KIND: u8, const W: usize>(
    items: *const u8,
    floor: u8,
) -> (__m512i, __mmask16) {
    if is_narrow(KIND, W) {
        // SAFETY: the caller's promise.
        let x = unsafe { load32::<W>(items) };
        let hash = fmix32(_mm512_add_epi32(x, splat32(RANK_OFFSET)));
        // At least `floor` leading zeros; with 33 in every register nothing passes.
        let limit = splat32(u32::MAX.checked_shr(u32::from(floor)).unwrap_or(0));
        let mask = _mm512_cmple_epu32_mask(hash, limit);
        return (x, mask);
    }
    // SAFETY: the caller's promise.
    let packed = unsafe { packed::<KIND, W>(items) };
    let limit = splat32((u32::from(floor) + 1) << RANK_AT);
    (packed, _mm512_cmpge_epu32_mask(packed, limit))
}

/// Looks at the registers of the first `kept` candidates.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn drain<const KIND: u8, const W: usize>(
    registers: &mut Registers,
    buffer: &[u32; BUFFER + LANES],
    kept: usize,
) {
    for (i, words) in buffer[..kept.next_multiple_of(LANES)]
        .chunks_exact(LANES)
        .enumerate()
    {
        // SAFETY: the chunk has 16 words.
        let words = unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
        let packed = if is_narrow(KIND, W) {
            packed_narrow(words)
        } else {
            words
        };
        let left = kept - i * LANES;
        let mask = if left >= LANES { !0 } else { (1 << left) - 1 };
        apply(registers, packed, mask);
    }
}

/// Raises the registers of the lanes in `mask` whose rank is above them, in the order of the lanes.
///
/// The registers are fetched by 16 byte loads, not by a gather: that costs several loads a lane on
/// the processors of one vendor, and is slowed down against data sampling on those of the other.
/// Measured on an EPYC of 2022, items that change nothing, 2^16 registers: 0.9 billion a second
/// with the gather, 1.5 so.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn apply(registers: &mut Registers, packed: __m512i, mask: __mmask16) {
    let numbers = splat32((1 << registers.precision()) - 1);
    let ranks = _mm512_cvtepi32_epi8(_mm512_srli_epi32::<RANK_AT>(packed));
    let mut words = [0u32; LANES];
    // SAFETY: `words` has 16 words.
    unsafe {
        let slots = _mm512_and_si512(packed, numbers);
        _mm512_storeu_si512(words.as_mut_ptr().cast(), slots);
    }
    let values = registers.values();
    // SAFETY: each number is below `m` (masked above), and so many registers there are.
    let now = |lane: usize| unsafe { *values.get_unchecked(words[lane] as usize) } as i8;
    let now = _mm_setr_epi8(
        now(0),
        now(1),
        now(2),
        now(3),
        now(4),
        now(5),
        now(6),
        now(7),
        now(8),
        now(9),
        now(10),
        now(11),
        now(12),
        now(13),
        now(14),
        now(15),
    );
    let mut higher = _mm_mask_cmpgt_epu8_mask(mask, ranks, now);
    if higher == 0 {
        return;
    }
    // SAFETY: as above.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), packed) };
    while higher != 0 {
        let word = words[higher.trailing_zeros() as usize];
        // Compares again: an earlier lane may have raised the same register.
        registers.insert(word & ((1 << RANK_AT) - 1), (word >> RANK_AT) as u8);
        higher &= higher - 1;
    }
}

/// 16 items as packed words.
///
/// # Safety
/// 16 items of W bytes are readable at `items`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
unsafe fn packed<const KIND: u8, const W: usize>(items: *const u8) -> __m512i {
    if is_narrow(KIND, W) {
        // SAFETY: the caller's promise.
        return packed_narrow(unsafe { load32::<W>(items) });
    }
    let half = |from: usize| {
        // SAFETY: the caller's promise, for the 8 items from `from`.
        let (lo, hi) = unsafe { load64::<KIND, W>(items.add(from * W)) };
        let (slot, rank) = wide_sources::<KIND, W>(lo, hi);
        let zeros = _mm512_min_epu64(
            _mm512_lzcnt_epi64(rank),
            splat64(u64::from(rank_bits(KIND, W))),
        );
        let rank = _mm512_slli_epi64::<RANK_AT>(_mm512_add_epi64(zeros, splat64(1)));
        let slot = _mm512_and_si512(slot, splat64((1 << 21) - 1));
        _mm512_cvtepi64_epi32(_mm512_or_si512(rank, slot))
    };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(half(0)), half(8))
}

/// 16 items of at most 32 bits, hashed by a pair of finalisers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
fn packed_narrow(x: __m512i) -> __m512i {
    let rank = fmix32(_mm512_add_epi32(x, splat32(RANK_OFFSET)));
    let slot = fmix32(_mm512_add_epi32(x, splat32(SLOT_OFFSET)));
    let rank = _mm512_add_epi32(_mm512_lzcnt_epi32(rank), splat32(1));
    let slot = _mm512_and_si512(slot, splat32((1 << 21) - 1));
    _mm512_or_si512(_mm512_slli_epi32::<RANK_AT>(rank), slot)
}

/// 16 items of at most 4 bytes, widened with zeros.
///
/// # Safety
/// 16 items of W bytes are readable at `items`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load32<const W: usize>(items: *const u8) -> __m512i {
    // SAFETY: the loads read 16 × W bytes.
    unsafe {
        match W {
            1 => _mm512_cvtepu8_epi32(_mm_loadu_si128(items.cast())),
            2 => _mm512_cvtepu16_epi32(_mm256_loadu_si256(items.cast())),
            _ => _mm512_loadu_si512(items.cast()),
        }
    }
}

/// 8 items as two words each, the second zero unless the width is 16; DataSketches' integers are
/// widened with their sign.
///
/// # Safety
/// 8 items of W bytes are readable at `items`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn load64<const KIND: u8, const W: usize>(items: *const u8) -> (__m512i, __m512i) {
    let signed = KIND == kind::DATASKETCHES;
    // SAFETY: the loads read 8 × W bytes.
    unsafe {
        let lo = match W {
            1 => {
                let bytes = _mm_loadl_epi64(items.cast());
                if signed {
                    _mm512_cvtepi8_epi64(bytes)
                } else {
                    _mm512_cvtepu8_epi64(bytes)
                }
            }
            2 => {
                let words = _mm_loadu_si128(items.cast());
                if signed {
                    _mm512_cvtepi16_epi64(words)
                } else {
                    _mm512_cvtepu16_epi64(words)
                }
            }
            4 => {
                let words = _mm256_loadu_si256(items.cast());
                if signed {
                    _mm512_cvtepi32_epi64(words)
                } else {
                    _mm512_cvtepu32_epi64(words)
                }
            }
            8 => _mm512_loadu_si512(items.cast()),
            _ => {
                let a = _mm512_loadu_si512(items.cast());
                let b = _mm512_loadu_si512(items.add(64).cast());
                let even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
                let odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
                return (
                    _mm512_permutex2var_epi64(a, even, b),
                    _mm512_permutex2var_epi64(a, odd, b),
                );
            }
        };
        (lo, _mm512_setzero_si512())
    }
}

/// The words that choose registers and ranks of 8 items: `hash::sources`, in vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn wide_sources<const KIND: u8, const W: usize>(lo: __m512i, hi: __m512i) -> (__m512i, __m512i) {
    if KIND == kind::MIX {
        let mut h = fmix64(_mm512_add_epi64(lo, splat64(WIDE_OFFSET)));
        if W == 16 {
            h = fmix64(_mm512_add_epi64(h, hi));
        }
        return (h, h);
    }
    let (seed, len) = murmur_parameters(KIND, W);
    let [c1, c2] = MURMUR.map(|c| splat64(c));
    let (mut h1, mut h2) = (splat64(seed), splat64(seed));
    let k1 = _mm512_rol_epi64::<31>(_mm512_mullo_epi64(lo, c1));
    h1 = _mm512_xor_si512(h1, _mm512_mullo_epi64(k1, c2));
    if len == 16 {
        let k2 = _mm512_rol_epi64::<33>(_mm512_mullo_epi64(hi, c2));
        h1 = _mm512_add_epi64(_mm512_rol_epi64::<27>(h1), h2);
        h1 = _mm512_add_epi64(times_5(h1), splat64(MURMUR_ADD[0]));
        h2 = _mm512_xor_si512(h2, _mm512_mullo_epi64(k2, c1));
        h2 = _mm512_add_epi64(_mm512_rol_epi64::<31>(h2), h1);
        h2 = _mm512_add_epi64(times_5(h2), splat64(MURMUR_ADD[1]));
    }
    h1 = _mm512_xor_si512(h1, splat64(len));
    h2 = _mm512_xor_si512(h2, splat64(len));
    h1 = _mm512_add_epi64(h1, h2);
    h2 = _mm512_add_epi64(h2, h1);
    h1 = fmix64(h1);
    h2 = fmix64(h2);
    h1 = _mm512_add_epi64(h1, h2);
    if KIND == kind::MURMUR3 {
        return (h1, h1);
    }
    (h1, _mm512_add_epi64(h2, h1))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn times_5(h: __m512i) -> __m512i {
    _mm512_add_epi64(_mm512_slli_epi64::<2>(h), h)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn fmix32(mut h: __m512i) -> __m512i {
    h = _mm512_xor_si512(h, _mm512_srli_epi32::<16>(h));
    h = _mm512_mullo_epi32(h, splat32(0x85eb_ca6b));
    h = _mm512_xor_si512(h, _mm512_srli_epi32::<13>(h));
    h = _mm512_mullo_epi32(h, splat32(0xc2b2_ae35));
    _mm512_xor_si512(h, _mm512_srli_epi32::<16>(h))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn fmix64(mut h: __m512i) -> __m512i {
    h = _mm512_xor_si512(h, _mm512_srli_epi64::<33>(h));
    h = _mm512_mullo_epi64(h, splat64(FMIX64[0]));
    h = _mm512_xor_si512(h, _mm512_srli_epi64::<33>(h));
    h = _mm512_mullo_epi64(h, splat64(FMIX64[1]));
    _mm512_xor_si512(h, _mm512_srli_epi64::<33>(h))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn splat32(v: u32) -> __m512i {
    _mm512_set1_epi32(v as i32)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn splat64(v: u64) -> __m512i {
    _mm512_set1_epi64(v as i64)
}
