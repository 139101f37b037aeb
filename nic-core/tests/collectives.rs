//! Every collective, with every algorithm, on every transport, against a serial model.

use crate::collective_support;

use collective_support::{Call, Rng, Wire, World};
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_nic_core::types::NicTime;
use ringbell_onc_engines::program::{algorithms, parse};

pub(crate) const IN: u64 = 64;
pub(crate) const OUT: u64 = (8 << 20) + 4;

pub(crate) fn input(rank: usize, len: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng(seed ^ (rank as u64) << 32);
    (0..len).map(|_| rng.next() as u32).collect()
}

pub(crate) fn bytes(v: &[u32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

pub(crate) fn words(b: &[u8]) -> Vec<u32> {
    let of = |c: &[u8]| u32::from_le_bytes([c[0], c[1], c[2], c[3]]);
    b.chunks_exact(4).map(of).collect()
}

/// Blocks of source and destination on a rank.
fn blocks(kind: K, rank: usize, root: usize, n: usize) -> (usize, usize) {
    let at_root = |b: usize| if rank == root { b } else { 0 };
    match kind {
        K::Broadcast => (at_root(1), 1),
        K::Reduce => (1, at_root(1)),
        K::Scatter => (at_root(n), 1),
        K::Gather => (1, at_root(n)),
        K::AllGather => (1, n),
        K::ReduceScatter => (n, 1),
        K::AllReduce => (1, 1),
        K::AllToAll => (n, n),
        _ => (0, 0),
    }
}

/// What a rank's destination must hold.
fn model(kind: K, rank: usize, root: usize, count: usize, inputs: &[Vec<u32>]) -> Vec<u32> {
    let n = inputs.len();
    let sum = |range: std::ops::Range<usize>| -> Vec<u32> {
        range
            .map(|i| inputs.iter().fold(0u32, |a, v| a.wrapping_add(v[i])))
            .collect()
    };
    let block = |v: &[u32], b: usize| v[b * count..(b + 1) * count].to_vec();
    match kind {
        K::Broadcast => inputs[root][..count].to_vec(),
        K::Reduce | K::AllReduce => sum(0..count),
        K::Scatter => block(&inputs[root], rank),
        K::Gather | K::AllGather => inputs.iter().flat_map(|v| v[..count].to_vec()).collect(),
        K::ReduceScatter => sum(rank * count..(rank + 1) * count),
        K::AllToAll => (0..n).flat_map(|r| block(&inputs[r], rank)).collect(),
        _ => Vec::new(),
    }
}

pub(crate) fn one(w: &mut World, kind: K, algo: Algorithm, count: usize, root: usize) {
    let n = w.ranks();
    let seed = count as u64 * 31 + root as u64 * 7 + kind as u64;
    let inputs: Vec<_> = (0..n).map(|r| input(r, count * n, seed)).collect();
    let mut before = Vec::new();
    for (r, v) in inputs.iter().enumerate() {
        let (i, o) = blocks(kind, r, root, n);
        w.host(r).poke(IN, &bytes(&v[..i * count]));
        // A word more than the destination: it must stay.
        let stale = input(r, o * count + 1, !seed);
        w.host(r).poke(OUT, &bytes(&stale));
        before.push(stale);
    }
    let call = Call::new(kind, count as u64)
        .algo(algo)
        .of(DataType::U32, ReduceOp::Sum)
        .root(root as u32)
        .at(IN, OUT);
    w.run(&call);
    for (r, stale) in before.iter().enumerate() {
        let (i, o) = blocks(kind, r, root, n);
        let got = words(&w.host(r).peek(OUT, (o * count + 1) * 4));
        let mut want = model(kind, r, root, count, &inputs);
        want.truncate(o * count);
        want.push(stale[o * count]);
        let differs = got.iter().zip(&want).position(|(a, b)| a != b);
        assert_eq!(
            differs, None,
            "{kind:?} {algo:?} n={n} count={count} root={root} rank={r}"
        );
        let kept = w.host(r).peek(IN, i * count * 4);
        assert_eq!(kept, bytes(&inputs[r][..i * count]), "a source was written");
    }
}

/// Around the number of ranks, of a segment, and of many segments.
fn counts(ranks: usize) -> Vec<usize> {
    let mut v = vec![0, 1, 7, ranks.saturating_sub(1), ranks, 1023, 65_537];
    v.sort_unstable();
    v.dedup();
    v
}

/// Every collective, with every algorithm over messages and with the one that is chosen (on one
/// host: the direct path), every count, every root.
fn matrix(wire: Wire, ranks: usize, settings: &CollectiveSettings, most: usize) {
    let mut w = World::new(ranks, wire, settings);
    let kinds = [
        K::Broadcast,
        K::Reduce,
        K::Scatter,
        K::Gather,
        K::AllGather,
        K::ReduceScatter,
        K::AllReduce,
        K::AllToAll,
        K::Barrier,
    ];
    for kind in kinds {
        let rooted = matches!(kind, K::Broadcast | K::Reduce | K::Scatter | K::Gather);
        let roots = if rooted { ranks } else { 1 };
        let own = algorithms(kind).iter().filter(|a| **a != Algorithm::Direct);
        for algo in own.chain(&[Algorithm::Auto]) {
            for count in counts(ranks).into_iter().filter(|c| *c <= most) {
                if kind == K::Barrier && count > 0 {
                    continue; // It has none.
                }
                for root in 0..roots {
                    one(&mut w, kind, *algo, count, root);
                }
            }
        }
    }
}

/// Segments and messages so small that every count has both sides of their limits.
pub(crate) fn small() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 1024,
        eager_max: 512,
        eager_buffers: 4,
        scratch_bytes: 1 << 20,
        ..CollectiveSettings::default()
    }
}

