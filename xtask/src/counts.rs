//! `cargo xtask counts`: instructions of the paths of small operations, by
//! `benches/micro/counts.py`.

use std::path::Path;

use anyhow::{bail, Result};

use crate::steps::{command, output, Outcome, Words as _};
use crate::workspace::{built, root};
use crate::{tools, venv, workspace};

/// As a step of CI: skipped where this machine cannot count.
pub(crate) fn compare() -> Result<Outcome> {
    if let Some(why) = unable() {
        return Ok(Outcome::Skipped(why));
    }
    run(&[])?;
    Ok(Outcome::Passed)
}

/// With options of the program: `--update`, or `--files` and a path.
pub(crate) fn with(options: &[&str]) -> Result<()> {
    match unable() {
        Some(why) => bail!("{why}"),
        None => run(options),
    }
}

fn run(options: &[&str]) -> Result<()> {
    let mut cargo = workspace::cargo();
    cargo.words("bench --quiet --no-run --profile=dist --package=ringbell-micro --bench=counts");
    let messages = output(cargo.arg("--message-format=json"))?;
    let program = workspace::executable(&messages, "counts")?;
    let mut counts = venv::within(Path::new("python3"), &built(), &[]);
    counts.arg(root().join("benches/micro/counts.py"));
    command(counts.arg(program).args(options))
}

/// Why this machine cannot count.
fn unable() -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("the recorded counts are of x86-64".into());
    }
    let tool = tools::missing(&["valgrind", "python3"])?;
    Some(format!("no {tool}. Debian: apt-get install {tool}"))
}
