//! The emulated GPU's memory: one memfd with two mappings, and its [`DmaMemory`].
#![allow(unsafe_code)] // Maps memory and copies through raw pointers: the edge to what kernels write.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, RwLock, Weak};

use ringbell_gtlb::page_table::{LARGE_PAGE_BYTES, PAGE_BYTES};
use ringbell_gtlb::{
    BusError, BusSpan, CompletionWrite, DmaId, DmaMemory, DmaOp, EntryPlace, Export, Exposed,
    Submitted, WaitHook, Window,
};
use ringbell_nic_abi::WorkQueueEntry;
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use rustix::mm::{madvise, mmap, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};

use super::layout::{groups_in, PageLayout};
use super::operations;
use crate::locks::read;
use crate::locks::write;

/// Where the emulated GPU's memory lies on the bus. Not 0, so that an offset mistaken for an
/// address is noticed, and above 4 GiB, so that a cut one is.
const BUS_BASE: u64 = 0x40_0000_0000;

/// Memory of one emulated GPU.
///
/// Every page exists twice: on the bus (linear, what DMA reaches) and at a virtual address (what
/// kernels dereference). Kernels and peers may write both at any time; only raw copies touch them.
pub struct EmulatedMemory {
    fd: OwnedFd,
    bytes: u64,
    bus: *mut u8,
    va: *mut u8,
    layout: PageLayout,
    exposed: Arc<ExposedRanges>,
    pub(super) watched: super::watched::Watched,
    /// NICs whose queues kernels may have.
    nics: RwLock<Vec<(Weak<dyn WaitHook>, String)>>,
}

impl std::fmt::Debug for EmulatedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "EmulatedMemory({} bytes)", self.bytes)
    }
}

/// An access of the host: of bytes, or of a word that orders others.
#[derive(Debug, Clone, Copy)]
enum Touch {
    Write,
    Read,
    Store,
    Load,
}

/// Memory of the host and registers that kernels may access, as first byte and length.
#[derive(Debug, Default)]
struct ExposedRanges {
    ranges: RwLock<Vec<(u64, u64)>>,
    /// Counts those that were dropped.
    withdrawn: AtomicU64,
}

/// An exposed range, until it is dropped.
struct ExposedRange {
    all: Arc<ExposedRanges>,
    range: (u64, u64),
}

impl ExposedRange {
    fn guarded(all: &Arc<ExposedRanges>, base: NonNull<u8>, len: usize) -> Exposed {
        let range = (base.as_ptr() as u64, len as u64);
        write(&all.ranges).push(range);
        let all = all.clone();
        Exposed::same_while(base, Box::new(ExposedRange { all, range }))
    }
}

impl Drop for ExposedRange {
    fn drop(&mut self) {
        let mut all = write(&self.all.ranges);
        // One may be exposed twice.
        if let Some(i) = all.iter().position(|r| *r == self.range) {
            all.swap_remove(i);
        }
        self.all.withdrawn.fetch_add(1, Ordering::Relaxed);
    }
}

impl ringbell_gpu::Memory for EmulatedMemory {
    fn allows(&self, address: u64, bytes: u32) -> bool {
        self.range(address, bytes).is_some()
    }

    fn range(&self, address: u64, bytes: u32) -> Option<(u64, u64)> {
        let ranges = read(&self.exposed.ranges);
        let mut ranges = ranges.iter();
        let around = ranges.find(|(base, len)| {
            let offset = address.wrapping_sub(*base);
            offset < *len && len - offset >= u64::from(bytes)
        });
        around.copied()
    }

    fn withdrawn(&self) -> u64 {
        // Relaxed: a program that frees what a kernel uses has no order with it anyway.
        self.exposed.withdrawn.load(Ordering::Relaxed)
    }

    fn nearest(&self, address: u64) -> Option<String> {
        self.watched.nearest(address)
    }

    fn checker(&self) -> Option<&ringbell_gpu::Checker> {
        self.watched.checker()
    }
}

// SAFETY: the pointers are mappings owned by this value until it is dropped; every access goes
// through raw copies that tolerate concurrent writers.
unsafe impl Send for EmulatedMemory {}
// SAFETY: as for Send.
unsafe impl Sync for EmulatedMemory {}

