//! `perf send-bw`, `perf send-lat` and `perf send-rate`: GPU memory to GPU memory, through two NICs.

use anyhow::Result;
use ringbell::abi::GpuVa;
use ringbell::DeviceBuffer;

use super::pair::{Client, Role, WireArgs};
use super::serve::stride;
use super::wire::{Plan, Run};
use crate::report::{self, Axis, OutputArgs, Plot, Progress, Report, Row, Samples, SweepArgs};
use crate::{Exit, Problem};

/// Messages whose time is taken one by one; the clock would weigh on smaller ones.
const TIMED_FROM: u64 = 4096;

/// Arguments of the three benchmarks.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sweep: SweepArgs,
    #[command(flatten)]
    wire: WireArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Messages in flight, up to 256 [default: send-bw 16, send-rate 64 chunks to receive into; send-lat has one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=256))]
    window: Option<u16>,
}

impl Args {
    /// Messages in flight; for [`Kind::Rate`] the chunks that the receiver has posted.
    fn window(&self, kind: Kind) -> u16 {
        self.window.unwrap_or(match kind {
            Kind::Rate => 64,
            Kind::Bandwidth | Kind::Latency => 16,
        })
    }
}

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Windowed stream of messages.
    Bandwidth,
    /// Ping-pong; times are half round trips.
    Latency,
    /// 8-byte messages, each a descriptor of its own.
    Rate,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Bandwidth => "send-bw",
            Kind::Latency => "send-lat",
            Kind::Rate => "send-rate",
        }
    }
}

/// Runs one of them.
pub(crate) fn run(kind: Kind, args: &Args) -> Result<Exit> {
    let usage = |advice: &'static str| move |what| Problem::new(Exit::Usage, what, advice);
    let sizes = match kind {
        Kind::Bandwidth => args.sweep.sizes(1 << 10, 16 << 20),
        Kind::Latency => args.sweep.sizes(8, 64 << 10),
        Kind::Rate => {
            let sized = args.sweep.no_sizes("messages of send-rate have 8 bytes");
            sized.map_err(usage("leave it away, or measure send-bw"))?;
            Ok(vec![8])
        }
    }
    .map_err(usage("give sizes such as -b 8 -e 16M -f 2"))?;
    if kind == Kind::Latency && args.window.is_some() {
        let what = "--window would change nothing: send-lat has one message in flight".to_string();
        return Err(usage("leave it away, or measure send-bw")(what).into());
    }
    let largest = sizes.last().copied().unwrap_or(8);
    super::memory::one_descriptor(largest)?;
    // Every message of the window has a place of its own on both sides.
    let memory = (u64::from(args.window(kind)) + 2) * stride(largest) + (64 << 20);
    let client = match args.wire.start(kind.name(), memory)? {
        Role::Served => return Ok(Exit::Ok),
        Role::Client(client) => client,
    };
    let mut report = client.report(kind.name(), &sizes);
    let progress = Progress::new(kind.name(), sizes.len() as u64);
    for size in &sizes {
        progress.message(report::size_text(*size));
        match measure(kind, args, &client, *size) {
            Ok(row) => report.rows.push(row),
            Err(e) => return Err(client.abandon(e)),
        }
        progress.step();
    }
    drop(progress);
    report.meta.payload = client.payload();
    client.end()?;
    report::emit(&report, &args.output, &plot(kind))?;
    summarise(kind, &report, &args.output)?;
    Ok(if report.wrong() == 0 {
        Exit::Ok
    } else {
        Exit::WrongData
    })
}

fn plot(kind: Kind) -> Plot {
    Plot {
        title: format!("{} between two GPUs", kind.name()),
        x: Axis::Size,
        y: if kind == Kind::Latency {
            Axis::P50
        } else {
            Axis::Bandwidth
        },
    }
}

/// The ratios that matter, against the limits of the same run.
fn summarise(kind: Kind, report: &Report, output: &OutputArgs) -> Result<()> {
    let say = |line: String| output.say(line);
    match kind {
        Kind::Bandwidth => {
            for row in &report.rows {
                if let Some(memcpy) = report
                    .meta
                    .limits
                    .memcpy_at(row.size_bytes)
                    .filter(|_| row.size_bytes >= 64 << 10)
                {
                    let size = report::size_text(row.size_bytes);
                    say(format!(
                        "# {size}: {:.2} x one-copy memcpy of the same size ({memcpy:.2} GB/s)",
                        row.algbw_gbs / memcpy
                    ))?;
                }
            }
        }
        Kind::Latency => {
            if let (Some(row), Some(ns)) = (
                report.rows.first(),
                report.meta.limits.cacheline_pingpong_ns,
            ) {
                say(format!(
                    "# {} B: median {:.0} ns half round trip, {:.2} x a cache-line ping-pong ({ns:.0} ns)",
                    row.size_bytes,
                    row.p50_us * 1e3,
                    row.p50_us * 1e3 / ns
                ))?;
            }
        }
        Kind::Rate => {
            for row in &report.rows {
                say(format!(
                    "# {:.2} million messages per second, {:.1} ns each",
                    1.0 / row.time_us,
                    row.time_us * 1e3
                ))?;
            }
        }
    }
    Ok(())
}

