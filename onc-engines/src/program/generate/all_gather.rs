//! All-gather over the network.

use super::blocks::all_gather_blocks;
use super::Builder;
use crate::program::{Operand, Place, Program, Target};

/// Each block goes round the ring: n - 1 hops between neighbours, and the fewest bytes.
pub(super) fn ring(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(1, 1, n);
    let p = b.rank();
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    let (next, previous) = (b.after(1), b.before(1));
    b.step(
        0,
        [Operand::input(0)],
        [Target::output(p), Target::to(next)],
    );
    for t in 1..n - 1 {
        let block = b.before(t);
        b.step(
            t,
            [Operand::from(previous)],
            [Target::output(block), Target::to(next)],
        );
    }
    b.step(n - 1, [Operand::from(previous)], [Target::output(next)]);
    b.finish(0)
}

/// The number of blocks that a rank has doubles each round: as many bytes as the ring's in the
/// logarithm of its hops.
pub(super) fn recursive_doubling(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(1, 1, n);
    let p = b.rank();
    b.step(0, [Operand::input(0)], [Target::output(p)]);
    all_gather_blocks(&mut b, 0, 1, Place::Output);
    b.finish(0)
}

/// Every rank sends to every other: one hop.
pub(super) fn pairwise(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(1, 1, n);
    let p = b.rank();
    b.step(0, [Operand::input(0)], [Target::output(p)]);
    for k in 1..n {
        let to = b.after(k);
        b.step(k - 1, [Operand::input(0)], [Target::to(to)]);
    }
    for k in 1..n {
        let from = b.before(k);
        b.step(k, [Operand::from(from)], [Target::output(from)]);
    }
    b.finish(0)
}
