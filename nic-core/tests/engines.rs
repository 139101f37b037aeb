//! Engines on the path, over each transport: every byte once and in order, for all cuts, cables
//! and receives.

#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

use crate::engine_support;
use crate::nic_support;

use std::sync::{Arc, Mutex};

use engine_support::*;
use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::{Descriptor, EngineId, EventKind, GpuVa, Opcode, SessionId, Status};
use ringbell_nic_core::engine::{Direction, EngineUseError, Return};
use ringbell_nic_core::{HostQueue, QueueConfig};
use ringbell_onc_engines::stream::checksum::ChecksumEngine;
use ringbell_onc_engines::stream::{EngineError, Registry, StreamEngine};

/// Remembers every byte that it sees: the strictest tap.
struct Witness(Arc<Mutex<Vec<u8>>>);

impl StreamEngine for Witness {
    fn name(&self) -> &'static str {
        "witness"
    }
    fn declared_rate(&self) -> f64 {
        1.0
    }
    fn is_tap(&self) -> bool {
        true
    }
    fn output_bound(&self, _input: usize) -> usize {
        0
    }
    fn process(&mut self, input: &[u8], _out: &mut Vec<u8>) {
        self.0.lock().unwrap().extend_from_slice(input);
    }
    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        Ok(())
    }
    fn result(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&(self.0.lock().unwrap().len() as u64).to_le_bytes());
    }
    fn reset(&mut self) {
        self.0.lock().unwrap().clear();
    }
}

fn witness() -> (Box<Witness>, Arc<Mutex<Vec<u8>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    (Box::new(Witness(seen.clone())), seen)
}

#[test]
fn a_tap_sees_every_byte_once_and_in_order_in_both_directions() {
    for t in all().into_iter().chain(far()) {
        let (s, r) = connected(&t.hosts(), 0, 1, 7);
        let (tx, sent) = witness();
        let (rx, received) = witness();
        let (a, b) = (&t.hosts[0].nic, &t.hosts[1].nic);
        a.attach_engine(s, Direction::Send, tx).expect("attach");
        let id = b.attach_engine(r, Direction::Receive, rx).expect("attach");
        let data = Rng::new(3).bytes(700_003);
        let arrived = t.transfer((s, r), &data, data.len(), 4);
        assert!(arrived == data, "{}: memory", t.name);
        assert!(*received.lock().unwrap() == data, "{}: receiver", t.name);
        assert!(*sent.lock().unwrap() == data, "{}: sender", t.name);
        let info = &b.engines()[0];
        assert_eq!((info.id, info.bytes_in), (id, 700_003));
        assert!(b.describe().contains("witness"), "{}", b.describe());
    }
}

#[test]
fn a_stream_that_an_engine_changes_has_the_lengths_behind_the_engine() {
    let specs = [
        "cast:bf16-f32",
        "cast:f32-bf16",
        "filter:record=12,at=4,type=u32,op=lt,value=1000000000,keep=2..9",
        "checksum|cast:f32-f16|hll:p=10,width=2",
    ];
    for t in all().into_iter().chain(far()) {
        for (spec, seed) in specs.into_iter().zip(30..) {
            let (s, r) = connected(&t.hosts(), 0, 1, 7);
            let data = Rng::new(seed).bytes(300_000);
            let (out, result) = model(spec, &data, false);
            let nic = &t.hosts[1].nic;
            let engine = Registry::builtin().make(spec).expect("a good text");
            let id = nic
                .attach_engine(r, Direction::Receive, engine)
                .expect("attach");
            let arrived = t.transfer((s, r), &data, out.len(), seed);
            assert!(arrived == out, "{} {spec}", t.name);
            // No receive asks for the bytes that the filter drops at the end.
            assert_eq!(call(&t.hosts(), 0, &close(s)).status, Status::Ok);
            let end = call(&t.hosts(), 1, &recv(r, 0, 8));
            assert_eq!((end.status, end.bytes), (Status::EndOfStream, 0), "{spec}");
            let r = nic.detach_engine(id).expect("there");
            assert!((r.bytes, r.cut) == (result, None), "{} {spec}", t.name);
        }
    }
}

