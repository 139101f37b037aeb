//! The direct path through the whole NIC: descriptors in, completions out, in virtual time.

use crate::collective_support;

use collective_support::nic::Host;
use collective_support::{Call, Rng, Wire, World};
use ringbell_gtlb::Access;
use ringbell_nic_abi::{
    Algorithm, CollectiveKind as K, Completion, DataType, Descriptor, ReduceOp, Status,
};
use ringbell_nic_core::collective::{CollectiveSettings, CommInfo};
use ringbell_nic_core::HostBuffer;

const IN: u64 = 4096 - 12;
const OUT: u64 = (6 << 20) + 20;

fn info(w: &World, rank: usize) -> CommInfo {
    let id = w.comms[rank];
    w.host(rank).nic.communicator_info(id).expect("known")
}

fn fill(h: &Host, at: u64, seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    let v: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
    h.poke(at, &v);
    v
}

fn sum_u32(inputs: &[Vec<u8>]) -> Vec<u8> {
    let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let n = inputs[0].len() / 4;
    let of = |i: usize| {
        inputs
            .iter()
            .map(|v| word(&v[i * 4..]))
            .fold(0, u32::wrapping_add)
    };
    (0..n).flat_map(|i| of(i).to_le_bytes()).collect()
}

fn all_reduce(count: u64) -> Call {
    Call::new(K::AllReduce, count)
        .of(DataType::U32, ReduceOp::Sum)
        .at(IN, OUT)
}

#[test]
fn the_default_is_direct_on_one_host_and_is_reported() {
    let mut w = World::new(3, Wire::Local, &CollectiveSettings::default());
    for (i, count) in [3u64, 900, 1023, 1025, 200_003].into_iter().enumerate() {
        let len = count as usize * 4;
        let inputs: Vec<_> = (0..3)
            .map(|r| fill(w.host(r), IN, i as u64 * 8 + r as u64, len))
            .collect();
        w.run(&all_reduce(count));
        let want = sum_u32(&inputs);
        for r in 0..3 {
            assert!(
                w.host(r).peek(OUT, len) == want,
                "rank {r}, {count} elements"
            );
        }
    }
    for r in 0..3 {
        let i = info(&w, r);
        assert_eq!((i.counters.direct_eager, i.counters.direct), (1, 4));
        assert_eq!(i.chosen, vec![(K::AllReduce, Algorithm::Direct, 5)]);
        assert_eq!(i.counters.completed, 5);
        assert!(i.counters.reduced > 0 && i.counters.steps > 0);
        // No message carried any of it.
        assert_eq!(i.counters.eager + i.counters.rendezvous, 0);
    }
}

#[test]
fn the_same_bits_as_over_messages() {
    let mut w = World::new(5, Wire::Local, &CollectiveSettings::default());
    for (i, (dtype, count)) in [
        (DataType::F32, 601u64),
        (DataType::F32, 30_011),
        (DataType::F16, 77),
        (DataType::F16, 5003),
        (DataType::Bf16, 20_001),
        (DataType::F64, 4096),
    ]
    .into_iter()
    .enumerate()
    {
        let len = (count * dtype.bytes()) as usize;
        for r in 0..5 {
            fill(w.host(r), IN, i as u64 * 8 + r as u64, len);
        }
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max] {
            let call = Call::new(K::AllReduce, count).of(dtype, op).at(IN, OUT);
            w.run(&call.algo(Algorithm::Ring));
            let ring: Vec<_> = (0..5).map(|r| w.host(r).peek(OUT, len)).collect();
            fill(w.host(0), OUT, 99, len);
            w.run(&call.algo(Algorithm::Direct));
            for (r, ring) in ring.iter().enumerate() {
                assert!(
                    w.host(r).peek(OUT, len) == *ring,
                    "{dtype:?} {op:?} {count}"
                );
            }
        }
    }
}

