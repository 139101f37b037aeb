//! Child processes, and how they end.
#![allow(unsafe_code)] // One call between fork and exec.

use std::fmt;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};

use rustix::io::Errno;
use rustix::process::{getpid, getppid, set_parent_process_death_signal, Signal};

/// Lets the system end the process when the thread that starts it ends, in any way.
pub(super) fn dies_with_us(command: &mut Command) {
    let parent = getpid();
    // SAFETY: the closure runs between fork and exec; it makes two system calls and neither
    // allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // If the parent ended before that call, no signal comes.
            match getppid() == Some(parent) {
                true => Ok(()),
                false => Err(Errno::SRCH.into()),
            }
        });
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct End(ExitStatus);

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> End {
        End(status)
    }
}

impl End {
    pub(crate) fn is_success(self) -> bool {
        self.0.success()
    }

    /// By a signal from any sender.
    pub(crate) fn is_by_signal(self) -> bool {
        self.0.signal().is_some()
    }

    /// By a signal that a launcher sends.
    pub(crate) fn was_asked(self) -> bool {
        let signals = [Signal::TERM, Signal::KILL, Signal::INT, Signal::HUP];
        signals
            .iter()
            .any(|s| self.0.signal() == Some(s.as_raw()) || self.0.code() == Some(128 + s.as_raw()))
    }

    /// The shell's number for it.
    pub(crate) fn code(self) -> u8 {
        let code = self
            .0
            .code()
            .unwrap_or_else(|| 128 + self.0.signal().unwrap_or(0));
        u8::try_from(code).unwrap_or(1)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.code(), self.0.signal()) {
            (Some(code), _) => write!(f, "ended with status {code}"),
            (None, Some(signal)) => write!(f, "was ended by signal {signal}"),
            (None, None) => write!(f, "ended: {}", self.0),
        }
    }
}
