//! Deferred release of CUDA resources until running kernels have finished, and a pool of streams.
//!
//! Several calls of the driver wait until nothing runs in the context (ADR 26): freeing GPU memory
//! or pinned memory, ending a registration, closing memory of another process, unloading a module.
//! A kernel may be waiting for the very thread that makes such a call. Then the call never returns,
//! and other threads' calls wait behind it. So no such call is made while one of our kernels runs:
//! the resource is kept, and released when the last kernel has ended. Creating a stream may wait
//! too, so some are made ahead and used again.
#![allow(unsafe_code)] // Calls into libcuda.
#![allow(clippy::disallowed_methods)] // The host waits here, with deadlines.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUmodule, CUresult, CUstream, CUstream_flags};
use cudarc::driver::CudaContext;

use super::{driver, ipc_handles};
use crate::cuda_error::CudaError;
use crate::locks::{lock, read};

/// Streams that are made when a GPU is first opened.
const AHEAD: usize = 8;
/// Pause between two checks for running kernels.
const NAP: Duration = Duration::from_micros(200);
/// How long the end of a process, or of its last use of a GPU, waits for kernels.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// A resource whose release waits for all work of the context.
#[derive(Debug, Clone, Copy)]
pub(super) enum Resource {
    /// Memory of `cuMemAlloc`.
    Device(u64),
    /// Memory of `cuMemHostAlloc`.
    Pinned(usize),
    /// A range of `cuMemHostRegister`: first byte and length.
    Registered(usize, usize),
    /// Memory of another process, of `cuIpcOpenMemHandle`.
    Opened(u64),
    /// A module.
    Module(usize),
}

impl Resource {
    /// Releases it; the context is current. An error leaves it allocated, which is safe. It is an
    /// error of the context, and the next call reports it.
    fn release(self) {
        // SAFETY: each was made by this crate and is released once: a value of this type is
        // consumed by it.
        let _ = unsafe {
            match self {
                Resource::Device(va) => sys::cuMemFree_v2(va),
                Resource::Pinned(base) => sys::cuMemFreeHost(base as *mut c_void),
                Resource::Registered(base, _) => sys::cuMemHostUnregister(base as *mut c_void),
                Resource::Opened(va) => ipc_handles::close(va),
                Resource::Module(module) => sys::cuModuleUnload(module as CUmodule),
            }
        };
    }
}

#[derive(Debug)]
struct PooledStream {
    stream: usize,
    in_use: bool,
    /// It is not queried then: a query would end the capture.
    capturing: bool,
}

impl PooledStream {
    /// Whether all its work has ended. A host function of a stream may not query, and gets true.
    fn idle(&self) -> bool {
        use CUresult::{CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_READY};
        if self.capturing {
            return false;
        }
        // SAFETY: a live stream of the current context.
        let r = unsafe { sys::cuStreamQuery(self.stream as CUstream) };
        !matches!(r, CUDA_ERROR_NOT_READY | CUDA_ERROR_NOT_PERMITTED)
    }
}

/// One for each GPU, however often it is opened: all handles use its primary context.
#[derive(Debug)]
pub(super) struct DeferredRelease {
    cuda: Arc<CudaContext>,
    streams: Mutex<Vec<PooledStream>>,
    resources: Mutex<Vec<Resource>>,
    /// Number of `resources`, to be read without the lock.
    pending: AtomicUsize,
    /// Read-locked while work is started, write-locked while none may start.
    starting: RwLock<()>,
    /// The error that lost the context.
    lost: OnceLock<CudaError>,
}

impl DeferredRelease {
    /// The one of a GPU, whose context is current.
    pub(super) fn of(cuda: &Arc<CudaContext>) -> Result<Arc<DeferredRelease>, CudaError> {
        static BY_GPU: Mutex<BTreeMap<usize, Weak<DeferredRelease>>> = Mutex::new(BTreeMap::new());
        let mut by_gpu = lock(&BY_GPU);
        if let Some(known) = by_gpu.get(&cuda.ordinal()).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let streams = (0..AHEAD).map(|_| create()).collect::<Result<_, _>>()?;
        let deferred = Arc::new(DeferredRelease {
            cuda: cuda.clone(),
            streams: Mutex::new(streams),
            resources: Mutex::default(),
            pending: AtomicUsize::new(0),
            starting: RwLock::default(),
            lost: OnceLock::new(),
        });
        by_gpu.insert(cuda.ordinal(), Arc::downgrade(&deferred));
        Ok(deferred)
    }

    /// The error that lost the context.
    pub(super) fn lost(&self) -> Option<&CudaError> {
        self.lost.get()
    }

    /// Records that the context is lost, and returns the first error that said so.
    pub(super) fn lose(&self, e: CudaError) -> CudaError {
        self.lost.get_or_init(|| e).clone()
    }

