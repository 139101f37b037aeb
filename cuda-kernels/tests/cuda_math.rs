//! The mathematics of include/cuda against values of 50 digits (`kernels/cuda_math.txt`, by
//! mpmath), and single precision against double.
//!
//! The kernels are compiled when the test runs: as PTX they would be half a megabyte.
#![allow(unsafe_code)] // Loads kernels.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ringbell_cuda_kernels::{Gpu, KernelArg};

use crate::cuda_single::ulps_single;
use crate::ptx_files::{compiled, file, filled, halves, launch, with_module, words};

type One = (&'static str, fn(f64) -> f64);
type Two = (&'static str, fn(f64, f64) -> f64);

/// The kernels, compiled once.
fn module() -> Option<&'static Path> {
    static MODULE: OnceLock<Option<PathBuf>> = OnceLock::new();
    MODULE.get_or_init(|| compiled("cuda_math")).as_deref()
}

/// Units in the last place between a result and the nearest double to what is exact.
fn ulps(got: f64, want: f64) -> f64 {
    if got.is_nan() || want.is_nan() || got.is_infinite() || want.is_infinite() {
        let same = got == want || (got.is_nan() && want.is_nan());
        return if same { 0.0 } else { f64::INFINITY };
    }
    let order = |v: f64| {
        let bits = v.to_bits() as i64;
        if bits < 0 {
            i64::MIN - bits
        } else {
            bits
        }
    };
    (order(got) - order(want)).unsigned_abs() as f64
}

struct Case {
    name: String,
    most: f64,
    /// One or two arguments each, and the result.
    rows: Vec<(Vec<f64>, f64)>,
}

fn cases() -> Vec<Case> {
    let number = |s: &str| f64::from_bits(u64::from_str_radix(s, 16).expect("hexadecimal"));
    let text = std::fs::read_to_string(file("cuda_math.txt")).expect("a file of the repository");
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let name = words.next().expect("a name").to_owned();
            let most = words.next().expect("an error").parse().expect("a number");
            let rows = words.map(|w| {
                let (x, y) = w.split_once(':').expect("inputs and a result");
                (x.split(',').map(number).collect(), number(y))
            });
            Case {
                name,
                most,
                rows: rows.collect(),
            }
        })
        .collect()
}

/// What the kernel of a function makes of the arguments: in double, and in single precision.
fn evaluate(
    gpu: &Gpu,
    name: &str,
    inputs: &[f64],
    singles: &[f32],
    n: usize,
) -> (Vec<f64>, Vec<f32>) {
    let buffers = (filled(gpu, inputs), filled(gpu, &vec![0f64; n]));
    let of_singles = (filled(gpu, singles), filled(gpu, &vec![0f32; n]));
    let args: [KernelArg; 5] = [
        (n as i32).into(),
        (&buffers.0).into(),
        (&buffers.1).into(),
        (&of_singles.0).into(),
        (&of_singles.1).into(),
    ];
    launch(gpu, &format!("m_{name}"), n.div_ceil(64) as u32, 64, &args).unwrap();
    (
        words(&buffers.1, n)
            .into_iter()
            .map(f64::from_bits)
            .collect(),
        halves(&of_singles.1, n)
            .into_iter()
            .map(f32::from_bits)
            .collect(),
    )
}

/// Greatest errors of single precision that the CUDA Math API states, where they are above 2 units.
const SINGLE: &[(&str, f64)] = &[
    ("erfc", 4.0),
    ("erfcinv", 4.0),
    ("tan", 4.0),
    ("lgamma", 6.0),
    ("tgamma", 5.0),
    ("normcdf", 5.0),
    ("normcdfinv", 5.0),
    ("j0", 9.0),
    ("j1", 9.0),
    ("y0", 9.0),
    ("y1", 9.0),
    ("cyl_bessel_i0", 6.0),
    ("cyl_bessel_i1", 6.0),
];

/// Numbers over the range of single precision, most of them near 1.
fn spread(n: usize) -> Vec<f32> {
    let mut x = 12_345u32;
    let mut values: Vec<f32> = (0..n)
        .map(|i| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match i % 4 {
                0 => f32::from_bits(x),
                1 => (x >> 8) as f32 / 8_388_608.0 - 1.0,
                2 => (x >> 8) as f32 / 524_288.0 - 16.0,
                _ => (x >> 8) as f32 / 65_536.0,
            }
        })
        .collect();
    let ends = [
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        1.0,
        -1.0,
        1e-45,
        f32::MAX,
        0.5,
        2.0,
    ];
    values[..ends.len()].copy_from_slice(&ends);
    values
}

