//! Requests of the C API: outstanding operations.
#![allow(unsafe_code)] // Exports functions under names of C.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::context::Transfer;
use crate::failure::{entry, Failure};
use crate::handles::Table;
use crate::pointer::{OptionalOut, Out};
use ringbell::comm::{Done, Enqueued};
use ringbell::{CollectiveError, Request};

/// `rb_done`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct DoneInfo {
    bytes: u64,
    detail: u64,
}

impl From<Done> for DoneInfo {
    fn from(d: Done) -> DoneInfo {
        DoneInfo {
            bytes: d.bytes,
            detail: d.detail,
        }
    }
}

impl DoneInfo {
    fn moved(bytes: u64) -> DoneInfo {
        DoneInfo { bytes, detail: 0 }
    }
}

/// The end of a communicator's operation.
fn info(end: Result<Option<Done>, CollectiveError>) -> Result<Option<DoneInfo>, Failure> {
    let end = end.map_err(|e| Failure::collective(&e))?;
    Ok(end.map(DoneInfo::from))
}

/// An outstanding operation.
pub(super) enum Work {
    /// In the NIC.
    Posted(Request),
    /// On a stream.
    Queued(Enqueued),
    /// Of a socket, by a kernel.
    Transfer(Transfer),
}

/// State of an `rb_request`.
pub(super) struct OpenRequest {
    owner: usize,
    /// Its own time-out and a grace, for waits on a stream that give none.
    patience: Duration,
    work: Mutex<Work>,
}

pub(super) static REQUESTS: Table<OpenRequest> = Table::new("request (rb_request)");

/// Takes the requests of a NIC that is being closed.
pub(super) fn take_of(nic: usize) -> Vec<Arc<OpenRequest>> {
    REQUESTS.remove_where(|r| r.owner == nic)
}

/// A handle for an outstanding operation.
pub(super) fn insert(owner: usize, patience: Duration, work: Work) -> *mut c_void {
    std::ptr::without_provenance_mut(REQUESTS.insert(OpenRequest {
        owner,
        patience,
        work: Mutex::new(work),
    }))
}

impl OpenRequest {
    pub(super) fn work(&self) -> MutexGuard<'_, Work> {
        // Nothing that holds the lock can panic half-way through a change.
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller's limit of a wait, capped at what the clock can add.
fn wait_limit(us: u64) -> Duration {
    Duration::from_micros(us.min(u64::MAX / 4000))
}

/// # Safety
/// `ended` and `done` are null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_request_test(
    request: *mut c_void,
    ended: *mut i32,
    done: *mut DoneInfo,
) -> i32 {
    entry("rb_request_test", || {
        // SAFETY: by this function's contract.
        let (ended, out) = unsafe { (Out::new(ended, "`ended`")?, OptionalOut::new(done)) };
        let request = REQUESTS.get(request.addr())?;
        let result = match &mut *request.work() {
            Work::Posted(r) => info(r.test()),
            Work::Queued(q) if q.has_ended() => info(q.wait(Duration::ZERO).map(Some)),
            Work::Queued(_) => Ok(None),
            Work::Transfer(t) => t.test().map(|moved| moved.map(DoneInfo::moved)),
        };
        // A failed operation has ended as well.
        ended.set(i32::from(!matches!(result, Ok(None))));
        if let Some(d) = result? {
            out.set(d);
        }
        Ok(())
    })
}

/// # Safety
/// `done` is null or may be written to.
#[no_mangle]
unsafe extern "C" fn rb_request_wait(
    request: *mut c_void,
    timeout_us: u64,
    done: *mut DoneInfo,
) -> i32 {
    entry("rb_request_wait", || {
        // SAFETY: by this function's contract.
        let out = unsafe { OptionalOut::new(done) };
        let request = REQUESTS.get(request.addr())?;
        let result = match (&mut *request.work(), timeout_us) {
            (Work::Posted(r), 0) => info(r.wait_to_end().map(Some)),
            (Work::Posted(r), us) => info(r.wait_for(wait_limit(us)).map(Some)),
            (Work::Queued(q), 0) => info(q.wait(request.patience).map(Some)),
            (Work::Queued(q), us) => info(q.wait(wait_limit(us)).map(Some)),
            (Work::Transfer(t), us) => {
                let limit = Some(us).filter(|us| *us != 0).map(wait_limit);
                t.wait(limit).map(|moved| Some(DoneInfo::moved(moved)))
            }
        };
        if let Some(d) = result? {
            out.set(d);
        }
        Ok(())
    })
}

#[no_mangle]
extern "C" fn rb_request_cancel(request: *mut c_void) -> i32 {
    entry("rb_request_cancel", || {
        let request = REQUESTS.get(request.addr())?;
        let result = match &mut *request.work() {
            Work::Posted(r) => r.cancel().map_err(|e| Failure::collective(&e)),
            Work::Queued(_) => Err(Failure::argument(
                "an operation on a stream cannot be taken back; abort the communicator instead",
            )),
            Work::Transfer(_) => Err(Failure::argument(
                "a transfer that a kernel has begun cannot be taken back; close the socket instead",
            )),
        };
        result
    })
}

#[no_mangle]
extern "C" fn rb_request_free(request: *mut c_void) -> i32 {
    entry("rb_request_free", || {
        if request.is_null() {
            return Ok(());
        }
        REQUESTS.remove(request.addr()).map(drop)
    })
}
