//! Receiving side: accepts a measurement and runs its client's plans.

use std::time::Duration;

use anyhow::{Context, Result};
use ringbell::abi::SessionId;
use ringbell::parts::cuda_kernels::{GpuBuffer, Slots, SlotsConfig};
use ringbell::{DeviceBuffer, KernelArg};

use super::side::{KernelResult, Side};
use super::wire::{stride, Plan, Run, Verdict};

/// Longest pause of a client between two runs.
const BETWEEN_RUNS: Duration = Duration::from_secs(120);
/// Chunks of the stream of small messages.
pub const RATE_CHUNK: u64 = 4096;

/// Serves one client until its plan ends the measurement.
pub fn serve(side: &Side, listener: SessionId, patience: Duration) -> Result<()> {
    let session = side.accept(listener, patience).context("no client came")?;
    loop {
        let message = side
            .hear(session, BETWEEN_RUNS)
            .context("the client went away")?;
        let plan = Plan::decode(&message)?;
        if plan.run == Run::End {
            break;
        }
        // The client reports a failed run: it gets status and count from the verdict.
        let r = run(side, session, listener, &plan)?;
        let verdict = Verdict {
            status: r.status,
            detail: r.detail,
            messages: r.messages,
            wrong: r.wrong,
        };
        if let Err(untold) = side.tell(session, &verdict.encode()) {
            // A session that has ended carries no verdict either: the kernel's error says why it
            // has.
            r.ok(&format!("receiving from {}", side.peer(session)))?;
            return Err(untold);
        }
    }
    side.close(session)
}

fn run(side: &Side, session: SessionId, listener: SessionId, plan: &Plan) -> Result<KernelResult> {
    let id = session.0.into();
    let window = u64::from(plan.window);
    let full = u32::from(plan.full).into();
    match plan.run {
        Run::PingPong => {
            let buffer = side.nic.alloc::<u8>(2 * stride(plan.len))?;
            let second = ringbell::abi::GpuVa(buffer.va().0 + stride(plan.len));
            side.run(
                "rb_perf_pingpong",
                &[
                    id,
                    1_u32.into(),
                    (&buffer).into(),
                    second.into(),
                    plan.len.into(),
                    plan.warmup.into(),
                    plan.count.into(),
                    full,
                    plan.timeout_us.into(),
                    0_u64.into(),
                ],
            )
        }
        Run::Bandwidth => {
            let buffer = side.nic.alloc::<u8>(window * stride(plan.len) + 64)?;
            side.run(
                "rb_perf_bw_recv",
                &[
                    id,
                    (&buffer).into(),
                    plan.len.into(),
                    stride(plan.len).into(),
                    u32::from(plan.window).into(),
                    plan.warmup.into(),
                    plan.count.into(),
                    plan.seed.into(),
                    full,
                    plan.timeout_us.into(),
                ],
            )
        }
        Run::Rate => {
            let buffer = side.nic.alloc::<u8>(window * RATE_CHUNK)?;
            side.run(
                "rb_perf_rate_recv",
                &[
                    id,
                    (&buffer).into(),
                    RATE_CHUNK.into(),
                    u32::from(plan.window).into(),
                    u64::from(plan.count).into(),
                    plan.seed.into(),
                    plan.timeout_us.into(),
                ],
            )
        }
        Run::Many => many(side, session, listener, plan),
        Run::Slots => slots(side, session, plan),
        Run::PutPingPong | Run::Puts | Run::Gets | Run::Atomics => {
            crate::one_sided::serve(side, session, plan)
        }
        Run::End => Ok(KernelResult::default()),
    }
}

/// Messages in flight of a measurement over many connections.
pub const MANY_WINDOW: u32 = 128;

/// Messages on each of the active ones of `connections`, first with all of them active, then with
/// one. With a single connection both are the same.
pub fn rounds(connections: u16, count: u32) -> Vec<(u32, u32)> {
    let n = u32::from(connections);
    match n {
        1 => vec![(1, count)],
        n => vec![(n, count), (1, n.saturating_mul(count))],
    }
}

/// Arguments of both sides' kernels for a run on the first `active` connections of a list.
pub fn many_args(
    plan: &Plan,
    (list, active): (&DeviceBuffer, u32),
    buffer: &DeviceBuffer,
    rounds: u32,
) -> [KernelArg; 9] {
    [
        list.into(),
        active.into(),
        buffer.into(),
        plan.len.into(),
        stride(plan.len).into(),
        MANY_WINDOW.into(),
        rounds.into(),
        plan.seed.into(),
        plan.timeout_us.into(),
    ]
}

/// Accepts `window` more connections, and receives on them.
fn many(side: &Side, session: SessionId, listener: SessionId, plan: &Plan) -> Result<KernelResult> {
    let mut sessions = Vec::new();
    for _ in 0..plan.window {
        sessions.push(side.accept(listener, Duration::from_secs(30))?);
    }
    let list = session_list(side, &sessions)?;
    let buffer = side
        .nic
        .alloc::<u8>(u64::from(MANY_WINDOW) * stride(plan.len))?;
    let mut all = KernelResult::default();
    side.tell(session, &Verdict::READY.encode())?;
    'runs: for (active, rounds) in rounds(plan.window, plan.count) {
        for _ in 0..plan.warmup {
            let r = side.run(
                "rb_perf_many_recv",
                &many_args(plan, (&list, active), &buffer, rounds),
            )?;
            all.messages += r.messages;
            all.wrong += r.wrong;
            (all.status, all.detail) = (r.status, r.detail);
            if r.status != 0 {
                break 'runs;
            }
            // All has arrived, and the next run may begin.
            side.tell(session, &Verdict::READY.encode())?;
        }
    }
    for s in sessions {
        side.close(s)?;
    }
    Ok(all)
}

/// The numbers of sessions, in GPU memory.
pub fn session_list(side: &Side, sessions: &[SessionId]) -> Result<DeviceBuffer> {
    let ids: Vec<u8> = sessions.iter().flat_map(|s| s.0.to_ne_bytes()).collect();
    let list = side.nic.alloc::<u8>(ids.len() as u64)?;
    list.write(0, &ids)?;
    Ok(list)
}

/// Memory that both sides of a run through slots need: the exposed window, its division, and a
/// user's buffer that the NIC cannot reach.
pub fn slots_of(side: &Side, plan: &Plan) -> Result<(DeviceBuffer, Slots, GpuBuffer)> {
    let config = SlotsConfig {
        window_bytes: u64::from(plan.window) << 20,
        connections: 1,
        slot_bytes: plan.part.into(),
        ..SlotsConfig::default()
    };
    let window = side.nic.alloc_pinned::<u8>(config.window_bytes)?;
    let slots = Slots::new(window.va(), config)?;
    Ok((window, slots, side.nic.gpu().alloc(plan.len)?))
}

fn slots(side: &Side, session: SessionId, plan: &Plan) -> Result<KernelResult> {
    let (_window, slots, buffer) = slots_of(side, plan)?;
    side.run(
        "rb_perf_slots_recv",
        &[
            slots.into(),
            0_u32.into(),
            session.0.into(),
            (&buffer).into(),
            plan.len.into(),
            plan.warmup.into(),
            plan.count.into(),
            plan.seed.into(),
            plan.timeout_us.into(),
        ],
    )
}
