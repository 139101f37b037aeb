//! Collectives in three parts: inside each host, between hosts, and inside each host again.
//!
//! A reduction and a broadcast divide the buffer by *places*, as many in every host. A rank serves
//! places of its host: one where every host has as many ranks, more in a small host, none in a
//! large one. Between hosts only ranks that serve the same place exchange messages, each for its
//! part of the buffer, so all NICs of a host share what must leave it. Where ranks have blocks of
//! their own, every host *deals* the blocks to its ranks, and each carries those that it was
//! dealt.

use super::reduce_scatter as scatter;
use super::{all_gather as gather, all_reduce as flat, broadcast as cast, reduce, Builder};
use crate::program::{Chunks, HostRanks, Operand, Order, Place, Program, Target};

/// A rank among the ranks of its host, and those of other hosts.
#[derive(Debug, Clone)]
pub(in crate::program) struct Hosts {
    /// The ranks of each, in order.
    ranks: Vec<Vec<u32>>,
    /// How many ranks the hosts before each have.
    before: Vec<u32>,
    /// The host of this rank, and its number there.
    own: usize,
    index: u32,
    /// Places of every host.
    places: u32,
}

impl Hosts {
    pub(in crate::program) fn new(n: u32, rank: u32, host_ranks: &HostRanks) -> Hosts {
        let sizes = host_ranks.sizes(n);
        let mut ranks: Vec<_> = sizes
            .iter()
            .map(|size| Vec::with_capacity(*size as usize))
            .collect();
        (0..n).for_each(|r| ranks[host_ranks.host_of(r) as usize].push(r));
        let own = host_ranks.host_of(rank) as usize;
        let all_before = |so_far: &mut u32, size: &u32| {
            let before = *so_far;
            *so_far += size;
            Some(before)
        };
        Hosts {
            own,
            index: ranks[own].iter().take_while(|r| **r < rank).count() as u32,
            before: sizes.iter().scan(0, all_before).collect(),
            places: places(&sizes, n),
            ranks,
        }
    }

    fn count(&self) -> u32 {
        self.ranks.len() as u32
    }

    fn size(&self, host: usize) -> u32 {
        self.ranks[host].len() as u32
    }

    /// Ranks of the largest.
    fn most(&self) -> u32 {
        self.ranks.iter().map(Vec::len).max().unwrap_or(1) as u32
    }

    /// Whether each rank has a host of its own.
    fn are_single(&self) -> bool {
        self.ranks.iter().all(|ranks| ranks.len() == 1)
    }

    /// The numbers of the other ranks of the host, from the next on, and from the one before on.
    fn others_after(&self) -> impl Iterator<Item = u32> + use<> {
        let (index, size) = (self.index, self.size(self.own));
        (1..size).map(move |k| (index + k) % size)
    }

    fn others_before(&self) -> impl Iterator<Item = u32> + use<> {
        let (index, size) = (self.index, self.size(self.own));
        (1..size).map(move |k| (index + size - k) % size)
    }

    /// The rank of this host with a number.
    fn here(&self, index: u32) -> u32 {
        self.ranks[self.own][index as usize]
    }

    /// The host `by` after this rank's, and the one `by` before it.
    fn host_after(&self, by: u32) -> usize {
        (self.own + by as usize) % self.ranks.len()
    }

    fn host_before(&self, by: u32) -> usize {
        let count = self.ranks.len();
        (self.own + count - by as usize % count) % count
    }

    /// How many hosts this rank's is after that of another.
    fn turns_after(&self, host: usize) -> u32 {
        let count = self.ranks.len();
        ((self.own + count - host) % count) as u32
    }

    /// The host of a rank.
    fn host_of(&self, rank: u32) -> usize {
        let has = |ranks: &Vec<u32>| ranks.contains(&rank);
        self.ranks.iter().position(has).unwrap_or(0)
    }

    /// The rank that serves a place in a host.
    fn server(&self, host: usize, place: u32) -> u32 {
        self.ranks[host][(place * self.size(host) / self.places) as usize]
    }

