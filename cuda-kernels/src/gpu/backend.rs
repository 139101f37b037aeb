//! The interface of a backend: [`GpuBackend`] for memory and modules, [`StreamBackend`] for a
//! stream, [`GraphBackend`] for a graph.

use std::any::Any;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use ringbell_gtlb::{DmaMemory, PageTable};
use ringbell_nic_abi::GpuVa;

use super::{Event, GpuError, Launch, ModuleError, SharedMemory, WordOp};
use crate::launch::{KernelArg, LaunchError, LaunchShape};

/// What runs the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuKind {
    /// Host threads.
    Emulated,
    /// An NVIDIA GPU, by the CUDA driver.
    Cuda,
}

/// A GPU.
pub(crate) trait GpuBackend: Debug + Send + Sync {
    fn kind(&self) -> GpuKind;
    fn describe(&self) -> String;
    /// Memory for `bytes`, which is not 0, aligned to 64 KiB at least.
    fn alloc(&self, bytes: u64) -> Result<GpuVa, GpuError>;
    /// As `alloc`, in memory of the host that the GPU and the CPU both reach, where these are
    /// different.
    fn alloc_pinned(&self, bytes: u64) -> Result<GpuVa, GpuError> {
        self.alloc(bytes)
    }
    /// Frees memory of `alloc` and `alloc_pinned`.
    fn free(&self, va: GpuVa);
    fn page_table(&self, va: GpuVa, len: u64) -> Result<PageTable, GpuError>;
    fn memory(&self) -> Arc<dyn DmaMemory>;
    fn write(&self, va: GpuVa, from: &[u8]) -> Result<(), GpuError>;
    fn read(&self, va: GpuVa, into: &mut [u8]) -> Result<(), GpuError>;
    /// An Acquire load of an aligned word: later reads see a kernel's stores before it.
    fn load_u64(&self, va: GpuVa) -> Result<u64, GpuError>;
    /// A Release store of an aligned word: a kernel that sees it sees earlier writes.
    fn store_u64(&self, va: GpuVa, value: u64) -> Result<(), GpuError>;
    fn load_u32(&self, va: GpuVa) -> Result<u32, GpuError>;
    fn store_u32(&self, va: GpuVa, value: u32) -> Result<(), GpuError>;
    /// Names a range inside one allocation for other processes.
    fn share(&self, va: GpuVa, len: u64) -> Result<SharedMemory, GpuError> {
        let _ = (va, len);
        Err(GpuError::NotShareable)
    }
    /// Loads the bytes of a file, which errors call `name`.
    fn load_image(&self, name: &Path, image: &[u8]) -> Result<(), ModuleError>;
    fn kernels(&self) -> Vec<String>;
    /// Checks that there is a kernel of this name.
    fn find_kernel(&self, name: &str) -> Result<(), LaunchError>;
    /// Whether a kernel has not ended. Always no where the driver alone knows.
    fn is_running(&self) -> bool {
        false
    }
    fn stream(&self) -> Arc<dyn StreamBackend>;
}

/// A captured graph of a backend.
pub(crate) trait GraphBackend: Debug + Send + Sync {
    /// For the backend, which knows its own type.
    fn as_any(&self) -> &dyn Any;
}

/// A kernel of a backend that is known by its handle, not by its name.
pub(crate) trait KernelHandle {
    fn name(&self) -> &str;
    /// For the backend, which knows its own type.
    fn as_any(&self) -> &dyn Any;
}

/// Operations that run one after the other.
pub(crate) trait StreamBackend: Debug + Send + Sync {
    fn launch(
        &self,
        name: &str,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError>;
    /// As `launch`, of a kernel that is known by its handle; a stream that captures captures it.
    fn launch_loaded(
        &self,
        kernel: &dyn KernelHandle,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        let _ = (kernel, shape, args);
        Err(LaunchError::Unsupported {
            what: "kernels of the emulated GPU",
        })
    }
    /// Captures such a kernel.
    fn capture_loaded(
        &self,
        kernel: &dyn KernelHandle,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<(), LaunchError> {
        self.launch_loaded(kernel, shape, args).map(drop)
    }
    fn host(&self, f: Box<dyn FnOnce() + Send>);
    fn record(&self) -> Event;
    fn clear_error(&self);
    /// From now on launches are captured.
    fn begin_capture(&self) -> Result<(), LaunchError>;
    /// Captures a kernel.
    fn capture(
        &self,
        name: &str,
        shape: LaunchShape,
        args: &[KernelArg],
    ) -> Result<(), LaunchError>;
    /// The captured graph.
    fn end_capture(&self) -> Result<Arc<dyn GraphBackend>, LaunchError>;
    /// Replays a graph behind the stream's present work, and behind `before`.
    fn replay(
        &self,
        graph: &dyn GraphBackend,
        before: Option<&Launch>,
    ) -> Result<Launch, LaunchError>;
    /// Whether `words` does anything, or why not.
    fn has_words(&self) -> Result<(), String> {
        Err(
            "kernels of an emulated GPU step the NIC while they wait, and a stream could not"
                .into(),
        )
    }
    /// Queues operations on words; all of them, or the stream is of no use.
    fn words(&self, ops: &[WordOp]) -> Result<(), LaunchError> {
        let _ = ops;
        Err(LaunchError::Unsupported {
            what: "a stream that stores and waits for words",
        })
    }
}
