//! Kernels that run while their NIC is closed, and what they can reach until they have ended.
//!
//! A kernel that waits looks at its queue in host memory and calls the NIC to make progress; it dereferences GPU memory. So nothing
//! of a closed NIC is freed while a kernel of its GPU runs, or one that `rb::launch` runs in the program: of those it
//! is not known which NIC they use.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringbell::parts::cuda_kernels::Gpu;

/// Launches of the program's own threads.
struct Own {
    running: BTreeSet<u64>,
    last: u64,
}

/// A closed NIC with its users.
struct Kept {
    gpu: Gpu,
    /// Launches of the program that ran when it was closed.
    own: BTreeSet<u64>,
    _values: Box<dyn Any + Send>,
}

static OWN: Mutex<Own> = Mutex::new(Own {
    running: BTreeSet::new(),
    last: 0,
});
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a kernel runs that may use a NIC beside this GPU.
pub(super) fn is_running(gpu: &Gpu) -> bool {
    gpu.is_running() || !lock(&OWN).running.is_empty()
}

/// Keeps a closed NIC until all kernels that run now have ended.
pub(super) fn keep(gpu: Gpu, values: impl Any + Send) {
    let own = lock(&OWN).running.clone();
    lock(&KEPT).push(Kept {
        gpu,
        own,
        _values: Box::new(values),
    });
}

/// Frees what no kernel can reach any more.
pub(super) fn release() {
    let mut kept = lock(&KEPT);
    if kept.is_empty() {
        return;
    }
    let running = lock(&OWN).running.clone();
    let is_over = |k: &mut Kept| !k.gpu.is_running() && k.own.is_disjoint(&running);
    let over: Vec<Kept> = kept.extract_if(.., is_over).collect();
    // Dropped without the locks: it takes a while, and threads of the NIC end.
    drop(kept);
    drop(over);
}

#[no_mangle]
extern "C" fn rb_launch_begin() -> u64 {
    let mut own = lock(&OWN);
    own.last += 1;
    let launch = own.last;
    own.running.insert(launch);
    launch
}

#[no_mangle]
extern "C" fn rb_launch_end(launch: u64) {
    lock(&OWN).running.remove(&launch);
    // A panic must not unwind into the program.
    let _ = std::panic::catch_unwind(release);
}
