//! Collectives in three parts: inside each host, between hosts, and inside each host again.
//!
//! Every host has the same number of consecutive ranks. Rank p has *place* p modulo that number in
//! its host. Between hosts only ranks with the same place exchange messages, each for its part of
//! the buffer, so all NICs of a host share what must leave it.

use super::{all_reduce as flat, Builder};
use crate::program::{Chunks, Operand, Order, Program, Target};

/// A rank among hosts with `ranks` ranks each.
#[derive(Debug, Clone, Copy)]
struct Hosts {
    /// Ranks of each.
    ranks: u32,
    /// How many there are.
    count: u32,
    /// That of this rank, and its place there.
    own: u32,
    place: u32,
}

impl Hosts {
    fn of(b: &Builder, host_ranks: u32) -> Hosts {
        Hosts {
            ranks: host_ranks,
            count: b.n() / host_ranks,
            own: b.rank() / host_ranks,
            place: b.rank() % host_ranks,
        }
    }

    /// The place `by` after this rank's, and the one `by` before it.
    fn after(&self, by: u32) -> u32 {
        (self.place + by) % self.ranks
    }

    fn before(&self, by: u32) -> u32 {
        (self.place + self.ranks - by) % self.ranks
    }

    /// The rank of this host at a place.
    fn here(&self, place: u32) -> u32 {
        self.own * self.ranks + place
    }

    /// The rank with this one's place, `by` hosts after its own.
    fn there(&self, by: u32) -> u32 {
        (self.own + by) % self.count * self.ranks + self.place
    }

    /// The part of the buffer that ranks with this place exchange: a chunk for each host.
    fn part(&self, place: u32) -> Chunks {
        Chunks {
            first: place * self.count,
            count: self.count,
        }
    }

    /// Own chunk number `by` before this host's.
    fn chunk_before(&self, by: u32) -> u32 {
        self.part(self.place).first + (self.own + self.count - by % self.count) % self.count
    }
}

/// A reduce-scatter in each host, a ring of the ranks with the same place, and an all-gather in
/// each host.
///
/// Inside a host every rank exchanges parts with every other, because that is one hop. Partial
/// results lie in the destination: what a rank sends from there it overwrites only with what has
/// passed the receiver. With one rank on each host this is the ring, with one host pairwise.
pub(super) fn all_reduce(b: Builder, host_ranks: u32) -> Program {
    let h = Hosts::of(&b, host_ranks);
    if h.ranks == 1 {
        return flat::ring(b);
    }
    if h.count == 1 {
        return flat::pairwise(b);
    }
    let n = b.n();
    let mut b = b.buffers(n, n, n).order(Order::Other);
    let (own, len) = (h.part(h.place), h.count);
    for k in 1..h.ranks {
        let to = h.before(k);
        let source = vec![Operand::input(h.part(to))];
        b.push(k - 1, source, vec![Target::to(h.here(to))], len);
    }
    for k in 1..h.ranks {
        let so_far = match k {
            1 => Operand::input(own),
            _ => Operand::output(own),
        };
        let both = vec![so_far, Operand::from(h.here(h.after(k)))];
        b.push(k, both, vec![Target::output(own)], len);
    }
    let (next, previous) = (h.there(1), h.there(h.count - 1));
    let first = h.ranks;
    b.step(
        first,
        [Operand::output(h.chunk_before(0))],
        [Target::to(next)],
    );
    for t in 1..2 * h.count - 1 {
        let chunk = h.chunk_before(t);
        let mut operands = vec![Operand::from(previous)];
        if t < h.count {
            operands.push(Operand::output(chunk));
        }
        let mut results = vec![Target::output(chunk)];
        if t < 2 * h.count - 2 {
            results.push(Target::to(next));
        }
        b.push(first + t, operands, results, 1);
    }
    let last = first + 2 * h.count - 2;
    for k in 1..h.ranks {
        let to = h.here(h.before(k));
        b.push(
            last + k,
            vec![Operand::output(own)],
            vec![Target::to(to)],
            len,
        );
    }
    for k in 1..h.ranks {
        let from = h.after(k);
        let whole = vec![Target::output(h.part(from))];
        b.push(last + k + 1, vec![Operand::from(h.here(from))], whole, len);
    }
    b.finish(0)
}
