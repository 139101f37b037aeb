//! Ranks that disagree, end, hang or come late: every operation ends, and reports the reason.

use crate::collective_support;

use collective_support::{Call, Rng, Wire, World};
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, Completion, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::{
    CollectiveSettings, CommError, CommStatus, CommunicatorConfig, Thresholds,
};
use ringbell_onc_engines::program::algorithms;

pub(crate) const MS: u64 = 1_000_000;

pub(crate) fn small() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 1024,
        eager_max: 256,
        eager_buffers: 2,
        scratch_bytes: 256 << 10,
        ..CollectiveSettings::default()
    }
}

pub(crate) fn all(w: &mut World, calls: &[Call]) -> Vec<Completion> {
    let tickets: Vec<_> = calls
        .iter()
        .enumerate()
        .map(|(r, c)| (r, w.post(r, c)))
        .collect();
    w.settle(&tickets)
}

/// A new communicator on the same NICs works.
fn works_again(w: &mut World, ctx: u64, members: &[usize]) {
    let ids = w.communicator(ctx, members, &small());
    for (i, m) in members.iter().enumerate() {
        w.host(*m).poke(0, &(i as u32 + 1).to_le_bytes());
    }
    let call = Call::new(K::AllReduce, 1)
        .of(DataType::U32, ReduceOp::Sum)
        .at(0, 64);
    let tickets: Vec<_> = members
        .iter()
        .zip(&ids)
        .map(|(m, id)| (*m, w.host(*m).post(&call.descriptor(*id))))
        .collect();
    for c in w.settle(&tickets) {
        assert_eq!(c.status, Status::Ok, "{c:?}");
    }
    let n = members.len() as u32;
    for m in members {
        assert_eq!(w.host(*m).peek(64, 4), (n * (n + 1) / 2).to_le_bytes());
    }
}

#[test]
fn ranks_that_disagree_are_named_on_all_ranks() {
    let base = Call::new(K::AllReduce, 3000).algo(Algorithm::Ring);
    let others = [
        Call {
            count: 3001,
            ..base
        },
        base.of(DataType::I32, ReduceOp::Sum),
        base.of(DataType::F32, ReduceOp::Max),
        base.algo(Algorithm::Pairwise),
        Call::new(K::Broadcast, 3000),
        Call::new(K::Barrier, 0),
        Call::new(K::AllGather, 700),
    ];
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        for (i, other) in others.iter().enumerate() {
            for odd in [1usize, 3] {
                let mut w = World::new(4, wire, &small());
                let mut calls = vec![base.within(5_000_000); 4];
                calls[odd] = other.within(5_000_000);
                for (r, c) in all(&mut w, &calls).iter().enumerate() {
                    let want = (Status::Mismatch, odd as u64);
                    assert_eq!(
                        (c.status, c.detail),
                        want,
                        "{wire:?} case {i} rank {r}: {c:?}"
                    );
                }
                let s = w.host(0).nic.communicator_status(w.comms[0]);
                let rank = odd as u32;
                let status = Status::Mismatch;
                assert_eq!(s, Ok(CommStatus::Aborted { rank, status }));
                works_again(&mut w, 99, &[0, 1, 2, 3]);
            }
        }
    }
}

#[test]
fn another_order_or_root_is_a_mismatch() {
    let mut w = World::new(3, Wire::Local, &small());
    let a = Call::new(K::AllReduce, 2000).within(5_000_000);
    let b = Call::new(K::AllToAll, 500).within(5_000_000);
    let mut tickets = Vec::new();
    for r in 0..3 {
        let (x, y) = if r == 2 { (b, a) } else { (a, b) };
        tickets.push((r, w.post(r, &x)));
        tickets.push((r, w.post(r, &y)));
    }
    for c in w.settle(&tickets) {
        assert_eq!((c.status, c.detail), (Status::Mismatch, 2), "{c:?}");
    }
    let mut w = World::new(3, Wire::Local, &small());
    let calls = [0, 0, 1].map(|root| Call::new(K::Reduce, 2000).root(root).within(5_000_000));
    for c in all(&mut w, &calls) {
        assert_eq!((c.status, c.detail), (Status::Mismatch, 2), "{c:?}");
    }
}

