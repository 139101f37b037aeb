//! Failures of the C API: a number for the program, a text for its user.
#![allow(unsafe_code)] // Exports functions under names of C; `no_mangle` counts as unsafe.

use std::cell::RefCell;
use std::ffi::{c_char, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::OnceLock;

use ringbell::abi::Status;
use ringbell::parts::cuda_kernels::LaunchError;

use ringbell::nic::{NotDelivered, WaitError};
use ringbell::CollectiveError;

/// `RB_ERR_INVALID_ARGUMENT`
pub(super) const INVALID_ARGUMENT: i32 = -1;
/// `RB_ERR_HOST`
pub(super) const HOST: i32 = -2;
/// `RB_ERR_KERNEL`
pub(super) const KERNEL: i32 = -3;
/// `RB_ERR_PANIC`
pub(super) const PANIC: i32 = -4;
/// `RB_ERR_IN_PROGRESS`
pub(super) const IN_PROGRESS: i32 = -5;
/// `RB_ERR_JOB`
pub(super) const JOB: i32 = -6;

/// Why a call failed.
#[derive(Debug)]
pub(super) struct Failure {
    code: i32,
    text: String,
}

impl Failure {
    /// The caller's mistake.
    pub(super) fn argument(text: impl Into<String>) -> Failure {
        Failure {
            code: INVALID_ARGUMENT,
            text: text.into(),
        }
    }

    /// An error of the host, with its causes.
    pub(super) fn host(error: &dyn std::error::Error) -> Failure {
        Failure {
            code: HOST,
            text: chain(error),
        }
    }

    /// A kernel that could not be launched, or failed.
    pub(super) fn kernel(error: &dyn std::error::Error) -> Failure {
        Failure {
            code: KERNEL,
            text: chain(error),
        }
    }

    /// A kernel that could not be launched, or failed, in words.
    pub(super) fn kernel_text(text: impl Into<String>) -> Failure {
        Failure {
            code: KERNEL,
            text: text.into(),
        }
    }

    /// Ranks that did not find each other, or an environment that does not give the rank.
    pub(super) fn job(error: &dyn std::error::Error) -> Failure {
        Failure {
            code: JOB,
            text: chain(error),
        }
    }

    /// A communicator that could not be made, or an operation of one that failed.
    pub(super) fn collective(error: &CollectiveError) -> Failure {
        use CollectiveError as E;
        let code = match error {
            E::Failed { status, .. } => i32::from(status.code()),
            E::Settings { .. } => i32::from(Status::Mismatch.code()),
            E::Misuse { .. }
            | E::Program(_)
            | E::ProgramRanks { .. }
            | E::NoGrowth { .. }
            | E::Symmetric { .. } => INVALID_ARGUMENT,
            E::Bootstrap(_) | E::Job(_) | E::NoPath { .. } | E::NotConnected { .. } => JOB,
            E::Wait { source, .. } => match source {
                WaitError::QueueFull { .. } => i32::from(Status::QueueFull.code()),
                _ => IN_PROGRESS,
            },
            E::Launch(LaunchError::TimedOut { .. }) => IN_PROGRESS,
            E::Argument { .. } => i32::from(Status::InvalidArgument.code()),
            E::Busy { .. } => i32::from(Status::TimedOut.code()),
            E::Launch(_) => KERNEL,
            E::Cancel { .. } => i32::from(Status::BadState.code()),
            // The NIC, a queue, a thread, descriptors or the GPU was not available.
            _ => HOST,
        };
        Failure {
            code,
            text: chain(error),
        }
    }

    /// The NIC's status of an operation.
    pub(super) fn status(status: Status, bytes: u64, detail: u64) -> Failure {
        Failure {
            code: i32::from(status.code()),
            text: format!("{status} ({bytes} bytes moved, detail {detail:#x})"),
        }
    }

    /// With what the NIC knows of the cause.
    pub(super) fn because(mut self, why: Option<String>) -> Failure {
        if let Some(why) = why {
            self.text.push_str("; ");
            self.text.push_str(&why);
        }
        self
    }

    /// A NIC that ended before all data that it had reported as sent arrived.
    pub(super) fn not_delivered(lost: &NotDelivered) -> Failure {
        Failure {
            code: i32::from(Status::TimedOut.code()),
            text: lost.to_string(),
        }
    }

    /// An operation that has not ended: test or wait again.
    pub(super) fn in_progress(text: impl Into<String>) -> Failure {
        Failure {
            code: IN_PROGRESS,
            text: text.into(),
        }
    }

    /// A kernel's wait that was shorter than the kernel.
    pub(super) fn still_running(text: impl Into<String>) -> Failure {
        Failure {
            code: i32::from(Status::TimedOut.code()),
            text: text.into(),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(c) = cause {
        text.push_str(": ");
        text.push_str(&c.to_string());
        cause = c.source();
    }
    text
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::new(c"no call of this thread has failed".to_owned());
}

/// Runs the body of an entry: no panic leaves it, and a failure is kept for `rb_last_error`.
pub(super) fn entry(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    // The state behind a panic is reached only through locks that ignore poisoning by design, and
    // the error asks the caller to close the handle.
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let what = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "unknown reason".into());
            Failure {
                code: PANIC,
                text: format!("defect of the library: {what}; close the handle and report it"),
            }
        }
    };
    let text: String = format!("{name}: {}", failure.text).replace('\0', "?");
    let text = CString::new(text).unwrap_or_default();
    // A thread that is ending has no place for the text any more; the code still reports the
    // failure.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    failure.code
}

