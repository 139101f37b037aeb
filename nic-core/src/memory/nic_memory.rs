//! NIC memory ("E" in FpgaNIC's Table 8): the card's own memory, beside GPU memory on the bus.
//!
//! A sealed memfd, so that NICs of the same host and user can map it as they map exported GPU
//! memory. Untouched pages cost nothing. It holds what an engine needs between network and GPU
//! memory: receive buffers, partial results, records that peers write.
//!
//! The bus has three ranges. GPU memory keeps the addresses that its driver reports (a host's
//! physical addresses, below 2^57). NIC memory and the host's memory lie above, where no driver
//! reports any.
#![allow(unsafe_code)] // Raw access to mapped memory that peers may write.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ringbell_gtlb::Export;
use ringbell_nic_abi::GpuVa;

use crate::shmem::Mapping;
use crate::types::Buffer;
use ringbell_gtlb::copy;

/// Bus address of NIC memory's first byte.
pub(crate) const NIC_BUS: u64 = 1 << 61;
/// Bus address of host address 0: host memory is mapped one to one behind it.
pub(crate) const HOST_BUS: u64 = 1 << 62;
/// Virtual address of NIC memory's first byte, which no GPU hands out.
pub(crate) const NIC_VA: u64 = ringbell_nic_abi::descriptor::NIC_VA;
/// Every allocation starts on a line of its own, so that neighbours share none.
const ALIGN: u64 = 128;

/// The processor compares addresses by their place in a page of so many bytes.
const PAGE: u64 = 4096;

/// A piece of NIC memory; give it back with [`NicMemory::free`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// Offset of the first byte.
    pub(crate) at: u64,
    /// Bytes.
    pub(crate) len: u64,
}

impl Block {
    /// The block that [`NicMemory::alloc`] gave for `len` bytes, by where it starts.
    pub(crate) fn of(at: u64, len: u64) -> Block {
        let len = len.max(1).next_multiple_of(ALIGN);
        Block { at, len }
    }
}

/// Which of a range is in use.
#[derive(Debug)]
pub(crate) struct Space {
    /// Free ranges: offset to length, never adjacent.
    free: BTreeMap<u64, u64>,
    used: u64,
}

impl Space {
    /// A free range.
    pub(crate) fn new(at: u64, len: u64) -> Space {
        Space {
            free: BTreeMap::from([(at, len)]),
            used: 0,
        }
    }

    /// Takes `len` bytes, first fit; `None` when no free range is that long. Long blocks begin with
    /// a page where that is possible: a copy to a little behind its source in the page is slower.
    pub(crate) fn alloc(&mut self, len: u64) -> Option<Block> {
        let len = len.max(1).checked_next_multiple_of(ALIGN)?;
        let paged = |(start, n): (&u64, &u64)| {
            let skipped = start.next_multiple_of(PAGE) - start;
            (*n >= skipped.checked_add(len)?).then_some((*start, *n, skipped))
        };
        let at_page = match len >= PAGE {
            true => self.free.iter().find_map(paged),
            false => None,
        };
        let anywhere = || {
            let found = self.free.iter().find(|(_, n)| **n >= len);
            found.map(|(start, n)| (*start, *n, 0))
        };
        let (start, room, skipped) = at_page.or_else(anywhere)?;
        let at = start + skipped;
        self.free.remove(&start);
        if skipped > 0 {
            self.free.insert(start, skipped);
        }
        let rest = room - skipped - len;
        if rest > 0 {
            self.free.insert(at + len, rest);
        }
        self.used += len;
        Some(Block { at, len })
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Gives a block back.
    pub(crate) fn free(&mut self, block: Block) {
        let (mut at, mut len) = (block.at, block.len);
        self.used -= len;
        if let Some((before, n)) = self.free.range(..at).next_back().map(|(a, n)| (*a, *n)) {
            debug_assert!(before + n <= at, "{block:?} was free already");
            if before + n == at {
                self.free.remove(&before);
                (at, len) = (before, n + len);
            }
        }
        if let Some(n) = self.free.remove(&(at + len)) {
            len += n;
        }
        self.free.insert(at, len);
    }
}

/// The memory, and which of it is in use.
#[derive(Debug)]
pub(crate) struct NicMemory {
    map: Arc<Mapping>,
    len: u64,
    /// Handle of the region in the MMU, once NIC memory is registered.
    region: u32,
    space: Space,
}

impl NicMemory {
    /// NIC memory of `len` bytes.
    pub(crate) fn new(len: u64) -> std::io::Result<NicMemory> {
        let size = usize::try_from(len).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        Ok(NicMemory {
            map: Arc::new(Mapping::memfd("ringbell-nic-memory", size)?),
            len,
            region: u32::MAX,
            space: Space::new(0, len),
        })
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.space.used
    }

    /// Whether NIC memory is registered with the MMU.
    pub(crate) fn is_registered(&self) -> bool {
        self.region != u32::MAX
    }

    /// Sets the region under which NIC memory is registered with the MMU.
    pub(crate) fn set_region(&mut self, region: u32) {
        self.region = region;
    }

    /// Its mapping, for a card that reaches it.
    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        self.map.clone()
    }

