//! Collectives whose operands are kernels' streams: every kind with every algorithm gives what it
//! gives from memory, to the bit, whichever ranks and sides have streams.

use crate::collective_support;

use collective_support::{Call, Ring, Rng, Wire, World};
use ringbell_nic_abi::kernel_stream::{STATE_AT, TAIL_AT};
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, Completion, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_onc_engines::program::{algorithms, is_strict, Limits, UserProgram};

const IN: u64 = 64;
const OUT: u64 = 4 << 20;
const RINGS: u64 = 12 << 20;

pub(crate) fn settings() -> CollectiveSettings {
    CollectiveSettings {
        segment_bytes: 1024,
        eager_max: 128,
        eager_buffers: 4,
        scratch_bytes: 256 << 10,
        stream_bytes: 64,
        ..CollectiveSettings::default()
    }
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
        _ => (1, 1),
    }
}

/// Whether the blocks of all ranks follow each other, so that a stream may stand for all of them.
fn takes_blocks(call: &Call) -> bool {
    let flat = [Algorithm::Flat, Algorithm::Auto].contains(&call.spec.algo);
    flat && matches!(call.spec.kind, K::Scatter | K::Gather)
}

/// Numbers whose sum depends on the order.
fn floats(rank: usize, len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed ^ (rank as u64) << 32);
    let one = |_| (rng.next() as i32 as f32 / 3e5).to_le_bytes();
    (0..len).flat_map(one).collect()
}

/// What the kernel of a rank does.
pub(crate) struct Kernel {
    pub(crate) push: Option<(Ring, Vec<u8>, usize)>,
    pub(crate) pop: Option<(Ring, Vec<u8>)>,
}

/// Kernels push and pop, a little now and then, until every rank's operation has completed.
pub(crate) fn play(
    w: &mut World,
    kernels: &mut [Kernel],
    tickets: &[u32],
    rng: &mut Rng,
) -> Vec<Completion> {
    let mut done: Vec<Option<Completion>> = vec![None; tickets.len()];
    let end = w.now + 60_000_000_000;
    while done.iter().any(Option::is_none) {
        for k in kernels.iter_mut() {
            if let Some((ring, data, at)) = &mut k.push {
                let most = (rng.next() % 120) as usize;
                let rest = &data[*at..];
                *at += ring.push(w, &rest[..most.min(rest.len())]);
            }
            if let Some((ring, got)) = &mut k.pop {
                got.extend(ring.pop(w, (rng.next() % 120) as usize));
            }
        }
        w.step();
        for (rank, slot) in done.iter_mut().enumerate() {
            if slot.is_none() {
                *slot = w.host(rank).queue.poll(tickets[rank]);
            }
        }
        assert!(w.now < end, "hung: {done:?}");
    }
    for k in kernels.iter_mut() {
        if let Some((ring, got)) = &mut k.pop {
            got.extend(ring.pop(w, usize::MAX));
        }
    }
    done.into_iter().flatten().collect()
}

