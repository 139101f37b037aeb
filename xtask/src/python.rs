//! The Python package: its tests against the workspace's build, and its wheel.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use fs_err as fs;
use fs_err::os::unix::fs::symlink;

use crate::steps::{command, command_within, succeeds, Outcome, Words as _};
use crate::workspace::{root, target};
use crate::{pages, venv, workspace};

/// The model, the runner, and the judge of the types.
const TESTS: [&str; 4] = [
    "numpy==2.4.6",
    "ml_dtypes==0.6.0",
    "pytest==9.2.0",
    "mypy==2.4.1",
];

/// Builds the wheel.
const MATURIN: [&str; 1] = ["maturin==1.16.0"];

/// PyTorch, with what its tests need. PyPI has it with CUDA's libraries, 5 GB.
const TORCH: [&str; 3] = ["torch==2.15.0", TESTS[0], TESTS[2]];

/// Longest time of all tests of the package.
const LIMIT: Duration = Duration::from_secs(300);

/// Longest time of the tests with PyTorch, and of a comparison with Gloo.
const TORCH_LIMIT: Duration = Duration::from_secs(1200);

fn sources() -> PathBuf {
    root().join("bindings/python")
}

/// The interpreter of an environment with these packages.
fn python(environment: &str, packages: &[&str]) -> Result<PathBuf> {
    Ok(venv::environment(environment, packages)?.join("bin/python3"))
}

/// pytest on a folder of tests.
fn pytest(python: &Path, tests: &str) -> Command {
    let mut c = Command::new(python);
    c.words("-m pytest -q -p no:cacheprovider")
        .arg(sources().join(tests))
        .env(
            "RINGBELL_MOCK_LIBCUDA",
            workspace::built().join("libringbell_libcuda.so"),
        )
        .env("PYTHONDONTWRITEBYTECODE", "1");
    c
}

/// As a step of the tests.
pub(crate) fn step() -> Result<Outcome> {
    let recent = "import sys; sys.exit(sys.version_info < (3, 11))";
    if !succeeds(Command::new("python3").args(["-c", recent])) {
        return Ok(Outcome::Skipped("no Python from 3.11 on".into()));
    }
    let python = match python("venv-python", &TESTS) {
        Ok(python) => python,
        Err(error) => return Ok(Outcome::Skipped(format!("no pytest: {error:#}"))),
    };
    workspace::build()?;
    let mut tests = pytest(&python, "tests");
    command_within(tests.env("PYTHONPATH", package()?), LIMIT)?;
    Ok(Outcome::Passed)
}

/// A folder with the package as a wheel would install it: its Python files and the workspace's
/// build of the native module.
fn package() -> Result<PathBuf> {
    let folder = target().join("python");
    let inside = folder.join("ringbell");
    // Links to files that are gone would be imported.
    let _ = fs::remove_dir_all(&inside);
    fs::create_dir_all(&inside)?;
    for entry in fs::read_dir(sources().join("python/ringbell"))? {
        let file = entry?;
        symlink(file.path(), inside.join(file.file_name()))?;
    }
    let module = workspace::built().join("lib_ringbell.so");
    ensure!(module.is_file(), "{} was not built", module.display());
    symlink(module, inside.join("_ringbell.abi3.so"))?;
    Ok(folder)
}

/// Builds the wheel, with the command in it.
fn built_wheel() -> Result<PathBuf> {
    let python = python("venv-maturin", &MATURIN)?;
    let wheels = target().join("wheels");
    let _ = fs::remove_dir_all(&wheels);
    // maturin's build backend starts its program by name.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let bin = python.parent().map(Path::to_path_buf);
    let path = std::env::join_paths(bin.into_iter().chain(std::env::split_paths(&path)))
        .context("a folder whose name has a colon")?;
    command(
        Command::new(&python)
            .env("PATH", path)
            .words("-m pip wheel --no-deps --no-build-isolation --config-settings=profile=dist --wheel-dir")
            .arg(&wheels)
            .arg(sources()),
    )?;
    let built = fs::read_dir(&wheels)?.next();
    Ok(built.context("pip has built no wheel")??.path())
}

/// Builds the wheel, and runs what docs/python.md says in an environment with nothing else.
pub(crate) fn wheel() -> Result<()> {
    let wheel = built_wheel()?;
    let empty = target().join("venv-empty");
    let _ = fs::remove_dir_all(&empty);
    let path = wheel.to_str().context("a folder whose name is no UTF-8")?;
    venv::install(&empty, &[path, TESTS[0]])?;
    let file = empty.join("ten_lines.py");
    fs::write(&file, pages::program("docs/python.md", "python")?)?;
    let limit = Duration::from_secs(60);
    let mut run = Command::new(empty.join("bin/ringbell-run"));
    command_within(run.args(["-R", "2"]).arg(&file), limit)?;
    // The command finds the interpreter beside it, as in an environment that is in use.
    let mut run = Command::new(empty.join("bin/ringbell"));
    run.args(["run", "-R", "2", "--"])
        .arg(empty.join("bin/python3"));
    command_within(run.arg(&file), limit)?;
    println!("built and tried {}", wheel.display());
    Ok(())
}

/// The backend of PyTorch: its tests, and its times beside Gloo and the C API, with the wheel in an
/// environment with PyTorch.
pub(crate) fn torch() -> Result<()> {
    let wheel = built_wheel()?;
    let python = python("venv-torch", &TORCH)?;
    let install = "-m pip install --quiet --no-deps --force-reinstall --disable-pip-version-check";
    command(Command::new(&python).words(install).arg(&wheel))?;
    command(workspace::cargo().words("build --package ringbell-libcuda"))?;
    command_within(&mut pytest(&python, "torch_tests"), TORCH_LIMIT)?;
    let library = workspace::dist(&["ringbell-c"])?.join("libringbell.so");
    let compared = [
        ("overhead.py", "2"),
        ("beside_gloo.py", "2"),
        ("beside_gloo.py", "4"),
        ("steps.py", "2"),
    ];
    for (program, ranks) in compared {
        let mut run = Command::new(&python);
        run.words("-m torch.distributed.run --standalone --nproc-per-node")
            .arg(ranks)
            .arg(sources().join("torch_tests").join(program))
            .env("RINGBELL_LIBRARY", &library)
            .env("OMP_NUM_THREADS", "1");
        command_within(&mut run, TORCH_LIMIT)?;
    }
    Ok(())
}
