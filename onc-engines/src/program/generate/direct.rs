//! One pass over memory for ranks of one host: each rank reads its share from every peer's memory and
//! stores to every peer's.
//!
//! A rank touches only its own share, so the ranks need no order among them between the barriers at
//! both ends, and source and destination may be the same memory. Its own memory is `Local`, a peer's
//! `Peer`; operands come in the order of Table 8's ring.

use ringbell_nic_abi::CollectiveKind as K;

use super::Builder;
use crate::program::{Chunks, Operand, Order, Place, Program, Target};

/// The one-pass form of any collective.
pub(super) fn program(b: Builder) -> Program {
    match b.kind() {
        K::AllReduce => all_reduce(b),
        _ => b.finish(0),
    }
}

/// Chunk r of everybody's source, reduced, to everybody's destination.
fn all_reduce(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(n, n, n).order(Order::Ring);
    let r = b.rank();
    let operands = b.ring().map(|q| read(r, q, Place::Input(Chunks::one(r))));
    let results = b.ring().map(|q| write(r, q, Place::Output(Chunks::one(r))));
    let (operands, results) = (operands.collect(), results.collect());
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
