//! Tests of all kinds: the workspace's, those in documentation, the examples, and the kernels under nvcc.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{bail, Context, Result};

use crate::steps::{command, command_within, exit_code_within, Outcome, Step};
use crate::{
    counts, fuzz, gpu, hw, install, kernels, mpi, nccl, python, root, suite, target, unprivileged,
    venv, verbs,
};

/// Examples and tests share the profile, so that nothing is compiled twice. The workspace's tests, and those that run once
/// more over the mock driver, come last: their closing lines are what a reader looks for.
pub(crate) const STEPS: [Step; 15] = [
    ("hw", hw::step),
    ("kernels", kernels::compile),
    ("counts", counts::compare),
    ("fuzzing", fuzz::step),
    ("examples", examples),
    ("install", install::step),
    ("verbs", verbs::step),
    ("mpi", mpi::step),
    ("nccl", nccl::step),
    ("python", python::step),
    ("doctests", doctests),
    ("tests", || workspace(&[])),
    ("user", unprivileged::tests),
    ("cuda", suite::over_mock),
    ("bundle", gpu::rehearse),
];

/// Longest time that one example may take, its compilation not counted.
pub(crate) const EXAMPLE_LIMIT: Duration = Duration::from_secs(120);

pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Whether cargo-nextest is installed: it ends a test that hangs, and runs each in its own process.
pub(crate) fn has_nextest() -> bool {
    cargo()
        .args(["nextest", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Folder of the whole workspace's build: the command, libringbell.so and the examples.
pub(crate) fn built() -> PathBuf {
    target().join("debug")
}

/// The profile of a build, for figures or for tests, and its folder in the target folder.
pub(crate) fn profile(for_figures: bool) -> (&'static str, &'static str) {
    if for_figures {
        ("dist", "dist")
    } else {
        ("dev", "debug")
    }
}

/// Builds the libraries and programs that tests and examples start. One selection for all steps: another would be other
/// features, and another build.
pub(crate) fn build() -> Result<()> {
    let kinds = ["--lib", "--bins", "--tests", "--examples"];
    command(cargo().args(["build", "--workspace"]).args(kinds))
}

/// The workspace's tests whose name contains one of `filter`; all without.
fn workspace(filter: &[String]) -> Result<Outcome> {
    if let Err(error) = venv::scapy() {
        println!("no scapy, the tests that use it are skipped: {error:#}");
    }
    build()?;
    let mut tests = cargo();
    tests.env("RINGBELL_TEST_BUILT", built());
    if has_nextest() {
        tests.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    } else {
        println!("cargo-nextest is not installed: using `cargo test`, which does not end a test that hangs");
        tests.args([
            "test",
            "--workspace",
            "--no-fail-fast",
            "--lib",
            "--bins",
            "--tests",
        ]);
        if !filter.is_empty() {
            tests.arg("--");
        }
    }
    command(tests.args(filter))?;
    Ok(Outcome::Passed)
}

/// Runs only the workspace's tests that match; true when they passed.
pub(crate) fn filtered(filter: &[String]) -> Result<bool> {
    workspace(filter).map(|_| true)
}

fn doctests() -> Result<Outcome> {
    command(cargo().args(["test", "--workspace", "--doc"]))?;
    Ok(Outcome::Passed)
}

/// Names of the examples that are programs of cargo.
pub(crate) fn example_programs() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for path in example_paths()? {
        let is_program =
            path.extension().is_some_and(|e| e == "rs") || path.join("main.rs").exists();
        if let (true, Some(name)) = (is_program, path.file_stem().and_then(|n| n.to_str())) {
            names.push(name.to_string());
        }
    }
    Ok(names)
}

/// What lies in the folder of the examples, in order.
fn example_paths() -> Result<Vec<PathBuf>> {
    let dir = root().join("examples");
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()));
    let paths: std::io::Result<Vec<_>> = entries?.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths?;
    paths.sort();
    Ok(paths)
}

/// Builds all examples, then starts each as a user would.
fn examples() -> Result<Outcome> {
    let names = example_programs()?;
    let scripts = example_paths()?.into_iter().map(|path| path.join("run.sh"));
    let scripts: Vec<PathBuf> = scripts.filter(|script| script.exists()).collect();
    if names.is_empty() && scripts.is_empty() {
        return Ok(Outcome::Skipped("examples/ holds no program yet".into()));
    }
    // The command and libringbell.so as well: examples with kernels or C++ of their own use them.
    build()?;
    for name in &names {
        let program = built().join("examples").join(name);
        command_within(Command::new(program).current_dir(root()), EXAMPLE_LIMIT)?;
    }
    let mut skipped = Vec::new();
    for script in &scripts {
        // 77 means, as in other test suites, that the script lacks a tool.
        let mut sh = Command::new("sh");
        // Folder with the command and libringbell.so, for the scripts.
        sh.arg(script).env("TARGET", built());
        match exit_code_within(&mut sh, EXAMPLE_LIMIT)? {
            0 => {}
            77 => skipped.push(script.display().to_string()),
            code => bail!("{} ended with exit code {code}", script.display()),
        }
    }
    let all = names.len() + scripts.len();
    println!("{} of {all} examples ran", all - skipped.len());
    match skipped.is_empty() {
        true => Ok(Outcome::Passed),
        false => Ok(Outcome::Skipped(format!(
            "no g++ for {} (the others passed)",
            skipped.join(", ")
        ))),
    }
}
