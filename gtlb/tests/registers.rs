//! The GTLB block of the BAR: what a driver writes is what the NIC translates.

use ringbell_gtlb::*;
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::{GpuVa, Lkey};

const BASE: u64 = 0x7f00_0020_0000;
const MIB2: u64 = 2 << 20;
const KIB64: u64 = 64 << 10;

/// A driver at the registers of one MMU.
struct Driver(Mmu);

impl Driver {
    fn new(refill: bool) -> Driver {
        let instances = vec![GtlbConfig::default(); 2];
        Driver(Mmu::new(MmuConfig { instances, refill }).unwrap())
    }

    fn base(&mut self, select: u32, base: u64) -> Result<(), BarError> {
        self.0.write_register(Reg::GtlbSelect, select)?;
        self.0.write_register(Reg::GtlbBaseLo, base as u32)?;
        self.0.write_register(Reg::GtlbBaseHi, (base >> 32) as u32)
    }

    fn entry(&mut self, command: u32, index: u32, va: u64, pa: u64) -> Result<(), BarError> {
        for (reg, value) in [
            (Reg::GtlbVaLo, va as u32),
            (Reg::GtlbVaHi, (va >> 32) as u32),
            (Reg::GtlbPaLo, pa as u32),
            (Reg::GtlbPaHi, (pa >> 32) as u32),
            (Reg::GtlbIndex, index),
        ] {
            self.0.write_register(reg, value)?;
        }
        self.0.write_register(Reg::GtlbCommand, command)
    }

    fn read(&self, reg: Reg) -> u32 {
        self.0.read_register(reg).unwrap()
    }
}

#[test]
fn algorithm_1_register_by_register() {
    let mut driver = Driver::new(false);
    driver.base(1, BASE).unwrap();
    assert_eq!(driver.read(Reg::GtlbBaseLo), BASE as u32);
    assert_eq!(driver.read(Reg::GtlbBaseHi), (BASE >> 32) as u32);
    // Lines 7–11: the first large page is contiguous; lines 12–18: the second is not.
    driver.entry(1, 0, BASE, 0x4000_0000).unwrap();
    for page in 0..32 {
        let pa = 0x8000_0000 + (31 - page) * KIB64;
        driver
            .entry(2, page as u32, BASE + MIB2 + page * KIB64, pa)
            .unwrap();
    }
    driver.entry(3, 1, BASE + MIB2, 0).unwrap();

    let mmu = &mut driver.0;
    let pd = mmu.alloc_pd().unwrap();
    let mr = mmu
        .register(pd, GpuVa(BASE), 2 * MIB2, Access::LOCAL)
        .unwrap();
    let pin = mmu
        .pin(pd, Lkey(0), GpuVa(BASE + 5), MIB2 + 100, Need::Write)
        .unwrap();
    let mut bus = |va: u64| mmu.span(pin.region, GpuVa(va), 1).unwrap().addr.value();
    assert_eq!(bus(BASE), 0x4000_0000);
    assert_eq!(bus(BASE + MIB2 - 1), 0x4000_0000 + MIB2 - 1);
    assert_eq!(bus(BASE + MIB2), 0x8000_0000 + 31 * KIB64);
    assert_eq!(bus(BASE + 2 * MIB2 - 1), 0x8000_0000 + KIB64 - 1);
    let region = pin.region;
    mmu.unpin(pin);

    // Command 4: the entry is gone, the access faults with its address, and the block shows it.
    driver.entry(4, 0, 0, 0).unwrap();
    let fault = driver.0.span(region, GpuVa(BASE + 77), 1).unwrap_err();
    assert_eq!(
        fault,
        Fault::NoTranslation {
            va: GpuVa(BASE + 77)
        }
    );
    assert_eq!(driver.read(Reg::GtlbMisses), 1);
    assert_eq!(driver.read(Reg::GtlbMissVaLo), (BASE + 77) as u32);
    assert_eq!(driver.read(Reg::GtlbMissVaHi), (BASE >> 32) as u32);
    // The driver answers the miss.
    let missing = BarError::StillMissing {
        va: GpuVa(BASE + 77),
    };
    assert_eq!(driver.0.write_register(Reg::GtlbRefill, 1), Err(missing));
    driver.entry(1, 0, BASE, 0xc000_0000).unwrap();
    driver.0.write_register(Reg::GtlbRefill, 1).unwrap();
    assert_eq!(driver.read(Reg::GtlbRefills), 1);
    assert_eq!(driver.read(Reg::GtlbMissVaHi), 0);
    let span = driver.0.span(region, GpuVa(BASE + 77), 1).unwrap();
    assert_eq!(span.addr.value(), 0xc000_0000 + 77);
    driver.0.begin_deregister(mr.lkey).unwrap();
    driver.0.finish_deregister(mr.lkey).unwrap();
}

