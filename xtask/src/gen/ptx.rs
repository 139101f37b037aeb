//! Kernels as PTX, by clang: so that neither a compiler nor CUDA is needed to run them.
//!
//! Each file begins with a hash of what it is made of. A file whose hash is another is made anew where clang is at hand;
//! elsewhere it is as stale as it looks.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::root;

/// Folders whose kernels stand as PTX, and where: in a folder of their own, or beside the source.
const SOURCES: [(&str, Option<&str>); 2] = [
    ("cuda-kernels/kernels", Some("cuda-kernels/ptx")),
    ("examples/21_ring_all_gather", None),
];

/// The compiler's arguments beside those that every file has. Loads of 128 bits with an order are of PTX 8.3 and `sm_70`;
/// results equal those of other compilers where nothing is contracted.
const FLAGS: [&str; 11] = [
    "-x",
    "cuda",
    "--cuda-device-only",
    "-S",
    "-nocudainc",
    "-nocudalib",
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "--cuda-gpu-arch=sm_90",
    "--cuda-feature=+ptx83",
];

/// A kernel's source and its PTX.
pub(super) struct File {
    source: PathBuf,
    pub(super) ptx: PathBuf,
}

/// All of them.
pub(super) fn files() -> Result<Vec<File>> {
    let mut all = Vec::new();
    for (folder, out) in SOURCES {
        let folder = root().join(folder);
        let entries = std::fs::read_dir(&folder)
            .with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let source = entry?.path();
            if source.extension().is_some_and(|e| e == "cu") {
                let out = out.map_or(folder.clone(), |o| root().join(o));
                let name = source.file_name().context("a file without a name")?;
                let ptx = out.join(name).with_extension("ptx");
                all.push(File { source, ptx });
            }
        }
    }
    all.sort_by(|a, b| a.source.cmp(&b.source));
    Ok(all)
}

/// The first line: what the file is made of. Any header may be part of it.
fn head(source: &Path) -> Result<String> {
    let mut hash = DefaultHasher::new();
    FLAGS.hash(&mut hash);
    let include = root().join("cuda-kernels/include");
    let beside = source.parent().context("a file in a folder")?;
    let mut inputs = vec![source.to_owned()];
    let mut folders = vec![include, beside.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            let header = |e: &std::ffi::OsStr| e == "h" || e == "cuh";
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(header) {
                inputs.push(path);
            }
        }
    }
    inputs.sort();
    for input in inputs {
        let bytes = std::fs::read(&input).with_context(|| input.display().to_string())?;
        bytes.hash(&mut hash);
    }
    Ok(format!(
        "// Made by `cargo xtask gen` of {:016x}.",
        hash.finish()
    ))
}

impl File {
    /// Whether its hash is that of its sources.
    pub(super) fn is_fresh(&self) -> Result<bool> {
        let old = std::fs::read_to_string(&self.ptx).unwrap_or_default();
        Ok(old.lines().next() == Some(head(&self.source)?.as_str()))
    }

    /// What clang makes of the source.
    pub(super) fn make(&self, clang: &Path) -> Result<String> {
        let shown = self.source.display();
        let run = Command::new(clang)
            .args(FLAGS)
            .arg("-isystem")
            .arg(root().join("cuda-kernels/include/cuda"))
            .arg("-I")
            .arg(root().join("cuda-kernels/include"))
            .arg(&self.source)
            .args(["-o", "-"])
            .output()
            .with_context(|| format!("cannot start {}", clang.display()))?;
        if !run.status.success() {
            bail!("{shown}:\n{}", String::from_utf8_lossy(&run.stderr));
        }
        let text = String::from_utf8(run.stdout).with_context(|| shown.to_string())?;
        Ok(head(&self.source)? + "\n" + &without_notes(&text))
    }
}

/// The text without comments and indents, a third of it.
fn without_notes(text: &str) -> String {
    let mut short = String::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if !line.is_empty() {
            let _ = writeln!(short, "{}", line.replace('\t', " "));
        }
    }
    short
}

/// clang 19 or newer: `CLANG`, or what the path has.
pub(super) fn clang() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("CLANG") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut names = (19..30).map(|n| format!("clang-{n}"));
    names.find_map(|name| {
        let mut dirs = std::env::split_paths(&path);
        dirs.find_map(|dir| Some(dir.join(&name)).filter(|p| p.is_file()))
    })
}
