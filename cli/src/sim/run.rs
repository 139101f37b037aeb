//! `ringbell sim run`: a kernel of a file on each rank of a cluster in virtual time.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ringbell_sim::{
    Cluster, Contents, Fault, KernelArgument, KernelPlan, KernelReport, LaunchShape, Trouble,
    DEFAULT_ARGUMENTS,
};
use serde_json::{json, Value};

use super::cluster::ClusterArgs;
use super::fault::{self, us};
use super::refused::has_memory;
use super::watch::WatchArgs;
use super::words;
use crate::report::parse_size;
use crate::{cc, files, stdio, Exit, Problem};

/// Arguments of `ringbell sim run`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Ranks, each with a NIC and an emulated GPU [default: 2, or the hosts of the topology]
    #[arg(short = 'R', long, value_name = "N")]
    ranks: Option<usize>,
    /// Blocks of the kernel on each rank
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    grid: u32,
    /// Threads of a block
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    block: u32,
    /// Bytes of each rank's buffer; K, M and G are powers of 1,024
    #[arg(long, default_value = "64K", value_name = "SIZE", value_parser = parse_size)]
    buffer: u64,
    /// What buffers hold at first: `seed` (numbers that depend on seed and rank), `zeros`, or the
    /// bytes of a file, in whose name `{rank}` stands for each rank's number, and zeros behind them
    #[arg(long, default_value = "seed", value_name = "seed|zeros|FILE")]
    contents: OsString,
    /// Write what kernels leave into this folder, which is made: RANK.buffer, and RANK.zeros1 and
    /// so on for the arguments `zeros:SIZE`; of many seeds, that of the last run
    #[arg(long, value_name = "FOLDER")]
    dump: Option<PathBuf>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    watch: WatchArgs,
    /// Run with so many seeds from --seed on, until a run fails; captures and the timeline are of
    /// the last run
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Virtual time that the kernels may take, in ns, us, ms or s
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = time)]
    deadline: u64,
    /// Write the report as one JSON object with a list of runs, one for each seed; `-` (the
    /// default) is standard output
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Queues of each rank for blocks, which `gpu_comm_queue` gives them
    #[arg(long, default_value_t = 0, value_name = "N")]
    block_queues: u32,
    /// Kernels in a .cu file, which clang compiles, or a .ptx file; the kernel's name; and what it
    /// gets, a word for each parameter: `comm` (rb_comm), `buffer` (its address), `bytes` (its
    /// length), `window` (the buffers of all ranks as a window of the communicator: its number),
    /// `rank`, `ranks`, `next` and `before` (numbers of ranks in a ring),
    /// `stream` or `stream:SIZE` (rb_stream_handle), `zeros:SIZE` (the address of further memory),
    /// or a number, with a point or an exponent for a float or double. Without words: `comm buffer
    /// bytes`, for `extern "C" __global__ void NAME(rb_comm comm, void *buffer, rb_u64 bytes)`
    #[arg(last = true, required = true, num_args = 1.., value_names = ["FILE", "KERNEL", "ARGUMENT"])]
    file: Vec<OsString>,
}

fn time(text: &str) -> Result<u64, String> {
    fault::time_ns(text).ok_or_else(|| "write a time in ns, us, ms or s, as 10s".into())
}

/// Runs it with each seed, and prints what kernels print, or the report of all runs.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let mut plan = plan(args)?;
    let advice = "give fewer ranks or a smaller --buffer";
    has_memory(&plan.cluster, ringbell_sim::kernel_memory(&plan), advice)?;
    let (first, mut runs) = (plan.cluster.seed, Vec::new());
    let mut end = Ok(Exit::Ok);
    for i in 0..args.seeds {
        plan.cluster.seed = first.wrapping_add(i);
        end = one(args, &plan, &mut runs);
        if end.is_err() {
            break;
        }
    }
    plan.cluster.seed = first;
    if let Some(path) = args.json.as_deref().filter(|_| !runs.is_empty()) {
        let json = json(&plan, runs);
        let text = serde_json::to_string(&json).context("cannot express the report as JSON")?;
        files::write_json(path, text)?;
    }
    end
}

