//! Images and estimates, to and from the crate `datasketches` (Apache).

use datasketches::common::NumStdDev;
use datasketches::hash::value::{raw_bytes, sign_extend};
use datasketches::hll::{HllSketch, HllType, HllUnion};
use proptest::prelude::*;
use ringbell_onc_engines::stream::hll::{DataSketchesForm, HashKind, Sketch};

const FORMS: [(DataSketchesForm, HllType); 2] = [
    (DataSketchesForm::Hll4, HllType::Hll4),
    (DataSketchesForm::Hll8, HllType::Hll8),
];

fn items(from: u64, n: u64) -> impl Iterator<Item = u64> {
    (from..from + n).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn ours(precision: u8, from: u64, n: u64) -> Sketch {
    let mut sketch = Sketch::new(precision, HashKind::DataSketches, 8).unwrap();
    let bytes: Vec<u8> = items(from, n).flat_map(u64::to_le_bytes).collect();
    sketch.update(&bytes);
    sketch
}

fn theirs(precision: u8, kind: HllType, from: u64, n: u64) -> HllSketch {
    let mut sketch = HllSketch::new(precision, kind).unwrap();
    items(from, n).for_each(|i| sketch.update(i));
    sketch
}

/// Sizes in LIST, SET and HLL mode, around each change, and far beyond.
const SIZES: [u64; 12] = [
    0, 1, 7, 8, 9, 24, 200, 1535, 1600, 20_000, 150_000, 1_000_000,
];

#[test]
fn datasketches_reads_our_images_and_estimates_the_same() {
    for precision in [4, 7, 11, 14, 18] {
        for n in SIZES {
            let sketch = ours(precision, 1, n);
            for (form, kind) in FORMS {
                let image = sketch.to_datasketches(form).unwrap();
                let read = HllSketch::deserialize(&image).unwrap();
                let case = format!("precision {precision}, {n} items, {form:?}");
                assert_eq!(read.estimate(), sketch.estimate(), "{case}");
                assert_eq!(read.target_type(), kind, "{case}");
                assert_eq!(read.is_empty(), n == 0, "{case}");
                // Its own sketch of the same items is as far off as ours, give or take the noise of
                // both.
                let own = theirs(precision, kind, 1, n);
                let sigma = sketch.relative_error() * n as f64;
                assert!(
                    (own.estimate() - read.estimate()).abs() <= 6.0 * sigma,
                    "{case}"
                );
                // And it goes on from there.
                let mut grown = read;
                items(1 + n, 100_000).for_each(|i| grown.update(i));
                let total = (n + 100_000) as f64;
                let error = (grown.estimate() / total - 1.0).abs();
                assert!(error < 6.0 * sketch.relative_error(), "{case}: {error}");
            }
        }
    }
}

#[test]
fn datasketches_images_are_read_with_the_same_estimate() {
    for precision in [4, 7, 11, 14, 18, 21] {
        for n in SIZES {
            for kind in [HllType::Hll4, HllType::Hll6, HllType::Hll8] {
                let sketch = theirs(precision, kind, 1, n);
                let image = sketch.serialize();
                let read = Sketch::from_datasketches(&image, HashKind::DataSketches).unwrap();
                let case = format!("precision {precision}, {n} items, {kind:?}");
                let error = (read.estimate() - sketch.estimate()).abs();
                // Coupons are counted by a formula here and by a table there.
                assert!(error <= 1e-6 * sketch.estimate(), "{case}: {error}");
                let same = ours(precision, 1, n);
                assert_eq!(read.registers(), same.registers(), "{case}");
            }
        }
    }
}

#[test]
fn datasketches_images_are_written_back_unchanged() {
    // In HLL mode an HLL_8 image is ours byte for byte; HLL_4 lists its exceptions in the order of
    // their hash table, so it is compared as a sketch.
    for n in [20_000, 1_000_000] {
        for (form, kind) in FORMS {
            let sketch = theirs(12, kind, 5, n);
            let image = sketch.serialize();
            let read = Sketch::from_datasketches(&image, HashKind::DataSketches).unwrap();
            let back = read.to_datasketches(form).unwrap();
            assert!(HllSketch::deserialize(&back).unwrap() == sketch);
            if form == DataSketchesForm::Hll8 {
                assert_eq!(back, image);
            }
        }
    }
}

#[test]
fn merged_sketches_agree_to_a_quarter_of_the_standard_error() {
    for precision in [8, 11, 14] {
        for n in [500, 5_000, 50_000, 400_000] {
            let (a, b) = (ours(precision, 0, n), ours(precision, n / 2, n));
            let both = a.union(&b).unwrap();
            let mut union = HllUnion::new(precision).unwrap();
            for (sketch, (form, _)) in [a, b].iter().zip(FORMS) {
                let image = sketch.to_datasketches(form).unwrap();
                union.update(&HllSketch::deserialize(&image).unwrap());
            }
            let theirs = union.to_sketch(HllType::Hll8);
            let read =
                Sketch::from_datasketches(&theirs.serialize(), HashKind::DataSketches).unwrap();
            assert_eq!(read.registers(), both.registers());
            let apart = (theirs.estimate() / both.estimate() - 1.0).abs();
            let case = format!("precision {precision}, n {n}: {apart}");
            assert!(apart < 0.25 * both.relative_error(), "{case}");
            // And the image of our union is out of order for them, with wider bounds.
            let image = both.to_datasketches(DataSketchesForm::Hll8).unwrap();
            let read = HllSketch::deserialize(&image).unwrap();
            assert_eq!(read.estimate(), theirs.estimate(), "{case}");
            assert_eq!(
                read.upper_bound(NumStdDev::Two),
                theirs.upper_bound(NumStdDev::Two)
            );
        }
    }
}

#[test]
fn integers_and_bytes_are_hashed_as_by_datasketches() {
    let mut widened = HllSketch::new(12, HllType::Hll8).unwrap();
    let mut as_bytes = HllSketch::new(12, HllType::Hll8).unwrap();
    let values: Vec<u32> = (0..40_000u32)
        .map(|i| i.wrapping_mul(2_654_435_761))
        .collect();
    let stream: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    for &v in &values {
        widened.update(sign_extend::from_u32(v));
        as_bytes.update(raw_bytes::from_slice(&v.to_le_bytes()));
    }
    for (hash, theirs) in [
        (HashKind::DataSketches, widened),
        (HashKind::DataSketchesBytes, as_bytes),
    ] {
        let mut sketch = Sketch::new(12, hash, 4).unwrap();
        sketch.update(&stream);
        let read = Sketch::from_datasketches(&theirs.serialize(), hash).unwrap();
        assert_eq!(read.registers(), sketch.registers(), "{}", hash.name());
    }
}

#[test]
fn other_hashes_are_refused() {
    for hash in [HashKind::Mix, HashKind::Murmur3] {
        let sketch = Sketch::new(8, hash, 8).unwrap();
        let error = sketch.to_datasketches(DataSketchesForm::Hll8).unwrap_err();
        assert!(error.to_string().contains(hash.name()), "{error}");
        let image = ours(8, 0, 100)
            .to_datasketches(DataSketchesForm::Hll8)
            .unwrap();
        assert_eq!(Sketch::from_datasketches(&image, hash), Err(error));
    }
}

/// Where an image of HLL mode has its history, its sums and its count.
const HISTORY: usize = 8;
const SUMS: [usize; 2] = [16, 24];
const COUNT: usize = 32;

#[test]
fn sums_that_contradict_the_registers_are_refused() {
    let put = |image: &[u8], at: usize, value: f64| {
        let mut changed = image.to_vec();
        changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
        changed
    };
    let refused = |image: &[u8], what: &str| {
        let error = Sketch::from_datasketches(image, HashKind::DataSketches).expect_err(what);
        assert!(error.to_string().contains(what), "{what}: {error}");
    };
    for (precision, n) in [(4, 40), (7, 3000), (11, 20_000), (12, 150_000)] {
        for kind in [HllType::Hll4, HllType::Hll6, HllType::Hll8] {
            let image = theirs(precision, kind, 5, n).serialize();
            assert_eq!(image[7] & 3, 2, "HLL mode");
            let read = Sketch::from_datasketches(&image, HashKind::DataSketches).unwrap();
            let touched = read.registers().iter().filter(|&&v| v > 0).count() as f64;
            for at in SUMS {
                let sum = f64::from_le_bytes(image[at..at + 8].try_into().unwrap());
                for value in [sum * 1.001 + 1e-6, -1.0, f64::NAN, f64::INFINITY] {
                    refused(&put(&image, at, value), "a sum of inverse powers");
                }
            }
            // Below what was certainly counted, above what the registers can have come to.
            for value in [
                0.0,
                touched * 0.9,
                n as f64 * 1e6,
                1e300,
                f64::INFINITY,
                f64::NAN,
                -1.0,
            ] {
                refused(&put(&image, HISTORY, value), "the history's estimate");
            }
            for change in [1, 0xff] {
                let mut changed = image.clone();
                changed[COUNT] ^= change;
                refused(&changed, "the number of lowest registers");
            }
            // A register that contradicts the sums; nothing else in the image shows it.
            let mut changed = image.clone();
            changed[40] ^= 1;
            assert!(Sketch::from_datasketches(&changed, HashKind::DataSketches).is_err());
        }
    }
}

#[test]
fn registers_that_no_items_leave_are_refused_and_give_no_infinity() {
    let full = Sketch::from_registers(HashKind::DataSketches, 8, &[63; 16]).unwrap();
    for form in [DataSketchesForm::Hll4, DataSketchesForm::Hll8] {
        let image = full.to_datasketches(form).unwrap();
        let error = Sketch::from_datasketches(&image, HashKind::DataSketches).unwrap_err();
        assert!(error.to_string().contains("every register"), "{error}");
    }
    // One lower, and it counts.
    let mut registers = [63; 16];
    registers[3] = 62;
    let high = Sketch::from_registers(HashKind::DataSketches, 8, &registers).unwrap();
    let image = high.to_datasketches(DataSketchesForm::Hll8).unwrap();
    let read = Sketch::from_datasketches(&image, HashKind::DataSketches).unwrap();
    assert!(read.estimate().is_finite());
}

#[test]
fn sums_that_an_image_marks_stale_are_ignored() {
    let mut image = theirs(8, HllType::Hll8, 5, 3000).serialize();
    let registers = Sketch::from_datasketches(&image, HashKind::DataSketches).unwrap();
    image[SUMS[0]..SUMS[0] + 8].copy_from_slice(&7.5f64.to_le_bytes());
    image[COUNT] ^= 1;
    // Out of order, and to be rebuilt: as Java leaves a union without a query yet.
    image[5] |= 16 | 32;
    let read = Sketch::from_datasketches(&image, HashKind::DataSketches).unwrap();
    assert_eq!(read.registers(), registers.registers());
    assert!(!read.has_history());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Their format has no checksum: a changed image is either an error, or another sketch that can
    /// be used.
    #[test]
    fn damaged_images_never_panic(
        (precision, n, kind) in (
            4u8..=10,
            prop::sample::select(vec![0u64, 5, 20, 300, 3000]),
            prop::sample::select(vec![HllType::Hll4, HllType::Hll6, HllType::Hll8]),
        ),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut image = theirs(precision, kind, 3, n).serialize();
        for (at, value, in_header) in changes {
            // Half of the changes hit the header, where a byte decides how the rest is read.
            let range = if in_header { image.len().min(40) } else { image.len() };
            image[at.index(range)] = value;
        }
        if let Some(cut) = cut {
            image.truncate(cut.index(image.len()));
        }
        if let Ok(sketch) = Sketch::from_datasketches(&image, HashKind::DataSketches) {
            let image = sketch.to_datasketches(DataSketchesForm::Hll4).unwrap();
            let again = Sketch::from_datasketches(&image, HashKind::DataSketches).unwrap();
            prop_assert_eq!(again.registers(), sketch.registers());
            prop_assert!(sketch.estimate() >= 0.0 && sketch.estimate().is_finite());
        }
    }

    #[test]
    fn any_bytes_are_a_sketch_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Sketch::from_datasketches(&bytes, HashKind::DataSketches);
        let header = [10, 1, 7, 4, 0, 0, 0, 0];
        let n = bytes.len().min(4);
        bytes[..n].copy_from_slice(&header[..n]);
        let _ = Sketch::from_datasketches(&bytes, HashKind::DataSketches);
    }
}
