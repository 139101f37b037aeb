//! What this process has under way on one GPU, and what it may give back only when that has ended.
//!
//! Several calls of the driver wait until nothing runs in the context: to free memory of the GPU or pinned memory, to
//! end a registration, to close memory of another process, to unload a module (ADR 26). Called while a kernel waits
//! for this very thread they never return, and hold up other threads' calls meanwhile. So nothing here calls them
//! while one of our kernels runs: what is given back meanwhile is kept, and goes when the last kernel has ended. Creating a
//! stream may wait too, so that some are made ahead, and used again.
#![allow(unsafe_code)] // Calls into libcuda.
#![allow(clippy::disallowed_methods)] // The host waits here, with deadlines.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUmodule, CUresult, CUstream, CUstream_flags};
use cudarc::driver::CudaContext;

use super::driver;
use super::error::CudaError;
use super::ipc;
use super::module::Builtin;

/// Streams that are made when a GPU is first opened.
const AHEAD: usize = 8;
/// Pause between two looks at what runs.
const NAP: Duration = Duration::from_micros(200);
/// How long the end of a process, or of its last use of a GPU, waits for kernels.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Something whose return waits for all work of the context.
#[derive(Debug, Clone, Copy)]
pub(super) enum Waste {
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

impl Waste {
    /// Gives it back. The context is current. An error leaves it as it is, which is safe, and would be the context's own,
    /// which the next call sees.
    fn release(self) {
        // SAFETY: each was made by us and is given back once: a value of this type is consumed by it.
        let _ = unsafe {
            match self {
                Waste::Device(va) => sys::cuMemFree_v2(va),
                Waste::Pinned(base) => sys::cuMemFreeHost(base as *mut c_void),
                Waste::Registered(base, _) => sys::cuMemHostUnregister(base as *mut c_void),
                Waste::Opened(va) => ipc::close_handle(va),
                Waste::Module(module) => sys::cuModuleUnload(module as CUmodule),
            }
        };
    }
}

#[derive(Debug)]
struct Slot {
    stream: usize,
    held: bool,
    /// The driver may not be asked about it: that would end the capture.
    captures: bool,
}

impl Slot {
    /// Whether it has done all it was given. A host function of a stream, which may ask nothing, does not learn it.
    fn idle(&self) -> bool {
        use CUresult::{CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_READY};
        if self.captures {
            return false;
        }
        // SAFETY: a live stream of the current context.
        let r = unsafe { sys::cuStreamQuery(self.stream as CUstream) };
        !matches!(r, CUDA_ERROR_NOT_READY | CUDA_ERROR_NOT_PERMITTED)
    }
}

/// See the text of the module. One for each GPU, however often it is opened: all use its primary context.
#[derive(Debug)]
pub(super) struct Yard {
    cuda: Arc<CudaContext>,
    streams: Mutex<Vec<Slot>>,
    waste: Mutex<Vec<Waste>>,
    /// How many things wait.
    waiting: AtomicUsize,
    /// Read by whoever starts work, written by whoever needs that there is none.
    starting: RwLock<()>,
    /// Set by the first call that says that nothing works any more.
    lost: OnceLock<CudaError>,
    pub(super) builtin: Mutex<Weak<Builtin>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds these locks leaves a change half made.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Yard {
    /// That of a GPU, whose context is current.
    pub(super) fn of(cuda: &Arc<CudaContext>) -> Result<Arc<Yard>, CudaError> {
        static YARDS: Mutex<BTreeMap<usize, Weak<Yard>>> = Mutex::new(BTreeMap::new());
        let mut yards = lock(&YARDS);
        let known = yards.get(&cuda.ordinal()).and_then(Weak::upgrade);
        if let Some(yard) = known {
            return Ok(yard);
        }
        let streams = (0..AHEAD).map(|_| create()).collect::<Result<_, _>>()?;
        let yard = Arc::new(Yard {
            cuda: cuda.clone(),
            streams: Mutex::new(streams),
            waste: Mutex::default(),
            waiting: AtomicUsize::new(0),
            starting: RwLock::default(),
            lost: OnceLock::new(),
            builtin: Mutex::default(),
        });
        yards.insert(cuda.ordinal(), Arc::downgrade(&yard));
        Ok(yard)
    }

    /// The error after which nothing works any more.
    pub(super) fn lost(&self) -> Option<&CudaError> {
        self.lost.get()
    }

    /// Remembers it. What is returned is the first.
    pub(super) fn lose(&self, e: CudaError) -> CudaError {
        self.lost.get_or_init(|| e).clone()
    }

    fn bind(&self) -> bool {
        self.lost.get().is_none() && driver::make_current(self.cuda.cu_ctx()).is_ok()
    }

    /// A stream that nobody else uses and that waits for no other.
    pub(super) fn take_stream(&self) -> Result<CUstream, CudaError> {
        let mut all = lock(&self.streams);
        if let Some(slot) = all.iter_mut().find(|s| !s.held && s.idle()) {
            slot.held = true;
            return Ok(slot.stream as CUstream);
        }
        // Not with the lock, which whoever gives something back needs: this may take as long as a kernel runs.
        drop(all);
        let mut slot = create()?;
        slot.held = true;
        let stream = slot.stream as CUstream;
        lock(&self.streams).push(slot);
        Ok(stream)
    }

    /// It is not used any more, though what it holds may still run.
    pub(super) fn leave_stream(&self, stream: CUstream) {
        let mut all = lock(&self.streams);
        let Some(at) = all.iter().position(|s| s.stream == stream as usize) else {
            return;
        };
        all[at].held = false;
        if all[at].captures && self.bind() {
            all.swap_remove(at);
            // SAFETY: made by us and just forgotten; with it goes the capture that nobody ends.
            let _ = unsafe { sys::cuStreamDestroy_v2(stream) };
        }
    }

    /// A stream begins to capture, or ends.
    pub(super) fn captures(&self, stream: CUstream, captures: bool) {
        let mut all = lock(&self.streams);
        let slot = all.iter_mut().find(|s| s.stream == stream as usize);
        if let Some(slot) = slot {
            slot.captures = captures;
        }
    }

    /// Held while work is started, so that what waits for its end does not begin meanwhile.
    pub(super) fn start(&self) -> RwLockReadGuard<'_, ()> {
        self.starting.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing of ours runs, and nothing is started while the answer lives; else `None`.
    pub(super) fn quiet(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let alone = self.starting.try_write().ok()?;
        let quiet = lock(&self.streams).iter().all(Slot::idle);
        quiet.then_some(alone)
    }

    /// As `quiet`, later.
    ///
    /// # Errors
    /// [`CudaError::Stuck`] when kernels still run after `timeout`.
    pub(super) fn wait_until_quiet(
        &self,
        what: &'static str,
        timeout: Duration,
    ) -> Result<RwLockWriteGuard<'_, ()>, CudaError> {
        let start = Instant::now();
        loop {
            if let Some(quiet) = self.quiet() {
                return Ok(quiet);
            }
            if start.elapsed() >= timeout {
                let waited_ms = timeout.as_millis() as u64;
                return Err(CudaError::Stuck { what, waited_ms });
            }
            std::thread::sleep(NAP);
        }
    }

