//! What is allocated of the GPU's memory, and what of the host's is pinned.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;

use ringbell_cuda_kernels::GpuBuffer;
use ringbell_gtlb::Exposed;
use ringbell_nic_abi::GpuVa;
use rustix::mm::{MprotectFlags, MremapFlags};

use crate::gpu::{expose, Room};
use crate::{
    faults, gpu, lock, strict, Result, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED,
    INVALID_VALUE, OUT_OF_MEMORY,
};

/// Alignment of small allocations, as NVIDIA's driver has it.
pub(crate) const GRAIN: u64 = 512;
/// Allocations below this size share a slab.
const SMALL: u64 = 1 << 20;

const SLAB: u64 = 2 << 20;
/// Pages of the GPU.
pub(crate) const PAGE: u64 = 64 << 10;

/// One allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) len: u64,
    managed: bool,
    /// Never given twice.
    pub(crate) id: u64,
    /// Of another process.
    imported: bool,
    /// Kernels may access memory of another process, until this is dropped.
    _exposed: Option<Exposed>,
    /// Pages of its own; without, it lies in a slab.
    _own: Option<GpuBuffer>,
    _room: Room,
}

/// Host memory that the GPU may reach.
#[derive(Debug)]
struct Pinned {
    len: usize,
    /// Where the GPU sees it.
    device: u64,
    /// Kernels may access it, until this is dropped.
    _exposed: Option<Exposed>,
    /// Allocated by us.
    owned: bool,
}

#[derive(Debug, Default)]
struct Memory {
    device: BTreeMap<u64, Allocation>,
    slabs: Vec<GpuBuffer>,
    host: BTreeMap<u64, Pinned>,
    next_id: u64,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory {
    device: BTreeMap::new(),
    slabs: Vec::new(),
    host: BTreeMap::new(),
    next_id: 0,
});

impl Memory {
    /// A gap in a slab; the first byte of each is left out, so that nothing small is aligned to a
    /// page.
    fn small(&mut self, len: u64) -> Option<u64> {
        for slab in &self.slabs {
            let (start, end) = (slab.va().0 + GRAIN, slab.va().0 + SLAB);
            let mut at = start;
            for (va, a) in self.device.range(start..end) {
                if at + len <= *va {
                    break;
                }
                at = (va + a.len).next_multiple_of(GRAIN);
            }
            if at + len <= end {
                return Some(at);
            }
        }
        None
    }

    fn alloc(&mut self, len: u64, managed: bool) -> std::result::Result<u64, Result> {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let room = Room::take(len)?;
        // What checks take for one allocation has pages of its own.
        let shares = len < SMALL && !faults().guard && !gpu().is_checked();
        let (va, own) = if shares {
            let va = match self.small(len) {
                Some(va) => va,
                None => {
                    let slab = gpu().alloc(SLAB).map_err(|_| OUT_OF_MEMORY)?;
                    self.slabs.push(slab);
                    self.small(len).ok_or(OUT_OF_MEMORY)?
                }
            };
            (va, None)
        } else {
            let own = gpu().alloc(len).map_err(|_| OUT_OF_MEMORY)?;
            (own.va().0, Some(own))
        };
        self.insert(va, |id| Allocation {
            len,
            managed,
            id,
            imported: false,
            _exposed: None,
            _own: own,
            _room: room,
        });
        if managed {
            // The host writes it unseen.
            gpu().copied(GpuVa(va), len, true);
        }
        guard(va, len, MprotectFlags::empty());
        Ok(va)
    }

    fn insert(&mut self, va: u64, allocation: impl FnOnce(u64) -> Allocation) {
        self.next_id += 1;
        self.device.insert(va, allocation(self.next_id));
    }

    /// The allocation around an address.
    fn around(&self, va: u64) -> Option<(u64, &Allocation)> {
        let (base, a) = self.device.range(..=va).next_back()?;
        (va < base + a.len).then_some((*base, a))
    }

    fn pinned_around(&self, at: u64) -> Option<(u64, &Pinned)> {
        let (base, p) = self.host.range(..=at).next_back()?;
        (at < base + p.len as u64).then_some((*base, p))
    }