#[test]
fn wrong_values_are_named_and_change_nothing() {
    let mut driver = Driver::new(true);
    assert_eq!(
        driver.base(2, BASE),
        Err(BarError::NoSuchInstance {
            select: 2,
            instances: 2
        })
    );
    let window = |instance, base| {
        Err(BarError::BadWindow {
            instance,
            base: GpuVa(base),
        })
    };
    assert_eq!(driver.base(0, BASE + KIB64), window(0, BASE + KIB64));
    driver.base(0, BASE).unwrap();
    assert_eq!(
        driver.base(1, BASE + (32 << 30) - MIB2),
        window(1, BASE + (32 << 30) - MIB2)
    );
    driver.base(1, BASE + (32 << 30)).unwrap();
    driver.0.write_register(Reg::GtlbSelect, 0).unwrap();

    let index = |index, va| {
        Err(BarError::BadIndex {
            instance: 0,
            va: GpuVa(va),
            index,
        })
    };
    assert_eq!(driver.entry(1, 1, BASE, 0), index(1, BASE));
    assert_eq!(driver.entry(1, 0, BASE - MIB2, 0), index(0, BASE - MIB2));
    assert_eq!(
        driver.entry(1, 16_384, BASE + (32 << 30), 0),
        index(16_384, BASE + (32 << 30))
    );
    let unaligned = |bus, to| Err(BarError::Entry(EntryError::Unaligned { bus, to }));
    assert_eq!(driver.entry(1, 0, BASE, KIB64), unaligned(KIB64, MIB2));
    assert_eq!(driver.entry(2, 0, BASE, 1), unaligned(1, KIB64));
    let none = |index| {
        Err(BarError::Entry(EntryError::NoSuchEntry {
            index,
            entries: 2_048,
        }))
    };
    assert_eq!(driver.entry(2, 2_048, BASE, 0), none(2_048));
    assert_eq!(driver.entry(3, 0, BASE, 31), none(31));
    assert_eq!(driver.entry(3, 0, BASE, 2_048), none(2_048));
    driver.entry(3, 0, BASE, 32).unwrap();
    let in_use = Err(BarError::Entry(EntryError::ComplementaryInUse {
        index: 32,
    }));
    assert_eq!(driver.entry(3, 1, BASE + MIB2, 32), in_use);
    driver.entry(4, 0, 0, 0).unwrap();
    driver.entry(3, 1, BASE + MIB2, 32).unwrap();
    let command = |reg, value| Err(BarError::BadCommand { reg, value });
    assert_eq!(driver.entry(9, 0, BASE, 0), command(Reg::GtlbCommand, 9));
    assert_eq!(
        driver.0.write_register(Reg::GtlbRefill, 3),
        command(Reg::GtlbRefill, 3)
    );
    let not_ours = |reg| Err(BarError::NotOurs { reg });
    assert_eq!(
        driver.0.write_register(Reg::GtlbMisses, 3),
        not_ours(Reg::GtlbMisses)
    );
    assert_eq!(driver.0.write_register(Reg::Ipv4, 3), not_ours(Reg::Ipv4));
    assert_eq!(driver.0.read_register(Reg::Ipv4), None);
    assert_eq!(driver.read(Reg::GtlbInstances), 2);
    assert_eq!(driver.read(Reg::GtlbMainEntries), 16_384);
    assert_eq!(driver.read(Reg::GtlbComplementaryEntries), 2_048);
}

#[test]
fn the_drivers_entries_and_map_share_an_instance() {
    let mut driver = Driver::new(false);
    driver.base(0, BASE).unwrap();
    driver.entry(2, 0, 0, 0x9000_0000).unwrap();
    driver.entry(3, 0, BASE, 0).unwrap();
    // 63 complementary groups are left, and `map` takes no more than those.
    let table = |groups: u64| PageTable {
        base: GpuVa(BASE + MIB2),
        pages: (0..groups * 32).rev().map(|i| i * KIB64).collect(),
    };
    let error = driver.0.map(&table(64)).unwrap_err();
    assert!(
        matches!(error, MapError::ComplementaryExhausted { free: 63, .. }),
        "{error}"
    );
    driver.0.map(&table(63)).unwrap();
    let pd = driver.0.alloc_pd().unwrap();
    let mr = driver
        .0
        .register(pd, GpuVa(BASE), KIB64, Access::LOCAL)
        .unwrap();
    let span = driver.0.span(mr.lkey.0, GpuVa(BASE + 9), 1).unwrap();
    assert_eq!(span.addr.value(), 0x9000_0009);
    // A window with mapped memory stays where it is.
    assert!(matches!(
        driver.base(0, BASE + MIB2),
        Err(BarError::BadWindow { .. })
    ));
}
