//! Driver of a card's GTLB: FpgaNIC's Algorithm 1 (§2.3.2), register by register.
//!
//! [`CardGtlb`] keeps a shadow copy of one GTLB instance, because a card's entries cannot be read
//! back: which groups of 2 MiB are one entry, which point to 32 complementary entries, and which of
//! these are free. The card may be a [`CardBar`], or a software NIC, whose registers act as well
//! ([`Nic::bar_write32`](ringbell_nic_core::Nic::bar_write32)). A software NIC that frees a memory
//! region drops the entries of its groups by itself: unmap them in the shadow copy too.

use std::collections::BTreeMap;

use ringbell_gtlb::{PageTable, LARGE_PAGE_BYTES, PAGE_BYTES};
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::GpuVa;

use crate::pages::{PageSourceError, PageTableSource};
use crate::CardBar;
use ringbell_nic_core::bar::{BarError, Registers};

/// Pages of a group.
const GROUP: usize = (LARGE_PAGE_BYTES / PAGE_BYTES) as usize;

/// Commands of `GTLB_COMMAND`.
const LARGE: u32 = 1;
const PAGE: u32 = 2;
const POINTER: u32 = 3;
const INVALIDATE: u32 = 4;

impl Registers for CardBar {
    fn read_register(&self, reg: Reg) -> Result<u32, BarError> {
        Ok(self.read(reg))
    }
    fn write_register(&self, reg: Reg, value: u32) -> Result<(), BarError> {
        self.write(reg, value)
    }
}

/// GPU memory that a card's GTLB does not take.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CardGtlbError {
    /// The source has no bus addresses.
    #[error(transparent)]
    Source(#[from] PageSourceError),
    /// A register was refused.
    #[error(transparent)]
    Register(#[from] BarError),
    /// There is no such instance, or its sizes are invalid.
    #[error("GTLB instance {instance} of {instances} has {main} main and {complementary} complementary entries; is the card's BAR that of a NIC?")]
    NoInstance {
        /// The requested instance.
        instance: u32,
        /// Number of instances.
        instances: u32,
        /// Its main entries.
        main: u32,
        /// Its complementary entries.
        complementary: u32,
    },
    /// The memory lies outside of the window of the instance.
    #[error("{va} is outside of the GTLB's window {base} + {len:#x}; use another instance for it")]
    OutsideWindow {
        /// The first page outside.
        va: GpuVa,
        /// First byte of the window.
        base: GpuVa,
        /// Bytes of the window.
        len: u64,
    },
    /// A page is mapped already.
    #[error("{va} is in the GTLB already; take it out first")]
    Taken {
        /// The page.
        va: GpuVa,
    },
    /// A page is not mapped.
    #[error("{va} is not in the GTLB")]
    NotMapped {
        /// The page.
        va: GpuVa,
    },
    /// Addresses that are no multiple of the page size.
    #[error("address {addr:#x} in the page table for {va} is not a multiple of 64 KiB")]
    Unaligned {
        /// First page of the table.
        va: GpuVa,
        /// The address at fault.
        addr: u64,
    },
    /// More scattered groups than there are complementary entries.
    #[error("{needed} more groups of 2 MiB are scattered, but the GTLB has room for {free}; use memory that is contiguous on the bus (larger allocations), or fewer buffers")]
    Full {
        /// Groups that need complementary entries.
        needed: usize,
        /// Groups that are free.
        free: usize,
    },
}

/// Content of a main entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    /// Bus address of each page that is mapped.
    pages: [Option<u64>; GROUP],
    /// Number of its group of complementary entries; `None` when it is one entry of 2 MiB.
    complementary: Option<u32>,
}

impl Group {
    /// Address of the whole group, when it is one aligned piece of 2 MiB (Algorithm 1, line 7).
    fn piece(&self) -> Option<u64> {
        let first = self.pages[0]?;
        let next = |i: usize| first.checked_add(i as u64 * PAGE_BYTES);
        let whole = (0..GROUP).all(|i| self.pages[i].is_some() && self.pages[i] == next(i));
        (whole && first.is_multiple_of(LARGE_PAGE_BYTES)).then_some(first)
    }
}

