//! `perf hll`: a stream with and without HyperLogLog on its path, by payload size (FpgaNIC Figure
//! 9).
#![allow(clippy::disallowed_methods)] // The engine alone is timed here.

use std::time::Instant;

use anyhow::Result;
use ringbell::engines::StreamEngine;
use ringbell::gpu::GpuKind;
use ringbell::nic::TransportSpec;

use crate::hll::kernel::{Kernel, KernelArgs};
use crate::hll::path::{Flow, Path, WINDOW};
use crate::hll::{parse, SketchArgs};
use crate::report::{
    self, draw, limits, machine, Axis, OutputArgs, Plot, Progress, Report, Row, Samples, SweepArgs,
};
use crate::{files, stdio, Exit, Problem};

/// Rounds of each size: the three measurements in turn, so that a disturbance affects all.
const ROUNDS: usize = 5;

/// Arguments of `perf hll`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sweep: SweepArgs,
    #[command(flatten)]
    sketch: SketchArgs,
    #[command(flatten)]
    kernel: KernelArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// What carries the stream: `local` from memory to memory, `tcp` over an in-memory switch
    #[arg(long, default_value = "local", value_name = "local|tcp")]
    transport: TransportSpec,
    /// Both NICs and both hosts on one core
    #[arg(long)]
    one_core: bool,
    /// Seed of the items
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
}

/// Measures.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let usage = |what| Problem::new(Exit::Usage, what, "give sizes such as -b 4K -e 16M -f 4");
    let sizes = args.sweep.sizes(4 << 10, 16 << 20).map_err(usage)?;
    let largest = sizes.last().copied().unwrap_or(0);
    if sizes.first().is_none_or(|s| *s == 0) || largest > 256 << 20 {
        return Err(usage("a payload has 1 byte to 256 MiB".into()).into());
    }
    args.sketch.engine()?;
    if args.one_core {
        // Before any NIC starts a thread: threads inherit the affinity.
        let core = machine::cores().first().copied();
        if !core.is_some_and(machine::pin_to) {
            stdio::note("# the kernel refused to pin this process to one core");
        }
    }
    let path = Path::open(args.transport, largest, args.sketch.engine_thread)?;
    let items = items(args.seed, (WINDOW * largest) as usize);
    path.fill(0, &items)?;
    let mut report = Report::new("hll");
    let mut grid = None;
    let progress = Progress::new("hll", sizes.len() as u64);
    for size in &sizes {
        progress.message(report::size_text(*size));
        let (mut row, transport) = measure(args, &path, &items, *size)?;
        if let Some(kernel) = args.kernel.open(&path, &args.sketch)? {
            let (gbs, wrong) = without_offload(args, &kernel, &items, *size)?;
            row.kernel_gbs = Some(gbs);
            row.wrong = row.wrong.map(|w| w + wrong);
            grid = Some(kernel.grid());
        }
        report.meta.transport = transport.into();
        report.rows.push(row);
        progress.step();
    }
    drop(progress);
    report.meta.nic = path.nic().to_string();
    report.meta.gpu = machine::gpu_name(path.gpu());
    report.meta.port = if report.meta.transport == "local" {
        "none".into()
    } else {
        "mem".into()
    };
    report.meta.progress = if args.one_core {
        "waiter, one core".into()
    } else {
        "waiter".into()
    };
    if let Some((blocks, lanes)) = grid {
        report.meta.notes.push(format!(
            "kernel: HyperLogLog without offload, counted by {blocks} x {lanes} threads of the {}",
            match path.gpu().kind() {
                GpuKind::Emulated => {
                    "emulated GPU, which are threads of this host: no figure of a real GPU"
                }
                _ => "GPU",
            }
        ));
    }
    report.meta.limits = limits::measure(&sizes);
    finish(args, &report)
}

fn finish(args: &Args, report: &Report) -> Result<Exit> {
    let plot = Plot {
        title: "HyperLogLog on the path".into(),
        x: Axis::Size,
        y: Axis::Bandwidth,
    };
    let table = OutputArgs {
        svg: None,
        ..args.output.clone()
    };
    report::emit(report, &table, &plot)?;
    for row in &report.rows {
        let (Some(engine), Some(stream)) = (row.engine_gbs, row.stream_gbs) else {
            continue;
        };
        let kernel = row.kernel_gbs.map_or(String::new(), |gbs| {
            format!("; counted by the kernel on the gpu {gbs:.3} GB/s")
        });
        let line = format!(
            "# {}: engine alone {engine:.2} GB/s, stream without {stream:.2}, with {:.2}: {:.2} x min, {:.2} x one after the other{kernel}",
            report::size_text(row.size_bytes),
            row.algbw_gbs,
            row.algbw_gbs / engine.min(stream),
            row.algbw_gbs * (1.0 / engine + 1.0 / stream),
        );
        args.output.say(line)?;
    }
    if let Some(file) = &args.output.svg {
        let svg = draw(&curves(report), &plot)?;
        files::write(file, svg, "--svg")?;
    }
    Ok(Exit::of_data(report.wrong()))
}

