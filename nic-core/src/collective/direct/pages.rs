//! The pages of one own buffer: CPU addresses, and the bus addresses for peers.
#![allow(unsafe_code)] // Page tables in NIC memory, which peers read.

use ringbell_gtlb::PAGE_BYTES;

use super::sync::{AtomicU64, Ordering};
use crate::memory::nic_memory::{Block, NicMemory, NIC_BUS};

/// Pages that a record names itself.
pub(super) const INLINE_PAGES: usize = 2;

/// See the module text. A page is 64 KiB of the virtual addresses (FpgaNIC §2.3.2).
#[derive(Debug)]
pub(crate) struct Pages {
    /// For every page the CPU's and the bus address of its first byte (of the first page too, even
    /// when the buffer begins inside it, and the bytes before it are not the buffer's).
    first: [(*mut u8, u64); INLINE_PAGES],
    /// All of them, when there are more.
    table: Vec<(*mut u8, u64)>,
    pages: usize,
    /// Offset of the buffer in its first page.
    offset: u64,
    bytes: u64,
    va: u64,
    access: Access,
}

/// What peers can do with a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// They can map the memory.
    pub(crate) exported: bool,
    /// Its region grants them writing.
    pub(crate) writable: bool,
}

// SAFETY: addresses; their user has pinned the region, and copies raw bytes only.
unsafe impl Send for Pages {}

impl Default for Pages {
    fn default() -> Pages {
        Pages::none()
    }
}

impl Pages {
    /// A buffer that lies inside one page, at these addresses.
    #[inline]
    pub(crate) fn in_one(va: u64, bytes: u64, addresses: (*mut u8, u64), access: Access) -> Pages {
        let offset = va % PAGE_BYTES;
        debug_assert!(bytes > 0 && offset + bytes <= PAGE_BYTES);
        let (cpu, bus) = addresses;
        let page = (cpu.wrapping_sub(offset as usize), bus.wrapping_sub(offset));
        Pages {
            first: [page, (std::ptr::null_mut(), 0)],
            table: Vec::new(),
            pages: 1,
            offset,
            bytes,
            va,
            access,
        }
    }

    /// No buffer.
    pub(crate) fn none() -> Pages {
        Pages {
            first: [(std::ptr::null_mut(), 0); INLINE_PAGES],
            table: Vec::new(),
            pages: 0,
            offset: 0,
            bytes: 0,
            va: 0,
            access: Access {
                exported: false,
                writable: false,
            },
        }
    }

    /// The pages of `bytes` bytes at `va`. `span(offset)` returns where the bytes from that offset
    /// lie: bus address, CPU address, and how many are contiguous; it is called for offset 0 and
    /// then at every page's start.
    ///
    /// # Errors
    /// Those of `span`.
    pub(crate) fn new<E>(
        va: u64,
        bytes: u64,
        access: Access,
        mut span: impl FnMut(u64) -> Result<(u64, *mut u8, u64), E>,
    ) -> Result<Pages, E> {
        let offset = va % PAGE_BYTES;
        let pages = if bytes == 0 {
            0
        } else {
            (offset + bytes).div_ceil(PAGE_BYTES) as usize
        };
        // No allocation for a small buffer.
        let mut table = Vec::with_capacity(if pages > INLINE_PAGES { pages } else { 0 });
        let mut first = [(std::ptr::null_mut(), 0); INLINE_PAGES];
        let (mut at, mut n) = (0, 0);
        // A run that the translation has found: its end in the buffer, and its first page's start.
        while at < bytes {
            let (bus, cpu, len) = span(at)?;
            let mut inside = (va + at) % PAGE_BYTES;
            let end = at + len.max(1).min(bytes - at);
            let mut page = (cpu.wrapping_sub(inside as usize), bus.wrapping_sub(inside));
            while at < end {
                if pages > INLINE_PAGES {
                    table.push(page);
                } else {
                    first[n] = page;
                }
                n += 1;
                page = (
                    page.0.wrapping_add(PAGE_BYTES as usize),
                    page.1.wrapping_add(PAGE_BYTES),
                );
                at += PAGE_BYTES - inside;
                inside = 0;
            }
        }
        Ok(Pages {
            first,
            table,
            pages,
            offset,
            bytes,
            va,
            access,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.pages
    }

    fn page(&self, i: usize) -> (*mut u8, u64) {
        if self.pages > INLINE_PAGES {
            self.table[i]
        } else {
            self.first[i]
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn is_exported(&self) -> bool {
        self.access.exported
    }

    pub(super) fn is_writable(&self) -> bool {
        self.access.exported && self.access.writable
    }

    /// Whether two buffers share bytes.
    pub(super) fn is_same(&self, other: &Pages) -> bool {
        let apart = self.va + self.bytes <= other.va || other.va + other.bytes <= self.va;
        !apart && !self.is_empty() && !other.is_empty()
    }

    /// Bus addresses of the pages.
    pub(super) fn bus(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.pages).map(|i| self.page(i).1)
    }

    /// The bytes at an offset, and how many of them lie together.
    #[inline]
    pub(super) fn at(&self, offset: u64) -> (*mut u8, usize) {
        let at = self.offset + offset;
        let inside = at % PAGE_BYTES;
        let page = self.page((at / PAGE_BYTES) as usize).0;
        let run = (PAGE_BYTES - inside).min(self.bytes - offset);
        (page.wrapping_add(inside as usize), run as usize)
    }

    /// Where the buffer begins, if all of it is in one page.
    #[inline]
    pub(super) fn together(&self) -> Option<*mut u8> {
        let first = self.first[0].0.wrapping_add(self.offset as usize);
        (self.offset + self.bytes <= PAGE_BYTES).then_some(first)
    }

    /// Stores the bus addresses for peers.
    pub(super) fn write_table(&self, nic_memory: &NicMemory, block: Block) {
        let Some(to) = nic_memory.at_bus(NIC_BUS + block.at, self.pages as u64 * 8) else {
            return;
        };
        for (i, bus) in self.bus().enumerate() {
            // SAFETY: inside the block (checked), aligned; peers read atomically.
            let word = unsafe { &*to.cast::<AtomicU64>().add(i) };
            // Relaxed: the record's Release comes later.
            word.store(bus, Ordering::Relaxed);
        }
    }
}