/// Runs one from memory, then with streams where `rng` says, and compares. Returns each rank's
/// result.
pub(crate) fn both(w: &mut World, call: Call, rng: &mut Rng) -> Vec<Vec<u8>> {
    let (n, root) = (w.ranks(), call.root as usize);
    let (kind, count) = (call.spec.kind, call.count as usize);
    let mut wanted = Vec::new();
    for r in 0..n {
        let (i, o) = blocks(kind, r, root, n);
        w.host(r).poke(IN, &floats(r, i * count, call.count));
        w.host(r).poke(OUT, &vec![0xaa; o * count * 4 + 4]);
    }
    w.run(&call.at(IN, OUT));
    for r in 0..n {
        let (_, o) = blocks(kind, r, root, n);
        wanted.push(w.host(r).peek(OUT, o * count * 4));
        w.host(r).poke(OUT, &vec![0x55; o * count * 4 + 4]);
    }
    let (mut kernels, mut tickets) = (Vec::new(), Vec::new());
    for r in 0..n {
        let (i, o) = blocks(kind, r, root, n);
        let (mut c, mut k) = (
            call.at(IN, OUT).streamed(),
            Kernel {
                push: None,
                pop: None,
            },
        );
        let start = (1u64 << 32) - 4 * (rng.next() % 64);
        let most = if takes_blocks(&call) { n } else { 1 };
        if i <= most && !rng.next().is_multiple_of(3) {
            let ring = Ring::new(w, r, RINGS, 6 + (r as u32 & 1), start);
            c = c.of_ring(&ring);
            if i > 0 {
                k.push = Some((ring, floats(r, i * count, call.count), 0));
            }
        }
        if o <= most && !rng.next().is_multiple_of(3) {
            let ring = Ring::new(w, r, RINGS + 4096, 6, start);
            c = c.to_ring(&ring);
            if o > 0 {
                k.pop = Some((ring, Vec::new()));
            }
        }
        kernels.push(k);
        tickets.push(w.post(r, &c));
    }
    let done = play(w, &mut kernels, &tickets, rng);
    for (r, c) in done.iter().enumerate() {
        assert_eq!(c.status, Status::Ok, "{call:?}, rank {r}: {c:?}");
        let (_, o) = blocks(kind, r, root, n);
        let got = match &kernels[r].pop {
            Some((_, got)) => got.clone(),
            None => w.host(r).peek(OUT, o * count * 4),
        };
        assert!(got == wanted[r], "{call:?}, rank {r} of {n}: other bits");
        assert_eq!(w.host(r).peek(OUT + (o * count * 4) as u64, 4), [0x55; 4]);
        if let Some((ring, data, at)) = &kernels[r].push {
            assert_eq!((*at, ring.level(w)), (data.len(), 0), "not all was taken");
        }
    }
    wanted
}

pub(crate) const KINDS: [K; 7] = [
    K::Broadcast,
    K::Reduce,
    K::Scatter,
    K::Gather,
    K::AllGather,
    K::ReduceScatter,
    K::AllReduce,
];

fn matrix(wire: Wire, ranks: usize, counts: &[usize]) {
    let mut w = World::new(ranks, wire, &settings());
    let mut rng = Rng(ranks as u64);
    for kind in KINDS {
        let roots = if kind.has_root() { ranks } else { 1 };
        for algo in algorithms(kind) {
            if *algo == Algorithm::Direct {
                continue;
            }
            for (i, count) in counts.iter().enumerate() {
                let call = Call::new(kind, *count as u64)
                    .algo(*algo)
                    .of(DataType::F32, ReduceOp::Sum);
                both(&mut w, call.root((i % roots) as u32), &mut rng);
            }
        }
    }
}

#[test]
fn two_ranks_on_one_host() {
    matrix(Wire::Local, 2, &[0, 1, 7, 500]);
}

#[test]
fn three_ranks_on_one_host() {
    matrix(Wire::Local, 3, &[0, 1, 2, 131, 400]);
}

#[test]
fn five_ranks_on_one_host() {
    matrix(Wire::Local, 5, &[3, 4, 5, 211]);
}

#[test]
fn one_rank_alone() {
    matrix(Wire::Local, 1, &[0, 1, 77]);
}

#[test]
fn three_ranks_over_tcp() {
    matrix(Wire::Tcp, 3, &[1, 2, 97]);
}

#[test]
fn two_ranks_over_a_wire_that_loses() {
    matrix(Wire::Lossy(3, 11), 2, &[1, 130]);
}

#[test]
fn streams_reduce_in_the_order_of_the_ranks_where_the_setting_asks_for_it() {
    const N: usize = 5;
    let strict = CollectiveSettings {
        deterministic: true,
        ..settings()
    };
    let mut w = World::new(N, Wire::Local, &strict);
    let mut rng = Rng(8);
    let ordered = |kind, algo| is_strict(kind, algo) && algo != Algorithm::Direct;
    for kind in [K::Reduce, K::ReduceScatter, K::AllReduce] {
        for algo in algorithms(kind).iter().filter(|a| ordered(kind, **a)) {
            for count in [1, 4, 211] {
                let call = Call::new(kind, count as u64)
                    .algo(*algo)
                    .of(DataType::F32, ReduceOp::Sum)
                    .root(2);
                let got = both(&mut w, call, &mut rng);
                let len = blocks(kind, 0, 2, N).0 * count;
                let of = |rank| floats(rank, len, count as u64);
                let value = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("4 bytes"));
                let sums = (1..N).fold(of(0), |sums, rank| {
                    let add = |(s, x): (&[u8], &[u8])| (value(s) + value(x)).to_le_bytes();
                    let with = of(rank);
                    sums.chunks(4).zip(with.chunks(4)).flat_map(add).collect()
                });
                for (rank, got) in got.iter().enumerate() {
                    let first = match kind {
                        K::ReduceScatter => rank * count * 4,
                        _ => 0,
                    };
                    let wanted = &sums[first..first + got.len()];
                    assert!(
                        got == wanted,
                        "{kind:?}, {algo:?}, {count} elements, rank {rank}"
                    );
                }
            }
        }
    }
}

