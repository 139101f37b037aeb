//! `ringbell perf limits`: the reference numbers for every other benchmark.

use anyhow::Result;

use crate::report::{
    emit, limits, parse_size, size_text, Axis, OutputArgs, Plot, Progress, Report, Row,
};
use crate::{stdio, Exit, Problem};

/// Arguments of `ringbell perf limits`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Smallest buffer in bytes; K, M and G are powers of 1,024
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "4K", value_parser = parse_size)]
    min: u64,
    /// Largest buffer, at most 1G
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    max: u64,
    /// Factor between two sizes
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", default_value_t = 4,
          value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Result<Exit> {
    if args.min == 0 || args.min > args.max || args.max > 1 << 30 {
        return Err(Problem::new(
            Exit::Usage,
            format!(
                "there is no size from {} to {}",
                size_text(args.min),
                size_text(args.max)
            ),
            "give -b at least 1, and -e at least as much as -b and at most 1G",
        )
        .into());
    }
    let sizes: Vec<u64> = std::iter::successors(Some(args.min), |s| s.checked_mul(args.factor))
        .take_while(|s| *s <= args.max)
        .collect();
    let progress = Progress::new("limits", sizes.len() as u64 + 1);
    let mut report = Report::new("limits");
    let limits = &mut report.meta.limits;
    for &size in &sizes {
        progress.message(format!("memcpy of {}", size_text(size)));
        let copied = limits::memcpy(size as usize);
        limits.memcpy_gbs_by_size.insert(size, copied.gbs);
        limits.memcpy_gbs = Some(copied.gbs);
        let time_us = size as f64 / copied.gbs / 1e3;
        report.rows.push(Row {
            series: Some("memcpy".into()),
            size_bytes: size,
            count: copied.count,
            time_us,
            p50_us: time_us,
            p99_us: copied.slowest_us,
            algbw_gbs: copied.gbs,
            busbw_gbs: copied.gbs,
            ..Row::default()
        });
        progress.step();
    }
    progress.message("cache-line ping-pong");
    limits.cacheline_pingpong_ns = limits::cacheline_pingpong_ns();
    drop(progress);
    emit(
        &report,
        &args.output,
        &Plot {
            title: "memcpy of one thread".into(),
            x: Axis::Size,
            y: Axis::Bandwidth,
        },
    )?;
    if report.meta.limits.cacheline_pingpong_ns.is_none() {
        stdio::note("note: no ping-pong: it needs two cores that this process may use");
    }
    Ok(Exit::Ok)
}
