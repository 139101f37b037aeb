//! Programs as a user may write them: all-gathers in which each block takes a way of its own.
//!
//! They are drawn step by step, as one rank after the other could run them; so each message that a
//! step takes was sent before. Ranks pass blocks on to two others at once, and from places where
//! another block belongs, which comes later. It may when a message has told that what was passed
//! on is taken: the proof of programs demands that.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_onc_engines::program::{Operand, Order, Place, Program, Step, Target};

use super::collective_support::Rng;

/// Draws after which a program is begun anew.
const DRAWS: usize = 1000;

/// What one rank has.
#[derive(Clone)]
struct Rank {
    steps: Vec<Step>,
    /// Where each block is.
    at: Vec<Option<Place>>,
    /// So many steps of each rank are known to be over.
    known: Vec<usize>,
    /// Places that were sent from, with the step of the rank that takes the message.
    sent: Vec<(Place, usize, usize)>,
}

/// A place of the destination.
fn output(block: usize) -> Place {
    Place::Output((block as u32).into())
}

impl Rank {
    fn push(&mut self, operand: Operand, results: Vec<Target>) {
        self.steps.push(Step {
            round: self.steps.len() as u32,
            operands: vec![operand],
            results,
            chunks: 1,
        });
    }

    /// Whether a place of the destination has no block, and nothing that was sent from it may be
    /// on its way.
    fn is_free(&self, place: usize) -> bool {
        let place = output(place);
        let is_taken =
            |(p, to, step): &(Place, usize, usize)| *p != place || self.known[*to] > *step;
        !self.at.contains(&Some(place)) && self.sent.iter().all(is_taken)
    }
}

struct Draw {
    rng: Rng,
    ranks: Vec<Rank>,
}

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        (self.rng.next() % limit as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        match all.len() {
            0 => None,
            n => Some(all[self.below(n)]),
        }
    }

    /// Where a rank may put a block that comes. A place is lent while its own block has not come,
    /// or is in the source yet: so blocks in each other's places form no circle.
    fn place(&mut self, rank: usize, block: usize) -> Option<usize> {
        let r = &self.ranks[rank];
        let is_awaited = |p: &usize| matches!(r.at[*p], None | Some(Place::Input(_)));
        let others: Vec<usize> = (0..self.ranks.len())
            .filter(|p| *p != block && is_awaited(p) && r.is_free(*p))
            .collect();
        let own = r.is_free(block).then_some(block);
        match self.below(3) {
            0 => self.one_of(&others).or(own),
            _ => own.or_else(|| self.one_of(&others)),
        }
    }

    /// A rank that lacks a block and has a place for it.
    fn lacks(&mut self, block: usize, but: Option<usize>) -> Option<(usize, usize)> {
        let all: Vec<usize> = (0..self.ranks.len())
            .filter(|r| self.ranks[*r].at[block].is_none() && Some(*r) != but)
            .collect();
        let rank = self.one_of(&all)?;
        Some((rank, self.place(rank, block)?))
    }

    /// A rank takes a block that another has sent, and may send it on at once.
    fn receive(
        &mut self,
        from: usize,
        (rank, place): (usize, usize),
        block: usize,
        told: &[usize],
    ) {
        self.ranks[rank].at[block] = Some(output(place));
        let next = match self.below(2) {
            0 => self.lacks(block, None),
            _ => None,
        };
        let mut results = vec![Target::Local(output(place))];
        results.extend(next.map(|(to, _)| Target::to(to as u32)));
        let r = &mut self.ranks[rank];
        let own = r.known.clone();
        r.push(Operand::from(from as u32), results);
        for (known, told) in r.known.iter_mut().zip(told) {
            *known = (*known).max(*told);
        }
        if let Some(to) = next {
            self.sends((rank, output(place)), to, block, &own);
        }
    }

    /// A message of the last step of a rank.
    fn sends(
        &mut self,
        (rank, place): (usize, Place),
        to: (usize, usize),
        block: usize,
        known: &[usize],
    ) {
        let step = self.ranks[to.0].steps.len();
        let r = &mut self.ranks[rank];
        r.sent.push((place, to.0, step));
        let mut told = known.to_vec();
        told[rank] = r.steps.len() - 1;
        self.receive(rank, to, block, &told);
    }

    /// Sends a block to one rank or two that lack it.
    fn send(&mut self, rank: usize, block: usize) {
        let Some(place) = self.ranks[rank].at[block] else {
            return;
        };
        let Some(first) = self.lacks(block, None) else {
            return;
        };
        let second = match self.below(3) {
            0 => None,
            _ => self.lacks(block, Some(first.0)),
        };
        let both: Vec<(usize, usize)> = [Some(first), second].into_iter().flatten().collect();
        // On its way.
        for (to, place) in &both {
            self.ranks[*to].at[block] = Some(output(*place));
        }
        let results = both.iter().map(|(to, _)| Target::to(*to as u32));
        let results = results.collect();
        let known = self.ranks[rank].known.clone();
        let at = self.ranks[rank].steps.len();
        self.ranks[rank].push(Operand::Local(place), results);
        for to in both {
            debug_assert_eq!(self.ranks[rank].steps.len(), at + 1);
            self.sends((rank, place), to, block, &known);
        }
    }

    /// Copies a block to where it belongs, when that is free.
    fn settle(&mut self, rank: usize, block: usize) {
        let r = &mut self.ranks[rank];
        let from = r.at[block].filter(|place| *place != output(block));
        if let Some(from) = from.filter(|_| r.is_free(block)) {
            r.push(Operand::Local(from), vec![Target::Local(output(block))]);
            r.at[block] = Some(output(block));
        }
    }

    fn is_whole(&self) -> bool {
        let all = |r: &Rank| (0..r.at.len()).all(|block| r.at[block] == Some(output(block)));
        self.ranks.iter().all(all)
    }
}

/// The programs of so many ranks.
pub(super) fn all_gather(ranks: usize, order: u64) -> Vec<Program> {
    let mut draw = Draw {
        rng: Rng(order),
        ranks: Vec::new(),
    };
    while draw.ranks.is_empty() || !draw.is_whole() {
        let own = |rank: usize| {
            let mut at = vec![None; ranks];
            at[rank] = Some(Place::Input(0.into()));
            Rank {
                steps: Vec::new(),
                at,
                known: vec![0; ranks],
                sent: Vec::new(),
            }
        };
        draw.ranks = (0..ranks).map(own).collect();
        for n in 0..DRAWS {
            if n % 16 == 0 && draw.is_whole() {
                break;
            }
            let (rank, block) = (draw.below(ranks), draw.below(ranks));
            match draw.below(3) {
                0 => draw.settle(rank, block),
                _ => draw.send(rank, block),
            }
        }
    }
    let program = |(rank, r): (usize, Rank)| Program {
        kind: CollectiveKind::AllGather,
        algo: Algorithm::User,
        ranks: ranks as u32,
        rank: rank as u32,
        root: 0,
        block_chunks: 1,
        input_chunks: 1,
        output_chunks: ranks as u32,
        scratch_chunks: 0,
        order: Order::None,
        steps: r.steps,
    };
    draw.ranks.into_iter().enumerate().map(program).collect()
}
