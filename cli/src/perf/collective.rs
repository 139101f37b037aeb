//! `ringbell perf all-reduce` and the other collectives, in the form of nccl-tests.

pub(super) mod table;
pub(super) mod usage;
mod watch;

use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use ringbell::comm::{CollectiveKind, WireType};
use ringbell::engines::{EngineInfo, Place, Registry};
use ringbell::gpu::GpuKind;
use ringbell::job::{BootstrapServer, JobError, JobSource};
use ringbell::nic::{PortSpec, ProgressMode, TransportSpec};
use ringbell::parts::nic_core::scratch;
use ringbell::parts::nic_core::transport::rdma::Icrc;
use ringbell::parts::onc_engines::program::renamed;
use ringbell::{Algorithm, CommOptions, Communicator, DataType, Job, ReduceOp, UniqueId};

use serde::{Deserialize, Serialize};

use self::watch::Watch;
use super::super::run::ranks::Ranks;
use super::super::run::wiring::Wiring;
use crate::report::{
    emit_text, limits, machine, parse_size, Axis, Limits, OutputArgs, Plot, Progress, Report, Row,
    SweepArgs,
};
use crate::{open, Exit, Problem};
use ringbell_perf::collective::data::Shape;
use ringbell_perf::collective::rank::{Plan, Rank};
use ringbell_perf::hardware::{Hardware, NOTE};

/// Longest time for started ranks to end after the last measurement.
const END: Duration = Duration::from_secs(10);
/// Longest time for ranks to find each other.
const START: Duration = Duration::from_secs(120);

/// Arguments of `ringbell perf all-reduce` and the other collectives.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) sweep: SweepArgs,
    /// Ranks, each with a NIC and a GPU of its own [default: 2, or as many as a launcher has started]
    #[arg(short = 'R', long, visible_short_alias = 'g', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(super) ranks: Option<u32>,
    /// Type of the elements
    #[arg(short = 'd', long = "datatype", default_value = "f32", value_name = "f16|bf16|f32|f64|i8|i32|i64|u8|u32|u64", value_parser = dtype)]
    pub(super) datatype: DataType,
    /// Reduction
    #[arg(short = 'o', long = "op", default_value = "sum", value_name = "sum|prod|min|max", value_parser = redop)]
    pub(super) op: ReduceOp,
    /// Root of broadcast, reduce, gather and scatter
    #[arg(short = 'r', long, default_value_t = 0, value_name = "RANK")]
    root: u32,
    /// Ranks are processes (the default; with the `local` transport as fast as threads)
    #[arg(long, conflicts_with = "threads")]
    pub(super) procs: bool,
    /// Ranks are threads of this process
    #[arg(long)]
    pub(super) threads: bool,
    /// What carries the bytes: `local` from memory to memory on one host, `tcp`, `rdma` or `udp` (ACCL's: a lost packet ends the communicator) over the port, `iwarp` over the kernel's TCP, `auto` local first, then `rdma` over port roce and `tcp` over another
    #[arg(
        long,
        default_value = "auto",
        value_name = "auto|local|tcp|rdma|udp|iwarp"
    )]
    transport: TransportSpec,
    /// What carries the packets: `mem` an in-memory switch, `udp` VXLAN over UDP, `roce` the host's UDP, for rdma and udp, or its TCP, for iwarp, `none` [default: none; with --transport tcp, rdma or udp: mem; with iwarp: roce]
    #[arg(long, value_name = "none|mem|udp|roce")]
    port: Option<PortSpec>,
    /// IP MTU of the port, in bytes [default: mem 9000; udp and roce what the ways to the other ranks carry]
    #[arg(long, value_name = "BYTES", value_parser = PortSpec::parse_mtu)]
    mtu: Option<u16>,
    /// RDMA's invariant CRC: `on`, `off` when all ranks say so, `auto` unless the ports share memory or are sockets of the loopback
    #[arg(long, default_value = "auto", value_name = "auto|on|off", value_parser = crate::open::icrc)]
    icrc: Icrc,
    /// Algorithm
    #[arg(long, default_value = "auto", value_name = "auto|direct|ring|recursive-doubling|all-gather-reduce|tree|flat|chain|linear|pairwise", value_parser = algo)]
    algo: Algorithm,
    /// Type that f32 elements have on the wire
    #[arg(long, default_value = "same", value_name = "same|bf16|f16", value_parser = wire)]
    pub(super) wire: WireType,
    /// A thread of each NIC polls; who waits does not step it
    #[arg(long)]
    dedicated: bool,
    /// A kernel posts and waits, not the host
    #[arg(long)]
    pub(super) from_kernel: bool,
    /// Engines at every rank's communicator, one behind the other, as in `checksum|hll:p=14`: taps only
    #[arg(long, value_name = "ENGINES", value_parser = engine)]
    pub(super) engine: Option<String>,
    /// What the engines see: `input` and `output` each operation's source and result, `sent` and `received` the messages (none of which go directly then)
    #[arg(long, default_value = "output", value_name = "input|output|sent|received", value_parser = place, requires = "engine")]
    engine_at: Place,
    /// Source and destination are kernels' streams: a block of each rank's kernel pushes, another pops. For all-reduce, broadcast, reduce and send-recv
    #[arg(long, conflicts_with = "from_kernel")]
    pub(super) streams: bool,
    /// Bytes of a stream's ring
    #[arg(long, default_value = "16K", value_name = "SIZE", requires = "streams", value_parser = parse_size)]
    ring: u64,
    /// Operations stand one behind the other in a stream of the GPU, and times are those of all by their number, as in
    /// nccl-tests. Without, the host posts one, waits for it, and times each
    #[arg(long, conflicts_with_all = ["streams", "from_kernel"])]
    pub(super) queued: bool,
    /// A setting of the communicator, e.g. segment_bytes=64K or whole_sources=4K; may be given several times
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = usage::setting)]
    settings: Vec<usage::Setting>,
    /// Do not measure first what this machine can do at best
    #[arg(long)]
    no_limits: bool,
    /// Time-out of each operation, in seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) timeout: u64,
    #[cfg(feature = "cuda")]
    #[command(flatten)]
    pub(super) beside: super::nccl::beside::BesideArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// A name of the contract in the form of the command line.