#[test]
fn one_streams_engine_starves_no_other() {
    const HEAVY: u32 = 256 << 10;
    for t in [local(), over("tcp", None)] {
        let hosts = &t.hosts();
        let (s1, r1) = connected(hosts, 0, 1, 7);
        let (s2, r2) = connected(hosts, 0, 1, 8);
        let nic = &t.hosts[1].nic;
        for (r, spec) in [(r1, "hll:p=16,width=4"), (r2, "checksum")] {
            let engine = Registry::builtin().make(spec).expect("good");
            nic.attach_engine(r, Direction::Receive, engine)
                .expect("attach");
        }
        let data = Rng::new(91).bytes(4096);
        hosts[0].poke(4 << 20, &data);
        // Four heavy messages are always under way.
        let mut under_way: Vec<[(usize, u32); 2]> = Vec::new();
        let mut heavy = 0u64;
        let mut turn = |heavy: &mut u64| {
            while under_way.len() < 4 {
                let at = u64::from(HEAVY) * under_way.len() as u64;
                let tr = hosts[1].post(&recv(r1, at, HEAVY));
                under_way.push([(1, tr), (0, hosts[0].post(&send(s1, at, HEAVY)))]);
            }
            hosts.iter().for_each(|h| {
                h.nic.step();
            });
            for pair in &mut under_way {
                pair.iter_mut()
                    .filter(|(_, t)| *t != u32::MAX)
                    .for_each(|(at, t)| {
                        if let Some(c) = hosts[*at].queue.poll(*t) {
                            assert_eq!(c.status, Status::Ok);
                            *t = u32::MAX;
                        }
                    });
            }
            let before = under_way.len();
            under_way.retain(|p| p.iter().any(|(_, t)| *t != u32::MAX));
            *heavy += (before - under_way.len()) as u64 * u64::from(HEAVY);
        };
        for _ in 0..24 {
            let before = heavy;
            let mut light = [
                (1, hosts[1].post(&recv(r2, 5 << 20, 4096))),
                (0, hosts[0].post(&send(s2, 4 << 20, 4096))),
            ];
            while light.iter().any(|(_, t)| *t != u32::MAX) {
                turn(&mut heavy);
                for (at, t) in &mut light {
                    if *t != u32::MAX && hosts[*at].queue.poll(*t).is_some() {
                        *t = u32::MAX;
                    }
                }
                // A fair share of a fast stream is much less; without one this never ends.
                assert!(heavy - before < 64 << 20, "{}: starved", t.name);
            }
            assert!(hosts[1].peek(5 << 20, 4096) == data);
        }
        while heavy == 0 {
            turn(&mut heavy);
        }
        let [big, small] = &nic.engines()[..] else {
            panic!("two engines")
        };
        assert!(big.bytes_in >= heavy && small.bytes_in == 24 * 4096);
    }
}

#[test]
fn an_engine_gets_the_end_of_a_stream_and_the_host_an_event_for_a_cut_item() {
    for t in all() {
        let (s, r) = connected(&t.hosts(), 0, 1, 7);
        let nic = &t.hosts[1].nic;
        let engine = Registry::builtin().make("hll:p=8,width=8").expect("good");
        let id = nic
            .attach_engine(r, Direction::Receive, engine)
            .expect("attach");
        let data = Rng::new(5).bytes(8 * 1000 + 3);
        t.transfer((s, r), &data, data.len(), 6);
        call(&t.hosts(), 0, &close(s));
        let end = call(&t.hosts(), 1, &recv(r, 0, 8));
        assert_eq!(end.status, Status::EndOfStream);
        let got = nic.engine_result(id).expect("there");
        assert!(got.bytes == model("hll:p=8,width=8", &data, true).1);
        assert_eq!(got.cut, Some(3), "{}", t.name);
        quiesce(&t.hosts());
        let mut events = std::iter::from_fn(|| nic.poll_event());
        let kind = EventKind::EngineError.code();
        let event = events.find(|e| e.kind == kind).expect("an event");
        assert_eq!((event.session, event.data), (id.0, 3));
        assert_eq!(nic.counters().engine_errors, 1);
    }
}

