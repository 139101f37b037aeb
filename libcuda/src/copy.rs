//! Copies between any two memories: of bytes, of rows, of boxes of rows.
#![allow(clippy::disallowed_methods)] // A slow copy sleeps.

use std::ffi::{c_uint, c_void};
use std::time::Duration;

use crate::allocation::{copying, is_device, is_mapped, is_pinned, Touched};
use crate::capture::is_capturing;
use crate::operation::Operation;
use crate::stream::{cuStreamSynchronize, on, outcome, stream, submit};
use crate::{call, faults, ready, Result, INVALID_VALUE};

/// Whether the GPU reaches a range, or the host's driver does without a copy of its own.
fn is_known(at: u64, bytes: usize) -> bool {
    is_device(at, bytes) || is_mapped(at, bytes) || is_pinned(at, bytes)
}

/// A copy of bytes; addresses as numbers, for a closure that runs on another thread.
fn bytes(to: u64, from: u64, n: usize, write: bool) -> Operation {
    Operation::host(move || {
        if write {
            slow();
        }
        // SAFETY: memory that the caller has named, which lives until the stream has reached the
        // copy, as the interface demands; freeing memory of the GPU waits.
        let copy = || unsafe { std::ptr::copy(from as *const u8, to as *mut u8, n) };
        copying(Touched::written(to, n), || {
            copying(Touched::read(from, n), copy);
        });
    })
}

fn slow() {
    if faults().slow_writes {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What reads or writes memory of the host that is not pinned has ended when the call returns; a
/// graph runs later.
fn settle(s: *mut c_void, known: bool) -> std::result::Result<(), Result> {
    if known || is_capturing(s as usize) {
        return Ok(());
    }
    outcome(&stream(s)?, None)
}

/// Copies between any two memories, in the stream's order.
fn copy(to: u64, from: u64, n: usize, s: *mut c_void) -> std::result::Result<(), Result> {
    ready()?;
    if n == 0 {
        return Ok(());
    }
    if to == 0 || from == 0 {
        return Err(INVALID_VALUE);
    }
    submit(s, &bytes(to, from, n, false))?;
    settle(s, is_known(to, n) && is_known(from, n))
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

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    n: usize,
    s: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        if !is_device(to, n) {
            return Err(INVALID_VALUE);
        }
        if is_pinned(from as u64, n) || is_capturing(s as usize) {
            return submit(s, &bytes(to, from as u64, n, true));
        }
        // Pageable memory is read before the call returns.
        // SAFETY: the caller's memory.
        let taken = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), n) }.to_vec();
        on(s, |s| {
            s.host(move || {
                slow();
                // SAFETY: as in `bytes`.
                let copy =
                    || unsafe { std::ptr::copy_nonoverlapping(taken.as_ptr(), to as *mut u8, n) };
                copying(Touched::written(to, n), copy);
            });
            Ok(())
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    n: usize,
    s: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        if !is_device(from, n) {
            return Err(INVALID_VALUE);
        }
        submit(s, &bytes(to as u64, from, n, false))?;
        settle(s, is_pinned(to as u64, n))
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: u64,
    from: u64,
    n: usize,
    s: *mut c_void,
) -> Result {
    call(|| {
        ready()?;
        if !is_device(to, n) || !is_device(from, n) {
            return Err(INVALID_VALUE);
        }
        submit(s, &bytes(to, from, n, true))
    })
}

/// A copy in the null stream that has ended when the call returns.
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> Result {
    let null = std::ptr::null_mut();
    // SAFETY: the caller's memory.
    match unsafe { cuMemcpyHtoDAsync_v2(to, from, bytes, null) } {
        // SAFETY: the null stream.
        0 => unsafe { cuStreamSynchronize(null) },
        error => error,
    }
}

/// As [`cuMemcpyHtoD_v2`].
#[no_mangle]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> Result {
    let null = std::ptr::null_mut();
    // SAFETY: the caller's memory.
    match unsafe { cuMemcpyDtoHAsync_v2(to, from, bytes, null) } {
        // SAFETY: the null stream.
        0 => unsafe { cuStreamSynchronize(null) },
        error => error,
    }
}

/// Where a side of a copy begins, and bytes from row to row and from layer to layer.
#[derive(Clone, Copy)]
struct Place {
    first: u64,
    pitch: usize,
    layer: usize,
}

/// Rows of bytes, in layers.
#[derive(Clone, Copy)]
struct Rows {
    to: Place,
    from: Place,
    width: usize,
    height: usize,
    depth: usize,
}

