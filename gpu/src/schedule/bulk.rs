//! Copies and reductions of many bytes (§9.7.9.25.4), done when they are issued.
#![allow(unsafe_code)] // Compiled code passes its own thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::helpers::{check, check_allocated, refused, touched};
use crate::context::mark::{ALLOCATED, SHARED, STORE};
use crate::context::Thread;
use crate::hooks::How;
use crate::module::{AtomicOp, FloatMode, Type};
use crate::number::{float, FloatOp, Task};

/// What is copied at once: sizes and addresses are multiples of it.
const UNIT: u64 = 16;

/// Which side lies in shared memory, and what is done with the bytes, for the helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) to_shared: bool,
    pub(crate) from_shared: bool,
    pub(crate) reduce: Option<(AtomicOp, Type)>,
}

const OPS: [AtomicOp; 8] = [
    AtomicOp::Add,
    AtomicOp::Min,
    AtomicOp::Max,
    AtomicOp::And,
    AtomicOp::Or,
    AtomicOp::Xor,
    AtomicOp::Inc,
    AtomicOp::Dec,
];
const TYPES: [Type; 10] = [
    Type::B32,
    Type::U32,
    Type::S32,
    Type::B64,
    Type::U64,
    Type::S64,
    Type::F16,
    Type::Bf16,
    Type::F32,
    Type::F64,
];

impl Transfer {
    /// As a constant of compiled code; `None` for operations that are not among them.
    pub(crate) fn pack(self) -> Option<u32> {
        let reduce = match self.reduce {
            None => 0,
            Some((op, ty)) => {
                let op = OPS.iter().position(|o| *o == op)?;
                let ty = TYPES.iter().position(|t| *t == ty)?;
                1 + (op * TYPES.len() + ty) as u32
            }
        };
        Some(u32::from(self.to_shared) | u32::from(self.from_shared) << 1 | reduce << 2)
    }

    fn unpack(word: u32) -> Transfer {
        let reduce = (word as usize >> 2).checked_sub(1);
        Transfer {
            to_shared: word & 1 == 1,
            from_shared: word & 2 == 2,
            reduce: reduce.map(|n| (OPS[n / TYPES.len()], TYPES[n % TYPES.len()])),
        }
    }
}

/// The first unit that the thread may not access.
///
/// # Safety
/// `t` is the running thread, `memory` its GPU memory.
unsafe fn refused_unit(
    t: *mut Thread,
    (at, bytes): (u64, u64),
    shared: bool,
    store: bool,
    memory: (u64, u64),
    site: u32,
) -> bool {
    let within = |(base, len): (u64, u64)| {
        let offset = at.wrapping_sub(base);
        offset <= len && len - offset >= bytes && at.is_multiple_of(UNIT)
    };
    // SAFETY: the caller's contract; the block outlives its threads.
    let block = unsafe { &*(*t).block };
    let mark = UNIT as u32 | if store { STORE } else { 0 };
    // Of checked code, each unit must belong to an allocation or a variable.
    let unallocated = |first: u64, space: u32| {
        let units = if block.maps[0].is_null() {
            0
        } else {
            bytes / UNIT
        };
        // SAFETY: the caller's contract, and the range is inside of its memory.
        let bad = |i| unsafe { check_allocated(t, first + i * UNIT, mark | space, site) == 0 };
        (0..units).any(bad)
    };
    if shared {
        let own = (block.shared as u64, block.shared_bytes);
        if within(own) {
            return unallocated(at - own.0, SHARED);
        }
        let inside = |at: u64| {
            at.wrapping_sub(own.0) <= own.1.saturating_sub(UNIT) && at.is_multiple_of(UNIT)
        };
        let first = (0..bytes.div_ceil(UNIT)).map(|i| at.wrapping_add(i * UNIT));
        let bad = first.take(1 << 16).find(|at| !inside(*at)).unwrap_or(at);
        // SAFETY: the caller's contract.
        unsafe { refused(t, bad.wrapping_sub(own.0), mark | SHARED, site) };
        return true;
    }
    if within(memory) {
        return unallocated(at - memory.0, ALLOCATED);
    }
    // SAFETY: the caller's contract; what is refused is noted.
    (0..bytes / UNIT).any(|i| unsafe { check(t, at.wrapping_add(i * UNIT), mark, site) == 0 })
}

