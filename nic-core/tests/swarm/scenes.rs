//! Scenes: operations that belong together, and what they must leave behind.
//!
//! A scene waits for its operations where the next depends on them. Those of other steps go on
//! meanwhile.

use ringbell_gtlb::{Access, PageTable};
use ringbell_nic_abi::{CollectiveKind as K, DataType, GpuVa, ReduceOp, Rkey, SessionId, Status};
use ringbell_nic_core::collective::CommunicatorConfig;
use ringbell_nic_core::engine::{Direction, Place};
use ringbell_nic_core::types::CommId;
use ringbell_onc_engines::stream::{Registry, StreamEngine};

use super::collective_support::nic::driven::*;
use super::collective_support::{address, Call, Ring, Rng};
use super::model;
use super::plan::{End, Scene, With, OPERAND};
use super::run::{Holds, Lent, Pending, Run, MEMORY, TIMEOUT_US};

/// Where memory is mapped that is withdrawn again.
const SECOND: GpuVa = GpuVa(0x9_0000_0000);
/// Bytes of it: two pages of the GTLB.
const SECOND_BYTES: u64 = 2 << 16;

/// Statuses of an operation on memory that its peer does not grant.
const REFUSED: &[Status] = &[
    Status::OutOfBounds,
    Status::BadKey,
    Status::AccessDenied,
    Status::NotRegistered,
    Status::RegionFreed,
];

type Done = Result<(), String>;

/// Plays a scene, unless a NIC that it needs is not well.
pub(super) fn play(run: &mut Run<'_>, id: usize, scene: &Scene) -> Done {
    let needs: Vec<usize> = match scene {
        Scene::Session { from, to, .. }
        | Scene::Late { from, to, .. }
        | Scene::Adds { from, to, .. }
        | Scene::Refused { from, to, .. }
        | Scene::Withdrawn { from, to } => vec![*from, *to],
        Scene::Burst { .. } | Scene::Streams { .. } => (0..run.plan.ranks).collect(),
        Scene::Groups { both, .. } => both.concat(),
        Scene::Unlike { members, .. }
        | Scene::Aborted { members, .. }
        | Scene::Engines { members, .. } => members.clone(),
    };
    if run.victim().is_some_and(|v| needs.contains(&v)) {
        return Ok(());
    }
    match *scene {
        Scene::Session { .. } => session(run, id, scene),
        Scene::Late {
            from,
            to,
            sent,
            lacks,
        } => late(run, id, (from, to), sent, lacks),
        Scene::Burst {
            to,
            ref froms,
            len,
            order,
        } => burst(run, id, to, froms, len, order),
        Scene::Adds { from, to, count } => adds(run, id, (from, to), count),
        Scene::Refused {
            from,
            to,
            len,
            put,
            bad_key,
        } => refused(run, id, (from, to), len, put, bad_key),
        Scene::Withdrawn { from, to } => withdrawn(run, id, (from, to)),
        Scene::Groups {
            ref both,
            count,
            order,
        } => groups(run, id, both, count, order),
        Scene::Unlike {
            ref members,
            count,
            odd,
        } => unlike(run, id, members, count, odd),
        Scene::Aborted {
            ref members,
            count,
            by,
            after,
        } => aborted(run, id, members, count, by, after),
        Scene::Streams { count, order } => streams(run, id, count, order),
        Scene::Engines { ref members, count } => engines(run, id, members, count),
    }
}

fn engine(spec: &str) -> Box<dyn StreamEngine> {
    Registry::builtin().make(spec).expect("a good text")
}

/// The stream behind an engine, and its result.
fn behind(spec: &str, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut engine = engine(spec);
    let (mut out, mut result) = (Vec::new(), Vec::new());
    engine.process(bytes, &mut out);
    // Bytes of a cut item are lost, and said to be.
    let _ = engine.finish(&mut out);
    engine.result(&mut result);
    let stream = if engine.is_tap() { bytes.to_vec() } else { out };
    (stream, result)
}

