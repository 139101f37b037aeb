//! Compression on the wire: f32 elements as bf16 or f16.
#![allow(unsafe_code)] // Raw operands, and functions that enable CPU features.

use ringbell_nic_abi::{ReduceOp, WireType};

use super::level::{Baseline, Isa, Level};
use super::number::{Max, Min, Number, Op, Prod, Sum};

/// Elements converted at once.
const LANES: usize = 16;

/// Bytes that one f32 element has on the wire.
pub const fn wire_bytes(wire: WireType) -> usize {
    match wire {
        WireType::Same => 4,
        WireType::Bf16 | WireType::F16 => 2,
    }
}

/// Rounds `n` f32 elements at `src` to nearest even and stores their wire form at `dst`. A NaN stays
/// one.
///
/// # Safety
/// `n` elements of 4 bytes are readable at `src` and `n` of [`wire_bytes`] writable at `dst`; the
/// ranges do not overlap; no alignment is required.
pub unsafe fn narrow(wire: WireType, dst: *mut u8, src: *const u8, n: usize) {
    let job = Job {
        dst,
        dst_bytes: wire_bytes(wire),
        local: src,
        local_bytes: 4,
        wire: std::ptr::null(),
        wire_bytes: 0,
        n,
    };
    // SAFETY: the caller's contract; the CPU has what `detect` found.
    unsafe { run_at(Level::detect(), Kind::Narrow(wire), &job) };
}

/// The f32 elements that `n` elements of the wire stand for; exact.
///
/// # Safety
/// As [`narrow`], with source and destination exchanged.
pub unsafe fn widen(wire: WireType, dst: *mut u8, src: *const u8, n: usize) {
    let job = Job {
        dst,
        dst_bytes: 4,
        local: std::ptr::null(),
        local_bytes: 0,
        wire: src,
        wire_bytes: wire_bytes(wire),
        n,
    };
    // SAFETY: the caller's contract; the CPU has what `detect` found.
    unsafe { run_at(Level::detect(), Kind::Widen(wire), &job) };
}

/// `dst = local op received`, computed and stored in f32, where `received` has its wire form. All
/// operations commute bit for bit (see the module text), so the order of the two does not matter.
///
/// # Safety
/// `n` elements of 4 bytes are readable at `local` and writable at `dst`, and `n` of [`wire_bytes`]
/// readable at `received`; `dst` may be `local`, otherwise ranges do not overlap; no alignment is
/// required.
pub unsafe fn fused_wire(
    op: ReduceOp,
    wire: WireType,
    dst: *mut u8,
    local: *const u8,
    received: *const u8,
    n: usize,
) {
    let job = Job {
        dst,
        dst_bytes: 4,
        local,
        local_bytes: 4,
        wire: received,
        wire_bytes: wire_bytes(wire),
        n,
    };
    // SAFETY: the caller's contract; the CPU has what `detect` found.
    unsafe { run_at(Level::detect(), Kind::Reduce(wire, op), &job) };
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Narrow(WireType),
    Widen(WireType),
    Reduce(WireType, ReduceOp),
}

/// Operands; an element of 0 bytes: there is no such operand.
pub(super) struct Job {
    pub(super) dst: *mut u8,
    pub(super) dst_bytes: usize,
    pub(super) local: *const u8,
    pub(super) local_bytes: usize,
    pub(super) wire: *const u8,
    pub(super) wire_bytes: usize,
    pub(super) n: usize,
}

/// # Safety
/// The operands are as the public functions say; the CPU has the level.
pub(super) unsafe fn run_at(level: Level, kind: Kind, job: &Job) {
    // SAFETY: the caller's contract.
    unsafe {
        match level {
            Level::Baseline => baseline(kind, job),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2(kind, job),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512(kind, job),
            #[cfg(not(target_arch = "x86_64"))]
            _ => baseline(kind, job),
        }
    }
}

/// # Safety
/// As [`run_at`].
unsafe fn baseline(kind: Kind, job: &Job) {
    // SAFETY: the caller's contract.
    unsafe { by_kind::<Baseline>(kind, job) };
}