    /// Whether a page of the range is registered or allocated already.
    fn shares_pages(&self, base: u64, len: u64) -> bool {
        let (first, end) = (base / HOST_PAGE * HOST_PAGE, base + len);
        self.host.iter().any(|(b, p)| {
            let (b_first, b_end) = (b / HOST_PAGE * HOST_PAGE, b + p.len as u64);
            b_first < end.next_multiple_of(HOST_PAGE) && first < b_end.next_multiple_of(HOST_PAGE)
        })
    }
}

/// With the fault `guard`: lets the host touch an allocation, or not.
fn guard(va: u64, len: u64, rights: MprotectFlags) {
    if !faults().guard {
        return;
    }
    let pages = (len.next_multiple_of(HOST_PAGE)) as usize;
    // SAFETY: whole pages of one allocation, which begins at a page and shares none.
    let set = unsafe { rustix::mm::mprotect(va as *mut c_void, pages, rights) };
    set.expect("an allocation can be guarded");
}

/// A side of a copy of the driver's: memory of the GPU or of the host.
#[derive(Clone, Copy)]
pub(crate) struct Touched {
    va: u64,
    bytes: usize,
    store: bool,
}

impl Touched {
    pub(crate) fn read(va: u64, bytes: usize) -> Touched {
        let store = false;
        Touched { va, bytes, store }
    }

    pub(crate) fn written(va: u64, bytes: usize) -> Touched {
        let store = true;
        Touched { va, bytes, store }
    }
}

/// Runs a copy of the driver's, of which this is a side.
pub(crate) fn copying(side: Touched, copy: impl FnOnce()) {
    gpu().copied(GpuVa(side.va), side.bytes as u64, side.store);
    if !faults().guard {
        return copy();
    }
    let Some((base, len)) = around(side.va) else {
        // The host's side.
        return copy();
    };
    guard(base, len, MprotectFlags::READ | MprotectFlags::WRITE);
    copy();
    guard(base, len, MprotectFlags::empty());
}

/// Pages of the host, which are registered as wholes.
const HOST_PAGE: u64 = 4096;

/// Whether a range lies in one allocation of the GPU.
pub(crate) fn is_device(va: u64, len: usize) -> bool {
    let allocated = lock(&MEMORY)
        .around(va)
        .is_some_and(|(base, a)| va + len as u64 <= base + a.len);
    allocated || crate::module::holds(va, len) || crate::vmm::holds(va, len)
}

/// Whether a range is pinned memory at the GPU's address of it.
pub(crate) fn is_mapped(va: u64, len: usize) -> bool {
    let inside = |p: &Pinned| va >= p.device && va + len as u64 <= p.device + p.len as u64;
    lock(&MEMORY).host.values().any(inside)
}

/// Number and length of an allocation that can be shared, by its base.
pub(crate) fn shareable(base: u64) -> Option<(u64, u64)> {
    let memory = lock(&MEMORY);
    let a = memory.device.get(&base)?;
    (!a.managed && !a.imported).then_some((a.id, a.len))
}

/// Memory of another process is mapped here.
pub(crate) fn import(va: u64, len: u64) {
    lock(&MEMORY).insert(va, |id| Allocation {
        len,
        managed: false,
        id,
        imported: true,
        _exposed: expose(va, len),
        _own: None,
        _room: Room::of_other(len),
    });
}

/// It is not any more. Its length.
pub(crate) fn close(va: u64) -> Option<u64> {
    lock(&MEMORY).device.remove(&va).map(|a| a.len)
}

/// Whether a range of the host is pinned.
pub(crate) fn is_pinned(at: u64, len: usize) -> bool {
    lock(&MEMORY)
        .pinned_around(at)
        .is_some_and(|(base, p)| at + len as u64 <= base + p.len as u64)
}

/// Memory of the GPU, which the host reaches too if it is `managed`.
pub(crate) fn allocate(bytes: u64, managed: bool) -> std::result::Result<u64, Result> {
    lock(&MEMORY).alloc(bytes, managed)
}

/// Whether there is an allocation of this process at an address.
pub(crate) fn is_own(va: u64) -> bool {
    lock(&MEMORY).device.get(&va).is_some_and(|a| !a.imported)
}

