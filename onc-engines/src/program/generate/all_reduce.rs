//! All-reduce over the network.

use super::blocks::{all_gather_blocks, reduce_blocks, reduce_messages};
use super::{tree, Builder};
use crate::program::{Chunks, Operand, Order, Place, Program, Target};

/// Most ranks of a ring whose partial results lie in NIC memory. Each takes a slot, and a
/// communicator's 16 MiB are divided among the slots of the segments under way: those of 1,024
/// ranks would have 3 KiB. Simulated rings of 512 ranks with 32 MiB take three quarters of the time
/// without.
const MOST_IN_NIC_MEMORY: u32 = 256;

/// FpgaNIC's ring (§A.2.2, Table 8): rank p starts with its chunk p, adds its own to what arrives
/// and forwards; after n - 1 steps it has chunk p + 1 whole, and the whole chunks go round once
/// more.
///
/// Partial results lie in NIC memory, in the slot of their chunk. Among more than
/// [`MOST_IN_NIC_MEMORY`] ranks, where so many slots would be short, they lie in the chunk of the
/// result that comes there later. The first message goes from the source straight to the network
/// (Table 8 reads it into NIC memory in t_0).
pub(super) fn ring(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(n, n, n).order(Order::Ring);
    let p = b.rank();
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    let (next, previous) = (b.after(1), b.before(1));
    let in_nic_memory = n > 2 && n <= MOST_IN_NIC_MEMORY;
    b.step(0, [Operand::input(p)], [Target::to(next)]);
    for t in 1..n {
        let chunk = b.before(t);
        let kept = if in_nic_memory && t < n - 1 {
            Target::scratch(chunk)
        } else {
            Target::output(chunk)
        };
        b.step(
            t,
            [Operand::from(previous), Operand::input(chunk)],
            [kept, Target::to(next)],
        );
    }
    for t in n..2 * n - 2 {
        let chunk = b.before(t);
        b.step(
            t,
            [Operand::from(previous)],
            [Target::output(chunk), Target::to(next)],
        );
    }
    let last = 2 * n - 2;
    let chunk = b.before(last);
    b.step(last, [Operand::from(previous)], [Target::output(chunk)]);
    b.finish(if in_nic_memory { n } else { 0 })
}

/// For short messages: an all-gather of the sources by recursive doubling (Bruck's algorithm when
/// the number of ranks is no power of two), then every rank reduces them itself in the wanted
/// order.
///
/// Takes the logarithm of the ring's hops and n / 2 times its bytes; the same bits as the ring's.
pub(super) fn all_gather_reduce(b: Builder) -> Program {
    let n = b.n();
    // In the order of the ranks all chunks are alike, so that one is enough.
    let chunks = if b.first(1) == 0 { 1 } else { n };
    let mut b = b.buffers(chunks, chunks, chunks).reducing();
    let source = Chunks {
        first: 0,
        count: chunks,
    };
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    let at = |rank, run: Chunks| {
        Place::Scratch(Chunks {
            first: rank * chunks + run.first,
            ..run
        })
    };
    // Sent from a copy: in place, the source is overwritten before every peer must have taken it.
    let own = Target::Local(at(b.rank(), source));
    b.push(0, vec![Operand::input(source)], vec![own], chunks);
    let round = all_gather_blocks(&mut b, 0, chunks, Place::Scratch);
    // Not in NIC memory, from which a slow peer may still be reading.
    reduce_blocks(&mut b, round, chunks, at, Place::Output);
    b.finish(n * chunks)
}

