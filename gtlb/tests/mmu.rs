//! Regions, keys, rights and the life of a region, through the public interface.

use ringbell_gtlb::*;
use ringbell_nic_abi::{GpuVa, Lkey, PdId, Rkey};

const BASE: u64 = 0x7f00_0000_0000;
const KIB64: u64 = 64 << 10;

/// 4 MiB at `BASE`: a coalesced group at bus 1 GiB, then a group whose pages lie in reverse order.
fn table() -> PageTable {
    let scattered = (0..32).rev().map(|i| (2 << 30) + i * KIB64);
    PageTable {
        base: GpuVa(BASE),
        pages: (0..32)
            .map(|i| (1 << 30) + i * KIB64)
            .chain(scattered)
            .collect(),
    }
}

fn mmu() -> (Mmu, PdId) {
    let mut mmu = Mmu::new(MmuConfig::default()).unwrap();
    mmu.map(&table()).unwrap();
    let pd = mmu.alloc_pd().unwrap();
    (mmu, pd)
}

fn va(offset: u64) -> GpuVa {
    GpuVa(BASE + offset)
}

#[test]
fn spans_follow_the_pages_and_end_with_them() {
    let (mut mmu, pd) = mmu();
    let mr = mmu
        .register(pd, va(100), (4 << 20) - 200, Access::LOCAL)
        .unwrap();
    let pin = mmu
        .pin(pd, mr.lkey, va(100), (4 << 20) - 200, Need::Write)
        .unwrap();
    let span = mmu.span(pin.region, va(100), (4 << 20) - 200).unwrap();
    assert_eq!(
        (span.addr.value(), span.len),
        ((1 << 30) + 100, (2 << 20) - 100)
    );
    let span = mmu.span(pin.region, va(2 << 20), 1 << 20).unwrap();
    assert_eq!(
        (span.addr.value(), span.len),
        ((2 << 30) + 31 * KIB64, KIB64)
    );
    let last = (4 << 20) - 101;
    let span = mmu.span(pin.region, va(last), 1).unwrap();
    assert_eq!((span.addr.value(), span.len), ((2 << 30) + KIB64 - 101, 1));
    mmu.unpin(pin);
}

#[test]
fn faults_name_the_address() {
    let (mut mmu, pd) = mmu();
    let other = mmu.alloc_pd().unwrap();
    let mr = mmu
        .register(pd, va(0x1000), 0x1000, Access::LOCAL_READ)
        .unwrap();
    let any = Lkey(0);
    let end = va(0x2000);
    let mut pin = |pd, lkey, at, len, need| mmu.pin(pd, lkey, at, len, need).unwrap_err();
    let unregistered = |va| Fault::NotRegistered { va };
    assert_eq!(
        pin(pd, any, va(0xfff), 2, Need::Read),
        unregistered(va(0xfff))
    );
    assert_eq!(pin(pd, any, end, 1, Need::Read), unregistered(end));
    assert_eq!(
        pin(other, any, va(0x1000), 1, Need::Read),
        unregistered(va(0x1000))
    );
    assert_eq!(
        pin(PdId(77), any, va(0x1000), 1, Need::Read),
        unregistered(va(0x1000))
    );
    for lkey in [any, mr.lkey] {
        let bounds = Fault::OutOfBounds {
            va: va(0x1fff),
            end,
        };
        assert_eq!(pin(pd, lkey, va(0x1fff), 2, Need::Read), bounds);
        assert_eq!(pin(pd, lkey, va(0x1fff), u64::MAX, Need::Read), bounds);
        let denied = Fault::AccessDenied { va: va(0x1000) };
        assert_eq!(pin(pd, lkey, va(0x1000), 1, Need::Write), denied);
    }
    let bad = Fault::BadKey { key: mr.lkey.0 };
    assert_eq!(pin(other, mr.lkey, va(0x1000), 1, Need::Read), bad);
    assert_eq!(
        pin(pd, Lkey(0xdead_beef), va(0x1000), 1, Need::Read),
        Fault::BadKey { key: 0xdead_beef }
    );
    assert_eq!(mmu.pins_of(mr.lkey), 0);
}

