//! `perf doorbell`, `perf nop` and `perf dma`: measurements of one kernel and one NIC without a
//! peer (FpgaNIC Figures 3, 5 and 6b).
//!
//! The NIC is software and the BAR is memory of this host: the numbers are the cost of Ringbell,
//! not of a PCIe bus. They are labelled so (`nic: soft`, and the GPU).
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // Launches by the host are timed with the host's clock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringbell::abi::bar::Reg;
use ringbell::gpu::GpuKind;
use ringbell::nic::ProgressMode;
use ringbell::Nic;

use crate::report::{
    emit, limits, machine, parse_size, size_text, Axis, Meta, OutputArgs, Plot, Progress, Report,
    Row, Samples,
};
use crate::scratch::Folder;
use crate::{Exit, Problem};
use ringbell_perf::send::read_times;
use ringbell_perf::side::{progress_for_gpu, Side};

/// Percentiles shown for each series.
const PERCENTILES: [f64; 7] = [1.0, 10.0, 25.0, 50.0, 90.0, 99.0, 99.9];
/// Seed of the data that `perf dma` copies.
const SEED: u64 = 0x646d_6120_7365_6564;

/// Arguments of `perf doorbell` and `perf nop`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LatencyArgs {
    /// Timed operations of each series
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 20_000,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iters: u32,
    /// Operations before the timed ones
    #[arg(
        short = 'w',
        long = "warmup_iters",
        value_name = "N",
        default_value_t = 1000
    )]
    warmup: u32,
    /// A thread of the NIC polls: a real GPU's doorbell wakes no thread
    #[arg(long)]
    dedicated: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `perf dma`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DmaArgs {
    /// Smallest burst in bytes; K and M are powers of 1,024
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "64", value_parser = parse_size)]
    min: u64,
    /// Largest burst
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    max: u64,
    /// Factor between two bursts
    #[arg(short = 'f', long = "stepfactor", value_name = "FACTOR", default_value_t = 4,
          value_parser = clap::value_parser!(u64).range(2..))]
    factor: u64,
    /// Copies of each burst size
    #[arg(short = 'n', long = "iters", value_name = "N", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    iters: u32,
    /// Bytes of one copy
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    bytes: u64,
    /// Copies in flight
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    window: u32,
    /// A thread of the NIC polls: a real GPU's doorbell wakes no thread
    #[arg(long)]
    dedicated: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// A NIC that no other NIC finds, and its folder.
struct Alone {
    side: Side,
    _folder: Folder,
}

impl Alone {
    fn open(memory: u64, dedicated: bool) -> Result<Alone> {
        let folder = Folder::new("perf")?;
        let nic = Nic::builder().transport("local").directory(folder.path());
        let nic = nic.gpu_memory(memory).progress(match dedicated {
            true => ProgressMode::Dedicated,
            false => progress_for_gpu(),
        });
        let side = Side::new(crate::open::nic(nic)?, Duration::from_secs(5))?;
        Ok(Alone {
            side,
            _folder: folder,
        })
    }
}

impl Alone {
    /// Who steps the NIC.
    fn progress(&self) -> &'static str {
        match self.side.nic.progress() {
            ProgressMode::Dedicated => "dedicated",
            // Kernels of a real GPU cannot.
            _ if self.side.nic.gpu().kind() == GpuKind::Cuda => "thread",
            _ => "waiter",
        }
    }
}

fn report_of(alone: &Alone, benchmark: &str, parameter: Option<&str>) -> Report {
    let mut meta = Meta::new(benchmark);
    meta.nic = alone.side.nic.kind().to_string();
    meta.gpu = machine::gpu_name(alone.side.nic.gpu());
    meta.progress = alone.progress().into();
    meta.parameter = parameter.map(str::to_string);
    Report {
        meta,
        rows: Vec::new(),
    }
}

/// One row for each percentile; `time_us` is the time at it.
pub(super) fn distribution(
    report: &mut Report,
    series: &str,
    size_bytes: u64,
    mut samples: Samples,
) {
    let (p50_us, p99_us) = (samples.median() / 1e3, samples.percentile(99.0) / 1e3);
    for p in PERCENTILES {
        report.rows.push(Row {
            series: Some(series.into()),
            parameter: Some(p),
            size_bytes,
            count: samples.len() as u64,
            time_us: samples.percentile(p) / 1e3,
            p50_us,
            p99_us,
            ..Row::default()
        });
    }
}

/// Times that a kernel wrote, one for each operation.
fn kernel_times(
    alone: &Alone,
    kernel: &str,
    lead: &[u32],
    count: u32,
    tail: &[u32],
) -> Result<Samples> {
    let times = alone.side.nic.alloc::<u8>(u64::from(count) * 8)?;
    let mut args: Vec<_> = lead.iter().map(|&v| v.into()).collect();
    args.push(count.into());
    args.extend(tail.iter().map(|&v| ringbell::KernelArg::from(v)));
    args.push((&times).into());
    alone.side.run(kernel, &args)?.ok(kernel)?;
    read_times(&times, count)
}

/// The host reads a status register, through the NIC.
fn host_reads(alone: &Alone, offset: usize, count: u32) -> Result<Samples> {
    let nic = alone.side.nic.backend();
    let mut samples = Samples::with_capacity(count as usize);
    let mut last = Instant::now();
    for _ in 0..count {
        std::hint::black_box(nic.bar_read32(offset)?);
        let now = Instant::now();
        samples.push((now - last).as_nanos() as f64);
        last = now;
    }
    Ok(samples)
}