#[no_mangle]
extern "C" fn rb_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"the thread is ending".as_ptr())
}

#[no_mangle]
extern "C" fn rb_result_text(result: i32) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    let text: &CStr = match result {
        INVALID_ARGUMENT => c"an argument is not usable: a null pointer, a closed handle, an unparsable address or an unknown name; rb_last_error() says which",
        HOST => c"the host refused memory, a file or a socket; rb_last_error() says which",
        KERNEL => c"a kernel could not be launched, or failed; rb_last_error() says why",
        IN_PROGRESS => c"it has not ended yet: test or wait again, or cancel it",
        JOB => c"the ranks of the job did not find each other, or went on without this one, or the environment does not say which rank this is; rb_last_error() says which and why",
        PANIC => c"a defect of the library; close the handle and report what rb_last_error() says",
        _ => {
            let texts = TEXTS.get_or_init(|| {
                Status::ALL
                    .iter()
                    .map(|s| CString::new(s.to_string()).unwrap_or_default())
                    .collect()
            });
            Status::ALL
                .iter()
                .position(|s| i32::from(s.code()) == result)
                .and_then(|i| texts.get(i))
                .map_or(c"no result of this library", CString::as_c_str)
        }
    };
    text.as_ptr()
}

#[no_mangle]
extern "C" fn rb_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(v) => v,
            Err(_) => panic!("a version has no zero byte"),
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: never null, and valid until this thread's next failure.
        unsafe { CStr::from_ptr(rb_last_error()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn a_panic_becomes_a_result_and_a_text() {
        let code = entry("rb_test", || panic!("the planted one"));
        assert_eq!(code, PANIC);
        assert!(last().starts_with("rb_test: ") && last().contains("the planted one"));
        assert_eq!(entry("rb_test", || Ok(())), 0);
        assert!(last().contains("planted"), "success keeps the last failure");
    }

    #[test]
    fn the_error_belongs_to_its_thread_and_holds_the_causes() {
        let io = std::io::Error::other("disk full");
        assert_eq!(entry("rb_a", || Err(Failure::host(&io))), HOST);
        std::thread::spawn(|| assert!(last().starts_with("no call")))
            .join()
            .expect("the thread's assertion");
        assert_eq!(last(), "rb_a: disk full");
        entry("rb_b", || Err(Failure::argument("a\0b")));
        assert_eq!(last(), "rb_b: a?b");
    }

    #[test]
    fn every_result_has_a_text() {
        let last = Status::ALL.last().map_or(0, |s| i32::from(s.code()));
        for code in -7..=last + 1 {
            // SAFETY: static and never null.
            let text = unsafe { CStr::from_ptr(rb_result_text(code)) }.to_string_lossy();
            let known = (-6..=last).contains(&code);
            assert_eq!(known, text != "no result of this library", "{code}");
        }
    }
}
