//! All GTLBs of a NIC, and the page table behind them.
//!
//! FpgaNIC suggests "to instantiate multiple GTLBs to provide sufficient number of GTLB entries"
//! (§2.3.2, GTLB Miss/Eviction) and leaves the miss open. Here a miss is either a fault that
//! carries the address (`refill: false`), or the entry is replaced from the full page table, so
//! that a GTLB which is too small costs time and not correctness.

use ringbell_nic_abi::GpuVa;

use crate::directory::{Directory, Hit, PageGroup, NO_PAGE};
use crate::gtlb::{Gtlb, Installed};
use crate::page_table::{
    PageTable, GROUP_PAGES, GROUP_SHIFT, PAGES_PER_LARGE, PAGE_BYTES, PAGE_SHIFT,
};
use crate::window::{self, GtlbWindow};

/// First byte after the virtual addresses that a GTLB can tag: 57 bits, what GPUs and CPUs use.
pub const VA_END: u64 = 1 << 57;

/// A mapping that was refused; nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The table has no pages.
    #[error("the page table for {va} has no pages")]
    Empty {
        /// Its base.
        va: GpuVa,
    },
    /// Addresses in a page table are multiples of the page size.
    #[error("address {addr:#x} in the page table for {va} is not a multiple of 64 KiB")]
    Unaligned {
        /// Base of the page table, or start of the range.
        va: GpuVa,
        /// The address at fault: virtual, bus or a length.
        addr: u64,
    },
    /// The range leaves the 57-bit address space.
    #[error("{len} bytes at {va} leave the 57-bit virtual address space")]
    OutOfSpace {
        /// First byte.
        va: GpuVa,
        /// Bytes.
        len: u64,
    },
    /// A page of the range is mapped already.
    #[error("{va} is already mapped; unmap it before it is mapped anew")]
    AlreadyMapped {
        /// The page.
        va: GpuVa,
    },
    /// No instance has main entries left for the address, and refill is off.
    #[error(
        "no GTLB has main entries left for {va} ({instances} instances, {entries} entries of 2 MiB in all): \
         configure more instances or more main entries, or turn refill on"
    )]
    MainExhausted {
        /// First address that found none.
        va: GpuVa,
        /// Instances configured.
        instances: u32,
        /// Main entries of all instances.
        entries: u64,
    },
    /// More scattered groups than the complementary TLB holds, and refill is off.
    #[error(
        "the memory around {va} is scattered over {needed} more groups of 2 MiB, but GTLB {instance} has only {free} of \
         {groups} complementary groups free: raise complementary_entries, use memory that is physically contiguous, or turn refill on"
    )]
    ComplementaryExhausted {
        /// First address of the mapping.
        va: GpuVa,
        /// Instance that is full.
        instance: u32,
        /// Groups that the mapping needs there.
        needed: u32,
        /// Groups free there.
        free: u32,
        /// Groups that the instance has.
        groups: u32,
    },
    /// A page of the range is not mapped.
    #[error("{va} is not mapped")]
    NotMapped {
        /// The page.
        va: GpuVa,
    },
}

/// Counters of a bank, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GtlbStats {
    /// Lookups that found no entry.
    pub misses: u64,
    /// Entries replaced from the page table.
    pub refills: u64,
    /// Address of the last miss.
    pub last_miss: GpuVa,
}

/// Several GTLBs with their page table.
#[derive(Debug)]
pub(crate) struct Bank {
    pub(crate) instances: Vec<Gtlb>,
    /// Same order as `instances`; apart, so that choosing one touches a single cache line.
    pub(crate) windows: Vec<GtlbWindow>,
    /// Groups of the directory that lie in each window; a window without any is given back.
    mapped: Vec<u64>,
    /// Windows that the BAR has set: they stay.
    fixed: Vec<bool>,
    pub(crate) directory: Directory,
    refill: bool,
    pub(crate) stats: GtlbStats,
}

/// The part of a range that lies in one group.
struct Part {
    group: u64,
    /// First page within the group.
    first: usize,
    /// Pages.
    count: usize,
    /// Index of the first page within the range.
    at: usize,
}

/// Cuts `pages` pages from `va` on into groups.
fn parts(va: u64, pages: usize) -> impl Iterator<Item = Part> {
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < pages).then(|| {
            let page = (va >> PAGE_SHIFT) + at as u64;
            let first = page as usize & (PAGES_PER_LARGE - 1);
            let count = (PAGES_PER_LARGE - first).min(pages - at);
            let part = Part {
                group: page / GROUP_PAGES as u64,
                first,
                count,
                at,
            };
            at += count;
            part
        })
    })
}

impl Bank {
    pub(crate) fn new(instances: Vec<Gtlb>, refill: bool) -> Bank {
        let n = instances.len();
        Bank {
            instances,
            windows: vec![GtlbWindow::default(); n],
            mapped: vec![0; n],
            fixed: vec![false; n],
            directory: Directory::default(),
            refill,
            stats: GtlbStats::default(),
        }
    }

