//! Memory as a kernel sees it: by GPU address.

use ringbell_nic_abi::GpuVa;

use super::{HostMemory, Rng};
use crate::page_table::{PageTable, PAGES_PER_LARGE, PAGE_BYTES};

/// How virtual pages lie on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// In order: coalesces where the virtual base is a multiple of 2 MiB.
    Contiguous,
    /// Every page somewhere, by this seed.
    Scattered(u64),
    /// Every other group of 32 pages scattered within itself, by this seed.
    Mixed(u64),
}

/// A [`HostMemory`] (or the one inside a [`DelayedMemory`](super::DelayedMemory)) with a page
/// table.
#[derive(Debug, Clone)]
pub struct GpuView<'a> {
    memory: &'a HostMemory,
    table: PageTable,
}

impl<'a> GpuView<'a> {
    /// Lays the whole memory out at `base`, a multiple of 64 KiB.
    pub fn new(memory: &'a HostMemory, base: GpuVa, layout: Layout) -> GpuView<'a> {
        let pages = (memory.len() / PAGE_BYTES) as usize;
        let mut pages: Vec<u64> = (0..pages as u64)
            .map(|i| memory.bus() + i * PAGE_BYTES)
            .collect();
        match layout {
            Layout::Contiguous => {}
            Layout::Scattered(seed) => shuffle(&mut pages, &mut Rng::new(seed)),
            Layout::Mixed(seed) => {
                let mut rng = Rng::new(seed);
                for group in pages.chunks_mut(PAGES_PER_LARGE).skip(1).step_by(2) {
                    shuffle(group, &mut rng);
                }
            }
        }
        GpuView {
            memory,
            table: PageTable { base, pages },
        }
    }

    /// The page table, to be given to [`Mmu::map`](crate::Mmu::map).
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// Reads by GPU address.
    ///
    /// # Panics
    /// When the range is not mapped.
    pub fn read(&self, va: GpuVa, into: &mut [u8]) {
        self.walk(va, into.len(), |bus, range| {
            let done = self.memory.peek(bus, &mut into[range]);
            done.expect("the table holds pages of this memory only");
        });
    }

    /// Writes by GPU address.
    ///
    /// # Panics
    /// When the range is not mapped.
    pub fn write(&self, va: GpuVa, from: &[u8]) {
        self.walk(va, from.len(), |bus, range| {
            let done = self.memory.poke(bus, &from[range]);
            done.expect("the table holds pages of this memory only");
        });
    }

    fn walk(&self, va: GpuVa, len: usize, mut part: impl FnMut(u64, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let offset = va.0 - self.table.base.0 + done as u64;
            let page = self.table.pages[(offset / PAGE_BYTES) as usize];
            let n = (len - done).min((PAGE_BYTES - offset % PAGE_BYTES) as usize);
            part(page + offset % PAGE_BYTES, done..done + n);
            done += n;
        }
    }
}

fn shuffle(pages: &mut [u64], rng: &mut Rng) {
    for i in (1..pages.len()).rev() {
        pages.swap(i, rng.below(i as u64 + 1) as usize);
    }
}
