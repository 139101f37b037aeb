//! Words in the GPU's own memory that kernels alone use: the producers' half of a queue (docs/adr/0023).
//!
//! A block that is dropped is not used again while a kernel runs that may know it, and is freed afterwards: to free
//! memory waits for every kernel, of which one may be waiting for what the freeing thread does next (`yard`).
#![allow(unsafe_code)] // Calls into libcuda.

use std::sync::Arc;

use cudarc::driver::sys;

use super::context::Context;
use super::driver;
use super::error::CudaError;
use super::yard::Waste;

/// A block of GPU memory, which is given back when it is dropped.
#[derive(Debug)]
pub(super) struct NearBlock {
    context: Arc<Context>,
    va: u64,
}

impl NearBlock {
    /// At least so many bytes, whose contents are undefined. The driver aligns it to 256.
    pub(super) fn new(context: Arc<Context>, bytes: usize) -> Result<NearBlock, CudaError> {
        context.bind()?;
        context.yard.sweep();
        let mut va = 0;
        // SAFETY: the pointer is to a live address; a context is current.
        let r = unsafe { sys::cuMemAlloc_v2(&mut va, bytes) };
        driver::check_memory("cuMemAlloc", r, bytes as u64, "GPU memory")
            .map_err(|e| context.note(e))?;
        Ok(NearBlock { context, va })
    }

    /// Where kernels see it.
    pub(super) fn va(&self) -> u64 {
        self.va
    }
}

impl Drop for NearBlock {
    fn drop(&mut self) {
        self.context.yard.give_back(Waste::Device(self.va));
    }
}
