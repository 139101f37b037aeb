//! Copies between any two memories, and memory that is set to a value.

use std::ffi::{c_uint, c_void};

use crate::graph::not_capturing;
use crate::memory::{copying, is_device, is_mapped, is_pinned};
use crate::stream::{on, outcome, stream};
use crate::{call, ready, Result, INVALID_VALUE};

/// Whether the GPU reaches a range, or the host's driver does without a copy of its own.
fn is_known(at: u64, bytes: usize) -> bool {
    is_device(at, bytes) || is_mapped(at, bytes) || is_pinned(at, bytes)
}

/// Copies between any two memories, in the stream's order. Memory of the host that is not pinned is read and written
/// before this returns.
fn copy(to: u64, from: u64, bytes: usize, s: *mut c_void) -> std::result::Result<(), Result> {
    ready()?;
    if bytes == 0 {
        return Ok(());
    }
    if to == 0 || from == 0 {
        return Err(INVALID_VALUE);
    }
    on(s, |real| {
        not_capturing(real)?;
        real.host(move || {
            // SAFETY: memory that the caller has named, which lives until the stream has reached the copy.
            let bytes = || unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            copying(to, || copying(from, bytes));
        });
        Ok(())
    })?;
    match is_known(to, bytes) && is_known(from, bytes) {
        true => Ok(()),
        false => outcome(&stream(s)?, None),
    }
}

/// The same, and waits for it.
fn copy_now(to: u64, from: u64, bytes: usize) -> std::result::Result<(), Result> {
    let null = std::ptr::null_mut();
    copy(to, from, bytes, null)?;
    outcome(&stream(null)?, None)
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy(to: u64, from: u64, bytes: usize) -> Result {
    call(|| copy_now(to, from, bytes))
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, s: *mut c_void) -> Result {
    call(|| copy(to, from, bytes, s))
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> Result {
    call(|| match is_device(to, bytes) && is_device(from, bytes) {
        true => copy_now(to, from, bytes),
        false => Err(INVALID_VALUE),
    })
}

/// CUDA_MEMCPY2D of one side: offsets, kind of memory, addresses, bytes from row to row.
#[repr(C)]
#[derive(Debug)]
pub struct Side {
    x: usize,
    y: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

impl Side {
    /// Address of the first byte. CU_MEMORYTYPE_HOST is 1, _DEVICE 2, _ARRAY 3, _UNIFIED 4.
    fn first(&self) -> std::result::Result<u64, Result> {
        let base = match self.kind {
            1 => self.host,
            2 | 4 => self.device,
            _ => return Err(INVALID_VALUE),
        };
        let first = base.wrapping_add((self.y * self.pitch + self.x) as u64);
        Some(first).filter(|_| base != 0).ok_or(INVALID_VALUE)
    }
}

/// CUDA_MEMCPY2D.
#[repr(C)]
#[derive(Debug)]
pub struct Copy2D {
    from: Side,
    to: Side,
    width: usize,
    height: usize,
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(c: *const Copy2D, s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's structure, or null.
        let c = unsafe { c.as_ref() }.ok_or(INVALID_VALUE)?;
        if c.width == 0 || c.height == 0 {
            return Ok(());
        }
        let (to, from) = (c.to.first()?, c.from.first()?);
        let pitches = [c.to.pitch, c.from.pitch];
        if pitches.iter().any(|p| *p < c.width && c.height > 1) {
            return Err(INVALID_VALUE);
        }
        let ([to_pitch, from_pitch], width, height) = (pitches, c.width, c.height);
        on(s, |real| {
            not_capturing(real)?;
            real.host(move || {
                for row in 0..height {
                    let at = (to + (row * to_pitch) as u64) as *mut u8;
                    let of = (from + (row * from_pitch) as u64) as *const u8;
                    // SAFETY: as in `copy`.
                    let bytes = || unsafe { std::ptr::copy(of, at, width) };
                    copying(at as u64, || copying(of as u64, bytes));
                }
            });
            Ok(())
        })?;
        outcome(&stream(s)?, None)
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy2D_v2(c: *const Copy2D) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuMemcpy2DAsync_v2(c, std::ptr::null_mut()) }
}

/// Rows of a value of 1, 2 or 4 bytes.
fn fill(
    va: u64,
    pitch: usize,
    value: u32,
    size: usize,
    [width, height]: [usize; 2],
    s: *mut c_void,
) -> std::result::Result<(), Result> {
    ready()?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    let end = (height - 1) * pitch + width * size;
    let known = is_device(va, end) || is_mapped(va, end) || is_pinned(va, end);
    if !known || !va.is_multiple_of(size as u64) {
        return Err(INVALID_VALUE);
    }
    on(s, |real| {
        not_capturing(real)?;
        real.host(move || {
            let bytes = value.to_le_bytes();
            copying(va, || {
                for row in 0..height {
                    let first = (va + (row * pitch) as u64) as *mut u8;
                    for i in 0..width {
                        // SAFETY: within the range that was checked; freeing it waits.
                        unsafe {
                            std::ptr::copy_nonoverlapping(
                                bytes.as_ptr(),
                                first.add(i * size),
                                size,
                            );
                        }
                    }
                }
            });
        });
        Ok(())
    })
}

/// The same in the null stream, and waits for it.
fn fill_now(
    va: u64,
    pitch: usize,
    value: u32,
    size: usize,
    shape: [usize; 2],
) -> std::result::Result<(), Result> {
    let null = std::ptr::null_mut();
    fill(va, pitch, value, size, shape, null)?;
    outcome(&stream(null)?, None)
}

macro_rules! memset {
    ($($Now:ident, $Later:ident, $Now2:ident, $Later2:ident: $ty:ty;)+) => {$(
        #[no_mangle]
        pub unsafe extern "C" fn $Now(va: u64, value: $ty, n: usize) -> Result {
            call(|| fill_now(va, 0, value.into(), size_of::<$ty>(), [n, 1]))
        }

        #[no_mangle]
        pub unsafe extern "C" fn $Later(va: u64, value: $ty, n: usize, s: *mut c_void) -> Result {
            call(|| fill(va, 0, value.into(), size_of::<$ty>(), [n, 1], s))
        }

        #[no_mangle]
        pub unsafe extern "C" fn $Now2(
            va: u64,
            pitch: usize,
            value: $ty,
            width: usize,
            height: usize,
        ) -> Result {
            call(|| fill_now(va, pitch, value.into(), size_of::<$ty>(), [width, height]))
        }

        #[no_mangle]
        pub unsafe extern "C" fn $Later2(
            va: u64,
            pitch: usize,
            value: $ty,
            width: usize,
            height: usize,
            s: *mut c_void,
        ) -> Result {
            call(|| fill(va, pitch, value.into(), size_of::<$ty>(), [width, height], s))
        }
    )+};
}

memset! {
    cuMemsetD8_v2, cuMemsetD8Async, cuMemsetD2D8_v2, cuMemsetD2D8Async: u8;
    cuMemsetD16_v2, cuMemsetD16Async, cuMemsetD2D16_v2, cuMemsetD2D16Async: u16;
    cuMemsetD32_v2, cuMemsetD32Async, cuMemsetD2D32_v2, cuMemsetD2D32Async: u32;
}
