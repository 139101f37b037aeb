//! One GPU TLB: main and complementary tables, as in FpgaNIC §2.3.2 and Algorithm 1.
//!
//! A *group* is a 2 MiB-aligned range of GPU virtual addresses, that is 32 pages of 64 KiB; groups
//! are numbered by `va >> 21`. The main TLB has one entry per group. An entry is either *large*
//! (the group lies in one aligned 2 MiB piece of the bus: Algorithm 1, lines 7–11), or it points to
//! 32 consecutive entries of the complementary TLB, one per page (lines 12–18).
//!
//! The paper's table covers exactly one window, so its index says everything about the address.
//! Here each entry also holds the number of its group: a table smaller than the memory behind it
//! then works as a direct-mapped cache (see `bank`), and inside a window nothing changes.

use crate::directory::{Hit, PageGroup, NO_PAGE};
use crate::page_table::{
    GROUP_PAGES, GROUP_SHIFT, LARGE_PAGE_BYTES, PAGES_PER_LARGE, PAGE_BYTES, PAGE_SHIFT,
};
use zerocopy::FromZeros;

/// Sizes of one GTLB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GtlbConfig {
    /// Entries of the main TLB, 2 MiB each; a power of two, at most 2^24.
    pub main_entries: u32,
    /// Entries of the complementary TLB, 64 KiB each; a multiple of 32, at most 2^24.
    pub complementary_entries: u32,
}

impl Default for GtlbConfig {
    /// The paper's sizes: 16,384 main entries (32 GiB) and 2,048 complementary entries (64 groups).
    fn default() -> Self {
        GtlbConfig {
            main_entries: 16_384,
            complementary_entries: 2_048,
        }
    }
}

/// A size that no GTLB can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The main TLB is indexed by address bits.
    #[error("main_entries is {entries}; use a power of two up to 16777216")]
    MainEntries {
        /// The size asked for.
        entries: u32,
    },
    /// The complementary TLB is handed out in groups.
    #[error("complementary_entries is {entries}; use a multiple of 32 up to 16777216")]
    ComplementaryEntries {
        /// The size asked for.
        entries: u32,
    },
    /// The system refused memory for a main TLB.
    #[error("no memory for a GTLB of {entries} entries; check `ulimit -v` and free memory")]
    Memory {
        /// Its size.
        entries: u32,
    },
    /// A NIC without a GTLB can reach no memory.
    #[error("{instances} GTLB instances; use 1 to 64")]
    Instances {
        /// The number asked for.
        instances: usize,
    },
}

impl GtlbConfig {
    /// Checks the sizes.
    ///
    /// # Errors
    /// [`ConfigError`] names the size that cannot be.
    pub fn check(&self) -> Result<(), ConfigError> {
        if !self.main_entries.is_power_of_two() || self.main_entries > 1 << 24 {
            return Err(ConfigError::MainEntries {
                entries: self.main_entries,
            });
        }
        if !self.complementary_entries.is_multiple_of(GROUP_PAGES)
            || self.complementary_entries > 1 << 24
        {
            return Err(ConfigError::ComplementaryEntries {
                entries: self.complementary_entries,
            });
        }
        Ok(())
    }
}

/// An entry that cannot be written through the BAR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The bus address is not aligned to the page of the entry.
    #[error("bus address {bus:#x} is not a multiple of {to:#x}, the page size of the entry")]
    Unaligned {
        /// Address staged.
        bus: u64,
        /// Page size in bytes.
        to: u64,
    },
    /// No such complementary entry, or not the first of a group.
    #[error(
        "complementary entry {index} of {entries} does not exist or does not begin a group of 32"
    )]
    NoSuchEntry {
        /// Index given.
        index: u32,
        /// Entries configured.
        entries: u32,
    },
    /// Another main entry points there.
    #[error(
        "complementary entry {index} belongs to another main entry; invalidate that one first"
    )]
    ComplementaryInUse {
        /// Index given.
        index: u32,
    },
}

/// The complementary TLB has no free group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ComplementaryFull;

