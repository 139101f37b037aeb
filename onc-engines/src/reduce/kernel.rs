//! The reduction's pass over memory, in blocks of four vectors.
#![allow(unsafe_code)] // Raw operands, and functions that enable CPU features.
#![allow(clippy::missing_transmute_annotations)] // Both types stand in the signatures around each call.
#![allow(clippy::useless_transmute)] // Of the macros, for bytes.
#![allow(clippy::needless_range_loop)] // Adapters of iterators are functions, not inlined without link-time optimisation.

use std::marker::PhantomData;

use ringbell_nic_abi::{DataType, ReduceOp};

use super::isa::{Baseline, Isa, LINE};
use super::level::Level;
use super::number::{And, Max, Min, Number, Operator, Or, Prod, Sum, Xor};
#[cfg(target_arch = "x86_64")]
use super::x86::{Avx2, Avx512};

/// Every destination = `srcs[0] op srcs[1] op ...`, element by element, left to right, in one pass
/// over `n` elements; with one source, a copy to every destination.
///
/// `streaming` asks for stores past the cache, for destinations of more than the L2 that are not
/// read soon and are not among the sources (in place they are 2.6–4.3 times slower: baselines in
/// `docs/results`). Such stores are ordered before every later store when the function returns
/// (`sfence`), so that a later Release publishes them.
///
/// # Safety
/// All `n` elements of every source are readable and of every destination writable; no alignment is
/// required. A destination may be the same as a source; otherwise ranges do not overlap. Others may
/// write the sources meanwhile only by raw copies or atomics (see the module text).
///
/// # Panics
/// When there is no source.
pub unsafe fn fused(
    dtype: DataType,
    op: ReduceOp,
    dsts: &[*mut u8],
    srcs: &[*const u8],
    n: usize,
    streaming: bool,
) {
    // SAFETY: the caller's contract; the CPU has what `detect` found.
    unsafe { run(Level::detect(), dtype, op, dsts, srcs, n, streaming) };
}

/// [`fused`] with the instructions of a level, for tests and measurements.
///
/// # Safety
/// As [`fused`].
///
/// # Panics
/// When there is no source, or this CPU does not have the level.
pub unsafe fn fused_at(
    level: Level,
    dtype: DataType,
    op: ReduceOp,
    dsts: &[*mut u8],
    srcs: &[*const u8],
    n: usize,
    streaming: bool,
) {
    assert!(level <= Level::detect(), "this CPU has no {level:?}");
    // SAFETY: the caller's contract; the CPU has the level (checked).
    unsafe { run(level, dtype, op, dsts, srcs, n, streaming) };
}

/// # Safety
/// As [`fused_at`], with a level that this CPU has.
unsafe fn run(
    level: Level,
    dtype: DataType,
    op: ReduceOp,
    dsts: &[*mut u8],
    srcs: &[*const u8],
    n: usize,
    streaming: bool,
) {
    assert!(!srcs.is_empty(), "a reduction needs a source");
    let run = Pass {
        dsts,
        srcs,
        n,
        streaming,
    };
    // SAFETY: the caller's contract.
    unsafe {
        match level {
            Level::Baseline => by_type::<Baseline>(dtype, op, &run),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => by_type::<Avx2>(dtype, op, &run),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => by_type::<Avx512>(dtype, op, &run),
            #[cfg(not(target_arch = "x86_64"))]
            _ => by_type::<Baseline>(dtype, op, &run),
        }
    }
    #[cfg(target_arch = "x86_64")]
    if streaming {
        // SAFETY: part of x86-64.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
}

/// One call.
struct Pass<'a> {
    dsts: &'a [*mut u8],
    srcs: &'a [*const u8],
    n: usize,
    streaming: bool,
}

/// A block: the registers' content between the operands' loads and the results' stores.
trait Block {
    /// Bytes of a block in memory, a multiple of [`LINE`].
    const BYTES: usize;
    /// Bytes of an element in memory.
    const ELEMENT: usize;
    /// In registers.
    type Value: Copy;

    /// # Safety
    /// `BYTES` bytes at `from` are readable; the CPU has the level.
    unsafe fn load<I: Isa>(from: *const u8) -> Self::Value;
    /// # Safety
    /// The CPU has the level.
    unsafe fn apply<I: Isa, O: Operator>(a: Self::Value, b: Self::Value) -> Self::Value;
    /// The last touch of a value that was reduced.
    fn canonical(v: Self::Value) -> Self::Value;
    /// # Safety
    /// `BYTES` bytes at `to` are writable, and aligned to a line when `streaming`; the CPU has the
    /// level.
    unsafe fn store<I: Isa>(v: Self::Value, to: *mut u8, streaming: bool);
}

