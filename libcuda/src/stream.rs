//! Streams and events: order, and waiting.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use ringbell_cuda_kernels::{Event, Failure, LaunchError, Stream};

use crate::operation::Operation;
use crate::{
    call, capture, gpu, lock, lose, put, ready, say, strict, Result, ASSERT, ILLEGAL_ADDRESS,
    INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, LAUNCH_FAILED, MISALIGNED_ADDRESS, NOT_READY,
};

/// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT.
const STREAM_CAPTURE_IMPLICIT: Result = 906;

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

/// The state of an event of the interface.
#[derive(Clone, Default)]
enum Recorded {
    #[default]
    Never,
    Queued(Event),
    /// In a graph.
    Captured(capture::Mark),
}

#[derive(Default)]
struct Handles {
    next: usize,
    made: usize,
    streams: HashMap<usize, MockStream>,
    events: HashMap<usize, Arc<Mutex<Recorded>>>,
    /// Ends of streams that were destroyed with work in them, which goes on.
    destroyed: Vec<Event>,
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

/// How many work queues the streams of a priority share. A real driver has eight without the
/// variable; here nothing is shared without it, because which streams share one is the driver's
/// secret.
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

/// Puts something into a stream: behind the null stream when it is one that waits for that, behind
/// all blocking streams when it is the null stream itself, and behind what its work queue holds
/// when those are few.
pub(crate) fn on<R>(
    handle: *mut c_void,
    f: impl FnOnce(&Stream) -> std::result::Result<R, Result>,
) -> std::result::Result<R, Result> {
    let own = order(handle)?;
    let id = handle as usize;
    capture::refuse(id)?;
    let mut before = Vec::new();
    if own.blocking {
        BLOCKING.fetch_add(1, Ordering::Relaxed);
        let h = lock(handles());
        let others = h
            .streams
            .iter()
            .filter(|(other, o)| o.blocking && **other != id && (id == 0 || **other == 0));
        let others: Vec<_> = others.collect();
        // The null stream would wait for what has not run.
        let captures = others
            .iter()
            .any(|(other, _)| capture::is_capturing(**other));
        if captures {
            return Err(STREAM_CAPTURE_IMPLICIT);
        }
        before.extend(others.iter().map(|(_, o)| o.stream.record()));
    }
    if connections().is_some() {
        let h = lock(handles());
        let tail = h.tails.get(&own.channel).filter(|(last, _)| *last != id);
        before.extend(tail.map(|(_, event)| event.clone()));
    }
    for event in before {
        own.stream.host(move || until(&event));
    }
    let done = f(&own.stream)?;
    if connections().is_some() {
        let tail = (id, own.stream.record());
        lock(handles()).tails.insert(own.channel, tail);
    }
    Ok(done)
}

/// Puts an operation into a stream, or into the graph that it captures.
pub(crate) fn submit(
    handle: *mut c_void,
    operation: &Operation,
) -> std::result::Result<(), Result> {
    stream(handle)?;
    match capture::add(handle as usize, operation) {
        Some(added) => added,
        None => on(handle, |real| operation.run(handle as usize, real)),
    }
}

/// Waits until an event is reached, or has failed, as a stream of a driver does.
pub(crate) fn until(event: &Event) {
    while matches!(event.wait(PATIENCE), Err(LaunchError::TimedOut { .. })) && !strict::is_on() {}
}

/// The context ends, and its handles with it.
pub(crate) fn forget_all() {
    let mut h = lock(handles());
    h.streams.clear();
    h.events.clear();
    h.tails.clear();
    h.destroyed.clear();
}

fn event(handle: *mut c_void) -> std::result::Result<Arc<Mutex<Recorded>>, Result> {
    let h = lock(handles());
    h.events
        .get(&(handle as usize))
        .cloned()
        .ok_or(INVALID_HANDLE)
}

/// The error of a kernel that has failed, which takes the context with it.
fn failed(e: &LaunchError) -> Result {
    match first(e) {
        LaunchError::Failed { failure, .. } => match failure {
            Failure::Access => ILLEGAL_ADDRESS,
            Failure::Misaligned => MISALIGNED_ADDRESS,
            Failure::Assertion => ASSERT,
            Failure::Code => INVALID_PTX,
            _ => LAUNCH_FAILED,
        },
        _ => LAUNCH_FAILED,
    }
}

/// The error in front of all that were not run for it.
fn first(e: &LaunchError) -> &LaunchError {
    match e {
        LaunchError::StreamFailed { cause } => first(cause),
        e => e,
    }
}

/// What became of an event, which is waited for so long, or without a bound as a driver does.
fn reached(event: &Event, timeout: Option<Duration>) -> std::result::Result<(), Result> {
    let ended = loop {
        match (event.wait(timeout.unwrap_or(PATIENCE)), timeout) {
            // A test double ends a wait; a real driver waits as long as a kernel runs.
            (Err(LaunchError::TimedOut { .. }), None) if !strict::is_on() => {}
            (ended, _) => break ended,
        }
    };
    match ended {
        Ok(()) => ready(),
        Err(LaunchError::TimedOut { .. }) => Err(NOT_READY),
        Err(e) => {
            let code = failed(&e);
            if lose(code) {
                say(&first(&e).to_string());
            }
            Err(code)
        }
    }
}

/// What became of a stream's present work; waits as [`reached`] does.
pub(crate) fn outcome(
    stream: &Stream,
    timeout: Option<Duration>,
) -> std::result::Result<(), Result> {
    reached(&stream.record(), timeout)
}

pub(crate) fn synchronize_all() -> std::result::Result<(), Result> {
    let all: Vec<MockStream> = lock(handles()).streams.values().cloned().collect();
    all.iter().try_for_each(|o| outcome(&o.stream, None))?;
    let destroyed = std::mem::take(&mut lock(handles()).destroyed);
    destroyed.iter().try_for_each(|e| reached(e, None))
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
pub unsafe extern "C" fn cuStreamGetFlags(s: *mut c_void, flags: *mut c_uint) -> Result {
    call(|| {
        ready()?;
        let blocking = order(s)?.blocking;
        // CU_STREAM_NON_BLOCKING is 1.
        // SAFETY: the caller's pointer.
        unsafe { put(flags, c_uint::from(!blocking)) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamGetPriority(s: *mut c_void, priority: *mut c_int) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's pointer.
        unsafe { put(priority, order(s)?.channel.0) }
    })
}

/// CU_STREAM_CAPTURE_STATUS_NONE, _ACTIVE or _INVALIDATED.
#[no_mangle]
pub unsafe extern "C" fn cuStreamIsCapturing(s: *mut c_void, status: *mut c_int) -> Result {
    call(|| {
        ready()?;
        stream(s)?;
        let now = match capture::status(s as usize) {
            capture::Status::Runs => 0,
            capture::Status::Captures(_) => 1,
            capture::Status::Invalid => 2,
        };
        // SAFETY: the caller's pointer.
        unsafe { put(status, now) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamQuery(s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        let real = stream(s)?;
        capture::refuse(s as usize)?;
        if !strict::is_idle(s as usize) {
            return Err(NOT_READY);
        }
        outcome(&real, Some(Duration::ZERO))
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamDestroy_v2(s: *mut c_void) -> Result {
    call(|| {
        let mut h = lock(handles());
        let removed = h.streams.remove(&(s as usize)).ok_or(INVALID_HANDLE)?;
        capture::forget(s as usize);
        let ended =
            |e: &Event| !matches!(e.wait(Duration::ZERO), Err(LaunchError::TimedOut { .. }));
        h.destroyed.retain(|e| !ended(e));
        h.destroyed.push(removed.stream.record());
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuStreamSynchronize(s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        let real = stream(s)?;
        capture::refuse(s as usize)?;
        outcome(&real, None)
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
        stream(s)?;
        let recorded = lock(&*event(e)?).clone();
        let (mark, queued) = match recorded {
            Recorded::Never => return Ok(()),
            Recorded::Captured(mark) => (Some(mark), None),
            Recorded::Queued(queued) => (None, Some(queued)),
        };
        match (capture::wait(s as usize, mark.as_ref())?, queued) {
            (false, Some(queued)) => on(s, |s| {
                s.host(move || until(&queued));
                Ok(())
            }),
            _ => Ok(()),
        }
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
        stream(s)?;
        *lock(&*event) = match capture::mark(s as usize) {
            Some(mark) => Recorded::Captured(mark),
            None => Recorded::Queued(on(s, |real| Ok(real.record()))?),
        };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuEventQuery(e: *mut c_void) -> Result {
    call(|| {
        ready()?;
        match &*lock(&*event(e)?) {
            Recorded::Queued(recorded) => reached(recorded, Some(Duration::ZERO)),
            Recorded::Captured(_) => Err(capture::CAPTURED_EVENT),
            Recorded::Never => Ok(()),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuEventSynchronize(e: *mut c_void) -> Result {
    call(|| {
        ready()?;
        let recorded = lock(&*event(e)?).clone();
        match recorded {
            Recorded::Queued(recorded) => reached(&recorded, None),
            Recorded::Captured(_) => Err(capture::CAPTURED_EVENT),
            Recorded::Never => Ok(()),
        }
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
        let (Recorded::Queued(a), Recorded::Queued(b)) = (a, b) else {
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

pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// A function of the program with its data, which may not call the driver.
pub(crate) fn host_function(f: HostFunction, data: *mut c_void) -> Operation {
    let data = data as usize;
    let run = move || {
        crate::IN_HOST_FUNCTION.set(true);
        // SAFETY: the caller's function with its own data.
        unsafe { f(data as *mut c_void) };
        crate::IN_HOST_FUNCTION.set(false);
    };
    Operation::Host {
        what: Some("a host function"),
        run: Arc::new(run),
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuLaunchHostFunc(
    s: *mut c_void,
    f: Option<HostFunction>,
    data: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        submit(s, &host_function(f.ok_or(INVALID_VALUE)?, data))
    })
}

/// cudaStreamCallback_t's kin of the driver, with what it is called.
type Callback = unsafe extern "C" fn(*mut c_void, Result, *mut c_void);

/// As a host function that is told its stream. It cannot be captured.
#[no_mangle]
pub unsafe extern "C" fn cuStreamAddCallback(
    s: *mut c_void,
    callback: Option<Callback>,
    data: *mut c_void,
    flags: c_uint,
) -> Result {
    call(|| {
        ready()?;
        let callback = callback.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
        let (stream, data) = (s as usize, data as usize);
        on(s, |real| {
            real.host(move || {
                crate::IN_HOST_FUNCTION.set(true);
                // SAFETY: the caller's function with its own data.
                unsafe { callback(stream as *mut c_void, 0, data as *mut c_void) };
                crate::IN_HOST_FUNCTION.set(false);
            });
            strict::note("a callback", stream, real);
            Ok(())
        })
    })
}

/// A number that no other stream of the process has: its handle's.
#[no_mangle]
pub unsafe extern "C" fn cuStreamGetId(s: *mut c_void, id: *mut u64) -> Result {
    call(|| {
        ready()?;
        stream(s)?;
        // SAFETY: the caller's pointer.
        unsafe { put(id, s as u64) }
    })
}

/// There is one context.
#[no_mangle]
pub unsafe extern "C" fn cuStreamGetCtx(s: *mut c_void, context: *mut *mut c_void) -> Result {
    call(|| {
        ready()?;
        stream(s)?;
        // SAFETY: the caller's pointer.
        unsafe { put(context, crate::primary::CURRENT.get() as *mut c_void) }
    })
}
