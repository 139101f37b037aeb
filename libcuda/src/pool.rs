//! Memory pools: whose memory an allocation in a stream's order counts to, and how much a pool may
//! have.
//!
//! Nothing is kept in a pool: what is freed is free at once, so that what is reserved is what is
//! used.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use crate::allocation::allocate;
use crate::stream::stream;
use crate::vmm::{Access, Location};
use crate::{call, lock, put, ready, Result};
use crate::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};

/// The GPU's own pool.
const DEFAULT: usize = 0xa000_0000;

/// CUmemPool_attribute: three switches, then numbers.
const REUSE: std::ops::RangeInclusive<c_uint> = 1..=3;
const RELEASE_THRESHOLD: c_uint = 4;
const RESERVED: c_uint = 5;
const RESERVED_HIGH: c_uint = 6;
const USED: c_uint = 7;
const USED_HIGH: c_uint = 8;

/// CUmemPoolProps.
#[repr(C)]
#[derive(Debug)]
pub struct Properties {
    kind: c_int,
    handles: c_int,
    location: Location,
    win32: u64,
    most: usize,
    usage: u16,
    reserved: [u8; 54],
}

#[derive(Debug, Clone)]
struct Pool {
    /// Most bytes; 0 is no bound.
    most: u64,
    used: u64,
    high: u64,
    threshold: u64,
    reuse: [c_int; 3],
}

impl Pool {
    const NEW: Pool = Pool {
        most: 0,
        used: 0,
        high: 0,
        threshold: 0,
        reuse: [1; 3],
    };
}

#[derive(Debug)]
struct State {
    next: usize,
    pools: BTreeMap<usize, Pool>,
    /// Pool and bytes of allocations.
    allocations: BTreeMap<u64, (usize, u64)>,
}

static STATE: Mutex<State> = Mutex::new(State {
    next: DEFAULT,
    pools: BTreeMap::new(),
    allocations: BTreeMap::new(),
});
/// The pool of `cuMemAllocAsync`.
static CURRENT: AtomicUsize = AtomicUsize::new(DEFAULT);

impl State {
    fn pool(&mut self, pool: usize) -> std::result::Result<&mut Pool, Result> {
        if pool == DEFAULT {
            return Ok(self.pools.entry(DEFAULT).or_insert(Pool::NEW));
        }
        self.pools.get_mut(&pool).ok_or(INVALID_VALUE)
    }
}

fn alloc(bytes: u64, pool: usize, s: *mut c_void) -> std::result::Result<u64, Result> {
    ready()?;
    stream(s)?;
    let mut state = lock(&STATE);
    let own = state.pool(pool)?;
    if own.most > 0 && bytes > own.most.saturating_sub(own.used) {
        return Err(OUT_OF_MEMORY);
    }
    let va = allocate(bytes, false)?;
    let own = state.pool(pool)?;
    own.used += bytes;
    own.high = own.high.max(own.used);
    state.allocations.insert(va, (pool, bytes));
    Ok(va)
}

/// An allocation is freed, which may be one of a pool.
pub(crate) fn freed(va: u64) {
    let mut state = lock(&STATE);
    if let Some((pool, bytes)) = state.allocations.remove(&va) {
        if let Ok(own) = state.pool(pool) {
            own.used -= bytes;
        }
    }
}

