//! Ranks as threads over memory with scattered pages, against a serial model.
#![allow(unsafe_code)] // Fills and reads the ranks' memories.
#![allow(clippy::disallowed_methods)] // Threads wait for each other, with a deadline.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use ringbell_gtlb::PAGE_BYTES;
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, WireType};
use ringbell_onc_engines::reduce::{self, Level};

use super::*;
use crate::memory::nic_memory::NIC_BUS;
use crate::shmem::Mapping;

mod bounce;
mod crowd;
mod hostile;
mod operation;

use operation::{post, step, Ended};

const EAGER: u64 = 1024;
const MEMORY: usize = 4 << 20;
/// Where the ranks' virtual addresses begin.
const VA: u64 = 0x7000_0000_0000;
const PATIENCE: Duration = Duration::from_secs(60);

/// One rank's GPU memory: pages in a scattered order.
struct Gpu {
    map: Mapping,
    order: Vec<u64>,
}

impl Gpu {
    fn new(rank: u32) -> Gpu {
        let pages = MEMORY as u64 / PAGE_BYTES;
        let step = [5, 7, 11, 13, 17, 19, 23, 29][rank as usize % 8];
        Gpu {
            map: Mapping::anonymous(MEMORY).expect("memory"),
            order: (0..pages)
                .map(|i| (i * step + u64::from(rank)) % pages)
                .collect(),
        }
    }
    fn bus(&self, va: u64) -> u64 {
        let at = va - VA;
        self.order[(at / PAGE_BYTES) as usize] * PAGE_BYTES + at % PAGE_BYTES
    }
    fn cpu(&self, va: u64) -> *mut u8 {
        self.map.base().wrapping_add(self.bus(va) as usize)
    }
    fn pages(&self, va: u64, bytes: u64, grants: Access) -> Pages {
        Pages::new(va, bytes, grants, |offset| {
            let at = va + offset;
            let run = PAGE_BYTES - at % PAGE_BYTES;
            Ok::<_, ()>((self.bus(at), self.cpu(at), run))
        })
        .expect("mapped")
    }
    fn write(&self, va: u64, bytes: &[u8]) {
        for (i, b) in bytes.iter().enumerate() {
            // SAFETY: inside the mapping.
            unsafe { self.cpu(va + i as u64).write_volatile(*b) };
        }
    }
    fn read(&self, va: u64, len: u64) -> Vec<u8> {
        // SAFETY: inside the mapping.
        (0..len)
            .map(|i| unsafe { self.cpu(va + i).read_volatile() })
            .collect()
    }
}

const ALL: Access = Access {
    exported: true,
    writable: true,
};

/// A rank's memory as peers see it.
struct Window {
    nic_memory: usize,
    board_len: u64,
    gpu: usize,
    gone: AtomicBool,
    wakes: AtomicU64,
}

impl PeerWindow for Window {
    fn at(&self, bus: u64, len: u64) -> Option<*mut u8> {
        if self.gone.load(Ordering::Relaxed) {
            return None;
        }
        let (base, start, size) = if bus >= NIC_BUS {
            (self.nic_memory, NIC_BUS, self.board_len)
        } else {
            (self.gpu, 0, MEMORY as u64)
        };
        (bus - start)
            .checked_add(len)
            .filter(|e| *e <= size)
            .map(|_| (base + (bus - start) as usize) as *mut u8)
    }
    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }
    fn maps(&self, _: u64, _: u64) -> Option<bool> {
        // It has no host memory.
        Some(false)
    }
}

struct World {
    windows: Vec<Window>,
}

impl Peers for Arc<World> {
    fn window(&self, rank: u32) -> Option<&dyn PeerWindow> {
        let w = &self.windows[rank as usize];
        (!w.gone.load(Ordering::Relaxed)).then_some(w)
    }
}