    /// Gives something back, now or when the kernels that run have ended.
    pub(super) fn give_back(&self, waste: Waste) {
        if self.lost.get().is_some() {
            return; // Gone with the context.
        }
        lock(&self.waste).push(waste);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.sweep();
    }

    /// Gives back what waits, if nothing runs. Cheap when nothing waits.
    pub(super) fn sweep(&self) {
        if self.waiting.load(Ordering::Relaxed) == 0 || !self.bind() {
            return;
        }
        if let Some(_quiet) = self.quiet() {
            let all = std::mem::take(&mut *lock(&self.waste));
            self.waiting.fetch_sub(all.len(), Ordering::Relaxed);
            all.into_iter().for_each(Waste::release);
        }
    }

    /// Whether the end of a registration that overlaps this range waits for kernels.
    pub(super) fn holds(&self, base: usize, len: usize) -> bool {
        lock(&self.waste)
            .iter()
            .any(|w| matches!(w, Waste::Registered(b, l) if *b < base + len && base < b + l))
    }

    /// Whether memory of another process at this address still waits to be closed, or is being closed.
    pub(super) fn has_open(&self, base: u64) -> bool {
        // Whoever closes keeps others from starting until it is done.
        let _closed = self.start();
        let is_it = |w: &Waste| matches!(w, Waste::Opened(b) if *b == base);
        lock(&self.waste).iter().any(is_it)
    }

    /// Things that wait for kernels to end.
    pub(super) fn held_back(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A stream that waits for no other, the null stream included.
fn create() -> Result<Slot, CudaError> {
    let mut stream = std::ptr::null_mut();
    let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the pointer is to a live handle; a context is current.
    driver::check("cuStreamCreate", unsafe {
        sys::cuStreamCreate(&mut stream, flags)
    })?;
    Ok(Slot {
        stream: stream as usize,
        held: false,
        captures: false,
    })
}

impl Drop for Yard {
    fn drop(&mut self) {
        if !self.bind() {
            return;
        }
        // To destroy a context with a kernel that runs waits for it, for ever if need be.
        let quiet = self.wait_until_quiet("kernels", LAST_WAIT).is_ok();
        if !quiet {
            std::mem::forget(self.cuda.clone());
            return;
        }
        self.sweep();
        for slot in lock(&self.streams).drain(..) {
            // SAFETY: made by us, destroyed once; nobody holds it, because who does holds this too.
            let _ = unsafe { sys::cuStreamDestroy_v2(slot.stream as CUstream) };
        }
    }
}
