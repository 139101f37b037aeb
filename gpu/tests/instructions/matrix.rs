//! `mma`, `wmma`, `ldmatrix`, `stmatrix`, `movmatrix` (§9.7.14). Where elements lie is written here
//! as the ISA writes it.

use super::exact::{Format, Round, Scaled, BF16, F16, F32};
use super::harness::{random, refused};
use super::launch::{findings, launch, module};

/// Row and column of element `i` of a lane.
type Layout = fn(group: usize, thread: usize, i: usize) -> (usize, usize);

struct Shape {
    text: &'static str,
    mnk: [usize; 3],
    /// `B` as row k and column n.
    a: Layout,
    b: Layout,
}

/// `C` and `D` of all shapes.
fn sum_at(group: usize, thread: usize, i: usize) -> (usize, usize) {
    let row = if i < 2 { group } else { group + 8 };
    (row, thread * 2 + (i & 1))
}

/// An element's bits in a matrix, by its type.
fn encode(ty: &str, v: f64) -> u64 {
    match ty {
        "f64" => v.to_bits(),
        "f32" | "tf32" => nearest(F32, v),
        "f16" => nearest(F16, v),
        "bf16" => nearest(BF16, v),
        "e5m2" => nearest(F16, v) >> 8,
        // Found among all of them.
        "e4m3" => (0..256).find(|b| small(*b) == v).unwrap(),
        "s32" => v as i32 as u32 as u64,
        "s8" => v as i8 as u8 as u64,
        "u8" => v as u8 as u64,
        "s4" | "u4" => v as i64 as u64 & 15,
        _ => v as u64 & 1,
    }
}

fn nearest(f: Format, v: f64) -> u64 {
    if v == 0.0 {
        return 0;
    }
    let order = |(sig, exp): Scaled| (sig as f64 * 2f64.powi(exp)).total_cmp(&v.abs());
    f.round(v < 0.0, order, Round::Nearest)
}

/// `e4m3`: a sign, 4 bits of exponent with bias 7, 3 of fraction; all ones is NaN.
fn small(bits: u64) -> f64 {
    let (e, m) = (bits >> 3 & 15, (bits & 7) as f64);
    let v = match (e, bits & 7) {
        (15, 7) => f64::NAN,
        (0, _) => m / 8.0 * 2f64.powi(-6),
        _ => (1.0 + m / 8.0) * 2f64.powi(e as i32 - 7),
    };
    if bits & 128 != 0 {
        -v
    } else {
        v
    }
}

fn bits_of(ty: &str) -> usize {
    match ty {
        "f64" => 64,
        "f32" | "tf32" | "s32" => 32,
        "f16" | "bf16" => 16,
        "s4" | "u4" => 4,
        "b1" => 1,
        _ => 8,
    }
}

/// A value that the type has, so small that sums of products are exact in all formats.
fn value(ty: &str, r: u64) -> f64 {
    let r = r >> 13;
    match ty {
        "u8" => (r % 256) as f64,
        "s8" => (r % 256) as f64 - 128.0,
        "u4" => (r % 16) as f64,
        "s4" => (r % 16) as f64 - 8.0,
        "b1" => (r % 2) as f64,
        "s32" => (r as i32 >> 3) as f64,
        "e5m2" | "e4m3" => (r % 7) as f64 / 2.0 - 1.5,
        _ => (r % 33) as f64 / 8.0 - 2.0,
    }
}

