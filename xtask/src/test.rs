//! Tests of all kinds: the workspace's, those in documentation, the examples; with `--all` every
//! other.

#![allow(clippy::disallowed_methods)] // Runs programs.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{bail, Context, Result};

use crate::lanes::{step, Lane, Step};
use crate::steps::{command_within, exit_code_within, Outcome, Words as _};
use crate::suite::{example_programs, EXAMPLE_LIMIT};
use crate::summary::{counted, say_skipped, skipped_in_output};
use crate::workspace::{
    build, built, cargo, done, entries, has_nextest, nextest, passes, root, target, BARE, BUILD,
};
use crate::{
    bare, bindings, counts, digests, fuzz, gpu, hw, install, kernels, lint, suite, unprivileged,
    venv,
};

/// What `cargo xtask test` runs. Examples and tests share the profile, so that nothing is compiled
/// twice.
pub(crate) const STEPS: [Step; 4] = [
    step(BUILD, Lane::Cargo, &[], || {
        build().map(|()| Outcome::Passed)
    }),
    step("tests", Lane::Cargo, &[BUILD], tests),
    step("doctests", Lane::Cargo, &[BUILD], doctests),
    step("examples", Lane::Beside, &[BUILD], || examples(None)),
];

/// What comes before them with `--all`: tests that have passed on the bare machine are not run
/// again, and what takes long does not end alone.
const FIRST: [Step; 3] = [
    step("proofs", Lane::Beside, &[], hw::proofs),
    step(BARE, Lane::Cargo, &[BUILD], bare::step),
    step("simulations", Lane::Cargo, &["proofs"], hw::simulations),
];

/// What `--all` runs besides, with the rules and the lints. Longest first in each lane.
const MORE: [Step; 14] = [
    step("kernels", Lane::Beside, &[BUILD], kernels::compile),
    step("mpi", Lane::Beside, &[BUILD], bindings::mpi),
    step("fuzzing", Lane::Beside, &[], fuzz::step),
    step("verbs", Lane::Beside, &[BUILD], bindings::verbs),
    step("nccl", Lane::Beside, &[BUILD], bindings::nccl),
    step("python", Lane::Beside, &[BUILD], bindings::package),
    step("install", Lane::Beside, &[BUILD], install::step),
    step("checked", Lane::Beside, &[BUILD], || examples(Some("all"))),
    step("counts", Lane::Beside, &[], counts::compare),
    step("digests", Lane::Beside, &[BUILD], digests::step),
    step("cuda", Lane::Cargo, &[BUILD], suite::over_mock),
    step("bindings", Lane::Cargo, &[], gdrcopy),
    step("user", Lane::Cargo, &[BUILD], unprivileged::tests),
    step("bundle", Lane::Beside, &[BUILD], gpu::rehearse),
];

/// Every step, in the order in which each lane takes them.
pub(crate) fn all() -> Vec<Step> {
    let (build, rest) = STEPS.split_at(1);
    [build, &FIRST, rest, &lint::STEPS, &MORE].concat()
}

/// The names of the steps that `cargo xtask test` leaves to `--all`.
pub(crate) fn left_out() -> String {
    let more = all()
        .into_iter()
        .filter(|s| STEPS.iter().all(|own| own.name != s.name));
    let names: Vec<&str> = more.map(|s| s.name).collect();
    names.join(", ")
}

/// The workspace's tests; where they ran on a bare machine, those that failed there, and those that
/// it lacked something for.
fn tests() -> Result<Outcome> {
    if !done(BARE) || !has_nextest() {
        return workspace(&[]);
    }
    let Ok(left) = bare::left_over() else {
        // It ended before its tests began.
        return workspace(&[]);
    };
    if left.is_empty() {
        return Ok(Outcome::Passed);
    }
    println!(
        "{} tests failed or skipped themselves on the bare machine; the others have passed there",
        left.len()
    );
    let named = left.iter().map(|name| format!("test(={name})"));
    let wanted = named.collect::<Vec<_>>().join(" + ");
    workspace(&["-E".into(), wanted])
}

