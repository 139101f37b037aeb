//! Addresses and memory apart from each other, and pools.

use std::ffi::c_void;
use std::ptr::null_mut;

use ringbell_libcuda::copy::*;
use ringbell_libcuda::fill::*;
use ringbell_libcuda::memory::*;
use ringbell_libcuda::pool::*;
use ringbell_libcuda::stream::*;
use ringbell_libcuda::vmm::*;

use super::{alone, kernel, launch, ok, start};

const MIB: usize = 1 << 20;

/// CUmemAllocationProp: pinned, exported as a descriptor, on device 0.
const PINNED: [u32; 8] = [1, 1, 1, 0, 0, 0, 0, 0];
/// CUmemAccessDesc: device 0 may read and write.
const ACCESS: [u32; 3] = [1, 0, 3];

fn create(bytes: usize) -> u64 {
    let mut handle = 0;
    // SAFETY: a structure as the interface has it, and a live pointer.
    ok(unsafe { cuMemCreate(&mut handle, bytes, PINNED.as_ptr().cast(), 0) });
    handle
}

fn reserve(bytes: usize) -> u64 {
    let mut va = 0;
    // SAFETY: a live pointer.
    ok(unsafe { cuMemAddressReserve(&mut va, bytes, 0, 0, 0) });
    va
}

#[test]
fn memory_is_mapped_grown_and_unmapped_at_reserved_addresses() {
    let name = "virtual_memory::memory_is_mapped_grown_and_unmapped_at_reserved_addresses";
    alone(name, || {
        let module = start();
        let scale = kernel(module, c"scale");
        let mut unit = 0;
        // SAFETY: structures as the interface has them, and live pointers.
        unsafe {
            ok(cuMemGetAllocationGranularity(
                &mut unit,
                PINNED.as_ptr().cast(),
                0,
            ));
            assert_eq!(unit, 2 * MIB);
            let va = reserve(4 * unit);
            assert!(va.is_multiple_of(unit as u64));
            // An array that grows: the second part comes behind the first, and a copy crosses the
            // border.
            let parts = [create(unit), create(unit)];
            ok(cuMemMap(va, unit, 0, parts[0], 0));
            let access = ACCESS.as_ptr().cast();
            assert_eq!(cuMemsetD32_v2(va, 1, 4), 1, "no access yet");
            ok(cuMemSetAccess(va, unit, access, 1));
            assert_eq!(
                cuMemSetAccess(va, 2 * unit, access, 1),
                1,
                "nothing is mapped behind"
            );
            ok(cuMemMap(va + unit as u64, unit, 0, parts[1], 0));
            assert_eq!(cuMemMap(va + unit as u64, unit, 0, parts[0], 0), 1, "taken");
            ok(cuMemSetAccess(va + unit as u64, unit, access, 1));
            let border = va + unit as u64 - 8;
            ok(cuMemsetD32_v2(border, 5, 4));
            ok(launch(scale, [1, 1, 1], [4, 1, 1], 0, &[border, 4]));
            let mut words = [0u32; 4];
            ok(cuMemcpyDtoH_v2(words.as_mut_ptr().cast(), border, 16));
            assert_eq!(words, [15; 4]);
            let (mut flags, mut kind) = (0, 0u32);
            let here = [1u32, 0];
            ok(cuMemGetAccess(&mut flags, here.as_ptr().cast(), border));
            ok(cuPointerGetAttribute((&raw mut kind).cast(), 2, border));
            assert_eq!((flags, kind), (3, 2));
            // The same memory at two places.
            ok(cuMemMap(va + 2 * unit as u64, unit, 0, parts[1], 0));
            ok(cuMemSetAccess(va + 2 * unit as u64, unit, access, 1));
            let mut word = 0u32;
            ok(cuMemcpyDtoH_v2(
                (&raw mut word).cast(),
                va + 2 * unit as u64,
                4,
            ));
            assert_eq!(word, 15);
            // Released memory lives as long as it is mapped; addresses go when nothing is there.
            let (mut before, mut after, mut total) = (0, 0, 0);
            ok(cuMemGetInfo_v2(&mut before, &mut total));
            for part in parts {
                ok(cuMemRelease(part));
            }
            assert_eq!(cuMemRelease(parts[0]), 1);
            ok(cuMemGetInfo_v2(&mut after, &mut total));
            assert_eq!(before, after);
            assert_eq!(cuMemAddressFree(va, 4 * unit), 1, "mapped");
            assert_eq!(cuMemUnmap(va, unit / 2), 1, "half of a mapping");
            ok(cuMemUnmap(va, 3 * unit));
            ok(cuMemGetInfo_v2(&mut after, &mut total));
            assert_eq!(after, before + 2 * unit);
            assert_eq!(
                cuMemcpyDtoH_v2((&raw mut word).cast(), border, 4),
                1,
                "gone"
            );
            ok(cuMemAddressFree(va, 4 * unit));
            assert_eq!(cuMemAddressFree(va, 4 * unit), 1);
        }
    });
}

