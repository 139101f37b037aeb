//! [`Op`]: a send or a receive until the program has been told of its end.
//!
//! A request that the program gets is a generalized request of the library below, so that its own
//! functions wait for it, test, cancel and free it, beside requests of its own.
#![allow(unsafe_code)] // Calls the library below.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{Abi, Handle, Tables};
use crate::below::below;
use crate::elements::Elements;
use crate::failure;
use crate::layer::Layer;
use crate::trace;

/// Start of the text of an error that a rank's end has caused.
pub(super) const PEER_FAILED: &str = "MPI_ERR_PROC_FAILED: ";

/// Where a message is from, as its communicator has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) source: u32,
    pub(super) tag: i32,
}

/// How an operation ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// `None` of a send.
    pub(super) source: Option<u32>,
    pub(super) tag: i32,
    pub(super) bytes: u64,
    pub(super) cancelled: bool,
    pub(super) fault: Option<Fault>,
}

#[derive(Debug, Clone)]
pub(super) enum Fault {
    /// The message is longer than the receive.
    Truncated,
    /// A text.
    Lost(String),
}

/// A send or a receive.
#[derive(Debug, Default)]
pub(crate) struct Op {
    done: AtomicBool,
    cancel: AtomicBool,
    outcome: Mutex<Outcome>,
    request: Mutex<Option<Requested>>,
}

/// The request of an operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Requested {
    pub(super) handle: Handle,
    /// The communicator, whose error handler is asked.
    pub(super) comm: Handle,
    /// Number of its context, which another communicator of the same handle does not have.
    pub(super) context: u32,
}

thread_local! {
    /// Operations with a fault whose requests a call of this thread has ended; `None` while no call
    /// of ours ends requests.
    static FAILED: RefCell<Option<Vec<Arc<Op>>>> = const { RefCell::new(None) };
}

/// Runs a test of the library below, and gives the operations with a fault whose requests it has
/// ended.
pub(super) fn observed<T>(test: impl FnOnce() -> T) -> (T, Vec<Arc<Op>>) {
    FAILED.set(Some(Vec::new()));
    let result = test();
    (result, FAILED.take().unwrap_or_default())
}

impl Op {
    /// Whether it has ended, and what it received lies in the program's buffer.
    pub(super) fn is_done(&self) -> bool {
        // Acquire: pairs with the Release in `finish`, after the buffer was written.
        self.done.load(Ordering::Acquire)
    }

    /// One that has ended with a message that a probe has found.
    pub(super) fn found(e: Envelope, bytes: u64) -> Op {
        let op = Op::default();
        *op.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Outcome {
            source: Some(e.source),
            tag: e.tag,
            bytes,
            ..Outcome::default()
        };
        op
    }

    pub(super) fn outcome(&self) -> Outcome {
        let outcome = self.outcome.lock();
        outcome.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the program wants it cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        // Relaxed: whether it still can be is decided under the lock of the transfers.
        self.cancel.load(Ordering::Relaxed)
    }

    /// Gives it a request of the library below, of a communicator and its context's number.
    pub(super) fn start(self: &Arc<Op>, (comm, context): (Handle, u32)) -> Handle {
        type Query = extern "C" fn(*const Op, *mut c_int) -> c_int;
        type Free = extern "C" fn(*const Op) -> c_int;
        type Cancel = extern "C" fn(*const Op, c_int) -> c_int;
        let mut handle: Handle = 0;
        let extra = Arc::into_raw(self.clone());
        // SAFETY: the signature of MPI's standard; `free` takes the reference back.
        unsafe {
            below!(
                "PMPI_Grequest_start",
                fn(Query, Free, Cancel, *const Op, *mut Handle) -> c_int
            )(query, free, cancel, extra, &raw mut handle);
        }
        let mut own = self.request.lock().unwrap_or_else(PoisonError::into_inner);
        *own = Some(Requested {
            handle,
            comm,
            context,
        });
        handle
    }

    /// Its request, if the program has got one.
    pub(super) fn requested(&self) -> Option<Requested> {
        *self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a status.
    pub(super) fn write_status(&self, layer: &Layer, status: *mut c_int) {
        let outcome = self.outcome();
        let error = match outcome.fault {
            Some(Fault::Truncated) => layer.tables.truncate(),
            Some(Fault::Lost(_)) | None => 0,
        };
        layer.tables.write_status(status, &outcome, error);
    }

    /// The code of its fault as a call reports it; 0 without one.
    pub(super) fn fault(&self, layer: &Layer, call: &str) -> c_int {
        match self.outcome().fault {
            None => 0,
            Some(Fault::Truncated) => layer.tables.truncate(),
            Some(Fault::Lost(why)) => failure::code(&lost(call, &why)),
        }
    }

    /// Asks a communicator's error handler, and gives the code.
    pub(super) fn raise(&self, layer: &Layer, comm: Handle, call: &str, code: c_int) -> c_int {
        if let Some(Fault::Lost(why)) = self.outcome().fault {
            trace::say(format_args!("rank {}: {}", layer.rank(), lost(call, &why)));
        }
        failure::raise(comm, code)
    }

    /// The code that a call returns which waited for it: the communicator's error handler has been
    /// asked.
    pub(super) fn code(&self, layer: &Layer, comm: Handle, call: &str) -> c_int {
        match self.fault(layer, call) {
            0 => 0,
            code => self.raise(layer, comm, call, code),
        }
    }
}

/// An operation that has ended, of which the program is to be told by a thread of its own: a thread
/// of ours must not call the library below.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) op: Arc<Op>,
    pub(super) outcome: Outcome,
    /// Elements of a derived type or in memory of a GPU, with the bytes that are still to be copied
    /// to them.
    pub(super) unpack: Option<(Elements, Bytes)>,
}