/// What a rank's thread works with.
struct Rank {
    rank: u32,
    gpu: Arc<Gpu>,
    nic_memory: NicMemory,
    comms: Vec<Direct>,
    world: Arc<World>,
    start: Instant,
}

impl Rank {
    fn now(&self) -> NicTime {
        NicTime(self.start.elapsed().as_nanos() as u64)
    }
    fn step(&mut self, comm: usize, out: &mut Vec<Ended>) -> bool {
        let now = self.now();
        step(
            &mut self.comms[comm],
            now,
            &mut self.nic_memory,
            &self.world,
            out,
        )
    }
    fn finish(&mut self, comm: usize) -> Outcome {
        let mut out = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while out.is_empty() {
            if !self.step(comm, &mut out) {
                assert!(
                    Instant::now() < deadline,
                    "rank {} waits for ever",
                    self.rank
                );
                std::thread::yield_now();
            }
        }
        assert_eq!(out.len(), 1);
        out[0].outcome
    }
    fn run(&mut self, params: Params, input: (u64, u64), output: (u64, u64), g: Access) -> Outcome {
        let (input, output) = (
            self.gpu.pages(input.0, input.1, g),
            self.gpu.pages(output.0, output.1, g),
        );
        post(&mut self.comms[0], 7, params, input, output);
        self.finish(0)
    }
}

/// Runs `body` as every rank of `comms` communicators; what it returns, by rank.
fn ranks<R: Send + 'static>(
    n: u32,
    comms: usize,
    body: impl Fn(&mut Rank) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let gpus: Vec<_> = (0..n).map(|r| Arc::new(Gpu::new(r))).collect();
    let mut memories: Vec<_> = (0..n)
        .map(|_| NicMemory::new(8 << 20).expect("memfd"))
        .collect();
    let mut pool = AreaPool::default();
    let mut paths: Vec<Vec<Direct>> = (0..n)
        .map(|r| {
            let nic_memory = &mut memories[r as usize];
            (0..comms)
                .map(|c| {
                    Direct::new(nic_memory, &mut pool, c as u64, r, n, EAGER, Order::Ring)
                        .expect("room")
                })
                .collect()
        })
        .collect();
    for c in 0..comms {
        let addresses: Vec<u64> = paths.iter().map(|p| p[c].address()).collect();
        for p in &mut paths {
            for (r, a) in addresses.iter().enumerate() {
                p[c].set_peer(r as u32, *a);
            }
            assert!(p[c].is_ready());
        }
    }
    let windows = memories
        .iter()
        .zip(&gpus)
        .map(|(b, g)| Window {
            nic_memory: b.at_bus(NIC_BUS, b.len()).expect("all of it") as usize,
            board_len: b.len(),
            gpu: g.map.base() as usize,
            gone: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
        })
        .collect();
    let world = Arc::new(World { windows });
    let body = Arc::new(body);
    let threads: Vec<_> = memories
        .into_iter()
        .zip(gpus)
        .zip(paths)
        .enumerate()
        .map(|(r, ((nic_memory, gpu), comms))| {
            let (world, body) = (world.clone(), body.clone());
            std::thread::spawn(move || {
                let mut rank = Rank {
                    rank: r as u32,
                    gpu,
                    nic_memory,
                    comms,
                    world,
                    start: Instant::now(),
                };
                let result = body(&mut rank);
                // The memory stays until all threads have ended.
                (result, rank)
            })
        })
        .collect();
    let ended: Vec<_> = threads
        .into_iter()
        .map(|t| t.join().expect("a rank"))
        .collect();
    let mut results = Vec::new();
    for (result, mut rank) in ended {
        for d in std::mem::take(&mut rank.comms) {
            d.free(&mut rank.nic_memory, &mut pool);
        }
        let kept = std::mem::take(&mut pool).bytes();
        assert_eq!(rank.nic_memory.used(), kept, "NIC memory was lost");
        results.push(result);
    }
    results
}

fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