    /// The instance that serves a group. Outside every window (refill only) groups are dealt out in
    /// stripes; they share entries with the groups of a window and displace them on a miss.
    #[inline]
    fn instance_of(&self, group: u64) -> usize {
        window::find(&self.windows, group)
            .unwrap_or_else(|| (group >> 14) as usize % self.instances.len())
    }

    /// Translates an address; on a miss refills, or gives `None`.
    #[inline]
    pub(crate) fn translate(&mut self, va: u64) -> Option<Hit> {
        let instance = self.instance_of(va >> GROUP_SHIFT);
        match self.instances[instance].lookup(va) {
            Some(hit) => Some(hit),
            None => self.miss(instance, va),
        }
    }

    /// Translates without counting and without refill.
    pub(crate) fn peek(&self, va: u64) -> Option<Hit> {
        self.instances[self.instance_of(va >> GROUP_SHIFT)].lookup(va)
    }

    #[cold]
    fn miss(&mut self, instance: usize, va: u64) -> Option<Hit> {
        self.stats.misses += 1;
        self.stats.last_miss = GpuVa(va);
        if !self.refill {
            return None;
        }
        let group = va >> GROUP_SHIFT;
        let content = self.directory.group(group)?;
        let hit = content.lookup(va)?;
        // A GTLB without complementary entries cannot hold the group; the page table still answers.
        if self.instances[instance]
            .insert(group, content, true)
            .is_ok()
        {
            self.stats.refills += 1;
        }
        Some(hit)
    }

    /// Maps the pages of a table and populates the GTLBs (Algorithm 1, lines 3–19). All or nothing.
    pub(crate) fn map(&mut self, table: &PageTable) -> Result<(), MapError> {
        let va = check_range(table.base, table.pages.len() as u64 * PAGE_BYTES)?;
        if let Some(bad) = table.pages.iter().find(|p| !p.is_multiple_of(PAGE_BYTES)) {
            return Err(MapError::Unaligned {
                va: table.base,
                addr: *bad,
            });
        }
        let merged = |directory: &Directory, part: &Part| {
            let mut pages = directory.pages(part.group);
            pages[part.first..part.first + part.count]
                .copy_from_slice(&table.pages[part.at..part.at + part.count]);
            PageGroup::of(&pages)
        };
        let n = table.pages.len();
        for part in parts(va, n) {
            let pages = self.directory.pages(part.group);
            if let Some(i) = (part.first..part.first + part.count).find(|i| pages[*i] != NO_PAGE) {
                return Err(MapError::AlreadyMapped {
                    va: GpuVa((part.group << GROUP_SHIFT) + i as u64 * PAGE_BYTES),
                });
            }
        }
        let mut windows = self.windows.clone();
        self.claim(&mut windows, va, n)?;
        if !self.refill {
            let scattered = parts(va, n)
                .filter(|part| matches!(merged(&self.directory, part), Some(PageGroup::Pages(_))))
                .map(|part| part.group);
            self.check_complementary(&windows, va, scattered)?;
        }
        if self.windows != windows {
            self.windows = windows;
            self.recount();
        }
        self.directory.reserve(n / PAGES_PER_LARGE + 2);
        for part in parts(va, n) {
            let content = merged(&self.directory, &part);
            self.replace(part.group, content);
        }
        Ok(())
    }

    /// Unmaps whole pages and invalidates their entries. All or nothing.
    pub(crate) fn unmap(&mut self, va: GpuVa, len: u64) -> Result<(), MapError> {
        let start = check_range(va, len)?;
        let n = (len / PAGE_BYTES) as usize;
        if let Some(hole) = self.first_hole(start, len) {
            return Err(MapError::NotMapped { va: GpuVa(hole) });
        }
        let rest = |directory: &Directory, part: &Part| {
            let mut pages = directory.pages(part.group);
            pages[part.first..part.first + part.count].fill(NO_PAGE);
            PageGroup::of(&pages)
        };
        if !self.refill {
            // Unmapping a part of a coalesced group leaves single pages behind.
            let split = parts(start, n)
                .filter(|part| rest(&self.directory, part).is_some())
                .map(|part| part.group);
            self.check_complementary(&self.windows, start, split)?;
        }
        for part in parts(start, n) {
            let content = rest(&self.directory, &part);
            self.replace(part.group, content);
        }
        Ok(())
    }

    /// First address of the range that neither the page table nor a GTLB translates.
    pub(crate) fn first_hole(&self, va: u64, len: u64) -> Option<u64> {
        let end = va + len;
        let mut at = va;
        while at < end {
            let hit = self.directory.lookup(at).or_else(|| self.peek(at));
            let Some(hit) = hit else {
                return Some(at);
            };
            at += hit.left;
        }
        None
    }