/// Reserves address space aligned to 2 MiB.
fn reserve(bytes: usize) -> rustix::io::Result<*mut u8> {
    let slack = LARGE_PAGE_BYTES as usize;
    // SAFETY: a fresh anonymous mapping chosen by the kernel touches nothing that exists.
    let at = unsafe {
        mmap_anonymous(
            ptr::null_mut(),
            bytes + slack,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )?
    } as usize;
    let start = at.next_multiple_of(slack);
    // SAFETY: head and tail of the reservation just made, which have no users yet.
    unsafe {
        if start > at {
            munmap(at as *mut c_void, start - at)?;
        }
        let tail = at + bytes + slack - (start + bytes);
        if tail > 0 {
            munmap((start + bytes) as *mut c_void, tail)?;
        }
    }
    Ok(start as *mut u8)
}

impl EmulatedMemory {
    /// The NICs that a thread steps which waits for them.
    pub(super) fn nics(&self) -> Vec<Arc<dyn WaitHook>> {
        let nics = read(&self.nics);
        let nics = nics.iter().filter_map(|(nic, _)| nic.upgrade());
        nics.filter(|nic| !nic.is_gone()).collect()
    }

    /// Whose kernels those of this memory are, in words.
    pub(super) fn owner(&self) -> Option<String> {
        let nics = read(&self.nics);
        let names: Vec<String> = nics.iter().map(|(_, name)| name.clone()).collect();
        operations::owner(&names)
    }

    /// Creates and maps `bytes` (a multiple of 2 MiB).
    ///
    /// # Errors
    /// The system call's error: out of memory, or of mappings (`vm.max_map_count`).
    pub(super) fn new(
        bytes: u64,
        fraction: f64,
        max_mappings: usize,
        seed: u64,
    ) -> rustix::io::Result<EmulatedMemory> {
        let fd = memfd_create(
            "ringbell-gpu",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        ftruncate(&fd, bytes)?;
        // A peer that maps the export must not be hit by SIGBUS because the file shrank.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let layout = PageLayout::new(groups_in(bytes), fraction, max_mappings, seed);
        let len = bytes as usize;
        let mut memory = EmulatedMemory {
            fd,
            bytes,
            bus: ptr::null_mut(),
            va: ptr::null_mut(),
            layout,
            exposed: Arc::default(),
            watched: Default::default(),
            nics: RwLock::default(),
        };
        // Stored at once, so that Drop unmaps them when a later step fails.
        memory.bus = reserve(len)?;
        memory.map(memory.bus, 0, len)?;
        memory.va = reserve(len)?;
        for run in memory.layout.all_runs() {
            let at = memory.va.wrapping_add(run.va_page * PAGE_BYTES as usize);
            memory.map(
                at,
                run.file_page as u64 * PAGE_BYTES,
                run.pages * PAGE_BYTES as usize,
            )?;
        }
        Ok(memory)
    }

    /// Maps a part of the file over a part of a reservation.
    fn map(&self, at: *mut u8, offset: u64, len: usize) -> rustix::io::Result<()> {
        // SAFETY: `at..at + len` lies in a reservation made by `reserve` and owned by this value.
        unsafe {
            mmap(
                at.cast(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE,
                &self.fd,
                offset,
            )?;
        }
        Ok(())
    }

    /// Bytes of the memory.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Never: a GPU without memory is refused.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// First virtual address.
    pub fn base_va(&self) -> u64 {
        self.va as u64
    }

    /// Groups of 2 MiB whose pages are scattered (it may be fewer than asked for, see
    /// [`EmulatedGpuConfig::max_mappings`](super::EmulatedGpuConfig::max_mappings)).
    pub fn scattered_groups(&self) -> usize {
        self.layout.scattered_groups()
    }

    /// Bus address of a page of virtual memory.
    pub(super) fn bus_of_page(&self, va_page: usize) -> u64 {
        BUS_BASE + self.layout.file_offset(va_page)
    }

    /// Makes the pages exist and enters them in both page tables, so that neither a kernel nor a
    /// DMA takes a page fault later.
    pub(super) fn populate(&self, first_page: usize, pages: usize) -> rustix::io::Result<()> {
        let page = PAGE_BYTES as usize;
        // SAFETY: populating changes no byte; the ranges lie inside this value's mappings.
        unsafe {
            madvise(
                self.va.wrapping_add(first_page * page).cast(),
                pages * page,
                Advice::LinuxPopulateWrite,
            )?;
            for run in self.layout.runs(first_page, pages) {
                madvise(
                    self.bus.wrapping_add(run.file_page * page).cast(),
                    run.pages * page,
                    Advice::LinuxPopulateWrite,
                )?;
            }
        }
        Ok(())
    }

    /// Copies to the memory at a virtual offset. The caller has checked the range.
    pub(super) fn write_at(&self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.bytes as usize);
        self.host(offset, from.len(), Touch::Write);
        // SAFETY: in range by the assertion; `from` is ours and cannot overlap the mapping.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.va.add(offset), from.len()) }
    }

    /// Copies from the memory at a virtual offset. The caller has checked the range.
    pub(super) fn read_at(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.bytes as usize);
        self.host(offset, into.len(), Touch::Read);
        // SAFETY: as in `write_at`.
        unsafe { ptr::copy_nonoverlapping(self.va.add(offset), into.as_mut_ptr(), into.len()) }
    }

