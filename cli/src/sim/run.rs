//! `ringbell sim run`: a kernel of a file on each rank of a cluster in virtual time.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use ringbell_sim::{Cluster, Fault, KernelPlan, KernelReport, LaunchShape, Trouble};

use super::cluster::ClusterArgs;
use super::fault;
use super::refused::{has_memory, problem};
use crate::report::parse_size;
use crate::{cc, stdio, Exit, Problem};

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
    /// Bytes of each rank's buffer; K, M and G are powers of 1,024. Its contents depend on the seed
    #[arg(long, default_value = "64K", value_name = "SIZE", value_parser = parse_size)]
    buffer: u64,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Run with so many seeds from --seed on, until a run fails
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Virtual time that the kernels may take, in ns, us, ms or s
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = time)]
    deadline: u64,
    /// Kernels: a .cu file, which clang compiles, or a .ptx file
    #[arg(value_name = "FILE", last = true, required = true, num_args = 1..=2, value_names = ["FILE", "KERNEL"])]
    file: Vec<PathBuf>,
}

fn time(text: &str) -> Result<u64, String> {
    fault::time_ns(text).ok_or_else(|| "write a time in ns, us, ms or s, as 10s".into())
}

/// Runs it with each seed, and prints what kernels print.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let mut plan = plan(args)?;
    let advice = "give fewer ranks or a smaller --buffer";
    has_memory(&plan.cluster, ringbell_sim::kernel_memory(&plan), advice)?;
    for seed in (plan.cluster.seed..).take(usize::try_from(args.seeds).unwrap_or(usize::MAX)) {
        plan.cluster.seed = seed;
        let report = ringbell_sim::run_kernel(&plan).map_err(problem)?;
        // Of many runs those that end well are a line each.
        stdio::out(text(&plan, &report, args.seeds == 1))?;
        if let Some(trouble) = &report.trouble {
            let broken = text_of_broken(&plan.cluster, &report.broken);
            return Err(trouble_of(trouble, &broken, &again(seed)).into());
        }
    }
    Ok(Exit::Ok)
}

fn plan(args: &Args) -> Result<KernelPlan> {
    let file = &args.file[0];
    let text = match file.extension() {
        Some(e) if e == "cu" => cc::ptx_of(file)?,
        _ => std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?,
    };
    Ok(KernelPlan {
        file: file.display().to_string(),
        text,
        kernel: args.file.get(1).map(|k| k.display().to_string()),
        shape: LaunchShape::new(args.grid, args.block),
        buffer_bytes: args.buffer,
        cluster: args.cluster.cluster(args.ranks)?,
        within_ns: args.deadline,
    })
}

/// The command that runs one seed again.
fn again(seed: u64) -> String {
    // Everything but the seeds stands as it was given.
    let mut words = Vec::new();
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        match word.as_str() {
            "--seed" | "--seeds" => drop(given.next()),
            "--" => {
                words.push(format!("--seed {seed} --"));
                words.extend(given.by_ref());
            }
            w if w.starts_with("--seed=") || w.starts_with("--seeds=") => {}
            _ => words.push(word),
        }
    }
    format!("`ringbell {}` runs seed {seed} again", words.join(" "))
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
    let end = if report.trouble.is_some() {
        "failed"
    } else {
        "ended"
    };
    let _ = writeln!(
        out,
        "# seed {} {end} after {:.3} us; {} events, {} frames, {} lost; hash {:016x}",
        plan.cluster.seed,
        report.time_ns as f64 / 1e3,
        report.events,
        report.packets,
        report.lost,
        report.hash
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