#[test]
fn a_rank_that_never_comes_times_out_and_the_buffers_are_safe_after_that() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(3, wire, &small());
        let count = 100_000u64;
        let call = Call::new(K::AllReduce, count)
            .algo(Algorithm::Ring)
            .at(0, 4 << 20)
            .within(50_000);
        let start = w.now;
        let tickets: Vec<_> = [0, 1].map(|r| (r, w.post(r, &call))).to_vec();
        let done = w.settle(&tickets);
        assert!(w.now - start < 2000 * MS, "{} ns", w.now - start);
        let statuses: Vec<_> = done.iter().map(|c| c.status).collect();
        assert!(statuses.contains(&Status::TimedOut), "{done:?}");
        for c in &done {
            assert!(
                matches!(c.status, Status::TimedOut | Status::CommAborted),
                "{c:?}"
            );
        }
        // The late rank is notified; no rank accesses the others' buffers after that.
        for r in 0..2 {
            w.host(r).poke(0, &vec![0x11; count as usize * 4]);
            w.host(r).poke(4 << 20, &vec![0x22; count as usize * 4]);
        }
        let late = w.post(2, &call);
        let c = w.settle(&[(2, late)])[0];
        assert!(
            matches!(c.status, Status::CommAborted | Status::TimedOut),
            "{c:?}"
        );
        for _ in 0..500 {
            w.step();
        }
        for r in 0..2 {
            assert_eq!(
                w.host(r).peek(0, count as usize * 4),
                vec![0x11; count as usize * 4]
            );
            assert_eq!(
                w.host(r).peek(4 << 20, count as usize * 4),
                vec![0x22; count as usize * 4]
            );
        }
        works_again(&mut w, 50, &[0, 1, 2]);
    }
}

/// A host without power: nothing comes from it, and no refusal.
#[test]
fn a_host_that_goes_silent_over_rdma_is_named_within_seconds() {
    // Without an operation, at its begin, and in the middle of one.
    for (ranks, victim) in [(2, 1), (3, 0), (4, 2)] {
        for steps in [None, Some(0), Some(40), Some(300)] {
            let mut w = World::new(ranks, Wire::Rdma, &small());
            let call = Call::new(K::AllReduce, 1_000_000)
                .algo(Algorithm::Ring)
                .at(0, 4 << 20);
            let others: Vec<usize> = (0..ranks).filter(|r| *r != victim).collect();
            let mut tickets = Vec::new();
            if let Some(steps) = steps {
                let _ = w.post(victim, &call);
                tickets = others.iter().map(|r| (*r, w.post(*r, &call))).collect();
                for _ in 0..steps {
                    w.step();
                }
            }
            let what = format!("{ranks} ranks, {victim} is silent after {steps:?} steps");
            let _silent = w.hosts[victim].take();
            let begin = w.now;
            let ends = |w: &World, r: usize| {
                let status = w.host(r).nic.communicator_status(w.comms[r]);
                matches!(status, Ok(CommStatus::Aborted { rank, .. }) if rank == victim as u32)
            };
            w.until(&what, 100_000 * MS, |w| others.iter().all(|r| ends(w, *r)));
            assert!(w.now - begin < 8_000 * MS, "{what}: {} ns", w.now - begin);
            for c in w.settle(&tickets) {
                assert_eq!(
                    (c.status, c.detail),
                    (Status::PeerFailed, victim as u64),
                    "{what}"
                );
            }
        }
    }
}

/// As on a machine with many more ranks than cores: a rank has no turn for seconds, at any point of
/// its joining.
#[test]
fn a_rank_that_is_away_for_seconds_while_it_joins_is_waited_for() {
    let mut joined_before = 0;
    for away in [0, 1, 2] {
        for steps in 0..40 {
            let mut w = World::unjoined(3, Wire::Local, 8 << 20);
            w.comms = w.begin_communicator(7, &[0, 1, 2], &small());
            let are_ready = |w: &World| {
                (0..3).all(|r| {
                    let s = w.host(r).nic.communicator_status(w.comms[r]);
                    assert!(!matches!(s, Ok(CommStatus::Aborted { .. })), "{s:?}");
                    s == Ok(CommStatus::Ready)
                })
            };
            for _ in 0..steps {
                w.step();
            }
            joined_before += usize::from(are_ready(&w));
            let absent = w.hosts[away].take();
            for _ in 0..100 {
                w.now += 50 * MS;
                w.step();
            }
            w.hosts[away] = absent;
            let what = format!("communicator with rank {away} away after {steps} steps");
            w.until(&what, 10_000 * MS, are_ready);
            w.run(&Call::new(K::Barrier, 0));
        }
    }
    assert!(joined_before > 0, "no rank got as far as its end");
}

