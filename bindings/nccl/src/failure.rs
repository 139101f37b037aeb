//! Why a call failed: NCCL's code, and the text for its log.

use crate::abi::Code;

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// For the log; empty where it was logged before.
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Failure {
        let text = text.into();
        Failure { code, text }
    }

    /// The caller's arguments are wrong.
    pub(crate) fn argument(text: impl Into<String>) -> Failure {
        Failure::new(Code::InvalidArgument, text)
    }

    /// The system, or the NIC, refused; with all causes.
    pub(crate) fn system(what: &str, error: &dyn std::error::Error) -> Failure {
        let causes = std::iter::successors(Some(error), |e| e.source());
        let causes: Vec<String> = causes.map(ToString::to_string).collect();
        Failure::new(Code::SystemError, format!("{what}: {}", causes.join(": ")))
    }
}