    /// The places that a rank of this host serves, by its number: a run.
    fn served(&self, index: u32) -> Chunks {
        let size = self.size(self.own);
        // Place p belongs to number ⌊p · size / places⌋.
        let first = |index: u32| (index * self.places).div_ceil(size);
        Chunks {
            first: first(index),
            count: first(index + 1) - first(index),
        }
    }

    /// The parts of a buffer that stand for these places: a chunk of each for each host.
    fn parts(&self, places: Chunks) -> Chunks {
        Chunks {
            first: places.first * self.count(),
            count: places.count * self.count(),
        }
    }

    /// The chunk of a place's part that is the host's `by` before this one.
    fn chunk_before(&self, place: u32, by: u32) -> u32 {
        place * self.count() + self.host_before(by) as u32
    }

    /// The number of the rank to which a host deals a block: that of rank number `block` of `of`.
    /// Every host deals from its own blocks on, one after the other.
    fn dealt(&self, host: usize, of: usize, block: u32) -> u32 {
        let size = self.size(host);
        let offset = (self.before[of] + size - self.before[host] % size) % size;
        (offset + block) % size
    }

    /// The rank that carries it.
    fn carrier(&self, host: usize, of: usize, block: u32) -> u32 {
        self.ranks[host][self.dealt(host, of, block) as usize]
    }

    /// The blocks of a host that a rank of this one carries, by its number.
    fn carried(&self, of: usize, index: u32) -> impl Iterator<Item = u32> + use<> {
        let size = self.size(self.own);
        let first = (index + size - self.dealt(self.own, of, 0)) % size;
        (first..self.size(of)).step_by(size as usize)
    }

    /// Ranks of which one has the longest messages, most of them, or the most NIC memory: in the
    /// smallest host with each number of ranks, and in that of the root.
    pub(in crate::program) fn heaviest(&self, root: u32) -> Vec<u32> {
        let mut sizes: Vec<_> = (0..self.ranks.len()).map(|h| (self.size(h), h)).collect();
        sizes.sort_unstable();
        sizes.dedup_by_key(|(size, _)| *size);
        let of_root = self.host_of(root);
        let after = (of_root + 1) % self.ranks.len();
        let hosts = sizes.into_iter().map(|(_, host)| host);
        let of = |host: usize| {
            let last = self.ranks[host][self.ranks[host].len() - 1];
            [self.ranks[host][0], last, self.carrier(host, 0, 0)]
        };
        hosts.chain([of_root, after]).flat_map(of).collect()
    }

    /// Values that a rank may have to hold at once: one for each other rank of the host, for each
    /// place or block that it has there, and as many for the next host.
    pub(in crate::program) fn held(&self) -> u32 {
        let most = self.most();
        let of = |ranks: &Vec<u32>| {
            let size = ranks.len() as u32;
            size * most.div_ceil(size).max(self.places.div_ceil(size))
        };
        self.ranks.iter().map(of).max().unwrap_or(1)
    }
}

/// How many places hosts of these sizes have: so many that the rank that serves most of them sends
/// least to other hosts, and then that it reduces least.
///
/// A rank of a host with m ranks serves up to ⌈places / m⌉ of them, and reduces each for m ranks.
/// As many as every host has ranks are best where all have as many.
fn places(sizes: &[u32], n: u32) -> u32 {
    let count = sizes.len() as u32;
    let mut sizes = sizes.to_vec();
    sizes.sort_unstable();
    sizes.dedup();
    let most = sizes.last().map_or(1, |most| *most);
    // A part has a chunk for each host, and chunks of few elements are slow.
    let most = most.min((2 * n / count).max(1));
    let cost = |places: u32| {
        let served = |size: u32| u64::from(places.div_ceil(size));
        let between = sizes.iter().map(|m| served(*m)).max().unwrap_or(1);
        let inside = sizes.iter().map(|m| served(*m) * u64::from(m - 1)).max();
        (between, inside.unwrap_or(0))
    };
    // As shares of the buffer: a / p is below b / q where a q is below b p.
    let is_less = |(a, x): (u64, u64), p: u32, (b, y): (u64, u64), q: u32| {
        let (p, q) = (u64::from(p), u64::from(q));
        (a * q, x * q) < (b * p, y * p)
    };
    (2..=most).fold(1, |best, p| {
        if is_less(cost(p), p, cost(best), best) {
            p
        } else {
            best
        }
    })
}

