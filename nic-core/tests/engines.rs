//! Engines on the path, over each transport: every byte once and in order, whatever the cuts, the cable
//! and the receives.

#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

mod nic_support;

use std::sync::{Arc, Mutex};

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::{Descriptor, EngineId, EventKind, GpuVa, Opcode, SessionId, Status};
use ringbell_nic_core::engine::{Direction, EngineUseError, Return};
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::tcp::{TcpConfig, TcpTransport};
use ringbell_nic_core::{HostQueue, QueueConfig};
use ringbell_onc_engines::stream::checksum::ChecksumEngine;
use ringbell_onc_engines::stream::{EngineError, Registry, StreamEngine};

/// Two NICs that reach each other.
struct Subject {
    name: &'static str,
    hosts: [Host; 2],
    _dir: TempDir,
}

fn local() -> Subject {
    let dir = TempDir::new();
    Subject {
        name: "local",
        hosts: [1, 2].map(|n| Host::new(&Setup::new(&dir, n))),
        _dir: dir,
    }
}

fn over(name: &'static str, faults: Option<Faults>) -> Subject {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let host = |n: u8| {
        let setup = Setup::new(&dir, n);
        let port = switch.port(usize::from(n) - 1).expect("port");
        let port: Box<dyn Port> = match faults {
            None => Box::new(port),
            Some(f) => {
                let seed = f.seed * 2 + u64::from(n);
                Box::new(Impair::new(port, Faults { seed, ..f }).expect("faults in range"))
            }
        };
        let mut config = TcpConfig::new(setup.nic.ip, 24);
        config.rto_min = std::time::Duration::from_millis(20);
        let tcp = TcpTransport::new(port, config).expect("transport");
        Host::with(&setup, |nic| nic.transport(Box::new(tcp)))
    };
    Subject {
        name,
        hosts: [host(1), host(2)],
        _dir: dir,
    }
}

fn all() -> [Subject; 3] {
    let bad = Faults {
        loss: 0.02,
        reorder: 0.1,
        duplicate: 0.05,
        seed: 9,
        ..Faults::default()
    };
    [local(), over("tcp", None), over("bad cable", Some(bad))]
}

impl Subject {
    fn hosts(&self) -> [&Host; 2] {
        [&self.hosts[0], &self.hosts[1]]
    }

    /// Sends `data` from host 0 and receives `expect` bytes at host 1, both in random pieces.
    fn transfer(
        &self,
        (s, r): (SessionId, SessionId),
        data: &[u8],
        expect: usize,
        seed: u64,
    ) -> Vec<u8> {
        let hosts = &self.hosts();
        let mut rng = Rng::new(seed);
        hosts[0].poke(17, data);
        let (mut sent, mut got) = (0u64, 0u64);
        let mut sends = Vec::new();
        let mut receive = None;
        let start = std::time::Instant::now();
        while got < expect as u64 || !sends.is_empty() || sent < data.len() as u64 {
            if sent < data.len() as u64 && sends.len() < 8 {
                let longest = [1, 40, 3000, 200_000][rng.below(4) as usize];
                let n = (1 + rng.below(longest)).min(data.len() as u64 - sent);
                let inline = n <= 40 && rng.below(2) == 0;
                let d = if inline {
                    let at = sent as usize;
                    send_inline(s, &data[at..at + n as usize])
                } else {
                    send(s, 17 + sent, n as u32)
                };
                sends.push(hosts[0].post(&d));
                sent += n;
            }
            if receive.is_none() && got < expect as u64 {
                let n = (1 + rng.below(90_000)).min(expect as u64 - got) as u32;
                let to = (4 << 20) + got;
                let d = if rng.below(2) == 0 {
                    recv_some(r, to, n)
                } else {
                    recv(r, to, n)
                };
                receive = Some(hosts[1].post(&d));
            }
            for h in hosts {
                h.nic.step();
            }
            if let Some(c) = receive.and_then(|t| hosts[1].queue.poll(t)) {
                assert_eq!(c.status, Status::Ok, "{} {c:?}", self.name);
                got += c.bytes;
                receive = None;
            }
            sends.retain(|t| match hosts[0].queue.poll(*t) {
                None => true,
                Some(c) => {
                    assert_eq!(c.status, Status::Ok);
                    false
                }
            });
            // A transformed stream may end before all that was sent has been asked for.
            if got == expect as u64 && sent == data.len() as u64 && start.elapsed().as_secs() > 20 {
                panic!("{}: sends hang: {sends:?}", self.name);
            }
        }
        hosts[1].peek(4 << 20, expect)
    }
}

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

