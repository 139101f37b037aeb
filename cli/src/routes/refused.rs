//! Refused input, and what to do about it.

use crate::{Exit, Problem};

/// Refused input.
pub(super) fn refused(what: impl Into<String>, advice: impl Into<String>) -> anyhow::Error {
    Problem::new(Exit::Usage, what, advice).into()
}
