//! Memory that is set to a value.

use std::ffi::c_void;

use crate::allocation::{copying, is_device, is_mapped, is_pinned, Touched};
use crate::operation::Operation;
use crate::stream::{outcome, stream, submit};
use crate::{call, ready, Result, INVALID_VALUE};

/// Rows of a value of 1, 2 or 4 bytes.
pub(crate) fn rows(
    va: u64,
    pitch: usize,
    value: u32,
    size: usize,
    [width, height]: [usize; 2],
) -> std::result::Result<Operation, Result> {
    if width == 0 || height == 0 {
        return Ok(Operation::Nothing);
    }
    let whole = (height - 1).checked_mul(pitch).zip(width.checked_mul(size));
    let end = whole.and_then(|(rows, row)| rows.checked_add(row));
    let end = end.ok_or(INVALID_VALUE)?;
    let known = is_device(va, end) || is_mapped(va, end) || is_pinned(va, end);
    if !known || !va.is_multiple_of(size as u64) {
        return Err(INVALID_VALUE);
    }
    Ok(Operation::host(move || {
        let bytes = value.to_le_bytes();
        for row in 0..height {
            let at = va + (row * pitch) as u64;
            let first = at as *mut u8;
            copying(Touched::written(at, width * size), || {
                for i in 0..width {
                    // SAFETY: within the range that was checked; freeing it waits.
                    unsafe {
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), first.add(i * size), size);
                    }
                }
            });
        }
    }))
}

fn fill(
    va: u64,
    pitch: usize,
    value: u32,
    size: usize,
    shape: [usize; 2],
    s: *mut c_void,
) -> std::result::Result<(), Result> {
    ready()?;
    submit(s, &rows(va, pitch, value, size, shape)?)
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
