//! Every generator passes, and wrong programs are refused where they are wrong.

use ringbell_nic_abi::{Algorithm, CollectiveKind};

use super::*;
use crate::program::{algorithms, generate_all};

/// Every collective with every algorithm.
fn shapes() -> impl Iterator<Item = (CollectiveKind, Algorithm)> {
    let kinds = CollectiveKind::ALL.iter().copied();
    kinds.flat_map(|kind| algorithms(kind).iter().map(move |algo| (kind, *algo)))
}

fn roots(kind: CollectiveKind, ranks: u32) -> std::ops::Range<u32> {
    0..if kind.has_root() { ranks } else { 1 }
}

#[test]
fn every_generated_program_is_proved_for_1_to_9_ranks_and_every_root() {
    for (kind, algo) in shapes() {
        for ranks in 1..=9 {
            for root in roots(kind, ranks) {
                let programs = generate_all(kind, algo, ranks, root).unwrap();
                let proof = check(&programs, &Limits::default())
                    .unwrap_or_else(|e| panic!("{kind:?} {algo:?} {ranks} root {root}: {e}"));
                assert!(
                    !matches!(proof.in_place, InPlace::Unsafe(_)),
                    "{kind:?} {algo:?} {ranks} root {root}: {:?}",
                    proof.in_place
                );
                let claimed = programs.iter().map(|p| p.scratch_chunks).max();
                assert!(Some(proof.scratch_chunks) <= claimed);
            }
        }
    }
}

#[test]
fn values_that_wait_for_their_receivers_are_counted() {
    use Algorithm as A;
    use CollectiveKind as K;
    for (kind, algo, ranks, held) in [
        // Neighbours take in the order of sending; one place is enough.
        (K::AllReduce, A::Ring, 8, 1),
        (K::ReduceScatter, A::Ring, 8, 1),
        (K::AllToAll, A::Pairwise, 8, 1),
        (K::Broadcast, A::Chain, 8, 1),
        // All is sent before the first receive.
        (K::AllReduce, A::Pairwise, 8, 7),
        (K::ReduceScatter, A::Pairwise, 8, 7),
        (K::AllGather, A::Pairwise, 16, 15),
        (K::AllToAll, A::Linear, 16, 15),
        // Without payload nothing is held.
        (K::Barrier, A::RecursiveDoubling, 8, 1),
    ] {
        let programs = generate_all(kind, algo, ranks, 0).unwrap();
        let proof = check(&programs, &Limits::default()).unwrap();
        assert_eq!(proof.held, held, "{kind:?} {algo:?} {ranks}");
    }
}

#[test]
fn programs_of_large_communicators_pass() {
    use Algorithm as A;
    use CollectiveKind as K;
    for (kind, algo, ranks, root) in [
        (K::AllReduce, A::Ring, 64, 0),
        (K::AllReduce, A::Pairwise, 64, 0),
        (K::AllReduce, A::AllGatherReduce, 16, 0),
        (K::AllReduce, A::Direct, 64, 0),
        (K::AllGather, A::RecursiveDoubling, 64, 0),
        (K::Gather, A::Tree, 64, 37),
        (K::Gather, A::Tree, 16, 5),
        (K::Reduce, A::Ring, 64, 63),
        (K::Broadcast, A::RecursiveDoubling, 64, 21),
        (K::AllToAll, A::Pairwise, 64, 0),
        (K::Barrier, A::RecursiveDoubling, 64, 0),
    ] {
        let programs = generate_all(kind, algo, ranks, root).unwrap();
        if let Err(e) = check(&programs, &Limits::default()) {
            panic!("{kind:?} {algo:?} {ranks}: {e}");
        }
    }
}

#[test]
fn the_proof_counts_the_resources_of_programs() {
    let ring = generate_all(CollectiveKind::AllReduce, Algorithm::Ring, 4, 0).unwrap();
    let proof = check(&ring, &Limits::default()).unwrap();
    // 2 (n - 1) messages of one chunk from each rank (FpgaNIC Table 8), over eight columns.
    assert_eq!((proof.messages, proof.message_chunks), (24, 24));
    assert_eq!((proof.messages_per_rank, proof.rounds), (6, 7));
    assert_eq!((proof.scratch_chunks, proof.order), (4, Order::Ring));
    assert_eq!(proof.in_place, InPlace::Safe);
    // Between releases too: ranks of different builds compare it.
    assert_eq!(proof.hash, 0xfb71_5d93_d696_1369);
}

