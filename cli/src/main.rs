//! The command `ringbell`: one file for each subcommand.
//!
//! A subcommand is an `Args` structure and a `run` that returns the program's exit. Errors travel
//! as `anyhow`; one with a remedy is a [`Problem`].

// They panic when a reader closes the pipe; `stdio` does not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod cc;
mod child;
mod clang;
mod doctor;
mod explain;
mod files;
mod gpu;
mod hint;
mod hll;
mod library;
mod mpi;
mod nc;
mod nccl;
mod open;
mod perf;
mod preload;
mod problem;
mod regs;
mod report;
mod routes;
mod run;
mod scratch;
mod secret;
mod sim;
mod stdio;
mod trace;
mod verbs;

use std::process::ExitCode;

use anyhow::Result;
use clap::parser::ValueSource;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use ringbell::gpu::GpuChoice;
use ringbell::nic::NicKind;

use problem::{Exit, Problem};

/// GPU kernels send and receive over a NIC, with no CPU in the control path
///
/// Exit codes: 0 success; 1 the operation failed; 2 wrong usage; 3 data was wrong; 4 the
/// environment lacks what was asked for (`ringbell doctor` says what); 130 interrupted; `run` ends
/// as the first rank that failed.
///
/// Environment: RINGBELL_GPU=auto|cuda|cuda:N|emulated is the default of --gpu, and
/// RINGBELL_NIC=soft|rtl that of --nic, also for programs; RINGBELL_DEBUG=INFO|DEBUG|TRACE prints
/// what the NIC does, and why, on standard error; RINGBELL_UDP_SECRET is the number that --secret
/// reads from a file.
#[derive(Parser)]
#[command(name = "ringbell", version)]
struct Cli {
    /// What runs the kernels: `cuda` or `cuda:N` a real GPU, `emulated` host threads, `auto` a real
    /// one if there is
    #[arg(long, global = true, help_heading = "Options of every command", env = ringbell::gpu::GPU_VARIABLE, value_name = "auto|cuda[:N]|emulated")]
    gpu: Option<GpuChoice>,
    /// What implements the NIC: `soft`, the software NIC, or `rtl`, the same with simulated
    /// hardware as its data path (feature `rtl`)
    #[arg(long, global = true, help_heading = "Options of every command", env = ringbell::nic::NIC_VARIABLE, value_name = "soft|rtl")]
    nic: Option<NicKind>,
    /// Trace of all signals of each NIC `rtl`, as VCD: `t.vcd` gives t-10.77.0.1.vcd and so on.
    /// Large: a few iterations are enough
    #[arg(long, global = true, help_heading = "Options of every command", env = ringbell::nic::VCD_VARIABLE, value_name = "FILE")]
    vcd: Option<std::path::PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build your own kernels: for the emulated GPU, and with nvcc for real ones
    Cc(cc::Args),
    /// What this machine has, what is used instead of what it lacks, and why
    Doctor(doctor::Args),
    /// What a collective does, step by step: its state table, its messages, and the proof that it
    /// is right
    Explain(explain::Args),
    /// Run a CUDA program, unmodified, on the emulated GPU
    Gpu(gpu::Args),
    /// Count the distinct items of a file while the NIC moves it to GPU memory
    Hll(hll::Args),
    /// Netcat whose bytes go through GPU memory and a GPU kernel
    Nc(nc::Args),
    /// Measure: bandwidth, latency, and the limits of the machine
    Perf(Box<perf::Args>),
    /// The register map of the NIC, and the values and blocks of those that run here; with --nic,
    /// of one that it opens
    Regs(regs::Args),
    /// Routes of a network whose NICs forward: hops, channels, loads, and the proof that it cannot
    /// deadlock
    Routes(routes::Args),
    /// Start the ranks of a job on this machine
    Run(run::Args),
    /// Run a collective on a cluster of whole NICs in virtual time, over a modelled network
    Sim(Box<sim::Args>),
    /// Run a program of MPI, unmodified, with its collectives on this NIC
    Mpi(mpi::Args),
    /// Run a program of NCCL, unmodified, with its network traffic on this NIC
    Nccl(nccl::Args),
    /// Run a program of ibverbs, unmodified, over this NIC
    Verbs(verbs::Args),
}

