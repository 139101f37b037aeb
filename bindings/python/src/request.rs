//! [`Request`]: an outstanding operation, with the memory that it uses.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pyo3::prelude::*;
use ringbell::abi::{CollectiveKind, Status};
use ringbell::Operation;

use crate::failure::{self, Failure};
use crate::posted::{locked, Posted, Shared, State};
use crate::waiting::{give_up, patience, seconds, silent, wait_within};

/// An outstanding operation. Its arrays belong to the NIC until it has ended.
#[pyclass(frozen, module = "ringbell", weakref)]
pub(crate) struct Request {
    state: Arc<Mutex<State>>,
    comm: Arc<Shared>,
    kind: CollectiveKind,
    timeout: Duration,
}

impl Request {
    pub(crate) fn new(
        posted: Posted,
        comm: Arc<Shared>,
        kind: CollectiveKind,
        timeout: Duration,
    ) -> Request {
        let state = Arc::new(Mutex::new(State::Outstanding(posted)));
        comm.watch(&state);
        Request {
            state,
            comm,
            kind,
            timeout,
        }
    }

    /// An operation that begins when this one has ended.
    pub(crate) fn before(&self, operation: Operation) -> PyResult<Operation> {
        match &mut *self.state() {
            State::Outstanding(posted) => Ok(operation.after(&[posted.request()?])),
            // The thread that waits has it: everything that was posted so far includes it.
            State::Waited => Ok(operation.fence()),
            State::Done(_) => Ok(operation),
            State::Failed => Err(bad_state(
                "after: a request has failed; the first call that noticed it raised why",
            )),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

fn bad_state(text: &str) -> PyErr {
    Failure::new(Status::BadState.name(), text).raise()
}

const FAILED_BEFORE: &str =
    "the request has failed before; the first call that noticed it raised why";
const WAITED: &str = "another thread waits for this request";

#[pymethods]
impl Request {
    /// Seconds after which `wait` without a time-out gives up.
    #[getter]
    fn patience(&self) -> f64 {
        patience(self.timeout).as_secs_f64()
    }

    /// Rank that sent the message; `None` before it has come, and of other operations.
    #[getter]
    fn source(&self) -> Option<u32> {
        match &*self.state() {
            State::Done(done) if self.kind == CollectiveKind::Recv => {
                Some((done.detail >> 32) as u32)
            }
            _ => None,
        }
    }

    /// Tag of the message; `None` as for `source`.
    #[getter]
    fn tag(&self) -> Option<u32> {
        match &*self.state() {
            State::Done(done) if self.kind == CollectiveKind::Recv => Some(done.detail as u32),
            _ => None,
        }
    }

    /// Whether the operation has ended; never waits.
    fn test(&self) -> PyResult<bool> {
        let mut state = self.state();
        let end = match &mut *state {
            State::Outstanding(posted) => posted.request()?.test(),
            State::Waited => return Ok(false),
            State::Done(_) => return Ok(true),
            State::Failed => return Err(bad_state(FAILED_BEFORE)),
        };
        match end {
            Ok(None) => Ok(false),
            Ok(Some(done)) => {
                *state = State::Done(done);
                Ok(true)
            }
            Err(error) => {
                *state = State::Failed;
                Err(failure::collective(&error))
            }
        }
    }

    /// Waits for its end, and returns the bytes moved.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let limit = match timeout {
            Some(timeout) => seconds(timeout, "timeout")?,
            None => patience(self.timeout),
        };
        let mut posted = {
            let mut state = self.state();
            match std::mem::replace(&mut *state, State::Waited) {
                State::Outstanding(posted) => posted,
                State::Waited => return Err(bad_state(WAITED)),
                ended => {
                    let bytes = match ended {
                        State::Done(done) => Ok(done.bytes),
                        _ => Err(bad_state(FAILED_BEFORE)),
                    };
                    *state = ended;
                    return bytes;
                }
            }
        };
        let end = posted.request().and_then(|r| wait_within(py, r, limit));
        let (next, result) = match end {
            Ok(Some(Ok(done))) => (State::Done(done), Ok(done.bytes)),
            Ok(Some(Err(error))) => (State::Failed, Err(failure::collective(&error))),
            Ok(None) if timeout.is_none() => {
                let error = silent(self.kind, self.comm.rank());
                (State::Outstanding(posted), Err(error))
            }
            Ok(None) => {
                let text = format!(
                    "{}: Timed out after {limit:?}, and the operation goes on; wait again, or cancel it",
                    self.kind.name()
                );
                (
                    State::Outstanding(posted),
                    Err(Failure::new("IN_PROGRESS", text).raise()),
                )
            }
            // A signal's exception, or another process's request.
            Err(error) => (State::Outstanding(posted), Err(error)),
        };
        *self.state() = next;
        result
    }

    /// Waits for its end, which it brings about when a signal ends the wait: for calls whose arrays
    /// are the caller's again on return.
    fn finish(&self, py: Python<'_>) -> PyResult<u64> {
        let result = self.wait(py, None);
        let mut state = self.state();
        if let (Err(_), State::Outstanding(posted)) = (&result, &mut *state) {
            if let Ok(request) = posted.request() {
                give_up(request, || self.comm.abort());
            }
        }
        result
    }

    /// Cancels the operation, if no other rank depends on it yet.
    fn cancel(&self) -> PyResult<()> {
        match &mut *self.state() {
            State::Outstanding(posted) => {
                let cancelled = posted.request()?.cancel();
                cancelled.map_err(|e| failure::collective(&e))
            }
            State::Waited => Err(bad_state(WAITED)),
            State::Done(_) | State::Failed => Err(bad_state("the request has ended")),
        }
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let waiting = slf.py().import("ringbell._waiting")?;
        waiting
            .getattr("until_done")?
            .call1((slf,))?
            .call_method0("__await__")
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *self.state(), State::Failed);
        if let State::Outstanding(mut posted) = state {
            // Its memory stays the NIC's until it has ended.
            if !posted.has_ended() {
                self.comm.adopt(posted);
            }
        }
    }
}
