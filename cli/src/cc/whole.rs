//! Whole programs, with `main` and kernels: both sides by clang, the kernels' PTX inside.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::args::{output, Args};
use super::clang::{self, succeed};
use crate::gpu::DRIVER;
use crate::library::Library;
use crate::{stdio, Exit, Problem};

/// The library of programs that include `ringbell.hpp`.
const LIBRARY: &str = "libringbell.so";

/// What to do when the linker fails.
const LINKING: &str = "its messages are above; libraries of the program's own go behind `--`";

/// The runtime library that programs contain.
const RUNTIME: Library = Library {
    package: "ringbell-libcudart",
    names: &["libringbell_cudart.a"],
};

/// Whether a source with a `main` is a program of CUDA's runtime: one of `ringbell.hpp` launches by
/// itself.
pub(super) fn is_one(text: &str) -> bool {
    let of_runtime = [
        "<<<",
        "cuda_runtime",
        "cudaLaunch",
        "nvshmem.h",
        "nccl_device.h",
    ];
    !text.contains("ringbell.hpp") && of_runtime.iter().any(|w| text.contains(w))
}

/// Compiles a program of `ringbell.hpp`, or one without kernels, and links it so that it finds the
/// library at its present place.
pub(super) fn of_ringbell(args: &Args, headers: &Path) -> Result<PathBuf> {
    let (object, kernels) = object(args, headers)?;
    let library = find_library(args.library.as_deref())?;
    let folder = library.parent().unwrap_or(Path::new("/"));
    let output = output(args, "");
    let mut link = clang::linker()?;
    link.arg(object)
        .arg("-o")
        .arg(&output)
        .args(&args.flags)
        .arg("-L")
        .arg(folder)
        .arg("-lringbell")
        .arg(format!("-Wl,-rpath,{}", folder.display()));
    succeed(&mut link, LINKING)?;
    let with = match kernels.is_empty() {
        true => String::new(),
        false => format!(" with {}", kernels.join(", ")),
    };
    stdio::line(format_args!(
        "{}: program{with}, linked with {}",
        output.display(),
        library.display()
    ))?;
    Ok(output)
}

/// Compiles and links a CUDA program. It finds the emulated GPU's driver where it is now, unless
/// the loader finds another `libcuda.so.1`.
pub(super) fn of_cuda(args: &Args, headers: &Path) -> Result<PathBuf> {
    let (object, kernels) = object(args, headers)?;
    let runtime = RUNTIME.find(args.runtime.as_deref())?;
    // Beside a named runtime, or built with the one that is built.
    let driver = match args.runtime {
        Some(_) => runtime.clone(),
        None => DRIVER.find(None)?,
    };
    let folder = driver.parent().unwrap_or(Path::new("/"));
    let output = output(args, "");
    let mut link = clang::linker()?;
    link.arg(&object)
        .arg(&runtime)
        .args(["-ldl", "-lm"])
        .arg(format!("-Wl,-rpath,{}", folder.display()));
    if calls_library(&object)? {
        let library = find_library(args.library.as_deref())?;
        let folder = library.parent().unwrap_or(Path::new("/"));
        link.arg("-L").arg(folder).arg("-lringbell");
        link.arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    link.arg("-o").arg(&output);
    succeed(&mut link, LINKING)?;
    stdio::line(format_args!(
        "{}: program, with {}",
        output.display(),
        kernels.join(", ")
    ))?;
    Ok(output)
}

/// The object file of a program, with a fat binary of its kernels, and their names.
fn object(args: &Args, headers: &Path) -> Result<(PathBuf, Vec<String>)> {
    let at = |name: &str| headers.join(name);
    let kernels = clang::device(args, headers, &at("program.ptx"))?;
    let ptx = std::fs::read_to_string(at("program.ptx"))
        .with_context(|| format!("cannot read {}", at("program.ptx").display()))?;
    let fatbin = ringbell_fatbin::of_ptx(&[(clang::newest(&args.arch), &ptx)]);
    std::fs::write(at("program.fatbin"), fatbin)
        .with_context(|| format!("cannot write {}", at("program.fatbin").display()))?;
    clang::host(args, headers, &at("program.fatbin"), &at("program.o"))?;
    Ok((at("program.o"), kernels))
}

/// Whether an object calls the C API, as programs of NVSHMEM and of NCCL's device API do: one of
/// its names opens a NIC. A text that looks like one only links the library in vain.
fn calls_library(object: &Path) -> Result<bool> {
    let bytes = std::fs::read(object)
        .with_context(|| format!("the compiler has not written {}", object.display()))?;
    Ok(bytes.windows(8).any(|w| w == b"\0rb_nic_"))
}

/// The named library, or the one that came with this command.
fn find_library(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        if named.is_file() && named.file_name().is_some_and(|n| n == LIBRARY) {
            return named
                .canonicalize()
                .with_context(|| format!("cannot resolve {}", named.display()));
        }
        return Err(Problem::new(
            Exit::Usage,
            format!("{} is not a file named {LIBRARY}", named.display()),
            "give the path of the library in --library or RINGBELL_LIBRARY",
        )
        .into());
    }
    let library = Library {
        package: "ringbell-c",
        names: &[LIBRARY],
    };
    library
        .find(None)
        .context("the source has a main, and needs a library to link it with")
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
        assert!(is_one(
            "#include <nvshmem.h>\nint main() { nvshmem_init(); }"
        ));
        assert!(!is_one("int main() {}"));
    }
}
