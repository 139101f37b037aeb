//! What a connection costs that carries nothing: memory at each end, when the traffic has ended.
#![allow(unsafe_code)] // Allocations are counted.

mod transport_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::{Checksums, Port};
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
const CONNECTIONS: usize = 128;

/// Bytes of this process's own memory that lie in pages.
fn resident() -> i64 {
    // SAFETY: the allocator gives free memory back to the system; it may be called at any time.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let words = line.expect("a size of anonymous pages").split_whitespace();
    words
        .take(1)
        .map(|kib| kib.parse::<i64>().expect("a number") << 10)
        .sum()
}

/// What each end of a connection takes.
#[derive(Debug)]
struct Cost {
    /// Bytes that are allocated.
    heap: i64,
    /// Bytes of pages, those of the heap included.
    pages: i64,
}

/// The cost of a connection after `len` bytes went both ways on each.
fn at_rest<T: Opened>(mut p: PairOf<T>, len: usize) -> Cost {
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
    let (heap, pages) = (live(), resident());
    for seed in 0..CONNECTIONS {
        let conn = p.connect(7000);
        both_ways(&mut p, conn, seed as u64);
        conns.push(conn);
    }
    p.run(MINUTE / 60);
    let each = |bytes: i64| bytes / (2 * CONNECTIONS as i64);
    Cost {
        heap: each(live() - heap),
        pages: each(resident() - pages),
    }
}

fn ports() -> Wire {
    wire(9_000, Checksums::Omitted)
}

#[test]
fn a_connection_of_rdma_at_rest_costs_next_to_nothing() {
    use transport_support::rdma::Pair;
    // Inside a packet, in some, and in many windows.
    for len in [40, 20_000, 2 << 20] {
        let cost = at_rest(Pair::new(ports(), 3), len);
        println!("{cost:?}");
        assert!(cost.heap <= 4 << 10, "{cost:?} after messages of {len}");
    }
}

#[test]
fn a_connection_of_rdma_at_rest_keeps_no_room_for_packets_that_come_early() {
    use transport_support::rdma::Pair;
    let impaired = |port, seed| -> Box<dyn Port> {
        let faults = Faults {
            loss: 0.02,
            seed,
            ..Faults::default()
        };
        Box::new(Impair::new(port, faults).expect("faults"))
    };
    let (a, b) = ports();
    let cost = at_rest(Pair::new((impaired(a, 1), impaired(b, 2)), 3), 1 << 20);
    println!("{cost:?}");
    // Their room has up to a window. Lost packets leave some timers behind.
    assert!(cost.heap <= 8 << 10, "{cost:?}");
}

#[test]
fn a_connection_of_tcp_at_rest_gives_the_pages_of_its_buffers_back() {
    use transport_support::Pair;
    // Inside a page of the buffers, in some, and around them.
    for len in [40, 20_000, 2 << 20] {
        let cost = at_rest(Pair::mem(9_000, Checksums::Omitted), len);
        println!("{cost:?}");
        assert!(cost.heap <= 4 << 10, "{cost:?} after messages of {len}");
        // The buffers have 512 KiB. Some pages are what the test itself left in the heap.
        assert!(cost.pages <= 24 << 10, "{cost:?} after messages of {len}");
    }
}
