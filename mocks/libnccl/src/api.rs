//! The functions of NCCL.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CString};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use libloading::Library;

use crate::faults::faults;
use crate::meeting::{self, Hello, HEAD, ID_BYTES};
use crate::sum;

/// ncclResult_t.
pub type Result = c_int;
pub const SUCCESS: Result = 0;
pub const UNHANDLED_CUDA_ERROR: Result = 1;
pub const SYSTEM_ERROR: Result = 2;
pub const INVALID_ARGUMENT: Result = 4;
pub const INVALID_USAGE: Result = 5;
pub const REMOTE_ERROR: Result = 6;

/// ncclUniqueId.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    internal: [u8; ID_BYTES],
}

/// What an operation in flight shares with the communicator.
struct Shared {
    rank: u32,
    ranks: u32,
    to_all: Mutex<TcpStream>,
    /// What `ncclCommGetAsyncError` tells.
    error: AtomicI32,
}

/// ncclComm.
pub struct Comm {
    shared: Arc<Shared>,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

fn fail(code: Result, why: impl Into<String>) -> Result {
    LAST.set(CString::new(why.into()).unwrap_or_default());
    code
}

/// The functions of the program's driver that the mock needs.
struct Driver {
    launch_host: unsafe extern "C" fn(
        *mut c_void,
        Option<unsafe extern "C" fn(*mut c_void)>,
        *mut c_void,
    ) -> u32,
    current: unsafe extern "C" fn(*mut *mut c_void) -> u32,
    uuid: unsafe extern "C" fn(*mut [c_char; 16], c_int) -> u32,
}

fn driver() -> Option<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            // SAFETY: the program has loaded the driver long before; this finds it again.
            let library = unsafe { Library::new("libcuda.so.1") }.ok()?;
            // SAFETY: types of these functions in the CUDA driver API.
            let driver = unsafe {
                Driver {
                    launch_host: *library.get(b"cuLaunchHostFunc").ok()?,
                    current: *library.get(b"cuCtxGetCurrent").ok()?,
                    uuid: *library.get(b"cuDeviceGetUuid_v2").ok()?,
                }
            };
            std::mem::forget(library);
            Some(driver)
        })
        .as_ref()
}

/// A wait that only the end of the process ends.
fn for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

#[no_mangle]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Result {
    if version.is_null() {
        return fail(INVALID_ARGUMENT, "version is NULL");
    }
    // SAFETY: the caller's pointer.
    unsafe { version.write(faults().version) };
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Result {
    match meeting::open() {
        Ok(internal) if !id.is_null() => {
            // SAFETY: the caller's pointer.
            unsafe { id.write(UniqueId { internal }) };
            SUCCESS
        }
        Ok(_) => fail(INVALID_ARGUMENT, "uniqueId is NULL"),
        Err(e) => fail(SYSTEM_ERROR, e.to_string()),
    }
}

fn init(ranks: c_int, id: &UniqueId, rank: c_int) -> std::result::Result<Comm, (Result, String)> {
    let f = faults();
    if f.init_hang {
        for_ever();
    }
    if let Some(code) = f.init_error {
        return Err((code, "the mock was told to fail".into()));
    }
    if ranks < 1 || rank < 0 || rank >= ranks {
        let why = format!("Invalid rank requested : {rank}/{ranks}");
        return Err((INVALID_ARGUMENT, why));
    }
    let driver = driver().ok_or((SYSTEM_ERROR, "there is no libcuda.so.1".to_owned()))?;
    let mut context = std::ptr::null_mut();
    let mut gpu = [0; 16];
    // SAFETY: live variables of the types that the driver writes.
    let asked = unsafe { ((driver.current)(&mut context), (driver.uuid)(&mut gpu, 0)) };
    if asked != (0, 0) || context.is_null() {
        let why = "Cuda failure 'invalid device context'".to_owned();
        return Err((UNHANDLED_CUDA_ERROR, why));
    }
    let hello = Hello {
        ranks: ranks as u32,
        rank: rank as u32,
        version: f.version,
        gpu: gpu.map(|c| c as u8),
    };
    let came = meeting::join(&id.internal, &hello);
    let (to_all, all) = came.map_err(|e| (SYSTEM_ERROR, e.to_string()))?;
    let allowed =
        f.version >= 23_000 && std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|v| v == "1");
    for other in all.iter().filter(|o| o.rank != hello.rank) {
        if other.version != f.version {
            let why = format!(
                "Mismatched NCCL version detected : rank {} version {}",
                other.rank, other.version
            );
            return Err((INVALID_USAGE, why));
        }
        if !allowed && other.gpu == hello.gpu {
            let why = match f.version >= 23_000 {
                true => "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.".into(),
                false => format!(
                    "Duplicate GPU detected : rank {rank} and rank {} both on CUDA device fe1f0",
                    other.rank
                ),
            };
            return Err((INVALID_USAGE, why));
        }
    }
    Ok(Comm {
        shared: Arc::new(Shared {
            rank: hello.rank,
            ranks: hello.ranks,
            to_all: Mutex::new(to_all),
            error: AtomicI32::new(SUCCESS),
        }),
    })
}

