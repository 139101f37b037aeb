//! The one context: which threads and processes have it, and whether it still works.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::{strict, Result, INVALID_CONTEXT, NOT_INITIALIZED, NOT_PERMITTED};

/// The one context.
pub(crate) const CONTEXT: usize = 0xc0de_0000;

thread_local! {
    pub(crate) static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Users of the primary context.
pub(crate) static RETAINED: AtomicUsize = AtomicUsize::new(0);
/// The process that has called cuInit: its children have no CUDA.
pub(crate) static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Bytes of stack that are set aside for each lane.
pub(crate) static STACK: AtomicUsize = AtomicUsize::new(1024);

fn has_current() -> bool {
    CURRENT.get() == CONTEXT && RETAINED.load(Ordering::Relaxed) > 0
}

/// Whether the process was forked after cuInit.
pub(crate) fn is_forked() -> bool {
    let started = PROCESS.load(Ordering::Relaxed);
    started != 0 && started != std::process::id()
}

pub(crate) fn stack() -> usize {
    STACK.load(Ordering::Relaxed)
}

/// A launch needs more stack than any before.
pub(crate) fn raise_stack(bytes: usize) {
    STACK.fetch_max(bytes, Ordering::Relaxed);
}

/// The error that has lost the context, or 0.
static LOST: AtomicU32 = AtomicU32::new(0);

/// The context is lost. Whether it was not before.
pub(crate) fn lose(code: Result) -> bool {
    let set = LOST.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
    set.is_ok()
}

thread_local! {
    /// Whether this thread runs a host function of a stream, which may not call the driver
    /// (`cuLaunchHostFunc`).
    pub(crate) static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// The check at the beginning of most calls: there is a current context, and it works.
pub(crate) fn ready() -> std::result::Result<(), Result> {
    if IN_HOST_FUNCTION.get() {
        return Err(NOT_PERMITTED);
    }
    if is_forked() {
        return Err(NOT_INITIALIZED);
    }
    strict::pass();
    if !has_current() {
        return Err(INVALID_CONTEXT);
    }
    match LOST.load(Ordering::Acquire) {
        0 => Ok(()),
        code => Err(code),
    }
}