#[test]
fn a_receive_that_times_out_leaves_the_communicator_alone() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(2, wire, &small());
        let byte = |k, n| {
            Call::new(k, n)
                .of(DataType::U8, ReduceOp::Sum)
                .within(20_000)
        };
        for n in [10, 5000] {
            let r = w.post(1, &byte(K::Recv, n).root(0).at(0, 0));
            assert_eq!(w.settle(&[(1, r)])[0].status, Status::TimedOut);
        }
        // A send without a receive is withdrawn.
        let s = w.post(0, &byte(K::Send, 5000).root(1).at(0, 0));
        assert_eq!(w.settle(&[(0, s)])[0].status, Status::TimedOut);
        let s = w.post(0, &byte(K::Send, 5000).root(1).at(64, 0));
        let r = w.post(1, &byte(K::Recv, 5000).root(0).at(0, 64));
        w.host(0).poke(64, &[9; 5000]);
        for c in w.settle(&[(0, s), (1, r)]) {
            assert_eq!(c.status, Status::Ok);
        }
        assert_eq!(w.host(1).peek(64, 5000), [9; 5000]);
        w.run(&Call::new(K::Barrier, 0));
    }
}

#[test]
fn abort_and_free_release_every_rank() {
    for free in [false, true] {
        let mut w = World::new(3, Wire::Local, &small());
        let call = Call::new(K::AllReduce, 5000);
        let tickets: Vec<_> = [0, 1].map(|r| (r, w.post(r, &call))).to_vec();
        for _ in 0..300 {
            w.step();
        }
        let (nic, id) = (w.host(1).nic.clone(), w.comms[1]);
        if free {
            nic.free_communicator(id).expect("known");
            let e = nic.communicator_status(id).expect_err("its id is stale");
            assert_eq!(e, CommError::Unknown { id });
        } else {
            nic.abort_communicator(id).expect("known");
        }
        for c in w.settle(&tickets) {
            assert_eq!((c.status, c.detail), (Status::CommAborted, 1), "{c:?}");
        }
        // The third rank, which had posted nothing, finds out at its next operation.
        let t = w.post(2, &call);
        assert_eq!(w.settle(&[(2, t)])[0].status, Status::CommAborted);
        works_again(&mut w, 60, &[0, 1, 2]);
        works_again(&mut w, 61, &[2, 1]);
    }
}

/// A rank that has announced its receives ends the communicator while others write to them: nothing
/// is written after that, and the links go on.
#[test]
fn receives_that_peers_write_are_gone_with_the_communicator() {
    for steps in 0..12 {
        let mut w = World::new(3, Wire::Rdma, &CollectiveSettings::default());
        let count = 300_000;
        let call = Call::new(K::AllReduce, count).at(0, 4 * count);
        let early: Vec<_> = [0, 1].map(|r| (r, w.post(r, &call))).to_vec();
        for _ in 0..20 {
            w.step();
        }
        let late = (2, w.post(2, &call));
        for _ in 0..steps {
            w.step();
        }
        let (nic, id) = (w.host(0).nic.clone(), w.comms[0]);
        nic.abort_communicator(id).expect("known");
        let ended = w.settle(&early[..1]);
        assert_eq!(ended[0].status, Status::CommAborted);
        let (at, len) = (4 * count, 4 * count);
        let memory = vec![0x5a; len as usize];
        w.host(0).poke(at, &memory);
        w.settle(&[early[1], late]);
        for _ in 0..200 {
            w.step();
        }
        assert!(
            w.host(0).peek(at, memory.len()) == memory,
            "after {steps} steps"
        );
        works_again(&mut w, 70, &[0, 1, 2]);
        let all = (0..3).map(|r| w.host(r).nic.communicator_status(w.comms[r]));
        assert!(all
            .into_iter()
            .all(|s| matches!(s, Ok(CommStatus::Aborted { .. }))));
    }
}

