//! Operations that are drawn behind those of a plan, so that the others keep their numbers.

use super::collective_support::Rng;
use super::failing::Fails;
use super::merging::Merge;
use super::plan::{Break, Dice, Op, Plan, Scene, Step, OPERAND};

/// Adds them to the steps of a plan.
pub(super) fn add(steps: &mut Vec<Step>, seed: u64, ranks: usize) {
    let mut dice = Dice(Rng(seed ^ 0xfa_1150));
    for _ in 0..2 {
        let scene = match dice.below(3) {
            0 => Scene::Fails(fails(&mut dice, ranks)),
            1 => Scene::Merges(merge(&mut dice, ranks)),
            _ => continue,
        };
        let (id, at) = (steps.len(), dice.below(steps.len() + 1));
        let op = Op::Scene(scene);
        steps.insert(at, Step { id, after: 0, op });
    }
}

/// In half of the plans a NIC that has ended or stopped comes back.
pub(super) fn come_back(mut plan: Plan) -> Plan {
    let mut dice = Dice(Rng(plan.seed ^ 0xc0_3eba));
    let ends = |s: &Step| matches!(s.op, Op::Break(Break::Ends(_) | Break::Stops(_)));
    let Some(broken) = plan.steps.iter().position(ends) else {
        return plan;
    };
    // Where any operation may fail nothing would be seen.
    if plan.may_lose() || dice.below(2) == 0 {
        return plan;
    }
    let at = broken + 1 + dice.below(plan.steps.len() - broken);
    let step = Step {
        id: plan.steps.len(),
        after: dice.of(&[0, 5, 50, 1000]),
        op: Op::Return(dice.below(2) == 0),
    };
    plan.steps.insert(at, step);
    plan
}

fn fails(dice: &mut Dice, ranks: usize) -> Fails {
    let (from, to) = dice.two(ranks);
    let len = dice.len(OPERAND);
    Fails {
        from,
        to,
        len: len as u32,
        after: dice.below(len),
        at_sender: dice.below(2) == 0,
        waits: dice.of(&[0, 10, 300]),
    }
}

fn merge(dice: &mut Dice, ranks: usize) -> Merge {
    // A rank alone is a communicator, too.
    let mut both = [vec![0], vec![1]];
    for rank in 2..ranks {
        if let Some(members) = both.get_mut(dice.below(3)) {
            members.push(rank);
        }
    }
    let all: usize = both.iter().map(Vec::len).sum();
    Merge {
        both,
        count: dice.len(OPERAND / 4) as u64,
        without: dice.below(all),
    }
}
