//! Kernels and the test command on a bare machine (`xtask/bare.sh`): a minimal Debian below
//! `target/bare`, as a user without rights.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{bail, Context as _, Result};
use fs_err as fs;

use crate::steps::{exit_code_within, output, Outcome, Words as _};
use crate::summary::{failed_tests, SKIPPED_TEST};
use crate::tools;
use crate::workspace::{root, target};

/// Longest time of making the system, and the tests in it.
const LIMIT: Duration = Duration::from_secs(2300);

/// As a step of `--all`: skipped where no such system can be made.
pub(crate) fn step() -> Result<Outcome> {
    if tools::find("mmdebstrap").is_none() {
        tools::install(&["mmdebstrap"]);
    }
    if let Some(tool) = tools::missing(&["mmdebstrap", "unshare"]) {
        return Ok(Outcome::Skipped(format!(
            "no {tool}. Debian: apt-get install mmdebstrap util-linux"
        )));
    }
    let folder = target().join("bare");
    fs::create_dir_all(&folder)?;
    let _ = fs::remove_file(log());
    // The mounts are made in namespaces of the system's own.
    let mut unshare = Command::new("unshare");
    unshare.words("--mount --pid --fork --kill-child");
    unshare.args((!tools::is_root()).then_some("--map-root-user"));
    unshare.current_dir(root()).stdin(Stdio::null());
    let script = root().join("xtask/bare.sh");
    let places = [folder.clone(), target(), rust()?, crates()?];
    match exit_code_within(unshare.arg("sh").arg(script).args(places), LIMIT)? {
        0 => {}
        77 => return Ok(Outcome::Skipped(fs::read_to_string(folder.join("why"))?)),
        code => bail!("the tests on the bare machine ended with exit code {code}"),
    }
    println!("not run on aarch64: there is no such machine, and no emulator of one in this step");
    Ok(Outcome::Passed)
}

/// What its step `tests` has printed.
fn log() -> PathBuf {
    target().join("bare/steps/tests.log")
}

/// The tests that skipped themselves there, or failed, by their names.
pub(crate) fn left_over() -> Result<BTreeSet<String>> {
    let said = fs::read_to_string(log())?;
    let skipped = said.lines().filter_map(|l| l.strip_prefix(SKIPPED_TEST));
    let skipped = skipped.filter_map(|t| Some(t.split_once(": ")?.0.to_owned()));
    Ok(skipped.chain(failed_tests(&said)).collect())
}

/// The folder of this Rust: its programs without rustup and without what was installed beside them.
fn rust() -> Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told = output(Command::new(rustc).words("--print sysroot"))?;
    Ok(told.trim().into())
}

/// Where cargo keeps downloaded crates.
fn crates() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("HOME is not set")?;
    Ok(PathBuf::from(home).join(".cargo"))
}
