//! Memory of the GPU, managed memory, and pinned memory of the host.

use std::ffi::{c_int, c_uint, c_void};

use rustix::mm::{MapFlags, ProtFlags};

use crate::allocation::{
    allocate, around, is_device, is_own, mapped_at, pin, pointer, remove, unpin, GRAIN,
};
use crate::{call, faults, put, ready, strict, Result, INVALID_VALUE, OUT_OF_MEMORY};

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

#[no_mangle]
pub unsafe extern "C" fn cuMemAlloc_v2(va: *mut u64, bytes: usize) -> Result {
    call(|| {
        ready()?;
        strict::may_wait("cuMemAlloc");
        let at = allocate(bytes as u64, false)?;
        // SAFETY: the caller's pointer.
        unsafe { put(va, at) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAllocManaged(va: *mut u64, bytes: usize, _flags: c_uint) -> Result {
    call(|| {
        ready()?;
        let at = allocate(bytes as u64, true)?;
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
        let removed = remove(va)?;
        crate::ipc::forget(removed.id);
        crate::dma_buf::forget(va, removed.len);
        crate::pool::freed(va);
        Ok(())
    })
}

/// Freed when the stream has reached this.
#[no_mangle]
pub unsafe extern "C" fn cuMemFreeAsync(va: u64, s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        if !is_own(va) {
            return Err(INVALID_VALUE);
        }
        crate::stream::on(s, |real| {
            real.host(move || {
                drop(remove(va));
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
        let at = allocate(bytes as u64, false)?;
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
        let (at, bytes) = around(va).ok_or(crate::NOT_FOUND)?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(base, at)?;
            put(size, bytes as usize)
        }
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
        (1, ..) => Some(crate::primary::CONTEXT as u64), // CONTEXT
        (3, Some(_), _) => Some(va),                     // DEVICE_POINTER
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
        pin(at, bytes, true)?;
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
        let bytes = unpin(base, true).map_err(|_| INVALID_VALUE)?;
        // SAFETY: mapped by `cuMemHostAlloc`.
        let _ = unsafe { rustix::mm::munmap(base, bytes) };
        Ok(())
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
        pin(base, bytes, false)
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemHostUnregister(base: *mut c_void) -> Result {
    call(|| {
        ready()?;
        strict::wait_for_all("cuMemHostUnregister");
        crate::stream::synchronize_all()?;
        unpin(base, false).map(drop)
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
        let at = mapped_at(base as u64).ok_or(INVALID_VALUE)?;
        // SAFETY: the caller's pointer.
        unsafe { put(va, at) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Result {
    call(|| {
        ready()?;
        let all = crate::memory_bytes() as usize;
        let used = crate::gpu::used_bytes();
        // SAFETY: the caller's pointers.
        unsafe {
            put(free, all.saturating_sub(used as usize))?;
            put(total, all)
        }
    })
}