    /// An atomic word at a virtual offset, which the caller has aligned.
    fn word<T>(&self, offset: usize) -> *mut T {
        assert!(
            offset + size_of::<T>() <= self.bytes as usize && offset.is_multiple_of(size_of::<T>())
        );
        self.va.wrapping_add(offset).cast()
    }

    pub(super) fn load_u64(&self, offset: usize) -> u64 {
        // SAFETY: in range and aligned by the assertion; kernels access such words atomically.
        let value = unsafe { AtomicU64::from_ptr(self.word(offset)) }.load(Ordering::Acquire);
        self.host(offset, 8, Touch::Load);
        value
    }

    pub(super) fn store_u64(&self, offset: usize, value: u64) {
        self.host(offset, 8, Touch::Store);
        // SAFETY: as for the load.
        unsafe { AtomicU64::from_ptr(self.word(offset)) }.store(value, Ordering::Release);
    }

    pub(super) fn load_u32(&self, offset: usize) -> u32 {
        // SAFETY: as for the load of 64 bits.
        let value = unsafe { AtomicU32::from_ptr(self.word(offset)) }.load(Ordering::Acquire);
        self.host(offset, 4, Touch::Load);
        value
    }

    pub(super) fn store_u32(&self, offset: usize, value: u32) {
        self.host(offset, 4, Touch::Store);
        // SAFETY: as for the load of 64 bits.
        unsafe { AtomicU32::from_ptr(self.word(offset)) }.store(value, Ordering::Release);
    }

    /// Tells the checker of an access at an address that kernels see, which the caller makes
    /// itself: a copy, or a word in order.
    pub(super) fn accessed(&self, va: u64, bytes: u64, store: bool, word: bool) {
        let offset = va.checked_sub(self.base_va());
        let end = offset.and_then(|offset| offset.checked_add(bytes));
        let touch = match (word, store) {
            (false, true) => Touch::Write,
            (false, false) => Touch::Read,
            (true, true) => Touch::Store,
            (true, false) => Touch::Load,
        };
        if let (Some(offset), Some(..)) = (offset, end.filter(|end| *end <= self.bytes)) {
            self.host(offset as usize, bytes as usize, touch);
        }
    }

    /// Tells the checker of an access of the host: before a write, so that what is released is
    /// known when it is seen, and after a load of a word, so that what the word has shown is known.
    /// What lies between may hide a race, and makes none up.
    fn host(&self, offset: usize, bytes: usize, touch: Touch) {
        if let Some(checker) = self.watched.checker() {
            let (at, bytes) = (self.base_va() + offset as u64, bytes as u64);
            let store = matches!(touch, Touch::Write | Touch::Store);
            match touch {
                Touch::Write | Touch::Read => checker.host(at, bytes, store),
                Touch::Store | Touch::Load => checker.host_word(at, bytes, store),
            }
        }
    }

    /// The checker, if it traces accesses.
    fn traced(&self) -> Option<&ringbell_gpu::Checker> {
        self.watched.checker().filter(|c| c.checks().traced())
    }

    /// Where kernels see a byte that lies at `at` on the bus as this process maps it.
    fn address_of(&self, at: *const u8) -> u64 {
        let offset = at as u64 - self.bus as u64;
        let page = self.layout.va_page((offset / PAGE_BYTES) as usize);
        self.base_va() + page as u64 * PAGE_BYTES + offset % PAGE_BYTES
    }

    /// Tells the checker of an access of the NIC, at an address of the bus as this process maps it.
    fn nic(&self, at: *const u8, bytes: usize, store: bool) {
        let Some(checker) = self.traced() else { return };
        let mut done = 0;
        while done < bytes {
            let address = self.address_of(at.wrapping_add(done));
            let n = (bytes - done).min((PAGE_BYTES - address % PAGE_BYTES) as usize);
            checker.nic(address, n as u64, store);
            done += n;
        }
    }

    /// Where a span lies, if it is backed and as long as the NIC's side of the copy.
    fn bus_at(&self, span: BusSpan, len: usize) -> Result<*mut u8, BusError> {
        let refuse = BusError::OutOfRange {
            addr: span.addr.value(),
            len: span.len,
        };
        let offset = span.addr.value().checked_sub(BUS_BASE).ok_or(refuse)?;
        match offset.checked_add(span.len) {
            Some(end) if end <= self.bytes && span.len == len as u64 => {
                Ok(self.bus.wrapping_add(offset as usize))
            }
            _ => Err(refuse),
        }
    }
}

