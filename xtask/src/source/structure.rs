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

/// Cycles that are left: root file of the crate, folder of modules, number of modules in the cycle
/// (the folder's own included). Another one is refused, and so is a row without its cycle.
const LEFT: [(&str, &str, usize); 11] = [
    ("bindings/mpi/src/lib.rs", "", 7),
    ("bindings/mpi/src/lib.rs", "p2p", 3),
    ("nic-core/src/lib.rs", "card", 6),
    ("nic-core/src/lib.rs", "collective", 9),
    ("nic-core/src/lib.rs", "collective::direct", 6),
    ("nic-core/src/lib.rs", "command", 15),
    ("nic-core/src/lib.rs", "dma", 4),
    ("nic-core/src/lib.rs", "transport::local", 10),
    ("nic-core/src/lib.rs", "transport::local::one_sided", 3),
    ("roce/src/lib.rs", "qp", 4),
    ("nic-core/src/lib.rs", "transport::tcp", 4),
];

/// Fails on a breach.
pub(crate) fn check() -> Result<Outcome> {
    let (mut found, mut left) = (Vec::new(), LEFT.to_vec());
    let crates = crates()?;
    for file in &crates {
        let modules = modules(file)?;
        for cycle in graph::cycles(&graph::levels(&modules)) {
            let row = |l: &(&str, &str, usize)| {
                Path::new(l.0) == file && l.1 == cycle.folder && l.2 == cycle.modules.len()
            };
            match left.iter().position(row) {
                Some(known) => drop(left.swap_remove(known)),
                None => found.push(format!("{}: {cycle}", file.display())),
            }
        }
        let breaches = shapes(file, &modules).into_iter();
        found.extend(breaches.map(|b| format!("{}: {b}", file.display())));
    }
    found.extend(left.iter().map(|(file, folder, modules)| {
        format!("{file}: no cycle of {modules} modules in crate::{folder}; take its row out of LEFT, or correct it")
    }));
    if !found.is_empty() {
        bail!(
            "a module uses only floors below its own, and a type owns its parts:\n{}",
            found.join("\n")
        );
    }
    let (crates, modules) = (crates.len(), LEFT.iter().map(|l| l.2).sum::<usize>());
    println!(
        "no breach of structure in {crates} crates, but {} cycles that are left, of {modules} modules",
        LEFT.len()
    );
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
