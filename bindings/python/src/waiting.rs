//! Waits without the interpreter's lock, in slices between which signals are handled.
#![allow(clippy::disallowed_methods)] // Waits for the NIC and for ranks, with deadlines on the host's clock.

use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use ringbell::abi::{CollectiveKind, Status};
use ringbell::comm::Done;
use ringbell::{CollectiveError, Request};

use crate::failure;

/// Longest time in which a signal is not noticed.
const SLICE: Duration = Duration::from_millis(50);

/// Wait beyond an operation's own time-out before the NIC counts as failed.
const SILENCE: Duration = Duration::from_secs(62);

/// Longest wait for the end of an operation that Ctrl-C has cancelled.
const ENDING: Duration = Duration::from_secs(5);

/// A time-out in seconds, as Python has it.
pub(crate) fn seconds(value: f64, name: &str) -> PyResult<Duration> {
    let wrong = || PyValueError::new_err(format!("{name} is {value}; give seconds above 0"));
    if value <= 0.0 {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(value).map_err(|_| wrong())
}

/// Runs a call that waits, on a thread of its own, so that Ctrl-C ends the wait. The call then ends
/// by its own deadline, and its result is dropped.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (send, mut receive) = channel();
    let thread = std::thread::Builder::new().name("ringbell-call".into());
    let thread = thread.spawn(move || drop(send.send(call())));
    thread.map_err(|e| PyOSError::new_err(format!("cannot start a thread: {e}")))?;
    loop {
        let (again, got) = py.detach(move || {
            let got = receive.recv_timeout(SLICE);
            (receive, got)
        });
        receive = again;
        match got {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let text = "defect of the library: a call has panicked; its message is above";
                return Err(PyRuntimeError::new_err(text));
            }
        }
    }
}

/// Waits for a request at most `limit`; `None` when it has not ended then.
pub(crate) fn wait_within(
    py: Python<'_>,
    request: &mut Request,
    limit: Duration,
) -> PyResult<Option<Result<Done, CollectiveError>>> {
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        match py.detach(|| request.wait_for(left.min(SLICE))) {
            Err(CollectiveError::Wait { .. }) if left <= SLICE => return Ok(None),
            Err(CollectiveError::Wait { .. }) => py.check_signals()?,
            end => return Ok(Some(end)),
        }
    }
}

/// Longest wait for an operation with this time-out: the NIC ends it before, unless it has failed.
pub(crate) fn patience(timeout: Duration) -> Duration {
    timeout.saturating_add(SILENCE)
}

/// The error of a NIC that has not ended an operation in time.
pub(crate) fn silent(kind: CollectiveKind, rank: u32) -> PyErr {
    failure::collective(&CollectiveError::Failed {
        kind,
        rank,
        status: Status::NicSilent,
        detail: 0,
        why: None,
    })
}

/// Ends an operation whose wait a signal has ended, so that its memory is the program's again:
/// cancels it, or aborts its communicator when other ranks depend on it already.
pub(crate) fn give_up(request: &mut Request, abort: impl FnOnce()) {
    if request.cancel().is_err() {
        abort();
    }
    // Its status is of no interest: the signal's exception is raised. It keeps the interpreter's
    // lock: no thread must see the arrays before.
    let _ = request.wait_for(ENDING);
}
