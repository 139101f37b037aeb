//! Every level against a model that works on one element at a time.
#![allow(unsafe_code)] // Calls the raw-pointer functions over vectors.

use ::half::{bf16, f16};
use proptest::prelude::*;
use ringbell_nic_abi::{DataType, ReduceOp, WireType};

use super::convert::{run_at, Conversion};
use super::*;

/// Bits of one element, in the low bytes.
fn model(dtype: DataType, op: ReduceOp, a: u64, b: u64) -> u64 {
    macro_rules! integer {
        ($t:ty) => {{
            let (a, b) = (a as $t, b as $t);
            let v = match op {
                ReduceOp::Sum => a.wrapping_add(b),
                ReduceOp::Prod => a.wrapping_mul(b),
                ReduceOp::Min => Ord::min(a, b),
                ReduceOp::Max => Ord::max(a, b),
                ReduceOp::And => a & b,
                ReduceOp::Or => a | b,
                ReduceOp::Xor => a ^ b,
            };
            v as u64 & (u64::MAX >> (64 - 8 * size_of::<$t>()))
        }};
    }
    macro_rules! float {
        ($a:expr, $b:expr, $nan:expr) => {{
            let (a, b) = ($a, $b);
            let (small, large) = match a.partial_cmp(&b) {
                _ if a.is_nan() || b.is_nan() => ($nan, $nan),
                Some(std::cmp::Ordering::Equal) if a.is_sign_negative() => (a, b),
                Some(std::cmp::Ordering::Less) => (a, b),
                _ => (b, a),
            };
            let v = match op {
                ReduceOp::Sum => a + b,
                ReduceOp::Prod => a * b,
                ReduceOp::Min => small,
                ReduceOp::Max => large,
                _ => unreachable!("{op:?} of a float"),
            };
            if v.is_nan() {
                $nan
            } else {
                v
            }
        }};
    }
    match dtype {
        DataType::I8 => integer!(i8),
        DataType::U8 => integer!(u8),
        DataType::I16 => integer!(i16),
        DataType::U16 => integer!(u16),
        DataType::I32 => integer!(i32),
        DataType::U32 => integer!(u32),
        DataType::I64 => integer!(i64),
        DataType::U64 => integer!(u64),
        DataType::F32 => {
            let f = |b| f32::from_bits(b as u32);
            u64::from(float!(f(a), f(b), f32::from_bits(0x7fc0_0000)).to_bits())
        }
        DataType::F64 => float!(
            f64::from_bits(a),
            f64::from_bits(b),
            f64::from_bits(0x7ff8 << 48)
        )
        .to_bits(),
        DataType::F16 => {
            let f = |b| f16::from_bits(b as u16).to_f32();
            let v = float!(f(a), f(b), f32::NAN);
            u64::from(if v.is_nan() {
                0x7e00
            } else {
                f16::from_f32(v).to_bits()
            })
        }
        DataType::Bf16 => {
            let f = |b| bf16::from_bits(b as u16).to_f32();
            let v = float!(f(a), f(b), f32::NAN);
            u64::from(if v.is_nan() {
                0x7fc0
            } else {
                bf16::from_f32(v).to_bits()
            })
        }
    }
}

/// Bits that go wrong first.
fn special(dtype: DataType) -> Vec<u64> {
    let bits = 8 * dtype.bytes() as u32;
    let top = 1u64 << (bits - 1);
    let all = u64::MAX >> (64 - bits);
    let mut v = vec![
        0,
        1,
        2,
        3,
        top,
        top | 1,
        top - 1,
        all,
        all - 1,
        all >> 2,
        0x55 & all,
    ];
    // (exponent of infinity, lowest mantissa bit above it)
    let inf: u64 = match dtype {
        DataType::F16 => 0x7c00,
        DataType::Bf16 => 0x7f80,
        DataType::F32 => 0x7f80_0000,
        DataType::F64 => 0x7ff0 << 48,
        _ => return v,
    };
    let one = match dtype {
        DataType::F16 => 0x3c00,
        DataType::Bf16 => 0x3f80,
        DataType::F32 => 0x3f80_0000,
        _ => 0x3ff0 << 48,
    };
    // Infinity, a signalling NaN, quiet ones, the largest, numbers about one, the smallest normal.
    let digit = inf & inf.wrapping_neg();
    for m in [
        inf,
        inf + 1,
        inf | digit >> 1,
        inf | digit >> 1 | 5,
        inf - 1,
        one,
        one + 1,
        one - 1,
        digit,
        digit - 1,
    ] {
        v.extend([m, m | top]);
    }
    v
}

