//! The GPU-side count ends with the registers of the engine on the path.
#![allow(unsafe_code)] // Launches kernels.

use crate::common;

use common::{gpu, MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::hll::{HllError, HllKernel, HllRing};
use ringbell_cuda_kernels::{Gpu, GpuBuffer, KernelArg};
use ringbell_nic_abi::{GpuVa, SessionId, Status};
use ringbell_onc_engines::stream::conformance::noise;
use ringbell_onc_engines::stream::hll::{HashKind, Sketch};

const T: u32 = 30_000_000;

fn sketch(kernel: &HllKernel, stream: &[u8]) -> Sketch {
    let hash = HashKind::ALL[kernel.hash as usize];
    let width = kernel.width as usize;
    let mut sketch = Sketch::new(kernel.precision as u8, hash, width).unwrap();
    sketch.update(&stream[..stream.len() / width * width]);
    sketch
}

fn zeroed(gpu: &Gpu, bytes: u64) -> GpuBuffer {
    let buffer = gpu.alloc(bytes).unwrap();
    buffer.write(0, &vec![0; bytes as usize]).unwrap();
    buffer
}

#[test]
fn every_hash_and_width_gives_the_engines_registers() {
    let gpu = gpu();
    // Not a whole number of items, and of lanes.
    let stream = noise(3, 100_003);
    let items = gpu.alloc(stream.len() as u64).unwrap();
    items.write(0, &stream).unwrap();
    // Sign bits matter to DataSketches' integers: noise has both.
    for hash in 0..4 {
        for (i, width) in [1u32, 2, 4, 8, 16].into_iter().enumerate() {
            let shapes = [(1, 1), (1, 64), (8, 32), (3, 100), (2, 512)];
            let (blocks, lanes) = shapes[(i + hash as usize) % shapes.len()];
            let kernel = HllKernel {
                blocks,
                lanes,
                hash,
                width,
                precision: 4 + 3 * hash,
            };
            let registers = zeroed(&gpu, kernel.register_bytes());
            let bytes = stream.len() as u64;
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            let launch = unsafe { kernel.count(&gpu, &items, bytes, &registers) }.unwrap();
            launch.wait(PATIENCE).unwrap();
            let sketch = sketch(&kernel, &stream);
            let got = kernel.read_registers(&registers).unwrap();
            assert!(got == sketch.registers(), "{kernel:?}");
            let of_gpu = Sketch::from_registers(sketch.hash(), sketch.width(), &got).unwrap();
            assert_eq!(of_gpu.estimate(), sketch.estimate_from_registers());
            // Once more changes nothing.
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            let launch = unsafe { kernel.count(&gpu, &items, bytes, &registers) }.unwrap();
            launch.wait(PATIENCE).unwrap();
            assert!(kernel.read_registers(&registers).unwrap() == got);
            // From the second item on: the head is not a whole vector.
            let registers = zeroed(&gpu, kernel.register_bytes());
            let rest = bytes - u64::from(width);
            let args = [
                GpuVa(items.va().0 + u64::from(width)).into(),
                rest.into(),
                hash.into(),
                width.into(),
                kernel.precision.into(),
                (&registers).into(),
            ];
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            let launch = unsafe { gpu.launch("rb_hll_count", blocks, lanes, &args) }.unwrap();
            launch.wait(PATIENCE).unwrap();
            let sketch = self::sketch(&kernel, &stream[width as usize..]);
            assert!(
                kernel.read_registers(&registers).unwrap() == sketch.registers(),
                "{kernel:?}"
            );
        }
    }
}

#[test]
fn a_received_stream_is_counted_chunk_by_chunk() {
    let gpu = gpu();
    let stream = noise(4, 200_000);
    let source = gpu.alloc(stream.len() as u64).unwrap();
    source.write(0, &stream).unwrap();
    let out = gpu.alloc(4096).unwrap();
    for (blocks, lanes, slots, slot_bytes, total) in [
        (1u32, 1u32, 1u32, 4096u64, 10_000u64),
        (1, 64, 2, 4096, 50_000),
        (4, 32, 2, 16_384, 200_000),
        (3, 32, 5, 1024, 100_001),
        (2, 16, 32, 16, 1_000),
        (2, 8, 4, 4096, 0),
    ] {
        let nic = MockNic::with(
            &gpu,
            (0..2)
                .map(|_| Queue::new(&gpu, 7, 0, T, 1_000_000))
                .collect(),
        );
        let kernel = HllKernel {
            blocks,
            lanes,
            hash: 2,
            width: 4,
            precision: 10,
        };
        let registers = zeroed(&gpu, kernel.register_bytes());
        let ring = gpu.alloc(slot_bytes * u64::from(slots)).unwrap();
        let work = gpu.alloc(HllKernel::work_bytes()).unwrap();
        let KernelArg::Queue(queue) = nic.handle_of(1) else {
            panic!("a queue");
        };
        let ring = HllRing {
            memory: &ring,
            slot_bytes,
            slots,
        };
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let counting = unsafe {
            kernel.receive(
                &gpu,
                queue,
                SessionId(101),
                ring,
                total,
                &registers,
                &work,
                T,
            )
        }
        .unwrap();
        if total > 0 {
            let send = [
                nic.handle(),
                100u32.into(),
                (&source).into(),
                total.into(),
                T.into(),
                (&out).into(),
            ];
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            let sending = unsafe { gpu.launch("rb_send_all", 1, 1, &send) }.unwrap();
            sending.wait(PATIENCE).unwrap();
        }
        counting.wait(PATIENCE).unwrap();
        let result = HllKernel::result(&work).unwrap();
        let case = format!("{blocks} x {lanes}, {slots} slots of {slot_bytes}: {result:?}");
        assert_eq!(result.status, Status::Ok, "{case}");
        let chunks = total.div_ceil(slot_bytes);
        assert_eq!((result.messages, result.bytes), (chunks, total), "{case}");
        let sketch = sketch(&kernel, &stream[..total as usize]);
        let got = kernel.read_registers(&registers).unwrap();
        assert!(got == sketch.registers(), "{case}");
    }
}

#[test]
fn a_stream_that_ends_early_times_out_and_every_block_leaves() {
    let gpu = gpu();
    let nic = MockNic::with(
        &gpu,
        (0..2)
            .map(|_| Queue::new(&gpu, 7, 0, T, 1_000_000))
            .collect(),
    );
    let kernel = HllKernel {
        blocks: 3,
        lanes: 32,
        hash: 0,
        width: 8,
        precision: 8,
    };
    let registers = zeroed(&gpu, kernel.register_bytes());
    let (ring, work) = (
        gpu.alloc(8192).unwrap(),
        gpu.alloc(HllKernel::work_bytes()).unwrap(),
    );
    let (source, out) = (gpu.alloc(8192).unwrap(), gpu.alloc(4096).unwrap());
    let stream = noise(5, 6000);
    source.write(0, &stream).unwrap();
    let KernelArg::Queue(queue) = nic.handle_of(1) else {
        panic!("a queue");
    };
    let ring = HllRing {
        memory: &ring,
        slot_bytes: 4096,
        slots: 2,
    };
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let counting = unsafe {
        kernel.receive(
            &gpu,
            queue,
            SessionId(101),
            ring,
            1 << 20,
            &registers,
            &work,
            200_000,
        )
    }
    .unwrap();
    let send = [
        nic.handle(),
        100u32.into(),
        (&source).into(),
        6000u64.into(),
        T.into(),
        (&out).into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("rb_send_all", 1, 1, &send) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    counting.wait(PATIENCE).unwrap();
    let result = HllKernel::result(&work).unwrap();
    assert_eq!((result.status, result.messages), (Status::TimedOut, 1));
    // The chunk that arrived was counted.
    let got = kernel.read_registers(&registers).unwrap();
    assert!(got == sketch(&kernel, &stream[..4096]).registers());
}

#[test]
fn configurations_without_a_kernel_are_refused() {
    let gpu = gpu();
    let (items, registers) = (gpu.alloc(4096).unwrap(), gpu.alloc(4096).unwrap());
    let good = HllKernel {
        blocks: 1,
        lanes: 1,
        hash: 0,
        width: 4,
        precision: 8,
    };
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let refused = |kernel: HllKernel| match unsafe { kernel.count(&gpu, &items, 64, &registers) } {
        Err(HllError::Config { .. }) => true,
        other => panic!("{kernel:?}: {other:?}"),
    };
    assert!(refused(HllKernel { hash: 4, ..good }));
    assert!(refused(HllKernel { width: 3, ..good }));
    assert!(refused(HllKernel {
        precision: 19,
        ..good
    }));
    for lanes in [0, 513] {
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let refused = unsafe { HllKernel { lanes, ..good }.count(&gpu, &items, 64, &registers) };
        assert!(
            matches!(refused, Err(HllError::Lanes { .. })),
            "{refused:?}"
        );
    }
    let large = HllKernel {
        precision: 18,
        ..good
    };
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let refused = unsafe { large.count(&gpu, &items, 64, &registers) };
    assert!(
        matches!(
            refused,
            Err(HllError::Buffer {
                what: "registers",
                ..
            })
        ),
        "{refused:?}"
    );
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let refused = unsafe { good.count(&gpu, &items, 1 << 40, &registers) };
    assert!(
        matches!(refused, Err(HllError::Buffer { what: "items", .. })),
        "{refused:?}"
    );
}
