//! Compression on the wire: conversion of f32 elements to bf16 or f16, and back.
#![allow(unsafe_code)] // Raw operands, and functions that enable CPU features.

use ringbell_nic_abi::WireType;

use super::isa::{Baseline, Isa};
use super::level::Level;

/// Elements converted at once.
const LANES: usize = 16;

/// Bytes that one f32 element has on the wire.
pub const fn wire_bytes(wire: WireType) -> usize {
    match wire {
        WireType::Same => 4,
        WireType::Bf16 | WireType::F16 => 2,
    }
}

/// Rounds `n` f32 elements at `src` to nearest even and stores their wire form at `dst`. A NaN
/// stays a NaN.
///
/// # Safety
/// `n` elements of 4 bytes are readable at `src` and `n` of [`wire_bytes`] writable at `dst`; the
/// ranges do not overlap; no alignment is required.
pub unsafe fn narrow(wire: WireType, dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the caller's contract; the CPU has the detected level.
    unsafe { run_at(Level::detect(), Conversion::Narrow(wire), dst, src, n) };
}

/// Widens `n` elements of the wire at `src` to f32 at `dst`; exact.
///
/// # Safety
/// As [`narrow`], with source and destination exchanged.
pub unsafe fn widen(wire: WireType, dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the caller's contract; the CPU has the detected level.
    unsafe { run_at(Level::detect(), Conversion::Widen(wire), dst, src, n) };
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Conversion {
    Narrow(WireType),
    Widen(WireType),
}

/// # Safety
/// As [`narrow`] and [`widen`]; the CPU has the level.
pub(super) unsafe fn run_at(
    level: Level,
    conversion: Conversion,
    dst: *mut u8,
    src: *const u8,
    n: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match level {
            Level::Baseline => baseline(conversion, dst, src, n),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2(conversion, dst, src, n),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512(conversion, dst, src, n),
            #[cfg(not(target_arch = "x86_64"))]
            _ => baseline(conversion, dst, src, n),
        }
    }
}

/// # Safety
/// As [`run_at`].
unsafe fn baseline(conversion: Conversion, dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { by_wire::<Baseline>(conversion, dst, src, n) };
}

/// # Safety
/// As [`run_at`]; AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn avx2(conversion: Conversion, dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { by_wire::<super::x86::Avx2>(conversion, dst, src, n) };
}

/// # Safety
/// As [`run_at`]; AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn avx512(conversion: Conversion, dst: *mut u8, src: *const u8, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { by_wire::<super::x86::Avx512>(conversion, dst, src, n) };
}

/// A vector of the wire, as bits, to f32 and back.
trait Format {
    /// One vector in memory.
    type Bits: Copy;
    /// # Safety
    /// The CPU has the level.
    unsafe fn widen<I: Isa>(bits: Self::Bits) -> [f32; LANES];
    /// # Safety
    /// The CPU has the level.
    unsafe fn narrow<I: Isa>(v: [f32; LANES]) -> Self::Bits;
}

struct Same;
impl Format for Same {
    type Bits = [f32; LANES];
    #[inline(always)]
    unsafe fn widen<I: Isa>(bits: Self::Bits) -> [f32; LANES] {
        bits
    }
    #[inline(always)]
    unsafe fn narrow<I: Isa>(v: [f32; LANES]) -> Self::Bits {
        v
    }
}

struct Bf16;
impl Format for Bf16 {
    type Bits = [u16; LANES];
    #[inline(always)]
    unsafe fn widen<I: Isa>(bits: Self::Bits) -> [f32; LANES] {
        // SAFETY: the caller's contract.
        unsafe { I::widen_bf16(bits) }
    }
    #[inline(always)]
    unsafe fn narrow<I: Isa>(v: [f32; LANES]) -> Self::Bits {
        // SAFETY: the caller's contract.
        unsafe { I::narrow_bf16(v) }
    }
}

struct F16;
impl Format for F16 {
    type Bits = [u16; LANES];
    #[inline(always)]
    unsafe fn widen<I: Isa>(bits: Self::Bits) -> [f32; LANES] {
        // SAFETY: the caller's contract.
        unsafe { I::widen_f16(bits) }
    }
    #[inline(always)]
    unsafe fn narrow<I: Isa>(v: [f32; LANES]) -> Self::Bits {
        // SAFETY: the caller's contract.
        unsafe { I::narrow_f16(v) }
    }
}

/// # Safety
/// As [`run_at`].
#[inline(always)]
unsafe fn by_wire<I: Isa>(conversion: Conversion, dst: *mut u8, src: *const u8, n: usize) {
    let (Conversion::Narrow(wire) | Conversion::Widen(wire)) = conversion;
    // SAFETY: the caller's contract.
    unsafe {
        match wire {
            WireType::Same => by_format::<I, Same>(conversion, dst, src, n),
            WireType::Bf16 => by_format::<I, Bf16>(conversion, dst, src, n),
            WireType::F16 => by_format::<I, F16>(conversion, dst, src, n),
        }
    }
}

/// # Safety
/// As [`run_at`].
#[inline(always)]
unsafe fn by_format<I: Isa, F: Format>(
    conversion: Conversion,
    dst: *mut u8,
    src: *const u8,
    n: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match conversion {
            Conversion::Narrow(_) => {
                run::<[f32; LANES], F::Bits>(dst, src, n, |v| F::narrow::<I>(v))
            }
            Conversion::Widen(_) => run::<F::Bits, [f32; LANES]>(dst, src, n, |v| F::widen::<I>(v)),
        }
    }
}

/// # Safety
/// A `T`, for which every bit pattern is a value, is readable at `p`.
#[inline(always)]
unsafe fn load<T: Copy>(p: *const u8) -> T {
    // SAFETY: the caller's contract.
    unsafe { p.cast::<T>().read_unaligned() }
}

/// # Safety
/// A `T` is writable at `p`.
#[inline(always)]
unsafe fn store<T: Copy>(p: *mut u8, v: T) {
    // SAFETY: the caller's contract.
    unsafe { p.cast::<T>().write_unaligned(v) }
}

/// Converts vectors of `LANES` elements, from `A` to `B`; the last, partial one by way of the
/// stack.
///
/// # Safety
/// As [`run_at`], with elements of `A` at `src` and of `B` at `dst`. Every bit pattern is an `A`.
#[inline(always)]
unsafe fn run<A: Copy, B: Copy>(dst: *mut u8, src: *const u8, n: usize, convert: impl Fn(A) -> B) {
    let (from, to) = (size_of::<A>() / LANES, size_of::<B>() / LANES);
    let whole = n / LANES * LANES;
    for i in (0..whole).step_by(LANES) {
        // SAFETY: the elements `i..i + LANES` lie inside both operands.
        unsafe { store(dst.add(i * to), convert(load(src.add(i * from)))) };
    }
    let left = n - whole;
    if left > 0 {
        let (mut rest, mut converted) = ([0u8; LANES * 4], [0u8; LANES * 4]);
        // SAFETY: fewer elements than a vector, of 4 bytes at most.
        unsafe {
            std::ptr::copy_nonoverlapping(src.add(whole * from), rest.as_mut_ptr(), left * from);
            store(converted.as_mut_ptr(), convert(load(rest.as_ptr())));
            std::ptr::copy_nonoverlapping(converted.as_ptr(), dst.add(whole * to), left * to);
        }
    }
}
