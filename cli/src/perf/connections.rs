//! `perf connections`: many connections between two NICs, all of them active or one (FpgaNIC Figure
//! 5b).
//!
//! One kernel sends messages on all active connections in turn, one receives them in the same order
//! and checks every byte. Total bytes do not depend on the number of connections, so neither should
//! time.
#![allow(clippy::disallowed_methods)] // Runs are timed with the host's clock, launches included.

use std::time::Instant;

use anyhow::{anyhow, Result};
use ringbell::abi::SessionId;

use super::pair::{Client, Role, WireArgs};
use crate::report::{emit, parse_size, Axis, OutputArgs, Plot, Report, Row, Samples};
use crate::{Exit, Problem};
use ringbell_perf::serve::{many_args, rounds, session_list, MANY_WINDOW};
use ringbell_perf::wire::{stride, Plan, Run, Verdict};

/// Default buffer of a TCP connection here: a thousand of them must fit into memory.
const TCP_BUFFER: u64 = 64 << 10;
/// Bytes that one run moves unless `-n` says how many messages.
const RUN_BYTES: u64 = 128 << 20;

/// Arguments of `perf connections`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Numbers of connections
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,10,100,1000",
          value_parser = clap::value_parser!(u16).range(1..=4000))]
    connections: Vec<u16>,
    /// Bytes of a message
    #[arg(short = 'b', long = "bytes", value_name = "SIZE", default_value = "16K", value_parser = parse_size)]
    bytes: u64,
    /// Messages of a run, over all connections [default: 128 MiB of them]
    #[arg(short = 'n', long = "iters", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iters: Option<u32>,
    /// Runs, of which the median is taken
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    #[command(flatten)]
    wire: WireArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measures.
pub(super) fn run(args: &Args) -> Result<Exit> {
    if args.bytes < 8 || args.bytes > 16 << 20 {
        return Err(Problem::new(
            Exit::Usage,
            format!("messages of {} bytes cannot be told apart", args.bytes),
            "give -b a size from 8 to 16M",
        )
        .into());
    }
    let mut wire = args.wire.clone();
    wire.tcp_buffer.get_or_insert(TCP_BUFFER);
    let memory = u64::from(MANY_WINDOW) * stride(args.bytes) + (64 << 20);
    let client = match wire.start("connections", memory)? {
        Role::Served => return Ok(Exit::Ok),
        Role::Client(client) => client,
    };
    let mut report = client.pair.report("connections", &[args.bytes]);
    report.meta.parameter = Some("connections".into());
    let points = &args.connections;
    let client = client.sweep(&mut report, points, u16::to_string, |client, n| {
        measure(args, client, *n)
    })?;
    client.end()?;
    emit(
        &report,
        &args.output,
        &Plot {
            title: "many connections between two NICs".into(),
            x: Axis::Parameter,
            y: Axis::Bandwidth,
        },
    )?;
    summarise(&report, &args.output)?;
    Ok(Exit::of_data(report.wrong()))
}

/// Each row against one connection.
fn summarise(report: &Report, output: &OutputArgs) -> Result<()> {
    let alone = report.rows.iter().find(|r| r.parameter == Some(1.0));
    for (row, one) in report.rows.iter().filter_map(|r| Some((r, alone?))) {
        if row.parameter == Some(1.0) {
            continue;
        }
        let line = format!(
            "# {} connections, {} active: {:.2} x one connection",
            row.parameter.unwrap_or(0.0),
            row.series.as_deref().unwrap_or(""),
            row.algbw_gbs / one.algbw_gbs
        );
        output.say(line)?;
    }
    Ok(())
}

/// Waits for the server's message that a run's bytes have arrived and that it begins the next.
fn all_arrived(client: &Client) -> Result<()> {
    match client.pair.verdict()? {
        Verdict::READY => Ok(()),
        _ => Err(anyhow!(
            "the receiving side ended before all runs were done"
        )),
    }
}

fn measure(args: &Args, client: &Client, connections: u16) -> Result<Vec<Row>> {
    let side = &client.pair.side;
    let messages = match args.iters {
        Some(n) => u64::from(n),
        None => RUN_BYTES / args.bytes,
    };
    let count = u32::try_from(messages / u64::from(connections)).unwrap_or(u32::MAX);
    let plan = Plan {
        run: Run::Many,
        full: true,
        both_ways: false,
        len: args.bytes,
        window: connections,
        part: 0,
        warmup: args.runs,
        count: count.max(1),
        timeout_us: side.timeout_us(),
        seed: args.wire.seed(),
    };
    side.tell(client.pair.session, &plan.encode())?;
    let sessions = (0..connections)
        .map(|_| {
            side.connect(
                client.pair.server,
                std::time::Duration::from_secs(10),
                || true,
            )
        })
        .collect::<Result<Vec<SessionId>>>()?;
    let list = session_list(side, &sessions)?;
    let buffer = side
        .nic
        .alloc::<u8>(u64::from(MANY_WINDOW) * stride(plan.len))?;
    let mut rows = Vec::new();
    all_arrived(client)?;
    for (active, rounds) in rounds(connections, plan.count) {
        let total = u64::from(active) * u64::from(rounds);
        let mut samples = Samples::with_capacity(plan.warmup as usize);
        for _ in 0..plan.warmup {
            let start = Instant::now();
            side.run(
                "rb_perf_many_send",
                &many_args(&plan, (&list, active), &buffer, rounds),
            )?
            .ok("send on many connections")?;
            // Not when the last send completes: TCP may still hold its bytes in a buffer.
            all_arrived(client)?;
            samples.push(start.elapsed().as_nanos() as f64 / total as f64);
        }
        let mean_ns = samples.median();
        let bandwidth = plan.len as f64 / mean_ns.max(1e-9);
        rows.push(Row {
            series: Some(if active == 1 { "one" } else { "all" }.into()),
            parameter: Some(connections.into()),
            size_bytes: plan.len,
            count: total,
            time_us: mean_ns / 1e3,
            p50_us: mean_ns / 1e3,
            p99_us: samples.percentile(99.0) / 1e3,
            algbw_gbs: bandwidth,
            busbw_gbs: bandwidth,
            wrong: Some(0),
            ..Row::default()
        });
    }
    // The receiver counts over all runs: the last row has its count.
    let wrong = client.pair.verdict()?.wrong;
    if let Some(row) = rows.last_mut() {
        row.wrong = Some(wrong);
    }
    sessions.into_iter().try_for_each(|s| side.close(s))?;
    Ok(rows)
}
