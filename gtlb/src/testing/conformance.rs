//! The conformance suite of [`DmaMemory`].
//!
//! ```
//! # use std::sync::Arc;
//! # use ringbell_gtlb::testing::{conformance, GpuView, HostMemory, Layout};
//! # use ringbell_nic_abi::GpuVa;
//! conformance::check(&|| {
//!     let memory = Arc::new(HostMemory::new(4 << 20).unwrap());
//!     let layout = Layout::Mixed(1);
//!     let table = GpuView::new(&memory, GpuVa(0x10_0000_0000), layout).table().clone();
//!     let (a, b) = (memory.clone(), memory.clone());
//!     let base = table.base;
//!     conformance::Subject {
//!         outside: memory.bus() + memory.len(),
//!         memory,
//!         table,
//!         peek: Box::new(move |va, into| GpuView::new(&a, base, layout).read(va, into)),
//!         poke: Box::new(move |va, from| GpuView::new(&b, base, layout).write(va, from)),
//!     }
//! });
//! ```
#![allow(unsafe_code)] // completion lines and windows are addresses

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringbell_nic_abi::{GpuVa, Lkey};
use rustix::mm::{MapFlags, ProtFlags};

use super::Rng;
use crate::bus::BusSpan;
use crate::completion_write::CompletionWrite;
use crate::memory::{BusError, DmaId, DmaMemory, DmaOp, Submitted};
use crate::page_table::{PageTable, PAGE_BYTES};
use crate::{Access, Mmu, MmuConfig, Need};

/// A memory under test and the kernel's view of it.
pub struct Subject {
    /// The memory.
    pub memory: Arc<dyn DmaMemory>,
    /// Pages of it, at least 2 MiB, that nothing else uses.
    pub table: PageTable,
    /// A bus address, multiple of 64 KiB, behind which the memory has nothing.
    pub outside: u64,
    /// Reads as a kernel does, now.
    pub peek: Peek,
    /// Writes as a kernel does, now.
    pub poke: Poke,
}

/// Reads bytes at a GPU address.
pub type Peek = Box<dyn Fn(GpuVa, &mut [u8])>;
/// Writes bytes at a GPU address.
pub type Poke = Box<dyn Fn(GpuVa, &[u8])>;

/// How long an operation may take before the suite calls it lost.
const DEADLINE: Duration = Duration::from_secs(20);

/// A bound on a wait. The suite drives real memories, so it has a real clock.
struct Patience(Instant);

#[allow(clippy::disallowed_methods)]
impl Patience {
    fn new() -> Patience {
        Patience(Instant::now())
    }

    fn check(&self, rule: &str) {
        assert!(self.0.elapsed() < DEADLINE, "{rule}");
    }
}

/// Runs every check, each on a memory of its own.
///
/// # Panics
/// With the name of the rule that the memory breaks.
pub fn check(make: &dyn Fn() -> Subject) {
    let checks: [fn(&mut Rig); 8] = [
        what_is_written_can_be_read,
        reads_see_what_kernels_wrote,
        data_comes_before_its_completion,
        copies_keep_their_order,
        completions_keep_their_order,
        what_is_not_backed_is_refused,
        a_window_shows_the_same_bytes,
        exports_show_the_same_bytes,
    ];
    for check in checks {
        check(&mut Rig::new(make()));
    }
}

/// A subject behind an MMU, the only source of bus addresses.
struct Rig {
    subject: Subject,
    mmu: Mmu,
    region: u32,
    len: u64,
    rng: Rng,
    finished: HashSet<DmaId>,
}

impl Rig {
    fn new(subject: Subject) -> Rig {
        let len = subject.table.pages.len() as u64 * PAGE_BYTES;
        assert!(len >= 2 << 20, "the subject maps only {len} bytes");
        let mut mmu = Mmu::new(MmuConfig::default()).expect("default sizes are valid");
        mmu.map(&subject.table)
            .expect("the subject's table is valid");
        let region = pin_all(&mut mmu, subject.table.base, len);
        Rig {
            subject,
            mmu,
            region,
            len,
            rng: Rng::new(2022),
            finished: HashSet::new(),
        }
    }