/// The workspace's tests whose name contains one of `filter`; all without.
fn workspace(filter: &[String]) -> Result<Outcome> {
    for (name, there) in [("scapy", venv::scapy()), ("CCCL", venv::cccl())] {
        if let Err(error) = there {
            println!("no {name}, the tests that use it are skipped: {error:#}");
        }
    }
    build()?;
    if has_nextest() {
        let mut tests = nextest();
        tests.args(filter).env("RINGBELL_TEST_BUILT", built());
        return counted(&mut tests).map(|_| Outcome::Passed);
    }
    println!(
        "cargo-nextest is not installed: using `cargo test`, which does not end a test that hangs"
    );
    let mut tests = cargo();
    tests.words("test --workspace --no-fail-fast --lib --bins --tests -- --show-output");
    tests.env("RINGBELL_TEST_BUILT", built());
    shown_without_output(tests.args(filter)).map(|()| Outcome::Passed)
}

/// Runs `cargo test -- --show-output`, and prints all but what tests printed that passed.
fn shown_without_output(tests: &mut Command) -> Result<()> {
    println!("$ cargo test --workspace");
    let mut child = tests
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let out = child.stdout.take().context("cargo's output")?;
    let (mut inside, mut hidden) = (false, String::new());
    for line in BufReader::new(out).lines() {
        let line = line.context("cannot read cargo's output")?;
        match line.as_str() {
            "successes:" => inside = true,
            l if l.starts_with("failures:") || l.starts_with("test result:") => inside = false,
            _ => {}
        }
        if inside {
            hidden += &(line + "\n");
        } else if !(line.is_empty() || line.starts_with("test ") && line.ends_with(" ok")) {
            println!("{line}");
        }
    }
    say_skipped(&skipped_in_output(&hidden));
    let status = child.wait().context("cannot wait for cargo")?;
    match status.success() {
        true => Ok(()),
        false => bail!("`cargo test` ended with {status}"),
    }
}

/// Runs only the workspace's tests that match; true when they passed.
pub(crate) fn filtered(filter: &[String]) -> Result<bool> {
    workspace(filter).map(|_| true)
}

fn doctests() -> Result<Outcome> {
    if done(BARE) {
        let why = "they ran in the step `bare`";
        return Ok(Outcome::Skipped(why.into()));
    }
    passes("test --workspace --doc")
}

/// The bindings to GDRCopy against what bindgen makes of the header; the test says so where there
/// is no libclang.
fn gdrcopy() -> Result<Outcome> {
    passes("test -p gdrcopy-sys --features bindgen --test all generated")
}

/// Builds all examples, then starts each as a user would: with these checks of kernels, which say
/// nothing of a correct one.
fn examples(checks: Option<&str>) -> Result<Outcome> {
    let checks = checks.map(|checks| ("RINGBELL_CHECK", checks));
    let names = example_programs()?;
    let scripts = entries(&root().join("examples"))?
        .into_iter()
        .map(|path| path.join("run.sh"));
    let scripts: Vec<PathBuf> = scripts.filter(|script| script.exists()).collect();
    // The command and libringbell.so as well: examples with kernels or C++ of their own use them.
    build()?;
    for name in &names {
        let program = built().join("examples").join(name);
        let mut program = Command::new(program);
        program.current_dir(root()).envs(checks);
        command_within(&mut program, EXAMPLE_LIMIT)?;
    }
    let mut skipped = Vec::new();
    for script in &scripts {
        // 77 means, as in other test suites, that the script lacks a tool.
        let mut sh = Command::new("sh");
        // Folder with the command and libringbell.so, for the scripts.
        sh.arg(script)
            .stdin(Stdio::null())
            .env("TARGET", built())
            .envs(checks);
        let printed = target().join("example.log");
        let file = std::fs::File::create(&printed)?;
        let ended = exit_code_within(sh.stdout(file.try_clone()?).stderr(file), EXAMPLE_LIMIT);
        let said = String::from_utf8_lossy(&std::fs::read(&printed)?).into_owned();
        print!("{said}");
        match ended? {
            0 => {}
            77 => {
                let why = said.lines().find_map(|l| l.strip_prefix("SKIPPED: "));
                let folder = script.parent().unwrap_or(script);
                let name = folder
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                skipped.push(format!("{name}: {}", why.unwrap_or("it does not say why")));
            }
            code => bail!("{} ended with exit code {code}", script.display()),
        }
    }
    let all = names.len() + scripts.len();
    println!("{} of {all} examples ran", all - skipped.len());
    match skipped.is_empty() {
        true => Ok(Outcome::Passed),
        false => Ok(Outcome::Skipped(format!(
            "{} (the others passed)",
            skipped.join("; ")
        ))),
    }
}