const SHAPES: [Shape; 17] = [
    Shape {
        text: "m16n8k16.row.col.f32.f16.f16.f32",
        mnk: [16, 8, 16],
        a: |g, t, i| {
            let row = if i < 2 || (4..6).contains(&i) {
                g
            } else {
                g + 8
            };
            (row, t * 2 + (i & 1) + if i >= 4 { 8 } else { 0 })
        },
        b: |g, t, i| (t * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, g),
    },
    Shape {
        text: "m16n8k16.row.col.f16.f16.f16.f16",
        mnk: [16, 8, 16],
        a: |g, t, i| {
            let row = if i < 2 || (4..6).contains(&i) {
                g
            } else {
                g + 8
            };
            (row, t * 2 + (i & 1) + if i >= 4 { 8 } else { 0 })
        },
        b: |g, t, i| (t * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, g),
    },
    Shape {
        text: "m16n8k16.row.col.f32.bf16.bf16.f32",
        mnk: [16, 8, 16],
        a: |g, t, i| {
            let row = if i < 2 || (4..6).contains(&i) {
                g
            } else {
                g + 8
            };
            (row, t * 2 + (i & 1) + if i >= 4 { 8 } else { 0 })
        },
        b: |g, t, i| (t * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, g),
    },
    Shape {
        text: "m16n8k8.row.col.f32.f16.f16.f32",
        mnk: [16, 8, 8],
        a: |g, t, i| (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1)),
        b: |g, t, i| (t * 2 + i, g),
    },
    Shape {
        text: "m16n8k8.row.col.f32.bf16.bf16.f32",
        mnk: [16, 8, 8],
        a: |g, t, i| (if i < 2 { g } else { g + 8 }, t * 2 + (i & 1)),
        b: |g, t, i| (t * 2 + i, g),
    },
    Shape {
        text: "m16n8k4.row.col.f32.tf32.tf32.f32",
        mnk: [16, 8, 4],
        a: |g, t, i| (if i == 0 { g } else { g + 8 }, t),
        b: |g, t, _| (t, g),
    },
    Shape {
        text: "m16n8k8.row.col.f32.tf32.tf32.f32",
        mnk: [16, 8, 8],
        a: |g, t, i| {
            (
                if i == 0 || i == 2 { g } else { g + 8 },
                if i < 2 { t } else { t + 4 },
            )
        },
        b: |g, t, i| (if i == 0 { t } else { t + 4 }, g),
    },
    Shape {
        text: "m8n8k4.row.col.f64.f64.f64.f64",
        mnk: [8, 8, 4],
        a: |g, t, _| (g, t),
        b: |g, t, _| (t, g),
    },
    Shape {
        text: "m16n8k16.row.col.f64.f64.f64.f64",
        mnk: [16, 8, 16],
        a: |g, t, i| (if i % 2 == 0 { g } else { g + 8 }, t + i / 2 * 4),
        b: |g, t, i| (t + i * 4, g),
    },
    Shape {
        text: "m8n8k16.row.col.s32.s8.u8.s32",
        mnk: [8, 8, 16],
        a: |g, t, i| (g, t * 4 + i),
        b: |g, t, i| (t * 4 + i, g),
    },
    Shape {
        text: "m16n8k16.row.col.s32.u8.s8.s32",
        mnk: [16, 8, 16],
        a: |g, t, i| (if i < 4 { g } else { g + 8 }, t * 4 + (i & 3)),
        b: |g, t, i| (t * 4 + i, g),
    },
    Shape {
        text: "m16n8k32.row.col.satfinite.s32.s8.s8.s32",
        mnk: [16, 8, 32],
        a: |g, t, i| {
            let row = if i < 4 || (8..12).contains(&i) {
                g
            } else {
                g + 8
            };
            (row, t * 4 + (i & 3) + if i >= 8 { 16 } else { 0 })
        },
        b: |g, t, i| (t * 4 + (i & 3) + if i >= 4 { 16 } else { 0 }, g),
    },
    Shape {
        text: "m16n8k64.row.col.s32.s4.u4.s32",
        mnk: [16, 8, 64],
        a: |g, t, i| {
            let row = if i < 8 || (16..24).contains(&i) {
                g
            } else {
                g + 8
            };
            (row, t * 8 + (i & 7) + if i >= 16 { 32 } else { 0 })
        },
        b: |g, t, i| (t * 8 + (i & 7) + if i >= 8 { 32 } else { 0 }, g),
    },
    Shape {
        text: "m16n8k32.row.col.f32.e4m3.e5m2.f32",
        mnk: [16, 8, 32],
        a: |g, t, i| {
            let row = if i < 4 || (8..12).contains(&i) {
                g
            } else {
                g + 8
            };
            (row, t * 4 + (i & 3) + if i >= 8 { 16 } else { 0 })
        },
        b: |g, t, i| (t * 4 + (i & 3) + if i >= 4 { 16 } else { 0 }, g),
    },
    Shape {
        text: "m16n8k256.row.col.s32.b1.b1.s32.xor.popc",
        mnk: [16, 8, 256],
        a: |g, t, i| {
            let row = if i < 32 || (64..96).contains(&i) {
                g
            } else {
                g + 8
            };
            (row, t * 32 + (i & 31) + if i >= 64 { 128 } else { 0 })
        },
        b: |g, t, i| (t * 32 + (i & 31) + if i >= 32 { 128 } else { 0 }, g),
    },
    Shape {
        text: "m16n8k128.row.col.s32.b1.b1.s32.and.popc",
        mnk: [16, 8, 128],
        a: |g, t, i| (if i < 32 { g } else { g + 8 }, t * 32 + (i & 31)),
        b: |g, t, i| (t * 32 + i, g),
    },
    Shape {
        text: "m8n8k32.row.col.s32.u4.s4.s32",
        mnk: [8, 8, 32],
        a: |g, t, i| (g, t * 8 + i),
        b: |g, t, i| (t * 8 + i, g),
    },
];

