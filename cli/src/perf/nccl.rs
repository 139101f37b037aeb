//! NCCL's all-reduce, measured as ours is: `ringbell perf nccl` alone, `ringbell perf all-reduce --beside nccl`
//! beside ours (ADR 24).
//!
//! `library` finds NCCL and `binding` declares its functions; it is loaded when it is measured, never linked. It runs in
//! processes of its own (`worker`), one for all ranks or one for each (`placement`). They get their orders in a line of JSON
//! (`order`), and `gather` reads their output and ends them when their time is up. `rank` is the work of a rank, on a `device`
//! without any part of Ringbell. `log` reads NCCL's channels from its log, `mps` finds or starts the service that lets processes
//! share a GPU at the same time, `beside` runs both sides in turn.

pub(super) mod beside;
mod binding;
mod device;
mod gather;
mod library;
mod log;
mod mps;
mod order;
mod placement;
mod rank;
mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use ringbell::comm::CollectiveKind;
use ringbell::gpu::GpuChoice;
use ringbell::{DataType, ReduceOp};

use self::gather::{Found, Outcome, Sweep, Unusable};
use self::library::{first, in_python, Candidate, NotFound, Passed};
use self::mps::Mps;
use self::order::Order;
use self::placement::{version_text, Carrier, Placement, Setting};
use super::collective::{self, spelled, table, Step};
use crate::report::{emit_text, machine, Axis, OutputArgs, Peer, Plot, Report, SweepArgs};
use crate::scratch::Folder;
use crate::{Exit, Problem};

/// How NCCL is found and run.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct NcclArgs {
    /// NCCL's libnccl.so.2, or its folder [default: the dynamic loader's, then that of python3's packages]
    #[arg(long, env = "RINGBELL_NCCL", value_name = "PATH")]
    nccl: Option<PathBuf>,
    /// Start NVIDIA's MPS for ranks that are processes, when none runs
    #[arg(long)]
    mps: bool,
    /// Longest that one sweep of one side may take, in seconds; it is ended then, and what it has done is kept
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    limit: u64,
}

/// Arguments of `ringbell perf nccl`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sweep: SweepArgs,
    /// Ranks, all on one GPU
    #[arg(short = 'R', long, visible_short_alias = 'g', default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// Type of the elements
    #[arg(short = 'd', long = "datatype", default_value = "f32", value_name = "f16|bf16|f32|f64|i8|i32|i64|u8|u32|u64", value_parser = collective::dtype)]
    datatype: DataType,
    /// Reduction
    #[arg(short = 'o', long = "op", default_value = "sum", value_name = "sum|prod|min|max", value_parser = collective::redop)]
    op: ReduceOp,
    /// What carries the bytes between ranks
    #[arg(long, default_value = "shm", value_name = "shm|socket")]
    transport: Carrier,
    /// Ranks are processes [default: threads from NCCL 2.30 on, processes before]
    #[arg(long, conflicts_with = "threads")]
    procs: bool,
    /// Ranks are threads of one process; needs NCCL 2.30
    #[arg(long)]
    threads: bool,
    /// Operations stand one behind the other in the stream, and times are those of all by their number, as in nccl-tests
    #[arg(long)]
    queued: bool,
    #[command(flatten)]
    nccl: NcclArgs,
    /// Time-out of each operation, and of the communicators' coming up, in seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// The GPU that NCCL is to run on.
fn device() -> Result<usize> {
    match GpuChoice::Auto.resolve()? {
        GpuChoice::Cuda(n) => Ok(n),
        GpuChoice::Auto => Ok(0),
        GpuChoice::Emulated => Err(Problem::new(
            Exit::Environment,
            "NCCL needs a real GPU, and the emulated one was asked for",
            "give --gpu cuda, or leave NCCL away",
        )
        .into()),
    }
}

