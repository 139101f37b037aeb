//! Engines on queues: they get the bytes that a queue's operations move, on any session, and no
//! others.

#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

use crate::engine_support;
use crate::nic_support;

use engine_support::*;
use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_gtlb::Access;
use ringbell_nic_abi::{
    Completion, Descriptor, EngineId, EngineSpec, EngineTarget, EventKind, GpuVa, Opcode, QueueId,
    SessionId, Status,
};
use ringbell_nic_core::engine::{Direction, EngineUseError};
use ringbell_nic_core::{HostQueue, QueueConfig};
use ringbell_onc_engines::stream::checksum::ChecksumEngine;
use ringbell_onc_engines::stream::{Registry, StreamEngine};

fn make(spec: &str) -> Box<dyn StreamEngine> {
    Registry::builtin().make(spec).expect("a good text")
}

/// Posts on a queue of its own and waits.
fn on(queue: &HostQueue, hosts: &[&Host], d: &Descriptor) -> Completion {
    let t = queue.try_post(d).expect("room");
    for _ in 0..10_000_000 {
        hosts.iter().for_each(|h| {
            h.nic.step();
        });
        if let Some(c) = queue.poll(t) {
            return c;
        }
    }
    panic!("no completion")
}

#[test]
fn a_queues_engine_sees_the_bytes_of_its_operations_on_every_session() {
    for t in all() {
        let hosts = &t.hosts();
        let conns = [7, 8].map(|port| connected(hosts, 0, 1, port));
        let (a, b) = (&t.hosts[0], &t.hosts[1]);
        // Another queue of the same domain receives from the first session as well.
        let other = b
            .nic
            .create_queue(b.pd, QueueConfig::default())
            .expect("queue");
        let check = || Box::new(ChecksumEngine::new());
        let sent = a
            .nic
            .attach_queue_engine(a.queue.id(), Direction::Send, check(), 1);
        let sent = sent.expect("attach");
        let got = b
            .nic
            .attach_queue_engine(b.queue.id(), Direction::Receive, check(), 1);
        let got = got.expect("attach");
        let mut seen = Vec::new();
        for (i, part) in Rng::new(3).bytes(300_003).chunks(70_001).enumerate() {
            assert!(t.transfer(conns[i % 2], part, part.len(), 5 + i as u64) == part);
            seen.extend_from_slice(part);
        }
        let result = model("checksum", &seen, false).1;
        assert_eq!(
            b.nic.engine_result(got).expect("there").bytes,
            result,
            "{}",
            t.name
        );
        assert_eq!(
            a.nic.engine_result(sent).expect("there").bytes,
            result,
            "{}",
            t.name
        );
        // What the other queue receives, and what this one sends, is not seen there.
        let (s, r) = conns[0];
        let ts = a.post(&send_inline(s, b"not for you"));
        assert_eq!(on(&other, hosts, &recv(r, 0, 11)).status, Status::Ok);
        settle(hosts, &[(0, ts)]);
        let back = b.post(&send(r, 0, 5000));
        let tr = a.post(&recv(s, 0, 5000));
        settle(hosts, &[(1, back), (0, tr)]);
        assert_eq!(
            b.nic.engine_result(got).expect("there").bytes,
            result,
            "{}",
            t.name
        );
        let info = &b.nic.engines()[0];
        assert_eq!(info.queues, [(b.queue.id(), Direction::Receive)]);
        let mut sessions: Vec<_> = conns.map(|c| (c.1, Direction::Receive)).to_vec();
        sessions.sort_by_key(|s| s.0 .0);
        assert_eq!(info.streams, sessions);
        assert_eq!(info.bytes_in, seen.len() as u64);
        assert!(b.nic.detach_engine(got).is_ok() && b.nic.engines().is_empty());
    }
}