fn params(kind: K, dtype: DataType, op: ReduceOp, root: u32, count: u64) -> Params {
    Params {
        kind,
        dtype,
        op,
        algo: Algorithm::Ring,
        wire: WireType::Same,
        root,
        count,
        extra: 0,
        direct: true,
    }
}

/// Blocks of `count` elements that a rank's source and destination have.
fn blocks(kind: K, n: u32, rank: u32, root: u32) -> (u64, u64) {
    let n = u64::from(n);
    let at_root = |x| if rank == root { x } else { 0 };
    match kind {
        K::AllReduce => (1, 1),
        K::Reduce => (1, at_root(1)),
        K::Broadcast => (at_root(1), 1),
        K::ReduceScatter => (n, 1),
        K::AllGather => (1, n),
        K::Scatter => (at_root(n), 1),
        K::Gather => (1, at_root(n)),
        K::AllToAll => (n, n),
        _ => (0, 0),
    }
}

/// What rank `rank` must end up with, from all sources.
fn expected(p: &Params, rank: u32, inputs: &[Vec<u8>]) -> Vec<u8> {
    let n = inputs.len();
    let (size, count) = (p.dtype.bytes() as usize, p.count as usize);
    let block = |r: usize, b: usize| &inputs[r][b * count * size..(b + 1) * count * size];
    let (me, root) = (rank as usize, p.root as usize);
    // Elements of block `b` reduced over all ranks, beginning with rank `first`.
    let reduced = |b: usize, first: usize, elements: std::ops::Range<usize>| {
        let srcs: Vec<*const u8> = (0..n)
            .map(|i| block((first + i) % n, b)[elements.start * size..].as_ptr())
            .collect();
        let mut out = vec![0u8; elements.len() * size];
        // SAFETY: all blocks have `count` elements.
        unsafe {
            let to = [out.as_mut_ptr()];
            reduce::fused_at(
                Level::Baseline,
                p.dtype,
                p.op,
                &to,
                &srcs,
                elements.len(),
                false,
            );
        }
        out
    };
    match p.kind {
        K::AllReduce | K::Reduce => {
            if p.kind == K::Reduce && me != root {
                return Vec::new();
            }
            // Table 8: chunk i begins with rank i.
            (0..n)
                .flat_map(|i| reduced(0, i, i * count / n..(i + 1) * count / n))
                .collect()
        }
        K::ReduceScatter => reduced(me, me, 0..count),
        K::Broadcast => block(root, 0).to_vec(),
        K::AllGather => (0..n).flat_map(|r| block(r, 0).to_vec()).collect(),
        K::Gather if me == root => (0..n).flat_map(|r| block(r, 0).to_vec()).collect(),
        K::Scatter => block(root, me).to_vec(),
        K::AllToAll => (0..n).flat_map(|r| block(r, me).to_vec()).collect(),
        _ => Vec::new(),
    }
}

const COLLECTIVES: [K; 9] = [
    K::AllReduce,
    K::Reduce,
    K::Broadcast,
    K::ReduceScatter,
    K::AllGather,
    K::Scatter,
    K::Gather,
    K::AllToAll,
    K::Barrier,
];

