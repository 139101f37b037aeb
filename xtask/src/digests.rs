//! Digests of simulations, by the build of the tests and by an optimised one: a run depends on its
//! arguments alone, and on no profile.

use std::process::Command;

use anyhow::{ensure, Result};

use crate::steps::{command, output, Outcome, Words as _};
use crate::workspace::{build, built, cargo, target};

/// Runs the same small clusters by both builds.
pub(crate) fn step() -> Result<Outcome> {
    build()?;
    // Not by `dist`, whose optimisation across crates takes longer than all that is checked.
    command(cargo().words("build --release --package=ringbell-sim --example=digests"))?;
    let [tests, release] = [built(), target().join("release")].map(|folder| {
        let program = folder.join("examples/digests");
        output(&mut Command::new(program))
    });
    let (tests, release) = (tests?, release?);
    print!("{tests}");
    let other = differing(&tests, &release);
    ensure!(
        other.is_empty(),
        "runs differ between the profiles dev and release:\n{}",
        other.join("\n")
    );
    Ok(Outcome::Passed)
}

/// The lines that are not in both texts, by the text that has them. Two texts without a line
/// compare nothing, which is said as well.
fn differing(dev: &str, release: &str) -> Vec<String> {
    let only = |profile: &str, one: &str, other: &str| {
        let lines = one.lines().filter(|l| other.lines().all(|o| o != *l));
        lines.map(|l| format!("{profile}: {l}")).collect::<Vec<_>>()
    };
    match (dev.is_empty(), release.is_empty()) {
        (true, true) => vec!["no run was made".into()],
        _ => [only("dev", dev, release), only("release", release, dev)].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_one_build_alone_has_is_named_with_its_profile() {
        assert!(differing("a: 1\nb: 2\n", "a: 1\nb: 2\n").is_empty());
        let other = differing("a: 1\nb: 2\n", "a: 1\nb: 3\n");
        assert_eq!(other, ["dev: b: 2", "release: b: 3"]);
        assert_eq!(differing("a: 1\n", ""), ["dev: a: 1"]);
        assert_eq!(differing("", "").len(), 1);
    }
}
