//! The emulated GPU as the host sees it.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ringbell_gtlb::page_table::{LARGE_PAGE_BYTES, PAGES_PER_LARGE, PAGE_BYTES};
use ringbell_gtlb::PageTable;
use ringbell_nic_abi::GpuVa;

use super::memory::EmulatedMemory;
use super::module::{Kernel, ModuleError, Registry};
use super::pool::Pool;
use super::stream::{Launch, Stream};
use super::suballocator::Suballocator;
use crate::launch::{Dim3, KernelArg, LaunchError};

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
    /// Most mappings to spend on it: Linux allows a process 65,530 (`vm.max_map_count`). Fewer groups
    /// are scattered when this does not suffice; [`EmulatedMemory::scattered_groups`] tells.
    pub max_mappings: usize,
    /// Most threads, hence most blocks that run at the same time.
    pub max_threads: usize,
    /// Stack of a lane of a block that has more than one; a single-lane block has 4 MiB.
    pub lane_stack_bytes: usize,
}

impl Default for EmulatedGpuConfig {
    fn default() -> EmulatedGpuConfig {
        EmulatedGpuConfig {
            memory_bytes: 256 << 20,
            scatter: 0.25,
            seed: 0x7262_656c,
            max_mappings: 16_000,
            max_threads: 256,
            lane_stack_bytes: 64 << 10,
        }
    }
}

/// Why memory could not be had or reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The memory could not be created.
    #[error("cannot map {bytes} bytes of emulated GPU memory: {source}; lower memory_bytes, scatter or max_mappings")]
    Map {
        /// Bytes asked for.
        bytes: u64,
        /// The system's answer.
        source: rustix::io::Errno,
    },
    /// Zero bytes of memory, or of an allocation.
    #[error("a size of 0 bytes was asked for; ask for at least one")]
    Empty,
    /// Not enough contiguous virtual memory.
    #[error("no {asked} bytes left on the emulated GPU (largest free range: {largest}); free buffers or raise memory_bytes")]
    OutOfMemory {
        /// Bytes asked for.
        asked: u64,
        /// Largest range that could be had.
        largest: u64,
    },
    /// The pages could not be provided by the host.
    #[error("the host has no memory for {bytes} bytes of emulated GPU memory: {source}")]
    Populate {
        /// Bytes asked for.
        bytes: u64,
        /// The system's answer.
        source: rustix::io::Errno,
    },
    /// An atomic access must be aligned to its size.
    #[error("offset {offset} is not a multiple of {size}; atomic words are aligned to their size")]
    Misaligned {
        /// Offset in the buffer.
        offset: u64,
        /// Size of the word in bytes.
        size: u64,
    },
    /// The range is not inside one allocation.
    #[error("{va} + {len} is not inside an allocation of this GPU")]
    NotAllocated {
        /// First byte.
        va: GpuVa,
        /// Bytes.
        len: u64,
    },
}

/// What buffers, streams and running kernels share.
#[derive(Debug)]
pub(super) struct GpuInner {
    // Before `memory`: workers are told to end first. A kernel that still runs holds this value.
    pub(super) pool: Pool,
    pub(super) lane_stack_bytes: usize,
    memory: Arc<EmulatedMemory>,
    allocations: Mutex<Suballocator>,
    registry: RwLock<Registry>,
}

impl GpuInner {
    fn allocations(&self) -> MutexGuard<'_, Suballocator> {
        self.allocations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn kernel(&self, name: &str) -> Result<Kernel, LaunchError> {
        self.registry
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .find(name)
    }

    /// Byte offset of a range, if it lies inside one allocation.
    fn offset_of(&self, va: GpuVa, len: u64) -> Result<usize, GpuError> {
        let refuse = || GpuError::NotAllocated { va, len };
        let offset = va.0.checked_sub(self.memory.base_va()).ok_or_else(refuse)?;
        let last = offset
            .checked_add(len.max(1) - 1)
            .filter(|l| *l < self.memory.len())
            .ok_or_else(refuse)?;
        let page = |o: u64| (o / PAGE_BYTES) as usize;
        if !self.allocations().covers(page(offset), page(last)) {
            return Err(refuse());
        }
        Ok(offset as usize)
    }
}

