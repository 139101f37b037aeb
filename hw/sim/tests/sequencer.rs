//! A ring of `sequencer.sv` against `onc_engines::program`: the steps are those of the Rust
//! programs, and all ranks get the bits of their simulation.

mod ring;

use crate::programs::{Job, ALL_REDUCE, OPS, TYPES};
use ring::{start, state, Link, Ring, Times, CARD, DEADLINE};
use ringbell_gtlb::testing::Rng;
use ringbell_hw_sim::stream::BEAT;
use ringbell_nic_abi::{Algorithm, CollectiveKind, DataType, ReduceOp};

#[test]
fn programs_of_rings_give_their_bits_under_any_timing() {
    use Algorithm as A;
    use CollectiveKind as K;
    let kinds = [
        ALL_REDUCE,
        (K::ReduceScatter, A::Ring),
        (K::AllGather, A::Ring),
        (K::Broadcast, A::Chain),
        (K::Gather, A::Ring),
    ];
    for n in 0..60usize {
        let mut rng = Rng::new(n as u64);
        let ranks = 1 + rng.below(6) as u32;
        let times = Times {
            gpu: rng.below(40),
            card: 1 + rng.below(20),
            link: 1 + rng.below(60),
            stalls: n % 3 != 0,
        };
        let mut ring = Ring::new(ranks as usize, times, n as u64);
        // A second collective follows on the same NICs.
        for round in 0..2 {
            let count = [0, 1, 7, 16, 100, 1_000][rng.below(6) as usize] + rng.below(40);
            let (dtype, op) = (TYPES[n % 4], OPS[n / 4 % 3]);
            let mut job = Job::new(&mut rng, kinds[(n + round) % 5], ranks, count, dtype, op);
            start(std::slice::from_mut(&mut job), &mut ring);
            assert_eq!(ring.run(), vec![0; ranks as usize]);
            ring.compare(&job);
            // The state table has come to its end.
            for (nic, p) in ring.nics.iter().zip(&job.programs) {
                let steps = p.steps.len() as u64;
                assert_eq!(state(&nic.rtl).0[2..], [steps; 2]);
            }
        }
    }
}

#[test]
fn inputs_and_outputs_overlap_as_in_table_8() {
    let mut ring = Ring::new(4, CARD, 3);
    let mut job = Job::new(
        &mut Rng::new(4),
        ALL_REDUCE,
        4,
        256 << 10,
        TYPES[0],
        ReduceOp::Sum,
    );
    start(std::slice::from_mut(&mut job), &mut ring);
    let half = (1 << 20) / 4 / BEAT as u64 / 2;
    let limit = ring.now + 100_000;
    while ring.nics.iter().any(|n| n.status.is_none()) {
        ring.cycle();
        assert!(ring.now < limit, "no report");
        for nic in &mut ring.nics {
            let (steps, beats) = state(&nic.rtl);
            let at = (steps[0], steps[2]);
            if beats[0] == half && !nic.columns.contains(&at) {
                nic.columns.push(at);
            }
        }
    }
    // In each column the value of the column before leaves; the first has no message.
    for nic in &ring.nics {
        assert_eq!(
            nic.columns,
            [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5)]
        );
    }
}

#[test]
fn faults_end_a_collective_with_a_status_and_a_reset_mends_it() {
    let times = Times {
        gpu: 5,
        card: 3,
        link: 8,
        stalls: true,
    };
    for n in 0..20u64 {
        let mut ring = Ring::new(3, times, n);
        let mut rng = Rng::new(n);
        let mut job = Job::new(&mut rng, ALL_REDUCE, 3, 2_000, TYPES[0], ReduceOp::Sum);
        start(std::slice::from_mut(&mut job), &mut ring);
        let stop = rng.below(200);
        for _ in 0..stop {
            ring.cycle();
        }
        let finished = |ring: &Ring| ring.nics.iter().all(|n| n.status == Some(0));
        assert!(!finished(&ring));
        match n % 5 {
            // Messages of another length.
            0 => {
                ring.until(|r| !r.links[1].metas.is_empty());
                ring.links[1].metas[0].1 += 1;
                assert_eq!(ring.run()[1], 2);
            }
            // A message that ends early.
            1 => {
                ring.until(|r| !r.links[2].beats.is_empty());
                let beat = &mut ring.links[2].beats[0].1;
                beat.last = !beat.last;
                assert_eq!(ring.run()[2], 2);
            }
            // A silent neighbour.
            2 => {
                let start = ring.now;
                while ring.nics[0].status.is_none() {
                    ring.links[0] = Link::default();
                    ring.cycle();
                    assert!(ring.now - start < 2 * DEADLINE, "no report");
                }
                assert_eq!(ring.nics[0].status, Some(1));
            }
            // An address of the GPU.
            3 => {
                ring.nics[2].rtl.fault_i(1);
                ring.until(|r| r.nics[2].status.is_some());
                assert_eq!(ring.nics[2].status, Some(4));
            }
            // A type that is not there, or a reset in between.
            _ if n % 10 == 4 => {
                ring.reset();
                let mut bad = Job::new(&mut rng, ALL_REDUCE, 3, 500, TYPES[0], ReduceOp::Sum);
                bad.dtype.0 = DataType::F64;
                start(std::slice::from_mut(&mut bad), &mut ring);
                assert!(ring.run().contains(&3));
            }
            _ => {}
        }
        let broken = ring.nics.iter().any(|n| n.status.is_some_and(|s| s != 0));
        for nic in &mut ring.nics {
            nic.rtl.eval();
            if nic.status.is_some_and(|s| s != 0) {
                assert_eq!(nic.rtl.start_ready_o(), 0);
            }
        }
        assert!(broken || n % 10 == 9);
        ring.reset();
        let mut again = Job::new(&mut rng, ALL_REDUCE, 3, 300, TYPES[0], ReduceOp::Sum);
        start(std::slice::from_mut(&mut again), &mut ring);
        assert_eq!(ring.run(), [0; 3]);
        ring.compare(&again);
    }
}
