//! Compilation of the device code: by clang, compared with the PTX in the repository; and by nvcc,
//! for real GPUs (`cuda-kernels/compile.py`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::steps::{command, Outcome, Words as _};
use crate::summary::SKIPPED_TEST;
use crate::workspace::{built, root};
use crate::{bindings, gen, venv, workspace};

/// Compiles the SDK's kernels, those of examples and the tutorial, and programs of NVSHMEM and GIN.
/// The report is in `target/kernels`.
pub(crate) fn compile() -> Result<Outcome> {
    gen::compare()?;
    let nvcc = match venv::nvcc() {
        Ok(nvcc) => nvcc,
        Err(error) => return Ok(Outcome::Skipped(format!("no nvcc: {error:#}"))),
    };
    let mut compile = venv::within(Path::new("python3"), &built(), &[]);
    compile.arg(root().join("cuda-kernels/compile.py"));
    compile.arg(&nvcc);
    match headers() {
        Ok(folders) => drop(compile.args(folders)),
        Err(why) => println!("{SKIPPED_TEST}NVSHMEM's programs with NVIDIA's headers: {why:#}"),
    }
    command(&mut compile)?;
    // Whole programs that nvcc compiles with NVIDIA's headers run on the emulated GPU, with our
    // runtime. The selection is that of the build: another would write other libraries under the
    // names of those that tests load at that time.
    let mut tests = workspace::cargo();
    tests.words("test --workspace --test programs -- programs_by_nvcc");
    command(tests.env("RINGBELL_NVCC", nvcc))?;
    Ok(Outcome::Passed)
}

/// Folders of NVIDIA's headers of NVSHMEM and NCCL.
fn headers() -> Result<[PathBuf; 2]> {
    let library = bindings::nccl_library()?;
    let nccl = library
        .ancestors()
        .nth(2)
        .context("a library in a folder")?;
    Ok([venv::nvshmem()?, nccl.join("include")])
}
