//! Plans that are refused, and simulations that failed.

use anyhow::Result;
use ringbell_sim::{Cluster, Failure, Plan};

use crate::perf::memory::enough_of_host;
use crate::{Exit, Problem};

/// Refuses a plan that cannot be run, or that needs more memory than is free.
pub(super) fn has_memory(
    cluster: &Cluster,
    needed: Result<u64, Failure>,
    advice: &str,
) -> Result<()> {
    let what = format!("a cluster of {} ranks", cluster.ranks);
    enough_of_host(&what, needed.map_err(problem)?, advice)
}

/// The same for a collective.
pub(super) fn has_memory_of(plan: &Plan) -> Result<()> {
    let advice = "give fewer ranks or smaller sizes";
    has_memory(&plan.cluster, ringbell_sim::memory(plan), advice)
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
