//! Virtual memory management: addresses that are reserved, memory by handles, and which of it lies
//! where.
//!
//! Memory is a memfd, which takes the place of pages of the GPU: exporting it gives its descriptor,
//! and another process maps the same pages. It counts to the GPU's memory. The NIC does not reach
//! it: register memory of `cuMemAlloc`.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::{BorrowedFd, IntoRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex};

use ringbell_gtlb::Exposed;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::gpu::{expose, Room};
use crate::{call, lock, put, ready, strict, Result};
use crate::{INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};

/// Unit of reservations, memory and mappings, as on NVIDIA's GPUs.
const GRANULARITY: u64 = 2 << 20;

/// CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
/// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
const PINNED: c_int = 1;
const ON_DEVICE: c_int = 1;
const POSIX_FD: c_int = 1;
/// CU_MEM_ACCESS_FLAGS_PROT_READ and _READWRITE.
const READ: c_int = 1;
const READ_WRITE: c_int = 3;

/// CUmemLocation.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    kind: c_int,
    id: c_int,
}

impl Location {
    /// The one GPU.
    pub(crate) const GPU: Location = Location {
        kind: ON_DEVICE,
        id: 0,
    };
}

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Properties {
    kind: c_int,
    handles: c_int,
    location: Location,
    win32: u64,
    flags: [u8; 8],
}

impl Properties {
    fn check(&self) -> std::result::Result<(), Result> {
        if self.kind != PINNED || self.location != Location::GPU {
            return Err(INVALID_VALUE);
        }
        match self.handles {
            0 | POSIX_FD => Ok(()),
            _ => Err(NOT_SUPPORTED),
        }
    }
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Debug)]
pub struct Access {
    pub(crate) location: Location,
    pub(crate) flags: c_int,
}

/// Memory without an address.
#[derive(Debug)]
struct Physical {
    fd: OwnedFd,
    bytes: u64,
    handles: c_int,
    _room: Room,
}

/// Memory at addresses.
#[derive(Debug)]
struct Mapping {
    bytes: u64,
    of: Arc<Physical>,
    /// The handle that it was mapped by.
    handle: u64,
    flags: c_int,
    /// Kernels may access it, until this is dropped.
    exposed: Option<Exposed>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Addresses with their bytes.
    reserved: BTreeMap<u64, u64>,
    memory: BTreeMap<u64, (Arc<Physical>, u32)>,
    mapped: BTreeMap<u64, Mapping>,
}

static STATE: Mutex<State> = Mutex::new(State {
    next: 0x9000_0000,
    reserved: BTreeMap::new(),
    memory: BTreeMap::new(),
    mapped: BTreeMap::new(),
});

impl State {
    /// A new handle.
    fn keep(&mut self, memory: Physical) -> u64 {
        self.next += 16;
        self.memory.insert(self.next, (Arc::new(memory), 1));
        self.next
    }

    /// First addresses of the mappings that fill a range.
    fn filling(&self, at: u64, bytes: u64) -> std::result::Result<Vec<u64>, Result> {
        let end = at.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let (mut next, mut all) = (at, Vec::new());
        while next < end {
            let mapping = self.mapped.get(&next).ok_or(INVALID_VALUE)?;
            all.push(next);
            next += mapping.bytes;
        }
        match next == end && bytes > 0 {
            true => Ok(all),
            false => Err(INVALID_VALUE),
        }
    }

    fn around(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (base, m) = self.mapped.range(..=at).next_back()?;
        (at < base + m.bytes).then_some((*base, m))
    }
}

fn whole(bytes: u64) -> std::result::Result<u64, Result> {
    let whole = bytes > 0 && bytes.is_multiple_of(GRANULARITY);
    whole.then_some(bytes).ok_or(INVALID_VALUE)
}

/// Whether kernels may access a whole range, which may lie in several mappings.
pub(crate) fn holds(va: u64, len: usize) -> bool {
    let state = lock(&STATE);
    let (mut at, end) = (va, va.saturating_add(len.max(1) as u64));
    while at < end {
        match state.around(at) {
            Some((base, m)) if m.flags != 0 => at = base + m.bytes,
            _ => return false,
        }
    }
    true
}

