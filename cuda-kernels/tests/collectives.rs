//! What the device API of collectives posts, against the mock NIC; what the NIC makes of it is
//! tested where the NIC is.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::common;

use common::{gpu, load_selftest, result, MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::collective::{CollectiveLaunch, CommHandle};
use ringbell_cuda_kernels::Gpu;
use ringbell_nic_abi::{
    Algorithm, CollectiveKind, CollectiveSpec, DataType, Descriptor, Flags, GpuVa, Opcode,
    ReduceOp, Status, WireType,
};

const T: u32 = 60_000_000;

fn nic(gpu: &Gpu) -> MockNic {
    MockNic::start(gpu, Queue::new(gpu, 5, u32::MAX - 3, T, 1_000_000))
}

fn comm(nic: &MockNic) -> CommHandle {
    CommHandle {
        queue: nic.queue.handle(),
        comm: 0x12_3456,
        rank: 2,
        size: 5,
        algo: Algorithm::Ring,
        // As if a broadcast had it, and a message and nothing not.
        algo_kinds: 1 << CollectiveKind::AllReduce.code() | 1 << CollectiveKind::Broadcast.code(),
        wire: WireType::Bf16,
        block_queues: GpuVa(0),
        block_queue_count: 0,
    }
}

fn spec(d: &Descriptor) -> CollectiveSpec {
    assert_eq!(d.opcode, Opcode::Collective);
    CollectiveSpec::decode(d.imm, d.len).expect("codes that exist")
}

#[test]
fn every_operation_has_its_parameters_in_its_descriptor() {
    let gpu = gpu();
    let nic = nic(&gpu);
    let (buffer, out) = (gpu.alloc(4096).unwrap(), gpu.alloc(24).unwrap());
    let stream = gpu.stream();
    for (i, kind) in CollectiveKind::ALL.iter().enumerate() {
        let launch = CollectiveLaunch {
            spec: CollectiveSpec {
                dtype: DataType::Bf16,
                op: ReduceOp::Max,
                algo: if i % 2 == 0 {
                    Algorithm::Tree
                } else {
                    Algorithm::Auto
                },
                wire: WireType::F16,
                ..CollectiveSpec::new(*kind)
            },
            src: buffer.va(),
            dst: GpuVa(buffer.va().0 + 2048),
            count: 77 + i as u64,
            root: 3,
            tag: 9,
            timeout_us: T + 1,
        };
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let run = unsafe { launch.on(&stream, comm(&nic), out.va()) }.unwrap();
        run.wait(PATIENCE).unwrap();
        let r = result(&out, 0);
        use CollectiveKind as K;
        if matches!(kind, K::StreamSend | K::StreamRecv) {
            assert_eq!(r.status, Status::InvalidArgument, "{kind:?}");
            continue;
        }
        assert_eq!(r.status, Status::Ok, "{kind:?}");
        let d = *nic.seen.lock().unwrap().last().expect("one was posted");
        let s = spec(&d);
        assert_eq!(s.kind, *kind);
        assert_eq!((d.session.0, d.timeout_us), (0x12_3456, T + 1));
        // What asks for none has the communicator's, where that is for it.
        let algo = match launch.spec.algo {
            Algorithm::Auto if matches!(kind, K::AllReduce | K::Broadcast) => Algorithm::Ring,
            algo => algo,
        };
        assert_eq!((s.algo, s.wire, s.after), (algo, WireType::F16, 0));
        if matches!(kind, K::Nop | K::Barrier) {
            assert_eq!(d.operand, 0);
            continue;
        }
        assert_eq!((s.dtype, d.operand), (DataType::Bf16, launch.count));
        let reduces = matches!(
            kind,
            K::Combine | K::Reduce | K::ReduceScatter | K::AllReduce
        );
        assert_eq!(s.op == ReduceOp::Max, reduces, "{kind:?}");
        let rooted = kind.has_root() || matches!(kind, K::Send | K::Recv);
        assert_eq!(d.rkey.0, if rooted { 3 } else { 0 }, "{kind:?}");
        let tagged = matches!(kind, K::Send | K::Recv);
        assert_eq!(d.lkey.0, if tagged { 9 } else { 0 }, "{kind:?}");
        assert_eq!(d.local_va.0 != 0, *kind != K::Recv);
        assert_eq!(d.remote_va.0 != 0, *kind != K::Send);
    }
}

fn run(gpu: &Gpu, kernel: &str, lanes: u32, nic: &MockNic) -> Vec<common::GpuResult> {
    let out = gpu.alloc(24 * 8).unwrap();
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let launch =
        unsafe { gpu.launch(kernel, 1, lanes, &[comm(nic).into(), (&out).into()]) }.unwrap();
    launch.wait(PATIENCE).unwrap();
    (0..8).map(|i| result(&out, i)).collect()
}

#[test]
fn requests_are_chained_by_distance_also_where_tickets_wrap() {
    let gpu = gpu();
    let nic = nic(&gpu);
    load_selftest(&gpu);
    let results = run(&gpu, "t_chain", 1, &nic);
    assert!(
        results[..3].iter().all(|r| r.status == Status::Ok),
        "{results:?}"
    );
    let seen = nic.seen.lock().unwrap();
    let after: Vec<u32> = seen.iter().map(|d| spec(d).after).collect();
    assert_eq!(after, [0, 1, 1, 0]);
    // The communicator's defaults, because the call asked for none, where the operation can have
    // them.
    let (ring, auto) = (Algorithm::Ring, Algorithm::Auto);
    let chosen: Vec<_> = seen.iter().map(|d| spec(d).algo).collect();
    assert_eq!(chosen, [ring, ring, auto, auto]);
    let (bf16, same) = (WireType::Bf16, WireType::Same);
    let wire: Vec<_> = seen.iter().map(|d| spec(d).wire).collect();
    assert_eq!(wire, [bf16, bf16, bf16, same], "nothing is no f32");
    assert!(seen[3].flags.contains(Flags::FENCE) && !seen[2].flags.contains(Flags::FENCE));
}

#[test]
fn a_warp_and_a_block_post_once_and_every_lane_gets_the_result() {
    let gpu = gpu();
    let nic = nic(&gpu);
    load_selftest(&gpu);
    let results = run(&gpu, "t_collective_scopes", 64, &nic);
    // Lanes that saw another result than OK are counted in `bytes`.
    assert_eq!((results[0].status, results[0].bytes), (Status::Ok, 0));
    let kinds: Vec<_> = nic
        .seen
        .lock()
        .unwrap()
        .iter()
        .map(|d| spec(d).kind)
        .collect();
    let of = |k| kinds.iter().filter(|x| **x == k).count();
    assert_eq!(of(CollectiveKind::Barrier), 1, "one for the block");
    assert_eq!(
        of(CollectiveKind::AllReduce),
        2,
        "one for each of two warps"
    );
}
