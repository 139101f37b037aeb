//! `cargo xtask`: tasks of developers and CI.
//!
//! `cargo xtask ci` is `cargo xtask test --all`: exactly what CI runs.

mod bare;
mod counts;
mod fuzz;
mod gen;
mod gpu;
mod hw;
mod install;
mod kernels;
mod lanes;
mod lint;
mod mpi;
mod mutants;
mod nccl;
mod pages;
mod peers;
mod python;
#[allow(dead_code)] // The program's own file; only its sizes are used.
#[path = "../../cli/src/report/sizes.rs"]
mod sizes;
mod source;
mod steps;
mod style;
mod suite;
mod summary;
mod test;
mod tools;
mod unprivileged;
mod venv;
mod verbs;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use anyhow::{bail, Result};
use clap::{Parser, Subcommand};

/// Ringbell's developer tasks
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write the CUDA header, the SystemVerilog package and the register reference from `nic-abi`
    Gen {
        /// Write nothing; fail when a generated file is stale
        #[arg(long)]
        check: bool,
        /// Write nothing; compile all kernels by clang, and fail when the PTX in the repository
        /// differs
        #[arg(long, conflicts_with = "check")]
        compare: bool,
    },
    /// Format, generated files, house rules, clippy and documentation; no warning passes
    Lint,
    /// The tests of the workspace and its documentation, and the examples; with `--all` everything
    /// that CI runs
    Test {
        /// Also lints, proofs, fuzzing, kernels with nvcc, MPI, NCCL, verbs, Python; as root
        /// installs Debian packages that they need
        #[arg(long)]
        all: bool,
        /// Passed on to the test runner, such as a part of a test's name; then only the workspace's
        /// tests run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        filter: Vec<String>,
    },
    /// Build by the profile `dist`, and install command, library, headers and pkg-config file below
    /// a prefix
    Install(install::Args),
    /// Compile the device code with nvcc from PyPI for five architectures, and report what each
    /// kernel takes of a GPU
    Kernels,
    /// The tests that can depend on rights, as a user without any; as root only
    User,
    /// Instructions of the paths of small operations, under callgrind, against the recorded counts
    Counts {
        /// Record what is counted now in benches/micro/counts.json, and the lists of files in
        /// docs/architecture.md
        #[arg(long, conflicts_with = "files")]
        update: bool,
        /// Print the workspace's files that this path crosses
        #[arg(long, value_name = "PATH")]
        files: Option<String>,
    },
    /// The fuzz targets, each for 30 s; guided by coverage where nightly and cargo-fuzz are
    Fuzz(fuzz::Args),
    /// Plant faults in a sample of places, and see whether a test fails for each (cargo-mutants);
    /// not part of CI
    Mutants(mutants::Args),
    /// All-reduce beside Open MPI and MPICH (installed from PyPI), with ratios and pictures; not
    /// part of CI
    Peers(peers::Args),
    /// Programs of MPI over `ringbell mpi`: C and Fortran by Debian's MPICH and Open MPI, Python by
    /// mpi4py
    Mpi(mpi::Args),
    /// NCCL's network plug-in: C drivers that call it as NCCL does, between processes
    Nccl(nccl::Args),
    /// Debian's programs of libibverbs over `ringbell verbs`: perftest, ibverbs-utils, the suite of
    /// pyverbs
    Verbs(verbs::Args),
    /// Build the Python package's wheel by the profile `dist` into target/wheels, and try it in an
    /// empty environment
    Wheel,
    /// The backend of PyTorch: its tests and all-reduce beside Gloo, with the wheel and PyTorch
    /// from PyPI (5 GB); not part of CI
    Torch,
    /// The hardware: lint, proofs, simulations beside the Rust models, estimates; installs what it
    /// needs
    Hw(hw::Args),
    /// Build a bundle that checks and measures Ringbell on a machine with a GPU and without Rust
    Gpu(gpu::Args),
    /// Run such a bundle (its script does)
    #[command(hide = true)]
    GpuRun(gpu::RunArgs),
    /// Product lines by folder: code that users compile, without comments, tests, mocks and benches
    Lines,
    /// The module graph of the layered crates, lowest floor first; its cycles, and types that are
    /// too wide
    Graph,
    /// What CI runs: `test --all`
    Ci,
    /// One step of `test --all`, as the runner starts it
    #[command(hide = true)]
    Step { name: String },
}

