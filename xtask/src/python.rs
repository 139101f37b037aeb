//! The Python package: its tests against the workspace's build, and its wheel.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::steps::{command, command_within, Outcome};
use crate::{root, target, test, venv};

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

/// An environment with these packages, and its interpreter.
fn environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let dir = target().join(name);
    // What was installed last, so that nothing is asked of the index again.
    let (done, wanted) = (dir.join("installed"), packages.join(" "));
    if fs::read_to_string(&done).ok().as_ref() != Some(&wanted) {
        venv::install(&dir, packages)?;
        fs::write(&done, wanted).with_context(|| format!("cannot write {}", done.display()))?;
    }
    Ok(dir.join("bin/python3"))
}

/// As a step of the tests.
pub(crate) fn step() -> Result<Outcome> {
    let recent = "import sys; sys.exit(sys.version_info < (3, 11))";
    let found = Command::new("python3").args(["-c", recent]).status();
    if !found.is_ok_and(|s| s.success()) {
        return Ok(Outcome::Skipped("no Python from 3.11 on".into()));
    }
    let python = match environment("venv-python", &TESTS) {
        Ok(python) => python,
        Err(error) => return Ok(Outcome::Skipped(format!("no pytest: {error:#}"))),
    };
    test::build()?;
    let mut tests = Command::new(python);
    tests
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(sources().join("tests"))
        .env("PYTHONPATH", package()?)
        .env("RINGBELL_MOCK_LIBCUDA", mock_driver())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command_within(&mut tests, LIMIT)?;
    Ok(Outcome::Passed)
}

/// The mock driver as it was built.
fn mock_driver() -> PathBuf {
    test::built().join("libringbell_libcuda.so")
}

/// A folder with the package as a wheel would install it: its Python files and the workspace's build of the native module.
fn package() -> Result<PathBuf> {
    let folder = target().join("python");
    let inside = folder.join("ringbell");
    // Links to files that are gone would be imported.
    let _ = fs::remove_dir_all(&inside);
    fs::create_dir_all(&inside).with_context(|| format!("cannot make {}", inside.display()))?;
    let link = |from: &Path, name: &Path| {
        symlink(from, inside.join(name)).with_context(|| format!("cannot link {}", from.display()))
    };
    let files = sources().join("python/ringbell");
    for entry in fs::read_dir(&files).with_context(|| format!("no {}", files.display()))? {
        let file = entry?;
        link(&file.path(), Path::new(&file.file_name()))?;
    }
    let module = test::built().join("lib_ringbell.so");
    ensure!(module.is_file(), "{} was not built", module.display());
    link(&module, Path::new("_ringbell.abi3.so"))?;
    Ok(folder)
}

/// Builds the wheel, with the command in it.
fn built_wheel() -> Result<PathBuf> {
    let python = environment("venv-maturin", &MATURIN)?;
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
            .args(["-m", "pip", "wheel", "--no-deps", "--no-build-isolation"])
            .arg("--config-settings=profile=dist")
            .arg("--wheel-dir")
            .arg(&wheels)
            .arg(sources()),
    )?;
    let built = fs::read_dir(&wheels)?.next();
    Ok(built.context("pip has built no wheel")??.path())
}

/// Writes the first program of a page to a file.
fn first_program(page: &str, file: &Path) -> Result<()> {
    let text = fs::read_to_string(root().join(page));
    let text = text.with_context(|| format!("cannot read {page}"))?;
    let program = text.split("```python\n").nth(1);
    let program = program.and_then(|p| p.split("```").next());
    fs::write(
        file,
        program.with_context(|| format!("{page} has no program"))?,
    )?;
    Ok(())
}

/// Builds the wheel, and runs what docs/python.md says in an environment with nothing else.
pub(crate) fn wheel() -> Result<()> {
    let wheel = built_wheel()?;
    let empty = target().join("venv-empty");
    let _ = fs::remove_dir_all(&empty);
    let path = wheel.to_str().context("a folder whose name is no UTF-8")?;
    venv::install(&empty, &[path, TESTS[0]])?;
    let file = empty.join("ten_lines.py");
    first_program("docs/python.md", &file)?;
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

/// The backend of PyTorch: its tests, and its times beside Gloo and the C API, with the wheel in an environment with PyTorch.
pub(crate) fn torch() -> Result<()> {
    let wheel = built_wheel()?;
    let python = environment("venv-torch", &TORCH)?;
    command(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--no-deps"])
            .args(["--force-reinstall", "--disable-pip-version-check"])
            .arg(&wheel),
    )?;
    command(test::cargo().args(["build", "--package", "ringbell-libcuda"]))?;
    let tests = sources().join("torch_tests");
    let mut run = Command::new(&python);
    run.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(&tests)
        .env("RINGBELL_MOCK_LIBCUDA", mock_driver())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command_within(&mut run, TORCH_LIMIT)?;
    command(test::cargo().args(["build", "--profile", "dist", "--package", "ringbell-c"]))?;
    let library = target().join("dist/libringbell.so");
    let compared = [
        ("overhead.py", "2"),
        ("beside_gloo.py", "2"),
        ("beside_gloo.py", "4"),
        ("steps.py", "2"),
    ];
    for (program, ranks) in compared {
        let mut run = Command::new(&python);
        run.args(["-m", "torch.distributed.run", "--standalone"])
            .args(["--nproc-per-node", ranks])
            .arg(tests.join(program))
            .env("RINGBELL_LIBRARY", &library)
            .env("OMP_NUM_THREADS", "1");
        command_within(&mut run, TORCH_LIMIT)?;
    }
    Ok(())
}
