//! Engines of a C program: functions that see the bytes of a stream.
#![allow(unsafe_code)] // Calls functions of another language.

use std::ffi::c_void;
use std::panic::resume_unwind;

use ringbell::engines::{EngineError, StreamEngine};

use crate::failure::Failure;

/// `rb_engine_callbacks`. Fields are only ever appended.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Callbacks {
    size: usize,
    user: *mut c_void,
    create: Option<unsafe extern "C" fn(user: *mut c_void) -> *mut c_void>,
    process: Option<unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> i32>,
    result: Option<unsafe extern "C" fn(*const c_void, *mut c_void, usize) -> usize>,
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    rate: f64,
}

// SAFETY: `ringbell.h` demands functions and a `user` that any thread may use, one at a time for each state.
unsafe impl Send for Callbacks {}

impl Callbacks {
    /// # Safety
    /// `p` is null, or valid for as many bytes as its `size` says, and its functions are as `ringbell.h` says until the
    /// last engine made of them has ended.
    pub(super) unsafe fn read(p: *const Callbacks) -> Result<Option<Callbacks>, Failure> {
        if p.is_null() {
            return Ok(None);
        }
        // SAFETY: `size` comes first in every version of the structure.
        let size = unsafe { p.cast::<usize>().read_unaligned() };
        if size != size_of::<Callbacks>() {
            return Err(Failure::argument(format!(
                "config->own->size is {size}, not {}; zero the structure and set size = sizeof(rb_engine_callbacks)",
                size_of::<Callbacks>()
            )));
        }
        // SAFETY: the caller vouches for `size` bytes.
        let own = unsafe { p.read_unaligned() };
        if own.create.is_none() || own.process.is_none() || own.result.is_none() {
            return Err(Failure::argument(
                "config->own: create, process or result is a null pointer",
            ));
        }
        if !(own.rate >= 0.0 && own.rate.is_finite()) {
            return Err(Failure::argument(
                "config->own->rate is no number of bytes a second; 0 promises nothing",
            ));
        }
        Ok(Some(own))
    }

    fn state(&self) -> *mut c_void {
        match self.create {
            // SAFETY: by the contract of `read`.
            Some(create) => unsafe { create(self.user) },
            None => std::ptr::null_mut(),
        }
    }

    /// An engine with a new state.
    pub(super) fn engine(&self) -> Result<Box<dyn StreamEngine>, Failure> {
        let engine = OwnEngine {
            own: *self,
            state: self.state(),
        };
        match engine.state.is_null() {
            true => Err(Failure::argument("config->own->create gave no state")),
            false => Ok(Box::new(engine)),
        }
    }

    /// The same where no error can be reported: without a state it fails with the first byte.
    pub(super) fn engine_or_failed(&self) -> Box<dyn StreamEngine> {
        Box::new(OwnEngine {
            own: *self,
            state: self.state(),
        })
    }
}

/// A tap of the program.
struct OwnEngine {
    own: Callbacks,
    /// Null when the program could not make one.
    state: *mut c_void,
}

// SAFETY: as for `Callbacks`; the state belongs to this engine alone.
unsafe impl Send for OwnEngine {}

impl OwnEngine {
    fn end(&mut self) {
        if let (Some(destroy), false) = (self.own.destroy, self.state.is_null()) {
            // SAFETY: by the contract of `read`; the state is given away once.
            unsafe { destroy(self.state) }
        }
        self.state = std::ptr::null_mut();
    }
}

impl StreamEngine for OwnEngine {
    fn name(&self) -> &'static str {
        "own"
    }

    fn declared_rate(&self) -> f64 {
        self.own.rate
    }

    fn is_tap(&self) -> bool {
        true
    }

    fn output_bound(&self, _: usize) -> usize {
        0
    }

    fn process(&mut self, input: &[u8], _: &mut Vec<u8>) {
        let end = match self.own.process {
            // SAFETY: by the contract of `read`; the bytes are there during the call.
            Some(process) if !self.state.is_null() => unsafe {
                process(self.state, input.as_ptr().cast(), input.len())
            },
            _ => -1,
        };
        if end != 0 {
            // The NIC takes an engine that unwinds off the path. No panic hook runs: it is no defect.
            resume_unwind(Box::new(format!("the program's engine returned {end}")));
        }
    }

    fn finish(&mut self, _: &mut Vec<u8>) -> Result<(), EngineError> {
        Ok(())
    }

    fn result(&self, into: &mut Vec<u8>) {
        let (Some(result), false) = (self.own.result, self.state.is_null()) else {
            return;
        };
        // SAFETY: by the contract of `read`: nothing is stored where there is no room.
        let bytes = unsafe { result(self.state, std::ptr::null_mut(), 0) };
        let at = into.len();
        into.resize(at + bytes, 0);
        // SAFETY: the same; there is room for `bytes`.
        let again = unsafe { result(self.state, into[at..].as_mut_ptr().cast(), bytes) };
        into.truncate(at + bytes.min(again));
    }

    fn reset(&mut self) {
        self.end();
        self.state = self.own.state();
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        self.end();
    }
}
