//! The rules of structure in the layered crates: no module cycle, no structure with too many
//! fields, no type whose `impl` blocks stand in too many files.

use std::path::Path;

use anyhow::{bail, Result};

use super::{graph, modules, shape, Module};
use crate::steps::Outcome;

/// The crates whose structure is checked.
const LAYERED: [&str; 4] = ["nic-core", "gtlb", "cuda-kernels", "onc-engines"];

/// Fails on a breach.
pub(crate) fn check() -> Result<Outcome> {
    let mut found = Vec::new();
    for folder in LAYERED {
        let breaches = breaches(&load(folder)?);
        found.extend(breaches.iter().map(|b| format!("{folder}: {b}")));
    }
    if !found.is_empty() {
        bail!(
            "a module uses only floors below its own, and a type owns its parts:\n{}",
            found.join("\n")
        );
    }
    println!("no breach of structure in {}", LAYERED.join(", "));
    Ok(Outcome::Passed)
}

/// Prints the floors of each layered crate, and its breaches.
pub(crate) fn report() -> Result<()> {
    for folder in LAYERED {
        let modules = load(folder)?;
        println!("{folder}");
        if let Some(top) = graph::levels(&modules).get(&Vec::new()) {
            for (floor, modules) in graph::floors(top).iter().enumerate() {
                println!("  floor {floor}: {}", modules.join(" "));
            }
        }
        for breach in breaches(&modules) {
            println!("  {breach}");
        }
    }
    Ok(())
}

fn load(folder: &str) -> Result<Vec<Module>> {
    modules(&Path::new(folder).join("src/lib.rs"))
}

fn breaches(modules: &[Module]) -> Vec<String> {
    let mut found = graph::cycles(&graph::levels(modules));
    found.extend(shape::breaches(modules));
    found
}