    fn va(&self, offset: u64) -> GpuVa {
        GpuVa(self.subject.table.base.0 + offset)
    }

    fn spans(&mut self, offset: u64, len: usize) -> Vec<BusSpan> {
        let (mut spans, mut done) = (Vec::new(), 0);
        while done < len as u64 {
            let va = self.va(offset + done);
            let span = self.mmu.span(self.region, va, len as u64 - done);
            let span = span.expect("the range is registered");
            done += span.len;
            spans.push(span);
        }
        spans
    }

    /// A random range of up to 200 KB, now and then across the last byte of a page or at the end.
    fn range(&mut self) -> (u64, usize) {
        let len = 1 + self
            .rng
            .below(if self.rng.0 & 1 == 0 { 64 } else { 200_000 });
        let offset = match self.rng.below(4) {
            0 => self.len - len,
            1 => (1 + self.rng.below(8)) * PAGE_BYTES - len.min(PAGE_BYTES) / 2,
            _ => self.rng.below(self.len - len),
        };
        (offset.min(self.len - len), len as usize)
    }

    /// Starts an operation, polling while the memory is busy.
    fn submit(&mut self, mut op: impl FnMut() -> DmaOpOwned) -> (Submitted, Vec<u8>) {
        let patience = Patience::new();
        loop {
            let mut op = op();
            match self.subject.memory.submit(op.borrow()) {
                Ok(answer) => {
                    let is_done = answer == Submitted::Done;
                    let at_once = self.subject.memory.is_immediate();
                    assert!(is_done || !at_once, "an immediate memory answers Done");
                    return (answer, op.bytes);
                }
                Err(BusError::Busy) => self.poll(),
                Err(e) => panic!("a span of registered memory was refused: {e}"),
            }
            patience.check("the memory stays busy while it is polled");
        }
    }

    fn poll(&mut self) {
        match self.subject.memory.poll() {
            Some(id) => {
                assert!(self.finished.insert(id), "{id:?} was reported twice");
            }
            None => std::thread::yield_now(),
        }
    }

    fn wait(&mut self, id: DmaId) {
        let patience = Patience::new();
        while !self.finished.remove(&id) {
            self.poll();
            patience.check(&format!("{id:?} was never reported"));
        }
    }

    /// Writes; the ids are still pending.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Vec<DmaId> {
        let (mut ids, mut done) = (Vec::new(), 0);
        for span in self.spans(offset, bytes.len()) {
            let part = &bytes[done..done + span.len as usize];
            let (answer, _) = self.submit(|| DmaOpOwned::write(span, part.to_vec()));
            done += span.len as usize;
            if let Submitted::Pending(id) = answer {
                ids.push(id);
            }
        }
        ids
    }

    /// Copies; the pieces are still pending. `false`: this memory does not.
    fn copy(&mut self, from: u64, to: u64, len: usize) -> bool {
        let mut done = 0;
        while done < len {
            let source = self.spans(from + done as u64, len - done)[0];
            let target = self.spans(to + done as u64, len - done)[0];
            let n = source.len.min(target.len);
            let patience = Patience::new();
            loop {
                let (from, to) = (source.prefix(n), target.prefix(n));
                match self.subject.memory.submit(DmaOp::Copy { from, to }) {
                    Ok(_) => break,
                    Err(BusError::NoCopy { .. }) => return false,
                    Err(BusError::Busy) => self.poll(),
                    Err(e) => panic!("a copy inside registered memory was refused: {e}"),
                }
                patience.check("the memory stays busy while it is polled");
            }
            done += n as usize;
        }
        true
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        for span in self.spans(offset, len) {
            let (answer, mut part) = self.submit(|| DmaOpOwned::read(span));
            if let Submitted::Pending(id) = answer {
                self.wait(id);
                self.subject.memory.take(id, &mut part);
            }
            bytes.extend(part);
        }
        bytes
    }

    fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        (self.subject.peek)(self.va(offset), &mut bytes);
        bytes
    }
}

