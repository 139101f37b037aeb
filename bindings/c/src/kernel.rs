//! Queues, modules and launches of the C API.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::{c_char, c_void};
use std::sync::PoisonError;
use std::time::Duration;

use ringbell::abi::queue::QueueHandle;
use ringbell::parts::cuda_kernels::{Dim3, KernelArg, Launch, LaunchError, LaunchShape};

use crate::failure::{entry, Failure};
use crate::handles::Table;
use crate::launches;
use crate::nic::NICS;
use crate::pointer::{input, text, Out};

/// Wait of `rb_run_wait` with a time-out of 0.
const DEFAULT_WAIT: Duration = Duration::from_secs(60);

static RUNS: Table<Launch> = Table::new("launch (rb_run)");

/// `rb_arg`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Arg {
    value: *const u8,
    bytes: usize,
}

/// # Safety
/// `queue` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_queue_create(nic: *mut c_void, queue: *mut QueueHandle) -> i32 {
    entry("rb_queue_create", || {
        // SAFETY: by this function's contract.
        let out = unsafe { Out::new(queue, "`queue`")? };
        let nic = NICS.get(nic.addr())?;
        let queue = nic.nic.create_queue().map_err(|e| Failure::host(&e))?;
        out.set(queue.handle());
        let mut queues = nic.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.push(queue);
        Ok(())
    })
}

/// # Safety
/// `path` is null or a zero-terminated string.
#[no_mangle]
unsafe extern "C" fn rb_module_load(nic: *mut c_void, path: *const c_char) -> i32 {
    entry("rb_module_load", || {
        let nic = NICS.get(nic.addr())?;
        // SAFETY: by this function's contract.
        let path = unsafe { text(path, "`path`")? };
        // SAFETY: by `ringbell.h` the file is the program's own.
        let loaded = unsafe { nic.nic.module(path) };
        loaded.map(drop).map_err(|e| Failure::host(&e))
    })
}

/// # Safety
/// `image` is null or has so many bytes.
#[no_mangle]
unsafe extern "C" fn rb_module_load_data(nic: *mut c_void, image: *const u8, bytes: usize) -> i32 {
    entry("rb_module_load_data", || {
        let nic = NICS.get(nic.addr())?;
        // SAFETY: by this function's contract.
        let image = unsafe { input(image, bytes, "`image`")? };
        // SAFETY: by `ringbell.h` the kernels are the program's own.
        let loaded = unsafe { nic.nic.gpu().load_image("the given image", image) };
        loaded.map_err(|e| Failure::host(&e))
    })
}

/// # Safety
/// Every pointer is null or valid, as `ringbell.h` says: `grid` and `block` for three numbers,
/// `args` for `arg_count` structures, and the pointer in each structure for its value. The
/// arguments have the types of the kernel's parameters; the kernel stays within the memory that
/// they point to, which lives until it has ended.
#[no_mangle]
unsafe extern "C" fn rb_launch(
    nic: *mut c_void,
    kernel: *const c_char,
    grid: *const u32,
    block: *const u32,
    args: *const Arg,
    arg_count: u32,
    run: *mut *mut c_void,
) -> i32 {
    // SAFETY: by this function's contract.
    entry("rb_launch", || unsafe {
        let call = || call(kernel, grid, block, args, arg_count);
        start(nic, call, None, run)
    })
}

/// # Safety
/// As for [`rb_launch`].
#[no_mangle]
unsafe extern "C" fn rb_launch_shared(
    nic: *mut c_void,
    kernel: *const c_char,
    grid: *const u32,
    block: *const u32,
    shared_bytes: u32,
    args: *const Arg,
    arg_count: u32,
    run: *mut *mut c_void,
) -> i32 {
    // SAFETY: by this function's contract.
    entry("rb_launch_shared", || unsafe {
        let call = || call(kernel, grid, block, args, arg_count);
        start(nic, call, Some(shared_bytes), run)
    })
}

/// Starts a kernel on a stream of its own.
///
/// # Safety
/// As for [`rb_launch`].
unsafe fn start(
    nic: *mut c_void,
    call: impl FnOnce() -> Result<Call, Failure>,
    dynamic_shared: Option<u32>,
    run: *mut *mut c_void,
) -> Result<(), Failure> {
    // SAFETY: by the caller's contract.
    let out = unsafe { Out::new(run, "`run`")? };
    out.set(std::ptr::null_mut());
    let nic = NICS.get(nic.addr())?;
    let call = call()?;
    let shape = LaunchShape {
        dynamic_shared,
        ..LaunchShape::new(call.grid, call.block)
    };
    let stream = nic.nic.gpu().stream();
    // SAFETY: by the caller's contract.
    let launch = unsafe { stream.launch_shape(&call.kernel, shape, &call.args) };
    let launch = launch.map_err(|e| Failure::kernel(&e))?;
    out.set(std::ptr::without_provenance_mut(RUNS.insert(launch)));
    Ok(())
}

/// Arguments of a launch.
pub(super) struct Call {
    pub(super) kernel: String,
    pub(super) grid: Dim3,
    pub(super) block: Dim3,
    pub(super) args: Vec<KernelArg>,
}

/// # Safety
/// As for [`rb_launch`].
pub(super) unsafe fn call(
    kernel: *const c_char,
    grid: *const u32,
    block: *const u32,
    args: *const Arg,
    arg_count: u32,
) -> Result<Call, Failure> {
    // SAFETY: by the caller's contract.
    unsafe {
        Ok(Call {
            kernel: text(kernel, "`kernel`")?,
            grid: dim(grid, "`grid`")?,
            block: dim(block, "`block`")?,
            args: arguments(args, arg_count)?,
        })
    }
}

/// # Safety
/// `p` is null or valid for three numbers.
unsafe fn dim(p: *const u32, what: &str) -> Result<Dim3, Failure> {
    if p.is_null() {
        return Err(Failure::argument(format!("{what} is a null pointer")));
    }
    // SAFETY: not null, and by the caller's contract three numbers.
    let [x, y, z] = unsafe { p.cast::<[u32; 3]>().read_unaligned() };
    Ok(Dim3 { x, y, z })
}

/// # Safety
/// `p` is null or valid for `count` structures, and each of their values for its bytes.
unsafe fn arguments(p: *const Arg, count: u32) -> Result<Vec<KernelArg>, Failure> {
    if p.is_null() && count > 0 {
        return Err(Failure::argument("`args` is a null pointer"));
    }
    let mut args = Vec::new();
    for i in 0..count as usize {
        // SAFETY: inside the array that the caller vouches for, and so is the value.
        let bytes = unsafe {
            let arg = p.add(i).read_unaligned();
            input(arg.value, arg.bytes, &format!("args[{i}].value"))?
        };
        args.push(KernelArg::Bytes(bytes.to_vec()));
    }
    Ok(args)
}

#[no_mangle]
extern "C" fn rb_run_wait(run: *mut c_void, timeout_us: u64) -> i32 {
    entry("rb_run_wait", || {
        let launch = RUNS.get(run.addr())?;
        let timeout = match timeout_us {
            0 => DEFAULT_WAIT,
            us => Duration::from_micros(us),
        };
        match launch.wait(timeout) {
            Err(e @ LaunchError::TimedOut { .. }) => Err(Failure::still_running(e.to_string())),
            ended => {
                RUNS.remove(run.addr())?;
                launches::release();
                ended.map_err(|e| Failure::kernel(&e))
            }
        }
    })
}
