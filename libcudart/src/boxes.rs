//! Memory of three dimensions: rows in layers.

use std::ffi::{c_int, c_uint, c_void};

use crate::device::ready;
use crate::driver::{self, Code, Handle};
use crate::error::{call, check, INVALID_PITCH, INVALID_VALUE};
use crate::memory::direction;
use crate::put;
use crate::stream::stream;

/// cudaExtent: bytes of a row, rows, layers.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    width: usize,
    height: usize,
    depth: usize,
}

/// cudaPos.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Position {
    x: usize,
    y: usize,
    z: usize,
}

/// cudaPitchedPtr: bytes from row to row, bytes of a row, rows of a layer.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Pitched {
    at: *mut c_void,
    pitch: usize,
    width: usize,
    height: usize,
}

/// cudaMemcpy3DParms.
#[repr(C)]
#[derive(Debug)]
pub struct Copy3D {
    from_array: *mut c_void,
    from_position: Position,
    from: Pitched,
    to_array: *mut c_void,
    to_position: Position,
    to: Pitched,
    extent: Extent,
    kind: c_int,
}

/// CUDA_MEMCPY3D of one side.
#[repr(C)]
#[derive(Debug)]
struct Side {
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
    height: usize,
}

impl Side {
    /// CU_MEMORYTYPE_UNIFIED: the driver knows whose the address is.
    fn of(at: &Position, of: &Pitched, extent: &Extent) -> Result<Side, Code> {
        if extent.width > of.pitch && extent.height > 1 {
            return Err(INVALID_PITCH);
        }
        Ok(Side {
            x: at.x,
            y: at.y,
            z: at.z,
            lod: 0,
            kind: 4,
            host: 0,
            device: of.at as u64,
            array: 0,
            reserved: 0,
            pitch: of.pitch,
            height: of.height,
        })
    }
}

/// CUDA_MEMCPY3D.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct DriverCopy {
    from: Side,
    to: Side,
    extent: Extent,
}

impl Copy3D {
    /// The driver's structure of a copy between memories; there are no arrays.
    pub(crate) fn driver(this: *const Copy3D) -> Result<DriverCopy, Code> {
        // SAFETY: the caller's structure, or null.
        let c = unsafe { this.as_ref() }.ok_or(INVALID_VALUE)?;
        direction(c.kind)?;
        if !c.from_array.is_null() || !c.to_array.is_null() {
            return Err(INVALID_VALUE);
        }
        Ok(DriverCopy {
            from: Side::of(&c.from_position, &c.from, &c.extent)?,
            to: Side::of(&c.to_position, &c.to, &c.extent)?,
            extent: c.extent,
        })
    }
}

/// A copy of bytes as a box of one row.
pub(crate) fn row(to: *mut c_void, from: *const c_void, bytes: usize) -> DriverCopy {
    let extent = Extent {
        width: bytes,
        height: 1,
        depth: 1,
    };
    let side = |at: u64| Side {
        x: 0,
        y: 0,
        z: 0,
        lod: 0,
        kind: 4,
        host: 0,
        device: at,
        array: 0,
        reserved: 0,
        pitch: bytes,
        height: 1,
    };
    DriverCopy {
        from: side(from as u64),
        to: side(to as u64),
        extent,
    }
}

#[no_mangle]
pub extern "C" fn cudaMemcpy3D(c: *const Copy3D) -> Code {
    call(|| {
        let copy = Copy3D::driver(c)?;
        ready()?;
        check(driver::copy_3d(std::ptr::from_ref(&copy).cast()))
    })
}

#[no_mangle]
pub extern "C" fn cudaMemcpy3DAsync(c: *const Copy3D, s: Handle) -> Code {
    call(|| {
        let copy = Copy3D::driver(c)?;
        let s = stream(s)?;
        check(driver::copy_3d_async(std::ptr::from_ref(&copy).cast(), s))
    })
}

#[no_mangle]
pub extern "C" fn cudaMalloc3D(to: *mut Pitched, extent: Extent) -> Code {
    call(|| {
        ready()?;
        let rows = extent.height.checked_mul(extent.depth);
        let rows = rows.ok_or(INVALID_VALUE)?;
        let (mut va, mut pitch) = (0, 0);
        check(driver::alloc_pitch(
            &mut va,
            &mut pitch,
            extent.width,
            rows,
            16,
        ))?;
        let made = Pitched {
            at: va as *mut c_void,
            pitch,
            width: extent.width,
            height: extent.height,
        };
        put(to, made)
    })
}

#[no_mangle]
pub extern "C" fn cudaMemset3DAsync(to: Pitched, value: c_int, extent: Extent, s: Handle) -> Code {
    call(|| {
        let s = stream(s)?;
        if extent.width > to.pitch || extent.height > to.height {
            return Err(INVALID_VALUE);
        }
        for layer in 0..extent.depth {
            let at = to.at as u64 + (layer * to.pitch * to.height) as u64;
            let (width, height) = (extent.width, extent.height);
            check(driver::fill_2d_async(
                at,
                to.pitch,
                value as u8,
                width,
                height,
                s,
            ))?;
        }
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn cudaMemset3D(to: Pitched, value: c_int, extent: Extent) -> Code {
    let null = std::ptr::null_mut();
    match cudaMemset3DAsync(to, value, extent, null) {
        0 => crate::stream::cudaStreamSynchronize(null),
        code => code,
    }
}

// cudaMemcpy3DParms and CUDA_MEMCPY3D have so many bytes.
const _: () = assert!(size_of::<Copy3D>() == 160 && size_of::<DriverCopy>() == 200);
