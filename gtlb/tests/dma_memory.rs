//! The conformance suite on the memories of this crate, and proof that the suite can fail.
#![allow(unsafe_code)] // completion lines are addresses

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use ringbell_gtlb::testing::{conformance, DelayedMemory, GpuView, HostMemory, Layout};
use ringbell_gtlb::*;
use ringbell_nic_abi::GpuVa;

const LEN: u64 = 4 << 20;
const BASE: GpuVa = GpuVa(0x7e00_0000_0000);

fn subject<M: DmaMemory + 'static>(
    memory: Arc<M>,
    host: fn(&M) -> &HostMemory,
    layout: Layout,
) -> conformance::Subject {
    let (a, b) = (memory.clone(), memory.clone());
    conformance::Subject {
        table: GpuView::new(host(&memory), BASE, layout).table().clone(),
        outside: host(&memory).bus() + LEN,
        peek: Box::new(move |va, into| GpuView::new(host(&a), BASE, layout).read(va, into)),
        poke: Box::new(move |va, from| GpuView::new(host(&b), BASE, layout).write(va, from)),
        memory,
    }
}

#[test]
fn host_memory() {
    for layout in [Layout::Contiguous, Layout::Mixed(3), Layout::Scattered(4)] {
        for new in [HostMemory::new, HostMemory::unshared] {
            let make = || subject(Arc::new(new(LEN).unwrap()), |m| m, layout);
            conformance::check(&make);
        }
    }
}

#[test]
fn memory_that_is_not_shared_has_nothing_to_export() {
    assert!(HostMemory::unshared(LEN).unwrap().exports().is_empty());
    assert!(HostMemory::unshared(0).is_err());
}

#[test]
fn delayed_memory() {
    for seed in 0..8 {
        let make = || {
            let memory = Arc::new(DelayedMemory::new(LEN, seed).unwrap());
            subject(memory, DelayedMemory::host, Layout::Mixed(seed))
        };
        conformance::check(&make);
    }
}

/// A memory that completes at once although its writes are still on their way.
struct Hasty(DelayedMemory);

impl DmaMemory for Hasty {
    fn submit(&self, op: DmaOp<'_>) -> Result<Submitted, BusError> {
        self.0.submit(op)
    }
    fn poll(&self) -> Option<DmaId> {
        self.0.poll()
    }
    fn take(&self, id: DmaId, into: &mut [u8]) {
        self.0.take(id, into)
    }
    fn publish(&self, completion: CompletionWrite) {
        completion.store();
    }
}

#[test]
fn the_suite_catches_a_completion_before_its_data() {
    let make = || {
        let memory = Arc::new(Hasty(DelayedMemory::new(LEN, 1).unwrap()));
        subject(memory, |m| m.0.host(), Layout::Contiguous)
    };
    let failed = catch_unwind(AssertUnwindSafe(|| conformance::check(&make))).unwrap_err();
    let message = failed.downcast_ref::<String>().unwrap();
    assert!(message.contains("before its data"), "{message}");
}

/// A memory that says that it finishes each operation at once, and does not.
struct Boasting(DelayedMemory);

impl DmaMemory for Boasting {
    fn submit(&self, op: DmaOp<'_>) -> Result<Submitted, BusError> {
        self.0.submit(op)
    }
    fn poll(&self) -> Option<DmaId> {
        self.0.poll()
    }
    fn take(&self, id: DmaId, into: &mut [u8]) {
        self.0.take(id, into)
    }
    fn publish(&self, completion: CompletionWrite) {
        self.0.publish(completion)
    }
    fn is_immediate(&self) -> bool {
        true
    }
}

#[test]
fn the_suite_catches_an_immediate_memory_that_answers_later() {
    let make = || {
        let memory = Arc::new(Boasting(DelayedMemory::new(LEN, 1).unwrap()));
        subject(memory, |m| m.0.host(), Layout::Contiguous)
    };
    let failed = catch_unwind(AssertUnwindSafe(|| conformance::check(&make))).unwrap_err();
    let message = failed.downcast_ref::<&str>().unwrap();
    assert!(message.contains("immediate memory"), "{message}");
}

#[test]
fn delayed_writes_are_really_late_and_out_of_order() {
    let memory = DelayedMemory::new(LEN, 5).unwrap();
    let view = GpuView::new(memory.host(), BASE, Layout::Contiguous);
    let mut mmu = Mmu::new(MmuConfig::default()).unwrap();
    mmu.map(view.table()).unwrap();
    let pd = mmu.alloc_pd().unwrap();
    let mr = mmu.register(pd, BASE, LEN, Access::LOCAL).unwrap();
    let mut first_seen = Vec::new();
    for i in 0..32 {
        let to = mmu.span(mr.lkey.0, GpuVa(BASE.0 + i), 1).unwrap();
        let answer = memory.submit(DmaOp::Write { to, from: &[1] });
        assert!(matches!(answer, Ok(Submitted::Pending(_))));
    }
    let mut bytes = [0; 32];
    view.read(BASE, &mut bytes);
    assert_eq!(bytes, [0; 32], "nothing is written before it is polled");
    while memory.pending() > 0 {
        memory.poll();
        view.read(BASE, &mut bytes);
        first_seen.extend(
            (0..32)
                .filter(|i| bytes[*i] == 1 && !first_seen.contains(i))
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(first_seen.len(), 32);
    assert!(!first_seen.is_sorted(), "{first_seen:?}");
}
