//! All-to-all and barrier over the network.

use super::Builder;
use crate::program::{Operand, Program, Target};

/// Every rank sends to, then receives from, the others in the order of their ranks (ACCL+ Table 2).
pub(super) fn linear(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(1, n, n);
    let p = b.rank();
    b.step(0, [Operand::input(p)], [Target::output(p)]);
    let others = || (0..n).filter(move |q| *q != p);
    for q in others() {
        b.step(q, [Operand::input(q)], [Target::to(q)]);
    }
    for q in others() {
        b.step(p + 1, [Operand::from(q)], [Target::output(q)]);
    }
    b.finish(0)
}

/// In round k every rank sends to the rank k after it and receives from the one k before it: no two
/// send to the same at once.
pub(super) fn pairwise(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(1, n, n);
    let p = b.rank();
    b.step(0, [Operand::input(p)], [Target::output(p)]);
    for k in 1..n {
        let (to, from) = (b.after(k), b.before(k));
        b.step(k - 1, [Operand::input(to)], [Target::to(to)]);
        b.step(k, [Operand::from(from)], [Target::output(from)]);
    }
    b.finish(0)
}

/// Barrier by dissemination: in round k every rank sends to the rank 2^k after it. After log2 n
/// rounds every rank depends on all.
pub(super) fn barrier(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(1, 0, 0);
    let (mut distance, mut round) = (1, 0);
    while distance < n {
        let (to, from) = (b.after(distance), b.before(distance));
        b.push(round, vec![], vec![Target::to(to)], 0);
        b.push(round + 1, vec![Operand::from(from)], vec![], 0);
        (distance, round) = (distance * 2, round + 1);
    }
    b.finish(0)
}
