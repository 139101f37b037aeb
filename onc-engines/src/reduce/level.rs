//! Instruction set levels of CPUs: stores past the cache, and conversions in hardware.
#![allow(unsafe_code)] // Vector intrinsics.
#![allow(clippy::missing_transmute_annotations)] // Both types stand in the signatures around each call.
#![allow(clippy::needless_range_loop)] // As in `kernel`.

use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of a cache line and of the widest vector.
pub(super) const LINE: usize = 64;

/// Instructions that a kernel uses. All levels give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// The base instruction set of the target (SSE2 on x86-64, NEON on aarch64).
    Baseline,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Level {
    /// The best that this CPU has. Asked once.
    pub fn detect() -> Level {
        // 0: not asked yet. Relaxed: every thread that asks finds the same.
        static LEVEL: AtomicU8 = AtomicU8::new(0);
        match LEVEL.load(Ordering::Relaxed) {
            0 => {
                let level = Level::ask();
                LEVEL.store(level as u8 + 1, Ordering::Relaxed);
                level
            }
            n if n == Level::Avx512 as u8 + 1 => Level::Avx512,
            n if n == Level::Avx2 as u8 + 1 => Level::Avx2,
            _ => Level::Baseline,
        }
    }

    /// All that this CPU has, the best last.
    pub fn available() -> impl Iterator<Item = Level> {
        let best = Level::detect();
        [Level::Baseline, Level::Avx2, Level::Avx512]
            .into_iter()
            .filter(move |l| *l <= best)
    }

    #[cfg(target_arch = "x86_64")]
    fn ask() -> Level {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = has!("avx2") && has!("f16c");
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        match (avx2, avx512) {
            (true, true) => Level::Avx512,
            (true, false) => Level::Avx2,
            _ => Level::Baseline,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn ask() -> Level {
        Level::Baseline
    }
}

/// The instructions of one level. Bodies are inlined into functions that enable its features.
pub(super) trait Isa {
    /// Stores a line past the cache.
    ///
    /// # Safety
    /// `to` is aligned to a line and writable; the CPU has the level.
    unsafe fn store_streaming(to: *mut u8, line: [u8; LINE]);

    /// [`super::half::f32_of_f16`] of 16 elements.
    ///
    /// # Safety
    /// The CPU has the level.
    #[inline(always)]
    unsafe fn widen_f16(h: [u16; 16]) -> [f32; 16] {
        let mut to = [0.0f32; 16];
        for lane in 0..16 {
            to[lane] = super::half::f32_of_f16(h[lane]);
        }
        to
    }

    /// [`super::half::f16_of_f32`] of 16 elements.
    ///
    /// # Safety
    /// The CPU has the level.
    #[inline(always)]
    unsafe fn narrow_f16(v: [f32; 16]) -> [u16; 16] {
        let mut to = [0u16; 16];
        for lane in 0..16 {
            to[lane] = super::half::f16_of_f32(v[lane]);
        }
        to
    }

    /// [`super::half::f32_of_bf16`] of 16 elements.
    ///
    /// # Safety
    /// The CPU has the level.
    #[inline(always)]
    unsafe fn widen_bf16(h: [u16; 16]) -> [f32; 16] {
        let mut to = [0.0f32; 16];
        for lane in 0..16 {
            to[lane] = super::half::f32_of_bf16(h[lane]);
        }
        to
    }

    /// [`super::half::bf16_of_f32`] of 16 elements.
    ///
    /// # Safety
    /// The CPU has the level.
    #[inline(always)]
    unsafe fn narrow_bf16(v: [f32; 16]) -> [u16; 16] {
        let mut to = [0u16; 16];
        for lane in 0..16 {
            to[lane] = super::half::bf16_of_f32(v[lane]);
        }
        to
    }
}

/// See [`Level::Baseline`].
pub(super) struct Baseline;

impl Isa for Baseline {
    #[inline(always)]
    unsafe fn store_streaming(to: *mut u8, line: [u8; LINE]) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_stream_si128};
            // SAFETY: plain bytes of the same size; SSE2 belongs to x86-64; aligned and writable by
            // the caller's contract.
            unsafe {
                let v: [__m128i; 4] = std::mem::transmute(line);
                _mm_stream_si128(to.cast::<__m128i>(), v[0]);
                _mm_stream_si128(to.cast::<__m128i>().add(1), v[1]);
                _mm_stream_si128(to.cast::<__m128i>().add(2), v[2]);
                _mm_stream_si128(to.cast::<__m128i>().add(3), v[3]);
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        // SAFETY: writable by the caller's contract.
        unsafe {
            to.cast::<[u8; LINE]>().write_unaligned(line);
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Isa, LINE};

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
    pub(in super::super) struct Avx2;

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
    pub(in super::super) struct Avx512;

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
}
