//! [`EmulatedGpu`]: the emulated GPU behind the handle [`Gpu`].

use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, RwLock};

use ringbell_gtlb::page_table::{LARGE_PAGE_BYTES, PAGE_BYTES};
use ringbell_gtlb::{DmaMemory, PageTable};
use ringbell_nic_abi::GpuVa;

use super::device::EmulatedDevice;
use super::loaded::LoadedModule;
use super::memory::EmulatedMemory;
use super::module::KernelRegistry;
use super::pool::Pool;
use super::stream::EmulatedStream;
use super::suballocator::Suballocator;
use crate::gpu::{Gpu, GpuBackend, GpuError, GpuKind, ModuleError, StreamBackend};
use crate::launch::LaunchError;
use crate::locks::{read, write};

/// How to make an emulated GPU.
#[derive(Debug, Clone)]
pub struct EmulatedGpuConfig {
    /// Bytes of memory; rounded up to 2 MiB. Pages come into being when allocated.
    pub memory_bytes: u64,
    /// Fraction of the 2 MiB groups whose 64 KiB pages are scattered, so that only a translation
    /// finds them.
    pub scatter: f64,
    /// Seed of the scattering.
    pub seed: u64,
    /// Most mappings to spend on it: Linux allows a process 65,530 (`vm.max_map_count`). Fewer
    /// groups are scattered when this does not suffice; [`EmulatedMemory::scattered_groups`] tells.
    pub max_mappings: usize,
    /// Most threads of the host that run blocks and functions of streams.
    pub max_threads: usize,
    /// What is checked while kernels of PTX run, beside what `RINGBELL_CHECK` names (`memcheck`,
    /// ..., or `all`).
    pub checks: ringbell_gpu::Checks,
}

impl Default for EmulatedGpuConfig {
    fn default() -> EmulatedGpuConfig {
        EmulatedGpuConfig {
            memory_bytes: 256 << 20,
            scatter: 0.25,
            seed: 0x7262_656c,
            max_mappings: 16_000,
            max_threads: 256,
            checks: ringbell_gpu::Checks::default(),
        }
    }
}

/// The backend of the handles. The device is shared, because streams outlive the handle.
#[derive(Debug)]
struct EmulatedBackend(Arc<EmulatedDevice>);

impl GpuBackend for EmulatedBackend {
    fn kind(&self) -> GpuKind {
        GpuKind::Emulated
    }

    fn describe(&self) -> String {
        let memory = &self.0.memory;
        format!(
            "emulated GPU, {} MiB ({} scattered groups of 2 MiB), mapped for the NIC",
            memory.len() >> 20,
            memory.scattered_groups()
        )
    }

    fn alloc(&self, bytes: u64) -> Result<GpuVa, GpuError> {
        self.0.alloc(bytes)
    }

    fn free(&self, va: GpuVa) {
        self.0.free(va);
    }

    fn page_table(&self, va: GpuVa, len: u64) -> Result<PageTable, GpuError> {
        let offset = self.0.offset_of(va, len)? as u64;
        let first = (offset / PAGE_BYTES) as usize;
        let last = ((offset + len.max(1) - 1) / PAGE_BYTES) as usize;
        let memory = &self.0.memory;
        Ok(PageTable {
            base: GpuVa(memory.base_va() + first as u64 * PAGE_BYTES),
            pages: (first..=last).map(|p| memory.bus_of_page(p)).collect(),
        })
    }

    fn memory(&self) -> Arc<dyn DmaMemory> {
        self.0.memory.clone()
    }

    fn write(&self, va: GpuVa, from: &[u8]) -> Result<(), GpuError> {
        let offset = self.0.offset_of(va, from.len() as u64)?;
        self.0.memory.write_at(offset, from);
        Ok(())
    }

    fn read(&self, va: GpuVa, into: &mut [u8]) -> Result<(), GpuError> {
        let offset = self.0.offset_of(va, into.len() as u64)?;
        self.0.memory.read_at(offset, into);
        Ok(())
    }

    // The buffer has checked that the word is inside it and aligned.
    fn load_u64(&self, va: GpuVa) -> Result<u64, GpuError> {
        Ok(self.0.memory.load_u64(self.0.word(va)))
    }

    fn store_u64(&self, va: GpuVa, value: u64) -> Result<(), GpuError> {
        self.0.memory.store_u64(self.0.word(va), value);
        Ok(())
    }

    fn load_u32(&self, va: GpuVa) -> Result<u32, GpuError> {
        Ok(self.0.memory.load_u32(self.0.word(va)))
    }

    fn store_u32(&self, va: GpuVa, value: u32) -> Result<(), GpuError> {
        self.0.memory.store_u32(self.0.word(va), value);
        Ok(())
    }

    fn load_image(&self, name: &Path, image: &[u8]) -> Result<(), ModuleError> {
        let text = super::image::text(name, image)?;
        let (gpu, name) = (&self.0, name.display().to_string());
        let alloc = |bytes| variables(gpu, bytes);
        let module = super::ptx::load_text(&gpu.memory, &name, &text, alloc)?;
        write(&gpu.registry).add_ptx(module);
        Ok(())
    }

    fn kernels(&self) -> Vec<String> {
        read(&self.0.registry)
            .names()
            .into_iter()
            .map(str::to_owned)
            .collect()
    }

    fn find_kernel(&self, name: &str) -> Result<(), LaunchError> {
        self.0.kernel(name).map(drop)
    }

