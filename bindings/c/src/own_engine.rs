//! Engines of a C program: functions that see the bytes of a stream, or change them.
#![allow(unsafe_code)] // Calls functions of another language.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::panic::resume_unwind;

use ringbell::engines::{EngineError, StreamEngine};

use crate::failure::Failure;

/// Most output bytes for each of input that a program can ask for.
const GROWTH_MAX: f64 = 1024.0;
/// Most bytes beyond that: 16 MiB.
const EXTRA_MAX: usize = 16 << 20;

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
    transform: Option<Transform>,
    growth: f64,
    extra: usize,
}

/// `rb_engine_emit`: the output of a call of `transform`.
type Emit = unsafe extern "C" fn(to: *mut c_void, bytes: *const c_void, count: usize);
type Transform =
    unsafe extern "C" fn(*mut c_void, *const c_void, usize, emit: Emit, to: *mut c_void) -> i32;

/// Sizes of the structure in versions of the header that programs may have been built with.
const SIZES: [usize; 2] = [
    std::mem::offset_of!(Callbacks, transform),
    size_of::<Callbacks>(),
];

// SAFETY: `ringbell.h` demands functions and a `user` that any thread may use, one at a time for
// each state.
unsafe impl Send for Callbacks {}

impl Callbacks {
    /// # Safety
    /// `p` is null, or valid for as many bytes as its `size` says, and its functions are as
    /// `ringbell.h` says until the last engine made of them has ended.
    pub(super) unsafe fn read(p: *const Callbacks) -> Result<Option<Callbacks>, Failure> {
        if p.is_null() {
            return Ok(None);
        }
        // SAFETY: `size` comes first in every version of the structure.
        let size = unsafe { p.cast::<usize>().read_unaligned() };
        if !SIZES.contains(&size) {
            return Err(Failure::argument(format!(
                "config->own->size is {size}, not {}; zero the structure and set size = sizeof(rb_engine_callbacks)",
                size_of::<Callbacks>()
            )));
        }
        let mut own = MaybeUninit::<Callbacks>::zeroed();
        // SAFETY: the caller vouches for `size` bytes, no more than the structure has. All zero is
        // a valid one: null pointers and numbers.
        let own = unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), own.as_mut_ptr().cast(), size);
            own.assume_init()
        };
        if own.create.is_none() || own.result.is_none() {
            return Err(Failure::argument(
                "config->own: create or result is a null pointer",
            ));
        }
        if own.process.is_some() == own.transform.is_some() {
            return Err(Failure::argument(
                "config->own: set either process, for an engine that only sees the bytes, or transform, for one that changes them",
            ));
        }
        if !(0.0..=GROWTH_MAX).contains(&own.growth) || own.extra > EXTRA_MAX {
            return Err(Failure::argument(format!(
                "config->own: growth is 0 to {GROWTH_MAX} and extra at most {EXTRA_MAX} bytes",
            )));
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

/// Output of one call, no longer than the engine has promised.
struct Output<'a> {
    bytes: &'a mut Vec<u8>,
    room: usize,
    /// It wanted to emit more.
    exceeded: bool,
}

/// # Safety
/// `to` is what `transform` was given, during that call; `bytes` is valid for `count` bytes.
unsafe extern "C" fn emit(to: *mut c_void, bytes: *const c_void, count: usize) {
    // SAFETY: the contract above; `transform` is called by one thread at a time.
    let out = unsafe { &mut *to.cast::<Output<'_>>() };
    if count > out.room || (bytes.is_null() && count > 0) {
        out.exceeded = true;
    } else if count > 0 {
        // SAFETY: the contract above, and not null.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), count) };
        out.bytes.extend_from_slice(bytes);
        out.room -= count;
    }
}

/// An engine of the program.
struct OwnEngine {
    own: Callbacks,
    /// Null when the program could not make one.
    state: *mut c_void,
}

// SAFETY: as for `Callbacks`; the state belongs to this engine alone.
unsafe impl Send for OwnEngine {}

impl OwnEngine {
    /// Hands bytes to the function that changes them; none at the stream's end. `Err`: what it
    /// returned, or that it emitted more than it promised.
    fn change(
        &mut self,
        transform: Transform,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if self.state.is_null() {
            return Err("the program's engine has no state".into());
        }
        let mut output = Output {
            room: self.output_bound(input.len()),
            bytes: out,
            exceeded: false,
        };
        let bytes = match input {
            [] => std::ptr::null(),
            some => some.as_ptr(),
        };
        // SAFETY: by the contract of `read`; bytes and output are there during the call.
        let end = unsafe {
            transform(
                self.state,
                bytes.cast(),
                input.len(),
                emit,
                std::ptr::from_mut(&mut output).cast(),
            )
        };
        match (end, output.exceeded) {
            (0, false) => Ok(()),
            (0, true) => {
                Err("the program's engine emitted more than growth and extra allow".into())
            }
            (end, _) => Err(format!("the program's engine returned {end}")),
        }
    }

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
        self.own.transform.is_none()
    }

    fn output_bound(&self, input: usize) -> usize {
        if self.is_tap() {
            return 0;
        }
        let growth = match self.own.growth {
            0.0 => 1.0,
            given => given,
        };
        // Both factors are bounded; the cast saturates.
        (input as f64 * growth).ceil() as usize + self.own.extra
    }

    fn process(&mut self, input: &[u8], out: &mut Vec<u8>) {
        if let Some(transform) = self.own.transform {
            // A call without bytes means the end.
            if input.is_empty() {
                return;
            }
            // As below.
            return self
                .change(transform, input, out)
                .unwrap_or_else(|why| resume_unwind(Box::new(why)));
        }
        let end = match self.own.process {
            // SAFETY: by the contract of `read`; the bytes are there during the call.
            Some(process) if !self.state.is_null() => unsafe {
                process(self.state, input.as_ptr().cast(), input.len())
            },
            _ => -1,
        };
        if end != 0 {
            // The NIC takes an engine that unwinds off the path. No panic hook runs: it is no
            // defect.
            resume_unwind(Box::new(format!("the program's engine returned {end}")));
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EngineError> {
        let Some(transform) = self.own.transform else {
            return Ok(());
        };
        self.change(transform, &[], out)
            .map_err(|_| EngineError::Failed {
                engine: "own",
                why: "its transform refused the end of the stream",
            })
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