/// Runs it with the plan's seed.
///
/// # Errors
/// It could not be run, or did not end well.
fn one(args: &Args, plan: &KernelPlan, runs: &mut Vec<Value>) -> Result<Exit> {
    let run = |watch| ringbell_sim::run_kernel_watched(plan, watch);
    let (report, wall_s) = args.watch.run(run)?;
    match args.json {
        // Of many runs those that end well are a line each.
        None => stdio::out(text(plan, &report, args.seeds == 1))?,
        Some(_) => runs.push(json_of_run(plan, &report, wall_s)),
    }
    if let Some(folder) = &args.dump {
        dump(folder, &report)?;
    }
    let Some(trouble) = &report.trouble else {
        return Ok(Exit::Ok);
    };
    let broken = text_of_broken(&plan.cluster, &report.broken);
    Err(trouble_of(trouble, &broken, &again(plan.cluster.seed)?).into())
}

fn plan(args: &Args) -> Result<KernelPlan> {
    let cluster = args.cluster.cluster(args.ranks)?;
    let file = Path::new(&args.file[0]);
    let kernel = args.file.get(1);
    let arguments = args.file.iter().skip(2).map(argument);
    let mut arguments = arguments.collect::<Result<Vec<_>>>()?;
    if arguments.is_empty() {
        arguments.extend(DEFAULT_ARGUMENTS);
    }
    let text = match file.extension() {
        Some(e) if e == "cu" => cc::ptx_of(file)?,
        _ => std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?,
    };
    Ok(KernelPlan {
        file: file.display().to_string(),
        text,
        kernel: kernel.map(|k| k.to_string_lossy().into_owned()),
        arguments,
        block_queues: args.block_queues,
        shape: LaunchShape::new(args.grid, args.block),
        buffer_bytes: args.buffer,
        contents: contents(&args.contents, cluster.ranks)?,
        cluster,
        within_ns: args.deadline,
    })
}

/// What buffers hold at first.
///
/// # Errors
/// A file cannot be read.
fn contents(given: &OsStr, ranks: usize) -> Result<Contents> {
    match given.as_bytes() {
        b"seed" => return Ok(Contents::Seed),
        b"zeros" => return Ok(Contents::Zeros),
        _ => {}
    }
    let of_rank = |rank: usize| {
        let name = given.to_string_lossy();
        let path = match name.contains("{rank}") {
            true => PathBuf::from(name.replace("{rank}", &rank.to_string())),
            false => PathBuf::from(given),
        };
        let read = std::fs::read(&path);
        read.with_context(|| format!("cannot read {}, for --contents", path.display()))
    };
    let all = (0..ranks).map(of_rank).collect::<Result<_>>()?;
    Ok(Contents::Given(all))
}

/// Writes what kernels have left.
fn dump(folder: &Path, report: &KernelReport) -> Result<()> {
    let cannot = |path: &Path| format!("cannot write {}, for --dump", path.display());
    std::fs::create_dir_all(folder).with_context(|| cannot(folder))?;
    for (rank, pieces) in report.memory.iter().enumerate() {
        for (i, bytes) in pieces.iter().enumerate() {
            let name = match i {
                0 => format!("{rank}.buffer"),
                i => format!("{rank}.zeros{i}"),
            };
            let path = folder.join(name);
            std::fs::write(&path, bytes).with_context(|| cannot(&path))?;
        }
    }
    Ok(())
}

/// What the kernel gets by a word.
///
/// # Errors
/// There is no such word.
fn argument(word: &OsString) -> Result<KernelArgument> {
    let word = word.to_string_lossy();
    word.parse().map_err(|why| {
        let what = format!("`{word}` is no argument of a kernel");
        Problem::new(Exit::Usage, what, why).into()
    })
}

/// The command that runs one seed again, as a shell takes it.
fn again(seed: u64) -> Result<String> {
    // Everything but the seeds stands as it was given.
    let mut words = Vec::new();
    let mut given = std::env::args_os().skip(1);
    while let Some(word) = given.next() {
        match word.as_bytes() {
            b"--seed" | b"--seeds" => drop(given.next()),
            b"--" => {
                words.extend(["--seed".into(), seed.to_string().into(), word]);
                words.extend(given.by_ref());
            }
            w if w.starts_with(b"--seed=") || w.starts_with(b"--seeds=") => {}
            _ => words.push(word),
        }
    }
    let words = shlex::bytes::try_join(words.iter().map(|w| w.as_bytes()))?;
    let words = String::from_utf8_lossy(&words);
    Ok(format!("`ringbell {words}` runs seed {seed} again"))
}

