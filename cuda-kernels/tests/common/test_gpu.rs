//! The GPU that a run of the tests asks for: one test-suite for all of them (ADR 25).
//!
//! `RINGBELL_TEST_GPU` is `emulated` (the default) or `cuda`: the libcuda that the loader finds, a
//! real driver or `libcuda`. A test that cannot hold on a real GPU says so with [`emulated_only`],
//! and why.
#![allow(unsafe_code)] // Loads kernels.
#![allow(dead_code, unreachable_pub)] // Each test uses a part.

use std::path::{Path, PathBuf};

#[cfg(feature = "cuda")]
use ringbell_cuda_kernels::cuda::{CudaConfig, CudaGpu};
use ringbell_cuda_kernels::{EmulatedGpu, EmulatedGpuConfig, Gpu};

/// Which GPU the run asks for.
const GPU: &str = "RINGBELL_TEST_GPU";
/// Folder of kernels for a machine without the sources: `NAME.ptx`, and for a real GPU
/// `NAME.fatbin`.
const KERNELS: &str = "RINGBELL_TEST_KERNELS";
/// Folder for files, where the one of the build does not exist.
const FILES: &str = "RINGBELL_TEST_TMPDIR";

/// Whether the run asks for the CUDA driver's GPU.
pub fn on_cuda() -> bool {
    match std::env::var(GPU).as_deref() {
        Err(_) | Ok("emulated" | "") => false,
        Ok("cuda") => true,
        Ok(other) => panic!("{GPU} is emulated or cuda, not `{other}`"),
    }
}

/// Whether to skip a test that means something on the emulated GPU alone. The step `cuda` of the
/// tests lists these with their reasons and checks their number, so that none comes in silently
/// (`xtask/src/suite.rs`).
pub fn emulated_only(why: &str) -> bool {
    let skip = on_cuda();
    if skip {
        println!("SKIPPED on CUDA: {why}");
    }
    skip
}

/// A small GPU for a test.
pub fn gpu() -> Gpu {
    if on_cuda() {
        return cuda();
    }
    emulated().into()
}

/// The emulated one, for what only it has.
pub fn emulated() -> EmulatedGpu {
    EmulatedGpu::new(EmulatedGpuConfig {
        memory_bytes: 32 << 20,
        ..EmulatedGpuConfig::default()
    })
    .expect("memory")
}

#[cfg(feature = "cuda")]
fn cuda() -> Gpu {
    match CudaGpu::open(CudaConfig::default()) {
        Ok(gpu) => gpu.into(),
        Err(e) => panic!("{GPU}=cuda, and there is no such GPU: {e}"),
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda() -> Gpu {
    panic!("{GPU}=cuda, and these tests were built without the feature `cuda`")
}

/// A folder for files of tests.
pub fn files() -> PathBuf {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR"));
    match std::env::var_os(FILES) {
        Some(named) => named.into(),
        None if built.is_dir() => built.to_owned(),
        None => std::env::temp_dir(),
    }
}

/// Kernels of tests: their names, and where the workspace has the sources, with the PTX beside
/// them. `cargo xtask` builds all of them for real GPUs.
const SOURCES: [(&str, &str); 6] = [
    // For the emulated GPU alone.
    ("bus_traffic", "cuda-kernels/tests/kernels/bus_traffic.cu"),
    ("selftest", "cuda-kernels/tests/kernels/selftest.cu"),
    ("count", "tests/engines_kernel/count.cu"),
    ("puts", "tests/one_sided/puts.cu"),
    ("tell", "tests/mailbox/tell.cu"),
    ("blocks", "tests/communicators/blocks.cu"),
];

/// Loads kernels of tests by their name.
pub fn load(gpu: &Gpu, name: &str) {
    let module = module(gpu, name);
    // SAFETY: the workspace's own kernels.
    unsafe { gpu.load_module(&module) }.unwrap_or_else(|e| panic!("{}: {e}", module.display()));
}

/// Kernels of tests for this GPU, as a user's module.
fn module(gpu: &Gpu, name: &str) -> PathBuf {
    // The mock driver's GPU runs what the emulated one does.
    let real = on_cuda() && !gpu.describe().contains("Mock GPU");
    let ending = if real { "fatbin" } else { "ptx" };
    if let Some(folder) = std::env::var_os(KERNELS) {
        return Path::new(&folder).join(name).with_extension(ending);
    }
    assert!(
        !real,
        "a real GPU needs {KERNELS}: the folder that `cargo xtask gpu` has put {name}.fatbin into"
    );
    module_of(name)
}

/// The PTX of kernels, beside their source.
pub fn module_of(name: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Tests of the root package have this module too.
    let inside = package.join("cuda-kernels").is_dir();
    let root = if inside {
        package
    } else {
        package.parent().expect("in a workspace")
    };
    let source = SOURCES.iter().find(|(n, _)| *n == name);
    let source = root.join(source.expect("a name of SOURCES").1);
    source.with_extension("ptx")
}
