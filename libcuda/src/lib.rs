//! The emulated GPU's `libcuda.so.1`: the part of the CUDA driver's interface that the CUDA
//! backend, `cudarc`, and programs with `<<<>>>` use.
//!
//! - [`module`], [`library`]: PTX and fat binaries, whose kernels run on the crate `ringbell-gpu`;
//!   [`function`]: what they need; [`launch`]: what is refused, and parameters;
//! - [`memory`], [`fill`], [`ipc`], [`dma_buf`], [`io_memory`]: memory of the GPU and the host, and
//!   copies; `allocation`: what is allocated and pinned;
//! - [`stream`], [`graph`], [`words`]: order, capture, operations on words;
//! - [`device`], [`context`], `gpu`, `primary`: the one GPU, and its one context; [`nic`]: NICs
//!   that its threads step;
//! - [`strict`]: the waits and the lock of a real driver; [`nvrtc`]: a run-time compiler that
//!   compiles nothing.
//!
//! Programs find it by `LD_LIBRARY_PATH`. Copies happen later, on another thread, as a copy
//! engine's do. With `RINGBELL_MOCK_CUDA` in the environment it is a test double: it waits, holds
//! its lock and blocks where a real driver does, and it is stricter where that finds mistakes, as
//! that device addresses of pinned memory differ from the host's. The variable is a list of
//! settings and faults, with commas: see [`Faults`]. `RINGBELL_CUDA` has the same for users'
//! programs. None of this says anything about a real GPU's memory ordering or speed.
#![allow(unsafe_code)] // The C interface of a driver.
#![allow(non_snake_case)] // Its names.
#![allow(missing_docs)] // Documented by the CUDA driver API.
#![allow(clippy::missing_safety_doc)] // As above.

mod allocation;
mod capture;
pub mod context;
pub mod copy;
pub mod device;
pub mod dma_buf;
mod error;
mod faults;
pub mod fill;
pub mod function;
mod gpu;
pub mod graph;
mod image;
pub mod io_memory;
pub mod ipc;
mod jit;
pub mod launch;
pub mod library;
pub mod link;
pub mod memory;
pub mod module;
pub mod nic;
mod nodes;
pub mod nvrtc;
mod operation;
pub mod pool;
mod primary;
mod replaced;
pub mod stream;
pub mod strict;
pub mod vmm;
pub mod words;

pub use error::*;
pub use faults::{faults, Faults};
pub(crate) use gpu::{gpu, memory_bytes};
pub(crate) use primary::{lose, ready, IN_HOST_FUNCTION};