#[test]
fn of_overlapping_regions_any_that_grants_answers() {
    let (mut mmu, pd) = mmu();
    let outer = mmu.register(pd, va(0), 0x10000, Access::LOCAL).unwrap();
    let inner = mmu
        .register(pd, va(0x1000), 0x100, Access::LOCAL_READ)
        .unwrap();
    let after = mmu
        .register(pd, va(0x2000), 0x100, Access::LOCAL_READ)
        .unwrap();
    for _ in 0..2 {
        // Twice: the second time the last region answers.
        for (at, len) in [
            (0x1010, 8),
            (0x10f0, 0x100),
            (0x2000, 0x100),
            (0x3000, 0xd000),
        ] {
            let pin = mmu.pin(pd, Lkey(0), va(at), len, Need::Write).unwrap();
            assert_eq!(pin.region, outer.lkey.0);
            mmu.unpin(pin);
        }
    }
    mmu.begin_deregister(outer.lkey).unwrap();
    mmu.finish_deregister(outer.lkey).unwrap();
    let pin = mmu.pin(pd, Lkey(0), va(0x1010), 8, Need::Read).unwrap();
    assert_eq!(pin.region, inner.lkey.0);
    assert!(mmu.span(pin.region, va(0x1010), 8).is_ok());
    mmu.unpin(pin);
    let denied = mmu.pin(pd, Lkey(0), va(0x2000), 8, Need::Write);
    assert_eq!(denied, Err(Fault::AccessDenied { va: va(0x2000) }));
    assert_eq!(mmu.pins_of(after.lkey), 0);
}

#[test]
fn freeing_waits_for_operations_in_flight() {
    let (mut mmu, pd) = mmu();
    let mr = mmu.register(pd, va(0), 4 << 20, Access::LOCAL).unwrap();
    let pin = mmu.pin(pd, Lkey(0), va(8), 8, Need::Read).unwrap();
    assert_eq!(
        mmu.finish_deregister(mr.lkey),
        Err(DeregisterError::NotBegun { lkey: mr.lkey })
    );
    mmu.begin_deregister(mr.lkey).unwrap();
    let freed = Err(Fault::RegionFreed { va: va(8) });
    assert_eq!(mmu.pin(pd, Lkey(0), va(8), 8, Need::Read), freed);
    assert_eq!(mmu.pin(pd, mr.lkey, va(8), 8, Need::Read), freed);
    assert!(mmu.span(pin.region, va(8), 8).is_ok(), "in flight goes on");
    let pinned = DeregisterError::Pinned {
        lkey: mr.lkey,
        pins: 1,
    };
    assert_eq!(mmu.finish_deregister(mr.lkey), Err(pinned));
    let in_use = UnmapError::InUse {
        lkey: mr.lkey,
        va: va(0),
    };
    assert_eq!(mmu.unmap(va(0), 4 << 20), Err(in_use));
    let region = pin.region;
    mmu.unpin(pin);
    mmu.finish_deregister(mr.lkey).unwrap();
    assert_eq!(
        mmu.span(region, va(8), 8),
        Err(Fault::RegionFreed { va: va(8) })
    );
    assert_eq!(mmu.pin(pd, mr.lkey, va(8), 8, Need::Read), freed);
    assert_eq!(
        mmu.begin_deregister(mr.lkey),
        Err(DeregisterError::BadKey { lkey: mr.lkey })
    );
    mmu.unmap(va(0), 4 << 20).unwrap();
    assert_eq!(
        mmu.register(pd, va(0), 1, Access::LOCAL),
        Err(RegisterError::NotMapped { va: va(0) })
    );
    mmu.free_pd(pd).unwrap();
    assert_eq!(mmu.free_pd(pd), Err(PdError::NoSuchPd { pd }));
}

