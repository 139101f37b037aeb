//! Device-resident words that kernels alone use: the producers' half of a queue (docs/adr/0023).
//!
//! A running kernel may still know a block that was dropped. So the block is not used again while a
//! kernel runs, and its release is deferred.
#![allow(unsafe_code)] // Calls into libcuda.

use std::sync::Arc;

use cudarc::driver::sys;

use super::context::Context;
use super::deferred_release::Resource;
use super::driver;
use crate::cuda_error::CudaError;

/// Memory of the driver's own allocator; its release is deferred when it is dropped.
#[derive(Debug)]
pub(super) struct DeviceBlock {
    context: Arc<Context>,
    va: u64,
}

impl DeviceBlock {
    /// At least `bytes` bytes of undefined contents. The driver aligns the block to 256.
    pub(super) fn new(context: Arc<Context>, bytes: usize) -> Result<DeviceBlock, CudaError> {
        context.bind()?;
        context.deferred.release_pending();
        let mut va = 0;
        // SAFETY: the pointer is to a live address; a context is current.
        let r = unsafe { sys::cuMemAlloc_v2(&mut va, bytes) };
        driver::check_memory("cuMemAlloc", r, bytes as u64, "GPU memory")
            .map_err(|e| context.note(e))?;
        Ok(DeviceBlock { context, va })
    }

    /// The address that kernels use.
    pub(super) fn va(&self) -> u64 {
        self.va
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        self.context.deferred.release(Resource::Device(self.va));
    }
}
