//! Scenes: operations that belong together, and what they must leave behind.
//!
//! A scene waits for its operations where the next depends on them. Those of other steps go on
//! meanwhile.

use ringbell_gtlb::{Access, PageTable};
use ringbell_nic_abi::{GpuVa, Rkey, SessionId, Status};
use ringbell_nic_core::engine::Direction;
use ringbell_onc_engines::stream::{EngineError, Registry, StreamEngine};

use super::collective_support::nic::driven::*;
use super::plan::{End, Fault, Scene, OPERAND};
use super::run::{Holds, Lent, Pending, Run, MEMORY, TIMEOUT_US};
use super::{failing, groups, merging};

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

pub(super) type Done = Result<(), String>;

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
        | Scene::Left { members, .. }
        | Scene::Engines { members, .. }
        | Scene::Program { members, .. } => members.clone(),
        Scene::Fails(scene) => vec![scene.from, scene.to],
        Scene::Merges(scene) => scene.members(),
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
        } => groups::burst(run, id, to, froms, len, order),
        Scene::Adds {
            from,
            to,
            count,
            ahead,
        } => adds(run, id, (from, to), count, ahead),
        Scene::Refused {
            from,
            to,
            len,
            put,
            fault,
        } => refused(run, id, (from, to), len, put, fault),
        Scene::Withdrawn { from, to } => withdrawn(run, id, (from, to)),
        Scene::Groups {
            ref both,
            count,
            order,
        } => groups::at_once(run, id, both, count, order),
        Scene::Unlike {
            ref members,
            count,
            odd,
        } => groups::unlike(run, id, members, count, odd),
        Scene::Aborted {
            ref members,
            count,
            by,
            after,
        } => groups::aborted(run, id, members, count, by, after),
        Scene::Left {
            ref members,
            count,
            by,
        } => groups::left(run, id, members, count, by),
        Scene::Streams { count, order } => groups::streams(run, id, count, order),
        Scene::Engines { ref members, count } => groups::engines(run, id, members, count),
        Scene::Program {
            ref members,
            count,
            with,
            order,
        } => groups::program(run, id, members, count, with, order),
        Scene::Fails(ref scene) => failing::play(run, id, scene),
        Scene::Merges(ref scene) => merging::play(run, id, scene),
    }
}

/// Keeps the last bytes of a stream until its end.
#[derive(Default)]
struct Late {
    kept: Vec<u8>,
    seen: u64,
}

impl StreamEngine for Late {
    fn name(&self) -> &'static str {
        "late"
    }
    fn declared_rate(&self) -> f64 {
        1e6
    }
    fn is_tap(&self) -> bool {
        false
    }
    fn output_bound(&self, input: usize) -> usize {
        input + 100
    }
    fn process(&mut self, input: &[u8], out: &mut Vec<u8>) {
        self.seen += input.len() as u64;
        self.kept.extend(input);
        let whole = self.kept.len().saturating_sub(100);
        out.extend(self.kept.drain(..whole));
    }
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EngineError> {
        out.append(&mut self.kept);
        Ok(())
    }
    fn result(&self, into: &mut Vec<u8>) {
        into.extend(self.seen.to_le_bytes());
    }
    fn reset(&mut self) {
        *self = Late::default();
    }
}

pub(super) fn engine(spec: &str) -> Box<dyn StreamEngine> {
    if spec == "late" {
        return Box::new(Late::default());
    }
    Registry::builtin().make(spec).expect("a good text")
}

/// The stream behind an engine, and its result.
pub(super) fn behind(spec: &str, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
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
        both,
        waits,
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
    use_old_ids(run, id, &parties)?;
    let (src, dst) = run.slot(id)?;
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
    let (back_src, back_dst) = run.slot(id)?;
    let answer = run.source(id + 1000, to, back_src, *back as usize);
    let send_back = |run: &mut Run<'_>| {
        let sent = within(send(there, back_src, *back), TIMEOUT_US);
        run.post(to, &sent, Run::pending(id, to, &parties))
    };
    if *both {
        send_back(run)?;
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
    for _ in 0..*waits {
        run.step()?;
    }
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
    if !both {
        send_back(run)?;
    }
    let want = answer;
    let p = Pending {
        bytes: Some(u64::from(*back)),
        holds: vec![Holds {
            on: from,
            at: back_dst,
            want,
        }],
        ..Run::pending(id, from, &parties)
    };
    run.ends(from, &within(recv(here, back_dst, *back), TIMEOUT_US), p)?;
    run.all_end(id)?;
    close_both(run, id, (from, here), (to, there), *end)
}

/// Ends a session on both sides.
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
    Ok(())
}

