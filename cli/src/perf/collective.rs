//! `ringbell perf all-reduce` and the other collectives, in the form of nccl-tests.

pub(super) mod args;
#[cfg(feature = "cuda")]
pub(super) mod beside;
mod protocol;
pub(super) mod table;
pub(super) mod usage;
mod watch;

use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use ringbell::comm::CollectiveKind;
use ringbell::engines::{EngineInfo, Place, Registry};
use ringbell::gpu::GpuKind;
use ringbell::job::{BootstrapServer, JobError, JobSource};
use ringbell::nic::ProgressMode;
use ringbell::parts::nic_core::scratch;
use ringbell::{Algorithm, CommOptions, Communicator, DataType, Job, UniqueId};

use serde::{Deserialize, Serialize};

pub(super) use self::args::Args;
use self::args::{name, spelled};
use self::watch::{lacks_something, Watch, END};
use super::super::run::binding::Binding;
use super::super::run::programs::Programs;
use super::super::run::ranks::Ranks;
use super::super::run::wiring::Wiring;
use crate::report::{
    emit_text, limits, machine, Axis, Limits, Plot, Progress, Report, Row, SweepArgs,
};
use crate::{open, Exit, Problem};
use ringbell_perf::collective::data::Shape;
use ringbell_perf::collective::rank::{Plan, Rank};
use ringbell_perf::hardware::{Hardware, NOTE};

/// Longest time for ranks to find each other.
const START: Duration = Duration::from_secs(120);

/// One size: bytes as the table has them, and elements as the operation counts them.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Step {
    pub(super) bytes: u64,
    pub(super) count: u64,
    pub(super) warmup: u64,
    pub(super) iters: u64,
}

/// Measures a collective.
pub(crate) fn run(kind: CollectiveKind, args: &Args) -> Result<Exit> {
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
            let binding = Binding::new(args.bind_to, job.size())?;
            let limits = measure_limits(args, job.rank(), &steps);
            binding.bind(job.rank())?;
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
    let wiring = Wiring::new(
        args.ranks(),
        args.transport,
        args.port.as_ref(),
        args.mtu,
        &args.network,
    )?;
    let server = BootstrapServer::start((Ipv4Addr::LOCALHOST, 0).into(), Some(args.ranks()))?;
    let id = server.id();
    let switches = wiring.switches(&id)?;
    let done = match args.threads {
        true => in_threads(kind, args, &wiring, &server, &steps, limits),
        false => in_processes(kind, args, &wiring, &server, &steps, limits),
    };
    drop(switches);
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

fn in_processes(
    kind: CollectiveKind,
    args: &Args,
    wiring: &Wiring,
    server: &BootstrapServer,
    steps: &[Step],
    limits: Limits,
) -> Result<Exit> {
    let binding = Binding::new(args.bind_to, args.ranks())?;
    let exe = std::env::current_exe().context("cannot find this program's own file")?;
    let mut program = vec![exe.to_string_lossy().into_owned()];
    program.extend(std::env::args().skip(1));
    let id = server.id();
    let (programs, none) = (Programs::same(&program, args.ranks()), Binding::default());
    let ranks = Ranks::start(1..args.ranks(), &programs, false, &none, |rank| {
        wiring.environment(rank, args.ranks(), args.transport, &id)
    })?;
    let watch = Watch::new(ranks);
    binding.bind(0)?;
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
        report.meta.notes.extend(by_hardware);
        if args.explain_protocol {
            let info = rank.comm().info()?;
            let sizes = steps.iter().map(|s| s.bytes);
            report
                .meta
                .notes
                .extend(protocol::lines(kind, &info, sizes));
        }
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
    fn bus_bandwidth_is_counted_as_nccl_tests_does() {
        use CollectiveKind as K;
        assert_eq!(bus_factor(K::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(K::AllGather, 4), 0.75);
        assert_eq!(bus_factor(K::Broadcast, 4), 1.0);
    }
}
