//! The GPU's reduction gives the bits of the NIC's.
#![allow(unsafe_code)] // The NIC's reduction takes pointers.

use crate::common;

use common::{gpu, PATIENCE};
use ringbell_cuda_kernels::perf::PerfResult;
use ringbell_cuda_kernels::reduce::{ReduceError, ReduceKernel, MAX_SOURCES};
use ringbell_cuda_kernels::Gpu;
use ringbell_nic_abi::{DataType, GpuVa, ReduceOp, Status};
use ringbell_onc_engines::reduce::fused;
use ringbell_onc_engines::stream::conformance::noise;

/// Random bits, among which every special value of the type stands beside every other.
fn operand(dtype: DataType, seed: u64, count: usize) -> Vec<u8> {
    let width = dtype.bytes() as usize;
    let mut bytes = noise(seed, count * width);
    // Both zeros, smallest and largest subnormals, ones, infinities, quiet and signalling NaNs.
    let special: Vec<u64> = match dtype {
        DataType::F16 => vec![
            0, 0x8000, 1, 0x3ff, 0x400, 0x3c00, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xfe12,
        ],
        DataType::Bf16 => vec![
            0, 0x8000, 1, 0x7f, 0x80, 0x3f80, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0xffc3,
        ],
        DataType::F32 => vec![
            0,
            1 << 31,
            1,
            0x7f_ffff,
            0x80_0000,
            0x3f80_0000,
            0xff7f_ffff,
            0x7f80_0000,
            0xff80_0000,
            0x7f80_0001,
            0xffc1_2345,
        ],
        DataType::F64 => [
            0.0,
            -0.0,
            f64::MIN_POSITIVE / 3.0,
            1.0,
            f64::MAX,
            f64::INFINITY,
            -f64::INFINITY,
        ]
        .map(f64::to_bits)
        .into_iter()
        .chain([0x7ff0_0000_0000_0001, 0xfff8_dead_0000_beef])
        .collect(),
        _ => vec![
            0,
            1,
            u64::MAX,
            1 << (8 * width - 1),
            (1 << (8 * width - 1)) - 1,
        ],
    };
    // A period that differs with the seed, so that pairs vary.
    let period = special.len() + seed as usize % 5;
    for (i, e) in bytes.chunks_exact_mut(width).enumerate().take(count / 2) {
        if let Some(v) = special.get(i % period) {
            e.copy_from_slice(&v.to_le_bytes()[..width]);
        }
    }
    bytes
}

/// What the NIC computes.
fn expected(dtype: DataType, op: ReduceOp, sources: &[Vec<u8>], count: usize) -> Vec<u8> {
    let mut out = vec![0; count * dtype.bytes() as usize];
    let from: Vec<*const u8> = sources.iter().map(|s| s.as_ptr()).collect();
    // SAFETY: every vector has `count` elements.
    unsafe { fused(dtype, op, &[out.as_mut_ptr()], &from, count, false) };
    out
}

/// Offsets of result and operands from a multiple of 16, in bytes.
struct Case<'a> {
    kernel: ReduceKernel,
    count: usize,
    to: u64,
    from: &'a [u64],
}

fn check(gpu: &Gpu, case: &Case<'_>, seed: u64) {
    let Case {
        kernel,
        count,
        to,
        from,
    } = *case;
    let ReduceKernel { dtype, op, .. } = kernel;
    let len = (count as u64) * dtype.bytes();
    let stride = (len + 64).next_multiple_of(16);
    let memory = gpu.alloc(stride * (from.len() as u64 + 1)).unwrap();
    let result = gpu.alloc(PerfResult::BYTES).unwrap();
    let mut sources = Vec::new();
    let mut at = Vec::new();
    for (i, offset) in from.iter().enumerate() {
        let bytes = operand(dtype, seed + i as u64, count);
        let place = stride * (i as u64 + 1) + offset;
        memory.write(place, &bytes).unwrap();
        at.push(GpuVa(memory.va().0 + place));
        sources.push(bytes);
    }
    // What lies around the result must stay.
    memory.write(0, &vec![0xa5; stride as usize]).unwrap();
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let launch = unsafe {
        kernel.launch(
            gpu,
            GpuVa(memory.va().0 + to),
            &at,
            count as u64,
            1,
            &result,
        )
    };
    launch.unwrap().wait(PATIENCE).unwrap();
    let done = PerfResult::read(&result, 0).unwrap();
    let what = format!("{kernel:?}: {count} elements at {to} from {from:?}");
    assert_eq!((done.status, done.bytes), (Status::Ok, len), "{what}");
    let mut got = vec![0; stride as usize];
    memory.read(0, &mut got).unwrap();
    let (before, rest) = got.split_at(to as usize);
    let (got, after) = rest.split_at(len as usize);
    let want = expected(dtype, op, &sources, count);
    let wrong = got.iter().zip(&want).position(|(a, b)| a != b);
    assert_eq!(wrong, None, "{what}: byte {wrong:?}");
    assert!(
        before.iter().chain(after).all(|b| *b == 0xa5),
        "{what}: wrote outside"
    );
}

