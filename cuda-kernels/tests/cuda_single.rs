//! Functions of single precision, each by a kernel of its own of `kernels/cuda_functions.cu`,
//! against double precision.
#![allow(unsafe_code)] // Loads kernels.

use crate::ptx_files::{launch, numbers, with_ptx, Io, Seen};

type One = (&'static str, fn(f64) -> f64);

type SingleCase = (&'static str, f64, fn(f64) -> f64, [f32; 2]);

/// Greatest error in units of the last place, the function in double precision, and the inputs'
/// range.
const SINGLES: &[SingleCase] = &[
    ("expf", 1.0, f64::exp, [-104.0, 89.0]),
    ("exp2f", 1.0, f64::exp2, [-150.0, 128.0]),
    (
        "exp10f",
        1.0,
        |x| (x * std::f64::consts::LN_10).exp(),
        [-45.5, 38.6],
    ),
    ("expm1f", 1.0, f64::exp_m1, [-20.0, 89.0]),
    ("logf", 1.0, f64::ln, [0.0, 3e38]),
    ("log2f", 1.0, f64::log2, [0.0, 10.0]),
    ("log10f", 1.0, f64::log10, [0.0, 1000.0]),
    ("log1pf", 1.0, f64::ln_1p, [-1.0, 4.0]),
    ("sinhf", 1.0, f64::sinh, [-90.0, 90.0]),
    ("coshf", 1.0, f64::cosh, [-90.0, 90.0]),
    ("tanhf", 1.0, f64::tanh, [-10.0, 10.0]),
    (
        "asinhf",
        1.0,
        |x| {
            if x.is_infinite() {
                x
            } else {
                x.signum() * (x.abs() + x * x / (1.0 + x.hypot(1.0))).ln_1p()
            }
        },
        [-100.0, 100.0],
    ),
    (
        "acoshf",
        1.0,
        |x| ((x - 1.0) + ((x - 1.0) * (x + 1.0)).sqrt()).ln_1p(),
        [1.0, 100.0],
    ),
    (
        "atanhf",
        1.0,
        |x| 0.5 * (2.0 * x / (1.0 - x)).ln_1p(),
        [-1.0, 1.0],
    ),
    ("sqrtf", 0.5, f64::sqrt, [0.0, 1e6]),
    ("rsqrtf", 0.51, |x| 1.0 / x.sqrt(), [0.0, 1e6]),
    ("floorf", 0.0, f64::floor, [-100.0, 100.0]),
    ("ceilf", 0.0, f64::ceil, [-100.0, 100.0]),
    ("truncf", 0.0, f64::trunc, [-100.0, 100.0]),
    ("roundf", 0.0, f64::round, [-100.0, 100.0]),
    ("rintf", 0.0, f64::round_ties_even, [-100.0, 100.0]),
    ("fabsf", 0.0, f64::abs, [-100.0, 100.0]),
    // What the programming guide states for the approximations.
    ("__expf", 120.0, f64::exp, [-80.0, 80.0]),
    (
        "__exp10f",
        120.0,
        |x| (x * std::f64::consts::LN_10).exp(),
        [-37.0, 38.0],
    ),
    ("__logf", 3.0, f64::ln, [2.0, 1e30]),
    ("__log2f", 2.0, f64::log2, [2.0, 1e30]),
    ("__log10f", 3.0, f64::log10, [2.0, 1e30]),
];

/// The distance from what is exact, in units of the last place of single precision.
pub(crate) fn ulps_single(got: f32, exact: f64) -> f64 {
    if got.is_nan() || exact.is_nan() {
        return if got.is_nan() && exact.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    let limit = f64::from(f32::MAX) * (1.0 + 2f64.powi(-25));
    if got.is_infinite() || exact.is_infinite() || exact.abs() >= limit {
        let overflow = if exact.abs() >= limit {
            f32::INFINITY.copysign(exact as f32)
        } else {
            exact as f32
        };
        return if got == overflow { 0.0 } else { f64::INFINITY };
    }
    let exponent = if exact == 0.0 {
        -126
    } else {
        exact.abs().log2().floor() as i32
    };
    let unit = 2f64.powi(exponent.max(-126) - 23);
    (f64::from(got) - exact).abs() / unit
}

#[test]
fn functions_of_single_precision_are_within_the_errors_that_cuda_states() {
    let gpu = with_ptx("cuda_functions.ptx");
    let seen = Seen::of(&gpu, "f_");
    let n = 4096;
    for (name, most, reference, [from, to]) in SINGLES {
        let kernel = format!("f_{name}");
        seen.mark(&kernel);
        let mut inputs: Vec<f32> = numbers(n, 5)
            .iter()
            .map(|v| from + (to - from) * ((*v >> 11) as f32 / (1u64 << 53) as f32))
            .collect();
        for (i, edge) in [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            1.0,
            -1.0,
            1e-30,
            0.5,
            2.5,
            -3.5,
            1e-5,
        ]
        .into_iter()
        .enumerate()
        {
            // Approximations have no stated end values.
            if !name.starts_with("__") {
                inputs[i * 7] = edge;
            }
        }
        let io = Io::new(&gpu, &inputs, n * 4);
        launch(&gpu, &kernel, n as u32 / 256, 256, &io.args()).unwrap();
        let mut worst = (0.0, 0.0, 0.0);
        for (x, got) in inputs.iter().zip(io.halves()) {
            let error = ulps_single(f32::from_bits(got), reference(f64::from(*x)));
            if error > worst.0 {
                worst = (error, *x, f32::from_bits(got));
            }
        }
        assert!(
            worst.0 <= *most,
            "{name}({:e}) = {:e} is wrong by {} units",
            worst.1,
            worst.2,
            worst.0
        );
    }
    // Of these the guide states absolute errors, in the range of one turn.
    let trigonometry: [One; 3] = [
        ("__sinf", f64::sin),
        ("__cosf", f64::cos),
        ("__tanf", f64::tan),
    ];
    let inputs: Vec<f32> = (0..n).map(|i| (i as f32 / n as f32 - 0.5) * 2.0).collect();
    for (name, reference) in trigonometry {
        let kernel = format!("f_{name}");
        seen.mark(&kernel);
        let io = Io::new(&gpu, &inputs, n * 4);
        launch(&gpu, &kernel, n as u32 / 256, 256, &io.args()).unwrap();
        for (x, got) in inputs.iter().zip(io.halves()) {
            let error = (f64::from(f32::from_bits(got)) - reference(f64::from(*x))).abs();
            assert!(error < 2e-6, "{name}({x})");
        }
    }
}
