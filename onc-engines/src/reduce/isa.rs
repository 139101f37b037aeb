//! The instructions of a level: stores past the cache, and conversions in hardware.
#![allow(unsafe_code)] // Vector intrinsics.
#![allow(clippy::missing_transmute_annotations)] // Both types stand in the signatures around each call.
#![allow(clippy::needless_range_loop)] // As in `kernel`.

/// Bytes of a cache line and of the widest vector.
pub(super) const LINE: usize = 64;

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

/// See [`super::Level::Baseline`].
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