#[test]
fn quarantine_stops_translation_and_keeps_the_memory() {
    let (mut mmu, pd) = mmu();
    let mr = mmu.register(pd, va(0), 2 << 20, Access::LOCAL).unwrap();
    let pin = mmu.pin(pd, mr.lkey, va(0), 8, Need::Read).unwrap();
    mmu.begin_deregister(mr.lkey).unwrap();
    mmu.quarantine(mr.lkey).unwrap();
    assert_eq!(
        mmu.span(pin.region, va(0), 8),
        Err(Fault::RegionFreed { va: va(0) })
    );
    assert!(mmu.unmap(va(0), 2 << 20).is_err());
    assert_eq!(mmu.free_pd(pd), Err(PdError::InUse { pd, regions: 1 }));
    mmu.unpin(pin);
    mmu.finish_deregister(mr.lkey).unwrap();
    mmu.unmap(va(0), 2 << 20).unwrap();
    mmu.free_pd(pd).unwrap();
}

#[test]
fn regions_are_found_by_overlap() {
    let (mut mmu, pd) = mmu();
    let other = mmu.alloc_pd().unwrap();
    let wide = mmu.register(pd, va(0), 1 << 20, Access::LOCAL).unwrap();
    let inner = mmu.register(pd, va(100), 50, Access::LOCAL_READ).unwrap();
    let flat = mmu
        .register_flat(pd, va(8 << 20), 4096, Access::LOCAL, 1 << 62)
        .unwrap();
    mmu.register(other, va(0), 4096, Access::LOCAL).unwrap();
    let at = |mmu: &Mmu, offset, len| -> Vec<MemoryRegion> {
        let found = mmu.overlapping(pd, va(offset), len);
        found.map(|f| f.region).collect()
    };
    assert_eq!(at(&mmu, 120, 1), [inner, wide]);
    assert_eq!(at(&mmu, 150, 1), [wide], "the end is not inside");
    assert_eq!(at(&mmu, 99, 1), [wide]);
    assert_eq!(at(&mmu, (1 << 20) - 1, 9 << 20), [flat, wide]);
    assert_eq!(at(&mmu, 1 << 20, 7 << 20), [], "between the two");
    assert_eq!(at(&mmu, (8 << 20) + 4096, 1), []);
    assert_eq!(mmu.overlapping(PdId(77), va(0), 1).count(), 0);

    let pin = mmu.pin(pd, flat.lkey, flat.va, 1, Need::Read).unwrap();
    mmu.begin_deregister(flat.lkey).unwrap();
    let info = mmu.overlapping(pd, flat.va, 1).next().unwrap();
    assert_eq!((info.flat, info.pins, info.live), (Some(1 << 62), 1, false));
    mmu.unpin(pin);
    mmu.finish_deregister(flat.lkey).unwrap();
    assert_eq!(at(&mmu, 8 << 20, 4096), []);
}

#[test]
fn a_right_grants_its_own_operations_and_no_other() {
    for bits in 0..16u32 {
        let access = Access {
            local_write: bits & 1 != 0,
            remote_read: bits & 2 != 0,
            remote_write: bits & 4 != 0,
            remote_atomic: bits & 8 != 0,
        };
        let (mut mmu, pd) = mmu();
        let registered = mmu.register(pd, va(0), KIB64, access);
        if (access.remote_write || access.remote_atomic) && !access.local_write {
            assert_eq!(registered, Err(RegisterError::RemoteWriteWithoutLocal));
            continue;
        }
        let mr = registered.unwrap();
        let write = mmu.pin(pd, mr.lkey, va(0), 8, Need::Write);
        assert_eq!(write.is_ok(), access.local_write, "{access:?}");
        let read = mmu.pin(pd, mr.lkey, va(0), 8, Need::Read).unwrap();
        // Not by the right to read, nor by the region's own right to write.
        let by_peers = mmu.grants_remote_write(read.region);
        assert_eq!(by_peers, access.remote_write, "{access:?}");
        for (need, right) in [
            (Need::RemoteRead, access.remote_read),
            (Need::RemoteWrite, access.remote_write),
            (Need::RemoteAtomic, access.remote_atomic),
        ] {
            let found = mmu.check_remote(&[pd], mr.rkey, va(8), 8, need);
            let denied = Err(Fault::AccessDenied { va: va(8) });
            let granted = Ok((mr.lkey.0, va(0)));
            assert_eq!(found, if right { granted } else { denied }, "{access:?}");
        }
        mmu.unpin(read);
        if let Ok(pin) = write {
            mmu.unpin(pin);
        }
    }
}

