//! Engines at communicators: sources, results and messages, each byte once and in order, for every
//! algorithm, path and end.

use crate::collective_support;

use collective_support::nic::{within, BASE};
use collective_support::{Call, Ring, Rng, Wire, World};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind as K, DataType, Descriptor, EngineId, EngineSpec, EngineTarget,
    GpuVa, Opcode, ReduceOp, SessionId, Status, WireType,
};
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_nic_core::engine::{EngineUseError, Place};
use ringbell_nic_core::types::CommId;
use ringbell_nic_core::QueueConfig;
use ringbell_onc_engines::stream::{Registry, StreamEngine};

const OUT: u64 = 8 << 20;

fn make(spec: &str) -> Box<dyn StreamEngine> {
    Registry::builtin().make(spec).expect("a good text")
}

/// What an engine makes of some pieces that it sees one after the other.
fn model(spec: &str, pieces: &[&[u8]]) -> Vec<u8> {
    let mut engine = make(spec);
    for piece in pieces {
        engine.process(piece, &mut Vec::new());
    }
    let mut result = Vec::new();
    engine.result(&mut result);
    result
}

fn settings() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 16 << 10,
        ..CollectiveSettings::default()
    }
}

/// Puts an engine at every rank.
fn at_all(w: &World, place: Place, spec: &'static str) -> Vec<EngineId> {
    let attach = |(r, comm): (usize, &CommId)| {
        let h = w.host(r);
        let attached = h
            .nic
            .attach_communicator_engine(h.pd, *comm, place, make(spec), 4);
        attached.expect("attach")
    };
    w.comms.iter().enumerate().map(attach).collect()
}

fn result(w: &World, rank: usize, id: EngineId) -> Vec<u8> {
    w.host(rank).nic.engine_result(id).expect("there").bytes
}

/// A source for each rank, and their sum.
fn numbers(ranks: usize, count: usize, seed: u64) -> (Vec<Vec<u8>>, Vec<u8>) {
    let mut sum = vec![0u32; count];
    let sources = (0..ranks).map(|r| {
        let mut rng = Rng(seed ^ (r as u64) << 32);
        let one = |s: &mut u32| {
            let v = rng.next() as u32;
            *s = s.wrapping_add(v);
            v.to_le_bytes()
        };
        sum.iter_mut().flat_map(one).collect()
    });
    let sources = sources.collect();
    (
        sources,
        sum.into_iter().flat_map(u32::to_le_bytes).collect(),
    )
}

fn all_reduce(count: usize) -> Call {
    Call::new(K::AllReduce, count as u64).of(DataType::U32, ReduceOp::Sum)
}

#[test]
fn engines_see_source_and_result_of_an_all_reduce_once_and_in_order() {
    let chain = "checksum|hll:p=10,width=4";
    for wire in [Wire::Local, Wire::Tcp, Wire::Lossy(2, 5)] {
        for algo in [Algorithm::Auto, Algorithm::Ring] {
            let mut w = World::new(3, wire, &settings());
            let inputs = at_all(&w, Place::Input, chain);
            let outputs = at_all(&w, Place::Output, chain);
            let (mut taken, mut given) = (vec![Vec::new(); 3], Vec::new());
            for (count, seed) in [(1, 1), (1001, 2), (70_001, 3), (5, 4)] {
                let (sources, sum) = numbers(3, count, seed);
                for (r, source) in sources.iter().enumerate() {
                    w.host(r).poke(0, source);
                    taken[r].extend_from_slice(source);
                }
                w.run(&all_reduce(count).algo(algo));
                given.extend_from_slice(&sum);
                for r in 0..3 {
                    assert!(w.host(r).peek(OUT, sum.len()) == sum, "{wire:?} {algo:?}");
                    // At the completion, and not some time later.
                    let what = format!("{wire:?} {algo:?} rank {r}, {count}");
                    assert!(
                        result(&w, r, outputs[r]) == model(chain, &[&given]),
                        "{what}: out"
                    );
                    assert!(
                        result(&w, r, inputs[r]) == model(chain, &[&taken[r]]),
                        "{what}: in"
                    );
                }
            }
            let info = &w.host(0).nic.engines()[0];
            assert_eq!(info.communicators, [(w.comms[0], Place::Input)]);
        }
    }
}

