//! Posted writes through mappings of GPU memory, and their flush.
#![allow(unsafe_code)] // Empties the core's write-combining buffers.

use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::Mutex;

use crate::locks::lock;

/// No write since the last flush.
const CLEAN: u64 = u64::MAX;

/// The offset of the last write since the last flush.
#[derive(Debug)]
pub(crate) struct PostedWrites {
    /// Offset of the last write since the last flush, or [`CLEAN`].
    written: AtomicU64,
    flushing: Mutex<()>,
}

impl PostedWrites {
    pub(crate) fn new() -> PostedWrites {
        PostedWrites {
            written: AtomicU64::new(CLEAN),
            flushing: Mutex::new(()),
        }
    }

    /// Notes a store at an offset.
    pub(crate) fn wrote(&self, offset: u64) {
        // Release: pairs with the Acquire in `flush`.
        self.written.store(offset, Ordering::Release);
    }

    /// Waits for the posted writes, by `read` of a byte at the offset it is given: a read does not
    /// overtake posted writes on PCIe. That costs a microsecond, and is skipped when no write came
    /// since the last flush. One flush runs at a time: a second must not return before the first
    /// has its answer.
    pub(crate) fn flush(&self, read: impl FnOnce(u64) -> u8) {
        let _one = lock(&self.flushing);
        // Acquire: pairs with the Release in `wrote`.
        let written = self.written.swap(CLEAN, Ordering::Acquire);
        if written == CLEAN {
            return;
        }
        // Keeps the read behind the stores of all threads.
        fence(Ordering::SeqCst);
        std::hint::black_box(read(written));
    }
}

/// Empties this core's write-combining buffers: a later flush may run on another core.
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