/// Tells the trace of a range that was found to be allowed.
///
/// # Safety
/// `t` is the running thread.
unsafe fn touched_range(t: *mut Thread, at: u64, bytes: u64, store: bool, site: u32) {
    // SAFETY: the caller's contract.
    unsafe {
        if (*(*t).block).trace.is_null() {
            return;
        }
        let how = How::new(UNIT as u32, store).pack();
        (0..bytes / UNIT).for_each(|i| touched(t, at + i * UNIT, how, site));
    }
}

/// Executes a packed [`Transfer`]: 0, or 1 after a fault that is noted in the thread.
///
/// # Safety
/// `t` is the running thread, and `base` and `len` are GPU memory.
pub(crate) unsafe extern "C" fn bulk(
    t: *mut Thread,
    to: u64,
    from: u64,
    bytes: u32,
    transfer: u32,
    site: u32,
    base: u64,
    len: u64,
) -> u64 {
    let transfer = Transfer::unpack(transfer);
    let n = u64::from(bytes);
    let memory = (base, len);
    // SAFETY: the caller's contract.
    unsafe {
        if !n.is_multiple_of(UNIT) {
            // The end is not aligned.
            refused(t, from.wrapping_add(n), UNIT as u32, site);
            return 1;
        }
        if refused_unit(t, (from, n), transfer.from_shared, false, memory, site)
            || refused_unit(t, (to, n), transfer.to_shared, true, memory, site)
        {
            return 1;
        }
        touched_range(t, from, n, false, site);
        touched_range(t, to, n, true, site);
        match transfer.reduce {
            None => std::ptr::copy(from as *const u8, to as *mut u8, n as usize),
            Some((op, ty)) => reduce(op, ty, to, from, n),
        }
    }
    0
}

/// # Safety
/// Both ranges were checked.
unsafe fn reduce(op: AtomicOp, ty: Type, to: u64, from: u64, bytes: u64) {
    let wide = ty.bytes() == 8;
    let unit = if wide { 8 } else { 4 };
    for at in (0..bytes).step_by(unit) {
        // SAFETY: inside of the ranges, and aligned.
        unsafe {
            if wide {
                let v = *((from + at) as *const u64);
                let word = AtomicU64::from_ptr((to + at) as *mut u64);
                let next = |old| Some(combine(op, ty, old, v));
                let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
            } else {
                let v = *((from + at) as *const u32);
                let word = AtomicU32::from_ptr((to + at) as *mut u32);
                let next = |old| Some(combine(op, ty, u64::from(old), u64::from(v)) as u32);
                let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
            }
        }
    }
}

/// One element; of halves, the two of a word.
fn combine(op: AtomicOp, ty: Type, old: u64, v: u64) -> u64 {
    let pair = match ty {
        Type::F16 => Some(Type::F16x2),
        Type::Bf16 => Some(Type::Bf16x2),
        Type::F32 | Type::F64 => Some(ty),
        _ => None,
    };
    if let Some(ty) = pair {
        let op = match op {
            AtomicOp::Min => FloatOp::Min,
            AtomicOp::Max => FloatOp::Max,
            _ => FloatOp::Add,
        };
        let mode = FloatMode::default();
        return float(Task { op, ty, mode }.pack(), old, v, 0);
    }
    let signed = |v: u64| match ty {
        Type::S32 => i64::from(v as i32),
        _ => v as i64,
    };
    let less = match ty.is_signed() {
        true => signed(v) < signed(old),
        false => v < old,
    };
    match op {
        AtomicOp::Add => old.wrapping_add(v),
        AtomicOp::And => old & v,
        AtomicOp::Or => old | v,
        AtomicOp::Xor => old ^ v,
        AtomicOp::Min if less => v,
        AtomicOp::Max if !less => v,
        AtomicOp::Inc if old >= v => 0,
        AtomicOp::Inc => old + 1,
        AtomicOp::Dec if old == 0 || old > v => v,
        AtomicOp::Dec => old - 1,
        _ => old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_transfer_says_what_it_was() {
        let all = OPS.iter().flat_map(|op| TYPES.map(|ty| Some((*op, ty))));
        for reduce in all.chain([None]) {
            for bits in 0..4 {
                let transfer = Transfer {
                    to_shared: bits & 1 == 1,
                    from_shared: bits & 2 == 2,
                    reduce,
                };
                assert_eq!(transfer.pack().map(Transfer::unpack), Some(transfer));
            }
        }
    }
}