/// Planted faults: each is refused at its rank and step, in words that say what to do.
mod planted {
    use super::*;
    use crate::program::{Chunks, Operand, Place, Step, Target};
    use Algorithm as A;
    use CollectiveKind as K;

    fn refused(programs: &[Program]) -> String {
        check(programs, &Limits::default()).unwrap_err().to_string()
    }

    fn ring() -> Vec<Program> {
        generate_all(K::AllReduce, A::Ring, 4, 0).unwrap()
    }

    #[test]
    fn swapped_peer() {
        let mut p = ring();
        p[1].steps[2].results[1] = Target::to(0);
        assert_eq!(
            refused(&p),
            "rank 1, step 2: sends to rank 0 (channel 0), which has no receive left for it: add one there, or send to another rank"
        );
    }

    #[test]
    fn missing_receive() {
        let mut p = ring();
        p[2].steps.pop();
        assert_eq!(
            refused(&p),
            "rank 1, step 5: sends to rank 2 (channel 0), which has no receive left for it: add one there, or send to another rank"
        );
    }

    #[test]
    fn missing_send() {
        let mut p = ring();
        p[3].steps[5].results.pop();
        assert_eq!(
            refused(&p),
            "rank 0, step 6: receives from rank 3 (channel 0), which has no send left for it: add one there, or receive from another rank"
        );
    }

    #[test]
    fn message_of_another_length() {
        let mut p = generate_all(K::Reduce, A::Flat, 3, 0).unwrap();
        p[2].steps[0] = Step {
            chunks: 2,
            operands: vec![Operand::input(Chunks { first: 0, count: 2 })],
            ..p[2].steps[0].clone()
        };
        assert_eq!(
            refused(&p),
            "rank 0, step 1: receives 3 chunks that start as chunk 0 of a block, but the message that comes (step 0 of rank 2, channel 0) has 2 chunks that start as chunk 0 of a block"
        );
    }

    #[test]
    fn reduced_twice() {
        // Up a chain, where rank 1 adds what it has added already.
        let mut p = generate_all(K::Reduce, A::Tree, 2, 1).unwrap();
        let again = Step {
            round: 2,
            operands: vec![Operand::output(0), Operand::input(0)],
            results: vec![Target::output(0)],
            chunks: 1,
        };
        p[1].steps.push(again);
        assert_eq!(
            refused(&p),
            "rank 1, step 1: reduces chunk 0 of 2 ranks with rank 1's chunk 0: rank 1's contribution would count twice"
        );
    }

    #[test]
    fn missing_contribution() {
        let mut p = generate_all(K::Reduce, A::Tree, 3, 0).unwrap();
        // The root drops what its second child sends.
        p[0].steps[1].operands = vec![Operand::scratch(0)];
        let drop = Step {
            round: 2,
            operands: vec![Operand::from(2)],
            results: vec![Target::scratch(0)],
            chunks: 1,
        };
        p[0].steps.push(drop);
        assert_eq!(
            refused(&p),
            "rank 0, step 1: output[0] ends as chunk 0 of 2 ranks, the collective wants chunk 0 of all 3 ranks"
        );
    }

    #[test]
    fn wrong_order() {
        let mut p = ring();
        // Right sum, but own + arrived instead of arrived + own.
        p[2].steps[2].operands.swap(0, 1);
        assert_eq!(
            refused(&p),
            "rank 2, step 2: reduces rank 2's chunk 0 with chunk 0 of the 2 ranks 0 to 1 in ring order (in this order), but in the order of the ring chunk 0 starts with rank 0; or claim another order"
        );
    }

    #[test]
    fn missing_contribution_of_a_ring_is_found_where_the_next_adds() {
        let mut p = ring();
        p[1].steps[1].operands.pop();
        assert_eq!(
            refused(&p),
            "rank 2, step 2: reduces rank 0's chunk 0 with rank 2's chunk 0 (in this order), but in the order of the ring rank 1 comes next; or claim another order"
        );
    }

    #[test]
    fn cyclic_wait() {
        let mut p = generate_all(K::AllGather, A::Pairwise, 3, 0).unwrap();
        // Every rank receives before it sends.
        for program in &mut p {
            program.steps[1..].rotate_left(2);
        }
        assert_eq!(
            refused(&p),
            "rank 0, step 1: waits for ever: rank 0 in step 1 for rank 2, rank 2 in step 1 for rank 1, rank 1 in step 1 for rank 0"
        );
    }

