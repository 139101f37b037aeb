//! Every interleaving of writers and an owner that revokes its memory, under the C11 memory model:
//! the module itself, compiled with loom's atomics.
#![allow(dead_code, unreachable_pub, missing_docs)] // The module's other users are not here.
#![allow(unsafe_code)] // A cell that loom watches.

mod sync {
    pub(crate) use loom::sync::atomic::{fence, AtomicU64, Ordering};
}

#[path = "../src/collective/direct/guard.rs"]
mod guard;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::AtomicU64;

struct Owner {
    busy: AtomicU64,
    revoked: AtomicU64,
    /// The buffer: loom fails when it is touched by two threads at once.
    buffer: UnsafeCell<u64>,
}

// SAFETY: that `buffer` is never touched by two threads at once is what the model checks.
unsafe impl Sync for Owner {}

/// A batch of the writer, as `Direct::run_pass` makes it.
fn batch(o: &Owner, value: u64) -> bool {
    guard::announce(&o.busy);
    guard::fence();
    let may = !guard::is_revoked(&o.revoked);
    if may {
        // SAFETY: checked by loom.
        o.buffer.with_mut(|b| unsafe { *b = value });
    }
    guard::leave(&o.busy);
    may
}

#[test]
fn no_thread_writes_after_a_revocation_that_saw_the_writer_outside() {
    loom::model(|| {
        let o = Arc::new(Owner {
            busy: AtomicU64::new(0),
            revoked: AtomicU64::new(0),
            buffer: UnsafeCell::new(0),
        });
        let writer = {
            let o = o.clone();
            thread::spawn(move || {
                for value in 1..=2 {
                    if !batch(&o, value) {
                        break;
                    }
                }
            })
        };
        guard::revoke(&o.revoked);
        // The NIC looks once per step; that it may have to look again is not a wait of the model.
        if guard::is_quiet(&o.busy) {
            // SAFETY: checked by loom.
            o.buffer.with_mut(|b| unsafe { *b = 100 });
        }
        writer.join().expect("the writer");
    });
}