fn bytes_of(dtype: DataType, elements: &[u64]) -> Vec<u8> {
    let size = dtype.bytes() as usize;
    elements
        .iter()
        .flat_map(|e| e.to_le_bytes()[..size].to_vec())
        .collect()
}

/// A buffer whose first element lies `skew` bytes after the start of a cache line.
struct Room {
    memory: Vec<u8>,
    at: usize,
    len: usize,
}

impl Room {
    fn new(skew: usize, contents: &[u8]) -> Room {
        let mut memory = vec![0xa5; contents.len() + 256];
        let at = 64 + memory.as_ptr().align_offset(64) + skew;
        memory[at..at + contents.len()].copy_from_slice(contents);
        Room {
            memory,
            at,
            len: contents.len(),
        }
    }
    fn ptr(&mut self) -> *mut u8 {
        // SAFETY: `at` lies inside the vector.
        unsafe { self.memory.as_mut_ptr().add(self.at) }
    }
    fn contents(&self) -> &[u8] {
        let (a, b) = (self.at, self.at + self.len);
        assert!(
            self.memory[..a]
                .iter()
                .chain(&self.memory[b..])
                .all(|x| *x == 0xa5),
            "stray byte"
        );
        &self.memory[a..b]
    }
}

#[derive(Debug, Clone)]
struct Case {
    dtype: DataType,
    op: ReduceOp,
    /// Elements of each source.
    srcs: Vec<Vec<u64>>,
    dsts: usize,
    skews: Vec<usize>,
    streaming: bool,
    /// The first destination is this source.
    in_place: Option<usize>,
}

fn check(c: &Case) {
    let n = c.srcs[0].len();
    let want: Vec<u64> = (0..n)
        .map(|i| {
            let first = c.srcs[0][i];
            c.srcs[1..]
                .iter()
                .fold(first, |a, s| model(c.dtype, c.op, a, s[i]))
        })
        .collect();
    let want = bytes_of(c.dtype, &want);
    for level in Level::available() {
        let mut srcs: Vec<Room> = c
            .srcs
            .iter()
            .zip(&c.skews)
            .map(|(s, skew)| Room::new(*skew, &bytes_of(c.dtype, s)))
            .collect();
        let blank = vec![0u8; want.len()];
        let mut dsts: Vec<Room> = (0..c.dsts)
            .map(|i| Room::new(c.skews[(i + 3) % c.skews.len()], &blank))
            .collect();
        let in_place = c.in_place.map(|i| i % srcs.len());
        let from: Vec<*const u8> = srcs.iter_mut().map(|r| r.ptr().cast_const()).collect();
        let mut to: Vec<*mut u8> = dsts.iter_mut().map(Room::ptr).collect();
        if let Some(i) = in_place {
            to[0] = from[i].cast_mut();
        }
        // SAFETY: all rooms hold `n` elements and do not overlap; one may be in place.
        unsafe { fused_at(level, c.dtype, c.op, &to, &from, n, c.streaming) };
        for (i, d) in dsts.iter().enumerate() {
            let got = match in_place {
                Some(s) if i == 0 => srcs[s].contents(),
                _ => d.contents(),
            };
            assert_eq!(got, want, "{level:?}, destination {i} of {c:?}");
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let kinds = (
        prop::sample::select(DataType::ALL),
        prop::sample::select(ReduceOp::ALL),
    )
        .prop_filter("floats have no operations on bits", |(d, op)| op.takes(*d));
    (
        kinds,
        1usize..=5,
        0usize..200,
        1usize..=4,
        any::<bool>(),
        prop::option::of(0usize..5),
    )
        .prop_flat_map(|((dtype, op), srcs, n, dsts, streaming, in_place)| {
            let element = prop_oneof![
                prop::sample::select(special(dtype)),
                any::<u64>().prop_map(move |b| b & (u64::MAX >> (64 - 8 * dtype.bytes()))),
            ];
            (
                prop::collection::vec(prop::collection::vec(element, n), srcs),
                prop::collection::vec(prop_oneof![Just(0usize), 0usize..64], 5),
            )
                .prop_map(move |(srcs, skews)| Case {
                    dtype,
                    op,
                    srcs,
                    dsts,
                    skews,
                    streaming,
                    in_place,
                })
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn fused_equals_the_model(c in case()) {
        check(&c);
    }
}

#[test]
fn every_pair_of_special_values() {
    for dtype in DataType::ALL {
        let s = special(*dtype);
        let a: Vec<u64> = s.iter().flat_map(|a| s.iter().map(move |_| *a)).collect();
        let b: Vec<u64> = s.iter().flat_map(|_| s.iter().copied()).collect();
        for op in ReduceOp::ALL.iter().filter(|op| op.takes(*dtype)) {
            check(&Case {
                dtype: *dtype,
                op: *op,
                srcs: vec![a.clone(), b.clone()],
                dsts: 2,
                skews: vec![0, 5, 0, 64, 3],
                streaming: *op == ReduceOp::Sum,
                in_place: None,
            });
        }
    }
}

#[test]
fn many_elements_take_every_path() {
    for streaming in [false, true] {
        let src = |k: u64| {
            (0..70_001u64)
                .map(|i| i.wrapping_mul(k) % 8191)
                .collect::<Vec<_>>()
        };
        check(&Case {
            dtype: DataType::I32,
            op: ReduceOp::Sum,
            srcs: vec![src(31), src(77), src(1_000_003)],
            dsts: 3,
            skews: vec![4, 0, 60, 8, 4],
            streaming,
            in_place: None,
        });
    }
}

fn convert(conversion: Conversion, src: &[u8]) -> Vec<u8> {
    let (from, to) = match conversion {
        Conversion::Narrow(wire) => (4, wire_bytes(wire)),
        Conversion::Widen(wire) => (wire_bytes(wire), 4),
    };
    let n = src.len() / from;
    let mut want: Option<Vec<u8>> = None;
    for level in Level::available() {
        let mut dst = vec![0u8; n * to];
        // SAFETY: both operands hold `n` elements.
        unsafe { run_at(level, conversion, dst.as_mut_ptr(), src.as_ptr(), n) };
        let first = want.get_or_insert_with(|| dst.clone());
        assert!(*first == dst, "{level:?} differs for {conversion:?}");
    }
    want.unwrap_or_default()
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks(4)
        .map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]))
        .collect()
}

#[test]
fn every_value_of_the_small_formats_survives() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    let bytes: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
    for wire in [WireType::F16, WireType::Bf16] {
        let wide = f32s(&convert(Conversion::Widen(wire), &bytes));
        for (b, v) in bits.iter().zip(&wide) {
            let want = match wire {
                WireType::F16 => f16::from_bits(*b).to_f32(),
                _ => bf16::from_bits(*b).to_f32(),
            };
            assert!(
                v.to_bits() == want.to_bits() || v.is_nan() && want.is_nan(),
                "{b:#x}"
            );
        }
        let back = convert(Conversion::Narrow(wire), &f32_bytes(&wide));
        for (b, v) in bits.iter().zip(back.chunks(2)) {
            let v = u16::from_le_bytes([v[0], v[1]]);
            let quiet = if wire == WireType::F16 { 0x200 } else { 0x40 };
            let nan = wide[usize::from(*b)].is_nan();
            assert_eq!(v, if nan { b | quiet } else { *b }, "{wire:?}");
        }
    }
}

