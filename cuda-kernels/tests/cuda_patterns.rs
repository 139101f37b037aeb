//! Kernels of the kinds that people write, as PTX: `kernels/cuda_patterns.cu`. Results are those of
//! plain Rust.
#![allow(unsafe_code)] // Loads kernels.

use ringbell_cuda_kernels::{Dim3, Gpu, GpuBuffer, KernelArg};

use crate::cuda_single::ulps_single;
use crate::ptx_files::{filled, halves, launch, numbers, with_ptx};

const FILE: &str = "cuda_patterns.ptx";

/// Of half precision.
fn from_half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (e, m) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    match e {
        0 => sign * m * 2f32.powi(-24),
        31 if m == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1.0 + m / 1024.0) * 2f32.powi(e - 15),
    }
}

/// To the nearest of half precision, of two the even one.
fn to_half(v: f64) -> u16 {
    let sign = if v.is_sign_negative() { 0x8000 } else { 0 };
    let a = v.abs();
    if a.is_nan() {
        return 0x7fff;
    }
    if a >= 65_520.0 {
        return sign | 0x7c00;
    }
    let e = if a == 0.0 {
        -14
    } else {
        (a.log2().floor() as i32).max(-14)
    };
    let e = if a < 2f64.powi(e) && e > -14 {
        e - 1
    } else {
        e
    };
    let units = (a / 2f64.powi(e - 10)).round_ties_even() as u16;
    // One unit more than a binade has carries into the exponent.
    sign | (units + if e == -14 { 0 } else { ((e + 14) as u16) << 10 })
}