#[test]
fn matrix_local_1_2_3() {
    for n in [1, 2, 3] {
        matrix(Wire::Local, n, &small(), usize::MAX);
    }
}

#[test]
fn matrix_local_5() {
    matrix(Wire::Local, 5, &CollectiveSettings::default(), usize::MAX);
}

#[test]
fn matrix_local_8() {
    matrix(Wire::Local, 8, &CollectiveSettings::default(), usize::MAX);
}

#[test]
fn matrix_tcp_1_2_3() {
    for n in [1, 2, 3] {
        matrix(Wire::Tcp, n, &small(), usize::MAX);
    }
}

#[test]
fn matrix_tcp_5() {
    matrix(Wire::Tcp, 5, &CollectiveSettings::default(), usize::MAX);
}

#[test]
fn matrix_rdma_2_3() {
    for n in [2, 3] {
        matrix(Wire::Rdma, n, &small(), usize::MAX);
    }
}

#[test]
fn matrix_udp_1_2_3() {
    for n in [1, 2, 3] {
        matrix(Wire::Udp, n, &small(), usize::MAX);
    }
}

#[test]
fn matrix_rdma_5() {
    matrix(Wire::Rdma, 5, &CollectiveSettings::default(), usize::MAX);
}

#[test]
fn matrix_iwarp_1_2_3() {
    for n in [1, 2, 3] {
        matrix(Wire::Iwarp, n, &small(), usize::MAX);
    }
}

#[test]
fn matrix_iwarp_5() {
    matrix(Wire::Iwarp, 5, &CollectiveSettings::default(), usize::MAX);
}

#[test]
fn matrix_tcp_8() {
    matrix(Wire::Tcp, 8, &CollectiveSettings::default(), usize::MAX);
}

/// Every pair of ranks has a TCP connection of its own: 66 of them, and 120.
#[test]
fn tcp_among_12_and_16_ranks() {
    for ranks in [12, 16] {
        let mut w = World::new(ranks, Wire::Tcp, &small());
        for kind in K::ALL {
            let own = algorithms(*kind)
                .iter()
                .filter(|a| **a != Algorithm::Direct);
            for algo in own {
                for count in [7, 1023] {
                    let count = if *kind == K::Barrier { 0 } else { count };
                    one(&mut w, *kind, *algo, count, ranks - 1);
                }
            }
        }
    }
}

#[test]
fn small_segments_and_messages_on_5_and_8_ranks() {
    for (wire, ranks) in [
        (Wire::Local, 5),
        (Wire::Local, 8),
        (Wire::Tcp, 5),
        (Wire::Tcp, 8),
    ] {
        matrix(wire, ranks, &small(), 1023);
    }
}