fn pin_all(mmu: &mut Mmu, va: GpuVa, len: u64) -> u32 {
    let pd = mmu.alloc_pd().expect("the first domain");
    mmu.register(pd, va, len, Access::LOCAL)
        .expect("the range was mapped");
    let pin = mmu.pin(pd, Lkey(0), va, len, Need::Write);
    pin.expect("the range was registered").region
}

/// A [`DmaOp`] with its bytes, so that it can be tried again.
struct DmaOpOwned {
    span: BusSpan,
    bytes: Vec<u8>,
    write: bool,
}

impl DmaOpOwned {
    fn write(span: BusSpan, bytes: Vec<u8>) -> DmaOpOwned {
        DmaOpOwned {
            span,
            bytes,
            write: true,
        }
    }

    fn read(span: BusSpan) -> DmaOpOwned {
        DmaOpOwned {
            span,
            bytes: vec![0x5a; span.len as usize],
            write: false,
        }
    }

    fn borrow(&mut self) -> DmaOp<'_> {
        if self.write {
            DmaOp::Write {
                to: self.span,
                from: &self.bytes,
            }
        } else {
            DmaOp::Read {
                from: self.span,
                into: &mut self.bytes,
            }
        }
    }
}

fn what_is_written_can_be_read(rig: &mut Rig) {
    let mut model = vec![0u8; rig.len as usize];
    (rig.subject.poke)(rig.va(0), &model);
    for _ in 0..40 {
        let (offset, len) = rig.range();
        let bytes = rig.rng.bytes(len);
        for id in rig.write(offset, &bytes) {
            rig.wait(id);
        }
        model[offset as usize..offset as usize + len].copy_from_slice(&bytes);
        let (offset, len) = rig.range();
        let expected = &model[offset as usize..offset as usize + len];
        assert!(
            rig.read(offset, len) == expected,
            "{len} bytes at {offset:#x} read back wrong"
        );
    }
    assert!(
        rig.peek(0, model.len()) == model,
        "a kernel sees other bytes than were written"
    );
}

fn reads_see_what_kernels_wrote(rig: &mut Rig) {
    for _ in 0..40 {
        let (offset, len) = rig.range();
        let bytes = rig.rng.bytes(len);
        (rig.subject.poke)(rig.va(offset), &bytes);
        assert!(
            rig.read(offset, len) == bytes,
            "{len} bytes at {offset:#x}: not what the kernel wrote"
        );
    }
}

/// Lines that completions are stored to; dropped only after every one has arrived.
fn lines(n: usize) -> Vec<[AtomicU64; 4]> {
    (0..n).map(|_| Default::default()).collect()
}

fn publish(rig: &Rig, line: &[AtomicU64; 4], word: u64) {
    let words = [word, word + 1, word + 2, word + 3];
    // SAFETY: every check waits until its lines were stored to before it drops them.
    let completion = unsafe { CompletionWrite::new(line.as_ptr(), words) };
    rig.subject.memory.publish(completion);
}