/// The first library that can be loaded, with its description and the GPU's. A named library is the only candidate.
fn find(args: &NcclArgs, device: usize) -> Result<Found> {
    let asked = args.nccl.as_deref();
    let mut searched = Vec::new();
    if let Some(found) = try_one(&first(asked), device, &mut searched)? {
        return Ok(found);
    }
    let more = match asked {
        Some(_) => Vec::new(),
        None => in_python().unwrap_or_else(|none| {
            searched.push(none);
            Vec::new()
        }),
    };
    for place in more {
        if let Some(found) = try_one(&place, device, &mut searched)? {
            return Ok(found);
        }
    }
    Err(NotFound { searched }.problem().into())
}

/// Tries a place; the reason for passing it over is added to `searched`. Without a GPU the search ends.
fn try_one(place: &Candidate, device: usize, searched: &mut Vec<Passed>) -> Result<Option<Found>> {
    match gather::look(&place.path, device) {
        Ok(found) => Ok(Some(found)),
        Err(Unusable::Gpu(why)) => {
            let advice = "`ringbell doctor` says what the GPU lacks; NCCL runs on real GPUs only";
            let what = format!("NCCL needs a GPU: {why}");
            Err(Problem::new(Exit::Environment, what, advice).into())
        }
        Err(Unusable::Library(why)) => {
            let name = format!("{} of {}", place.path.display(), place.said_by);
            searched.push(Passed::new(name, why));
            Ok(None)
        }
    }
}

/// The measurement, the same for both sides.
struct Task {
    ranks: u32,
    datatype: DataType,
    op: ReduceOp,
    steps: Vec<Step>,
    check: bool,
    queued: bool,
    timeout_s: u64,
    limit: Duration,
}

/// NCCL's part of the task over one transport.
fn measure(
    task: &Task,
    found: &Found,
    device: usize,
    carrier: Carrier,
    placement: Placement,
    mps: Option<&Path>,
) -> Result<Outcome> {
    if let Some(why) = carrier.impossible(placement, found.version) {
        return Ok(Outcome {
            why: Some(why),
            ..Outcome::default()
        });
    }
    let folder = Folder::of_files("nccl")?;
    Ok(gather::run(&Sweep {
        order: Order {
            library: found.library.clone(),
            device,
            ranks: task.ranks,
            own: Vec::new(),
            dtype: spelled(task.datatype.name()),
            op: spelled(task.op.name()),
            steps: task.steps.clone(),
            check: task.check,
            queued: task.queued,
            timeout_s: task.timeout_s,
        },
        placement,
        setting: Setting {
            carrier,
            version: found.version,
            ranks: task.ranks,
            sms: found.sms,
            log: &folder.path().join("log.%p"),
            mps,
        },
        limit: task.limit,
    }))
}

/// Its part of a report.
fn peer(found: &Found, carrier: Carrier, placement: &str, outcome: Outcome) -> Peer {
    let kind = carrier.in_log();
    let Outcome {
        rows,
        told,
        settings,
        mut why,
    } = outcome;
    if !told.only(kind) {
        let carriers: Vec<&str> = told.carriers.iter().map(String::as_str).collect();
        let other = format!(
            "NCCL says that its bytes went through {}, though {} was asked for",
            carriers.join(", "),
            carrier.name()
        );
        why = Some(why.map_or(other.clone(), |w| format!("{w}; {other}")));
    }
    Peer {
        name: "NCCL".into(),
        version: Some(version_text(found.version)),
        transport: carrier.name().into(),
        carriers: told.carriers.into_iter().collect(),
        placement: placement.into(),
        library: Some(found.library.display().to_string()),
        settings,
        blocks: told.channels,
        why,
        rows,
    }
}

