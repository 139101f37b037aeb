//! The primary context of one GPU, which must be current for most of the driver's calls.

use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError};

use super::deferred_release::DeferredRelease;
use super::driver::{self, DeviceInfo};
use super::stream_ops;
use crate::cuda_error::CudaError;

/// A context and what the driver says of its GPU.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) cuda: Arc<CudaContext>,
    pub(super) device: DeviceInfo,
    /// CUDA version of the driver.
    pub(super) driver: i32,
    /// Whether streams can store and wait for words, or why not.
    pub(super) stream_ops: Result<(), String>,
    /// Shared by all users of the GPU in this process.
    pub(super) deferred: Arc<DeferredRelease>,
}

fn refused(call: &'static str, e: DriverError) -> CudaError {
    match driver::check(call, e.0) {
        Err(e) => e,
        Ok(()) => CudaError::Call {
            call,
            code: 0,
            name: "no reason".into(),
        },
    }
}

impl Context {
    /// Retains the primary context of GPU `ordinal`: the one that the runtime API, PyTorch and
    /// `cudarc`'s own types use, so that their pointers are valid here.
    pub(super) fn new(ordinal: usize) -> Result<Context, CudaError> {
        let found = driver::find()?;
        let count = found.devices.len();
        let device = found
            .devices
            .into_iter()
            .nth(ordinal)
            .ok_or(CudaError::NoSuchDevice { ordinal, count })?;
        let cuda = CudaContext::new(ordinal).map_err(|e| refused("cuDevicePrimaryCtxRetain", e))?;
        use CUdevice_attribute as A;
        for (which, what) in [
            (
                A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
                "unified addressing (one address space with the host)",
            ),
            (
                A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
                "mapped host memory",
            ),
        ] {
            if driver::attribute(cuda.cu_device(), which)? == 0 {
                return Err(CudaError::Unsuitable {
                    name: device.name,
                    what,
                });
            }
        }
        let stream_ops = stream_ops::supported(cuda.cu_device());
        let deferred = DeferredRelease::of(&cuda)?;
        Ok(Context {
            stream_ops,
            cuda,
            device,
            driver: found.version,
            deferred,
        })
    }

    /// Makes the context current on this thread.
    pub(super) fn bind(&self) -> Result<(), CudaError> {
        if let Some(e) = self.deferred.lost() {
            return Err(e.clone());
        }
        driver::make_current(self.cuda.cu_ctx()).map_err(|e| self.note(e))
    }

    /// Checks a call's result, and records when the context is lost.
    pub(super) fn check(&self, call: &'static str, result: CUresult) -> Result<(), CudaError> {
        driver::check(call, result).map_err(|e| self.note(e))
    }

    /// The error that lost the context.
    pub(super) fn lost(&self) -> Option<&CudaError> {
        self.deferred.lost()
    }

    /// Records an error that loses the context, and returns the first such error.
    pub(super) fn note(&self, e: CudaError) -> CudaError {
        if matches!(e, CudaError::Lost { .. }) {
            return self.deferred.lose(e);
        }
        e
    }
}