/// Ends the NIC of a rank of a ring, in order, after so many steps; the others end, and the
/// survivors go on. (Ranks that are killed: `src/collective/killed.rs`.)
fn end_at(wire: Wire, steps: u32, seed: u64) {
    let n = 4;
    let mut w = World::new(n, wire, &small());
    let mut rng = Rng(seed);
    let victim = (rng.next() % n as u64) as usize;
    let count = 1 + rng.next() % 3000;
    let call = Call::new(K::AllReduce, count)
        .algo(Algorithm::Ring)
        .within(300_000);
    let mut tickets: Vec<_> = (0..n).map(|r| (r, w.post(r, &call))).collect();
    for _ in 0..steps {
        w.step();
    }
    let done = w.host(victim).queue.poll(tickets[victim].1);
    w.hosts[victim] = None;
    tickets.remove(victim);
    let start = w.now;
    let ends = w.settle(&tickets);
    assert!(w.now - start < 3000 * MS, "{} ns", w.now - start);
    for c in &ends {
        let named =
            matches!(c.status, Status::PeerFailed | Status::CommAborted) && c.detail < n as u64;
        let late = c.status == Status::TimedOut;
        // A rank that had all it needed may have ended well.
        let well = c.status == Status::Ok;
        assert!(named || late || well, "{wire:?} step {steps}: {c:?}");
        if done.is_none() && matches!(c.status, Status::PeerFailed) {
            assert_eq!(c.detail, victim as u64, "{wire:?} step {steps}: {c:?}");
        }
    }
    let alive: Vec<usize> = (0..n).filter(|r| *r != victim).collect();
    works_again(&mut w, 1000 + seed, &alive);
}

#[test]
fn a_nic_that_ends_in_the_middle_of_a_ring_ends_all_others() {
    for seed in 0..4 {
        for steps in (0..64).step_by(3) {
            end_at(
                Wire::Local,
                steps + seed as u32 % 3,
                seed * 100 + u64::from(steps),
            );
        }
    }
}

#[test]
fn over_tcp_too() {
    for seed in 0..2 {
        for steps in (0..120).step_by(7) {
            end_at(
                Wire::Tcp,
                steps + seed as u32 * 3,
                seed * 100 + u64::from(steps),
            );
        }
    }
}

/// Different words on every rank and in every round, and their sums at the destination.
struct Sums {
    count: usize,
    round: u32,
}

impl Sums {
    fn put(&self, w: &World, rank: usize) {
        let of = |i: usize| (i as u32).wrapping_mul(self.round + 1) + 7 * rank as u32;
        let v: Vec<u8> = (0..self.count).flat_map(|i| of(i).to_le_bytes()).collect();
        w.host(rank).poke(0, &v);
    }
    fn call(&self) -> Call {
        Call::new(K::AllReduce, self.count as u64)
            .of(DataType::U32, ReduceOp::Sum)
            .at(0, 1 << 20)
    }
    fn check(&self, w: &World) {
        let n = w.ranks() as u32;
        for r in 0..w.ranks() {
            let got = w.host(r).peek(1 << 20, self.count * 4);
            for (i, c) in got.chunks_exact(4).enumerate() {
                let own = (i as u32).wrapping_mul(self.round + 1).wrapping_mul(n);
                let want = own.wrapping_add(7 * n * (n - 1) / 2);
                assert_eq!(c, want.to_le_bytes(), "rank {r} element {i}");
            }
        }
    }
}

#[test]
fn five_percent_loss_costs_time_and_no_bit() {
    for seed in [42, 43, 44] {
        for wire in [Wire::Lossy(5, seed), Wire::LossyRdma(5, seed)] {
            let mut w = World::new(3, wire, &small());
            for round in 0..5 {
                let sums = Sums {
                    count: 20_000,
                    round,
                };
                (0..3).for_each(|r| sums.put(&w, r));
                w.run(&sums.call());
                sums.check(&w);
            }
        }
    }
}

#[test]
fn over_udp_a_lost_packet_ends_the_communicator_by_an_error_in_time() {
    let (mut right, mut ended) = (0, 0);
    for seed in 0..40 {
        let Some(mut w) = World::joined(3, Wire::LossyUdp(1, seed), &small()) else {
            // Lost before the ranks had met.
            ended += 1;
            continue;
        };
        let sums = Sums {
            count: 3_001,
            round: seed as u32,
        };
        (0..3).for_each(|r| sums.put(&w, r));
        let start = w.now;
        let done = w.call(&sums.call());
        assert!(
            w.now - start < 10_000 * MS,
            "before the time of the operation is up"
        );
        if done.iter().all(|c| c.status == Status::Ok) {
            sums.check(&w);
            right += 1;
            continue;
        }
        ended += 1;
        for c in done.iter().filter(|c| c.status != Status::Ok) {
            let why = [Status::PeerFailed, Status::CommAborted];
            assert!(why.contains(&c.status), "{c:?}");
        }
    }
    assert!(right > 3 && ended > 5, "{right} {ended}");
}