#[test]
fn rounding_on_the_wire_is_that_of_memory() {
    let mut w = World::new(3, Wire::Local, &settings());
    for algo in [Algorithm::Ring, Algorithm::Pairwise] {
        let call = Call::new(K::AllReduce, 301).algo(algo);
        let call = call.of(DataType::F32, ReduceOp::Sum);
        both(
            &mut w,
            call.wire(ringbell_nic_abi::WireType::Bf16),
            &mut Rng(5),
        );
    }
}

#[test]
fn operations_on_the_same_streams_follow_each_other() {
    let mut w = World::new(2, Wire::Local, &settings());
    let (mut kernels, mut tickets) = (Vec::new(), Vec::new());
    for r in 0..2 {
        let a = Ring::new(&w, r, RINGS, 6, 0);
        let b = Ring::new(&w, r, RINGS + 4096, 6, 0);
        let call = |count| {
            let c = Call::new(K::AllReduce, count).of(DataType::U32, ReduceOp::Sum);
            c.streamed().of_ring(&a).to_ring(&b)
        };
        let first = w.post(r, &call(33));
        tickets.push((first, w.post(r, &call(50))));
        let data = (0..83u32)
            .flat_map(|i| (i * (r as u32 + 1)).to_le_bytes())
            .collect();
        kernels.push(Kernel {
            push: Some((a, data, 0)),
            pop: Some((b, Vec::new())),
        });
    }
    let last: Vec<u32> = tickets.iter().map(|t| t.1).collect();
    for c in play(&mut w, &mut kernels, &last, &mut Rng(3)) {
        assert_eq!(c.status, Status::Ok);
    }
    let want: Vec<u8> = (0..83u32).flat_map(|i| (i * 3).to_le_bytes()).collect();
    for (r, k) in kernels.iter().enumerate() {
        assert_eq!(
            w.host(r).queue.poll(tickets[r].0).expect("ended").status,
            Status::Ok
        );
        assert_eq!(k.pop.as_ref().map(|p| &p.1), Some(&want));
    }
}

#[test]
fn a_user_program_may_use_streams_step_by_step() {
    let text = "ringbell program 1\ncollective all-reduce\nranks 2\nblock 2\norder ring\n\
                rank 0 scratch 2\n0: stream[1] -> net 1\n1: stream[1] -> scratch[1]\n2: net 1 + scratch[1] -> output[1], net 1\n3: net 1 -> output[0]\n\
                rank 1 scratch 2\n0: stream[1] -> scratch[0]\n1: stream[1] -> net 0\n2: net 0 + scratch[0] -> output[0], net 0\n3: net 0 -> output[1]\n";
    let programs = UserProgram::load(text, &Limits::default())
        .expect("right")
        .programs()
        .to_vec();
    let mut w = World::new(2, Wire::Local, &settings());
    for r in 0..2 {
        w.host(r)
            .nic
            .load_program(programs.clone())
            .expect("proved");
    }
    for count in [1, 2, 77, 300] {
        let call = Call::new(K::AllReduce, count).algo(Algorithm::User);
        both(
            &mut w,
            call.of(DataType::F32, ReduceOp::Sum),
            &mut Rng(count),
        );
    }
}

