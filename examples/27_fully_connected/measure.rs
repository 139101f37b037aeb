//! Measurement: the layer over Ringbell and over MPI, as processes, in turns.
//!
//! Each library gets a report in the schema of `ringbell perf --json`, so that `ringbell perf
//! compare` prints and draws them. A row is one matrix over a number of ranks; its size is that of
//! the matrix. Times are those of rank 0, from a barrier on.
#![allow(clippy::disallowed_methods)] // Measures times.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{ensure, Context, Error};
use ringbell::{CommOptions, Communicator, Job, Nic};
use ringbell_perf::{machine, Report, Row, Samples};

use crate::group::{Group, OverMpi, OverRingbell};
use crate::layer::{self, Part};

/// Seconds after which the ranks of one library are ended.
const LIMIT: &str = "180";
/// Repetitions before those that count.
const WARM_UP: usize = 3;
/// The name of Ringbell among the libraries.
const RINGBELL: &str = "ringbell";

#[derive(clap::Parser)]
pub(crate) struct Args {
    /// Measures, and writes a report for each library into this folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) json: Option<PathBuf>,
    /// Folder with `mpirun` and `mpicc` of an MPI library; several may be named [default: those of
    /// PATH, if it has them]
    #[arg(long, value_name = "FOLDER")]
    mpi: Vec<PathBuf>,
    /// Inputs of the layer, and outputs: 1, 16 and 144 MiB of weights
    #[arg(long, value_delimiter = ',', default_value = "512,2048,6144")]
    sides: Vec<usize>,
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    ranks: Vec<usize>,
    /// Times that each library takes its turn
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Products of a turn that count
    #[arg(long, default_value_t = 21)]
    products: usize,
    /// Of one rank: `ringbell`, or the library made of `over_mpi.c`
    #[arg(long, hide = true)]
    pub(crate) library: Option<PathBuf>,
}

/// One rank of a library: rank 0 prints rows.
pub(crate) fn rank(library: &Path, args: &Args) -> Result<(), Error> {
    if library.as_os_str() != RINGBELL {
        let mut group = OverMpi::start(library)?;
        rows(&mut group, args)?;
        return group.end();
    }
    let job = Job::from_env()?;
    let nic = Nic::builder().job(&job).open()?;
    let comm = Communicator::from_job(&nic, &job, &CommOptions::default())?;
    rows(&mut OverRingbell::new(&comm)?, args)?;
    Ok(comm.barrier()?)
}

fn rows(group: &mut dyn Group, args: &Args) -> Result<(), Error> {
    let ranks = group.ranks();
    // Where there are enough, each rank has a core, as Open MPI gives it by itself: two that wake
    // each other may be put on one core otherwise, and multiply in turns.
    let cores = machine::cores();
    if ranks <= cores.len() {
        machine::pin_to(cores[group.rank()]);
    }
    for side in &args.sides {
        let part = Part::new(*side, group.rank(), ranks);
        group.resize(*side)?;
        // The product, the reduction, and both.
        let mut times = [(); 3].map(|()| Samples::with_capacity(args.products));
        for n in 0..WARM_UP + args.products {
            group.barrier()?;
            let begin = Instant::now();
            part.multiply(group.partial());
            let multiplied = Instant::now();
            group.reduce()?;
            let end = Instant::now();
            if n >= WARM_UP {
                let between = [(begin, multiplied), (multiplied, end), (begin, end)];
                for (times, (from, to)) in times.iter_mut().zip(between) {
                    times.push((to - from).as_nanos() as f64);
                }
            }
        }
        if group.rank() == 0 {
            let wrong = layer::wrong(&group.sums()?);
            for (mut times, what) in times.into_iter().zip([", product", ", reduction", ""]) {
                let us = times.median() / 1e3;
                let bytes = (side * side * size_of::<f32>()) as u64;
                let row = Row {
                    series: Some(format!("{ranks} ranks{what}")),
                    size_bytes: bytes,
                    count: args.products as u64,
                    elements: Some(*side as u64),
                    time_us: times.mean() / 1e3,
                    p50_us: us,
                    p99_us: times.percentile(99.0) / 1e3,
                    algbw_gbs: bytes as f64 / us / 1e3,
                    busbw_gbs: bytes as f64 / us / 1e3,
                    wrong: Some(wrong),
                    ..Row::default()
                };
                println!("{}", serde_json::to_string(&row)?);
            }
        }
    }
    Ok(())
}

