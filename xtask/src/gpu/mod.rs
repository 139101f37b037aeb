//! `cargo xtask gpu`: all checks and measurements for a machine with a GPU, as one folder that needs neither Rust nor a network
//! there (ADR 18).
//!
//! `mod.rs` builds the folder, `plan` lists its steps, `run` runs each within a limit, `suite` runs the tests one by one,
//! `summary` writes the results.

mod plan;
mod run;
mod suite;
mod summary;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use serde_json::{json, Value};

pub(crate) use self::run::{run as run_bundle, RunArgs};
use crate::steps::{command_within, Outcome};
use crate::suite::{use_mock, KERNELS_PROGRAM, PROGRAMS, SDK_PROGRAM};
use crate::tools::find;
use crate::{root, target, test};

/// Most bytes of a bundle: still easy to send.
const MOST_BYTES: u64 = 64 << 20;

/// Time limit of each of the two runs in CI; each takes seconds on an idle machine.
const REHEARSAL: Duration = Duration::from_secs(300);

/// Place of NCCL in a bundle, if it is included.
const NCCL: &str = "lib/libnccl.so.2";

/// The bundle's start script, for a machine without Rust.
const SCRIPT: &str = r#"#!/bin/sh
# Checks Ringbell on this machine's GPU, then measures. `./run --help` tells the options.
cd "$(dirname "$0")" || exit 1
exec ./bin/runner gpu-run --bundle . "$@"
"#;

/// Builds a bundle that checks and measures Ringbell on a machine with a GPU and without Rust
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The bundle's folder; FOLDER.tar.gz stands beside it [default: gpu/ringbell-gpu below cargo's target folder]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Build with the development profile: quicker to build, worthless to measure
    #[arg(long)]
    dev: bool,
    /// Run it here at once
    #[arg(long)]
    here: bool,
    #[command(flatten)]
    run: run::HereArgs,
}

/// Builds, and runs if requested; false when a step of the run failed.
pub(crate) fn main(args: &Args) -> Result<bool> {
    let out = match &args.out {
        Some(out) => root().join(out),
        None => target().join("gpu/ringbell-gpu"),
    };
    build(&out, args.dev, args.run.nccl.as_deref())?;
    if !args.here {
        println!("copy it to a machine with a GPU, unpack it there, and start `./run`");
        return Ok(true);
    }
    // By the script, as a user would.
    let mut script = Command::new("sh");
    script.arg(out.join("run")).args(args.run.words());
    let status = script
        .status()
        .context("cannot start the bundle's script")?;
    Ok(status.success())
}

/// Builds the bundle in the development profile and runs it in short form by its script: on the emulated GPU, and by CUDA over
/// the mock driver.
pub(crate) fn rehearse() -> Result<Outcome> {
    let out = target().join("gpu/rehearsal");
    build(&out, true, None)?;
    for gpu in ["emulated", "cuda"] {
        let mut script = Command::new("sh");
        script.arg(out.join("run")).args(["--short", "--gpu", gpu]);
        script
            .arg("--results")
            .arg(out.join(format!("results-{gpu}")));
        if gpu == "cuda" {
            use_mock(&mut script)?;
        }
        command_within(&mut script, REHEARSAL)?;
    }
    Ok(Outcome::Passed)
}

