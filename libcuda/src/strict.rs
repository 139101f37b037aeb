//! The waits and the lock of a real driver (ADR 26).
//!
//! A call that waits for all work of the context waits here too, and shuts a *gate* meanwhile:
//! other calls wait behind it, as behind the real driver's lock. A deadlock ends the process after
//! `patience`, and both parties are named.
#![allow(clippy::disallowed_methods)] // Waits and deadlines of a driver.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use ringbell_cuda_kernels::{Event, LaunchError, Stream};

use crate::{faults, lock};

/// Whether this is a test double, which waits where some driver waits, and is stricter than any:
/// `RINGBELL_MOCK_CUDA` is set. Without it programs of users run.
pub(crate) fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os(crate::faults::MOCK).is_some())
}

/// Launches that a stream takes before the next one blocks inside the driver (not documented;
/// measured by others).
const DEPTH: usize = 1024;
const NAP: Duration = Duration::from_micros(100);

/// An operation of a stream that has not ended.
struct Running {
    what: String,
    stream: usize,
    since: Instant,
    end: Event,
}

impl Running {
    fn is_over(&self) -> bool {
        !matches!(
            self.end.wait(Duration::ZERO),
            Err(LaunchError::TimedOut { .. })
        )
    }
}

static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());
/// The call that waits for all work, its thread and its beginning. The flag says whether there is
/// one.
static GATE: Mutex<Option<(&'static str, ThreadId, Instant)>> = Mutex::new(None);
static SHUT: AtomicBool = AtomicBool::new(false);
static WAITS: AtomicU32 = AtomicU32::new(0);

/// For tests: how many calls found a kernel at work and had to wait for its end.
#[no_mangle]
pub extern "C" fn mock_implicit_waits() -> u32 {
    WAITS.load(Ordering::Relaxed)
}

/// Longest wait before it is taken for a deadlock.
fn patience() -> Duration {
    Duration::from_millis(faults().patience_ms.unwrap_or(20_000))
}

/// Ends the process: a real driver would wait for ever.
fn deadlock(text: &str) -> ! {
    eprintln!("mock libcuda: {text}; on a real GPU this may never end");
    std::process::abort();
}

/// Notes a queued kernel, or another operation that can run for long.
pub(crate) fn note(what: &str, handle: usize, stream: &Stream) {
    let entry = Running {
        what: what.to_owned(),
        stream: handle,
        since: Instant::now(),
        end: stream.record(),
    };
    let mut all = lock(&RUNNING);
    if all.len() >= 64 {
        all.retain(|r| !r.is_over());
    }
    all.push(entry);
}

/// The first operation that has not ended, of a stream or of all.
fn first(handle: Option<usize>) -> Option<String> {
    let mut all = lock(&RUNNING);
    all.retain(|r| !r.is_over());
    let found = all.iter().find(|r| handle.is_none_or(|h| h == r.stream));
    found.map(|r| {
        let (ms, stream) = (r.since.elapsed().as_millis(), r.stream);
        format!("`{}` of stream {stream:#x}, queued {ms} ms ago", r.what)
    })
}

/// Whether all operations of a stream have ended.
pub(crate) fn is_idle(handle: usize) -> bool {
    first(Some(handle)).is_none()
}

/// The gate of every call: it waits while another call waits for all work.
pub(crate) fn pass() {
    while SHUT.load(Ordering::Acquire) {
        let gate = *lock(&GATE);
        let Some((call, thread, since)) = gate else {
            continue;
        };
        if thread == std::thread::current().id() {
            return;
        }
        if since.elapsed() > patience() + Duration::from_secs(1) {
            deadlock(&format!("a call of another thread waits behind {call}"));
        }
        std::thread::sleep(NAP);
    }
}

/// Waits until `over`, with the gate shut.
fn wait(call: &'static str, mut over: impl FnMut() -> Option<String>) {
    if !is_on() {
        return;
    }
    let Some(mut party) = over() else {
        return;
    };
    WAITS.fetch_add(1, Ordering::Relaxed);
    let me = std::thread::current().id();
    let start = Instant::now();
    // One at a time, as behind a lock.
    loop {
        let mut gate = lock(&GATE);
        if gate.is_none() {
            *gate = Some((call, me, start));
            SHUT.store(true, Ordering::Release);
            break;
        }
        drop(gate);
        pass();
    }
    while let Some(still) = over() {
        party = still;
        let waited = start.elapsed();
        if waited > patience() {
            let ms = waited.as_millis();
            deadlock(&format!("{call} has waited {ms} ms for {party}"));
        }
        std::thread::sleep(NAP);
    }
    *lock(&GATE) = None;
    SHUT.store(false, Ordering::Release);
    if faults().trace {
        eprintln!("mock libcuda: {call} has waited for {party}");
    }
}

/// A call that waits for all work of the context.
pub(crate) fn wait_for_all(call: &'static str) {
    wait(call, || first(None));
}

/// A call that does so in some drivers and situations: only with the switch `may-wait`.
pub(crate) fn may_wait(call: &'static str) {
    if faults().may_wait {
        wait_for_all(call);
    }
}

/// A launch: it blocks while the stream is full.
pub(crate) fn make_room(handle: usize) {
    let full = || {
        let all = lock(&RUNNING);
        let held = || all.iter().filter(|r| r.stream == handle);
        if held().count() < DEPTH {
            return None;
        }
        let mut left = held().filter(|r| !r.is_over());
        let oldest = left.next()?.what.clone();
        (left.count() + 1 >= DEPTH).then(|| format!("`{oldest}` and {DEPTH} launches behind it"))
    };
    wait("cuLaunchKernel", full);
}