fn main() -> ExitCode {
    match run(Args::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a task; false when a step of it failed and has printed why.
fn run(task: Task) -> Result<bool> {
    match task {
        Task::Gen { compare: true, .. } => gen::compare().map(|()| true),
        Task::Gen { check: true, .. } => gen::check().map(|()| true),
        Task::Gen { .. } => gen::write().map(|()| true),
        Task::Lint => lanes::run(&lint::STEPS),
        Task::Test { all: true, filter } if !filter.is_empty() => {
            bail!(
                "--all runs everything: `{}` selects nothing",
                filter.join(" ")
            )
        }
        Task::Ci | Task::Test { all: true, .. } => {
            tools::report();
            lanes::run(&test::all())
        }
        Task::Test { filter, .. } if filter.is_empty() => {
            tools::report();
            let passed = lanes::run(&test::STEPS)?;
            println!("`cargo xtask test --all` runs also: {}", test::left_out());
            Ok(passed)
        }
        Task::Test { filter, .. } => test::filtered(&filter),
        Task::Step { name } => lanes::one(lanes::find(&test::all(), &name)?),
        Task::Install(args) => install::run(&args).map(|()| true),
        Task::Mpi(args) => mpi::run(&args),
        Task::Nccl(args) => nccl::run(&args),
        Task::Verbs(args) => verbs::run(&args),
        Task::Wheel => python::wheel().map(|()| true),
        Task::Torch => python::torch().map(|()| true),
        Task::Hw(args) => hw::run(&args),
        Task::Kernels => alone("kernels"),
        Task::User => alone("user"),
        Task::Counts {
            files: Some(path), ..
        } => counts::print_files(&path).map(|()| true),
        Task::Counts { update: true, .. } => counts::update().map(|()| true),
        Task::Counts { .. } => alone("counts"),
        Task::Fuzz(args) => fuzz::run(&args).map(|()| true),
        Task::Mutants(args) => mutants::run(&args).map(|()| true),
        Task::Peers(args) => peers::run(&args).map(|()| true),
        Task::Gpu(args) => gpu::main(&args),
        Task::GpuRun(args) => gpu::run_bundle(&args),
        Task::Lines => source::lines::report().map(|()| true),
        Task::Graph => source::report().map(|()| true),
    }
}

/// Runs one step of the tests, without a log.
fn alone(name: &str) -> Result<bool> {
    steps::told(name, (lanes::find(&test::all(), name)?.run)()?)
}

/// The repository's root, independent of cargo's working directory.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // xtask/ lies in the root, so there is a parent; without one the package's own folder would do.
    here.parent().unwrap_or(here).to_path_buf()
}

/// What lies in a folder, in order.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs_err::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths: Vec<_> = entries.collect::<Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// Cargo's target folder, which CARGO_TARGET_DIR or cargo's configuration may have moved out of the
/// root.
fn target() -> PathBuf {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    let told = || target_of(&mut test::cargo()).unwrap_or_else(|| root().join("target"));
    TARGET.get_or_init(told).clone()
}

/// The target folder that this cargo would use.
fn target_of(cargo: &mut Command) -> Option<PathBuf> {
    let asked = cargo.args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
    let out = asked.output().ok()?;
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
    Some(told["target_directory"].as_str()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_target_folder_is_the_one_that_cargo_uses() {
        let mut cargo = test::cargo();
        let moved = target_of(cargo.env("CARGO_TARGET_DIR", "/moved/target"));
        assert_eq!(moved.as_deref(), Some(Path::new("/moved/target")));
        let mut own = test::cargo();
        let unmoved = target_of(own.env_remove("CARGO_TARGET_DIR"));
        assert!(unmoved.is_some_and(|folder| folder.is_absolute()));
    }

    /// Files written beside cargo's own go through `target()`.
    #[test]
    fn no_path_below_the_root_is_taken_for_the_target_folder() {
        let wrong = ["root().join(", "\"target"].concat();
        let mut folders = vec![root().join("xtask/src")];
        while let Some(folder) = folders.pop() {
            for path in entries(&folder).expect("a folder") {
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).expect("source");
                // `target()` itself may fall back on it.
                let most = usize::from(path.ends_with("main.rs"));
                assert!(text.matches(&wrong).count() <= most, "{}", path.display());
            }
        }
    }

    #[test]
    fn peers_reads_sizes_as_the_program_does() {
        let parsed = Args::try_parse_from(["xtask", "peers", "-b", "1K", "-e", "2M"]);
        assert!(matches!(parsed.map(|a| a.task), Ok(Task::Peers(_))));
        assert!(Args::try_parse_from(["xtask", "peers", "-b", "3"]).is_err());
    }
}
