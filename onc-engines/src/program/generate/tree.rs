//! Binary trees: the children of rank v are 2 v + 1 and 2 v + 2, counted from the root.

use super::Builder;
use crate::program::{Operand, Target};

/// The children of the rank that is `v` after the root, counted likewise.
pub(super) fn children(v: u32, n: u32) -> (Option<u32>, Option<u32>) {
    let child = |c: u32| (c < n).then_some(c);
    (child(2 * v + 1), child(2 * v + 2))
}

/// Round in which the value of `v` is whole, when reduction starts in round `start`: after its
/// deeper child's.
fn whole(v: u32, n: u32, start: u32) -> u32 {
    match children(v, n) {
        (Some(a), Some(b)) => (whole(a, n, start) + 1).max(whole(b, n, start) + 1) + 1,
        (Some(a), None) => whole(a, n, start) + 1,
        _ => start,
    }
}

/// Adds the children's messages to the own chunk 0, and sends the sum to the parent; the root
/// stores it in its destination. Partial sums lie in slot 0 of the NIC memory. Returns the next
/// round.
///
/// With `fan_out` the root sends the result to its first child at once.
pub(super) fn reduce_up(b: &mut Builder, start: u32, fan_out: bool) -> u32 {
    let (v, n) = (b.relative(), b.n());
    let (first, second) = children(v, n);
    let round = whole(v, n, start);
    let result = |b: &Builder| {
        if v > 0 {
            let parent = b.absolute((v - 1) / 2);
            vec![Target::scratch(0), Target::to(parent)]
        } else {
            let mut to = vec![Target::output(0)];
            to.extend(first.filter(|_| fan_out).map(|c| Target::to(b.absolute(c))));
            to
        }
    };
    match (first, second) {
        (None, _) if v == 0 => b.step(start, [Operand::input(0)], [Target::output(0)]),
        (None, _) => {
            let parent = b.absolute((v - 1) / 2);
            b.step(start, [Operand::input(0)], [Target::to(parent)]);
        }
        (Some(a), None) => {
            let operands = vec![Operand::from(b.absolute(a)), Operand::input(0)];
            let results = result(b);
            b.push(round, operands, results, 1);
        }
        (Some(a), Some(c)) => {
            let (a, c) = (b.absolute(a), b.absolute(c));
            b.step(
                round - 1,
                [Operand::from(a), Operand::input(0)],
                [Target::scratch(0)],
            );
            let results = result(b);
            b.push(
                round,
                vec![Operand::from(c), Operand::scratch(0)],
                results,
                1,
            );
        }
    }
    whole(0, n, start) + 1
}

/// Passes the root's result down to every destination, after [`reduce_up`] with `fan_out`.
pub(super) fn broadcast_down(b: &mut Builder, start: u32) {
    let (v, n) = (b.relative(), b.n());
    let (first, second) = children(v, n);
    let depth = (v + 1).ilog2();
    let round = start + 2 * depth;
    if v > 0 {
        let mut results = vec![Target::output(0)];
        results.extend(first.map(|c| Target::to(b.absolute(c))));
        let parent = b.absolute((v - 1) / 2);
        b.push(round, vec![Operand::from(parent)], results, 1);
    }
    if let Some(c) = second {
        let c = b.absolute(c);
        b.step(round + 1, [Operand::output(0)], [Target::to(c)]);
    }
}