fn session(run: &mut Run<'_>, id: usize, scene: &Scene) -> Done {
    let Scene::Session {
        from,
        to,
        sends,
        back,
        engine: spec,
        some,
        end,
    } = scene
    else {
        return Ok(());
    };
    let (from, to) = (*from, *to);
    let Some((here, there)) = run.connect(from, to)? else {
        return Ok(());
    };
    let parties = [from, to];
    let (src, dst) = run.slot()?;
    let len: u32 = sends.iter().sum();
    let bytes = run.source(id, from, src, len as usize);
    let mut put = None;
    let mut stream = bytes.clone();
    if let Some(spec) = spec {
        // Half of the engines are at the sender.
        let (at, s, way) = match len % 2 {
            0 => (from, here, Direction::Send),
            _ => (to, there, Direction::Receive),
        };
        let host = run.w.host(at);
        let placed = match spec.starts_with("hll") {
            true => host.nic.add_engine(host.pd, engine(spec)).and_then(|e| {
                host.nic.share_engine(e, s, way, 4)?;
                Ok(e)
            }),
            false => host.nic.attach_engine(s, way, engine(spec)),
        };
        let engine = placed.map_err(|e| format!("no engine at NIC {at}: {e}"))?;
        let (out, mut result) = behind(spec, &bytes);
        if spec.starts_with("hll") {
            result = behind(spec, &bytes[..bytes.len() & !3]).1;
        }
        stream = out;
        put = Some((at, engine, result));
    }
    let mut at = 0;
    for n in sends {
        let p = Pending {
            reads: vec![Lent {
                on: from,
                at: src + at,
                len: *n as usize,
            }],
            ..Run::pending(id, from, &parties)
        };
        run.post(from, &within(send(here, src + at, *n), TIMEOUT_US), p)?;
        at += u64::from(*n);
    }
    let shut = within(shutdown(here), TIMEOUT_US);
    run.post(from, &shut, Run::pending(id, from, &parties))?;
    let fails = |status| status != Status::Ok;
    let mut got = 0;
    while got < stream.len() {
        // Cut at other places than the sends.
        let n = (stream.len() - got).min(1 + stream.len() * 2 / 5);
        let at = dst + got as u64;
        let d = match some {
            true => recv_some(there, at, n as u32),
            false => recv(there, at, n as u32),
        };
        let mut p = Run::pending(id, to, &parties);
        if !some {
            p.bytes = Some(n as u64);
            let want = stream[got..got + n].to_vec();
            p.holds = vec![Holds { on: to, at, want }];
        }
        let c = run.ends(to, &within(d, TIMEOUT_US), p)?;
        if fails(c.status) {
            return Ok(());
        }
        if c.bytes == 0 || c.bytes > n as u64 {
            return Err(format!("operation {id} at NIC {to}: {c:?} of {n}"));
        }
        got += c.bytes as usize;
    }
    if run.w.host(to).peek(dst, stream.len()) != stream {
        return Err(format!("operation {id}: the stream differs at NIC {to}"));
    }
    // Nothing comes behind the end.
    let p = Pending {
        want: &[Status::EndOfStream],
        bytes: Some(0),
        ..Run::pending(id, to, &parties)
    };
    let over = within(recv(there, dst, 1), TIMEOUT_US);
    let c = run.ends(to, &over, p)?;
    if c.status != Status::EndOfStream {
        return Ok(());
    }
    run.all_end(id)?;
    if let Some((at, engine, want)) = put {
        let result = run.w.host(at).nic.engine_result(engine);
        let got = result.map_err(|e| format!("no result at NIC {at}: {e}"))?;
        if got.bytes != want {
            return Err(format!(
                "operation {id}: the engine at NIC {at} has another result: {got:?}, not {want:?}"
            ));
        }
        let gone = run.w.host(at).nic.detach_engine(engine);
        gone.map_err(|e| format!("an engine stays at NIC {at}: {e}"))?;
    }
    // The other half is still open.
    let (src, dst) = run.slot()?;
    let want = run.source(id + 1000, to, src, *back as usize);
    let sent = within(send(there, src, *back), TIMEOUT_US);
    run.post(to, &sent, Run::pending(id, to, &parties))?;
    let p = Pending {
        bytes: Some(u64::from(*back)),
        holds: vec![Holds {
            on: from,
            at: dst,
            want,
        }],
        ..Run::pending(id, from, &parties)
    };
    run.ends(from, &within(recv(here, dst, *back), TIMEOUT_US), p)?;
    run.all_end(id)?;
    close_both(run, id, (from, here), (to, there), *end)
}

/// Ends a session on both sides. Its ids mean nothing from then on.
fn close_both(
    run: &mut Run<'_>,
    id: usize,
    here: (usize, SessionId),
    there: (usize, SessionId),
    end: End,
) -> Done {
    let ends = [here, there];
    let parties = ends.map(|(rank, _)| rank);
    for (i, (rank, s)) in ends.into_iter().enumerate() {
        let d = match end {
            End::Abort if i == 0 => abort(s),
            _ => close(s),
        };
        let p = Run::pending(id, rank, &parties);
        run.ends(rank, &within(d, TIMEOUT_US), p)?;
    }
    run.closed.extend(ends);
    let recent = run.closed.len().saturating_sub(60);
    run.closed.drain(..recent);
    for (rank, s) in run.closed.clone() {
        if run.victim() == Some(rank) {
            continue;
        }
        let p = Pending {
            want: &[Status::BadSession],
            ..Run::pending(id, rank, &[rank])
        };
        run.ends(rank, &within(send_inline(s, b"old"), TIMEOUT_US), p)?;
    }
    Ok(())
}