/// The command line; options that a benchmark shares with others but refuses are left out of its
/// help.
fn command() -> clap::Command {
    let without = |ids: &'static [&'static str]| {
        move |c: clap::Command| ids.iter().fold(c, |c, id| c.mut_arg(id, |a| a.hide(true)))
    };
    let sizes: &[&str] = &["min", "max", "factor", "step"];
    Cli::command().mut_subcommand("perf", |perf| {
        perf.mut_subcommand("barrier", without(sizes))
            .mut_subcommand("send-rate", without(sizes))
            .mut_subcommand("send-lat", without(&["window"]))
    })
}

/// Parses the command line and runs it.
fn main() -> ExitCode {
    let matches = command().try_get_matches().unwrap_or_else(|e| {
        let hint = hint::elsewhere(&command(), &e);
        let _ = e.print();
        if let Some(hint) = hint {
            stdio::note(hint);
        }
        std::process::exit(e.exit_code())
    });
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
    // Ranks that are threads have n² links.
    ringbell::nic::descriptors::raise_limit();
    if let Some(gpu) = cli.gpu {
        // The library reads it, and so do the ranks that `run` starts. No thread runs yet.
        std::env::set_var(ringbell::gpu::GPU_VARIABLE, gpu.to_string());
    }
    if let Some(file) = &cli.vcd {
        std::env::set_var(ringbell::nic::VCD_VARIABLE, file);
    }
    if let Some(nic) = cli.nic {
        // Likewise.
        std::env::set_var(ringbell::nic::NIC_VARIABLE, nic.to_string());
    }
    share_no_work_queues();
    let asked = matches.value_source("nic") == Some(ValueSource::CommandLine);
    let done = trace::start().and_then(|()| run(cli.command, asked));
    match done {
        Ok(exit) => exit.into(),
        Err(error) => problem::print(&error).into(),
    }
}

/// Streams share eight of the GPU's work queues, so that of nine kernels that wait one may hold up
/// another. The driver reads the variable when it starts, and so do the ranks that `run` starts; a
/// service for several processes shares its queues among its clients, who would be fewer.
fn share_no_work_queues() {
    #[cfg(feature = "cuda")]
    {
        use ringbell::parts::cuda_kernels::cuda::CONNECTIONS_VARIABLE;
        let set = |name| std::env::var_os(name).is_some();
        if !set(CONNECTIONS_VARIABLE) && !set("CUDA_MPS_PIPE_DIRECTORY") {
            // No thread runs yet.
            std::env::set_var(CONNECTIONS_VARIABLE, "32");
        }
    }
}

/// `asked`: the command line has `--nic`.
fn run(command: Command, asked: bool) -> Result<Exit> {
    match command {
        Command::Cc(args) => cc::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Gpu(args) => gpu::run(&args),
        Command::Hll(args) => hll::run(&args),
        Command::Nc(args) => nc::run(&args),
        Command::Perf(args) => perf::run(*args),
        Command::Regs(args) => regs::run(&args, asked),
        Command::Routes(args) => routes::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Mpi(args) => mpi::run(&args),
        Command::Nccl(args) => nccl::run(&args),
        Command::Verbs(args) => verbs::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_argument_is_explained() {
        fn walk(command: &clap::Command) {
            assert!(
                command.get_about().is_some(),
                "{} has no help",
                command.get_name()
            );
            for arg in command.get_arguments() {
                assert!(
                    arg.get_help().is_some(),
                    "{} {}",
                    command.get_name(),
                    arg.get_id()
                );
            }
            command.get_subcommands().for_each(walk);
        }
        let command = command();
        command.clone().debug_assert();
        walk(&command);
    }
}
