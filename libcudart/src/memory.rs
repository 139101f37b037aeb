//! Memory of the device, managed and pinned memory, copies.

use std::ffi::{c_int, c_uint, c_void};

use crate::device::{current, ready};
use crate::driver::{self, Code, Handle, IpcHandle};
use crate::error::{call, check, INVALID_DIRECTION, INVALID_PITCH, INVALID_VALUE};
use crate::put;
use crate::registry::variable;
use crate::stream::stream;
use crate::version::{version, Version};

/// Memory that a call of the driver gives, through a pointer of the caller.
fn give(to: *mut *mut c_void, alloc: impl FnOnce(&mut u64) -> Code) -> Code {
    call(|| {
        ready()?;
        let mut va = 0;
        check(alloc(&mut va))?;
        put(to, va as *mut c_void)
    })
}

#[no_mangle]
pub extern "C" fn cudaMalloc(to: *mut *mut c_void, bytes: usize) -> Code {
    if bytes == 0 {
        // Nothing, as a null pointer.
        return call(|| put(to, std::ptr::null_mut()));
    }
    give(to, |va| driver::alloc(va, bytes))
}

#[no_mangle]
pub extern "C" fn cudaMallocManaged(to: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code {
    give(to, |va| driver::alloc_managed(va, bytes, flags))
}

#[no_mangle]
pub extern "C" fn cudaMallocAsync(to: *mut *mut c_void, bytes: usize, s: Handle) -> Code {
    call(|| {
        let s = stream(s)?;
        let mut va = 0;
        check(driver::alloc_async(&mut va, bytes, s))?;
        put(to, va as *mut c_void)
    })
}

#[no_mangle]
pub extern "C" fn cudaMallocPitch(
    to: *mut *mut c_void,
    pitch: *mut usize,
    width: usize,
    height: usize,
) -> Code {
    give(to, |va| driver::alloc_pitch(va, pitch, width, height, 16))
}

#[no_mangle]
pub extern "C" fn cudaFree(at: *mut c_void) -> Code {
    call(|| {
        ready()?;
        match at.is_null() {
            true => Ok(()),
            false => check(driver::free(at as u64)),
        }
    })
}

#[no_mangle]
pub extern "C" fn cudaFreeAsync(at: *mut c_void, s: Handle) -> Code {
    call(|| check(driver::free_async(at as u64, stream(s)?)))
}

#[no_mangle]
pub extern "C" fn cudaMallocHost(to: *mut *mut c_void, bytes: usize) -> Code {
    cudaHostAlloc(to, bytes, 0)
}

#[no_mangle]
pub extern "C" fn cudaHostAlloc(to: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code {
    call(|| {
        ready()?;
        check(driver::alloc_host(to, bytes, flags))
    })
}

#[no_mangle]
pub extern "C" fn cudaFreeHost(at: *mut c_void) -> Code {
    call(|| {
        ready()?;
        match at.is_null() {
            true => Ok(()),
            false => check(driver::free_host(at)),
        }
    })
}

#[no_mangle]
pub extern "C" fn cudaHostRegister(at: *mut c_void, bytes: usize, flags: c_uint) -> Code {
    call(|| {
        ready()?;
        check(driver::register_host(at, bytes, flags))
    })
}

#[no_mangle]
pub extern "C" fn cudaHostUnregister(at: *mut c_void) -> Code {
    call(|| {
        ready()?;
        check(driver::unregister_host(at))
    })
}

#[no_mangle]
pub extern "C" fn cudaHostGetDevicePointer(
    to: *mut *mut c_void,
    at: *mut c_void,
    flags: c_uint,
) -> Code {
    give(to, |va| driver::device_pointer(va, at, flags))
}

#[no_mangle]
pub extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> Code {
    call(|| {
        ready()?;
        check(driver::memory_info(free, total))
    })
}

/// cudaPointerAttributes.
#[repr(C)]
#[derive(Debug)]
pub struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: *mut c_void,
    host_pointer: *mut c_void,
}

/// cudaMemoryType: 0 not registered, 1 host, 2 device, 3 managed.
#[no_mangle]
pub extern "C" fn cudaPointerGetAttributes(to: *mut PointerAttributes, at: *const c_void) -> Code {
    call(|| {
        ready()?;
        let (mut kind, mut managed) = (0_u32, 0_u32);
        // CU_POINTER_ATTRIBUTE_MEMORY_TYPE and _IS_MANAGED, the second of which is a byte.
        let known = driver::pointer_attribute(std::ptr::from_mut(&mut kind).cast(), 2, at as u64);
        let here = at.cast_mut();
        let none = std::ptr::null_mut();
        let of = |kind, device, device_pointer, host_pointer| PointerAttributes {
            kind,
            device,
            device_pointer,
            host_pointer,
        };
        if known == INVALID_VALUE {
            return put(to, of(0, -2, none, here));
        }
        check(known)?;
        check(driver::pointer_attribute(
            std::ptr::from_mut(&mut managed).cast(),
            8,
            at as u64,
        ))?;
        let attributes = match (managed & 0xff, kind) {
            (1, _) => of(3, current(), here, here),
            (_, 1) => {
                let mut va = 0;
                check(driver::device_pointer(&mut va, here, 0))?;
                of(1, current(), va as *mut c_void, here)
            }
            _ => of(2, current(), here, none),
        };
        put(to, attributes)
    })
}

/// cudaMemcpyKind: 0 host to host, 1 to the device, 2 from it, 3 within it, 4 by the addresses. All
/// are found by the addresses.
pub(crate) fn direction(kind: c_int) -> Result<(), Code> {
    match kind {
        0..=4 => Ok(()),
        _ => Err(INVALID_DIRECTION),
    }
}

#[no_mangle]
pub extern "C" fn cudaMemcpy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
) -> Code {
    call(|| {
        direction(kind)?;
        ready()?;
        check(driver::copy(to as u64, from as u64, bytes))
    })
}

