//! The HyperLogLog kernels of `kernels/hll.cu`: the count on the GPU, to be compared with an engine
//! on the path (FpgaNIC §4.5).
#![allow(unsafe_code)] // Launches the SDK's kernels.

use ringbell_nic_abi::queue::QueueHandle;
use ringbell_nic_abi::SessionId;

use crate::perf::PerfResult;
use crate::{Gpu, GpuBuffer, GpuError, KernelArg, Launch, LaunchError};

/// Most slots of the ring of [`HllKernel::receive`].
pub const MAX_SLOTS: u32 = 32;

/// Most lanes of a block, limited by registers.
pub const MAX_LANES: u32 = 512;

/// A count, and the part of the GPU that runs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HllKernel {
    /// Blocks: as many streaming multiprocessors as the count may use.
    pub blocks: u32,
    /// Lanes of a block, 1 to [`MAX_LANES`].
    pub lanes: u32,
    /// The hash by number: 0 `mix`, 1 `murmur3`, 2 `datasketches`, 3 `datasketches-bytes`, as the
    /// engine's.
    pub hash: u32,
    /// Bytes of an item: 1, 2, 4, 8 or 16.
    pub width: u32,
    /// Log2 of the number of registers, 4 to 18.
    pub precision: u32,
}

/// A ring in GPU memory that a stream is received into, slot by slot.
#[derive(Debug, Clone, Copy)]
pub struct HllRing<'a> {
    /// Registered memory of at least `slots` × `slot_bytes`.
    pub memory: &'a GpuBuffer,
    /// Bytes of a slot, the paper's block size: a multiple of 16.
    pub slot_bytes: u64,
    /// Slots, 1 to [`MAX_SLOTS`]. From 2 on a chunk arrives while another is counted.
    pub slots: u32,
}

/// Why a count could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HllError {
    /// No kernel has this configuration.
    #[error(
        "no HyperLogLog kernel for hash {hash}, {width}-byte items and precision {precision}; hashes are 0 to 3, \
         widths 1, 2, 4, 8 or 16, precisions 4 to 18"
    )]
    Config {
        /// As given.
        hash: u32,
        /// As given.
        width: u32,
        /// As given.
        precision: u32,
    },
    /// The block is too large.
    #[error(
        "the HyperLogLog kernels run in blocks of 1 to 512 lanes, not {lanes}; take more blocks"
    )]
    Lanes {
        /// As given.
        lanes: u32,
    },
    /// A buffer is too small.
    #[error("the HyperLogLog kernel needs {needed} bytes of {what}, not {given}")]
    Buffer {
        /// Which buffer.
        what: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes given.
        given: u64,
    },
    /// The ring cannot be used.
    #[error("a ring of {slots} slots of {slot_bytes} bytes cannot be counted; take 1 to 32 slots of a multiple of 16")]
    Ring {
        /// As given.
        slots: u32,
        /// As given.
        slot_bytes: u64,
    },
    /// Memory.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Kernel.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

/// `control` of `kernels/hll.cu`.
const CONTROL_BYTES: usize = 16 + 4 * MAX_SLOTS as usize;

/// Where the result lies behind it, in results.
const RESULT_INDEX: u64 = CONTROL_BYTES as u64 / PerfResult::BYTES;
const _: () = assert!(RESULT_INDEX * PerfResult::BYTES == CONTROL_BYTES as u64);

impl HllKernel {
    /// Bytes of the registers in GPU memory: a word each.
    pub fn register_bytes(&self) -> u64 {
        4 << self.precision
    }

    /// Bytes that [`receive`](HllKernel::receive) needs beside ring and registers.
    pub fn work_bytes() -> u64 {
        CONTROL_BYTES as u64 + PerfResult::BYTES
    }