#[test]
fn sessions_share_a_state_by_whole_items_or_have_one_each() {
    for t in all() {
        let hosts = &t.hosts();
        let conns = [7, 8].map(|port| connected(hosts, 0, 1, port));
        let nic = &t.hosts[1].nic;
        let spec = "hll:p=12,width=8";
        let queue = t.hosts[1].queue.id();
        let data = [1, 2].map(|seed| Rng::new(seed).bytes(8 * 5000));
        let both = data.concat();
        // The sessions take turns inside of items.
        let cuts = [8 * 1000 + 3, 8 * 3000 + 5];
        let turns = |from_start: bool| {
            for i in 0..2 {
                let (begin, end) = data[i].split_at(cuts[i]);
                let part = if from_start { begin } else { end };
                assert!(t.transfer(conns[i], part, part.len(), 7) == part);
            }
        };
        let shared = nic
            .attach_queue_engine(queue, Direction::Receive, make(spec), 8)
            .expect("attach");
        turns(true);
        turns(false);
        let result = nic.detach_engine(shared).expect("there");
        let expected = model(spec, &both, false).1;
        assert!(result.bytes[64..] == expected[64..] && result.bytes[16..24] == expected[16..24]);
        assert_eq!(result.cut, None, "{}", t.name);
        // Each its own; one ends inside an item.
        let apart = nic
            .attach_queue_engines(queue, Direction::Receive, move || make(spec))
            .expect("attach");
        turns(true);
        turns(false);
        for (i, (_, r)) in conns.into_iter().enumerate() {
            let one = nic.engine_result_of(apart, r).expect("seen");
            assert!(one.bytes == model(spec, &data[i], false).1, "{}", t.name);
        }
        assert_eq!(
            nic.engine_result(apart),
            Err(EngineUseError::Apart { id: apart })
        );
        let (s, r) = conns[0];
        assert!(t.transfer((s, r), &[1, 2, 3], 3, 1) == [1, 2, 3]);
        assert_eq!(call(hosts, 0, &close(s)).status, Status::Ok);
        assert_eq!(call(hosts, 1, &recv(r, 0, 8)).status, Status::EndOfStream);
        quiesce(hosts);
        let mut events = std::iter::from_fn(|| nic.poll_event());
        let kind = EventKind::EngineError.code();
        let event = events.find(|e| e.kind == kind).expect("a cut item");
        assert_eq!((event.session, event.data), (apart.0, 3));
        // After its end the state of a session can still be asked for.
        assert_eq!(call(hosts, 1, &close(r)).status, Status::Ok);
        quiesce(hosts);
        let one = nic.engine_result_of(apart, r).expect("kept");
        assert!(one.bytes == model(spec, &data[0], false).1 && one.cut == Some(3));
        let never = SessionId(77);
        let error = nic.engine_result_of(apart, never);
        assert_eq!(
            error,
            Err(EngineUseError::NotSeen {
                id: apart,
                session: never
            })
        );
        nic.detach_engine(apart).expect("there");
        assert!(nic.engine_result_of(apart, r).is_err());
    }
}

#[test]
fn a_queues_engine_runs_between_memory_and_the_sessions_engine() {
    for t in all() {
        let hosts = &t.hosts();
        let (s, r) = connected(hosts, 0, 1, 7);
        let (a, b) = (&t.hosts[0], &t.hosts[1]);
        // Half of it at the sender, half at the receiver: f32 → bf16 on the wire → f32.
        a.nic
            .attach_engine(s, Direction::Send, make("cast:f32-bf16"))
            .expect("attach");
        b.nic
            .attach_engine(r, Direction::Receive, make("cast:bf16-f32"))
            .expect("attach");
        let check = || make("checksum");
        let sent = a
            .nic
            .attach_queue_engine(a.queue.id(), Direction::Send, check(), 1);
        let got = b
            .nic
            .attach_queue_engine(b.queue.id(), Direction::Receive, check(), 1);
        let data = Rng::new(13).bytes(80_000);
        let wire = model("cast:f32-bf16", &data, false).0;
        let out = model("cast:bf16-f32", &wire, false).0;
        assert!(t.transfer((s, r), &data, out.len(), 9) == out, "{}", t.name);
        let sum = |data: &[u8]| model("checksum", data, false).1;
        let at = |nic: &ringbell_nic_core::Nic, id| nic.engine_result(id).expect("there").bytes;
        assert_eq!(at(&a.nic, sent.expect("attach")), sum(&data), "{}", t.name);
        assert_eq!(at(&b.nic, got.expect("attach")), sum(&out), "{}", t.name);
    }
}

