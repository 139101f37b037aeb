//! One seed gives one trace of packets: the frames of lossy collectives, and of ranks that end,
//! byte for byte in two runs.

use crate::collective_faults::{all, small};
use crate::collective_support::{Call, Trace, Wire, World};

use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp};

const RANKS: usize = 4;

/// Collectives of four ranks, of which one ends before the last, and of three ranks of another
/// communicator. `between` is called after each.
fn run(wire: Wire, mut between: impl FnMut()) -> Vec<Vec<u8>> {
    let (mut w, traces) = World::traced(RANKS, wire, 16 << 20);
    let members: Vec<usize> = (0..RANKS).collect();
    w.comms = w.begin_communicator(7, &members, &small());
    let others = w.begin_communicator(8, &[0, 2, 3], &small());
    for (round, algo) in [
        Algorithm::Ring,
        Algorithm::RecursiveDoubling,
        Algorithm::Auto,
    ]
    .into_iter()
    .enumerate()
    {
        let call = Call::new(K::AllReduce, 1_000 + 777 * round as u64)
            .of(DataType::F32, ReduceOp::Sum)
            .algo(algo)
            .within(400_000);
        all(&mut w, &[call; RANKS]);
        let gather = Call::new(K::AllGather, 300)
            .of(DataType::U32, ReduceOp::Sum)
            .within(400_000);
        all(&mut w, &[gather; RANKS]);
        between();
    }
    // Its peers notice, and abort what they had begun with it.
    w.hosts[1] = None;
    let call = Call::new(K::AllReduce, 5_000)
        .of(DataType::F32, ReduceOp::Sum)
        .within(100_000);
    let rest = [0, 2, 3];
    let tickets = rest.map(|r| (r, w.post(r, &call)));
    w.settle(&tickets);
    between();
    // Those that are left go on in a communicator of their own.
    for (r, comm) in rest.into_iter().zip(others) {
        w.comms[r] = comm;
    }
    let tickets = rest.map(|r| (r, w.post(r, &call)));
    w.settle(&tickets);
    drop(w);
    traces.iter().map(Trace::bytes).collect()
}

/// Both runs carried the same, and at least so many bytes.
fn same(wire: Wire, first: &[Vec<u8>], second: &[Vec<u8>]) {
    for (rank, (a, b)) in first.iter().zip(second).enumerate() {
        let at = a.iter().zip(b).position(|(a, b)| a != b);
        assert!(
            a == b,
            "{wire:?}, rank {rank}: {} and {} bytes, which differ at {at:?}",
            a.len(),
            b.len()
        );
        assert!(a.len() > 2_000, "{wire:?}, rank {rank}: {} bytes", a.len());
    }
}

#[test]
fn one_seed_gives_one_trace() {
    for seed in [1, 2, 3] {
        for wire in [
            Wire::Tcp,
            Wire::Lossy(4, seed),
            Wire::Probed(3, seed),
            Wire::Rdma,
            Wire::LossyRdma(4, seed),
            Wire::Udp,
            Wire::LossyUdp(1, seed),
        ] {
            let first = run(wire, || {});
            same(wire, &first, &run(wire, || {}));
        }
    }
}

#[test]
fn another_seed_gives_another_trace() {
    let [a, b] = [1, 2].map(|seed| run(Wire::LossyRdma(4, seed), || {}));
    assert!(a != b);
}

#[test]
fn worlds_of_one_process_are_independent() {
    let wire = Wire::LossyRdma(4, 9);
    let alone = run(wire, || {});
    // Another world, with other seeds and shapes, lives and ends between the operations of the
    // first.
    let beside = run(wire, || {
        run(Wire::Lossy(4, 77), || {});
    });
    same(wire, &alone, &beside);
}
