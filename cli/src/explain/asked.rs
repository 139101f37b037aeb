//! What is asked of `ringbell explain`, and what holds for one rank's program alone.
#![allow(clippy::disallowed_methods)] // Says how long a plan takes to make.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use ringbell::abi::{Algorithm, CollectiveKind};
use ringbell::parts::nic_core::collective::{plan_size, Shape};
use ringbell::parts::onc_engines::program::{
    self, algorithm_named, algorithms, collective_named, spelled, Family, HostRanks, Locality,
    Order, Program, Thresholds,
};
use serde::Serialize;

use crate::report::parse_size;
use crate::{Exit, Problem};

/// Arguments of `ringbell explain`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// broadcast, reduce, scatter, gather, all-gather, reduce-scatter, all-reduce, all-to-all or
    /// barrier
    #[arg(value_parser = collective, required_unless_present = "program", conflicts_with = "program")]
    pub(super) collective: Option<CollectiveKind>,
    /// Ranks, up to 4096. Above 256 without table and proof, which grow with their square
    #[arg(short = 'R', short_alias = 'n', long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) ranks: u32,
    /// Algorithm [default: what the NIC chooses for this size, ranks and transport]
    #[arg(long, value_parser = algorithm)]
    pub(super) algo: Option<Algorithm>,
    /// Consecutive ranks that share a host, for --algo hierarchical and the NIC's choice, or those
    /// of each host one after the other, as 3,2,4
    #[arg(
        long,
        value_name = "N|N,N,...",
        default_value = "1",
        conflicts_with = "program"
    )]
    pub(super) host_ranks: HostRanks,
    /// In the order of the ranks, as the setting `deterministic` has it
    #[arg(long, conflicts_with = "program")]
    pub(super) deterministic: bool,
    /// Root, where the collective has one
    #[arg(long, default_value_t = 0)]
    pub(super) root: u32,
    /// Show this rank only; may be given several times. Above 256 ranks: 0 if none is given
    #[arg(long)]
    pub(super) rank: Vec<u32>,
    /// Bytes of a block, for the byte counts and the choice of the algorithm
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    pub(super) size: u64,
    /// How the ranks reach each other, for the choice of the algorithm: `local` on one host, `mesh`
    /// by NICs that forward and have trees, else `network`
    #[arg(long, default_value = "network", value_parser = ["local", "mesh", "network"])]
    pub(super) transport: String,
    /// Explain a program of your own instead, after checking it
    #[arg(long, value_name = "FILE")]
    pub(super) program: Option<PathBuf>,
    /// Print the programs in the form that --program reads, instead of the table
    #[arg(long, conflicts_with = "json")]
    pub(super) text: bool,
    /// Print the programs' messages as a schedule in GOAL, for `ringbell sim trace`, LogGOPSim and
    /// ATLAHS
    #[arg(long, conflicts_with_all = ["json", "text"])]
    pub(super) goal: bool,
    /// Write the same messages as execution traces of Chakra, for ASTRA-sim and `ringbell sim
    /// trace`: NAME.0.et, NAME.1.et, ...
    #[arg(long, value_name = "NAME", conflicts_with_all = ["goal", "text", "json"])]
    pub(super) chakra: Option<PathBuf>,
    /// Print the programs as an algorithm file of MSCCL: XML with a gpu for each rank
    #[arg(long, conflicts_with_all = ["goal", "text", "json", "chakra"])]
    pub(super) msccl: bool,
    /// Draw the table, with an arrow for each message, as an SVG
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Write everything as one JSON object; `-` (the default) is standard output
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    pub(super) json: Option<PathBuf>,
}

fn collective(name: &str) -> Result<CollectiveKind, String> {
    collective_named(name)
        .filter(|kind| !algorithms(*kind).is_empty())
        .ok_or_else(|| {
            let all = CollectiveKind::ALL.iter();
            let known = all.filter(|kind| !algorithms(**kind).is_empty());
            let names: Vec<String> = known.map(|kind| spelled(kind.name())).collect();
            format!("the collectives are {}", names.join(", "))
        })
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    algorithm_named(name).ok_or_else(|| {
        let names: Vec<String> = Algorithm::ALL.iter().map(|a| spelled(a.name())).collect();
        format!("the algorithms are {}", names.join(", "))
    })
}

/// Most ranks with a table and a proof.
pub(super) const TABLE_RANKS: u32 = 256;

/// What a NIC needs to run a rank's program.
#[derive(Debug, Serialize)]
pub(super) struct Planned {
    pub(super) rank: u32,
    /// Microseconds to make it: for the first operation only.
    pub(super) make_us: f64,
    /// Bytes that the NIC keeps.
    pub(super) bytes: usize,
    pub(super) steps: usize,
    pub(super) messages: usize,
    pub(super) bytes_sent: u64,
}

pub(super) fn refused(what: String) -> Problem {
    Problem::new(Exit::Usage, what, "see `ringbell explain --help`")
}