/// Runs every case on `n` ranks and compares every rank's result.
fn check(n: u32, cases: Vec<(Params, bool, Access)>, way: fn(&DirectStats) -> u64) {
    let listed = cases.clone();
    let got = ranks(n, 1, move |me| {
        let mut results = Vec::new();
        for (i, (p, in_place, grants)) in cases.iter().enumerate() {
            let (b_in, b_out) = blocks(p.kind, n, me.rank, p.root);
            let bytes = p.count * p.dtype.bytes();
            let skew = (i as u64 * 13 + u64::from(me.rank)) % 67;
            let input = VA + 3 * PAGE_BYTES - 130 + skew;
            let output = if *in_place {
                input
            } else {
                VA + MEMORY as u64 / 2 + PAGE_BYTES - 64 + skew % 5
            };
            me.gpu.write(output, &vec![0xee; (b_out * bytes) as usize]);
            let data = noise(i as u64 * 64 + u64::from(me.rank), b_in * bytes);
            me.gpu.write(input, &data);
            let outcome = me.run(*p, (input, b_in * bytes), (output, b_out * bytes), *grants);
            assert_eq!(outcome, Outcome::Done, "rank {} of {n}, {p:?}", me.rank);
            let out = me.gpu.read(output, b_out * bytes);
            // The bytes on both sides belong to no buffer.
            results.push((data, out));
        }
        (results, way(&me.comms[0].stats()))
    });
    for (i, (p, in_place, _)) in listed.iter().enumerate() {
        let inputs: Vec<Vec<u8>> = got.iter().map(|(r, _)| r[i].0.clone()).collect();
        for (rank, (results, _)) in got.iter().enumerate() {
            let want = expected(p, rank as u32, &inputs);
            assert!(
                results[i].1 == want,
                "rank {rank} of {n}, in place {in_place}: {p:?}"
            );
        }
    }
    for (_, used) in &got {
        assert_eq!(*used, listed.len() as u64, "another way was taken");
    }
}

#[test]
fn every_collective_on_every_number_of_ranks() {
    for n in [1, 2, 3, 5, 8] {
        for (eager, counts) in [(true, &[0u64, 1, 7, 25][..]), (false, &[1023, 5001])] {
            let mut cases = Vec::new();
            for kind in COLLECTIVES {
                if kind == K::Barrier && !eager {
                    continue;
                }
                let roots = if kind.has_root() { n } else { 1 };
                for root in 0..roots {
                    for count in counts {
                        let p = params(kind, DataType::F32, ReduceOp::Sum, root, *count);
                        cases.push((p, false, ALL));
                    }
                }
            }
            // With 8 ranks and 25 elements, a source of 8 blocks is 800 bytes.
            let way = if eager {
                |s: &DirectStats| s.eager
            } else {
                |s: &DirectStats| s.push
            };
            check(n, cases, way);
        }
    }
}

#[test]
fn every_type_and_operation_out_of_place_and_in_place() {
    let mut small = Vec::new();
    let mut large = Vec::new();
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL.iter().filter(|op| op.takes(*dtype)) {
            for in_place in [false, true] {
                small.push((params(K::AllReduce, *dtype, *op, 0, 101), in_place, ALL));
                large.push((params(K::AllReduce, *dtype, *op, 0, 20_011), in_place, ALL));
            }
        }
    }
    check(3, small, |s| s.eager);
    check(3, large, |s| s.push);
}

#[test]
fn outputs_that_grant_no_writing_are_pulled() {
    let grants = Access {
        exported: true,
        writable: false,
    };
    let cases = COLLECTIVES
        .iter()
        .filter(|k| **k != K::Barrier)
        .map(|k| {
            (
                params(*k, DataType::I32, ReduceOp::Max, 1, 3001),
                false,
                grants,
            )
        })
        .collect();
    check(3, cases, |s| s.pull);
}

#[test]
fn memory_that_peers_cannot_reach_goes_through_windows_on_all_ranks() {
    let outcomes = ranks(3, 1, |me| {
        let p = params(K::AllReduce, DataType::F32, ReduceOp::Sum, 0, 5000);
        let exported = me.rank != 1;
        let grants = Access {
            exported,
            writable: true,
        };
        let buffer = (VA, p.count * 4);
        let first = me.run(p, buffer, (VA + (1 << 20), buffer.1), grants);
        // In place, some rank must write to others: reading is not enough.
        let read_only = Access {
            exported: true,
            writable: false,
        };
        let second = me.run(p, buffer, buffer, read_only);
        // Small operations carry their inputs with them.
        let small = Params { count: 3, ..p };
        (
            first,
            second,
            me.run(small, (VA, 12), (VA + 64, 12), grants),
        )
    });
    assert_eq!(
        outcomes,
        vec![(Outcome::Done, Outcome::Done, Outcome::Done); 3]
    );
}

