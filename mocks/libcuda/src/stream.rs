//! Streams, events, copies and launches.
#![allow(clippy::disallowed_methods)] // A slow copy sleeps.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ringbell_cuda_kernels::{Event, KernelArg, LaunchError, Stream};

use crate::memory::{copying, is_device, is_pinned};
use crate::{
    call, faults, gpu, lock, lose, module, put, ready, strict, Result,
    COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_HANDLE, INVALID_VALUE, LAUNCH_FAILED, NOT_READY,
    STREAM_CAPTURE_UNSUPPORTED, UNKNOWN,
};

/// Longer than any test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A stream of the interface.
#[derive(Clone)]
struct MockStream {
    stream: Stream,
    /// Waits for the null stream, which waits for it.
    blocking: bool,
    /// The work queue that it shares with other streams of its priority.
    channel: (c_int, usize),
}

#[derive(Default)]
struct Handles {
    next: usize,
    made: usize,
    streams: HashMap<usize, MockStream>,
    events: HashMap<usize, Arc<Mutex<Option<Event>>>>,
    /// What each work queue was given last, and by which stream.
    tails: HashMap<(c_int, usize), (usize, Event)>,
}

fn handles() -> &'static Mutex<Handles> {
    static HANDLES: OnceLock<Mutex<Handles>> = OnceLock::new();
    HANDLES.get_or_init(Mutex::default)
}

/// Blocking streams that were made, and operations that went to the null stream: for tests.
static BLOCKING: AtomicU32 = AtomicU32::new(0);

/// For tests: how often the null stream, or a stream that waits for it, was used.
#[no_mangle]
pub extern "C" fn mock_blocking_uses() -> u32 {
    BLOCKING.load(Ordering::Relaxed)
}

/// How many work queues the streams of a priority share. A real driver has eight without the variable; here nothing is shared
/// without it, because which streams share one is the driver's secret.
fn connections() -> Option<usize> {
    static COUNT: OnceLock<Option<usize>> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let n = std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok()?;
        Some(n.parse::<usize>().ok()?.clamp(1, 32))
    })
}

/// The null stream is number 0.
fn order(handle: *mut c_void) -> std::result::Result<MockStream, Result> {
    let mut h = lock(handles());
    match (handle as usize, h.streams.get(&(handle as usize))) {
        (_, Some(s)) => Ok(s.clone()),
        (0, None) => {
            let s = MockStream {
                stream: gpu().stream(),
                blocking: true,
                channel: (0, 0),
            };
            h.streams.insert(0, s.clone());
            Ok(s)
        }
        _ => Err(INVALID_HANDLE),
    }
}

/// The stream, when nothing is put into it.
pub(crate) fn stream(handle: *mut c_void) -> std::result::Result<Stream, Result> {
    Ok(order(handle)?.stream)
}

/// Puts something into a stream: behind the null stream when it is one that waits for that, behind all blocking streams
/// when it is the null stream itself, and behind what its work queue holds when those are few.
pub(crate) fn on<R>(
    handle: *mut c_void,
    f: impl FnOnce(&Stream) -> std::result::Result<R, Result>,
) -> std::result::Result<R, Result> {
    let own = order(handle)?;
    let id = handle as usize;
    if own.stream.is_capturing() {
        return f(&own.stream);
    }
    let mut before = Vec::new();
    if own.blocking {
        BLOCKING.fetch_add(1, Ordering::Relaxed);
        let h = lock(handles());
        let others = h.streams.iter().filter(|(other, o)| {
            o.blocking && **other != id && (id == 0 || **other == 0) && !o.stream.is_capturing()
        });
        before.extend(others.map(|(_, o)| o.stream.record()));
    }
    if connections().is_some() {
        let h = lock(handles());
        let tail = h.tails.get(&own.channel).filter(|(last, _)| *last != id);
        before.extend(tail.map(|(_, event)| event.clone()));
    }
    for event in before {
        own.stream.host(move || {
            let _ = event.wait(PATIENCE);
        });
    }
    let done = f(&own.stream)?;
    if connections().is_some() {
        let tail = (id, own.stream.record());
        lock(handles()).tails.insert(own.channel, tail);
    }
    Ok(done)
}

