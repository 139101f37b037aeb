//! The agreement of all ranks of a group whose ranks do not all have links, by dissemination.
//!
//! In round `k` each rank sends to the rank `2^k` places after it what it knows ([`Known`]), and
//! hears the same from the rank as far before it. After as many rounds as the number of ranks has
//! binary digits every rank knows of all: that they are there, and whether they were given alike.

use crate::collective::params::fold;

/// No rank.
const NONE: u16 = u16::MAX;

/// What is known of some ranks together. It may be joined with what includes some of them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    /// The lowest of the ranks.
    pub(crate) lowest: u16,
    /// The first that was given something else than that one; all ones: none.
    pub(crate) differs: u16,
    /// What that is: the number of a setting, or of the list of peers after the last.
    pub(crate) what: u8,
    /// The cards of all execute programs of rings.
    pub(crate) cards: bool,
    /// Of each value that the lowest was given, a byte of its hash.
    pub(crate) prints: [u8; 16],
}

impl Known {
    /// What one rank knows of itself.
    pub(crate) fn of(rank: u32, cards: bool, mut values: impl Iterator<Item = u64>) -> Known {
        let mut prints = [0; 16];
        for (print, value) in prints.iter_mut().zip(values.by_ref()) {
            let hash = fold(std::iter::once(value));
            *print = hash.to_le_bytes().iter().fold(0, |all, b| all ^ b);
        }
        debug_assert!(values.next().is_none(), "a value has no place in a round");
        Known {
            lowest: rank as u16,
            differs: NONE,
            what: 0,
            cards,
            prints,
        }
    }

    /// What is known of both sets of ranks.
    pub(super) fn with(&self, other: &Known) -> Known {
        let (a, b) = match self.lowest <= other.lowest {
            true => (self, other),
            false => (other, self),
        };
        let unlike = a.prints.iter().zip(&b.prints).position(|(x, y)| x != y);
        // The first of the others that differs from the lowest of all.
        let of_b = match unlike {
            Some(what) => (b.lowest, what as u8),
            None => (b.differs, b.what),
        };
        let (differs, what) = of_b.min((a.differs, a.what));
        Known {
            differs,
            what,
            cards: a.cards && b.cards,
            ..*a
        }
    }

    /// The first rank that differs, and in what.
    pub(crate) fn difference(&self) -> Option<(u32, u8)> {
        (self.differs != NONE).then_some((self.differs.into(), self.what))
    }
}

/// How far a rank is.
#[derive(Debug)]
pub(super) struct Joint {
    known: Known,
    /// What has come, by round.
    heard: Vec<Option<Known>>,
    /// Rounds whose message was sent.
    sent: usize,
    /// Rounds whose message is part of what is known.
    done: usize,
}

impl Joint {
    pub(super) fn new(own: Known, ranks: u32) -> Joint {
        let rounds = ranks.next_power_of_two().trailing_zeros();
        Joint {
            known: own,
            heard: vec![None; rounds as usize],
            sent: 0,
            done: 0,
        }
    }

    /// The ranks with which this one exchanges messages.
    pub(super) fn neighbors(rank: u32, ranks: u32) -> impl Iterator<Item = u32> + Clone {
        let distances = (0..32).map(|k| 1 << k).take_while(move |d| *d < ranks);
        distances.flat_map(move |d| [(rank + d) % ranks, (rank + ranks - d) % ranks])
    }

    /// The message of a round has come. `false`: it has before, or there is no such round.
    pub(super) fn hear(&mut self, round: u8, known: Known) -> bool {
        let place = self.heard.get_mut(usize::from(round));
        place.is_some_and(|p| p.replace(known).is_none())
    }

    /// The next message to be sent, if all that belongs into it has come: its round, how many
    /// places on it goes, and what it says.
    pub(super) fn next(&mut self) -> Option<(u8, u32, Known)> {
        while let Some(Some(known)) = self.heard.get(self.done) {
            if self.done >= self.sent {
                break;
            }
            self.known = self.known.with(known);
            self.done += 1;
        }
        let is_next = self.sent == self.done && self.sent < self.heard.len();
        is_next.then_some((self.sent as u8, 1 << self.sent, self.known))
    }

    /// It was.
    pub(super) fn was_sent(&mut self) {
        self.sent += 1;
    }

    /// What all ranks have said.
    pub(super) fn result(&self) -> Option<&Known> {
        (self.done == self.heard.len()).then_some(&self.known)
    }

    /// How many places back the rank is whose message is waited for.
    pub(super) fn awaits(&self) -> u32 {
        1 << self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All ranks, in rounds; the results.
    fn all(owns: &[Known]) -> Vec<Known> {
        let n = owns.len() as u32;
        let mut joints: Vec<_> = owns.iter().map(|own| Joint::new(*own, n)).collect();
        for _ in 0..32 {
            for r in 0..n {
                let Some((round, distance, known)) = joints[r as usize].next() else {
                    continue;
                };
                joints[r as usize].was_sent();
                let to = (r + distance) % n;
                assert!(Joint::neighbors(r, n).any(|x| x == to));
                assert!(Joint::neighbors(to, n).any(|x| x == r));
                assert!(joints[to as usize].hear(round, known));
                assert!(!joints[to as usize].hear(round, known), "twice");
            }
        }
        let results = joints.iter().map(|j| *j.result().expect("all rounds"));
        results.collect()
    }

    #[test]
    fn every_rank_names_the_first_that_differs_from_rank_0() {
        for n in (2..40).chain([64, 100]) {
            for odd in 0..n {
                let of = |r: u32| Known::of(r, r != odd, [5, u64::from(r == odd)].into_iter());
                let owns: Vec<_> = (0..n).map(of).collect();
                let first = if odd == 0 { 1 } else { odd };
                for k in all(&owns) {
                    assert_eq!(
                        (k.lowest, k.difference()),
                        (0, Some((first, 1))),
                        "{n} {odd}"
                    );
                    assert!(!k.cards);
                }
            }
            let alike: Vec<_> = (0..n)
                .map(|r| Known::of(r, true, [5, 6].into_iter()))
                .collect();
            let is_right = |k: &Known| k.cards && k.difference().is_none();
            assert!(all(&alike).iter().all(is_right));
        }
    }

    #[test]
    fn several_that_differ_are_told_apart() {
        // Against the definition: two values, some ranks unlike in each.
        let mut x = 9_u64;
        for n in 2..30u32 {
            for _ in 0..40 {
                let mut values = Vec::new();
                for _ in 0..n {
                    x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    values.push([u64::from(x >> 60 == 1), u64::from(x >> 61 == 5)]);
                }
                let of = |(r, v): (u32, &[u64; 2])| Known::of(r, true, v.iter().copied());
                let owns: Vec<_> = (0..).zip(&values).map(of).collect();
                let first = (0..n as usize).find(|r| values[*r] != values[0]);
                let want = first.map(|r| (r as u32, u8::from(values[r][0] == values[0][0])));
                assert!(all(&owns).iter().all(|k| k.difference() == want));
            }
        }
    }
}
