//! The receiving side: accepts a measurement and runs what its client plans.

use std::time::Duration;

use anyhow::{Context, Result};
use ringbell::abi::SessionId;

use super::side::{KernelResult, Side};
use super::wire::{Plan, Run, Verdict};

/// How long a client may take to think between two runs.
const BETWEEN_RUNS: Duration = Duration::from_secs(120);
/// Chunks of the stream of small messages.
pub(super) const RATE_CHUNK: u64 = 4096;
/// Distance between two messages in a buffer: whole pages, so that none shares one with another.
pub(super) fn stride(len: u64) -> u64 {
    len.max(1).next_multiple_of(64)
}

/// Serves one client until it says that nothing more comes.
pub(super) fn serve(side: &Side, listener: SessionId, patience: Duration) -> Result<()> {
    let session = side.accept(listener, patience).context("no client came")?;
    loop {
        let message = side
            .hear(session, BETWEEN_RUNS)
            .context("the client went away")?;
        let plan = Plan::decode(&message)?;
        if plan.run == Run::End {
            break;
        }
        // A failed run is the client's to report: it learns status and count from the verdict.
        let r = run(side, session, listener, &plan)?;
        side.tell(
            session,
            &Verdict {
                status: r.status,
                detail: r.detail,
                messages: r.messages,
                wrong: r.wrong,
            }
            .encode(),
        )?;
    }
    side.close(session)
}

fn run(side: &Side, session: SessionId, listener: SessionId, plan: &Plan) -> Result<KernelResult> {
    let id = session.0.into();
    let window = u64::from(plan.window);
    let full = u32::from(plan.full).into();
    match plan.run {
        Run::PingPong => {
            let buffer = side.nic.alloc(2 * stride(plan.len))?;
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
            let buffer = side.nic.alloc(window * stride(plan.len) + 64)?;
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
            let buffer = side.nic.alloc(window * RATE_CHUNK)?;
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
        Run::Many => many(side, listener, plan),
        Run::End => Ok(KernelResult::default()),
    }
}

/// Messages in flight of a measurement over many connections.
pub(super) const MANY_WINDOW: u32 = 128;

/// Accepts `window` more connections, and receives on all of them in turn.
fn many(side: &Side, listener: SessionId, plan: &Plan) -> Result<KernelResult> {
    let mut sessions = Vec::new();
    for _ in 0..plan.window {
        sessions.push(side.accept(listener, Duration::from_secs(30))?);
    }
    let ids: Vec<u8> = sessions.iter().flat_map(|s| s.0.to_ne_bytes()).collect();
    let list = side.nic.alloc(ids.len() as u64)?;
    list.write(0, &ids)?;
    let buffer = side.nic.alloc(u64::from(MANY_WINDOW) * stride(plan.len))?;
    let result = side.run(
        "rb_perf_many_recv",
        &[
            (&list).into(),
            u32::from(plan.window).into(),
            (&buffer).into(),
            plan.len.into(),
            stride(plan.len).into(),
            MANY_WINDOW.into(),
            plan.count.into(),
            plan.seed.into(),
            plan.timeout_us.into(),
        ],
    );
    for s in sessions {
        side.close(s)?;
    }
    result
}
