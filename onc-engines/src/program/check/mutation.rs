//! A program with one random change is refused, or computes the collective all the same.

use proptest::prelude::*;
use ringbell_nic_abi::{Algorithm, CollectiveKind};

use super::*;
use crate::program::{algorithms, generate_all, simulate, Chunks, Operand, Place, Step, Target};

/// A small number that decides one thing.
type Dice = (u8, u8, u8, u8, u8);

fn shapes() -> Vec<(CollectiveKind, Algorithm)> {
    let kinds = CollectiveKind::ALL.iter().copied();
    kinds
        .flat_map(|kind| algorithms(kind).iter().map(move |algo| (kind, *algo)))
        .collect()
}

/// Changes one thing in one program.
fn mutate(programs: &mut [Program], dice: Dice) {
    let (a, b, c, d, e) = dice;
    let n = programs.len() as u32;
    let victim = usize::from(a) % programs.len();
    let program = &mut programs[victim];
    if program.steps.is_empty() {
        return;
    }
    let at = usize::from(b) % program.steps.len();
    let value = u32::from(e);
    let steps = program.steps.len();
    let step = &mut program.steps[at];
    match c % 9 {
        0 => {
            program.steps.remove(at);
        }
        1 => program.steps.swap(at, usize::from(d) % steps),
        2 => {
            let again = step.clone();
            program.steps.insert(at, again);
        }
        3 => step.operands.reverse(),
        4 => drop_one(step, d),
        5 => program.scratch_chunks = program.scratch_chunks.saturating_sub(1),
        6 => {
            if let Some(o) = pick(&mut step.operands, d) {
                *o = change_operand(*o, value, n);
            }
        }
        7 => {
            if let Some(t) = pick(&mut step.results, d) {
                *t = change_target(*t, value, n);
            }
        }
        _ => step.chunks = value % 4,
    }
}

fn pick<T>(of: &mut [T], d: u8) -> Option<&mut T> {
    let len = of.len().max(1);
    of.get_mut(usize::from(d) % len)
}

fn drop_one(step: &mut Step, d: u8) {
    if d.is_multiple_of(2) {
        step.operands.pop();
    } else {
        step.results.pop();
    }
}

fn change_place(place: Place, value: u32) -> Place {
    let c = place.chunks();
    let moved = Chunks {
        first: value % 9,
        ..c
    };
    match (place, value % 3) {
        (Place::Input(_), 0) => Place::Output(c),
        (Place::Output(_), 0) => Place::Scratch(c),
        (Place::Scratch(_), 0) => Place::Output(c),
        (Place::Input(_), _) => Place::Input(moved),
        (Place::Output(_), _) => Place::Output(moved),
        (Place::Scratch(_), _) => Place::Scratch(moved),
    }
}

fn change_operand(operand: Operand, value: u32, n: u32) -> Operand {
    match operand {
        Operand::Net { channel, .. } if value.is_multiple_of(5) => Operand::Net {
            from: (value / 5) % n,
            channel: channel + 1,
        },
        Operand::Net { channel, .. } => Operand::Net {
            from: value % n,
            channel,
        },
        Operand::Local(place) => Operand::Local(change_place(place, value)),
        Operand::Peer { rank, place } => Operand::Peer {
            rank: (rank + value / 3) % n,
            place: change_place(place, value),
        },
        Operand::Stream => Operand::input(0),
    }
}

fn change_target(target: Target, value: u32, n: u32) -> Target {
    match target {
        Target::Net { channel, .. } => Target::Net {
            to: value % n,
            channel,
        },
        Target::Local(place) => Target::Local(change_place(place, value)),
        Target::Peer { rank, place } => Target::Peer {
            rank: (rank + value / 3) % n,
            place: change_place(place, value),
        },
        Target::Stream => Target::output(0),
    }
}

/// Each rank's destination after a run; every source is a bit of its own.
fn run(programs: &[Program], in_place: bool, seed: u64) -> Vec<Vec<Option<u64>>> {
    let count = 8u64;
    let sources: Vec<Vec<u64>> = programs
        .iter()
        .map(|p| {
            let len = u64::from(p.input_chunks / p.block_chunks) * count;
            (0..len).map(|i| 1 << (8 * p.rank) | i << 40).collect()
        })
        .collect();
    // Sums of bytes: a contribution that counts twice shows.
    let add = |a: &u64, b: &u64| a + (b & ((1 << 40) - 1));
    simulate(programs, count, &sources, in_place, add, seed)
        .expect("the checker passed it")
        .outputs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn is_refused_or_right(
        shape in prop::sample::select(shapes()),
        ranks in 1u32..=5,
        root in 0u32..5,
        dice: Dice,
        seed: u64,
    ) {
        let (kind, algo) = shape;
        let right = generate_all(kind, algo, ranks, root % ranks).unwrap();
        let mut mutant = right.clone();
        mutate(&mut mutant, dice);
        if let Ok(proof) = check(&mutant, &Limits::default()) {
            prop_assert_eq!(run(&mutant, false, seed), run(&right, false, 0));
            if !matches!(proof.in_place, InPlace::Unsafe(_)) {
                prop_assert_eq!(run(&mutant, true, seed), run(&right, true, 0));
            }
        }
    }
}
