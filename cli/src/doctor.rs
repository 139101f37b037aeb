//! `ringbell doctor`: the capabilities of this machine, the substitutes for missing ones, and why.

mod card;
mod check;
#[cfg(feature = "cuda")]
mod gdrcopy;
mod gpu;
mod host;
mod mesh;
#[cfg(feature = "cuda")]
mod rules;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{stdio, Exit};
use check::{Check, Verdict};

/// Arguments of `ringbell doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the findings as one JSON object; `-` (the default) is standard output
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// All findings.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Findings {
    /// Version of Ringbell.
    version: String,
    /// Processor and kernel.
    machine: String,
    /// In the order in which they are printed.
    checks: Vec<Check>,
}

/// Runs the checks and prints the findings. Ends with [`Exit::Environment`] when a capability
/// without a substitute is missing.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let mut checks = gpu::gpu();
    checks.extend([gpu::nvcc(), gpu::clang()]);
    #[cfg(feature = "cuda")]
    checks.push(gdrcopy::gdrcopy());
    checks.push(card::doorbells());
    checks.extend(host::checks());
    checks.extend(mesh::mesh(|name| std::env::var(name).ok()));
    let findings = Findings {
        version: env!("CARGO_PKG_VERSION").into(),
        machine: crate::report::machine::description(),
        checks,
    };
    match args.json.as_deref() {
        None => stdio::out(text(&findings))?,
        Some(path) => {
            let json = serde_json::to_string_pretty(&findings)
                .context("cannot express the findings as JSON")?;
            if path == Path::new("-") {
                stdio::line(json)?;
            } else {
                std::fs::write(path, json + "\n")
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
    }
    Ok(exit(&findings.checks))
}

/// nvcc, when it is found.
pub(super) fn nvcc_path() -> Option<PathBuf> {
    gpu::find_nvcc().map(|(path, _)| path)
}

fn exit(checks: &[Check]) -> Exit {
    if checks.iter().any(|c| c.verdict == Verdict::Missing) {
        Exit::Environment
    } else {
        Exit::Ok
    }
}

/// Longest text, in characters, that makes a column wider.
const WIDEST: usize = 56;

fn text(findings: &Findings) -> String {
    let mut out = format!("ringbell {} on {}\n\n", findings.version, findings.machine);
    let width = |of: fn(&Check) -> &str| {
        findings
            .checks
            .iter()
            .map(|c| of(c).chars().count())
            // A long one does not push the others' columns off the screen.
            .filter(|width| *width <= WIDEST)
            .max()
            .unwrap_or(0)
    };
    let (name, found) = (width(|c| &c.name), width(|c| &c.found));
    for c in &findings.checks {
        let mark = match c.verdict {
            Verdict::Ok => "ok     ",
            Verdict::Instead => "instead",
            Verdict::Missing => "MISSING",
        };
        out.push_str(&format!(
            "{mark}  {:name$}  {:found$}  → {}\n         {:name$}  {}\n",
            c.name, c.found, c.used, "", c.why
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        let check = |verdict| Check::new("GPU", verdict, "none", "emulated", "no libcuda");
        Findings {
            version: "1".into(),
            machine: "m".into(),
            checks: vec![check(Verdict::Ok), check(Verdict::Instead)],
        }
    }

    #[test]
    fn only_a_missing_part_without_a_replacement_fails() {
        let mut f = findings();
        assert_eq!(exit(&f.checks), Exit::Ok);
        f.checks[0].verdict = Verdict::Missing;
        assert_eq!(exit(&f.checks), Exit::Environment);
        assert!(text(&f).contains("MISSING  GPU  none  → emulated\n"));
    }

    #[test]
    fn json_round_trip() {
        let json = serde_json::to_string(&findings()).expect("plain values");
        let back: Findings = serde_json::from_str(&json).expect("reads what it wrote");
        assert_eq!(back, findings());
        assert!(json.contains("\"verdict\":\"instead\""));
    }

    #[test]
    fn every_check_reports_the_finding_the_choice_and_the_reason() {
        let mut checks = gpu::gpu();
        checks.extend([gpu::nvcc(), gpu::clang()]);
        checks.extend(host::checks());
        assert!(checks.len() >= 12);
        for c in &checks {
            assert!(
                !c.name.is_empty()
                    && !c.found.is_empty()
                    && !c.used.is_empty()
                    && !c.why.is_empty(),
                "{c:?}"
            );
        }
    }
}
