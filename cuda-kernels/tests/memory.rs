//! The emulated GPU's memory: conformance with the seam, scattering, allocation.

use std::sync::Arc;

use ringbell_cuda_kernels::{EmulatedGpu, EmulatedGpuConfig, GpuError};
use ringbell_gtlb::page_table::{LARGE_PAGE_BYTES, PAGES_PER_LARGE, PAGE_BYTES};
use ringbell_gtlb::testing::conformance;
use ringbell_gtlb::DmaMemory;
use ringbell_nic_abi::GpuVa;

fn gpu(scatter: f64) -> EmulatedGpu {
    EmulatedGpu::new(EmulatedGpuConfig {
        memory_bytes: 16 << 20,
        scatter,
        ..Default::default()
    })
    .unwrap()
}

#[test]
fn passes_the_conformance_suite() {
    for scatter in [0.0, 0.5, 1.0] {
        conformance::check(&|| {
            let gpu = gpu(scatter);
            let buffer = Arc::new(gpu.alloc(4 << 20).unwrap());
            let table = gpu.page_table(buffer.va(), buffer.len()).unwrap();
            let memory = gpu.memory();
            let window = memory.window().unwrap();
            let (base, read, write) = (buffer.va().0, buffer.clone(), buffer);
            conformance::Subject {
                memory,
                table,
                outside: window.bus + window.len,
                peek: Box::new(move |va: GpuVa, into: &mut [u8]| {
                    read.read(va.0 - base, into).unwrap()
                }),
                poke: Box::new(move |va: GpuVa, from: &[u8]| {
                    write.write(va.0 - base, from).unwrap()
                }),
            }
        });
    }
}

#[test]
fn contiguous_groups_coalesce_and_scattered_ones_do_not() {
    for scatter in [0.0, 0.25, 1.0] {
        let gpu = gpu(scatter);
        let all = gpu.alloc(16 << 20).unwrap();
        assert_eq!(all.va().0 % LARGE_PAGE_BYTES, 0);
        let table = gpu.page_table(all.va(), all.len()).unwrap();
        let coalesce = table
            .pages
            .chunks(PAGES_PER_LARGE)
            .filter(|g| {
                g[0] % LARGE_PAGE_BYTES == 0 && g.windows(2).all(|w| w[1] == w[0] + PAGE_BYTES)
            })
            .count();
        assert_eq!(coalesce, 8 - gpu.memory().scattered_groups());
        assert_eq!(gpu.memory().scattered_groups(), (8.0 * scatter) as usize);
    }
}

#[test]
fn page_tables_cover_unaligned_ranges_and_refuse_unallocated_ones() {
    let gpu = gpu(0.25);
    let buffer = gpu.alloc(3 * PAGE_BYTES + 1).unwrap();
    let at = GpuVa(buffer.va().0 + PAGE_BYTES - 1);
    let t = gpu.page_table(at, 2).unwrap();
    assert_eq!((t.base, t.pages.len()), (buffer.va(), 2));
    for (va, len) in [
        (GpuVa(0), 1),
        (GpuVa(buffer.va().0 - 1), 2),
        (at, 1 << 40),
        (GpuVa(u64::MAX), 2),
    ] {
        assert!(
            matches!(gpu.page_table(va, len), Err(GpuError::NotAllocated { .. })),
            "{va} {len}"
        );
        assert!(
            matches!(
                gpu.read(va, &mut [0; 2]),
                Err(GpuError::NotAllocated { .. })
            ) || len == 1 << 40
        );
    }
    assert!(buffer.write(buffer.len() - 1, &[1, 2]).is_err());
    assert!(matches!(gpu.alloc(0), Err(GpuError::Empty)));
    assert!(matches!(
        gpu.alloc(17 << 20),
        Err(GpuError::OutOfMemory { .. })
    ));
    let va = buffer.va();
    drop(buffer);
    assert!(gpu.page_table(va, 1).is_err());
    assert_eq!(gpu.alloc(16 << 20).unwrap().len(), 16 << 20);
}

#[test]
fn memory_outlives_the_handle() {
    let gpu = gpu(0.25);
    let buffer = gpu.alloc(100).unwrap();
    drop(gpu);
    buffer.write(0, &[9; 100]).unwrap();
    let mut b = [0; 100];
    buffer.read(0, &mut b).unwrap();
    assert_eq!(b, [9; 100]);
}