#[test]
fn engines_see_the_original_source_in_place_and_for_every_collective() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(3, wire, &settings());
        let inputs = at_all(&w, Place::Input, "checksum");
        let outputs = at_all(&w, Place::Output, "checksum");
        let mut seen: Vec<[Vec<u8>; 2]> = vec![Default::default(); 3];
        let kinds = [
            (K::AllReduce, true, 1, 1),
            (K::AllReduce, false, 1, 1),
            (K::Broadcast, false, 1, 1),
            (K::Reduce, false, 1, 1),
            (K::Gather, false, 1, 3),
            (K::Scatter, false, 3, 1),
            (K::AllGather, false, 1, 3),
            (K::ReduceScatter, false, 3, 1),
            (K::AllToAll, false, 3, 3),
            (K::Barrier, false, 0, 0),
        ];
        let count = 2003;
        for ((kind, in_place, input, output), seed) in kinds.into_iter().zip(10..) {
            let root = 1;
            let (sources, _) = numbers(3, 3 * count, seed);
            for (r, source) in sources.iter().enumerate() {
                w.host(r).poke(0, source);
            }
            let dst = if in_place { 0 } else { OUT };
            let call = Call::new(kind, count as u64).of(DataType::U32, ReduceOp::Sum);
            w.run(&call.root(root).at(0, dst));
            for r in 0..3 {
                let at_root = r == root as usize;
                let takes = !matches!(kind, K::Broadcast | K::Scatter) || at_root;
                let gives = !matches!(kind, K::Reduce | K::Gather) || at_root;
                let block = 4 * count;
                if takes {
                    seen[r][0].extend_from_slice(&sources[r][..input * block]);
                }
                if gives {
                    let out = w.host(r).peek(dst, output * block);
                    seen[r][1].extend_from_slice(&out);
                }
                let of = |id, i: usize| result(&w, r, id) == model("checksum", &[&seen[r][i]]);
                assert!(of(inputs[r], 0), "{wire:?} {kind:?} rank {r}: source");
                assert!(of(outputs[r], 1), "{wire:?} {kind:?} rank {r}: result");
            }
        }
    }
}