/// The context ends, and its handles with it.
pub(crate) fn forget_all() {
    let mut h = lock(handles());
    h.streams.clear();
    h.events.clear();
    h.tails.clear();
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
    let all: Vec<MockStream> = lock(handles()).streams.values().cloned().collect();
    all.iter()
        .filter(|o| !o.stream.is_capturing())
        .try_for_each(|o| outcome(o.stream.synchronize(PATIENCE)))
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamCreate(s: *mut *mut c_void, flags: c_uint) -> Result {
    // SAFETY: the caller's pointer.
    unsafe { cuStreamCreateWithPriority(s, flags, 0) }
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    s: *mut *mut c_void,
    flags: c_uint,
    priority: c_int,
) -> Result {
    call(|| {
        ready()?;
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        strict::may_wait("cuStreamCreate");
        let mut h = lock(handles());
        h.next += 16;
        let id = h.next;
        // As the real one: a priority out of range is the nearest in range.
        let priority = priority.clamp(-5, 0);
        let made = MockStream {
            stream: gpu().stream(),
            blocking: flags & 1 == 0,
            channel: (priority, h.made % connections().unwrap_or(1)),
        };
        h.made += 1;
        h.streams.insert(id, made);
        // SAFETY: the caller's pointer.
        unsafe { put(s, id as *mut c_void) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamQuery(s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        let real = stream(s)?;
        if real.is_capturing() {
            // And the capture is spoiled.
            real.host(|| ());
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        if !strict::is_idle(s as usize) {
            return Err(NOT_READY);
        }
        outcome(real.synchronize(Duration::ZERO))
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
        let Some(recorded) = recorded else {
            return Ok(());
        };
        on(s, |s| {
            s.host(move || {
                let _ = recorded.wait(PATIENCE);
            });
            Ok(())
        })
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
        let event = event(e)?;
        on(s, |s| {
            crate::graph::not_capturing(s)?;
            *lock(&*event) = Some(s.record());
            Ok(())
        })
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

/// By its name before CUDA 12.8, which drivers keep.
#[no_mangle]
pub unsafe extern "C" fn cuEventElapsedTime(
    ms: *mut f32,
    start: *mut c_void,
    end: *mut c_void,
) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuEventElapsedTime_v2(ms, start, end) }
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
        let copy =
            || unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
        copying(to, || copying(from, copy));
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
        if is_pinned(from as u64, bytes) {
            return on(s, |s| {
                copy_later(s, to, from as u64, bytes, true);
                Ok(())
            });
        }
        // Pageable memory is read before the call returns.
        // SAFETY: the caller's memory.
        let taken = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.to_vec();
        on(s, |s| {
            s.host(move || {
                slow();
                // SAFETY: as in `copy_later`.
                let copy = || unsafe {
                    std::ptr::copy_nonoverlapping(taken.as_ptr(), to as *mut u8, bytes)
                };
                copying(to, copy);
            });
            Ok(())
        })
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
        on(s, |s| {
            copy_later(s, to as u64, from, bytes, false);
            Ok(())
        })?;
        // Pageable memory is written before the call returns.
        match is_pinned(to as u64, bytes) {
            true => Ok(()),
            false => outcome(stream(s)?.synchronize(PATIENCE)),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: u64,
    from: u64,
    bytes: usize,
    s: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        if !is_device(to, bytes) || !is_device(from, bytes) {
            return Err(INVALID_VALUE);
        }
        copy_later(&stream(s)?, to, from, bytes, true);
        Ok(())
    })
}

/// A copy in the null stream that has ended when the call returns.
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> Result {
    let null = std::ptr::null_mut();
    // SAFETY: the caller's memory.
    match unsafe { cuMemcpyHtoDAsync_v2(to, from, bytes, null) } {
        // SAFETY: the null stream.
        0 => unsafe { cuStreamSynchronize(null) },
        error => error,
    }
}

/// As [`cuMemcpyHtoD_v2`].
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> Result {
    let null = std::ptr::null_mut();
    // SAFETY: the caller's memory.
    match unsafe { cuMemcpyDtoHAsync_v2(to, from, bytes, null) } {
        // SAFETY: the null stream.
        0 => unsafe { cuStreamSynchronize(null) },
        error => error,
    }
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
        on(s, |real| {
            // SAFETY: the caller's function, called once with its own data.
            real.host(move || {
                crate::IN_HOST_FUNCTION.set(true);
                // SAFETY: as above.
                unsafe { f(data as *mut c_void) };
                crate::IN_HOST_FUNCTION.set(false);
            });
            if !real.is_capturing() {
                strict::note("a host function", s as usize, real);
            }
            Ok(())
        })
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
    if !extra.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's arguments.
    call(|| unsafe { launch(f, (gx, gy, gz), (bx, by, bz), s, params) })
}

/// Blocks of so many lanes that a multiprocessor holds at once, by its lanes alone.
fn resident(lanes: u64) -> u64 {
    (2048 / lanes.max(32)).min(32)
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchCooperativeKernel(
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
) -> Result {
    let count = |x: c_uint, y: c_uint, z: c_uint| u64::from(x) * u64::from(y) * u64::from(z);
    let room = resident(count(bx, by, bz)) * crate::device::sms() as u64;
    if count(gx, gy, gz) > room {
        return COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    // SAFETY: the caller's arguments.
    call(|| unsafe { launch(f, (gx, gy, gz), (bx, by, bz), s, params) })
}

type Dim = (c_uint, c_uint, c_uint);

/// # Safety
/// `params` points to a pointer for each parameter of the kernel.
unsafe fn launch(
    f: *mut c_void,
    grid: Dim,
    block: Dim,
    s: *mut c_void,
    params: *mut *mut c_void,
) -> std::result::Result<(), Result> {
    ready()?;
    let function = module::function(f)?;
    let args = function.arg_bytes.iter().enumerate().map(|(i, bytes)| {
        // SAFETY: one pointer for each parameter, to a value of its size: the kernel's signature.
        let bytes =
            unsafe { std::slice::from_raw_parts((*params.add(i)).cast::<u8>(), *bytes as usize) };
        KernelArg::Bytes(bytes.to_vec())
    });
    let args: Vec<KernelArg> = args.collect();
    strict::make_room(s as usize);
    function.prepare();
    on(s, |real| {
        if faults().kill.as_deref() == Some(&*function.name) {
            real.host(|| lose(LAUNCH_FAILED));
            return Ok(());
        }
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        match unsafe { real.launch(&function.name, grid, block, &args) } {
            // How it ends is seen by the events behind it.
            Ok(_launch) => {}
            Err(LaunchError::Shape { .. }) => return Err(INVALID_VALUE),
            Err(_) => return Err(UNKNOWN),
        }
        if !real.is_capturing() {
            strict::note(&function.name, s as usize, real);
        }
        Ok(())
    })
}