#[test]
fn neither_algorithm_nor_transport_nor_run_changes_a_bit() {
    let count = 4099usize;
    for kind in [K::AllReduce, K::Reduce, K::ReduceScatter] {
        let mut first: Option<Vec<Vec<u8>>> = None;
        for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp, Wire::Local] {
            let mut w = World::new(5, wire, &small());
            for algo in algorithms(kind) {
                let halves = (kind, *algo) == (K::AllReduce, Algorithm::RecursiveDoubling);
                if halves || matches!(algo, Algorithm::Tree | Algorithm::Direct) {
                    continue; // Another order, and no messages.
                }
                for r in 0..5 {
                    // Sums of numbers so far apart that every order gives other bits.
                    let v: Vec<u8> = input(r, count * 5, 11)
                        .iter()
                        .flat_map(|x| {
                            ((*x as f32) * 2f32.powi((*x % 40) as i32 - 20)).to_le_bytes()
                        })
                        .collect();
                    w.host(r).poke(IN, &v);
                }
                w.run(
                    &Call::new(kind, count as u64)
                        .algo(*algo)
                        .root(2)
                        .at(IN, OUT),
                );
                let of = |r: usize| {
                    let (_, o) = blocks(kind, r, 2, 5);
                    w.host(r).peek(OUT, o * count * 4)
                };
                let got: Vec<_> = (0..5).map(of).collect();
                match &first {
                    None => first = Some(got),
                    Some(f) => assert!(*f == got, "{kind:?} {algo:?} {wire:?}"),
                }
            }
        }
    }
}

/// A message whose bytes have come with its header is received at once, what it sends leaves at
/// once, and credits travel with messages.
#[test]
fn a_short_all_reduce_over_rdma_takes_two_rounds_of_steps_and_no_message_besides() {
    let mut w = World::new(2, Wire::Rdma, &CollectiveSettings::default());
    let call = Call::new(K::AllReduce, 256).at(IN, OUT);
    w.run(&call);
    let sent = |w: &World| w.host(0).nic.ports()[0].counters.tx_frames;
    let before = sent(&w);
    for _ in 0..32 {
        let tickets = [0, 1].map(|r| w.post(r, &call));
        let mut rounds = 0;
        while (0..2).any(|r| w.host(r).queue.poll(tickets[r]).is_none()) {
            w.step();
            rounds += 1;
            assert!(rounds <= 2, "it waits for a step of its own");
        }
    }
    // A message each, some with an acknowledgement in a packet of its own.
    let frames = sent(&w) - before;
    assert!(frames <= 2 * 32, "{frames} frames");
}

/// Longer messages go straight to their receives, which were announced ahead: no request, and no
/// header with the payload.
#[test]
fn a_long_all_reduce_over_rdma_is_written_and_asks_for_nothing() {
    let mut w = World::new(3, Wire::Rdma, &CollectiveSettings::default());
    let call = Call::new(K::AllReduce, 400_000).of(DataType::U32, ReduceOp::Sum);
    let (data, len) = (input(0, 400_000, 5), 4 * 400_000_usize);
    for r in 0..3 {
        w.host(r).poke(0, &bytes(&data));
    }
    w.run(&call.at(0, len as u64));
    let sums: Vec<_> = data.iter().map(|x| x.wrapping_mul(3)).collect();
    for r in 0..3 {
        assert!(words(&w.host(r).peek(len as u64, len)) == sums, "rank {r}");
        let info = w.host(r).nic.communicator_info(w.comms[r]).expect("known");
        let c = info.counters;
        assert!(c.written >= 4 && c.rendezvous + c.eager == 0, "{c:?}");
    }
}

#[test]
fn thirty_two_ranks() {
    let mut w = World::new(32, Wire::Tcp, &small());
    for (kind, algo) in [
        (K::Barrier, Algorithm::Auto),
        (K::AllReduce, Algorithm::Ring),
        (K::Broadcast, Algorithm::Auto),
        (K::AllToAll, Algorithm::Pairwise),
    ] {
        one(&mut w, kind, algo, 33, 17);
    }
}