pub(super) fn spelled(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// A code of the contract by its name, in lower case and with hyphens.
fn by_name<T: Copy>(
    text: &str,
    what: &str,
    all: impl Iterator<Item = (T, &'static str)>,
) -> Result<T, String> {
    let mut names = Vec::new();
    for (value, name) in all {
        let name = spelled(name);
        if name == text {
            return Ok(value);
        }
        names.push(name);
    }
    let names = names.join(", ");
    Err(format!("`{text}` is not {what}; write one of {names}"))
}

pub(super) fn dtype(text: &str) -> Result<DataType, String> {
    let all = DataType::ALL.iter().map(|d| (*d, d.name()));
    by_name(text, "a type of elements", all)
}

pub(super) fn redop(text: &str) -> Result<ReduceOp, String> {
    let all = ReduceOp::ALL.iter().map(|o| (*o, o.name()));
    by_name(text, "a reduction", all)
}

fn algo(text: &str) -> Result<Algorithm, String> {
    let all = Algorithm::ALL.iter().filter(|a| **a != Algorithm::User);
    by_name(text, "an algorithm", all.map(|a| (*a, a.name())))
}

fn place(text: &str) -> Result<Place, String> {
    let all = [
        (Place::Input, "input"),
        (Place::Output, "output"),
        (Place::Sent, "sent"),
        (Place::Received, "received"),
    ];
    by_name(text, "a place of engines", all.into_iter())
}

/// A text that describes taps.
fn engine(text: &str) -> Result<String, String> {
    let made = Registry::builtin().make(text).map_err(|e| e.to_string())?;
    match made.is_tap() {
        true => Ok(text.into()),
        false => Err(format!(
            "`{text}` changes what passes, which operations cannot have; write taps, or give --wire bf16"
        )),
    }
}

fn wire(text: &str) -> Result<WireType, String> {
    let all = WireType::ALL.iter().map(|w| (*w, w.name()));
    by_name(text, "a wire type", all)
}

/// One size: bytes as the table has them, and elements as the operation counts them.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Step {
    pub(super) bytes: u64,
    pub(super) count: u64,
    pub(super) warmup: u64,
    pub(super) iters: u64,
}

impl Args {
    /// Ranks that this command starts.
    pub(super) fn ranks(&self) -> u32 {
        self.ranks.unwrap_or(2)
    }
}

/// Measures a collective.
pub(crate) fn run(kind: CollectiveKind, args: &Args) -> Result<Exit> {
    #[cfg(feature = "cuda")]
    if let Some(peer) = args.beside.peer() {
        return super::nccl::beside::run(kind, args, peer);
    }
    match Job::from_env() {
        Ok(job) => {
            usage::ranks(args, &job)?;
            usage::check(kind, args, job.size())?;
            let steps = steps(kind, args, job.size())?;
            let here = match job.source() {
                JobSource::Ringbell => job.size(),
                // Other launchers may have started them on other machines.
                _ => 1,
            };
            usage::enough_memory(kind, here, largest(&steps))?;
            let limits = measure_limits(args, job.rank(), &steps);
            return one_rank(kind, args, &job, &steps, limits);
        }
        Err(JobError::None) => {}
        Err(e) => return Err(e.into()),
    }
    usage::check(kind, args, args.ranks())?;
    let steps = steps(kind, args, args.ranks())?;
    usage::enough_memory(kind, args.ranks(), largest(&steps))?;
    scratch::sweep();
    // Before anything else runs on this machine.
    let limits = measure_limits(args, 0, &steps);
    let wiring = Wiring::new(args.ranks(), args.transport, args.port.as_ref(), args.mtu)?;
    let server = BootstrapServer::start((Ipv4Addr::LOCALHOST, 0).into(), Some(args.ranks()))?;
    let id = server.id();
    let done = match args.threads {
        true => in_threads(kind, args, &wiring, &server, &steps, limits),
        false => in_processes(kind, args, &wiring, &server, &steps, limits),
    };
    let _ = std::fs::remove_dir_all(id.local_directory());
    done
}

/// Bytes of the largest size.
fn largest(steps: &[Step]) -> u64 {
    steps.iter().map(|s| s.bytes).max().unwrap_or(0)
}

fn measure_limits(args: &Args, rank: u32, steps: &[Step]) -> Limits {
    let sizes: Vec<u64> = steps.iter().map(|s| s.bytes).collect();
    match (rank, args.no_limits) {
        (0, false) => limits::measure(&sizes),
        _ => Limits::default(),
    }
}

fn job_of(wiring: &Wiring, rank: u32, args: &Args, id: &UniqueId) -> Result<Job> {
    let vars = wiring.environment(rank, args.ranks(), args.transport, id);
    let find = |name: &str| {
        let found = vars.iter().find(|(n, _)| *n == name);
        found.map(|(_, v)| v.clone())
    };
    Ok(Job::from_variables(&find)?)
}

fn in_threads(
    kind: CollectiveKind,
    args: &Args,
    wiring: &Wiring,
    server: &BootstrapServer,
    steps: &[Step],
    limits: Limits,
) -> Result<Exit> {
    usage::enough_descriptors(args.ranks(), args.transport)?;
    let id = server.id();
    let failed = Mutex::new(None);
    // The others stop waiting for one that has failed.
    let fail = |rank: u32, e: anyhow::Error| {
        server.rank_ended(rank, &format!("rank {rank}: {e:#}"));
        let e = e.context(format!("rank {rank}"));
        // Nothing panics while it holds the lock.
        if let Ok(mut first) = failed.lock() {
            first.get_or_insert(e);
        }
    };
    let fail = &fail;
    std::thread::scope(|scope| {
        for rank in 1..args.ranks() {
            let run = move || {
                let done = job_of(wiring, rank, args, &id)
                    .and_then(|job| one_rank(kind, args, &job, steps, Limits::default()));
                if let Err(e) = done {
                    fail(rank, e);
                }
            };
            let thread = std::thread::Builder::new().name(format!("rank-{rank}"));
            if let Err(e) = thread.spawn_scoped(scope, run) {
                let e = anyhow::Error::new(e).context(Problem::new(
                    Exit::Environment,
                    format!("cannot start a thread for rank {rank}"),
                    "give fewer ranks with -R, or raise `ulimit -u`",
                ));
                server.rank_ended(rank, &format!("{e:#}"));
                // Ranks that wait for rank 0 end as well.
                server.rank_ended(0, "rank 0 was not started");
                return Err(e);
            }
        }
        let done =
            job_of(wiring, 0, args, &id).and_then(|job| one_rank(kind, args, &job, steps, limits));
        if let Err(e) = &done {
            server.rank_ended(0, &format!("rank 0: {e:#}"));
        }
        done
    })
    .map_err(|e| match failed.lock().ok().and_then(|mut f| f.take()) {
        // The other rank has ended because rank 0 lacks a resource.
        Some(other) if lacks_something(&e) && !lacks_something(&other) => e.context("rank 0"),
        // The others' errors are the cause more often than the effect.
        Some(other) => other.context(format!("rank 0: {e:#}")),
        None => e,
    })
}

/// Whether an error is one of this machine, not of the ranks.
fn lacks_something(error: &anyhow::Error) -> bool {
    Problem::exit_of(error) == Exit::Environment
}

fn in_processes(
    kind: CollectiveKind,
    args: &Args,
    wiring: &Wiring,
    server: &BootstrapServer,
    steps: &[Step],
    limits: Limits,
) -> Result<Exit> {
    let exe = std::env::current_exe().context("cannot find this program's own file")?;
    let mut program = vec![exe.to_string_lossy().into_owned()];
    program.extend(std::env::args().skip(1));
    let id = server.id();
    let ranks = Ranks::start(1..args.ranks(), &program, false, |rank| {
        wiring.environment(rank, args.ranks(), args.transport, &id)
    })?;
    let watch = Watch::new(ranks);
    std::thread::scope(|scope| {
        let _looks = watch.looks();
        std::thread::Builder::new()
            .name("perf-watch".into())
            .spawn_scoped(scope, || watch.run(server))
            .context("cannot start the thread that watches the ranks")?;
        let done =
            job_of(wiring, 0, args, &id).and_then(|job| one_rank(kind, args, &job, steps, limits));
        match done {
            Ok(exit) => watch.finish().map(|()| exit),
            Err(e) => Err(watch.blame(e)),
        }
    })
}

/// The sizes, with the iterations of each: all ranks must compute the same.
fn steps(kind: CollectiveKind, args: &Args, ranks: u32) -> Result<Vec<Step>> {
    steps_of(kind, &args.sweep, args.datatype, args.streams, ranks)
}

/// The same from its inputs.
pub(super) fn steps_of(
    kind: CollectiveKind,
    given: &SweepArgs,
    datatype: DataType,
    streams: bool,
    ranks: u32,
) -> Result<Vec<Step>> {
    let mut sweep = given.clone();
    if sweep.step.is_none() && sweep.min.is_none() && sweep.max.is_none() {
        // A glance over all sizes, in seconds.
        sweep.factor.get_or_insert(4);
    }
    let usage = |what| Problem::new(Exit::Usage, what, "give sizes such as -b 1K -e 64M -f 4");
    let sizes = match kind {
        CollectiveKind::Barrier => {
            let sized = given.no_sizes("a barrier moves no bytes");
            sized.map_err(|what| Problem::new(Exit::Usage, what, "leave it away"))?;
            vec![0]
        }
        // Elements that pass through kernels, some thousand at a time.
        _ if streams => sweep.sizes(1 << 10, 4 << 20).map_err(usage)?,
        _ => sweep.sizes(1 << 10, 64 << 20).map_err(usage)?,
    };
    let size = datatype.bytes();
    let blocks = match Shape::has_blocks(kind) {
        true => u64::from(ranks),
        false => 1,
    };
    let mut steps: Vec<Step> = sizes
        .iter()
        .map(|bytes| {
            let count = bytes / size / blocks;
            let iters = match bytes {
                0..=4_096 => 2_000,
                4_097..=65_536 => 1_000,
                65_537..=1_048_576 => 200,
                1_048_577..=16_777_216 => 40,
                _ => 15,
            };
            let few = open::is_simulated();
            let iters = sweep.iters.unwrap_or(if few { 4 } else { iters });
            let warmup = if few { 1 } else { (iters / 5).clamp(2, 200) };
            Step {
                bytes: count * size * blocks,
                count,
                warmup: sweep.warmup.unwrap_or(warmup),
                iters,
            }
        })
        .collect();
    steps.dedup_by_key(|s| s.bytes);
    Ok(steps)
}

/// Bytes on the wire for each byte of the size, as nccl-tests counts them.
pub(super) fn bus_factor(kind: CollectiveKind, ranks: u32) -> f64 {
    use CollectiveKind as K;
    let n = f64::from(ranks);
    match kind {
        K::AllReduce => 2.0 * (n - 1.0) / n,
        K::ReduceScatter | K::AllGather | K::AllToAll | K::Gather | K::Scatter => (n - 1.0) / n,
        _ => 1.0,
    }
}

/// One rank of the measurement; rank 0 reports.
fn one_rank(
    kind: CollectiveKind,
    args: &Args,
    job: &Job,
    steps: &[Step],
    limits: Limits,
) -> Result<Exit> {
    let largest = largest(steps);
    let nic = usage::attached(args, job)?
        .gpu_memory((2 * largest + (16 << 20)).next_multiple_of(2 << 20))
        .progress(match args.dedicated {
            true => ProgressMode::Dedicated,
            false => ProgressMode::Waiter,
        })
        .tcp_buffer(1 << 20)
        .tcp_rto_min(Duration::from_millis(20));
    let nic = open::nic(nic)?;
    let timeout = Duration::from_secs(args.timeout);
    let comm = Communicator::from_job(
        &nic,
        job,
        &CommOptions {
            // Rank 0 may still be measuring the machine.
            init_timeout: START,
            timeout,
            algo: args.algo,
            wire: args.wire,
            settings: usage::settings(args)?,
            ..CommOptions::default()
        },
    )
    .map_err(usage::unconnected)?;
    let engine = match &args.engine {
        None => None,
        Some(text) => {
            let engine = Registry::builtin().make(text)?;
            let item = args.datatype.bytes() as usize;
            Some(comm.attach_engine(args.engine_at, engine, item)?)
        }
    };
    let plan = Plan {
        kind,
        dtype: args.datatype,
        op: args.op,
        root: args.root,
        check: args.sweep.checks(),
        wire: args.wire,
        gpu: args.from_kernel,
        queued: args.queued,
        ring: args.streams.then_some(args.ring),
        timeout,
    };
    let rank = Rank::new(comm, plan, largest)?;
    let mut report = Report::new(name(kind));
    report.meta.limits = limits;
    let progress = Progress::new(name(kind), steps.len() as u64);
    let mut hardware = Hardware::of(rank.comm().nic());
    let mut by_hardware: Vec<String> = hardware.map(|_| NOTE.into()).into_iter().collect();
    for step in steps {
        for in_place in [false, true] {
            let measured = rank
                .measure(step.count, in_place, step.warmup, step.iters)
                .with_context(|| format!("{} of {} bytes", name(kind), step.bytes))?;
            let Some(m) = measured else { continue };
            let gbs = step.bytes as f64 / m.p50_us.max(1e-3) / 1e3;
            report.rows.push(Row {
                series: Some(
                    if in_place {
                        table::IN_PLACE
                    } else {
                        table::OUT_OF_PLACE
                    }
                    .into(),
                ),
                size_bytes: step.bytes,
                elements: Some(step.count),
                count: step.iters,
                time_us: m.mean_us,
                p50_us: m.p50_us,
                p99_us: m.p99_us,
                algbw_gbs: gbs,
                busbw_gbs: gbs * bus_factor(kind, job.size()),
                wrong: plan.check.then_some(m.wrong),
                ..Row::default()
            });
        }
        let what = format!(
            "{} out of place and in place",
            crate::report::size_text(step.bytes)
        );
        let done = hardware
            .as_mut()
            .and_then(|h| h.part(rank.comm().nic(), &what));
        by_hardware.extend(done);
        progress.step();
    }
    drop(progress);
    let wrong = report.wrong();
    if job.rank() == 0 {
        describe(&mut report, args, &rank)?;
        report.meta.notes.extend(renamed(kind, args.algo));
        report.meta.notes.extend(by_hardware);
        let engines = rank.comm().nic().engines();
        let at_work = engines.into_iter().find(|e| Some(e.id) == engine);
        if let (Some(e), Some(text)) = (at_work, &args.engine) {
            report.meta.notes.push(seen(text, args.engine_at, &e));
        }
        let columns = table::Columns {
            dtype: args.datatype.name().to_ascii_lowercase(),
            redop: match kind {
                CollectiveKind::AllReduce
                | CollectiveKind::Reduce
                | CollectiveKind::ReduceScatter => args.op.name().to_ascii_lowercase(),
                _ => "none".into(),
            },
            root: match kind.has_root() {
                true => args.root.to_string(),
                false => "-1".into(),
            },
        };
        let text = table::head(&report, &report.meta.notes) + &table::body(&report, &columns);
        emit_text(
            &report,
            &text,
            &args.output,
            &Plot {
                title: format!("{}, {} ranks", name(kind), job.size()),
                x: Axis::Size,
                y: Axis::Bandwidth,
            },
        )?;
    }
    // No rank ends before all have their numbers.
    rank.comm().clone().finish(END)?;
    Ok(if wrong > 0 { Exit::WrongData } else { Exit::Ok })
}

pub(super) fn name(kind: CollectiveKind) -> &'static str {
    use CollectiveKind as K;
    match kind {
        K::AllReduce => "all-reduce",
        K::ReduceScatter => "reduce-scatter",
        K::AllGather => "all-gather",
        K::Broadcast => "broadcast",
        K::Reduce => "reduce",
        K::AllToAll => "all-to-all",
        K::Gather => "gather",
        K::Scatter => "scatter",
        K::Barrier => "barrier",
        _ => "send-recv",
    }
}

