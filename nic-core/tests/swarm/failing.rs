//! A session whose engine fails at some byte: it ends with an error at both sides, others go on.

use ringbell_nic_abi::Status;
use ringbell_nic_core::engine::{Direction, EngineUseError};

use super::collective_support::nic::driven::*;
use super::run::{Pending, Run, TIMEOUT_US, TOLD};
use super::scenes::Done;
use crate::engine_support::{brittle, How};

/// Bytes go from one NIC to another, through an engine that fails behind so many of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fails {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) len: u32,
    pub(super) after: usize,
    pub(super) at_sender: bool,
    /// Steps until the receive.
    pub(super) waits: u32,
}

const HERE: &[Status] = &[Status::EngineFailed];
/// Bytes may all have left before the other side fails.
const SENT: &[Status] = &[Status::Ok, Status::ConnectionReset];
const THERE: &[Status] = &[Status::ConnectionReset];
/// The reset of TCP may be lost.
const UNTOLD: &[Status] = &[Status::ConnectionReset, Status::TimedOut];

pub(super) fn play(run: &mut Run<'_>, id: usize, scene: &Fails) -> Done {
    let (from, to) = (scene.from, scene.to);
    let Some((here, there)) = run.connect(from, to)? else {
        return Ok(());
    };
    let parties = [from, to];
    let (src, dst) = run.slot(id)?;
    let bytes = run.source(id, from, src, scene.len as usize);
    let (at, s, way) = match scene.at_sender {
        true => (from, here, Direction::Send),
        false => (to, there, Direction::Receive),
    };
    let nic = &run.w.host(at).nic;
    let engine = nic.attach_engine(s, way, brittle(How::After(scene.after)));
    let engine = engine.map_err(|e| format!("no engine at NIC {at}: {e}"))?;
    let loses = run.plan.faults != Default::default() || run.plan.rests();
    let by_peer = if loses { UNTOLD } else { THERE };
    let pending = |run: &Run<'_>, rank: usize| Pending {
        want: if rank == at { HERE } else { by_peer },
        detail: (rank == at).then_some(u64::from(engine.0)),
        until: run.w.now + u64::from(TIMEOUT_US) * 1000 + TOLD,
        ..Run::pending(id, rank, &parties)
    };
    // It ends with the session, although nothing comes this way.
    let back = within(recv(here, dst, 8), TIMEOUT_US);
    let p = pending(run, from);
    run.post(from, &back, p)?;
    let mut p = pending(run, from);
    if !scene.at_sender {
        p.want = SENT;
    }
    run.post(from, &within(send(here, src, scene.len), TIMEOUT_US), p)?;
    for _ in 0..scene.waits {
        run.step()?;
    }
    let p = pending(run, to);
    let d = within(recv(there, dst, scene.len), TIMEOUT_US);
    let c = run.ends(to, &d, p)?;
    run.all_end(id)?;
    let got = run.w.host(to).peek(dst, c.bytes as usize);
    if !bytes.starts_with(&got) {
        return Err(format!(
            "operation {id}: NIC {to} has bytes that were not sent"
        ));
    }
    if c.status == Status::EngineFailed {
        let nic = &run.w.host(at).nic;
        let failed = Err(EngineUseError::Failed { id: engine });
        let result = nic.engine_result(engine).map(drop);
        let gone = nic.detach_engine(engine).map(drop);
        if (&result, &gone) != (&failed, &failed) {
            return Err(format!(
                "operation {id}: the engine at NIC {at} has not failed: {result:?}, {gone:?}"
            ));
        }
    }
    for (rank, s) in [(from, here), (to, there)] {
        run.call(rank, &close(s))?;
    }
    run.closed.extend([(from, here), (to, there)]);
    Ok(())
}
