//! The emulated GPU: memory whose addresses need translation, and kernels on host threads.
//!
//! - `memory`: one memfd, mapped linearly as the "bus" that the NIC's DMA sees, and a second time,
//!   with part of its 64 KiB pages scattered, at the addresses that kernels dereference;
//! - `layout`: which page goes where;
//! - `suballocator`: `alloc` and `free` inside it;
//! - `module`: kernels by name, from the SDK or a user's file; `image`: which files are taken;
//! - `ptx`: kernels of PTX, by the crate `ringbell-gpu`; `drive`: threads of the host that run
//!   their blocks; `code_store`: compiled kernels on disk; `loaded`: modules that are values, for a
//!   driver's interface;
//! - `hang`: where the threads of a kernel stand that does not end;
//! - `watched`: what is allocated, for the errors of kernels and for checks;
//! - `pool`: OS threads for blocks;
//! - `stepped`: a kernel that its caller steps, on a clock of the caller's;
//! - `stream`: order, and waiting with a deadline.

mod code_store;
mod debugging;
mod device;
mod drive;
mod gpu;
mod hang;
mod image;
mod layout;
mod loaded;
mod memory;
mod module;
mod operations;
mod pool;
mod ptx;
mod stepped;
mod stream;
mod suballocator;
mod watched;

pub use gpu::{EmulatedGpu, EmulatedGpuConfig};
pub use loaded::{KernelNeeds, LoadedKernel, LoadedModule};
pub use memory::EmulatedMemory;
pub use stepped::{KernelEnd, SteppedKernel, Turn};