    fn is_running(&self) -> bool {
        self.0.is_running()
    }

    fn stream(&self) -> Arc<dyn StreamBackend> {
        Arc::new(EmulatedStream::new(self.0.clone()))
    }
}

/// Memory for the variables of a module.
fn variables(
    gpu: &Arc<EmulatedDevice>,
    bytes: u64,
) -> Result<(GpuVa, super::ptx::Freed), GpuError> {
    let va = gpu.alloc(bytes)?;
    let gpu = Arc::downgrade(gpu);
    Ok((va, Box::new(Freed { va, gpu })))
}

/// Memory of a module, freed with it. Weak, because the GPU has the module.
struct Freed {
    va: GpuVa,
    gpu: std::sync::Weak<EmulatedDevice>,
}

impl Drop for Freed {
    fn drop(&mut self) {
        if let Some(gpu) = self.gpu.upgrade() {
            gpu.free(self.va);
        }
    }
}

/// A GPU emulated on host threads. A cheap handle: clones are the same GPU.
#[derive(Debug, Clone)]
pub struct EmulatedGpu {
    inner: Arc<EmulatedDevice>,
    gpu: Gpu,
}

impl EmulatedGpu {
    /// Makes a GPU.
    ///
    /// # Errors
    /// [`GpuError::Map`] when the host refuses memory or mappings.
    pub fn new(config: EmulatedGpuConfig) -> Result<EmulatedGpu, GpuError> {
        if config.memory_bytes == 0 {
            return Err(GpuError::Empty);
        }
        let bytes = config.memory_bytes.next_multiple_of(LARGE_PAGE_BYTES);
        let memory = EmulatedMemory::new(bytes, config.scatter, config.max_mappings, config.seed)
            .map_err(|source| GpuError::Map { bytes, source })?;
        {
            let checks = super::watched::with_environment(config.checks)
                .map_err(|reason| GpuError::Checks { reason })?;
            memory.watched.check(checks, memory.base_va(), bytes);
        }
        let inner = Arc::new(EmulatedDevice {
            pool: Pool::new(config.max_threads),
            running: AtomicUsize::new(0),
            allocations: Mutex::new(Suballocator::new((bytes / PAGE_BYTES) as usize)),
            registry: RwLock::new(KernelRegistry::builtin(&memory)),
            memory: Arc::new(memory),
        });
        Ok(EmulatedGpu {
            gpu: Gpu::of(Arc::new(EmulatedBackend(inner.clone()))),
            inner,
        })
    }

    /// The memory as the NIC's DMA sees it.
    pub fn memory(&self) -> Arc<EmulatedMemory> {
        self.inner.memory.clone()
    }

    /// Whether kernels are checked.
    pub fn is_checked(&self) -> bool {
        self.inner.memory.watched.checker().is_some()
    }

    /// Tells the checks of a copy that the caller makes itself: so many bytes to (`store`) or from
    /// the address at which kernels see them. An address outside of the GPU's memory is none of
    /// theirs.
    pub fn copied(&self, va: GpuVa, bytes: u64, store: bool) {
        self.inner.memory.accessed(va.0, bytes, store, false);
    }

    /// The same of a word that is about to be stored with release, or was loaded with acquire.
    pub fn accessed_in_order(&self, va: GpuVa, bytes: u64, store: bool) {
        self.inner.memory.accessed(va.0, bytes, store, true);
    }

    /// Loads PTX text, which errors call `name`. Its kernels are not known by name:
    /// [`LoadedModule::kernel`] gives them, and
    /// [`LoadedKernel::launch`](crate::LoadedKernel::launch) launches them.
    ///
    /// # Errors
    /// [`ModuleError`] with line and instruction of what the emulated GPU cannot run.
    pub fn load_ptx(&self, name: &str, text: &str) -> Result<LoadedModule, ModuleError> {
        let gpu = &self.inner;
        let alloc = |bytes| variables(gpu, bytes);
        let module = super::ptx::load_text(&gpu.memory, name, text, alloc)?;
        Ok(LoadedModule::of(module))
    }

    /// Links PTX texts, each with the name that errors call it, to one module, as
    /// [`EmulatedGpu::load_ptx`].
    ///
    /// # Errors
    /// As there, and [`ModuleError`] for a name that is defined twice or nowhere.
    pub fn link_ptx(
        &self,
        name: &str,
        texts: &[(String, String)],
    ) -> Result<LoadedModule, ModuleError> {
        let mut linker = ringbell_gpu::Linker::new(name);
        for (file, text) in texts {
            linker.add(file, text)?;
        }
        let gpu = &self.inner;
        let alloc = |bytes| variables(gpu, bytes);
        let module = super::ptx::load_parsed(&gpu.memory, name, linker.end()?, alloc)?;
        Ok(LoadedModule::of(module))
    }

    /// Sizes in bytes of a kernel's arguments, in order.
    ///
    /// # Errors
    /// [`LaunchError::UnknownKernel`].
    pub fn argument_sizes(&self, kernel: &str) -> Result<Vec<u32>, LaunchError> {
        Ok(self.inner.kernel(kernel)?.argument_sizes().to_vec())
    }
}

impl std::ops::Deref for EmulatedGpu {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

impl From<EmulatedGpu> for Gpu {
    fn from(emulated: EmulatedGpu) -> Gpu {
        emulated.gpu
    }
}