#[no_mangle]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    to: *mut usize,
    properties: *const Properties,
    option: c_uint,
) -> Result {
    call(|| {
        // SAFETY: the caller's structure, or null.
        unsafe { properties.as_ref() }
            .ok_or(INVALID_VALUE)?
            .check()?;
        match option {
            // SAFETY: the caller's pointer.
            0 | 1 => unsafe { put(to, GRANULARITY as usize) },
            _ => Err(INVALID_VALUE),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAddressReserve(
    va: *mut u64,
    bytes: usize,
    alignment: usize,
    _wish: u64,
    flags: c_ulonglong,
) -> Result {
    call(|| {
        ready()?;
        let bytes = whole(bytes as u64)?;
        let align = (alignment as u64).max(GRANULARITY);
        if flags != 0 || !align.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        let room = bytes.checked_add(align).ok_or(OUT_OF_MEMORY)?;
        // SAFETY: a fresh mapping touches nothing that exists.
        let at = unsafe { nothing(std::ptr::null_mut(), room, MapFlags::empty()) }? as u64;
        let first = at.next_multiple_of(align);
        for (from, to) in [(at, first), (first + bytes, at + room)] {
            if to > from {
                // SAFETY: head and tail of the mapping just made, which nothing uses.
                let _ = unsafe { rustix::mm::munmap(from as *mut c_void, (to - from) as usize) };
            }
        }
        lock(&STATE).reserved.insert(first, bytes);
        // SAFETY: the caller's pointer.
        unsafe { put(va, first) }
    })
}

/// Addresses without memory.
///
/// # Safety
/// With `MapFlags::FIXED` nothing uses what was there.
unsafe fn nothing(
    at: *mut c_void,
    bytes: u64,
    fixed: MapFlags,
) -> std::result::Result<*mut c_void, Result> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | fixed;
    // SAFETY: the caller's contract.
    let made = unsafe { rustix::mm::mmap_anonymous(at, bytes as usize, ProtFlags::empty(), flags) };
    made.map_err(|_| OUT_OF_MEMORY)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAddressFree(va: u64, bytes: usize) -> Result {
    call(|| {
        ready()?;
        let mut state = lock(&STATE);
        if state.reserved.get(&va) != Some(&(bytes as u64)) {
            return Err(INVALID_VALUE);
        }
        if state.mapped.range(va..va + bytes as u64).next().is_some() {
            return Err(INVALID_VALUE);
        }
        state.reserved.remove(&va);
        // SAFETY: a reservation of ours, without memory.
        let _ = unsafe { rustix::mm::munmap(va as *mut c_void, bytes) };
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut c_ulonglong,
    bytes: usize,
    properties: *const Properties,
    flags: c_ulonglong,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's structure, or null.
        let properties = unsafe { properties.as_ref() }.ok_or(INVALID_VALUE)?;
        properties.check()?;
        let bytes = whole(bytes as u64)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let room = Room::take(bytes)?;
        let fd = rustix::fs::memfd_create("ringbell-vmm", MemfdFlags::CLOEXEC);
        let fd = fd.map_err(|_| OUT_OF_MEMORY)?;
        rustix::fs::ftruncate(&fd, bytes).map_err(|_| OUT_OF_MEMORY)?;
        let made = lock(&STATE).keep(Physical {
            fd,
            bytes,
            handles: properties.handles,
            _room: room,
        });
        // SAFETY: the caller's pointer.
        unsafe { put(handle, made) }
    })
}

/// Memory that is mapped stays until it is unmapped.
#[no_mangle]
pub unsafe extern "C" fn cuMemRelease(handle: c_ulonglong) -> Result {
    call(|| {
        ready()?;
        let mut state = lock(&STATE);
        let (_, users) = state.memory.get_mut(&handle).ok_or(INVALID_VALUE)?;
        *users -= 1;
        if *users == 0 {
            state.memory.remove(&handle);
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(
    handle: *mut c_ulonglong,
    at: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        let mut state = lock(&STATE);
        let (_, mapping) = state.around(at as u64).ok_or(INVALID_VALUE)?;
        let (of, found) = (mapping.of.clone(), mapping.handle);
        let known = state.memory.entry(found).or_insert((of, 0));
        known.1 += 1;
        // SAFETY: the caller's pointer.
        unsafe { put(handle, found) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    to: *mut Properties,
    handle: c_ulonglong,
) -> Result {
    call(|| {
        ready()?;
        let state = lock(&STATE);
        let (memory, _) = state.memory.get(&handle).ok_or(INVALID_VALUE)?;
        let properties = Properties {
            kind: PINNED,
            handles: memory.handles,
            location: Location::GPU,
            win32: 0,
            flags: [0; 8],
        };
        // SAFETY: the caller's pointer.
        unsafe { put(to, properties) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemMap(
    va: u64,
    bytes: usize,
    offset: usize,
    handle: c_ulonglong,
    flags: c_ulonglong,
) -> Result {
    call(|| {
        ready()?;
        let (bytes, offset) = (whole(bytes as u64)?, offset as u64);
        let aligned = va.is_multiple_of(GRANULARITY) && offset.is_multiple_of(GRANULARITY);
        let mut state = lock(&STATE);
        let (of, _) = state.memory.get(&handle).ok_or(INVALID_VALUE)?;
        let of = of.clone();
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= of.bytes);
        let around = state.reserved.range(..=va).next_back();
        let end = va.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let reserved = around.is_some_and(|(base, len)| end <= base + len);
        let before = state.mapped.range(..end).next_back();
        let free = before.is_none_or(|(base, m)| base + m.bytes <= va);
        if flags != 0 || !aligned || !inside || !reserved || !free {
            return Err(INVALID_VALUE);
        }
        // SAFETY: inside a reservation of ours, where nothing is.
        let mapped = unsafe {
            let (at, flags) = (va as *mut c_void, MapFlags::SHARED | MapFlags::FIXED);
            rustix::mm::mmap(
                at,
                bytes as usize,
                ProtFlags::empty(),
                flags,
                &of.fd,
                offset,
            )
        };
        mapped.map_err(|_| OUT_OF_MEMORY)?;
        let mapping = Mapping {
            bytes,
            of,
            handle,
            flags: 0,
            exposed: None,
        };
        state.mapped.insert(va, mapping);
        Ok(())
    })
}

/// Whole mappings alone, when nothing runs that was queued before.
#[no_mangle]
pub unsafe extern "C" fn cuMemUnmap(va: u64, bytes: usize) -> Result {
    call(|| {
        ready()?;
        strict::wait_for_all("cuMemUnmap");
        crate::stream::synchronize_all()?;
        let mut state = lock(&STATE);
        for base in state.filling(va, bytes as u64)? {
            state.mapped.remove(&base);
        }
        // SAFETY: inside a reservation of ours; kernels have ended.
        unsafe { nothing(va as *mut c_void, bytes as u64, MapFlags::FIXED) }.map(drop)
    })
}

/// Kernels that may read may write too: nothing tells the two apart here.
#[no_mangle]
pub unsafe extern "C" fn cuMemSetAccess(
    va: u64,
    bytes: usize,
    access: *const Access,
    count: usize,
) -> Result {
    call(|| {
        ready()?;
        if access.is_null() || count != 1 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as many as the caller says.
        let access = unsafe { &*access };
        let known = matches!(access.flags, 0 | READ | READ_WRITE);
        if access.location != Location::GPU || !known {
            return Err(INVALID_VALUE);
        }
        let mut state = lock(&STATE);
        for base in state.filling(va, bytes as u64)? {
            let Some(mapping) = state.mapped.get_mut(&base) else {
                continue;
            };
            let rights = match access.flags {
                0 => rustix::mm::MprotectFlags::empty(),
                _ => rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            };
            // SAFETY: a mapping of ours.
            let set = unsafe {
                rustix::mm::mprotect(base as *mut c_void, mapping.bytes as usize, rights)
            };
            set.map_err(|_| OUT_OF_MEMORY)?;
            mapping.flags = access.flags;
            mapping.exposed = match access.flags {
                0 => None,
                _ => expose(base, mapping.bytes),
            };
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemGetAccess(
    flags: *mut c_ulonglong,
    location: *const Location,
    va: u64,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's structure, or null.
        let location = unsafe { location.as_ref() }.ok_or(INVALID_VALUE)?;
        let state = lock(&STATE);
        let (_, mapping) = state.around(va).ok_or(INVALID_VALUE)?;
        let own = match *location == Location::GPU {
            true => mapping.flags as c_ulonglong,
            false => 0,
        };
        // SAFETY: the caller's pointer.
        unsafe { put(flags, own) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    to: *mut c_void,
    handle: c_ulonglong,
    kind: c_int,
    flags: c_ulonglong,
) -> Result {
    call(|| {
        ready()?;
        let state = lock(&STATE);
        let (memory, _) = state.memory.get(&handle).ok_or(INVALID_VALUE)?;
        // It must have been asked for when the memory was made.
        if flags != 0 || kind != POSIX_FD || memory.handles != POSIX_FD {
            return Err(INVALID_VALUE);
        }
        let fd = memory.fd.try_clone().map_err(|_| OUT_OF_MEMORY)?;
        // SAFETY: the caller's pointer, to an int for this kind of handle.
        unsafe { put(to.cast::<c_int>(), fd.into_raw_fd()) }
    })
}

/// The descriptor itself is passed in place of a pointer, and stays the caller's.
#[no_mangle]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    handle: *mut c_ulonglong,
    from: *mut c_void,
    kind: c_int,
) -> Result {
    call(|| {
        ready()?;
        let number = c_int::try_from(from as isize).ok().filter(|fd| *fd >= 0);
        let (Some(number), POSIX_FD) = (number, kind) else {
            return Err(INVALID_VALUE);
        };
        // SAFETY: a descriptor of the caller, open during this call.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let file = File::from(fd.try_clone_to_owned().map_err(|_| INVALID_VALUE)?);
        let bytes = file.metadata().map_err(|_| INVALID_VALUE)?.len();
        let made = lock(&STATE).keep(Physical {
            bytes: whole(bytes)?,
            fd: file.into(),
            handles: POSIX_FD,
            _room: Room::of_other(bytes),
        });
        // SAFETY: the caller's pointer.
        unsafe { put(handle, made) }
    })
}

// CUmemAllocationProp and CUmemAccessDesc have so many bytes.
const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);
