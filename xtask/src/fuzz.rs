//! Runs of the fuzz targets, by `fuzz/run.py`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, Result};

use crate::steps::{command, exit_code_within, Outcome};
use crate::tools;
use crate::venv;
use crate::workspace::{built, root};

/// Longest time of the step.
const LIMIT: Duration = Duration::from_secs(2400);

fn runner() -> Command {
    let mut run = venv::within(Path::new("python3"), &built(), &[]);
    run.arg(root().join("fuzz/run.py"));
    run
}

/// As a step of CI.
pub(crate) fn step() -> Result<Outcome> {
    if tools::find("python3").is_none() {
        return Ok(Outcome::Skipped(
            "no python3, which runs the targets".into(),
        ));
    }
    match exit_code_within(runner().arg("--step"), LIMIT)? {
        0 => Ok(Outcome::Passed),
        77 => Ok(Outcome::Skipped(
            "no nightly with cargo-fuzz (`cargo install cargo-fuzz --locked`): each target ran for a moment without guidance".into(),
        )),
        code => bail!("the fuzz targets ended with exit code {code}; target/fuzz-run/ has the inputs"),
    }
}

/// `cargo xtask fuzz`, with options of the program.
pub(crate) fn run(options: &[String]) -> Result<()> {
    command(runner().args(options))
}