/// A GPU emulated on host threads. A cheap handle: clones are the same GPU.
#[derive(Debug, Clone)]
pub struct EmulatedGpu {
    inner: Arc<GpuInner>,
}

/// An allocation; freed when dropped. Deregister it from the NIC first.
#[derive(Debug)]
pub struct GpuBuffer {
    va: GpuVa,
    len: u64,
    gpu: Arc<GpuInner>,
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
        Ok(EmulatedGpu {
            inner: Arc::new(GpuInner {
                pool: Pool::new(config.max_threads),
                lane_stack_bytes: config.lane_stack_bytes.next_multiple_of(4096).max(16 << 10),
                memory: Arc::new(memory),
                allocations: Mutex::new(Suballocator::new((bytes / PAGE_BYTES) as usize)),
                registry: RwLock::new(Registry::builtin()),
            }),
        })
    }

    /// Allocates memory, populated and aligned: to 2 MiB from that size on, as `cudaMalloc` does (so
    /// that its pages coalesce), else to 64 KiB.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], [`GpuError::Populate`].
    pub fn alloc(&self, bytes: u64) -> Result<GpuBuffer, GpuError> {
        if bytes == 0 {
            return Err(GpuError::Empty);
        }
        let gpu = &self.inner;
        let out_of_memory = |largest: usize| GpuError::OutOfMemory {
            asked: bytes,
            largest: largest as u64 * PAGE_BYTES,
        };
        if bytes > gpu.memory.len() {
            return Err(out_of_memory(gpu.allocations().largest_free()));
        }
        let pages = bytes.div_ceil(PAGE_BYTES) as usize;
        let align = if bytes >= LARGE_PAGE_BYTES {
            PAGES_PER_LARGE
        } else {
            1
        };
        let first = {
            let mut a = gpu.allocations();
            a.alloc(pages, align)
                .ok_or_else(|| out_of_memory(a.largest_free()))?
        };
        let buffer = GpuBuffer {
            va: GpuVa(gpu.memory.base_va() + first as u64 * PAGE_BYTES),
            len: bytes,
            gpu: gpu.clone(),
        };
        gpu.memory
            .populate(first, pages)
            .map_err(|source| GpuError::Populate { bytes, source })?;
        Ok(buffer)
    }

    /// The 64 KiB pages of a range inside one allocation, as a driver reports them to a NIC
    /// (`nvidia_p2p_get_pages`).
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`].
    pub fn page_table(&self, va: GpuVa, len: u64) -> Result<PageTable, GpuError> {
        let offset = self.inner.offset_of(va, len)? as u64;
        let first = (offset / PAGE_BYTES) as usize;
        let last = ((offset + len.max(1) - 1) / PAGE_BYTES) as usize;
        let memory = &self.inner.memory;
        Ok(PageTable {
            base: GpuVa(memory.base_va() + first as u64 * PAGE_BYTES),
            pages: (first..=last).map(|p| memory.bus_of_page(p)).collect(),
        })
    }

    /// The memory as the NIC's DMA sees it.
    pub fn memory(&self) -> Arc<EmulatedMemory> {
        self.inner.memory.clone()
    }

    /// Copies to GPU memory.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`].
    pub fn write(&self, va: GpuVa, from: &[u8]) -> Result<(), GpuError> {
        let offset = self.inner.offset_of(va, from.len() as u64)?;
        self.inner.memory.write_at(offset, from);
        Ok(())
    }

    /// Copies from GPU memory.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`].
    pub fn read(&self, va: GpuVa, into: &mut [u8]) -> Result<(), GpuError> {
        let offset = self.inner.offset_of(va, into.len() as u64)?;
        self.inner.memory.read_at(offset, into);
        Ok(())
    }

    /// Loads the kernels of a user's shared object (`ringbell cc`).
    ///
    /// # Errors
    /// [`ModuleError`].
    pub fn load_module(&self, path: &Path) -> Result<(), ModuleError> {
        self.inner
            .registry
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .load(path)
    }

    /// Names of all loaded kernels, sorted.
    pub fn kernels(&self) -> Vec<String> {
        self.inner
            .registry
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .names()
            .into_iter()
            .map(str::to_owned)
            .collect()
    }

    /// A new stream.
    pub fn stream(&self) -> Stream {
        Stream::new(self.inner.clone())
    }

    /// Launches a kernel at once, on a stream of its own.
    ///
    /// # Errors
    /// Unknown kernel, wrong arguments or shape; how it ends is told by the [`Launch`].
    pub fn launch(
        &self,
        name: &str,
        grid: impl Into<Dim3>,
        block: impl Into<Dim3>,
        args: &[KernelArg],
    ) -> Result<Launch, LaunchError> {
        self.stream().launch(name, grid, block, args)
    }
}

