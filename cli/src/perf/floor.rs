//! `perf floor`: latencies and bandwidths of the machine without a NIC, as the reference for those
//! of a GPU.

use std::time::Duration;

use anyhow::Result;
use ringbell::gpu::EmulatedGpuConfig;
use ringbell::parts::cuda_kernels::floor::{flag_round_trips, pinned_copies};

use super::device::distribution;
use crate::report::{
    emit, limits, machine, parse_size, Axis, OutputArgs, Plot, Report, Row, Samples,
};
use crate::{open, Exit};

/// Longest wait for one flag.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Arguments of `perf floor`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Timed round trips
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 20_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iters: u32,
    /// Round trips before the timed ones
    #[arg(
        short = 'w',
        long = "warmup_iters",
        value_name = "N",
        default_value_t = 1000
    )]
    warmup: u32,
    /// Bytes of the copies, up to 4G
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = copied)]
    bytes: u64,
    /// Copies in each direction; the best counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Bytes of a copy.
fn copied(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        bytes if (1..=4 << 30).contains(&bytes) => Ok(bytes),
        _ => Err("a copy has 1 byte to 4G".into()),
    }
}

/// Measures.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let config = EmulatedGpuConfig {
        memory_bytes: args.bytes.next_multiple_of(2 << 20) + u64::from(args.iters) * 8 + (64 << 20),
        ..EmulatedGpuConfig::default()
    };
    let gpu = open::gpu(&config)?.gpu;
    let mut report = Report::new("floor");
    report.meta.nic = "none".into();
    report.meta.gpu = machine::gpu_name(&gpu);
    report.meta.progress = "none".into();
    report.meta.parameter = Some("percentile".into());
    report.meta.limits = limits::measure(&[]);
    let mut flags = Samples::with_capacity(args.iters as usize);
    for ns in flag_round_trips(&gpu, args.warmup, args.iters, TIMEOUT)? {
        flags.push(ns as f64);
    }
    distribution(&mut report, "flag", 8, flags);
    let (to, from) = pinned_copies(&gpu, args.bytes, args.rounds)?;
    for (series, ns) in [("host-to-device", to), ("device-to-host", from)] {
        let time_us = ns as f64 / 1e3;
        let gbs = args.bytes as f64 / ns.max(1) as f64;
        report.rows.push(Row {
            series: Some(series.into()),
            size_bytes: args.bytes,
            count: args.rounds.into(),
            time_us,
            p50_us: time_us,
            p99_us: time_us,
            algbw_gbs: gbs,
            busbw_gbs: gbs,
            wrong: Some(0),
            ..Row::default()
        });
    }
    emit(
        &report,
        &args.output,
        &Plot {
            title: "a word from a kernel to the host and back".into(),
            x: Axis::Parameter,
            y: Axis::Time,
        },
    )?;
    Ok(Exit::Ok)
}
