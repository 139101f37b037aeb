//! Engines at the sender that change the stream, over each transport: lengths, ends, attaching and
//! detaching.

#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

use crate::engine_support;
use crate::nic_support;

use engine_support::*;
use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::{Descriptor, SessionId, Status};
use ringbell_nic_core::engine::Direction;
use ringbell_onc_engines::stream::{EngineError, Registry, StreamEngine};

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
fn an_engine_at_the_sender_changes_the_sent_bytes() {
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
fn a_send_completes_with_the_bytes_of_its_buffer_for_every_engine() {
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
                assert_eq!(settle(hosts, &[(1, ticket)])[0].bytes, u64::from(expect));
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
fn bytes_that_a_senders_engine_holds_back_leave_before_the_end() {
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
