//! The NIC's record of a card's GTLB, and the register writes that keep both equal.
//!
//! A group of 2 MiB has the main entry of its number modulo the table: what lies in the window of
//! the first GPU memory is found by its own address, other memory (NIC, host, GPUs' beyond 32 GiB)
//! by an alias. Entries are written when an operation is posted, and stay until another group needs
//! them or the memory is unmapped. The translations are those of [`ringbell_gtlb::Mmu`].

use ringbell_gtlb::{LARGE_PAGE_BYTES, PAGE_BYTES};
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::translation::{
    GTLB_INVALIDATE, GTLB_WRITE_LARGE, GTLB_WRITE_PAGE, GTLB_WRITE_POINTER,
};
use rustc_hash::FxHashMap;

use super::Sizes;

/// Pages of a group.
const PAGES: usize = (LARGE_PAGE_BYTES / PAGE_BYTES) as usize;
/// No page.
const NONE: u64 = u64::MAX;

/// Where a range lies for the card. Its entries stay until it is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// Address of the first byte, for the card.
    pub(crate) va: u64,
    first: u32,
    count: u32,
    /// Its first bus address, when it lies in host memory.
    pub(crate) host: Option<u64>,
}

/// What a main entry says.
#[derive(Debug)]
enum Entry {
    /// Bus address of the group.
    Large(u64),
    /// Bus addresses of pages, in this row of the complementary table.
    Pages(usize, Box<[u64; PAGES]>),
}

#[derive(Debug)]
struct Group {
    /// Its number: address over 2 MiB.
    group: u64,
    entry: Entry,
    /// Operations that use it.
    users: u32,
    used_at: u64,
    /// The card has faulted here: what it has is not known.
    is_stale: bool,
}

/// Writes a register of the card; `false` when it refuses.
type Write<'a> = dyn FnMut(Reg, u32) -> bool + 'a;

/// See the module text.
#[derive(Debug)]
pub(crate) struct Gtlb {
    main: u64,
    /// First group of the window, a multiple of the main table.
    window: Option<u64>,
    groups: FxHashMap<u32, Group>,
    /// Main entries that own the rows of the complementary table.
    rows: Vec<Option<u32>>,
    clock: u64,
    /// Entries written.
    pub(crate) written: u64,
}

impl Gtlb {
    pub(crate) fn new(sizes: &Sizes) -> Gtlb {
        Gtlb {
            main: sizes.main_entries.into(),
            window: None,
            groups: FxHashMap::default(),
            rows: vec![None; sizes.complementary_entries as usize / PAGES],
            clock: 0,
            written: 0,
        }
    }

    /// Fixes the window, by the first memory that is mapped.
    pub(crate) fn place(&mut self, va: u64, write: &mut Write<'_>) {
        if self.window.is_none() {
            let first = va / LARGE_PAGE_BYTES / self.main * self.main;
            self.window = Some(first);
            let base = first * LARGE_PAGE_BYTES;
            write(Reg::GtlbBaseLo, base as u32);
            write(Reg::GtlbBaseHi, (base >> 32) as u32);
        }
    }

