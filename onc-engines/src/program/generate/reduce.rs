//! Reduce over the network.

use super::blocks::{reduce_blocks, reduce_messages};
use super::{tree, Builder};
use crate::program::{Chunks, Operand, Order, Place, Program, Target};

/// The ring's first half, as in the all-reduce, then each whole chunk goes to the root: the bits of
/// the all-reduce.
pub(super) fn ring(b: Builder) -> Program {
    let (n, root) = (b.n(), b.root());
    let output = if b.is_root() { n } else { 0 };
    let mut b = b.buffers(n, n, output).order(Order::Ring);
    let p = b.rank();
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    let (next, previous) = (b.after(1), b.before(1));
    b.step(0, [Operand::input(p)], [Target::to(next)]);
    for t in 1..n {
        let chunk = b.before(t);
        let operands = vec![Operand::from(previous), Operand::input(chunk)];
        let results = if t < n - 1 {
            vec![Target::scratch(chunk), Target::to(next)]
        } else if p == root {
            vec![Target::output(chunk)]
        } else {
            vec![Target::scratch(chunk), Target::to(root)]
        };
        b.push(t, operands, results, 1);
    }
    if p == root {
        for k in 1..n {
            // Rank q has chunk q + 1 whole.
            let q = b.after(k);
            let chunk = b.after(k + 1);
            b.step(n + k - 1, [Operand::from(q)], [Target::output(chunk)]);
        }
    }
    // The root with two ranks needs none: its only partial result is the whole one.
    b.finish(if n > 2 || p != root { n } else { 0 })
}

/// Chunk r of every rank goes to rank r, which reduces it in the wanted order and sends it to the
/// root.
pub(super) fn pairwise(b: Builder) -> Program {
    let (n, root) = (b.n(), b.root());
    let output = if b.is_root() { n } else { 0 };
    let mut b = b.buffers(n, n, output).reducing();
    let p = b.rank();
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    for k in 1..n {
        let to = b.before(k);
        b.step(k - 1, [Operand::input(to)], [Target::to(to)]);
    }
    let own = Chunks::one(p);
    if p != root {
        let slots = reduce_messages(&mut b, 1, p, p, Place::Scratch(own), Some(Target::to(root)));
        return b.finish(slots);
    }
    let slots = reduce_messages(&mut b, 1, p, p, Place::Output(own), None);
    for k in 1..n {
        let from = b.after(k);
        b.step(n + k - 1, [Operand::from(from)], [Target::output(from)]);
    }
    b.finish(slots)
}

/// Every rank sends its source to the root, which reduces in the wanted order (ACCL+ Table 2:
/// all-to-one): for short messages, because the root keeps all sources in its NIC memory.
pub(super) fn flat(b: Builder) -> Program {
    let (n, root) = (b.n(), b.root());
    // In the order of the ranks all chunks are alike, so that one is enough.
    let chunks = if b.first(1) == 0 { 1 } else { n };
    let output = if b.is_root() { chunks } else { 0 };
    let mut b = b.buffers(chunks, chunks, output).reducing();
    let all = Chunks {
        first: 0,
        count: chunks,
    };
    if !b.is_root() {
        let (round, to) = (b.relative() - 1, Target::to(root));
        b.push(round, vec![Operand::input(all)], vec![to], chunks);
        return b.finish(0);
    }
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    let in_block = |block, run: Chunks| {
        Place::Scratch(Chunks {
            first: block * chunks + run.first,
            ..run
        })
    };
    // Rank q's source lies in block q - root - 1.
    let block = |q: u32| (q + n - root - 1) % n;
    for k in 1..n {
        let q = b.after(k);
        let kept = Target::Local(in_block(block(q), all));
        b.push(k, vec![Operand::from(q)], vec![kept], chunks);
    }
    let at = |q, run| match q == root {
        true => Place::Input(run),
        false => in_block(block(q), run),
    };
    if n == 2 {
        reduce_blocks(&mut b, n, chunks, at, Place::Output);
        return b.finish(chunks);
    }
    // In place the destination holds the root's own source until that was added: the sums stay in
    // NIC memory, behind the sources.
    let sums = |run| in_block(n - 1, run);
    reduce_blocks(&mut b, n, chunks, at, sums);
    let whole = vec![Operand::Local(sums(all))];
    b.push(3 * n, whole, vec![Target::output(all)], chunks);
    b.finish(n * chunks)
}

/// Up a binary tree (ACCL+ Table 2): another order of reduction.
pub(super) fn tree(b: Builder) -> Program {
    let output = u32::from(b.is_root());
    let mut b = b.buffers(1, 1, output).order(Order::Other);
    tree::reduce_up(&mut b, 0, false);
    let (first, second) = tree::children(b.relative(), b.n());
    let partial = second.is_some() || first.is_some() && !b.is_root();
    b.finish(u32::from(partial))
}
