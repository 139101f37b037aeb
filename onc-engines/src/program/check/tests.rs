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