fn late(run: &mut Run<'_>, id: usize, (from, to): (usize, usize), sent: u32, lacks: u32) -> Done {
    const LIMIT_US: u32 = 300_000;
    let Some((here, there)) = run.connect(from, to)? else {
        return Ok(());
    };
    let parties = [from, to];
    let (src, dst) = run.slot()?;
    let bytes = run.source(id, from, src, (sent + lacks) as usize);
    if sent > 0 {
        let d = within(send(here, src, sent), TIMEOUT_US);
        run.ends(from, &d, Run::pending(id, from, &parties))?;
    }
    let begun = run.w.now;
    let limit = u64::from(LIMIT_US) * 1000;
    let p = Pending {
        want: &[Status::TimedOut],
        // Besides, a NIC may pause.
        until: begun + limit + 100_000_000,
        ..Run::pending(id, to, &parties)
    };
    let d = within(recv(there, dst, sent + lacks), LIMIT_US);
    let c = run.ends(to, &d, p)?;
    if c.status != Status::TimedOut {
        return Ok(());
    }
    let took = run.w.now - begun;
    if took + 1_000_000 < limit {
        return Err(format!(
            "operation {id}: timed out after {took} ns of {limit}"
        ));
    }
    let has_faults = run.plan.faults != ringbell_nic_core::port::impair::Faults::default();
    let all = u64::from(sent);
    if c.bytes > all || (c.bytes < all && !has_faults && !run.plan.rests()) {
        return Err(format!("operation {id}: {c:?}, but {sent} bytes were sent"));
    }
    let got = c.bytes as usize;
    if run.w.host(to).peek(dst, got) != bytes[..got] {
        return Err(format!("operation {id}: the bytes of {c:?} differ"));
    }
    if sent == 0 {
        // Nothing was lost: the session goes on.
        let d = within(send(here, src, lacks), TIMEOUT_US);
        run.post(from, &d, Run::pending(id, from, &parties))?;
        let p = Pending {
            holds: vec![Holds {
                on: to,
                at: dst,
                want: bytes,
            }],
            ..Run::pending(id, to, &parties)
        };
        run.ends(to, &within(recv(there, dst, lacks), TIMEOUT_US), p)?;
        run.all_end(id)?;
    }
    close_both(run, id, (from, here), (to, there), End::Abort)
}

/// Bytes of a message of a burst.
const SHARE: u64 = OPERAND as u64 / 8;

