//! Memory of the GPU, managed memory, and pinned memory of the host.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use ringbell_cuda_kernels::GpuBuffer;
use ringbell_gtlb::{DmaMemory as _, Exposed};
use ringbell_nic_abi::GpuVa;
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};

use crate::{
    call, faults, gpu, lock, put, ready, strict, Result, HOST_MEMORY_ALREADY_REGISTERED,
    HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, OUT_OF_MEMORY,
};

/// Alignment of small allocations, as NVIDIA's driver has it.
const GRAIN: u64 = 512;
/// Allocations below this size share a slab.
const SMALL: u64 = 1 << 20;
const SLAB: u64 = 2 << 20;

/// Pages of the GPU.
pub(crate) const PAGE: u64 = 64 << 10;

/// One allocation.
#[derive(Debug)]
struct Allocation {
    len: u64,
    managed: bool,
    /// Never given twice.
    id: u64,
    /// Of another process.
    imported: bool,
    /// Kernels may access memory of another process, until this is dropped.
    _exposed: Option<Exposed>,
    /// Pages of its own; without, it lies in a slab.
    _own: Option<GpuBuffer>,
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
        let used = self.device.values().map(|a| a.len).sum::<u64>() + crate::vmm::bytes();
        if len > crate::memory_bytes().saturating_sub(used) {
            return Err(OUT_OF_MEMORY);
        }
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
        self.insert(va, len, managed, false, own);
        if managed {
            // The host writes it unseen.
            gpu().copied(GpuVa(va), len, true);
        }
        guard(va, len, MprotectFlags::empty());
        Ok(va)
    }

    fn insert(&mut self, va: u64, len: u64, managed: bool, imported: bool, own: Option<GpuBuffer>) {
        self.next_id += 1;
        let a = Allocation {
            len,
            managed,
            id: self.next_id,
            imported,
            _exposed: imported.then(|| expose(va, len)).flatten(),
            _own: own,
        };
        self.device.insert(va, a);
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
    let around = lock(&MEMORY).around(side.va).map(|(base, a)| (base, a.len));
    let Some((base, len)) = around else {
        // The host's side.
        return copy();
    };
    guard(base, len, MprotectFlags::READ | MprotectFlags::WRITE);
    copy();
    guard(base, len, MprotectFlags::empty());
}

/// Pages of the host, which are registered as wholes.
const HOST_PAGE: u64 = 4096;

impl Memory {
    /// Whether a page of the range is registered or allocated already.
    fn shares_pages(&self, base: u64, len: u64) -> bool {
        let (first, end) = (base / HOST_PAGE * HOST_PAGE, base + len);
        self.host.iter().any(|(b, p)| {
            let (b_first, b_end) = (b / HOST_PAGE * HOST_PAGE, b + p.len as u64);
            b_first < end.next_multiple_of(HOST_PAGE) && first < b_end.next_multiple_of(HOST_PAGE)
        })
    }
}

/// Whether all of a range may be written by the process: the driver pins pages for writing, and
/// refuses others without a flag that not every GPU knows (CU_MEMHOSTREGISTER_READ_ONLY).
fn is_writable(base: u64, len: u64) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut at = base;
    for line in maps.lines() {
        let mut words = line.split([' ', '-']);
        let mut hex = || u64::from_str_radix(words.next()?, 16).ok();
        let (Some(start), Some(end)) = (hex(), hex()) else {
            continue;
        };
        let rights = words.next().unwrap_or_default();
        if start <= at && at < end && rights.starts_with("rw") {
            at = end;
        }
        if at >= base + len {
            return true;
        }
    }
    false
}

/// Whether a range lies in one allocation of the GPU.
pub(crate) fn is_device(va: u64, len: usize) -> bool {
    let allocated = lock(&MEMORY)
        .around(va)
        .is_some_and(|(base, a)| va + len as u64 <= base + a.len);
    allocated || crate::module::holds(va, len) || crate::vmm::holds(va, len)
}

/// Bytes of all allocations.
pub(crate) fn used() -> u64 {
    lock(&MEMORY).device.values().map(|a| a.len).sum()
}