/// Words of a lane in memory: `A`, `B`, `C` and `D`, 16 each.
const LANE: usize = 64;

/// Registers by 32 or 64 bits, from `%x`, `%r` or `%f` number `first`.
fn registers(ty: &str, n: usize, first: usize) -> Vec<String> {
    let kind = match ty {
        "f64" => "%d",
        "f32" => "%f",
        _ => "%r",
    };
    (0..n).map(|i| format!("{kind}{}", first + i)).collect()
}

fn moves(op: &str, ty: &str, at: usize, list: &[String]) -> String {
    let (kind, bytes) = match ty {
        "f64" => ("f64", 8),
        "f32" => ("f32", 4),
        _ => ("b32", 4),
    };
    let one = |(i, r): (usize, &String)| {
        let at = at * 4 + i * bytes;
        match op {
            "ld" => format!("ld.global.{kind} {r}, [%x2+{at}];\n"),
            _ => format!("st.global.{kind} [%x2+{at}], {r};\n"),
        }
    };
    list.iter().enumerate().map(one).collect()
}

struct Matrices {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

impl Matrices {
    fn random([m, n, k]: [usize; 3], [a, b, c]: [&str; 3], seed: u64) -> Matrices {
        let mut next = random(seed);
        let mut some = |ty: &str, count: usize| (0..count).map(|_| value(ty, next())).collect();
        Matrices {
            a: some(a, m * k),
            b: some(b, k * n),
            c: some(c, m * n),
        }
    }

