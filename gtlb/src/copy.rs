//! Raw copies between memories that other agents may write.
//!
//! Ordinary stores while the destination fits a cache, non-temporal ones for large copies out of
//! place, where not reading the destination first saves a third of the traffic.
#![allow(unsafe_code)] // Raw-pointer copies: GPU memory is never a slice.

/// From how many bytes on, written before the first of them is read, non-temporal stores are used.
///
/// Half of a thread's share of the last cache: sources and destinations of so many bytes fill it,
/// and bytes written with ordinary stores are evicted before they are read. Measured with two
/// buffers of each size in turn and a share of 16 MiB: 2 MiB each 34 GB/s with ordinary stores and
/// 25 without, 4 MiB 20 and 24, 8 MiB 8 and 13.
///
/// A virtual machine may report a cache that it shares with others. So at most 16 times a thread's
/// share of the cache before the last: measured with 240 MiB and 2 MiB reported, both kinds of
/// stores are equally fast from 4 to 32 MiB (13 GB/s); at 64 MiB it is 7.5 and 13.
#[inline]
pub fn streaming_bytes() -> u64 {
    let cache = crate::cache::shares();
    (cache.last / 2).min(16 * cache.second)
}

/// Copies `len` bytes; the ranges may overlap.
///
/// # Safety
/// Both ranges are mapped for `len` bytes and accessed by others only through raw copies or
/// atomics.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // The most frequent message is one aligned word: a single store, so that a flag is never torn.
    if len == 8 && (dst as usize | src as usize) & 7 == 0 {
        // SAFETY: aligned (checked) and mapped (the caller's contract).
        unsafe {
            dst.cast::<u64>()
                .write_volatile(src.cast::<u64>().read_volatile())
        };
        return;
    }
    // SAFETY: the caller's contract; memmove allows overlap.
    unsafe { std::ptr::copy(src, dst, len) };
}

/// Copies `len` bytes with non-temporal stores where the CPU has them, and orders them before any
/// later store.
///
/// # Safety
/// As [`copy`].
pub unsafe fn copy_streaming(dst: *mut u8, src: *const u8, len: usize) {
    let apart = (dst as usize).abs_diff(src as usize) >= len;
    #[cfg(target_arch = "x86_64")]
    if apart && len >= 4096 {
        // SAFETY: the caller's contract; the ranges do not overlap (checked); features detected.
        unsafe {
            if std::arch::is_x86_feature_detected!("avx2") {
                x86::stream_avx2(dst, src, len);
                return;
            }
        }
    }
    let _ = apart;
    // SAFETY: the caller's contract.
    unsafe { copy(dst, src, len) };
}

/// Copies `len` bytes to two places in one pass: to `kept` with ordinary stores, and to `dst`. With
/// `streaming` around the cache, unordered: call [`fence_streaming`] before anything that announces
/// them.
///
/// # Safety
/// As [`copy`] for `src` and `dst`; `kept` has room for `len` bytes, is the caller's alone, and
/// overlaps neither.
pub unsafe fn copy_twice(dst: *mut u8, kept: *mut u8, src: *const u8, len: usize, streaming: bool) {
    #[cfg(target_arch = "x86_64")]
    {
        let apart = (dst as usize).abs_diff(src as usize) >= len;
        if apart && len >= 256 && std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the caller's contract; the ranges do not overlap (checked); feature detected.
            unsafe {
                match streaming {
                    true => x86::twice_avx2::<true>(dst, kept, src, len),
                    false => x86::twice_avx2::<false>(dst, kept, src, len),
                }
            }
            return;
        }
    }
    let _ = streaming;
    // SAFETY: the caller's contract. From `kept`, so that both get the same bytes even when a peer
    // writes to `src` meanwhile.
    unsafe {
        copy(kept, src, len);
        copy(dst, kept, len);
    }
}