/// Memory of the GPU.
pub(crate) fn allocate(bytes: u64) -> std::result::Result<u64, Result> {
    lock(&MEMORY).alloc(bytes, false)
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
    lock(&MEMORY).insert(va, len, false, true, None);
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

#[no_mangle]
pub unsafe extern "C" fn cuMemAlloc_v2(va: *mut u64, bytes: usize) -> Result {
    call(|| {
        ready()?;
        strict::may_wait("cuMemAlloc");
        let at = lock(&MEMORY).alloc(bytes as u64, false)?;
        // SAFETY: the caller's pointer.
        unsafe { put(va, at) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAllocManaged(va: *mut u64, bytes: usize, _flags: c_uint) -> Result {
    call(|| {
        ready()?;
        let at = lock(&MEMORY).alloc(bytes as u64, true)?;
        // SAFETY: the caller's pointer.
        unsafe { put(va, at) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemFree_v2(va: u64) -> Result {
    call(|| {
        ready()?;
        // As the real one does: nothing that was queued before may still use the memory.
        strict::wait_for_all("cuMemFree");
        crate::stream::synchronize_all()?;
        let mut memory = lock(&MEMORY);
        if memory.device.get(&va).is_none_or(|a| a.imported) {
            return Err(INVALID_VALUE);
        }
        let removed = memory.device.remove(&va);
        drop(memory);
        if let Some(a) = removed {
            guard(va, a.len, MprotectFlags::READ | MprotectFlags::WRITE);
            crate::ipc::forget(a.id);
            crate::dma_buf::forget(va, a.len);
            crate::pool::freed(va);
        }
        Ok(())
    })
}

/// Freed when the stream has reached this.
#[no_mangle]
pub unsafe extern "C" fn cuMemFreeAsync(va: u64, s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        if lock(&MEMORY).device.get(&va).is_none_or(|a| a.imported) {
            return Err(INVALID_VALUE);
        }
        crate::stream::on(s, |real| {
            real.host(move || {
                lock(&MEMORY).device.remove(&va);
                crate::pool::freed(va);
            });
            Ok(())
        })
    })
}

/// Managed memory is the GPU's own, which the host reaches too: nothing moves.
#[no_mangle]
pub unsafe extern "C" fn cuMemPrefetchAsync(
    va: u64,
    bytes: usize,
    _device: c_int,
    s: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        crate::stream::stream(s)?;
        match is_device(va, bytes) {
            true => Ok(()),
            false => Err(INVALID_VALUE),
        }
    })
}

/// As [`cuMemPrefetchAsync`].
#[no_mangle]
pub unsafe extern "C" fn cuMemAdvise(
    va: u64,
    bytes: usize,
    _advice: c_uint,
    _device: c_int,
) -> Result {
    call(|| {
        ready()?;
        match is_device(va, bytes) {
            true => Ok(()),
            false => Err(INVALID_VALUE),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAllocPitch_v2(
    va: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Result {
    call(|| {
        ready()?;
        if !matches!(element, 4 | 8 | 16) {
            return Err(INVALID_VALUE);
        }
        let row = width
            .checked_next_multiple_of(GRAIN as usize)
            .ok_or(INVALID_VALUE)?;
        let bytes = row.checked_mul(height).ok_or(OUT_OF_MEMORY)?;
        let at = lock(&MEMORY).alloc(bytes as u64, false)?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(va, at)?;
            put(pitch, row)
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut u64,
    size: *mut usize,
    va: u64,
) -> Result {
    call(|| {
        ready()?;
        let memory = lock(&MEMORY);
        let (at, a) = memory.around(va).ok_or(crate::NOT_FOUND)?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(base, at)?;
            put(size, a.len as usize)
        }
    })
}

/// What is known of an address.
struct Pointer {
    /// Base, bytes and number of an allocation of the GPU.
    device: Option<(u64, u64, u64)>,
    managed: bool,
    shareable: bool,
    /// Where the GPU sees memory of the host.
    pinned: Option<u64>,
}

/// What is known of an address, if anything is.
fn pointer(va: u64) -> Option<Pointer> {
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

/// One attribute of an address, whose type goes by its number: pointers and numbers have 64 bits,
/// switches 8, the rest 32.
///
/// # Safety
/// `data` points to a value of that type.
unsafe fn attribute(
    data: *mut c_void,
    attribute: c_uint,
    va: u64,
) -> std::result::Result<(), Result> {
    let p = pointer(va).ok_or(INVALID_VALUE)?;
    let wide = match (attribute, p.device, p.pinned) {
        (1, ..) => Some(crate::device::context()), // CONTEXT
        (3, Some(_), _) => Some(va),               // DEVICE_POINTER
        (3, None, Some(at)) => Some(at),
        (4, None, Some(_)) => Some(va), // HOST_POINTER
        (4, Some(_), _) if p.managed => Some(va),
        (7, Some((.., id)), _) => Some(id),          // BUFFER_ID
        (11, Some((base, ..)), _) => Some(base),     // RANGE_START_ADDR
        (12, Some((_, bytes, _)), _) => Some(bytes), // RANGE_SIZE
        (14 | 17, ..) => Some(0),                    // ALLOWED_HANDLE_TYPES, MEMPOOL_HANDLE
        _ => None,
    };
    if let Some(wide) = wide {
        // SAFETY: the caller's contract.
        return unsafe { put(data.cast::<u64>(), wide) };
    }
    let value = match attribute {
        2 => 1 + u32::from(p.device.is_some()), // MEMORY_TYPE: host, device
        8 => u32::from(p.managed),              // IS_MANAGED
        9 => 0,                                 // DEVICE_ORDINAL
        10 => u32::from(p.shareable),           // IS_LEGACY_CUDA_IPC_CAPABLE
        13 => 1,                                // MAPPED
        _ => return Err(INVALID_VALUE),
    };
    // SAFETY: the caller's contract.
    unsafe {
        match attribute {
            8 | 10 | 13 => put(data.cast::<u8>(), value as u8),
            _ => put(data.cast::<u32>(), value),
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, id: c_uint, va: u64) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's pointer.
        unsafe { attribute(data, id, va) }
    })
}

/// Several at once. Those that an address does not have are 0, and so are all of one that nothing
/// is known of.
#[no_mangle]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    ids: *const c_uint,
    data: *const *mut c_void,
    va: u64,
) -> Result {
    call(|| {
        ready()?;
        if ids.is_null() || data.is_null() {
            return Err(INVALID_VALUE);
        }
        for i in 0..count as usize {
            // SAFETY: as many as the caller says.
            let (id, to) = unsafe { (*ids.add(i), *data.add(i)) };
            // SAFETY: the caller's value of the attribute's type.
            if unsafe { attribute(to, id, va) }.is_ok() {
                continue;
            }
            // SAFETY: as above.
            unsafe {
                match id {
                    8 | 10 | 13 => put(to.cast::<u8>(), 0)?,
                    2 => put(to.cast::<u32>(), 0)?,
                    // No device: CU_DEVICE_INVALID.
                    9 => put(to.cast::<c_int>(), -2)?,
                    1..=17 => put(to.cast::<u64>(), 0)?,
                    _ => return Err(INVALID_VALUE),
                }
            }
        }
        Ok(())
    })
}

/// Host memory that kernels may access from now on. The test double maps shared memory a second
/// time, elsewhere, so that an address of the host that is used as the GPU's is noticed; memory
/// that is not shared stays where it is.
fn pin(base: *mut c_void, len: usize, owned: bool) -> Pinned {
    let device = if strict::is_on() {
        alias(base, len)
    } else {
        base as u64
    };
    Pinned {
        len,
        device,
        _exposed: expose(device, len as u64),
        owned,
    }
}

/// Lets kernels access memory outside of the GPU's.
pub(crate) fn expose(at: u64, len: u64) -> Option<Exposed> {
    let base = NonNull::new(at as *mut u8)?;
    gpu().memory().expose(base, len as usize).ok()
}

fn alias(base: *mut c_void, len: usize) -> u64 {
    // SAFETY: an old size of 0 leaves the range as it is and makes a second mapping of the same
    // pages, which the kernel refuses for what is not shared.
    let second = unsafe { rustix::mm::mremap(base, 0, len, MremapFlags::MAYMOVE) };
    second.map_or(base as u64, |at| at as u64)
}

fn unalias(base: u64, pinned: &Pinned) {
    if pinned.device != base {
        // SAFETY: made by `alias`; kernels that use it have ended, as CUDA demands too.
        let _ = unsafe { rustix::mm::munmap(pinned.device as *mut c_void, pinned.len) };
    }
}

#[no_mangle]
pub unsafe extern "C" fn cuMemHostAlloc(
    base: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> Result {
    call(|| {
        ready()?;
        if faults().no_pinning {
            return Err(OUT_OF_MEMORY);
        }
        strict::may_wait("cuMemHostAlloc");
        // SAFETY: a fresh mapping touches nothing that exists.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        };
        let at = at.map_err(|_| OUT_OF_MEMORY)?;
        let pinned = pin(at, bytes, true);
        lock(&MEMORY).host.insert(at as u64, pinned);
        // SAFETY: the caller's pointer.
        unsafe { put(base, at) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAllocHost_v2(base: *mut *mut c_void, bytes: usize) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuMemHostAlloc(base, bytes, 0) }
}

#[no_mangle]
pub unsafe extern "C" fn cuMemFreeHost(base: *mut c_void) -> Result {
    call(|| {
        ready()?;
        strict::wait_for_all("cuMemFreeHost");
        crate::stream::synchronize_all()?;
        let mut memory = lock(&MEMORY);
        match memory.host.remove(&(base as u64)) {
            Some(p) if p.owned => {
                unalias(base as u64, &p);
                // SAFETY: mapped by `cuMemHostAlloc`.
                let _ = unsafe { rustix::mm::munmap(base, p.len) };
                Ok(())
            }
            Some(p) => {
                memory.host.insert(base as u64, p);
                Err(INVALID_VALUE)
            }
            None => Err(INVALID_VALUE),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemHostRegister_v2(
    base: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> Result {
    call(|| {
        ready()?;
        if faults().no_pinning {
            return Err(OUT_OF_MEMORY);
        }
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        crate::io_memory::register(flags)?;
        strict::may_wait("cuMemHostRegister");
        if flags & crate::io_memory::IOMEMORY == 0 && !is_writable(base as u64, bytes as u64) {
            return Err(INVALID_VALUE);
        }
        let mut memory = lock(&MEMORY);
        if memory.shares_pages(base as u64, bytes as u64) {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        let pinned = pin(base, bytes, false);
        memory.host.insert(base as u64, pinned);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemHostUnregister(base: *mut c_void) -> Result {
    call(|| {
        ready()?;
        strict::wait_for_all("cuMemHostUnregister");
        crate::stream::synchronize_all()?;
        let mut memory = lock(&MEMORY);
        let known = memory.host.get(&(base as u64));
        if known.ok_or(HOST_MEMORY_NOT_REGISTERED)?.owned {
            return Err(INVALID_VALUE);
        }
        let p = memory.host.remove(&(base as u64));
        let p = p.ok_or(HOST_MEMORY_NOT_REGISTERED)?;
        unalias(base as u64, &p);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemHostGetDevicePointer_v2(
    va: *mut u64,
    base: *mut c_void,
    _flags: c_uint,
) -> Result {
    call(|| {
        ready()?;
        let memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
        let found = memory.pinned_around(base as u64);
        let (first, p) = found.ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's pointer.
        unsafe { put(va, p.device + (base as u64 - first)) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Result {
    call(|| {
        ready()?;
        let all = crate::memory_bytes() as usize;
        let used = used() + crate::vmm::bytes();
        // SAFETY: the caller's pointers.
        unsafe {
            put(free, all.saturating_sub(used as usize))?;
            put(total, all)
        }
    })
}