#[no_mangle]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut *mut Comm,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
) -> Result {
    if comm.is_null() {
        return fail(INVALID_ARGUMENT, "comm is NULL");
    }
    match init(ranks, &id, rank) {
        Ok(made) => {
            // SAFETY: the caller's pointer.
            unsafe { comm.write(Box::into_raw(Box::new(made))) };
            SUCCESS
        }
        Err((code, why)) => fail(code, why),
    }
}

#[no_mangle]
pub unsafe extern "C" fn ncclCommDestroy(comm: *mut Comm) -> Result {
    if faults().destroy_hang {
        for_ever();
    }
    if comm.is_null() {
        return fail(INVALID_ARGUMENT, "comm is NULL");
    }
    // SAFETY: made by `ncclCommInitRank`, destroyed once; what is in flight has a share of its own.
    drop(unsafe { Box::from_raw(comm) });
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut Comm, error: *mut Result) -> Result {
    if comm.is_null() || error.is_null() {
        return fail(INVALID_ARGUMENT, "comm or asyncError is NULL");
    }
    // SAFETY: a live communicator.
    let comm = unsafe { &*comm };
    // SAFETY: the caller's pointer.
    unsafe { error.write(comm.shared.error.load(Ordering::Acquire)) };
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn ncclGetErrorString(code: Result) -> *const c_char {
    match code {
        SUCCESS => c"no error",
        UNHANDLED_CUDA_ERROR => c"unhandled cuda error",
        SYSTEM_ERROR => c"unhandled system error",
        3 => c"internal error - please report this issue to the NCCL developers",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        _ => c"unknown result code",
    }
    .as_ptr()
}

#[no_mangle]
pub unsafe extern "C" fn ncclGetLastError(_comm: *mut Comm) -> *const c_char {
    LAST.with_borrow(|text| text.as_ptr())
}

/// An operation that waits for its turn in a stream.
struct Job {
    shared: Arc<Shared>,
    from: u64,
    to: u64,
    bytes: usize,
    dtype: i32,
    op: i32,
}

impl Job {
    fn run(&self) -> std::io::Result<()> {
        let (f, at) = (faults(), self.bytes as u64);
        if f.op_hang.is_some_and(|n| at >= n) {
            for_ever();
        }
        if let Some((code, n)) = f.async_error {
            if at >= n {
                self.shared.error.store(code, Ordering::Release);
                for_ever();
            }
        }
        if self.shared.rank == 1 && f.die.is_some_and(|n| at >= n) {
            std::process::abort();
        }
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&self.dtype.to_ne_bytes());
        head[4..8].copy_from_slice(&self.op.to_ne_bytes());
        head[8..].copy_from_slice(&at.to_ne_bytes());
        let mut data = vec![0_u8; self.bytes];
        // SAFETY: memory of the GPU that the caller gave for the time of the operation; on the mock
        // driver its addresses are those of this process, as a kernel sees them.
        unsafe {
            std::ptr::copy_nonoverlapping(self.from as *const u8, data.as_mut_ptr(), data.len());
        }
        let shared = &self.shared;
        let mut s = shared.to_all.lock().unwrap_or_else(PoisonError::into_inner);
        s.write_all(&head)?;
        s.write_all(&data)?;
        s.read_exact(&mut data)?;
        if shared.rank + 1 == shared.ranks && f.wrong.is_some_and(|n| at >= n) {
            if let Some(first) = data.first_mut() {
                *first ^= 1;
            }
        }
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.to as *mut u8, data.len()) };
        Ok(())
    }
}

unsafe extern "C" fn run(job: *mut c_void) {
    // SAFETY: made by `ncclAllReduce` from a box, and called once.
    let job = unsafe { Box::from_raw(job.cast::<Job>()) };
    if job.run().is_err() {
        // As the real one: its kernel waits until the communicator is aborted.
        job.shared.error.store(REMOTE_ERROR, Ordering::Release);
        for_ever();
    }
}

#[no_mangle]
pub unsafe extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    comm: *mut Comm,
    stream: *mut c_void,
) -> Result {
    let (Some(size), 0..=3, false) = (sum::size(dtype), op, comm.is_null()) else {
        return fail(
            INVALID_ARGUMENT,
            "AllReduce : invalid type, reduction or comm",
        );
    };
    let bytes = count * size;
    if let Some((code, at)) = faults().op_error {
        if bytes as u64 >= at {
            return fail(code, "the mock was told to fail");
        }
    }
    // SAFETY: a live communicator.
    let shared = unsafe { &*comm }.shared.clone();
    let job = Box::into_raw(Box::new(Job {
        shared,
        from: from as u64,
        to: to as u64,
        bytes,
        dtype,
        op,
    }));
    let Some(driver) = driver() else {
        return fail(SYSTEM_ERROR, "there is no libcuda.so.1");
    };
    // SAFETY: the caller's stream; `run` takes the box over.
    match unsafe { (driver.launch_host)(stream, Some(run), job.cast()) } {
        0 => SUCCESS,
        code => {
            // SAFETY: the driver has not taken it.
            drop(unsafe { Box::from_raw(job) });
            fail(UNHANDLED_CUDA_ERROR, format!("Cuda failure {code}"))
        }
    }
}
