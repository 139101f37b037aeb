//! Stream memory operations (CUDA driver API, "Stream Memory Operations").
//!
//! A stream stores a doorbell and waits for a completion by itself, so that no kernel holds an SM
//! meanwhile.
#![allow(unsafe_code)] // Calls into libcuda.

use cudarc::driver::sys::{
    self, CUdevice, CUdevice_attribute, CUresult, CUstream, CUstreamWaitValue_flags,
    CUstreamWriteValue_flags,
};

use super::driver;
use crate::cuda_error::CudaError;
use crate::gpu::WordOp;

/// Environment variable: `kernel` keeps stream-ordered operations on kernels where the driver could
/// do without.
pub const STREAM_OPS_VARIABLE: &str = "RINGBELL_STREAM_OPS";

/// The functions. Those without `_v2` want a parameter of the kernel module, and are not used.
const NEEDED: [&str; 3] = [
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "cuStreamWriteValue64_v2",
];

/// Whether this driver and GPU have the operations, or why not.
pub(super) fn supported(device: CUdevice) -> Result<(), String> {
    if std::env::var(STREAM_OPS_VARIABLE).is_ok_and(|v| v == "kernel") {
        return Err(format!("{STREAM_OPS_VARIABLE}=kernel asks for kernels"));
    }
    if let Some(symbol) = NEEDED.into_iter().find(|symbol| !driver::has(symbol)) {
        return Err(format!("the driver has no {symbol}"));
    }
    // An entry's first word is 64 bits, stored at once.
    let which = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
    match driver::attribute(device, which) {
        Ok(0) => Err(
            "the GPU has no 64-bit stream memory operations (CAN_USE_64_BIT_STREAM_MEM_OPS)".into(),
        ),
        Ok(_) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

/// Queues the operations. By default each store waits until earlier writes of the stream are
/// visible.
///
/// # Safety
/// A live stream of the current context, of a GPU that [supports](supported) the operations.
pub(super) unsafe fn queue(
    stream: CUstream,
    ops: &[WordOp],
    check: impl Fn(&'static str, CUresult) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    let store = CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
    let equal = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_EQ as u32;
    for op in ops {
        let (call, r) = match *op {
            // SAFETY: the caller's stream; the driver checks the address.
            WordOp::Store64 { va, value } => ("cuStreamWriteValue64", unsafe {
                sys::cuStreamWriteValue64_v2(stream, va.0, value, store)
            }),
            // SAFETY: as above.
            WordOp::Store32 { va, value } => ("cuStreamWriteValue32", unsafe {
                sys::cuStreamWriteValue32_v2(stream, va.0, value, store)
            }),
            // SAFETY: as above.
            WordOp::WaitEqual32 { va, value } => ("cuStreamWaitValue32", unsafe {
                sys::cuStreamWaitValue32_v2(stream, va.0, value, equal)
            }),
        };
        check(call, r)?;
    }
    Ok(())
}
