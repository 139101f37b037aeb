//! `ringbell sim`: a collective, kernels or a schedule on a cluster of whole NICs, in virtual time.

mod calibrate;
mod cluster;
mod fault;
mod figures;
mod kinds;
mod points;
mod profile;
mod refused;
mod run;
mod sweep;
mod trace;
mod watch;
mod words;

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use ringbell::comm::{CollectiveKind, HostRanks};
use ringbell::Algorithm;
use ringbell_sim::{Forward, Kept, Plan, Report};
use serde_json::json;

use self::cluster::ClusterArgs;
use self::kinds::{kind, name};
use self::points::Outputs;
use self::refused::has_memory_of;
use self::watch::WatchArgs;
use super::perf::algo;
use super::report::{parse_size, SweepArgs};
use super::{files, stdio, Exit, Problem};

/// Arguments that a plan's file has in place of the command line, or that a plan does not take.
const OF_ONE_POINT: [&str; 26] = [
    "collective",
    "ranks",
    "min",
    "max",
    "factor",
    "algo",
    "host_ranks",
    "whole_memory",
    "exact",
    "fast_forward",
    "profile",
    "topology",
    "hash_seed",
    "spray",
    "wire_poll",
    "congestion",
    "repeat",
    "loss",
    "seed",
    "kill",
    "cut",
    "slow",
    "threads",
    "settings",
    "pcap",
    "trace",
];

/// What is run in place of a collective.
#[derive(clap::Subcommand)]
enum Instead {
    /// Run a kernel of a CUDA file on each rank, in virtual time
    Run(run::Args),
    /// Run a trace: a schedule in GOAL (LogGOPSim, ATLAHS), connections of htsim, or Chakra's
    /// execution traces
    Trace(trace::Args),
    /// Simulate figures of papers, with the papers' numbers beside ours
    Figures(figures::Args),
    /// Measure the software NIC between two ranks of this machine, and write a profile of it
    Calibrate(calibrate::Args),
}

/// Arguments of `ringbell sim`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    instead: Option<Instead>,
    /// all-reduce, all-gather, reduce-scatter, broadcast, reduce or all-to-all
    #[arg(value_parser = kind, required_unless_present_any = ["show_profile", "plan"])]
    collective: Option<CollectiveKind>,
    /// Ranks, each with a NIC of its own [default: 2, or the hosts of the topology]
    #[arg(short = 'R', long, value_name = "N")]
    ranks: Option<usize>,
    /// Smallest size in bytes; K, M and G are powers of 1,024 [default: 1K]
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = parse_size)]
    min: Option<u64>,
    /// Largest size [default: 1M]
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", value_parser = parse_size)]
    max: Option<u64>,
    /// Factor between two sizes
    #[arg(short = 'f', long = "stepfactor", default_value_t = 4, value_name = "FACTOR", value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Algorithm
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = algo)]
    algo: Algorithm,
    /// Consecutive ranks that share a host, for --algo hierarchical and auto, or those of each host
    /// one after the other, as 3,2,4. Their messages cross the topology as all others do
    /// [default: 1]
    #[arg(long, value_name = "N|N,N,...")]
    host_ranks: Option<HostRanks>,
    /// Keep every byte of the operands. Without it, bytes that repeat are kept once, and each run
    /// reports the same
    #[arg(long)]
    whole_memory: bool,
    /// Simulate every operation to its end and compare its results. Without it, one of more than
    /// four million frames ends in its steady phase, if it has one, and the phase says how long the
    /// whole operation takes
    #[arg(long, conflicts_with = "fast_forward")]
    exact: bool,
    /// End every operation that has a steady phase there, also shorter ones
    #[arg(long)]
    fast_forward: bool,
    /// Print a built-in profile, as a file to start from
    #[arg(long, value_name = "NAME", value_parser = profile::text, exclusive = true)]
    show_profile: Option<&'static str>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    watch: WatchArgs,
    /// Run every combination of the lists of a TOML file, and print a line for each point
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_ONE_POINT)]
    plan: Option<PathBuf>,
    /// Draw the bus bandwidth of a plan's points as an SVG
    #[arg(long, value_name = "FILE", requires = "plan")]
    svg: Option<PathBuf>,
    /// Write the report as one JSON object; `-` (the default) is standard output
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Runs it and prints the table.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    match &args.instead {
        Some(Instead::Run(args)) => return run::run(args),
        Some(Instead::Trace(args)) => return trace::run(args),
        Some(Instead::Figures(args)) => return figures::run(args),
        Some(Instead::Calibrate(args)) => return calibrate::run(args),
        None => {}
    }
    if let Some(plan) = &args.plan {
        let outputs = Outputs {
            json: args.json.as_deref(),
            svg: args.svg.as_deref(),
        };
        return points::run(plan, &outputs);
    }
    let kind = match (args.show_profile, args.collective) {
        (Some(text), _) => return stdio::out(text).map(|()| Exit::Ok),
        (None, Some(kind)) => kind,
        // clap asks for one.
        (None, None) => return Ok(Exit::Usage),
    };
    let sweep = SweepArgs {
        min: args.min,
        max: args.max,
        factor: Some(args.factor),
        step: None,
        iters: None,
        warmup: None,
        check: 1,
    };
    let usage = |what| Problem::new(Exit::Usage, what, "give sizes such as -b 1K -e 64M -f 4");
    let mut cluster = args.cluster.cluster(args.ranks)?;
    if let Some(host_ranks) = &args.host_ranks {
        cluster.settings.host_ranks = host_ranks.clone();
    }
    let plan = Plan {
        kind,
        cluster,
        sizes: sweep.sizes(1 << 10, 1 << 20).map_err(usage)?,
        algo: args.algo,
        kept: match args.whole_memory {
            true => Kept::Whole,
            false => Kept::Once,
        },
        forward: match (args.exact, args.fast_forward) {
            (true, _) => Forward::Never,
            (false, true) => Forward::Always,
            (false, false) => Forward::Long,
        },
    };
    has_memory_of(&plan)?;
    let (report, wall_s) = args
        .watch
        .run(|watch| ringbell_sim::run_watched(&plan, watch))?;
    match args.json.as_deref() {
        None => stdio::out(text(&plan, &report, wall_s))?,
        Some(path) => files::write_json(path, json(&plan, &report, wall_s)?)?,
    }
    if let Some(ended) = &report.ended {
        return Err(fault::problem(ended).into());
    }
    Ok(Exit::of_data(report.sizes.iter().map(|m| m.wrong).sum()))
}

