//! Compiles the device code with nvcc, so that what is tested under g++ does not rot for real GPUs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::root;
use crate::steps::{command, Outcome};
use crate::venv;

/// Architectures of the fat binaries: A100 and H100.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];

/// Compiles every `cuda-kernels/kernels/*.cu` and the bare ABI header; any warning is an error.
pub(crate) fn compile() -> Result<Outcome> {
    let nvcc = match venv::nvcc() {
        Ok(nvcc) => nvcc,
        Err(error) => return Ok(Outcome::Skipped(format!("no nvcc: {error:#}"))),
    };
    let out = root().join("target/kernels");
    std::fs::create_dir_all(&out).with_context(|| format!("cannot create {}", out.display()))?;
    let abi = out.join("abi_header.cu");
    std::fs::write(&abi, "#include \"ringbell_abi.h\"\n__global__ void abi(const char **text) { *text = rb_status_text(RB_STATUS_OK); }\n")
        .with_context(|| format!("cannot write {}", abi.display()))?;
    let mut sources = sources()?;
    sources.push(abi);
    for source in &sources {
        let name = source.file_stem().unwrap_or_default();
        let mut nvcc = Command::new(&nvcc);
        nvcc.args(["--fatbin", "-std=c++17", "-Werror", "all-warnings", "-I"])
            .arg(root().join("cuda-kernels/include"));
        for arch in ARCHITECTURES {
            let number = arch.trim_start_matches("sm_");
            nvcc.arg(format!("-gencode=arch=compute_{number},code={arch}"));
        }
        command(
            nvcc.arg(source)
                .arg("-o")
                .arg(out.join(name).with_extension("fatbin")),
        )?;
    }
    println!(
        "{} file(s) compiled for {}",
        sources.len(),
        ARCHITECTURES.join(" and ")
    );
    Ok(Outcome::Passed)
}

fn sources() -> Result<Vec<PathBuf>> {
    let dir = root().join("cuda-kernels/kernels");
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let mut sources = Vec::new();
    for entry in
        std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?
    {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "cu") {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}