/// What an engine of this text makes of a stream, fed in one piece.
fn model(spec: &str, data: &[u8], end: bool) -> (Vec<u8>, Vec<u8>) {
    let mut engine = Registry::builtin().make(spec).expect("a good text");
    let mut out = Vec::new();
    engine.process(data, &mut out);
    if end {
        let _ = engine.finish(&mut out);
    }
    let mut result = Vec::new();
    engine.result(&mut result);
    (if engine.is_tap() { data.to_vec() } else { out }, result)
}

#[test]
fn a_tap_sees_every_byte_once_and_in_order_in_both_directions() {
    for t in all() {
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
    for t in all() {
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
            // Whatever the filter drops at the end is not asked for by any receive.
            assert_eq!(call(&t.hosts(), 0, &close(s)).status, Status::Ok);
            let end = call(&t.hosts(), 1, &recv(r, 0, 8));
            assert_eq!((end.status, end.bytes), (Status::EndOfStream, 0), "{spec}");
            let r = nic.detach_engine(id).expect("there");
            assert!((r.bytes, r.cut) == (result, None), "{} {spec}", t.name);
        }
    }
}

/// Receives until the stream ends.
fn drain(hosts: &[&Host], r: SessionId) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let c = call(hosts, 1, &recv_some(r, 4 << 20, 100_000));
        all.extend(hosts[1].peek(4 << 20, c.bytes as usize));
        match c.status {
            Status::Ok => {}
            Status::EndOfStream => return all,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_engine_at_the_sender_changes_what_leaves() {
    let specs = [
        "cast:bf16-f32",
        "cast:f32-bf16",
        "filter:record=12,at=4,type=u32,op=lt,value=1000000000,keep=2..9",
        "checksum|cast:f32-f16|hll:p=10,width=2",
    ];
    for t in all() {
        for (spec, seed) in specs.into_iter().zip(60..) {
            let hosts = &t.hosts();
            let (s, r) = connected(hosts, 0, 1, 7);
            // The last item is whole for every engine here.
            let data = Rng::new(seed).bytes(300_000);
            let (out, result) = model(spec, &data, true);
            let nic = &t.hosts[0].nic;
            let engine = Registry::builtin().make(spec).expect("a good text");
            let id = nic
                .attach_engine(s, Direction::Send, engine)
                .expect("attach");
            assert!(
                t.transfer((s, r), &data, out.len(), seed) == out,
                "{} {spec}",
                t.name
            );
            let info = &nic.engines()[0];
            assert_eq!((info.bytes_in, info.bytes_out), (300_000, out.len() as u64));
            assert_eq!(call(hosts, 0, &shutdown(s)).status, Status::Ok);
            assert!(
                drain(hosts, r).is_empty(),
                "{} {spec}: bytes too many",
                t.name
            );
            let r = nic.detach_engine(id).expect("there");
            assert!((r.bytes, r.cut) == (result, None), "{} {spec}", t.name);
        }
    }
}

#[test]
fn a_send_completes_with_the_bytes_of_its_buffer_whatever_the_engine_makes_of_them() {
    let nothing = "filter:record=8,at=0,type=u32,op=ne,value=16843009";
    for t in all() {
        let hosts = &t.hosts();
        for (spec, made) in [("cast:bf16-f32", 2), (nothing, 0)] {
            let (s, r) = connected(hosts, 0, 1, 7);
            let nic = &t.hosts[0].nic;
            let engine = Registry::builtin().make(spec).expect("a good text");
            nic.attach_engine(s, Direction::Send, engine)
                .expect("attach");
            hosts[0].poke(0, &[1; 40_000]);
            // By reference, in lines, and inline; the receives are there before.
            let lens = [40_000u32, 96, 8];
            let expect: u32 = lens.iter().sum::<u32>() * made;
            let receive = (expect > 0).then(|| hosts[1].post(&recv(r, 0, expect)));
            for len in lens {
                let d = match len {
                    8 => send_inline(s, &[1; 8]),
                    _ => send(s, 0, len),
                };
                let c = call(hosts, 0, &d);
                assert_eq!((c.status, c.bytes), (Status::Ok, len.into()), "{spec}");
            }
            if let Some(ticket) = receive {
                assert_eq!(settle(hosts, &[(1, ticket)])[0].bytes, expect.into());
            }
            assert_eq!(call(hosts, 0, &shutdown(s)).status, Status::Ok);
            assert!(drain(hosts, r).is_empty(), "{} {spec}", t.name);
        }
    }
}

/// Keeps everything for the end, and gives it back turned round.
struct Hoarder(Vec<u8>);

impl StreamEngine for Hoarder {
    fn name(&self) -> &'static str {
        "hoarder"
    }
    fn declared_rate(&self) -> f64 {
        1.0
    }
    fn is_tap(&self) -> bool {
        false
    }
    fn output_bound(&self, input: usize) -> usize {
        if input == 0 {
            self.0.len()
        } else {
            0
        }
    }
    fn process(&mut self, input: &[u8], _out: &mut Vec<u8>) {
        self.0.extend_from_slice(input);
    }
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), EngineError> {
        out.extend(self.0.drain(..).rev());
        Ok(())
    }
    fn result(&self, _into: &mut Vec<u8>) {}
    fn reset(&mut self) {
        self.0.clear();
    }
}

