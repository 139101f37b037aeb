//! Memory regions: their keys and rights, their life, and the operations in flight on them.
//!
//! A local key is a slot of the region table and a generation, so that the key of a freed region is
//! refused although its slot serves another. A remote key is the local key sent through a keyed
//! permutation of 32 bits: as unique, as quick to check, but a peer that knows one key cannot tell
//! the next. It guards against mistakes and guesses; it is not cryptography.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use ringbell_nic_abi::{GpuVa, Lkey, PdId, Rkey};

/// Bits of a local key that name the slot.
const SLOT_BITS: u32 = 20;
/// Most regions of one NIC.
pub(crate) const MAX_REGIONS: usize = 1 << SLOT_BITS;
const GENERATIONS: u32 = 1 << (32 - SLOT_BITS);

/// Slot of a key; it may lie outside the table.
#[inline]
fn slot_of(lkey: u32) -> usize {
    lkey as usize & (MAX_REGIONS - 1)
}

/// First key of a slot. Generation 0 is left out: key 0 means "find the region by address".
fn first_key(slot: usize) -> Lkey {
    Lkey(1 << SLOT_BITS | slot as u32)
}

/// The next key of the same slot.
fn next_key(lkey: Lkey) -> Lkey {
    let generation = (lkey.0 >> SLOT_BITS) % (GENERATIONS - 1) + 1;
    Lkey(generation << SLOT_BITS | slot_of(lkey.0) as u32)
}

/// The permutation from local to remote keys.
#[derive(Debug)]
pub(crate) struct RemoteKeys {
    rounds: [u64; 4],
}

impl RemoteKeys {
    /// A permutation chosen by the system's entropy. Only the values of remote keys depend on it,
    /// and they must differ from run to run.
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

/// Rights of a region. Local reads are always granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// The NIC may write for its own queues (receive).
    pub local_write: bool,
    /// Peers that hold the remote key may read.
    pub remote_read: bool,
    /// Peers that hold the remote key may write; needs `local_write`.
    pub remote_write: bool,
    /// Peers that hold the remote key may update words atomically; needs `local_write`.
    pub remote_atomic: bool,
}

impl Access {
    /// Send buffers: the NIC reads, peers have no access.
    pub const LOCAL_READ: Access = Access {
        local_write: false,
        remote_read: false,
        remote_write: false,
        remote_atomic: false,
    };
    /// Send and receive buffers.
    pub const LOCAL: Access = Access {
        local_write: true,
        remote_read: false,
        remote_write: false,
        remote_atomic: false,
    };

    /// Send and receive buffers into which the NICs of a communicator's other ranks store results:
    /// in place, one pass over memory needs it.
    pub const COLLECTIVE: Access = Access {
        local_write: true,
        remote_read: false,
        remote_write: true,
        remote_atomic: false,
    };

    /// Memory for all one-sided operations of peers that hold its key.
    pub const REMOTE: Access = Access {
        local_write: true,
        remote_read: true,
        remote_write: true,
        remote_atomic: true,
    };

    /// Whether an operation may do this.
    #[inline]
    pub const fn grants(self, need: Need) -> bool {
        match need {
            Need::Read => true,
            Need::Write => self.local_write,
            Need::RemoteRead => self.remote_read,
            Need::RemoteWrite => self.remote_write,
            Need::RemoteAtomic => self.remote_atomic,
        }
    }
}

/// An operation's access to its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The NIC reads (send).
    Read,
    /// The NIC writes (receive).
    Write,
    /// The NIC reads for a peer (`GET`).
    RemoteRead,
    /// The NIC writes for a peer (`PUT`, signals).
    RemoteWrite,
    /// The NIC updates a word for a peer (`FETCH_ADD`, `COMPARE_SWAP`).
    RemoteAtomic,
}

/// A registered range of GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Key for descriptors of the region's protection domain.
    pub lkey: Lkey,
    /// Key that a peer must present.
    pub rkey: Rkey,
    /// Protection domain.
    pub pd: PdId,
    /// First byte.
    pub va: GpuVa,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
}

