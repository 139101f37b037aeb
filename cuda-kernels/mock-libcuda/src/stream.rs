//! Streams, events, copies, launches.
#![allow(clippy::disallowed_methods)] // A slow copy sleeps.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ringbell_cuda_kernels::{Event, KernelArg, LaunchError, Stream};

use crate::memory::{is_device, is_pinned};
use crate::module::Function;
use crate::{
    call, faults, gpu, lock, lose, put, ready, Result, INVALID_HANDLE, INVALID_VALUE,
    LAUNCH_FAILED, NOT_READY, UNKNOWN,
};

/// Longer than any test.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Handles {
    next: usize,
    streams: HashMap<usize, Stream>,
    events: HashMap<usize, Arc<Mutex<Option<Event>>>>,
}

fn handles() -> &'static Mutex<Handles> {
    static HANDLES: OnceLock<Mutex<Handles>> = OnceLock::new();
    HANDLES.get_or_init(Mutex::default)
}

/// The null stream is number 0. (It does not wait for the others, as those made here are non-blocking.)
pub(crate) fn stream(handle: *mut c_void) -> std::result::Result<Stream, Result> {
    let mut h = lock(handles());
    match (handle as usize, h.streams.get(&(handle as usize))) {
        (_, Some(s)) => Ok(s.clone()),
        (0, None) => {
            let s = gpu().stream();
            h.streams.insert(0, s.clone());
            Ok(s)
        }
        _ => Err(INVALID_HANDLE),
    }
}

fn event(handle: *mut c_void) -> std::result::Result<Arc<Mutex<Option<Event>>>, Result> {
    let h = lock(handles());
    h.events
        .get(&(handle as usize))
        .cloned()
        .ok_or(INVALID_HANDLE)
}

/// What became of an event; an emulated kernel that failed takes the context with it.
fn outcome(r: std::result::Result<(), LaunchError>) -> std::result::Result<(), Result> {
    match r {
        Ok(()) => ready(),
        Err(LaunchError::TimedOut { .. }) => Err(NOT_READY),
        Err(_) => {
            lose(LAUNCH_FAILED);
            Err(LAUNCH_FAILED)
        }
    }
}