/// One library, and how its ranks start.
struct Library {
    name: String,
    /// Of an MPI library: what `mpicc` has made, and the launcher.
    mpi: Option<(PathBuf, PathBuf)>,
    /// Whether Ringbell takes the calls of MPI.
    by_ringbell: bool,
    report: Report,
}

impl Library {
    fn new(name: &str, mpi: Option<(PathBuf, PathBuf)>, by_ringbell: bool) -> Library {
        let mut report = Report::new("fully-connected");
        let meta = &mut report.meta;
        meta.nic = match (&mpi, by_ringbell) {
            (Some(_), false) => name.into(),
            _ => "soft".into(),
        };
        // What `ringbell perf compare` knows a report of Ringbell by.
        if meta.nic == "soft" {
            (meta.transport, meta.progress) = ("auto".into(), "waiter".into());
        }
        meta.notes = vec!["columns over ranks; times of rank 0".into()];
        let name = match by_ringbell {
            true => format!("ringbell-mpi-{name}"),
            false => name.to_string(),
        };
        Library {
            name,
            mpi,
            by_ringbell,
            report,
        }
    }

    /// Starts so many ranks.
    fn command(&self, ringbell: &Path, ranks: usize) -> Command {
        let mut c = Command::new("timeout");
        c.arg(LIMIT);
        match (&self.mpi, self.by_ringbell) {
            (None, _) => c.arg(ringbell).arg("run"),
            (Some((_, mpirun)), true) => c.arg(ringbell).args(["mpi", "--launcher"]).arg(mpirun),
            (Some((_, mpirun)), false) => c.arg(mpirun),
        };
        c.arg("-n").arg(ranks.to_string());
        // Open MPI's words for: root may do it, and ranks that wait let others run.
        for (name, value) in [
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
            ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ] {
            c.env(name, value);
        }
        match (&self.mpi, self.by_ringbell) {
            (Some(_), false) => &mut c,
            _ => c.arg("--"),
        };
        c
    }

    /// A turn: the rows of these ranks.
    fn turn(&self, ringbell: &Path, ranks: usize, args: &Args) -> Result<Vec<Row>, Error> {
        let mut c = self.command(ringbell, ranks);
        let library = self.mpi.as_ref().map_or(Path::new(RINGBELL), |(so, _)| so);
        let sides: Vec<String> = args.sides.iter().map(usize::to_string).collect();
        c.arg(std::env::current_exe()?)
            .arg("--library")
            .arg(library)
            .args(["--sides", &sides.join(",")])
            .args(["--products", &args.products.to_string()]);
        let out = c.stderr(Stdio::inherit()).output();
        let out = out.with_context(|| format!("cannot start {c:?}; install coreutils"))?;
        let text = String::from_utf8_lossy(&out.stdout);
        ensure!(
            out.status.success(),
            "{c:?} ended with {} ({LIMIT} s are its limit): {text}",
            out.status
        );
        // `ringbell run` puts the rank before each line.
        let lines = text
            .lines()
            .filter_map(|line| Some(&line[line.find('{')?..]));
        let rows: Vec<Row> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
        ensure!(!rows.is_empty(), "{c:?} has printed no rows: {text}");
        Ok(rows)
    }
}

/// Compiles `over_mpi.c` for the MPI library of a folder, and says which one it is.
fn mpi(folder: &Path, so: &Path) -> Result<(String, PathBuf), Error> {
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/27_fully_connected/over_mpi.c");
    let mut cc = Command::new(folder.join("mpicc"));
    cc.args(["-O2", "-shared", "-fPIC", "-o"])
        .arg(so)
        .arg(source);
    let status = cc
        .status()
        .with_context(|| format!("cannot start {cc:?}"))?;
    ensure!(status.success(), "{cc:?} ended with {status}");
    let mpirun = folder.join("mpirun");
    let said = Command::new(&mpirun).arg("--version").output()?.stdout;
    let is_open = String::from_utf8_lossy(&said).contains("Open MPI");
    let name = if is_open { "open-mpi" } else { "mpich" };
    Ok((name.into(), mpirun))
}