/// A reduce-scatter in each host, a ring of the ranks that serve a place, and an all-gather in each
/// host.
///
/// Inside a host every rank exchanges parts with every other, because that is one hop. Partial
/// results lie in the destination: what a rank sends from there it overwrites only with what has
/// passed the receiver. With one rank on each host this is the ring, with one host pairwise.
pub(super) fn all_reduce(b: Builder, host_ranks: &HostRanks) -> Program {
    let h = Hosts::new(b.n(), b.rank(), host_ranks);
    if h.are_single() {
        return flat::ring(b);
    }
    if h.count() == 1 {
        return flat::pairwise(b);
    }
    let chunks = h.places * h.count();
    let mut b = b.buffers(chunks, chunks, chunks).order(Order::Other);
    let served = h.served(h.index);
    let own = h.parts(served);
    for (round, other) in (0..).zip(h.others_before()) {
        let parts = h.parts(h.served(other));
        if parts.count > 0 {
            let source = vec![Operand::input(parts)];
            b.push(round, source, vec![Target::to(h.here(other))], parts.count);
        }
    }
    if own.count > 0 {
        sum_of_host(&mut b, &h, 1, Place::Input(own), Place::Output(own));
    }
    let of_host = |chunk| match h.size(h.own) {
        1 => Operand::input(chunk),
        _ => Operand::output(chunk),
    };
    let first = h.most();
    let (after, before) = (h.host_after(1), h.host_before(1));
    let ends = 2 * h.count() - 1;
    for t in 0..ends {
        for place in served.first..served.end() {
            let chunk = h.chunk_before(place, t);
            let mut operands = Vec::new();
            if t > 0 {
                operands.push(Operand::from(h.server(before, place)));
            }
            if t < h.count() {
                operands.push(of_host(chunk));
            }
            let mut results = Vec::new();
            if t > 0 {
                results.push(Target::output(chunk));
            }
            if t + 1 < ends {
                results.push(Target::to(h.server(after, place)));
            }
            b.push(first + t, operands, results, 1);
        }
    }
    let last = first + ends;
    for (k, other) in (0..).zip(h.others_before()) {
        if own.count > 0 {
            let to = vec![Target::to(h.here(other))];
            b.push(last + k, vec![Operand::output(own)], to, own.count);
        }
    }
    for (k, other) in (1..).zip(h.others_after()) {
        let parts = h.parts(h.served(other));
        if parts.count > 0 {
            let from = vec![Operand::from(h.here(other))];
            let whole = vec![Target::output(parts)];
            b.push(last + k, from, whole, parts.count);
        }
    }
    b.finish(0)
}

/// A ring of hosts for each block. The rank that carries it in a host gives it to all others there.
///
/// With one rank on each host this is the ring, with one host pairwise.
pub(super) fn all_gather(b: Builder, host_ranks: &HostRanks) -> Program {
    let h = Hosts::new(b.n(), b.rank(), host_ranks);
    if h.are_single() {
        return gather::ring(b);
    }
    if h.count() == 1 {
        return gather::pairwise(b);
    }
    let n = b.n();
    let mut b = b.buffers(1, 1, n);
    let (after, before) = (h.host_after(1), h.host_before(1));
    for t in 0..h.count() {
        let of = h.host_before(t);
        let owner = |block: u32| h.ranks[of][block as usize];
        for block in h.carried(of, h.index) {
            let from = match t {
                0 => Operand::input(0),
                _ => Operand::from(h.carrier(before, of, block)),
            };
            let mut results = vec![Target::output(owner(block))];
            if t + 1 < h.count() {
                results.push(Target::to(h.carrier(after, of, block)));
            }
            b.push(t, vec![from], results, 1);
        }
        for other in h.others_after() {
            for block in h.carried(of, h.index) {
                let to = Target::to(h.here(other));
                b.step(t + 1, [Operand::output(owner(block))], [to]);
            }
        }
        for other in h.others_before() {
            for block in h.carried(of, other) {
                let from = Operand::from(h.here(other));
                b.step(t + 1, [from], [Target::output(owner(block))]);
            }
        }
    }
    b.finish(0)
}