#[test]
fn every_type_and_operation_gives_the_nics_bits_at_every_alignment() {
    let gpu = gpu();
    let mut seed = 1;
    for &dtype in DataType::ALL {
        let width = dtype.bytes();
        for &op in ReduceOp::ALL.iter().filter(|op| op.takes(dtype)) {
            // Together aligned; heads and tails; each different; not even multiples of an element.
            let layouts: [(u64, &[u64]); 5] = [
                (0, &[0, 0]),
                (width % 16, &[width % 16, width % 16, width % 16]),
                (0, &[4, 2, 1]),
                (8, &[0, 8]),
                (3, &[1, 5]),
            ];
            let shapes = [(1, 1), (1, 32), (3, 40), (2, 7), (1, 100)];
            for ((to, from), (blocks, lanes)) in layouts.into_iter().zip(shapes) {
                seed += 10;
                let kernel = ReduceKernel {
                    blocks,
                    lanes,
                    dtype,
                    op,
                };
                check(
                    &gpu,
                    &Case {
                        kernel,
                        count: 1003,
                        to,
                        from,
                    },
                    seed,
                );
            }
        }
    }
}

#[test]
fn few_elements_one_operand_and_many() {
    let gpu = gpu();
    for (i, count) in [0usize, 1, 2, 15, 16, 17, 33].into_iter().enumerate() {
        for dtype in [DataType::U8, DataType::F16, DataType::F64] {
            let kernel = ReduceKernel {
                blocks: 1 + i as u32 % 2,
                lanes: 20,
                dtype,
                op: ReduceOp::Sum,
            };
            let all = [0, 8, 16, 24, 0, 8, 16, 24];
            for from in [&all[..], &all[..1], &[1]] {
                check(
                    &gpu,
                    &Case {
                        kernel,
                        count,
                        to: dtype.bytes(),
                        from,
                    },
                    77,
                );
            }
        }
    }
}

#[test]
fn a_reduction_in_place_accumulates() {
    let gpu = gpu();
    let count = 777;
    let (a, b) = (
        operand(DataType::F32, 5, count),
        operand(DataType::F32, 6, count),
    );
    let memory = gpu.alloc(8192).unwrap();
    let result = gpu.alloc(PerfResult::BYTES).unwrap();
    memory.write(0, &a).unwrap();
    memory.write(4096, &b).unwrap();
    let kernel = ReduceKernel {
        blocks: 2,
        lanes: 33,
        dtype: DataType::F32,
        op: ReduceOp::Sum,
    };
    let at = [memory.va(), GpuVa(memory.va().0 + 4096)];
    // Twice: a + b + b.
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let launch = unsafe { kernel.launch(&gpu, at[0], &at, count as u64, 2, &result) };
    launch.unwrap().wait(PATIENCE).unwrap();
    let once = expected(DataType::F32, ReduceOp::Sum, &[a, b.clone()], count);
    let twice = expected(DataType::F32, ReduceOp::Sum, &[once, b], count);
    let mut got = vec![0; twice.len()];
    memory.read(0, &mut got).unwrap();
    assert!(got == twice);
}

#[test]
fn bad_operands_of_a_reduction_are_refused() {
    let gpu = gpu();
    let memory = gpu.alloc(4096).unwrap();
    let va = memory.va();
    let good = ReduceKernel {
        blocks: 1,
        lanes: 32,
        dtype: DataType::I32,
        op: ReduceOp::Min,
    };
    for from in [vec![], vec![va; MAX_SOURCES + 1]] {
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let refused = unsafe { good.launch(&gpu, va, &from, 1, 1, &memory) };
        assert!(
            matches!(refused, Err(ReduceError::Sources { given }) if given == from.len()),
            "{refused:?}"
        );
    }
    for lanes in [0, 513] {
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let refused =
            unsafe { ReduceKernel { lanes, ..good }.launch(&gpu, va, &[va], 1, 1, &memory) };
        assert!(
            matches!(refused, Err(ReduceError::Lanes { .. })),
            "{refused:?}"
        );
    }
    let short = gpu.alloc(8).unwrap();
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let refused = unsafe { good.launch(&gpu, va, &[va], 1, 1, &short) };
    assert!(
        matches!(refused, Err(ReduceError::Result { .. })),
        "{refused:?}"
    );
    // The kernel itself: numbers that are no operation.
    for (op, sources) in [(0u32, 2u32), (5, 1), (1, 0), (1, 9)] {
        let args = [
            va.into(),
            ringbell_cuda_kernels::KernelArg::Bytes(va.0.to_ne_bytes().repeat(8)),
            sources.into(),
            4u64.into(),
            op.into(),
            3u32.into(),
            GpuVa(va.0 + 2048).into(),
        ];
        memory.write(0, &[9; 16]).unwrap();
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        unsafe { gpu.launch("rb_local_reduce_f32", 1, 4, &args) }
            .unwrap()
            .wait(PATIENCE)
            .unwrap();
        let mut end = [0; 4];
        memory.read(2048, &mut end).unwrap();
        assert_eq!(
            Status::from_code(end[0]),
            Some(Status::InvalidArgument),
            "{op} {sources}"
        );
        let mut kept = [0; 16];
        memory.read(0, &mut kept).unwrap();
        assert_eq!(kept, [9; 16]);
    }
}
