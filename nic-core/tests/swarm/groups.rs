//! Scenes of communicators.

use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::CommunicatorConfig;
use ringbell_nic_core::engine::Place;
use ringbell_nic_core::types::CommId;

use super::collective_support::{address, Call, Ring, Rng};
use super::model;
use super::plan::{How, With, OPERAND, PLAIN};
use super::programs;
use super::run::{Holds, Lent, Pending, Run, TIMEOUT_US, TOLD};
use super::scenes::{behind, engine, Done};

/// Bytes of a message of a burst.
const SHARE: u64 = OPERAND as u64 / 8;

pub(super) fn burst(
    run: &mut Run<'_>,
    id: usize,
    to: usize,
    froms: &[usize],
    len: u32,
    order: u64,
) -> Done {
    let (src, dst) = run.slot(id)?;
    let all: Vec<usize> = (0..run.plan.ranks).collect();
    let mut rng = Rng(order);
    let call = |kind, peer: usize, at: u64| {
        Call::new(kind, len.into())
            .of(DataType::U8, ReduceOp::Sum)
            .tag(id as u32)
            .root(peer as u32)
            .at(at, at)
            .within(TIMEOUT_US)
    };
    let wants: Vec<Vec<u8>> = (0..froms.len())
        .map(|k| {
            let at = src + k as u64 * SHARE;
            run.source(id * 100 + k, froms[k], at, len as usize)
        })
        .collect();
    let (mut sent, mut received) = (0, 0);
    while sent + received < 2 * froms.len() {
        let sends = received == froms.len() || (sent < froms.len() && rng.next().is_multiple_of(2));
        let k = if sends { sent } else { received };
        let (rank, kind, peer, at) = match sends {
            true => (froms[k], K::Send, to, src + k as u64 * SHARE),
            false => (to, K::Recv, froms[k], dst + k as u64 * SHARE),
        };
        let mut p = Pending {
            in_group: true,
            ..Run::pending(id, rank, &all)
        };
        if sends {
            p.reads = vec![Lent {
                on: rank,
                at,
                len: len as usize,
            }];
            sent += 1;
        } else {
            p.bytes = Some(len.into());
            p.holds = vec![Holds {
                on: to,
                at,
                want: wants[k].clone(),
            }];
            received += 1;
        }
        let d = call(kind, peer, at).descriptor(run.w.comms[rank]);
        run.post(rank, &d, p)?;
        for _ in 0..rng.next() % 4 {
            run.step()?;
        }
    }
    Ok(())
}

pub(super) fn at_once(
    run: &mut Run<'_>,
    id: usize,
    both: &[Vec<usize>; 2],
    count: u64,
    order: u64,
) -> Done {
    let mut rng = Rng(order);
    let contexts = [run.context(), run.context()];
    let mut left: Vec<(usize, usize)> = Vec::new();
    for (g, members) in both.iter().enumerate() {
        left.extend((0..members.len()).map(|r| (g, r)));
    }
    let mut comms: [Vec<Option<CommId>>; 2] = [0, 1].map(|g| vec![None; both[g].len()]);
    while !left.is_empty() {
        let (g, r) = left.swap_remove((rng.next() % left.len() as u64) as usize);
        let config = CommunicatorConfig {
            ctx: contexts[g],
            rank: r as u32,
            peers: both[g].iter().map(|m| address(*m)).collect(),
            settings: run.plan.settings(),
        };
        let made = run.w.host(both[g][r]).nic.create_communicator(&config);
        comms[g][r] = Some(made.map_err(|e| format!("no communicator at NIC {r}: {e}"))?);
        for _ in 0..rng.next() % 40 {
            run.step()?;
        }
    }
    let comms = comms.map(|c| c.into_iter().flatten().collect::<Vec<_>>());
    for (members, comms) in both.iter().zip(comms) {
        let Some(comms) = run.met(members, comms)? else {
            return Ok(());
        };
        let what = (K::AllReduce, 0, count as usize);
        run.collective(id, members, &comms, what, PLAIN)?;
        run.all_end(id)?;
        run.free(members, &comms)?;
    }
    Ok(())
}