#[test]
fn wrong_sizes_and_too_much_memory_are_refused() {
    let name = "virtual_memory::wrong_sizes_and_too_much_memory_are_refused";
    alone(name, || {
        start();
        let (mut handle, mut va) = (0, 0);
        let on_host = [1u32, 1, 2, 0, 0, 0, 0, 0];
        let fabric = [1u32, 8, 1, 0, 0, 0, 0, 0];
        // SAFETY: structures as the interface has them, and live pointers.
        unsafe {
            let create = |bytes: usize, prop: &[u32; 8], handle: &mut u64| {
                cuMemCreate(handle, bytes, prop.as_ptr().cast(), 0)
            };
            assert_eq!(create(MIB, &PINNED, &mut handle), 1, "no multiple");
            assert_eq!(create(0, &PINNED, &mut handle), 1);
            assert_eq!(create(2 * MIB, &on_host, &mut handle), 1);
            assert_eq!(create(2 * MIB, &fabric, &mut handle), 801);
            assert_eq!(create(1 << 40, &PINNED, &mut handle), 2);
            // Most of the memory: then no allocation finds room.
            ok(create(4000 * MIB, &PINNED, &mut handle));
            assert_eq!(cuMemAlloc_v2(&mut va, 200 * MIB), 2);
            ok(cuMemRelease(handle));
            ok(cuMemAlloc_v2(&mut va, 200 * MIB));
            assert_eq!(cuMemAddressReserve(&mut va, 3 * MIB, 0, 0, 0), 1);
            assert_eq!(cuMemAddressReserve(&mut va, 2 * MIB, 3 << 20, 0, 0), 1);
            assert_eq!(cuMemMap(0x1000, 2 * MIB, 0, 1, 0), 1);
        }
    });
}

#[test]
fn memory_is_exported_as_a_descriptor_and_imported() {
    let name = "virtual_memory::memory_is_exported_as_a_descriptor_and_imported";
    alone(name, || {
        start();
        let unit = 2 * MIB;
        let (va, memory) = (reserve(2 * unit), create(unit));
        let (mut fd, mut same, mut again) = (-1, 0, 0);
        // SAFETY: structures as the interface has them, and live pointers.
        unsafe {
            let to = (&raw mut fd).cast::<c_void>();
            assert_eq!(cuMemExportToShareableHandle(to, memory, 2, 0), 1);
            ok(cuMemExportToShareableHandle(to, memory, 1, 0));
            let given = std::ptr::without_provenance_mut(fd as usize);
            ok(cuMemImportFromShareableHandle(&mut same, given, 1));
            let bad = std::ptr::without_provenance_mut(usize::MAX);
            assert_eq!(cuMemImportFromShareableHandle(&mut again, bad, 1), 1);
            for (at, of) in [(va, memory), (va + unit as u64, same)] {
                ok(cuMemMap(at, unit, 0, of, 0));
                ok(cuMemSetAccess(at, unit, ACCESS.as_ptr().cast(), 1));
            }
            ok(cuMemsetD32_v2(va + 64, 77, 1));
            let mut word = 0u32;
            ok(cuMemcpyDtoH_v2(
                (&raw mut word).cast(),
                va + unit as u64 + 64,
                4,
            ));
            assert_eq!(word, 77);
            ok(cuMemRetainAllocationHandle(
                &mut again,
                std::ptr::without_provenance_mut(va as usize),
            ));
            assert_eq!(again, memory);
        }
    });
}

#[test]
fn pools_count_and_bound_their_allocations() {
    let name = "virtual_memory::pools_count_and_bound_their_allocations";
    alone(name, || {
        start();
        // CUmemPoolProps: pinned, not shared, device 0, at most 1 MiB.
        let mut properties = [0u64; 11];
        properties[0] = 1;
        properties[1] = 1;
        properties[3] = MIB as u64;
        let (mut pool, mut own, mut s) = (null_mut(), null_mut(), null_mut());
        // SAFETY: structures as the interface has them, and live pointers.
        unsafe {
            ok(cuStreamCreate(&mut s, 1));
            ok(cuMemPoolCreate(&mut pool, properties.as_ptr().cast()));
            let (mut a, mut b) = (0, 0);
            ok(cuMemAllocFromPoolAsync(&mut a, MIB / 2, pool, s));
            assert_eq!(cuMemAllocFromPoolAsync(&mut b, MIB, pool, s), 2);
            let number = |pool, attribute| {
                let mut n = 9u64;
                ok(cuMemPoolGetAttribute(pool, attribute, (&raw mut n).cast()));
                n as usize
            };
            assert_eq!(number(pool, 7), MIB / 2);
            ok(cuMemFreeAsync(a, s));
            ok(cuStreamSynchronize(s));
            assert_eq!((number(pool, 7), number(pool, 8)), (0, MIB / 2));
            let threshold = 4096u64;
            let at = (&raw const threshold).cast();
            ok(cuMemPoolSetAttribute(pool, 4, at));
            assert_eq!(number(pool, 4), 4096);
            assert_eq!(cuMemPoolSetAttribute(pool, 7, at), 1);
            // The GPU's own, and another one in its place.
            ok(cuDeviceGetDefaultMemPool(&mut own, 0));
            ok(cuMemAllocAsync(&mut a, 1000, s));
            assert_eq!(number(own, 7), 1000);
            ok(cuDeviceSetMemPool(0, pool));
            ok(cuMemAllocAsync(&mut b, 500, s));
            assert_eq!((number(own, 7), number(pool, 7)), (1000, 500));
            ok(cuMemPoolDestroy(pool));
            assert_eq!(cuMemPoolDestroy(pool), 1);
            assert_eq!(cuMemPoolDestroy(own), 1);
            ok(cuMemFree_v2(b));
            ok(cuMemFree_v2(a));
            assert_eq!(number(own, 7), 0);
            ok(cuMemPoolTrimTo(own, 0));
        }
    });
}
