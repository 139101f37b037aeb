//! Vector instructions of x86-64.
#![allow(unsafe_code)] // Intrinsics.
#![allow(clippy::missing_transmute_annotations)] // Both types stand in the signatures around each call.

use std::arch::x86_64::*;

use super::isa::{Isa, LINE};

/// To nearest even, in any rounding mode of the thread.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// The bit that makes a NaN of binary32 quiet.
const QUIET: i32 = 0x40_0000;

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn is_nan_256(bits: __m256i) -> __m256i {
    // SAFETY: the caller's contract.
    unsafe {
        let v = _mm256_castsi256_ps(bits);
        _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v))
    }
}

/// # Safety
/// AVX-512 F.
#[inline(always)]
unsafe fn is_nan_512(bits: __m512i) -> __mmask16 {
    // SAFETY: the caller's contract.
    unsafe {
        let v = _mm512_castsi512_ps(bits);
        _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v)
    }
}

// Functions, not closures: intrinsics inside a closure are not inlined (a hundred times
// slower).

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn widen_bf16_256(h: __m128i) -> __m256i {
    // SAFETY: the caller's contract.
    unsafe {
        let bits = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(h));
        let quiet = _mm256_and_si256(is_nan_256(bits), _mm256_set1_epi32(QUIET));
        _mm256_or_si256(bits, quiet)
    }
}

/// Results in the low halves of 32-bit lanes.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn narrow_bf16_256(bits: __m256i) -> __m256i {
    // SAFETY: the caller's contract.
    unsafe {
        let high = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
        let nan = _mm256_or_si256(high, _mm256_set1_epi32(QUIET >> 16));
        _mm256_blendv_epi8(rounded, nan, is_nan_256(bits))
    }
}

/// See [`super::Level::Avx2`].
pub(super) struct Avx2;

impl Isa for Avx2 {
    #[inline(always)]
    unsafe fn store_streaming(to: *mut u8, line: [u8; LINE]) {
        // SAFETY: plain bytes of the same size; the caller's contract for the rest.
        unsafe {
            let [a, b]: [__m256i; 2] = std::mem::transmute(line);
            _mm256_stream_si256(to.cast::<__m256i>(), a);
            _mm256_stream_si256(to.cast::<__m256i>().add(1), b);
        }
    }
    #[inline(always)]
    unsafe fn widen_f16(h: [u16; 16]) -> [f32; 16] {
        // SAFETY: plain bits of the same size; F16C by the caller's contract.
        unsafe {
            let [a, b]: [__m128i; 2] = std::mem::transmute(h);
            std::mem::transmute([_mm256_cvtph_ps(a), _mm256_cvtph_ps(b)])
        }
    }
    #[inline(always)]
    unsafe fn narrow_f16(v: [f32; 16]) -> [u16; 16] {
        // SAFETY: plain bits of the same size; F16C by the caller's contract.
        unsafe {
            let [a, b]: [__m256; 2] = std::mem::transmute(v);
            std::mem::transmute([
                _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(a),
                _mm256_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT }>(b),
            ])
        }
    }
    #[inline(always)]
    unsafe fn widen_bf16(h: [u16; 16]) -> [f32; 16] {
        // SAFETY: plain bits of the same size; AVX2 by the caller's contract.
        unsafe {
            let [a, b]: [__m128i; 2] = std::mem::transmute(h);
            std::mem::transmute([widen_bf16_256(a), widen_bf16_256(b)])
        }
    }
    #[inline(always)]
    unsafe fn narrow_bf16(v: [f32; 16]) -> [u16; 16] {
        // SAFETY: plain bits of the same size; AVX2 by the caller's contract.
        unsafe {
            let [a, b]: [__m256i; 2] = std::mem::transmute(v);
            let (a, b) = (narrow_bf16_256(a), narrow_bf16_256(b));
            // Packing works within halves of the register: the middle quarters change places.
            let packed = _mm256_packus_epi32(a, b);
            std::mem::transmute(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed))
        }
    }
}

/// See [`super::Level::Avx512`].
pub(super) struct Avx512;

impl Isa for Avx512 {
    #[inline(always)]
    unsafe fn store_streaming(to: *mut u8, line: [u8; LINE]) {
        // SAFETY: plain bytes of the same size; the caller's contract for the rest.
        unsafe { _mm512_stream_si512(to.cast::<__m512i>(), std::mem::transmute(line)) };
    }
    #[inline(always)]
    unsafe fn widen_f16(h: [u16; 16]) -> [f32; 16] {
        // SAFETY: plain bits of the same size; AVX-512 F by the caller's contract.
        unsafe { std::mem::transmute(_mm512_cvtph_ps(std::mem::transmute::<_, __m256i>(h))) }
    }
    #[inline(always)]
    unsafe fn narrow_f16(v: [f32; 16]) -> [u16; 16] {
        // SAFETY: plain bits of the same size; AVX-512 F by the caller's contract.
        unsafe {
            let v: __m512 = std::mem::transmute(v);
            std::mem::transmute(_mm512_cvtps_ph::<NEAREST>(v))
        }
    }
    #[inline(always)]
    unsafe fn widen_bf16(h: [u16; 16]) -> [f32; 16] {
        // SAFETY: plain bits of the same size; AVX-512 F by the caller's contract.
        unsafe {
            let h: __m256i = std::mem::transmute(h);
            let bits = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(h));
            let quiet = _mm512_set1_epi32(QUIET);
            std::mem::transmute(_mm512_mask_or_epi32(bits, is_nan_512(bits), bits, quiet))
        }
    }
    #[inline(always)]
    unsafe fn narrow_bf16(v: [f32; 16]) -> [u16; 16] {
        // Not `vcvtneps2bf16`, which takes subnormal numbers for zero.
        // SAFETY: plain bits of the same size; AVX-512 F by the caller's contract.
        unsafe {
            let bits: __m512i = std::mem::transmute(v);
            let high = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
            let quiet = _mm512_set1_epi32(QUIET >> 16);
            let h = _mm512_mask_or_epi32(rounded, is_nan_512(bits), high, quiet);
            std::mem::transmute(_mm512_cvtepi32_epi16(h))
        }
    }
}
