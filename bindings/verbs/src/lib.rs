//! The verbs front door: libibverbs' public calls, answered by Ringbell in the program's own
//! process.
//!
//! Preloaded (`ringbell verbs -- PROGRAM`), it takes the place of libibverbs for a program that
//! knows nothing of it: the program finds one device, `ringbell0`, whose queue pairs send RoCEv2
//! over a plain UDP socket. The symbols have no version, so that the dynamic loader takes them for
//! any. What is not there ends with `EOPNOTSUPP` (`absent`); nothing reaches the real library with
//! an object of ours.
//!
//! Objects are structures of `verbs.h` with ours behind them: the program reads and writes the
//! front part, as the header's inline functions do. Programs answer for their pointers, as with
//! libibverbs.
//!
//! `abi`: the header's structures. `device`, `objects`, `address`, `queue_pair`, `post`,
//! `extended_cq`, `extended_qp`: the calls. `names`: constants in words. `files`: the device's
//! file. `interface`: its MTU. `faults`: what the user asks for to go wrong. `events`: asynchronous
//! events.

/// Returns from a call that is to fail by the user's wish: with a null pointer (`object`), or with
/// its error.
macro_rules! fail {
    (object $call:literal) => {
        if let Some(code) = crate::faults::fails($call) {
            return crate::refuse(code);
        }
    };
    ($call:literal) => {
        if let Some(code) = crate::faults::fails($call) {
            crate::set_errno(code);
            return code;
        }
    };
}

mod abi;
mod absent;
mod address;
mod device;
mod events;
mod extended_cq;
mod extended_qp;
mod faults;
mod files;
mod interface;
mod names;
mod objects;
mod post;
mod queue_pair;
mod settings;

use std::ffi::c_int;
use std::ptr::null_mut;

use ringbell_nic_core::verbs::VerbsError;

/// Sets `errno`.
fn set_errno(code: c_int) {
    // SAFETY: the thread's own variable.
    #[allow(unsafe_code)]
    unsafe {
        *libc::__errno_location() = code;
    }
}

/// A null pointer, with a reason in `errno`.
fn refuse<T>(code: c_int) -> *mut T {
    set_errno(code);
    null_mut()
}

/// The `errno` of a refused call.
fn code_of(error: &VerbsError) -> c_int {
    match error {
        VerbsError::Full { .. } => libc::ENOMEM,
        VerbsError::Memory(_) => libc::EFAULT,
        VerbsError::System(e) => e.raw_os_error().unwrap_or(libc::EIO),
        VerbsError::Overrun { .. } => libc::EOVERFLOW,
        _ => libc::EINVAL,
    }
}

/// Prints a line on stderr by one write, so that lines of several processes do not mix: `eprintln!`
/// writes piece by piece. A failure to do so cannot be reported.
fn say(text: impl std::fmt::Display) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("ringbell: {text}\n").as_bytes());
}

/// Says why a call is refused when `RINGBELL_VERBS_TRACE` is set, and gives its `errno`: programs
/// print the number alone.
fn explain(call: &str, error: &VerbsError) -> c_int {
    if settings::traces() {
        say(format_args!("{call}: {error}"));
    }
    code_of(error)
}
