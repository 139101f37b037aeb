//! The update with AVX2 for items of at most 32 bits and the fast hash: 64 items a step.
//!
//! As with AVX-512, only the rank's hash is computed for all, and compared with the threshold that
//! the floor gives; the register number is computed for the few that pass. What the compiler makes
//! of the portable loop computes both for all. In the same runs on an EPYC of 2022, distinct items,
//! the rate of AVX-512 was reached to 0.45 with that loop and to 0.99 (2^14 registers) and 0.60
//! (2^16) so. Other hashes multiply 64 bits, which AVX2 cannot: they take the portable loop.
#![allow(unsafe_code)] // vector loads by address; called after the caller's check of the processor

use std::arch::x86_64::*;

use super::super::hash::{is_narrow, sources, RANK_OFFSET};
use super::super::registers::Registers;
use super::portable;

/// Items a step: a bit of a word each.
const BLOCK: usize = 64;
/// Items of a vector.
const LANES: usize = 8;
/// Below this floor so many items pass that the portable loop, which has their registers at hand,
/// is faster.
const FLOOR_TO_FILTER: u8 = 3;

/// Takes whole items; the caller has checked for AVX2.
pub(super) fn update<const KIND: u8, const W: usize>(registers: &mut Registers, items: &[u8]) {
    if !is_narrow(KIND, W) {
        return portable::update_avx2::<KIND, W>(registers, items);
    }
    let mut rest = items;
    while rest.len() >= BLOCK * W && registers.floor() < FLOOR_TO_FILTER {
        let (block, after) = rest.split_at(BLOCK * W);
        portable::update_avx2::<KIND, W>(registers, block);
        rest = after;
    }
    // SAFETY: `super::update` asserts that the processor has the features of `Isa::Avx2`.
    unsafe { filter::<KIND, W>(registers, rest) }
}

#[target_feature(enable = "avx2,lzcnt,bmi1,bmi2")]
fn filter<const KIND: u8, const W: usize>(registers: &mut Registers, items: &[u8]) {
    let mut blocks = items.chunks_exact(BLOCK * W);
    for block in &mut blocks {
        let floor = u32::from(registers.floor());
        // At least `floor` leading zeros; with 33 in every register nothing passes.
        let limit = splat(u32::MAX.checked_shr(floor).unwrap_or(0));
        let mut passed = 0u64;
        for step in 0..BLOCK / LANES {
            // SAFETY: the block holds BLOCK items of W bytes, and the step's are among them.
            let x = unsafe { load::<W>(block[step * LANES * W..].as_ptr()) };
            let hash = fmix32(_mm256_add_epi32(x, splat(RANK_OFFSET)));
            let passes = _mm256_cmpeq_epi32(_mm256_min_epu32(hash, limit), hash);
            let bits = _mm256_movemask_ps(_mm256_castsi256_ps(passes)) as u8;
            passed |= u64::from(bits) << (step * LANES);
        }
        while passed != 0 {
            let at = passed.trailing_zeros() as usize * W;
            let (slot, rank) = sources::<KIND, W>(&block[at..at + W]);
            portable::insert::<KIND, W>(registers, slot, rank);
            passed &= passed - 1;
        }
    }
    portable::update_avx2::<KIND, W>(registers, blocks.remainder());
}

/// 8 items of at most 4 bytes, widened with zeros.
///
/// # Safety
/// 8 items of W bytes are readable at `items`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load<const W: usize>(items: *const u8) -> __m256i {
    // SAFETY: the loads read 8 × W bytes.
    unsafe {
        match W {
            1 => _mm256_cvtepu8_epi32(_mm_loadl_epi64(items.cast())),
            2 => _mm256_cvtepu16_epi32(_mm_loadu_si128(items.cast())),
            _ => _mm256_loadu_si256(items.cast()),
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn fmix32(mut h: __m256i) -> __m256i {
    h = _mm256_xor_si256(h, _mm256_srli_epi32::<16>(h));
    h = _mm256_mullo_epi32(h, splat(0x85eb_ca6b));
    h = _mm256_xor_si256(h, _mm256_srli_epi32::<13>(h));
    h = _mm256_mullo_epi32(h, splat(0xc2b2_ae35));
    _mm256_xor_si256(h, _mm256_srli_epi32::<16>(h))
}

#[inline]
#[target_feature(enable = "avx2")]
fn splat(v: u32) -> __m256i {
    _mm256_set1_epi32(v as i32)
}
