//! One-sided operations: puts with a signal there and back, streams of puts and gets, atomics.
//!
//! In the ping-pong a kernel runs on each side. In the other benchmarks the peer's NIC does all the
//! work there: its program only fills the memory before, or checks it after.

use anyhow::{Context, Result};
use ringbell::abi::{GpuVa, SessionId};
use ringbell::memory::RemoteMemory;
use ringbell::DeviceBuffer;

use crate::send::read_times;
use crate::side::{KernelResult, Pair, Side};
use crate::wire::{stride, Plan, Run, Verdict};
use crate::{Row, Samples};

/// Signals lie before the data of a ping-pong.
const SIGNALS: u64 = 64;

/// Which of them; the names are perftest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Puts with a signal, there and back: times are half round trips.
    WriteLatency,
    /// A stream of puts.
    WriteBandwidth,
    /// Gets, one after the other.
    ReadLatency,
    /// A stream of gets.
    ReadBandwidth,
    /// Adds, and compare and swap, one after the other.
    AtomicLatency,
}

impl Kind {
    /// The benchmark's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::WriteLatency => "write-lat",
            Kind::WriteBandwidth => "write-bw",
            Kind::ReadLatency => "read-lat",
            Kind::ReadBandwidth => "read-bw",
            Kind::AtomicLatency => "atomic-lat",
        }
    }

    /// Whether one operation is under way at a time.
    pub fn is_latency(self) -> bool {
        !matches!(self, Kind::WriteBandwidth | Kind::ReadBandwidth)
    }

    fn run(self) -> Run {
        match self {
            Kind::WriteLatency => Run::PutPingPong,
            Kind::WriteBandwidth => Run::Puts,
            Kind::ReadLatency | Kind::ReadBandwidth => Run::Gets,
            Kind::AtomicLatency => Run::Atomics,
        }
    }
}

/// Measures operations of `size` bytes on memory of the server of a pair. `seed` is that of the
/// data.
///
/// # Errors
/// An operation failed on either side; over a transport without one-sided operations with
/// UNSUPPORTED.
pub fn measure(
    kind: Kind,
    settings: &crate::send::Settings,
    pair: &Pair,
    size: u64,
) -> Result<Row> {
    let most = if kind.is_latency() { 27 } else { 29 };
    let count = ((1 << most) / size.max(1)).clamp(200, 20_000);
    let warmup = (count / 10).max(u64::from(settings.window));
    let word = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let plan = Plan {
        run: kind.run(),
        full: false,
        both_ways: settings.both_ways && !kind.is_latency(),
        len: size,
        window: if kind.is_latency() {
            1
        } else {
            settings.window
        },
        part: 0,
        warmup: word(settings.warmup.unwrap_or(warmup)),
        count: word(settings.iters.unwrap_or(count)),
        timeout_us: pair.side.timeout_us(),
        seed: settings.seed,
    };
    let mut row = timed(kind, pair, &plan)?;
    if !settings.check {
        row.wrong = None;
    } else if kind == Kind::WriteLatency {
        // Every byte of fresh messages, outside the timed part.
        let full = Plan {
            full: true,
            warmup: 0,
            count: plan.count.min(32),
            ..plan
        };
        row.wrong = Some(row.wrong.unwrap_or(0) + timed(kind, pair, &full)?.wrong.unwrap_or(0));
    }
    Ok(row)
}

fn timed(kind: Kind, pair: &Pair, plan: &Plan) -> Result<Row> {
    let side = &pair.side;
    let times = side.nic.alloc::<u8>(u64::from(plan.count.max(1)) * 8)?;
    side.tell(pair.session, &plan.encode())?;
    let there = hear_memory(side, pair.session)?;
    let id = pair.session.0.into();
    let mut mine = None;
    let result = match kind {
        Kind::WriteLatency => {
            let (sent, mine) = ping_pong_memory(side, plan)?;
            tell_memory(side, pair.session, &mine.remote())?;
            ping_pong(
                side,
                pair.session,
                plan,
                (0, times.va()),
                (&sent, &mine),
                &there,
            )
        }
        Kind::AtomicLatency => side.run(
            "rb_perf_atomics",
            &[
                id,
                there.va().into(),
                there.rkey().0.into(),
                plan.warmup.into(),
                plan.count.into(),
                plan.timeout_us.into(),
                (&times).into(),
            ],
        ),
        _ => {
            mine = match plan.both_ways {
                true => Some(target(side, plan, plan.seed + 1)?),
                false => None,
            };
            if let Some(mine) = &mine {
                tell_memory(side, pair.session, &mine.remote())?;
            }
            stream(side, pair.session, plan, plan.seed, times.va(), &there)
        }
    };
    if kind != Kind::WriteLatency {
        // The server looks at its memory then.
        side.tell(pair.session, &Verdict::READY.encode())?;
    }
    let result = result?.ok(kind.name())?;
    let verdict = pair.verdict()?;
    let wrong_here = match &mine {
        Some(mine) if plan.run == Run::Puts => {
            look(side, plan, mine, plan.seed + 1, true)?
                .ok(kind.name())?
                .wrong
        }
        _ => 0,
    };
    let half = if kind == Kind::WriteLatency { 2.0 } else { 1.0 };
    // Of a run both ways the slower side counts.
    let elapsed_ns = result
        .elapsed_ns
        .max(mine.as_ref().map_or(0, |_| verdict.detail));
    let mean_ns = elapsed_ns as f64 / f64::from(plan.count.max(1)) / half;
    let mut samples: Samples = read_times(&times, plan.count)?;
    // An operation of a stream is under way as long as the window ahead of it: each of those took a
    // part.
    let shared = half * f64::from(plan.window).min(f64::from(plan.count));
    let algbw_gbs = plan.len as f64 / mean_ns.max(1e-9);
    Ok(Row {
        size_bytes: plan.len,
        count: plan.count.into(),
        time_us: mean_ns / 1e3,
        p50_us: samples.median() / shared / 1e3,
        p99_us: samples.percentile(99.0) / shared / 1e3,
        algbw_gbs,
        busbw_gbs: algbw_gbs * if mine.is_some() { 2.0 } else { 1.0 },
        wrong: Some(result.wrong + verdict.wrong + wrong_here),
        ..Row::default()
    })
}

