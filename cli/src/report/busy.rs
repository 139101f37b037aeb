//! Use of the cores during a benchmark, beside its figures.

use std::sync::OnceLock;

use ringbell::Job;
use ringbell_perf::busy::Watch;

use super::{Meta, Report};

/// When the benchmark began; a process runs one.
static BEGUN: OnceLock<Option<Watch>> = OnceLock::new();

/// The benchmark begins. Ranks that a launcher has started watch all of them.
pub(crate) fn begin() {
    BEGUN.get_or_init(|| Watch::start(Job::from_env().is_ok()));
}

/// The report with the use of the cores up to now.
pub(super) fn watched(report: &Report) -> Report {
    let shares = BEGUN.get().and_then(|w| w.as_ref()).and_then(Watch::shares);
    Report {
        meta: Meta {
            busy: shares,
            ..report.meta.clone()
        },
        rows: report.rows.clone(),
    }
}
