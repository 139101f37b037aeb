//! Whole CUDA programs, with `main` and `<<<>>>`: both sides by clang, and the runtime library of ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{clang, output, succeed, Args, COMPILER};
use crate::gpu::DRIVER;
use crate::library::Library;
use crate::stdio;

/// The runtime library that programs contain.
const RUNTIME: Library = Library {
    package: "ringbell-libcudart",
    names: &["libringbell_cudart.a"],
};

/// Whether a source with a `main` is a program of CUDA's runtime: one of `ringbell.hpp` launches by itself.
pub(super) fn is_one(text: &str) -> bool {
    let of_runtime = ["<<<", "cuda_runtime", "cudaLaunch"];
    !text.contains("ringbell.hpp") && of_runtime.iter().any(|w| text.contains(w))
}

/// Compiles and links one. It finds the emulated GPU's driver where it is now, unless the loader finds another
/// `libcuda.so.1`.
pub(super) fn program(args: &Args, headers: &Path) -> Result<PathBuf> {
    let at = |name: &str| headers.join(name);
    let kernels = clang::compile(args, headers, &at("program.ptx"))?;
    let ptx = std::fs::read_to_string(at("program.ptx"))
        .with_context(|| format!("cannot read {}", at("program.ptx").display()))?;
    let fatbin = ringbell_fatbin::of_ptx(&[(clang::newest(&args.arch), &ptx)]);
    std::fs::write(at("program.fatbin"), fatbin)
        .with_context(|| format!("cannot write {}", at("program.fatbin").display()))?;
    clang::host(args, headers, &at("program.fatbin"), &at("program.o"))?;
    let runtime = RUNTIME.find(args.runtime.as_deref())?;
    // Beside a named runtime, or built with the one that is built.
    let driver = match args.runtime {
        Some(_) => runtime.clone(),
        None => DRIVER.find(None)?,
    };
    let folder = driver.parent().unwrap_or(Path::new("/"));
    let output = output(args, "");
    let mut link = Command::new(&args.cxx);
    link.arg("-pthread")
        .arg(at("program.o"))
        .arg(&runtime)
        .args(["-ldl", "-lm"])
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .arg("-o")
        .arg(&output);
    succeed(&mut link, COMPILER)?;
    stdio::line(format_args!(
        "{}: program, with {}",
        output.display(),
        kernels.join(", ")
    ))?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_the_runtime_is_told_from_one_of_ours() {
        assert!(is_one(
            "__global__ void k() {}\nint main() { k<<<1, 1>>>(); }"
        ));
        assert!(is_one("#include <cuda_runtime.h>\nint main() {}"));
        assert!(!is_one(
            "#include \"ringbell.hpp\"\nint main() { k<<<1, 1>>>(); }"
        ));
        assert!(is_one("int main() { cudaLaunchCooperativeKernel(); }"));
        assert!(!is_one("int main() {}"));
    }
}