#[test]
fn the_rank_that_differs_is_named() {
    let outcomes = ranks(3, 1, |me| {
        let p = params(K::AllReduce, DataType::F32, ReduceOp::Sum, 0, 10);
        let mine = Params {
            count: if me.rank == 2 { 900 } else { 10 },
            ..p
        };
        let bytes = mine.count * 4;
        let first = me.run(mine, (VA, bytes), (VA + (1 << 20), bytes), ALL);
        let other = Params {
            op: if me.rank == 2 {
                ReduceOp::Min
            } else {
                ReduceOp::Sum
            },
            ..p
        };
        let second = me.run(other, (VA, 40), (VA + (1 << 20), 40), ALL);
        // Nothing was moved, and the ranks can go on.
        let untouched = me.gpu.read(VA + (1 << 20), 40) == vec![0; 40];
        (
            first,
            second,
            untouched,
            me.run(p, (VA, 40), (VA + (1 << 20), 40), ALL),
        )
    });
    for (rank, o) in outcomes.iter().enumerate() {
        let named = Outcome::Mismatch {
            rank: if rank == 2 { 0 } else { 2 },
        };
        assert_eq!(*o, (named, named, true, Outcome::Done));
    }
}

#[test]
fn ten_thousand_operations_in_a_row() {
    ranks(2, 1, |me| {
        for i in 0..10_000u64 {
            // Eager and push mixed, at odd places.
            let count = if i % 7 == 0 { 300 + i % 5 } else { i % 11 };
            let p = params(K::AllReduce, DataType::U64, ReduceOp::Sum, 0, count);
            let at = VA + i % 3 * 8;
            let value = |rank: u64, e: u64| i * 1_000_003 + rank * 77 + e;
            let data: Vec<u8> = (0..count)
                .flat_map(|e| value(me.rank.into(), e).to_le_bytes())
                .collect();
            me.gpu.write(at, &data);
            let out = if i % 2 == 0 { at } else { VA + (1 << 20) };
            assert_eq!(
                me.run(p, (at, count * 8), (out, count * 8), ALL),
                Outcome::Done
            );
            let want: Vec<u8> = (0..count)
                .flat_map(|e| (value(0, e) + value(1, e)).to_le_bytes())
                .collect();
            assert!(me.gpu.read(out, count * 8) == want, "operation {i}");
        }
    });
}

#[test]
fn operations_posted_ahead_and_two_communicators_interleave() {
    ranks(3, 2, |me| {
        let count = |i: u64| if i.is_multiple_of(3) { 400 } else { 5 };
        let place = |comm: u64, i: u64| VA + comm * (1 << 21) + i * 8192;
        let posts = 40u64;
        for i in 0..posts {
            for comm in 0..2u64 {
                let p = params(K::AllReduce, DataType::I32, ReduceOp::Sum, 0, count(i));
                let v = (me.rank as i32 + 1) * (i as i32 + 1) + comm as i32;
                let data: Vec<u8> = (0..count(i)).flat_map(|_| v.to_le_bytes()).collect();
                let at = place(comm, i);
                me.gpu.write(at, &data);
                let pages = || me.gpu.pages(at, count(i) * 4, ALL);
                let (input, output) = (pages(), pages());
                post(&mut me.comms[comm as usize], i, p, input, output);
            }
        }
        let mut done = [Vec::new(), Vec::new()];
        let deadline = Instant::now() + PATIENCE;
        while done.iter().any(|d| d.len() < posts as usize) {
            assert!(Instant::now() < deadline);
            // Ranks look at their communicators in different order.
            for c in [me.rank as usize % 2, 1 - me.rank as usize % 2] {
                let mut out = Vec::new();
                me.step(c, &mut out);
                done[c].extend(out);
            }
            std::thread::yield_now();
        }
        for comm in 0..2u64 {
            let tokens: Vec<u64> = done[comm as usize]
                .iter()
                .map(|e: &Ended| e.op.call.token.0)
                .collect();
            assert_eq!(tokens, (0..posts).collect::<Vec<_>>(), "in order");
            for i in 0..posts {
                let want = 6 * (i as i32 + 1) + 3 * comm as i32;
                let want: Vec<u8> = (0..count(i)).flat_map(|_| want.to_le_bytes()).collect();
                assert!(me.gpu.read(place(comm, i), count(i) * 4) == want);
            }
        }
    });
}

