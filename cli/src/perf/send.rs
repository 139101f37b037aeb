//! `perf send-bw`, `perf send-lat` and `perf send-rate`: GPU memory to GPU memory, through two
//! NICs.

use anyhow::Result;
use ringbell_perf::send::measure;

pub(crate) use ringbell_perf::send::Kind;
use ringbell_perf::wire::stride;

use super::pair::{Role, WireArgs};
use crate::report::{self, Axis, OutputArgs, Plot, Report, SweepArgs};
use crate::{Exit, Problem};

/// Arguments of the three benchmarks.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sweep: SweepArgs,
    #[command(flatten)]
    wire: WireArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Messages in flight, up to 256 [default: send-bw 16, send-rate 64 chunks to receive into;
    /// send-lat has one]
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
    let mut report = client.pair.report(kind.name(), &sizes);
    let settings = args.wire.settings(&args.sweep, args.window(kind));
    let label = |size: &u64| report::size_text(*size);
    let client = client.sweep(&mut report, &sizes, label, |client, size| {
        Ok(vec![measure(kind, &settings, &client.pair, *size)?])
    })?;
    report.meta.payload = client.pair.payload();
    client.end()?;
    report::emit(&report, &args.output, &plot(kind))?;
    summarise(kind, &report, &args.output)?;
    Ok(Exit::of_data(report.wrong()))
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
    if crate::open::is_simulated() {
        // The machine's limits say nothing about hardware.
        return Ok(());
    }
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
            report::beside_udp(report, false, output)?;
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
            report::beside_udp_ping_pong(report, output)?;
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