    #[test]
    fn scratch_overlap() {
        let mut p = ring();
        // Both partial results in one slot, which the first may still be sent from. (Slots of other
        // chunks of a block may be shorter, so the block is cut down to one chunk for this.)
        for program in &mut p {
            for step in &mut program.steps {
                for target in &mut step.results {
                    if let Target::Local(Place::Scratch(c)) = target {
                        c.first = 0;
                    }
                }
            }
        }
        assert_eq!(
            refused(&p),
            "rank 0, step 1: input[3] and scratch[0] are different parts of a block, which may differ in length: use chunks whose numbers are equal modulo 4"
        );
        let mut p = generate_all(K::ReduceScatter, A::Ring, 4, 0).unwrap();
        p[1].steps[2].results[0] = Target::scratch(0);
        assert_eq!(
            refused(&p),
            "rank 1, step 2: overwrites chunk 0 of scratch[0], while the message to rank 2 that step 1 sends from it may not have been taken: use another slot, or receive something first that tells that it was"
        );
    }

    /// Rank 0 sends a slot's value and overwrites the slot when it has heard of rank 1.
    fn overwriting_after_a_message(of_rank_1: Vec<Step>) -> Vec<Program> {
        let mut p = generate_all(K::AllGather, A::Pairwise, 2, 0).unwrap();
        for program in &mut p {
            program.algo = A::User;
            program.scratch_chunks = 1;
        }
        let mut steps = vec![
            one(
                Operand::input(0),
                vec![Target::output(0), Target::scratch(0)],
            ),
            one(Operand::scratch(0), vec![Target::to(1)]),
        ];
        let heard = of_rank_1.iter().filter(|s| s.messages() > 0).count();
        for i in 0..heard {
            let result = if i + 1 == heard {
                Target::output(1)
            } else {
                Target::scratch(0)
            };
            steps.push(one(Operand::from(1), vec![result]));
        }
        if heard == 1 {
            steps[2].results.push(Target::scratch(0));
        }
        p[0].steps = steps;
        p[1].steps = of_rank_1;
        p
    }

    fn one(operand: Operand, results: Vec<Target>) -> Step {
        Step {
            round: 0,
            operands: vec![operand],
            results,
            chunks: 1,
        }
    }

    #[test]
    fn overwrite_just_before_the_step_that_takes_the_message() {
        // Rank 1 sends in the step before the one that takes: it was not there yet.
        let p = overwriting_after_a_message(vec![
            one(Operand::input(0), vec![Target::output(1), Target::to(0)]),
            one(Operand::from(0), vec![Target::output(0)]),
        ]);
        assert_eq!(
            refused(&p),
            "rank 0, step 2: overwrites chunk 0 of scratch[0], while the message to rank 1 that step 1 sends from it may not have been taken: use another slot, or receive something first that tells that it was"
        );
        // The message that it sends in the very step that takes shows that it was taken.
        let p = overwriting_after_a_message(vec![
            one(Operand::from(0), vec![Target::output(0), Target::to(0)]),
            one(Operand::input(0), vec![Target::output(1), Target::to(0)]),
        ]);
        assert!(check(&p, &Limits::default()).is_ok(), "{}", refused(&p));
    }

    #[test]
    fn wrong_root() {
        let mut p = generate_all(K::Broadcast, A::Chain, 3, 1).unwrap();
        p[2].root = 2;
        assert_eq!(
            refused(&p),
            "rank 2: its root is 2, rank 0's is 1: all ranks must run the same collective"
        );
        let mut p = generate_all(K::Scatter, A::Flat, 3, 1).unwrap();
        p[1].steps[1].operands = vec![Operand::input(1)];
        assert_eq!(
            refused(&p),
            "rank 2, step 0: output[0] ends as rank 1's chunk 1, the collective wants rank 1's chunk 2"
        );
    }

    #[test]
    fn read_before_write() {
        let mut p = ring();
        p[0].steps[4].operands = vec![Operand::from(3), Operand::scratch(0)];
        assert_eq!(
            refused(&p),
            "rank 0, step 4: reads scratch[0], chunk 0 of which nothing was written to"
        );
    }

    #[test]
    fn out_of_bounds() {
        let mut p = ring();
        p[3].steps[1].operands[1] = Operand::input(4);
        assert_eq!(
            refused(&p),
            "rank 3, step 1: input[4] is out of bounds: there are 4 chunks"
        );
        p[3].steps[1].operands[1] = Operand::input(Chunks {
            first: u32::MAX,
            count: 2,
        });
        assert_eq!(
            refused(&p),
            "rank 3, step 1: input[4294967295..4294967297] is out of bounds: there are 4 chunks"
        );
    }