#[test]
fn a_failed_peer_is_named() {
    let outcomes = ranks(3, 1, |me| {
        let p = params(K::AllReduce, DataType::F32, ReduceOp::Sum, 0, 70_000);
        let bytes = p.count * 4;
        if me.rank == 1 {
            // Its record is out, its part of the work is never done.
            let (input, output) = (
                me.gpu.pages(VA, bytes, ALL),
                me.gpu.pages(VA + (1 << 21), bytes, ALL),
            );
            post(&mut me.comms[0], 1, p, input, output);
            me.comms[0].publish(&mut me.nic_memory, &me.world);
            me.world.windows[1].gone.store(true, Ordering::Relaxed);
            return None;
        }
        Some(me.run(p, (VA, bytes), (VA + (1 << 21), bytes), ALL))
    });
    // One of the two may get it from the other.
    for (rank, other) in [(0, 2), (2, 0)] {
        let o = outcomes[rank];
        let named = Some(Outcome::PeerFailed { rank: 1 });
        let told = Some(Outcome::PeerAborted { rank: other });
        assert!(o == named || o == told, "{o:?}");
    }
    assert!(outcomes.contains(&Some(Outcome::PeerFailed { rank: 1 })));
}

#[test]
fn after_an_abort_no_rank_writes_the_buffers() {
    for round in 0..20u64 {
        let barrier = Arc::new(Barrier::new(2));
        let stored = Arc::new(AtomicU64::new(0));
        let (b, s) = (barrier.clone(), stored.clone());
        let outcomes = ranks(2, 1, move |me| {
            let p = params(K::AllReduce, DataType::F32, ReduceOp::Sum, 0, 400_000);
            let bytes = p.count * 4;
            let (input, output) = (
                me.gpu.pages(VA, bytes, ALL),
                me.gpu.pages(VA + (1 << 21), bytes, ALL),
            );
            post(&mut me.comms[0], 1, p, input, output);
            if me.rank == 1 {
                // Steps on until it sees the abort.
                let o = me.finish(0);
                s.store(me.comms[0].stats().stored, Ordering::Relaxed);
                b.wait();
                return (o, true);
            }
            let mut out = Vec::new();
            me.step(0, &mut out);
            for _ in 0..round * 50 {
                std::hint::spin_loop();
            }
            let now = me.now();
            me.comms[0].abort(now);
            let o = me.finish(0);
            // From here on the buffer is the user's.
            me.gpu.write(VA + (1 << 21), &vec![0x5a; bytes as usize]);
            b.wait();
            let mine = me.gpu.read(VA + (1 << 21), bytes) == vec![0x5a; bytes as usize];
            (o, mine)
        });
        assert_eq!(outcomes[0], (Outcome::Aborted, true));
        assert_eq!(outcomes[1].0, Outcome::PeerAborted { rank: 0 });
    }
}