#[test]
fn mathematics_are_within_the_errors_that_cuda_states() {
    let Some(module) = module() else {
        return;
    };
    let gpu = with_module(module);
    let single: HashMap<_, _> = SINGLE.iter().copied().collect();
    let mut checked = 0;
    for case in cases() {
        let arity = case.rows[0].0.len();
        let inputs: Vec<f64> = case.rows.iter().flat_map(|r| r.0.clone()).collect();
        let rounded: Vec<f32> = inputs.iter().map(|v| *v as f32).collect();
        let (got, _) = evaluate(&gpu, &case.name, &inputs, &rounded, case.rows.len());
        for (got, (x, want)) in got.iter().zip(&case.rows) {
            let error = ulps(*got, *want);
            assert!(
                error <= case.most,
                "{}{x:?} = {got:e}, not {want:e}: {error} units",
                case.name
            );
        }
        // Single precision on inputs of its own, against double precision on the same.
        let singles = spread(2048 * arity);
        let doubles: Vec<f64> = singles.iter().map(|v| f64::from(*v)).collect();
        let (exact, got) = evaluate(&gpu, &case.name, &doubles, &singles, 2048);
        let most = if case.most == 0.0 {
            0.0
        } else {
            *single.get(case.name.as_str()).unwrap_or(&2.0)
        };
        for (i, (got, exact)) in got.iter().zip(&exact).enumerate() {
            let x = &singles[i * arity..][..arity];
            // From 8 on the stated error of Bessel functions is absolute.
            let absolute = "j0 j1 y0 y1".contains(&case.name)
                && x[0].abs() >= 8.0
                && (f64::from(*got) - exact).abs() < 2.2e-6;
            let error = ulps_single(*got, *exact);
            assert!(
                error <= most || absolute,
                "{}f{x:?} = {got:e}, not {exact:e}: {error} units",
                case.name
            );
        }
        checked += 1;
    }
    assert!(checked > 40);
}

#[test]
fn functions_that_are_one_instruction_give_what_rust_computes() {
    let Some(module) = module() else {
        return;
    };
    let gpu = with_module(module);
    let one: [One; 9] = [
        ("floor", f64::floor),
        ("ceil", f64::ceil),
        ("trunc", f64::trunc),
        ("round", f64::round),
        ("rint", f64::round_ties_even),
        ("nearbyint", f64::round_ties_even),
        ("fabs", f64::abs),
        ("sqrt", f64::sqrt),
        ("logb", |x| {
            if x == 0.0 {
                f64::NEG_INFINITY
            } else if x.is_finite() {
                x.abs().log2().floor()
            } else {
                x.abs()
            }
        }),
    ];
    let mut singles = spread(1024);
    singles[20..24].copy_from_slice(&[0.5, -2.5, 3.5, 8_388_607.5]);
    let doubles: Vec<f64> = singles.iter().map(|v| f64::from(*v)).collect();
    for (name, reference) in one {
        let (got, of_single) = evaluate(&gpu, name, &doubles, &singles, 1024);
        for (i, x) in doubles.iter().enumerate() {
            let want = reference(*x);
            let same = got[i] == want || (got[i].is_nan() && want.is_nan());
            assert!(same, "{name}({x:e}) = {:e}", got[i]);
            let want = want as f32;
            let same = of_single[i] == want || (of_single[i].is_nan() && want.is_nan());
            assert!(same, "{name}f({x:e}) = {:e}", of_single[i]);
        }
    }
    let two: [Two; 4] = [
        ("fmin", f64::min),
        ("fmax", f64::max),
        ("copysign", f64::copysign),
        ("fdim", |x, y| {
            if x.is_nan() || y.is_nan() {
                f64::NAN
            } else if x > y {
                x - y
            } else {
                0.0
            }
        }),
    ];
    for (name, reference) in two {
        let (got, of_single) = evaluate(&gpu, name, &doubles, &singles, 512);
        for i in 0..512 {
            let (x, y) = (doubles[2 * i], doubles[2 * i + 1]);
            let want = reference(x, y);
            assert!(
                got[i] == want || (got[i].is_nan() && want.is_nan()),
                "{name}({x:e}, {y:e}) = {:e}",
                got[i]
            );
            let want = want as f32;
            let same = of_single[i] == want || (of_single[i].is_nan() && want.is_nan());
            assert!(same, "{name}f({x:e}, {y:e}) = {:e}", of_single[i]);
        }
    }
    let (got, of_single) = evaluate(&gpu, "nextafter", &doubles, &singles, 512);
    for i in 0..512 {
        let (x, y) = (doubles[2 * i], doubles[2 * i + 1]);
        let want = if x.is_nan() || y.is_nan() {
            f64::NAN
        } else if x < y {
            x.next_up()
        } else if x > y {
            x.next_down()
        } else {
            y
        };
        assert_eq!(
            got[i].to_bits() << 1 >> 12 != 0 && got[i].is_nan(),
            want.is_nan()
        );
        assert!(
            got[i].is_nan() || got[i].to_bits() == want.to_bits(),
            "nextafter({x:e}, {y:e})"
        );
        assert_eq!(of_single[i].is_nan(), want.is_nan());
    }
}

