//! Kernels that run while their NIC is closed, and what they can reach until they have ended.
//!
//! A kernel that waits looks at its queue in host memory, and makes the NIC progress; it
//! dereferences GPU memory. So nothing of a closed NIC is freed while a kernel of its GPU runs.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use ringbell::parts::cuda_kernels::Gpu;

/// A closed NIC with its users.
struct Kept {
    gpu: Gpu,
    _values: Box<dyn Any + Send>,
}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Keeps a closed NIC until all kernels of its GPU that run now have ended.
pub(super) fn keep(gpu: Gpu, values: impl Any + Send) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    kept.push(Kept {
        gpu,
        _values: Box::new(values),
    });
}

/// Frees what no kernel can reach any more.
pub(super) fn release() {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let over: Vec<Kept> = kept.extract_if(.., |k| !k.gpu.is_running()).collect();
    // Dropped without the lock: it takes a while, and threads of the NIC end.
    drop(kept);
    drop(over);
}
