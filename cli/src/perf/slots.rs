//! `perf slots`: the paper's staging buffers by slot size, against zero-copy sends of the same size
//! (FpgaNIC Figures 6a, 6b, 6c). The sends are rung by a kernel, and launched by the host one by
//! one.
//!
//! Slots copy twice more than zero-copy sends: into the slot and out of it. That is their cost
//! where the NIC cannot reach user memory.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // Launches by the host are timed with the host's clock.

use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use ringbell::abi::GpuVa;
use ringbell::KernelArg;

use super::pair::{Client, Role, WireArgs};
use crate::report::{emit, parse_size, size_text, Axis, OutputArgs, Plot, Row, SweepArgs};
use crate::{Exit, Problem};
use ringbell_perf::serve::slots_of;
use ringbell_perf::side::KernelResult;
use ringbell_perf::wire::{stride, Plan, Run};

/// Messages in flight of the zero-copy series.
const WINDOW: u16 = 16;
/// Bytes of `gpu_result`.
const GPU_RESULT: u64 = 24;
/// Most bytes that the host-launched series prepares.
const PREPARED: u64 = 32 << 20;

/// Arguments of `perf slots`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sweep: SweepArgs,
    /// Bytes of one transfer through slots
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = parse_size)]
    bytes: u64,
    /// Memory that is exposed to the NIC; 5/11 of it to send, as much to receive
    #[arg(long, value_name = "MiB", default_value_t = 64, value_parser = clap::value_parser!(u16).range(4..=4096))]
    exposed: u16,
    #[command(flatten)]
    wire: WireArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Measures.
pub(super) fn run(args: &Args) -> Result<Exit> {
    let usage = |what: String| {
        Problem::new(
            Exit::Usage,
            what,
            "give -b 4K -e 1M, --bytes 4M, and sizes that are multiples of 64",
        )
    };
    let sizes = args.sweep.sizes(4 << 10, 1 << 20).map_err(usage)?;
    let largest = sizes.last().copied().unwrap_or(64);
    if sizes.iter().any(|s| *s == 0 || s % 64 != 0) || largest > PREPARED {
        return Err(usage("slots are multiples of 64 bytes, up to 32M".into()).into());
    }
    if args.bytes < largest || !args.bytes.is_multiple_of(8) || args.bytes > 1 << 30 {
        return Err(usage(format!(
            "transfers of {} do not suit slots of {}",
            size_text(args.bytes),
            size_text(largest)
        ))
        .into());
    }
    let memory = (u64::from(args.exposed) << 20)
        + args.bytes
        + u64::from(WINDOW + 2) * stride(largest)
        + PREPARED
        + (64 << 20);
    let client = match args.wire.start("slots", memory)? {
        Role::Served => return Ok(Exit::Ok),
        Role::Client(client) => client,
    };
    let mut report = client.pair.report("slots", &sizes);
    let series: [(&str, Series); 3] = [
        ("slots", through_slots),
        ("kernel-rung", rung),
        ("host-launched", launched),
    ];
    let points = series.map(|s| sizes.iter().map(move |size| (s, *size)));
    let points: Vec<_> = points.into_iter().flatten().collect();
    let label = |((name, _), size): &((&str, Series), u64)| format!("{name} {}", size_text(*size));
    let client = client.sweep(
        &mut report,
        &points,
        label,
        |client, ((name, measure), size)| {
            let row = measure(args, client, *size)?;
            Ok(vec![Row {
                series: Some((*name).into()),
                wrong: row.wrong.filter(|_| args.sweep.checks()),
                ..row
            }])
        },
    )?;
    client.end()?;
    emit(
        &report,
        &args.output,
        &Plot {
            title: "slots, kernel-rung and host-launched sends".into(),
            x: Axis::Size,
            y: Axis::Bandwidth,
        },
    )?;
    Ok(Exit::of_data(report.wrong()))
}

/// Measures one size.
type Series = fn(&Args, &Client, u64) -> Result<Row>;

fn plan(args: &Args, client: &Client, run: Run, len: u64, window: u16, count: u32) -> Plan {
    let warmup = args.sweep.warmup.unwrap_or(u64::from(count / 10));
    Plan {
        run,
        full: false,
        both_ways: false,
        len,
        window,
        part: 0,
        warmup: u32::try_from(warmup).unwrap_or(u32::MAX),
        count,
        timeout_us: client.pair.side.timeout_us(),
        seed: args.wire.seed(),
    }
}

fn count(args: &Args, default: u64) -> u32 {
    u32::try_from(args.sweep.iters.unwrap_or(default)).unwrap_or(u32::MAX)
}

/// A row of `pieces` pieces of `size` bytes that took `ns`.
fn row(size: u64, pieces: u64, ns: u64, wrong: u64) -> Row {
    let mean_ns = ns as f64 / pieces.max(1) as f64;
    let bandwidth = size as f64 / mean_ns.max(1e-9);
    Row {
        size_bytes: size,
        count: pieces,
        time_us: mean_ns / 1e3,
        p50_us: mean_ns / 1e3,
        p99_us: mean_ns / 1e3,
        algbw_gbs: bandwidth,
        busbw_gbs: bandwidth,
        wrong: Some(wrong),
        ..Row::default()
    }
}

