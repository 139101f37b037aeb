//! The NIC's DMA to GPU memory: [`DmaMemory`] over mappings and the copy engine.
#![allow(unsafe_code)] // Calls into libcuda.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use cudarc::driver::sys;
use ringbell_gtlb::{
    BusError, BusSpan, CompletionWrite, DmaId, DmaMemory, DmaOp, Exposed, Submitted, WaitHook,
};
use ringbell_nic_abi::GpuVa;

use super::context::Context;
use super::copy_engine::{CopyRefused, PATIENCE};
use super::deferred_release::Resource;
use super::device_memory::DeviceBlock;
use super::driver;
use super::mapper::GpuMapping;
use super::memory::{reads_by_mapping, CudaMemory};
use crate::cuda_error::CudaError;
use crate::locks::lock;
use crate::wait_hook;

impl From<CopyRefused> for BusError {
    fn from(r: CopyRefused) -> BusError {
        match r {
            CopyRefused::Busy => BusError::Busy,
            CopyRefused::Cuda(_) => BusError::Lost,
        }
    }
}

/// The DMA of one GPU.
pub(super) struct CudaDma {
    memory: Arc<CudaMemory>,
    /// The NICs that the driver has been told of.
    offered: Mutex<Vec<Weak<dyn WaitHook>>>,
}

impl std::fmt::Debug for CudaDma {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaDma({:?})", self.memory)
    }
}

impl CudaDma {
    pub(super) fn new(memory: Arc<CudaMemory>) -> CudaDma {
        CudaDma {
            memory,
            offered: Mutex::default(),
        }
    }

    fn submit_copy(&self, from: BusSpan, to: BusSpan) -> Result<Submitted, BusError> {
        let refuse = |s: BusSpan| BusError::OutOfRange {
            addr: s.addr.value(),
            len: s.len,
        };
        if from.len != to.len {
            return Err(refuse(from));
        }
        let (source, target) = (from.addr.value(), to.addr.value());
        // Earlier stores through a mapping come first.
        let flush = |m: Option<&dyn GpuMapping>, _| m.map_or((), |m| m.flush());
        self.memory
            .with(source, from.len, flush)
            .ok_or_else(|| refuse(from))?;
        self.memory
            .with(target, to.len, flush)
            .ok_or_else(|| refuse(to))?;
        if !self.memory.is_on_gpu(source, from.len) || !self.memory.is_on_gpu(target, to.len) {
            let (from, to) = (source, target);
            return Err(BusError::NoCopy { from, to });
        }
        if from.len == 0 {
            return Ok(Submitted::Done);
        }
        let id = self.memory.dma().copy(target, source, from.len)?;
        Ok(Submitted::Pending(id))
    }

    fn submit_read(
        &self,
        mapping: Option<&dyn GpuMapping>,
        offset: u64,
        from: BusSpan,
        into: &mut [u8],
    ) -> Result<Submitted, BusError> {
        if let Some(m) = mapping.filter(|m| reads_by_mapping(*m, into.len())) {
            m.read(offset, into);
            return Ok(Submitted::Done);
        }
        let mut engine = self.memory.dma();
        if into.len() > engine.capacity() {
            let done = engine.read_all(from.addr.value(), into);
            return done.map(|()| Submitted::Done).map_err(|_| BusError::Lost);
        }
        Ok(Submitted::Pending(
            engine.read(from.addr.value(), into.len())?,
        ))
    }

    fn submit_write(
        &self,
        mapping: Option<&dyn GpuMapping>,
        offset: u64,
        to: BusSpan,
        from: &[u8],
    ) -> Result<Submitted, BusError> {
        if let Some(m) = mapping {
            m.write(offset, from);
            return Ok(Submitted::Done);
        }
        let mut engine = self.memory.dma();
        if from.len() > engine.capacity() {
            let done = engine.write_all(to.addr.value(), from);
            return done.map(|()| Submitted::Done).map_err(|_| BusError::Lost);
        }
        Ok(Submitted::Pending(engine.write(to.addr.value(), from)?))
    }
}

impl DmaMemory for CudaDma {
    fn submit(&self, op: DmaOp<'_>) -> Result<Submitted, BusError> {
        let (span, len) = match &op {
            DmaOp::Read { from, into } => (*from, into.len()),
            DmaOp::Write { to, from } => (*to, from.len()),
            DmaOp::Copy { from, to } => return self.submit_copy(*from, *to),
        };
        let refuse = BusError::OutOfRange {
            addr: span.addr.value(),
            len: span.len,
        };
        if span.len != len as u64 {
            return Err(refuse);
        }
        if len == 0 {
            return Ok(Submitted::Done);
        }
        self.memory
            .with(span.addr.value(), span.len, |mapping, offset| match op {
                DmaOp::Read { from, into } => self.submit_read(mapping, offset, from, into),
                DmaOp::Write { to, from } => self.submit_write(mapping, offset, to, from),
                DmaOp::Copy { from, to } => self.submit_copy(from, to),
            })
            .ok_or(refuse)?
    }

