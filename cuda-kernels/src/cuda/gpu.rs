//! [`CudaGpu`]: a real GPU behind the handle [`Gpu`].

use std::path::Path;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use ringbell_gtlb::{DmaMemory, PageTable};
use ringbell_nic_abi::GpuVa;

use super::capabilities::Capabilities;
use super::context::Context;
use super::dma::CudaDma;
use super::driver::DeviceInfo;
use super::ipc;
use super::mapper::GpuMapper;
use super::memory::CudaMemory;
use super::module::Kernels;
use super::open_allocations::OpenAllocations;
use super::stream::CudaStream;
use crate::cuda_error::CudaError;
use crate::gpu::{Gpu, GpuBackend, GpuError, GpuKind, ModuleError, SharedMemory, StreamBackend};
use crate::launch::LaunchError;

/// Which GPU, and how to reach its memory.
#[derive(Debug, Clone)]
pub struct CudaConfig {
    /// Number of the GPU.
    pub ordinal: usize,
    /// Maps GPU memory for the CPU (GDRCopy, a dma-buf), if one is installed.
    pub mapper: Option<Arc<dyn GpuMapper>>,
    /// [`Gpu::alloc`] returns pinned memory of the host too. The NIC then needs neither mappings
    /// nor the copy engine, and kernels reach the memory over the bus: slots, as in FpgaNIC §A.1.2.
    pub pinned: bool,
    /// Slots of 64 KiB pinned memory for the copy engine.
    pub staging_slots: u32,
}

impl Default for CudaConfig {
    /// GPU 0, no mapper, 8 MiB of staging.
    fn default() -> CudaConfig {
        CudaConfig {
            ordinal: 0,
            mapper: None,
            pinned: false,
            staging_slots: 128,
        }
    }
}

#[derive(Debug)]
struct CudaBackend {
    // Before the context, which they need when they are released.
    dma: Arc<CudaDma>,
    memory: Arc<CudaMemory>,
    kernels: Arc<Kernels>,
    opened: Arc<OpenAllocations>,
    context: Arc<Context>,
    pinned: bool,
}

/// A real GPU. A cheap handle: clones are the same GPU.
#[derive(Debug, Clone)]
pub struct CudaGpu {
    inner: Arc<CudaBackend>,
    gpu: Gpu,
}

impl CudaGpu {
    /// Opens a GPU: its primary context, the kernels for it, memory for copies.
    ///
    /// # Errors
    /// [`CudaError`]: what is missing, down to the kernels for this GPU.
    pub fn open(config: CudaConfig) -> Result<CudaGpu, CudaError> {
        let context = Arc::new(Context::new(config.ordinal)?);
        let kernels = Arc::new(Kernels::load(context.clone())?);
        let memory = CudaMemory::new(context.clone(), config.mapper, config.staging_slots)?;
        let memory = Arc::new(memory);
        let dma = Arc::new(CudaDma::new(memory.clone()));
        // Before a kernel waits for what a copy brings. Without such copies each copy fails with
        // its own reason.
        let _ = memory.first_copy();
        let inner = Arc::new(CudaBackend {
            dma,
            memory,
            kernels,
            opened: Arc::default(),
            context,
            pinned: config.pinned,
        });
        Ok(CudaGpu {
            gpu: Gpu::of(inner.clone()),
            inner,
        })
    }

    pub(super) fn parts(&self) -> (&Arc<Context>, &Arc<CudaMemory>) {
        (&self.inner.context, &self.inner.memory)
    }

    pub(super) fn opened(&self) -> &Arc<OpenAllocations> {
        &self.inner.opened
    }

    /// The GPU's name, number and size.
    pub fn device(&self) -> &DeviceInfo {
        &self.inner.context.device
    }

    /// The context, for `cudarc`'s own types: memory allocated in it can be registered.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.inner.context.cuda
    }

    /// How the NIC reaches memory of this GPU, and why, as of the last allocation.
    pub fn memory_path(&self) -> String {
        self.inner.memory_path()
    }

    /// The GPU's capabilities, as the driver tells them. Only reads.
    pub fn capabilities(&self) -> Capabilities {
        Capabilities::of(self.device(), self.inner.context.cuda.cu_device())
    }

    /// Names memory of this GPU for other processes, with any owner and at any address inside.
    ///
    /// # Errors
    /// [`CudaError::NotExportable`], [`CudaError::MissingSymbol`], and as `CudaGpu::adopt`.
    pub fn share(&self, va: GpuVa, len: u64) -> Result<SharedMemory, CudaError> {
        ipc::share(&self.inner.context, va, len)
    }

    /// The error that lost the context: the GPU does no more work in this process.
    pub fn lost(&self) -> Option<&CudaError> {
        self.inner.context.lost()
    }
}

