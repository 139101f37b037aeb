//! Streams and events.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

use crate::device::ready;
use crate::driver::{self, Code, Handle};
use crate::error::{call, check};
use crate::put;

/// cudaStreamLegacy and cudaStreamPerThread.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// The driver's stream of one of the runtime.
pub(crate) fn stream(s: Handle) -> Result<Handle, Code> {
    ready()?;
    match s as usize {
        LEGACY => Ok(std::ptr::null_mut()),
        PER_THREAD if OWN.get() == 0 => {
            let mut own = std::ptr::null_mut();
            check(driver::stream_create(&mut own, 0, 0))?;
            OWN.set(own as usize);
            Ok(own)
        }
        PER_THREAD => Ok(OWN.get() as Handle),
        _ => Ok(s),
    }
}

/// A call on a stream.
pub(crate) fn on(s: Handle, body: impl FnOnce(Handle) -> Code) -> Code {
    call(|| check(body(stream(s)?)))
}

/// A call that needs a context alone.
pub(crate) fn in_context(body: impl FnOnce() -> Code) -> Code {
    call(|| {
        ready()?;
        check(body())
    })
}

#[no_mangle]
pub extern "C" fn cudaStreamCreate(to: *mut Handle) -> Code {
    cudaStreamCreateWithPriority(to, 0, 0)
}

#[no_mangle]
pub extern "C" fn cudaStreamCreateWithFlags(to: *mut Handle, flags: c_uint) -> Code {
    cudaStreamCreateWithPriority(to, flags, 0)
}

#[no_mangle]
pub extern "C" fn cudaStreamCreateWithPriority(
    to: *mut Handle,
    flags: c_uint,
    priority: c_int,
) -> Code {
    in_context(|| driver::stream_create(to, flags, priority))
}

#[no_mangle]
pub extern "C" fn cudaStreamDestroy(s: Handle) -> Code {
    in_context(|| driver::stream_destroy(s))
}

#[no_mangle]
pub extern "C" fn cudaStreamSynchronize(s: Handle) -> Code {
    on(s, driver::stream_synchronize)
}

#[no_mangle]
pub extern "C" fn cudaStreamQuery(s: Handle) -> Code {
    on(s, driver::stream_query)
}

#[no_mangle]
pub extern "C" fn cudaStreamWaitEvent(s: Handle, event: Handle, flags: c_uint) -> Code {
    on(s, |s| driver::stream_wait(s, event, flags))
}

#[no_mangle]
pub extern "C" fn cudaStreamGetFlags(s: Handle, flags: *mut c_uint) -> Code {
    on(s, |s| driver::stream_flags(s, flags))
}

#[no_mangle]
pub extern "C" fn cudaStreamGetPriority(s: Handle, priority: *mut c_int) -> Code {
    on(s, |s| driver::stream_priority(s, priority))
}

/// cudaStreamCallback_t.
type Callback = unsafe extern "C" fn(Handle, Code, *mut c_void);

/// What a callback is called with.
struct Called {
    callback: Callback,
    stream: usize,
    data: usize,
}

unsafe extern "C" fn run(called: *mut c_void) {
    // SAFETY: made by `cudaStreamAddCallback`, and given to one call.
    let c = unsafe { Box::from_raw(called.cast::<Called>()) };
    // SAFETY: the caller's function with its own data.
    unsafe { (c.callback)(c.stream as Handle, 0, c.data as *mut c_void) };
}

#[no_mangle]
pub extern "C" fn cudaStreamAddCallback(
    s: Handle,
    callback: Option<Callback>,
    data: *mut c_void,
    flags: c_uint,
) -> Code {
    call(|| {
        let callback = callback.filter(|_| flags == 0);
        let called = Box::into_raw(Box::new(Called {
            callback: callback.ok_or(crate::error::INVALID_VALUE)?,
            stream: s as usize,
            data: data as usize,
        }));
        let queued =
            stream(s).and_then(|s| check(driver::launch_host(s, Some(run), called.cast())));
        if queued.is_err() {
            // SAFETY: made just now, and not queued.
            drop(unsafe { Box::from_raw(called) });
        }
        queued
    })
}

#[no_mangle]
pub extern "C" fn cudaEventCreate(to: *mut Handle) -> Code {
    cudaEventCreateWithFlags(to, 0)
}

#[no_mangle]
pub extern "C" fn cudaEventCreateWithFlags(to: *mut Handle, flags: c_uint) -> Code {
    in_context(|| driver::event_create(to, flags))
}

#[no_mangle]
pub extern "C" fn cudaEventDestroy(event: Handle) -> Code {
    in_context(|| driver::event_destroy(event))
}

#[no_mangle]
pub extern "C" fn cudaEventRecord(event: Handle, s: Handle) -> Code {
    on(s, |s| driver::event_record(event, s))
}

#[no_mangle]
pub extern "C" fn cudaEventRecordWithFlags(event: Handle, s: Handle, _flags: c_uint) -> Code {
    cudaEventRecord(event, s)
}

#[no_mangle]
pub extern "C" fn cudaEventQuery(event: Handle) -> Code {
    in_context(|| driver::event_query(event))
}

#[no_mangle]
pub extern "C" fn cudaEventSynchronize(event: Handle) -> Code {
    in_context(|| driver::event_synchronize(event))
}

#[no_mangle]
pub extern "C" fn cudaEventElapsedTime(ms: *mut f32, start: Handle, end: Handle) -> Code {
    in_context(|| driver::event_elapsed(ms, start, end))
}

/// The device of a stream: the one that the thread uses.
#[no_mangle]
pub extern "C" fn cudaStreamGetDevice(s: Handle, device: *mut c_int) -> Code {
    call(|| {
        stream(s)?;
        put(device, crate::device::current())
    })
}

#[no_mangle]
pub extern "C" fn cudaStreamGetId(s: Handle, id: *mut u64) -> Code {
    on(s, |s| driver::stream_id(s, id))
}
