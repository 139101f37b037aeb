//! The driver's view of an address: its kind of memory, its GPU and its allocation.
#![allow(unsafe_code)] // Calls into libcuda.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUpointer_attribute, CUresult};
use ringbell_nic_abi::GpuVa;

use super::context::Context;
use crate::cuda_error::CudaError;

/// Base and size of the allocation around a range. The range must be plain memory of this GPU,
/// inside one allocation.
pub(super) fn check_range(context: &Context, va: GpuVa, len: u64) -> Result<(u64, u64), CudaError> {
    context.bind()?;
    let mut kind = 0_u32;
    if !attribute(
        context,
        va,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        &mut kind,
    )? {
        return Err(CudaError::NotGpuMemory { va });
    }
    // A bool in the interface; the rest of the word stays 0.
    let mut managed = 0_u32;
    attribute(
        context,
        va,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        &mut managed,
    )?;
    if managed & 0xff != 0 {
        return Err(CudaError::Managed { va });
    }
    if kind != sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 {
        return Err(CudaError::HostMemory { va });
    }
    let mut found = 0_u32;
    attribute(
        context,
        va,
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        &mut found,
    )?;
    let (found, wanted) = (found as i32, context.device.ordinal as i32);
    if found != wanted {
        return Err(CudaError::Foreign { va, found, wanted });
    }
    let (base, size) = allocation_around(context, va.0)?;
    let inside = va.0.checked_add(len).is_some_and(|end| end <= base + size);
    if len == 0 || !inside {
        return Err(CudaError::Range {
            va,
            len,
            base: GpuVa(base),
            size,
        });
    }
    Ok((base, size))
}

/// Base and size of the allocation around an address.
pub(super) fn allocation_around(context: &Context, va: u64) -> Result<(u64, u64), CudaError> {
    let (mut base, mut size) = (0, 0);
    // SAFETY: the pointers are to live values.
    context.check("cuMemGetAddressRange", unsafe {
        sys::cuMemGetAddressRange_v2(&mut base, &mut size, va)
    })?;
    Ok((base, size as u64))
}

/// An attribute of at most 32 bits; false when the driver knows no such pointer.
pub(super) fn attribute(
    context: &Context,
    va: GpuVa,
    which: CUpointer_attribute,
    value: &mut u32,
) -> Result<bool, CudaError> {
    let data = std::ptr::from_mut(value).cast::<c_void>();
    // SAFETY: the pointer is to a live word, as long as the longest of these attributes.
    match unsafe { sys::cuPointerGetAttribute(data, which, va.0) } {
        CUresult::CUDA_ERROR_INVALID_VALUE => Ok(false),
        r => context.check("cuPointerGetAttribute", r).map(|()| true),
    }
}