#[test]
fn engines_come_and_go_between_two_bytes() {
    for t in all() {
        let (s, r) = connected(&t.hosts(), 0, 1, 7);
        let nic = &t.hosts[1].nic;
        let data = Rng::new(8).bytes(90_000);
        let parts = data.split_at(30_001);
        let part2 = parts.1.split_at(29_998);
        assert!(t.transfer((s, r), parts.0, parts.0.len(), 1) == parts.0);
        let cast = Registry::builtin().make("cast:f32-bf16").expect("good");
        let id = nic
            .attach_engine(r, Direction::Receive, cast)
            .expect("attach");
        let taken = nic.attach_engine(r, Direction::Receive, Box::new(ChecksumEngine::new()));
        assert_eq!(taken, Err(EngineUseError::Occupied { session: r, id }));
        // 29,998 bytes: two bytes of an element are left in the engine, and cut off by the
        // detachment.
        let (out, _) = model("cast:f32-bf16", part2.0, false);
        assert!(t.transfer((s, r), part2.0, out.len(), 2) == out);
        quiesce(&t.hosts());
        let end = nic.detach_engine(id).expect("there");
        assert_eq!(end.bytes, (out.len() as u64 / 2).to_le_bytes());
        assert_eq!(nic.detach_engine(id), Err(EngineUseError::Unknown { id }));
        assert!(t.transfer((s, r), part2.1, part2.1.len(), 3) == part2.1);
    }
}

#[test]
fn unreceived_output_of_a_detached_engine_comes_before_the_bytes_that_follow() {
    for t in all() {
        let hosts = &t.hosts();
        let (s, r) = connected(hosts, 0, 1, 7);
        let nic = &t.hosts[1].nic;
        let cast = Registry::builtin().make("cast:bf16-f32").expect("good");
        let id = nic
            .attach_engine(r, Direction::Receive, cast)
            .expect("attach");
        let data = Rng::new(18).bytes(1000);
        let (out, _) = model("cast:bf16-f32", &data, false);
        hosts[0].poke(0, &data);
        let ts = hosts[0].post(&send(s, 0, 1000));
        // 7 bytes of 2,000: the engine has taken more than that.
        let tr = hosts[1].post(&recv(r, 0, 7));
        settle(hosts, &[(0, ts), (1, tr)]);
        quiesce(hosts);
        let made = nic.engines()[0].bytes_out as usize;
        nic.detach_engine(id).expect("there");
        let rest = call(hosts, 1, &recv(r, 7, made as u32 - 7));
        assert_eq!(rest.status, Status::Ok);
        assert!(hosts[1].peek(0, made) == out[..made], "{}", t.name);
        // And then the stream itself.
        let left = &data[made / 2..];
        if !left.is_empty() {
            let c = call(hosts, 1, &recv(r, 0, left.len() as u32));
            assert_eq!(c.status, Status::Ok);
            assert!(hosts[1].peek(0, left.len()) == left);
        }
        let more = t.transfer((s, r), &data, data.len(), 3);
        assert!(more == data, "{}", t.name);
    }
}

#[test]
fn a_fault_takes_nothing_from_the_stream_and_a_time_out_no_byte_from_the_engine() {
    for t in all() {
        let hosts = &t.hosts();
        let (s, r) = connected(hosts, 0, 1, 7);
        let nic = &t.hosts[1].nic;
        let (tap, seen) = witness();
        nic.attach_engine(r, Direction::Receive, tap)
            .expect("attach");
        let late = call(hosts, 1, &within(recv(r, 0, 64), 1000));
        assert_eq!((late.status, late.bytes), (Status::TimedOut, 0));
        let outside = call(hosts, 1, &recv(r, 64 << 30, 64));
        assert_eq!(outside.status, Status::NotRegistered);
        let data = Rng::new(28).bytes(50_000);
        assert!(t.transfer((s, r), &data, data.len(), 3) == data);
        assert!(*seen.lock().unwrap() == data, "{}", t.name);
    }
}