    fn product(&self, [m, n, k]: [usize; 3], each: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        let at = |r: usize, q: usize| {
            let products = (0..k).map(|i| each(self.a[r * k + i], self.b[i * n + q]));
            self.c[r * n + q] + products.sum::<f64>()
        };
        (0..m * n).map(|i| at(i / n, i % n)).collect()
    }
}

#[test]
fn products_of_matrices_are_exact_and_stand_where_the_isa_says() {
    for (seed, shape) in SHAPES.iter().enumerate() {
        let parts: Vec<&str> = shape
            .text
            .split('.')
            .filter(|p| *p != "satfinite")
            .collect();
        let [d, a, b, c] = [parts[3], parts[4], parts[5], parts[6]];
        let [m, n, k] = shape.mnk;
        let per_lane = |rows: usize, columns: usize| rows * columns / 32;
        let counts = [
            (a, per_lane(m, k)),
            (b, per_lane(k, n)),
            (c, per_lane(m, n)),
            (d, per_lane(m, n)),
        ];
        let counts = counts.map(|(ty, n)| (ty, n * bits_of(ty) / bits_of(ty).max(32)));
        let lists: Vec<Vec<String>> = counts
            .iter()
            .enumerate()
            .map(|(i, (ty, n))| {
                registers(ty, *n, 8 + 8 * i + usize::from(*ty == "f64" && i > 0) * 4)
            })
            .collect();
        let mut text = format!("mad.wide.u32 %x2, %r0, {}, %x0;\n", LANE * 4);
        for i in 0..3 {
            text += &moves("ld", counts[i].0, 16 * i, &lists[i]);
        }
        let braces = lists.iter().map(|l| format!("{{{}}}", l.join(", ")));
        let braces: Vec<String> = braces.collect();
        text += &format!(
            "mma.sync.aligned.{} {}, {}, {}, {};\n",
            shape.text, braces[3], braces[0], braces[1], braces[2]
        );
        text += &moves("st", d, 48, &lists[3]);
        let all = Matrices::random(shape.mnk, [a, b, c], seed as u64 + 5);
        let mut words = vec![0u32; 32 * LANE];
        let mut put = |lane: usize, first: usize, ty: &str, i: usize, v: f64| {
            let at = i * bits_of(ty);
            let bits = encode(ty, v);
            words[lane * LANE + first + at / 32] |= (bits << (at % 32)) as u32;
            if ty == "f64" {
                words[lane * LANE + first + at / 32 + 1] = (bits >> 32) as u32;
            }
        };
        for lane in 0..32 {
            let (g, t) = (lane >> 2, lane % 4);
            for i in 0..per_lane(m, k) {
                let (r, q) = (shape.a)(g, t, i);
                put(lane, 0, a, i, all.a[r * k + q]);
            }
            for i in 0..per_lane(k, n) {
                let (r, q) = (shape.b)(g, t, i);
                put(lane, 16, b, i, all.b[r * n + q]);
            }
            for i in 0..per_lane(m, n) {
                let (r, q) = sum_at(g, t, i);
                put(lane, 32, c, i, all.c[r * n + q]);
            }
        }
        let want = all.product(shape.mnk, |x, y| match parts.get(7) {
            Some(&"xor") => f64::from(x != y),
            _ => x * y,
        });
        launch(&module("", &text), 32, &mut words);
        for lane in 0..32 {
            for i in 0..per_lane(m, n) {
                let (r, q) = sum_at(lane >> 2, lane % 4, i);
                let at = i * bits_of(d);
                let word = lane * LANE + 48 + at / 32;
                let got = u64::from(words[word]) | u64::from(words[word + 1]) << 32;
                let got = got >> (at % 32) & (u64::MAX >> (64 - bits_of(d)));
                assert_eq!(
                    got,
                    encode(d, want[r * n + q]),
                    "{}: row {r}, column {q}",
                    shape.text
                );
            }
        }
    }
}

#[test]
fn sums_of_integers_wrap_or_saturate() {
    for (saturate, want) in [
        ("", 0x8000_0000u32 + 16 * 4 - 1),
        ("satfinite.", 0x7fff_ffff),
    ] {
        let text = format!(
            "mov.b32 %r1, 0x02020202; mov.b32 %r2, 0x02020202; mov.u32 %r3, 0x7fffffff; mov.u32 %r4, 5;\n\
             mma.sync.aligned.m8n8k16.row.col.{saturate}s32.s8.s8.s32 {{%r5, %r6}}, {{%r1}}, {{%r2}}, {{%r3, %r4}};\n\
             st.global.u32 [%x1], %r5; st.global.u32 [%x1+128], %r6;"
        );
        let mut words = vec![0; 64];
        launch(&module("", &text), 32, &mut words);
        assert_eq!(words[..32], [want; 32]);
        assert_eq!(words[32..], [69; 32]);
    }
}

#[test]
fn fragments_of_wmma_are_loaded_multiplied_and_stored() {
    let row_col = ["row", "col"];
    for (case, (shape, [a, b, c, d])) in [
        ([16, 16, 16], ["f16", "f16", "f32", "f32"]),
        ([16, 16, 16], ["f16", "f16", "f16", "f32"]),
        ([32, 8, 16], ["f16", "f16", "f32", "f32"]),
        ([8, 32, 16], ["f16", "f16", "f32", "f32"]),
        ([16, 16, 16], ["bf16", "bf16", "f32", "f32"]),
        ([8, 32, 16], ["bf16", "bf16", "f32", "f32"]),
        ([16, 16, 8], ["tf32", "tf32", "f32", "f32"]),
        ([16, 16, 16], ["s8", "s8", "s32", "s32"]),
        ([32, 8, 16], ["u8", "u8", "s32", "s32"]),
        ([8, 8, 4], ["f64", "f64", "f64", "f64"]),
    ]
    .into_iter()
    .enumerate()
    {
        let [m, n, k] = shape;
        let shape_text = format!("m{m}n{n}k{k}");
        let count = |ty: &str, elements: usize, operand: bool| match (ty, operand) {
            ("f16", true) => 8,
            _ => elements * bits_of(ty) / bits_of(ty).max(32) / 32,
        };
        let list = |ty: &str, elements: usize, operand: bool, first: usize| {
            format!(
                "{{{}}}",
                registers(ty, count(ty, elements, operand), first).join(", ")
            )
        };
        for orders in 0..16 {
            let order = |bit: usize| row_col[orders >> bit & 1];
            let (oa, ob, oc, od) = (order(0), order(1), order(2), order(3));
            let space = ["", ".global"][case % 2];
            let (la, lb) = (list(a, m * k, true, 8), list(b, k * n, true, 16));
            let (lc, ld) = (list(c, m * n, false, 24), list(d, m * n, false, 32));
            // Strides are 8 more than they must be.
            let stride = |o: &str, rows: usize, columns: usize| {
                if o == "row" {
                    columns + 8
                } else {
                    rows + 8
                }
            };
            let (sa, sb, sc, sd) = (
                stride(oa, m, k),
                stride(ob, k, n),
                stride(oc, m, n),
                stride(od, m, n),
            );
            let types = match a {
                "f16" => format!("{d}.{c}"),
                _ => format!("{d}.{a}.{b}.{c}"),
            };
            let text = format!(
                "add.u64 %x3, %x0, 8192; add.u64 %x4, %x0, 16384; add.u64 %x5, %x0, 24576; mov.u32 %r1, {sa};\n\
                 wmma.load.a.sync.aligned.{oa}.{shape_text}{space}.{a} {la}, [%x0], %r1;\n\
                 wmma.load.b.sync.aligned.{ob}.{shape_text}{space}.{b} {lb}, [%x3], {sb};\n\
                 wmma.load.c.sync.aligned.{oc}.{shape_text}{space}.{c} {lc}, [%x4], {sc};\n\
                 wmma.mma.sync.aligned.{oa}.{ob}.{shape_text}.{types} {ld}, {la}, {lb}, {lc};\n\
                 wmma.store.d.sync.aligned.{od}.{shape_text}{space}.{d} [%x5], {ld}, {sd};"
            );
            let all = Matrices::random(shape, [a, b, c], orders as u64 * 16 + case as u64);
            let mut memory = vec![0u8; 32768];
            let place = |o: &str, stride: usize, r: usize, q: usize| {
                if o == "row" {
                    r * stride + q
                } else {
                    q * stride + r
                }
            };
            let mut put = |first: usize, ty: &str, at: usize, v: f64| {
                let n = bits_of(ty) / 8;
                let at = first + at * n;
                memory[at..at + n].copy_from_slice(&encode(ty, v).to_le_bytes()[..n]);
            };
            (0..m * k).for_each(|i| put(0, a, place(oa, sa, i / k, i % k), all.a[i]));
            (0..k * n).for_each(|i| put(8192, b, place(ob, sb, i / n, i % n), all.b[i]));
            (0..m * n).for_each(|i| put(16384, c, place(oc, sc, i / n, i % n), all.c[i]));
            let mut words: Vec<u32> = memory
                .chunks(4)
                .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
                .collect();
            launch(&module("", &text), 32, &mut words);
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            for (i, want) in all.product(shape, |x, y| x * y).into_iter().enumerate() {
                let size = bits_of(d) / 8;
                let at = 24576 + place(od, sd, i / n, i % n) * size;
                let mut got = [0; 8];
                got[..size].copy_from_slice(&bytes[at..at + size]);
                assert_eq!(
                    u64::from_le_bytes(got),
                    encode(d, want),
                    "{text}: element {i}"
                );
            }
        }
    }
}

/// Without strides, fragments lie without gaps.
#[test]
fn a_fragment_without_stride_has_no_gaps() {
    let list = "{%f8, %f9, %f10, %f11, %f12, %f13, %f14, %f15}";
    let text = format!(
        "wmma.load.c.sync.aligned.row.m16n16k16.f32 {list}, [%x0]; add.u64 %x3, %x0, 1024;\n\
         wmma.store.d.sync.aligned.col.m16n16k16.f32 [%x3], {list};"
    );
    let mut words: Vec<u32> = (0..512).collect();
    launch(&module("", &text), 32, &mut words);
    let want: Vec<u32> = (0..256).map(|i| i % 16 * 16 + i / 16).collect();
    assert_eq!(words[256..], want);
}

/// Rows of 16 bytes, at addresses in no order.
#[test]
fn small_matrices_are_loaded_stored_and_transposed() {
    for count in [1usize, 2, 4] {
        for transpose in [false, true] {
            let trans = if transpose { ".trans" } else { "" };
            let names: Vec<String> = (0..count).map(|i| format!("%r{}", 10 + i)).collect();
            let list = format!("{{{}}}", names.join(", "));
            // Row `i` of all lies at 16 * (7 * i % 32), and goes to 512 + 16 * (5 * i % 32).
            let text = format!(
                ".shared .align 16 .b8 s[1024]; mov.u32 %r1, s; mad.lo.u32 %r2, %r0, 16, %r1;\n\
                 mad.wide.u32 %x2, %r0, 16, %x0; ld.global.v4.u32 {{%r3, %r4, %r5, %r6}}, [%x2];\n\
                 st.shared.v4.u32 [%r2], {{%r3, %r4, %r5, %r6}}; st.shared.v4.u32 [%r2+512], {{0, 0, 0, 0}}; bar.warp.sync -1;\n\
                 mul.lo.u32 %r7, %r0, 7; and.b32 %r7, %r7, 31; mad.lo.u32 %r7, %r7, 16, %r1;\n\
                 ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {list}, [%r7];\n\
                 mul.lo.u32 %r8, %r0, 5; and.b32 %r8, %r8, 31; mad.lo.u32 %r8, %r8, 16, %r1;\n\
                 stmatrix.sync.aligned.m8n8.x{count}.shared::cta.b16 [%r8+512], {list}; bar.warp.sync -1;\n\
                 ld.shared.v4.u32 {{%r3, %r4, %r5, %r6}}, [%r2+512]; st.global.v4.u32 [%x2+512], {{%r3, %r4, %r5, %r6}};\n\
                 bar.warp.sync -1; stmatrix.sync.aligned.m8n8.x{count}.trans.shared.b16 [%r8+512], {list}; bar.warp.sync -1;\n\
                 ld.shared.v4.u32 {{%r3, %r4, %r5, %r6}}, [%r2+512]; st.global.v4.u32 [%x2+1024], {{%r3, %r4, %r5, %r6}};\n\
                 movmatrix.sync.aligned.m8n8.trans.b16 %r20, %r10; st.global.u32 [%x1+1536], %r20; st.global.u32 [%x1+1664], %r10;"
            );
            let mut next = random(count as u64);
            let mut words: Vec<u32> = (0..448).map(|_| next() as u32).collect();
            let halves = |words: &[u32]| -> Vec<u16> {
                words
                    .iter()
                    .flat_map(|w| [*w as u16, (*w >> 16) as u16])
                    .collect()
            };
            let source = halves(&words[..128]);
            let found = findings(&module("", &text), 32, &mut words);
            assert!(found.is_empty(), "{found:?}");
            let (plain, turned) = (halves(&words[128..256]), halves(&words[256..384]));
            for matrix in 0..count {
                let element = |r: usize, q: usize| source[8 * (7 * (8 * matrix + r) % 32) + q];
                for r in 0..8 {
                    for q in 0..8 {
                        let at = 8 * (5 * (8 * matrix + r) % 32) + q;
                        let (want, other) = (element(r, q), element(q, r));
                        let (want, other) = if transpose {
                            (other, want)
                        } else {
                            (want, other)
                        };
                        assert_eq!(
                            [plain[at], turned[at]],
                            [want, other],
                            "x{count}{trans} {matrix} {r} {q}"
                        );
                    }
                }
            }
            let (moved, before) = (halves(&words[384..416]), halves(&words[416..448]));
            for i in 0..64 {
                assert_eq!(moved[i], before[i % 8 * 8 + i / 8]);
            }
        }
    }
}

#[test]
fn shapes_and_types_that_are_not_there_are_refused() {
    for form in [
        "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
        "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s4.s32",
        "wmma.mma.sync.aligned.row.col.m16n16k8.f32.f32",
        "wmma.mma.sync.aligned.row.col.m16n16k16.f64.f64.f64.f64",
    ] {
        refused(&format!("{form} {{%a}}, {{%a}}, {{%a}}, {{%a}};"), form);
    }
    for form in [
        "ldmatrix.sync.aligned.m8n8.x3.b16",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8",
        "wmma.load.a.sync.aligned.row.m16n16k16.f32",
        "wmma.load.d.sync.aligned.row.m16n16k16.f32",
    ] {
        refused(&format!("{form} {{%a}}, [%at];"), form);
    }
    refused(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%a, %a, %a, %a}, {%a}, {%a}, {%a, %a, %a, %a};",
        "registers",
    );
}