    /// Counts the whole items of the first `bytes` of `items` into `registers`, which hold zeros or
    /// what an earlier count left.
    ///
    /// # Errors
    /// A configuration that no kernel has, a buffer that is too small, or a launch that is refused.
    ///
    /// # Safety
    /// The buffers live until the kernel has ended.
    pub unsafe fn count(
        &self,
        gpu: &Gpu,
        items: &GpuBuffer,
        bytes: u64,
        registers: &GpuBuffer,
    ) -> Result<Launch, HllError> {
        self.check(registers)?;
        enough("items", bytes, items)?;
        let args = [
            items.into(),
            bytes.into(),
            self.hash.into(),
            self.width.into(),
            self.precision.into(),
            registers.into(),
        ];
        // SAFETY: the kernel's own parameters; buffers of sufficient size (checked), alive (the
        // caller's contract).
        Ok(unsafe { gpu.launch("rb_hll_count", self.blocks, self.lanes, &args) }?)
    }

    /// Receives `total` bytes of a stream and counts them as they arrive. `work` has
    /// [`work_bytes`](HllKernel::work_bytes); [`result`](HllKernel::result) reads how it went.
    ///
    /// # Errors
    /// As [`count`](HllKernel::count), and a ring that the kernel cannot use.
    ///
    /// # Safety
    /// The buffers and the queue live until the kernel has ended.
    #[allow(clippy::too_many_arguments)] // those of the kernel
    pub unsafe fn receive(
        &self,
        gpu: &Gpu,
        queue: QueueHandle,
        session: SessionId,
        ring: HllRing<'_>,
        total: u64,
        registers: &GpuBuffer,
        work: &GpuBuffer,
        timeout_us: u32,
    ) -> Result<Launch, HllError> {
        self.check(registers)?;
        let HllRing {
            memory,
            slot_bytes,
            slots,
        } = ring;
        let fits = (1..=MAX_SLOTS).contains(&slots)
            && slot_bytes > 0
            && slot_bytes.is_multiple_of(16)
            && slot_bytes <= u64::from(u32::MAX);
        if !fits {
            return Err(HllError::Ring { slots, slot_bytes });
        }
        enough("ring", slot_bytes * u64::from(slots), memory)?;
        enough("work", HllKernel::work_bytes(), work)?;
        work.write(0, &[0; CONTROL_BYTES + PerfResult::BYTES as usize])?;
        let args = [
            queue.into(),
            session.0.into(),
            memory.into(),
            slot_bytes.into(),
            slots.into(),
            total.into(),
            self.hash.into(),
            self.width.into(),
            self.precision.into(),
            registers.into(),
            work.into(),
            timeout_us.into(),
            KernelArg::U64(work.va().0 + CONTROL_BYTES as u64),
        ];
        // SAFETY: as for `count`.
        Ok(unsafe { gpu.launch("rb_hll_receive", self.blocks, self.lanes, &args) }?)
    }

    /// How a finished [`receive`](HllKernel::receive) went; `messages` counts chunks.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when `work` is too small.
    pub fn result(work: &GpuBuffer) -> Result<PerfResult, GpuError> {
        PerfResult::read(work, RESULT_INDEX)
    }

    /// The registers, a byte each, as a sketch has them.
    ///
    /// # Errors
    /// [`GpuError::NotAllocated`] when the buffer is too small.
    pub fn read_registers(&self, registers: &GpuBuffer) -> Result<Vec<u8>, GpuError> {
        let mut words = vec![0u8; self.register_bytes() as usize];
        registers.read(0, &mut words)?;
        // A register is at most 63: the first byte of its word is all of it.
        Ok(words.chunks_exact(4).map(|w| w[0]).collect())
    }

    fn check(&self, registers: &GpuBuffer) -> Result<(), HllError> {
        let &HllKernel {
            hash,
            width,
            precision,
            ..
        } = self;
        if hash > 3 || ![1, 2, 4, 8, 16].contains(&width) || !(4..=18).contains(&precision) {
            return Err(HllError::Config {
                hash,
                width,
                precision,
            });
        }
        if !(1..=MAX_LANES).contains(&self.lanes) {
            return Err(HllError::Lanes { lanes: self.lanes });
        }
        enough("registers", self.register_bytes(), registers)
    }
}

fn enough(what: &'static str, needed: u64, buffer: &GpuBuffer) -> Result<(), HllError> {
    let given = buffer.len();
    if given >= needed {
        return Ok(());
    }
    Err(HllError::Buffer {
        what,
        needed,
        given,
    })
}
