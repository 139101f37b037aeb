//! Repeated collectives: what is kept from one call to the next never outlives the memory or the
//! shape that it is for.

use crate::collective_support;

use collective_support::nic::BASE;
use collective_support::{Call, Rng, Wire, World};
use ringbell_gtlb::testing::Layout;
use ringbell_gtlb::Access;
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_nic_core::QueueConfig;

const IN: u64 = 4096 - 12;
const OUT: u64 = (6 << 20) + 20;
/// Counts of u32 whose sources travel in the record's line, behind it, and not at all.
const COUNTS: [u64; 3] = [3, 200, 50_000];

fn world(ranks: usize) -> World {
    World::new(ranks, Wire::Local, &CollectiveSettings::default())
}

fn all_reduce(count: u64) -> Call {
    Call::new(K::AllReduce, count)
        .of(DataType::U32, ReduceOp::Sum)
        .at(IN, OUT)
}

/// Sources of all ranks at an offset, and their sum.
fn fill(w: &World, at: u64, count: u64, seed: u64) -> Vec<u8> {
    let mut sums = vec![0u32; count as usize];
    for r in 0..w.ranks() {
        let mut rng = Rng(seed * 64 + r as u64);
        let mut bytes = Vec::new();
        for sum in &mut sums {
            let v = rng.next() as u32;
            *sum = sum.wrapping_add(v);
            bytes.extend(v.to_le_bytes());
        }
        w.host(r).poke(at, &bytes);
    }
    sums.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Runs it with new sources, and compares every rank's result.
fn check(w: &mut World, call: &Call, seed: u64) {
    let want = fill(w, call.src, call.count, seed);
    w.run(call);
    for r in 0..w.ranks() {
        assert!(
            w.host(r).peek(call.dst, want.len()) == want,
            "rank {r}, seed {seed}: {call:?}"
        );
    }
}

/// The direct path ran all of them.
fn all_direct(w: &World, calls: u64) {
    for r in 0..w.ranks() {
        let id = w.comms[r];
        let c = w.host(r).nic.communicator_info(id).expect("known").counters;
        assert_eq!(c.direct + c.direct_eager, calls, "rank {r}");
    }
}

fn deregister(w: &World, rank: usize) {
    let h = w.host(rank);
    let region = h.nic.pointer_info(h.pd, BASE).expect("registered").region;
    h.nic.deregister(region.lkey).expect("idle");
}

#[test]
fn memory_freed_between_two_calls_is_refused_and_nothing_moves() {
    for count in COUNTS {
        for victim in 0..2 {
            let mut w = world(2);
            let call = all_reduce(count);
            (0..3).for_each(|i| check(&mut w, &call, i));
            deregister(&w, victim);
            let before: Vec<_> = (0..2).map(|r| w.host(r).peek(OUT, 64)).collect();
            fill(&w, IN, count, 9);
            let done = w.call(&call.within(300_000));
            let refused = (done[victim].status, done[victim].detail);
            assert_eq!(refused, (Status::NotRegistered, BASE.0 + IN));
            assert_eq!(done[1 - victim].status, Status::TimedOut);
            for (r, before) in before.iter().enumerate() {
                assert!(w.host(r).peek(OUT, 64) == *before, "rank {r}, {count}");
            }
        }
    }
}

#[test]
fn memory_registered_anew_at_the_same_address_is_found_where_it_is_now() {
    for count in COUNTS {
        let mut w = world(2);
        let call = all_reduce(count);
        for round in 0..4u64 {
            (0..3).for_each(|i| check(&mut w, &call, round * 8 + i));
            // Other pages come to lie behind the same addresses.
            let victim = round as usize % 2;
            deregister(&w, victim);
            let h = w.hosts[victim].as_mut().expect("alive");
            let bytes = 16 << 20;
            h.nic.unmap(BASE, bytes).expect("no region is left");
            h.layout = Layout::Scattered(round + 50);
            h.nic.map(h.view().table()).expect("map");
            let access = Access::COLLECTIVE;
            h.nic.register(h.pd, BASE, bytes, access).expect("register");
        }
        all_direct(&w, 12);
    }
}

#[test]
fn another_region_that_is_freed_changes_nothing() {
    let mut w = world(3);
    for i in 0..6 {
        check(&mut w, &all_reduce(200), i);
        let h = w.host(i as usize % 3);
        let other = h.nic.register(h.pd, BASE, 4096, Access::LOCAL);
        h.nic.deregister(other.expect("free").lkey).expect("idle");
    }
    all_direct(&w, 6);
}

#[test]
fn every_parameter_may_change_from_call_to_call() {
    let mut w = world(3);
    let mut rng = Rng(5);
    let kinds = [K::AllReduce, K::Broadcast, K::Reduce, K::AllGather];
    let calls: Vec<Call> = (0..24)
        .map(|_| {
            let kind = kinds[rng.next() as usize % 4];
            let dtype = [DataType::U32, DataType::F32, DataType::I64][rng.next() as usize % 3];
            let op = [ReduceOp::Sum, ReduceOp::Max][rng.next() as usize % 2];
            let count = COUNTS[rng.next() as usize % 3] - rng.next() % 3;
            let mut call = Call::new(kind, count).of(dtype, op).at(IN, OUT);
            if kind.has_root() {
                call = call.root((rng.next() % 3) as u32);
            } else if kind == K::AllReduce && rng.next().is_multiple_of(3) {
                call = call.at(IN, IN);
            }
            call
        })
        .collect();
    for i in 0..150u64 {
        let call = &calls[rng.next() as usize % calls.len()];
        let results = [Algorithm::Auto, Algorithm::Flat].map(|algo| {
            let algo = match call.spec.kind {
                K::AllReduce | K::AllGather if algo == Algorithm::Flat => Algorithm::Ring,
                _ => algo,
            };
            fill(&w, IN, 2 * call.count, i);
            for r in 0..3 {
                w.host(r).poke(OUT, &vec![0x11; 24 * call.count as usize]);
            }
            w.run(&call.algo(algo));
            let len = 24 * call.count as usize;
            (0..3)
                .map(|r| w.host(r).peek(call.dst, len))
                .collect::<Vec<_>>()
        });
        assert!(results[0] == results[1], "call {i}: {call:?}");
    }
}

#[test]
fn a_rank_that_differs_after_equal_calls_is_named_with_the_parameter() {
    for count in COUNTS {
        let base = all_reduce(count);
        for (wrong, what) in [
            (all_reduce(count - 1), "count"),
            (base.of(DataType::F32, ReduceOp::Sum), "type"),
            (base.of(DataType::U32, ReduceOp::Min), "reduction"),
            (
                Call {
                    spec: Call::new(K::Broadcast, 1).spec,
                    ..base
                },
                "operation",
            ),
        ] {
            let mut w = world(3);
            (0..2).for_each(|_| w.run(&wrong));
            (0..3).for_each(|i| check(&mut w, &base, i));
            let calls = [base, base, wrong];
            let before = w.host(0).peek(OUT, 64);
            let tickets: Vec<_> = (0..3).map(|r| (r, w.post(r, &calls[r]))).collect();
            for c in w.settle(&tickets) {
                assert_eq!((c.status, c.detail), (Status::Mismatch, 2), "{wrong:?}");
            }
            for r in 0..3 {
                let info = w.host(r).nic.communicator_info(w.comms[r]).expect("known");
                let why = info.why.expect("known");
                assert!(why.contains("rank 2") && why.contains(what), "{why}");
            }
            assert!(w.host(0).peek(OUT, 64) == before, "bytes were moved");
        }
    }
}

#[test]
fn calls_of_one_shape_may_be_under_way_together() {
    let mut w = world(2);
    for count in COUNTS {
        for r in 0..2 {
            w.host(r).poke(IN, &vec![1; count as usize * 4]);
        }
        // In place: each doubles what the one before it has left.
        let mut call = all_reduce(count).at(IN, IN);
        call.spec.after = 1;
        let tickets: Vec<_> = (0..7)
            .flat_map(|_| [0, 1])
            .map(|r| (r, w.post(r, &call)))
            .collect();
        for c in w.settle(&tickets) {
            assert_eq!(c.status, Status::Ok);
        }
        let want: Vec<u8> = (0..count)
            .flat_map(|_| (0x0101_0101u32 << 7).to_le_bytes())
            .collect();
        for r in 0..2 {
            assert!(w.host(r).peek(IN, want.len()) == want, "rank {r}, {count}");
        }
    }
    all_direct(&w, 21);
}

#[test]
fn communicators_keep_prepared_operations_of_their_own() {
    let mut w = world(3);
    let settings = CollectiveSettings::default();
    let all = [
        w.comms.clone(),
        w.communicator(8, &[0, 1, 2], &settings),
        w.communicator(9, &[2, 0, 1], &settings),
    ];
    let mut rng = Rng(11);
    for i in 0..60 {
        let which = rng.next() as usize % 3;
        // Host 2 is rank 0 of the last one.
        let order: [usize; 3] = if which == 2 { [1, 2, 0] } else { [0, 1, 2] };
        w.comms = order.map(|at| all[which][at]).to_vec();
        check(&mut w, &all_reduce(COUNTS[rng.next() as usize % 3]), i);
    }
}

#[test]
fn a_queue_of_another_domain_finds_nothing_of_this_one() {
    let mut w = world(2);
    let call = all_reduce(200);
    (0..3).for_each(|i| check(&mut w, &call, i));
    let h = w.host(0);
    let pd = h.nic.alloc_pd().expect("domain");
    let queue = h.nic.create_queue(pd, QueueConfig::default());
    let queue = queue.expect("queue");
    let d = call.descriptor(w.comms[0]);
    let ticket = queue.try_post(&d).expect("room");
    let done = (0..100).find_map(|_| {
        w.step();
        queue.poll(ticket)
    });
    assert_eq!(done.expect("refused at once").status, Status::NotRegistered);
    check(&mut w, &call, 9);
}

#[test]
fn a_new_communicator_after_one_that_was_aborted_begins_anew() {
    let mut w = world(2);
    for i in 0..3 {
        (0..3).for_each(|k| check(&mut w, &all_reduce(200), i * 8 + k));
        // Rank 1 does not come.
        let t = w.post(0, &all_reduce(200).within(200_000));
        let done = w.settle(&[(0, t)]);
        assert_eq!(done[0].status, Status::TimedOut);
        let again = w.call(&all_reduce(200).within(200_000));
        assert!(again.iter().all(|c| c.status != Status::Ok), "{again:?}");
        w.comms = w.communicator(20 + i, &[0, 1], &CollectiveSettings::default());
    }
    check(&mut w, &all_reduce(200), 99);
}