/// What a main entry says about its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Installed {
    /// Nothing: the entry is invalid or holds another group.
    No,
    /// A 2 MiB entry.
    Large,
    /// 32 complementary entries.
    Base,
}

const KIND_LARGE: u64 = 1;
const KIND_BASE: u64 = 2;
const KIND_MASK: u64 = 3;
/// Marks a complementary entry that holds a page; bus addresses of pages leave the bit free.
const PAGE_VALID: u64 = 1;
/// A complementary group that no main entry points to.
const NO_OWNER: u64 = u64::MAX;

/// Row of the main TLB.
#[derive(Debug, Clone, Copy, FromZeros)]
struct MainEntry {
    /// Group number << 2 | kind; 0 when invalid.
    tag: u64,
    /// Bus address of a large page, or first complementary entry (Algorithm 1, line 16).
    target: u64,
}

const INVALID: MainEntry = MainEntry { tag: 0, target: 0 };

/// One GTLB instance.
#[derive(Debug)]
pub(crate) struct Gtlb {
    main: Box<[MainEntry]>,
    comp: Box<[u64]>,
    /// Per complementary group: the group that points to it.
    owner: Box<[u64]>,
    /// Complementary groups without owner; never grows past its first capacity.
    free: Vec<u32>,
    /// Next complementary group to evict: first in, first out.
    hand: u32,
}

impl Gtlb {
    /// An empty table; `config` was checked.
    ///
    /// # Errors
    /// [`ConfigError::Memory`].
    pub(crate) fn new(config: GtlbConfig) -> Result<Gtlb, ConfigError> {
        let groups = config.complementary_entries / GROUP_PAGES;
        // Pages of the table that no entry is in take no memory.
        let entries = config.main_entries;
        let main = <[MainEntry]>::new_box_zeroed_with_elems(entries as usize);
        Ok(Gtlb {
            main: main.map_err(|_| ConfigError::Memory { entries })?,
            comp: vec![0; config.complementary_entries as usize].into_boxed_slice(),
            owner: vec![NO_OWNER; groups as usize].into_boxed_slice(),
            free: (0..groups).rev().collect(),
            hand: 0,
        })
    }

    /// Sizes, as configured.
    pub(crate) fn config(&self) -> GtlbConfig {
        GtlbConfig {
            main_entries: self.main.len() as u32,
            complementary_entries: self.comp.len() as u32,
        }
    }

    fn slot(&self, group: u64) -> usize {
        // The length is a power of two (`GtlbConfig::check`).
        (group & (self.main.len() as u64 - 1)) as usize
    }

    /// Translates one address, without side effects.
    #[inline]
    pub(crate) fn lookup(&self, va: u64) -> Option<Hit> {
        let group = va >> GROUP_SHIFT;
        let entry = self.main[self.slot(group)];
        if entry.tag == group << 2 | KIND_LARGE {
            let offset = va & (LARGE_PAGE_BYTES - 1);
            return Some(Hit {
                bus: entry.target + offset,
                left: LARGE_PAGE_BYTES - offset,
            });
        }
        if entry.tag != group << 2 | KIND_BASE {
            return None;
        }
        let page = (va >> PAGE_SHIFT) & (GROUP_PAGES as u64 - 1);
        let word = self.comp[(entry.target + page) as usize];
        if word & PAGE_VALID == 0 {
            return None;
        }
        let offset = va & (PAGE_BYTES - 1);
        Some(Hit {
            bus: (word & !PAGE_VALID) + offset,
            left: PAGE_BYTES - offset,
        })
    }

    /// What is installed for a group.
    pub(crate) fn installed(&self, group: u64) -> Installed {
        let tag = self.main[self.slot(group)].tag;
        if tag == group << 2 | KIND_LARGE {
            Installed::Large
        } else if tag == group << 2 | KIND_BASE {
            Installed::Base
        } else {
            Installed::No
        }
    }

    /// Complementary groups that are free.
    pub(crate) fn free_groups(&self) -> u32 {
        self.free.len() as u32
    }