#[test]
fn addresses_that_a_peer_does_not_export_are_refused() {
    let outcomes = ranks(2, 1, |me| {
        let p = params(K::AllReduce, DataType::F32, ReduceOp::Sum, 0, 5000);
        let bytes = p.count * 4;
        let lie = |offset: u64| {
            let bus = if me.rank == 1 {
                MEMORY as u64 - 16
            } else {
                me.gpu.bus(VA)
            };
            Ok::<_, ()>((bus, me.gpu.cpu(VA + offset), bytes))
        };
        let pages = || Pages::new(VA, bytes, ALL, lie).expect("mapped");
        let (input, output) = (pages(), pages());
        post(&mut me.comms[0], 1, p, input, output);
        me.finish(0)
    });
    assert_eq!(outcomes[0], Outcome::PeerFailed { rank: 1 });
}

#[test]
fn sequence_numbers_wrap() {
    ranks(2, 1, |me| {
        // Ten operations before the numbers in the records begin anew.
        let first = crate::collective::params::fold([0]);
        let before = u64::from(first.wrapping_add(10).wrapping_neg());
        (me.comms[0].posted, me.comms[0].ended) = (before, before);
        for i in 0..30u64 {
            let count = [3, 100, 700][i as usize % 3];
            let p = params(K::AllReduce, DataType::U64, ReduceOp::Sum, 0, count);
            let value = (u64::from(me.rank) + 1) * (i + 1);
            let data: Vec<u8> = (0..count).flat_map(|_| value.to_le_bytes()).collect();
            me.gpu.write(VA, &data);
            let out = (VA + (1 << 20), count * 8);
            assert_eq!(me.run(p, (VA, count * 8), out, ALL), Outcome::Done);
            let want: Vec<u8> = (0..count)
                .flat_map(|_| (3 * (i + 1)).to_le_bytes())
                .collect();
            assert!(me.gpu.read(out.0, out.1) == want, "operation {i}");
        }
        assert!(
            (first.wrapping_add(me.comms[0].posted as u32)) < 100,
            "they have wrapped"
        );
    });
}

/// Two counts whose operations have one hash.
fn colliding(form: Form, counts: std::ops::Range<u64>) -> [u64; 2] {
    let mut seen = std::collections::HashMap::new();
    for count in counts {
        let p = params(K::AllReduce, DataType::U8, ReduceOp::Sum, 0, count);
        if let Some(other) = seen.insert(Shape::of(&p, form).0, count) {
            return [other, count];
        }
    }
    panic!("no two hashes are equal");
}

#[test]
fn operations_with_equal_hashes_are_distinguished() {
    // Counts beyond what any memory holds: the comparison comes before a byte moves.
    let counts = colliding(Form::Placed, 2000..400_000);
    let outcomes = ranks(2, 1, move |me| {
        let count = counts[me.rank as usize];
        let p = params(K::AllReduce, DataType::U8, ReduceOp::Sum, 0, count);
        let bytes = count.min(MEMORY as u64 / 2);
        me.run(p, (VA, bytes), (VA + (1 << 21), bytes), ALL)
    });
    for (rank, o) in outcomes.iter().enumerate() {
        assert_eq!(
            *o,
            Outcome::Mismatch {
                rank: 1 - rank as u32
            }
        );
    }
}

#[test]
fn shapes_of_short_operations_are_exact() {
    let mut seen = std::collections::HashMap::new();
    for kind in COLLECTIVES {
        for dtype in DataType::ALL {
            for op in ReduceOp::ALL.iter().filter(|op| op.takes(*dtype)) {
                for root in [0, 1, 63, 64, MAX_DIRECT_RANKS - 1] {
                    for count in 0..=INLINE_BYTES / dtype.bytes() {
                        let p = params(kind, *dtype, *op, root, count);
                        let shape = Shape::of(&p, Form::Inline);
                        assert!(!shape.wants_messages() && shape.0 != 0);
                        assert_eq!(seen.insert(shape.0, p), None, "{p:?}");
                        let longer = Shape::of(&p, Form::Eager);
                        assert!(!shape.agrees(longer), "{p:?}");
                    }
                }
            }
        }
    }
}