impl Place {
    /// The first byte of a side. CU_MEMORYTYPE_HOST is 1, _DEVICE 2, _ARRAY 3, _UNIFIED 4.
    fn base(kind: c_uint, host: u64, device: u64) -> std::result::Result<u64, Result> {
        let base = match kind {
            1 => host,
            2 | 4 => device,
            _ => return Err(INVALID_VALUE),
        };
        Some(base).filter(|b| *b != 0).ok_or(INVALID_VALUE)
    }

    fn row(&self, row: usize, layer: usize) -> u64 {
        self.first + (row * self.pitch + layer * self.layer) as u64
    }

    /// Bytes from the first to the last.
    fn extent(&self, rows: &Rows) -> Option<usize> {
        let down = self.pitch.checked_mul(rows.height - 1)?;
        let back = self.layer.checked_mul(rows.depth - 1)?;
        down.checked_add(back)?.checked_add(rows.width)
    }
}

impl Rows {
    fn operation(self) -> std::result::Result<Operation, Result> {
        if self.width == 0 || self.height == 0 || self.depth == 0 {
            return Ok(Operation::Nothing);
        }
        for side in [&self.to, &self.from] {
            let rows = self.height == 1 || side.pitch >= self.width;
            let layers = self.depth == 1 || side.layer >= self.height * side.pitch;
            if !rows || !layers || side.extent(&self).is_none() {
                return Err(INVALID_VALUE);
            }
        }
        Ok(Operation::host(move || {
            for layer in 0..self.depth {
                for row in 0..self.height {
                    let (to, from) = (self.to.row(row, layer), self.from.row(row, layer));
                    // SAFETY: as in `bytes`.
                    let copy =
                        || unsafe { std::ptr::copy(from as *const u8, to as *mut u8, self.width) };
                    copying(Touched::written(to, self.width), || {
                        copying(Touched::read(from, self.width), copy);
                    });
                }
            }
        }))
    }

    fn submit(self, s: *mut c_void) -> std::result::Result<(), Result> {
        submit(s, &self.operation()?)?;
        settle(s, false)
    }
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
    fn place(&self) -> std::result::Result<Place, Result> {
        let base = Place::base(self.kind, self.host, self.device)?;
        let first = base.wrapping_add((self.y * self.pitch + self.x) as u64);
        let (pitch, layer) = (self.pitch, 0);
        Ok(Place {
            first,
            pitch,
            layer,
        })
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
        let rows = Rows {
            to: c.to.place()?,
            from: c.from.place()?,
            width: c.width,
            height: c.height,
            depth: 1,
        };
        rows.submit(s)
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy2D_v2(c: *const Copy2D) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuMemcpy2DAsync_v2(c, std::ptr::null_mut()) }
}

/// CUDA_MEMCPY3D of one side.
#[repr(C)]
#[derive(Debug)]
pub struct BoxSide {
    x: usize,
    y: usize,
    z: usize,
    lod: usize,
    kind: c_uint,
    host: u64,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: usize,
    /// Rows from layer to layer.
    height: usize,
}

impl BoxSide {
    fn place(&self) -> std::result::Result<Place, Result> {
        let base = Place::base(self.kind, self.host, self.device)?;
        let layer = self.pitch.checked_mul(self.height).ok_or(INVALID_VALUE)?;
        let inside = self.z * layer + self.y * self.pitch + self.x;
        Ok(Place {
            first: base.wrapping_add(inside as u64),
            pitch: self.pitch,
            layer,
        })
    }
}

/// CUDA_MEMCPY3D.
#[repr(C)]
#[derive(Debug)]
pub struct Copy3D {
    from: BoxSide,
    to: BoxSide,
    width: usize,
    height: usize,
    depth: usize,
}

/// The operation of a copy of a box.
///
/// # Safety
/// The caller's structure, or null.
pub(crate) unsafe fn of_box(c: *const Copy3D) -> std::result::Result<Operation, Result> {
    // SAFETY: the caller's contract.
    let c = unsafe { c.as_ref() }.ok_or(INVALID_VALUE)?;
    let rows = Rows {
        to: c.to.place()?,
        from: c.from.place()?,
        width: c.width,
        height: c.height,
        depth: c.depth,
    };
    rows.operation()
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy3DAsync_v2(c: *const Copy3D, s: *mut c_void) -> Result {
    call(|| {
        ready()?;
        // SAFETY: the caller's structure.
        submit(s, &unsafe { of_box(c)? })?;
        settle(s, false)
    })
}

#[no_mangle]
pub unsafe extern "C" fn cuMemcpy3D_v2(c: *const Copy3D) -> Result {
    // SAFETY: the caller's arguments.
    unsafe { cuMemcpy3DAsync_v2(c, std::ptr::null_mut()) }
}

// CUDA_MEMCPY2D and CUDA_MEMCPY3D have so many bytes.
const _: () = assert!(size_of::<Copy2D>() == 128 && size_of::<Copy3D>() == 200);
