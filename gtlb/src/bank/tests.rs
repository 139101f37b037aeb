//! Lookup equals the page table for every address after any sequence of mapping and unmapping.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::gtlb::GtlbConfig;

/// Two areas of virtual addresses, too far apart for one small window.
const AREAS: [u64; 2] = [0x7f12_3400_0000 & !0x1f_ffff, 0x0100_0000_0000];
/// Pages of each area: 10 groups.
const AREA_PAGES: u64 = 320;
const BUS: u64 = 0x4_0000_0000;

#[derive(Debug, Clone, Copy)]
enum Shape {
    /// Physically contiguous, at this many pages past a multiple of 2 MiB on the bus and on the
    /// same offset as the virtual address, so that whole groups coalesce when it is 0.
    Contiguous(u64),
    /// Pages in reverse order.
    Reversed,
    /// Contiguous but for one pair of neighbours, swapped.
    OneSwapped(u64),
    /// All pages on one frame.
    Aliased,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Map {
        area: usize,
        page: u64,
        count: u64,
        shape: Shape,
    },
    Unmap {
        area: usize,
        page: u64,
        count: u64,
    },
    /// As deregistering and registering a range do.
    Renew {
        area: usize,
        page: u64,
        count: u64,
    },
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        3 => Just(Shape::Contiguous(0)),
        1 => (1..32u64).prop_map(Shape::Contiguous),
        1 => Just(Shape::Reversed),
        1 => (0..320u64).prop_map(Shape::OneSwapped),
        1 => Just(Shape::Aliased),
    ]
}