#[test]
fn functions_with_several_results_agree_with_those_of_one() {
    let Some(module) = module() else {
        return;
    };
    let gpu = with_module(module);
    let inputs = [0.75, -2.5, 12.25, 1e-310, 300.5, -0.0];
    let input = filled(&gpu, &inputs);
    let output = filled(&gpu, &[0f64; 6 * 32]);
    let args = [
        (inputs.len() as i32).into(),
        (&input).into(),
        (&output).into(),
    ];
    launch(&gpu, "m_other", 1, 32, &args).unwrap();
    let all: Vec<f64> = words(&output, 6 * 32)
        .into_iter()
        .map(f64::from_bits)
        .collect();
    for (x, r) in inputs.iter().zip(all.chunks(32)) {
        for i in [0, 1, 2, 5, 14, 18, 19, 23, 24, 25, 26] {
            assert_eq!(r[i], 1.0, "comparison {i} of {x}");
        }
        assert_eq!(
            r[3] * 2f64.powi(r[4] as i32 / 2) * 2f64.powi(r[4] as i32 - r[4] as i32 / 2),
            *x
        );
        assert!(*x == 0.0 || (0.5..1.0).contains(&r[3].abs()));
        assert_eq!((r[6], r[7]), (x.fract(), x.trunc()));
        if x.abs() > 1e-300 {
            assert_eq!(
                (r[8], r[9]),
                (x.abs().log2().floor(), x.abs().log2().floor())
            );
            let exact = (x * x * 5.0 + 9.0).sqrt();
            assert!(ulps(r[15], exact) <= 2.0 && ulps(r[16], 1.0 / exact) <= 2.0);
            assert!(ulps(r[17], (x * x * 5.0 + 10.0).sqrt()) <= 2.0);
        }
        let quotient = (x / 3.0).round_ties_even();
        assert!((r[10] - (x - 3.0 * quotient)).abs() < 1e-12);
        assert_eq!(r[11] as i64 % 8, quotient as i64 % 8);
        assert_eq!((r[12], r[13]), (x.round_ties_even(), x.round()));
        let class = 4.0 + if x.is_sign_negative() { 8.0 } else { 0.0 };
        assert_eq!(r[22], class);
    }
    // J3 and Y3 of 0.75, 12.25 and 300.5, from tables of mpmath.
    let j3 = [all[20], all[2 * 32 + 20], all[4 * 32 + 20]];
    let want = [
        0.008_484_383_423_274_109,
        0.156_718_997_972_434_2,
        0.044_067_829_526_143_55,
    ];
    for (got, want) in j3.into_iter().zip(want) {
        assert!((got - want).abs() < 1e-12, "{got} {want}");
    }
}

#[test]
fn approximations_are_near_what_they_stand_for() {
    let Some(module) = module() else {
        return;
    };
    let gpu = with_module(module);
    let inputs = [0.5f32, 1.25, 3.0, 0.001];
    let input = filled(&gpu, &inputs);
    let output = filled(&gpu, &[0f32; 4 * 16]);
    let args = [
        (inputs.len() as i32).into(),
        (&input).into(),
        (&output).into(),
    ];
    launch(&gpu, "m_fast", 1, 32, &args).unwrap();
    let all: Vec<f32> = halves(&output, 4 * 16)
        .into_iter()
        .map(f32::from_bits)
        .collect();
    for (x, r) in inputs.iter().zip(all.chunks(16)) {
        let v = f64::from(*x);
        let want = [
            v.exp(),
            (v * std::f64::consts::LN_10).exp(),
            v.ln(),
            v.log2(),
            v.log10(),
            v.powf(1.5),
            v.sin(),
            v.cos(),
            v.tan(),
            v / 3.0,
            v.min(1.0),
            1.0 / v.sqrt(),
        ];
        for (i, (got, want)) in r.iter().zip(want).enumerate() {
            assert!(
                (f64::from(*got) - want).abs() <= want.abs() * 1e-5 + 1e-6,
                "{i}: {got} {want}"
            );
        }
        let square = v * v;
        assert!(
            f64::from(r[12]) <= square
                && square <= f64::from(r[13])
                && f64::from(r[13] - r[12]) < square * 1e-6
        );
        assert!(f64::from(-r[14]) <= square && f64::from(r[15]) <= square + 1.0);
    }
}