fn build(out: &Path, dev: bool, nccl: Option<&Path>) -> Result<()> {
    let profile = if dev { "dev" } else { "dist" };
    for sub in ["bin", "tests"] {
        let dir = out.join(sub);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let built = executables(&cargo_build(profile)?);
    place(
        find_in(&built, "ringbell-cli", "ringbell")?,
        &out.join("bin/ringbell"),
    )?;
    // This very program: a build of the workspace may have put another in its place meanwhile.
    let runner = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    place(&runner, &out.join("bin/runner"))?;
    let mut tests = suite::Tests::new();
    let mut listed = BTreeMap::new();
    for program in &PROGRAMS {
        let placed = out.join("tests").join(program.package);
        if !listed.contains_key(program.package) {
            place(find_in(&built, program.package, program.binary())?, &placed)?;
            listed.insert(program.package, suite::list(&placed)?);
        }
        let own = listed[program.package].iter().filter(|t| program.has(t));
        tests.insert(program.name.to_owned(), own.cloned().collect());
    }
    suite::kernels(&out.join("tests/kernels"))?;
    pack_nccl(out, nccl)?;
    let resources = target().join("kernels/resources.json");
    let resources = match std::fs::read_to_string(&resources) {
        Ok(text) => serde_json::from_str(&text)
            .with_context(|| format!("{} is no JSON", resources.display()))?,
        Err(_) => {
            println!(
                "note: no {}; `cargo xtask kernels` makes it",
                resources.display()
            );
            Value::Null
        }
    };
    let about = json!({
        "commit": commit(),
        "profile": profile,
        "kernels": resources,
        "tests": tests,
    });
    write(&out.join("bundle.json"), &format!("{about:#}\n"), 0o644)?;
    write(&out.join("run"), SCRIPT, 0o755)?;
    let packed = pack(out)?;
    let bytes = size(&packed)?;
    println!(
        "{} ({:.1} MiB)",
        packed.display(),
        bytes as f64 / f64::from(1 << 20)
    );
    if bytes > MOST_BYTES && nccl.is_some() {
        bail!(
            "{} has {bytes} bytes with NCCL in it; a bundle has at most 64 MiB: leave --nccl away here, and start `./run --nccl PATH` on the machine",
            packed.display()
        );
    }
    if bytes > MOST_BYTES {
        bail!(
            "{} has {bytes} bytes; a bundle has at most 64 MiB: leave a test out, or strip more",
            packed.display()
        );
    }
    Ok(())
}

/// Copies NCCL into the bundle, or removes that of an earlier one.
fn pack_nccl(out: &Path, nccl: Option<&Path>) -> Result<()> {
    let to = out.join(NCCL);
    let _ = std::fs::remove_file(&to);
    let Some(from) = nccl else {
        return Ok(());
    };
    let dir = out.join("lib");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    std::fs::copy(from, &to).with_context(|| {
        format!(
            "cannot copy {} to {}; --nccl names a libnccl.so.2",
            from.display(),
            to.display()
        )
    })?;
    Ok(())
}

/// Builds the suite's programs, and with them the command, which tests of its package need; returns cargo's messages.
fn cargo_build(profile: &str) -> Result<String> {
    let mut cargo = test::cargo();
    // The whole workspace, as the step `tests`: another selection would be other features, and another build.
    cargo.args(["build", "--workspace", "--message-format=json"]);
    cargo.args(["--bin", "ringbell"]);
    cargo.args(["--profile", profile]);
    cargo.args(["--test", KERNELS_PROGRAM, "--test", SDK_PROGRAM]);
    println!("$ cargo build --workspace (the test programs and the command)");
    let built = cargo
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !built.status.success() {
        bail!("the tests do not build: {}", built.status);
    }
    Ok(String::from_utf8_lossy(&built.stdout).into_owned())
}

type Built = (String, String, PathBuf);

fn find_in<'a>(built: &'a [Built], package: &str, target: &str) -> Result<&'a Path> {
    let found = built.iter().find(|(p, t, _)| p == package && t == target);
    match found {
        Some((_, _, path)) => Ok(path),
        None => bail!("cargo built no `{target}` of {package}"),
    }
}

/// Package, target and path of each executable in cargo's messages.
fn executables(messages: &str) -> Vec<Built> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|m| {
            let path = PathBuf::from(m["executable"].as_str()?);
            let target = m["target"]["name"].as_str()?.to_owned();
            Some((package(m["package_id"].as_str()?)?, target, path))
        })
        .collect()
}

