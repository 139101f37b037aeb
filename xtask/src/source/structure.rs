//! The rules of structure: no cycle among the modules of a crate, and in the layered crates no
//! structure with too many fields and no type whose `impl` blocks stand in too many files.

use std::path::{Path, PathBuf};

use anyhow::{bail, Context as _, Result};

use super::graph;
use super::{modules, shape, Module};
use crate::steps::{output, Outcome, Words as _};
use crate::workspace::cargo;

/// The crates whose types are checked.
const LAYERED: [&str; 6] = [
    "nic-core",
    "net",
    "roce",
    "gtlb",
    "cuda-kernels",
    "onc-engines",
];

/// Fails on a breach.
pub(crate) fn check() -> Result<Outcome> {
    let mut found = Vec::new();
    let crates = crates()?;
    for file in &crates {
        let modules = modules(file)?;
        let cycles = graph::cycles(&graph::levels(&modules)).into_iter();
        let breaches = cycles.map(|c| c.to_string()).chain(shapes(file, &modules));
        found.extend(breaches.map(|b| format!("{}: {b}", file.display())));
    }
    if !found.is_empty() {
        bail!(
            "a module uses only floors below its own, and a type owns its parts:\n{}",
            found.join("\n")
        );
    }
    println!("no breach of structure in {} crates", crates.len());
    Ok(Outcome::Passed)
}

/// Prints the floors of each crate, and its breaches.
pub(crate) fn report() -> Result<()> {
    for file in crates()? {
        let modules = modules(&file)?;
        println!("{}", file.display());
        let levels = graph::levels(&modules);
        if let Some(top) = levels.get(&Vec::new()) {
            for (floor, modules) in graph::floors(top).iter().enumerate() {
                println!("  floor {floor}: {}", modules.join(" "));
            }
        }
        let cycles = graph::cycles(&levels).into_iter();
        for breach in cycles.map(|c| c.to_string()).chain(shapes(&file, &modules)) {
            println!("  {breach}");
        }
    }
    Ok(())
}

/// Types that are too wide, of a layered crate.
fn shapes(file: &Path, modules: &[Module]) -> Vec<String> {
    match LAYERED.iter().any(|folder| file.starts_with(folder)) {
        true => shape::breaches(modules),
        false => Vec::new(),
    }
}

/// The root files of the workspace's libraries and programs, relative to the repository.
fn crates() -> Result<Vec<PathBuf>> {
    let told = output(cargo().words("metadata --format-version=1 --no-deps --offline"))?;
    let told: serde_json::Value = serde_json::from_str(&told).context("cargo's metadata")?;
    let packages = told["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|p| p["targets"].as_array().into_iter().flatten());
    let root = crate::workspace::root();
    let mut files = Vec::new();
    for target in targets {
        let kinds = target["kind"].as_array().into_iter().flatten();
        let is_product = kinds.filter_map(|k| k.as_str()).any(|kind| {
            matches!(
                kind,
                "lib" | "rlib" | "cdylib" | "staticlib" | "proc-macro" | "bin"
            )
        });
        let file = target["src_path"].as_str().unwrap_or_default();
        if let (true, Ok(file)) = (is_product, Path::new(file).strip_prefix(&root)) {
            files.push(file.to_owned());
        }
    }
    files.sort();
    Ok(files)
}
