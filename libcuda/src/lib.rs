//! The emulated GPU's `libcuda.so.1`: the part of the CUDA driver's interface that the CUDA
//! backend, `cudarc`, and programs with `<<<>>>` use.
//!
//! - [`module`], [`library`]: PTX and fat binaries, whose kernels run on the crate `ringbell-gpu`;
//!   [`function`]: what they need; [`launch`]: what is refused, and parameters;
//! - [`memory`], [`fill`], [`ipc`], [`dma_buf`], [`io_memory`]: memory of the GPU and the host, and
//!   copies;
//! - [`stream`], [`graph`], [`words`]: order, capture, operations on words;
//! - [`device`], [`context`]: the one GPU, and its one context; [`nic`]: NICs that its threads
//!   step;
//! - [`strict`]: the waits and the lock of a real driver; [`nvrtc`]: a run-time compiler that
//!   compiles nothing.
//!
//! Programs find it by `LD_LIBRARY_PATH`. Copies happen later, on another thread, as a copy
//! engine's do. With `RINGBELL_MOCK_CUDA` in the environment it is a test double: it waits, holds
//! its lock and blocks where a real driver does, and it is stricter where that finds mistakes, as
//! that device addresses of pinned memory differ from the host's. The variable is a list of
//! settings and faults, with commas: see [`Faults`]. `RINGBELL_CUDA` has the same for users'
//! programs. None of this says anything about a real GPU's memory ordering or speed.
#![allow(unsafe_code)] // The C interface of a driver.
#![allow(non_snake_case)] // Its names.
#![allow(missing_docs)] // Documented by the CUDA driver API.
#![allow(clippy::missing_safety_doc)] // As above.

mod capture;
pub mod context;
pub mod copy;
pub mod device;
pub mod dma_buf;
pub mod fill;
pub mod function;
pub mod graph;
mod image;
pub mod io_memory;
pub mod ipc;
mod jit;
pub mod launch;
pub mod library;
pub mod link;
pub mod memory;
pub mod module;
pub mod nic;
mod nodes;
pub mod nvrtc;
mod operation;
pub mod pool;
mod replaced;
pub mod stream;
pub mod strict;
pub mod vmm;
pub mod words;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ringbell_cuda_kernels::{EmulatedGpu, EmulatedGpuConfig};

/// CUresult.
pub type Result = u32;
pub const SUCCESS: Result = 0;
pub const INVALID_VALUE: Result = 1;
pub const OUT_OF_MEMORY: Result = 2;
pub const NOT_INITIALIZED: Result = 3;
pub const NO_DEVICE: Result = 100;
pub const INVALID_DEVICE: Result = 101;
pub const INVALID_IMAGE: Result = 200;
pub const INVALID_CONTEXT: Result = 201;
pub const NO_BINARY_FOR_GPU: Result = 209;
pub const INVALID_PTX: Result = 218;
pub const UNSUPPORTED_PTX_VERSION: Result = 222;
pub const FILE_NOT_FOUND: Result = 301;
pub const INVALID_HANDLE: Result = 400;
pub const NOT_FOUND: Result = 500;
pub const NOT_READY: Result = 600;
pub const ILLEGAL_ADDRESS: Result = 700;
pub const ASSERT: Result = 710;
pub const MISALIGNED_ADDRESS: Result = 716;
pub const LAUNCH_FAILED: Result = 719;
pub const HOST_MEMORY_ALREADY_REGISTERED: Result = 712;
pub const HOST_MEMORY_NOT_REGISTERED: Result = 713;
pub const NOT_PERMITTED: Result = 800;
pub const NOT_SUPPORTED: Result = 801;
pub const COOPERATIVE_LAUNCH_TOO_LARGE: Result = 720;
pub const STREAM_CAPTURE_UNSUPPORTED: Result = 900;
pub const UNKNOWN: Result = 999;

