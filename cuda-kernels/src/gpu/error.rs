//! Errors of GPU memory and of users' modules.

use std::path::PathBuf;

use ringbell_nic_abi::GpuVa;

use crate::cuda_error::CudaError;

/// Why memory could not be allocated or reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The memory could not be created.
    #[error("cannot map {bytes} bytes of emulated GPU memory: {source}; lower memory_bytes, scatter or max_mappings, or raise `ulimit -v`")]
    Map {
        /// Bytes asked for.
        bytes: u64,
        /// The system's answer.
        source: rustix::io::Errno,
    },
    /// The environment's checks of kernels.
    #[error("{reason}")]
    Checks {
        /// What is wrong.
        reason: String,
    },
    /// Zero bytes of memory, or of an allocation.
    #[error("a size of 0 bytes was asked for; ask for at least one")]
    Empty,
    /// Not enough contiguous virtual memory.
    #[error("no {asked} bytes left on the emulated GPU (largest free range: {largest}); free buffers or raise memory_bytes")]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Largest free range.
        largest: u64,
    },
    /// The pages could not be provided by the host.
    #[error("the host has no memory for {bytes} bytes of emulated GPU memory: {source}")]
    Populate {
        /// Bytes asked for.
        bytes: u64,
        /// The system's answer.
        source: rustix::io::Errno,
    },
    /// An atomic access must be aligned to its size.
    #[error("offset {offset} is not a multiple of {size}; atomic words are aligned to their size")]
    Misaligned {
        /// Offset in the buffer.
        offset: u64,
        /// Size of the word in bytes.
        size: u64,
    },
    /// The range is not inside one allocation.
    #[error("{va} + {len} is not inside an allocation of this GPU")]
    NotAllocated {
        /// First byte.
        va: GpuVa,
        /// Bytes.
        len: u64,
    },
    /// Only a real GPU's driver names memory for other processes.
    #[error("memory of the emulated GPU has no handle for other processes; its NICs map it by themselves, so send it")]
    NotShareable,
    /// The CUDA driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Why a user's kernels could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The file cannot be read, or is no file of kernels for this GPU.
    #[error("cannot load {path}: {reason}")]
    Load {
        /// File.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// PTX that the emulated GPU cannot read, or that needs what it does not have.
    #[error("cannot load PTX: {0}")]
    Ptx(#[from] ringbell_gpu::ParseError),
    /// The CUDA driver has no use for it.
    #[error("cannot load {path}; build it for this GPU with `ringbell cc --arch` or nvcc")]
    Image {
        /// File.
        path: PathBuf,
        /// What it said.
        #[source]
        source: CudaError,
    },
}
