//! The mbarrier object (§9.7.13.15), a word of shared memory.
//!
//! From its lowest bit: 20 bits of arrivals that are pending, 20 bits of arrivals that a phase
//! expects, 21 bits of bytes that are to come (two's complement), 3 bits of the phase's number. A
//! state is the word before an arrival.
#![allow(unsafe_code)] // Compiled code passes addresses that it has checked.

use std::sync::atomic::{AtomicU64, Ordering};

const COUNT: u64 = (1 << 20) - 1;
const EXPECTED: u32 = 20;
const BYTES: u32 = 40;
const PHASE: u32 = 61;

#[derive(Clone, Copy)]
struct Phase {
    pending: u64,
    expected: u64,
    bytes: i64,
    number: u64,
}

impl Phase {
    fn read(word: u64) -> Phase {
        Phase {
            pending: word & COUNT,
            expected: word >> EXPECTED & COUNT,
            bytes: (word << (64 - PHASE)) as i64 >> (64 - PHASE + BYTES),
            number: word >> PHASE,
        }
    }

    fn write(self) -> u64 {
        let bytes = self.bytes as u64 & ((1 << (PHASE - BYTES)) - 1);
        self.pending | self.expected << EXPECTED | bytes << BYTES | self.number << PHASE
    }

    /// Begins the next phase if nothing is to come.
    fn settled(mut self) -> Phase {
        if self.pending == 0 && self.bytes == 0 {
            self.pending = self.expected;
            self.number = (self.number + 1) & 7;
        }
        self
    }
}

/// Changes the object; the word before.
///
/// # Safety
/// `at` was checked: 8 aligned bytes that only such operations access.
unsafe fn change(at: u64, f: impl Fn(Phase) -> Phase) -> u64 {
    // SAFETY: the caller's contract.
    let word = unsafe { AtomicU64::from_ptr(at as *mut u64) };
    let next = |old| Some(f(Phase::read(old)).write());
    let old = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    old.unwrap_or_else(|old| old)
}

/// `mbarrier.init`; without arrivals, `mbarrier.inval`.
///
/// # Safety
/// As `change`.
pub(crate) unsafe extern "C" fn phase_init(at: u64, count: u64) -> u64 {
    // SAFETY: the caller's contract.
    unsafe {
        change(at, |_| Phase {
            pending: count & COUNT,
            expected: count & COUNT,
            bytes: 0,
            number: 0,
        })
    }
}

/// `mbarrier.expect_tx`.
///
/// # Safety
/// As `change`.
pub(crate) unsafe extern "C" fn phase_expect(at: u64, bytes: u64) -> u64 {
    let more = |p: Phase| Phase {
        bytes: p.bytes + i64::from(bytes as u32),
        ..p
    };
    // SAFETY: the caller's contract.
    unsafe { change(at, |p| more(p).settled()) }
}

/// `mbarrier.complete_tx`.
///
/// # Safety
/// As `change`.
pub(crate) unsafe extern "C" fn phase_complete(at: u64, bytes: u64) -> u64 {
    let sent = |p: Phase| Phase {
        bytes: p.bytes - i64::from(bytes as u32),
        ..p
    };
    // SAFETY: the caller's contract.
    unsafe { change(at, |p| sent(p).settled()) }
}

/// `mbarrier.arrive`: the state. More arrivals than are pending, which the ISA leaves open,
/// complete the phase.
///
/// # Safety
/// As `change`.
pub(crate) unsafe extern "C" fn phase_arrive(at: u64, count: u64) -> u64 {
    let arrived = |p: Phase| Phase {
        pending: p.pending.saturating_sub(count & COUNT),
        ..p
    };
    // SAFETY: the caller's contract.
    unsafe { change(at, |p| arrived(p).settled()) }
}

/// `mbarrier.arrive_drop`.
///
/// # Safety
/// As `change`.
pub(crate) unsafe extern "C" fn phase_drop(at: u64, count: u64) -> u64 {
    let left = |p: Phase| Phase {
        pending: p.pending.saturating_sub(count & COUNT),
        expected: p.expected.saturating_sub(count & COUNT),
        ..p
    };
    // SAFETY: the caller's contract.
    unsafe { change(at, |p| left(p).settled()) }
}

/// `mbarrier.test_wait`: whether the phase of a state is over.
///
/// # Safety
/// As `change`.
pub(crate) unsafe extern "C" fn phase_test(at: u64, state: u64) -> u64 {
    // SAFETY: the caller's contract.
    let word = unsafe { AtomicU64::from_ptr(at as *mut u64) }.load(Ordering::SeqCst);
    u64::from(word >> PHASE != state >> PHASE)
}

/// `mbarrier.test_wait.parity`: whether the phase of this parity is over.
///
/// # Safety
/// As `change`.
pub(crate) unsafe extern "C" fn phase_parity(at: u64, parity: u64) -> u64 {
    // SAFETY: the caller's contract.
    let word = unsafe { AtomicU64::from_ptr(at as *mut u64) }.load(Ordering::SeqCst);
    (word >> PHASE ^ parity) & 1
}

/// `mbarrier.pending_count` of a state.
pub(crate) extern "C" fn phase_pending(state: u64) -> u64 {
    state & COUNT
}