impl DmaMemory for EmulatedMemory {
    fn submit(&self, op: DmaOp<'_>) -> Result<Submitted, BusError> {
        match op {
            DmaOp::Read { from, into } => {
                let at = self.bus_at(from, into.len())?;
                self.nic(at, into.len(), false);
                // SAFETY: `bus_at` has checked the span; `into` is the NIC's own memory.
                unsafe { ptr::copy_nonoverlapping(at, into.as_mut_ptr(), into.len()) };
            }
            DmaOp::Write { to, from } => {
                let at = self.bus_at(to, from.len())?;
                self.nic(at, from.len(), true);
                // SAFETY: as for the read.
                unsafe { ptr::copy_nonoverlapping(from.as_ptr(), at, from.len()) };
            }
            DmaOp::Copy { from, to } => {
                let source = self.bus_at(from, to.len as usize)?;
                let target = self.bus_at(to, from.len as usize)?;
                self.nic(source, to.len as usize, false);
                self.nic(target, to.len as usize, true);
                // SAFETY: as for the read; `copy` allows spans to overlap.
                unsafe { ptr::copy(source.cast_const(), target, to.len as usize) };
            }
        }
        Ok(Submitted::Done)
    }

    fn poll(&self) -> Option<DmaId> {
        None
    }

    fn take(&self, id: DmaId, _into: &mut [u8]) {
        // Nothing is ever answered Pending, so there is no id to take.
        panic!(
            "DMA operation {} is not pending: this memory finishes all at once",
            id.0
        );
    }

    fn publish(&self, completion: CompletionWrite) {
        if let Some(checker) = self.traced() {
            checker.ends(completion.line());
        }
        // Every write is a plain store of this thread before the Release store of word 0.
        completion.store();
    }

    fn word(&self, span: BusSpan, store: bool) -> Option<NonNull<AtomicU64>> {
        let at = self.bus_at(span, 8).ok()?;
        if let Some(checker) = self.traced().filter(|_| store) {
            checker.nic_word(self.address_of(at), true);
        }
        NonNull::new(at.cast())
    }

    fn word_was_read(&self, span: BusSpan) {
        if let (Some(checker), Ok(at)) = (self.traced(), self.bus_at(span, 8)) {
            checker.nic_word(self.address_of(at), false);
        }
    }

    fn begins(&self, entry: &WorkQueueEntry, place: EntryPlace) {
        let Some(checker) = self.traced() else { return };
        let rest = |at| self.watched.rest(at);
        if let Some(operation) = operations::operation(entry, place, rest) {
            checker.begins(operation);
        }
    }

    fn window(&self) -> Option<Window> {
        // Each of the NIC's accesses is told to the checker.
        if self.traced().is_some() {
            return None;
        }
        Some(Window {
            base: self.bus,
            bus: BUS_BASE,
            len: self.bytes,
        })
    }

    fn expose(&self, base: NonNull<u8>, len: usize) -> std::io::Result<Exposed> {
        Ok(ExposedRange::guarded(&self.exposed, base, len))
    }

    fn expose_io(&self, base: NonNull<u8>, len: usize) -> std::io::Result<Exposed> {
        Ok(ExposedRange::guarded(&self.exposed, base, len))
    }

    fn registered(&self, base: NonNull<u8>, len: usize) -> Option<Exposed> {
        Some(ExposedRange::guarded(&self.exposed, base, len))
    }

    fn on_wait(&self, nic: Weak<dyn WaitHook>, name: &str) {
        let mut nics = write(&self.nics);
        nics.retain(|(n, _)| n.strong_count() > 0 && !n.ptr_eq(&nic));
        nics.push((nic, name.to_owned()));
    }

    fn exports(&self) -> Vec<Export<'_>> {
        // So are those of peers, which are the NIC's then.
        if self.traced().is_some() {
            return Vec::new();
        }
        vec![Export {
            fd: self.fd.as_fd(),
            file_offset: 0,
            bus: BUS_BASE,
            len: self.bytes,
        }]
    }
}

impl Drop for EmulatedMemory {
    fn drop(&mut self) {
        for at in [self.bus, self.va] {
            if !at.is_null() {
                // SAFETY: mapped by `new`, and no reference exists: all access is by raw copy
                // through this value. An error would only leave the range mapped.
                let _ = unsafe { munmap(at.cast(), self.bytes as usize) };
            }
        }
    }
}
