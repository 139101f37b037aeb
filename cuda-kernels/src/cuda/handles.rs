//! Owned CUDA handles: streams, events and pinned memory, released when dropped.
#![allow(unsafe_code)] // Calls into libcuda.
#![allow(clippy::disallowed_methods)] // The host waits here, with deadlines.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUevent, CUevent_flags, CUresult, CUstream, CUstream_flags};

use super::context::Context;
use super::deferred_release::Resource;
use super::driver;
use crate::cuda_error::CudaError;

/// A stream that does not wait for other streams.
#[derive(Debug)]
pub(super) struct RawStream {
    pub(super) context: Arc<Context>,
    pub(super) stream: CUstream,
    /// From the pool, to which it returns.
    pooled: bool,
}

// SAFETY: a handle; the driver's functions that take it are safe to call from any thread.
unsafe impl Send for RawStream {}
// SAFETY: as for Send.
unsafe impl Sync for RawStream {}

impl RawStream {
    /// A pooled stream for programs' kernels: creating one may wait for running kernels.
    pub(super) fn for_kernels(context: Arc<Context>) -> Result<RawStream, CudaError> {
        context.bind()?;
        let stream = context.deferred.acquire_stream()?;
        let pooled = true;
        Ok(RawStream {
            context,
            stream,
            pooled,
        })
    }

    /// A stream for copies, of the highest priority. Streams share the GPU's work queues (eight by
    /// default, CUDA_DEVICE_MAX_CONNECTIONS), and a copy behind a kernel that waits for it would
    /// never run.
    pub(super) fn for_copies(context: Arc<Context>) -> Result<RawStream, CudaError> {
        context.bind()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the pointers are to live integers.
        context.check("cuCtxGetStreamPriorityRange", unsafe {
            sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
        })?;
        let mut stream = std::ptr::null_mut();
        // Non-blocking: a copy must not wait for a kernel on the null stream that itself waits for
        // it.
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the pointer is to a live handle.
        context.check("cuStreamCreateWithPriority", unsafe {
            sys::cuStreamCreateWithPriority(&mut stream, flags, greatest)
        })?;
        let pooled = false;
        Ok(RawStream {
            context,
            stream,
            pooled,
        })
    }

    /// An event behind the stream's present work.
    pub(super) fn record(&self) -> Result<RawEvent, CudaError> {
        // SAFETY: a live stream of ours.
        unsafe { RawEvent::behind(self.context.clone(), self.stream) }
    }
}

impl Drop for RawStream {
    fn drop(&mut self) {
        if self.pooled {
            self.context.deferred.return_stream(self.stream);
        } else if self.context.bind().is_ok() {
            // SAFETY: created by us, destroyed once; work that it still holds goes on.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.stream) };
        }
    }
}

/// An event that records its time.
#[derive(Debug)]
pub(super) struct RawEvent {
    context: Arc<Context>,
    event: CUevent,
}

// SAFETY: as for `RawStream`.
unsafe impl Send for RawEvent {}
// SAFETY: as for Send.
unsafe impl Sync for RawEvent {}

/// Polls of an event between two readings of the clock.
const POLLS: u32 = 64;
/// Sleep between polls of a host thread that has waited for longer than [`SPIN`].
const SLEEP: Duration = Duration::from_micros(50);
/// How long a host thread polls without sleeping.
const SPIN: Duration = Duration::from_micros(100);

impl RawEvent {
    fn new(context: Arc<Context>) -> Result<RawEvent, CudaError> {
        context.bind()?;
        let mut event = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DEFAULT as u32;
        // SAFETY: the pointer is to a live handle.
        context.check("cuEventCreate", unsafe {
            sys::cuEventCreate(&mut event, flags)
        })?;
        Ok(RawEvent { context, event })
    }

    /// An event behind the present work of a stream.
    ///
    /// # Safety
    /// `stream` is a live stream of the context.
    pub(super) unsafe fn behind(
        context: Arc<Context>,
        stream: CUstream,
    ) -> Result<RawEvent, CudaError> {
        let event = RawEvent::new(context)?;
        // SAFETY: two live handles of the same context, which is current.
        event.context.check("cuEventRecord", unsafe {
            sys::cuEventRecord(event.event, stream)
        })?;
        Ok(event)
    }

    /// Whether it was reached.
    pub(super) fn is_reached(&self) -> Result<bool, CudaError> {
        self.context.bind()?;
        // SAFETY: a live event of the current context.
        match unsafe { sys::cuEventQuery(self.event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            r => self.context.check("cuEventQuery", r).map(|()| true),
        }
    }

    /// Waits until it is reached; false when it is not after `timeout`. Never `cuEventSynchronize`,
    /// which has no deadline.
    pub(super) fn wait(&self, timeout: Duration) -> Result<bool, CudaError> {
        let start = Instant::now();
        loop {
            for _ in 0..POLLS {
                if self.is_reached()? {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            match start.elapsed() {
                late if late >= timeout => return Ok(false),
                early if early < SPIN => std::thread::yield_now(),
                _ => std::thread::sleep(SLEEP),
            }
        }
    }

    /// Releases resources that waited for kernels to end, if none runs.
    pub(super) fn release_pending(&self) {
        self.context.deferred.release_pending();
    }

    pub(super) fn raw(&self) -> usize {
        self.event as usize
    }

    /// Time since an earlier event of the same GPU; `None` until both are reached.
    pub(super) fn since(&self, earlier: usize) -> Option<Duration> {
        let elapsed = driver::elapsed_time()?;
        if earlier == 0 || self.context.bind().is_err() {
            return None;
        }
        let mut ms = 0.0;
        // SAFETY: live events (the caller holds the earlier one) and a live number.
        let r = unsafe { elapsed(&mut ms, earlier as CUevent, self.event) };
        self.context.check("cuEventElapsedTime", r).ok()?;
        Duration::try_from_secs_f32(ms / 1000.0).ok()
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created by us, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}

/// Pinned memory of the host.
#[derive(Debug)]
pub(super) struct PinnedBlock {
    context: Arc<Context>,
    base: NonNull<u8>,
}

// SAFETY: plain memory, reached through raw copies only.
unsafe impl Send for PinnedBlock {}
// SAFETY: as for Send.
unsafe impl Sync for PinnedBlock {}

impl PinnedBlock {
    pub(super) fn new(context: Arc<Context>, bytes: usize) -> Result<PinnedBlock, CudaError> {
        context.bind()?;
        let mut base: *mut c_void = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the pointer is to a live pointer.
        let r = unsafe { sys::cuMemHostAlloc(&mut base, bytes, flags) };
        driver::check_memory("cuMemHostAlloc", r, bytes as u64, "pinned host memory")?;
        let base = NonNull::new(base.cast()).ok_or(CudaError::OutOfMemory {
            bytes: bytes as u64,
            what: "pinned host memory",
        })?;
        Ok(PinnedBlock { context, base })
    }

    /// Where the GPU sees the first byte.
    pub(super) fn device(&self) -> Result<u64, CudaError> {
        self.context.bind()?;
        let mut va = 0;
        let host = self.base.as_ptr().cast();
        // SAFETY: mapped for the GPU by `new`; the pointer is to a live address.
        self.context.check("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut va, host, 0)
        })?;
        Ok(va)
    }

    /// Byte `offset`, which lies inside.
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        // Copies that use it were waited for.
        let resource = Resource::Pinned(self.base.as_ptr() as usize);
        self.context.deferred.release(resource);
    }
}