/// First page and count; groups begin every 32 pages, so half the ranges are ragged.
fn range() -> impl Strategy<Value = (usize, u64, u64)> {
    let ragged = (0..AREA_PAGES, 1..100u64);
    let whole = (0..AREA_PAGES / 32, 1..4u64).prop_map(|(g, n)| (g * 32, n * 32));
    (0..AREAS.len(), prop_oneof![ragged, whole])
        .prop_map(|(area, (page, count))| (area, page, count.min(AREA_PAGES - page)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (range(), shape()).prop_map(|((area, page, count), shape)| Step::Map { area, page, count, shape }),
        3 => range().prop_map(|(area, page, count)| Step::Unmap { area, page, count }),
        1 => range().prop_map(|(area, page, count)| Step::Renew { area, page, count }),
    ]
}

fn sizes() -> impl Strategy<Value = Vec<GtlbConfig>> {
    let one = (0..6u32, 0..4u32).prop_map(|(main, comp)| GtlbConfig {
        main_entries: 1 << main,
        complementary_entries: comp * 32,
    });
    prop::collection::vec(one, 1..4)
}

fn bank(sizes: &[GtlbConfig], refill: bool) -> Bank {
    Bank::new(
        sizes.iter().map(|c| Gtlb::new(*c).unwrap()).collect(),
        refill,
    )
}

/// The bus address of each page, for a range that starts at page `first` of the address space.
fn frames(shape: Shape, first: u64, count: u64, serial: u64) -> Vec<u64> {
    let at = BUS + serial * (64 << 20);
    let frame = |i: u64| at + i * PAGE_BYTES;
    let offset = first % 32;
    (0..count)
        .map(|i| match shape {
            Shape::Contiguous(skew) => frame(offset + skew + i),
            Shape::Reversed => frame(offset + count - 1 - i),
            Shape::OneSwapped(k) if i == k && i + 1 < count => frame(offset + i + 1),
            Shape::OneSwapped(k) if i > 0 && i == k + 1 => frame(offset + i - 1),
            Shape::OneSwapped(_) => frame(offset + i),
            Shape::Aliased => frame(0),
        })
        .collect()
}

/// Page number → bus address.
type Model = BTreeMap<u64, u64>;

fn expected(model: &Model, va: u64) -> Option<u64> {
    model
        .get(&(va >> PAGE_SHIFT))
        .map(|bus| bus + va % PAGE_BYTES)
}

/// Compares every page of both areas, and one page around them; without refill a group that was
/// invalidated may miss, but never translate wrongly.
fn compare(bank: &mut Bank, model: &Model, may_miss: bool) -> Result<(), TestCaseError> {
    for area in AREAS {
        let first = area >> PAGE_SHIFT;
        for page in first - 1..first + AREA_PAGES + 1 {
            for offset in [0, 1, 0x7777, PAGE_BYTES - 1] {
                let va = (page << PAGE_SHIFT) + offset;
                let hit = bank.translate(va);
                if may_miss && hit.is_none() {
                    continue;
                }
                prop_assert_eq!(hit.map(|h| h.bus), expected(model, va), "at {:#x}", va);
                if let Some(hit) = hit {
                    let last = expected(model, va + hit.left - 1);
                    prop_assert_eq!(
                        last,
                        Some(hit.bus + hit.left - 1),
                        "end of the run at {:#x}",
                        va
                    );
                    prop_assert!(hit.left <= 2 << 20);
                }
            }
        }
    }
    Ok(())
}

fn run(sizes: &[GtlbConfig], refill: bool, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut bank = bank(sizes, refill);
    let mut model = Model::new();
    let mut may_miss = false;
    for (serial, step) in steps.iter().enumerate() {
        match *step {
            Step::Map {
                area,
                page,
                count,
                shape,
            } => {
                let first = (AREAS[area] >> PAGE_SHIFT) + page;
                let pages = frames(shape, first, count, serial as u64);
                let taken = (first..first + count).find(|p| model.contains_key(p));
                let base = GpuVa(first << PAGE_SHIFT);
                match (
                    bank.map(&PageTable {
                        base,
                        pages: pages.clone(),
                    }),
                    taken,
                ) {
                    (Ok(()), None) => model.extend((first..).zip(pages)),
                    (Err(MapError::AlreadyMapped { va }), Some(taken)) => {
                        prop_assert_eq!(va.0, taken << PAGE_SHIFT)
                    }
                    (
                        Err(
                            MapError::MainExhausted { .. }
                            | MapError::ComplementaryExhausted { .. },
                        ),
                        None,
                    ) => prop_assert!(!refill, "refill never runs out"),
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            Step::Unmap { area, page, count } => {
                let first = (AREAS[area] >> PAGE_SHIFT) + page;
                let hole = (first..first + count).find(|p| !model.contains_key(p));
                match (
                    bank.unmap(GpuVa(first << PAGE_SHIFT), count * PAGE_BYTES),
                    hole,
                ) {
                    (Ok(()), None) => model.retain(|p, _| !(first..first + count).contains(p)),
                    (Err(MapError::NotMapped { va }), Some(hole)) => {
                        prop_assert_eq!(va.0, hole << PAGE_SHIFT)
                    }
                    (Err(MapError::ComplementaryExhausted { .. }), None) => prop_assert!(!refill),
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            Step::Renew { area, page, count } => {
                let va = AREAS[area] + page * PAGE_BYTES;
                let len = count * PAGE_BYTES;
                bank.invalidate(va >> GROUP_SHIFT..=(va + len - 1) >> GROUP_SHIFT);
                // Without eviction of others the same groups fit again.
                let again = bank.populate(va, len);
                prop_assert!(refill || may_miss || again.is_ok(), "{:?}", again);
                may_miss |= again.is_err();
            }
        }
        compare(&mut bank, &model, may_miss)?;
    }
    // Nothing is left behind.
    for page in model.keys().copied().collect::<Vec<_>>() {
        let _ = bank.unmap(GpuVa(page << PAGE_SHIFT), PAGE_BYTES);
    }
    if refill {
        compare(&mut bank, &Model::new(), false)?;
        prop_assert!(
            bank.windows.iter().all(|w| w.count == 0),
            "{:?}",
            bank.windows
        );
        prop_assert_eq!(bank.directory.len(), 0);
        for gtlb in &bank.instances {
            let groups = gtlb.config().complementary_entries / GROUP_PAGES;
            prop_assert_eq!(gtlb.free_groups(), groups, "complementary groups leak");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn lookup_equals_the_page_table_with_refill(sizes in sizes(), steps in prop::collection::vec(step(), 1..12)) {
        run(&sizes, true, &steps)?;
    }

    #[test]
    fn lookup_equals_the_page_table_without_refill(sizes in sizes(), steps in prop::collection::vec(step(), 1..12)) {
        run(&sizes, false, &steps)?;
    }

    #[test]
    fn large_tables_never_miss(steps in prop::collection::vec(step(), 1..12)) {
        let sizes = [GtlbConfig::default(), GtlbConfig::default()];
        run(&sizes, false, &steps)?;
    }
}

#[test]
fn eighty_gigabytes_over_three_instances_need_no_refill() {
    let pages = 80_000_000_000u64.div_ceil(PAGE_BYTES);
    let base = GpuVa(0x7f00_0020_0000);
    let mut bank = bank(&[GtlbConfig::default(); 3], false);
    let frame = |i: u64| BUS + i * PAGE_BYTES;
    let table = PageTable {
        base,
        pages: (0..pages).map(frame).collect(),
    };
    bank.map(&table).unwrap();
    for i in (0..pages).step_by(31).chain([pages - 1]) {
        let va = base.0 + i * PAGE_BYTES + PAGE_BYTES - 1;
        assert_eq!(bank.translate(va).unwrap().bus, frame(i) + PAGE_BYTES - 1);
    }
    assert_eq!(bank.translate(base.0 + pages * PAGE_BYTES), None);
    assert_eq!(bank.translate(base.0 - 1), None);
    assert_eq!(bank.stats.misses, 2);
    assert!(bank.windows.iter().all(|w| w.count > 0));
}

#[test]
fn the_papers_size_holds_64_scattered_groups_and_refuses_the_65th() {
    let scattered = |groups: u64| PageTable {
        base: GpuVa(1 << 40),
        pages: (0..groups * 32)
            .rev()
            .map(|i| BUS + i * PAGE_BYTES)
            .collect(),
    };
    let mut bank = bank(&[GtlbConfig::default()], false);
    bank.map(&scattered(64)).unwrap();
    bank.unmap(GpuVa(1 << 40), 64 * (2 << 20)).unwrap();
    let error = bank.map(&scattered(65)).unwrap_err();
    assert_eq!(
        error,
        MapError::ComplementaryExhausted {
            va: GpuVa(1 << 40),
            instance: 0,
            needed: 65,
            free: 64,
            groups: 64
        }
    );
    assert!(error.to_string().contains("turn refill on"));
    assert_eq!(bank.directory.len(), 0, "all or nothing");
}

#[test]
fn misses_and_refills_are_counted() {
    let config = GtlbConfig {
        main_entries: 4,
        complementary_entries: 32,
    };
    let mut bank = bank(&[config], true);
    let base = GpuVa(1 << 40);
    let pages: Vec<u64> = (0..64).rev().map(|i| BUS + i * PAGE_BYTES).collect();
    bank.map(&PageTable { base, pages }).unwrap();
    assert_eq!(bank.stats.misses, 0, "mapping is no miss");
    for round in 0..10 {
        for group in 0..2 {
            let va = base.0 + group * (2 << 20);
            assert!(bank.translate(va).is_some());
            assert!(bank.translate(va + 5).is_some());
        }
        // One complementary group for two scattered ones: each takes it from the other.
        assert_eq!(bank.stats.misses, 1 + 2 * round, "round {round}");
        assert_eq!(bank.stats.refills, bank.stats.misses);
        assert_eq!(bank.stats.last_miss, GpuVa(base.0 + (2 << 20)));
    }
}

#[test]
fn bad_tables_are_refused_with_the_address() {
    let mut bank = bank(&[GtlbConfig::default()], true);
    let mut map = |base: u64, pages: &[u64]| {
        let table = PageTable {
            base: GpuVa(base),
            pages: pages.to_vec(),
        };
        bank.map(&table).unwrap_err()
    };
    let va = GpuVa(1 << 40);
    assert_eq!(map(va.0, &[]), MapError::Empty { va });
    assert_eq!(
        map(va.0 + 1, &[0]),
        MapError::Unaligned {
            va: GpuVa(va.0 + 1),
            addr: va.0 + 1
        }
    );
    assert_eq!(map(va.0, &[0, 5]), MapError::Unaligned { va, addr: 5 });
    let last = VA_END - PAGE_BYTES;
    let error = MapError::OutOfSpace {
        va: GpuVa(last),
        len: 2 * PAGE_BYTES,
    };
    assert_eq!(map(last, &[0, 0]), error);
    let top = u64::MAX - PAGE_BYTES + 1;
    assert_eq!(
        map(top, &[0]),
        MapError::OutOfSpace {
            va: GpuVa(top),
            len: PAGE_BYTES
        }
    );
    bank.map(&PageTable {
        base: GpuVa(last),
        pages: vec![BUS],
    })
    .unwrap();
    assert_eq!(
        bank.translate(VA_END - 1).unwrap().bus,
        BUS + PAGE_BYTES - 1
    );
}

#[test]
fn only_whole_contiguous_aligned_groups_coalesce() {
    let base = 1u64 << 40;
    let frame = |i: u64| BUS + i * PAGE_BYTES;
    let installed = |pages: Vec<u64>, skip: u64| {
        let mut bank = bank(&[GtlbConfig::default()], false);
        let base = GpuVa(base + skip * PAGE_BYTES);
        bank.map(&PageTable { base, pages }).unwrap();
        bank.instances[0].installed(base.0 >> GROUP_SHIFT)
    };
    assert_eq!(installed((0..32).map(frame).collect(), 0), Installed::Large);
    assert_eq!(installed((0..31).map(frame).collect(), 0), Installed::Base);
    assert_eq!(installed((1..32).map(frame).collect(), 1), Installed::Base);
    assert_eq!(installed((1..33).map(frame).collect(), 0), Installed::Base);
    let mut swapped: Vec<u64> = (0..32).map(frame).collect();
    swapped.swap(30, 31);
    assert_eq!(installed(swapped, 0), Installed::Base);

    // Two mappings that complete one group coalesce, and give the complementary group back.
    let mut bank = bank(&[GtlbConfig::default()], false);
    for half in 0..2u64 {
        let pages = (half * 16..half * 16 + 16).map(frame).collect();
        let base = GpuVa(base + half * 16 * PAGE_BYTES);
        bank.map(&PageTable { base, pages }).unwrap();
    }
    assert_eq!(
        bank.instances[0].installed(base >> GROUP_SHIFT),
        Installed::Large
    );
    assert_eq!(bank.instances[0].free_groups(), 64);
}

#[test]
fn a_window_that_grows_over_memory_without_one_takes_it_over() {
    let config = GtlbConfig {
        main_entries: 1,
        complementary_entries: 32,
    };
    let mut bank = bank(&[config], true);
    let group = |g: u64| GpuVa((1 << 40) + g * (2 << 20));
    let page = |g: u64, p: u64| PageTable {
        base: GpuVa(group(g).0 + p * PAGE_BYTES),
        pages: vec![BUS],
    };
    bank.map(&page(0, 0)).unwrap();
    bank.map(&page(9, 0)).unwrap(); // the only window is taken
    bank.unmap(group(0), PAGE_BYTES).unwrap();
    bank.map(&page(9, 1)).unwrap();
    assert!(bank.windows[0].contains(group(9).0 >> GROUP_SHIFT));
    bank.unmap(group(9), PAGE_BYTES).unwrap();
    assert!(bank.translate(group(9).0 + PAGE_BYTES).is_some());
    assert!(bank.translate(group(9).0).is_none());
    bank.unmap(page(9, 1).base, PAGE_BYTES).unwrap();
    assert_eq!(bank.windows[0].count, 0);
    assert_eq!(bank.mapped, [0]);
}
