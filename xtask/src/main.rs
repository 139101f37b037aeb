//! `cargo xtask`: what developers and CI run.
//!
//! `cargo xtask ci` is `lint` and `test`, in that order: exactly what CI runs.

mod counts;
mod gen;
mod gpu;
mod kernels;
mod lint;
mod peers;
mod steps;
mod style;
mod suite;
mod test;
mod tools;
mod venv;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
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
    },
    /// Format, generated files, house rules, clippy and documentation; no warning passes
    Lint,
    /// Every test: workspace, documentation, examples, kernels with nvcc; installs what they need
    Test {
        /// Passed on to the test runner, such as a part of a test's name; then only the workspace's tests run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        filter: Vec<String>,
    },
    /// Compile the device code with nvcc from PyPI for five architectures, and report what each kernel takes of a GPU
    Kernels,
    /// Instructions of the paths of small operations, under callgrind, against the recorded counts
    Counts {
        /// Record what is counted now in nic-core/benches/counts.json
        #[arg(long)]
        update: bool,
    },
    /// All-reduce beside Open MPI and MPICH (installed from PyPI), with ratios and pictures; not part of CI
    Peers(peers::Args),
    /// Build a bundle that checks and measures Ringbell on a machine with a GPU and without Rust
    Gpu(gpu::Args),
    /// Run such a bundle (its script does)
    #[command(hide = true)]
    GpuRun(gpu::RunArgs),
    /// What CI runs: lint, then test
    Ci,
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

/// Runs a task; false when a step of it failed and has said so.
fn run(task: Task) -> Result<bool> {
    match task {
        Task::Gen { check: true } => gen::check().map(|()| true),
        Task::Gen { check: false } => gen::write().map(|()| true),
        Task::Lint => Ok(steps::run(&lint::STEPS)),
        Task::Test { filter } if filter.is_empty() => {
            tools::report();
            Ok(steps::run(&test::STEPS))
        }
        Task::Test { filter } => test::filtered(&filter),
        Task::Kernels => Ok(steps::run(&[("kernels", kernels::compile)])),
        Task::Counts { update: true } => counts::update().map(|()| true),
        Task::Counts { update: false } => Ok(steps::run(&[("counts", counts::compare)])),
        Task::Peers(args) => peers::run(&args).map(|()| true),
        Task::Gpu(args) => gpu::main(&args),
        Task::GpuRun(args) => gpu::run_bundle(&args),
        Task::Ci => {
            tools::report();
            let all: Vec<steps::Step> = [&lint::STEPS[..], &test::STEPS[..]].concat();
            Ok(steps::run(&all))
        }
    }
}

/// The repository's root, wherever cargo was called from.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // xtask/ lies in the root, so there is a parent; without one the package's own folder would do.
    here.parent().unwrap_or(here).to_path_buf()
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
