//! Device code by clang: from CUDA sources to PTX, with headers of our own in place of NVIDIA's.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::args::Args;
use crate::clang::find;
use crate::{Exit, Problem};

/// Compiles all sources to one PTX file; returns the names of its kernels.
///
/// # Errors
/// When clang refuses the sources, which it says itself, or when they have no kernel.
pub(super) fn compile(args: &Args, headers: &Path, out: &Path) -> Result<Vec<String>> {
    let kernels = device(args, headers, out)?;
    if kernels.is_empty() {
        return Err(Problem::new(
            Exit::Failed,
            format!("{} has no kernel", out.display()),
            "write `extern \"C\" __global__ void name(...) {...}`; a template is compiled where something launches it",
        )
        .into());
    }
    Ok(kernels)
}

/// The same of a program, which may have no kernel.
///
/// # Errors
/// When clang refuses the sources.
pub(super) fn device(args: &Args, headers: &Path, out: &Path) -> Result<Vec<String>> {
    let mut command = command(args, headers)?;
    command
        .args(["--cuda-device-only", "-S"])
        .arg("--cuda-feature=+ptx83")
        .arg("-o")
        .arg(out);
    succeed(
        &mut command,
        "correct the errors above; docs/emulated-gpu.md has what compiles",
    )?;
    let text = std::fs::read_to_string(out)
        .with_context(|| format!("clang has not written {}", out.display()))?;
    Ok(kernels(&text))
}

/// clang as the linker of C++ programs.
///
/// # Errors
/// As [`find`].
pub(super) fn linker() -> Result<Command> {
    let mut linker = Command::new(find()?);
    linker.args(["--driver-mode=g++", "-pthread"]);
    Ok(linker)
}

/// Compiles all sources of a program to one object file of the host, with this fat binary in it.
///
/// # Errors
/// When clang refuses the sources.
pub(super) fn host(args: &Args, headers: &Path, fatbin: &Path, out: &Path) -> Result<()> {
    let mut command = command(args, headers)?;
    command
        .args(["--cuda-host-only", "-c", "-fPIE"])
        .args(["-Xclang", "-fcuda-include-gpubinary", "-Xclang"])
        .arg(fatbin)
        .arg("-o")
        .arg(out);
    succeed(&mut command, "correct the errors above")
}

/// clang with what both sides of a program are compiled with, and its sources.
fn command(args: &Args, headers: &Path) -> Result<Command> {
    let mut command = Command::new(find()?);
    command
        .args(["-x", "cuda"])
        // Nothing of NVIDIA's toolkit, even where it is installed.
        .args(["-nocudainc", "-nocudalib", "-Wno-unknown-cuda-version"])
        // Overloads of `(...)`, which libraries of templates declare and never call.
        .args(["-Xclang", "-fcuda-allow-variadic-functions"])
        .arg(format!("--cuda-gpu-arch=sm_{}", newest(&args.arch)))
        .arg("-gline-tables-only")
        // `<<<>>>` as CUDA has compiled it since 9.2.
        .args(["-Xclang", "-target-sdk-version=12.3"])
        .arg(format!("-std={}", args.std))
        .arg(format!("-O{}", args.optimise))
        .arg("-isystem")
        .arg(headers.join("cuda"))
        // NVSHMEM's and NCCL's names, which an installation must not put before those of NVIDIA.
        .arg("-isystem")
        .arg(headers.join("shmem"))
        .arg("-isystem")
        .arg(headers)
        .args(["-include", "cuda_runtime.h"]);
    for folder in &args.include {
        command.arg("-I").arg(folder);
    }
    for define in &args.define {
        command.arg(format!("-D{define}"));
    }
    command.args(&args.flags);
    match args.sources.as_slice() {
        [one] => command.arg(one),
        // A module is one translation unit.
        several => command.arg(unit(several, headers, "module.cu")?),
    };
    Ok(command)
}

/// PTX is for one architecture and those after it; 90 is the newest whose features clang 19 knows
/// by this version of PTX.
pub(super) fn newest(arch: &[u32]) -> u32 {
    arch.iter().copied().max().unwrap_or(90).clamp(70, 90)
}

/// Names of a PTX file's kernels, but those by which the host calls NVSHMEM.
fn kernels(ptx: &str) -> Vec<String> {
    let entries = ptx.lines().filter_map(|l| l.split_once(".entry "));
    let names = entries.filter_map(|(_, rest)| rest.split('(').next());
    let names = names.filter(|name| !name.starts_with("_ZN2rb5shmem"));
    names.map(str::to_owned).collect()
}

/// A file that includes all sources.
fn unit(sources: &[PathBuf], folder: &Path, name: &str) -> Result<PathBuf> {
    let mut unit = String::new();
    for source in sources {
        let whole = source
            .canonicalize()
            .with_context(|| format!("cannot resolve {}", source.display()))?;
        let text = whole
            .to_string_lossy()
            .replace('\\', "\\\\")
            .replace('"', "\\\"");
        unit.push_str(&format!("#include \"{text}\"\n"));
    }
    let file = folder.join(name);
    std::fs::write(&file, unit).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// Runs a compiler; its messages go to the user.
pub(super) fn succeed(command: &mut Command, advice: &str) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| {
        Problem::new(Exit::Environment, format!("cannot start {program}"), advice)
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Problem::new(
        Exit::Failed,
        format!("{program} refused the source ({status})"),
        "its messages are above",
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_the_entries_of_ptx() {
        let ptx = "\t// .globl\ta\n.visible .entry a(\n\t.param .u64 p\n)\n{\n}\n.func b()\n{\n}\n.visible .entry _Z1cv() // @_Z1cv\n{}\n.entry _ZN2rb5shmemL1qEv()\n{\n}\n";
        assert_eq!(kernels(ptx), ["a", "_Z1cv"]);
    }

    #[test]
    fn ptx_is_for_an_architecture_that_clang_knows() {
        assert_eq!(newest(&[80, 90]), 90);
        assert_eq!(newest(&[80]), 80);
        assert_eq!(newest(&[120]), 90);
        assert_eq!(newest(&[]), 90);
    }
}