#[no_mangle]
pub extern "C" fn cudaMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    s: Handle,
) -> Code {
    call(|| {
        direction(kind)?;
        check(driver::copy_async(
            to as u64,
            from as u64,
            bytes,
            stream(s)?,
        ))
    })
}

/// CUDA_MEMCPY2D of one side.
#[repr(C)]
struct Side {
    x: usize,
    y: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

/// CUDA_MEMCPY2D.
#[repr(C)]
struct Copy2D {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
}

impl Side {
    /// CU_MEMORYTYPE_UNIFIED: the driver knows whose the address is.
    fn at(address: u64, pitch: usize) -> Side {
        Side {
            x: 0,
            y: 0,
            kind: 4,
            host: 0,
            device: address,
            array: 0,
            pitch,
        }
    }
}

fn rows(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    [width, height]: [usize; 2],
    kind: c_int,
) -> Result<Copy2D, Code> {
    direction(kind)?;
    if width > to_pitch || width > from_pitch {
        return Err(INVALID_PITCH);
    }
    Ok(Copy2D {
        from: Side::at(from as u64, from_pitch),
        to: Side::at(to as u64, to_pitch),
        width,
        height,
    })
}

#[no_mangle]
pub extern "C" fn cudaMemcpy2D(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
) -> Code {
    call(|| {
        let copy = rows(to, to_pitch, from, from_pitch, [width, height], kind)?;
        ready()?;
        check(driver::copy_2d(std::ptr::from_ref(&copy).cast()))
    })
}

#[no_mangle]
pub extern "C" fn cudaMemcpy2DAsync(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    s: Handle,
) -> Code {
    call(|| {
        let copy = rows(to, to_pitch, from, from_pitch, [width, height], kind)?;
        let s = stream(s)?;
        check(driver::copy_2d_async(std::ptr::from_ref(&copy).cast(), s))
    })
}

/// The part of a variable that a copy names.
fn part(symbol: *const c_void, bytes: usize, offset: usize) -> Result<u64, Code> {
    let (va, len) = variable(symbol)?;
    let end = offset.checked_add(bytes).filter(|end| *end <= len);
    end.map(|_| va + offset as u64).ok_or(INVALID_VALUE)
}

#[no_mangle]
pub extern "C" fn cudaMemcpyToSymbol(
    symbol: *const c_void,
    from: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Code {
    call(|| {
        direction(kind)?;
        check(driver::copy(
            part(symbol, bytes, offset)?,
            from as u64,
            bytes,
        ))
    })
}

#[no_mangle]
pub extern "C" fn cudaMemcpyToSymbolAsync(
    symbol: *const c_void,
    from: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
    s: Handle,
) -> Code {
    call(|| {
        direction(kind)?;
        let to = part(symbol, bytes, offset)?;
        check(driver::copy_async(to, from as u64, bytes, stream(s)?))
    })
}

#[no_mangle]
pub extern "C" fn cudaMemcpyFromSymbol(
    to: *mut c_void,
    symbol: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Code {
    call(|| {
        direction(kind)?;
        check(driver::copy(to as u64, part(symbol, bytes, offset)?, bytes))
    })
}

#[no_mangle]
pub extern "C" fn cudaMemcpyFromSymbolAsync(
    to: *mut c_void,
    symbol: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
    s: Handle,
) -> Code {
    call(|| {
        direction(kind)?;
        let from = part(symbol, bytes, offset)?;
        check(driver::copy_async(to as u64, from, bytes, stream(s)?))
    })
}

#[no_mangle]
pub extern "C" fn cudaMemset(at: *mut c_void, value: c_int, bytes: usize) -> Code {
    call(|| {
        ready()?;
        check(driver::fill(at as u64, value as u8, bytes))
    })
}

#[no_mangle]
pub extern "C" fn cudaMemsetAsync(at: *mut c_void, value: c_int, bytes: usize, s: Handle) -> Code {
    call(|| {
        check(driver::fill_async(
            at as u64,
            value as u8,
            bytes,
            stream(s)?,
        ))
    })
}

#[no_mangle]
pub extern "C" fn cudaMemset2D(
    at: *mut c_void,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
) -> Code {
    call(|| {
        ready()?;
        check(driver::fill_2d(
            at as u64,
            pitch,
            value as u8,
            width,
            height,
        ))
    })
}

#[no_mangle]
pub extern "C" fn cudaMemset2DAsync(
    at: *mut c_void,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    s: Handle,
) -> Code {
    call(|| {
        let s = stream(s)?;
        check(driver::fill_2d_async(
            at as u64,
            pitch,
            value as u8,
            width,
            height,
            s,
        ))
    })
}

/// cudaMemLocation in a register: its type in the low half (1 device, 2 host), its number in the
/// high one.
fn place(location: u64) -> Result<c_int, Code> {
    match location as u32 {
        1 => Ok((location >> 32) as c_int),
        // cudaCpuDeviceId.
        2..=4 => Ok(-1),
        _ => Err(INVALID_VALUE),
    }
}

fn prefetch(at: *const c_void, bytes: usize, device: Result<c_int, Code>, s: Handle) -> Code {
    call(|| check(driver::prefetch(at as u64, bytes, device?, stream(s)?)))
}

/// The address, bytes, location, flags and stream of CUDA 13; in CUDA 12 a device and the stream
/// come behind the bytes.
#[no_mangle]
pub extern "C" fn cudaMemPrefetchAsync(
    at: *const c_void,
    bytes: usize,
    third: u64,
    fourth: usize,
    fifth: Handle,
) -> Code {
    match version() {
        Version::Twelve => prefetch(at, bytes, Ok(third as c_int), fourth as Handle),
        Version::Thirteen => prefetch(at, bytes, place(third), fifth),
    }
}

/// With a location, by the name of CUDA 12.2, whose meaning is the same everywhere.
#[no_mangle]
pub extern "C" fn cudaMemPrefetchAsync_v2(
    at: *const c_void,
    bytes: usize,
    location: u64,
    _flags: c_uint,
    s: Handle,
) -> Code {
    prefetch(at, bytes, place(location), s)
}

fn advise(at: *const c_void, bytes: usize, advice: c_uint, device: Result<c_int, Code>) -> Code {
    call(|| {
        ready()?;
        check(driver::advise(at as u64, bytes, advice, device?))
    })
}

/// With a location in CUDA 13, a device in CUDA 12.
#[no_mangle]
pub extern "C" fn cudaMemAdvise(
    at: *const c_void,
    bytes: usize,
    advice: c_uint,
    fourth: u64,
) -> Code {
    match version() {
        Version::Twelve => advise(at, bytes, advice, Ok(fourth as c_int)),
        Version::Thirteen => advise(at, bytes, advice, place(fourth)),
    }
}

/// As [`cudaMemPrefetchAsync_v2`].
#[no_mangle]
pub extern "C" fn cudaMemAdvise_v2(
    at: *const c_void,
    bytes: usize,
    advice: c_uint,
    location: u64,
) -> Code {
    advise(at, bytes, advice, place(location))
}

/// From one GPU to another, which is the same.
#[no_mangle]
pub extern "C" fn cudaMemcpyPeerAsync(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    bytes: usize,
    s: Handle,
) -> Code {
    let n = match crate::device::count() {
        Ok(n) => n,
        Err(code) => return crate::error::keep(code),
    };
    match (0..n).contains(&to_device) && (0..n).contains(&from_device) {
        true => cudaMemcpyAsync(to, from, bytes, 3, s),
        false => crate::error::keep(crate::error::INVALID_DEVICE),
    }
}

#[no_mangle]
pub extern "C" fn cudaMemcpyPeer(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    bytes: usize,
) -> Code {
    let null = std::ptr::null_mut();
    match cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, null) {
        0 => crate::stream::cudaStreamSynchronize(null),
        code => code,
    }
}

#[no_mangle]
pub extern "C" fn cudaIpcGetMemHandle(handle: *mut IpcHandle, at: *mut c_void) -> Code {
    call(|| {
        ready()?;
        check(driver::ipc_get(handle, at as u64))
    })
}

#[no_mangle]
pub extern "C" fn cudaIpcOpenMemHandle(
    to: *mut *mut c_void,
    handle: IpcHandle,
    flags: c_uint,
) -> Code {
    give(to, |va| driver::ipc_open(va, handle, flags))
}

#[no_mangle]
pub extern "C" fn cudaIpcCloseMemHandle(at: *mut c_void) -> Code {
    call(|| {
        ready()?;
        check(driver::ipc_close(at as u64))
    })
}