#[test]
fn without_one_host_the_direct_path_is_refused_only_when_asked_for() {
    for settings in [
        CollectiveSettings {
            direct: false,
            ..CollectiveSettings::default()
        },
        CollectiveSettings::default(),
    ] {
        let wire = if settings.direct {
            Wire::Tcp
        } else {
            Wire::Local
        };
        let mut w = World::new(2, wire, &settings);
        let done = w.call(&all_reduce(100).algo(Algorithm::Direct));
        let direct = u64::from(Algorithm::Direct.code());
        for c in &done {
            assert_eq!((c.status, c.detail), (Status::Unsupported, direct));
        }
        w.run(&all_reduce(100));
        assert_eq!(info(&w, 0).counters.direct_eager, 0);
    }
}

/// All ranks' completions are of this kind and name this rank.
fn all_end(done: &[Completion], status: Status, rank: u64) {
    for (r, c) in done.iter().enumerate() {
        assert_eq!((c.status, c.detail), (status, rank), "rank {r}");
    }
}

/// Host memory that was allocated for the NIC is mapped by peers, which may need a moment for it.
#[test]
fn host_memory_of_the_nic_is_reached_without_messages() {
    for access in [Access::COLLECTIVE, Access::LOCAL] {
        let mut w = World::new(3, Wire::Local, &CollectiveSettings::default());
        for (i, count) in [3u64, 50_000, 200_003].into_iter().enumerate() {
            let len = count as usize * 4;
            let mut buffers: Vec<[HostBuffer; 2]> = Vec::new();
            let mut inputs = Vec::new();
            for r in 0..3 {
                let h = w.host(r);
                let alloc = || h.nic.alloc_host(h.pd, len, access).expect("host memory");
                let both = [alloc(), alloc()];
                let mut rng = Rng(count + r as u64);
                let data: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
                both[0].write(0, &data).expect("inside");
                inputs.push(data);
                buffers.push(both);
            }
            // At once: the memory is not announced to any peer yet.
            let call = all_reduce(count).algo(Algorithm::Direct);
            let post = |r: usize| {
                let d = Descriptor {
                    local_va: buffers[r][0].va(),
                    remote_va: buffers[r][1].va(),
                    ..call.descriptor(w.comms[r])
                };
                (r, w.host(r).post(&d))
            };
            let tickets: Vec<_> = (0..3).map(post).collect();
            for c in w.settle(&tickets) {
                assert_eq!(c.status, Status::Ok, "{count}: {c:?}");
            }
            let want = sum_u32(&inputs);
            for (r, b) in buffers.iter().enumerate() {
                let mut got = vec![0; len];
                b[1].read(0, &mut got).expect("inside");
                assert!(got == want, "rank {r}, {count} elements");
                let c = info(&w, r).counters;
                assert_eq!(
                    (c.direct + c.direct_eager, c.direct_refused),
                    (i as u64 + 1, 0)
                );
            }
            w.free(buffers.into_iter().flatten().collect());
        }
    }
}

/// Memory that a program has brought along is in no file that peers could map.
#[test]
fn a_programs_own_memory_goes_through_nic_memory_in_pieces() {
    for ranks in [2, 3] {
        let mut w = World::new(ranks, Wire::Local, &CollectiveSettings::default());
        for (i, count) in [3u64, 700, 50_000, 300_007].into_iter().enumerate() {
            let len = count as usize * 4;
            let (mut buffers, mut inputs) = (Vec::new(), Vec::new());
            for r in 0..ranks {
                let h = w.host(r);
                let mut rng = Rng(count + r as u64);
                let data: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
                // The last rank alone has memory that is shared.
                let own = |bytes: Vec<u8>| h.nic.adopt_host(h.pd, bytes, Access::COLLECTIVE);
                let both = match r + 1 == ranks {
                    true => [(), ()].map(|()| h.nic.alloc_host(h.pd, len, Access::COLLECTIVE)),
                    false => [own(vec![0; len]), own(vec![0; len])],
                };
                let both = both.map(|b| b.expect("memory"));
                both[0].write(0, &data).expect("inside");
                inputs.push(data);
                buffers.push(both);
            }
            for _ in 0..2 {
                let post = |r: usize| {
                    let d = Descriptor {
                        local_va: buffers[r][0].va(),
                        remote_va: buffers[r][1].va(),
                        ..all_reduce(count).descriptor(w.comms[r])
                    };
                    (r, w.host(r).post(&d))
                };
                let tickets: Vec<_> = (0..ranks).map(post).collect();
                for c in w.settle(&tickets) {
                    assert_eq!(c.status, Status::Ok, "{count}: {c:?}");
                }
            }
            let want = sum_u32(&inputs);
            for (r, b) in buffers.iter().enumerate() {
                let mut got = vec![0; len];
                b[1].read(0, &mut got).expect("inside");
                assert!(got == want, "rank {r}, {count} elements");
                let c = info(&w, r).counters;
                assert_eq!(c.direct_refused, 0);
                assert_eq!(c.direct + c.direct_eager, 2 * (i as u64 + 1));
                assert_eq!(c.direct_bounced > 0, i >= 1, "{c:?}");
            }
            w.free(buffers.into_iter().flatten().collect());
        }
    }
}

