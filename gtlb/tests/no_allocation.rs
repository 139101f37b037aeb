//! Pin, span and unpin allocate nothing, also when they miss, refill and evict.
#![allow(unsafe_code)] // a counting allocator

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ringbell_gtlb::*;
use ringbell_nic_abi::{GpuVa, Lkey};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards to the system's allocator, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn pin_span_and_unpin_do_not_allocate() {
    let base = GpuVa(1 << 40);
    let groups = 16u64;
    let pages: Vec<u64> = (0..groups * 32).rev().map(|i| i << 16).collect();
    let tiny = GtlbConfig {
        main_entries: 8,
        complementary_entries: 64,
    };
    let mut mmu = Mmu::new(MmuConfig {
        instances: vec![tiny],
        refill: true,
    })
    .unwrap();
    mmu.map(&PageTable { base, pages }).unwrap();
    let pd = mmu.alloc_pd().unwrap();
    for i in 0..groups {
        let va = GpuVa(base.0 + (i << 21));
        mmu.register(pd, va, 2 << 20, Access::LOCAL).unwrap();
    }
    let before = COUNT.with(Cell::get);
    let mut sum = 0u64;
    for i in 0..100_000u64 {
        let va = GpuVa(base.0 + (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 39));
        let pin = mmu.pin(pd, Lkey(0), va, 1, Need::Write).unwrap();
        sum += mmu.span(pin.region, va, 1).unwrap().addr.value();
        mmu.unpin(pin);
        let wrong = mmu.pin(pd, Lkey(0), GpuVa(base.0 - 1), 1, Need::Read);
        sum += u64::from(wrong.is_err());
    }
    let count = COUNT.with(Cell::get) - before;
    assert_eq!(count, 0, "allocations in 100,000 operations");
    assert!(
        sum > 100_000 && mmu.stats().refills > 10_000,
        "{:?}",
        mmu.stats()
    );
    // The counter counts.
    drop(std::hint::black_box(vec![sum]));
    assert!(COUNT.with(Cell::get) > before);
}
