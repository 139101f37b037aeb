//! The GPU side of Ringbell: the device header (`include/ringbell.cuh`), the SDK's kernels, and the
//! emulated GPU on which the same `.cu` sources run on host threads.
//!
//! This crate never sees the NIC. A kernel drives a queue through the plain-data
//! [`QueueHandle`](ringbell_nic_abi::queue::QueueHandle), and the NIC reaches GPU memory through
//! [`DmaMemory`](ringbell_gtlb::DmaMemory) and [`PageTable`](ringbell_gtlb::PageTable); the root
//! package joins the two.
//!
//! Real GPUs are driven by [`cuda`] (feature `cuda`), whose memory [`gdrcopy`] maps for the CPU
//! where that is installed. Neither has run on a real GPU yet. The kernels are compiled by nvcc in
//! CI.

mod builtin;
mod bytes;
mod cells;
pub mod collective;
pub mod cuda;
mod cuda_error;
pub mod echo;
pub mod emulated;
mod entry_queue;
mod fatbin;
pub mod floor;
#[cfg(feature = "cuda")]
pub mod gdrcopy;
mod gpu;
pub mod hll;
mod launch;
mod locks;
pub mod perf;
pub mod pump;
pub mod reduce;
mod slots;
mod socket_context;
pub mod wait_hook;

pub use cells::{Outcome, ResultCell, ResultCells};
pub use emulated::{EmulatedGpu, EmulatedGpuConfig, EmulatedMemory};
pub use emulated::{KernelEnd, KernelNeeds, LoadedKernel, LoadedModule, SteppedKernel, Turn};
pub use entry_queue::{EntryQueue, Posted, PostingStream};
pub use fatbin::{fatbins, Fatbin};
pub use gpu::{
    Event, Gpu, GpuBuffer, GpuError, GpuKind, Graph, Launch, ModuleError, NotShared, SharedMemory,
    Stream, WordOp,
};
pub use launch::{Dim3, Failure, KernelArg, LaunchError, LaunchShape};
pub use ringbell_gpu::{Checks, Output};
pub use slots::{Slots, SlotsConfig, SlotsError};
pub use socket_context::{Pending, Socket, SocketContext, SocketError};
