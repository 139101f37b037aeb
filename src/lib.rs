//! Ringbell: GPU kernels send and receive over a NIC, with no CPU in the control path.
//!
//! A [`Nic`] joins the two halves of the SDK: a GPU, whose kernels ring doorbells and move their
//! own messages, and a NIC that translates GPU addresses through its GTLB and carries the bytes. A
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
//! The root has the names of most programs. [`nic`], [`gpu`], [`memory`], [`comm`], [`job`] and
//! [`engines`] have the settings, reports and errors of each part, [`abi`] the contract with
//! kernels.
//!
//! The parts are crates of their own: `ringbell-nic-abi` (the contract), `ringbell-gtlb`
//! (translation), `ringbell-nic-core` (the NIC), `ringbell-cuda-kernels` (the GPU side).

mod backend;
mod buffer;
mod builder;
#[cfg(feature = "card")]
mod card;
pub mod comm;
mod debug;
pub mod engines;
mod entries;
#[cfg(feature = "cuda")]
mod foreign;
mod gpu_choice;
mod gpu_result;
mod handle;
mod host;
pub mod job;
mod kernel;
mod machine;
mod nic_kind;
mod open_error;
mod options;
mod port;
mod remote;
mod routes;
mod seed;
#[cfg(feature = "cuda")]
mod shared_pages;
mod socket;
mod span;
mod spec;
mod wires;

pub use buffer::{AllocError, DeviceBuffer};
pub use builder::NicBuilder;
pub use comm::{CollectiveError, CommOptions, Communicator, KernelStream, Operation, Request};
pub use gpu_result::GpuResult;
pub use handle::Nic;
pub use kernel::{Kernel, Module};
pub use open_error::OpenError;
pub use socket::{Listener, SessionError, Socket};
pub use span::Span;
pub use wires::Wires;

pub use ringbell_cuda_kernels::{Dim3, Gpu, KernelArg, Launch, LaunchError, Stream};
pub use ringbell_job::{Job, UniqueId};
pub use ringbell_nic_abi as abi;
pub use ringbell_nic_abi::{Algorithm, DataType, ReduceOp};
pub use ringbell_nic_core::{HostBuffer, HostQueue, NicBuffer};

/// A NIC's settings, limits, sessions and reports.
pub mod nic {
    pub use ringbell_nic_core::card::{CardCounts, CLOCK_HZ as CARD_CLOCK_HZ};
    pub use ringbell_nic_core::descriptors;
    pub use ringbell_nic_core::network::{NetworkError, PortInfo, Route};
    pub use ringbell_nic_core::port::impair::Faults;
    pub use ringbell_nic_core::port::PortCounters;
    pub use ringbell_nic_core::transport::rdma::{Congestion, DcqcnConfig};
    pub use ringbell_nic_core::{
        EngineThread, NicConfig, NotDelivered, ProgressMode, QueueConfig, SessionInfo,
        StagingConfig, Undelivered, WaitError,
    };

    pub use crate::backend::Backend;
    pub use crate::debug::{print_events, DebugLevelError, DEBUG_VARIABLE};
    pub use crate::handle::Nic;
    pub use crate::nic_kind::{NicKind, NIC_VARIABLE};
    pub use crate::open_error::OpenError;
    pub use crate::options::VCD_VARIABLE;
    pub use crate::routes::RoutesError;
    pub use crate::socket::{SocketReader, SocketWriter};
    pub use crate::spec::{Cidr, PortSpec, SpecError, TransportSpec, VXLAN_PORT};
}

/// The GPU beside a NIC: its choice, arguments of kernels, and sockets of GPU streams.
pub mod gpu {
    pub use ringbell_cuda_kernels::{
        EmulatedGpu, EmulatedGpuConfig, GpuError, GpuKind, ModuleError, SocketContext, SocketError,
    };

    pub use crate::entries::SocketContextError;
    #[cfg(feature = "cuda")]
    pub use crate::foreign::ForeignRegion;
    pub use crate::gpu_choice::{
        ChosenGpu, GpuChoice, GpuMemoryChoice, GpuOpenError, GPU_MEMORY_VARIABLE, GPU_VARIABLE,
    };
    pub use crate::kernel::{Kept, KernelArgs, KernelParam};
}

/// Memory that the NIC reaches: elements, registrations, kinds and errors. The buffers themselves
/// are in the crate's root.
pub mod memory {
    pub use ringbell_gtlb::{Access, MemoryRegion};
    pub use ringbell_nic_core::{
        FreeError, HostRegion, MemoryError, MemoryKind, PointerInfo, RangeError,
    };

    pub use crate::buffer::Plain;
    pub use crate::remote::RemoteMemory;
}

/// Queue pairs on host memory in ibverbs' vocabulary, without a GPU and without a [`Nic`].
pub mod verbs {
    pub use ringbell_roce::verbs::*;
}

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

/// The program of docs/verbs.md.
#[cfg(doctest)]
#[doc = include_str!("../docs/verbs.md")]
struct Verbs;