    #[test]
    fn too_many_operands() {
        let mut p = ring();
        p[0].steps[1].operands.push(Operand::input(3));
        assert_eq!(
            refused(&p),
            "rank 0, step 1: operands: 3, the limit is 2: use fewer, or raise the limit"
        );
    }

    #[test]
    fn source_written_or_value_without_home_or_step_without_result() {
        let mut p = ring();
        p[0].steps[1].results[0] = Target::Local(Place::Input(Chunks::one(3)));
        assert_eq!(
            refused(&p),
            "rank 0, step 1: input[3] would be written: the source is only read"
        );
        let mut p = ring();
        p[0].steps[1].results.remove(0);
        assert_eq!(
            refused(&p),
            "rank 0, step 1: sends a value that lies in no memory until it was taken: store it too, in a local result"
        );
        let mut p = ring();
        p[0].steps[6].results.clear();
        assert_eq!(
            refused(&p),
            "rank 0, step 6: 1 operands, 0 results, 1 chunks: a step that moves data has at least one of each"
        );
    }

    #[test]
    fn message_to_itself_or_to_no_rank() {
        let mut p = ring();
        p[1].steps[0].results[0] = Target::to(1);
        assert_eq!(
            refused(&p),
            "rank 1, step 0: names itself as a peer: use Local"
        );
        p[1].steps[0].results[0] = Target::to(4);
        assert_eq!(
            refused(&p),
            "rank 1, step 0: rank 4 does not exist: there are 4"
        );
    }

    #[test]
    fn race_between_ranks_of_one_host() {
        let mut p = generate_all(K::AllReduce, A::Direct, 2, 0).unwrap();
        p[0].steps[0].results[1] = Target::Peer {
            rank: 1,
            place: Place::Output(Chunks::one(0)),
        };
        p[1].steps[0].operands = vec![Operand::input(0)];
        p[1].steps[0].results = vec![Target::output(0)];
        assert_eq!(
            refused(&p),
            "rank 1, step 0: touches chunk 0 of output[0] while rank 0 does, and one of them writes: nothing orders them"
        );
        let mut p = generate_all(K::AllReduce, A::Direct, 2, 0).unwrap();
        p[0].steps[0].results[1] = Target::to(1);
        assert_eq!(
            refused(&p),
            "rank 0, step 0: uses the network in a program with memory of peers (DIRECT): use one or the other"
        );
    }

    #[test]
    fn shifted_overlap_within_a_step() {
        let mut p = generate_all(K::AllReduce, A::Direct, 1, 0).unwrap();
        p[0].algo = A::User;
        p[0].scratch_chunks = 3;
        let run = |first, count| Chunks { first, count };
        p[0].steps = vec![
            Step {
                round: 0,
                operands: vec![Operand::input(0)],
                results: vec![Target::scratch(0), Target::scratch(1)],
                chunks: 1,
            },
            Step {
                round: 1,
                operands: vec![Operand::scratch(run(0, 2))],
                results: vec![Target::scratch(run(1, 2))],
                chunks: 2,
            },
        ];
        assert_eq!(
            refused(&p),
            "rank 0, step 1: scratch[0..2] and scratch[1..3] overlap: places of one step are the same or apart"
        );
    }

    #[test]
    fn a_barrier_that_a_rank_leaves_early() {
        let mut p = generate_all(K::Barrier, A::RecursiveDoubling, 4, 0).unwrap();
        for program in &mut p {
            program.steps.truncate(2);
        }
        assert_eq!(
            refused(&p),
            "rank 0: may leave the barrier before rank 1 has come: no chain of messages leads from there"
        );
    }

    #[test]
    fn messages_taken_out_of_order_need_room() {
        let mut p = generate_all(K::Scatter, A::Flat, 2, 0).unwrap();
        // A second message, on another channel, that rank 1 takes first.
        p[0].algo = A::User;
        p[1].algo = A::User;
        let send = |channel| Step {
            round: 0,
            operands: vec![Operand::input(1)],
            results: vec![Target::Net { to: 1, channel }],
            chunks: 1,
        };
        let take = |channel| Step {
            round: 1,
            operands: vec![Operand::Net { from: 0, channel }],
            results: vec![Target::output(0)],
            chunks: 1,
        };
        p[0].steps.truncate(1);
        p[0].steps.extend([send(0), send(1)]);
        p[1].steps = vec![take(1), take(0)];
        assert_eq!(
            refused(&p),
            "rank 1, step 0: takes a message of rank 0 before 1 that were sent earlier, and a receiver can put 0 aside: receive in the order of sending, or raise the limit"
        );
        let limits = Limits {
            put_aside: 1,
            ..Limits::default()
        };
        assert!(check(&p, &limits).is_ok());
    }