#[test]
fn ranks_that_do_not_all_stream_get_a_mismatch() {
    let mut w = World::new(2, Wire::Local, &settings());
    let a = Ring::new(&w, 0, RINGS, 6, 0);
    a.push(&w, &[1; 64]);
    let call = Call::new(K::AllReduce, 40)
        .of(DataType::F32, ReduceOp::Sum)
        .algo(Algorithm::Ring);
    let x = w.post(0, &call.streamed().of_ring(&a));
    let y = w.post(1, &call);
    for c in w.settle(&[(0, x), (1, y)]) {
        assert_eq!((c.status, c.detail), (Status::Mismatch, 1));
    }
    assert_eq!(a.get(&w, STATE_AT), Status::Mismatch as u64 | 1 << 32);
}

#[test]
fn a_slow_kernel_ends_the_operation_on_all_ranks_and_wakes_all_kernels() {
    for stuck in ["pushes too little", "does not pop"] {
        let mut w = World::new(3, Wire::Local, &settings());
        let mut rings = Vec::new();
        let mut tickets = Vec::new();
        for r in 0..3 {
            let a = Ring::new(&w, r, RINGS, 12, 0);
            let b = Ring::new(&w, r, RINGS + 65536, 6, 0);
            let call = Call::new(K::AllReduce, 500).of(DataType::F32, ReduceOp::Sum);
            // The others are patient.
            let limit = if r == 1 { 30_000 } else { 60_000_000 };
            tickets.push((
                r,
                w.post(r, &call.streamed().of_ring(&a).to_ring(&b).within(limit)),
            ));
            rings.push((a, b));
        }
        let end = w.now + 60_000_000_000;
        let mut done: Vec<Option<Completion>> = vec![None; 3];
        while done.iter().any(Option::is_none) {
            for (r, (a, b)) in rings.iter().enumerate() {
                let pushed = a.get(&w, ringbell_nic_abi::kernel_stream::HEAD_AT);
                let most = if r == 1 && stuck == "pushes too little" {
                    700
                } else {
                    2000
                };
                a.push(&w, &vec![0; most.min(most - pushed as usize).min(40)]);
                if r != 1 || stuck != "does not pop" {
                    b.pop(&w, 64);
                }
            }
            w.step();
            for (slot, (r, t)) in done.iter_mut().zip(&tickets) {
                *slot = slot.or_else(|| w.host(*r).queue.poll(*t));
            }
            assert!(w.now < end, "{stuck}: hung, {done:?}");
        }
        let done: Vec<_> = done.into_iter().flatten().collect();
        assert_eq!(done[1].status, Status::TimedOut, "{stuck}");
        for r in [0, 2] {
            assert_eq!(
                (done[r].status, done[r].detail),
                (Status::CommAborted, 1),
                "{stuck}"
            );
        }
        for (r, (a, b)) in rings.iter().enumerate() {
            for ring in [a, b] {
                let state = ring.get(&w, STATE_AT) & 0xff;
                assert_eq!(state, u64::from(done[r].status.code()), "{stuck}, rank {r}");
            }
            assert!(a.get(&w, TAIL_AT) > 0);
        }
    }
}

#[test]
fn a_failed_rank_ends_streamed_operations_of_the_others() {
    for wire in [Wire::Local, Wire::Tcp, Wire::Rdma, Wire::Iwarp] {
        let mut w = World::new(3, wire, &settings());
        let rings: Vec<_> = (0..3).map(|r| Ring::new(&w, r, RINGS, 6, 0)).collect();
        let call = Call::new(K::AllReduce, 5000).of(DataType::F32, ReduceOp::Sum);
        let tickets: Vec<_> = (0..3)
            .map(|r| {
                (
                    r,
                    w.post(
                        r,
                        &call
                            .streamed()
                            .of_ring(&rings[r])
                            .at(rings[r].word() - collective_support::nic::BASE.0, OUT),
                    ),
                )
            })
            .collect();
        for _ in 0..300 {
            for ring in &rings {
                ring.push(&w, &[1; 8]);
            }
            w.step();
        }
        w.hosts[1] = None;
        let end = w.now + 60_000_000_000;
        let mut done: [Option<Completion>; 2] = [None; 2];
        while done.iter().any(Option::is_none) {
            for r in [0, 2] {
                rings[r].push(&w, &[1; 8]);
            }
            w.step();
            for (slot, r) in done.iter_mut().zip([0usize, 2]) {
                *slot = slot.or_else(|| w.host(r).queue.poll(tickets[r].1));
            }
            assert!(w.now < end, "{wire:?}: hung, {done:?}");
        }
        for c in done.into_iter().flatten() {
            // Its NIC may still have said that it goes.
            let told = matches!(c.status, Status::PeerFailed | Status::CommAborted);
            assert!(told && c.detail == 1, "{wire:?}: {c:?}");
        }
        for r in [0, 2] {
            assert_ne!(rings[r].get(&w, STATE_AT), 0, "the kernel got a status");
        }
    }
}