/// Source and destination have lengths of their own, and nothing behind either needs to be memory.
#[test]
fn buffers_may_end_where_the_memory_ends() {
    let (n, count) = (3, 1000);
    let end = 16 << 20;
    let block = 4 * count as u64;
    for (kind, src, dst) in [
        (K::AllGather, end - block, 0),
        (K::AllToAll, end - n as u64 * block, 0),
        (K::ReduceScatter, 0, end - block),
    ] {
        let mut w = World::new(n, Wire::Local, &CollectiveSettings::default());
        let words_of = |blocks| count * blocks;
        let (sources, results) = blocks(kind, 0, 0, n);
        let inputs: Vec<_> = (0..n).map(|r| input(r, words_of(sources), 5)).collect();
        for (r, data) in inputs.iter().enumerate() {
            w.host(r).poke(src, &bytes(data));
        }
        let call = Call::new(kind, count as u64).of(DataType::U32, ReduceOp::Sum);
        w.run(&call.at(src, dst));
        for r in 0..n {
            let got = words(&w.host(r).peek(dst, 4 * words_of(results)));
            assert!(got == model(kind, r, 0, count, &inputs), "{kind:?} {r}");
        }
    }
}

/// Pages do not follow each other on the bus: such an element is in two places.
#[test]
fn elements_lie_across_the_end_of_pages() {
    let (n, count) = (3, 50_000);
    // Some parts of the memory lie scattered, others in one piece.
    for off in (0..4).map(|part| (part << 21) + 1 + part % 3) {
        let mut w = World::new(n, Wire::Local, &CollectiveSettings::default());
        let inputs: Vec<_> = (0..n).map(|r| input(r, count, 31)).collect();
        for (r, data) in inputs.iter().enumerate() {
            w.host(r).poke(off, &bytes(data));
        }
        let dst = off + (8 << 20) + 1;
        let call = Call::new(K::AllReduce, count as u64)
            .algo(Algorithm::Ring)
            .of(DataType::U32, ReduceOp::Sum)
            .at(off, dst);
        w.run(&call);
        let expected = model(K::AllReduce, 0, 0, count, &inputs);
        for r in 0..n {
            let got = words(&w.host(r).peek(dst, 4 * count));
            assert!(got == expected, "{off} rank {r}");
        }
    }
}

/// Rank 0 passes a block on from memory that another one overwrites later. The message that rank 1
/// sends back shows that the first has left; the order of rank 2's messages does not.
const PASSED_ON: &str = "ringbell program 1
collective all-gather
ranks 3
rank 0
0: input[0] -> output[0], net 1
1: input[0] -> net 2
2: net 2 -> output[1], net 1
3: net 1 -> output[2]
4: net 2 -> output[1]
rank 1
0: input[0] -> output[1], net 2
1: net 0 -> output[0]
2: net 0 -> output[2], net 0
rank 2
0: input[0] -> output[2], net 0
1: net 1 -> output[1], net 0
2: net 0 -> output[0]
";

#[test]
fn no_message_overwrites_memory_that_is_still_being_sent() {
    let programs = parse(PASSED_ON).expect("a program");
    let settings = CollectiveSettings {
        // Messages wait at their sender until they are taken.
        eager_max: 64,
        ..CollectiveSettings::default()
    };
    let count = 6000;
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        // Rank 1 stands still for a while, from each moment of the operation.
        for moment in 0..60 {
            let mut w = World::new(3, wire, &settings);
            for r in 0..3 {
                w.host(r).nic.load_program(programs.clone()).expect("right");
            }
            let inputs: Vec<_> = (0..3).map(|r| input(r, count, 9)).collect();
            for (r, data) in inputs.iter().enumerate() {
                w.host(r).poke(IN, &bytes(data));
            }
            let call = Call::new(K::AllGather, count as u64)
                .algo(Algorithm::User)
                .of(DataType::U32, ReduceOp::Sum)
                .at(IN, OUT);
            let tickets: Vec<_> = (0..3).map(|r| (r, w.post(r, &call))).collect();
            (0..moment).for_each(|_| {
                w.step();
            });
            for _ in 0..200 {
                w.now += 1000;
                for r in [0, 2] {
                    w.host(r).nic.step_at(NicTime(w.now));
                }
            }
            for (r, c) in w.settle(&tickets).iter().enumerate() {
                assert_eq!(c.status, Status::Ok, "{wire:?} {moment} rank {r}: {c:?}");
                let got = words(&w.host(r).peek(OUT, 3 * 4 * count));
                let expected = model(K::AllGather, r, 0, count, &inputs);
                assert!(
                    got == expected,
                    "{wire:?} {moment}: rank {r} has other bytes"
                );
            }
        }
    }
}
