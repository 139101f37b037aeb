//! HyperLogLog by a kernel of the GPU over the same stream, as it must be where the NIC has no
//! engine (FpgaNIC §4.5: HyperLogLog without offload).
#![allow(unsafe_code)] // Launches kernels.

use std::sync::mpsc::{channel, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{anyhow, Context, Result};
use ringbell::abi::{SessionId, Status};
use ringbell::engines::hll::{HashKind, HllSummary, Sketch};
use ringbell::parts::cuda_kernels::hll::{HllKernel, HllRing};
use ringbell::parts::cuda_kernels::GpuBuffer;

use super::path::{slot_bytes, Flow, Path, PATIENCE, WIDEST_ITEM, WINDOW};
use super::sketch::SketchArgs;
use ringbell_perf::side::failed;

/// Whether a kernel counts, and with how much of the GPU.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct KernelArgs {
    /// Count with a kernel of the GPU as well, without the engine of the NIC, and compare the
    /// speeds of both
    #[arg(long)]
    gpu_kernel: bool,
    /// Blocks of the kernel: as many SMs as the count may use
    #[arg(long, default_value_t = 8, value_name = "N", requires = "gpu_kernel",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    blocks: u32,
    /// Threads of a block; the paper's have 512
    #[arg(long, default_value_t = 512, value_name = "N", requires = "gpu_kernel",
          value_parser = clap::value_parser!(u32).range(1..=512))]
    lanes: u32,
}

/// The kernel and its memory on the receiving GPU.
pub(crate) struct Kernel<'a> {
    path: &'a Path,
    kernel: HllKernel,
    hash: HashKind,
    registers: GpuBuffer,
    work: GpuBuffer,
}

impl KernelArgs {
    /// Its memory, with registers at zero; `None` when the engine is to count.
    pub(crate) fn open<'a>(
        &self,
        path: &'a Path,
        sketch: &SketchArgs,
    ) -> Result<Option<Kernel<'a>>> {
        if !self.gpu_kernel {
            return Ok(None);
        }
        let asked = sketch.hash();
        let hash = HashKind::ALL.iter().position(|h| *h == asked);
        let kernel = HllKernel {
            blocks: self.blocks,
            lanes: self.lanes,
            hash: hash.context("the kernel has no such hash")? as u32,
            width: sketch.width as u32,
            precision: sketch.precision.into(),
        };
        let gpu = path.rx.nic.gpu();
        let registers = gpu.alloc(kernel.register_bytes())?;
        registers.write(0, &vec![0; kernel.register_bytes() as usize])?;
        Ok(Some(Kernel {
            path,
            kernel,
            hash: asked,
            registers,
            work: gpu.alloc(HllKernel::work_bytes())?,
        }))
    }
}

impl Kernel<'_> {
    /// Blocks and lanes.
    pub(crate) fn grid(&self) -> (u32, u32) {
        (self.kernel.blocks, self.kernel.lanes)
    }

    /// As [`Path::stream`], but the kernel receives and counts. One launch does so for `total`
    /// bytes; where the total is unknown, one launch for the bytes that the sender has by then.
    pub(crate) fn stream(
        &self,
        size: u64,
        total: Option<u64>,
        mut next: impl FnMut(u64) -> Result<u64>,
    ) -> Result<Flow> {
        let (tell, told) = channel();
        if let Some(total) = total {
            tell.send(total)?;
        }
        // Dropped at the end, before the sender waits for its last message: then the receiver takes
        // the rest of it. Dropped with the closure when the sender fails.
        let mut tell = Some(tell);
        let announce = move |offset| {
            let n = next(offset)?;
            match &tell {
                _ if n == 0 => tell = None,
                // A receiver that has failed reports it itself.
                Some(tell) if total.is_none() => drop(tell.send(n)),
                _ => {}
            }
            Ok(n)
        };
        let path = self.path;
        path.carry(size, None, announce, move |r| self.receive(r, size, &told))
    }

    fn receive(&self, session: SessionId, size: u64, told: &Receiver<u64>) -> Result<u64> {
        let (mut total, mut waiting) = (0, 0);
        loop {
            let ended = match told.recv_timeout(PATIENCE) {
                Ok(bytes) => {
                    waiting += bytes + told.try_iter().sum::<u64>();
                    false
                }
                Err(RecvTimeoutError::Disconnected) => true,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(anyhow!("no input for {} s", PATIENCE.as_secs()))
                }
            };
            // Whole items, for messages of any size: a launch must not begin inside one.
            let bytes = match ended {
                true => waiting,
                false => waiting - waiting % WIDEST_ITEM,
            };
            if bytes > 0 {
                self.count(session, size, bytes)?;
            }
            (total, waiting) = (total + bytes, waiting - bytes);
            if ended {
                return Ok(total);
            }
        }
    }

    /// Bytes of the stream, which do not begin inside an item.
    fn count(&self, session: SessionId, size: u64, bytes: u64) -> Result<()> {
        let rx = &self.path.rx;
        let ring = HllRing {
            memory: self.path.to.memory(),
            slot_bytes: slot_bytes(size),
            slots: WINDOW as u32,
        };
        let timeout_us = PATIENCE.as_micros() as u32;
        let (registers, work) = (&self.registers, &self.work);
        let queue = rx.queue.handle();
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launch = unsafe {
            self.kernel.receive(
                rx.nic.gpu(),
                queue,
                session,
                ring,
                bytes,
                registers,
                work,
                timeout_us,
            )
        }
        .context("cannot start the HyperLogLog kernel")?;
        // Its own time-outs end it earlier.
        launch
            .wait(PATIENCE * 5 + Duration::from_micros(bytes / 4))
            .context("the HyperLogLog kernel")?;
        let result = HllKernel::result(work)?;
        match result.status {
            Status::Ok => Ok(()),
            status => Err(failed("the HyperLogLog kernel", status, result.detail)),
        }
    }

    /// The result for `bytes` bytes.
    pub(crate) fn result(&self, bytes: u64) -> Result<(HllSummary, Sketch)> {
        let registers = self.kernel.read_registers(&self.registers)?;
        let width = self.kernel.width as usize;
        let sketch = Sketch::from_registers(self.hash, width, &registers)
            .context("the kernel left registers that no stream gives")?;
        let summary = HllSummary {
            estimate: sketch.estimate(),
            relative_error: sketch.relative_error(),
            items: bytes / u64::from(self.kernel.width),
            image_bytes: 0,
        };
        Ok((summary, sketch))
    }
}