/// # Safety
/// As [`Block::store`], for `N` lines.
#[inline(always)]
unsafe fn store_lines<I: Isa, const N: usize>(
    lines: [[u8; LINE]; N],
    to: *mut u8,
    streaming: bool,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if streaming {
            for line in 0..N {
                I::store_streaming(to.add(line * LINE), lines[line]);
            }
        } else {
            to.cast::<[[u8; LINE]; N]>().write_unaligned(lines);
        }
    }
}

/// Elements computed as they are stored: four lines.
struct Plain<T>(PhantomData<T>);

macro_rules! plain {
    ($($t:ty, $lanes:literal;)*) => {$(
        impl Block for Plain<$t> {
            const BYTES: usize = 4 * LINE;
            const ELEMENT: usize = size_of::<$t>();
            type Value = [[$t; $lanes]; 4];
            #[inline(always)]
            unsafe fn load<I: Isa>(from: *const u8) -> Self::Value {
                // SAFETY: readable by the caller's contract; every bit pattern is a value.
                unsafe { from.cast::<Self::Value>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn apply<I: Isa, O: Operator>(mut a: Self::Value, b: Self::Value) -> Self::Value {
                for line in 0..4 {
                    for lane in 0..$lanes {
                        a[line][lane] = O::apply(a[line][lane], b[line][lane]);
                    }
                }
                a
            }
            #[inline(always)]
            fn canonical(mut v: Self::Value) -> Self::Value {
                for line in 0..4 {
                    for lane in 0..$lanes {
                        v[line][lane] = v[line][lane].canonical();
                    }
                }
                v
            }
            #[inline(always)]
            unsafe fn store<I: Isa>(v: Self::Value, to: *mut u8, streaming: bool) {
                // SAFETY: plain numbers of the same size; the caller's contract.
                unsafe { store_lines::<I, 4>(std::mem::transmute(v), to, streaming) }
            }
        }
    )*};
}
plain! {
    f32, 16; f64, 8; i8, 64; u8, 64; i16, 32; u16, 32; i32, 16; u32, 16; i64, 8; u64, 8;
}

/// 16-bit floats, computed in f32 and rounded after every operation: two lines.
macro_rules! half_block {
    ($name:ident, |$h:ident| $widen:expr, |$v:ident| $narrow:expr, $inf:literal, $nan:literal) => {
        struct $name;
        impl Block for $name {
            const BYTES: usize = 2 * LINE;
            const ELEMENT: usize = 2;
            type Value = [[u16; 16]; 4];
            #[inline(always)]
            unsafe fn load<I: Isa>(from: *const u8) -> Self::Value {
                // SAFETY: readable by the caller's contract; every bit pattern is a value.
                unsafe { from.cast::<Self::Value>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn apply<I: Isa, O: Operator>(
                mut a: Self::Value,
                b: Self::Value,
            ) -> Self::Value {
                for line in 0..4 {
                    let $h = a[line];
                    let mut x: [f32; 16] = $widen;
                    let $h = b[line];
                    let y: [f32; 16] = $widen;
                    for lane in 0..16 {
                        x[lane] = O::apply(x[lane], y[lane]);
                    }
                    let $v = x;
                    a[line] = $narrow;
                }
                a
            }
            #[inline(always)]
            fn canonical(mut v: Self::Value) -> Self::Value {
                for line in 0..4 {
                    for lane in 0..16 {
                        // Above the bits of infinity: not a number.
                        if v[line][lane] & 0x7fff > $inf {
                            v[line][lane] = $nan;
                        }
                    }
                }
                v
            }
            #[inline(always)]
            unsafe fn store<I: Isa>(v: Self::Value, to: *mut u8, streaming: bool) {
                // SAFETY: plain numbers of the same size; the caller's contract.
                unsafe { store_lines::<I, 2>(std::mem::transmute(v), to, streaming) }
            }
        }
    };
}

half_block!(
    F16,
    // SAFETY: the level, by the contract of `apply`.
    |h| unsafe { I::widen_f16(h) },
    // SAFETY: as above.
    |v| unsafe { I::narrow_f16(v) },
    0x7c00,
    0x7e00
);
half_block!(
    Bf16,
    // SAFETY: as above.
    |h| unsafe { I::widen_bf16(h) },
    // SAFETY: as above.
    |v| unsafe { I::narrow_bf16(v) },
    0x7f80,
    0x7fc0
);

/// The pass for one type and operation.
///
/// # Safety
/// As [`fused`]; the CPU has the level.
#[inline(always)]
unsafe fn pass<I: Compiled, B: Block, O: Operator>(p: &Pass<'_>) {
    let bytes = p.n * B::ELEMENT;
    let mut at = 0;
    if p.streaming {
        // Streaming stores need whole lines; destinations that lie differently get ordinary ones.
        let head = p
            .dsts
            .first()
            .map_or(0, |d| (*d as usize).wrapping_neg() % LINE);
        if head.is_multiple_of(B::ELEMENT) {
            at = head.min(bytes);
            // SAFETY: fewer than a block's bytes, inside the operands.
            unsafe { I::partial::<B, O>(p, 0, at) };
        }
    }
    // SAFETY: whole blocks inside the operands.
    at = unsafe {
        match (p.srcs, p.dsts) {
            ([a, b], [d]) if !p.streaming => two::<I, B, O, 1>([*a, *b], [*d], bytes),
            ([a, b], [d, e]) if !p.streaming => two::<I, B, O, 2>([*a, *b], [*d, *e], bytes),
            _ => blocks::<I, B, O>(p, at, bytes),
        }
    };
    // SAFETY: what is left is less than a block.
    unsafe { I::partial::<B, O>(p, at, bytes - at) };
}

/// The whole blocks of `at..bytes`. Returns where they end.
///
/// # Safety
/// As [`pass`].
#[inline(always)]
unsafe fn blocks<I: Isa, B: Block, O: Operator>(
    p: &Pass<'_>,
    mut at: usize,
    bytes: usize,
) -> usize {
    while at + B::BYTES <= bytes {
        // SAFETY: a whole block inside the operands.
        unsafe {
            let mut v = B::load::<I>(p.srcs[0].add(at));
            if p.srcs.len() > 1 {
                for s in &p.srcs[1..] {
                    v = B::apply::<I, O>(v, B::load::<I>(s.add(at)));
                }
                v = B::canonical(v);
            }
            for d in p.dsts {
                let to = d.add(at);
                B::store::<I>(v, to, p.streaming && (to as usize).is_multiple_of(LINE));
            }
        }
        at += B::BYTES;
    }
    at
}

/// The same of two sources, with a number of destinations that the compiler knows: the loops over
/// operands take as long as the arithmetic.
///
/// # Safety
/// As [`pass`].
#[inline(always)]
unsafe fn two<I: Isa, B: Block, O: Operator, const D: usize>(
    [a, b]: [*const u8; 2],
    dsts: [*mut u8; D],
    bytes: usize,
) -> usize {
    let mut at = 0;
    while at + B::BYTES <= bytes {
        // SAFETY: a whole block inside the operands, loaded before it is stored.
        unsafe {
            let v = B::apply::<I, O>(B::load::<I>(a.add(at)), B::load::<I>(b.add(at)));
            let v = B::canonical(v);
            for d in dsts {
                B::store::<I>(v, d.add(at), false);
            }
        }
        at += B::BYTES;
    }
    at
}

/// Less than a block, by way of a block on the stack, so that the same instructions compute it.
///
/// # Safety
/// As [`pass`]; `at..at + len` lies inside the operands and `len` is at most a block.
#[inline(always)]
unsafe fn partial<I: Isa, B: Block, O: Operator>(p: &Pass<'_>, at: usize, len: usize) {
    if len == 0 {
        return;
    }
    let mut room = [0u8; 4 * LINE];
    // SAFETY: `room` holds a block, `len` fits it; the caller's contract.
    unsafe {
        std::ptr::copy_nonoverlapping(p.srcs[0].add(at), room.as_mut_ptr(), len);
        let mut v = B::load::<I>(room.as_ptr());
        if p.srcs.len() > 1 {
            for s in &p.srcs[1..] {
                std::ptr::copy_nonoverlapping(s.add(at), room.as_mut_ptr(), len);
                v = B::apply::<I, O>(v, B::load::<I>(room.as_ptr()));
            }
            v = B::canonical(v);
        }
        B::store::<I>(v, room.as_mut_ptr(), false);
        for d in p.dsts {
            std::ptr::copy_nonoverlapping(room.as_ptr(), d.add(at), len);
        }
    }
}

/// The pass as functions that enable a level's features, one for each type and operation: in one
/// function for all, they took the compiler twice as long.
trait Compiled: Isa {
    /// [`pass`].
    ///
    /// # Safety
    /// As [`pass`].
    unsafe fn pass<B: Block, O: Operator>(p: &Pass<'_>);

    /// [`partial`], which a pass calls twice.
    ///
    /// # Safety
    /// As [`partial`].
    unsafe fn partial<B: Block, O: Operator>(p: &Pass<'_>, at: usize, len: usize);
}

macro_rules! compiled {
    ($Level:ident, $(#[$features:meta])*) => {
        impl Compiled for $Level {
            $(#[$features])*
            unsafe fn pass<B: Block, O: Operator>(p: &Pass<'_>) {
                // SAFETY: the caller's contract.
                unsafe { pass::<Self, B, O>(p) }
            }
            $(#[$features])*
            #[inline(never)]
            unsafe fn partial<B: Block, O: Operator>(p: &Pass<'_>, at: usize, len: usize) {
                // SAFETY: the caller's contract.
                unsafe { partial::<Self, B, O>(p, at, len) }
            }
        }
    };
}
compiled!(Baseline,);
#[cfg(target_arch = "x86_64")]
compiled!(Avx2, #[target_feature(enable = "avx2,f16c")]);
#[cfg(target_arch = "x86_64")]
compiled!(
    Avx512,
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
);

/// The pass of a type; `W` has the same sums and products. Those of signed numbers, which wrap, are
/// those of unsigned.
///
/// # Safety
/// As [`pass`].
unsafe fn by_op<I: Compiled, B: Block, W: Block>(op: ReduceOp, p: &Pass<'_>) {
    let n = p.n * B::ELEMENT;
    let bytes = Pass { n, ..*p };
    // SAFETY: the caller's contract.
    unsafe {
        match op {
            ReduceOp::Sum => I::pass::<W, Sum>(p),
            ReduceOp::Prod => I::pass::<W, Prod>(p),
            ReduceOp::Min => I::pass::<B, Min>(p),
            ReduceOp::Max => I::pass::<B, Max>(p),
            // Bitwise operations go by bytes, for elements of any type.
            ReduceOp::And => I::pass::<Plain<u8>, And>(&bytes),
            ReduceOp::Or => I::pass::<Plain<u8>, Or>(&bytes),
            ReduceOp::Xor => I::pass::<Plain<u8>, Xor>(&bytes),
        }
    }
}

/// # Safety
/// As [`pass`].
unsafe fn by_type<I: Compiled>(dtype: DataType, op: ReduceOp, p: &Pass<'_>) {
    // SAFETY: the caller's contract.
    unsafe {
        match dtype {
            // A copy keeps all bits, those of a NaN too.
            _ if p.srcs.len() == 1 => {
                let n = p.n * dtype.bytes() as usize;
                I::pass::<Plain<u8>, Sum>(&Pass { n, ..*p });
            }
            DataType::F32 => by_op::<I, Plain<f32>, Plain<f32>>(op, p),
            DataType::F64 => by_op::<I, Plain<f64>, Plain<f64>>(op, p),
            DataType::F16 => by_op::<I, F16, F16>(op, p),
            DataType::Bf16 => by_op::<I, Bf16, Bf16>(op, p),
            DataType::I8 => by_op::<I, Plain<i8>, Plain<u8>>(op, p),
            DataType::U8 => by_op::<I, Plain<u8>, Plain<u8>>(op, p),
            DataType::I16 => by_op::<I, Plain<i16>, Plain<u16>>(op, p),
            DataType::U16 => by_op::<I, Plain<u16>, Plain<u16>>(op, p),
            DataType::I32 => by_op::<I, Plain<i32>, Plain<u32>>(op, p),
            DataType::U32 => by_op::<I, Plain<u32>, Plain<u32>>(op, p),
            DataType::I64 => by_op::<I, Plain<i64>, Plain<u64>>(op, p),
            DataType::U64 => by_op::<I, Plain<u64>, Plain<u64>>(op, p),
        }
    }
}