fn measure(kind: Kind, args: &Args, client: &Client, size: u64) -> Result<Row> {
    let (count, warmup) = match kind {
        Kind::Bandwidth => {
            let count = ((1 << 29) / size.max(1)).clamp(32, 20_000);
            (count, (count / 10).max(u64::from(args.window(kind))))
        }
        Kind::Latency => {
            let count = ((1 << 27) / size.max(1)).clamp(200, 20_000);
            (count, count / 10)
        }
        Kind::Rate => (2_000_000, 0),
    };
    let count = u32::try_from(args.sweep.iters.unwrap_or(count)).unwrap_or(u32::MAX);
    let warmup = u32::try_from(args.sweep.warmup.unwrap_or(warmup)).unwrap_or(u32::MAX);
    let plan = Plan {
        run: match kind {
            Kind::Bandwidth => Run::Bandwidth,
            Kind::Latency => Run::PingPong,
            Kind::Rate => Run::Rate,
        },
        full: false,
        len: size,
        window: args.window(kind),
        part: 0,
        warmup,
        count,
        timeout_us: client.side.timeout_us(),
        seed: args.wire.seed(),
    };
    let mut row = timed(kind, client, &plan)?;
    if !args.sweep.checks() {
        row.wrong = None;
    } else if kind != Kind::Rate {
        // Every byte of fresh messages, outside the timed part.
        let full = Plan {
            full: true,
            warmup: 0,
            count: count.min(32),
            seed: plan.seed + 1,
            ..plan
        };
        row.wrong = Some(row.wrong.unwrap_or(0) + timed(kind, client, &full)?.wrong.unwrap_or(0));
    }
    Ok(row)
}

/// One run of a plan on both sides.
fn timed(kind: Kind, client: &Client, plan: &Plan) -> Result<Row> {
    let side = &client.side;
    let take_times = kind == Kind::Latency || (kind == Kind::Bandwidth && plan.len >= TIMED_FROM);
    let times = side.nic.alloc::<u8>(if take_times {
        u64::from(plan.count.max(1)) * 8
    } else {
        8
    })?;
    let times_va = if take_times { times.va() } else { GpuVa(0) };
    let id = client.session.0.into();
    side.tell(client.session, &plan.encode())?;
    let result = match kind {
        Kind::Bandwidth => {
            let buffer = side
                .nic
                .alloc::<u8>(u64::from(plan.window) * stride(plan.len) + 64)?;
            side.run(
                "rb_perf_bw_send",
                &[
                    id,
                    (&buffer).into(),
                    plan.len.into(),
                    stride(plan.len).into(),
                    u32::from(plan.window).into(),
                    plan.warmup.into(),
                    plan.count.into(),
                    plan.seed.into(),
                    u32::from(plan.full).into(),
                    plan.timeout_us.into(),
                    times_va.into(),
                ],
            )?
        }
        Kind::Latency => {
            let buffer = side.nic.alloc::<u8>(2 * stride(plan.len))?;
            side.run(
                "rb_perf_pingpong",
                &[
                    id,
                    0_u32.into(),
                    (&buffer).into(),
                    GpuVa(buffer.va().0 + stride(plan.len)).into(),
                    plan.len.into(),
                    plan.warmup.into(),
                    plan.count.into(),
                    u32::from(plan.full).into(),
                    plan.timeout_us.into(),
                    times_va.into(),
                ],
            )?
        }
        Kind::Rate => {
            let control = side.nic.alloc::<u8>(64)?;
            side.run(
                "rb_perf_rate_send",
                &[
                    id,
                    (&control).into(),
                    u64::from(plan.count).into(),
                    256_u32.into(),
                    plan.seed.into(),
                    plan.timeout_us.into(),
                ],
            )?
        }
    }
    .ok(kind.name())?;
    let verdict = client.verdict()?;
    let half = if kind == Kind::Latency { 2.0 } else { 1.0 };
    let mean_ns = result.elapsed_ns as f64 / f64::from(plan.count.max(1)) / half;
    let mut row = Row {
        size_bytes: plan.len,
        count: plan.count.into(),
        time_us: mean_ns / 1e3,
        p50_us: mean_ns / 1e3,
        p99_us: mean_ns / 1e3,
        algbw_gbs: plan.len as f64 / mean_ns.max(1e-9),
        wrong: Some(result.wrong + verdict.wrong),
        ..Row::default()
    };
    row.busbw_gbs = row.algbw_gbs;
    if take_times {
        let mut samples = read_times(&times, plan.count)?;
        // A message of a stream is outstanding as long as the window ahead of it: each of those took a part.
        let shared = match kind {
            Kind::Bandwidth => f64::from(plan.window).min(f64::from(plan.count)),
            _ => half,
        };
        row.p50_us = samples.median() / shared / 1e3;
        row.p99_us = samples.percentile(99.0) / shared / 1e3;
    }
    Ok(row)
}

/// Nanoseconds that a kernel wrote, one for each operation.
pub(super) fn read_times(times: &DeviceBuffer, count: u32) -> Result<Samples> {
    let mut raw = vec![0; count as usize * 8];
    times.read(0, &mut raw)?;
    let mut samples = Samples::with_capacity(count as usize);
    for word in raw.chunks_exact(8) {
        let mut b = [0; 8];
        b.copy_from_slice(word);
        samples.push(u64::from_ne_bytes(b) as f64);
    }
    Ok(samples)
}
