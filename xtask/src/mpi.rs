//! Programs of MPI over `ringbell mpi`: in C and Fortran by Debian's MPICH and Open MPI, in Python
//! by mpi4py with PyPI's.
//!
//! Each runs alone and with Ringbell, and prints the same.

mod bench;
mod measure;

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use fs_err as fs;

use crate::steps::Outcome;
use crate::workspace::target;
use crate::{pages, workspace};
use bench::{compile, libraries, sources, Bench, Way};

/// Arguments of `cargo xtask mpi`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only measure mpi4py's Allreduce, by the profile `dist`: each library alone, with Ringbell,
    /// and with memory of MPI_Alloc_mem, in turn
    #[arg(long)]
    measure: bool,
    /// Only measure messages of a program in C, by the profile `dist`: each library alone and with
    /// --p2p, in turn
    #[arg(long)]
    measure_messages: bool,
}

/// Measures, or runs the step of the tests.
pub(crate) fn run(args: &Args) -> Result<bool> {
    if args.measure {
        measure::collectives()?;
    }
    if args.measure_messages {
        measure::messages()?;
    }
    match args.measure || args.measure_messages {
        true => Ok(true),
        false => crate::steps::told("mpi", step()?),
    }
}

/// As a step of the tests.
pub(crate) fn step() -> Result<Outcome> {
    workspace::build()?;
    programs(&workspace::built())
}

fn programs(built: &Path) -> Result<Outcome> {
    let (libraries, missing) = libraries();
    for why in &missing {
        println!("SKIPPED: {why}");
    }
    if libraries.is_empty() {
        return Ok(Outcome::Skipped(missing.join("; ")));
    }
    let folder = target().join("mpi");
    fs::create_dir_all(&folder)?;
    for library in &libraries {
        println!("==> {}", library.name);
        let bench = Bench { built, library };
        if let Some(python) = &library.python {
            let script = |name| [python.into(), sources().join(name).into()];
            for ranks in [2, 3] {
                bench.compare(ranks, &script("program.py"), 9)?;
                bench.compare_by(Way::MESSAGES, ranks, &script("messages.py"), 10)?;
            }
        }
        // MPI 5's ABI, which MPICH from 4.3 on has beside its own.
        let abi = library.launcher.with_file_name("mpicc_abi");
        if abi.is_file() {
            let libraries = library.launcher.with_file_name("../lib");
            let rpath = format!("-Wl,-rpath,{}", libraries.display());
            for (name, way, kinds) in [
                ("random", Way::COLLECTIVES, 10),
                ("messages", Way::MESSAGES, 8),
            ] {
                let source = sources().join(format!("{name}.c"));
                let program = compile(&abi, &["-O1", &rpath], &source, &format!("{name}-abi"))?;
                let program = [program.into(), "1".into(), "40".into()];
                bench.compare_by(way, 2, &program, kinds)?;
            }
        }
        let Some(compilers) = &library.compilers else {
            continue;
        };
        let compile = |source: &str, name: &str, flags: &[&str]| {
            let source = sources().join(source);
            let fortran = source.extension().is_some_and(|e| e == "f90");
            let name = format!("{name}-{}", library.name.replace("Debian's ", ""));
            let flags = [&["-O1"], flags].concat();
            let compiler = &compilers[usize::from(fortran)];
            compile(compiler, &flags, &source, &name).map(OsString::from)
        };
        let written = folder.join("first.c");
        fs::write(&written, pages::program("docs/mpi.md", "c")?)?;
        let first = [compile(&written.to_string_lossy(), "first", &[])?];
        bench.compare(2, &first, 1)?;
        let random = compile("random.c", "random", &[])?;
        for (seed, ranks, longest) in [
            (1, 2, 3000),
            (2, 3, 3000),
            (3, 4, 3000),
            (4, 2, 60_000),
            (5, 3, 60_000),
        ] {
            let args = [seed, 40, longest].map(|n: u32| n.to_string().into());
            let program = [&[random.clone()][..], &args].concat();
            bench.compare(ranks, &program, 11)?;
            if seed < 3 {
                bench.compare_by(Way::COLLECTIVES.of_gpu(), ranks, &program, 11)?;
            }
        }
        // The module mpi_f08 of MPICH calls its library by internal names.
        let new = if library.open_mpi() { 10 } else { 0 };
        for (name, flags, kinds) in [("fortran", &[][..], 10), ("fortran08", &["-DNEW"], new)] {
            let program = [compile("fortran.f90", name, flags)?];
            for ranks in [2, 3] {
                bench.compare(ranks, &program, kinds)?;
            }
        }
        for (name, flags) in [("fmessages", &[][..]), ("fmessages08", &["-DNEW"])] {
            let program = compile("messages.f90", name, flags)?;
            let new = name.ends_with("08") && !library.open_mpi();
            for (seed, ranks) in [(1_u32, 2), (2, 3)] {
                let args: [OsString; 2] = [program.clone(), seed.to_string().into()];
                // Handed on, so that programs of both kinds of calls stay right.
                let args = [&args[..], &vec!["plain".into(); usize::from(new)]].concat();
                bench.compare_by(Way::MESSAGES, ranks, &args, if new { 1 } else { 15 })?;
            }
        }
        let beside = [compile("beside.c", "beside", &[])?];
        // MPICH spins where ranks are more than cores.
        for ranks in if library.open_mpi() { 2..4 } else { 2..3 } {
            bench.compare(ranks, &beside, 1)?;
        }
        let messages = compile("messages.c", "messages", &[])?;
        for (seed, ranks, longest) in [(1, 2, 3000), (2, 3, 3000), (3, 2, 60_000), (4, 3, 60_000)] {
            let args = [seed, 40, longest].map(|n: u32| n.to_string().into());
            let program = [&[messages.clone()][..], &args].concat();
            bench.compare(ranks, &program, 2)?;
            bench.compare_by(Way::MESSAGES, ranks, &program, 8)?;
            if seed > 2 {
                bench.compare_by(Way::MESSAGES.of_gpu(), ranks, &program, 8)?;
            }
        }
        // NICs in a line: 1, 2 and 4 hops from end to end.
        let lines = if library.open_mpi() {
            &[2, 3, 5][..]
        } else {
            &[2]
        };
        for ranks in lines.iter().copied() {
            let args = [7, 20, 3000].map(|n: u32| n.to_string().into());
            let program = |of: &OsString| [&[of.clone()][..], &args].concat();
            let way = Way::COLLECTIVES.of_mesh();
            bench.compare_by(way, ranks, &program(&random), 9)?;
            let way = Way::MESSAGES.of_mesh();
            bench.compare_by(way, ranks, &program(&messages), 8)?;
        }
        let errors = [compile("errors.c", "errors", &[])?];
        bench.errors(&errors)?;
        if library.open_mpi() {
            // Few rounds: on busy cores the library alone takes 27 ms for one. --measure-messages
            // times them.
            let within = [compile("within.c", "within", &[])?, "400".into()];
            bench.compare_by(Way::MESSAGES, 4, &within, 1)?;
        }
        let fault = compile("fault.c", "fault", &[])?;
        for (way, second, call) in [
            (Way::COLLECTIVES, None, "MPI_Allreduce"),
            (Way::MESSAGES, Some("messages"), "MPI_Recv"),
            (Way::MESSAGES, Some("requests"), "MPI_Wait"),
        ] {
            bench.killed(&fault, way, second, call)?;
        }
    }
    match missing.is_empty() {
        true => Ok(Outcome::Passed),
        false => Ok(Outcome::Skipped(missing.join("; "))),
    }
}
