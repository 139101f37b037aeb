//! `cargo xtask`: tasks of developers and CI.
//!
//! `cargo xtask ci` is `cargo xtask test --all`: exactly what CI runs.

mod bare;
mod bindings;
mod counts;
mod digests;
mod fuzz;
mod gen;
mod gpu;
mod hw;
mod install;
mod kernels;
mod lanes;
mod lint;
mod mutants;
mod source;
mod steps;
mod style;
mod suite;
mod summary;
mod swarm;
mod test;
mod tools;
mod unprivileged;
mod venv;
mod workspace;

use std::process::ExitCode;

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
    /// The fuzz targets, each for 10 s; guided by coverage where nightly and cargo-fuzz are
    #[command(disable_help_flag = true)]
    Fuzz {
        /// Targets and options; `--help` tells them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Plant faults in a sample of places, and see whether a test fails for each (cargo-mutants);
    /// not part of CI
    Mutants(mutants::Args),
    /// Seeded clusters of whole NICs in virtual time, with faults, against a model; not part of CI
    Swarm(swarm::Args),
    /// All-reduce beside Open MPI and MPICH (installed from PyPI), with ratios and pictures; not
    /// part of CI
    #[command(disable_help_flag = true)]
    Peers {
        /// `--help` tells them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Programs of MPI over `ringbell mpi`: C and Fortran by Debian's MPICH and Open MPI, Python by
    /// mpi4py
    Mpi(bindings::MpiArgs),
    /// NCCL's network plug-in: C drivers that call it as NCCL does, between processes
    Nccl(bindings::NcclArgs),
    /// Debian's programs of libibverbs over `ringbell verbs`: perftest, ibverbs-utils, the suite of
    /// pyverbs
    Verbs(bindings::VerbsArgs),
    /// Build the Python package's wheel by the profile `dist` into target/wheels, and try it in an
    /// empty environment
    Wheel,
    /// The backend of PyTorch: its tests and all-reduce beside Gloo, with the wheel and PyTorch
    /// from PyPI (5 GB); not part of CI
    Torch,
    /// The hardware: lint, proofs, simulations beside the Rust models, estimates; installs what it
    /// needs
    #[command(disable_help_flag = true)]
    Hw {
        /// Parts and options; `--help` tells them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Build a bundle that checks and measures Ringbell on a machine with a GPU and without Rust
    Gpu(gpu::Args),
    /// Product lines by folder: code that users compile, without comments, tests, mocks and benches
    Lines,
    /// The module graph of each crate, lowest floor first; its cycles, and types that are too wide
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
        Task::Mpi(args) => steps::told("mpi", bindings::run_mpi(&args)?),
        Task::Nccl(args) => steps::told("nccl", bindings::run_nccl(&args)?),
        Task::Verbs(args) => steps::told("verbs", bindings::run_verbs(&args)?),
        Task::Wheel => bindings::wheel().map(|()| true),
        Task::Torch => bindings::torch().map(|()| true),
        Task::Hw { options } => steps::told("hw", hw::check(&options)?),
        Task::Kernels => alone("kernels"),
        Task::User => alone("user"),
        Task::Counts {
            files: Some(path), ..
        } => counts::with(&["--files", &path]).map(|()| true),
        Task::Counts { update: true, .. } => counts::with(&["--update"]).map(|()| true),
        Task::Counts { .. } => alone("counts"),
        Task::Fuzz { options } => fuzz::run(&options).map(|()| true),
        Task::Mutants(args) => mutants::run(&args).map(|()| true),
        Task::Swarm(args) => swarm::run(&args).map(|()| true),
        Task::Peers { options } => bindings::peers(&options).map(|()| true),
        Task::Gpu(args) => gpu::main(&args).map(|()| true),
        Task::Lines => source::lines::report().map(|()| true),
        Task::Graph => source::report().map(|()| true),
    }
}

/// Runs one step of the tests, without a log.
fn alone(name: &str) -> Result<bool> {
    steps::told(name, (lanes::find(&test::all(), name)?.run)()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