/// Orders stores around the cache before all later stores.
#[inline]
pub fn fence_streaming() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256, _mm_prefetch,
        _mm_sfence, _MM_HINT_T1,
    };

    /// Bytes from a load to the prefetch that is issued beside it. Into the second-level cache:
    /// `prefetchnta` halves the speed of such copies on Intel processors of 2023, from 13 to 6
    /// GB/s.
    const AHEAD: usize = 2048;

    /// # Safety
    /// As [`super::copy`], ranges apart, AVX2 present.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn stream_avx2(dst: *mut u8, src: *const u8, len: usize) {
        let head = (dst as usize).wrapping_neg() & 63;
        // SAFETY: every access stays within the two ranges; stream stores are 32-byte aligned after
        // the head.
        unsafe {
            std::ptr::copy_nonoverlapping(src, dst, head);
            let (mut d, mut s) = (dst.add(head), src.add(head));
            let mut lines = (len - head) / 128;
            while lines > 0 {
                _mm_prefetch::<_MM_HINT_T1>(s.wrapping_add(AHEAD).cast());
                _mm_prefetch::<_MM_HINT_T1>(s.wrapping_add(AHEAD + 64).cast());
                let a = _mm256_loadu_si256(s.cast::<__m256i>());
                let b = _mm256_loadu_si256(s.add(32).cast::<__m256i>());
                let c = _mm256_loadu_si256(s.add(64).cast::<__m256i>());
                let e = _mm256_loadu_si256(s.add(96).cast::<__m256i>());
                _mm256_stream_si256(d.cast::<__m256i>(), a);
                _mm256_stream_si256(d.add(32).cast::<__m256i>(), b);
                _mm256_stream_si256(d.add(64).cast::<__m256i>(), c);
                _mm256_stream_si256(d.add(96).cast::<__m256i>(), e);
                d = d.add(128);
                s = s.add(128);
                lines -= 1;
            }
            std::ptr::copy_nonoverlapping(s, d, (len - head) % 128);
            // Acquire/Release does not order non-temporal stores; the completion must not pass
            // them.
            _mm_sfence();
        }
    }

    /// # Safety
    /// As [`super::copy_twice`], ranges apart, AVX2 present, at least 64 bytes.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn twice_avx2<const STREAM: bool>(
        dst: *mut u8,
        kept: *mut u8,
        src: *const u8,
        len: usize,
    ) {
        let head = (dst as usize).wrapping_neg() & 63;
        // SAFETY: every access stays within the three ranges; stream stores are 32-byte aligned
        // after the head. Each byte of `src` is read once, so that both copies agree.
        unsafe {
            std::ptr::copy_nonoverlapping(src, kept, head);
            std::ptr::copy_nonoverlapping(kept, dst, head);
            let mut at = head;
            while at + 64 <= len {
                let a = _mm256_loadu_si256(src.add(at).cast::<__m256i>());
                let b = _mm256_loadu_si256(src.add(at + 32).cast::<__m256i>());
                _mm256_storeu_si256(kept.add(at).cast::<__m256i>(), a);
                _mm256_storeu_si256(kept.add(at + 32).cast::<__m256i>(), b);
                if STREAM {
                    // Also past the end: those bytes are on their way while an engine reads these.
                    _mm_prefetch::<_MM_HINT_T1>(src.wrapping_add(at + AHEAD).cast());
                    _mm256_stream_si256(dst.add(at).cast::<__m256i>(), a);
                    _mm256_stream_si256(dst.add(at + 32).cast::<__m256i>(), b);
                } else {
                    _mm256_storeu_si256(dst.add(at).cast::<__m256i>(), a);
                    _mm256_storeu_si256(dst.add(at + 32).cast::<__m256i>(), b);
                }
                at += 64;
            }
            std::ptr::copy_nonoverlapping(src.add(at), kept.add(at), len - at);
            std::ptr::copy_nonoverlapping(kept.add(at), dst.add(at), len - at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streaming_copies_exactly() {
        let src: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for (off_s, off_d, len) in [(0, 0, 65536), (1, 3, 70001), (63, 64, 4096), (5, 0, 100)] {
            let mut dst = vec![0xaau8; 100_100];
            // SAFETY: both ranges lie inside their vectors.
            unsafe { copy_streaming(dst.as_mut_ptr().add(off_d), src.as_ptr().add(off_s), len) };
            assert_eq!(dst[off_d..off_d + len], src[off_s..off_s + len]);
            assert!(dst[..off_d]
                .iter()
                .chain(&dst[off_d + len..])
                .all(|b| *b == 0xaa));
        }
    }

    #[test]
    fn both_copies_of_one_pass_are_exact() {
        let src: Vec<u8> = (0..70_000u32).map(|i| (i * 11 + i / 257) as u8).collect();
        for streaming in [false, true] {
            for (off_s, off_d, len) in [(0, 0, 65536), (1, 3, 65001), (9, 64, 256), (7, 1, 255)] {
                let (mut dst, mut kept) = (vec![0xaau8; 70_100], vec![0x55u8; 70_000]);
                // SAFETY: all ranges lie inside their vectors.
                unsafe {
                    let to = dst.as_mut_ptr().add(off_d);
                    let from = src.as_ptr().add(off_s);
                    copy_twice(to, kept.as_mut_ptr(), from, len, streaming);
                }
                fence_streaming();
                assert_eq!(dst[off_d..off_d + len], src[off_s..off_s + len]);
                assert_eq!(kept[..len], src[off_s..off_s + len]);
                assert!(kept[len..].iter().all(|b| *b == 0x55));
                let mut around = dst[..off_d].iter().chain(&dst[off_d + len..]);
                assert!(around.all(|b| *b == 0xaa));
            }
        }
    }

    #[test]
    fn overlapping_ranges_are_moved() {
        let mut v: Vec<u8> = (0..16384u32).map(|i| i as u8).collect();
        let want: Vec<u8> = v[..8192].to_vec();
        let p = v.as_mut_ptr();
        // SAFETY: both ranges lie inside the vector.
        unsafe { copy_streaming(p.add(100), p, 8192) };
        assert_eq!(v[100..8292], want[..]);
    }
}
