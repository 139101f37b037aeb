//! The GPU for NCCL's ranks: its primary context, one stream, and memory that is copied to and
//! from. No code of it is Ringbell's own: a peer is not measured through its competitor.
#![allow(unsafe_code)] // Calls into libcuda.
#![allow(clippy::disallowed_methods)] // The host waits here, with deadlines.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult, CUstream};
use cudarc::driver::{result, CudaContext, DriverError};
use ringbell::parts::cuda_kernels::cuda::{find, CudaError};

/// An error of the GPU.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeviceError {
    /// There is no usable driver or GPU.
    #[error(transparent)]
    Driver(#[from] CudaError),
    /// A GPU of this number is not there.
    #[error("there is no GPU {ordinal}; the driver shows {count}: choose one with --gpu cuda:N")]
    NoSuchGpu { ordinal: usize, count: usize },
    /// A call failed.
    #[error("{call}: {source:?}")]
    Call {
        call: &'static str,
        source: DriverError,
    },
    /// The queued work has not ended in time.
    #[error("{what} has not ended after {seconds} s")]
    Late { what: &'static str, seconds: u64 },
}

fn at(call: &'static str) -> impl FnOnce(DriverError) -> DeviceError {
    move |source| DeviceError::Call { call, source }
}

/// A rank's part of the GPU. Memory is given back when the process ends: freeing it would wait for
/// other ranks' kernels.
pub(super) struct Device {
    context: Arc<CudaContext>,
    stream: CUstream,
    timeout: Duration,
}

impl Device {
    /// Makes the context current on this thread.
    pub(super) fn open(ordinal: usize, timeout: Duration) -> Result<Device, DeviceError> {
        // Asked first: cudarc would panic without a driver.
        let count = find()?.devices.len();
        if ordinal >= count {
            return Err(DeviceError::NoSuchGpu { ordinal, count });
        }
        let context = CudaContext::new(ordinal).map_err(at("cuDevicePrimaryCtxRetain"))?;
        context.bind_to_thread().map_err(at("cuCtxSetCurrent"))?;
        // Kept as long as the process lives: giving it back would wait for a kernel that hangs.
        std::mem::forget(context.clone());
        // As nccl-tests has it: not behind the null stream.
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(at("cuStreamCreate"))?;
        Ok(Device {
            context,
            stream,
            timeout,
        })
    }

    /// Streaming multiprocessors.
    pub(super) fn sms(&self) -> Result<i32, DeviceError> {
        let which = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let asked = self.context.attribute(which);
        asked.map_err(at("cuDeviceGetAttribute"))
    }

    /// The stream, as NCCL takes it.
    pub(super) fn stream(&self) -> *mut c_void {
        self.stream.cast()
    }

    /// Memory of the GPU.
    pub(super) fn alloc(&self, bytes: u64) -> Result<Memory<'_>, DeviceError> {
        let bytes = bytes.max(64);
        // SAFETY: a context is current; no code reads bytes that were not written before.
        let va = unsafe { result::malloc_sync(bytes as usize) }.map_err(at("cuMemAlloc"))?;
        Ok(Memory {
            device: self,
            va,
            bytes,
        })
    }

    /// Waits until the stream is empty; `look` is called in between and ends the wait with an
    /// error.
    ///
    /// As nccl-tests waits: a query, and a yield, because NCCL's own threads need the core.
    pub(super) fn wait<E: From<DeviceError>>(
        &self,
        what: &'static str,
        mut look: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let start = Instant::now();
        let mut looks = 0_u32;
        loop {
            // SAFETY: a live stream of the current context.
            match unsafe { sys::cuStreamQuery(self.stream) } {
                CUresult::CUDA_SUCCESS => return Ok(()),
                CUresult::CUDA_ERROR_NOT_READY => {}
                r => return Err(at("cuStreamQuery")(DriverError(r)).into()),
            }
            looks += 1;
            if looks.is_multiple_of(64) {
                look()?;
                if start.elapsed() > self.timeout {
                    let seconds = self.timeout.as_secs();
                    return Err(DeviceError::Late { what, seconds }.into());
                }
            }
            std::thread::yield_now();
        }
    }

    /// Waits for a copy that was just queued on the empty stream. It has no deadline of its own,
    /// because the buffer must outlive the copy: the process has one.
    fn settle(&self) -> Result<(), DeviceError> {
        // SAFETY: a live stream of the current context.
        let done = unsafe { result::stream::synchronize(self.stream) };
        done.map_err(at("cuStreamSynchronize"))
    }
}

/// Memory of the GPU, as long as its process lives.
pub(super) struct Memory<'a> {
    device: &'a Device,
    va: u64,
    bytes: u64,
}

impl Memory<'_> {
    pub(super) fn va(&self) -> u64 {
        self.va
    }

    fn inside(&self, offset: u64, len: usize) {
        let end = offset.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{len} bytes at {offset} of {}",
            self.bytes
        );
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inside(offset, bytes.len());
        let to = self.va + offset;
        // SAFETY: inside the allocation; `bytes` lives until the stream is empty.
        let copied = unsafe { result::memcpy_htod_async(to, bytes, self.device.stream) };
        copied.map_err(at("cuMemcpyHtoDAsync"))?;
        self.device.settle()
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.inside(offset, bytes.len());
        let from = self.va + offset;
        // SAFETY: inside the allocation; `bytes` lives until the stream is empty.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, from, self.device.stream) };
        copied.map_err(at("cuMemcpyDtoHAsync"))?;
        self.device.settle()
    }
}
