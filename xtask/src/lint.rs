//! Checks that run no program of the product: format, generated files, house rules, clippy,
//! documentation.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use fs_err as fs;

use crate::lanes::{step, Lane, Step};
use crate::steps::{command, output, succeeds, Outcome, Words as _};
use crate::workspace::{cargo, passes, root, target};
use crate::{gen, source, style, suite};

/// 64-bit Arm, whose vector code is that of NEON.
const ARM: &str = "aarch64-unknown-linux-gnu";

/// The fastest first.
pub(crate) const STEPS: [Step; 12] = [
    step("format", Lane::Beside, &[], format),
    step("generated", Lane::Beside, &[], generated),
    step("style", Lane::Beside, &[], style::check),
    step("structure", Lane::Beside, &[], source::check),
    step("names", Lane::Beside, &[], source::names::check),
    step("deny", Lane::Beside, &[], deny),
    step("clippy", Lane::Cargo, &[], clippy),
    step("cust", Lane::Cargo, &[], cust),
    step("docs", Lane::Cargo, &[], docs),
    step("msrv", Lane::Cargo, &[], msrv),
    step("aarch64", Lane::Cargo, &[], aarch64),
    step("fuzz", Lane::Beside, &[], fuzz),
];

fn format() -> Result<Outcome> {
    passes("fmt --all --check")
}

fn generated() -> Result<Outcome> {
    gen::check().map(|()| Outcome::Passed)
}

fn clippy() -> Result<Outcome> {
    passes("clippy --workspace --all-targets -- -D warnings")
}

/// The feature `cust`, which is off by default. Its crate looks for a folder with libcuda when it
/// is built, and accepts an empty one as long as nothing is linked.
fn cust() -> Result<Outcome> {
    let cuda = target().join("no-cuda");
    fs::create_dir_all(cuda.join("lib64"))?;
    let mut clippy = cargo();
    clippy.words("clippy --workspace --features ringbell/cust --example");
    clippy.arg(suite::CUST_EXAMPLE).words("-- -D warnings");
    command(clippy.env("CUDA_LIBRARY_PATH", cuda))?;
    Ok(Outcome::Passed)
}

/// Licences, sources and banned crates of the dependencies, by `deny.toml`. Advisories need a
/// network, and are left out.
fn deny() -> Result<Outcome> {
    if !succeeds(cargo().words("deny --version")) {
        return Ok(Outcome::Skipped(
            "there is no cargo-deny; `cargo install cargo-deny --locked` installs it".into(),
        ));
    }
    passes("deny --offline check licenses bans sources")
}

/// Library, command and C library by the oldest Rust that the manifest promises.
fn msrv() -> Result<Outcome> {
    // As rustup names the toolchain: with three numbers.
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    let oldest = oldest.to_owned()
        + if oldest.matches('.').count() == 1 {
            ".0"
        } else {
            ""
        };
    let rustup = |words: &str| {
        let mut rustup = Command::new("rustup");
        rustup.current_dir(root()).args(["run", &oldest, "cargo"]);
        // Cargo tells its children which compiler to take.
        rustup.words(words).env_remove("CARGO").env_remove("RUSTC");
        rustup
    };
    if !succeeds(&mut rustup("--version")) {
        return Ok(Outcome::Skipped(format!(
            "Rust {oldest} is not here; `rustup toolchain install {oldest} --profile minimal` installs it"
        )));
    }
    command(&mut rustup("check --quiet -p ringbell-cli -p ringbell-c"))?;
    Ok(Outcome::Passed)
}

/// The crates without C++ for 64-bit Arm, where this Rust has its standard library: device code
/// would need a cross compiler, and nothing is linked.
fn aarch64() -> Result<Outcome> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told = output(
        Command::new(rustc)
            .words("--print target-libdir --target")
            .arg(ARM),
    );
    if !told.is_ok_and(|folder| Path::new(folder.trim()).is_dir()) {
        return Ok(Outcome::Skipped(format!(
            "this Rust has no standard library for {ARM}; `rustup target add {ARM}` installs it"
        )));
    }
    passes(&format!(
        "check --target {ARM} -p ringbell-nic-abi -p ringbell-gtlb -p ringbell-onc-engines -p ringbell-nic-core -p ringbell-routes"
    ))
}

/// The fuzz targets are a workspace of their own. Clippy sees their sources in `fuzz/replay`, and
/// the step `fuzzing` compiles them.
fn fuzz() -> Result<Outcome> {
    let lock = "metadata --manifest-path fuzz/Cargo.toml --locked --format-version 1";
    output(cargo().words(lock))?;
    passes("fmt --manifest-path fuzz/Cargo.toml --check")
}

/// Private items too: module docs link to their parts.
fn docs() -> Result<Outcome> {
    let mut doc = cargo();
    doc.words("doc --workspace --no-deps --document-private-items");
    let flags = "-D warnings -A rustdoc::private-intra-doc-links";
    command(doc.env("RUSTDOCFLAGS", flags))?;
    Ok(Outcome::Passed)
}
