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

impl Layout {
    /// The page table of a memory whose `len` bytes begin at bus address `bus`, laid out at `base`,
    /// a multiple of 64 KiB.
    pub fn table(self, base: GpuVa, bus: u64, len: u64) -> PageTable {
        let pages = 0..len / PAGE_BYTES;
        let mut pages: Vec<u64> = pages.map(|i| bus + i * PAGE_BYTES).collect();
        match self {
            Layout::Contiguous => {}
            Layout::Scattered(seed) => shuffle(&mut pages, &mut Rng::new(seed)),
            Layout::Mixed(seed) => {
                let mut rng = Rng::new(seed);
                for group in pages.chunks_mut(PAGES_PER_LARGE).skip(1).step_by(2) {
                    shuffle(group, &mut rng);
                }
            }
        }
        PageTable { base, pages }
    }
}

/// The parts of `len` bytes at a GPU address, page by page: the bus address of each, and its place
/// among the bytes.
///
/// # Panics
/// When the range is not mapped.
pub fn each_part(
    table: &PageTable,
    va: GpuVa,
    len: usize,
    mut part: impl FnMut(u64, std::ops::Range<usize>),
) {
    let mut done = 0;
    while done < len {
        let offset = va.0 - table.base.0 + done as u64;
        let page = table.pages[(offset / PAGE_BYTES) as usize];
        let n = (len - done).min((PAGE_BYTES - offset % PAGE_BYTES) as usize);
        part(page + offset % PAGE_BYTES, done..done + n);
        done += n;
    }
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
        let table = layout.table(base, memory.bus(), memory.len());
        GpuView { memory, table }
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
        each_part(&self.table, va, into.len(), |bus, range| {
            let done = self.memory.peek(bus, &mut into[range]);
            done.expect("the table holds pages of this memory only");
        });
    }

    /// Writes by GPU address.
    ///
    /// # Panics
    /// When the range is not mapped.
    pub fn write(&self, va: GpuVa, from: &[u8]) {
        each_part(&self.table, va, from.len(), |bus, range| {
            let done = self.memory.poke(bus, &from[range]);
            done.expect("the table holds pages of this memory only");
        });
    }
}

fn shuffle(pages: &mut [u64], rng: &mut Rng) {
    for i in (1..pages.len()).rev() {
        pages.swap(i, rng.below(i as u64 + 1) as usize);
    }
}
