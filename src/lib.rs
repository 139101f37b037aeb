//! Ringbell: GPU kernels send and receive over a NIC, with no CPU in the control path.
//!
//! A [`Nic`] joins the two halves of the SDK: a GPU, whose kernels ring doorbells and move their own
//! messages, and a NIC that translates GPU addresses through its GTLB and carries the bytes. A
//! program opens one, allocates memory that the NIC may reach, makes a queue, and launches a kernel
//! with the queue's handle:
//!
//! ```
//! use ringbell::{GpuResult, Nic};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let nic = Nic::builder().ip("10.9.9.1/24").open()?;
//! let queue = nic.create_queue()?;
//! let result = nic.alloc::<GpuResult>(1)?;
//! // A kernel that sends empty commands through the whole path: doorbell, NIC, completion.
//! let kernel = nic.kernel("rb_nop")?;
//! // SAFETY: the arguments have the types of the kernel's parameters.
//! let launch = unsafe { kernel.launch(1, 1, (&queue, 3_u32, 0_u32, &result))? };
//! launch.wait(Duration::from_secs(10))?;
//! result.to_vec()?[0].check("nop")?;
//! # Ok(()) }
//! ```
//!
//! The parts are crates of their own: `ringbell-nic-abi` (the contract), `ringbell-gtlb`
//! (translation), `ringbell-nic-core` (the NIC), `ringbell-cuda-kernels` (the GPU side).

pub mod backend;
mod buffer;
mod builder;
#[cfg(feature = "card")]
mod card;
mod comm;
mod debug;
pub mod engines;
mod entries;
#[cfg(feature = "cuda")]
mod foreign;
mod gpu;
mod gpu_result;
mod host;
mod job;
mod kernel;
mod nic;
mod port;
mod socket;
mod span;
mod spec;

pub use backend::{Backend, NicKind, NIC_VARIABLE};
pub use buffer::{AllocError, DeviceBuffer, Plain};
pub use builder::NicBuilder;
#[cfg(feature = "card")]
pub use card::{doorbell_choice, DOORBELLS_VARIABLE};
pub use comm::{
    CollectiveError, CommOptions, Communicator, Done, Element, Enqueued, KernelStream, Operation,
    Request, COLLECTIVE_PORT,
};
pub use debug::{print_events, DebugLevelError, DEBUG_VARIABLE};
pub use entries::SocketContextError;
#[cfg(feature = "cuda")]
pub use foreign::ForeignRegion;
pub use gpu::{
    ChosenGpu, GpuChoice, GpuMemoryChoice, GpuOpenError, GPU_MEMORY_VARIABLE, GPU_VARIABLE,
};
pub use gpu_result::GpuResult;
pub use kernel::{Kept, Kernel, KernelArgs, KernelParam, Module};
pub use nic::{Nic, OpenError};
pub use socket::{Listener, SessionError, Socket, SocketReader, SocketWriter};
pub use span::Span;
pub use spec::{Cidr, PortSpec, SpecError, TransportSpec, VXLAN_PORT};

pub use ringbell_cuda_kernels::{
    Dim3, EmulatedGpu, EmulatedGpuConfig, Gpu, GpuKind, KernelArg, Launch, LaunchError,
    SocketContext, SocketError, Stream,
};
pub use ringbell_gtlb::{Access, MemoryRegion};
pub use ringbell_job::{
    variables, BootstrapError, BootstrapServer, Job, JobError, JobSource, Member, Round, UniqueId,
    UniqueIdError,
};
pub use ringbell_nic_abi as abi;
pub use ringbell_nic_abi::{Algorithm, CollectiveKind, DataType, ReduceOp, WireType};
pub use ringbell_nic_core::collective::{
    CollectiveSettings, CommInfo, CommStatus, PeerInfo, Thresholds,
};
pub use ringbell_nic_core::descriptors;
pub use ringbell_nic_core::port::impair::Faults;
pub use ringbell_nic_core::{
    FreeError, HostBuffer, HostRegion, MemoryError, MemoryKind, NicBuffer, PointerInfo, RangeError,
};
pub use ringbell_nic_core::{
    HostQueue, NicConfig, NotDelivered, ProgressMode, QueueConfig, SessionInfo, StagingConfig,
    Undelivered, WaitError,
};

/// The crates below, for functions that this crate does not offer.
pub mod parts {
    #[cfg(feature = "card")]
    pub use ringbell_card as card;
    pub use ringbell_cuda_kernels as cuda_kernels;
    pub use ringbell_gtlb as gtlb;
    pub use ringbell_nic_core as nic_core;
    pub use ringbell_onc_engines as onc_engines;
}

/// The tutorial's programs, compiled against this crate.
#[cfg(doctest)]
#[doc = include_str!("../docs/tutorial.md")]
struct Tutorial;