#[test]
fn a_queues_engine_attaches_between_two_bytes_with_receives_posted() {
    for t in [local(), over("tcp", None)] {
        let hosts = &t.hosts();
        let (s, r) = connected(hosts, 0, 1, 7);
        let (a, b) = (&t.hosts[0], &t.hosts[1]);
        let data = Rng::new(23).bytes(200_000);
        a.poke(0, &data);
        let queue = b.queue.id();
        let before = b.post(&recv(r, 1 << 20, 200_000));
        let first = a.post(&send(s, 0, 50_000));
        settle(hosts, &[(0, first)]);
        quiesce(hosts);
        // In the middle of a receive.
        let id = b
            .nic
            .attach_queue_engine(queue, Direction::Receive, make("checksum"), 1);
        let id = id.expect("attach");
        let second = a.post(&send(s, 50_000, 70_000));
        settle(hosts, &[(0, second)]);
        quiesce(hosts);
        let end = b.nic.detach_engine(id).expect("there");
        assert_eq!(
            end.bytes,
            model("checksum", &data[50_000..120_000], false).1,
            "{}",
            t.name
        );
        let third = a.post(&send(s, 120_000, 80_000));
        let done = settle(hosts, &[(0, third), (1, before)]);
        assert_eq!((done[1].status, done[1].bytes), (Status::Ok, 200_000));
        assert!(b.peek(1 << 20, 200_000) == data, "{}", t.name);
        // Aborted while it is there, and a new session after that.
        let id = b
            .nic
            .attach_queue_engine(queue, Direction::Receive, make("checksum"), 1);
        let id = id.expect("attach");
        assert!(t.transfer((s, r), &data[..999], 999, 3) == data[..999]);
        assert_eq!(call(hosts, 0, &abort(s)).status, Status::Ok);
        quiesce(hosts);
        assert_eq!(call(hosts, 1, &close(r)).status, Status::Ok);
        let again = connected(hosts, 0, 1, 9);
        assert!(t.transfer(again, &data[999..5000], 4001, 3) == data[999..5000]);
        let got = b.nic.engine_result(id).expect("there").bytes;
        assert_eq!(got, model("checksum", &data[..5000], false).1, "{}", t.name);
    }
}

#[test]
fn a_byte_enters_an_engine_once_though_it_is_on_queue_and_session() {
    let t = local();
    let (s, r) = connected(&t.hosts(), 0, 1, 7);
    let nic = &t.hosts[1].nic;
    let id = nic
        .attach_engine(r, Direction::Receive, make("checksum"))
        .expect("attach");
    let queue = t.hosts[1].queue.id();
    nic.share_queue_engine(id, queue, Direction::Receive, 1)
        .expect("a tap");
    let data = Rng::new(33).bytes(100_000);
    assert!(t.transfer((s, r), &data, data.len(), 2) == data);
    let got = nic.detach_engine(id).expect("there").bytes;
    assert_eq!(got, model("checksum", &data, false).1);
}

#[test]
fn engines_that_a_queue_cannot_take_are_refused_with_a_reason() {
    let t = local();
    let (_s, r) = connected(&t.hosts(), 0, 1, 7);
    let (nic, queue) = (&t.hosts[1].nic, t.hosts[1].queue.id());
    let error = nic.attach_queue_engine(queue, Direction::Send, make("cast:f32-bf16"), 1);
    let error = error.expect_err("not a tap").to_string();
    assert!(error.contains("cast") && error.contains("queue"), "{error}");
    let missing = QueueId(400);
    let error = nic.attach_queue_engine(missing, Direction::Send, make("checksum"), 1);
    assert_eq!(error, Err(EngineUseError::NoQueue { queue: missing }));
    let id = nic
        .attach_queue_engine(queue, Direction::Send, make("checksum"), 1)
        .expect("attach");
    let error = nic.attach_queue_engine(queue, Direction::Send, make("checksum"), 1);
    assert_eq!(error, Err(EngineUseError::Watched { queue, id }));
    let other = nic.alloc_pd().expect("domain");
    let foreign = nic.add_engine(other, make("checksum")).expect("room");
    let error = nic.share_queue_engine(foreign, queue, Direction::Receive, 1);
    assert_eq!(
        error,
        Err(EngineUseError::QueueDomain { id: foreign, queue })
    );
    let apart = nic
        .attach_queue_engines(queue, Direction::Receive, || make("checksum"))
        .expect("attach");
    let error = nic.share_engine(apart, r, Direction::Send, 1);
    assert_eq!(error, Err(EngineUseError::Apart { id: apart }));
    assert_eq!(nic.engines().len(), 3, "a refused engine keeps no place");
}