#[test]
fn streams_share_an_engine_by_whole_items_and_tenants_share_nothing() {
    let t = local();
    let hosts = &t.hosts();
    let nic = &t.hosts[1].nic;
    let (s1, r1) = connected(hosts, 0, 1, 7);
    let (s2, r2) = connected(hosts, 0, 1, 8);
    let shared = Registry::builtin().make("hll:p=12,width=8").expect("good");
    let pd = t.hosts[1].pd;
    let id = nic.add_engine(pd, shared).expect("room");
    for r in [r1, r2] {
        nic.share_engine(id, r, Direction::Receive, 8).expect("tap");
    }
    let a = Rng::new(1).bytes(8 * 5000);
    let b = Rng::new(2).bytes(8 * 5000);
    // The streams take turns in the middle of items.
    let (a1, a2) = a.split_at(8 * 1000 + 3);
    let (b1, b2) = b.split_at(8 * 3000 + 5);
    for (conn, part) in [
        ((s1, r1), a1),
        ((s2, r2), b1),
        ((s1, r1), a2),
        ((s2, r2), b2),
    ] {
        assert!(t.transfer(conn, part, part.len(), 7) == part);
    }
    let both = [a, b].concat();
    let result = nic.engine_result(id).expect("there");
    // Its registers; the estimate beside them depends on the order of items, too.
    let expected = model("hll:p=12,width=8", &both, false).1;
    assert!(result.bytes[64..] == expected[64..] && result.bytes[16..24] == expected[16..24]);
    // Another tenant's kernel cannot ask for it, take it off, or put it on its own path.
    let other = nic.alloc_pd().expect("domain");
    let queue = nic
        .create_queue(other, QueueConfig::default())
        .expect("queue");
    for opcode in [Opcode::EngineResult, Opcode::EngineDetach] {
        let d = Descriptor {
            operand: id.0.into(),
            local_va: BASE,
            len: 4096,
            ..Descriptor::new(opcode)
        };
        let c = on(&queue, hosts, &d);
        assert_eq!((c.status, c.detail), (Status::BadEngine, id.0.into()));
    }
    let foreign = nic.add_engine(other, Box::new(ChecksumEngine::new()));
    let foreign = foreign.expect("room");
    let error = nic.share_engine(foreign, r1, Direction::Send, 1);
    assert!(
        matches!(error, Err(EngineUseError::Domain { .. })),
        "{error:?}"
    );
    assert_eq!(nic.engines().len(), 2);
}

/// Posts on a queue of its own and waits.
fn on(queue: &HostQueue, hosts: &[&Host], d: &Descriptor) -> ringbell_nic_abi::Completion {
    let t = queue.try_post(d).expect("room");
    for _ in 0..1_000_000 {
        hosts.iter().for_each(|h| {
            h.nic.step();
        });
        if let Some(c) = queue.poll(t) {
            return c;
        }
    }
    panic!("no completion")
}

/// `ENGINE_ATTACH` of a kind.
fn attach(session: SessionId, kind: u32, parameter: u64) -> Descriptor {
    Descriptor {
        session,
        imm: kind,
        operand: parameter,
        ..Descriptor::new(Opcode::EngineAttach)
    }
}

#[test]
fn a_kernel_attaches_queries_and_detaches_an_engine() {
    for t in all() {
        let hosts = &t.hosts();
        let (s, r) = connected(hosts, 0, 1, 7);
        let nic = &t.hosts[1].nic;
        nic.register_engine_kind(5, |p| {
            let spec = format!("hll:p={p},width=4");
            Registry::builtin().make(&spec).ok()
        })
        .expect("free");
        assert!(nic.register_engine_kind(5, |_| None).is_err());
        assert_eq!(call(hosts, 1, &attach(r, 6, 8)).status, Status::BadEngine);
        assert_eq!(call(hosts, 1, &attach(r, 5, 99)).status, Status::BadEngine);
        let missing = call(hosts, 1, &attach(SessionId(999), 5, 8));
        assert_eq!(missing.status, Status::BadSession);
        let done = call(hosts, 1, &attach(r, 5, 8));
        assert_eq!(done.status, Status::Ok);
        let id = EngineId(done.detail as u32);
        let again = call(hosts, 1, &attach(r, 5, 8));
        assert_eq!(again.status, Status::BadState);
        let data = Rng::new(38).bytes(40_001);
        t.transfer((s, r), &data, data.len(), 3);
        let (_, result) = model("hll:p=8,width=4", &data, false);
        let ask = |va: u64, len: usize| Descriptor {
            operand: id.0.into(),
            local_va: GpuVa(va),
            len: len as u32,
            ..Descriptor::new(Opcode::EngineResult)
        };
        t.hosts[1].poke(0, &[0xee; 4096]);
        let small = call(hosts, 1, &ask(BASE.0, result.len() - 1));
        let needed = result.len() as u64;
        assert_eq!(
            (small.status, small.detail),
            (Status::ResultTooLarge, needed)
        );
        let outside = call(hosts, 1, &ask(BASE.0 + (64 << 30), result.len()));
        assert_eq!(outside.status, Status::NotRegistered);
        assert!(
            t.hosts[1].peek(0, 4096).iter().all(|b| *b == 0xee),
            "a stray byte"
        );
        let got = call(hosts, 1, &ask(BASE.0 + 64, result.len() + 100));
        assert_eq!((got.status, got.bytes), (Status::Ok, needed));
        assert!(t.hosts[1].peek(64, result.len()) == result);
        assert_eq!(t.hosts[1].peek(64 + result.len() as u64, 8), [0xee; 8]);
        let end = Descriptor {
            operand: id.0.into(),
            ..Descriptor::new(Opcode::EngineDetach)
        };
        assert_eq!(call(hosts, 1, &end).status, Status::Ok);
        assert_eq!(call(hosts, 1, &end).status, Status::BadEngine);
        assert!(nic.engines().is_empty());
    }
}