    #[test]
    fn in_place_forms_are_judged_apart() {
        // Reduces to the destination before the root's own chunk was read: right only out of place.
        let mut p = generate_all(K::Reduce, A::Tree, 2, 0).unwrap();
        p[0].scratch_chunks = 0;
        p[0].steps = vec![
            Step {
                round: 1,
                operands: vec![Operand::from(1)],
                results: vec![Target::output(0)],
                chunks: 1,
            },
            Step {
                round: 2,
                operands: vec![Operand::output(0), Operand::input(0)],
                results: vec![Target::output(0)],
                chunks: 1,
            },
        ];
        let proof = check(&p, &Limits::default()).unwrap();
        let InPlace::Unsafe(error) = proof.in_place else {
            panic!("{:?}", proof.in_place);
        };
        assert_eq!(
            error.to_string(),
            "rank 0, step 1: reduces rank 1's chunk 0 with rank 1's chunk 0: rank 1's contribution would count twice"
        );
    }

    #[test]
    fn headers_that_do_not_fit() {
        let mut p = ring();
        p[0].input_chunks = 5;
        assert_eq!(
            refused(&p),
            "rank 0: its source has 5 chunks, the collective wants 4 (4 a block)"
        );
        let mut p = ring();
        p.pop();
        assert_eq!(
            refused(&p),
            "rank 0: 3 programs for 4 ranks: give one for each rank, in order"
        );
        let mut p = ring();
        p.iter_mut().for_each(|p| p.order = Order::None);
        assert_eq!(
            refused(&p),
            "rank 0: order None does not fit: the collective reduces: claim Ring, Rank or Other"
        );
        assert_eq!(
            refused(&[]),
            "rank 0: 0 programs for 0 ranks: give one for each rank, in order"
        );
    }

    #[test]
    fn features_that_an_executor_lacks() {
        let limits = Limits {
            peers: false,
            streams: false,
            ..Limits::default()
        };
        let refused = |p: &[Program]| check(p, &limits).unwrap_err().to_string();
        let direct = generate_all(K::AllGather, A::Direct, 2, 0).unwrap();
        assert_eq!(
            refused(&direct),
            "rank 0: uses memory of peers, which this executor does not run: use the network and this rank's memory"
        );
        // A kernel's stream instead of the destination: right, but not for this executor.
        let mut p = generate_all(K::Broadcast, A::Chain, 2, 0).unwrap();
        p[1].steps[0].results[0] = Target::Stream;
        assert!(check(&p, &Limits::default()).is_ok());
        assert_eq!(
            refused(&p),
            "rank 1, step 0: uses a kernel's stream, which this executor does not run: use the network and this rank's memory"
        );
    }

    #[test]
    fn a_stream_is_used_once_and_to_its_end() {
        let mut p = generate_all(K::Gather, A::Flat, 2, 0).unwrap();
        p[0].steps[1].results[0] = Target::Stream;
        assert_eq!(
            refused(&p),
            "rank 0: output[0] ends as rank 1's chunk 0, the collective wants rank 0's chunk 0"
        );
        // In the order of the destination: rank 0's block, then rank 1's.
        p[0].steps[0].results[0] = Target::Stream;
        assert!(check(&p, &Limits::default()).is_ok());
        p[0].steps.swap(0, 1);
        assert_eq!(
            refused(&p),
            "rank 0: output[0] ends as rank 1's chunk 0, the collective wants rank 0's chunk 0"
        );
        let again = p[0].steps[1].clone();
        p[0].steps.push(again);
        assert_eq!(
            refused(&p),
            "rank 0, step 2: the kernel's stream has 2 chunks, and the steps use 3"
        );
    }

    #[test]
    fn a_reduction_where_nothing_is_reduced() {
        let mut p = generate_all(K::AllGather, A::Ring, 2, 0).unwrap();
        p[0].steps[1].operands.push(Operand::input(0));
        assert_eq!(
            refused(&p),
            "rank 0, step 1: reduces, but the collective moves data only"
        );
    }
}