/// Recursive doubling (Thakur, Rabenseifner and Gropp 2005, §4): partners exchange what they have
/// so far, over twice the distance each time, and both combine it, the lower ranks' part first. So
/// operands stand in the order of the ranks, and their association depends on the number of ranks
/// alone.
///
/// Where that is no power of two, the first ranks go in pairs: the even one gives its source to the
/// odd one, which takes part for both. At the end the even one gets both halves, from its own
/// partner and from that one's, and combines them itself: one hop less than if it got the result.
/// With another type on the wire it also has the same bits as all others so, because no rank sends
/// its result.
///
/// What a rank has after each exchange stays in a slot of its own: the rank never hears that a
/// partner has taken a message, for no later one's part contains that partner's.
pub(super) fn recursive_doubling(b: Builder) -> Program {
    let (n, p) = (b.n(), b.rank());
    let mut b = b.buffers(1, 1, 1).order(Order::Other);
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    let rounds = n.ilog2();
    let pairs = n - (1 << rounds);
    // The rank that takes part with this number, and the rank that it stands for beside itself.
    let member = |v: u32| if v < pairs { 2 * v + 1 } else { v + pairs };
    let other = |v: u32| (v < pairs).then_some(2 * v);
    let in_order = |a: u32, of_a, b: u32, of_b| if a < b { [of_a, of_b] } else { [of_b, of_a] };
    let last = 1 << (rounds - 1);
    if p < 2 * pairs && p.is_multiple_of(2) {
        let (one, two) = (p / 2, (p / 2) ^ last);
        b.step(0, [Operand::input(0)], [Target::to(member(one))]);
        let halves = [one, two].map(|v| Operand::from(member(v)));
        let halves = in_order(one, halves[0], two, halves[1]);
        b.step(rounds, halves, [Target::output(0)]);
        return b.finish(0);
    }
    let v = if p < 2 * pairs { p / 2 } else { p - pairs };
    let partner = |k: u32| v ^ (1 << k);
    let to_partner = |k| Target::to(member(partner(k)));
    match other(v) {
        Some(q) => {
            let both = [Operand::from(q), Operand::input(0)];
            b.step(0, both, [Target::scratch(0), to_partner(0)]);
        }
        None => {
            // Sent from a copy: in place, the source is overwritten before it must have been taken.
            b.step(0, [Operand::input(0)], [Target::scratch(0)]);
            b.step(0, [Operand::scratch(0)], [to_partner(0)]);
        }
    }
    for k in 0..rounds {
        if k == rounds - 1 {
            for q in [other(v), other(v ^ last)].into_iter().flatten() {
                b.step(k, [Operand::scratch(k)], [Target::to(q)]);
            }
        }
        let (ours, theirs) = (Operand::scratch(k), Operand::from(member(partner(k))));
        let both = in_order(v, ours, partner(k), theirs);
        if k == rounds - 1 {
            b.step(k + 1, both, [Target::output(0)]);
        } else {
            b.step(k + 1, both, [Target::scratch(k + 1), to_partner(k + 1)]);
        }
    }
    b.finish(rounds)
}

/// Chunk r of every rank goes to rank r, which reduces it in the wanted order and sends it to all.
///
/// As many bytes as the ring's in two hops instead of 2 (n - 1), and no NIC memory in the order of
/// the ring; but every rank exchanges messages with every other, so it needs a network that carries
/// all pairs at once.
pub(super) fn pairwise(b: Builder) -> Program {
    let n = b.n();
    let mut b = b.buffers(n, n, n).reducing();
    let p = b.rank();
    if n == 1 {
        b.step(0, [Operand::input(0)], [Target::output(0)]);
        return b.finish(0);
    }
    for k in 1..n {
        let to = b.before(k);
        b.step(k - 1, [Operand::input(to)], [Target::to(to)]);
    }
    let whole = Place::Output(Chunks::one(p));
    let slots = reduce_messages(&mut b, 1, p, p, whole, None);
    for k in 1..n {
        let to = b.before(k);
        b.step(n + k - 1, [Operand::output(p)], [Target::to(to)]);
    }
    for k in 1..n {
        let from = b.after(k);
        b.step(n + k, [Operand::from(from)], [Target::output(from)]);
    }
    b.finish(slots)
}

/// Up a binary tree to rank 0 and down again: few hops, but another order of reduction.
pub(super) fn tree(b: Builder) -> Program {
    let mut b = b.buffers(1, 1, 1).order(Order::Other);
    let round = tree::reduce_up(&mut b, 0, true);
    tree::broadcast_down(&mut b, round);
    let inner = b.rank() != 0 && tree::children(b.rank(), b.n()).0.is_some();
    let both = tree::children(b.rank(), b.n()).1.is_some();
    b.finish(u32::from(inner || both))
}

#[cfg(test)]
mod tests {
    use ringbell_nic_abi::{Algorithm, CollectiveKind};

    use super::*;
    use crate::program::generate;

    #[test]
    fn rank_0_of_4_runs_the_first_row_of_table_8() {
        let p = generate(CollectiveKind::AllReduce, Algorithm::Ring, 4, 0, 0).unwrap();
        let chunks: Vec<_> = p
            .steps
            .iter()
            .map(|s| s.home().map(|h| h.chunks().first))
            .collect();
        // Sent: G0, then what was reduced or received in t1 to t5; the last is only kept.
        assert_eq!(
            chunks,
            [Some(0), Some(3), Some(2), Some(1), Some(0), Some(3), None]
        );
        assert_eq!(p.steps[6].results, [Target::output(2)]);
    }
}
