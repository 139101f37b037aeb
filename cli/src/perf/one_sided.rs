//! `perf write-lat`, `write-bw`, `read-lat`, `read-bw` and `atomic-lat`: one-sided operations on
//! the other side's GPU memory.

use anyhow::Result;
use ringbell_perf::one_sided::measure;
use ringbell_perf::send::{measure as measure_send, Kind as SendKind, Settings};

pub(crate) use ringbell_perf::one_sided::Kind;
use ringbell_perf::wire::stride;

use super::pair::{Role, WireArgs};
use crate::report::{self, Axis, OutputArgs, Plot, SweepArgs};
use crate::{Exit, Problem};

/// Arguments of the benchmarks.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sweep: SweepArgs,
    #[command(flatten)]
    wire: WireArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// Operations in flight of write-bw and read-bw, up to 256
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    window: u16,
    /// write-bw and read-bw: the other side does the same to this side's memory at the same time;
    /// algbw is then one way at the slower side, busbw both together
    #[arg(long)]
    bidirectional: bool,
}

/// Runs one of them.
pub(crate) fn run(kind: Kind, args: &Args) -> Result<Exit> {
    let usage = |advice: &'static str| move |what| Problem::new(Exit::Usage, what, advice);
    let sizes = match kind {
        Kind::WriteLatency | Kind::ReadLatency => args.sweep.sizes(8, 64 << 10),
        Kind::WriteBandwidth | Kind::ReadBandwidth => args.sweep.sizes(1 << 10, 16 << 20),
        Kind::AtomicLatency => {
            let sized = args.sweep.no_sizes("atomics have 8 bytes");
            sized.map_err(usage("leave it away, or measure write-lat"))?;
            Ok(vec![8])
        }
    }
    .map_err(usage("give sizes such as -b 8 -e 16M -f 2"))?;
    if args.bidirectional && kind.is_latency() {
        let what = format!(
            "--bidirectional is for write-bw and read-bw, not for {}",
            kind.name()
        );
        return Err(Problem::new(Exit::Usage, what, "leave it away").into());
    }
    let largest = sizes.last().copied().unwrap_or(8);
    super::memory::one_descriptor(largest)?;
    let memory = (u64::from(args.window) + 2) * stride(largest) + (64 << 20);
    let client = match args.wire.start(kind.name(), memory)? {
        Role::Served => return Ok(Exit::Ok),
        Role::Client(client) => client,
    };
    let carrier = client.pair.transport();
    if matches!(carrier.as_str(), "tcp" | "udp") {
        let name = kind.name();
        let what =
            format!("{name} needs one-sided operations, which transport `{carrier}` has not");
        let advice = "measure with --transport rdma or iwarp, or local between NICs of one host";
        return Err(client.abandon(Problem::new(Exit::Usage, what, advice).into()));
    }
    let mut report = client.pair.report(kind.name(), &sizes);
    let settings = Settings {
        both_ways: args.bidirectional,
        ..args.wire.settings(&args.sweep, args.window)
    };
    let label = |size: &u64| report::size_text(*size);
    let client = client.sweep(&mut report, &sizes, label, |client, size| {
        Ok(vec![measure(kind, &settings, &client.pair, *size)?])
    })?;
    // The message that a put with a signal replaces, in the same run.
    let beside = match (kind, report.rows.first()) {
        (Kind::WriteLatency, Some(row)) => {
            let send = measure_send(SendKind::Latency, &settings, &client.pair, row.size_bytes);
            match send {
                Ok(send) => Some((row.size_bytes, row.p50_us, send.p50_us)),
                Err(e) => return Err(client.abandon(e)),
            }
        }
        _ => None,
    };
    report.meta.payload = client.pair.payload();
    client.end()?;
    let plot = Plot {
        title: format!("{} of another GPU's memory", kind.name()),
        x: Axis::Size,
        y: match kind.is_latency() {
            true => Axis::P50,
            false => Axis::Bandwidth,
        },
    };
    report::emit(&report, &args.output, &plot)?;
    if let Some((size, put, send)) = beside {
        let (put_ns, send_ns) = (put * 1e3, send * 1e3);
        args.output.say(format!(
            "# {size} B: median {put_ns:.0} ns half round trip, {:.2} x send-lat of the same run ({send_ns:.0} ns)",
            put / send
        ))?;
    }
    match kind {
        Kind::WriteLatency => report::beside_udp_ping_pong(&report, &args.output)?,
        // Their times are whole round trips.
        Kind::ReadLatency | Kind::AtomicLatency => {}
        _ => report::beside_udp(&report, args.bidirectional, &args.output)?,
    }
    Ok(Exit::of_data(report.wrong()))
}
