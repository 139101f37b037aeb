//! Collectives in three parts: inside each host, between hosts, and inside each host again.
//!
//! Every host has the same number of consecutive ranks. Rank p has *place* p modulo that number in
//! its host. Between hosts only ranks with the same place exchange messages, each for its part of
//! the buffer, so all NICs of a host share what must leave it.

use super::reduce_scatter as scatter;
use super::{all_gather as gather, all_reduce as flat, broadcast as cast, reduce, Builder};
use crate::program::{Chunks, Operand, Order, Place, Program, Target};

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

    /// How many hosts this rank's is after that of another.
    fn turns_after(&self, other: u32) -> u32 {
        (self.own + self.count - other / self.ranks) % self.count
    }

    /// The part of the buffer that ranks with this place exchange: a chunk for each host.
    fn part(&self, place: u32) -> Chunks {
        Chunks {
            first: place * self.count,
            count: self.count,
        }
    }

    /// The rank at a place of the host `by` before this one.
    fn at(&self, by: u32, place: u32) -> u32 {
        (self.own + self.count - by % self.count) % self.count * self.ranks + place
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
    sum_of_host(&mut b, &h, 1, Place::Input(own), Place::Output(own));
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

/// A ring of the ranks with the same place, each of whose blocks the rank that gets it gives to all
/// of its host.
///
/// With one rank on each host this is the ring, with one host pairwise.
pub(super) fn all_gather(b: Builder, host_ranks: u32) -> Program {
    let h = Hosts::of(&b, host_ranks);
    if h.ranks == 1 {
        return gather::ring(b);
    }
    if h.count == 1 {
        return gather::pairwise(b);
    }
    let n = b.n();
    let mut b = b.buffers(1, 1, n);
    let (next, previous) = (h.there(1), h.there(h.count - 1));
    for t in 0..h.count {
        let block = h.at(t, h.place);
        let from = match t {
            0 => Operand::input(0),
            _ => Operand::from(previous),
        };
        let mut results = vec![Target::output(block)];
        if t + 1 < h.count {
            results.push(Target::to(next));
        }
        b.push(t, vec![from], results, 1);
        for k in 1..h.ranks {
            let to = h.here(h.after(k));
            b.step(t + 1, [Operand::output(block)], [Target::to(to)]);
        }
        for k in 1..h.ranks {
            let place = h.before(k);
            let block = Target::output(h.at(t, place));
            b.step(t + 1, [Operand::from(h.here(place))], [block]);
        }
    }
    b.finish(0)
}

/// Each host's sum of a block goes to its rank with the place of the block's owner, and there joins
/// the ring of that place, which ends at the owner.
///
/// With one rank on each host this is the ring, with one host pairwise.
pub(super) fn reduce_scatter(b: Builder, host_ranks: u32) -> Program {
    let h = Hosts::of(&b, host_ranks);
    if h.ranks == 1 {
        return scatter::ring(b);
    }
    if h.count == 1 {
        return scatter::pairwise(b);
    }
    let n = b.n();
    let mut b = b.buffers(1, n, 1).order(Order::Other);
    let (next, previous) = (h.there(1), h.there(h.count - 1));
    for t in 0..h.count {
        // In turn t of every host, the ring has this host's block last of all.
        for k in 1..h.ranks {
            let place = h.before(k);
            let block = Operand::input(h.at(t + 1, place));
            b.step(t, [block], [Target::to(h.here(place))]);
        }
        let slot = Place::Scratch(Chunks::one(t));
        let own = Place::Input(Chunks::one(h.at(t + 1, h.place)));
        sum_of_host(&mut b, &h, t + 1, own, slot);
        let of_host = Operand::scratch(t);
        if t == 0 {
            b.step(t + 1, [of_host], [Target::to(next)]);
            continue;
        }
        let both = [Operand::from(previous), of_host];
        if t + 1 == h.count {
            b.step(t + 1, both, [Target::output(0)]);
        } else {
            b.step(t + 1, both, [Target::scratch(t), Target::to(next)]);
        }
    }
    b.finish(h.count)
}

/// Adds to `own` what the other ranks of the host have sent, from the next place on.
fn sum_of_host(b: &mut Builder, h: &Hosts, round: u32, own: Place, sum: Place) {
    let len = own.chunks().count;
    for k in 1..h.ranks {
        let so_far = if k == 1 { own } else { sum };
        let other = Operand::from(h.here(h.after(k)));
        let both = vec![Operand::Local(so_far), other];
        b.push(round, both, vec![Target::Local(sum)], len);
    }
}

/// The root's host gets a part for each of its ranks, which the ranks with its place pass from host
/// to host; the ranks of each host exchange their parts.
///
/// With one rank on each host this is the chain.
pub(super) fn broadcast(b: Builder, host_ranks: u32) -> Program {
    let h = Hosts::of(&b, host_ranks);
    if h.ranks == 1 {
        return cast::chain(b);
    }
    let (root, parts) = (b.root(), h.ranks);
    let turn = h.turns_after(root);
    let on = (turn + 1 < h.count).then(|| Target::to(h.there(1)));
    let input = if b.is_root() { parts } else { 0 };
    let mut b = b.buffers(parts, input, parts);
    if b.is_root() {
        // The parts of others, and its own to all of them: to the network first.
        if let Some(on) = on {
            b.step(1, [Operand::input(h.place)], [on]);
        }
        for k in 1..parts {
            let place = h.after(k);
            b.step(0, [Operand::input(place)], [Target::to(h.here(place))]);
        }
        for k in 1..parts {
            let to = Target::to(h.here(h.after(k)));
            b.step(1, [Operand::input(h.place)], [to]);
        }
        let (first, count) = (0, parts);
        let all = Chunks { first, count };
        let (all, whole) = (vec![Operand::input(all)], vec![Target::output(all)]);
        b.push(1, all, whole, parts);
        return b.finish(0);
    }
    let from = match turn {
        0 => Operand::from(root),
        _ => Operand::from(h.there(h.count - 1)),
    };
    let results = [Target::output(h.place)].into_iter().chain(on).collect();
    b.push(turn + 1, vec![from], results, 1);
    for to in (1..parts).map(|k| h.here(h.after(k))) {
        if to != root {
            b.step(turn + 2, [Operand::output(h.place)], [Target::to(to)]);
        }
    }
    for place in (1..parts).map(|k| h.before(k)) {
        let from = Operand::from(h.here(place));
        b.step(turn + 2, [from], [Target::output(place)]);
    }
    b.finish(0)
}

/// The ranks of each host exchange parts, each reduces its own, and those with the same place add
/// it from host to host, to the root's; there the root gets the parts.
///
/// With one rank on each host this is the ring, with one host pairwise.
pub(super) fn reduce(b: Builder, host_ranks: u32) -> Program {
    let h = Hosts::of(&b, host_ranks);
    if h.ranks == 1 {
        return reduce::ring(b);
    }
    if h.count == 1 {
        return reduce::pairwise(b);
    }
    let (root, parts) = (b.root(), h.ranks);
    let output = if b.is_root() { parts } else { 0 };
    let mut b = b.buffers(parts, parts, output).order(Order::Other);
    for place in (1..parts).map(|k| h.before(k)) {
        b.step(0, [Operand::input(place)], [Target::to(h.here(place))]);
    }
    let own = Chunks::one(h.place);
    let sum = if b.is_root() {
        Place::Output(own)
    } else {
        Place::Scratch(own)
    };
    sum_of_host(&mut b, &h, 1, Place::Input(own), sum);
    // The host after the root's begins.
    let turn = (h.turns_after(root) + h.count - 1) % h.count;
    let previous = Operand::from(h.there(h.count - 1));
    let on = match turn + 1 == h.count {
        true if b.is_root() => None,
        true => Some(Target::to(root)),
        false => Some(Target::to(h.there(1))),
    };
    if turn == 0 {
        b.push(2, vec![Operand::Local(sum)], on.into_iter().collect(), 1);
    } else {
        let results = [Target::Local(sum)].into_iter().chain(on).collect();
        b.push(turn + 2, vec![previous, Operand::Local(sum)], results, 1);
    }
    if b.is_root() {
        for place in (1..parts).map(|k| h.after(k)) {
            let from = Operand::from(h.here(place));
            b.step(h.count + 2, [from], [Target::output(place)]);
        }
        return b.finish(0);
    }
    b.finish(parts)
}