/// Each host's sum of a block goes to its rank that carries the block, and there joins a ring of
/// hosts that ends at the owner.
///
/// With one rank on each host this is the ring, with one host pairwise.
pub(super) fn reduce_scatter(b: Builder, host_ranks: &HostRanks) -> Program {
    let h = Hosts::new(b.n(), b.rank(), host_ranks);
    if h.are_single() {
        return scatter::ring(b);
    }
    if h.count() == 1 {
        return scatter::pairwise(b);
    }
    let n = b.n();
    let mut b = b.buffers(1, n, 1).order(Order::Other);
    let (after, before) = (h.host_after(1), h.host_before(1));
    let mut slots = 0;
    for t in 0..h.count() {
        // In turn t of every host, the ring has this host's block last of all.
        let of = h.host_before(t + 1);
        let owner = |block: u32| h.ranks[of][block as usize];
        for other in h.others_before() {
            for block in h.carried(of, other) {
                let block = Operand::input(owner(block));
                b.step(t, [block], [Target::to(h.here(other))]);
            }
        }
        for block in h.carried(of, h.index) {
            let slot = slots;
            slots += 1;
            let own = Place::Input(Chunks::one(owner(block)));
            let of_host = match h.size(h.own) {
                1 => Operand::Local(own),
                _ => Operand::scratch(slot),
            };
            let sum = Place::Scratch(Chunks::one(slot));
            sum_of_host(&mut b, &h, t + 1, own, sum);
            let next = Target::to(h.carrier(after, of, block));
            if t == 0 {
                b.step(t + 1, [of_host], [next]);
                continue;
            }
            let both = [Operand::from(h.carrier(before, of, block)), of_host];
            if t + 1 == h.count() {
                b.step(t + 1, both, [Target::output(0)]);
            } else {
                b.step(t + 1, both, [Target::scratch(slot), next]);
            }
        }
    }
    b.finish(slots)
}

/// Adds to `own` what the other ranks of the host have sent, from the next on.
fn sum_of_host(b: &mut Builder, h: &Hosts, round: u32, own: Place, sum: Place) {
    let len = own.chunks().count;
    for (k, other) in h.others_after().enumerate() {
        let so_far = if k == 0 { own } else { sum };
        let both = vec![Operand::Local(so_far), Operand::from(h.here(other))];
        b.push(round, both, vec![Target::Local(sum)], len);
    }
}

