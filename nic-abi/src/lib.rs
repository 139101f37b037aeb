//! The contract between a GPU kernel, the host library and the NIC.
//!
//! All data between GPU and NIC is defined here, once: the BAR map ([`bar`]) with its description
//! of itself ([`block`]), the 64-byte work queue entry ([`descriptor`]), the completion line
//! ([`completion`]), the event ([`event`]), operation and status codes, the plain-data queue handle
//! of a kernel ([`queue`]), and the stream between a kernel and the NIC ([`kernel_stream`]), and
//! the numbers of RoCEv2 ([`roce`]). `cargo xtask gen` writes the CUDA header, the SystemVerilog
//! package and the register reference from the tables in [`describe`]; a test fails when they are
//! stale.
//!
//! The crate is `no_std`, has no dependencies and contains no `unsafe`.
#![no_std]

pub mod bar;
pub mod block;
pub mod collective;
pub mod completion;
pub mod constants;
pub mod describe;
pub mod descriptor;
pub mod engine;
pub mod event;
pub mod ids;
pub mod kernel_stream;
pub mod one_sided;
pub mod opcode;
pub mod queue;
pub mod roce;
pub mod status;
pub mod translation;

pub use block::{Block, BlockHeader, BlockKind, ChainError};
pub use collective::{Algorithm, CollectiveKind, CollectiveSpec, DataType, ReduceOp, WireType};
pub use completion::Completion;
pub use descriptor::{
    Descriptor, DescriptorError, EntryKind, InlineSend, Transfer, WorkQueueEntry, INLINE_MAX,
    PUT_INLINE_MAX,
};
pub use engine::{EngineSpec, EngineTarget};
pub use event::{Event, EventKind};
pub use ids::{EngineId, GpuVa, Lkey, PdId, QueueId, Rkey, SessionId};
pub use kernel_stream::StreamRef;
pub use one_sided::WindowPart;
pub use opcode::{Flags, Opcode};
pub use roce::{NakCode, RoceOpcode};
pub use status::Status;

/// Version of this contract; read from [`bar::Reg::AbiVersion`] and checked by the host library
/// before it touches anything else.
pub const ABI_VERSION: u32 = 3;