/// # Safety
/// As [`run_at`]; AVX2 and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn avx2(kind: Kind, job: &Job) {
    // SAFETY: the caller's contract.
    unsafe { by_kind::<super::level::Avx2>(kind, job) };
}

/// # Safety
/// As [`run_at`]; AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
unsafe fn avx512(kind: Kind, job: &Job) {
    // SAFETY: the caller's contract.
    unsafe { by_kind::<super::level::Avx512>(kind, job) };
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
unsafe fn by_kind<I: Isa>(kind: Kind, job: &Job) {
    // SAFETY: the caller's contract.
    unsafe {
        match kind {
            Kind::Narrow(w) | Kind::Widen(w) | Kind::Reduce(w, _) => match w {
                WireType::Same => by_format::<I, Same>(kind, job),
                WireType::Bf16 => by_format::<I, Bf16>(kind, job),
                WireType::F16 => by_format::<I, F16>(kind, job),
            },
        }
    }
}

/// # Safety
/// As [`run_at`].
#[inline(always)]
unsafe fn by_format<I: Isa, F: Format>(kind: Kind, job: &Job) {
    // SAFETY: `run` gives pointers to whole vectors of each operand that the job has.
    unsafe {
        match kind {
            Kind::Narrow(_) => run(job, |d, l, _| store::<F::Bits>(d, F::narrow::<I>(load(l)))),
            Kind::Widen(_) => run(job, |d, _, w| store(d, F::widen::<I>(load(w)))),
            Kind::Reduce(_, ReduceOp::Sum) => run(job, |d, l, w| reduce::<I, F, Sum>(d, l, w)),
            Kind::Reduce(_, ReduceOp::Prod) => run(job, |d, l, w| reduce::<I, F, Prod>(d, l, w)),
            Kind::Reduce(_, ReduceOp::Min) => run(job, |d, l, w| reduce::<I, F, Min>(d, l, w)),
            Kind::Reduce(_, ReduceOp::Max) => run(job, |d, l, w| reduce::<I, F, Max>(d, l, w)),
        }
    }
}

/// # Safety
/// A vector of each operand; the CPU has the level.
#[inline(always)]
unsafe fn reduce<I: Isa, F: Format, O: Op>(d: *mut u8, l: *const u8, w: *const u8) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut x: [f32; LANES] = load(l);
        let y = F::widen::<I>(load(w));
        for (x, y) in x.iter_mut().zip(&y) {
            *x = O::apply(*x, *y).canonical();
        }
        store(d, x);
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

/// Calls `f(dst, local, wire)` for every vector; the last, partial one by way of the stack.
///
/// # Safety
/// As [`run_at`].
#[inline(always)]
unsafe fn run(job: &Job, f: impl Fn(*mut u8, *const u8, *const u8)) {
    let whole = job.n / LANES * LANES;
    // SAFETY: element `i` of each operand lies inside it; a pointer to no operand is not moved.
    let at = |i: usize| unsafe {
        (
            job.dst.add(i * job.dst_bytes),
            job.local.add(i * job.local_bytes),
            job.wire.add(i * job.wire_bytes),
        )
    };
    for i in (0..whole).step_by(LANES) {
        let (d, l, w) = at(i);
        f(d, l, w);
    }
    let left = job.n - whole;
    if left > 0 {
        let (d, l, w) = at(whole);
        let (mut dr, mut lr, mut wr) = ([0u8; LANES * 4], [0u8; LANES * 4], [0u8; LANES * 4]);
        // SAFETY: fewer elements than a vector, of 4 bytes at most.
        unsafe {
            if job.local_bytes > 0 {
                std::ptr::copy_nonoverlapping(l, lr.as_mut_ptr(), left * job.local_bytes);
            }
            if job.wire_bytes > 0 {
                std::ptr::copy_nonoverlapping(w, wr.as_mut_ptr(), left * job.wire_bytes);
            }
            f(dr.as_mut_ptr(), lr.as_ptr(), wr.as_ptr());
            std::ptr::copy_nonoverlapping(dr.as_ptr(), d, left * job.dst_bytes);
        }
    }
}
