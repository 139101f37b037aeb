//! Programs of NVSHMEM and of NCCL's device API: the same files compile by nvcc with our headers,
//! and unchanged with NVIDIA's own. The wheels of NVIDIA's libraries are read as headers; nothing
//! of them is linked or run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::steps::{at_once, Words as _};
use crate::summary::SKIPPED_TEST;
use crate::workspace::{cu_files, root};
use crate::{bindings, venv};

/// Where the programs are.
pub(super) const FOLDERS: [&str; 2] = ["examples/23_nvshmem", "cli/tests/shmem"];

/// Compiles each with our headers, and with NVIDIA's where they can be installed, so many at a
/// time. Output goes to `out`.
pub(super) fn compile(nvcc: &Path, out: &Path, at_a_time: usize) -> Result<()> {
    let mut programs = Vec::new();
    for folder in FOLDERS {
        programs.extend(cu_files(&root().join(folder))?);
    }
    let include = root().join("cuda-kernels/include");
    let mut headers = vec![("our headers", vec![include.join("shmem"), include])];
    match theirs() {
        Ok(folders) => headers.push(("NVIDIA's headers", folders)),
        Err(why) => println!("{SKIPPED_TEST}NVSHMEM's programs with NVIDIA's headers: {why:#}"),
    }
    let each = headers
        .iter()
        .flat_map(|h| programs.iter().map(move |p| (p, h)));
    let jobs: Vec<_> = each.collect();
    at_once(at_a_time, &jobs, |(program, (whose, folders))| {
        one(nvcc, program, folders, out).with_context(|| format!("with {whose}"))
    })?;
    for (whose, _) in &headers {
        println!(
            "{} program(s) of NVSHMEM and GIN compiled with {whose}",
            programs.len()
        );
    }
    Ok(())
}

/// Folders of NVIDIA's headers.
fn theirs() -> Result<Vec<PathBuf>> {
    let library = bindings::nccl_library()?;
    let nccl = library
        .ancestors()
        .nth(2)
        .context("a library in a folder")?;
    Ok(vec![venv::nvshmem()?, nccl.join("include")])
}

/// To PTX; any warning is an error.
fn one(nvcc: &Path, program: &Path, folders: &[PathBuf], out: &Path) -> Result<()> {
    let mut command = Command::new(nvcc);
    command.words("--ptx -rdc=true -arch=sm_90 -std=c++17 -Werror all-warnings");
    for folder in folders {
        command.arg("-I").arg(folder);
    }
    let name = program.file_stem().unwrap_or_default();
    command.arg(program).arg("-o");
    let ended = command.arg(out.join(name).with_extension("ptx")).output();
    let ended = ended.with_context(|| format!("cannot start {}", nvcc.display()))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        bail!("nvcc failed on {}:\n{said}", program.display());
    }
    Ok(())
}
