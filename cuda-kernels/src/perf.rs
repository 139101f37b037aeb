//! Reports of the measuring kernels of `kernels/perf.cu`.

use ringbell_nic_abi::Status;

use crate::bytes::word;
use crate::{GpuBuffer, GpuError};

/// `perf_result` of `kernels/common.cuh`: how a measuring kernel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerfResult {
    /// Status of the first operation that failed, or `Ok`.
    pub status: Status,
    /// Its detail word.
    pub detail: u64,
    /// Messages finished, warm-up included.
    pub messages: u64,
    /// Payload bytes of the timed part.
    pub bytes: u64,
    /// Words of 8 bytes that were not what they should have been.
    pub wrong: u64,
    /// Nanoseconds of the timed part.
    pub elapsed_ns: u64,
}

impl PerfResult {
    /// Bytes in GPU memory.
    pub const BYTES: u64 = 48;

    /// Reads the `index`-th result of a buffer.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the buffer is shorter.
    pub fn read(buffer: &GpuBuffer, index: u64) -> Result<PerfResult, GpuError> {
        let mut b = [0u8; PerfResult::BYTES as usize];
        buffer.read(index * PerfResult::BYTES, &mut b)?;
        let word = |i: usize| word(&b, i * 8);
        Ok(PerfResult {
            // An unknown code cannot come from our own header; silent is the safe reading.
            status: Status::from_code(word(0) as u32 as u8).unwrap_or(Status::NicSilent),
            detail: word(1),
            messages: word(2),
            bytes: word(3),
            wrong: word(4),
            elapsed_ns: word(5),
        })
    }
}