    /// Enters the pages of a range. `bus` gives the bus address of a byte of it. `None`: an address
    /// has no translation, or its entries are used by others; nothing is in use by this call then.
    pub(crate) fn map(
        &mut self,
        va: u64,
        len: u32,
        write: &mut Write<'_>,
        bus: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Option<Mapped> {
        self.place(va, write);
        let end = va.checked_add(len.into())?;
        let (first, last) = (va / LARGE_PAGE_BYTES, (end - 1) / LARGE_PAGE_BYTES);
        let slot = (first % self.main) as u32;
        let count = u32::try_from(last - first + 1).ok()?;
        if u64::from(slot) + u64::from(count) > self.main {
            return None;
        }
        let window = self.window?;
        let mut mapped = Mapped {
            va: (window + u64::from(slot)) * LARGE_PAGE_BYTES + va % LARGE_PAGE_BYTES,
            first: slot,
            count: 0,
            host: None,
        };
        for group in first..=last {
            let pages = wanted(group, va, end, bus);
            let entered = pages.and_then(|p| self.enter(group, &p, write));
            if entered.is_none() {
                self.release(&mapped);
                return None;
            }
            mapped.count += 1;
        }
        Some(mapped)
    }

    /// The range is not used any more.
    pub(crate) fn release(&mut self, mapped: &Mapped) {
        for slot in mapped.first..mapped.first + mapped.count {
            if let Some(group) = self.groups.get_mut(&slot) {
                group.users -= 1;
            }
        }
    }

    /// Memory that no operation uses goes: so do its entries.
    pub(crate) fn forget(&mut self, va: u64, len: u64, write: &mut Write<'_>) {
        let end = va.saturating_add(len);
        let meets = |g: &Group| {
            g.group * LARGE_PAGE_BYTES < end && va < (g.group + 1).saturating_mul(LARGE_PAGE_BYTES)
        };
        let slots = self.groups.iter().filter(|(_, g)| meets(g));
        let slots: Vec<u32> = slots.map(|(slot, _)| *slot).collect();
        for slot in slots {
            self.drop_entry(slot, write);
        }
    }

    /// Enters pages of a group, and counts a user.
    fn enter(&mut self, group: u64, pages: &[u64; PAGES], write: &mut Write<'_>) -> Option<()> {
        self.clock += 1;
        let slot = (group % self.main) as u32;
        if let Some(g) = self.groups.get_mut(&slot) {
            if g.group != group || !extend(g, pages) {
                self.drop_entry(slot, write)?;
            }
        }
        if !self.groups.contains_key(&slot) {
            let entry = match large(pages) {
                Some(bus) => {
                    self.command(slot, bus, slot, GTLB_WRITE_LARGE, write)?;
                    Entry::Large(bus)
                }
                None => {
                    let row = self.free_row(write)?;
                    let first = (row * PAGES) as u64;
                    self.command(slot, first, slot, GTLB_WRITE_POINTER, write)?;
                    self.rows[row] = Some(slot);
                    Entry::Pages(row, Box::new([NONE; PAGES]))
                }
            };
            self.groups.insert(
                slot,
                Group {
                    group,
                    entry,
                    users: 0,
                    used_at: 0,
                    is_stale: false,
                },
            );
        }
        self.renew(slot, write)?;
        let mut missing = Vec::new();
        let clock = self.clock;
        let g = self.groups.get_mut(&slot)?;
        g.used_at = clock;
        if let Entry::Pages(row, known) = &mut g.entry {
            for (i, (known, page)) in known.iter_mut().zip(pages).enumerate() {
                if *page != NONE && known != page {
                    *known = *page;
                    missing.push(((*row * PAGES + i) as u32, *page));
                }
            }
        }
        for (index, page) in missing {
            self.command(slot, page, index, GTLB_WRITE_PAGE, write)?;
        }
        self.groups.get_mut(&slot)?.users += 1;
        Some(())
    }

    /// The card has faulted at an address of its own: the entry there is written again for the next
    /// operation.
    pub(crate) fn lost(&mut self, va: u64) {
        let slot = (va / LARGE_PAGE_BYTES % self.main) as u32;
        if let Some(group) = self.groups.get_mut(&slot) {
            group.is_stale = true;
        }
    }

    /// Writes the main entry again of a group in which the card has faulted. Its pages are then
    /// written as they are needed.
    fn renew(&mut self, slot: u32, write: &mut Write<'_>) -> Option<()> {
        let group = self.groups.get_mut(&slot).filter(|g| g.is_stale);
        let Some(group) = group else { return Some(()) };
        group.is_stale = false;
        let (pa, command) = match &mut group.entry {
            Entry::Large(bus) => (*bus, GTLB_WRITE_LARGE),
            Entry::Pages(row, known) => {
                **known = [NONE; PAGES];
                ((*row * PAGES) as u64, GTLB_WRITE_POINTER)
            }
        };
        self.command(slot, pa, slot, command, write)
    }

    /// Removes the entry of a slot; `None` while an operation uses it.
    fn drop_entry(&mut self, slot: u32, write: &mut Write<'_>) -> Option<()> {
        let group = self.groups.get(&slot).filter(|g| g.users == 0)?;
        if let Entry::Pages(row, _) = group.entry {
            self.rows[row] = None;
        }
        self.groups.remove(&slot);
        self.command(slot, 0, slot, GTLB_INVALIDATE, write)
    }

    /// A row of the complementary table: a free one, else that of the group that was not used for
    /// longest.
    fn free_row(&mut self, write: &mut Write<'_>) -> Option<usize> {
        if self.rows.iter().all(Option::is_some) {
            let owners = self.rows.iter().flatten();
            let idle = owners.filter(|s| self.groups.get(s).is_some_and(|g| g.users == 0));
            let oldest = idle.min_by_key(|s| self.groups.get(s).map(|g| g.used_at));
            self.drop_entry(*oldest?, write)?;
        }
        self.rows.iter().position(Option::is_none)
    }

    /// Writes the registers of an entry.
    fn command(
        &mut self,
        slot: u32,
        pa: u64,
        index: u32,
        command: u32,
        write: &mut Write<'_>,
    ) -> Option<()> {
        let va = (self.window? + u64::from(slot)) * LARGE_PAGE_BYTES;
        self.written += u64::from(command != GTLB_INVALIDATE);
        let all = [
            (Reg::GtlbVaLo, va as u32),
            (Reg::GtlbVaHi, (va >> 32) as u32),
            (Reg::GtlbPaLo, pa as u32),
            (Reg::GtlbPaHi, (pa >> 32) as u32),
            (Reg::GtlbIndex, index),
            (Reg::GtlbCommand, command),
        ];
        let taken = all.into_iter().all(|(reg, value)| write(reg, value));
        if !taken {
            tracing::error!("the card refuses command {command} of its GTLB at entry {index}");
        }
        taken.then_some(())
    }
}

/// Bus addresses of a group's pages that a range touches.
fn wanted(
    group: u64,
    va: u64,
    end: u64,
    bus: &mut dyn FnMut(u64) -> Option<u64>,
) -> Option<[u64; PAGES]> {
    let mut pages = [NONE; PAGES];
    for (i, page) in (0..).zip(&mut pages) {
        let start = group * LARGE_PAGE_BYTES + i * PAGE_BYTES;
        let inside = start.max(va);
        if inside < end && va < start + PAGE_BYTES {
            // Memory that does not lie in pages as its addresses do cannot be entered.
            let at = bus(inside)?.checked_sub(inside - start)?;
            *page = Some(at).filter(|at| at.is_multiple_of(PAGE_BYTES))?;
        }
    }
    Some(pages)
}

/// The bus address of a group that is one aligned piece.
fn large(pages: &[u64; PAGES]) -> Option<u64> {
    let base = pages[0];
    let whole = (0..)
        .zip(pages)
        .all(|(i, page)| base.checked_add(i * PAGE_BYTES) == Some(*page));
    (whole && base.is_multiple_of(LARGE_PAGE_BYTES)).then_some(base)
}

/// Whether an entry has these pages, or can get them while others use it.
fn extend(g: &Group, pages: &[u64; PAGES]) -> bool {
    let wanted = || (0..).zip(pages).filter(|(_, page)| **page != NONE);
    match &g.entry {
        Entry::Large(bus) => wanted().all(|(i, page)| bus + i * PAGE_BYTES == *page),
        Entry::Pages(_, known) => {
            g.users == 0 || wanted().all(|(i, page)| [NONE, *page].contains(&known[i as usize]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes {
        queues: 1,
        slots: 2,
        conns: 1,
        operations: 1,
        main_entries: 16,
        complementary_entries: 64,
    };
    const BASE: u64 = 5 << 30;

    /// The tables as the hardware has them: main entries (tag 1: a bus address, 2: a row),
    /// complementary entries, rows' owners.
    #[derive(Default)]
    struct Model {
        staged: FxHashMap<u32, u32>,
        main: FxHashMap<u32, (u32, u64)>,
        comp: FxHashMap<u32, u64>,
        owners: FxHashMap<u64, u32>,
    }

    impl Model {
        fn write(&mut self, reg: Reg, value: u32) -> bool {
            let wide = |m: &Model, reg: Reg| {
                let word = |i: u32| u64::from(*m.staged.get(&i).unwrap_or(&0));
                word(reg as u32) | word(reg as u32 + 1) << 32
            };
            let (va, pa) = (wide(self, Reg::GtlbVaLo), wide(self, Reg::GtlbPaLo));
            let index = *self.staged.get(&(Reg::GtlbIndex as u32)).unwrap_or(&0);
            let base = wide(self, Reg::GtlbBaseLo) / LARGE_PAGE_BYTES;
            let at = (va / LARGE_PAGE_BYTES).wrapping_sub(base);
            match (reg, value) {
                (Reg::GtlbCommand, GTLB_WRITE_LARGE) => {
                    assert!(at == u64::from(index) && pa.is_multiple_of(LARGE_PAGE_BYTES));
                    self.main.insert(index, (1, pa));
                }
                (Reg::GtlbCommand, GTLB_WRITE_POINTER) => {
                    assert!(at == u64::from(index) && pa < 64 && pa.is_multiple_of(PAGES as u64));
                    assert_eq!(self.owners.insert(pa, index), None, "a row has one owner");
                    self.main.insert(index, (2, pa));
                }
                (Reg::GtlbCommand, GTLB_WRITE_PAGE) => {
                    assert!(index < 64 && pa.is_multiple_of(PAGE_BYTES));
                    self.comp.insert(index, pa);
                }
                (Reg::GtlbCommand, GTLB_INVALIDATE) => {
                    if let Some((2, row)) = self.main.remove(&index) {
                        self.owners.remove(&row);
                        self.comp
                            .retain(|i, _| u64::from(*i) / PAGES as u64 != row / PAGES as u64);
                    }
                }
                (Reg::GtlbCommand, other) => panic!("there is no command {other}"),
                _ => {
                    self.staged.insert(reg as u32, value);
                }
            }
            true
        }

        fn translate(&self, va: u64) -> Option<u64> {
            match *self.main.get(&((va / LARGE_PAGE_BYTES % 16) as u32))? {
                (1, bus) => Some(bus + va % LARGE_PAGE_BYTES),
                (_, row) => {
                    let page = row + va % LARGE_PAGE_BYTES / PAGE_BYTES;
                    Some(self.comp.get(&(page as u32))? + va % PAGE_BYTES)
                }
            }
        }
    }

    #[test]
    fn every_write_is_legal_and_translates_as_the_memory_does() {
        let (mut gtlb, mut model) = (Gtlb::new(&SIZES), Model::default());
        let mut refused = 0;
        let mut rng = ringbell_gtlb::testing::Rng::new(11);
        for _ in 0..400 {
            // Memory of many groups: aliases meet, and rows run out.
            let va = BASE + rng.below(200) * LARGE_PAGE_BYTES / 3 + rng.below(9_999);
            let len = 1 + rng.below(2 * LARGE_PAGE_BYTES) as u32;
            // Every third group is scattered.
            let place = |va: u64| match va / LARGE_PAGE_BYTES % 3 {
                0 => (va ^ (0x1f << 16)) + (7 << 40),
                _ => va + (9 << 40),
            };
            let mut write = |reg, value| model.write(reg, value);
            let found = gtlb.map(va, len, &mut write, &mut |at| Some(place(at)));
            let Some(mapped) = found else {
                refused += 1;
                continue;
            };
            for at in [0, u64::from(len) / 2, u64::from(len) - 1] {
                let bus = model.translate(mapped.va + at);
                assert_eq!(bus, Some(place(va + at)), "{va:#x} + {at}");
            }
            gtlb.release(&mapped);
        }
        // Those that meet the end of the table.
        assert!(refused < 100, "{refused} ranges were refused");
    }
}
