//! Broadcast and scatter over the network.

use super::Builder;
use crate::program::{Operand, Program, Target};

/// Buffers of a broadcast.
fn buffers(b: Builder) -> Builder {
    let input = u32::from(b.is_root());
    b.buffers(1, input, 1)
}

/// The root sends to every rank (ACCL+ Table 2: one-to-all).
pub(super) fn flat(b: Builder) -> Program {
    let mut b = buffers(b);
    let (n, root) = (b.n(), b.root());
    if b.is_root() {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        for k in 1..n {
            let to = b.after(k);
            b.step(k - 1, [Operand::input(0)], [Target::to(to)]);
        }
    } else {
        let round = b.relative();
        b.step(round, [Operand::from(root)], [Target::output(0)]);
    }
    b.finish(0)
}

/// The number of ranks that have it doubles each round (ACCL+ Table 2: recursive doubling; a
/// binomial tree).
pub(super) fn recursive_doubling(b: Builder) -> Program {
    let mut b = buffers(b);
    let (n, v) = (b.n(), b.relative());
    // v gets it in the round of its highest bit, and passes it on in every later one.
    let (mut bit, mut round) = (1, 0);
    if v == 0 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
    } else {
        let high = v.ilog2();
        let parent = b.absolute(v - (1 << high));
        b.step(high + 1, [Operand::from(parent)], [Target::output(0)]);
        (bit, round) = (2 << high, high + 1);
    }
    while v + bit < n {
        let source = if v == 0 {
            Operand::input(0)
        } else {
            Operand::output(0)
        };
        let child = b.absolute(v + bit);
        b.step(round, [source], [Target::to(child)]);
        (bit, round) = (bit * 2, round + 1);
    }
    b.finish(0)
}

/// Each rank passes it to the next; segments follow each other down the chain.
pub(super) fn chain(b: Builder) -> Program {
    let mut b = buffers(b);
    let (n, v) = (b.n(), b.relative());
    let operand = if v == 0 {
        Operand::input(0)
    } else {
        Operand::from(b.before(1))
    };
    let mut results = vec![Target::output(0)];
    if v + 1 < n {
        results.push(Target::to(b.after(1)));
    }
    b.push(v, vec![operand], results, 1);
    b.finish(0)
}

/// Scatter: the root sends each rank its block.
pub(super) fn scatter_flat(b: Builder) -> Program {
    let (n, root) = (b.n(), b.root());
    let input = if b.is_root() { n } else { 0 };
    let mut b = b.buffers(1, input, 1);
    if b.is_root() {
        b.step(0, [Operand::input(root)], [Target::output(0)]);
        for k in 1..n {
            let to = b.after(k);
            b.step(k - 1, [Operand::input(to)], [Target::to(to)]);
        }
    } else {
        let round = b.relative();
        b.step(round, [Operand::from(root)], [Target::output(0)]);
    }
    b.finish(0)
}
