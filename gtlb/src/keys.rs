//! Keys of memory regions: slot numbers with a generation, and their permutation for peers.
//!
//! A local key is a slot of the region table and a generation, so that the key of a freed region is
//! refused although its slot serves another. A remote key is the local key sent through a keyed
//! permutation of 32 bits: as unique, as quick to check, but a peer that knows one key cannot tell
//! the next. It guards against mistakes and guesses; it is not cryptography.

use std::hash::{BuildHasher, RandomState};

use ringbell_nic_abi::{Lkey, Rkey};

/// Bits of a local key that name the slot.
const SLOT_BITS: u32 = 20;
/// Most regions of one NIC.
pub(crate) const MAX_REGIONS: usize = 1 << SLOT_BITS;
const GENERATIONS: u32 = 1 << (32 - SLOT_BITS);

/// Slot of a key; it may lie outside the table.
#[inline]
pub(crate) fn slot_of(lkey: u32) -> usize {
    lkey as usize & (MAX_REGIONS - 1)
}

/// First key of a slot. Generation 0 is left out: key 0 means "find the region by address".
pub(crate) fn first(slot: usize) -> Lkey {
    Lkey(1 << SLOT_BITS | slot as u32)
}

/// The next key of the same slot.
pub(crate) fn next(lkey: Lkey) -> Lkey {
    let generation = (lkey.0 >> SLOT_BITS) % (GENERATIONS - 1) + 1;
    Lkey(generation << SLOT_BITS | slot_of(lkey.0) as u32)
}

/// The permutation from local to remote keys.
#[derive(Debug)]
pub(crate) struct RemoteKeys {
    rounds: [u64; 4],
}

impl RemoteKeys {
    /// A permutation chosen by the system's entropy. Only the values of remote keys depend on it, and
    /// they must differ from run to run.
    #[allow(clippy::disallowed_methods)]
    pub(crate) fn random() -> RemoteKeys {
        // `RandomState` is the standard library's only source of entropy; SipHash spreads it.
        let state = RandomState::new();
        RemoteKeys {
            rounds: std::array::from_fn(|i| state.hash_one(i)),
        }
    }

    /// The remote key of a local key: a Feistel network, hence a permutation for any rounds.
    pub(crate) fn of(&self, lkey: Lkey) -> Rkey {
        let (mut left, mut right) = ((lkey.0 >> 16) as u16, lkey.0 as u16);
        for key in self.rounds {
            let mixed = (key ^ right as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (left, right) = (right, left ^ (mixed >> 48) as u16);
        }
        Rkey((left as u32) << 16 | right as u32)
    }

    /// The local key of a remote key: the rounds, backwards. Any number has one.
    #[inline]
    pub(crate) fn local(&self, rkey: Rkey) -> Lkey {
        let (mut left, mut right) = ((rkey.0 >> 16) as u16, rkey.0 as u16);
        for key in self.rounds.into_iter().rev() {
            let mixed = (key ^ left as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (left, right) = (right ^ (mixed >> 48) as u16, left);
        }
        Lkey((left as u32) << 16 | right as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn remote_keys_are_unique_and_differ_between_nics() {
        let (a, b) = (RemoteKeys::random(), RemoteKeys::random());
        let mut seen = HashSet::new();
        let mut same = 0;
        for slot in 0..10_000 {
            let mut lkey = first(slot);
            for _ in 0..3 {
                assert!(seen.insert(a.of(lkey)), "{lkey}");
                assert_eq!(a.local(a.of(lkey)), lkey);
                same += usize::from(a.of(lkey) == b.of(lkey));
                lkey = next(lkey);
            }
        }
        // 30,000 keys agree by chance with probability 2^-32 each.
        assert!(same < 10, "{same}");
    }

    #[test]
    fn generations_cycle_without_zero() {
        let mut lkey = first(7);
        for _ in 0..GENERATIONS - 1 {
            assert_ne!(lkey.0 >> SLOT_BITS, 0);
            assert_eq!(slot_of(lkey.0), 7);
            lkey = next(lkey);
        }
        assert_eq!(lkey, first(7));
    }
}
