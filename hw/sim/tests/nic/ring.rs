//! Collectives whose steps the cards execute: communicators that share the cards, entries of the
//! GTLB that vanish, and orders that the hardware does not have.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::{Algorithm, CollectiveKind, DataType, ReduceOp, Status};
use ringbell_nic_core::card::CardCounts;
use ringbell_nic_core::collective::CollectiveSettings;

use super::with_losses;
use crate::collective_support::nic::BASE;
use crate::collective_support::{Call, Wire, World};

const RANKS: usize = 3;
/// Bytes of GPU memory behind each rank's.
const MEMORY: u64 = 16 << 20;

/// Ranks with cards; the card of rank 1 loses an entry at its next collective when this is set.
fn world(wire: Wire) -> (World, Arc<AtomicBool>) {
    let loses: Vec<Arc<AtomicBool>> = (0..RANKS).map(|_| Arc::default()).collect();
    let world = World::with(RANKS, wire, MEMORY, |rank, nic| {
        with_losses(nic, 0, loses[rank].clone(), rank as u64 + 1)
    });
    (world, loses[1].clone())
}

fn counts(w: &World, rank: usize) -> CardCounts {
    w.host(rank).nic.card_counts().expect("it has a card")
}

fn all_reduce(count: usize, at: u64) -> Call {
    let call = Call::new(CollectiveKind::AllReduce, count as u64);
    call.of(DataType::I32, ReduceOp::Sum).at(at, at + (1 << 20))
}

/// Fills the sources of a call; returns the result.
fn fill(w: &World, rng: &mut Rng, call: &Call) -> Vec<u8> {
    let mut sums = vec![0_i32; call.count as usize];
    for rank in (0..RANKS).filter(|r| w.hosts[*r].is_some()) {
        let bytes = rng.bytes(4 * sums.len());
        w.host(rank).poke(call.src, &bytes);
        let (words, _) = bytes.as_chunks::<4>();
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = sum.wrapping_add(i32::from_le_bytes(*word));
        }
    }
    sums.into_iter().flat_map(i32::to_le_bytes).collect()
}

fn compare(w: &World, call: &Call, wanted: &[u8], what: &str) {
    for rank in (0..RANKS).filter(|r| w.hosts[*r].is_some()) {
        let got = w.host(rank).peek(call.dst, wanted.len());
        assert!(got == wanted, "rank {rank} has other sums: {what}");
    }
}

/// A card has one sequencer: a rank whose card works for another communicator executes the steps
/// itself. So none waits for another's.
#[test]
fn two_communicators_share_the_cards_in_any_order() {
    let (mut w, _) = world(Wire::Local);
    let small = CollectiveSettings {
        segment_bytes: 4 << 10,
        ..CollectiveSettings::default()
    };
    let members: Vec<usize> = (0..RANKS).collect();
    let both = [7, 8].map(|ctx| w.communicator(ctx, &members, &small));
    let mut rng = Rng::new(5);
    for round in 0..8 {
        let counts = [1 + rng.below(30_000), 1 + rng.below(30_000)];
        let at = 77 * rng.below(2);
        let calls = [0, 1].map(|i| all_reduce(counts[i] as usize, 4 * at + (4 << 20) * i as u64));
        let wanted = [0, 1].map(|i| fill(&w, &mut rng, &calls[i]));
        let mut tickets = Vec::new();
        for &rank in &members {
            let first = (round >> rank & 1) as usize;
            for which in [first, 1 - first] {
                let d = calls[which].descriptor(both[which][rank]);
                tickets.push((rank, w.host(rank).post(&d)));
                // Some begin before the others have posted theirs.
                (0..rng.below(40)).for_each(|_| _ = w.step());
            }
        }
        for end in w.settle(&tickets) {
            assert_eq!(end.status, Status::Ok, "round {round}: {end:?}");
        }
        for i in 0..2 {
            compare(&w, &calls[i], &wanted[i], &format!("round {round}, {i}"));
        }
    }
    let all = (0..RANKS).map(|rank| counts(&w, rank));
    let (mut cards, mut software) = (0, 0);
    for c in all {
        assert_eq!((c.programs + c.programs_in_software, c.faults), (16, 0));
        cards += c.programs;
        software += c.programs_in_software;
    }
    assert!(cards >= 24 && software > 0, "{cards} and {software}");
}

