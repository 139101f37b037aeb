//! One finding about this machine.

use serde::{Deserialize, Serialize};

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// There, and used.
    Ok,
    /// Missing (or incomplete); a substitute is used.
    Instead,
    /// Missing, without a substitute.
    Missing,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Check {
    /// The capability.
    pub(super) name: String,
    /// How it ended.
    pub(super) verdict: Verdict,
    /// The finding.
    pub(super) found: String,
    /// What Ringbell uses.
    pub(super) used: String,
    /// The reason, and the remedy.
    pub(super) why: String,
}

impl Check {
    pub(super) fn new(
        name: &str,
        verdict: Verdict,
        found: impl Into<String>,
        used: impl Into<String>,
        why: impl Into<String>,
    ) -> Check {
        Check {
            name: name.into(),
            verdict,
            found: found.into(),
            used: used.into(),
            why: why.into(),
        }
    }
}