#[test]
fn a_remote_key_reaches_its_region_and_nothing_else() {
    let (mut mmu, pd) = mmu();
    let other = mmu.alloc_pd().unwrap();
    let mr = mmu
        .register(pd, va(0x1000), 0x1000, Access::REMOTE)
        .unwrap();
    let need = Need::RemoteWrite;
    let check = |mmu: &Mmu, rkey, at, len| mmu.check_remote(&[other, pd], rkey, va(at), len, need);
    assert_eq!(
        check(&mmu, mr.rkey, 0x1000, 0x1000),
        Ok((mr.lkey.0, va(0x1000)))
    );
    let bounds = Err(Fault::OutOfBounds {
        va: va(0x1001),
        end: va(0x2000),
    });
    assert_eq!(check(&mmu, mr.rkey, 0x1001, 0x1000), bounds);
    let before = check(&mmu, mr.rkey, 0xfff, 1);
    assert!(
        matches!(before, Err(Fault::OutOfBounds { .. })),
        "{before:?}"
    );
    assert!(check(&mmu, mr.rkey, 0x1001, u64::MAX).is_err());
    let bad = |key: u32| Err(Fault::BadKey { key });
    // Of a domain that was not granted, one that names the local key, and guesses.
    let foreign = mmu.check_remote(&[other], mr.rkey, va(0x1000), 1, need);
    assert_eq!(foreign, bad(mr.rkey.0));
    assert_eq!(
        mmu.check_remote(&[], mr.rkey, va(0x1000), 1, need),
        bad(mr.rkey.0)
    );
    let wrong = (0..32)
        .map(|bit| mr.rkey.0 ^ 1 << bit)
        .chain([0, mr.lkey.0, u32::MAX]);
    for key in wrong.filter(|key| *key != mr.rkey.0) {
        assert_eq!(check(&mmu, Rkey(key), 0x1000, 1), bad(key));
    }
    mmu.begin_deregister(mr.lkey).unwrap();
    let freed = Err(Fault::RegionFreed { va: va(0x1000) });
    assert_eq!(check(&mmu, mr.rkey, 0x1000, 1), freed);
    mmu.finish_deregister(mr.lkey).unwrap();
    assert_eq!(check(&mmu, mr.rkey, 0x1000, 1), freed);
}

#[test]
fn a_region_is_pinned_again_until_it_is_being_freed() {
    let mut mmu = Mmu::new(MmuConfig::default()).unwrap();
    let pd = mmu.alloc_pd().unwrap();
    let flat = |mmu: &mut Mmu, at: u64| mmu.register_flat(pd, GpuVa(at), 4096, Access::LOCAL, at);
    let mr = flat(&mut mmu, 1 << 20).unwrap();
    let freed = mmu.deregistrations();
    let first = mmu.pin(pd, Lkey(0), mr.va, 64, Need::Write).unwrap();
    let second = mmu.pin_again(first.region).expect("in use");
    assert_eq!(mmu.pins_of(mr.lkey), 2);
    mmu.unpin(first);
    // Another region's registration makes nothing stale, its end does.
    let other = flat(&mut mmu, 2 << 20).unwrap();
    assert_eq!(mmu.deregistrations(), freed);
    mmu.begin_deregister(other.lkey).unwrap();
    assert_ne!(mmu.deregistrations(), freed);
    let region = second.region;
    assert!(mmu.pin_again(other.lkey.0).is_none());
    mmu.begin_deregister(mr.lkey).unwrap();
    assert!(mmu.pin_again(region).is_none());
    mmu.unpin(second);
    mmu.finish_deregister(mr.lkey).unwrap();
    assert!(mmu.pin_again(region).is_none());
    assert!(mmu.pin_again(u32::MAX).is_none());
}