pub(super) fn not_run(why: &dyn std::fmt::Display) -> Problem {
    let hint = "choose another algorithm, or fewer ranks";
    Problem::new(
        Exit::Failed,
        format!("no NIC runs this program: {why}"),
        hint,
    )
}

/// The ranks whose plans are shown.
pub(super) fn shown(args: &Args) -> &[u32] {
    match &args.rank[..] {
        [] => &[0],
        ranks => ranks,
    }
}

/// The programs that a NIC takes for these arguments.
pub(super) fn family(args: &Args, kind: CollectiveKind) -> Result<Family> {
    if args.root != 0 && !kind.has_root() {
        let what = format!("{} has no root", spelled(kind.name()));
        return Err(refused(what).into());
    }
    let reach = match args.transport.as_str() {
        "local" => Locality::OneHost,
        "mesh" => Locality::Trees,
        _ => Locality::of_hosts(args.ranks, &args.host_ranks),
    };
    let (order, choose): (_, fn(_, _, _, _, &_) -> _) = match args.deterministic {
        true => (Order::Rank, program::choose_strict),
        false => (Order::Ring, program::choose),
    };
    let auto = choose(kind, args.size, args.ranks, reach, &Thresholds::default());
    let algo = args.algo.filter(|a| *a != Algorithm::Auto).unwrap_or(auto);
    let family = Family::new(order, kind, algo, args.ranks, args.root)
        .and_then(|family| family.on_hosts(args.host_ranks.clone()));
    family.map_err(|error| refused(error.to_string()).into())
}

/// What the plan of a rank takes, which is made for it.
pub(super) fn planned(args: &Args, p: &Program) -> Result<Planned> {
    let shape = Shape {
        kind: p.kind,
        algo: p.algo,
        ranks: p.ranks,
        rank: p.rank,
        root: p.root,
        in_place: false,
        order: match args.deterministic {
            true => Order::Rank,
            false => Order::Ring,
        },
        host_ranks: args.host_ranks.clone(),
    };
    let begin = Instant::now();
    let size = plan_size(shape);
    let took = begin.elapsed();
    let size = size.map_err(|error| not_run(&error))?;
    Ok(Planned {
        rank: p.rank,
        make_us: took.as_nanos() as f64 / 1e3,
        bytes: size.bytes,
        steps: size.steps,
        messages: p.steps.iter().map(program::Step::messages).sum(),
        bytes_sent: sent(p, args.size),
    })
}

/// `all-reduce, ring, 4 ranks`
pub(super) fn title(p: &Program) -> String {
    let root = if p.kind.has_root() {
        format!(", root {}", p.root)
    } else {
        String::new()
    };
    format!(
        "{}, {}, {} ranks{root}",
        spelled(p.kind.name()),
        spelled(p.algo.name()),
        p.ranks
    )
}

/// The bytes that a rank sends.
pub(super) fn sent(p: &Program, block: u64) -> u64 {
    let bytes = u128::from(p.sent_chunks()) * u128::from(block) / u128::from(p.block_chunks);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// What the order of a program is.
pub(super) fn order(p: &Program) -> &'static str {
    match p.order {
        Order::Ring if p.kind == CollectiveKind::ReduceScatter => {
            "block i is reduced from rank i on, round the ring: the bits of every default"
        }
        Order::Ring => {
            "chunk i is reduced from rank i on, round the ring: the bits of every default"
        }
        Order::Rank => "every chunk from rank 0 on: the bits of `deterministic`, with any algorithm, count and path",
        Order::Other => "another than the ring's: bits may differ from the defaults'",
        Order::None => "nothing is reduced",
    }
}

/// A line for each plan.
pub(super) fn plan_lines(plans: &[Planned], mut line: impl FnMut(&str, String)) {
    for (k, plan) in plans.iter().enumerate() {
        let name = if k == 0 { "plan" } else { "" };
        let Planned {
            rank,
            make_us,
            bytes,
            steps,
            ..
        } = plan;
        let kib = bytes.div_ceil(1 << 10);
        line(
            name,
            format!("rank {rank}: {steps} steps, {kib} KiB, made in {make_us:.0} µs"),
        );
    }
}

/// What the JSON objects of few and of many ranks begin with.
#[derive(Serialize)]
pub(super) struct Head {
    collective: String,
    algorithm: String,
    ranks: u32,
    root: u32,
    /// `ring`, `rank`, `other` or `none`.
    order: String,
    block_chunks: u32,
    block_bytes: u64,
}

impl Head {
    /// Of a program that reduces in this order, for blocks of so many bytes.
    pub(super) fn of(p: &Program, order: Order, block_bytes: u64) -> Head {
        Head {
            collective: spelled(p.kind.name()),
            algorithm: spelled(p.algo.name()),
            ranks: p.ranks,
            root: p.root,
            order: format!("{order:?}").to_lowercase(),
            block_chunks: p.block_chunks,
            block_bytes,
        }
    }
}