#[test]
fn a_slow_rank_is_waited_for() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        for algo in [Algorithm::Auto, Algorithm::Ring] {
            let mut w = World::new(3, wire, &small());
            for slow in 0..3usize {
                let sums = Sums {
                    count: 5000,
                    round: slow as u32,
                };
                let call = sums.call().algo(algo);
                (0..3).for_each(|r| sums.put(&w, r));
                let others = (0..3).filter(|r| *r != slow);
                let mut tickets: Vec<_> = others.map(|r| (r, w.post(r, &call))).collect();
                for _ in 0..5000 {
                    w.step();
                }
                for (r, t) in &tickets {
                    assert_eq!(w.host(*r).queue.poll(*t), None, "without rank {slow}");
                }
                // It has come, and is stepped a tenth as often as the others.
                tickets.push((slow, w.post(slow, &call)));
                let mut host = w.hosts[slow].take();
                for _ in 0..2000 {
                    for _ in 0..10 {
                        w.step();
                    }
                    w.hosts[slow] = host.take();
                    w.step();
                    host = w.hosts[slow].take();
                }
                w.hosts[slow] = host;
                for c in w.settle(&tickets) {
                    assert_eq!(c.status, Status::Ok);
                }
                sums.check(&w);
            }
        }
    }
}

#[test]
fn a_rank_that_is_never_made_is_named_when_the_time_is_up() {
    let mut w = World::unjoined(3, Wire::Local, 1 << 20);
    let settings = CollectiveSettings {
        connect_timeout: std::time::Duration::from_millis(100),
        ..small()
    };
    let peers: Vec<_> = (0..3).map(collective_support::address).collect();
    let make = |w: &World, rank: u32| {
        let config = CommunicatorConfig {
            ctx: 5,
            rank,
            peers: peers.clone(),
            settings: settings.clone(),
        };
        w.host(rank as usize)
            .nic
            .create_communicator(&config)
            .expect("made")
    };
    let ids = [make(&w, 0), make(&w, 1)];
    w.until("one rank missing", 50 * MS, |w| {
        w.host(0).nic.communicator_status(ids[0]) == Ok(CommStatus::Connecting { missing: vec![2] })
    });
    let end = CommStatus::Aborted {
        rank: 2,
        status: Status::PeerFailed,
    };
    for (r, id) in ids.iter().enumerate() {
        w.until("the end", 500 * MS, |w| {
            w.host(r).nic.communicator_status(*id) == Ok(end.clone())
        });
    }
}

#[test]
fn impossible_communicators_are_refused_with_a_reason() {
    let w = World::unjoined(2, Wire::Local, 1 << 20);
    let peers: Vec<_> = (0..2).map(collective_support::address).collect();
    let good = CommunicatorConfig {
        ctx: 1,
        rank: 0,
        peers: peers.clone(),
        settings: CollectiveSettings::default(),
    };
    let nic = &w.host(0).nic;
    let refused = |c: &CommunicatorConfig| nic.create_communicator(c).expect_err("refused");
    let e = refused(&CommunicatorConfig {
        rank: 2,
        ..good.clone()
    });
    assert_eq!(e, CommError::Rank { rank: 2, ranks: 2 });
    let e = refused(&CommunicatorConfig {
        rank: 1,
        ..good.clone()
    });
    assert!(matches!(e, CommError::NotMine { rank: 1, .. }), "{e}");
    let twice = vec![peers[0], peers[1], peers[1]];
    let e = refused(&CommunicatorConfig {
        peers: twice,
        ..good.clone()
    });
    assert!(matches!(e, CommError::Twice { a: 1, b: 2, .. }), "{e}");
    let e = refused(&CommunicatorConfig {
        peers: vec![],
        ..good.clone()
    });
    assert_eq!(e, CommError::Ranks { ranks: 0 });
    let mut big = good.clone();
    big.settings.scratch_bytes = 2 << 30;
    let e = refused(&big);
    assert!(e.to_string().contains("nic_memory_bytes"), "{e}");
    let id = nic.create_communicator(&good).expect("good");
    assert_eq!(refused(&good), CommError::CtxInUse { ctx: 1 });
    let mut elsewhere = CommunicatorConfig { ctx: 2, ..good };
    elsewhere.peers[0].set_port(9);
    assert!(matches!(
        refused(&elsewhere),
        CommError::Port { asked: 9, .. }
    ));
    nic.free_communicator(id).expect("known");
}