#[test]
fn engines_of_each_pair_of_ranks_see_the_same_bytes_sent_and_received() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Lossy(3, 8)] {
        let mut w = World::new(3, wire, &settings());
        let each = |place| -> Vec<EngineId> {
            let attach = |(r, comm): (usize, &CommId)| {
                let h = w.host(r);
                let make = || make("checksum");
                let id = h.nic.attach_communicator_engines(h.pd, *comm, place, make);
                id.expect("attach")
            };
            w.comms.iter().enumerate().map(attach).collect()
        };
        let (sent, received) = (each(Place::Sent), each(Place::Received));
        // Eager, by rendezvous, in several segments; narrower on the wire; and two at once.
        for (count, seed) in [(1, 1), (90, 2), (50_001, 3)] {
            let (sources, sum) = numbers(3, count, seed);
            for (r, source) in sources.iter().enumerate() {
                w.host(r).poke(0, source);
            }
            w.run(&all_reduce(count));
            for r in 0..3 {
                assert!(w.host(r).peek(OUT, sum.len()) == sum, "{wire:?}");
            }
            let half = Call::new(K::AllReduce, count as u64).wire(WireType::Bf16);
            let more = Call::new(K::AllGather, count as u64).at(0, OUT + (2 << 20));
            let tickets: Vec<_> = (0..3)
                .flat_map(|r| [(r, w.post(r, &half)), (r, w.post(r, &more))])
                .collect();
            for c in w.settle(&tickets) {
                assert_eq!(c.status, Status::Ok);
            }
        }
        let mut all = 0;
        for a in 0..3u32 {
            for b in (0..3).filter(|b| *b != a) {
                let of = |rank: u32, id: EngineId, peer: u32| {
                    let nic = &w.host(rank as usize).nic;
                    nic.engine_result_of_rank(id, peer).expect("seen").bytes
                };
                let left = of(a, sent[a as usize], b);
                let came = of(b, received[b as usize], a);
                assert_eq!(left, came, "{wire:?}: from {a} to {b}");
                all += u64::from_le_bytes(left[8..16].try_into().expect("8 bytes"));
            }
        }
        // A ring sends at least this much: the engines were not passed by.
        assert!(all > 4 * 50_001 * 4, "{wire:?}: {all}");
        let info = w.host(0).nic.communicator_info(w.comms[0]).expect("known");
        assert_eq!(
            info.counters.direct + info.counters.direct_eager,
            0,
            "{wire:?}"
        );
        let error = w.host(0).nic.engine_result_of_rank(sent[0], 0);
        assert_eq!(
            error,
            Err(EngineUseError::NoRank {
                id: sent[0],
                rank: 0
            })
        );
        // Without them the ranks' memory is used again.
        for r in 0..3 {
            for id in [sent[r], received[r]] {
                w.host(r).nic.detach_engine(id).expect("there");
            }
        }
        w.run(&all_reduce(5000));
        let info = w.host(0).nic.communicator_info(w.comms[0]).expect("known");
        assert_eq!(info.counters.direct > 0, wire == Wire::Local);
    }
}

#[test]
fn a_wire_engine_at_one_rank_alone_changes_no_result() {
    let mut w = World::new(3, Wire::Local, &settings());
    let h = w.host(1);
    let id =
        h.nic
            .attach_communicator_engine(h.pd, w.comms[1], Place::Received, make("checksum"), 1);
    let id = id.expect("attach");
    for (count, seed) in [(3, 1), (9001, 2), (7, 3)] {
        let (sources, sum) = numbers(3, count, seed);
        for (r, source) in sources.iter().enumerate() {
            w.host(r).poke(0, source);
        }
        w.run(&all_reduce(count));
        for r in 0..3 {
            assert!(w.host(r).peek(OUT, sum.len()) == sum);
        }
    }
    assert!(w.host(1).nic.engines()[0].bytes_in > 0);
    w.host(1).nic.detach_engine(id).expect("there");
    // One that must be direct cannot be, while some rank needs messages.
    let h = w.host(2);
    let id = h
        .nic
        .attach_communicator_engine(h.pd, w.comms[2], Place::Sent, make("checksum"), 1);
    id.expect("attach");
    for c in w.call(&all_reduce(9).algo(Algorithm::Direct)) {
        assert_eq!(c.status, Status::Unsupported);
    }
}

#[test]
fn windows_of_kernels_streams_pass_as_they_come_and_go() {
    let settings = CollectiveSettings {
        stream_bytes: 64,
        segment_bytes: 1024,
        ..settings()
    };
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(2, wire, &settings);
        let inputs = at_all(&w, Place::Input, "checksum");
        let outputs = at_all(&w, Place::Output, "checksum");
        let (sources, sum) = numbers(2, 1003, 77);
        let rings: Vec<_> = (0..2)
            .map(|r| [0u64, 1].map(|i| Ring::new(&w, r, (12 << 20) + i * (1 << 16), 10, 0)))
            .collect();
        let call = all_reduce(1003).streamed();
        let tickets: Vec<_> = (0..2)
            .map(|r| w.post(r, &call.of_ring(&rings[r][0]).to_ring(&rings[r][1])))
            .collect();
        let mut pushed = [0; 2];
        let mut popped = [Vec::new(), Vec::new()];
        let mut done = [None, None];
        let end = w.now + 60_000_000_000;
        while done.iter().any(Option::is_none) || popped.iter().any(|p| p.len() < sum.len()) {
            for r in 0..2 {
                pushed[r] += rings[r][0].push(&w, &sources[r][pushed[r]..]);
                popped[r].extend(rings[r][1].pop(&w, 300));
                done[r] = done[r].or_else(|| w.host(r).queue.poll(tickets[r]));
            }
            w.step();
            assert!(w.now < end, "hung: {done:?}");
        }
        for r in 0..2 {
            assert_eq!(done[r].map(|c| c.status), Some(Status::Ok));
            assert!(popped[r] == sum);
            assert!(result(&w, r, inputs[r]) == model("checksum", &[&sources[r]]));
            assert!(
                result(&w, r, outputs[r]) == model("checksum", &[&sum]),
                "{wire:?}"
            );
        }
    }
}

