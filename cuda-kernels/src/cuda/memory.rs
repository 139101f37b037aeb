//! GPU memory as the NIC and the host reach it.
//!
//! A bus address is the GPU's own virtual address: the NIC is software and has no pages to pin, and the
//! driver's physical pages are known to kernel modules alone. By which way bytes go is decided for each
//! allocation when it is made: mapped ([`GpuMapper`]), else the copy engine ([`super::engine`]). Long reads of mapped
//! memory go by the copy engine too, because loads from a mapping wait for the GPU line by line.
#![allow(unsafe_code)] // Calls into libcuda.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use cudarc::driver::sys;
use ringbell_gtlb::{
    Announce, Borrow, BusError, BusSpan, DmaId, DmaMemory, DmaOp, Exposed, Loan, NotReached,
    PageTable, Submitted, PAGE_BYTES,
};
use ringbell_nic_abi::GpuVa;

use super::context::Context;
use super::driver;
use super::engine::{Engine, Refused, PATIENCE};
use super::error::CudaError;
use super::handles::Pinned;
use super::lend::Lending;
use super::mapper::{GpuMapper, GpuMapping, READ_BY_MAPPING};
use super::near::NearBlock;
use super::pinned::PinnedMapping;
use super::yard::Waste;
use crate::gpu::GpuError;

/// Allocations from this size on are aligned by the driver.
const LARGE: u64 = 2 << 20;

/// Memory that the NIC may reach.
#[derive(Debug)]
struct Range {
    len: u64,
    /// What the driver gave, to be freed: more than the range when it was not aligned.
    owned: Option<u64>,
    mapping: Option<Box<dyn GpuMapping>>,
    /// Memory of the host, at an address of the GPU.
    pinned: bool,
}