#[test]
fn ranks_that_disagree_are_named() {
    for large in [false, true] {
        let base = all_reduce(if large { 50_000 } else { 10 });
        for wrong in [
            Call {
                count: base.count - 1,
                ..base
            },
            base.of(DataType::F32, ReduceOp::Sum),
            base.of(DataType::U32, ReduceOp::Min),
            Call {
                spec: Call::new(K::Broadcast, 1).spec,
                ..base
            },
            Call { count: 200, ..base },
        ] {
            let mut w = World::new(3, Wire::Local, &CollectiveSettings::default());
            let calls = [base, base, wrong];
            let tickets: Vec<_> = (0..3).map(|r| (r, w.post(r, &calls[r]))).collect();
            let done = w.settle(&tickets);
            all_end(&done, Status::Mismatch, 2);
        }
    }
}

/// The algorithm that messages would use, asked for by one rank, is not what the others run: they
/// store to each other's memory. Some of these programs send nothing to a rank of the others.
#[test]
fn a_rank_that_requests_messages_is_named() {
    for (call, same) in [
        (all_reduce(10), Algorithm::AllGatherReduce),
        (all_reduce(10_000), Algorithm::Pairwise),
        (all_reduce(100_000), Algorithm::Ring),
        (Call::new(K::Broadcast, 10), Algorithm::Flat),
        (Call::new(K::Barrier, 0), Algorithm::RecursiveDoubling),
    ] {
        for others in [Algorithm::Auto, Algorithm::Direct] {
            for odd in 0..3usize {
                let mut w = World::new(3, Wire::Local, &CollectiveSettings::default());
                let call = call.within(2_000_000);
                let algo = |r| if r == odd { same } else { others };
                let tickets: Vec<_> = (0..3)
                    .map(|r| (r, w.post(r, &call.algo(algo(r)))))
                    .collect();
                let done = w.settle(&tickets);
                // The first that differs from rank 0.
                let named = odd.max(1) as u64;
                all_end(&done, Status::Mismatch, named);
                let why = info(&w, named as usize).why.expect("known");
                assert!(
                    why.contains("algorithm") && why.contains(same.name()),
                    "{why}"
                );
            }
        }
    }
}

/// The program of messages is the same for every caller, where there are only messages.
#[test]
fn without_peer_memory_the_algorithm_that_auto_takes_may_be_requested() {
    let settings = CollectiveSettings {
        direct: false,
        ..CollectiveSettings::default()
    };
    let mut w = World::new(3, Wire::Local, &settings);
    let algos = [Algorithm::Auto, Algorithm::Ring, Algorithm::Auto];
    let post = |r: usize| (r, w.post(r, &all_reduce(100_000).algo(algos[r])));
    let tickets: Vec<_> = (0..3).map(post).collect();
    for c in w.settle(&tickets) {
        assert_eq!(c.status, Status::Ok);
    }
}

