//! Compiles the device code with nvcc, so that what is tested under g++ does not rot for real GPUs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::root;
use crate::steps::{command, Outcome};
use crate::venv;

/// Architectures of the fat binaries: A100 and H100.
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90"];

/// Compiles every `cuda-kernels/kernels/*.cu`, `examples/*/*.cu` and the bare ABI header; any warning is an error.
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
    for (i, block) in blocks(&read_tutorial()?).into_iter().enumerate() {
        let file = out.join(format!("tutorial_{i}.cu"));
        std::fs::write(&file, block).with_context(|| format!("cannot write {}", file.display()))?;
        sources.push(file);
    }
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

/// The SDK's kernels, and those of the examples.
fn sources() -> Result<Vec<PathBuf>> {
    let mut folders = vec![root().join("cuda-kernels/kernels")];
    let examples = root().join("examples");
    folders.extend(entries(&examples)?.into_iter().filter(|p| p.is_dir()));
    let mut sources = Vec::new();
    for folder in folders {
        let files = entries(&folder)?.into_iter();
        sources.extend(files.filter(|p| p.extension().is_some_and(|e| e == "cu")));
    }
    sources.sort();
    Ok(sources)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = || format!("cannot read {}", dir.display());
    let entries = std::fs::read_dir(dir).with_context(unreadable)?;
    entries
        .map(|e| e.map(|e| e.path()).with_context(unreadable))
        .collect()
}

fn read_tutorial() -> Result<String> {
    let file = root().join("docs/tutorial.md");
    std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
}

/// The code between "```cuda" and "```".
fn blocks(markdown: &str) -> Vec<String> {
    markdown
        .split("```cuda\n")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("\n```")?.0.to_string() + "\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a reader copies out of the tutorial compiles for the emulated GPU. (nvcc reads the same
    /// blocks in `cargo xtask kernels`.)
    #[test]
    fn kernels_of_the_tutorial_compile_with_gpp() {
        let tutorial = read_tutorial().expect("docs/tutorial.md");
        let blocks = blocks(&tutorial);
        assert!(!blocks.is_empty());
        let dir = root().join("target/tutorial");
        std::fs::create_dir_all(&dir).expect("a folder");
        for (i, block) in blocks.iter().enumerate() {
            let file = dir.join(format!("block_{i}.cu"));
            std::fs::write(&file, block).expect("written");
            let out = Command::new("g++")
                .args([
                    "-std=c++20",
                    "-Wall",
                    "-Werror",
                    "-Wno-unknown-pragmas",
                    "-fsyntax-only",
                    "-x",
                    "c++",
                    "-I",
                ])
                .arg(root().join("cuda-kernels/include"))
                .arg(&file)
                .output()
                .expect("g++ starts");
            assert!(
                out.status.success(),
                "{}",
                String::from_utf8_lossy(&out.stderr)
            );
        }
    }

    #[test]
    fn blocks_are_cut_at_their_fences() {
        assert_eq!(
            blocks("a\n```cuda\nx\ny\n```\nb\n```sh\nz\n```\n"),
            ["x\ny\n"]
        );
        assert!(blocks("```cuda\nno end").is_empty());
    }
}
