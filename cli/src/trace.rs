//! `RINGBELL_DEBUG` for the commands: an unknown level is a usage error.

use anyhow::Result;

use super::{Exit, Problem};

/// Starts the printing of events when the environment asks for it.
pub(crate) fn start() -> Result<()> {
    ringbell::nic::print_events().map_err(|e| {
        let text = e.to_string();
        let (what, advice) = text.split_once("; ").unwrap_or((&text, ""));
        Problem::new(Exit::Usage, what, advice).into()
    })
}
