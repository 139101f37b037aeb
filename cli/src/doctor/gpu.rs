//! Checks of the GPU, its driver, and the compilers.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use ringbell::gpu::{ChosenGpu, EmulatedGpuConfig, GpuChoice};
use ringbell::parts::cuda_kernels::cuda::CudaError;

use super::check::{Check, Verdict};

/// The GPU that kernels run on, opened as a NIC would open it, so that the report matches later
/// runs. For a real one also how the NIC reaches its memory.
pub(super) fn gpu() -> Vec<Check> {
    let small = EmulatedGpuConfig {
        memory_bytes: 2 << 20,
        ..EmulatedGpuConfig::default()
    };
    match GpuChoice::Auto.open(&small) {
        Ok(chosen) => of(chosen),
        Err(e) => {
            let found = match std::error::Error::source(&e) {
                Some(cause) => cause.to_string(),
                None => "a GPU that cannot be opened".into(),
            };
            vec![Check::new(
                "GPU",
                Verdict::Missing,
                found,
                "none",
                e.to_string(),
            )]
        }
    }
}

#[cfg(feature = "cuda")]
fn real(cuda: &ringbell::parts::cuda_kernels::cuda::CudaGpu) -> Vec<Check> {
    // The way to memory is known once there is some.
    let some = cuda.alloc(1 << 16);
    let device = cuda.device();
    let (major, minor) = device.capability;
    let name = format!(
        "{} (GPU {}, sm_{major}{minor})",
        device.name, device.ordinal
    );
    let way = cuda.memory_path();
    // The rest of its description: memory has its own line.
    let rest = cuda.describe().replace(&format!("; memory: {way}"), "");
    let mut checks = vec![Check::new(
        "GPU",
        Verdict::Ok,
        name,
        "the GPU",
        format!(
            "kernels run on it, by a driver that was loaded at run time: {rest} (not measured on real GPUs yet)"
        ),
    )];
    checks.push(match (some, way.split_once(", because ")) {
        (Err(e), _) => Check::new(
            "GPU memory",
            Verdict::Missing,
            "none can be had",
            "none",
            e.to_string(),
        ),
        (Ok(_), None) => Check::new(
            "GPU memory",
            Verdict::Ok,
            "the CPU can reach it",
            way,
            "stores go there at once, long reads by the copy engine; RINGBELL_GPU_MEMORY chooses: auto, gdrcopy, dmabuf, copy, slots",
        ),
        (Ok(_), Some((used, why))) if why.ends_with("asked for") => {
            Check::new("GPU memory", Verdict::Ok, "not looked for", used, why)
        }
        (Ok(_), Some((used, why))) => Check::new(
            "GPU memory",
            Verdict::Instead,
            "not mapped for the CPU",
            used,
            format!("{why}; RINGBELL_GPU_MEMORY chooses: auto, gdrcopy, dmabuf, copy, slots"),
        ),
    });
    checks.extend(super::rules::checks(cuda));
    checks
}

fn of(chosen: ChosenGpu) -> Vec<Check> {
    #[cfg(feature = "cuda")]
    if let Some(cuda) = &chosen.cuda {
        return real(cuda);
    }
    vec![emulated(chosen)]
}

fn emulated(chosen: ChosenGpu) -> Check {
    let emulated = "emulated GPU";
    match chosen.instead_of {
        None => Check::new(
            "GPU",
            Verdict::Ok,
            "not looked for",
            emulated,
            "it was asked for by --gpu or RINGBELL_GPU",
        ),
        Some(e @ (CudaError::NoDriver | CudaError::NotBuilt)) => Check::new(
            "GPU",
            Verdict::Instead,
            e.to_string(),
            emulated,
            "the same kernels, as PTX, run on host threads; no GPU is needed",
        ),
        Some(e) => Check::new(
            "GPU",
            Verdict::Instead,
            "driver, but no usable GPU",
            emulated,
            e.to_string(),
        ),
    }
}

/// nvcc in its usual places: CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda; with its version.
pub(super) fn find_nvcc() -> Option<(PathBuf, String)> {
    let mut places: Vec<PathBuf> = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(home) = std::env::var_os(variable) {
            places.push(PathBuf::from(home).join("bin/nvcc"));
        }
    }
    places.push("nvcc".into());
    places.push("/usr/local/cuda/bin/nvcc".into());
    places.into_iter().find_map(|place| {
        let version = first_line_with(&place, "release")?;
        Some((place, version))
    })
}

/// nvcc, for fat binaries.
pub(super) fn nvcc() -> Check {
    if let Some((place, version)) = find_nvcc() {
        return Check::new(
            "nvcc",
            Verdict::Ok,
            version,
            place.display().to_string(),
            "`ringbell cc` also makes fat binaries for real GPUs",
        );
    }
    Check::new(
        "nvcc",
        Verdict::Instead,
        "not on PATH, in CUDA_HOME or /usr/local/cuda",
        "PTX only",
        "kernels are built for the emulated GPU; `cargo xtask kernels` brings nvcc from PyPI to check them",
    )
}

/// The compiler of kernels.
pub(super) fn clang() -> Check {
    let found = crate::clang::find().and_then(|clang| {
        let version = first_line_with(&clang, "version");
        let version = version.context("it has no version")?;
        Ok((clang.display().to_string(), version))
    });
    match found {
        Ok((place, version)) => Check::new(
            "clang",
            Verdict::Ok,
            version,
            place,
            "`ringbell cc` builds kernels of your own, as PTX",
        ),
        Err(why) => Check::new(
            "clang",
            Verdict::Instead,
            why.to_string(),
            "the kernels built into this program",
            "`ringbell cc` cannot build kernels of your own; apt-get install clang-19",
        ),
    }
}

/// The first line that contains `word` of what `program --version` prints.
fn first_line_with(program: &PathBuf, word: &str) -> Option<String> {
    let out = Command::new(program).arg("--version").output().ok()?;
    if !out.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find(|l| l.contains(word))?;
    Some(line.trim().to_string())
}
