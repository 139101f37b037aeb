//! Communicators whose ranks do not all have links: links are dialled by the first message, and the
//! ranks agree through their neighbours.

use crate::collective_support;

use collective_support::{lazy, Call, Rng, Wire, World};
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::{CollectiveSettings, CommStatus, CommunicatorConfig};
use ringbell_nic_core::types::CommId;

const MS: u64 = 1_000_000;

/// Ranks to which a rank has a link.
fn links(w: &World, rank: usize) -> usize {
    let info = w.host(rank).nic.communicator_info(w.comms[rank]);
    let peers = info.expect("known").peers;
    peers.iter().filter(|p| p.transport.is_some()).count()
}

/// Makes a rank of a communicator.
fn make(w: &World, rank: usize, ranks: usize, settings: CollectiveSettings) -> CommId {
    let config = CommunicatorConfig {
        ctx: 5,
        rank: rank as u32,
        peers: (0..ranks).map(collective_support::address).collect(),
        settings,
    };
    let made = w.host(rank).nic.create_communicator(&config);
    made.expect("made")
}

#[test]
fn a_ring_has_links_to_neighbors_alone() {
    for (wire, ranks) in [(Wire::Local, 24), (Wire::Rdma, 32)] {
        let mut w = World::new(ranks, wire, &lazy());
        let call = Call::new(K::AllReduce, 1000)
            .of(DataType::U32, ReduceOp::Sum)
            .algo(Algorithm::Ring);
        w.run(&call);
        let most = 2 * ranks.next_power_of_two().trailing_zeros() as usize;
        for rank in 0..ranks {
            let n = links(&w, rank);
            assert!(n <= most, "{wire:?}: rank {rank} has {n} links, not {most}");
        }
    }
}

#[test]
fn every_collective_dials_what_it_needs() {
    for (wire, ranks) in [
        (Wire::Local, 2),
        (Wire::Local, 3),
        (Wire::Local, 13),
        (Wire::Tcp, 9),
        (Wire::Rdma, 12),
        (Wire::LossyRdma(3, 5), 7),
        (Wire::Probed(3, 6), 7),
    ] {
        let mut w = World::new(ranks, wire, &lazy());
        for kind in [
            K::AllToAll,
            K::AllReduce,
            K::Broadcast,
            K::AllGather,
            K::Barrier,
            K::Reduce,
            K::ReduceScatter,
        ] {
            for count in [1, 700, 5000] {
                w.run(&Call::new(kind, count));
            }
        }
        // All pairs have exchanged messages.
        assert_eq!(links(&w, ranks - 1), ranks - 1);
    }
}

/// The first message between two ranks is one of both at once, or of one long before the other, in
/// every order of their steps.
#[test]
fn ranks_that_dial_at_once_have_one_link_and_lose_nothing() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let ranks = 9 + (seed as usize % 5);
        let wire = if seed % 2 == 0 {
            Wire::Local
        } else {
            Wire::Rdma
        };
        let mut w = World::new(ranks, wire, &lazy());
        let call = Call::new(K::AllToAll, 1 + rng.next() % 900).within(5_000_000);
        let mut order: Vec<usize> = (0..ranks).collect();
        let mut tickets = Vec::new();
        for i in (1..ranks).rev() {
            order.swap(i, (rng.next() % (i as u64 + 1)) as usize);
        }
        for rank in order {
            tickets.push((rank, w.post(rank, &call)));
            for _ in 0..rng.next() % 40 {
                w.step();
            }
        }
        for c in w.settle(&tickets) {
            assert_eq!(c.status, Status::Ok, "seed {seed}: {c:?}");
        }
        for rank in 0..ranks {
            assert_eq!(links(&w, rank), ranks - 1, "seed {seed}");
        }
        // Data that was checked, over the links that are there now.
        w.run(&Call::new(K::AllToAll, 333));
    }
}

#[test]
fn a_setting_that_differs_is_named_with_its_rank_on_every_rank() {
    let ranks = 11;
    for odd in 0..ranks {
        let mut w = World::unjoined(ranks, Wire::Local, 1 << 20);
        let of = |rank: usize| CollectiveSettings {
            stream_bytes: if rank == odd { 64 } else { 128 },
            ..lazy()
        };
        let ids: Vec<_> = (0..ranks).map(|r| make(&w, r, ranks, of(r))).collect();
        let end = CommStatus::Aborted {
            rank: if odd == 0 { 1 } else { odd as u32 },
            status: Status::Mismatch,
        };
        for (r, id) in ids.iter().enumerate() {
            w.until("a mismatch", 150 * MS, |w| {
                w.host(r).nic.communicator_status(*id) == Ok(end.clone())
            });
        }
        let why = |r: usize| {
            let info = w.host(r).nic.communicator_info(ids[r]).expect("known");
            info.why.unwrap_or_default()
        };
        assert!((0..ranks).any(|r| why(r).contains("`stream_bytes`")));
    }
}

