//! The GPU that a run of the tests asks for: one test-suite for all of them (ADR 25).
//!
//! `RINGBELL_TEST_GPU` is `emulated` (the default) or `cuda`: the libcuda that the loader finds, a real driver or
//! `libcuda`. A test that cannot hold on a real GPU says so with [`emulated_only`], and why.
#![allow(unsafe_code)] // Loads kernels.
#![allow(dead_code, unreachable_pub)] // Each test uses a part.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "cuda")]
use ringbell_cuda_kernels::cuda::{CudaConfig, CudaGpu};
use ringbell_cuda_kernels::{EmulatedGpu, EmulatedGpuConfig, Gpu};

/// Which GPU the run asks for.
const GPU: &str = "RINGBELL_TEST_GPU";
/// Folder of kernels that were built before, for a machine without compilers: `NAME.so`, `NAME.fatbin`.
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

/// Whether to skip a test that means something on the emulated GPU alone. `cargo xtask test` lists these with their
/// reasons and checks their number, so that none comes in silently (`xtask/src/suite.rs`).
pub fn emulated_only(why: &str) -> bool {
    let skip = on_cuda();
    if skip {
        println!("SKIPPED on CUDA: {why}");
    }
    skip
}

/// Whether to skip a test that builds kernels with flags of its own: not where they were all built before.
pub fn prebuilt_only() -> bool {
    let skip = std::env::var_os(KERNELS).is_some();
    if skip {
        println!(
            "SKIPPED: it builds kernels by itself, and {KERNELS} has those that were built before"
        );
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

/// Kernels of tests: their names, and where the workspace has the sources. `cargo xtask` builds all of them for real GPUs.
const SOURCES: [(&str, &str); 7] = [
    // For the emulated GPU alone.
    ("bus_traffic", "cuda-kernels/tests/kernels/bus_traffic.cu"),
    // For the emulated GPU alone.
    ("ptx_simple", "cuda-kernels/tests/kernels/ptx_simple.cu"),
    ("selftest", "cuda-kernels/tests/kernels/selftest.cu"),
    ("count", "tests/engines_kernel/count.cu"),
    ("puts", "tests/one_sided/puts.cu"),
    ("tell", "tests/mailbox/tell.cu"),
    ("blocks", "tests/communicators/blocks.cu"),
];

/// Loads kernels of tests by their name.
pub fn load(gpu: &Gpu, name: &str) {
    let module = module(gpu, name, &[]);
    // SAFETY: the workspace's own kernels.
    unsafe { gpu.load_module(&module) }.unwrap_or_else(|e| panic!("{}: {e}", module.display()));
}

/// Kernels of tests for this GPU, as a user's module; `flags` are g++'s, for the emulated one.
pub fn module(gpu: &Gpu, name: &str, flags: &[&str]) -> PathBuf {
    // The mock driver's GPU runs what the emulated one does.
    let real = on_cuda() && !gpu.describe().contains("Mock GPU");
    let file = format!("{name}.{}", if real { "fatbin" } else { "so" });
    match std::env::var_os(KERNELS) {
        Some(folder) if flags.is_empty() => Path::new(&folder).join(file),
        _ if real => panic!(
            "a real GPU needs {KERNELS}: the folder that `cargo xtask gpu` has put {file} into"
        ),
        _ => build(name, flags),
    }
}

/// By g++, unless that was done since the sources were written: every test is a process, and each wants them.
fn build(name: &str, flags: &[&str]) -> PathBuf {
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
    let include = root.join("cuda-kernels/include");
    let out = files().join(format!("{name}{}.so", flags.concat()));
    let written = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    let headers = std::fs::read_dir(&include).expect("part of the workspace");
    let headers = headers.filter_map(|e| written(&e.ok()?.path()));
    let newest = headers.chain(written(&source)).max();
    if written(&out).is_some_and(|built| newest.is_some_and(|newest| newest < built)) {
        return out;
    }
    // Tests run side by side, as processes or as threads: none may load a file that another is still writing.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let own = out.with_extension(format!("{}.so", std::process::id()));
    let run = Command::new("g++")
        .args([
            "-std=c++20",
            "-O1",
            "-fPIC",
            "-shared",
            "-fvisibility=hidden",
        ])
        .args([
            "-fno-exceptions",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unknown-pragmas",
            "-x",
            "c++",
        ])
        .args(flags)
        .arg("-I")
        .arg(&include)
        .arg(&source)
        .arg("-o")
        .arg(&own)
        .output()
        .expect("g++ is what builds this crate");
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    std::fs::rename(&own, &out).expect("moved to its place");
    out
}
