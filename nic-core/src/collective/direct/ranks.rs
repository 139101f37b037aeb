//! Sets of ranks of a communicator that uses the direct path.

/// Most ranks of such a communicator.
pub(crate) const MAX_DIRECT_RANKS: u32 = 256;

const WORDS: usize = (MAX_DIRECT_RANKS / u64::BITS) as usize;

/// A set of ranks, a bit for each.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ranks {
    words: [u64; WORDS],
    /// Words that have ever had a bit: most communicators need one.
    used: usize,
}

impl Ranks {
    /// All of `ranks` but one.
    pub(super) fn all_but(rank: u32, ranks: u32) -> Ranks {
        (0..ranks).filter(|r| *r != rank).collect()
    }

    #[inline]
    pub(super) fn insert(&mut self, rank: u32) {
        let word = (rank / u64::BITS) as usize;
        self.words[word] |= 1 << (rank % u64::BITS);
        self.used = self.used.max(word + 1);
    }

    #[inline]
    pub(super) fn remove(&mut self, rank: u32) {
        self.words[(rank / u64::BITS) as usize] &= !(1 << (rank % u64::BITS));
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.words == [0; WORDS]
    }

    /// In their order, as they were when this was called.
    #[inline]
    pub(super) fn iter(&self) -> Iter {
        Iter { left: *self, at: 0 }
    }
}

/// Ranks of a set.
pub(super) struct Iter {
    left: Ranks,
    at: usize,
}

impl Iterator for Iter {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        while self.at < self.left.used {
            let word = &mut self.left.words[self.at];
            if *word != 0 {
                let bit = word.trailing_zeros();
                *word &= *word - 1;
                return Some(self.at as u32 * u64::BITS + bit);
            }
            self.at += 1;
        }
        None
    }
}

impl FromIterator<u32> for Ranks {
    fn from_iter<I: IntoIterator<Item = u32>>(ranks: I) -> Ranks {
        let mut all = Ranks::default();
        ranks.into_iter().for_each(|r| all.insert(r));
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_holds_what_a_tree_holds(
            changes in proptest::collection::vec((0..MAX_DIRECT_RANKS, any::<bool>()), 0..600),
        ) {
            let (mut set, mut tree) = (Ranks::default(), BTreeSet::new());
            for (rank, adds) in changes {
                if adds {
                    set.insert(rank);
                    tree.insert(rank);
                } else {
                    set.remove(rank);
                    tree.remove(&rank);
                }
                prop_assert_eq!(set.is_empty(), tree.is_empty());
            }
            prop_assert!(set.iter().eq(tree.iter().copied()));
        }
    }

    #[test]
    fn all_but_one_are_the_others() {
        for ranks in [1, 2, 63, 64, 65, MAX_DIRECT_RANKS] {
            for rank in [0, ranks / 2, ranks - 1] {
                let others = Ranks::all_but(rank, ranks);
                let all = (0..ranks).filter(|r| *r != rank);
                assert!(others.iter().eq(all), "{rank} of {ranks}");
            }
        }
    }
}