    /// Installs a group (Algorithm 1, lines 6–19), replacing what its main entry held.
    ///
    /// Without `evict` a scattered group needs a free complementary group.
    pub(crate) fn insert(
        &mut self,
        group: u64,
        content: &PageGroup,
        evict: bool,
    ) -> Result<(), ComplementaryFull> {
        let slot = self.slot(group);
        self.clear_slot(slot);
        match content {
            PageGroup::Large(bus) => {
                self.main[slot] = MainEntry {
                    tag: group << 2 | KIND_LARGE,
                    target: *bus,
                };
            }
            PageGroup::Pages(pages) => {
                let at = self.take_complementary(evict)?;
                let first = at * GROUP_PAGES;
                for (word, bus) in self.comp[first as usize..].iter_mut().zip(pages.iter()) {
                    *word = if *bus == NO_PAGE { 0 } else { bus | PAGE_VALID };
                }
                self.owner[at as usize] = group;
                self.main[slot] = MainEntry {
                    tag: group << 2 | KIND_BASE,
                    target: first as u64,
                };
            }
        }
        Ok(())
    }

    /// Command 1 of the BAR: a main entry of 2 MiB (Algorithm 1, lines 9–10).
    pub(crate) fn write_large(&mut self, group: u64, bus: u64) -> Result<(), EntryError> {
        if !bus.is_multiple_of(LARGE_PAGE_BYTES) {
            return Err(EntryError::Unaligned {
                bus,
                to: LARGE_PAGE_BYTES,
            });
        }
        let slot = self.slot(group);
        self.clear_slot(slot);
        self.main[slot] = MainEntry {
            tag: group << 2 | KIND_LARGE,
            target: bus,
        };
        Ok(())
    }

    /// Command 2 of the BAR: one complementary entry (line 14). Its group is no longer handed out.
    pub(crate) fn write_page(&mut self, index: u32, bus: u64) -> Result<(), EntryError> {
        if !bus.is_multiple_of(PAGE_BYTES) {
            return Err(EntryError::Unaligned {
                bus,
                to: PAGE_BYTES,
            });
        }
        let entries = self.comp.len() as u32;
        let Some(word) = self.comp.get_mut(index as usize) else {
            return Err(EntryError::NoSuchEntry { index, entries });
        };
        *word = bus | PAGE_VALID;
        self.free.retain(|at| *at != index / GROUP_PAGES);
        Ok(())
    }

    /// Command 3 of the BAR: a main entry that points to complementary entries (lines 15–16).
    pub(crate) fn write_pointer(&mut self, group: u64, first: u32) -> Result<(), EntryError> {
        let entries = self.comp.len() as u32;
        if first >= entries || !first.is_multiple_of(GROUP_PAGES) {
            return Err(EntryError::NoSuchEntry {
                index: first,
                entries,
            });
        }
        let at = first / GROUP_PAGES;
        let owner = self.owner[at as usize];
        if owner != NO_OWNER && owner != group {
            return Err(EntryError::ComplementaryInUse { index: first });
        }
        if owner == group {
            return Ok(()); // it points there already; clearing would wipe the pages
        }
        let slot = self.slot(group);
        self.clear_slot(slot);
        self.free.retain(|free| *free != at);
        self.owner[at as usize] = group;
        self.main[slot] = MainEntry {
            tag: group << 2 | KIND_BASE,
            target: first as u64,
        };
        Ok(())
    }

    /// Invalidates the entries of a group, if any.
    pub(crate) fn invalidate(&mut self, group: u64) {
        if self.installed(group) != Installed::No {
            self.clear_slot(self.slot(group));
        }
    }

    /// Invalidates everything.
    pub(crate) fn clear(&mut self) {
        self.main.fill(INVALID);
        self.comp.fill(0);
        self.owner.fill(NO_OWNER);
        self.free.clear();
        self.free.extend((0..self.owner.len() as u32).rev());
    }

