//! A real GPU, through the CUDA driver (feature `cuda`; ADR 0014).
//!
//! The driver is loaded when a GPU is looked for; nothing of CUDA is needed to build. The modules
//! in the order in which a call meets them:
//!
//! - `driver` loads libcuda and turns results into [`CudaError`]; `context` holds the GPU's primary
//!   context;
//! - `deferred_release` keeps freed resources until running kernels have ended;
//! - `module` brings the kernels (embedded fat binaries, else PTX, else `nvrtc`), and `stream`
//!   launches them;
//! - `memory` and `copy_engine` move bytes for the NIC and the host, `dma` is the NIC's view of
//!   them, and [`GpuMapper`] is the interface of what maps GPU memory for the CPU;
//! - `ipc` and `open_allocations` share allocations between processes; `adopt` takes in foreign
//!   memory; `device_copies` copies it where plain pointers are given.
//!
//! Not measured, and not yet run on a real GPU: CI runs this code over a `libcuda.so.1` of its own,
//! whose launches go to the emulated GPU. It says nothing of a GPU's memory ordering or speed.
//!
//! [`CudaError`] is here in every build, so that errors look the same with and without the feature.

#[cfg(feature = "cuda")]
mod adopt;
#[cfg(feature = "cuda")]
mod capabilities;
#[cfg(feature = "cuda")]
mod context;
#[cfg(feature = "cuda")]
mod copy_engine;
#[cfg(feature = "cust")]
mod cust;
#[cfg(feature = "cuda")]
mod deferred_release;
#[cfg(feature = "cuda")]
mod device_copies;
#[cfg(feature = "cuda")]
mod device_memory;
#[cfg(feature = "cuda")]
mod dma;
#[cfg(feature = "cuda")]
mod dmabuf;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod graph;
#[cfg(feature = "cuda")]
mod handles;
#[cfg(feature = "cuda")]
mod ipc;
#[cfg(feature = "cuda")]
mod ipc_handles;
#[cfg(feature = "cuda")]
mod mapper;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod module;
#[cfg(feature = "cuda")]
mod nvrtc;
#[cfg(feature = "cuda")]
mod open_allocations;
#[cfg(feature = "cuda")]
#[cfg(feature = "cuda")]
mod pinned;
#[cfg(feature = "cuda")]
mod pointer;
#[cfg(feature = "cuda")]
pub(crate) mod posted;
#[cfg(feature = "cuda")]
mod stream;
#[cfg(feature = "cuda")]
mod stream_ops;

pub use crate::cuda_error::{CudaError, DRIVER_NEEDED};

#[cfg(feature = "cust")]
pub use self::cust::AdoptedBuffer;
#[cfg(feature = "cuda")]
pub use adopt::{AdoptedSlice, ForeignMemory};
#[cfg(feature = "cuda")]
pub use capabilities::{
    Capabilities, ComputeMode, DirectRdma, HostAccess, WriteOrder, CONNECTIONS_VARIABLE,
};
#[cfg(feature = "cuda")]
pub use device_copies::{gpu_of, has_driver, DeviceCopies};
#[cfg(feature = "cuda")]
pub use dmabuf::DmaBufMapper;
#[cfg(feature = "cuda")]
pub use driver::{find, DeviceInfo, DriverInfo};
#[cfg(feature = "cuda")]
pub use gpu::{CudaConfig, CudaGpu};
#[cfg(feature = "cuda")]
pub use mapper::{FirstOf, GpuMapper, GpuMapping};
#[cfg(feature = "cuda")]
#[cfg(feature = "cuda")]
pub use stream_ops::STREAM_OPS_VARIABLE;
