//! Checks that run no program of the product: format, generated files, house rules, clippy, documentation.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::lanes::{Lane, Step};
use crate::steps::{command, Outcome};
use crate::{gen, root, source, style, suite, target};

/// 64-bit Arm, whose vector code is that of NEON.
const ARM: &str = "aarch64-unknown-linux-gnu";

const fn step(name: &'static str, lane: Lane, run: fn() -> Result<Outcome>) -> Step {
    Step {
        name,
        lane,
        after: &[],
        run,
    }
}

/// The fastest first.
pub(crate) const STEPS: [Step; 12] = [
    step("format", Lane::Beside, format),
    step("generated", Lane::Beside, generated),
    step("style", Lane::Beside, style::check),
    step("structure", Lane::Beside, source::check),
    step("names", Lane::Beside, source::names::check),
    step("deny", Lane::Beside, deny),
    step("clippy", Lane::Cargo, clippy),
    step("cust", Lane::Cargo, cust),
    step("docs", Lane::Cargo, docs),
    step("msrv", Lane::Cargo, msrv),
    step("aarch64", Lane::Cargo, aarch64),
    step("fuzz", Lane::Beside, fuzz),
];

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

fn format() -> Result<Outcome> {
    command(cargo().args(["fmt", "--all", "--check"]))?;
    Ok(Outcome::Passed)
}

fn generated() -> Result<Outcome> {
    gen::check()?;
    Ok(Outcome::Passed)
}

fn clippy() -> Result<Outcome> {
    command(cargo().args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    Ok(Outcome::Passed)
}

/// The feature `cust`, which is off by default. Its crate looks for a folder with libcuda when it is built, and accepts an empty
/// one as long as nothing is linked.
fn cust() -> Result<Outcome> {
    let cuda = target().join("no-cuda");
    std::fs::create_dir_all(cuda.join("lib64"))?;
    command(
        cargo()
            .args(["clippy", "--workspace", "--features", "ringbell/cust"])
            .args(["--example", suite::CUST_EXAMPLE])
            .args(["--", "-D", "warnings"])
            .env("CUDA_LIBRARY_PATH", cuda),
    )?;
    Ok(Outcome::Passed)
}

/// Licences, sources and banned crates of the dependencies, by `deny.toml`. Advisories need a network, and are left out.
fn deny() -> Result<Outcome> {
    let here = cargo().args(["deny", "--version"]).output();
    if !here.is_ok_and(|out| out.status.success()) {
        return Ok(Outcome::Skipped(
            "there is no cargo-deny; `cargo install cargo-deny --locked` installs it".into(),
        ));
    }
    command(cargo().args(["deny", "--offline", "check", "licenses", "bans", "sources"]))?;
    Ok(Outcome::Passed)
}

/// Library, command and C library by the oldest Rust that the manifest promises.
fn msrv() -> Result<Outcome> {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml"))?;
    let oldest = oldest_rust(&manifest).context("Cargo.toml has no rust-version")?;
    let rustup = |args: &[&str]| {
        let mut rustup = Command::new("rustup");
        rustup.current_dir(root()).args(["run", &oldest, "cargo"]);
        rustup.args(args);
        rustup
    };
    let here = rustup(&["--version"]).output();
    if !here.is_ok_and(|out| out.status.success()) {
        return Ok(Outcome::Skipped(format!(
            "Rust {oldest} is not here; `rustup toolchain install {oldest} --profile minimal` installs it"
        )));
    }
    // Cargo tells its children which compiler to take.
    command(
        rustup(&["check", "--quiet", "-p", "ringbell-cli", "-p", "ringbell-c"])
            .env_remove("CARGO")
            .env_remove("RUSTC"),
    )?;
    Ok(Outcome::Passed)
}

/// `rust-version` of a manifest, as rustup names the toolchain.
fn oldest_rust(manifest: &str) -> Option<String> {
    let line = manifest
        .lines()
        .find_map(|l| l.strip_prefix("rust-version = "))?;
    let version = line.trim().trim_matches('"');
    Some(match version.matches('.').count() {
        1 => format!("{version}.0"),
        _ => version.to_owned(),
    })
}

/// The crates without C++ for 64-bit Arm, where this Rust has its standard library: device code would need a cross
/// compiler, and nothing is linked.
fn aarch64() -> Result<Outcome> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", ARM])
        .output()?;
    let folder = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    if !told.status.success() || !Path::new(&folder).is_dir() {
        return Ok(Outcome::Skipped(format!(
            "this Rust has no standard library for {ARM}; `rustup target add {ARM}` installs it"
        )));
    }
    let crates =
        ["nic-abi", "gtlb", "onc-engines", "nic-core"].map(|c| format!("--package=ringbell-{c}"));
    command(cargo().args(["check", "--target", ARM]).args(crates))?;
    Ok(Outcome::Passed)
}

/// The fuzz targets are a workspace of their own and need nightly to run, but not to be checked.
fn fuzz() -> Result<Outcome> {
    command(
        cargo()
            .args(["clippy", "--manifest-path", "fuzz/Cargo.toml"])
            .args(["--locked", "--no-default-features", "--target-dir"])
            .arg(target().join("fuzz"))
            .args(["--", "-D", "warnings"]),
    )?;
    command(cargo().args(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]))?;
    Ok(Outcome::Passed)
}

/// Private items too: module docs link to their parts.
fn docs() -> Result<Outcome> {
    command(
        cargo()
            .args([
                "doc",
                "--workspace",
                "--no-deps",
                "--document-private-items",
            ])
            .env(
                "RUSTDOCFLAGS",
                "-D warnings -A rustdoc::private-intra-doc-links",
            ),
    )?;
    Ok(Outcome::Passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_rust_is_named_as_a_toolchain() {
        let of = |v: &str| oldest_rust(&format!("[workspace.package]\nrust-version = \"{v}\"\n"));
        assert_eq!(of("1.91").as_deref(), Some("1.91.0"));
        assert_eq!(of("1.91.1").as_deref(), Some("1.91.1"));
        assert_eq!(oldest_rust("[package]\n"), None);
    }
}