/// Old ids of sessions mean nothing, also where their slots are used again.
fn use_old_ids(run: &mut Run<'_>, id: usize, ranks: &[usize]) -> Done {
    let all = run.closed.clone();
    for (rank, s) in all.into_iter().filter(|(rank, _)| ranks.contains(rank)) {
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
    let (src, dst) = run.slot(id)?;
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

fn adds(run: &mut Run<'_>, id: usize, (from, to): (usize, usize), count: u64, ahead: u32) -> Done {
    let Some((here, _)) = run.session(from, to) else {
        return Ok(());
    };
    let (src, dst) = run.slot(id)?;
    let parties = [from, to];
    let key = run.w.host(to).rkey();
    let signal = dst + OPERAND as u64 - 8;
    run.w.host(to).poke(signal, &5_u64.to_le_bytes());
    if ahead > 0 {
        let want = run.source(id, from, src, ahead as usize);
        let p = Pending {
            holds: vec![
                Holds {
                    on: to,
                    at: dst,
                    want,
                },
                Holds {
                    on: to,
                    at: signal,
                    want: 12_u64.to_le_bytes().to_vec(),
                },
            ],
            ..Run::pending(id, from, &parties)
        };
        let d = signalled(put(here, key, src, dst, ahead), (signal / 8) as u32, 7);
        run.post(from, &within(d, TIMEOUT_US), p)?;
    }
    let (far, near) = run.slot(id)?;
    let word = far + OPERAND as u64 - 8;
    let len = 500;
    let read = run.source(id + 1, to, far, len * count as usize);
    let mut value = id as u64;
    run.w.host(to).poke(word, &value.to_le_bytes());
    for k in 0..count {
        let addend = id as u64 * 1_000_003 + k;
        let mut p = Pending {
            detail: Some(value),
            ..Run::pending(id, from, &parties)
        };
        value = value.wrapping_add(addend);
        if k + 1 == count {
            let want = value.to_le_bytes().to_vec();
            p.holds = vec![Holds {
                on: to,
                at: word,
                want,
            }];
        }
        let d = within(fetch_add(here, key, word, addend), TIMEOUT_US);
        run.post(from, &d, p)?;
        if k % 4 == 3 {
            let at = k * len as u64;
            let want = read[at as usize..][..len].to_vec();
            let p = Pending {
                holds: vec![Holds {
                    on: from,
                    at: near + at,
                    want,
                }],
                ..Run::pending(id, from, &parties)
            };
            let d = get(here, key, far + at, near + at, len as u32);
            run.post(from, &within(d, TIMEOUT_US), p)?;
        }
    }
    Ok(())
}

fn refused(
    run: &mut Run<'_>,
    id: usize,
    (from, to): (usize, usize),
    len: u32,
    is_put: bool,
    fault: Fault,
) -> Done {
    let Some((here, _)) = run.session(from, to) else {
        return Ok(());
    };
    let (src, dst) = run.slot(id)?;
    let signals = !run.plan.hosts.slow;
    let parties = [from, to];
    let good = run.w.host(to).rkey();
    let bytes = run.source(id, from, src, len as usize);
    // Not behind the end of the region alone, so that a part of it would fit.
    // Slow memory has no words.
    let fault = match fault {
        Fault::Word if !signals || !is_put => Fault::Key,
        fault => fault,
    };
    let (key, at) = match fault {
        Fault::Key => (Rkey(good.0 ^ 0x10), dst),
        Fault::Bounds => (good, BEHIND - u64::from(len / 2)),
        Fault::Word => (good, dst),
    };
    let word = dst + OPERAND as u64 - 8;
    let word_index = match fault {
        Fault::Word => (BEHIND / 8) as u32,
        _ => (word / 8) as u32,
    };
    run.w.host(to).poke(word, &[7; 8]);
    let there = run.w.host(to).peek(dst, len as usize);
    let d = match is_put {
        true if signals => signalled(put(here, key, src, at, len), word_index, 99),
        true => put(here, key, src, at, len),
        false => get(here, key, at, dst, len),
    };
    let mut p = Pending {
        want: REFUSED,
        holds: vec![
            Holds {
                on: to,
                at: word,
                want: vec![7; 8],
            },
            // No byte is written before all is checked.
            Holds {
                on: to,
                at: dst,
                want: there,
            },
        ],
        ..Run::pending(id, from, &parties)
    };
    if !is_put {
        // A part may have come before the peer has refused the rest.
        p.holds.clear();
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
    let (src, _) = run.slot(id)?;
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
        // Where nothing is mapped, nothing can be registered.
        let again = host
            .nic
            .register(host.pd, SECOND, SECOND_BYTES, Access::REMOTE);
        if again.is_ok() {
            return Err(format!(
                "operation {id}: memory that NIC {to} has unmapped is registered"
            ));
        }
        old = Some(region.rkey);
    }
    Ok(())
}
