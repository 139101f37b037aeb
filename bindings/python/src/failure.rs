//! Errors of the SDK as exceptions of `ringbell.errors`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringbell::abi::collective::RANK_ABSENT;
use ringbell::abi::Status;
use ringbell::job::BootstrapError;
use ringbell::nic::WaitError;
use ringbell::{CollectiveError, SessionError};

/// Data of an exception; `ringbell.errors` chooses the class by the status.
#[derive(Default)]
pub(crate) struct Failure {
    /// A name of [`Status`], or `JOB`, `HOST`, `KERNEL`, `IN_PROGRESS`.
    status: &'static str,
    text: String,
    rank: Option<u32>,
    /// Ranks at fault.
    peers: Vec<u32>,
    detail: Option<u64>,
}

impl Failure {
    pub(crate) fn new(status: &'static str, text: impl Into<String>) -> Failure {
        Failure {
            status,
            text: text.into(),
            ..Failure::default()
        }
    }

    /// An argument that the caller must change.
    pub(crate) fn argument(text: impl Into<String>) -> Failure {
        Failure::new(Status::InvalidArgument.name(), text)
    }

    /// The host, the GPU or the NIC refused something.
    pub(crate) fn host(error: &dyn std::error::Error) -> Failure {
        Failure::new("HOST", chain(error))
    }

    /// The exception. Where the package's Python files cannot be imported, it says so instead.
    pub(crate) fn raise(self) -> PyErr {
        Python::attach(|py| self.exception(py).unwrap_or_else(|e| e))
    }

    fn exception(self, py: Python<'_>) -> PyResult<PyErr> {
        let named = PyDict::new(py);
        named.set_item("status", self.status)?;
        named.set_item("rank", self.rank)?;
        named.set_item("peers", self.peers)?;
        named.set_item("detail", self.detail)?;
        let make = py.import("ringbell.errors")?.getattr("of_status")?;
        let made = make.call((self.text,), Some(&named))?;
        Ok(PyErr::from_value(made))
    }
}

/// An argument that the caller must change.
pub(crate) fn argument(text: impl Into<String>) -> PyErr {
    Failure::argument(text).raise()
}

/// The host, the GPU or the NIC refused something.
pub(crate) fn host(error: &dyn std::error::Error) -> PyErr {
    Failure::host(error).raise()
}

/// Ranks that did not find each other, or an environment that does not give the rank.
pub(crate) fn job(error: &dyn std::error::Error) -> PyErr {
    Failure::new("JOB", chain(error)).raise()
}

/// A call on a socket or listener that failed.
pub(crate) fn session(error: &SessionError) -> PyErr {
    let status = match error {
        SessionError::Failed { status, .. } => status.name(),
        SessionError::Address { .. } => Status::InvalidArgument.name(),
        _ => "HOST",
    };
    let mut failure = Failure::new(status, chain(error));
    failure.detail = error.detail();
    failure.raise()
}

/// A communicator that could not be made, or an operation of one that failed.
pub(crate) fn collective(error: &CollectiveError) -> PyErr {
    use CollectiveError as E;
    let status = match error {
        E::Failed { status, .. } => status.name(),
        E::Settings { .. } => Status::Mismatch.name(),
        E::Misuse { .. }
        | E::Argument { .. }
        | E::Program(_)
        | E::ProgramRanks { .. }
        | E::NoGrowth { .. } => Status::InvalidArgument.name(),
        E::Bootstrap(_) | E::Job(_) | E::NoPath { .. } | E::NotConnected { .. } => "JOB",
        E::Wait { source, .. } => match source {
            WaitError::QueueFull { .. } => Status::QueueFull.name(),
            _ => "IN_PROGRESS",
        },
        E::Busy { .. } => Status::TimedOut.name(),
        E::Cancel { .. } => Status::BadState.name(),
        E::Launch(_) => "KERNEL",
        _ => "HOST",
    };
    let mut failure = Failure::new(status, chain(error));
    match error {
        E::Failed {
            rank,
            status,
            detail,
            ..
        } => {
            failure.rank = Some(*rank);
            failure.detail = Some(*detail);
            failure.peers = at_fault(*status, *detail).into_iter().collect();
        }
        E::Bootstrap(
            BootstrapError::Missing { ranks, .. } | BootstrapError::Gone { ranks, .. },
        ) => {
            failure.peers = ranks.clone();
        }
        E::Settings { rank, .. } => failure.peers = vec![*rank],
        E::NoPath { a, b, .. } => failure.peers = vec![*a, *b],
        _ => {}
    }
    failure.raise()
}

/// The rank that a status's detail names.
fn at_fault(status: Status, detail: u64) -> Option<u32> {
    match status {
        Status::PeerFailed | Status::Mismatch | Status::CommAborted => u32::try_from(detail).ok(),
        // The low half is the rank.
        Status::TimedOut if detail & RANK_ABSENT != 0 => Some(detail as u32),
        _ => None,
    }
}

/// An error and its causes in one line.
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