    /// Installs what is mapped in the range and not installed, as far as windows reach and without
    /// evicting anything.
    pub(crate) fn populate(&mut self, va: u64, len: u64) -> Result<(), MapError> {
        let groups = (va >> GROUP_SHIFT)..=((va + len - 1) >> GROUP_SHIFT);
        let missing = |bank: &Bank, group: u64| {
            let instance = window::find(&bank.windows, group)?;
            (bank.instances[instance].installed(group) == Installed::No).then_some(instance)
        };
        if !self.refill {
            let scattered = groups.clone().filter(|g| {
                missing(self, *g).is_some()
                    && matches!(self.directory.group(*g), Some(PageGroup::Pages(_)))
            });
            self.check_complementary(&self.windows, va, scattered)?;
        }
        for group in groups {
            if let Some(instance) = missing(self, group) {
                if let Some(content) = self.directory.group(group) {
                    // Full is no error here: with refill the page table answers on a miss, without
                    // it the check above has counted.
                    let _ = self.instances[instance].insert(group, content, false);
                }
            }
        }
        Ok(())
    }

    /// Invalidates the entries of the groups; they stay in the page table.
    pub(crate) fn invalidate(&mut self, groups: impl Iterator<Item = u64>) {
        for group in groups {
            for gtlb in &mut self.instances {
                gtlb.invalidate(group);
            }
        }
    }

    /// Fixes the window of an instance, as the BAR's base register does, and drops its entries.
    /// `false` when mapped memory depends on the old window or another instance serves the new one.
    pub(crate) fn set_window(&mut self, instance: usize, first: u64) -> bool {
        let window = GtlbWindow {
            first,
            count: self.instances[instance].config().main_entries as u64,
        };
        if self.mapped[instance] > 0 || !window::fits(&self.windows, instance, &window) {
            return false;
        }
        self.instances[instance].clear();
        self.windows[instance] = window;
        self.fixed[instance] = true;
        self.recount();
        true
    }

    /// Counts the mapped groups of each window anew, after a window has grown over groups that had
    /// none (they exist only with refill).
    fn recount(&mut self) {
        if self.mapped.iter().sum::<u64>() == self.directory.len() as u64 {
            return;
        }
        self.mapped.fill(0);
        for group in self.directory.numbers() {
            if let Some(i) = window::find(&self.windows, group) {
                self.mapped[i] += 1;
            }
        }
    }

    fn claim(&self, windows: &mut [GtlbWindow], va: u64, pages: usize) -> Result<(), MapError> {
        let sizes: Vec<u64> = self
            .instances
            .iter()
            .map(|g| g.config().main_entries as u64)
            .collect();
        let first = va >> GROUP_SHIFT;
        let end = ((va >> PAGE_SHIFT) + pages as u64).div_ceil(GROUP_PAGES as u64);
        match window::claim(windows, &sizes, first, end) {
            Err(group) if !self.refill => Err(MapError::MainExhausted {
                va: GpuVa((group << GROUP_SHIFT).max(va)),
                instances: sizes.len() as u32,
                entries: sizes.iter().sum(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether every group given finds a complementary group in its instance.
    fn check_complementary(
        &self,
        windows: &[GtlbWindow],
        va: u64,
        scattered: impl Iterator<Item = u64>,
    ) -> Result<(), MapError> {
        let mut needed = vec![0u32; self.instances.len()];
        for group in scattered {
            if let Some(i) = window::find(windows, group) {
                needed[i] += u32::from(self.instances[i].installed(group) != Installed::Base);
            }
        }
        for (i, gtlb) in self.instances.iter().enumerate() {
            if needed[i] > gtlb.free_groups() {
                return Err(MapError::ComplementaryExhausted {
                    va: GpuVa(va),
                    instance: i as u32,
                    needed: needed[i],
                    free: gtlb.free_groups(),
                    groups: gtlb.config().complementary_entries / GROUP_PAGES,
                });
            }
        }
        Ok(())
    }

    /// Replaces a group in the page table and in its GTLB.
    fn replace(&mut self, group: u64, content: Option<PageGroup>) {
        self.invalidate(std::iter::once(group));
        let was = self.directory.group(group).is_some();
        if let Some(instance) = window::find(&self.windows, group) {
            if let Some(content) = &content {
                self.mapped[instance] += u64::from(!was);
                // See `populate` for why full is no error.
                let _ = self.instances[instance].insert(group, content, false);
            } else {
                self.mapped[instance] -= u64::from(was);
                if self.mapped[instance] == 0 && !self.fixed[instance] {
                    self.windows[instance] = GtlbWindow::default();
                }
            }
        }
        self.directory.set(group, content);
    }
}

/// The start of a range of whole pages inside the address space.
fn check_range(va: GpuVa, len: u64) -> Result<u64, MapError> {
    if len == 0 {
        return Err(MapError::Empty { va });
    }
    for addr in [va.0, len] {
        if !addr.is_multiple_of(PAGE_BYTES) {
            return Err(MapError::Unaligned { va, addr });
        }
    }
    match va.checked_add(len) {
        Some(end) if end.0 <= VA_END => Ok(va.0),
        _ => Err(MapError::OutOfSpace { va, len }),
    }
}

#[cfg(test)]
mod tests;
