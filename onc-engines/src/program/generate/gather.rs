//! Gather over the network.

use super::blocks::runs;
use super::Builder;
use crate::program::{Chunks, Operand, Program, Target};

/// Buffers of a gather.
fn buffers(b: Builder) -> Builder {
    let output = if b.is_root() { b.n() } else { 0 };
    b.buffers(1, 1, output)
}

/// Every rank sends to the root (ACCL+ Table 2: all-to-one).
pub(super) fn flat(b: Builder) -> Program {
    let mut b = buffers(b);
    let (n, root) = (b.n(), b.root());
    if b.is_root() {
        b.step(0, [Operand::input(0)], [Target::output(root)]);
        for k in 1..n {
            let q = b.after(k);
            b.step(k, [Operand::from(q)], [Target::output(q)]);
        }
    } else {
        let round = b.relative() - 1;
        b.step(round, [Operand::input(0)], [Target::to(root)]);
    }
    b.finish(0)
}

/// Each rank sends its block towards the root and relays those behind it, so that a rank receives
/// from one other only (ACCL §IV).
pub(super) fn ring(b: Builder) -> Program {
    let mut b = buffers(b);
    let (n, v, root) = (b.n(), b.relative(), b.root());
    let (next, previous) = (b.after(1), b.before(1));
    if b.is_root() {
        b.step(0, [Operand::input(0)], [Target::output(root)]);
        for k in 1..n {
            let block = b.before(k);
            b.step(k, [Operand::from(previous)], [Target::output(block)]);
        }
        return b.finish(0);
    }
    b.step(0, [Operand::input(0)], [Target::to(next)]);
    for k in 1..v {
        b.step(
            k,
            [Operand::from(previous)],
            [Target::scratch(k - 1), Target::to(next)],
        );
    }
    b.finish(v - 1)
}

/// Up a binomial tree (ACCL+ Table 2: binary tree): each inner rank collects the blocks of its
/// subtree in NIC memory, and passes them on in one message.
pub(super) fn tree(b: Builder) -> Program {
    let mut b = buffers(b);
    let (n, v, root) = (b.n(), b.relative(), b.root());
    // The rank v collects blocks v .. v + size, counted from the root, until it meets its lowest
    // bit.
    let lowest = if v == 0 {
        n.next_power_of_two()
    } else {
        v & v.wrapping_neg()
    };
    let size = lowest.min(n - v);
    if v == 0 {
        b.step(0, [Operand::input(0)], [Target::output(root)]);
    } else if size > 1 {
        b.step(0, [Operand::input(0)], [Target::scratch(0)]);
    }
    let (mut bit, mut round) = (1, 0);
    while bit < lowest && v + bit < n {
        round += 1;
        let child = b.absolute(v + bit);
        let count = bit.min(n - v - bit);
        if v == 0 {
            for run in runs(child, count, n) {
                let place = vec![Target::output(run)];
                b.push(round, vec![Operand::from(child)], place, run.count);
            }
        } else {
            let place = Chunks { first: bit, count };
            b.push(
                round,
                vec![Operand::from(child)],
                vec![Target::scratch(place)],
                count,
            );
        }
        bit *= 2;
    }
    if v == 0 {
        return b.finish(0);
    }
    let parent = b.absolute(v - lowest);
    let round = lowest.ilog2();
    if size == 1 {
        b.step(round, [Operand::input(0)], [Target::to(parent)]);
        return b.finish(0);
    }
    if parent == root {
        // The root stores at once, so its message ends where the blocks wrap.
        let mut first = 0;
        for run in runs(b.rank(), size, n) {
            let place = Chunks {
                first,
                count: run.count,
            };
            b.push(
                round,
                vec![Operand::scratch(place)],
                vec![Target::to(parent)],
                run.count,
            );
            first += run.count;
        }
    } else {
        let place = Chunks {
            first: 0,
            count: size,
        };
        b.push(
            round,
            vec![Operand::scratch(place)],
            vec![Target::to(parent)],
            size,
        );
    }
    b.finish(size)
}
