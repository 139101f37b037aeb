//! Tools from PyPI, in a virtual environment below `target/`: no root, nothing outside the checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::steps::command;
use crate::target;
use crate::tools::{self, find};

/// nvcc and its dependencies, pinned together: other combinations do not compile.
const NVCC: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
];

/// Headers of NVSHMEM, to which ours are compared. Its libraries come with them and are not used.
const NVSHMEM: [&str; 1] = ["nvidia-nvshmem-cu13==3.8.0"];

/// The headers of CUB, Thrust and libcu++. What the package depends on is for programs in Python.
const CCCL: [&str; 2] = ["--no-deps", "cuda-cccl==1.2.1"];

/// Emulates a TCP peer and attacker in tests.
const SCAPY: [&str; 1] = ["scapy==2.8.0"];

/// nvcc: the one of the system, or else from PyPI.
///
/// # Errors
/// When there is none and it cannot be installed (no python3-venv, no network).
pub(crate) fn nvcc() -> Result<PathBuf> {
    if let Some(nvcc) = find("nvcc") {
        return Ok(nvcc);
    }
    let dir = target().join("venv");
    if let Some(nvcc) = nvcc_in(&dir) {
        return Ok(nvcc);
    }
    install(&dir, &NVCC)?;
    nvcc_in(&dir).context("the PyPI packages are installed but hold no bin/nvcc")
}

/// nvcc, if it is there: the one of the system, or the one that [`nvcc`] has installed.
pub(crate) fn nvcc_at_hand() -> Option<PathBuf> {
    find("nvcc").or_else(|| nvcc_in(&target().join("venv")))
}

/// The folder of NVIDIA's headers of NVSHMEM, from PyPI.
///
/// # Errors
/// As for [`nvcc`].
pub(crate) fn nvshmem() -> Result<PathBuf> {
    let dir = target().join("venv");
    let found = || {
        let mut folders = python_packages(&dir).map(|p| p.join("nvidia/nvshmem/include"));
        folders.find(|f| f.join("nvshmem.h").is_file())
    };
    if let Some(folder) = found() {
        return Ok(folder);
    }
    install(&dir, &NVSHMEM)?;
    found().with_context(|| format!("{} has no nvshmem.h", NVSHMEM[0]))
}

/// Scapy, in the environment where `nic-core/tests/tcp_scapy.rs` looks for it.
///
/// # Errors
/// As for [`nvcc`].
pub(crate) fn scapy() -> Result<()> {
    let dir = target().join("venv");
    if python_packages(&dir).any(|packages| packages.join("scapy").is_dir()) {
        return Ok(());
    }
    install(&dir, &SCAPY)
}

/// CUB, Thrust and libcu++ as they ship, for the tests that compile with them.
///
/// # Errors
/// As for [`nvcc`].
pub(crate) fn cccl() -> Result<()> {
    let dir = target().join("venv");
    if python_packages(&dir).any(|packages| packages.join("cuda/cccl/headers").is_dir()) {
        return Ok(());
    }
    install(&dir, &CCCL)
}

/// The folders of packages of an environment; none while it is not there.
fn python_packages(venv: &Path) -> impl Iterator<Item = PathBuf> {
    let pythons = std::fs::read_dir(venv.join("lib")).into_iter().flatten();
    pythons.filter_map(|python| Some(python.ok()?.path().join("site-packages")))
}

fn nvcc_in(venv: &Path) -> Option<PathBuf> {
    python_packages(venv)
        .map(|packages| packages.join("nvidia/cu13/bin/nvcc"))
        .find(|nvcc| nvcc.is_file())
}

/// Makes the environment, unless it is there, and installs packages into it.
///
/// # Errors
/// When Python's `venv` or the network is missing.
pub(crate) fn install(venv: &Path, packages: &[&str]) -> Result<()> {
    std::fs::create_dir_all(target())?;
    let lock = std::fs::File::create(target().join("venv.lock"))?;
    // Steps beside each other may want the same environment. The lock ends with the file.
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    let python = venv.join("bin/python3");
    // A Python without `ensurepip` leaves an environment without pip behind, which is none.
    if !venv.join("bin/pip").is_file() {
        if let Some(why) = tools::no_venv() {
            bail!("{why}");
        }
        let _ = std::fs::remove_dir_all(venv);
        let made = command(Command::new("python3").args(["-m", "venv"]).arg(venv));
        if made.is_err() {
            let _ = std::fs::remove_dir_all(venv);
        }
        made.context("cannot make a Python environment; Debian has it in python3-venv")?;
    }
    command(
        Command::new(python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .args(packages),
    )
    .context("pip cannot install the packages; is there a network?")
}