/// The smallest NIC memory that may be set is enough for some operations, and the others say what
/// would be.
#[test]
fn nic_memory_that_is_too_small_is_named_with_the_required_size() {
    let mut settings = CollectiveSettings {
        direct: false,
        segment_bytes: 64,
        scratch_bytes: 128,
        thresholds: Thresholds {
            whole_sources: 128,
            ..Thresholds::default()
        },
        ..CollectiveSettings::default()
    };
    let mut w = World::new(12, Wire::Local, &settings);
    let call = Call::new(K::AllReduce, 100)
        .of(DataType::U32, ReduceOp::Sum)
        .algo(Algorithm::AllGatherReduce)
        .within(5_000_000);
    let mut needed = 0;
    for c in all(&mut w, &[call; 12]) {
        assert_eq!(c.status, Status::NoResources, "{c:?}");
        needed = c.detail;
    }
    let info = w.host(3).nic.communicator_info(w.comms[3]).expect("known");
    let why = info.why.expect("said");
    assert!(
        why.contains("`scratch_bytes` is 128 bytes") && why.contains(&needed.to_string()),
        "{why}"
    );
    // No operation has started on any rank.
    w.run(&Call::new(K::Barrier, 0));
    settings.scratch_bytes = needed;
    w.comms = w.communicator(8, &(0..12).collect::<Vec<_>>(), &settings);
    w.run(&call);
    // What was set in the report of a user: enough, with fewer segments at once.
    settings.scratch_bytes = 64 << 10;
    settings.segment_bytes = 4 << 10;
    settings.thresholds = Thresholds::default();
    w.comms = w.communicator(9, &(0..12).collect::<Vec<_>>(), &settings);
    for kind in K::ALL.iter().filter(|k| !algorithms(**k).is_empty()) {
        for count in [1, 300, 20_000] {
            w.run(&Call::new(*kind, count));
        }
    }
}

#[test]
fn settings_that_differ_between_ranks_are_a_mismatch() {
    let mut w = World::unjoined(2, Wire::Local, 1 << 20);
    let peers: Vec<_> = (0..2).map(collective_support::address).collect();
    let ids: Vec<_> = [1024u64, 2048]
        .iter()
        .enumerate()
        .map(|(r, segment_bytes)| {
            let config = CommunicatorConfig {
                ctx: 3,
                rank: r as u32,
                peers: peers.clone(),
                settings: CollectiveSettings {
                    segment_bytes: *segment_bytes,
                    ..small()
                },
            };
            w.host(r).nic.create_communicator(&config).expect("made")
        })
        .collect();
    w.until("a mismatch", 500 * MS, |w| {
        let of = |r: usize| w.host(r).nic.communicator_status(ids[r]);
        let is = |s| {
            matches!(
                s,
                Ok(CommStatus::Aborted {
                    status: Status::Mismatch,
                    ..
                })
            )
        };
        is(of(0)) && is(of(1))
    });
}

#[test]
fn too_little_scratch_is_reported_on_every_rank_and_costs_nothing_else() {
    let settings = CollectiveSettings {
        segment_bytes: 64,
        scratch_bytes: 2048,
        thresholds: Thresholds {
            whole_sources: 1024,
            ..Thresholds::default()
        },
        ..small()
    };
    let mut w = World::new(5, Wire::Local, &settings);
    // 25 slots in NIC memory and those for messages, four segments at once.
    let much = Call::new(K::AllReduce, 1000).algo(Algorithm::AllGatherReduce);
    for c in w.call(&much) {
        assert_eq!(c.status, Status::NoResources, "{c:?}");
    }
    let little = Call::new(K::AllReduce, 1000).algo(Algorithm::Pairwise);
    for c in w.call(&little) {
        assert_eq!(c.status, Status::Ok, "{c:?}");
    }
}