/// One GTLB instance of a card, and its entries as written.
#[derive(Debug)]
pub struct CardGtlb<'a, R: Registers> {
    card: &'a R,
    instance: u32,
    base: u64,
    main: u32,
    groups: BTreeMap<u64, Group>,
    free: Vec<u32>,
}

impl<'a, R: Registers> CardGtlb<'a, R> {
    /// Takes an instance, sets its window's base to `base` (a multiple of 2 MiB), and drops its
    /// entries.
    ///
    /// # Errors
    /// [`CardGtlbError::NoInstance`], or the card refuses the window.
    pub fn new(card: &'a R, instance: u32, base: GpuVa) -> Result<Self, CardGtlbError> {
        let instances = card.read_register(Reg::GtlbInstances)?;
        let mut sizes = (0, 0);
        if instance < instances {
            card.write_register(Reg::GtlbSelect, instance)?;
            sizes = (
                card.read_register(Reg::GtlbMainEntries)?,
                card.read_register(Reg::GtlbComplementaryEntries)?,
            );
        }
        let (main, complementary) = sizes;
        let groups = complementary / GROUP as u32;
        // Checks the sizes as a GTLB has them: a card that is not there reads ones.
        if !main.is_power_of_two() || main > 1 << 24 || complementary > 1 << 24 {
            return Err(CardGtlbError::NoInstance {
                instance,
                instances,
                main,
                complementary,
            });
        }
        card.write_register(Reg::GtlbBaseLo, base.0 as u32)?;
        card.write_register(Reg::GtlbBaseHi, (base.0 >> 32) as u32)?;
        Ok(CardGtlb {
            card,
            instance,
            base: base.0,
            main,
            groups: BTreeMap::new(),
            free: (0..groups).rev().collect(),
        })
    }

    /// Complementary groups that are free.
    pub fn free_groups(&self) -> usize {
        self.free.len()
    }

    /// Writes the entries for `len` bytes at `va`, with the addresses of `source`.
    ///
    /// # Errors
    /// [`CardGtlbError`]; nothing was written unless the card itself refused a register.
    pub fn map_from(
        &mut self,
        source: &dyn PageTableSource,
        va: GpuVa,
        len: u64,
    ) -> Result<PageTable, CardGtlbError> {
        let table = source.pages(va, len)?;
        self.map(&table)?;
        Ok(table)
    }

    /// Writes the entries of a table (Algorithm 1, lines 3–19).
    ///
    /// # Errors
    /// As [`CardGtlb::map_from`].
    pub fn map(&mut self, table: &PageTable) -> Result<(), CardGtlbError> {
        let mut changed = self.touched(table.base, table.pages.len())?;
        for (i, bus) in table.pages.iter().enumerate() {
            let va = table.base.0 + i as u64 * PAGE_BYTES;
            if !bus.is_multiple_of(PAGE_BYTES) {
                return Err(CardGtlbError::Unaligned {
                    va: table.base,
                    addr: *bus,
                });
            }
            let page = page_of(&mut changed, va);
            if page.is_some() {
                return Err(CardGtlbError::Taken { va: GpuVa(va) });
            }
            *page = Some(*bus);
        }
        self.apply(changed)
    }

    /// Removes the entries of pages. When other pages of a scattered group stay, all its entries
    /// are rewritten: no operation may be outstanding in it.
    ///
    /// # Errors
    /// [`CardGtlbError::NotMapped`], [`CardGtlbError::Unaligned`],
    /// [`CardGtlbError::OutsideWindow`].
    pub fn unmap(&mut self, va: GpuVa, pages: usize) -> Result<(), CardGtlbError> {
        let mut changed = self.touched(va, pages)?;
        for i in 0..pages {
            let va = va.0 + i as u64 * PAGE_BYTES;
            let page = page_of(&mut changed, va);
            if page.take().is_none() {
                return Err(CardGtlbError::NotMapped { va: GpuVa(va) });
            }
        }
        self.apply(changed)
    }