#[test]
fn messages_between_two_ranks_and_local_passes_are_operations_too() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(2, wire, &settings());
        let inputs = at_all(&w, Place::Input, "checksum");
        let outputs = at_all(&w, Place::Output, "checksum");
        let (sources, _) = numbers(1, 5001, 3);
        w.host(0).poke(0, &sources[0]);
        // The receive is longer than its message.
        let recv = w.post(
            1,
            &Call::new(K::Recv, 9000)
                .of(DataType::U32, ReduceOp::Sum)
                .tag(4),
        );
        let send = Call::new(K::Send, 5001)
            .of(DataType::U32, ReduceOp::Sum)
            .root(1)
            .tag(4);
        let send = w.post(0, &send);
        let done = w.settle(&[(0, send), (1, recv)]);
        assert_eq!(
            (done[1].status, done[1].bytes),
            (Status::Ok, 4 * 5001),
            "{wire:?}"
        );
        let copy = Call::new(K::Copy, 5001).of(DataType::U32, ReduceOp::Sum);
        let copied = w.post(0, &copy);
        assert_eq!(w.settle(&[(0, copied)])[0].status, Status::Ok);
        let (one, two) = (&sources[0][..], [&sources[0][..], &sources[0]]);
        assert!(
            result(&w, 0, inputs[0]) == model("checksum", &two),
            "{wire:?}"
        );
        assert!(result(&w, 0, outputs[0]) == model("checksum", &[one]));
        assert!(result(&w, 1, outputs[1]) == model("checksum", &[one]));
        assert!(result(&w, 1, inputs[1]) == model("checksum", &[]));
    }
}

#[test]
fn an_operation_that_fails_shows_no_result_and_leaves_nothing_behind() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        for abort in [false, true] {
            let mut w = World::new(3, wire, &settings());
            let inputs = at_all(&w, Place::Input, "hll:p=8,width=8");
            let outputs = at_all(&w, Place::Output, "checksum");
            let sent = at_all(&w, Place::Sent, "checksum");
            let (sources, _) = numbers(3, 20_001, 5);
            for (r, source) in sources.iter().enumerate() {
                w.host(r).poke(0, source);
            }
            // Rank 2 never comes.
            let call = all_reduce(20_001).within(300_000);
            let tickets = [0, 1].map(|r| (r, w.post(r, &call)));
            if abort {
                for _ in 0..200 {
                    w.step();
                }
                w.host(2).nic.abort_communicator(w.comms[2]).expect("known");
            }
            for c in w.settle(&tickets) {
                assert_ne!(c.status, Status::Ok, "{wire:?}");
            }
            for r in 0..2 {
                assert!(
                    result(&w, r, outputs[r]) == model("checksum", &[]),
                    "{wire:?}"
                );
                // 20,001 elements of 4 bytes are 10,000 items of 8, and a half.
                let items = 8 * 10_000;
                let seen = model("hll:p=8,width=8", &[&sources[r][..items]]);
                let got = w.host(r).nic.engine_result(inputs[r]).expect("there");
                assert!(got.bytes[64..] == seen[64..], "{wire:?} {abort}");
            }
            // Another communicator of the same NICs, with the same engines, works at once.
            let ids = w.communicator(8, &[0, 1, 2], &settings());
            for r in 0..3 {
                let nic = &w.host(r).nic;
                nic.free_communicator(w.comms[r]).expect("known");
                nic.share_communicator_engine(outputs[r], ids[r], Place::Output, 1)
                    .expect("a tap");
                nic.detach_engine(sent[r]).expect("there");
            }
            w.comms = ids;
            let (sources, sum) = numbers(3, 777, 6);
            for (r, source) in sources.iter().enumerate() {
                w.host(r).poke(0, source);
            }
            w.run(&all_reduce(777));
            for (r, id) in outputs.iter().enumerate() {
                assert!(result(&w, r, *id) == model("checksum", &[&sum]), "{wire:?}");
            }
        }
    }
}

