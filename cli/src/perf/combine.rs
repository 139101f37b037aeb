//! `perf combine`: the sum of two arrays in GPU memory, by the NIC and by kernels on few or many
//! SMs.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // The NIC's operations are timed by the host.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringbell::parts::cuda_kernels::perf::PerfResult;
use ringbell::parts::cuda_kernels::reduce::ReduceKernel;
use ringbell::{CommOptions, Communicator, DataType, DeviceBuffer, Nic, Operation, ReduceOp};

use crate::report::{
    emit, limits, machine, size_text, Axis, OutputArgs, Plot, Progress, Report, Row, SweepArgs,
};
use crate::{open, Exit, Problem};
use ringbell_perf::side::progress_for_gpu;

/// How long a kernel may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sums after which every element is still a whole number below 2^24.
const MOST_SUMS: u64 = 1_000_000;

/// Arguments of `perf combine`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sweep: SweepArgs,
    /// Blocks of the kernel, a series for each number: as many SMs as the reduction may use
    #[arg(long, value_delimiter = ',', default_value = "1,8", value_name = "N,N,...",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    blocks: Vec<u32>,
    /// Threads of a block
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=512))]
    lanes: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measures.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let usage = |what| Problem::new(Exit::Usage, what, "give sizes such as -b 64K -e 16M -f 4");
    let sizes = args.sweep.sizes(64 << 10, 16 << 20).map_err(usage)?;
    let largest = sizes.last().copied().unwrap_or(4);
    if sizes.iter().any(|s| *s < 4 || s % 4 != 0) || largest > 1 << 30 {
        return Err(usage("arrays of f32 have multiples of 4 bytes, up to 1G".into()).into());
    }
    let (warmup, iters) = (
        args.sweep.warmup.unwrap_or(2),
        args.sweep.iters.unwrap_or(10),
    );
    if warmup + iters > MOST_SUMS {
        return Err(usage(format!("beyond {MOST_SUMS} sums f32 is no longer exact")).into());
    }
    let (warmup, iters) = (warmup as u32, iters as u32);
    let nic = Nic::builder().progress(progress_for_gpu());
    let nic = open::nic(nic.gpu_memory(2 * largest + (64 << 20)))?;
    // The NIC's own reductions need a communicator, if only of one rank.
    let comms = Communicator::init_all(std::slice::from_ref(&nic), &CommOptions::default())?;
    let comm = comms.first().context("no communicator")?;
    let arrays = Arrays {
        sum: nic.alloc::<u8>(largest)?,
        other: nic.alloc::<u8>(largest)?,
        result: nic.alloc::<u8>(PerfResult::BYTES)?,
    };
    let mut report = Report::new("combine");
    report.meta.nic = nic.kind().to_string();
    report.meta.gpu = machine::gpu_name(nic.gpu());
    report.meta.limits = limits::measure(&sizes);
    report.meta.notes.push(format!(
        "nic: a descriptor from the host for each sum; gpu-N: one launch of N blocks of {} threads, its time that of \
         the first block",
        args.lanes
    ));
    let progress = Progress::new("combine", sizes.len() as u64);
    for &size in &sizes {
        progress.message(size_text(size));
        arrays.fill(size)?;
        let mut time_ns = 0;
        for i in 0..warmup + iters {
            let start = Instant::now();
            let sum =
                Operation::combine::<f32>(&arrays.other, &arrays.sum, size / 4, ReduceOp::Sum);
            comm.run(&sum)?;
            if i >= warmup {
                time_ns += start.elapsed().as_nanos() as u64;
            }
        }
        let wrong = || {
            let checked = args.sweep.checks();
            checked
                .then(|| arrays.wrong(size, warmup + iters))
                .transpose()
        };
        let by_nic = row("nic".into(), size, iters, time_ns, wrong()?);
        report.rows.push(by_nic);
        for &blocks in &args.blocks {
            arrays.fill(size)?;
            let kernel = ReduceKernel {
                blocks,
                lanes: args.lanes,
                dtype: DataType::F32,
                op: ReduceOp::Sum,
            };
            let mut time_ns = 0;
            for n in [warmup, iters] {
                let (to, from) = (arrays.sum.va(), [arrays.sum.va(), arrays.other.va()]);
                let out = arrays.result.memory();
                // SAFETY: the kernel's own parameters, and memory that outlives it.
                let launch = unsafe { kernel.launch(nic.gpu(), to, &from, size / 4, n, out) }?;
                launch.wait(PATIENCE)?;
                time_ns = PerfResult::read(out, 0)?.elapsed_ns;
            }
            let name = format!("gpu-{blocks}");
            report.rows.push(row(name, size, iters, time_ns, wrong()?));
        }
        progress.step();
    }
    drop(progress);
    let plot = Plot {
        title: "sums of two arrays, by the NIC and by kernels".into(),
        x: Axis::Size,
        y: Axis::Bandwidth,
    };
    emit(&report, &args.output, &plot)?;
    Ok(Exit::of_data(report.wrong()))
}

fn row(series: String, size_bytes: u64, iters: u32, time_ns: u64, wrong: Option<u64>) -> Row {
    let time_us = time_ns as f64 / f64::from(iters.max(1)) / 1e3;
    let gbs = size_bytes as f64 / 1e3 / time_us.max(1e-9);
    Row {
        series: Some(series),
        size_bytes,
        count: iters.into(),
        time_us,
        p50_us: time_us,
        p99_us: time_us,
        algbw_gbs: gbs,
        busbw_gbs: gbs,
        wrong,
        ..Row::default()
    }
}

/// Each operation adds `other` to `sum`.
struct Arrays {
    sum: DeviceBuffer,
    other: DeviceBuffer,
    result: DeviceBuffer,
}

/// Small whole numbers, so that any number of sums is exact.
fn first(i: u64) -> f32 {
    (i * 7 % 31) as f32
}

fn second(i: u64) -> f32 {
    (i * 5 % 13) as f32
}

impl Arrays {
    fn fill(&self, bytes: u64) -> Result<()> {
        for (buffer, value) in [(&self.sum, first as fn(u64) -> f32), (&self.other, second)] {
            let words: Vec<u8> = (0..bytes / 4)
                .flat_map(|i| value(i).to_ne_bytes())
                .collect();
            buffer.write(0, &words)?;
        }
        Ok(())
    }

    /// Number of elements that differ from the result of so many sums.
    fn wrong(&self, bytes: u64, sums: u32) -> Result<u64> {
        let mut words = vec![0; bytes as usize];
        self.sum.read(0, &mut words)?;
        let wrong = words.chunks_exact(4).zip(0..).filter(|(w, i)| {
            let want = first(*i) + sums as f32 * second(*i);
            **w != want.to_ne_bytes()
        });
        Ok(wrong.count() as u64)
    }
}
