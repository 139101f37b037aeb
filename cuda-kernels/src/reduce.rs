//! The reduction kernels of `kernels/reduce.cu`: the GPU's lanes combine operands, as the NIC does
//! inside a collective.
//!
//! Both give the same bits (`onc_engines::reduce`). Users' kernels call `gpu_local_reduce` of
//! `include/ringbell_reduce.cuh`.
#![allow(unsafe_code)] // Launches the SDK's kernels.

use ringbell_nic_abi::{DataType, GpuVa, ReduceOp};

use crate::perf::PerfResult;
use crate::{Gpu, GpuBuffer, GpuError, KernelArg, Launch, LaunchError};

/// Most operands of one launch.
pub const MAX_SOURCES: usize = 8;

/// Most lanes of a block. The kernel keeps vectors of several operands in registers, and a block of
/// 1,024 lanes has too few.
pub const MAX_LANES: u32 = 512;

/// A reduction, and the part of the GPU that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReduceKernel {
    /// Blocks: as many streaming multiprocessors as the reduction may use.
    pub blocks: u32,
    /// Lanes of a block, 1 to [`MAX_LANES`].
    pub lanes: u32,
    /// Type of the elements.
    pub dtype: DataType,
    /// The operation.
    pub op: ReduceOp,
}

/// Why a reduction could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// No launch takes that many operands.
    #[error("a reduction takes 1 to 8 operands, not {given}; reduce in several passes")]
    Sources {
        /// As given.
        given: usize,
    },
    /// The block is too large.
    #[error(
        "the reduction kernel runs in blocks of 1 to 512 lanes, not {lanes}; take more blocks"
    )]
    Lanes {
        /// As given.
        lanes: u32,
    },
    /// The result's buffer is too small.
    #[error("the result of a reduction kernel needs {needed} bytes, not {given}")]
    Result {
        /// Bytes needed.
        needed: u64,
        /// Bytes given.
        given: u64,
    },
    /// Memory.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Kernel.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl ReduceKernel {
    /// `to` = `from[0] op from[1] op ...` over `count` elements, left to right, `iterations` times;
    /// with one operand a copy. Addresses may lie anyhow; `to` may be one of the operands, else
    /// nothing overlaps. `result` has [`PerfResult::BYTES`]: [`PerfResult::read`] tells the time of
    /// the first block.
    ///
    /// # Errors
    /// Too many operands or lanes, a result without room, or a launch that is refused.
    ///
    /// # Safety
    /// `from` and `to` have room for `count` elements, which nothing else writes, and live with
    /// `result` until the kernel has ended.
    pub unsafe fn launch(
        &self,
        gpu: &Gpu,
        to: GpuVa,
        from: &[GpuVa],
        count: u64,
        iterations: u32,
        result: &GpuBuffer,
    ) -> Result<Launch, ReduceError> {
        if from.is_empty() || from.len() > MAX_SOURCES {
            return Err(ReduceError::Sources { given: from.len() });
        }
        if !(1..=MAX_LANES).contains(&self.lanes) {
            return Err(ReduceError::Lanes { lanes: self.lanes });
        }
        if result.len() < PerfResult::BYTES {
            return Err(ReduceError::Result {
                needed: PerfResult::BYTES,
                given: result.len(),
            });
        }
        let mut sources = [0; MAX_SOURCES * 8];
        for (at, va) in sources.chunks_exact_mut(8).zip(from) {
            at.copy_from_slice(&va.0.to_ne_bytes());
        }
        let name = format!("rb_local_reduce_{}", self.dtype.name().to_ascii_lowercase());
        let args = [
            to.into(),
            KernelArg::Bytes(sources.to_vec()),
            (from.len() as u32).into(),
            count.into(),
            u32::from(self.op.code()).into(),
            iterations.into(),
            result.into(),
        ];
        // SAFETY: the kernel's own parameters; the caller's contract.
        Ok(unsafe { gpu.launch(&name, self.blocks, self.lanes, &args) }?)
    }
}