#[test]
fn streams_where_a_side_has_several_blocks_are_refused() {
    let w = &mut World::new(2, Wire::Local, &settings());
    let a = Ring::new(w, 0, RINGS, 12, 0);
    let invalid = Status::InvalidArgument;
    let f32s = |k| Call::new(k, 4).of(DataType::F32, ReduceOp::Sum);
    let calls = [
        f32s(K::AllGather).streamed().to_ring(&a),
        f32s(K::ReduceScatter).streamed().of_ring(&a),
        f32s(K::Gather).streamed().algo(Algorithm::Tree).to_ring(&a),
        f32s(K::Gather).streamed().algo(Algorithm::Ring).to_ring(&a),
        f32s(K::AllToAll).streamed().of_ring(&a),
        // Not said to be streamed, one stream for both sides, and a path without windows.
        f32s(K::AllReduce).of_ring(&a),
        f32s(K::AllReduce).streamed().of_ring(&a).to_ring(&a),
        f32s(K::AllReduce)
            .streamed()
            .algo(Algorithm::Direct)
            .of_ring(&a),
    ];
    for call in calls {
        let t = w.post(0, &call);
        let c = w.settle(&[(0, t)])[0];
        assert_eq!(
            (c.status, c.detail),
            (invalid, call.spec.kind.code().into()),
            "{call:?}"
        );
    }
}

#[test]
fn a_nic_rests_while_a_kernel_pushes_and_does_not_pop() {
    for wire in [Wire::Local, Wire::Rdma] {
        let mut w = World::new(2, wire, &settings());
        let call = Call::new(K::AllReduce, 5_000).of(DataType::F32, ReduceOp::Sum);
        let mut kernels = Vec::new();
        for r in 0..2 {
            let (from, to) = (
                Ring::new(&w, r, RINGS, 8, 0),
                Ring::new(&w, r, RINGS + 4096, 6, 0),
            );
            let call = call.at(IN, OUT).streamed().of_ring(&from).to_ring(&to);
            let ticket = w.post(r, &call);
            kernels.push((from, to, ticket, floats(r, 5_000, 1), 0, Vec::new()));
        }
        // Until all rings are full.
        for _ in 0..2_000 {
            for (from, _, _, data, at, _) in &mut kernels {
                *at += from.push(&w, &data[*at..]);
            }
            w.step();
        }
        assert!(kernels.iter().all(|k| k.4 < k.3.len()), "{wire:?}");
        // A keep-alive may move something now and then.
        let still = (0..1_000).filter(|_| !w.step()).count();
        assert!(still > 500, "{wire:?}: {still} of 1000 steps were idle");
        // What it was told meanwhile is not lost.
        let end = w.now + 60_000_000_000;
        while kernels.iter().any(|k| k.5.len() < k.3.len()) {
            for (from, to, _, data, at, got) in &mut kernels {
                *at += from.push(&w, &data[*at..]);
                got.extend(to.pop(&w, usize::MAX));
            }
            w.step();
            assert!(w.now < end, "{wire:?}: hung");
        }
        let sums = kernels.iter().map(|k| &k.5).collect::<Vec<_>>();
        assert_eq!(sums[0], sums[1]);
        let of = |bytes: &[u8], i: usize| {
            f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("4 bytes"))
        };
        for i in 0..5_000 {
            let sum = of(&kernels[0].3, i) + of(&kernels[1].3, i);
            assert_eq!(of(sums[0], i).to_bits(), sum.to_bits());
        }
        let tickets: Vec<_> = kernels.iter().enumerate().map(|(r, k)| (r, k.2)).collect();
        let ends = w.settle(&tickets);
        assert!(ends.iter().all(|c| c.status == Status::Ok), "{ends:?}");
    }
}
