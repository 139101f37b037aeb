//! One pass over memory for ranks of one host: each rank reads its share from every peer's memory
//! and stores to every peer's.
//!
//! A rank touches only its own share, so the ranks need no order among them between the barriers at
//! both ends, and source and destination may be the same memory. Its own memory is `Local`, a
//! peer's `Peer`; operands come in the order of Table 8's ring, or of the ranks.

use ringbell_nic_abi::CollectiveKind as K;

use super::Builder;
use crate::program::{Operand, Place, Program, Target};

/// The one-pass form of any collective.
pub(super) fn program(b: Builder) -> Program {
    let (n, r, root) = (b.n(), b.rank(), b.root());
    let at_root = |chunks| if r == root { chunks } else { 0 };
    // Where the share is a part of one block, the block has a chunk for each rank.
    match b.kind() {
        K::AllReduce => {
            let b = b.buffers(n, n, n).reducing();
            fused(b, None, None)
        }
        K::Reduce => {
            let b = b.buffers(n, n, at_root(n)).reducing();
            fused(b, None, Some(root))
        }
        K::Broadcast => {
            let b = b.buffers(n, at_root(n), n);
            fused(b, Some(root), None)
        }
        K::ReduceScatter => {
            let b = b.buffers(1, n, 1).reducing();
            let operands = b.contributors().map(|q| read(r, q, Place::Input(r.into())));
            let operands = operands.collect();
            one_step(b, operands, vec![Target::output(0)])
        }
        K::AllGather => {
            let b = b.buffers(1, 1, n);
            let results = b.ring().map(|q| write(r, q, Place::Output(r.into())));
            let results = results.collect();
            one_step(b, vec![Operand::input(0)], results)
        }
        K::Scatter => {
            let b = b.buffers(1, at_root(n), 1);
            let operand = read(r, root, Place::Input(r.into()));
            one_step(b, vec![operand], vec![Target::output(0)])
        }
        K::Gather => {
            let b = b.buffers(1, 1, at_root(n));
            let result = write(r, root, Place::Output(r.into()));
            one_step(b, vec![Operand::input(0)], vec![result])
        }
        K::AllToAll => {
            let mut b = b.buffers(1, n, n);
            for (round, q) in (0..).zip(b.ring()) {
                let result = write(r, q, Place::Output(r.into()));
                b.step(round, [Operand::input(q)], [result]);
            }
            b.finish(0)
        }
        // A barrier is what every one-pass program begins and ends with.
        _ => b.finish(0),
    }
}

/// Chunk r of one source, or of all reduced, to one destination or all.
fn fused(b: Builder, source: Option<u32>, destination: Option<u32>) -> Program {
    let r = b.rank();
    let of = |one: Option<u32>| {
        b.contributors()
            .filter(move |q| one.is_none_or(|o| o == *q))
    };
    let operands = of(source).map(|q| read(r, q, Place::Input(r.into())));
    let results = of(destination).map(|q| write(r, q, Place::Output(r.into())));
    let (operands, results) = (operands.collect(), results.collect());
    one_step(b, operands, results)
}

/// A program of one step on one chunk.
fn one_step(mut b: Builder, operands: Vec<Operand>, results: Vec<Target>) -> Program {
    b.push(0, operands, results, 1);
    b.finish(0)
}

/// Memory of `owner` as rank `r` reads it.
fn read(r: u32, owner: u32, place: Place) -> Operand {
    if owner == r {
        Operand::Local(place)
    } else {
        Operand::Peer { rank: owner, place }
    }
}

/// Memory of `owner` as rank `r` writes it.
fn write(r: u32, owner: u32, place: Place) -> Target {
    if owner == r {
        Target::Local(place)
    } else {
        Target::Peer { rank: owner, place }
    }
}