    fn clear_slot(&mut self, slot: usize) {
        let old = std::mem::replace(&mut self.main[slot], INVALID);
        if old.tag & KIND_MASK == KIND_BASE {
            let at = old.target as u32 / GROUP_PAGES;
            self.owner[at as usize] = NO_OWNER;
            // A pointer written later must not find stale pages.
            let first = old.target as usize;
            self.comp[first..first + PAGES_PER_LARGE].fill(0);
            self.free.push(at);
        }
    }

    fn take_complementary(&mut self, evict: bool) -> Result<u32, ComplementaryFull> {
        if let Some(at) = self.free.pop() {
            return Ok(at);
        }
        if !evict || self.owner.is_empty() {
            return Err(ComplementaryFull);
        }
        let victim = self.owner[self.hand as usize];
        self.hand = (self.hand + 1) % self.owner.len() as u32;
        self.invalidate(victim); // returns its group to the free list
        self.free.pop().ok_or(ComplementaryFull)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether any page of a group is translated.
    fn any_page(t: &Gtlb, group: u64) -> bool {
        let pages = 0..u64::from(GROUP_PAGES);
        let mut pages = pages.map(|p| (group << GROUP_SHIFT) + (p << PAGE_SHIFT));
        pages.any(|va| t.lookup(va).is_some())
    }

    #[test]
    fn a_reused_complementary_group_has_no_page_of_its_last_owner() {
        let config = GtlbConfig {
            main_entries: 16,
            complementary_entries: GROUP_PAGES,
        };
        let full: [u64; GROUP_PAGES as usize] =
            std::array::from_fn(|i| (1 << 30) + i as u64 * 2 * PAGE_BYTES);
        let mut holes = [NO_PAGE; GROUP_PAGES as usize];
        holes[5] = 7 << 30;
        // Each way in which the first owner may lose the group, which is the only one.
        let losses: [fn(&mut Gtlb); 4] = [
            |t| t.invalidate(3),
            |t| t.insert(3, &PageGroup::Large(0), false).unwrap(),
            |t| t.write_large(3, 0).unwrap(),
            // Another group of the same main entry.
            |t| t.insert(3 + 16, &PageGroup::Large(0), false).unwrap(),
        ];
        for (way, lose) in losses.into_iter().enumerate() {
            let taken = || {
                let mut t = Gtlb::new(config).unwrap();
                t.insert(3, &PageGroup::Pages(Box::new(full)), false)
                    .unwrap();
                assert!(any_page(&t, 3) && t.free_groups() == 0);
                lose(&mut t);
                assert_eq!(t.free_groups(), 1, "way {way}");
                t
            };
            // By a pointer alone, and by a pointer and one page.
            let mut t = taken();
            t.write_pointer(8, 0).unwrap();
            assert!(
                !any_page(&t, 8),
                "way {way}: pages of group 3 behind group 8"
            );
            t.write_page(2, 9 << 30).unwrap();
            let found = (0..u64::from(GROUP_PAGES))
                .filter(|p| t.lookup((8 << GROUP_SHIFT) + (p << PAGE_SHIFT)).is_some());
            assert_eq!(found.collect::<Vec<_>>(), [2], "way {way}");
            // By a group with holes.
            let mut t = taken();
            t.insert(8, &PageGroup::Pages(Box::new(holes)), false)
                .unwrap();
            let found = (0..u64::from(GROUP_PAGES))
                .filter(|p| t.lookup((8 << GROUP_SHIFT) + (p << PAGE_SHIFT)).is_some());
            assert_eq!(found.collect::<Vec<_>>(), [5], "way {way}");
        }
        // Taken from an owner that still has it.
        let mut t = Gtlb::new(config).unwrap();
        t.insert(3, &PageGroup::Pages(Box::new(full)), false)
            .unwrap();
        t.insert(8, &PageGroup::Pages(Box::new(holes)), true)
            .unwrap();
        assert!(!any_page(&t, 3));
        let found = (0..u64::from(GROUP_PAGES))
            .filter(|p| t.lookup((8 << GROUP_SHIFT) + (p << PAGE_SHIFT)).is_some());
        assert_eq!(found.collect::<Vec<_>>(), [5]);
    }
}
