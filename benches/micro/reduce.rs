//! One fused pass against copying and reading the same bytes in the same run.
//!
//! `cargo bench --profile dist -p ringbell-micro --bench reduce`. Every line verifies what it
//! computed. Bytes are payload (one operand's), as in the bus bandwidth of collectives.
#![allow(unsafe_code)] // Calls the raw-pointer functions over vectors.
#![allow(clippy::disallowed_methods)] // Measures time.

use std::hint::black_box;
use std::time::Instant;

use ringbell_nic_abi::{DataType, ReduceOp};
use ringbell_onc_engines::reduce::{fused_at, Level};

/// Runs of a figure; the best is shown: these are limits, and the machine may be shared.
const RUNS: usize = 9;

/// Best GB/s of `bytes` per call.
fn rate(bytes: usize, mut f: impl FnMut()) -> f64 {
    let calls = ((32 << 20) / bytes).clamp(3, 20_000);
    f();
    let mut v: Vec<f64> = (0..RUNS)
        .map(|_| {
            let t = Instant::now();
            for _ in 0..calls {
                f();
            }
            (bytes * calls) as f64 / t.elapsed().as_nanos() as f64
        })
        .collect();
    v.sort_by(f64::total_cmp);
    v[RUNS - 1]
}

/// Small whole numbers, so that every type holds their sums, and every pattern differs.
fn fill(dtype: DataType, n: usize, k: usize) -> Vec<u8> {
    let value = |i: usize| (i * 7 + k * 13) % 16;
    (0..n)
        .flat_map(|i| {
            let v = value(i);
            match dtype {
                DataType::F32 => (v as f32).to_le_bytes().to_vec(),
                DataType::F64 => (v as f64).to_le_bytes().to_vec(),
                DataType::F16 => half::f16::from_f32(v as f32).to_le_bytes().to_vec(),
                DataType::Bf16 => half::bf16::from_f32(v as f32).to_le_bytes().to_vec(),
                _ => v.to_le_bytes()[..dtype.bytes() as usize].to_vec(),
            }
        })
        .collect()
}

fn main() {
    eprintln!("built by the profile {}", env!("RINGBELL_PROFILE"));
    // `cargo test` runs benches with `--test`: then only that it works.
    let quick = !std::env::args().any(|a| a == "--bench");
    let sizes: &[usize] = if quick {
        &[64 << 10]
    } else {
        &[1 << 10, 64 << 10, 1 << 20, 16 << 20]
    };
    println!("one thread, payload GB/s, best of {RUNS}");
    for &bytes in sizes {
        let a = vec![1u8; bytes];
        let mut b = vec![0u8; bytes];
        let copy = rate(bytes, || black_box(&mut b).copy_from_slice(black_box(&a)));
        let words: &[u8] = black_box(&a);
        let read = rate(bytes, || {
            let sum = words.iter().fold(0u8, |s, b| s ^ b);
            black_box(sum);
        });
        println!("{bytes:>9} B  memcpy {copy:6.1}  read {read:6.1}");
        let n32 = bytes / 4;
        for level in Level::available() {
            for (name, srcs, dsts, in_place, streaming) in [
                ("2 -> 1", 2, 1, false, false),
                ("2 -> 2", 2, 2, false, false),
                ("2 -> 2 streaming", 2, 2, false, true),
                ("2 -> 2 in place", 2, 2, true, false),
                ("4 -> 4", 4, 4, false, false),
            ] {
                let s: Vec<Vec<u8>> = (0..srcs).map(|k| fill(DataType::F32, n32, k)).collect();
                let mut d = vec![vec![0u8; bytes]; dsts];
                let from: Vec<*const u8> = s.iter().map(|v| v.as_ptr()).collect();
                let to: Vec<*mut u8> = if in_place {
                    // The sums grow with every call; only the speed is of interest here.
                    from.iter().map(|p| p.cast_mut()).collect()
                } else {
                    d.iter_mut().map(|v| v.as_mut_ptr()).collect()
                };
                let gbs = rate(bytes, || {
                    // SAFETY: all vectors hold `bytes`; in place they are the sources themselves.
                    unsafe {
                        fused_at(
                            level,
                            DataType::F32,
                            ReduceOp::Sum,
                            &to,
                            &from,
                            n32,
                            streaming,
                        );
                    }
                });
                let wrong = if in_place {
                    0
                } else {
                    let want = |i: usize| (0..srcs).map(|k| (i * 7 + k * 13) % 16).sum::<usize>();
                    let bad = |v: &Vec<u8>| {
                        let all = v.chunks(4).enumerate();
                        all.filter(|(i, c)| {
                            f32::from_le_bytes([c[0], c[1], c[2], c[3]]) != want(*i) as f32
                        })
                        .count()
                    };
                    d.iter().map(bad).sum::<usize>()
                };
                println!("{bytes:>9} B  {level:?} f32 sum {name}: {gbs:6.1}  #wrong {wrong}");
                assert_eq!(wrong, 0);
            }
        }
    }
    let bytes = 64 << 10;
    for dtype in DataType::ALL {
        for op in ReduceOp::ALL.iter().filter(|op| op.takes(*dtype)) {
            let n = bytes / dtype.bytes() as usize;
            let (a, b) = (fill(*dtype, n, 0), fill(*dtype, n, 1));
            let mut d = vec![0u8; bytes];
            print!("{bytes:>9} B  {dtype:?} {op:?} 2 -> 1:");
            for level in Level::available() {
                let gbs = rate(bytes, || {
                    // SAFETY: all vectors hold `bytes`.
                    unsafe {
                        fused_at(
                            level,
                            *dtype,
                            *op,
                            &[d.as_mut_ptr()],
                            &[a.as_ptr(), b.as_ptr()],
                            n,
                            false,
                        );
                    }
                });
                print!("  {level:?} {gbs:5.1}");
            }
            println!();
        }
    }
}
