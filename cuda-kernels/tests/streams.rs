//! A kernel's ends of streams, against a thread that takes from one and pushes into the other, as
//! NICs do.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use common::{gpu, load_selftest, result, GpuResult, MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::collective::CommHandle;
use ringbell_cuda_kernels::{Gpu, GpuBuffer};
use ringbell_nic_abi::kernel_stream::{state_of, DATA_AT, HEAD_AT, STATE_AT, TAIL_AT};
use ringbell_nic_abi::{
    Algorithm, CollectiveKind as K, CollectiveSpec, DataType, GpuVa, ReduceOp, Status, StreamRef,
    WireType,
};

const T: u32 = 60_000_000;

/// A stream in GPU memory whose indices begin at `start`.
pub(crate) struct Ring {
    memory: GpuBuffer,
    log2: u32,
}

impl Ring {
    pub(crate) fn new(gpu: &Gpu, log2: u32, start: u64) -> Ring {
        let memory = gpu.alloc(DATA_AT + (1 << log2)).unwrap();
        memory.write(0, &vec![0; memory.len() as usize]).unwrap();
        memory.store_u64(HEAD_AT, start).unwrap();
        memory.store_u64(TAIL_AT, start).unwrap();
        Ring { memory, log2 }
    }

    pub(crate) fn stream(&self) -> StreamRef {
        StreamRef {
            va: self.memory.va(),
            log2: self.log2,
        }
    }

    fn index(&self, at: u64) -> u64 {
        self.memory.load_u64(at).unwrap()
    }

    /// The bytes from `index` on, in the one or two pieces that they lie in.
    fn pieces(&self, index: u64, len: u64) -> [(u64, u64); 2] {
        let at = index & ((1 << self.log2) - 1);
        let first = len.min((1 << self.log2) - at);
        [(DATA_AT + at, first), (DATA_AT, len - first)]
    }

    fn take(&self, index: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (at, len) in self.pieces(index, len) {
            let mut piece = vec![0; len as usize];
            self.memory.read(at, &mut piece).unwrap();
            bytes.extend(piece);
        }
        bytes
    }

    fn put(&self, index: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (at, len) in self.pieces(index, bytes.len() as u64) {
            let (piece, after) = rest.split_at(len as usize);
            self.memory.write(at, piece).unwrap();
            rest = after;
        }
    }
}

/// Takes from `a` and pushes into `b`, in steps of `step` bytes at most, until `stop` is set.
pub(crate) fn relay(a: &Ring, b: &Ring, step: u64, stop: &AtomicBool) {
    // Ours alone; the kernel's ends are read anew each time.
    let (mut tail, mut head) = (a.index(TAIL_AT), b.index(HEAD_AT));
    while !stop.load(Ordering::Relaxed) {
        let has = a.index(HEAD_AT).wrapping_sub(tail);
        let room = (1 << b.log2) - head.wrapping_sub(b.index(TAIL_AT));
        assert!(
            has <= 1 << a.log2 && room <= 1 << b.log2,
            "an index ran away"
        );
        let n = has.min(room).min(step);
        if n == 0 {
            std::thread::yield_now();
            continue;
        }
        b.put(head, &a.take(tail, n));
        (tail, head) = (tail.wrapping_add(n), head.wrapping_add(n));
        a.memory.store_u64(TAIL_AT, tail).unwrap();
        b.memory.store_u64(HEAD_AT, head).unwrap();
    }
}

fn nic(gpu: &Gpu) -> MockNic {
    MockNic::start(gpu, Queue::new(gpu, 4, 0, T, 1_000_000))
}

struct Case {
    lanes: u32,
    bytes: u32,
    count: u64,
    start: u64,
    timeout_us: u32,
}

