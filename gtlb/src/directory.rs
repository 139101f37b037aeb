//! The full page table, from which the GTLBs are refilled.
//!
//! It stands for the list that the GPU driver hands to the NIC's driver. Pages are kept by group of
//! 2 MiB, already coalesced (Algorithm 1, line 3).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::page_table::{GROUP_SHIFT, LARGE_PAGE_BYTES, PAGES_PER_LARGE, PAGE_BYTES, PAGE_SHIFT};

/// Stands for "no page here"; never a bus address, because it is not aligned.
pub(crate) const NO_PAGE: u64 = u64::MAX;

/// The bus addresses of a group's 32 pages.
pub(crate) type Pages = [u64; PAGES_PER_LARGE];

/// A translated address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Bus address.
    pub(crate) bus: u64,
    /// Bytes to the end of the entry, this one included.
    pub(crate) left: u64,
}

/// A group of 32 pages, coalesced when that is possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageGroup {
    /// All pages lie in one aligned 2 MiB piece of the bus.
    Large(u64),
    /// Pages one by one; [`NO_PAGE`] where none is mapped.
    Pages(Box<Pages>),
}

impl PageGroup {
    /// Coalesces (FpgaNIC §2.3.2: contiguous "and aligned within the 2MB page"). `None` when no
    /// page is mapped.
    ///
    /// Without the alignment an entry would need a full adder in place of wires; and a group with a
    /// hole must not be coalesced, or an address that is not mapped would translate.
    pub(crate) fn of(pages: &Pages) -> Option<PageGroup> {
        let first = pages[0];
        let contiguous = first != NO_PAGE
            && first.is_multiple_of(LARGE_PAGE_BYTES)
            && pages
                .iter()
                .enumerate()
                .all(|(i, bus)| *bus == first + i as u64 * PAGE_BYTES);
        if contiguous {
            Some(PageGroup::Large(first))
        } else if pages.iter().all(|bus| *bus == NO_PAGE) {
            None
        } else {
            Some(PageGroup::Pages(Box::new(*pages)))
        }
    }

    /// Page by page.
    pub(crate) fn pages(&self) -> Pages {
        match self {
            PageGroup::Large(bus) => std::array::from_fn(|i| bus + i as u64 * PAGE_BYTES),
            PageGroup::Pages(pages) => **pages,
        }
    }

    /// The translation of `va`, which lies in this group, to the end of its page or of the group.
    pub(crate) fn lookup(&self, va: u64) -> Option<Hit> {
        let (bus, size) = match self {
            PageGroup::Large(bus) => (*bus, LARGE_PAGE_BYTES),
            PageGroup::Pages(pages) => {
                let index = (va >> PAGE_SHIFT) as usize & (PAGES_PER_LARGE - 1);
                (pages[index], PAGE_BYTES)
            }
        };
        if bus == NO_PAGE {
            return None;
        }
        let offset = va & (size - 1);
        Some(Hit {
            bus: bus + offset,
            left: size - offset,
        })
    }
}

/// All mapped pages.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    groups: HashMap<u64, PageGroup, BuildHasherDefault<GroupHasher>>,
}

impl Directory {
    /// The group with this number.
    pub(crate) fn group(&self, group: u64) -> Option<&PageGroup> {
        self.groups.get(&group)
    }

    /// Number of groups with a page.
    pub(crate) fn len(&self) -> usize {
        self.groups.len()
    }

    /// The numbers of those groups, in no order.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.groups.keys().copied()
    }

    /// The pages of a group; all [`NO_PAGE`] when none is mapped.
    pub(crate) fn pages(&self, group: u64) -> Pages {
        self.group(group)
            .map_or([NO_PAGE; PAGES_PER_LARGE], PageGroup::pages)
    }

    /// Replaces a group; `None` removes it.
    pub(crate) fn set(&mut self, group: u64, content: Option<PageGroup>) {
        match content {
            Some(content) => self.groups.insert(group, content),
            None => self.groups.remove(&group),
        };
    }

    /// Room for that many more groups, so that mapping does not rehash again and again.
    pub(crate) fn reserve(&mut self, groups: usize) {
        self.groups.reserve(groups);
    }

    /// The translation of `va`, to the end of its page or coalesced group.
    pub(crate) fn lookup(&self, va: u64) -> Option<Hit> {
        self.group(va >> GROUP_SHIFT)?.lookup(va)
    }
}

/// Spreads group numbers, which come in runs. The keys are addresses that the driver reports and no
/// attacker chooses, so the slower default hash is not needed.
#[derive(Debug, Default)]
struct GroupHasher(u64);

impl Hasher for GroupHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(*byte as u64);
        }
    }
    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }
}
