//! Parts of several generators: gathering blocks from all ranks, and reducing gathered blocks.

use super::Builder;
use crate::program::{Chunks, Operand, Place, Target};

/// The blocks `start .. start + len` modulo `n`, as one or two runs that do not wrap.
pub(super) fn runs(start: u32, len: u32, n: u32) -> impl Iterator<Item = Chunks> {
    let start = start % n;
    let first = len.min(n - start);
    [
        Chunks {
            first: start,
            count: first,
        },
        Chunks {
            first: 0,
            count: len - first,
        },
    ]
    .into_iter()
    .filter(|run| run.count > 0)
}

/// Every rank gets every block, where each rank has its own already: recursive doubling when the
/// number of ranks is a power of two, else Bruck's algorithm (whose runs may wrap, and are then two
/// messages).
///
/// A block has `chunks` chunks and lies at its rank's place in `place`. Returns the next round.
pub(super) fn all_gather_blocks(
    b: &mut Builder,
    start: u32,
    chunks: u32,
    place: fn(Chunks) -> Place,
) -> u32 {
    let (n, p) = (b.n(), b.rank());
    let at = |run: Chunks| {
        place(Chunks {
            first: run.first * chunks,
            count: run.count * chunks,
        })
    };
    let mut round = start;
    let mut have = 1;
    while have < n {
        round += 1;
        let count = have.min(n - have);
        let (to, from, mine, theirs) = if n.is_power_of_two() {
            let peer = p ^ have;
            (peer, peer, p & !(have - 1), peer & !(have - 1))
        } else {
            (b.before(have), b.after(have), p, b.after(have))
        };
        for run in runs(mine, count, n) {
            let from_place = vec![Operand::Local(at(run))];
            b.push(round, from_place, vec![Target::to(to)], run.count * chunks);
        }
        for run in runs(theirs, count, n) {
            let to_place = vec![Target::Local(at(run))];
            b.push(
                round,
                vec![Operand::from(from)],
                to_place,
                run.count * chunks,
            );
        }
        have += count;
    }
    round + 1
}

/// Reduces this rank's chunk of all sources, which come as messages but for the own one, in the
/// wanted order. Its chunk is `own` of the source, and the result goes to `into`, and to `result`
/// at last; partial results stay in `slot` of the NIC's memory until the own source was added,
/// which the destination may hold. Returns the slots that are needed.
pub(super) fn reduce_messages(
    b: &mut Builder,
    start: u32,
    own: u32,
    slot: u32,
    into: Place,
    result: Option<Target>,
) -> u32 {
    let p = b.rank();
    let operand = |q| match q == p {
        true => Operand::input(own),
        false => Operand::from(q),
    };
    let mut ranks = b.contributors();
    let first = ranks.next().unwrap_or(p);
    let (mut so_far, mut added, mut slots) = (operand(first), first == p, 0);
    let last = b.n() - 2;
    for (k, q) in (0..).zip(ranks) {
        added |= q == p;
        let to = match added {
            true => into,
            false => Place::Scratch(Chunks::one(slot)),
        };
        if matches!(to, Place::Scratch(_)) {
            slots = slot + 1;
        }
        let mut results = vec![Target::Local(to)];
        results.extend(result.filter(|_| k == last));
        b.push(start + k, vec![so_far, operand(q)], results, 1);
        so_far = Operand::Local(to);
    }
    slots
}

/// Reduces the sources of all ranks, of `chunks` each, which lie here, each chunk in the wanted
/// order: `at(q, run)` is where rank q's chunks lie, `sum(run)` where partial results and at last
/// the whole ones go.
///
/// A step adds a rank's source to every chunk whose next operand it is: three steps for each rank
/// at most, where one for each rank and chunk would be their square. In the order of the ring the
/// ranks are passed twice: chunk c begins with rank c, and ends in the second round with the rank
/// before it.
pub(super) fn reduce_blocks(
    b: &mut Builder,
    start: u32,
    chunks: u32,
    at: impl Fn(u32, Chunks) -> Place,
    sum: impl Fn(Chunks) -> Place,
) {
    let (n, from_zero) = (b.n(), b.first(1) == 0);
    let mut add = |k: u32, so_far: Place, q: u32, run: Chunks| {
        let operands = vec![Operand::Local(so_far), Operand::Local(at(q, run))];
        b.push(
            start + k,
            operands,
            vec![Target::Local(sum(run))],
            run.count,
        );
    };
    if from_zero {
        let all = Chunks {
            first: 0,
            count: chunks,
        };
        for q in 1..n {
            let so_far = if q == 1 { at(0, all) } else { sum(all) };
            add(q - 1, so_far, q, all);
        }
        return;
    }
    for k in 1..2 * n - 1 {
        let (q, before) = (k % n, k - 1);
        // In the first round the chunks of the ranks before, in the second those not yet whole.
        let (first, end) = if k < n {
            (0, before)
        } else {
            (q + 1, n.min(before))
        };
        if first < end {
            let count = end - first;
            let run = Chunks { first, count };
            add(before, sum(run), q, run);
        }
        if before < n {
            let begins = Chunks::one(before);
            add(before, at(before, begins), q, begins);
        }
    }
}