/// Where bytes lie that were received.
#[derive(Debug)]
pub(super) enum Bytes {
    Heap(Vec<u8>),
    /// Exported memory, of which so many.
    Exported(ringbell::HostBuffer, usize),
}

impl Finished {
    /// Unpacks, and completes the request.
    pub(super) fn finish(mut self, layer: &Layer) {
        let unpacked = match &self.unpack {
            Some((elements, Bytes::Heap(b))) => elements.drain_some(b.as_ptr(), b.len(), layer),
            Some((elements, Bytes::Exported(b, len))) => {
                elements.drain_some(b.as_ptr(), *len, layer)
            }
            None => Ok(()),
        };
        if let Err(why) = unpacked {
            self.outcome.fault = Some(Fault::Lost(why));
        }
        let mut outcome = self
            .op
            .outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *outcome = self.outcome;
        drop(outcome);
        // Release: pairs with the Acquire in `is_done`.
        self.op.done.store(true, Ordering::Release);
        if let Some(of) = self.op.requested() {
            // SAFETY: the signature of MPI's standard.
            unsafe { below!("PMPI_Grequest_complete", fn(Handle) -> c_int)(of.handle) };
        }
    }
}

/// The text of a call that a rank's end has ended.
pub(super) fn lost(call: &str, why: &str) -> String {
    match why.strip_prefix(PEER_FAILED) {
        Some(rest) => format!("{PEER_FAILED}{call}: {rest}"),
        None => format!("{call}: {why}"),
    }
}

/// What the library below asks when a call ends the request. It has no communicator for it, so the
/// fault is told by the call of ours that the program made ([`observed`]), and the library below
/// hears of none. Where it was another's, its default error handler is asked.
extern "C" fn query(op: *const Op, status: *mut c_int) -> c_int {
    let Some(layer) = Layer::get() else {
        return 0;
    };
    // SAFETY: the reference that `start` gave away lives until `free`; this is another.
    let op = unsafe {
        Arc::increment_strong_count(op);
        Arc::from_raw(op)
    };
    let outcome = op.outcome();
    let is_noted = outcome.fault.is_none()
        || FAILED.with_borrow_mut(|failed| {
            let failed = failed.as_mut();
            failed.map(|all| all.push(op.clone())).is_some()
        });
    let code = match is_noted {
        true => 0,
        false => op.fault(layer, "a request"),
    };
    layer.tables.write_status(status, &outcome, code);
    code
}

extern "C" fn free(op: *const Op) -> c_int {
    // SAFETY: takes back the reference that `start` gave away; MPI calls it once.
    drop(unsafe { Arc::from_raw(op) });
    0
}

extern "C" fn cancel(op: *const Op, complete: c_int) -> c_int {
    if complete == 0 {
        // SAFETY: as in `query`. Relaxed: see `is_cancelled`.
        unsafe { &*op }.cancel.store(true, Ordering::Relaxed);
    }
    0
}

impl Tables {
    /// `MPI_ERR_TRUNCATE`.
    fn truncate(&self) -> c_int {
        match self.abi {
            Abi::Mpich => 14,
            Abi::OpenMpi | Abi::Standard => 15,
        }
    }

    /// `MPI_ERR_IN_STATUS`.
    pub(super) fn in_status(&self) -> c_int {
        match self.abi {
            Abi::Mpich => 17,
            Abi::OpenMpi => 18,
            Abi::Standard => 19,
        }
    }

    /// Integers of a status, and the first of its public fields: source, tag, error.
    fn status(&self) -> (usize, usize) {
        match self.abi {
            Abi::Mpich => (5, 2),
            Abi::OpenMpi => (6, 0),
            Abi::Standard => (8, 0),
        }
    }

    /// Writes `MPI_ERROR` of a status in an array.
    ///
    /// # Safety
    /// There is one of this index.
    pub(super) unsafe fn write_error(&self, statuses: *mut c_int, index: usize, error: c_int) {
        let (integers, first) = self.status();
        // SAFETY: the caller's contract.
        unsafe { *statuses.add(index * integers + first + 2) = error };
    }

    /// Writes a status, unless it is `MPI_STATUS_IGNORE`.
    fn write_status(&self, status: *mut c_int, outcome: &Outcome, error: c_int) {
        if self.ignores(status.cast()) {
            return;
        }
        let (_, at) = self.status();
        // SAFETY: the program's status, whose public fields lie there; the signatures of MPI's
        // standard.
        unsafe {
            if let Some(source) = outcome.source {
                *status.add(at) = source as c_int;
                *status.add(at + 1) = outcome.tag;
            }
            *status.add(at + 2) = error;
            below!("PMPI_Status_set_cancelled", fn(*mut c_int, c_int) -> c_int)(
                status,
                outcome.cancelled.into(),
            );
            match c_int::try_from(outcome.bytes) {
                Ok(bytes) => {
                    below!(
                        "PMPI_Status_set_elements",
                        fn(*mut c_int, Handle, c_int) -> c_int
                    )(status, self.byte, bytes);
                }
                Err(_) => {
                    below!(
                        "PMPI_Status_set_elements_x",
                        fn(*mut c_int, Handle, i64) -> c_int
                    )(status, self.byte, outcome.bytes as i64);
                }
            }
        }
    }

    /// Whether an address stands for `MPI_STATUS_IGNORE` or `MPI_STATUSES_IGNORE`.
    pub(super) fn ignores(&self, status: *const c_void) -> bool {
        match self.abi {
            Abi::Mpich => status.addr() == 1,
            Abi::OpenMpi | Abi::Standard => status.is_null(),
        }
    }
}
