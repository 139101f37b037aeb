//! Revocation of write access to shared memory: after it, no peer writes.
//!
//! As Dekker's algorithm: the writer stores `busy`, then loads `revoked`; the owner stores
//! `revoked`, then loads `busy`. With a sequentially consistent fence between store and load on
//! both sides, at least one of them sees the other (`tests/loom_guard.rs` tries all interleavings).

use super::sync::{self, AtomicU64, Ordering};

/// Writer, 1: announces a write. Then [`fence`], then [`is_revoked`].
pub(crate) fn announce(busy: &AtomicU64) {
    busy.store(1, Ordering::Relaxed);
}

/// Writer, 2: between [`announce`] and [`is_revoked`]. One fence serves several owners.
pub(crate) fn fence() {
    sync::fence(Ordering::SeqCst);
}

/// Writer, 3: whether the owner has revoked its memory; then it must not be written.
pub(crate) fn is_revoked(revoked: &AtomicU64) -> bool {
    revoked.load(Ordering::Relaxed) != 0
}

/// Writer, 4: the batch is stored.
pub(crate) fn leave(busy: &AtomicU64) {
    // Release: pairs with the Acquire in `is_quiet`; the stores of the batch come before.
    busy.store(0, Ordering::Release);
}

/// Owner, 1: revokes the memory.
pub(crate) fn revoke(revoked: &AtomicU64) {
    revoked.store(1, Ordering::Relaxed);
    sync::fence(Ordering::SeqCst);
}

/// Owner, 2: whether a writer is outside of a batch; once seen after [`revoke`], it writes no more.
pub(crate) fn is_quiet(busy: &AtomicU64) -> bool {
    busy.load(Ordering::Acquire) == 0
}
