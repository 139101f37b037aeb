//! Plans that are refused, and simulations that failed.

use anyhow::Result;
use ringbell_sim::{Failure, Plan};

use crate::perf::memory::enough_of_host;
use crate::{Exit, Problem};

/// Refuses a plan that needs more memory than is free.
pub(super) fn has_memory(plan: &Plan) -> Result<()> {
    let needed = ringbell_sim::memory(plan).map_err(problem)?;
    let what = format!("a cluster of {} ranks", plan.ranks);
    enough_of_host(&what, needed, "give fewer ranks or smaller sizes")
}

/// Why a simulation was refused or failed, and what to do about it.
pub(super) fn problem(failure: Failure) -> Problem {
    let exit = match &failure {
        Failure::Made { .. } => Exit::Environment,
        Failure::Apart { .. } | Failure::Hung { .. } | Failure::Timeline(_) => Exit::Failed,
        _ => Exit::Usage,
    };
    let text = failure.to_string();
    let (what, advice) = text
        .split_once("; ")
        .unwrap_or((&text, "give fewer ranks or smaller sizes"));
    Problem::new(exit, what, advice)
}