fn text(plan: &Plan, report: &Report, wall_s: f64) -> String {
    let redop = match plan.kind {
        CollectiveKind::AllReduce | CollectiveKind::Reduce | CollectiveKind::ReduceScatter => "sum",
        _ => "none",
    };
    let mut out = words::head(name(plan.kind), &plan.cluster);
    let _ = writeln!(
        out,
        "#{:>11} {:>11} {:>7} {:>7} {:>10} {:>8} {:>8} {:>7} {:>7}",
        "size", "elements", "type", "redop", "time", "algbw", "busbw", "link", "#wrong"
    );
    let _ = writeln!(
        out,
        "#{:>11} {:>11} {:>7} {:>7} {:>10} {:>8} {:>8} {:>7} {:>7}",
        "(B)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "(%)", ""
    );
    for m in &report.sizes {
        let _ = writeln!(
            out,
            " {:>11} {:>11} {:>7} {redop:>7} {:>10.2} {:>8.2} {:>8.2} {:>7.1} {:>7}",
            m.bytes,
            m.count,
            "f32",
            m.time_ns as f64 / 1e3,
            m.algbw_gbs,
            m.busbw_gbs,
            100.0 * m.busbw_gbs / report.best_gbs,
            words::wrong(m)
        );
    }
    for m in &report.sizes {
        out += &words::projection(m);
    }
    if let Some(ended) = &report.ended {
        out += &fault::text_of_ends(ended);
    }
    out + &words::foot(&report.counts, wall_s)
}

fn json(plan: &Plan, report: &Report, wall_s: f64) -> Result<String> {
    let sizes = report.sizes.iter().map(|m| {
        json!({
            "size_bytes": m.bytes,
            "elements": m.count,
            "time_us": m.time_ns as f64 / 1e3,
            "algbw_gbs": m.algbw_gbs,
            "busbw_gbs": m.busbw_gbs,
            "link_share": m.busbw_gbs / report.best_gbs,
            "wrong": m.projection.is_none().then_some(m.wrong),
            "projection": m.projection.as_ref().map(words::json_of_projection),
        })
    });
    let own = json!({
        "collective": name(plan.kind),
        "host_ranks": words::hosts(&plan.cluster.settings.host_ranks),
        "rows": sizes.collect::<Vec<_>>(),
        "ended": report.ended.as_ref().map(fault::json_of_ends),
        "payload_gbs": report.payload_gbs,
        "best_busbw_gbs": report.best_gbs,
    });
    let own = words::json_of_counts(own, &report.counts, wall_s);
    let whole = words::json(&plan.cluster, own);
    serde_json::to_string(&whole).context("cannot express the report as JSON")
}