/// The root's host gets a part for each place, which the ranks that serve it pass from host to
/// host; the ranks of each host exchange their parts.
///
/// With one rank on each host this is the chain.
pub(super) fn broadcast(b: Builder, host_ranks: &HostRanks) -> Program {
    let h = Hosts::new(b.n(), b.rank(), host_ranks);
    if h.are_single() {
        return cast::chain(b);
    }
    let (root, parts) = (b.root(), h.places);
    let turn = h.turns_after(h.host_of(root));
    let (after, before) = (h.host_after(1), h.host_before(1));
    let on = |place| (turn + 1 < h.count()).then(|| Target::to(h.server(after, place)));
    let input = if b.is_root() { parts } else { 0 };
    let mut b = b.buffers(parts, input, parts);
    let own = h.served(h.index);
    let places = own.first..own.end();
    if b.is_root() {
        // The parts of others, and its own to all of them: to the network first.
        for place in places.clone() {
            if let Some(on) = on(place) {
                b.step(1, [Operand::input(place)], [on]);
            }
        }
        for other in h.others_after() {
            let served = h.served(other);
            for place in served.first..served.end() {
                b.step(0, [Operand::input(place)], [Target::to(h.here(other))]);
            }
        }
        for other in h.others_after() {
            for place in places.clone() {
                b.step(1, [Operand::input(place)], [Target::to(h.here(other))]);
            }
        }
        let (first, count) = (0, parts);
        let all = Chunks { first, count };
        let (all, whole) = (vec![Operand::input(all)], vec![Target::output(all)]);
        b.push(1, all, whole, parts);
        return b.finish(0);
    }
    for place in places.clone() {
        let from = match turn {
            0 => Operand::from(root),
            _ => Operand::from(h.server(before, place)),
        };
        let results = [Target::output(place)]
            .into_iter()
            .chain(on(place))
            .collect();
        b.push(turn + 1, vec![from], results, 1);
    }
    for to in h.others_after().map(|k| h.here(k)).filter(|to| *to != root) {
        for place in places.clone() {
            b.step(turn + 2, [Operand::output(place)], [Target::to(to)]);
        }
    }
    for other in h.others_before() {
        let served = h.served(other);
        for place in served.first..served.end() {
            let from = Operand::from(h.here(other));
            b.step(turn + 2, [from], [Target::output(place)]);
        }
    }
    b.finish(0)
}

/// The ranks of each host exchange parts, each reduces those of its places, and those that serve a
/// place add it from host to host, to the root's; there the root gets the parts.
///
/// With one rank on each host this is the ring, with one host pairwise.
pub(super) fn reduce(b: Builder, host_ranks: &HostRanks) -> Program {
    let h = Hosts::new(b.n(), b.rank(), host_ranks);
    if h.are_single() {
        return reduce::ring(b);
    }
    if h.count() == 1 {
        return reduce::pairwise(b);
    }
    let (root, parts) = (b.root(), h.places);
    let output = if b.is_root() { parts } else { 0 };
    let mut b = b.buffers(parts, parts, output).order(Order::Other);
    for other in h.others_before() {
        let served = h.served(other);
        if served.count > 0 {
            let to = vec![Target::to(h.here(other))];
            b.push(0, vec![Operand::input(served)], to, served.count);
        }
    }
    let own = h.served(h.index);
    let is_root = b.is_root();
    let sum = |chunks| match is_root {
        true => Place::Output(chunks),
        false => Place::Scratch(chunks),
    };
    if own.count > 0 {
        sum_of_host(&mut b, &h, 1, Place::Input(own), sum(own));
    }
    // The host after the root's begins.
    let turn = (h.turns_after(h.host_of(root)) + h.count() - 1) % h.count();
    let (after, before) = (h.host_after(1), h.host_before(1));
    for place in own.first..own.end() {
        let chunk = Chunks::one(place);
        let of_host = Operand::Local(match h.size(h.own) {
            1 => Place::Input(chunk),
            _ => sum(chunk),
        });
        let on = match turn + 1 == h.count() {
            true if is_root => None,
            true => Some(Target::to(root)),
            false => Some(Target::to(h.server(after, place))),
        };
        if turn == 0 {
            b.push(2, vec![of_host], on.into_iter().collect(), 1);
        } else {
            let both = vec![Operand::from(h.server(before, place)), of_host];
            let results = [Target::Local(sum(chunk))].into_iter().chain(on).collect();
            b.push(turn + 2, both, results, 1);
        }
    }
    if is_root {
        for other in h.others_after() {
            let served = h.served(other);
            for place in served.first..served.end() {
                let from = Operand::from(h.here(other));
                b.step(h.count() + 2, [from], [Target::output(place)]);
            }
        }
        return b.finish(0);
    }
    b.finish(parts)
}