impl GpuBuffer {
    /// First address.
    pub fn va(&self) -> GpuVa {
        self.va
    }

    /// Bytes, as asked for.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: an empty allocation is refused.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies to the buffer at `offset`.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the range leaves the buffer.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), GpuError> {
        let at = self.range(offset, from.len() as u64)?;
        self.gpu.memory.write_at(at, from);
        Ok(())
    }

    /// Copies from the buffer at `offset`.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the range leaves the buffer.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), GpuError> {
        let at = self.range(offset, into.len() as u64)?;
        self.gpu.memory.read_at(at, into);
        Ok(())
    }

    /// Loads a word that a kernel stores with Release (Acquire).
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when it leaves the buffer, [`GpuError::Misaligned`].
    pub fn load_u64(&self, offset: u64) -> Result<u64, GpuError> {
        Ok(self.gpu.memory.load_u64(self.aligned(offset, 8)?))
    }

    /// Stores a word that a kernel loads with Acquire (Release).
    ///
    /// # Errors
    /// As for [`GpuBuffer::load_u64`].
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), GpuError> {
        self.gpu.memory.store_u64(self.aligned(offset, 8)?, value);
        Ok(())
    }

    /// As [`GpuBuffer::load_u64`], for 32 bits.
    ///
    /// # Errors
    /// As for [`GpuBuffer::load_u64`].
    pub fn load_u32(&self, offset: u64) -> Result<u32, GpuError> {
        Ok(self.gpu.memory.load_u32(self.aligned(offset, 4)?))
    }

    /// As [`GpuBuffer::store_u64`], for 32 bits.
    ///
    /// # Errors
    /// As for [`GpuBuffer::load_u64`].
    pub fn store_u32(&self, offset: u64, value: u32) -> Result<(), GpuError> {
        self.gpu.memory.store_u32(self.aligned(offset, 4)?, value);
        Ok(())
    }

    fn aligned(&self, offset: u64, size: u64) -> Result<usize, GpuError> {
        if !offset.is_multiple_of(size) {
            return Err(GpuError::Misaligned { offset, size });
        }
        self.range(offset, size)
    }

    fn range(&self, offset: u64, len: u64) -> Result<usize, GpuError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok((self.va.0 - self.gpu.memory.base_va() + offset) as usize)
            }
            _ => Err(GpuError::NotAllocated {
                va: GpuVa(self.va.0.wrapping_add(offset)),
                len,
            }),
        }
    }
}

impl From<&GpuBuffer> for KernelArg {
    fn from(b: &GpuBuffer) -> KernelArg {
        KernelArg::Ptr(b.va)
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        let page = (self.va.0 - self.gpu.memory.base_va()) / PAGE_BYTES;
        self.gpu.allocations().free(page as usize);
    }
}