/// Takes an allocation of this process out of the table; it is freed when it is dropped.
pub(crate) fn remove(va: u64) -> std::result::Result<Allocation, Result> {
    let mut memory = lock(&MEMORY);
    let known = memory.device.get(&va).filter(|a| !a.imported);
    known.ok_or(INVALID_VALUE)?;
    let removed = memory.device.remove(&va).ok_or(INVALID_VALUE)?;
    guard(va, removed.len, MprotectFlags::READ | MprotectFlags::WRITE);
    Ok(removed)
}

/// First address and bytes of the allocation around an address.
pub(crate) fn around(va: u64) -> Option<(u64, u64)> {
    let memory = lock(&MEMORY);
    memory.around(va).map(|(base, a)| (base, a.len))
}

/// Where the GPU sees pinned memory of the host.
pub(crate) fn mapped_at(at: u64) -> Option<u64> {
    let memory = lock(&MEMORY);
    let (base, p) = memory.pinned_around(at)?;
    Some(p.device + (at - base))
}

/// What is known of an address.
pub(crate) struct Pointer {
    /// Base, bytes and number of an allocation of the GPU.
    pub(crate) device: Option<(u64, u64, u64)>,
    pub(crate) managed: bool,
    pub(crate) shareable: bool,
    /// Where the GPU sees memory of the host.
    pub(crate) pinned: Option<u64>,
}

/// What is known of an address, if anything is.
pub(crate) fn pointer(va: u64) -> Option<Pointer> {
    let memory = lock(&MEMORY);
    let around = memory.around(va);
    let host = memory.pinned_around(va);
    let known = Pointer {
        device: around.map(|(base, a)| (base, a.len, a.id)),
        managed: around.is_some_and(|(_, a)| a.managed),
        shareable: around.is_some_and(|(_, a)| !a.managed && !a.imported),
        pinned: host.map(|(base, p)| p.device + (va - base)),
    };
    drop(memory);
    if known.device.is_some() || known.pinned.is_some() {
        return Some(known);
    }
    let of_module = crate::module::holds(va, 1) || crate::vmm::holds(va, 1);
    of_module.then_some(Pointer {
        device: Some((va, 1, 0)),
        ..known
    })
}

/// Host memory that kernels may access from now on. The test double maps shared memory a second
/// time, elsewhere, so that an address of the host that is used as the GPU's is noticed; memory
/// that is not shared stays where it is.
pub(crate) fn pin(base: *mut c_void, len: usize, owned: bool) -> std::result::Result<(), Result> {
    let mut memory = lock(&MEMORY);
    if !owned && memory.shares_pages(base as u64, len as u64) {
        return Err(HOST_MEMORY_ALREADY_REGISTERED);
    }
    let device = if strict::is_on() {
        alias(base, len)
    } else {
        base as u64
    };
    let pinned = Pinned {
        len,
        device,
        _exposed: expose(device, len as u64),
        owned,
    };
    memory.host.insert(base as u64, pinned);
    Ok(())
}

/// Its length, if there is such memory, and it was allocated by us or registered, as `owned` says.
pub(crate) fn unpin(base: *mut c_void, owned: bool) -> std::result::Result<usize, Result> {
    let (base, mut memory) = (base as u64, lock(&MEMORY));
    let p = memory
        .host
        .remove(&base)
        .ok_or(HOST_MEMORY_NOT_REGISTERED)?;
    if p.owned != owned {
        memory.host.insert(base, p);
        return Err(INVALID_VALUE);
    }
    if p.device != base {
        // SAFETY: made by `alias`; kernels that use it have ended, as CUDA demands too.
        let _ = unsafe { rustix::mm::munmap(p.device as *mut c_void, p.len) };
    }
    Ok(p.len)
}

fn alias(base: *mut c_void, len: usize) -> u64 {
    // SAFETY: an old size of 0 leaves the range as it is and makes a second mapping of the same
    // pages, which the kernel refuses for what is not shared.
    let second = unsafe { rustix::mm::mremap(base, 0, len, MremapFlags::MAYMOVE) };
    second.map_or(base as u64, |at| at as u64)
}