/// Fills in transport, algorithms, the caller (host or kernel), and NIC memory.
fn describe(report: &mut Report, args: &Args, rank: &Rank) -> Result<()> {
    let comm = rank.comm();
    let info = comm.info()?;
    let nic = comm.nic();
    let stats = nic.backend().progress_stats();
    let meta = &mut report.meta;
    meta.nic = nic.kind().to_string();
    meta.gpu = machine::gpu_name(nic.gpu());
    meta.ranks = Some(info.ranks);
    let mut carriers: Vec<_> = info
        .peers
        .iter()
        .filter_map(|p| Some((p.transport?, p.why)))
        .collect();
    carriers.sort_unstable();
    carriers.dedup();
    meta.transport = match carriers.first() {
        Some((t, _)) => t.to_string(),
        None => "none".into(),
    };
    meta.port = match meta.transport.as_str() {
        "tcp" | "udp" | "iwarp" => nic.port().to_string(),
        _ => "none".into(),
    };
    meta.progress = if args.dedicated {
        "dedicated"
    } else {
        "waiter"
    }
    .into();
    let ranks_are = match (args.threads, info.ranks) {
        (_, 1) => "alone",
        (true, _) => "threads of one process",
        (false, _) => "processes",
    };
    let by = if args.streams {
        "a kernel posts, pushes and pops"
    } else if args.from_kernel {
        "a kernel posts and waits"
    } else if args.queued {
        "a stream of the GPU holds all operations; times are those of all by their number"
    } else {
        "the host posts and waits"
    };
    let card = match nic.backend().card_counts() {
        Some(_) => "a NIC of simulated hardware",
        None => "a software NIC",
    };
    let gpu = match nic.gpu().kind() {
        GpuKind::Emulated => "and an emulated GPU each",
        _ => "each, all on one GPU",
    };
    let mut notes = vec![format!(
        "{} rank(s), {ranks_are}, {card} {gpu}; {by}",
        info.ranks
    )];
    if args.streams {
        notes.push(format!(
            "operands: kernels' streams, {} bytes of ring each, windows of {} bytes",
            rank.ring().unwrap_or(0),
            usage::settings(args)?.stream_bytes
        ));
    }
    for (t, why) in &carriers {
        notes.push(format!("transport: {t} ({why})"));
    }
    let chosen = info
        .chosen
        .iter()
        .filter(|(k, ..)| name(*k) == meta.benchmark);
    let chosen: Vec<String> = chosen
        .map(|(_, a, n)| format!("{} {n}x", spelled(a.name())))
        .collect();
    if !chosen.is_empty() {
        let why = match args.algo {
            Algorithm::Auto => "chosen by size, ranks and transport",
            _ => "asked for",
        };
        notes.push(format!("algorithms: {} ({why})", chosen.join(", ")));
    }
    let (by_card, all) = (info.counters.card, info.counters.completed);
    if by_card > 0 {
        notes.push(format!(
            "steps: of {by_card} operations by the sequencer of rank 0's hardware, of {} in software",
            all.saturating_sub(by_card)
        ));
    }
    let waiters = stats.steps.saturating_sub(stats.thread_steps);
    notes.push(format!(
        "work of rank 0's NIC: {waiters} steps by waiting threads, {} by the NIC's own thread; {} bytes of NIC memory",
        stats.thread_steps, info.nic_memory
    ));
    if let Some(gbs) = meta.limits.memcpy_gbs {
        let ping = meta.limits.cacheline_pingpong_ns;
        let ping = ping.map_or(String::new(), |ns| {
            format!("; a cache line to the other core {ns:.0} ns")
        });
        notes.push(format!("limits of this machine, same run: memcpy {gbs:.2} GB/s at the largest size{ping}; times are medians of the slowest rank"));
    }
    meta.notes = notes;
    Ok(())
}

