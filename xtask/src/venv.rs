//! Tools from PyPI, in virtual environments below `target/`: no root, nothing outside the checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};
use fs_err as fs;

use crate::steps::{command, Words as _};
use crate::tools::{self, find};
use crate::workspace::{root, target};

/// The environment of tools that tests look for.
const SHARED: &str = "venv";

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
const CCCL: [&str; 2] = ["cuda-cccl==1.2.1", "--no-deps"];

/// Emulates a TCP peer and attacker in tests.
const SCAPY: [&str; 1] = ["scapy==2.8.0"];

/// nvcc: the one of the system, or else from PyPI.
///
/// # Errors
/// When there is none and it cannot be installed (no python3-venv, no network).
pub(crate) fn nvcc() -> Result<PathBuf> {
    if let Some(nvcc) = nvcc_at_hand() {
        return Ok(nvcc);
    }
    environment(SHARED, &NVCC)?;
    nvcc_at_hand().context("the PyPI packages are installed but hold no bin/nvcc")
}

/// nvcc, if it is there: the one of the system, or the one that [`nvcc`] has installed.
pub(crate) fn nvcc_at_hand() -> Option<PathBuf> {
    find("nvcc").or_else(|| package_file(&target().join(SHARED), "nvidia/cu13/bin/nvcc").ok())
}

/// The folder of NVIDIA's headers of NVSHMEM, from PyPI.
///
/// # Errors
/// As for [`nvcc`].
pub(crate) fn nvshmem() -> Result<PathBuf> {
    let header = "nvidia/nvshmem/include/nvshmem.h";
    let header = package_file(&environment(SHARED, &NVSHMEM)?, header)?;
    Ok(header.parent().context("a folder")?.to_owned())
}

/// Scapy, in the environment where `nic-core/tests/tcp_scapy.rs` looks for it.
///
/// # Errors
/// As for [`nvcc`].
pub(crate) fn scapy() -> Result<PathBuf> {
    environment(SHARED, &SCAPY)
}

/// CUB, Thrust and libcu++ as they ship, for the tests that compile with them.
///
/// # Errors
/// As for [`nvcc`].
pub(crate) fn cccl() -> Result<PathBuf> {
    environment(SHARED, &CCCL)
}

/// Python with what programs of this repository need (`bindings/processes.py`), to start what lies
/// in `built`.
pub(crate) fn within(python: &Path, built: &Path, set: &[(&str, String)]) -> Command {
    let mut c = Command::new(python);
    let driver = built.join("libringbell_libcuda.so");
    c.current_dir(root())
        .env("PYTHONPATH", root().join("bindings"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // In the order of what its programs print.
        .env("PYTHONUNBUFFERED", "1")
        .env("RINGBELL_BUILT", built)
        .env("RINGBELL_MOCK_LIBCUDA", driver)
        .envs(set.iter().cloned());
    c
}

/// A file of an installed package.
///
/// # Errors
/// There is none.
pub(crate) fn package_file(environment: &Path, name: &str) -> Result<PathBuf> {
    let pythons = std::fs::read_dir(environment.join("lib")).into_iter();
    let files = pythons.flatten().filter_map(|python| {
        let packages = python.ok()?.path().join("site-packages");
        Some(packages.join(name))
    });
    let mut found = files.filter(|f| f.is_file());
    found
        .next()
        .with_context(|| format!("{} has no {name}", environment.display()))
}

/// An environment below `target/` with these packages; its folder. What was installed last is
/// noted, so that nothing is asked of the index again.
///
/// # Errors
/// When Python's `venv` or the network is missing.
pub(crate) fn environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let venv = target().join(name);
    let first = packages.first().and_then(|p| p.split("==").next());
    let done = venv.join(format!("installed-{}", first.unwrap_or_default()));
    let wanted = packages.join(" ");
    if !std::fs::read_to_string(&done).is_ok_and(|text| text == wanted) {
        install(&venv, packages)?;
        fs::write(&done, wanted)?;
    }
    Ok(venv)
}

/// Makes the environment, unless it is there, and installs packages into it.
///
/// # Errors
/// When Python's `venv` or the network is missing.
pub(crate) fn install(venv: &Path, packages: &[&str]) -> Result<()> {
    fs::create_dir_all(target())?;
    let lock = fs::File::create(target().join("venv.lock"))?;
    // Steps beside each other may want the same environment. The lock ends with the file.
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    // A Python without `ensurepip` leaves an environment without pip behind, which is none.
    if !venv.join("bin/pip").is_file() {
        if let Some(why) = tools::no_venv() {
            bail!("{why}");
        }
        let _ = std::fs::remove_dir_all(venv);
        let made = command(Command::new("python3").words("-m venv").arg(venv));
        if made.is_err() {
            let _ = std::fs::remove_dir_all(venv);
        }
        made.context("cannot make a Python environment; Debian has it in python3-venv")?;
    }
    let mut pip = Command::new(venv.join("bin/python3"));
    pip.words("-m pip install --quiet --disable-pip-version-check");
    command(pip.args(packages)).context("pip cannot install the packages; is there a network?")
}