/// A peer's part in a few lines.
fn notes(peer: &Peer) -> Vec<String> {
    let blocks = peer.blocks.map_or_else(
        || "how many SMs its kernel takes is not told".into(),
        |n| format!("its kernel has up to {n} block(s) on each rank"),
    );
    let version = peer.version.as_deref().unwrap_or("of no known version");
    let library = peer.library.as_deref().unwrap_or("not found");
    let mut lines = vec![format!(
        "{} {version} over {}: {library}; {blocks}",
        peer.name, peer.transport
    )];
    if !peer.carriers.is_empty() {
        lines.push(format!("  it says: via {}", peer.carriers.join(", ")));
    }
    if !peer.settings.is_empty() {
        let set = peer.settings.iter().map(|(n, v)| format!("{n}={v}"));
        lines.push(format!("  with {}", set.collect::<Vec<_>>().join(" ")));
    }
    if let Some(why) = &peer.why {
        lines.push(format!("  not as asked: {why}"));
    }
    lines
}

/// MPS for ranks that are processes: its words, and its pipe if it is ours.
fn service(placement: Placement, start: bool) -> (Option<Mps>, Option<String>) {
    match placement {
        Placement::Threads => (None, None),
        Placement::Processes => match Mps::find(start) {
            Ok(mps) => (Some(mps), None),
            Err(why) => (None, Some(why)),
        },
    }
}

/// The process that NCCL runs in.
pub(crate) fn work() -> Result<Exit> {
    worker::run()
}

/// Measures NCCL alone.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    let kind = CollectiveKind::AllReduce;
    let steps = collective::steps_of(kind, &args.sweep, args.datatype, false, args.ranks)?;
    let device = device()?;
    let found = find(&args.nccl, device)?;
    let placement = Placement::choose(args.threads, args.procs, found.version);
    if let Some(why) = args.transport.impossible(placement, found.version) {
        let advice = "give --transport socket and leave --threads away, or a NCCL from 2.30 on";
        return Err(Problem::new(Exit::Usage, why, advice).into());
    }
    let (mps, no_mps) = service(placement, args.nccl.mps);
    let pipe = mps.as_ref().and_then(Mps::pipe);
    let task = Task {
        ranks: args.ranks,
        datatype: args.datatype,
        op: args.op,
        steps,
        check: args.sweep.checks(),
        queued: args.queued,
        timeout_s: args.timeout,
        limit: Duration::from_secs(args.nccl.limit),
    };
    let outcome = measure(
        &task,
        &found,
        device,
        args.transport,
        placement,
        pipe.as_deref(),
    )?;
    let place = placement.describe(mps.as_ref().map(|m| m.whose.as_str()));
    let peer = peer(&found, args.transport, &place, outcome);
    let mut meta = machine::meta("all-reduce");
    meta.nic = format!("NCCL {}", version_text(found.version));
    meta.gpu = found.gpu.clone();
    meta.transport = args.transport.name().into();
    meta.ranks = Some(args.ranks);
    meta.notes = vec![format!("{} rank(s) on {}, {place}", args.ranks, found.gpu)];
    meta.notes.extend(no_mps);
    meta.notes.extend(notes(&peer));
    meta.placement = Some(place);
    let why = peer.why.clone();
    let rows = peer.rows.clone();
    // Its settings and blocks; the rows stand in the report itself.
    meta.peers = vec![Peer {
        rows: Vec::new(),
        ..peer
    }];
    let report = Report { meta, rows };
    let columns = table::Columns {
        dtype: spelled(args.datatype.name()),
        redop: spelled(args.op.name()),
        root: "-1".into(),
    };
    let text = table::head(&report, &report.meta.notes) + &table::body(&report, &columns);
    let plot = Plot {
        title: format!("NCCL all-reduce, {} ranks", args.ranks),
        x: Axis::Size,
        y: Axis::Bandwidth,
    };
    emit_text(&report, &text, &args.output, &plot)?;
    let missing = report.rows.len() < 2 * task.steps.len();
    match (report.wrong(), why) {
        (1.., _) => Ok(Exit::WrongData),
        (0, Some(why)) if missing => Err(Problem::new(
            Exit::Failed,
            format!("NCCL has not done all sizes: {why}"),
            "look at its own words with NCCL_DEBUG=INFO, or give other --transport, --limit or --timeout",
        )
        .into()),
        (0, _) => Ok(Exit::Ok),
    }
}