fn through_slots(args: &Args, client: &Client, size: u64) -> Result<Row> {
    let side = &client.pair.side;
    let bytes = args.bytes / size * size;
    let n = count(args, ((256 << 20) / bytes).clamp(8, 1000));
    let plan = Plan {
        part: u32::try_from(size)?,
        ..plan(args, client, Run::Slots, bytes, args.exposed, n)
    };
    side.tell(client.pair.session, &plan.encode())?;
    let (_window, slots, buffer) = slots_of(side, &plan)?;
    let sent = side
        .run(
            "rb_perf_slots_send",
            &[
                slots.into(),
                0_u32.into(),
                client.pair.session.0.into(),
                (&buffer).into(),
                plan.len.into(),
                plan.warmup.into(),
                plan.count.into(),
                plan.seed.into(),
                plan.timeout_us.into(),
            ],
        )?
        .ok("send through slots")?;
    let wrong = client.pair.verdict()?.wrong + sent.wrong;
    let pieces = u64::from(n) * (bytes / size);
    Ok(row(size, pieces, sent.elapsed_ns, wrong))
}

fn rung(args: &Args, client: &Client, size: u64) -> Result<Row> {
    let side = &client.pair.side;
    let n = count(args, ((256 << 20) / size).clamp(32, 20_000));
    let plan = plan(args, client, Run::Bandwidth, size, WINDOW, n);
    side.tell(client.pair.session, &plan.encode())?;
    let buffer = side
        .nic
        .alloc::<u8>(u64::from(WINDOW) * stride(size) + 64)?;
    let sent: KernelResult = side
        .run(
            "rb_perf_bw_send",
            &[
                client.pair.session.0.into(),
                (&buffer).into(),
                size.into(),
                stride(size).into(),
                u32::from(WINDOW).into(),
                plan.warmup.into(),
                plan.count.into(),
                plan.seed.into(),
                0_u32.into(),
                plan.timeout_us.into(),
                GpuVa(0).into(),
            ],
        )?
        .ok("send rung by a kernel")?;
    let wrong = client.pair.verdict()?.wrong + sent.wrong;
    Ok(row(size, n.into(), sent.elapsed_ns, wrong))
}

/// One kernel launch for each message, in order on one stream, as in a host-centric design.
fn launched(args: &Args, client: &Client, size: u64) -> Result<Row> {
    let side = &client.pair.side;
    let n = count(args, 1000).min(u32::try_from(PREPARED / stride(size))?);
    let plan = Plan {
        warmup: 0,
        ..plan(args, client, Run::Bandwidth, size, WINDOW, n)
    };
    let buffer = side.nic.alloc::<u8>(u64::from(n) * stride(size))?;
    let mut message: Vec<u8> = (0..size / 8)
        .flat_map(|j| pattern(plan.seed, 0, j).to_le_bytes())
        .collect();
    let last = size / 8 - 1;
    for i in 0..u64::from(n) {
        for j in [0, last] {
            let at = j as usize * 8;
            message[at..at + 8].copy_from_slice(&pattern(plan.seed, i, j).to_le_bytes());
        }
        buffer.write(i * stride(size), &message)?;
    }
    let results = side.nic.alloc::<u8>(u64::from(n) * GPU_RESULT)?;
    results.write(0, &vec![0xff; (u64::from(n) * GPU_RESULT) as usize])?;
    side.tell(client.pair.session, &plan.encode())?;
    // The receiving kernel reports when it is ready and when it has all: of no warm-up, then of the
    // run.
    for _ in 0..3 {
        side.hear_word(client.pair.session)?;
    }
    let start = Instant::now();
    let stream = side.nic.gpu().stream();
    for i in 0..u64::from(n) {
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let _queued = unsafe {
            stream.launch(
                "rb_send_all",
                1,
                1,
                &[
                    side.queue.handle().into(),
                    client.pair.session.0.into(),
                    KernelArg::Ptr(GpuVa(buffer.va().0 + i * stride(size))),
                    size.into(),
                    plan.timeout_us.into(),
                    KernelArg::Ptr(GpuVa(results.va().0 + i * GPU_RESULT)),
                ],
            )
        }?;
    }
    stream.synchronize(side.patience())?;
    side.hear_word(client.pair.session)?;
    let taken: Duration = start.elapsed();
    let mut status = [0; 4];
    for i in 0..u64::from(n) {
        results.read(i * GPU_RESULT, &mut status)?;
        if status != [0; 4] {
            bail!(
                "launch {i} of {n} ended with status {}",
                u32::from_ne_bytes(status)
            );
        }
    }
    let wrong = client.pair.verdict()?.wrong;
    Ok(row(size, n.into(), taken.as_nanos() as u64, wrong))
}

/// `rbk::pattern` of `kernels/common.cuh`, which the receiving kernel expects.
fn pattern(seed: u64, i: u64, j: u64) -> u64 {
    let z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ i.wrapping_mul(0xbf58_476d_1ce4_e5b9)
        ^ (j + 1).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 29)
}