/// Each row as a point of three curves, or four.
fn curves(report: &Report) -> Report {
    let mut drawn = report.clone();
    let kernel = match report.meta.gpu.as_str() {
        "emulated" => "gpu kernel (emulated)",
        _ => "gpu kernel",
    };
    drawn.rows.clear();
    for row in &report.rows {
        for (name, gbs) in [
            ("engine off", row.stream_gbs),
            ("engine on", Some(row.algbw_gbs)),
            ("engine alone", row.engine_gbs),
            (kernel, row.kernel_gbs),
        ] {
            if gbs.is_none() && name.starts_with("gpu") {
                continue;
            }
            drawn.rows.push(Row {
                series: Some(name.into()),
                algbw_gbs: gbs.unwrap_or(0.0),
                ..row.clone()
            });
        }
    }
    drawn
}

/// Pseudo-random items (SplitMix64).
fn items(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    out.truncate(bytes);
    out
}

fn measure(args: &Args, path: &Path, items: &[u8], size: u64) -> Result<(Row, &'static str)> {
    let default = ((256 << 20) / size).clamp(4 * WINDOW, 50_000);
    let count = args.sweep.iters.unwrap_or(default);
    let used = (WINDOW.min(count) * size) as usize;
    let stream = |engine: bool, count: u64| -> Result<Flow> {
        let engine = match engine {
            true => Some(Box::new(args.sketch.engine()?) as Box<dyn StreamEngine>),
            false => None,
        };
        let mut left = count;
        path.stream(size, engine, |_| {
            let n = if left > 0 { size } else { 0 };
            left = left.saturating_sub(1);
            Ok(n)
        })
    };
    let transport = stream(false, args.sweep.warmup.unwrap_or(2 * WINDOW))?.transport;
    let (mut on, mut off, mut alone) = (
        Samples::with_capacity(ROUNDS),
        Samples::with_capacity(ROUNDS),
        Samples::with_capacity(ROUNDS),
    );
    let mut result = Vec::new();
    for _ in 0..ROUNDS {
        off.push(stream(false, count)?.gbs());
        let flow = stream(true, count)?;
        on.push(flow.gbs());
        result = flow.result.unwrap_or_default();
        alone.push(engine_alone(args, &items[..used], count)?);
    }
    let mut wrong = None;
    if args.sweep.checks() {
        wrong = Some(check(args, path, &items[..used], &result)?);
    }
    let algbw_gbs = on.median();
    let time_us = size as f64 / algbw_gbs / 1e3;
    let row = Row {
        size_bytes: size,
        count,
        time_us,
        p50_us: time_us,
        p99_us: size as f64 / on.percentile(0.0) / 1e3,
        algbw_gbs,
        busbw_gbs: algbw_gbs,
        engine_gbs: Some(alone.median()),
        stream_gbs: Some(off.median()),
        wrong,
        ..Row::default()
    };
    Ok((row, transport))
}

/// The stream counted by a kernel on the GPU, and the number of wrong registers. An emulated GPU is
/// slow: it gets a part of the messages.
fn without_offload(
    args: &Args,
    kernel: &Kernel<'_>,
    items: &[u8],
    size: u64,
) -> Result<(f64, u64)> {
    let most = args.sweep.iters.unwrap_or(u64::MAX);
    let count = ((8 << 20) / size).clamp(WINDOW, 2_000).min(most);
    let mut speeds = Samples::with_capacity(2);
    for _ in 0..2 {
        let mut left = count;
        let flow = kernel.stream(size, Some(count * size), |_| {
            let n = if left > 0 { size } else { 0 };
            left = left.saturating_sub(1);
            Ok(n)
        })?;
        speeds.push(flow.gbs());
    }
    if !args.sweep.checks() {
        return Ok((speeds.median(), 0));
    }
    // The ring is reused: an item may straddle its end.
    let used = (WINDOW.min(count) * size) as usize;
    let mut model = args.sketch.engine()?;
    for at in (0..count).step_by(WINDOW as usize) {
        let rest = ((count - at) * size) as usize;
        model.process(&items[..used.min(rest)], &mut Vec::new());
    }
    let (_, sketch) = kernel.result(count * size)?;
    let pairs = sketch.registers().iter().zip(model.sketch().registers());
    Ok((
        speeds.median(),
        pairs.filter(|(a, b)| a != b).count() as u64,
    ))
}

/// The engine over the same items in ordinary memory, without a NIC.
fn engine_alone(args: &Args, items: &[u8], count: u64) -> Result<f64> {
    let mut engine = args.sketch.engine()?;
    let rounds = count.div_ceil(WINDOW).max(1);
    let start = Instant::now();
    for _ in 0..rounds {
        engine.process(items, &mut Vec::new());
    }
    let elapsed = start.elapsed().as_secs_f64().max(1e-9);
    let bytes = rounds as f64 * items.len() as f64;
    // The result is used, so that the work cannot be left out.
    std::hint::black_box(engine.items());
    Ok(bytes / elapsed / 1e9)
}

/// Number of wrong bytes of GPU memory, and of wrong registers.
fn check(args: &Args, path: &Path, items: &[u8], result: &[u8]) -> Result<u64> {
    let mut arrived = vec![0; items.len()];
    path.arrived(0, &mut arrived)?;
    let differ = |a: &[u8], b: &[u8]| a.iter().zip(b).filter(|(a, b)| a != b).count() as u64;
    let mut model = args.sketch.engine()?;
    model.process(items, &mut Vec::new());
    let (_, sketch) = parse(result)?;
    Ok(differ(&arrived, items) + differ(sketch.registers(), model.sketch().registers()))
}
