//! Generated files: the contract for other languages.
//!
//! The tables in `nic-abi` are the source; a file here renders each target. The generator links the
//! crate, so its output is what the NIC was compiled with. Only the ports of the hardware's blocks
//! are read from their sources.

mod cuda;
mod ports;
mod ptx;
mod registers;
mod systemverilog;
mod tables;
#[cfg(test)]
mod tests;

use anyhow::{bail, Context, Result};
use fs_err as fs;

use crate::workspace::root;

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
        fs::write(&file, text)?;
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
        fs::write(&file.ptx, text)?;
        println!("wrote     {shown}");
    }
    Ok(())
}

/// Compiles every kernel that stands as PTX, and compares; nothing is written. Another version of
/// clang writes other text.
///
/// # Errors
/// The files that differ, or what clang says.
pub(crate) fn compare() -> Result<()> {
    let Some(clang) = ptx::clang() else {
        println!("SKIPPED: no clang 19, so no PTX is compared with its source. Debian: apt-get install clang-19");
        return Ok(());
    };
    let files = ptx::files()?;
    let count = files.len();
    let mut differ = Vec::new();
    for file in files {
        let old = std::fs::read_to_string(&file.ptx).unwrap_or_default();
        if file.make(&clang)? != old {
            differ.push(file.ptx.display().to_string());
        }
    }
    if !differ.is_empty() {
        bail!(
            "{} makes other text of the sources of {}; run `cargo xtask gen` with clang 19",
            clang.display(),
            differ.join(", ")
        );
    }
    println!("{count} files of PTX are what clang makes of their sources");
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