/// In the stream's order memory is there at once, which is earlier than a program may use it.
#[no_mangle]
pub unsafe extern "C" fn cuMemAllocAsync(va: *mut u64, bytes: usize, s: *mut c_void) -> Result {
    call(|| {
        let at = alloc(bytes as u64, CURRENT.load(Ordering::Relaxed), s)?;
        // SAFETY: the caller's pointer.
        unsafe { put(va, at) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    va: *mut u64,
    bytes: usize,
    pool: *mut c_void,
    s: *mut c_void,
) -> Result {
    call(|| {
        let at = alloc(bytes as u64, pool as usize, s)?;
        // SAFETY: the caller's pointer.
        unsafe { put(va, at) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(
    pool: *mut *mut c_void,
    device: c_int,
) -> Result {
    call(|| match device {
        // SAFETY: the caller's pointer.
        0 => unsafe { put(pool, DEFAULT as *mut c_void) },
        _ => Err(INVALID_DEVICE),
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceGetMemPool(pool: *mut *mut c_void, device: c_int) -> Result {
    let current = CURRENT.load(Ordering::Relaxed);
    call(|| match device {
        // SAFETY: the caller's pointer.
        0 => unsafe { put(pool, current as *mut c_void) },
        _ => Err(INVALID_DEVICE),
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuDeviceSetMemPool(device: c_int, pool: *mut c_void) -> Result {
    call(|| {
        if device != 0 {
            return Err(INVALID_DEVICE);
        }
        lock(&STATE).pool(pool as usize)?;
        CURRENT.store(pool as usize, Ordering::Relaxed);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemPoolCreate(
    pool: *mut *mut c_void,
    properties: *const Properties,
) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's structure, or null.
        let p = unsafe { properties.as_ref() }.ok_or(INVALID_VALUE)?;
        if p.kind != 1 || p.location != Location::GPU {
            return Err(INVALID_VALUE);
        }
        // Memory of a pool is not shared between processes.
        if p.handles != 0 {
            return Err(NOT_SUPPORTED);
        }
        let mut state = lock(&STATE);
        state.next += 16;
        let handle = state.next;
        let most = p.most as u64;
        state.pools.insert(handle, Pool { most, ..Pool::NEW });
        // SAFETY: the caller's pointer.
        unsafe { put(pool, handle as *mut c_void) }
    })
}

/// Its allocations stay.
#[no_mangle]
pub unsafe extern "C" fn cuMemPoolDestroy(pool: *mut c_void) -> Result {
    call(|| {
        let handle = pool as usize;
        if handle == DEFAULT {
            return Err(INVALID_VALUE);
        }
        lock(&STATE).pools.remove(&handle).ok_or(INVALID_VALUE)?;
        let back = CURRENT.compare_exchange(handle, DEFAULT, Ordering::Relaxed, Ordering::Relaxed);
        // Another one is the GPU's.
        let _ = back;
        Ok(())
    })
}

/// There is nothing to give back.
#[no_mangle]
pub unsafe extern "C" fn cuMemPoolTrimTo(pool: *mut c_void, _keep: usize) -> Result {
    call(|| lock(&STATE).pool(pool as usize).map(drop))
}

#[no_mangle]
pub unsafe extern "C" fn cuMemPoolSetAttribute(
    pool: *mut c_void,
    attribute: c_uint,
    value: *const c_void,
) -> Result {
    call(|| {
        if value.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut state = lock(&STATE);
        let own = state.pool(pool as usize)?;
        // SAFETY: the caller's value: an int for the switches, 64 bits for numbers.
        let (switch, number) = unsafe {
            match REUSE.contains(&attribute) {
                true => (*value.cast::<c_int>(), 0),
                false => (0, *value.cast::<u64>()),
            }
        };
        match (attribute, number) {
            (1..=3, _) => own.reuse[attribute as usize - 1] = switch,
            (RELEASE_THRESHOLD, n) => own.threshold = n,
            // The highest so far can be forgotten.
            (RESERVED_HIGH | USED_HIGH, 0) => own.high = own.used,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemPoolGetAttribute(
    pool: *mut c_void,
    attribute: c_uint,
    value: *mut c_void,
) -> Result {
    call(|| {
        let mut state = lock(&STATE);
        let own = state.pool(pool as usize)?;
        let number = match attribute {
            1..=3 => {
                let switch = own.reuse[attribute as usize - 1];
                // SAFETY: the caller's int.
                return unsafe { put(value.cast::<c_int>(), switch) };
            }
            RELEASE_THRESHOLD => own.threshold,
            RESERVED | USED => own.used,
            RESERVED_HIGH | USED_HIGH => own.high,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's 64 bits.
        unsafe { put(value.cast::<u64>(), number) }
    })
}

/// The GPU always has access to its own pool, and there is no other GPU.
#[no_mangle]
pub unsafe extern "C" fn cuMemPoolSetAccess(
    pool: *mut c_void,
    access: *const Access,
    count: usize,
) -> Result {
    call(|| {
        lock(&STATE).pool(pool as usize)?;
        if access.is_null() && count > 0 {
            return Err(INVALID_VALUE);
        }
        (0..count).try_for_each(|i| {
            // SAFETY: as many as the caller says.
            let access = unsafe { &*access.add(i) };
            match access.location == Location::GPU && access.flags == 3 {
                true => Ok(()),
                false => Err(INVALID_VALUE),
            }
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemPoolGetAccess(
    flags: *mut c_int,
    pool: *mut c_void,
    location: *const Location,
) -> Result {
    call(|| {
        lock(&STATE).pool(pool as usize)?;
        // SAFETY: the caller's structure, or null.
        let location = unsafe { location.as_ref() }.ok_or(INVALID_VALUE)?;
        let own = if *location == Location::GPU { 3 } else { 0 };
        // SAFETY: the caller's pointer.
        unsafe { put(flags, own) }
    })
}

// CUmemPoolProps has so many bytes.
const _: () = assert!(size_of::<Properties>() == 88);