    /// Copies of the groups that contain some pages.
    fn touched(&self, va: GpuVa, pages: usize) -> Result<BTreeMap<u64, Group>, CardGtlbError> {
        if !va.0.is_multiple_of(PAGE_BYTES) {
            return Err(CardGtlbError::Unaligned { va, addr: va.0 });
        }
        let len = u64::from(self.main) * LARGE_PAGE_BYTES;
        let bytes = (pages as u64).saturating_mul(PAGE_BYTES);
        let end = va.0.saturating_add(bytes);
        if va.0 < self.base || end - self.base > len {
            let first_outside = va.0.max(self.base.saturating_add(len));
            return Err(CardGtlbError::OutsideWindow {
                va: GpuVa(if va.0 < self.base {
                    va.0
                } else {
                    first_outside
                }),
                base: GpuVa(self.base),
                len,
            });
        }
        let numbers = va.0 / LARGE_PAGE_BYTES..end.div_ceil(LARGE_PAGE_BYTES);
        Ok(numbers
            .map(|number| {
                let empty = Group {
                    pages: [None; GROUP],
                    complementary: None,
                };
                let group = self.groups.get(&number).cloned();
                (number, group.unwrap_or(empty))
            })
            .collect())
    }

    /// Writes the changed groups, after a check that there is room.
    fn apply(&mut self, changed: BTreeMap<u64, Group>) -> Result<(), CardGtlbError> {
        let scattered = |g: &Group| g.pages.iter().any(Option::is_some) && g.piece().is_none();
        let needed = changed.values().filter(|g| scattered(g)).count();
        let held = changed.values().filter(|g| g.complementary.is_some());
        let free = self.free.len() + held.count();
        if needed > free {
            return Err(CardGtlbError::Full { needed, free });
        }
        self.card.write_register(Reg::GtlbSelect, self.instance)?;
        // Old entries are removed first: that frees complementary entries.
        for (number, group) in &changed {
            if let Some(old) = self.groups.remove(number) {
                self.invalidate(*number)?;
                self.free.extend(old.complementary);
                debug_assert_eq!(old.complementary, group.complementary);
            }
        }
        for (number, mut group) in changed {
            if group.pages.iter().all(Option::is_none) {
                continue;
            }
            group.complementary = match group.piece() {
                Some(bus) => {
                    self.command(number, bus, self.index(number), LARGE)?;
                    None
                }
                None => Some(self.scatter(number, &group)?),
            };
            self.groups.insert(number, group);
        }
        Ok(())
    }

    /// Lines 12–18: a complementary entry for each page, then the main entry that points to the
    /// first.
    fn scatter(&mut self, number: u64, group: &Group) -> Result<u32, CardGtlbError> {
        let full = CardGtlbError::Full { needed: 1, free: 0 };
        let at = self.free.pop().ok_or(full)?;
        let first = at * GROUP as u32;
        for (i, page) in group.pages.iter().enumerate() {
            if let Some(bus) = page {
                self.command(number, *bus, first + i as u32, PAGE)?;
            }
        }
        self.command(number, u64::from(first), self.index(number), POINTER)?;
        Ok(at)
    }

    fn invalidate(&self, number: u64) -> Result<(), CardGtlbError> {
        self.command(number, 0, self.index(number), INVALIDATE)
    }

    /// Index of a group in the window.
    fn index(&self, number: u64) -> u32 {
        (number - self.base / LARGE_PAGE_BYTES) as u32
    }

    fn command(
        &self,
        number: u64,
        bus: u64,
        index: u32,
        command: u32,
    ) -> Result<(), CardGtlbError> {
        let va = number * LARGE_PAGE_BYTES;
        for (reg, value) in [
            (Reg::GtlbVaLo, va as u32),
            (Reg::GtlbVaHi, (va >> 32) as u32),
            (Reg::GtlbPaLo, bus as u32),
            (Reg::GtlbPaHi, (bus >> 32) as u32),
            (Reg::GtlbIndex, index),
            (Reg::GtlbCommand, command),
        ] {
            self.card.write_register(reg, value)?;
        }
        Ok(())
    }
}

/// The page of an address, in copies that hold its group.
fn page_of(groups: &mut BTreeMap<u64, Group>, va: u64) -> &mut Option<u64> {
    let number = va / LARGE_PAGE_BYTES;
    let page = (va / PAGE_BYTES) as usize % GROUP;
    let empty = || Group {
        pages: [None; GROUP],
        complementary: None,
    };
    &mut groups.entry(number).or_insert_with(empty).pages[page]
}

#[cfg(test)]
mod tests;