#[test]
fn a_tap_costs_no_copy_on_tcp_and_one_of_pieces_on_local() {
    for (t, factor) in [(over("tcp", None), 1), (local(), 2)] {
        let (s, r) = connected(&t.hosts(), 0, 1, 7);
        let nic = &t.hosts[1].nic;
        nic.attach_engine(r, Direction::Receive, Box::new(ChecksumEngine::new()))
            .expect("attach");
        let data = Rng::new(48).bytes(1 << 20);
        t.hosts[0].poke(0, &data);
        let before = nic.counters().copied_bytes;
        let tr = t.hosts[1].post(&recv(r, 0, 1 << 20));
        quiesce(&t.hosts());
        let ts = t.hosts[0].post(&send(s, 0, 1 << 20));
        settle(&t.hosts(), &[(0, ts), (1, tr)]);
        let copied = nic.counters().copied_bytes - before;
        assert_eq!(copied, factor << 20, "{}", t.name);
    }
}

/// Sends `data` on `s`, half-closes, and returns everything that comes back.
fn answer(t: &Subject, s: SessionId, data: &[u8]) -> Vec<u8> {
    let hosts = &t.hosts();
    hosts[0].poke(0, data);
    let to = 4 << 20;
    let tr = hosts[0].post(&recv(s, to, 2 << 20));
    let ts = hosts[0].post(&send(s, 0, data.len() as u32));
    let fin = hosts[0].post(&shutdown(s));
    let done = settle(hosts, &[(0, tr), (0, ts), (0, fin)]);
    assert_eq!(done[0].status, Status::EndOfStream, "{}", t.name);
    hosts[0].peek(to, done[0].bytes as usize)
}

#[test]
fn the_nic_answers_by_itself_with_the_stream_or_the_result() {
    for t in all() {
        let data = Rng::new(68).bytes(300_003);
        let nic = &t.hosts[1].nic;
        for (spec, what) in [
            ("cast:bf16-f32", Return::Stream),
            ("hll:p=16,width=1", Return::Result),
            ("checksum", Return::Result),
        ] {
            let (s, r) = connected(&t.hosts(), 0, 1, 7);
            assert!(nic.return_engine(r, what).is_err(), "no engine yet");
            let engine = Registry::builtin().make(spec).expect("good");
            let id = nic
                .attach_engine(r, Direction::Receive, engine)
                .expect("attach");
            nic.return_engine(r, what).expect("NIC memory");
            let (out, result) = model(spec, &data, true);
            let expected = match what {
                Return::Stream => out,
                Return::Result => result,
            };
            assert!(answer(&t, s, &data) == expected, "{} {spec}", t.name);
            nic.detach_engine(id).expect("there");
            assert_eq!(call(&t.hosts(), 1, &close(r)).status, Status::Ok);
            assert_eq!(call(&t.hosts(), 0, &close(s)).status, Status::Ok);
        }
    }
}

#[test]
fn a_session_that_ends_early_ends_the_answer() {
    for t in all() {
        let (s, r) = connected(&t.hosts(), 0, 1, 7);
        let nic = &t.hosts[1].nic;
        nic.attach_engine(r, Direction::Receive, Box::new(ChecksumEngine::new()))
            .expect("attach");
        nic.return_engine(r, Return::Result).expect("NIC memory");
        assert_eq!(call(&t.hosts(), 0, &abort(s)).status, Status::Ok);
        quiesce(&t.hosts());
        assert_eq!(call(&t.hosts(), 1, &close(r)).status, Status::Ok);
        quiesce(&t.hosts());
        assert!(!nic.is_active(), "{}", t.name);
    }
}

