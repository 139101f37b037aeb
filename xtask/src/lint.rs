//! What is checked without running anything: format, generated files, house rules, clippy,
//! documentation.

use std::process::Command;

use anyhow::Result;

use crate::steps::{command, Outcome, Step};
use crate::{gen, root, style};

/// In the order of how fast they answer.
pub(crate) const STEPS: [Step; 5] = [
    ("format", format),
    ("generated", generated),
    ("style", style::check),
    ("clippy", clippy),
    ("docs", docs),
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

/// Private items too: module texts link to their parts.
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
