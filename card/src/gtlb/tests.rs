//! Tests of [`CardGtlb`]'s shadow copy against the translation of the GTLB behind the registers.

use std::cell::RefCell;

use proptest::prelude::*;
use ringbell_gtlb::{Access, GtlbConfig, Mmu, MmuConfig, Need, RegisterError};
use ringbell_nic_abi::PdId;

use super::*;

/// A card: registers, and a GTLB without any page table behind it.
#[derive(Debug)]
struct Card {
    mmu: RefCell<Mmu>,
    pd: PdId,
}

const BASE: u64 = 0x7000_0000_0000;

impl Card {
    /// With 8 main entries and room for 2 scattered groups.
    fn new() -> Card {
        let config = GtlbConfig {
            main_entries: 8,
            complementary_entries: 64,
        };
        let mut mmu = Mmu::new(MmuConfig {
            instances: vec![config; 2],
            refill: false,
        })
        .expect("sizes that can be");
        let pd = mmu.alloc_pd().expect("a domain");
        Card {
            mmu: RefCell::new(mmu),
            pd,
        }
    }

    /// Bus address of a page, as DMA translates it.
    fn translate(&self, va: u64) -> Option<u64> {
        let mut mmu = self.mmu.borrow_mut();
        let va = GpuVa(va);
        let region = match mmu.register(self.pd, va, PAGE_BYTES, Access::LOCAL) {
            Ok(region) => region,
            Err(RegisterError::NotMapped { .. }) => return None,
            Err(e) => panic!("{e}"),
        };
        let pin = mmu.pin(self.pd, region.lkey, va, PAGE_BYTES, Need::Read);
        let pin = pin.expect("registered");
        let span = mmu.span(pin.region, va, PAGE_BYTES).expect("translated");
        // The region stays: freeing it would remove the entries of the whole group.
        mmu.unpin(pin);
        Some(span.addr.value())
    }
}

impl Registers for Card {
    fn read_register(&self, reg: Reg) -> Result<u32, BarError> {
        let value = self.mmu.borrow().read_register(reg);
        Ok(value.expect("a register of the GTLB"))
    }
    fn write_register(&self, reg: Reg, value: u32) -> Result<(), BarError> {
        Ok(self.mmu.borrow_mut().write_register(reg, value)?)
    }
}

fn table(va: u64, pages: impl IntoIterator<Item = u64>) -> PageTable {
    PageTable {
        base: GpuVa(va),
        pages: pages.into_iter().map(|p| p * PAGE_BYTES).collect(),
    }
}

#[test]
fn pieces_of_two_mib_take_one_entry_and_others_a_group() {
    let card = Card::new();
    let mut gtlb = CardGtlb::new(&card, 1, GpuVa(BASE)).expect("an instance");
    assert_eq!(gtlb.free_groups(), 2);
    gtlb.map(&table(BASE, 64..128)).expect("two pieces");
    assert_eq!(gtlb.free_groups(), 2, "one entry each");
    let scattered = BASE + 2 * LARGE_PAGE_BYTES;
    gtlb.map(&table(scattered, [7, 5])).expect("a group");
    // The same group grows.
    let more = scattered + 9 * PAGE_BYTES;
    gtlb.map(&table(more, [77])).expect("the same group");
    assert_eq!(gtlb.free_groups(), 1);
    for (va, page) in [
        (BASE, Some(64)),
        (BASE + 63 * PAGE_BYTES, Some(127)),
        (scattered, Some(7)),
        (scattered + PAGE_BYTES, Some(5)),
        (scattered + 2 * PAGE_BYTES, None),
        (more, Some(77)),
    ] {
        assert_eq!(card.translate(va), page.map(|p| p * PAGE_BYTES), "{va:#x}");
    }
    // All scattered groups at once, one too many: none is written.
    let last = BASE + 3 * LARGE_PAGE_BYTES;
    let full = gtlb.map(&table(last, (0..64).map(|i| 1000 - i)));
    let full = full.expect_err("one group is left");
    assert!(
        matches!(full, CardGtlbError::Full { needed: 2, free: 1 }),
        "{full}"
    );
    assert_eq!(card.translate(last), None);
    assert_eq!(gtlb.free_groups(), 1);
}

#[test]
fn an_invalid_map_is_refused_before_any_write() {
    let card = Card::new();
    let none = CardGtlb::new(&card, 2, GpuVa(BASE)).expect_err("two instances");
    assert!(
        matches!(none, CardGtlbError::NoInstance { instances: 2, .. }),
        "{none}"
    );
    let odd = CardGtlb::new(&card, 0, GpuVa(BASE + PAGE_BYTES)).expect_err("no window");
    assert!(matches!(odd, CardGtlbError::Register(_)), "{odd}");
    let mut gtlb = CardGtlb::new(&card, 0, GpuVa(BASE)).expect("an instance");
    gtlb.map(&table(BASE, [3])).expect("room");
    let window = 8 * LARGE_PAGE_BYTES;
    for (t, what) in [
        (table(BASE - PAGE_BYTES, [1]), "outside"),
        (table(BASE + window, [1]), "outside"),
        (table(BASE + window - PAGE_BYTES, [1, 2]), "outside"),
        (table(!(PAGE_BYTES - 1), [1, 2]), "outside"),
        (table(BASE + 5, [1]), "multiple"),
        (table(BASE, [9]), "already"),
        (
            PageTable {
                base: GpuVa(BASE + PAGE_BYTES),
                pages: vec![9],
            },
            "multiple",
        ),
    ] {
        let text = gtlb.map(&t).expect_err(what).to_string();
        assert!(text.contains(what), "{text}");
    }
    let gone = gtlb.unmap(GpuVa(BASE), 2).expect_err("one of them");
    assert!(matches!(gone, CardGtlbError::NotMapped { .. }), "{gone}");
    assert_eq!(
        card.translate(BASE),
        Some(3 * PAGE_BYTES),
        "nothing was undone"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]
    /// After any sequence of maps and unmaps the GTLB translates exactly as the shadow copy says.
    #[test]
    fn the_shadow_copy_matches_the_gtlb(
        steps in proptest::collection::vec((any::<bool>(), 0u64..256, 1usize..70, 0u64..9), 1..12),
    ) {
        let card = Card::new();
        let mut gtlb = CardGtlb::new(&card, 0, GpuVa(BASE)).expect("an instance");
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for (map, first, count, kind) in steps {
            let va = BASE + first * PAGE_BYTES;
            // Often whole groups in one piece, sometimes backwards.
            let bus = |i: u64| match kind {
                0..=5 => 4096 * (kind + 1) + first + i,
                _ => 90_000 * kind - first - i,
            };
            let pages: Vec<u64> = (0..count as u64).map(bus).collect();
            let addresses = (0..count as u64).map(|i| va + i * PAGE_BYTES);
            if map {
                if gtlb.map(&table(va, pages.iter().copied())).is_ok() {
                    for (va, page) in addresses.zip(pages) {
                        prop_assert!(model.insert(va, page * PAGE_BYTES).is_none());
                    }
                }
            } else if gtlb.unmap(GpuVa(va), count).is_ok() {
                for va in addresses {
                    prop_assert!(model.remove(&va).is_some());
                }
            }
        }
        for page in 0..256 {
            let va = BASE + page * PAGE_BYTES;
            prop_assert_eq!(card.translate(va), model.get(&va).copied(), "page {}", page);
        }
    }
}