pub(super) fn unlike(
    run: &mut Run<'_>,
    id: usize,
    members: &[usize],
    count: u64,
    odd: usize,
) -> Done {
    let Some(comms) = run.meet(members)? else {
        return Ok(());
    };
    let (src, dst) = run.slot(id)?;
    for (r, m) in members.iter().enumerate() {
        let count = count + u64::from(r == odd);
        let call = Call::new(K::AllReduce, count)
            .of(DataType::U32, ReduceOp::Sum)
            .at(src, dst)
            .within(TIMEOUT_US);
        let p = Pending {
            in_group: true,
            want: &[Status::Mismatch],
            // At once, and not by the time-out.
            until: run.w.now + TOLD,
            ..Run::pending(id, *m, members)
        };
        run.post(*m, &call.descriptor(comms[r]), p)?;
    }
    run.all_end(id)?;
    run.free(members, &comms)
}

pub(super) fn aborted(
    run: &mut Run<'_>,
    id: usize,
    members: &[usize],
    count: u64,
    by: usize,
    after: u32,
) -> Done {
    const ENDS: &[Status] = &[Status::Ok, Status::CommAborted];
    let Some(comms) = run.meet(members)? else {
        return Ok(());
    };
    let (src, dst) = run.slot(id)?;
    let call = Call::new(K::AllReduce, count)
        .of(DataType::U32, ReduceOp::Sum)
        .at(src, dst)
        .within(TIMEOUT_US);
    for (r, m) in members.iter().enumerate() {
        run.source(id, *m, src, count as usize * 4);
        let p = Pending {
            in_group: true,
            want: ENDS,
            until: run.w.now + TOLD,
            // A rank whose operation has ended may write to its source.
            reads: vec![Lent {
                on: *m,
                at: dst,
                len: count as usize * 4,
            }],
            ..Run::pending(id, *m, members)
        };
        run.post(*m, &call.descriptor(comms[r]), p)?;
    }
    for _ in 0..after {
        run.step()?;
    }
    let ended = run.w.host(members[by]).nic.abort_communicator(comms[by]);
    ended.map_err(|e| format!("operation {id}: no abort at NIC {}: {e}", members[by]))?;
    run.all_end(id)?;
    for _ in 0..50 {
        run.step()?;
    }
    // A NIC whose peer is lost has an error, and its memory as it was then.
    let all = members.iter().filter(|_| !run.plan.may_lose());
    for m in all {
        let got = run.w.host(*m).peek(dst, count as usize * 4);
        if let Some(i) = got.iter().position(|b| *b != 0xdb) {
            return Err(format!(
                "operation {id}: byte {i} at NIC {m} was written after its end"
            ));
        }
    }
    run.free(members, &comms)
}

pub(super) fn streams(run: &mut Run<'_>, id: usize, count: u64, order: u64) -> Done {
    let ranks = run.plan.ranks;
    let members: Vec<usize> = (0..ranks).collect();
    let (src, dst) = run.slot(id)?;
    let mut rng = Rng(order);
    let len = count as usize * 4;
    let sources: Vec<Vec<u8>> = members
        .iter()
        .map(|m| model::bytes(run.plan.seed, id, *m, len))
        .collect();
    let want = model::result(K::AllReduce, &sources, 0, 0, len, With::Nothing);
    let rings: Vec<[Ring; 2]> = members
        .iter()
        .map(|m| {
            [
                Ring::new(&run.w, *m, src, 11, order),
                Ring::new(&run.w, *m, dst, 12, order << 3),
            ]
        })
        .collect();
    for (m, [input, output]) in members.iter().zip(&rings) {
        let call = Call::new(K::AllReduce, count)
            .of(DataType::U32, ReduceOp::Sum)
            .streamed()
            .of_ring(input)
            .to_ring(output)
            .within(TIMEOUT_US);
        let p = Pending {
            in_group: true,
            ..Run::pending(id, *m, &members)
        };
        run.post(*m, &call.descriptor(run.w.comms[*m]), p)?;
    }
    let (mut pushed, mut popped) = (vec![0; ranks], vec![Vec::new(); ranks]);
    let until = run.w.now + 60_000_000_000;
    while popped.iter().any(|p: &Vec<u8>| p.len() < len) {
        let r = (rng.next() % ranks as u64) as usize;
        let [input, output] = &rings[r];
        let n = (rng.next() % 1500) as usize;
        let rest: &[u8] = &sources[r][pushed[r]..];
        pushed[r] += input.push(&run.w, &rest[..n.min(rest.len())]);
        let n = (rng.next() % 1500) as usize;
        popped[r].extend(output.pop(&run.w, n));
        run.step()?;
        if !run.is_under_way(id) && rings.iter().all(|r| r[1].level(&run.w) == 0) {
            break;
        }
        if run.w.now > until {
            return Err(run.hung());
        }
    }
    run.all_end(id)?;
    if run.plan.may_lose() {
        return Ok(());
    }
    match popped.iter().position(|p| *p != want) {
        Some(m) => Err(format!("operation {id}: the stream of NIC {m} differs")),
        None => Ok(()),
    }
}