/// Data that rank 0's engines have seen, the measurements' own barriers and sums included.
fn seen(text: &str, place: Place, e: &EngineInfo) -> String {
    let gbs = |rate: Option<f64>| match rate {
        Some(rate) => format!("{:.2} GB/s", rate / 1e9),
        None => "too little to measure".into(),
    };
    format!(
        "engines {text} at every rank's {}: rank 0's have seen {} bytes; {} on the path, {} promised{}",
        format!("{place:?}").to_ascii_lowercase(),
        e.bytes_in,
        gbs(e.rates.engine),
        gbs(Some(e.rates.declared)),
        if e.failed { "; FAILED" } else { "" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_taps_at_a_place() {
        assert_eq!(place("sent"), Ok(Place::Sent));
        assert!(place("middle").expect_err("no place").contains("input"));
        assert!(engine("checksum|hll:p=10").is_ok());
        let e = engine("cast:f32-bf16").expect_err("not a tap");
        assert!(e.contains("--wire"), "{e}");
        assert!(engine("sha").expect_err("unknown").contains("checksum"));
    }

    #[test]
    fn names_are_those_of_the_contract() {
        assert_eq!(dtype("bf16"), Ok(DataType::Bf16));
        assert_eq!(algo("recursive-doubling"), Ok(Algorithm::RecursiveDoubling));
        assert_eq!(wire("f16"), Ok(WireType::F16));
        let e = redop("avg").expect_err("there is none");
        assert!(e.contains("sum, prod, min, max"), "{e}");
    }

    #[test]
    fn bus_bandwidth_is_counted_as_nccl_tests_does() {
        use CollectiveKind as K;
        assert_eq!(bus_factor(K::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(K::AllGather, 4), 0.75);
        assert_eq!(bus_factor(K::Broadcast, 4), 1.0);
    }
}
