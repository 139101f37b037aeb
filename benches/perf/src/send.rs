//! Messages from GPU memory to GPU memory through two NICs: bandwidth, latency, rate.

use anyhow::Result;
use ringbell::abi::GpuVa;
use ringbell::DeviceBuffer;

use crate::side::Pair;
use crate::wire::{stride, Plan, Run};
use crate::{Row, Samples};

/// Messages whose time is taken one by one; the clock would weigh on smaller ones.
const TIMED_FROM: u64 = 4096;

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Windowed stream of messages.
    Bandwidth,
    /// Ping-pong; times are half round trips.
    Latency,
    /// 8-byte messages, each a descriptor of its own.
    Rate,
}

impl Kind {
    /// The benchmark's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bandwidth => "send-bw",
            Kind::Latency => "send-lat",
            Kind::Rate => "send-rate",
        }
    }
}

/// How a size is measured.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Messages in flight; for [`Kind::Rate`] the chunks that the receiver has posted.
    pub window: u16,
    /// Timed messages; `None` is as many as take a fraction of a second.
    pub iters: Option<u64>,
    /// Messages before them.
    pub warmup: Option<u64>,
    /// Verify every byte, in a run of its own.
    pub check: bool,
    /// Streams of puts and gets: the other side does the same at the same time.
    pub both_ways: bool,
    /// Seed of the data.
    pub seed: u64,
}

/// Measures messages of `size` bytes to the server of a pair.
///
/// # Errors
/// An operation failed on either side.
pub fn measure(kind: Kind, settings: &Settings, pair: &Pair, size: u64) -> Result<Row> {
    let (count, warmup) = match kind {
        Kind::Bandwidth => {
            let count = ((1 << 29) / size.max(1)).clamp(32, 20_000);
            (count, (count / 10).max(u64::from(settings.window)))
        }
        Kind::Latency => {
            let count = ((1 << 27) / size.max(1)).clamp(200, 20_000);
            (count, count / 10)
        }
        Kind::Rate => (2_000_000, 0),
    };
    let count = u32::try_from(settings.iters.unwrap_or(count)).unwrap_or(u32::MAX);
    let warmup = u32::try_from(settings.warmup.unwrap_or(warmup)).unwrap_or(u32::MAX);
    let plan = Plan {
        run: match kind {
            Kind::Bandwidth => Run::Bandwidth,
            Kind::Latency => Run::PingPong,
            Kind::Rate => Run::Rate,
        },
        full: false,
        both_ways: false,
        len: size,
        window: settings.window,
        part: 0,
        warmup,
        count,
        timeout_us: pair.side.timeout_us(),
        seed: settings.seed,
    };
    let mut row = timed(kind, pair, &plan)?;
    if !settings.check {
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
        row.wrong = Some(row.wrong.unwrap_or(0) + timed(kind, pair, &full)?.wrong.unwrap_or(0));
    }
    Ok(row)
}

/// One run of a plan on both sides.
fn timed(kind: Kind, pair: &Pair, plan: &Plan) -> Result<Row> {
    let side = &pair.side;
    let take_times = kind == Kind::Latency || (kind == Kind::Bandwidth && plan.len >= TIMED_FROM);
    let times = side.nic.alloc::<u8>(if take_times {
        u64::from(plan.count.max(1)) * 8
    } else {
        8
    })?;
    let times_va = if take_times { times.va() } else { GpuVa(0) };
    let id = pair.session.0.into();
    side.tell(pair.session, &plan.encode())?;
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
    .ok(&format!("{} to {}", kind.name(), pair.server))?;
    let verdict = pair.verdict()?;
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
        // A message of a stream is outstanding as long as the window ahead of it: each of those
        // took a part.
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
///
/// # Errors
/// The buffer is shorter than `count` words.
pub fn read_times(times: &DeviceBuffer, count: u32) -> Result<Samples> {
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
