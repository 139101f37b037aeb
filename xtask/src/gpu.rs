//! `cargo xtask gpu`: all checks and measurements for a machine with a GPU, as one folder that
//! needs python3 there, and neither Rust nor a network (ADR 18).
//!
//! `xtask/bundle/run` lists the steps there, runs each within a limit, and writes the results.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use fs_err as fs;
use serde_json::json;

use crate::steps::{self, command_within, succeeds, Outcome, Words as _};
use crate::suite::{programs, use_mock, KERNELS, KERNELS_PROGRAM, SDK_PROGRAM};
use crate::workspace::{root, target};
use crate::{tools, venv, workspace};

/// Most bytes of a bundle: still easy to send.
const MOST_BYTES: u64 = 64 << 20;

/// Time limit of each of the two runs in CI; each takes seconds on an idle machine.
const REHEARSAL: Duration = Duration::from_secs(300);

/// Builds a bundle that checks and measures Ringbell on a machine with a GPU and without Rust
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The bundle's folder; FOLDER.tar.gz stands beside it [default: gpu/ringbell-gpu below cargo's
    /// target folder]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Build with the development profile: quicker to build, worthless to measure
    #[arg(long)]
    dev: bool,
    /// Run it here at once
    #[arg(long)]
    here: bool,
    /// Options of the run, as `./run --help` tells them
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        requires = "here",
        value_name = "OPTION OF ./run"
    )]
    options: Vec<String>,
}

/// Builds, and runs if requested.
pub(crate) fn main(args: &Args) -> Result<()> {
    let out = match &args.out {
        Some(out) => root().join(out),
        None => target().join("gpu/ringbell-gpu"),
    };
    build(&out, args.dev)?;
    if args.here {
        return steps::command(Command::new(out.join("run")).args(&args.options));
    }
    println!("copy it to a machine with a GPU, unpack it there, and start `./run`");
    Ok(())
}

/// Builds the bundle in the development profile and runs it in short form by its script: on the
/// emulated GPU, and by CUDA over the mock driver.
pub(crate) fn rehearse() -> Result<Outcome> {
    if tools::find("python3").is_none() {
        return Ok(Outcome::Skipped("no python3, which runs a bundle".into()));
    }
    let test = root().join("xtask/bundle/test_run.py");
    let mut python = Command::new("python3");
    command_within(python.arg("-B").arg(test), REHEARSAL)?;
    let out = target().join("gpu/rehearsal");
    build(&out, true)?;
    for gpu in ["emulated", "cuda"] {
        let mut script = Command::new(out.join("run"));
        script.args(["--short", "--gpu", gpu]);
        script.arg(format!("--results=results-{gpu}"));
        if gpu == "cuda" {
            use_mock(&mut script)?;
        }
        command_within(&mut script, REHEARSAL)?;
    }
    Ok(Outcome::Passed)
}

fn build(out: &Path, dev: bool) -> Result<()> {
    let profile = if dev { "dev" } else { "dist" };
    for sub in ["bin", "tests"] {
        fs::create_dir_all(out.join(sub))?;
    }
    let mut cargo = workspace::cargo();
    // The whole workspace, as the step `tests`: another selection would be other features, and
    // another build.
    cargo.words("build --workspace --message-format=json --bin ringbell");
    cargo.args(["--profile", profile]);
    cargo.args(["--test", KERNELS_PROGRAM, "--test", SDK_PROGRAM]);
    println!("$ {}", steps::shown(&cargo));
    let built = steps::output(&mut cargo)?;
    for (program, place) in [
        ("ringbell", "bin/ringbell"),
        (KERNELS_PROGRAM, "tests/kernels"),
        (SDK_PROGRAM, "tests/sdk"),
    ] {
        copy(&workspace::executable(&built, program)?, &out.join(place))?;
    }
    kernels(&out.join("tests/modules"))?;
    let suite = programs().into_iter();
    let suite = suite.map(|p| json!([p.binary, p.module, p.over_mock]));
    let suite = suite.collect::<Vec<_>>();
    let about = json!({ "commit": commit(), "profile": profile, "suite": suite });
    fs::write(out.join("bundle.json"), format!("{about:#}\n"))?;
    // With its right to be executed.
    fs::copy(root().join("xtask/bundle/run"), out.join("run"))?;
    pack(out)
}

/// Collects the kernels of tests for every GPU: the PTX for the emulated one (and the mock
/// driver's), by nvcc for real ones. Without nvcc the bundle has none for those, and prints that.
fn kernels(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let include = root().join("cuda-kernels/include");
    let nvcc = venv::nvcc();
    if let Err(why) = &nvcc {
        println!("note: no kernels of tests for real GPUs, because there is no nvcc: {why:#}");
    }
    for (name, source) in KERNELS {
        let source = root().join(source);
        let module = folder.join(name);
        fs::copy(source.with_extension("ptx"), module.with_extension("ptx"))?;
        let Ok(nvcc) = &nvcc else { continue };
        let mut fat = Command::new(nvcc);
        fat.words("--fatbin -std=c++17 -Xfatbin=-compress-all");
        // As the SDK's own (cuda-kernels/build.rs): two architectures, and PTX for later ones.
        for code in ["80,code=sm_80", "90,code=sm_90", "90,code=compute_90"] {
            fat.arg(format!("-gencode=arch=compute_{code}"));
        }
        fat.arg("-I").args([&include, &source]);
        steps::command(fat.arg("-o").arg(module.with_extension("fatbin")))?;
    }
    Ok(())
}

/// Copies a program without its debug information.
fn copy(from: &Path, to: &Path) -> Result<()> {
    // Not over a program that may be running.
    let _ = std::fs::remove_file(to);
    if !succeeds(Command::new("strip").arg("-o").arg(to).arg(from)) {
        fs::copy(from, to)?;
    }
    Ok(())
}

/// The folder as one file beside it.
fn pack(out: &Path) -> Result<()> {
    let packed = out.with_extension("tar.gz");
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(out.parent().context("--out has no parent")?);
    tar.arg("--exclude=results*").arg("-czf").arg(&packed);
    steps::command(tar.arg(out.file_name().context("--out names no folder")?))?;
    let bytes = fs::metadata(&packed)?.len();
    println!("{}: {bytes} bytes", packed.display());
    if bytes > MOST_BYTES {
        bail!(
            "{} has {bytes} bytes; a bundle has at most 64 MiB: leave a test out, or strip more",
            packed.display()
        );
    }
    Ok(())
}

/// The commit of the checkout, with a mark when something is not committed.
fn commit() -> String {
    let mut git = Command::new("git");
    git.current_dir(root());
    git.args(["describe", "--always", "--abbrev=40", "--exclude=*"]);
    let said = steps::output(git.arg("--dirty= with changes"));
    said.map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}
