//! Words in the GPU's own memory that kernels alone use: the producers' half of a queue (docs/adr/0023).
//!
//! Blocks come back into a pool instead of being freed: to free memory waits for every kernel, of which one may be
//! waiting for what the freeing thread does next.
#![allow(unsafe_code)] // Calls into libcuda.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys;

use super::context::Context;
use super::driver;
use super::error::CudaError;

/// Blocks that nobody uses, by their bytes.
#[derive(Debug)]
pub(super) struct NearPool {
    context: Arc<Context>,
    free: Mutex<BTreeMap<usize, Vec<u64>>>,
}

impl NearPool {
    pub(super) fn new(context: Arc<Context>) -> Arc<NearPool> {
        Arc::new(NearPool {
            context,
            free: Mutex::default(),
        })
    }

    /// A block of at least so many bytes, whose contents are undefined. The driver aligns it to 256.
    pub(super) fn block(self: &Arc<NearPool>, bytes: usize) -> Result<NearBlock, CudaError> {
        let bytes = bytes.next_power_of_two();
        let again = self.free().get_mut(&bytes).and_then(Vec::pop);
        let va = match again {
            Some(va) => va,
            None => {
                self.context.bind()?;
                let mut va = 0;
                // SAFETY: the pointer is to a live address; a context is current.
                let r = unsafe { sys::cuMemAlloc_v2(&mut va, bytes) };
                driver::check_memory("cuMemAlloc", r, bytes as u64, "GPU memory")?;
                va
            }
        };
        Ok(NearBlock {
            pool: self.clone(),
            va,
            bytes,
        })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, Vec<u64>>> {
        // A list of addresses is whole at any time.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for NearPool {
    fn drop(&mut self) {
        let all = std::mem::take(&mut *self.free());
        if self.context.bind().is_ok() {
            for va in all.into_values().flatten() {
                // SAFETY: allocated by `block`, freed once, and no block is left that uses it.
                let _ = unsafe { sys::cuMemFree_v2(va) };
            }
        }
    }
}

/// A block in use. Nothing of a kernel may use it once it is dropped.
#[derive(Debug)]
pub(super) struct NearBlock {
    pool: Arc<NearPool>,
    va: u64,
    bytes: usize,
}

impl NearBlock {
    /// Where kernels see it.
    pub(super) fn va(&self) -> u64 {
        self.va
    }
}

impl Drop for NearBlock {
    fn drop(&mut self) {
        let mut free = self.pool.free();
        free.entry(self.bytes).or_default().push(self.va);
    }
}
