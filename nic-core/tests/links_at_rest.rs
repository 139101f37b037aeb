//! What a connection costs that nobody uses: bytes of the heap at each end, when the traffic has
//! ended.
#![allow(unsafe_code)] // Allocations are counted.

mod transport_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::types::ConnId;
use transport_support::{wire, Flow, Opened, PairOf, Wire, MINUTE};

thread_local! {
    /// Bytes that this thread has allocated and not freed.
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: i64) {
    // A thread that ends has no counter any more.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

// SAFETY: forwards to the system allocator; counting touches no memory that it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(p, layout) }
    }
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(p, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live() -> i64 {
    LIVE.with(Cell::get)
}

/// Connections of a pair of transports.
const CONNECTIONS: usize = 64;

/// Bytes at each end of a connection after `len` bytes went both ways on each.
fn bytes_at_rest<T: Opened>(mut p: PairOf<T>, len: usize) -> i64 {
    let mut conns = Vec::with_capacity(CONNECTIONS);
    let both_ways = |p: &mut PairOf<T>, (a, b): (ConnId, ConnId), seed: u64| {
        let mut there = Flow::new(&mut p.a, &mut p.b, (a, b), len, 2 * seed);
        let mut back = Flow::new(&mut p.b, &mut p.a, (b, a), len, 2 * seed + 1);
        p.until(MINUTE, |p| {
            let done = there.drive(&mut p.a, &mut p.b) & back.drive(&mut p.b, &mut p.a);
            done.then_some(())
        });
        there.check(&p.a, &p.b);
        back.check(&p.b, &p.a);
        // Memory of the operands is not the connection's.
        for side in [&mut p.a, &mut p.b] {
            side.dma.regions.clear();
            side.dma.regions.shrink_to_fit();
        }
    };
    // Tables, and what a NIC keeps for all of its connections.
    for seed in 0..2 {
        let conn = p.connect(7000);
        both_ways(&mut p, conn, seed);
    }
    p.run(MINUTE / 60);
    let before = live();
    for seed in 0..CONNECTIONS {
        let conn = p.connect(7000);
        both_ways(&mut p, conn, seed as u64);
        conns.push(conn);
    }
    p.run(MINUTE / 60);
    (live() - before) / (2 * CONNECTIONS as i64)
}

fn ports() -> Wire {
    wire(9_000, Checksums::Omitted)
}

#[test]
fn a_connection_of_rdma_at_rest_costs_next_to_nothing() {
    use transport_support::rdma::Pair;
    // Inside a packet, in some, and in many windows.
    for (len, most) in [(40, 8 << 10), (20_000, 8 << 10), (2 << 20, 16 << 10)] {
        let bytes = bytes_at_rest(Pair::new(ports(), 3), len);
        assert!(bytes <= most, "{bytes} bytes after messages of {len}");
    }
}