/// What has broken, a line each.
fn text_of_broken(cluster: &Cluster, broken: &[Fault]) -> String {
    let line = |fault| format!("\n{}", fault::text_of_fault(cluster, fault));
    broken.iter().map(line).collect()
}

fn text(plan: &KernelPlan, report: &KernelReport, is_whole: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    if is_whole || report.trouble.is_some() {
        let _ = writeln!(
            out,
            "# ringbell sim run {}, kernel {}: {} ranks, {} blocks of {} threads, buffers of {} bytes",
            plan.file,
            report.kernel,
            plan.cluster.ranks,
            plan.shape.grid.count(),
            plan.shape.block.count(),
            plan.buffer_bytes,
        );
        for fault in &report.broken {
            let _ = writeln!(out, "# {}", fault::text_of_fault(&plan.cluster, fault));
        }
        for (rank, line) in &report.printed {
            let _ = writeln!(out, "[{rank}] {line}");
        }
    }
    let counts = &report.counts;
    let end = if report.trouble.is_some() {
        "failed"
    } else {
        "ended"
    };
    let _ = writeln!(
        out,
        "# seed {} {end} after {:.3} us; {} events, {} frames, {} lost{}; hash {:016x}",
        plan.cluster.seed,
        us(report.time_ns),
        counts.events,
        counts.packets,
        counts.lost,
        words::switches(counts),
        counts.hash
    );
    out
}

/// What went wrong behind what broke, and how to see it again.
fn trouble_of(trouble: &Trouble, broken: &str, again: &str) -> Problem {
    let lines = |all: &[(usize, String)]| {
        let of_rank = |(rank, text): &(usize, String)| format!("\nrank {rank}:\n{text}");
        all.iter().map(of_rank).collect::<String>()
    };
    let what = match trouble {
        Trouble::Failed { rank, why } => {
            format!("the kernel of rank {rank} failed: {why}{broken}")
        }
        Trouble::Hung { is_over, waits } => {
            let why = match is_over {
                true => "nothing happens any more, and",
                false => "the virtual time of --deadline is over, and",
            };
            format!(
                "{why} kernels of {} ranks have not ended{broken}{}",
                waits.len(),
                lines(waits)
            )
        }
        Trouble::Found(found) => format!("checks have found{broken}{}", lines(found)),
    };
    Problem::new(Exit::Failed, what, again)
}

fn json(plan: &KernelPlan, runs: Vec<Value>) -> Value {
    let own = json!({
        "file": plan.file,
        "grid": plan.shape.grid.count(),
        "block": plan.shape.block.count(),
        "buffer_bytes": plan.buffer_bytes,
        "deadline_us": us(plan.within_ns),
        "runs": runs,
    });
    words::json(&plan.cluster, own)
}

fn json_of_run(plan: &KernelPlan, report: &KernelReport, wall_s: f64) -> Value {
    let printed = report.printed.iter();
    let printed = printed.map(|(rank, line)| json!({ "rank": rank, "line": line }));
    let buffers = report
        .buffers()
        .into_iter()
        .map(|digest| format!("{digest:016x}"));
    let own = json!({
        "seed": plan.cluster.seed,
        "kernel": report.kernel,
        "time_us": us(report.time_ns),
        "printed": printed.collect::<Vec<_>>(),
        "buffers": buffers.collect::<Vec<_>>(),
        "broken": fault::json_of_faults(&plan.cluster, &report.broken),
        "trouble": report.trouble.as_ref().map(json_of_trouble),
    });
    words::json_of_counts(own, &report.counts, wall_s)
}

fn json_of_trouble(trouble: &Trouble) -> Value {
    let list = |all: &[(usize, String)]| -> Value {
        let of = |(rank, text): &(usize, String)| json!({ "rank": rank, "text": text });
        all.iter().map(of).collect()
    };
    match trouble {
        Trouble::Failed { rank, why } => json!({ "failed": { "rank": rank, "why": why } }),
        Trouble::Hung { is_over, waits } => json!({ "hung": list(waits), "is_over": is_over }),
        Trouble::Found(found) => json!({ "found": list(found) }),
    }
}