/// Settings, and faults that a test asks for.
#[derive(Debug, Default)]
pub struct Faults {
    /// `no-device`: a driver without a GPU.
    pub no_device: bool,
    /// `broken`: the driver cannot start, with an error that has no name.
    pub broken: bool,
    /// `old-driver`: for CUDA 11.8.
    pub old_driver: bool,
    /// `no-fatbin`: fat binaries hold nothing for this GPU.
    pub no_fatbin: bool,
    /// `no-ptx`: PTX is of a version that the driver does not know.
    pub no_ptx: bool,
    /// `no-nvrtc`: the run-time compiler knows no such GPU.
    pub no_nvrtc: bool,
    /// `slow-writes`: every copy to the GPU takes five milliseconds, so that a reader that does not
    /// wait for it sees the bytes from before.
    pub slow_writes: bool,
    /// `guard`: memory of the GPU ends a program that touches it from the host. Kernels, which run
    /// on the host here, may not use it either.
    pub guard: bool,
    /// `no-pinning`: the host has no memory to pin.
    pub no_pinning: bool,
    /// `dmabuf`: no fault, but a GPU whose dma-bufs the CPU can map.
    pub dmabuf: bool,
    /// `no-io-memory`: registers of a device cannot be registered.
    pub no_io_memory: bool,
    /// `kill=KERNEL`: that kernel ends with an error that no call recovers from.
    pub kill: Option<String>,
    /// `no-words`: streams have no memory operations.
    pub no_words: bool,
    /// `other-gpu`: the GPU has another name (UUID) than that of processes without this fault.
    pub other_gpu: bool,
    /// `no-ipc`: no memory can be shared with other processes.
    pub no_ipc: bool,
    /// `memory=BYTES`: of the GPU.
    pub memory: Option<u64>,
    /// `init=CODE`: what cuInit answers.
    pub init: Option<Result>,
    /// `context=CODE`: what making a context answers.
    pub context: Option<Result>,
    /// `image=CODE`: what loading a fat binary or PTX answers.
    pub image: Option<Result>,
    /// `capability=90`: compute capability, 10 × major + minor.
    pub capability: Option<i32>,
    /// `attribute=ID:VALUE`, any number of them: attributes of the device.
    pub attributes: Vec<(i32, i32)>,
    /// `sms=N`: multiprocessors.
    pub sms: Option<i32>,
    /// `may-wait`: calls that wait for all work in some drivers do so: allocations, registrations,
    /// new streams.
    pub may_wait: bool,
    /// `lazy-launch`: a function is loaded by cuFuncLoad, else by its first launch, not when it is
    /// looked for.
    pub lazy_launch: bool,
    /// `stack=KERNEL:BYTES`: that kernel needs so much stack.
    pub stack: Option<(String, i32)>,
    /// `patience=MS`: how long a call waits for all work before that is called a deadlock.
    pub patience_ms: Option<u64>,
    /// `ptx=FOLDER`: texts there are taken in place of those with the same kernels.
    pub ptx: Option<String>,
    /// `trace`: calls that have waited are said on standard error.
    pub trace: bool,
}

/// The number in a fault.
fn number<T: std::str::FromStr>(fault: &str, text: &str) -> T {
    text.parse()
        .unwrap_or_else(|_| panic!("RINGBELL_CUDA: `{fault}` needs a number"))
}

