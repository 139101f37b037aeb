//! Reduce-scatter over the network.

use super::blocks::reduce_messages;
use super::Builder;
use crate::program::{Chunks, Operand, Order, Place, Program, Target};

/// Block r of every rank goes to rank r, which reduces it in the wanted order.
///
/// As many bytes as the ring's in one hop, and no NIC memory in the order of the ring. It keeps the
/// order of the all-reduce, rank r first, for the same bytes; a classic ring that ends at rank r
/// would start at rank r + 1.
pub(super) fn pairwise(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(1, n, 1).reducing();
    let p = b.rank();
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    for k in 1..n {
        let to = b.before(k);
        b.step(k - 1, [Operand::input(to)], [Target::to(to)]);
    }
    let whole = Place::Output(Chunks::one(0));
    let slots = reduce_messages(&mut b, 1, p, 0, whole, None);
    b.finish(slots)
}

/// Between neighbours only: block r starts at rank r, is whole at rank r - 1, and goes one hop
/// more, to its owner (n hops where the classic ring, with another order, has n - 1).
pub(super) fn ring(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(1, n, 1).order(Order::Ring);
    let p = b.rank();
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    let (next, previous) = (b.after(1), b.before(1));
    b.step(0, [Operand::input(p)], [Target::to(next)]);
    for t in 1..n {
        let block = b.before(t);
        b.step(
            t,
            [Operand::from(previous), Operand::input(block)],
            [Target::scratch(t - 1), Target::to(next)],
        );
    }
    b.step(n, [Operand::from(previous)], [Target::output(0)]);
    b.finish(n - 1)
}