/// The rank whose address has faulted names it, the others name the rank. The next communicator has
/// the cards.
#[test]
fn an_address_that_faults_ends_the_collective_on_all_ranks() {
    for (seed, wire) in [(1, Wire::Local), (2, Wire::Local), (3, Wire::Tcp)] {
        let (mut w, loses) = world(wire);
        let members: Vec<usize> = (0..RANKS).collect();
        let settings = CollectiveSettings::default();
        let mut rng = Rng::new(seed);
        for round in 0..3_u64 {
            w.comms = w.communicator(7 + round, &members, &settings);
            let call = all_reduce(20_000 + rng.below(9_000) as usize, 4 * rng.below(100));
            let wanted = fill(&w, &mut rng, &call);
            if round < 2 {
                loses.store(true, Ordering::Relaxed);
                let ends = w.call(&call);
                assert_eq!(ends[1].status, Status::NoTranslation, "{ends:?}");
                let at = ends[1].detail.wrapping_sub(BASE.0);
                let inside = |first: u64| at.wrapping_sub(first) < 4 * call.count;
                assert!(inside(call.src) || inside(call.dst), "{ends:?}");
                for end in [&ends[0], &ends[2]] {
                    assert_eq!(
                        (end.status, end.detail),
                        (Status::CommAborted, 1),
                        "{ends:?}"
                    );
                }
            } else {
                w.run(&call);
                compare(&w, &call, &wanted, "after the faults");
            }
        }
        for rank in 0..RANKS {
            let c = counts(&w, rank);
            let faults = if rank == 1 { 2 } else { 0 };
            assert_eq!((c.programs, c.programs_in_software), (3, 0));
            assert_eq!(c.faults, faults, "{c:?}");
        }
    }
}

/// The others are told, at any point of the operation, and go on with their cards in a communicator
/// of their own.
#[test]
fn a_rank_that_ends_in_the_middle_ends_the_collective() {
    let mut failed = 0;
    for seed in 0..6 {
        let (mut w, _) = world(Wire::Local);
        let members: Vec<usize> = (0..RANKS).collect();
        let settings = CollectiveSettings::default();
        w.comms = w.communicator(7, &members, &settings);
        let mut rng = Rng::new(seed);
        let call = all_reduce(100_000, 0);
        fill(&w, &mut rng, &call);
        let tickets: Vec<_> = members.iter().map(|r| (*r, w.post(*r, &call))).collect();
        (0..rng.below(120)).for_each(|_| _ = w.step());
        w.hosts[2] = None;
        for end in w.settle(&tickets[..2]) {
            // Its own abort comes first, or the end of its links.
            let ends = [Status::CommAborted, Status::PeerFailed];
            let is_told = ends.contains(&end.status) && end.detail == 2;
            assert!(is_told || end.status == Status::Ok, "{end:?}");
            failed += u32::from(is_told);
        }
        let before = counts(&w, 0);
        w.comms = w.communicator(8, &members[..2], &settings);
        let wanted = fill(&w, &mut rng, &call);
        let tickets: Vec<_> = (0..2).map(|r| (r, w.post(r, &call))).collect();
        for end in w.settle(&tickets) {
            assert_eq!(end.status, Status::Ok, "{end:?}");
        }
        compare(&w, &call, &wanted, "after the end of a rank");
        assert_eq!(counts(&w, 0).programs, before.programs + 1);
    }
    assert!(failed >= 6, "{failed} operations have failed");
}

/// Reductions in the order of the ranks are not the hardware's. Rings that only move data are, for
/// every type.
#[test]
fn what_the_cards_cannot_keep_is_left_to_the_software() {
    let (mut w, _) = world(Wire::Local);
    let members: Vec<usize> = (0..RANKS).collect();
    let mut rng = Rng::new(9);
    for (ctx, deterministic) in [(7, true), (8, false)] {
        let settings = CollectiveSettings {
            deterministic,
            ..CollectiveSettings::default()
        };
        w.comms = w.communicator(ctx, &members, &settings);
        let call = all_reduce(5_000, 0);
        let wanted = fill(&w, &mut rng, &call);
        let before = counts(&w, 0).programs;
        w.run(&call);
        compare(
            &w,
            &call,
            &wanted,
            &format!("deterministic {deterministic}"),
        );
        let programs = counts(&w, 0).programs;
        assert_eq!(programs, before + u64::from(!deterministic));
        // A collective that reduces nothing may have any type: the cards only move its bytes.
        let gather = Call::new(CollectiveKind::AllGather, 3_001).algo(Algorithm::Ring);
        let gather = gather.of(DataType::U8, ReduceOp::Sum);
        let blocks: Vec<Vec<u8>> = (0..RANKS).map(|_| rng.bytes(3_001)).collect();
        for (rank, block) in blocks.iter().enumerate() {
            w.host(rank).poke(gather.src, block);
        }
        w.run(&gather);
        for rank in 0..RANKS {
            assert!(w.host(rank).peek(gather.dst, 3 * 3_001) == blocks.concat());
        }
        assert_eq!(counts(&w, 0).programs, programs + 1);
    }
}