/// Folders of MPI libraries: those named, or else the first of PATH.
fn folders(args: &Args) -> Vec<PathBuf> {
    if !args.mpi.is_empty() {
        return args.mpi.clone();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has_mpi = |folder: &PathBuf| folder.join("mpicc").exists();
    std::env::split_paths(&path)
        .find(has_mpi)
        .into_iter()
        .collect()
}

/// All libraries, in turns.
pub(crate) fn all(folder: &Path, args: &Args) -> Result<(), Error> {
    fs::create_dir_all(folder)?;
    let exe = std::env::current_exe()?;
    let ringbell = exe
        .parent()
        .and_then(Path::parent)
        .map(|p| p.join("ringbell"));
    let ringbell = ringbell.filter(|p| p.exists());
    let ringbell =
        ringbell.context("the command is not beside the examples; cargo build -p ringbell-cli")?;
    let mut libraries = vec![Library::new(RINGBELL, None, false)];
    for (n, bin) in folders(args).iter().enumerate() {
        let so = std::path::absolute(folder.join(format!("over_mpi_{n}.so")))?;
        let (name, mpirun) = match mpi(bin, &so) {
            Ok(found) => found,
            // No argument names it.
            Err(why) if args.mpi.is_empty() => {
                println!("no MPI beside it: {why:#}");
                continue;
            }
            Err(why) => return Err(why),
        };
        for by_ringbell in [false, true] {
            let mpi = (so.clone(), mpirun.clone());
            libraries.push(Library::new(&name, Some(mpi), by_ringbell));
        }
    }
    let cores = libraries[0].report.meta.cores;
    for turn in 1..=args.turns {
        println!("turn {turn} of {}", args.turns);
        for ranks in &args.ranks {
            for library in &mut libraries {
                // Its ranks spin, and do not let each other run.
                if library.name == "mpich" && *ranks > cores {
                    println!("mpich is left out with {ranks} ranks on {cores} cores");
                    continue;
                }
                let rows = library.turn(&ringbell, *ranks, args)?;
                library.report.rows.extend(rows);
            }
        }
    }
    for library in &mut libraries {
        let text = serde_json::to_string_pretty(&library.report)?;
        fs::write(folder.join(format!("{}.json", library.name)), text + "\n")?;
    }
    print!("{}", table(&libraries, args));
    let wrong: u64 = libraries.iter().map(|l| l.report.wrong()).sum();
    ensure!(
        wrong == 0,
        "{wrong} outputs differ from those of a serial program"
    );
    Ok(())
}

/// Medians: both together, their parts, and how much faster than one rank.
fn table(libraries: &[Library], args: &Args) -> String {
    let mut out = String::from(
        "  MiB ranks  a part fits  library                      us   product reduction  speed-up\n",
    );
    for side in &args.sides {
        for ranks in &args.ranks {
            for library in libraries {
                let bytes = side * side * size_of::<f32>();
                let us = |ranks: usize, what| {
                    let series = format!("{ranks} ranks{what}");
                    let rows = library.report.rows.iter();
                    let mut times = Samples::default();
                    rows.filter(|r| r.size_bytes == bytes as u64)
                        .filter(|r| r.series.as_deref() == Some(&series))
                        .for_each(|r| times.push(r.p50_us));
                    times.median()
                };
                let all = us(*ranks, "");
                if all == 0.0 {
                    continue;
                }
                // Writing to a String cannot fail.
                let _ = writeln!(
                    out,
                    "{:>5.1} {ranks:>5}  {:<11}  {:<21} {all:>10.1} {:>9.1} {:>9.1} {:>8.2}x",
                    bytes as f64 / f64::from(1 << 20),
                    cache(bytes / ranks),
                    library.name,
                    us(*ranks, ", product"),
                    us(*ranks, ", reduction"),
                    us(1, "") / all,
                );
            }
        }
    }
    out
}

/// The smallest cache of this machine, from the second level on, that so many bytes fit.
fn cache(bytes: usize) -> String {
    let fits = |level: &u32| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{level}/size");
        let text = fs::read_to_string(file).unwrap_or_default();
        let kib = text.trim().strip_suffix('K').and_then(|n| n.parse().ok());
        kib.is_some_and(|kib: usize| bytes <= kib << 10)
    };
    [2, 3]
        .iter()
        .find(|level| fits(level))
        .map_or("no cache".into(), |level| format!("L{level}"))
}