impl std::ops::Deref for CudaGpu {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

impl From<CudaGpu> for Gpu {
    fn from(cuda: CudaGpu) -> Gpu {
        cuda.gpu
    }
}

impl CudaBackend {
    /// How the NIC reaches memory of the GPU, and why.
    fn memory_path(&self) -> String {
        match self.pinned {
            true => "slots: pinned memory of the host, because it was asked for".into(),
            false => self.memory.path(),
        }
    }

    fn word<const N: usize>(&self, va: GpuVa) -> Result<[u8; N], GpuError> {
        let mut bytes = [0; N];
        self.memory.read(va, &mut bytes)?;
        Ok(bytes)
    }
}

impl GpuBackend for CudaBackend {
    fn kind(&self) -> GpuKind {
        GpuKind::Cuda
    }

    fn describe(&self) -> String {
        let c = &self.context;
        format!(
            "{} (GPU {}, sm_{}{}, driver for CUDA {}.{}); {}; memory: {}; operations in streams: {}{}",
            c.device.name,
            c.device.ordinal,
            c.device.capability.0,
            c.device.capability.1,
            c.driver / 1000,
            c.driver % 1000 / 10,
            self.kernels.origin.describe(),
            self.memory_path(),
            match &c.stream_ops {
                Ok(()) => "by stream memory operations".into(),
                Err(why) => format!("by kernels, because {why}"),
            },
            match c.deferred.pending() {
                0 => String::new(),
                n => format!("; {n} freed resources are released when the running kernels have ended"),
            }
        )
    }

    fn alloc(&self, bytes: u64) -> Result<GpuVa, GpuError> {
        if self.pinned {
            return self.alloc_pinned(bytes);
        }
        Ok(self.memory.alloc(bytes)?)
    }

    fn alloc_pinned(&self, bytes: u64) -> Result<GpuVa, GpuError> {
        Ok(self.memory.alloc_pinned(bytes)?)
    }

    fn free(&self, va: GpuVa) {
        self.memory.free(va);
    }

    fn page_table(&self, va: GpuVa, len: u64) -> Result<PageTable, GpuError> {
        self.memory.page_table(va, len)
    }

    fn memory(&self) -> Arc<dyn DmaMemory> {
        self.dma.clone()
    }

    fn write(&self, va: GpuVa, from: &[u8]) -> Result<(), GpuError> {
        self.memory.write(va, from)
    }

    fn read(&self, va: GpuVa, into: &mut [u8]) -> Result<(), GpuError> {
        self.memory.read(va, into)
    }

    // Words use the host's copies, which finish in order: a kernel's earlier stores are read after
    // the word, and earlier writes are visible before it. An aligned word is copied whole.
    fn load_u64(&self, va: GpuVa) -> Result<u64, GpuError> {
        Ok(u64::from_ne_bytes(self.word(va)?))
    }

    fn store_u64(&self, va: GpuVa, value: u64) -> Result<(), GpuError> {
        self.memory.write(va, &value.to_ne_bytes())
    }

    fn load_u32(&self, va: GpuVa) -> Result<u32, GpuError> {
        Ok(u32::from_ne_bytes(self.word(va)?))
    }

    fn store_u32(&self, va: GpuVa, value: u32) -> Result<(), GpuError> {
        self.memory.write(va, &value.to_ne_bytes())
    }

    fn share(&self, va: GpuVa, len: u64) -> Result<SharedMemory, GpuError> {
        Ok(ipc::share(&self.context, va, len)?)
    }

    fn load_image(&self, name: &Path, image: &[u8]) -> Result<(), ModuleError> {
        self.kernels.load_image(name, image)
    }

    fn kernels(&self) -> Vec<String> {
        self.kernels.names()
    }

    fn find_kernel(&self, name: &str) -> Result<(), LaunchError> {
        let bound = self.context.bind();
        bound.map_err(|source| LaunchError::Device {
            kernel: name.to_owned(),
            source,
        })?;
        self.kernels.find(name).map(drop)
    }

    fn stream(&self) -> Arc<dyn StreamBackend> {
        Arc::new(CudaStream::new(self.context.clone(), self.kernels.clone()))
    }
}