pub(super) fn engines(run: &mut Run<'_>, id: usize, members: &[usize], count: u64) -> Done {
    let Some(comms) = run.meet(members)? else {
        return Ok(());
    };
    let spec = "checksum";
    let mut taps = Vec::new();
    for (m, comm) in members.iter().zip(&comms) {
        let host = run.w.host(*m);
        let at = |place| {
            let nic = &host.nic;
            let put = nic.attach_communicator_engine(host.pd, *comm, place, engine(spec), 4);
            put.map_err(|e| format!("no engine at NIC {m}: {e}"))
        };
        taps.push([at(Place::Input)?, at(Place::Output)?]);
    }
    let what = (K::AllReduce, 0, count as usize);
    run.collective(id, members, &comms, what, PLAIN)?;
    run.all_end(id)?;
    let len = count as usize * 4;
    let sources: Vec<Vec<u8>> = members
        .iter()
        .map(|m| model::bytes(run.plan.seed, id, *m, len))
        .collect();
    let sum = model::result(K::AllReduce, &sources, 0, 0, len, With::Nothing);
    for ((m, source), taps) in members.iter().zip(&sources).zip(taps) {
        for (tap, bytes) in taps.into_iter().zip([source, &sum]) {
            let nic = &run.w.host(*m).nic;
            let got = nic.engine_result(tap);
            let got = got.map_err(|e| format!("no result at NIC {m}: {e}"))?;
            if got.bytes != behind(spec, bytes).1 && !run.plan.may_lose() {
                return Err(format!("operation {id}: an engine at NIC {m} differs"));
            }
            let gone = nic.detach_engine(tap);
            gone.map_err(|e| format!("an engine stays at NIC {m}: {e}"))?;
        }
    }
    run.free(members, &comms)
}

pub(super) fn left(run: &mut Run<'_>, id: usize, members: &[usize], count: u64, by: usize) -> Done {
    let Some(comms) = run.meet(members)? else {
        return Ok(());
    };
    let (src, dst) = run.slot(id)?;
    run.free(&members[by..=by], &comms[by..=by])?;
    for (r, m) in members.iter().enumerate().filter(|(r, _)| *r != by) {
        let call = Call::new(K::AllReduce, count)
            .of(DataType::U32, ReduceOp::Sum)
            .at(src, dst)
            .within(TIMEOUT_US);
        let p = Pending {
            in_group: true,
            want: &[Status::PeerFailed],
            detail: Some(by as u64),
            until: run.w.now + TOLD,
            ..Run::pending(id, *m, members)
        };
        run.post(*m, &call.descriptor(comms[r]), p)?;
    }
    run.all_end(id)?;
    for (r, m) in members.iter().enumerate().filter(|(r, _)| *r != by) {
        run.free(&[*m], &comms[r..=r])?;
    }
    Ok(())
}

pub(super) fn program(
    run: &mut Run<'_>,
    id: usize,
    members: &[usize],
    count: u64,
    with: With,
    order: u64,
) -> Done {
    let programs = programs::all_gather(members.len(), order);
    for m in members {
        let loaded = run.w.host(*m).nic.load_program(programs.clone());
        loaded.map_err(|e| format!("NIC {m} refuses a program: {e}"))?;
    }
    let Some(comms) = run.meet(members)? else {
        return Ok(());
    };
    let how = How {
        with,
        algo: Algorithm::User,
        ..PLAIN
    };
    let what = (K::AllGather, 0, count as usize);
    run.collective(id, members, &comms, what, how)?;
    run.all_end(id)?;
    run.free(members, &comms)
}