impl Faults {
    fn read() -> Faults {
        let mut f = Faults::default();
        let list = std::env::var(MOCK).or_else(|_| std::env::var(SETTINGS));
        let list = list.unwrap_or_default();
        for fault in list.split(',').filter(|s| !s.is_empty()) {
            match fault.split_once('=').unwrap_or((fault, "")) {
                ("no-device", _) => f.no_device = true,
                ("broken", _) => f.broken = true,
                ("old-driver", _) => f.old_driver = true,
                ("no-fatbin", _) => f.no_fatbin = true,
                ("no-ptx", _) => f.no_ptx = true,
                ("no-nvrtc", _) => f.no_nvrtc = true,
                ("slow-writes", _) => f.slow_writes = true,
                ("guard", _) => f.guard = true,
                ("no-pinning", _) => f.no_pinning = true,
                ("no-words", _) => f.no_words = true,
                ("other-gpu", _) => f.other_gpu = true,
                ("no-ipc", _) => f.no_ipc = true,
                ("dmabuf", _) => f.dmabuf = true,
                ("no-io-memory", _) => f.no_io_memory = true,
                ("kill", name) => f.kill = Some(name.to_owned()),
                ("memory", bytes) => f.memory = bytes.parse().ok(),
                ("init", code) => f.init = Some(number(fault, code)),
                ("context", code) => f.context = Some(number(fault, code)),
                ("image", code) => f.image = Some(number(fault, code)),
                ("capability", c) => f.capability = Some(number(fault, c)),
                ("sms", n) => f.sms = Some(number(fault, n)),
                ("attribute", both) => {
                    let (id, value) = both.split_once(':').unwrap_or_default();
                    f.attributes.push((number(fault, id), number(fault, value)));
                }
                ("stack", both) => {
                    let (kernel, bytes) = both.split_once(':').unwrap_or_default();
                    f.stack = Some((kernel.to_owned(), number(fault, bytes)));
                }
                ("patience", ms) => f.patience_ms = Some(number(fault, ms)),
                ("may-wait", _) => f.may_wait = true,
                ("lazy-launch", _) => f.lazy_launch = true,
                ("ptx", folder) => f.ptx = Some(folder.to_owned()),
                ("trace", _) => f.trace = true,
                // A misspelt fault would make its test pass for nothing.
                _ => panic!("RINGBELL_CUDA: `{fault}` is no setting of this driver"),
            }
        }
        f
    }
}

/// Settings of the driver as a test double, which their presence makes it.
const MOCK: &str = "RINGBELL_MOCK_CUDA";
/// The same settings, of the driver of users' programs.
const SETTINGS: &str = "RINGBELL_CUDA";

/// Bytes of the GPU's memory, of which the host gives what is allocated.
pub(crate) fn memory_bytes() -> u64 {
    let usual = if strict::is_on() { 128 << 20 } else { 4 << 30 };
    faults().memory.unwrap_or(usual)
}

/// The faults that were asked for.
pub fn faults() -> &'static Faults {
    static FAULTS: OnceLock<Faults> = OnceLock::new();
    FAULTS.get_or_init(Faults::read)
}

/// The GPU that does the work.
pub(crate) fn gpu() -> &'static EmulatedGpu {
    static GPU: OnceLock<EmulatedGpu> = OnceLock::new();
    GPU.get_or_init(|| {
        EmulatedGpu::new(EmulatedGpuConfig {
            memory_bytes: memory_bytes(),
            // Scattered pages are for tests of translation, and take address space in pieces.
            scatter: if strict::is_on() { 0.25 } else { 0.0 },
            ..EmulatedGpuConfig::default()
        })
        .expect("memory for the emulated GPU")
    })
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error that has lost the context, or 0.
static LOST: AtomicU32 = AtomicU32::new(0);

/// The context is lost. Whether it was not before.
pub(crate) fn lose(code: Result) -> bool {
    let set = LOST.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
    set.is_ok()
}

/// What no error number says, on standard error.
pub(crate) fn say(text: &str) {
    eprintln!("ringbell libcuda: {text}");
}

thread_local! {
    /// Whether this thread runs a host function of a stream, which may not call the driver
    /// (`cuLaunchHostFunc`).
    pub(crate) static IN_HOST_FUNCTION: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The check at the beginning of most calls: there is a current context, and it works.
pub(crate) fn ready() -> std::result::Result<(), Result> {
    if IN_HOST_FUNCTION.get() {
        return Err(NOT_PERMITTED);
    }
    if device::is_forked() {
        return Err(NOT_INITIALIZED);
    }
    strict::pass();
    if !device::has_current() {
        return Err(INVALID_CONTEXT);
    }
    match LOST.load(Ordering::Acquire) {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Runs a call's body, whose error is its result.
pub(crate) fn call(body: impl FnOnce() -> std::result::Result<(), Result>) -> Result {
    match body() {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

/// Stores a result through a pointer of the caller, if it is one.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> std::result::Result<(), Result> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of the driver's function promises a pointer to such a value.
    unsafe { to.write(value) };
    Ok(())
}