#[test]
fn narrowing_rounds_to_nearest_even() {
    // All exponents, and mantissas on both sides of every tie.
    let mut v: Vec<f32> = Vec::new();
    for high in 0..=u16::MAX {
        for low in [
            0u16, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff,
        ] {
            v.push(f32::from_bits(u32::from(high) << 16 | u32::from(low)));
        }
    }
    for wire in [WireType::F16, WireType::Bf16] {
        let got = convert(Conversion::Narrow(wire), &f32_bytes(&v));
        for (v, h) in v.iter().zip(got.chunks(2)) {
            let h = u16::from_le_bytes([h[0], h[1]]);
            let want = match wire {
                WireType::F16 => f16::from_f32(*v).to_bits(),
                _ => bf16::from_f32(*v).to_bits(),
            };
            assert_eq!(h, want, "{v:e} = {:#x} as {wire:?}", v.to_bits());
        }
    }
}

proptest! {
    #[test]
    fn any_number_of_elements_is_converted(
        bits in prop::collection::vec(any::<u32>(), 0..100),
        wire in prop::sample::select(WireType::ALL),
    ) {
        let sent: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        let received = convert(Conversion::Narrow(wire), &f32_bytes(&sent));
        let wide = f32s(&convert(Conversion::Widen(wire), &received));
        prop_assert_eq!(wide.len(), sent.len());
        for (v, s) in wide.iter().zip(&sent) {
            let want = match wire {
                WireType::Same => *s,
                WireType::F16 => f16::from_f32(*s).to_f32(),
                WireType::Bf16 => bf16::from_f32(*s).to_f32(),
            };
            prop_assert!(v.to_bits() == want.to_bits() || v.is_nan() && want.is_nan());
        }
    }
}
