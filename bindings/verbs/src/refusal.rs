//! How calls refuse: `errno`, and why in words.

use std::ffi::c_int;
use std::ptr::null_mut;

use ringbell_roce::verbs::VerbsError;

use crate::settings;

/// Sets `errno`.
pub(crate) fn set_errno(code: c_int) {
    // SAFETY: the thread's own variable.
    #[allow(unsafe_code)]
    unsafe {
        *libc::__errno_location() = code;
    }
}

/// A null pointer, with a reason in `errno`.
pub(crate) fn refuse<T>(code: c_int) -> *mut T {
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
pub(crate) fn say(text: impl std::fmt::Display) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("ringbell: {text}\n").as_bytes());
}

/// Says why a call is refused when `RINGBELL_VERBS_TRACE` is set, and gives its `errno`: programs
/// print the number alone.
pub(crate) fn explain(call: &str, error: &VerbsError) -> c_int {
    if settings::traces() {
        say(format_args!("{call}: {error}"));
    }
    code_of(error)
}