#[test]
fn what_an_engine_at_the_sender_keeps_for_the_end_leaves_before_the_end() {
    for t in all() {
        let hosts = &t.hosts();
        // A half-close, and a whole one: what was sent before either arrives.
        for (end, seed) in [(shutdown as fn(SessionId) -> Descriptor, 71), (close, 72)] {
            let (s, r) = connected(hosts, 0, 1, 7);
            let nic = &t.hosts[0].nic;
            // The first part goes by reference; the engine comes after it.
            let data = Rng::new(seed).bytes(123_457);
            let (plain, rest) = data.split_at(50_000);
            assert!(t.transfer((s, r), plain, plain.len(), seed) == plain);
            nic.attach_engine(s, Direction::Send, Box::new(Hoarder(Vec::new())))
                .expect("attach");
            t.transfer((s, r), rest, 0, seed);
            let ended = hosts[0].post(&end(s));
            let mut turned = drain(hosts, r);
            turned.reverse();
            assert!(turned == rest, "{}", t.name);
            settle(hosts, &[(0, ended)]);
        }
    }
}

#[test]
fn engines_at_the_sender_come_and_go_between_two_bytes() {
    for t in all() {
        let (s, r) = connected(&t.hosts(), 0, 1, 7);
        let nic = &t.hosts[0].nic;
        let data = Rng::new(81).bytes(240_000);
        for (part, seed) in data.chunks(60_000).zip(82..) {
            let id = (seed % 2 == 0).then(|| {
                let cast = Registry::builtin().make("cast:f32-bf16").expect("good");
                nic.attach_engine(s, Direction::Send, cast).expect("attach")
            });
            let out = match id {
                Some(_) => model("cast:f32-bf16", part, false).0,
                None => part.to_vec(),
            };
            assert!(
                t.transfer((s, r), part, out.len(), seed) == out,
                "{}",
                t.name
            );
            if let Some(id) = id {
                assert_eq!(nic.detach_engine(id).expect("there").cut, None);
            }
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
fn the_end_of_a_stream_is_told_to_the_engine_and_a_cut_item_to_the_host() {
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
        // 29,998 bytes: two bytes of an element are left in the engine, and cut off by the detachment.
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
fn what_an_engine_has_made_and_nobody_received_comes_before_what_follows() {
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
fn a_kernel_attaches_asks_and_detaches() {
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
        let nobody = call(hosts, 1, &attach(SessionId(999), 5, 8));
        assert_eq!(nobody.status, Status::BadSession);
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
fn a_users_engine_that_panics_is_passed_by_and_reported() {
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
fn an_engine_that_is_slower_than_it_says_is_reported_once() {
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
fn what_cannot_be_attached_is_refused_with_a_reason() {
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
