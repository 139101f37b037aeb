//! Writes that wait on their way: what mappings of GPU memory have in common.
#![allow(unsafe_code)] // Empties the core's write-combining buffers.

use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// No write since the last flush.
const CLEAN: u64 = u64::MAX;

/// Remembers where was written last, until a flush.
#[derive(Debug)]
pub(crate) struct Posted {
    /// Offset of the last write since the last flush, or [`CLEAN`].
    written: AtomicU64,
    flushing: Mutex<()>,
}

impl Posted {
    pub(crate) fn new() -> Posted {
        Posted {
            written: AtomicU64::new(CLEAN),
            flushing: Mutex::new(()),
        }
    }

    /// Something was stored at an offset.
    pub(crate) fn wrote(&self, offset: u64) {
        // Release: pairs with the Acquire in `flush`.
        self.written.store(offset, Ordering::Release);
    }

    /// Reads a byte back, by `read` at the offset it is given: a read does not overtake posted writes on PCIe, so that
    /// when it answers they have arrived. That costs a microsecond, and is done only when something was written since
    /// the last time. One flush at a time: the second must not return before the first has its answer.
    pub(crate) fn flush(&self, read: impl FnOnce(u64) -> u8) {
        let _one = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        // Acquire: pairs with the Release in `wrote`.
        let written = self.written.swap(CLEAN, Ordering::Acquire);
        if written == CLEAN {
            return;
        }
        // Keeps the read behind the stores, whoever made them.
        fence(Ordering::SeqCst);
        std::hint::black_box(read(written));
    }
}

/// Empties this core's write-combining buffers: whoever flushes later need not be this core.
#[inline]
pub(crate) fn drain() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    fence(Ordering::SeqCst);
}