fn data_comes_before_its_completion(rig: &mut Rig) {
    let n = 24u64;
    let lines = lines(n as usize);
    let step = rig.len / n;
    let mut payloads = Vec::new();
    let (mut posted, mut seen) = (0, vec![false; n as usize]);
    let patience = Patience::new();
    while seen.contains(&false) {
        if posted < n as usize {
            let len = 1 + rig.rng.below(step.min(20_000) - 1) as usize;
            let bytes = rig.rng.bytes(len);
            rig.write(posted as u64 * step, &bytes);
            publish(rig, &lines[posted], 100);
            payloads.push(bytes);
            posted += 1;
        }
        rig.poll();
        for i in 0..posted {
            // Acquire: pairs with the Release in `CompletionWrite::store`.
            if !seen[i] && lines[i][0].load(Ordering::Acquire) != 0 {
                seen[i] = true;
                let words = [0, 1, 2, 3].map(|w| lines[i][w].load(Ordering::Relaxed));
                assert_eq!(words, [100, 101, 102, 103], "a completion came in parts");
                let now = rig.peek(i as u64 * step, payloads[i].len());
                assert!(
                    now == payloads[i],
                    "completion {i} was seen before its data"
                );
            }
        }
        patience.check("a completion never came");
    }
}

fn copies_keep_their_order(rig: &mut Rig) {
    let half = rig.len / 2;
    let lines = lines(12);
    for (i, line) in lines.iter().enumerate() {
        let len = 1 + rig.rng.below(if i % 2 == 0 { 64 } else { 150_000 }) as usize;
        let from = rig.rng.below(half - len as u64);
        let to = half + rig.rng.below(half - len as u64);
        let bytes = rig.rng.bytes(len);
        // The copy follows the write that it reads, and is followed by the completion.
        rig.write(from, &bytes);
        if !rig.copy(from, to, len) {
            return; // optional: read and write instead
        }
        publish(rig, line, 7);
        let patience = Patience::new();
        // Acquire: pairs with the Release in `CompletionWrite::store`.
        while line[0].load(Ordering::Acquire) == 0 {
            rig.poll();
            patience.check("the completion behind a copy never came");
        }
        assert!(
            rig.peek(to, len) == bytes,
            "a completion was seen before the copy of {len} bytes that it stands behind"
        );
        assert!(
            rig.read(to, len) == bytes,
            "a read has overtaken a copy of {len} bytes"
        );
    }
}

fn completions_keep_their_order(rig: &mut Rig) {
    let lines = lines(32);
    for (i, line) in lines.iter().enumerate() {
        if i % 3 == 0 {
            let bytes = rig.rng.bytes(100);
            rig.write(i as u64 * 100, &bytes);
        }
        publish(rig, line, 7);
    }
    let patience = Patience::new();
    loop {
        // From the last to the first, so that a later one seen implies the earlier ones seen.
        let mut later = false;
        for line in lines.iter().rev() {
            let here = line[0].load(Ordering::Acquire) != 0; // pairs with `CompletionWrite::store`
            assert!(here || !later, "a completion overtook an earlier one");
            later = here;
        }
        if lines.iter().all(|l| l[0].load(Ordering::Acquire) != 0) {
            return;
        }
        rig.poll();
        patience.check("a completion never came");
    }
}