fn from_bfloat(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn to_bfloat(v: f32) -> u16 {
    let b = v.to_bits();
    if v.is_nan() {
        return 0x7fff;
    }
    (b.wrapping_add(0x7fff + (b >> 16 & 1)) >> 16) as u16
}

fn quarters(b: &GpuBuffer, n: usize) -> Vec<u16> {
    let each = halves(b, n.div_ceil(2)).into_iter();
    let mut all: Vec<u16> = each.flat_map(|w| [w as u16, (w >> 16) as u16]).collect();
    all.truncate(n);
    all
}

fn floats(b: &GpuBuffer, n: usize) -> Vec<f32> {
    halves(b, n).into_iter().map(f32::from_bits).collect()
}

/// Small numbers, each a multiple of 1/8, from -`most` to `most`.
fn small(n: usize, seed: u64, most: i64) -> Vec<f32> {
    let from = |v: &u64| ((v >> 20) as i64 % (16 * most + 1) - 8 * most) as f32 / 8.0;
    let all = numbers(n, seed);
    all.iter()
        .map(|v| from(&(v.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
        .collect()
}

fn filled_halves(gpu: &Gpu, v: &[f32]) -> GpuBuffer {
    let bits: Vec<u16> = v.iter().map(|v| to_half(f64::from(*v))).collect();
    filled(gpu, &bits)
}

fn square(n: u32, tile: u32) -> Dim3 {
    Dim3 {
        x: n / tile,
        y: n / tile,
        z: 1,
    }
}

#[test]
fn cooperative_groups_reduce_scan_and_partition() {
    let gpu = with_ptx(FILE);
    let n = 3000;
    let values: Vec<i32> = (0..n).map(|i| (i * 7919) % 1001 - 300).collect();
    let (input, total) = (filled(&gpu, &values), filled(&gpu, &[0i32]));
    let args = [(&input).into(), n.into(), (&total).into()];
    launch(&gpu, "cg_sum", 4, 96, &args).unwrap();
    assert_eq!(halves(&total, 1)[0] as i32, values.iter().sum::<i32>());

    let (kept, count) = (filled(&gpu, &vec![0i32; 3000]), filled(&gpu, &[0i32]));
    let args = [(&input).into(), n.into(), (&kept).into(), (&count).into()];
    launch(&gpu, "cg_filter", 24, 128, &args).unwrap();
    let mut want: Vec<i32> = values.iter().copied().filter(|v| v % 3 == 0).collect();
    assert_eq!(halves(&count, 1)[0] as usize, want.len());
    let mut got: Vec<i32> = halves(&kept, want.len())
        .into_iter()
        .map(|v| v as i32)
        .collect();
    want.sort_unstable();
    got.sort_unstable();
    assert_eq!(got, want);

    let out = filled(&gpu, &[0i32; 8 * 64]);
    launch(&gpu, "cg_tiles", 1, 64, &[(&input).into(), (&out).into()]).unwrap();
    let got: Vec<i32> = halves(&out, 8 * 64).into_iter().map(|v| v as i32).collect();
    for t in 0..64 {
        let tile = &values[t / 8 * 8..][..8];
        let (own, rank) = (tile[t % 8], t % 8);
        let odd = |v: &i32| v & 1;
        let want = [
            tile[..=rank].iter().sum(),
            tile[..rank].iter().sum(),
            *tile.iter().max().unwrap(),
            tile[3],
            tile.iter().enumerate().map(|(i, v)| odd(v) << i).sum(),
            tile.iter().filter(|v| odd(v) == odd(&own)).count() as i32,
            *tile.iter().filter(|v| **v % 3 == own % 3).min().unwrap(),
            (t % 16 + 100 * (t / 8)) as i32,
        ];
        assert_eq!(got[8 * t..][..8], want, "thread {t}");
    }
}

#[test]
fn blocks_of_a_grid_meet_again_and_again_also_beside_another_launch() {
    let gpu = with_ptx(FILE);
    let (blocks, rounds) = (70usize, 6);
    let make = || {
        let start: Vec<i32> = (0..blocks as i32).collect();
        (filled(&gpu, &start), filled(&gpu, &vec![0i32; blocks]))
    };
    let pairs = [make(), make()];
    let launches = pairs.each_ref().map(|(values, next)| {
        let args: [KernelArg; 3] = [values.into(), next.into(), rounds.into()];
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        unsafe { gpu.launch("cg_rotate", blocks as u32, 64, &args) }.unwrap()
    });
    for l in launches {
        l.wait(crate::common::PATIENCE).unwrap();
    }
    for (values, _) in &pairs {
        let got = halves(values, blocks);
        for (i, v) in got.iter().enumerate() {
            assert_eq!(*v as usize, (i + rounds as usize) % blocks);
        }
    }
}

#[test]
fn matrices_of_16_bit_numbers_are_multiplied() {
    let gpu = with_ptx(FILE);
    let n = 48usize;
    // Products and sums are exact in half precision.
    let (a, b) = (small(n * n, 1, 1), small(n * n, 2, 1));
    let exact = |r: usize, c: usize| {
        (0..n)
            .map(|k| f64::from(a[r * n + k]) * f64::from(b[c * n + k]))
            .sum::<f64>()
    };
    let (x, y) = (filled_halves(&gpu, &a), filled_halves(&gpu, &b));
    let out = filled(&gpu, &vec![0u16; n * n]);
    let args = |out: &GpuBuffer| [(&x).into(), (&y).into(), out.into(), (n as i32).into()];
    let tile = Dim3 { x: 16, y: 16, z: 1 };
    launch(&gpu, "half2_gemm", square(n as u32, 16), tile, &args(&out)).unwrap();
    let got = quarters(&out, n * n);
    let single = filled(&gpu, &vec![0f32; n * n]);
    let grid = Dim3 {
        x: n as u32 / 8,
        y: n as u32 / 16,
        z: 1,
    };
    launch(&gpu, "mma_gemm", grid, 32, &args(&single)).unwrap();
    let of_mma = floats(&single, n * n);
    for i in 0..n * n {
        let want = exact(i / n, i % n);
        assert!(
            (f64::from(from_half(got[i])) - want).abs() <= want.abs() * 2f64.powi(-11) + 0.01,
            "half2 {i}"
        );
        assert_eq!(f64::from(of_mma[i]), want, "mma {i}");
    }
    let bits = |v: &[f32]| v.iter().map(|v| to_bfloat(*v)).collect::<Vec<u16>>();
    let (x, y) = (filled(&gpu, &bits(&a)), filled(&gpu, &bits(&b)));
    let args = [(&x).into(), (&y).into(), (&out).into(), (n as i32).into()];
    launch(&gpu, "bf16_gemm", square(n as u32, 16), tile, &args).unwrap();
    for (i, got) in quarters(&out, n * n).into_iter().enumerate() {
        assert_eq!(got, to_bfloat(exact(i / n, i % n) as f32), "bf16 {i}");
    }
}

#[test]
fn scans_and_sorts_order_their_input() {
    let gpu = with_ptx(FILE);
    let n = 10_000usize;
    let values: Vec<u32> = numbers(n, 7).iter().map(|v| *v as u32 % 1000).collect();
    let (input, out) = (filled(&gpu, &values), filled(&gpu, &vec![0u32; n]));
    let blocks = n.div_ceil(256);
    let state = filled(&gpu, &vec![0u64; blocks]);
    let args = [
        (&input).into(),
        (&out).into(),
        (n as i32).into(),
        (&state).into(),
    ];
    launch(&gpu, "chained_scan", blocks as u32, 256, &args).unwrap();
    let mut sum = 0;
    for (got, v) in halves(&out, n).into_iter().zip(&values) {
        sum += v;
        assert_eq!(got, sum);
    }
    let mut keys: Vec<u32> = numbers(500, 8).iter().map(|v| *v as u32).collect();
    let buffer = filled(&gpu, &keys);
    // Its shared memory is what is left of 48 KiB.
    launch(
        &gpu,
        "radix_sort",
        1,
        512,
        &[(&buffer).into(), 500i32.into()],
    )
    .unwrap();
    keys.sort_unstable();
    assert_eq!(halves(&buffer, 500), keys);
}

#[test]
fn rows_are_normalised_and_attention_is_computed_online() {
    let gpu = with_ptx(FILE);
    let (rows, n) = (5usize, 333usize);
    let x = small(rows * n, 9, 6);
    let (input, out) = (filled(&gpu, &x), filled(&gpu, &vec![0f32; rows * n]));
    let args = [(&input).into(), (&out).into(), (n as i32).into()];
    launch(&gpu, "softmax", rows as u32, 128, &args).unwrap();
    let got = floats(&out, rows * n);
    for (x, got) in x.chunks(n).zip(got.chunks(n)) {
        let most = x.iter().copied().fold(f32::MIN, f32::max);
        let e: Vec<f64> = x.iter().map(|v| f64::from(v - most).exp()).collect();
        let sum: f64 = e.iter().sum();
        for (e, got) in e.iter().zip(got) {
            assert!((e / sum - f64::from(*got)).abs() <= e / sum * 2e-5);
        }
    }
    let scale = small(n, 10, 2);
    let bits: Vec<u16> = x.iter().map(|v| to_bfloat(*v)).collect();
    let (input, factors) = (filled(&gpu, &bits), filled(&gpu, &scale));
    let args = [
        (&input).into(),
        (&factors).into(),
        (&out).into(),
        (n as i32).into(),
    ];
    launch(&gpu, "layer_norm", rows as u32, 96, &args).unwrap();
    let got = floats(&out, rows * n);
    for (x, got) in bits.chunks(n).zip(got.chunks(n)) {
        let x: Vec<f64> = x.iter().map(|b| f64::from(from_bfloat(*b))).collect();
        let mean = x.iter().sum::<f64>() / n as f64;
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        for (i, got) in got.iter().enumerate() {
            let want = (x[i] - mean) / (variance + 1e-5).sqrt() * f64::from(scale[i]);
            assert!((want - f64::from(*got)).abs() < 2e-4, "{want} {got}");
        }
    }
    let (n, d) = (40usize, 64usize);
    let [q, k, v] = [11, 12, 13].map(|seed| small(n * d, seed, 1));
    let buffers = [&q, &k, &v].map(|m| filled_halves(&gpu, m));
    let out = filled(&gpu, &vec![0f32; n * d]);
    let [a, b, c] = buffers.each_ref().map(KernelArg::from);
    launch(
        &gpu,
        "attention_64",
        10,
        128,
        &[a, b, c, (&out).into(), (n as i32).into()],
    )
    .unwrap();
    let got = floats(&out, n * d);
    for r in 0..n {
        let dot = |j: usize| {
            (0..d)
                .map(|i| f64::from(q[r * d + i]) * f64::from(k[j * d + i]))
                .sum::<f64>()
                / 8.0
        };
        let p: Vec<f64> = (0..n).map(|j| dot(j).exp()).collect();
        let sum: f64 = p.iter().sum();
        for i in 0..d {
            let want = (0..n)
                .map(|j| p[j] / sum * f64::from(v[j * d + i]))
                .sum::<f64>();
            assert!(
                (want - f64::from(got[r * d + i])).abs() < 1e-4,
                "{want} {}",
                got[r * d + i]
            );
        }
    }
}

#[test]
fn tokens_go_to_experts_and_come_back_weighted() {
    let gpu = with_ptx(FILE);
    let (tokens, experts, width, room) = (60usize, 8usize, 32usize, 60usize);
    let scores: Vec<f32> = (0..tokens * experts)
        .map(|i| ((i * 37 + i / 8 * 11) % 101) as f32 / 50.0)
        .collect();
    let x = small(tokens * width, 14, 2);
    let score = filled(&gpu, &scores);
    let token = filled_halves(&gpu, &x);
    let fill = filled(&gpu, &vec![0i32; experts]);
    let (places, weights) = (
        filled(&gpu, &vec![0u64; tokens]),
        filled(&gpu, &vec![0u64; tokens]),
    );
    let inbox = filled(&gpu, &vec![0u16; experts * room * width]);
    let out = filled(&gpu, &vec![0u16; tokens * width]);
    let [e, w, r] = [experts, width, room].map(|v| KernelArg::from(v as i32));
    let args = [
        (&score).into(),
        (&token).into(),
        e,
        w.clone(),
        r.clone(),
        (&fill).into(),
        (&places).into(),
        (&weights).into(),
        (&inbox).into(),
    ];
    launch(&gpu, "moe_dispatch", tokens as u32, 32, &args).unwrap();
    let args = [(&inbox).into(), (&fill).into(), w.clone(), r];
    launch(&gpu, "moe_expert", experts as u32, 64, &args).unwrap();
    let args = [
        (&inbox).into(),
        (&places).into(),
        (&weights).into(),
        w,
        (&out).into(),
    ];
    launch(&gpu, "moe_combine", tokens as u32, 32, &args).unwrap();
    assert_eq!(
        halves(&fill, experts).iter().sum::<u32>() as usize,
        2 * tokens
    );
    for (t, got) in quarters(&out, tokens * width).chunks(width).enumerate() {
        let row = &scores[t * experts..][..experts];
        let best = |skip: Option<usize>| {
            let others = (0..experts).filter(|e| Some(*e) != skip);
            others
                .max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a)))
                .unwrap()
        };
        let first = best(None);
        let second = best(Some(first));
        let share = 1.0 / (1.0 + f64::from(row[second] - row[first]).exp());
        let factor = share * (first + 1) as f64 + (1.0 - share) * (second + 1) as f64;
        for (i, got) in got.iter().enumerate() {
            let want = factor * f64::from(x[t * width + i]);
            assert!(
                (want - f64::from(from_half(*got))).abs() <= want.abs() * 0.001 + 1e-3,
                "token {t}"
            );
        }
    }
}

#[test]
fn a_persistent_grid_serves_a_client_of_its_own() {
    let gpu = with_ptx(FILE);
    let tasks = 40usize;
    let ring = filled(&gpu, &vec![0u32; tasks * 4]);
    let n: KernelArg = (tasks as i32).into();
    launch(&gpu, "persistent", 5, 32, &[(&ring).into(), n.clone(), n]).unwrap();
    for (t, task) in halves(&ring, tasks * 4).chunks(4).enumerate() {
        let want = if t % 2 == 1 {
            (t * t) as f32
        } else {
            (t as f32).sqrt()
        };
        assert_eq!((task[0], task[1], f32::from_bits(task[3])), (2, 9, want));
    }
}

#[test]
fn every_number_of_16_bits_is_converted() {
    let gpu = with_ptx(FILE);
    let all = 1usize << 16;
    let (out, back) = (
        filled(&gpu, &vec![0f32; 2 * all]),
        filled(&gpu, &vec![0u16; 2 * all]),
    );
    let functions = filled(&gpu, &vec![0u16; 8 * all]);
    let args = [(&out).into(), (&back).into(), (&functions).into()];
    launch(&gpu, "half_all", 256, 256, &args).unwrap();
    let (out, back) = (floats(&out, 2 * all), quarters(&back, 2 * all));
    let functions = quarters(&functions, 8 * all);
    let near = |got: u16, exact: f64| {
        let want = to_half(exact);
        let order = |b: u16| i32::from(b & 0x7fff) * if b >> 15 == 1 { -1 } else { 1 };
        (from_half(got).is_nan() && exact.is_nan()) || (order(got) - order(want)).abs() <= 1
    };
    for i in 0..all {
        let bits = i as u16;
        let (h, b) = (from_half(bits), from_bfloat(bits));
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(same(out[2 * i], h) && same(out[2 * i + 1], b), "{bits:#x}");
        assert!(h.is_nan() || back[2 * i] == bits, "{bits:#x}");
        assert!(b.is_nan() || back[2 * i + 1] == bits, "{bits:#x}");
        let f = &functions[8 * i..][..8];
        let v = f64::from(h);
        assert!(
            near(f[0], v.exp()) && near(f[1], v.sqrt()) && near(f[2], v.log2()),
            "{bits:#x}"
        );
        assert_eq!((f[3], f[6]), (bits ^ 0x8000, bits & 0x7fff));
        assert_eq!(
            f[4],
            if h.is_nan() { 1 } else { h as i32 as u16 },
            "{bits:#x}"
        );
        let root = 1.0 / f64::from(b).sqrt();
        let single = from_bfloat(f[5]);
        assert!(
            ulps_single(single, root) <= 65_536.0 || (single.is_nan() && root.is_nan()),
            "{bits:#x}"
        );
        let infinite = if b == f32::INFINITY {
            1
        } else if b == f32::NEG_INFINITY {
            0xffff
        } else {
            0
        };
        assert_eq!(f[7], infinite);
    }
}

#[test]
fn pairs_of_halves_are_added_compared_and_cut() {
    let gpu = with_ptx(FILE);
    let n = 4096usize;
    let [a, b] = [21, 22].map(|seed| {
        numbers(2 * n, seed)
            .iter()
            .map(|v| (v >> 13) as u16)
            .collect::<Vec<u16>>()
    });
    let (x, y, out) = (
        filled(&gpu, &a),
        filled(&gpu, &b),
        filled(&gpu, &vec![0u16; 20 * n]),
    );
    let args = [(&x).into(), (&y).into(), (&out).into()];
    launch(&gpu, "half_two", n as u32 / 128, 128, &args).unwrap();
    let got = quarters(&out, 20 * n);
    let is =
        |got: u16, want: u16| got == want || (from_half(got).is_nan() && from_half(want).is_nan());
    let min = |u: f32, v: f32| {
        let less = u < v || (u == v && u.is_sign_negative());
        if u.is_nan() || (!v.is_nan() && !less) {
            v
        } else {
            u
        }
    };
    for i in 0..2 * n {
        let o = |k: usize| got[i / 2 * 20 + 2 * k + i % 2];
        let (u, v) = (from_half(a[i]), from_half(b[i]));
        let (p, q) = (f64::from(u), f64::from(v));
        let smaller = min(u, v);
        let larger = -min(-u, -v);
        let want = [
            to_half(p + q),
            to_half(p - q),
            to_half(p * q),
            to_half(p / q),
            to_half(f64::from(larger)),
            to_half(f64::from(smaller)),
        ];
        for (k, want) in want.into_iter().enumerate() {
            assert!(
                is(o(k), want),
                "{k}: {:#x} {:#x} = {:#x}, not {want:#x}",
                a[i],
                b[i],
                o(k)
            );
        }
        assert_eq!(o(6), if u > v { 0x3c00 } else { 0 });
        assert_eq!(o(7), a[i ^ 1]);
        let first = i & !1;
        let (p, q, r) = (
            from_half(a[first]),
            from_half(b[first]),
            from_half(a[first + 1]),
        );
        let (p, q, r) = (f64::from(p), f64::from(q), f64::from(r));
        if i % 2 == 0 {
            let s = f64::from(from_half(to_half(p + q)));
            assert!(
                is(o(8), to_half(if s > 0.0 { s.min(1.0) } else { 0.0 })),
                "{:#x}",
                o(8)
            );
            assert!(is(o(9), to_half(f64::from(p as f32 * 1.00001f32))));
        } else {
            let s = to_half(p * q + r);
            assert!(
                is(
                    o(8),
                    if s >> 15 == 1 && !from_half(s).is_nan() {
                        0
                    } else {
                        s
                    }
                ),
                "{:#x} {s:#x}",
                o(8)
            );
            assert_eq!(
                o(9),
                if p <= q || p.is_nan() || q.is_nan() {
                    0x3c00
                } else {
                    0
                }
            );
        }
    }
}