#[test]
fn a_rank_that_never_comes_is_named_by_all() {
    let ranks = 13;
    for absent in 0..ranks {
        let mut w = World::unjoined(ranks, Wire::Local, 1 << 20);
        let there = || (0..ranks).filter(move |r| *r != absent);
        let ids: Vec<_> = there().map(|r| (r, make(&w, r, ranks, lazy()))).collect();
        let end = CommStatus::Aborted {
            rank: absent as u32,
            status: Status::PeerFailed,
        };
        for (r, id) in ids {
            w.until("the end", 300 * MS, |w| {
                w.host(r).nic.communicator_status(id) == Ok(end.clone())
            });
        }
    }
}

/// A rank dies before an operation, or in it, at any time: whoever needs it, directly or not, names
/// it.
#[test]
fn a_rank_that_dies_is_named_by_ranks_without_a_link_to_it() {
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let ranks = 12;
        let victim = seed as usize % ranks;
        let mut w = World::new(ranks, Wire::Local, &lazy());
        let call = Call::new(K::AllReduce, 3000)
            .of(DataType::U32, ReduceOp::Sum)
            .algo(Algorithm::Ring)
            .within(30_000_000);
        let others = (0..ranks).filter(|r| *r != victim);
        let mut tickets: Vec<_> = others.map(|r| (r, w.post(r, &call))).collect();
        if seed % 2 == 0 {
            w.post(victim, &call);
            for _ in 0..rng.next() % 60 {
                w.step();
            }
        }
        w.hosts[victim] = None;
        for (c, (rank, _)) in w.settle(&tickets).iter().zip(&tickets) {
            let is_named = (c.status, c.detail) == (Status::PeerFailed, victim as u64);
            let aborted = (c.status, c.detail) == (Status::CommAborted, victim as u64);
            let may_end = seed % 2 == 0 && c.status == Status::Ok;
            assert!(
                is_named || aborted || may_end,
                "seed {seed}, rank {rank}: {c:?}"
            );
        }
        tickets.clear();
    }
}

/// Ranks that differ in an operation, most of them without a link to the one that is unlike: each
/// names it, long before its time is over.
#[test]
fn a_rank_that_differs_in_an_operation_is_named_by_all() {
    for seed in 0..150 {
        let mut rng = Rng(seed);
        let mut below = |n: u64| rng.next() % n;
        let ranks = 3 + below(14) as usize;
        let odd = below(ranks as u64) as usize;
        let wire = [Wire::Local, Wire::Tcp, Wire::Rdma][seed as usize % 3];
        let count = [9, 300, 3000][below(3) as usize];
        let base = Call::new(K::AllReduce, count)
            .of(DataType::U32, ReduceOp::Sum)
            .algo(Algorithm::Ring);
        let other = match below(4) {
            0 => Call::new(K::AllReduce, count + 1).of(DataType::U32, ReduceOp::Sum),
            1 => base.of(DataType::U32, ReduceOp::Max),
            2 => base.algo(Algorithm::Pairwise),
            _ => Call::new(K::AllGather, 9),
        };
        let before = below(3);
        let mut w = World::new(ranks, wire, &lazy());
        for _ in 0..before {
            w.run(&base);
        }
        let begun = w.now;
        let mut order: Vec<usize> = (0..ranks).collect();
        for i in (1..ranks).rev() {
            order.swap(i, below(i as u64 + 1) as usize);
        }
        let mut tickets = Vec::new();
        for rank in order {
            let call = if rank == odd { other } else { base };
            tickets.push((rank, w.post(rank, &call.within(30_000_000))));
            for _ in 0..below(40) {
                w.step();
            }
        }
        for (c, (rank, _)) in w.settle(&tickets).iter().zip(&tickets) {
            assert_eq!(
                (c.status, c.detail),
                (Status::Mismatch, odd as u64),
                "seed {seed}, rank {rank} of {ranks}: {c:?}"
            );
        }
        let took = w.now - begun;
        assert!(took < 1000 * MS, "seed {seed}: after {took} ns");
    }
}