/// All of a GPU's memory that a NIC may reach.
#[derive(Debug)]
pub(super) struct CudaMemory {
    context: Arc<Context>,
    mapper: Option<Arc<dyn GpuMapper>>,
    ranges: RwLock<BTreeMap<u64, Range>>,
    /// Allocations that other NICs of this process have lent: base to bytes and users.
    lent_here: Mutex<BTreeMap<u64, (u64, usize)>>,
    lending: Lending,
    /// The NIC's.
    dma: Mutex<Engine>,
    /// The host's own copies, which must not wait for the NIC's.
    host: Mutex<Engine>,
    /// Words of kernels.
    /// Whether the last allocation was mapped, or why not.
    outcome: Mutex<Option<Result<(), String>>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds these locks leaves a change half made.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaMemory {
    pub(super) fn new(
        context: Arc<Context>,
        mapper: Option<Arc<dyn GpuMapper>>,
        staging_slots: u32,
    ) -> Result<CudaMemory, CudaError> {
        let slots = staging_slots.max(2);
        Ok(CudaMemory {
            dma: Mutex::new(Engine::new(context.clone(), slots)?),
            host: Mutex::new(Engine::new(context.clone(), 16)?),
            context,
            mapper,
            ranges: RwLock::default(),
            lent_here: Mutex::default(),
            lending: Lending::default(),
            outcome: Mutex::new(None),
        })
    }

    /// By which way the NIC reaches the memory, and why.
    pub(super) fn path(&self) -> String {
        match (&self.mapper, &*lock(&self.outcome)) {
            (None, _) => "copy engine on a side stream, because no mapping was asked for".into(),
            (Some(m), None) => format!(
                "to be mapped for the CPU by {}, where that can be, else by the copy engine",
                m.name()
            ),
            (Some(m), Some(Ok(()))) => format!("mapped for the CPU by {}", m.name()),
            (Some(_), Some(Err(why))) => {
                format!("copy engine on a side stream, because no mapping could be made: {why}")
            }
        }
    }

    fn ranges(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<u64, Range>> {
        self.ranges.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn ranges_mut(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u64, Range>> {
        self.ranges.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, va: u64, range: Range) {
        let mut all = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(va, range);
    }

    fn remove(&self, va: u64) -> Option<Range> {
        let mut all = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&va)
    }

    /// Allocates whole pages of 64 KiB. The driver aligns small allocations to less.
    pub(super) fn alloc(&self, bytes: u64) -> Result<GpuVa, CudaError> {
        let what = "GPU memory";
        let refuse = CudaError::OutOfMemory { bytes, what };
        let len = bytes.checked_next_multiple_of(PAGE_BYTES).ok_or(refuse)?;
        self.context.bind()?;
        // A page more at once, rather than giving back what is not aligned: to free memory waits for every kernel, of
        // which one may be waiting for what this thread does next.
        let slack = if len < LARGE { PAGE_BYTES } else { 0 };
        let mut base = self.allocate(len + slack, bytes)?;
        if slack == 0 && !base.is_multiple_of(PAGE_BYTES) {
            self.release(base);
            base = self.allocate(len + PAGE_BYTES, bytes)?;
        }
        let va = base.next_multiple_of(PAGE_BYTES);
        self.insert(
            va,
            Range {
                len,
                owned: Some(base),
                mapping: self.map(va, len),
                pinned: false,
            },
        );
        Ok(GpuVa(va))
    }

    /// Allocates whole pages of 64 KiB of pinned host memory, at an address of the GPU.
    pub(super) fn alloc_pinned(&self, bytes: u64) -> Result<GpuVa, CudaError> {
        let what = "pinned host memory";
        let refuse = || CudaError::OutOfMemory { bytes, what };
        let len = bytes
            .checked_next_multiple_of(PAGE_BYTES)
            .ok_or_else(refuse)?;
        let whole = usize::try_from(len + PAGE_BYTES).map_err(|_| refuse())?;
        let memory = Pinned::new(self.context.clone(), whole)?;
        let base = memory.device()?;
        let va = base.next_multiple_of(PAGE_BYTES);
        let mapping = PinnedMapping {
            memory,
            start: (va - base) as usize,
        };
        self.insert(
            va,
            Range {
                len,
                owned: None,
                mapping: Some(Box::new(mapping)),
                pinned: true,
            },
        );
        Ok(GpuVa(va))
    }

    fn map(&self, va: u64, len: u64) -> Option<Box<dyn GpuMapping>> {
        let (mapping, outcome) = match self.mapper.as_ref()?.map(GpuVa(va), len) {
            Ok(mapping) => (Some(mapping), Ok(())),
            Err(why) => (None, Err(why)),
        };
        *lock(&self.outcome) = Some(outcome);
        mapping
    }

    /// Forgets a range once no copy of ours uses it, and frees it when it is ours. When a copy hangs the
    /// memory stays allocated.
    pub(super) fn free(&self, va: GpuVa) {
        let Some(range) = self.remove(va.0) else {
            return;
        };
        drop(range.mapping);
        let idle = lock(&self.dma).drain(PATIENCE);
        if let (true, Some(base)) = (idle, range.owned) {
            self.release(base);
        }
    }

    /// Maps a range of an allocation of somebody else (its base and size), by whole pages, which must be that allocation's
    /// alone: who else has memory in them was not asked. Or why not.
    fn map_part(
        &self,
        va: u64,
        len: u64,
        (base, size): (u64, u64),
    ) -> Result<Box<dyn GpuMapping>, String> {
        let mapper = self.mapper.as_ref().ok_or("no mapping was asked for")?;
        let first = va / PAGE_BYTES * PAGE_BYTES;
        let end = (va + len).next_multiple_of(PAGE_BYTES);
        if first < base || end > base + size {
            return Err(format!(
                "its pages of 64 KiB, {first:#x} to {end:#x}, reach beyond its allocation, {base:#x} to {:#x}; allocate whole pages (2 MiB and more are aligned)",
                base + size
            ));
        }
        let whole = mapper.map(GpuVa(first), end - first)?;
        let start = va - first;
        Ok(Box::new(super::mapper::PartOf { whole, start }))
    }

    /// Lets the NIC reach memory that somebody else allocated and frees; `allocation` is the base and size of what it lies in,
    /// or why it is not to be mapped. Returns by which way the NIC reaches it, and why.
    pub(super) fn adopt(
        &self,
        va: GpuVa,
        len: u64,
        allocation: Result<(u64, u64), &str>,
    ) -> Result<String, CudaError> {
        let shared = self
            .ranges()
            .range(..va.0 + len)
            .next_back()
            .is_some_and(|(first, range)| first + range.len > va.0);
        if shared {
            return Err(CudaError::Shared { va });
        }
        let mapped = match allocation {
            Ok(allocation) => self.map_part(va.0, len, allocation),
            Err(why) => Err(why.to_owned()),
        };
        let name = || self.mapper.as_ref().map_or(String::new(), |m| m.name());
        let way = match &mapped {
            Ok(_) => format!("mapped for the CPU by {}", name()),
            Err(why) => format!("copy engine on a side stream, because {why}"),
        };
        self.insert(
            va.0,
            Range {
                len,
                owned: None,
                mapping: None,
                pinned: false,
            },
        );
        if let (Some(range), Ok(mapping)) = (self.ranges_mut().get_mut(&va.0), mapped) {
            range.mapping = Some(mapping);
        }
        Ok(way)
    }

    /// Calls `f` with the mapping of a range that lies inside one allocation, and the offset there.
    fn with<R>(
        &self,
        va: u64,
        len: u64,
        f: impl FnOnce(Option<&dyn GpuMapping>, u64) -> R,
    ) -> Option<R> {
        let all = self.ranges();
        let found = all.range(..=va).next_back();
        let inside = |first: &u64, r: &Range| {
            let end = (va - first).checked_add(len);
            end.is_some_and(|end| end <= r.len)
        };
        match found.filter(|(first, range)| inside(first, range)) {
            Some((first, range)) => Some(f(range.mapping.as_deref(), va - first)),
            None if self.is_near(va, len) => Some(f(None, 0)),
            None => None,
        }
    }

    /// Copies from the host.
    pub(super) fn write(&self, va: GpuVa, from: &[u8]) -> Result<(), GpuError> {
        let done = self.with(va.0, from.len() as u64, |mapping, offset| match mapping {
            Some(m) => {
                m.write(offset, from);
                m.flush();
                Ok(())
            }
            None => lock(&self.host).write_all(va.0, from),
        });
        let len = from.len() as u64;
        Ok(done.ok_or(GpuError::NotAllocated { va, len })??)
    }

    /// Copies to the host.
    pub(super) fn read(&self, va: GpuVa, into: &mut [u8]) -> Result<(), GpuError> {
        let len = into.len() as u64;
        let done = self.with(va.0, len, |mapping, offset| {
            if let Some(m) = mapping.filter(|m| quick(*m, into.len())) {
                m.read(offset, into);
                return Ok(());
            }
            lock(&self.host).read_all(va.0, into)
        });
        Ok(done.ok_or(GpuError::NotAllocated { va, len })??)
    }

    /// The pages around a range: bus addresses are virtual ones.
    pub(super) fn page_table(&self, va: GpuVa, len: u64) -> Result<PageTable, GpuError> {
        let len = len.max(1);
        self.with(va.0, len, |_, _| ())
            .ok_or(GpuError::NotAllocated { va, len })?;
        Ok(CudaMemory::pages_around(va, len))
    }

    pub(super) fn pages_around(va: GpuVa, len: u64) -> PageTable {
        let first = va.0 / PAGE_BYTES;
        let last = (va.0 + len - 1) / PAGE_BYTES;
        PageTable {
            base: GpuVa(first * PAGE_BYTES),
            pages: (first..=last).map(|p| p * PAGE_BYTES).collect(),
        }
    }
}

/// Whether a read goes through the mapping. When not, what was stored through it has arrived.
fn quick(mapping: &dyn GpuMapping, len: usize) -> bool {
    let quick = len <= READ_BY_MAPPING || mapping.reads_quickly();
    if !quick {
        mapping.flush();
    }
    quick
}

impl CudaMemory {
    fn allocate(&self, len: u64, asked: u64) -> Result<u64, CudaError> {
        // What was freed while a kernel ran may be free by now.
        self.context.yard.sweep();
        let mut base = 0;
        // SAFETY: the pointer is to a live address; a context is current.
        let r = unsafe { sys::cuMemAlloc_v2(&mut base, len as usize) };
        driver::check_memory("cuMemAlloc", r, asked, "GPU memory")
            .map_err(|e| self.context.note(e))?;
        Ok(base)
    }

    /// Frees what `allocate` gave, once no kernel runs.
    fn release(&self, base: u64) {
        self.context.yard.give_back(Waste::Device(base));
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        let all = std::mem::take(&mut *self.ranges.write().unwrap_or_else(PoisonError::into_inner));
        if lock(&self.dma).drain(PATIENCE) {
            let owned = all.into_values().filter_map(|r| r.owned);
            let all = owned.chain(self.lending.scratch());
            all.for_each(|base| self.release(base));
        }
    }
}

impl From<Refused> for BusError {
    fn from(r: Refused) -> BusError {
        match r {
            Refused::Busy => BusError::Busy,
            Refused::Cuda(_) => BusError::Lost,
        }
    }
}

/// Memory that other NICs borrow, and that is borrowed from them.
impl CudaMemory {
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn lending(&self) -> &Lending {
        &self.lending
    }

    /// Whether `len` bytes lie inside one range on the GPU itself.
    pub(super) fn is_on_gpu(&self, va: u64, len: u64) -> bool {
        let all = self.ranges();
        let inside = |(first, r): (&u64, &Range)| {
            !r.pinned && (va - first).checked_add(len).is_some_and(|n| n <= r.len)
        };
        all.range(..=va).next_back().is_some_and(inside)
    }

    /// Whether another NIC of this process has lent `len` bytes from `va`.
    fn is_near(&self, va: u64, len: u64) -> bool {
        let near = lock(&self.lent_here);
        let found = near.range(..=va).next_back();
        found.is_some_and(|(base, (size, _))| {
            (va - base).checked_add(len).is_some_and(|n| n <= *size)
        })
    }

    pub(super) fn note_near(&self, base: u64, size: u64) {
        lock(&self.lent_here).entry(base).or_insert((size, 0)).1 += 1;
    }

    pub(super) fn forget_near(&self, base: u64) {
        let mut near = lock(&self.lent_here);
        if let Some((_, users)) = near.get_mut(&base) {
            *users -= 1;
            if *users == 0 {
                near.remove(&base);
            }
        }
    }

    /// Copies between two pages of its own, which stay allocated: to free them would wait for every kernel.
    pub(super) fn first_copy(&self, patience: std::time::Duration) -> Result<u64, CudaError> {
        self.context.bind()?;
        let base = self.allocate(2 * PAGE_BYTES, 2 * PAGE_BYTES)?;
        let mut engine = lock(&self.host);
        // A few bytes and many, aligned or not, may be different code of the driver.
        for (to, len) in [(PAGE_BYTES, PAGE_BYTES), (PAGE_BYTES + 1, 3)] {
            let started = engine.copy(base + to, base, len);
            let id = started.map_err(super::engine::Refused::into_cuda)?;
            if !engine.drain(patience) {
                // The scratch stays: something may still write it.
                return Err(CudaError::Stuck {
                    what: "a first copy inside its memory",
                    waited_ms: patience.as_millis() as u64,
                });
            }
            engine.forget(id);
        }
        Ok(base)
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
        // Stores through a mapping come first.
        let flush = |m: Option<&dyn GpuMapping>, _| m.map_or((), |m| m.flush());
        self.with(source, from.len, flush)
            .ok_or_else(|| refuse(from))?;
        self.with(target, to.len, flush).ok_or_else(|| refuse(to))?;
        let on_gpu = self.is_on_gpu(source, from.len) || self.is_near(source, from.len);
        if !on_gpu || !self.is_on_gpu(target, to.len) {
            let (from, to) = (source, target);
            return Err(BusError::NoCopy { from, to });
        }
        if from.len == 0 {
            return Ok(Submitted::Done);
        }
        let id = lock(&self.dma).copy(target, source, from.len)?;
        Ok(Submitted::Pending(id))
    }

    fn submit_read(
        &self,
        mapping: Option<&dyn GpuMapping>,
        offset: u64,
        from: BusSpan,
        into: &mut [u8],
    ) -> Result<Submitted, BusError> {
        if let Some(m) = mapping.filter(|m| quick(*m, into.len())) {
            m.read(offset, into);
            return Ok(Submitted::Done);
        }
        let mut engine = lock(&self.dma);
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
        let mut engine = lock(&self.dma);
        if from.len() > engine.capacity() {
            let done = engine.write_all(to.addr.value(), from);
            return done.map(|()| Submitted::Done).map_err(|_| BusError::Lost);
        }
        Ok(Submitted::Pending(engine.write(to.addr.value(), from)?))
    }
}

impl DmaMemory for CudaMemory {
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
        self.with(span.addr.value(), span.len, |mapping, offset| match op {
            DmaOp::Read { from, into } => self.submit_read(mapping, offset, from, into),
            DmaOp::Write { to, from } => self.submit_write(mapping, offset, to, from),
            DmaOp::Copy { from, to } => self.submit_copy(from, to),
        })
        .ok_or(refuse)?
    }

    fn poll(&self) -> Option<DmaId> {
        lock(&self.dma).finished()
    }

    fn take(&self, id: DmaId, into: &mut [u8]) {
        lock(&self.dma).take_read(id, into);
    }

    fn mark(&self) -> u64 {
        for range in self.ranges().values() {
            if let Some(m) = &range.mapping {
                m.flush();
            }
        }
        lock(&self.dma).mark()
    }

    fn has_landed(&self, mark: u64) -> bool {
        lock(&self.dma).has_ended(mark)
    }

    fn publish(&self, announce: Announce) {
        for range in self.ranges().values() {
            if let Some(m) = &range.mapping {
                m.flush();
            }
        }
        lock(&self.dma).announce(announce);
    }

    fn lend(&self, span: BusSpan) -> Result<Loan, NotReached> {
        self.lend_around(span)
    }

    fn borrow(&self, loan: &Loan) -> Result<Box<dyn Borrow>, NotReached> {
        self.borrow_from(loan)
    }

    /// Pins the memory and maps it for the GPU (`cuMemHostRegister`, portable and device-mapped).
    fn expose(&self, base: NonNull<u8>, len: usize) -> std::io::Result<Exposed> {
        let exposed = self.pin(base, len, 0).map_err(std::io::Error::other)?;
        Ok(exposed)
    }

    fn near(&self, initial: &[u32]) -> std::io::Result<Option<Exposed>> {
        let bytes: Vec<u8> = initial.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let block = NearBlock::new(self.context.clone(), bytes.len());
        let block = block.map_err(std::io::Error::other)?;
        let written = lock(&self.host).write_all(block.va(), &bytes);
        written.map_err(std::io::Error::other)?;
        Ok(Some(Exposed::pinned(GpuVa(block.va()), Box::new(block))))
    }

    /// The same for registers of a device, as I/O memory (`CU_MEMHOSTREGISTER_IOMEMORY`).
    fn expose_io(&self, base: NonNull<u8>, len: usize) -> std::io::Result<Exposed> {
        let io = sys::CU_MEMHOSTREGISTER_IOMEMORY;
        self.pin(base, len, io).map_err(std::io::Error::other)
    }
}

impl CudaMemory {
    fn pin(&self, base: NonNull<u8>, len: usize, more: u32) -> Result<Exposed, CudaError> {
        self.context.bind()?;
        self.context.placement.bring(base, len);
        let host: *mut c_void = base.as_ptr().cast();
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP | more;
        let yard = &self.context.yard;
        yard.sweep();
        let at = base.as_ptr() as usize;
        if yard.holds(at, len) {
            // What was mapped here before is registered until the kernels that may use it have ended.
            let what = "a kernel that may use the memory that was registered here before";
            drop(yard.wait_until_quiet(what, PATIENCE)?);
            yard.sweep();
        }
        // SAFETY: the caller says that the range is mapped and stays so until the guard is dropped.
        let r = unsafe { sys::cuMemHostRegister_v2(host, len, flags) };
        driver::check_memory("cuMemHostRegister", r, len as u64, "pinned host memory")
            .map_err(|e| self.context.note(e))?;
        let guard = Pin {
            context: self.context.clone(),
            base,
            len,
        };
        let mut va = 0;
        // SAFETY: registered just now; the pointer is to a live address.
        self.context.check("cuMemHostGetDevicePointer", unsafe {
            sys::cuMemHostGetDevicePointer_v2(&mut va, host, 0)
        })?;
        Ok(Exposed::pinned(GpuVa(va), Box::new(guard)))
    }
}

/// Unpins when dropped.
struct Pin {
    context: Arc<Context>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address that only the driver uses.
unsafe impl Send for Pin {}
// SAFETY: as for Send.
unsafe impl Sync for Pin {}

impl Drop for Pin {
    fn drop(&mut self) {
        // While a kernel runs the range stays registered: its pages live on, whatever becomes of the mapping.
        let waste = Waste::Registered(self.base.as_ptr() as usize, self.len);
        self.context.yard.give_back(waste);
    }
}