#[test]
fn engines_come_and_go_between_operations_and_during_them() {
    let mut w = World::new(2, Wire::Tcp, &settings());
    let (sources, sum) = numbers(2, 60_001, 9);
    for (r, source) in sources.iter().enumerate() {
        w.host(r).poke(0, source);
    }
    // Posted before: it is not seen.
    let before = w.post(0, &all_reduce(60_001));
    w.step();
    let ids = at_all(&w, Place::Output, "checksum");
    let peer = w.post(1, &all_reduce(60_001));
    w.settle(&[(0, before), (1, peer)]);
    assert!(result(&w, 0, ids[0]) == model("checksum", &[]));
    assert!(result(&w, 1, ids[1]) == model("checksum", &[&sum]));
    // Detached while operations are under way, in the middle of their messages.
    let wire = at_all(&w, Place::Sent, "checksum");
    let tickets = [0, 1].map(|r| (r, w.post(r, &all_reduce(60_001))));
    for _ in 0..40 {
        w.step();
    }
    for r in 0..2 {
        w.host(r).nic.detach_engine(wire[r]).expect("there");
        w.host(r).nic.detach_engine(ids[r]).expect("there");
    }
    for c in w.settle(&tickets) {
        assert_eq!(c.status, Status::Ok);
    }
    for r in 0..2 {
        assert!(w.host(r).peek(OUT, sum.len()) == sum);
        assert!(w.host(r).nic.engines().is_empty());
    }
}