fn run(gpu: &Gpu, nic: &MockNic, rings: [&Ring; 2], c: &Case) -> ([GpuResult; 2], u32) {
    let (out, wrong) = (gpu.alloc(48).unwrap(), gpu.alloc(4).unwrap());
    wrong.write(0, &[0; 4]).unwrap();
    let args = [
        nic.handle(),
        rings[0].stream().into(),
        rings[1].stream().into(),
        c.count.into(),
        c.bytes.into(),
        c.timeout_us.into(),
        (&out).into(),
        (&wrong).into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("t_stream", 2, c.lanes, &args) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    (
        [result(&out, 0), result(&out, 1)],
        wrong.load_u32(0).unwrap(),
    )
}

#[test]
fn every_scope_and_size_pushes_and_pops_its_elements_past_every_wrap() {
    let gpu = gpu();
    let nic = nic(&gpu);
    load_selftest(&gpu);
    let near = (1u64 << 32) - 100;
    for (i, (lanes, bytes)) in [(1, 1), (1, 8), (20, 4), (32, 4), (64, 4), (96, 8)]
        .into_iter()
        .enumerate()
    {
        for (count, start) in [(1u64, 0), (201, near), (303, u64::MAX - 40)] {
            let a = Arc::new(Ring::new(&gpu, 6 + i as u32 % 3, start));
            let b = Arc::new(Ring::new(&gpu, 6 + i as u32 % 2, start));
            let stop = Arc::new(AtomicBool::new(false));
            let thread = {
                let (a, b, stop) = (a.clone(), b.clone(), stop.clone());
                std::thread::spawn(move || relay(&a, &b, 1 + i as u64 * 7, &stop))
            };
            let case = Case {
                lanes,
                bytes,
                count,
                start,
                timeout_us: T,
            };
            let (ends, wrong) = run(&gpu, &nic, [&a, &b], &case);
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap();
            assert_eq!(wrong, 0, "{lanes} lanes, {bytes} bytes, {count}");
            let size = if lanes > 1 && bytes == 1 {
                4
            } else {
                u64::from(bytes)
            };
            for (r, what) in ends.iter().zip(["push", "pop"]) {
                assert_eq!(r.status, Status::Ok, "{what}");
                assert_eq!(
                    r.bytes,
                    if count > 1 { (count - 1) * size } else { 0 },
                    "{what}"
                );
            }
            let end = case.start.wrapping_add(count * size);
            assert_eq!(a.memory.load_u64(TAIL_AT).unwrap(), end);
            assert_eq!(b.memory.load_u64(TAIL_AT).unwrap(), end);
        }
    }
}

#[test]
fn a_wait_ends_with_its_time_out_or_the_nics_status() {
    let gpu = gpu();
    let nic = nic(&gpu);
    load_selftest(&gpu);
    for lanes in [1, 32, 64] {
        // Without the other side, the ring of 64 bytes fills, or stays empty.
        let (a, b) = (Ring::new(&gpu, 6, 8), Ring::new(&gpu, 6, 0));
        let mut case = Case {
            lanes,
            bytes: 8,
            count: 100,
            start: 8,
            timeout_us: 3_000,
        };
        let size = if lanes == 32 { 4 } else { 8 };
        let (ends, _) = run(&gpu, &nic, [&a, &b], &case);
        assert_eq!(
            (ends[0].status, ends[0].bytes),
            (Status::TimedOut, 64 - size)
        );
        assert_eq!((ends[1].status, ends[1].bytes), (Status::TimedOut, 0));
        assert_eq!(
            a.memory.load_u64(HEAD_AT).unwrap(),
            8 + 64,
            "published all the same"
        );
        // The operation has failed: both ends get its status, long before their own time-out.
        for ring in [&a, &b] {
            ring.memory
                .store_u64(STATE_AT, state_of(Status::PeerFailed, 3))
                .unwrap();
        }
        case.timeout_us = T;
        let (ends, _) = run(&gpu, &nic, [&a, &b], &case);
        for r in ends {
            assert_eq!((r.status, r.detail), (Status::PeerFailed, 3));
        }
    }
}

#[test]
fn streamed_operations_flag_the_operands_that_are_streams() {
    let gpu = gpu();
    let nic = nic(&gpu);
    load_selftest(&gpu);
    let ring = Ring::new(&gpu, 12, 0);
    let (memory, out) = (gpu.alloc(64).unwrap(), gpu.alloc(24 * 10).unwrap());
    let comm = CommHandle {
        queue: nic.queue.handle(),
        comm: 7,
        rank: 2,
        size: 5,
        algo: Algorithm::Ring,
        // Messages have no algorithm.
        algo_kinds: u16::MAX >> 1,
        wire: WireType::Same,
        block_queues: GpuVa(0),
        block_queue_count: 0,
    };
    let args = [
        comm.into(),
        ring.stream().into(),
        (&memory).into(),
        (&out).into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("t_streamed", 1, 1, &args) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    let seen = nic.seen.lock().unwrap();
    let (s, m) = (ring.stream().word(), memory.va().0);
    let none = 0;
    let want = [
        (K::StreamSend, DataType::F64, 5, 3, (s, true), (none, false)),
        (
            K::StreamRecv,
            DataType::F64,
            5,
            3,
            (none, false),
            (m, false),
        ),
        (K::AllReduce, DataType::F32, 6, 0, (s, true), (m, false)),
        (K::Reduce, DataType::I32, 7, 1, (m, false), (s, true)),
        (K::AllGather, DataType::F32, 8, 0, (s, true), (m, false)),
        (K::ReduceScatter, DataType::F32, 9, 0, (m, false), (s, true)),
        (K::Broadcast, DataType::U8, 10, 2, (s, true), (m, false)),
        (K::Gather, DataType::F32, 11, 0, (s, true), (m, false)),
        (K::Gather, DataType::I64, 12, 1, (m, false), (s, true)),
        (K::Scatter, DataType::U32, 13, 4, (s, true), (m, false)),
    ];
    assert_eq!(seen.len(), want.len());
    for (i, (d, (kind, dtype, count, root, src, dst))) in seen.iter().zip(want).enumerate() {
        assert_eq!(result(&out, i as u64).status, Status::Ok);
        let spec = CollectiveSpec::decode(d.imm, d.len).expect("codes that exist");
        assert_eq!(
            (spec.kind, spec.dtype, d.operand, d.rkey.0),
            (kind, dtype, count, root)
        );
        assert_eq!((d.local_va.0, spec.from_stream), src, "{kind:?}");
        assert_eq!((d.remote_va.0, spec.to_stream), dst, "{kind:?}");
        let algo = match kind {
            K::StreamSend | K::StreamRecv => Algorithm::Auto,
            _ => Algorithm::Ring,
        };
        assert!(spec.streamed && spec.wire == WireType::Same && spec.algo == algo);
        assert_eq!(spec.op == ReduceOp::Max, kind == K::Reduce);
        let tag = match kind {
            K::StreamSend | K::StreamRecv => 9,
            K::Scatter => 200,
            _ => 0,
        };
        assert_eq!(d.lkey.0, tag, "{kind:?}");
    }
}