/// A region as a look-up by address shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionInfo {
    /// Range, keys and rights. The remote key is the one that registration gave.
    pub region: MemoryRegion,
    /// Bus address of the first byte of a [flat](crate::Mmu::register_flat) region; `None` for
    /// memory that the GTLBs translate.
    pub flat: Option<u64>,
    /// Operations in flight.
    pub pins: u32,
    /// Whether new operations are accepted: not once it is being freed.
    pub live: bool,
}

/// Life of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegionState {
    /// In use.
    Live,
    /// No new pins; operations in flight go on.
    Freeing,
    /// Operations did not end in time: no DMA any more, and the memory must not be reused.
    Quarantined,
    /// Freed; the slot waits for its next region.
    Free,
}

/// Row of the region table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region {
    pub(crate) lkey: Lkey,
    pub(crate) state: RegionState,
    pub(crate) access: Access,
    pub(crate) pd: PdId,
    /// Operations in flight.
    pub(crate) pins: u32,
    pub(crate) start: u64,
    /// First byte after the region.
    pub(crate) end: u64,
    /// Bus address of the first byte, when the range is contiguous on the bus and needs no entry.
    pub(crate) flat: Option<u64>,
}

impl Region {
    /// Whether `start..end` lies inside.
    #[inline]
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        self.start <= start && end <= self.end
    }
}

/// Slots that rest before one is used again, so that a generation lasts.
const RESTING: usize = 256;

/// All regions of a NIC.
#[derive(Debug, Default)]
pub(crate) struct RegionTable {
    slots: Vec<Region>,
    /// Freed slots, oldest first.
    free: VecDeque<u32>,
}

impl RegionTable {
    /// Adds a live region; `None` when all slots are taken.
    pub(crate) fn add(
        &mut self,
        pd: PdId,
        start: u64,
        end: u64,
        access: Access,
        flat: Option<u64>,
    ) -> Option<Lkey> {
        let full = self.slots.len() == MAX_REGIONS;
        let reuse = if full || self.free.len() > RESTING {
            self.free.pop_front()
        } else {
            None
        };
        let (slot, lkey) = match reuse {
            Some(slot) => (slot as usize, next_key(self.slots[slot as usize].lkey)),
            None if full => return None,
            None => (self.slots.len(), first_key(self.slots.len())),
        };
        let region = Region {
            lkey,
            state: RegionState::Live,
            access,
            pd,
            pins: 0,
            start,
            end,
            flat,
        };
        if slot == self.slots.len() {
            self.slots.push(region);
        } else {
            self.slots[slot] = region;
        }
        Some(lkey)
    }

    /// The row that last had this key; it may be [`RegionState::Free`].
    #[inline]
    pub(crate) fn find(&self, lkey: u32) -> Option<&Region> {
        self.slots.get(slot_of(lkey)).filter(|r| r.lkey.0 == lkey)
    }

    /// As [`RegionTable::find`], to change.
    #[inline]
    pub(crate) fn find_mut(&mut self, lkey: u32) -> Option<&mut Region> {
        self.slots
            .get_mut(slot_of(lkey))
            .filter(|r| r.lkey.0 == lkey)
    }

    /// Frees a row.
    pub(crate) fn remove(&mut self, lkey: Lkey) {
        if let Some(region) = self.find_mut(lkey.0) {
            if region.state != RegionState::Free {
                region.state = RegionState::Free;
                self.free.push_back(slot_of(lkey.0) as u32);
            }
        }
    }

    /// Rows that are not free.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.slots.iter().filter(|r| r.state != RegionState::Free)
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
            let mut lkey = first_key(slot);
            for _ in 0..3 {
                assert!(seen.insert(a.of(lkey)), "{lkey}");
                assert_eq!(a.local(a.of(lkey)), lkey);
                same += usize::from(a.of(lkey) == b.of(lkey));
                lkey = next_key(lkey);
            }
        }
        // 30,000 keys agree by chance with probability 2^-32 each.
        assert!(same < 10, "{same}");
    }

    #[test]
    fn generations_cycle_without_zero() {
        let mut lkey = first_key(7);
        for _ in 0..GENERATIONS - 1 {
            assert_ne!(lkey.0 >> SLOT_BITS, 0);
            assert_eq!(slot_of(lkey.0), 7);
            lkey = next_key(lkey);
        }
        assert_eq!(lkey, first_key(7));
    }
}