#[test]
fn a_rank_that_fails_at_any_step_is_named() {
    for steps in 0..40 {
        let mut w = World::new(3, Wire::Local, &CollectiveSettings::default());
        let call = all_reduce(900_000);
        let mut tickets: Vec<_> = (0..2).map(|r| (r, w.post(r, &call))).collect();
        if steps % 2 == 0 {
            let _ = w.post(2, &call);
        }
        for _ in 0..steps {
            w.step();
        }
        w.hosts[2] = None;
        let done = w.settle(&tickets);
        tickets.clear();
        for c in &done {
            let well = c.status == Status::Ok && steps % 2 == 0;
            // A NIC that is shut down in order reports it; a broken link is detected.
            let status = matches!(c.status, Status::PeerFailed | Status::CommAborted);
            let named = status && c.detail == 2;
            assert!(well || named, "after {steps} steps: {c:?}");
        }
    }
}

#[test]
fn after_a_time_out_the_nic_leaves_the_buffers_alone() {
    for steps in 0..30 {
        let mut w = World::new(2, Wire::Local, &CollectiveSettings::default());
        let count = 900_000u64;
        let call = all_reduce(count);
        let first = w.post(0, &call.within(50));
        // The other rank comes late, and goes on for longer than the first waits.
        for _ in 0..steps {
            w.step();
        }
        let second = w.post(1, &call);
        let mut done = None;
        while done.is_none() {
            w.step();
            w.now += 3_000;
            done = w.host(0).queue.poll(first);
        }
        let done = done.expect("polled");
        if done.status == Status::Ok {
            continue;
        }
        assert_eq!(done.status, Status::TimedOut);
        let mark = vec![0x5au8; count as usize * 4];
        w.host(0).poke(OUT, &mark);
        let late = w.settle(&[(1, second)]);
        assert_ne!(late[0].status, Status::Ok);
        for _ in 0..100 {
            w.step();
        }
        assert!(
            w.host(0).peek(OUT, mark.len()) == mark,
            "after {steps} steps"
        );
    }
}

#[test]
fn one_communicator_ends_and_another_goes_on() {
    let settings = CollectiveSettings::default();
    let mut w = World::new(3, Wire::Local, &settings);
    let first = std::mem::take(&mut w.comms);
    let second = w.communicator(8, &[0, 1, 2], &settings);
    for round in 0..50u64 {
        let count = 1 + round * 97;
        let len = count as usize * 4;
        let inputs: Vec<_> = (0..3)
            .map(|r| fill(w.host(r), IN, round * 8 + r as u64, len))
            .collect();
        let mut tickets = Vec::new();
        for r in 0..3 {
            // Both are posted before either has ended, in another order on each rank.
            let mut ids = [(first[r], OUT), (second[r], OUT + (4 << 20))];
            ids.rotate_left(r % 2);
            for (id, at) in ids {
                let d = Call {
                    dst: at,
                    ..all_reduce(count)
                }
                .descriptor(id);
                tickets.push((r, w.host(r).post(&d)));
            }
        }
        for c in w.settle(&tickets) {
            assert_eq!(c.status, Status::Ok);
        }
        let want = sum_u32(&inputs);
        for r in 0..3 {
            for at in [OUT, OUT + (4 << 20)] {
                assert!(w.host(r).peek(at, len) == want);
            }
        }
    }
    w.comms = first.clone();
    let ticket = w.post(0, &all_reduce(5));
    w.host(1).nic.abort_communicator(first[1]).expect("known");
    let done = w.settle(&[(0, ticket)]);
    assert_eq!((done[0].status, done[0].detail), (Status::CommAborted, 1));
    w.comms = second;
    w.run(&all_reduce(500));
}

#[test]
fn communicators_come_and_go_without_using_up_nic_memory() {
    let settings = CollectiveSettings::default();
    let mut w = World::unjoined(2, Wire::Local, 16 << 20);
    for ctx in 1..60 {
        w.comms = w.communicator(ctx, &[0, 1], &settings);
        let inputs: Vec<_> = (0..2)
            .map(|r| fill(w.host(r), IN, ctx * 2 + r as u64, 400))
            .collect();
        w.run(&all_reduce(100));
        assert!(w.host(0).peek(OUT, 400) == sum_u32(&inputs));
        for r in 0..2 {
            w.host(r).nic.free_communicator(w.comms[r]).expect("known");
        }
        for _ in 0..20 {
            w.step();
        }
    }
}