/// The server's part of a run.
pub(crate) fn serve(side: &Side, session: SessionId, plan: &Plan) -> Result<KernelResult> {
    match plan.run {
        Run::PutPingPong => {
            let (sent, mine) = ping_pong_memory(side, plan)?;
            tell_memory(side, session, &mine.remote())?;
            let there = hear_memory(side, session)?;
            ping_pong(side, session, plan, (1, GpuVa(0)), (&sent, &mine), &there)
        }
        Run::Atomics => {
            let word = side.nic.alloc_remote::<u8>(64)?;
            expose(side, session, &word)?;
            Ok(KernelResult::default())
        }
        _ => {
            let memory = target(side, plan, plan.seed)?;
            let mut here = KernelResult::default();
            if plan.both_ways {
                tell_memory(side, session, &memory.remote())?;
                let there = hear_memory(side, session)?;
                here = stream(side, session, plan, plan.seed + 1, GpuVa(0), &there)?;
                here.detail += here.elapsed_ns;
                let done = side.hear(session, side.patience());
                done.context("the client went away")?;
            } else {
                expose(side, session, &memory)?;
            }
            if plan.run == Run::Puts && here.status == 0 {
                here.wrong += look(side, plan, &memory, plan.seed, true)?.wrong;
            }
            Ok(here)
        }
    }
}

/// Memory for a stream from the other side; for gets filled by `seed`.
fn target(side: &Side, plan: &Plan, seed: u64) -> Result<DeviceBuffer> {
    let bytes = u64::from(plan.window) * stride(plan.len);
    let memory = side.nic.alloc_remote::<u8>(bytes)?;
    if plan.run == Run::Gets {
        look(side, plan, &memory, seed, false)?.ok("filling memory")?;
    }
    Ok(memory)
}

/// Checks the memory of a stream, or fills it.
fn look(
    side: &Side,
    plan: &Plan,
    memory: &DeviceBuffer,
    seed: u64,
    check: bool,
) -> Result<KernelResult> {
    let slots = u32::from(plan.window).min(plan.warmup.saturating_add(plan.count));
    side.run(
        "rb_perf_one_sided_peer",
        &[
            u32::from(check).into(),
            memory.into(),
            plan.len.into(),
            stride(plan.len).into(),
            slots.into(),
            seed.into(),
        ],
    )
}

/// A stream of puts or gets. `seed` is that of the data that travels; `times`: where the time of
/// each goes, or 0.
fn stream(
    side: &Side,
    session: SessionId,
    plan: &Plan,
    seed: u64,
    times: GpuVa,
    there: &RemoteMemory,
) -> Result<KernelResult> {
    let buffer = side
        .nic
        .alloc::<u8>(u64::from(plan.window) * stride(plan.len))?;
    side.run(
        "rb_perf_one_sided_bw",
        &[
            session.0.into(),
            u32::from(plan.run == Run::Gets).into(),
            (&buffer).into(),
            there.va().into(),
            there.rkey().0.into(),
            plan.len.into(),
            stride(plan.len).into(),
            u32::from(plan.window).into(),
            plan.warmup.into(),
            plan.count.into(),
            seed.into(),
            plan.timeout_us.into(),
            times.into(),
        ],
    )
}

/// Tells the client of memory, and waits until it has done with it.
fn expose(side: &Side, session: SessionId, memory: &DeviceBuffer) -> Result<()> {
    tell_memory(side, session, &memory.remote())?;
    let done = side.hear(session, side.patience());
    done.context("the client went away").map(drop)
}

fn ping_pong_memory(side: &Side, plan: &Plan) -> Result<(DeviceBuffer, DeviceBuffer)> {
    let sent = side.nic.alloc::<u8>(stride(plan.len))?;
    Ok((
        sent,
        side.nic.alloc_remote::<u8>(SIGNALS + stride(plan.len))?,
    ))
}

fn ping_pong(
    side: &Side,
    session: SessionId,
    plan: &Plan,
    (role, times): (u32, GpuVa),
    (sent, mine): (&DeviceBuffer, &DeviceBuffer),
    there: &RemoteMemory,
) -> Result<KernelResult> {
    side.run(
        "rb_perf_put_pingpong",
        &[
            session.0.into(),
            role.into(),
            sent.into(),
            mine.into(),
            there.va().into(),
            there.rkey().0.into(),
            plan.len.into(),
            plan.warmup.into(),
            plan.count.into(),
            u32::from(plan.full).into(),
            plan.timeout_us.into(),
            times.into(),
        ],
    )
}

/// A message that names memory has the form of a verdict.
fn tell_memory(side: &Side, session: SessionId, memory: &RemoteMemory) -> Result<()> {
    let message = Verdict {
        status: memory.rkey().0,
        detail: memory.va().0,
        messages: memory.bytes(),
        wrong: 0,
    };
    side.tell(session, &message.encode())
}

fn hear_memory(side: &Side, session: SessionId) -> Result<RemoteMemory> {
    let heard = side.hear(session, side.patience());
    let message = Verdict::decode(&heard.context("the other side names no memory")?)?;
    Ok(RemoteMemory::new(
        GpuVa(message.detail),
        message.messages,
        ringbell::abi::Rkey(message.status),
    ))
}