/// Empty commands that the host launches one by one, each a kernel of its own.
fn launched_times(alone: &Alone, count: u32) -> Result<Samples> {
    let nic = &alone.side.nic;
    let out = nic.alloc::<u8>(64)?;
    let queue = nic.create_queue().context("cannot create a queue")?;
    let args = [
        queue.handle().into(),
        1_u32.into(),
        0_u32.into(),
        (&out).into(),
    ];
    let mut samples = Samples::with_capacity(count as usize);
    for _ in 0..count {
        let start = Instant::now();
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        unsafe { nic.gpu().launch("rb_nop", 1, 1, &args) }?.wait(Duration::from_secs(30))?;
        samples.push(start.elapsed().as_nanos() as f64);
    }
    Ok(samples)
}

fn latency_plot(title: &str) -> Plot {
    Plot {
        title: title.into(),
        x: Axis::Parameter,
        y: Axis::Time,
    }
}

/// `perf doorbell`: register reads by a kernel, which loads the word, and by the host, which asks
/// the NIC for its value of that moment (`GPU_FPGA` and `CPU_FPGA` of FpgaNIC Figure 3); and
/// commands rung by a kernel against commands launched by the host.
pub(super) fn doorbell(args: &LatencyArgs) -> Result<Exit> {
    let progress = Progress::new("doorbell", 4);
    let alone = Alone::open((64 << 20) + u64::from(args.iters) * 16, args.dedicated)?;
    let mut report = report_of(&alone, "doorbell", Some("percentile"));
    report.meta.limits = limits::measure(&[]);
    let register = Reg::Heartbeat.offset() as u32;
    let reads = kernel_times(&alone, "rb_perf_register", &[register], args.iters, &[])?;
    distribution(&mut report, "kernel-read", 4, reads);
    progress.step();
    let reads = host_reads(&alone, Reg::Heartbeat.offset(), args.iters)?;
    distribution(&mut report, "host-read", 4, reads);
    progress.step();
    let timeout = alone.side.timeout_us();
    let rung = kernel_times(
        &alone,
        "rb_perf_nop",
        &[args.warmup],
        args.iters,
        &[timeout],
    )?;
    distribution(&mut report, "kernel-rung", 0, rung);
    progress.step();
    let launched = launched_times(&alone, args.iters.min(2000))?;
    distribution(&mut report, "host-launched", 0, launched);
    progress.step();
    drop(progress);
    emit(
        &report,
        &args.output,
        &latency_plot("commands rung by a kernel and launched by the host"),
    )?;
    Ok(Exit::Ok)
}

/// `perf nop`: the empty command, from a kernel through the NIC and back.
pub(super) fn nop(args: &LatencyArgs) -> Result<Exit> {
    let alone = Alone::open((64 << 20) + u64::from(args.iters) * 16, args.dedicated)?;
    let mut report = report_of(&alone, "nop", Some("percentile"));
    report.meta.limits = limits::measure(&[]);
    let timeout = alone.side.timeout_us();
    let times = kernel_times(
        &alone,
        "rb_perf_nop",
        &[args.warmup],
        args.iters,
        &[timeout],
    )?;
    distribution(&mut report, "empty", 0, times);
    emit(&report, &args.output, &latency_plot("the empty command"))?;
    Ok(Exit::Ok)
}

/// `perf dma`: the NIC copies inside GPU memory, in bursts of rising size.
pub(super) fn dma(args: &DmaArgs) -> Result<Exit> {
    let wrong_range = args.min == 0 || args.min > args.max || args.max > u64::from(u32::MAX);
    if wrong_range || args.bytes == 0 || args.bytes > 1 << 30 {
        return Err(Problem::new(
            Exit::Usage,
            format!(
                "bursts from {} to {} in copies of {} bytes cannot be measured",
                size_text(args.min),
                size_text(args.max),
                size_text(args.bytes)
            ),
            "give -b at least 1, -e at least as much and below 4G, and --bytes from 1 to 1G",
        )
        .into());
    }
    let bursts: Vec<u64> = std::iter::successors(Some(args.min), |s| s.checked_mul(args.factor))
        .take_while(|s| *s <= args.max)
        .collect();
    // Whole words: the kernel fills and checks eight bytes at a time.
    let bytes = args.bytes.next_multiple_of(8);
    let alone = Alone::open(4 * bytes + (64 << 20), args.dedicated)?;
    let (to, from) = (
        alone.side.nic.alloc::<u8>(bytes)?,
        alone.side.nic.alloc::<u8>(bytes)?,
    );
    let mut report = report_of(&alone, "dma", None);
    report.meta.limits = limits::measure(&[bytes]);
    let progress = Progress::new("dma", bursts.len() as u64);
    for burst in bursts {
        progress.message(size_text(burst));
        let warmup = (args.iters / 10).max(1);
        let done = alone
            .side
            .run(
                "rb_perf_copy",
                &[
                    (&to).into(),
                    (&from).into(),
                    bytes.into(),
                    (burst as u32).into(),
                    args.window.into(),
                    warmup.into(),
                    args.iters.into(),
                    SEED.into(),
                    alone.side.timeout_us().into(),
                ],
            )?
            .ok("the NIC's copy")?;
        let time_us = done.elapsed_ns as f64 / f64::from(args.iters) / 1e3;
        let gbs = bytes as f64 / 1e3 / time_us.max(1e-9);
        report.rows.push(Row {
            series: Some("dma".into()),
            size_bytes: burst,
            count: args.iters.into(),
            time_us,
            p50_us: time_us,
            p99_us: time_us,
            algbw_gbs: gbs,
            busbw_gbs: gbs,
            wrong: Some(done.wrong),
            ..Row::default()
        });
        progress.step();
    }
    drop(progress);
    emit(
        &report,
        &args.output,
        &Plot {
            title: format!("DMA by burst size, copies of {}", size_text(bytes)),
            x: Axis::Size,
            y: Axis::Bandwidth,
        },
    )?;
    Ok(Exit::of_data(report.wrong()))
}
