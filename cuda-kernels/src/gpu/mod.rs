//! The GPU as the rest of the SDK sees it, emulated or real: [`Gpu`], [`GpuBuffer`], [`Stream`],
//! [`Launch`], [`Event`].
//!
//! Each is a handle over a backend inside this crate: [`crate::EmulatedGpu`] or
//! [`crate::cuda::CudaGpu`]. Both dereference to a `Gpu`, so that code written for one runs on the
//! other.
#![allow(unsafe_code)] // Declares functions that load and launch kernels.

mod backend;
mod buffer;
mod ending;
mod error;
mod graph;
mod shared;
mod stream;
mod words;

pub use backend::GpuKind;
pub(crate) use backend::{GpuBackend, GraphBackend, KernelHandle, StreamBackend};
pub use buffer::GpuBuffer;
pub(crate) use ending::Ending;
pub use ending::{Event, Launch};
pub use error::{GpuError, ModuleError};
pub use graph::Graph;
pub use shared::{NotShared, SharedMemory};
pub use stream::Stream;
pub use words::WordOp;

use std::path::Path;
use std::sync::Arc;

use ringbell_gtlb::{DmaMemory, PageTable};
use ringbell_nic_abi::GpuVa;

use crate::launch::{Dim3, KernelArg, LaunchError};

/// Most bytes of a file of kernels: PTX beyond would take minutes.
const MOST_IMAGE: u64 = 256 << 20;

/// A GPU, emulated or real. A cheap handle: clones are the same GPU.
#[derive(Debug, Clone)]
pub struct Gpu {
    backend: Arc<dyn GpuBackend>,
}

impl Gpu {
    pub(crate) fn of(backend: Arc<dyn GpuBackend>) -> Gpu {
        Gpu { backend }
    }

    /// What runs the kernels.
    pub fn kind(&self) -> GpuKind {
        self.backend.kind()
    }

    /// The GPU and how the NIC reaches its memory, in a line for logs.
    pub fn describe(&self) -> String {
        self.backend.describe()
    }

    /// Allocates memory in whole pages of 64 KiB.
    ///
    /// # Errors
    /// [`GpuError`]: nothing asked for, or no room.
    pub fn alloc(&self, bytes: u64) -> Result<GpuBuffer, GpuError> {
        if bytes == 0 {
            return Err(GpuError::Empty);
        }
        let va = self.backend.alloc(bytes)?;
        Ok(GpuBuffer::of(va, bytes, self.backend.clone()))
    }

    /// Allocates memory that kernels fill and read over the bus while the NIC reaches it without a
    /// copy engine: on a real GPU pinned memory of the host, for the slots of the data mover
    /// (FpgaNIC §A.1.2).
    ///
    /// # Errors
    /// As [`Gpu::alloc`].
    pub fn alloc_pinned(&self, bytes: u64) -> Result<GpuBuffer, GpuError> {
        if bytes == 0 {
            return Err(GpuError::Empty);
        }
        let va = self.backend.alloc_pinned(bytes)?;
        Ok(GpuBuffer::of(va, bytes, self.backend.clone()))
    }

    /// The 64 KiB pages of a range inside one allocation, as a driver reports them to a NIC
    /// (`nvidia_p2p_get_pages`).
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`].
    pub fn page_table(&self, va: GpuVa, len: u64) -> Result<PageTable, GpuError> {
        self.backend.page_table(va, len)
    }

    /// The memory as the NIC's DMA sees it.
    pub fn memory(&self) -> Arc<dyn DmaMemory> {
        self.backend.memory()
    }

    /// Copies to GPU memory.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`].
    pub fn write(&self, va: GpuVa, from: &[u8]) -> Result<(), GpuError> {
        self.backend.write(va, from)
    }

    /// Copies from GPU memory.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`].
    pub fn read(&self, va: GpuVa, into: &mut [u8]) -> Result<(), GpuError> {
        self.backend.read(va, into)
    }

    /// Loads a user's kernels, as `ringbell cc` builds them: PTX (`.ptx`) or a fat binary that has
    /// PTX; for a real GPU a cubin too.
    ///
    /// # Errors
    /// [`ModuleError`]: it cannot be read, or is not for this GPU.
    ///
    /// # Safety
    /// The file is the program's own: its kernels can be launched from then on, by their names
    /// alone.
    pub unsafe fn load_module(&self, path: &Path) -> Result<(), ModuleError> {
        let refuse = |reason: String| ModuleError::Load {
            path: path.to_owned(),
            reason,
        };
        let about = std::fs::metadata(path).map_err(|e| refuse(e.to_string()))?;
        if about.len() > MOST_IMAGE {
            return Err(refuse("the file is larger than 256 MiB".to_owned()));
        }
        let image = std::fs::read(path).map_err(|e| refuse(e.to_string()))?;
        self.backend.load_image(path, &image)
    }

    /// The same of a file's bytes, which errors call `name`.
    ///
    /// # Errors
    /// As [`Gpu::load_module`].
    ///
    /// # Safety
    /// As [`Gpu::load_module`].
    pub unsafe fn load_image(&self, name: &str, image: &[u8]) -> Result<(), ModuleError> {
        self.backend.load_image(Path::new(name), image)
    }

    /// Names of all kernels that are known by name, sorted. A real GPU lists those of the SDK only,
    /// and finds a user's kernel when it is launched.
    pub fn kernels(&self) -> Vec<String> {
        self.backend.kernels()
    }

    /// Checks that a kernel can be launched by this name.
    ///
    /// # Errors
    /// [`LaunchError::UnknownKernel`] lists those that are known, or [`LaunchError::Device`].
    pub fn find_kernel(&self, name: &str) -> Result<(), LaunchError> {
        self.backend.find_kernel(name)
    }

    /// Whether a kernel that was launched here, or on a stream of this GPU, has not ended. Of a
    /// real GPU the driver alone knows, and this is always `false`.
    pub fn is_running(&self) -> bool {
        self.backend.is_running()
    }

    /// A new stream.
    pub fn stream(&self) -> Stream {
        Stream::of(self.backend.stream())
    }

    /// Launches a kernel at once, on a stream of its own.
    ///
    /// # Errors
    /// Unknown kernel, wrong arguments or shape. The [`Launch`] tells how it ends.
    ///
    /// # Safety
    /// As [`Stream::launch`].
    pub unsafe fn launch(
        &self,
        name: &str,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        // SAFETY: the caller's contract.
        unsafe { self.stream().launch(name, grid, block, args) }
    }
}