/// Fails when it has seen enough.
struct Faulty(usize);

impl StreamEngine for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }
    fn declared_rate(&self) -> f64 {
        1e9
    }
    fn is_tap(&self) -> bool {
        true
    }
    fn output_bound(&self, _input: usize) -> usize {
        0
    }
    fn process(&mut self, input: &[u8], _out: &mut Vec<u8>) {
        self.0 = self.0.checked_sub(input.len()).expect("enough");
    }
    fn finish(&mut self, _out: &mut Vec<u8>) -> Result<(), EngineError> {
        Ok(())
    }
    fn result(&self, _into: &mut Vec<u8>) {}
    fn reset(&mut self) {}
}

#[test]
fn a_users_engine_that_panics_is_bypassed_and_reported() {
    let t = local();
    let (s, r) = connected(&t.hosts(), 0, 1, 7);
    let nic = &t.hosts[1].nic;
    let id = nic
        .attach_engine(r, Direction::Receive, Box::new(Faulty(10_000)))
        .expect("attach");
    let data = Rng::new(58).bytes(200_000);
    assert!(t.transfer((s, r), &data, data.len(), 3) == data);
    assert!(nic.engines()[0].failed);
    let mut events = std::iter::from_fn(|| nic.poll_event());
    let kind = EventKind::EngineError.code();
    let event = events.find(|e| e.kind == kind).expect("an event");
    assert_eq!((event.session, event.data), (id.0, u64::MAX));
}

/// Promises more than any engine can do.
struct Boaster(ChecksumEngine);

impl StreamEngine for Boaster {
    fn name(&self) -> &'static str {
        "boaster"
    }
    fn declared_rate(&self) -> f64 {
        1e15
    }
    fn is_tap(&self) -> bool {
        true
    }
    fn output_bound(&self, _input: usize) -> usize {
        0
    }
    fn process(&mut self, input: &[u8], out: &mut Vec<u8>) {
        self.0.process(input, out);
    }
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EngineError> {
        self.0.finish(out)
    }
    fn result(&self, into: &mut Vec<u8>) {
        self.0.result(into);
    }
    fn reset(&mut self) {
        self.0.reset();
    }
}

#[test]
fn an_engine_slower_than_its_promise_is_reported_once() {
    let t = local();
    let (s, r) = connected(&t.hosts(), 0, 1, 7);
    let nic = &t.hosts[1].nic;
    let boaster = Boaster(ChecksumEngine::new());
    let id = nic
        .attach_engine(r, Direction::Receive, Box::new(boaster))
        .expect("attach");
    for _ in 0..8 {
        let tr = t.hosts[1].post(&recv(r, 0, 1 << 20));
        let ts = t.hosts[0].post(&send(s, 0, 1 << 20));
        settle(&t.hosts(), &[(0, ts), (1, tr)]);
    }
    let events = std::iter::from_fn(|| nic.poll_event());
    let kind = EventKind::EngineSlow.code();
    let slow: Vec<_> = events.filter(|e| e.kind == kind).collect();
    assert_eq!(slow.len(), 1);
    assert_eq!(slow[0].session, id.0);
    assert_eq!(nic.counters().engines_slow, 1);
    let rates = nic.engines()[0].rates;
    assert!(!rates.keeps_promise() && rates.engine.is_some());
    assert!(nic.describe().contains("SLOW"), "{}", nic.describe());
}

#[test]
fn impossible_attachments_are_refused_with_a_reason() {
    let t = local();
    let (s, _r) = connected(&t.hosts(), 0, 1, 7);
    let nic = &t.hosts[0].nic;
    let cast = || Registry::builtin().make("cast:f32-bf16").expect("good");
    let id = nic.add_engine(t.hosts[0].pd, cast()).expect("room");
    let share = |direction| nic.share_engine(id, s, direction, 1);
    share(Direction::Receive).expect("the only stream");
    let error = share(Direction::Send).unwrap_err();
    assert!(error.to_string().contains("cast"), "{error}");
    nic.detach_engine(id).expect("there");
    let idle = session_of(call(&t.hosts(), 0, &socket()));
    let error = nic.attach_engine(idle, Direction::Receive, cast());
    assert_eq!(error, Err(EngineUseError::NoStream { session: idle }));
    assert!(nic.engines().is_empty(), "a refused engine keeps no place");
}