/// The name in a package id: `path+file:///x/cuda-kernels#ringbell-cuda-kernels@0.1.0`, or `...ringbell#0.1.0` where
/// the folder has the package's name.
fn package(id: &str) -> Option<String> {
    let (before, fragment) = id.rsplit_once('#')?;
    Some(match fragment.split_once('@') {
        Some((name, _)) => name.to_owned(),
        None => before.rsplit('/').next()?.to_owned(),
    })
}

/// Copies a program without its debug information.
fn place(from: &Path, to: &Path) -> Result<()> {
    // Not over a program that may be running.
    let _ = std::fs::remove_file(to);
    let stripped = find("strip").is_some_and(|strip| {
        let status = Command::new(strip).arg("-o").arg(to).arg(from).status();
        status.is_ok_and(|s| s.success())
    });
    if !stripped {
        std::fs::copy(from, to)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}

fn write(file: &Path, text: &str, mode: u32) -> Result<()> {
    let failed = || format!("cannot write {}", file.display());
    std::fs::write(file, text).with_context(failed)?;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).with_context(failed)
}

/// The folder as one file beside it.
fn pack(out: &Path) -> Result<PathBuf> {
    let name = out.file_name().context("--out names no folder")?;
    let parent = out.parent().context("--out has no parent")?;
    let packed = out.with_extension("tar.gz");
    let status = Command::new("tar")
        .arg("-C")
        .arg(parent)
        .arg("--exclude=results*")
        .arg("-czf")
        .arg(&packed)
        .arg(name)
        .status()
        .context("cannot start tar")?;
    if !status.success() {
        bail!("tar ended with {status}");
    }
    Ok(packed)
}

fn size(file: &Path) -> Result<u64> {
    let meta =
        std::fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(meta.len())
}

/// The commit of the checkout, with a mark when something is not committed.
fn commit() -> String {
    let git = |args: &[&str]| {
        let out = Command::new("git")
            .current_dir(root())
            .args(args)
            .output()
            .ok()?;
        let text = String::from_utf8(out.stdout).ok()?.trim().to_owned();
        out.status.success().then_some(text)
    };
    match git(&["rev-parse", "HEAD"]) {
        None => "unknown".into(),
        Some(hash) => match git(&["status", "--porcelain"]) {
            Some(changes) if changes.is_empty() => hash,
            _ => hash + " with changes",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_found_in_cargos_messages() {
        let said = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/ringbell#0.1.0","target":{"name":"all"},"executable":"/t/all-1"}
not json
{"reason":"compiler-artifact","package_id":"path+file:///w/x/cuda-kernels#ringbell-cuda-kernels@0.1.0","target":{"name":"all"},"executable":"/t/all-2"}
{"reason":"compiler-artifact","package_id":"path+file:///w/x#lib@0.1.0","target":{"name":"lib"},"executable":null}"#;
        let found = executables(said);
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0],
            ("ringbell".into(), "all".into(), "/t/all-1".into())
        );
        assert_eq!(
            found[1],
            (
                "ringbell-cuda-kernels".into(),
                "all".into(),
                "/t/all-2".into()
            )
        );
    }

    #[test]
    fn nccl_comes_into_a_bundle_and_goes_again() {
        let out = std::env::temp_dir().join(format!("rb-gpu-nccl-{}", std::process::id()));
        std::fs::create_dir_all(&out).unwrap();
        let from = out.join("some-libnccl");
        std::fs::write(&from, b"a library").unwrap();
        pack_nccl(&out, Some(&from)).unwrap();
        assert_eq!(std::fs::read(out.join(NCCL)).unwrap(), b"a library");
        pack_nccl(&out, None).unwrap();
        assert!(!out.join(NCCL).exists());
        let e = pack_nccl(&out, Some(Path::new("/nonexistent"))).unwrap_err();
        assert!(e.to_string().contains("--nccl"), "{e}");
        std::fs::remove_dir_all(&out).unwrap();
    }
}