    /// What local peers map.
    pub(crate) fn export(&self) -> Option<Export<'_>> {
        let fd: BorrowedFd<'_> = self.map.fd()?;
        Some(Export {
            fd,
            file_offset: 0,
            bus: NIC_BUS,
            len: self.len,
        })
    }

    /// Takes `len` bytes; `None` when no free range is that long.
    pub(crate) fn alloc(&mut self, len: u64) -> Option<Block> {
        self.space.alloc(len)
    }

    /// Gives a block back.
    pub(crate) fn free(&mut self, block: Block) {
        self.space.free(block);
    }

    /// `len` bytes at an offset, as transports take them.
    pub(crate) fn buffer(&self, at: u64, len: u32) -> Buffer {
        Buffer {
            region: self.region,
            va: GpuVa(NIC_VA + at),
            len,
        }
    }

    /// Where `len` bytes at a bus address lie; `None` outside of NIC memory.
    #[inline]
    pub(crate) fn at_bus(&self, bus: u64, len: u64) -> Option<*mut u8> {
        let at = bus.checked_sub(NIC_BUS)?;
        if at.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: inside the mapping (checked).
        Some(unsafe { self.map.base().add(at as usize) })
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When the range leaves NIC memory: offsets are ours.
    pub(crate) fn write(&self, at: u64, from: &[u8]) {
        let to = self.at_bus(NIC_BUS + at, from.len() as u64);
        let Some(to) = to else {
            panic!("{at} + {} leaves NIC memory", from.len());
        };
        // SAFETY: mapped (checked by `at_bus`); `from` does not lie in NIC memory, which no slice
        // covers.
        unsafe { copy::copy(to, from.as_ptr(), from.len()) };
    }

    /// Sets a block to zeros.
    pub(crate) fn zero(&self, block: Block) {
        if let Some(to) = self.at_bus(NIC_BUS + block.at, block.len) {
            // SAFETY: mapped (checked by `at_bus`), reached through raw accesses only.
            unsafe { to.write_bytes(0, block.len as usize) };
        }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When the range leaves NIC memory: offsets are ours.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        let from = self.at_bus(NIC_BUS + at, into.len() as u64);
        let Some(from) = from else {
            panic!("{at} + {} leaves NIC memory", into.len());
        };
        // SAFETY: mapped (checked by `at_bus`); `into` is ours alone.
        unsafe { copy::copy(into.as_mut_ptr(), from, into.len()) };
    }
}

/// Where `len` bytes at a bus address of the host's own memory lie.
#[inline]
pub(crate) fn host_at_bus(bus: u64, len: u64) -> Option<*mut u8> {
    let va = bus.checked_sub(HOST_BUS)?;
    va.checked_add(len)?;
    // Only a flat region, for which its owner has vouched, is translated to such an address.
    Some(std::ptr::with_exposed_provenance_mut(va as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_free_memory_merges() {
        let mut b = NicMemory::new(1 << 20).expect("memfd");
        let mut blocks = Vec::new();
        let mut n = 7u64;
        while let Some(x) = b.alloc(n % 9000) {
            assert!(x.at.is_multiple_of(ALIGN) && x.at + x.len <= 1 << 20);
            blocks.push(x);
            n = n * 31 % 65_521;
        }
        let mut sorted = blocks.clone();
        sorted.sort_by_key(|x| x.at);
        assert!(sorted.windows(2).all(|w| w[0].at + w[0].len <= w[1].at));
        assert_eq!(b.used(), sorted.iter().map(|x| x.len).sum::<u64>());
        // Odd ones first, so that every merge happens.
        for x in blocks
            .iter()
            .skip(1)
            .step_by(2)
            .chain(blocks.iter().step_by(2))
        {
            b.free(*x);
        }
        assert_eq!(b.used(), 0);
        assert_eq!(
            b.alloc(1 << 20),
            Some(Block {
                at: 0,
                len: 1 << 20
            })
        );
        assert_eq!(b.alloc(1), None);
    }

    #[test]
    fn long_blocks_begin_with_a_page_where_that_is_possible() {
        let mut s = Space::new(0, 3 * PAGE);
        let at = |b: Option<Block>| b.map(|b| b.at);
        assert_eq!(at(s.alloc(1)), Some(0));
        assert_eq!(at(s.alloc(PAGE)), Some(PAGE));
        // What was skipped is given out.
        assert_eq!(at(s.alloc(PAGE - ALIGN)), Some(ALIGN));
        let short = s.alloc(ALIGN).expect("room");
        assert_eq!(short.at, 2 * PAGE);
        assert_eq!(at(s.alloc(PAGE)), None);
        s.free(short);
        assert_eq!(at(s.alloc(PAGE)), Some(2 * PAGE));
        assert_eq!(at(s.alloc(1)), None);
        // There is room, but not at a page.
        let mut s = Space::new(ALIGN, PAGE);
        assert_eq!(at(s.alloc(PAGE)), Some(ALIGN));
    }

    #[test]
    fn addresses_outside_are_none() {
        let b = NicMemory::new(1 << 20).expect("memfd");
        assert!(b.at_bus(NIC_BUS, 1 << 20).is_some());
        for (bus, len) in [
            (NIC_BUS - 1, 1),
            (NIC_BUS + 1, 1 << 20),
            (NIC_BUS, u64::MAX),
            (0, 1),
        ] {
            assert!(b.at_bus(bus, len).is_none());
        }
    }
}