#[test]
fn a_kernel_attaches_engines_to_its_queue_and_queries_each_session() {
    for t in all() {
        let hosts = &t.hosts();
        let conns = [7, 8].map(|port| connected(hosts, 0, 1, port));
        let nic = &t.hosts[1].nic;
        nic.register_engine_kind(5, |p| {
            Registry::builtin().make(&format!("hll:p={p},width=4")).ok()
        })
        .expect("free");
        nic.register_engine_kind(6, |_| Registry::builtin().make("cast:f32-bf16").ok())
            .expect("free");
        let spec = |kind, apart| EngineSpec {
            target: EngineTarget::Queue,
            apart,
            item: 4,
            ..EngineSpec::new(kind)
        };
        let attach = |queue: QueueId, spec: EngineSpec, operand| Descriptor {
            session: SessionId(queue.0),
            imm: spec.encode(),
            operand,
            ..Descriptor::new(Opcode::EngineAttach)
        };
        let queue = t.hosts[1].queue.id();
        let done = call(hosts, 1, &attach(queue, spec(5, true), 8));
        assert_eq!(done.status, Status::Ok, "{done:?}");
        let id = EngineId(done.detail as u32);
        let again = call(hosts, 1, &attach(queue, spec(5, false), 8));
        assert_eq!(again.status, Status::BadState);
        let cast = EngineSpec {
            sending: true,
            ..spec(6, false)
        };
        assert_eq!(
            call(hosts, 1, &attach(queue, cast, 0)).status,
            Status::Unsupported
        );
        assert_eq!(
            call(hosts, 1, &attach(queue, spec(9, false), 0)).status,
            Status::BadEngine
        );
        let none = call(hosts, 1, &attach(QueueId(300), spec(5, false), 8));
        assert_eq!((none.status, none.detail), (Status::InvalidArgument, 300));
        // Another tenant's queue is inaccessible.
        let pd = nic.alloc_pd().expect("domain");
        let tenant = nic.create_queue(pd, QueueConfig::default()).expect("queue");
        let theirs = call(hosts, 1, &attach(tenant.id(), spec(5, false), 8));
        assert_eq!(theirs.status, Status::InvalidArgument);
        let ours = on(&tenant, hosts, &attach(queue, spec(5, false), 8));
        assert_eq!(ours.status, Status::InvalidArgument);
        let malformed = Descriptor {
            imm: 1 << 22,
            ..attach(queue, spec(5, false), 8)
        };
        assert_eq!(call(hosts, 1, &malformed).status, Status::BadDescriptor);
        assert_eq!(nic.engines().len(), 1, "a refused engine keeps no place");

        let data = [1, 2].map(|seed| Rng::new(seed).bytes(40_000));
        for i in 0..2 {
            assert!(t.transfer(conns[i], &data[i], 40_000, 3) == data[i]);
        }
        let ask = |session: SessionId, imm| Descriptor {
            session,
            imm,
            operand: id.0.into(),
            local_va: GpuVa(BASE.0 + 64),
            len: 100_000,
            ..Descriptor::new(Opcode::EngineResult)
        };
        for i in 0..2 {
            let c = call(hosts, 1, &ask(conns[i].1, 1));
            let expected = model("hll:p=8,width=4", &data[i], false).1;
            assert_eq!((c.status, c.bytes), (Status::Ok, expected.len() as u64));
            assert!(
                t.hosts[1].peek(64, expected.len()) == expected,
                "{}",
                t.name
            );
        }
        assert_eq!(
            call(hosts, 1, &ask(conns[0].1, 0)).status,
            Status::InvalidArgument
        );
        assert_eq!(
            call(hosts, 1, &ask(SessionId(88), 1)).status,
            Status::BadSession
        );
        assert_eq!(
            on(&tenant, hosts, &ask(conns[0].1, 1)).status,
            Status::BadEngine
        );
        let end = Descriptor {
            operand: id.0.into(),
            ..Descriptor::new(Opcode::EngineDetach)
        };
        assert_eq!(call(hosts, 1, &end).status, Status::Ok);
        assert_eq!(
            call(hosts, 1, &ask(conns[0].1, 1)).status,
            Status::BadEngine
        );
    }
}

/// A tenant of host 1: a protection domain with a queue, a session of its own, and where it
/// receives.
struct Tenant<'a> {
    queue: &'a HostQueue,
    sender: SessionId,
    receiver: SessionId,
    at: u64,
}

