//! A rank that frees its communicator and its NIC right after its last operation: the others
//! finish theirs with the data it has sent and stored, and only then detect its end.

use crate::collective_support;

use collective_support::{Call, Rng, Wire, World};
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::{CollectiveSettings, CommStatus};
use ringbell_nic_core::types::NicTime;

const OUT: u64 = 6 << 20;

/// Every rank posts `call`; rank 0 alone is stepped whenever it can finish without the others, and
/// its NIC ends in the moment in which it has. The others make `lead` steps first.
fn leaves(wire: Wire, ranks: usize, call: &Call, lead: u32, frees: bool) {
    let mut w = World::new(ranks, wire, &CollectiveSettings::default());
    let len = call.count as usize * 4;
    let mut want = vec![0u32; call.count as usize];
    for r in 0..ranks {
        let mut rng = Rng(r as u64 + 11);
        let v: Vec<u32> = want.iter().map(|_| rng.next() as u32).collect();
        for (sum, x) in want.iter_mut().zip(&v) {
            *sum = sum.wrapping_add(*x);
        }
        let bytes: Vec<u8> = v.iter().flat_map(|x| x.to_le_bytes()).collect();
        w.host(r).poke(0, &bytes);
    }
    let tickets: Vec<_> = (0..ranks).map(|r| (r, w.post(r, call))).collect();
    let others = |w: &mut World| {
        for r in 1..ranks {
            w.host(r).nic.step_at(NicTime(w.now));
        }
        w.now += 500;
    };
    for _ in 0..lead {
        others(&mut w);
    }
    let first = 'done: loop {
        for _ in 0..200 {
            w.host(0).nic.step_at(NicTime(w.now));
            w.now += 500;
            if let Some(c) = w.host(0).queue.poll(tickets[0].1) {
                break 'done c;
            }
        }
        others(&mut w);
        assert!(w.now < 60_000_000_000, "rank 0 never ends");
    };
    assert_eq!(first.status, Status::Ok);
    if frees {
        w.host(0).nic.free_communicator(w.comms[0]).expect("known");
    }
    w.hosts[0] = None;
    for (i, c) in w.settle(&tickets[1..]).iter().enumerate() {
        let what = format!("{wire:?}, {ranks} ranks, {lead} steps ahead, {frees}: {call:?}");
        assert_eq!(c.status, Status::Ok, "rank {}: {c:?}; {what}", i + 1);
    }
    let want: Vec<u8> = want.iter().flat_map(|x| x.to_le_bytes()).collect();
    for r in (1..ranks).filter(|_| call.spec.kind == K::AllReduce) {
        assert!(w.host(r).peek(OUT, len) == want, "rank {r}: {call:?}");
    }
    // Later operations that need it fail with its rank.
    let late: Vec<_> = (1..ranks).map(|r| (r, w.post(r, call))).collect();
    for c in w.settle(&late) {
        assert_eq!((c.status, c.detail), (Status::PeerFailed, 0), "{call:?}");
    }
}

fn all_leave(wire: Wire, algo: Algorithm) {
    let barrier = match algo {
        Algorithm::Direct => Call::new(K::Barrier, 0).algo(algo),
        _ => Call::new(K::Barrier, 0).algo(Algorithm::RecursiveDoubling),
    };
    let sum = |count| {
        Call::new(K::AllReduce, count)
            .of(DataType::U32, ReduceOp::Sum)
            .at(0, OUT)
            .algo(algo)
    };
    for ranks in [2, 3, 4] {
        for (lead, frees) in [(0, true), (1, false), (2, true), (5, false), (40, true)] {
            // A TCP that is gone sends nothing again: of a large message the last part may be lost.
            let large = sum(if wire == Wire::Tcp { 333 } else { 70_001 });
            for call in [barrier, sum(5), sum(901), large] {
                leaves(wire, ranks, &call, lead, frees);
            }
        }
    }
}

#[test]
fn on_the_direct_path() {
    all_leave(Wire::Local, Algorithm::Direct);
}

#[test]
fn over_messages_between_ranks_of_one_host() {
    all_leave(Wire::Local, Algorithm::Ring);
}

#[test]
fn over_the_network() {
    all_leave(Wire::Tcp, Algorithm::Ring);
}

#[test]
fn idle_ranks_detect_a_nic_that_ended_at_their_next_operation() {
    let mut w = World::new(3, Wire::Local, &CollectiveSettings::default());
    w.hosts[2] = None;
    for _ in 0..200 {
        w.step();
    }
    for r in 0..2 {
        let status = w.host(r).nic.communicator_status(w.comms[r]);
        assert_eq!(status.expect("known"), CommStatus::Ready);
    }
    let tickets: Vec<_> = (0..2)
        .map(|r| {
            (
                r,
                w.post(
                    r,
                    &Call::new(K::Barrier, 0).algo(Algorithm::RecursiveDoubling),
                ),
            )
        })
        .collect();
    for c in w.settle(&tickets) {
        assert_eq!((c.status, c.detail), (Status::PeerFailed, 2));
    }
}
