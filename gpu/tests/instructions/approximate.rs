//! Approximations keep the error that the ISA states (§9.7.3), and its special values.

use super::exact::F32;
use super::harness::{edges, floats, kernel, random, run};

/// Result, exact value, whether the operand's exact value has a bound here.
type Close = fn(f64, f64, f64) -> bool;

fn relative(got: f64, want: f64, bound: f64) -> bool {
    (got - want).abs() <= want.abs() * bound
}

/// `f` of the operand is compared with the result; subnormal results lose digits.
fn check(form: &str, low: f32, high: f32, f: fn(f64) -> f64, close: Close) {
    let mut next = random(41);
    let flush = |v: u64| {
        if form.contains("ftz") {
            F32.flush(v)
        } else {
            v
        }
    };
    let mut inputs: Vec<[u64; 3]> = edges(F32).into_iter().map(|v| [v, 0, 0]).collect();
    inputs.extend((0..10_000).map(|_| floats(F32, &mut next)));
    // Most lie where the function is interesting.
    inputs.extend((0..20_000).map(|_| {
        let share = (next() >> 11) as f64 / (1u64 << 53) as f64;
        let v = f64::from(low) + (f64::from(high) - f64::from(low)) * share;
        [u64::from((v as f32).to_bits()), 0, 0]
    }));
    let results = run(&kernel(form, [32, 0, 0, 32]), &inputs);
    for ([a, ..], got) in inputs.iter().zip(results) {
        let (x, y) = (F32.double(flush(*a)), F32.double(got & 0xffff_ffff));
        let want = f(x);
        let fine = match () {
            () if want.is_nan() => got & 0xffff_ffff == 0x7fff_ffff,
            () if want == 0.0 => y == 0.0 && y.is_sign_negative() == want.is_sign_negative(),
            () if want.is_infinite() => y == want,
            () if want.abs() >= f64::from(f32::MAX) => {
                y.is_infinite() || y.abs() == f64::from(f32::MAX)
            }
            // Flushed, or one of few digits.
            () if want.abs() < f64::from(f32::MIN_POSITIVE) * 1.0001 => {
                (y - want).abs() <= 2f64.powi(-148) || form.contains("ftz") && y == 0.0
            }
            () => close(x, y, want),
        };
        assert!(fine, "{form} of {x:e} ({a:#x}) is {y:e}, not {want:e}");
    }
}

#[test]
fn single_precision_keeps_the_stated_error() {
    for ftz in ["", ".ftz"] {
        let form = |base: &str| format!("{base}.approx{ftz}.f32");
        check(
            &form("rcp"),
            0.5,
            2.0,
            |x| 1.0 / x,
            |_, y, w| relative(y, w, 2f64.powi(-23)),
        );
        check(&form("sqrt"), 0.0, 9.0, f64::sqrt, |_, y, w| {
            relative(y, w, 2f64.powi(-23))
        });
        let rsqrt = |x: f64| 1.0 / x.sqrt();
        check(&form("rsqrt"), 0.0, 9.0, rsqrt, |_, y, w| {
            relative(y, w, 2f64.powf(-22.9))
        });
        check(&form("ex2"), -127.0, 128.0, f64::exp2, |_, y, w| {
            relative(y, w, 2f64.powi(-22))
        });
        check(&form("lg2"), 0.4, 2.5, f64::log2, |x, y, w| {
            match (0.5..=2.0).contains(&x) {
                true => (y - w).abs() <= 2f64.powi(-22),
                false => relative(y, w, 2f64.powi(-22)),
            }
        });
        // Beyond two turns the error grows with the operand.
        let sine: Close = |x, y, w| {
            x.abs() > std::f64::consts::TAU && y.abs() <= 1.0 || (y - w).abs() <= 2f64.powf(-20.5)
        };
        check(&form("sin"), -6.3, 6.3, f64::sin, sine);
        check(&form("cos"), -6.3, 6.3, f64::cos, sine);
    }
    check("tanh.approx.f32", -6.0, 6.0, f64::tanh, |_, y, w| {
        relative(y, w, 2f64.powi(-11))
    });
}

#[test]
fn double_precision_keeps_the_stated_error() {
    let mut next = random(43);
    let inputs: Vec<[u64; 3]> = (0..10_000).map(|_| [next(), 0, 0]).collect();
    for (form, f) in [
        ("rsqrt.approx.f64", (|x| 1.0 / x.sqrt()) as fn(f64) -> f64),
        ("rcp.approx.ftz.f64", |x| 1.0 / x),
        ("rsqrt.approx.ftz.f64", |x| 1.0 / x.sqrt()),
    ] {
        for ([a, ..], got) in inputs
            .iter()
            .zip(run(&kernel(form, [64, 0, 0, 64]), &inputs))
        {
            let (y, want) = (f64::from_bits(got), f(f64::from_bits(*a)));
            let subnormal = want.is_subnormal();
            let fine = want.is_nan() && y.is_nan()
                || subnormal
                || y == want
                || relative(y, want, 2f64.powi(-22));
            assert!(fine, "{form} of {a:#x} is {y:e}, not {want:e}");
        }
    }
}