pub(crate) fn synchronize_all() -> std::result::Result<(), Result> {
    let all: Vec<Stream> = lock(handles()).streams.values().cloned().collect();
    all.iter()
        .try_for_each(|s| outcome(s.synchronize(PATIENCE)))
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamCreate(s: *mut *mut c_void, _flags: c_uint) -> Result {
    call(|| {
        ready()?;
        let mut h = lock(handles());
        h.next += 16;
        let id = h.next;
        h.streams.insert(id, gpu().stream());
        // SAFETY: the caller's pointer.
        unsafe { put(s, id as *mut c_void) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamDestroy_v2(s: *mut c_void) -> Result {
    let removed = lock(handles()).streams.remove(&(s as usize));
    call(|| removed.map(drop).ok_or(INVALID_HANDLE))
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamSynchronize(s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        outcome(stream(s)?.synchronize(PATIENCE))
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamWaitEvent(
    s: *mut c_void,
    e: *mut c_void,
    _flags: c_uint,
) -> Result {
    call(|| {
        ready()?;
        let recorded = lock(&*event(e)?).clone();
        if let Some(recorded) = recorded {
            stream(s)?.host(move || {
                let _ = recorded.wait(PATIENCE);
            });
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuEventCreate(e: *mut *mut c_void, _flags: c_uint) -> Result {
    call(|| {
        ready()?;
        let mut h = lock(handles());
        h.next += 16;
        let id = h.next;
        h.events.insert(id, Arc::default());
        // SAFETY: the caller's pointer.
        unsafe { put(e, id as *mut c_void) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuEventDestroy_v2(e: *mut c_void) -> Result {
    let removed = lock(handles()).events.remove(&(e as usize));
    call(|| removed.map(drop).ok_or(INVALID_HANDLE))
}

#[no_mangle]
pub unsafe extern "C" fn cuEventRecord(e: *mut c_void, s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        let s = stream(s)?;
        crate::graph::not_capturing(&s)?;
        *lock(&*event(e)?) = Some(s.record());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuEventQuery(e: *mut c_void) -> Result {
    call(|| {
        ready()?;
        match &*lock(&*event(e)?) {
            Some(recorded) => outcome(recorded.wait(Duration::ZERO)),
            None => Ok(()),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuEventSynchronize(e: *mut c_void) -> Result {
    call(|| {
        ready()?;
        let recorded = lock(&*event(e)?).clone();
        recorded.map_or(Ok(()), |r| outcome(r.wait(PATIENCE)))
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuEventElapsedTime_v2(
    ms: *mut f32,
    start: *mut c_void,
    end: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        let (a, b) = (event(start)?, event(end)?);
        let (a, b) = (lock(&a).clone(), lock(&b).clone());
        let (Some(a), Some(b)) = (a, b) else {
            return Err(INVALID_HANDLE);
        };
        let elapsed = b.elapsed_since(&a).ok_or(NOT_READY)?;
        // SAFETY: the caller's pointer.
        unsafe { put(ms, elapsed.as_secs_f32() * 1000.0) }
    })
}

/// Queues a copy; addresses as numbers, for a closure that runs on another thread.
fn copy_later(s: &Stream, to: u64, from: u64, bytes: usize, write: bool) {
    s.host(move || {
        if write {
            slow();
        }
        // SAFETY: the range on the GPU was checked when the copy was queued, and freeing it waits; the
        // host's half is pinned and lives until the stream has reached the copy, as the interface
        // demands.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
    });
}

fn slow() {
    if faults().slow_writes {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    s: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        if !is_device(to, bytes) {
            return Err(INVALID_VALUE);
        }
        let s = stream(s)?;
        if is_pinned(from as u64, bytes) {
            copy_later(&s, to, from as u64, bytes, true);
            return Ok(());
        }
        // Pageable memory is read before the call returns.
        // SAFETY: the caller's memory.
        let taken = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
        s.host(move || {
            slow();
            // SAFETY: as in `copy_later`.
            unsafe { std::ptr::copy_nonoverlapping(taken.as_ptr(), to as *mut u8, bytes) };
        });
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    s: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        if !is_device(from, bytes) {
            return Err(INVALID_VALUE);
        }
        let s = stream(s)?;
        copy_later(&s, to as u64, from, bytes, false);
        // Pageable memory is written before the call returns.
        match is_pinned(to as u64, bytes) {
            true => Ok(()),
            false => outcome(s.synchronize(PATIENCE)),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchHostFunc(
    s: *mut c_void,
    f: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        let (f, data) = (f.ok_or(INVALID_VALUE)?, data as usize);
        // SAFETY: the caller's function, called once with its own data.
        stream(s)?.host(move || {
            crate::IN_HOST_FUNCTION.set(true);
            // SAFETY: as above.
            unsafe { f(data as *mut c_void) };
            crate::IN_HOST_FUNCTION.set(false);
        });
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchKernel(
    f: *mut c_void,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    _shared: c_uint,
    s: *mut c_void,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        if f.is_null() || !extra.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a function of `cuModuleGetFunction`, which stays for ever.
        let function = unsafe { &*f.cast::<Function>() };
        let stream = stream(s)?;
        if faults().kill.as_deref() == Some(&*function.name) {
            stream.host(|| lose(LAUNCH_FAILED));
            return Ok(());
        }
        let args = function.arg_bytes.iter().enumerate().map(|(i, bytes)| {
            // SAFETY: one pointer for each parameter, to a value of its size: the kernel's signature.
            let bytes = unsafe {
                std::slice::from_raw_parts((*params.add(i)).cast::<u8>(), *bytes as usize)
            };
            KernelArg::Bytes(bytes.to_vec())
        });
        let args: Vec<KernelArg> = args.collect();
        match stream.launch(&function.name, (gx, gy, gz), (bx, by, bz), &args) {
            // How it ends is seen by the events behind it.
            Ok(_launch) => Ok(()),
            Err(LaunchError::Shape { .. }) => Err(INVALID_VALUE),
            Err(_) => Err(UNKNOWN),
        }
    })
}