fn what_is_not_backed_is_refused(rig: &mut Rig) {
    let base = GpuVa(1 << 50);
    for bus in [rig.subject.outside, u64::MAX - 2 * PAGE_BYTES + 1] {
        let pages = vec![bus, bus.wrapping_add(PAGE_BYTES)];
        rig.mmu
            .map(&PageTable { base, pages })
            .expect("a table of any bus address");
        let region = pin_all(&mut rig.mmu, base, 2 * PAGE_BYTES);
        for (offset, len) in [(0, 1), (0, PAGE_BYTES), (2 * PAGE_BYTES - 1, 1)] {
            let span = rig.mmu.span(region, GpuVa(base.0 + offset), len);
            let span = span.expect("the range is registered");
            let mut bytes = vec![0xee; span.len as usize];
            let refused = |answer: Result<Submitted, BusError>| {
                assert!(
                    matches!(answer, Err(BusError::OutOfRange { .. })),
                    "{span:?}: {answer:?}"
                );
            };
            let inside = rig.spans(0, PAGE_BYTES as usize)[0].prefix(span.len);
            let memory = &rig.subject.memory;
            refused(memory.submit(DmaOp::Write {
                to: span,
                from: &bytes,
            }));
            refused(memory.submit(DmaOp::Read {
                from: span,
                into: &mut bytes,
            }));
            let part = span.prefix(inside.len);
            for (from, to) in [(part, inside), (inside, part)] {
                let answer = memory.submit(DmaOp::Copy { from, to });
                if !matches!(answer, Err(BusError::NoCopy { .. })) {
                    refused(answer);
                }
            }
            assert!(
                bytes.iter().all(|b| *b == 0xee),
                "a refused read has written"
            );
        }
        let lkey = Lkey(region);
        let pins = rig.mmu.pins_of(lkey);
        for _ in 0..pins {
            rig.mmu.unpin(crate::Pin { region });
        }
        rig.mmu.begin_deregister(lkey).expect("it is live");
        rig.mmu.finish_deregister(lkey).expect("it is not pinned");
        rig.mmu.unmap(base, 2 * PAGE_BYTES).expect("it was mapped");
    }
    let span = rig.spans(0, 64)[0];
    let longer = rig.subject.memory.submit(DmaOp::Write {
        to: span,
        from: &[0; 65],
    });
    assert!(longer.is_err(), "bytes past the end of a span were taken");
}

fn a_window_shows_the_same_bytes(rig: &mut Rig) {
    let Some(window) = rig.subject.memory.window() else {
        return; // optional
    };
    for _ in 0..20 {
        let (offset, len) = rig.range();
        let bytes = rig.rng.bytes(len);
        let pending = rig.write(offset, &bytes);
        assert!(pending.is_empty(), "a memory with a window answers Done");
        let mut done = 0;
        for span in rig.spans(offset, len) {
            let at = window.at(span).expect("the window holds the whole memory");
            for i in 0..span.len as usize {
                // SAFETY: `Window::at` has checked that the span lies in the window; no writer is
                // active.
                let byte = unsafe { at.wrapping_add(i).read_volatile() };
                assert_eq!(
                    byte,
                    bytes[done + i],
                    "the window differs at byte {}",
                    done + i
                );
            }
            done += span.len as usize;
        }
    }
    let end = window
        .bus
        .checked_add(window.len)
        .expect("a window does not wrap");
    assert!(end <= rig.subject.outside || window.bus > rig.subject.outside);
}

fn exports_show_the_same_bytes(rig: &mut Rig) {
    let subject = rig.subject.memory.clone();
    for export in subject.exports() {
        let seals = rustix::fs::fcntl_get_seals(export.fd).expect("an export is a memfd");
        assert!(
            seals.contains(rustix::fs::SealFlags::SHRINK),
            "a peer that maps an export which may shrink can be killed by it"
        );
        // SAFETY: a fresh mapping at an address of the kernel's choice overlays nothing.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                export.len as usize,
                ProtFlags::READ,
                MapFlags::SHARED,
                export.fd,
                export.file_offset,
            )
        };
        let map = map.expect("an export can be mapped");
        for _ in 0..20 {
            let (offset, len) = rig.range();
            let bytes = rig.rng.bytes(len);
            for id in rig.write(offset, &bytes) {
                rig.wait(id);
            }
            let mut done = 0;
            for span in rig.spans(offset, len) {
                let first = span.addr.value().wrapping_sub(export.bus);
                if first < export.len && first + span.len <= export.len {
                    for i in 0..span.len {
                        let at = map.cast::<u8>().wrapping_add((first + i) as usize);
                        // SAFETY: inside the mapping, as just checked; no writer is active.
                        let byte = unsafe { at.read_volatile() };
                        assert_eq!(byte, bytes[done + i as usize], "an export differs");
                    }
                }
                done += span.len as usize;
            }
        }
        // SAFETY: mapped above, used no more.
        unsafe { rustix::mm::munmap(map, export.len as usize) }.expect("it was mapped");
    }
}