    fn poll(&self) -> Option<DmaId> {
        self.memory.dma().finished()
    }

    fn take(&self, id: DmaId, into: &mut [u8]) {
        self.memory.dma().take_read(id, into);
    }

    fn mark(&self) -> u64 {
        self.memory.flush();
        self.memory.dma().mark()
    }

    fn has_landed(&self, mark: u64) -> bool {
        self.memory.dma().has_ended(mark)
    }

    fn publish(&self, completion: CompletionWrite) {
        self.memory.flush();
        self.memory.dma().publish(completion);
    }

    fn word(&self, span: BusSpan, _store: bool) -> Option<NonNull<AtomicU64>> {
        let at = |mapping: Option<&dyn GpuMapping>, offset| Some(mapping?.word(offset)?.cast());
        self.memory.with(span.addr.value(), span.len, at)?
    }

    /// Pins the memory and maps it for the GPU (`cuMemHostRegister`, portable and device-mapped).
    fn expose(&self, base: NonNull<u8>, len: usize) -> std::io::Result<Exposed> {
        self.pin(base, len, 0).map_err(std::io::Error::other)
    }

    fn device_words(&self, initial: &[u32]) -> std::io::Result<Option<Exposed>> {
        let bytes: Vec<u8> = initial.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let block = DeviceBlock::new(self.memory.context().clone(), bytes.len());
        let block = block.map_err(std::io::Error::other)?;
        let written = self.memory.fill(block.va(), &bytes);
        written.map_err(std::io::Error::other)?;
        Ok(Some(Exposed::pinned(GpuVa(block.va()), Box::new(block))))
    }

    /// To the emulated GPU's driver, whose kernels run on threads of this process.
    fn on_wait(&self, nic: Weak<dyn WaitHook>, name: &str) {
        let Some(driver) = driver::wait_hook() else {
            return;
        };
        let mut offered = lock(&self.offered);
        offered.retain(|n| n.strong_count() > 0);
        if !offered.iter().any(|n| n.ptr_eq(&nic)) {
            wait_hook::offer(driver, nic.clone(), name);
            offered.push(nic);
        }
    }

    /// As `expose`, for registers of a device: I/O memory (`CU_MEMHOSTREGISTER_IOMEMORY`).
    fn expose_io(&self, base: NonNull<u8>, len: usize) -> std::io::Result<Exposed> {
        let io = sys::CU_MEMHOSTREGISTER_IOMEMORY;
        self.pin(base, len, io).map_err(std::io::Error::other)
    }
}

impl CudaDma {
    fn pin(&self, base: NonNull<u8>, len: usize, more: u32) -> Result<Exposed, CudaError> {
        let context = self.memory.context();
        context.bind()?;
        let host: *mut c_void = base.as_ptr().cast();
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP | more;
        let deferred = &context.deferred;
        deferred.release_pending();
        let at = base.as_ptr() as usize;
        if deferred.has_registration(at, len) {
            // An earlier range here is registered until the kernels that may use it have ended.
            let what = "a kernel that may use the memory that was registered here before";
            drop(deferred.wait_until_idle(what, PATIENCE)?);
            deferred.release_pending();
        }
        // SAFETY: the caller promises that the range stays mapped until the guard is dropped.
        let r = unsafe { sys::cuMemHostRegister_v2(host, len, flags) };
        driver::check_memory("cuMemHostRegister", r, len as u64, "pinned host memory")
            .map_err(|e| context.note(e))?;
        let guard = PinnedRange {
            context: context.clone(),
            base,
            len,
        };
        let mut va = 0;
        // SAFETY: registered just now; the pointer is to a live address.
        context.check("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut va, host, 0)
        })?;
        Ok(Exposed::pinned(GpuVa(va), Box::new(guard)))
    }
}

/// Unpins when dropped.
struct PinnedRange {
    context: Arc<Context>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address that only the driver uses.
unsafe impl Send for PinnedRange {}
// SAFETY: as for Send.
unsafe impl Sync for PinnedRange {}

impl Drop for PinnedRange {
    fn drop(&mut self) {
        // While a kernel runs the range stays registered: its pages live on without the mapping.
        let resource = Resource::Registered(self.base.as_ptr() as usize, self.len);
        self.context.deferred.release(resource);
    }
}