    fn bind(&self) -> bool {
        self.lost.get().is_none() && driver::make_current(self.cuda.cu_ctx()).is_ok()
    }

    /// A stream without other users, which waits for no other stream.
    pub(super) fn acquire_stream(&self) -> Result<CUstream, CudaError> {
        let mut all = lock(&self.streams);
        if let Some(pooled) = all.iter_mut().find(|s| !s.in_use && s.idle()) {
            pooled.in_use = true;
            return Ok(pooled.stream as CUstream);
        }
        // Without the lock, which a release needs: this may take as long as a kernel runs.
        drop(all);
        let mut pooled = create()?;
        pooled.in_use = true;
        let stream = pooled.stream as CUstream;
        lock(&self.streams).push(pooled);
        Ok(stream)
    }

    /// Returns a stream to the pool; its work may still run.
    pub(super) fn return_stream(&self, stream: CUstream) {
        let mut all = lock(&self.streams);
        let Some(at) = all.iter().position(|s| s.stream == stream as usize) else {
            return;
        };
        all[at].in_use = false;
        if all[at].capturing && self.bind() {
            all.swap_remove(at);
            // SAFETY: made by us and just removed; destroying it ends its capture, which has no
            // user left.
            let _ = unsafe { sys::cuStreamDestroy_v2(stream) };
        }
    }

    /// Notes that a stream begins to capture, or ends.
    pub(super) fn set_capturing(&self, stream: CUstream, capturing: bool) {
        let mut all = lock(&self.streams);
        if let Some(pooled) = all.iter_mut().find(|s| s.stream == stream as usize) {
            pooled.capturing = capturing;
        }
    }

    /// A guard to be held while work is started: no release begins meanwhile.
    pub(super) fn begin_work(&self) -> RwLockReadGuard<'_, ()> {
        read(&self.starting)
    }

    /// A guard under which no work of ours runs or starts; `None` while some runs.
    pub(super) fn try_idle(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let guard = self.starting.try_write().ok()?;
        let idle = lock(&self.streams).iter().all(PooledStream::idle);
        idle.then_some(guard)
    }

    /// Waits for [`DeferredRelease::try_idle`].
    ///
    /// # Errors
    /// [`CudaError::Stuck`] when kernels still run after `timeout`.
    pub(super) fn wait_until_idle(
        &self,
        what: &'static str,
        timeout: Duration,
    ) -> Result<RwLockWriteGuard<'_, ()>, CudaError> {
        let start = Instant::now();
        loop {
            if let Some(idle) = self.try_idle() {
                return Ok(idle);
            }
            if start.elapsed() >= timeout {
                let waited_ms = timeout.as_millis() as u64;
                return Err(CudaError::Stuck { what, waited_ms });
            }
            std::thread::sleep(NAP);
        }
    }

    /// Releases a resource, now or when the running kernels have ended.
    pub(super) fn release(&self, resource: Resource) {
        if self.lost.get().is_some() {
            return; // It went with the context.
        }
        lock(&self.resources).push(resource);
        self.pending.fetch_add(1, Ordering::Relaxed);
        self.release_pending();
    }

    /// Releases the pending resources if no kernel runs. Cheap when none is pending.
    pub(super) fn release_pending(&self) {
        if self.pending.load(Ordering::Relaxed) == 0 || !self.bind() {
            return;
        }
        if let Some(_idle) = self.try_idle() {
            let all = std::mem::take(&mut *lock(&self.resources));
            self.pending.fetch_sub(all.len(), Ordering::Relaxed);
            all.into_iter().for_each(Resource::release);
        }
    }

    /// Whether a registration that overlaps this range is pending.
    pub(super) fn has_registration(&self, base: usize, len: usize) -> bool {
        lock(&self.resources)
            .iter()
            .any(|r| matches!(r, Resource::Registered(b, l) if *b < base + len && base < b + l))
    }

    /// Number of pending resources.
    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }
}

/// A stream that waits for no other, the null stream included.
fn create() -> Result<PooledStream, CudaError> {
    let mut stream = std::ptr::null_mut();
    let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the pointer is to a live handle; a context is current.
    driver::check("cuStreamCreate", unsafe {
        sys::cuStreamCreate(&mut stream, flags)
    })?;
    Ok(PooledStream {
        stream: stream as usize,
        in_use: false,
        capturing: false,
    })
}

impl Drop for DeferredRelease {
    fn drop(&mut self) {
        if !self.bind() {
            return;
        }
        // Destroying a context waits for a running kernel without a deadline.
        if self.wait_until_idle("kernels", LAST_WAIT).is_err() {
            std::mem::forget(self.cuda.clone());
            return;
        }
        self.release_pending();
        for pooled in lock(&self.streams).drain(..) {
            // SAFETY: made by us, destroyed once; a user of the stream would keep this value alive.
            let _ = unsafe { sys::cuStreamDestroy_v2(pooled.stream as CUstream) };
        }
    }
}
