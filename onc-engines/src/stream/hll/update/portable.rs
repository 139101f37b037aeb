//! The update in plain Rust, compiled for the base instruction set and once more for AVX2.
#![allow(unsafe_code)] // calls its AVX2 copy after the caller's check of the processor

use super::super::hash::{is_narrow, rank_bits, sources};
use super::super::registers::Registers;

/// Items that are hashed together: enough to fill vectors, few enough for the first-level cache.
const BLOCK: usize = 64;

/// The first word of a rank's hash below which an item may change a register, or `None` when none
/// can.
#[inline(always)]
fn threshold(floor: u8) -> u32 {
    // rank > floor, that is at least `floor` leading zeros in the hash. Above 31 the first word
    // must be zero, and what passes is compared in full.
    match floor {
        0 => u32::MAX,
        1..=31 => (1 << (32 - u32::from(floor))) - 1,
        _ => 0,
    }
}

/// Takes whole items.
#[inline(always)]
fn update_blocks<const KIND: u8, const W: usize>(registers: &mut Registers, items: &[u8]) {
    let mut blocks = items.chunks_exact(BLOCK * W);
    let mut slots = [0u32; BLOCK];
    let mut ranks = [0u64; BLOCK];
    let mut firsts = [0u32; BLOCK];
    for block in &mut blocks {
        for ((item, first), (slot, rank)) in block
            .chunks_exact(W)
            .zip(&mut firsts)
            .zip(slots.iter_mut().zip(&mut ranks))
        {
            (*slot, *rank) = sources::<KIND, W>(item);
            *first = (*rank >> 32) as u32;
        }
        if registers.floor() == 0 {
            for (&slot, &rank) in slots.iter().zip(&ranks) {
                insert::<KIND, W>(registers, slot, rank);
            }
            continue;
        }
        for eighth in 0..BLOCK / 8 {
            let at = eighth * 8;
            let limit = threshold(registers.floor());
            let passes = |first: u32| first <= limit;
            if firsts[at..at + 8]
                .iter()
                .fold(false, |any, &f| any | passes(f))
            {
                for i in at..at + 8 {
                    if passes(firsts[i]) {
                        insert::<KIND, W>(registers, slots[i], ranks[i]);
                    }
                }
            }
        }
    }
    for item in blocks.remainder().chunks_exact(W) {
        let (slot, rank) = sources::<KIND, W>(item);
        insert::<KIND, W>(registers, slot, rank);
    }
}

#[inline(always)]
pub(super) fn insert<const KIND: u8, const W: usize>(
    registers: &mut Registers,
    slot: u32,
    rank: u64,
) {
    debug_assert!(!is_narrow(KIND, W) || rank as u32 == 0);
    registers.insert(slot, rank.leading_zeros().min(rank_bits(KIND, W)) as u8 + 1);
}

/// With what every machine of the architecture has.
pub(super) fn update<const KIND: u8, const W: usize>(registers: &mut Registers, items: &[u8]) {
    update_blocks::<KIND, W>(registers, items);
}

/// Compiled for AVX2; the caller has checked for it.
#[cfg(target_arch = "x86_64")]
pub(super) fn update_avx2<const KIND: u8, const W: usize>(registers: &mut Registers, items: &[u8]) {
    #[target_feature(enable = "avx2,lzcnt,bmi1,bmi2")]
    fn inner<const KIND: u8, const W: usize>(registers: &mut Registers, items: &[u8]) {
        update_blocks::<KIND, W>(registers, items);
    }
    // SAFETY: `super::update` asserts that the processor has the features of `Isa::Avx2`.
    unsafe { inner::<KIND, W>(registers, items) }
}

/// Whether the processor has what [`update_avx2`] needs.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
}
