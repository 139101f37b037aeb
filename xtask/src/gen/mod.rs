//! Generated files: the contract for other languages.
//!
//! The tables in `nic-abi` are the source; a file here renders each target. The generator links the crate, so its output is what the
//! NIC was compiled with. Only the ports of the hardware's blocks are read from their sources.

mod cuda;
mod ports;
mod ptx;
mod registers;
mod systemverilog;
#[cfg(test)]
mod tests;

use anyhow::{bail, Context, Result};

use crate::root;

/// Path below the repository root, and the file's text.
type Output = (&'static str, String);

/// Every generated file.
fn outputs() -> Vec<Output> {
    vec![
        ("cuda-kernels/include/ringbell_abi.h", cuda::header()),
        ("hw/rtl/ringbell_abi_pkg.sv", systemverilog::package()),
        ("docs/registers.md", registers::reference()),
        ("docs/hardware-ports.md", ports::reference()),
    ]
}

/// Writes every generated file that differs.
pub(crate) fn write() -> Result<()> {
    for (path, text) in outputs() {
        let file = root().join(path);
        if std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
            println!("unchanged {path}");
            continue;
        }
        if let Some(dir) = file.parent() {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot create {}", dir.display()))?;
        }
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("wrote     {path}");
    }
    write_ptx()
}

/// Makes the kernels' PTX whose sources have changed.
fn write_ptx() -> Result<()> {
    for file in ptx::files()? {
        let shown = file.ptx.strip_prefix(root()).unwrap_or(&file.ptx).display();
        if file.is_fresh()? {
            println!("unchanged {shown}");
            continue;
        }
        let clang = ptx::clang().with_context(|| {
            format!("{shown} is stale, and clang 19 is not installed: apt-get install clang-19")
        })?;
        let text = file.make(&clang)?;
        std::fs::write(&file.ptx, text)
            .with_context(|| format!("cannot write {}", file.ptx.display()))?;
        println!("wrote     {shown}");
    }
    Ok(())
}

/// Fails when a generated file differs from the tables.
pub(crate) fn check() -> Result<()> {
    let mut stale: Vec<String> = stale().into_iter().map(str::to_owned).collect();
    for file in ptx::files()? {
        if !file.is_fresh()? {
            stale.push(file.ptx.display().to_string());
        }
    }
    if !stale.is_empty() {
        bail!(
            "stale: {}; run `cargo xtask gen` and commit the result",
            stale.join(", ")
        );
    }
    println!("generated files are up to date");
    Ok(())
}

/// The generated files that are missing or differ.
fn stale() -> Vec<&'static str> {
    outputs()
        .into_iter()
        .filter(|(path, text)| {
            std::fs::read_to_string(root().join(path)).map_or(true, |old| old != *text)
        })
        .map(|(path, _)| path)
        .collect()
}

/// A doc comment as one line: rows carry the comment's lines with their leading spaces.
fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}