fn burst(run: &mut Run<'_>, id: usize, to: usize, froms: &[usize], len: u32, order: u64) -> Done {
    let (src, dst) = run.slot()?;
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

fn adds(run: &mut Run<'_>, id: usize, (from, to): (usize, usize), count: u64) -> Done {
    let Some((here, _)) = run.session(from, to) else {
        return Ok(());
    };
    let (_, dst) = run.slot()?;
    let key = run.w.host(to).rkey();
    let word = run.source(id, to, dst, 8);
    let mut value = u64::from_le_bytes(word.try_into().expect("8 bytes"));
    for k in 0..count {
        let addend = id as u64 * 1_000_003 + k;
        let mut p = Pending {
            detail: Some(value),
            ..Run::pending(id, from, &[from, to])
        };
        value = value.wrapping_add(addend);
        if k + 1 == count {
            let want = value.to_le_bytes().to_vec();
            p.holds = vec![Holds {
                on: to,
                at: dst,
                want,
            }];
        }
        let d = within(fetch_add(here, key, dst, addend), TIMEOUT_US);
        run.post(from, &d, p)?;
    }
    Ok(())
}

fn refused(
    run: &mut Run<'_>,
    id: usize,
    (from, to): (usize, usize),
    len: u32,
    is_put: bool,
    bad_key: bool,
) -> Done {
    let Some((here, _)) = run.session(from, to) else {
        return Ok(());
    };
    let (src, dst) = run.slot()?;
    let signals = !run.plan.hosts.slow;
    let parties = [from, to];
    let good = run.w.host(to).rkey();
    let bytes = run.source(id, from, src, len as usize);
    // Not behind the end of the region alone, so that a part of it would fit.
    let (key, at) = match bad_key {
        true => (Rkey(good.0 ^ 0x10), dst),
        false => (good, BEHIND - u64::from(len / 2)),
    };
    let word = dst + OPERAND as u64 - 8;
    let word_index = (word / 8) as u32;
    run.w.host(to).poke(word, &[7; 8]);
    let before = run.w.host(from).peek(dst, len as usize);
    let d = match is_put {
        true if signals => signalled(put(here, key, src, at, len), word_index, 99),
        true => put(here, key, src, at, len),
        false => get(here, key, at, dst, len),
    };
    let mut p = Pending {
        want: REFUSED,
        holds: vec![Holds {
            on: to,
            at: word,
            want: vec![7; 8],
        }],
        ..Run::pending(id, from, &parties)
    };
    if !is_put {
        p.holds = vec![Holds {
            on: from,
            at: dst,
            want: before,
        }];
    }
    run.post(from, &within(d, TIMEOUT_US), p)?;
    // What was posted behind it is another matter.
    let after = src;
    let p = Pending {
        holds: vec![Holds {
            on: to,
            at: after,
            want: bytes,
        }],
        ..Run::pending(id, from, &parties)
    };
    let d = put(here, good, src, after, len);
    run.post(from, &within(d, TIMEOUT_US), p).map(drop)
}

/// The end of a NIC's region.
const BEHIND: u64 = (MEMORY + super::run::SPARE) as u64;

fn withdrawn(run: &mut Run<'_>, id: usize, (from, to): (usize, usize)) -> Done {
    let Some((here, _)) = run.session(from, to) else {
        return Ok(());
    };
    run.settle()?;
    let (src, _) = run.slot()?;
    let len = 5000;
    let mut old: Option<Rkey> = None;
    for turn in 0..3_u64 {
        // The pages of each turn are those of the spare memory, which is mapped here as well.
        let first = MEMORY as u64 + turn % 2 * SECOND_BYTES;
        let host = run.w.host(to);
        let view = host.view();
        let first_page = (first >> 16) as usize;
        let table = PageTable {
            base: SECOND,
            pages: view.table().pages[first_page..first_page + 2].to_vec(),
        };
        let wrong = |e: &dyn std::fmt::Display| format!("operation {id} at NIC {to}: {e}");
        host.nic.map(&table).map_err(|e| wrong(&e))?;
        let region = host
            .nic
            .register(host.pd, SECOND, SECOND_BYTES, Access::REMOTE);
        let region = region.map_err(|e| wrong(&e))?;
        host.poke(first, &vec![0; SECOND_BYTES as usize]);
        let bytes = run.source(id + turn as usize, from, src, len);
        // Across both pages.
        let at = (1 << 16) - 2000;
        let there = SECOND.0 - BASE.0 + at;
        if let Some(old) = old {
            let p = Pending {
                want: REFUSED,
                ..Run::pending(id, from, &[from, to])
            };
            let d = put(here, old, src, there, len as u32);
            run.ends(from, &within(d, TIMEOUT_US), p)?;
        }
        let p = Pending {
            holds: vec![Holds {
                on: to,
                at: first + at,
                want: bytes,
            }],
            ..Run::pending(id, from, &[from, to])
        };
        let d = put(here, region.rkey, src, there, len as u32);
        run.ends(from, &within(d, TIMEOUT_US), p)?;
        run.settle()?;
        let host = run.w.host(to);
        host.nic.deregister(region.lkey).map_err(|e| wrong(&e))?;
        host.nic
            .unmap(SECOND, SECOND_BYTES)
            .map_err(|e| wrong(&e))?;
        old = Some(region.rkey);
    }
    Ok(())
}

fn groups(run: &mut Run<'_>, id: usize, both: &[Vec<usize>; 2], count: u64, order: u64) -> Done {
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
        run.collective(id, members, &comms, what, With::Nothing)?;
        run.all_end(id)?;
        run.free(members, &comms)?;
    }
    Ok(())
}

fn unlike(run: &mut Run<'_>, id: usize, members: &[usize], count: u64, odd: usize) -> Done {
    let Some(comms) = run.meet(members)? else {
        return Ok(());
    };
    let (src, dst) = run.slot()?;
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
            until: run.w.now + 2_000_000_000,
            ..Run::pending(id, *m, members)
        };
        run.post(*m, &call.descriptor(comms[r]), p)?;
    }
    run.all_end(id)?;
    run.free(members, &comms)
}

fn aborted(
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
    let (src, dst) = run.slot()?;
    let call = Call::new(K::AllReduce, count)
        .of(DataType::U32, ReduceOp::Sum)
        .at(src, dst)
        .within(TIMEOUT_US);
    for (r, m) in members.iter().enumerate() {
        run.source(id, *m, src, count as usize * 4);
        let p = Pending {
            in_group: true,
            want: ENDS,
            until: run.w.now + 2_000_000_000,
            // Whoever has ended has its memory back.
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

fn streams(run: &mut Run<'_>, id: usize, count: u64, order: u64) -> Done {
    let ranks = run.plan.ranks;
    let members: Vec<usize> = (0..ranks).collect();
    let (src, dst) = run.slot()?;
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

fn engines(run: &mut Run<'_>, id: usize, members: &[usize], count: u64) -> Done {
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
    run.collective(id, members, &comms, what, With::Nothing)?;
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