#[test]
fn a_kernel_attaches_to_a_communicator_and_sees_only_its_own_tenants_operations() {
    let mut w = World::new(2, Wire::Local, &settings());
    let comms = w.comms.clone();
    for r in 0..2 {
        let nic = &w.host(r).nic;
        nic.register_engine_kind(3, |_| Registry::builtin().make("checksum").ok())
            .expect("free");
        nic.register_engine_kind(4, |_| Registry::builtin().make("cast:f32-f16").ok())
            .expect("free");
    }
    let attach = |comm: CommId, kind, f: &dyn Fn(&mut EngineSpec)| {
        let mut spec = EngineSpec {
            target: EngineTarget::Communicator,
            ..EngineSpec::new(kind)
        };
        f(&mut spec);
        Descriptor {
            session: comm.session(),
            imm: spec.encode(),
            ..Descriptor::new(Opcode::EngineAttach)
        }
    };
    let call = |w: &mut World, rank: usize, d: &Descriptor| {
        let t = w.host(rank).post(d);
        w.settle(&[(rank, t)])[0]
    };
    let plain = |_: &mut EngineSpec| {};
    let out = call(&mut w, 0, &attach(comms[0], 3, &plain));
    assert_eq!(out.status, Status::Ok, "{out:?}");
    let out = EngineId(out.detail as u32);
    assert_eq!(
        call(&mut w, 0, &attach(comms[0], 3, &plain)).status,
        Status::BadState
    );
    assert_eq!(
        call(&mut w, 0, &attach(comms[0], 4, &|s| s.sending = true)).status,
        Status::Unsupported
    );
    let wrong = CommId(comms[0].0 ^ 1 << 16);
    assert_eq!(
        call(&mut w, 0, &attach(wrong, 3, &plain)).status,
        Status::BadCommunicator
    );
    let apart = call(
        &mut w,
        0,
        &attach(comms[0], 3, &|s| (s.apart, s.wire) = (true, true)),
    );
    let apart = EngineId(apart.detail as u32);
    assert_eq!(w.host(0).nic.engines().len(), 2);

    let (sources, sum) = numbers(2, 5003, 4);
    for (r, source) in sources.iter().enumerate() {
        w.host(r).poke(0, source);
    }
    w.run(&all_reduce(5003));
    let ask = |id: EngineId, imm, rank| Descriptor {
        session: SessionId(rank),
        imm,
        operand: id.0.into(),
        local_va: GpuVa(BASE.0 + 64),
        len: 100,
        ..Descriptor::new(Opcode::EngineResult)
    };
    let c = call(&mut w, 0, &ask(out, 0, 0));
    let expected = model("checksum", &[&sum]);
    assert_eq!((c.status, c.bytes), (Status::Ok, expected.len() as u64));
    assert!(w.host(0).peek(64, expected.len()) == expected);
    let of_peer = call(&mut w, 0, &ask(apart, 1, 1));
    assert_eq!(of_peer.status, Status::Ok);
    assert_ne!(w.host(0).peek(64 + 8, 8), [0; 8], "messages of rank 1");
    assert_eq!(
        call(&mut w, 0, &ask(apart, 1, 7)).status,
        Status::BadSession
    );

    // Another tenant's queue uses the communicator: its results are not this one's business.
    let nic = &w.host(0).nic;
    let other = nic.alloc_pd().expect("domain");
    let queue = nic
        .create_queue(other, QueueConfig::default())
        .expect("queue");
    let d = all_reduce(0).descriptor(comms[0]);
    let d = within(Descriptor { operand: 0, ..d }, 5_000_000);
    let theirs = queue.try_post(&d).expect("room");
    let peer = w.post(1, &all_reduce(0));
    w.settle(&[(1, peer)]);
    w.until("their completion", 5_000_000_000, |_| {
        queue.poll(theirs).is_some()
    });
    assert!(result(&w, 0, out) == expected);
    // Nor can it ask.
    let t = queue.try_post(&ask(out, 0, 0)).expect("room");
    w.step();
    let c = queue.poll(t).expect("at once");
    assert_eq!(c.status, Status::BadEngine);
}

#[test]
fn engines_that_a_communicator_cannot_take_are_refused_with_a_reason() {
    let w = World::new(2, Wire::Local, &settings());
    let h = w.host(0);
    let (pd, comm) = (h.pd, w.comms[0]);
    let error = h
        .nic
        .attach_communicator_engine(pd, comm, Place::Sent, make("cast:f32-bf16"), 1);
    let error = error.expect_err("not a tap").to_string();
    assert!(
        error.contains("cast") && error.contains("wire type"),
        "{error}"
    );
    let id = h
        .nic
        .attach_communicator_engine(pd, comm, Place::Sent, make("checksum"), 1);
    let id = id.expect("attach");
    let place = Place::Sent;
    let error = h
        .nic
        .attach_communicator_engine(pd, comm, place, make("checksum"), 1);
    assert_eq!(error, Err(EngineUseError::Taken { comm, place, id }));
    let place = Place::Input;
    let error = h
        .nic
        .attach_communicator_engines(pd, comm, place, || make("checksum"));
    assert_eq!(error, Err(EngineUseError::OneStream { place }));
    let missing = CommId(0xff_0000);
    let error = h.nic.share_communicator_engine(id, missing, place, 1);
    assert_eq!(error, Err(EngineUseError::NoCommunicator { id: missing }));
    assert_eq!(h.nic.engines().len(), 1, "a refused engine keeps no place");
}