#[test]
fn engines_of_two_protection_domains_share_nothing_and_neither_starves() {
    const HEAVY: u32 = 256 << 10;
    const LIGHT: u32 = 4096;
    for t in [local(), over("tcp", None)] {
        let hosts = &t.hosts();
        let nic = &t.hosts[1].nic;
        let domain = nic.alloc_pd().expect("domain");
        let memory = GpuVa(BASE.0 + (6 << 20));
        nic.register(domain, memory, 1 << 20, Access::LOCAL)
            .expect("memory of its own");
        let second = nic
            .create_queue(domain, QueueConfig::default())
            .expect("queue");
        let ip = nic.config().ip;
        let open = |queue: &HostQueue, port| {
            let l = session_of(on(queue, hosts, &socket()));
            assert_eq!(on(queue, hosts, &listen(l, port)).status, Status::Ok);
            let s = session_of(call(hosts, 0, &socket()));
            let connecting = hosts[0].post(&connect(s, ip, port));
            let r = session_of(on(queue, hosts, &accept(l)));
            assert_eq!(settle(hosts, &[(0, connecting)])[0].status, Status::Ok);
            (s, r)
        };
        let first = &t.hosts[1].queue;
        let [big, small] = [(first, 7, 0), (&second, 8, 6 << 20)].map(|(queue, port, at)| {
            let (sender, receiver) = open(queue, port);
            Tenant {
                queue,
                sender,
                receiver,
                at,
            }
        });
        // The heavy one's engine is the slower; the light one has one on its session as well.
        let attach = |t: &Tenant<'_>, spec| {
            let id = nic.attach_queue_engine(t.queue.id(), Direction::Receive, make(spec), 4);
            id.expect("attach")
        };
        let (slow, fast) = (attach(&big, "hll:p=16,width=4"), attach(&small, "checksum"));
        nic.attach_engine(small.receiver, Direction::Receive, make("hll:p=10,width=1"))
            .expect("attach");
        let data = Rng::new(91).bytes(LIGHT as usize);
        hosts[0].poke(4 << 20, &data);
        let (mut under_way, mut heavy) = (std::collections::VecDeque::new(), 0u64);
        let mut turn = |heavy: &mut u64| {
            while under_way.len() < 4 {
                let received = big.queue.try_post(&recv(big.receiver, big.at, HEAVY));
                let sent = hosts[0].post(&send(big.sender, 0, HEAVY));
                under_way.push_back((received.expect("room"), Some(sent)));
            }
            hosts.iter().for_each(|h| {
                h.nic.step();
            });
            for (_, sent) in &mut under_way {
                *sent = sent.filter(|t| hosts[0].queue.poll(*t).is_none());
            }
            while let Some((received, None)) = under_way.front() {
                let Some(c) = big.queue.poll(*received) else {
                    break;
                };
                assert_eq!(c.status, Status::Ok);
                *heavy += u64::from(HEAVY);
                under_way.pop_front();
            }
        };
        for _ in 0..24 {
            let before = heavy;
            let receive = recv(small.receiver, small.at, LIGHT);
            let received = small.queue.try_post(&receive).expect("room");
            let sent = hosts[0].post(&send(small.sender, 4 << 20, LIGHT));
            let mut open = [true; 2];
            while open != [false; 2] {
                turn(&mut heavy);
                open[0] &= small.queue.poll(received).is_none();
                open[1] &= hosts[0].queue.poll(sent).is_none();
                // A fair share of a fast stream is much less; without one this never ends.
                assert!(heavy - before < 64 << 20, "{}: starved", t.name);
            }
            assert!(hosts[1].peek(small.at, data.len()) == data);
        }
        while heavy == 0 {
            turn(&mut heavy);
        }
        let all = nic.engines();
        let bytes = |id| all.iter().find(|e| e.id == id).expect("there").bytes_in;
        assert!(bytes(slow) >= heavy && bytes(fast) == 24 * u64::from(LIGHT));
        let seen = data.repeat(24);
        let result = nic.engine_result(fast).expect("there").bytes;
        assert_eq!(result, model("checksum", &seen, false).1, "{}", t.name);
        // Neither reaches the other's engine, nor the other's memory for a result.
        let ask = |id: EngineId, at: u64| Descriptor {
            operand: id.0.into(),
            local_va: GpuVa(BASE.0 + at),
            len: 256 << 10,
            ..Descriptor::new(Opcode::EngineResult)
        };
        assert_eq!(
            on(&second, hosts, &ask(slow, 6 << 20)).status,
            Status::BadEngine
        );
        assert_eq!(on(first, hosts, &ask(fast, 0)).status, Status::BadEngine);
        let astray = on(&second, hosts, &ask(fast, 1 << 20)).status;
        assert_eq!(astray, Status::NotRegistered, "the first tenant's memory");
        assert_eq!(on(&second, hosts, &ask(fast, 6 << 20)).status, Status::Ok);
    }
}

#[test]
fn engines_end_with_their_protection_domain() {
    let t = local();
    let nic = &t.hosts[1].nic;
    let domain = nic.alloc_pd().expect("domain");
    let id = nic.add_engine(domain, make("checksum")).expect("room");
    let ours = nic
        .add_engine(t.hosts[1].pd, make("checksum"))
        .expect("room");
    nic.free_pd(domain).expect("empty");
    assert_eq!(nic.engine_result(id), Err(EngineUseError::Unknown { id }));
    assert!(nic.engine_result(ours).is_ok());
}
