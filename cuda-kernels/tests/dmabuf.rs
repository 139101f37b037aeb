//! GPU memory mapped as a dma-buf, over the mock driver, which gives a memfd.
#![cfg(feature = "cuda")]
#![allow(unsafe_code)] // Allocates as a program of others would.
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::mock_driver;

use std::sync::Arc;

use mock_driver::under_mock;
use ringbell_cuda_kernels::cuda::{CudaConfig, CudaGpu, DmaBufMapper};
use ringbell_gtlb::testing::conformance;
use ringbell_nic_abi::GpuVa;

fn gpu() -> CudaGpu {
    let config = CudaConfig {
        mapper: Some(Arc::new(DmaBufMapper)),
        ..CudaConfig::default()
    };
    CudaGpu::open(config).expect("the mock GPU")
}

/// Mappings of dma-bufs, and descriptors on them, of this process.
fn left() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("there");
    let fds = std::fs::read_dir("/proc/self/fd").expect("there");
    let fds = fds.filter_map(|e| std::fs::read_link(e.ok()?.path()).ok());
    let name = "mock-dma-buf";
    (
        maps.lines().filter(|l| l.contains(name)).count(),
        fds.filter(|f| f.to_string_lossy().contains(name)).count(),
    )
}

#[test]
fn mapped_memory_passes_the_conformance_suite() {
    under_mock(
        "mapped_memory_passes_the_conformance_suite",
        "dmabuf",
        || {
            conformance::check(&|| {
                let gpu = gpu();
                let buffer = Arc::new(gpu.alloc(4 << 20).expect("memory"));
                let way = gpu.describe();
                assert!(
                    way.contains("memory: mapped for the CPU by a dma-buf"),
                    "{way}"
                );
                let table = gpu.page_table(buffer.va(), buffer.len()).expect("pages");
                let (base, read, write) = (buffer.va().0, buffer.clone(), buffer);
                conformance::Subject {
                    memory: gpu.memory(),
                    table,
                    outside: 1 << 50,
                    peek: Box::new(move |va: GpuVa, into: &mut [u8]| {
                        read.read(va.0 - base, into).expect("in range")
                    }),
                    poke: Box::new(move |va: GpuVa, from: &[u8]| {
                        write.write(va.0 - base, from).expect("in range")
                    }),
                }
            });
            let (_, descriptors) = left();
            assert_eq!(descriptors, 0, "each is closed with its allocation");
        },
    );
}

#[test]
fn stores_and_loads_through_a_dma_buf_see_the_same_bytes() {
    let name = "stores_and_loads_through_a_dma_buf_see_the_same_bytes";
    under_mock(name, "dmabuf,slow-writes", || {
        let gpu = gpu();
        let buffer = gpu.alloc(3 << 16).expect("memory");
        // By stores, across a page, an odd number; then a word, which is one store.
        let odd: Vec<u8> = (0..70_001_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        buffer.write(65_530, &odd).expect("in range");
        buffer
            .write(8, &0x1122_3344_5566_7788_u64.to_ne_bytes())
            .expect("a flag");
        let mut back = vec![0; 70_001];
        buffer.read(65_530, &mut back).expect("in range");
        assert!(back == odd);
        assert_eq!(buffer.load_u64(8).expect("a word"), 0x1122_3344_5566_7788);
        let (mappings, descriptors) = left();
        assert!(
            mappings >= 2 && descriptors == 1,
            "{mappings} {descriptors}"
        );
        drop(buffer);
        assert_eq!(left().1, 0, "nothing stays open");
    });
}

#[test]
fn memory_of_others_is_mapped_where_its_pages_are_its_allocation_s_alone() {
    let name = "memory_of_others_is_mapped_where_its_pages_are_its_allocation_s_alone";
    under_mock(name, "dmabuf,slow-writes", || {
        use cudarc::driver::result;
        let gpu = gpu();
        gpu.context().bind_to_thread().expect("a context");
        // SAFETY: fresh allocations of the context, freed below, after what was adopted of them.
        let (small, large) = unsafe {
            let small = result::malloc_sync(1000).expect("memory");
            (small, result::malloc_sync(4 << 20).expect("memory"))
        };
        assert_eq!(large % (64 << 10), 0, "the driver aligns large ones");
        // SAFETY: as above.
        let adopt = |va: u64, len: u64| unsafe { gpu.adopt(GpuVa(va), len) }.expect("the GPU's");

        // Odd, across pages; a whole allocation; its last bytes.
        for (offset, len) in [(65_530, 70_001), (0, 4 << 20), ((4 << 20) - 9, 9)] {
            let memory = adopt(large + offset, len);
            let way = memory.path();
            assert!(way.starts_with("mapped for the CPU by a dma-buf"), "{way}");
            assert_eq!(left().1, 1, "one descriptor for the mapping");
            let bytes: Vec<u8> = (0..len).map(|i| ((i * 31 + offset) >> 3) as u8).collect();
            memory.write(0, &bytes).expect("inside");
            let mut got = vec![0; bytes.len()];
            memory.read(0, &mut got).expect("inside");
            assert!(got == bytes);
            let mut last = [0; 9];
            memory.read(len - 9, &mut last).expect("inside");
            assert_eq!(last, bytes[bytes.len() - 9..]);
            assert!(memory.write(len - 8, &last).is_err(), "outside");
            drop(memory);
            assert_eq!(left().1, 0, "nothing stays open");
        }
        let memory = adopt(small + 8, 900);
        let way = memory.path();
        assert!(
            way.contains("copy engine") && way.contains("reach beyond its allocation"),
            "{way}"
        );
        memory.write(3, b"by the engine").expect("inside");
        let mut got = [0; 13];
        memory.read(3, &mut got).expect("inside");
        assert_eq!(&got, b"by the engine");
        drop(memory);
        // SAFETY: allocated above; nothing adopts them any more.
        unsafe {
            result::free_sync(small).expect("freed");
            result::free_sync(large).expect("freed");
        }
    });
}

#[test]
fn a_gpu_with_memory_of_its_own_refuses_with_the_reason() {
    let name = "a_gpu_with_memory_of_its_own_refuses_with_the_reason";
    under_mock(name, "", || {
        let gpu = gpu();
        let buffer = gpu.alloc(1 << 20).expect("memory all the same");
        let way = gpu.describe();
        assert!(
            way.contains("copy engine on a side stream, because") && way.contains("mmap: "),
            "{way}"
        );
        // Memory of others goes the same way, for the same reason.
        let stream = gpu.context().default_stream();
        let slice = stream.clone_htod(&vec![7_u64; 1 << 18]).expect("2 MiB");
        let adopted = gpu.adopt_slice(slice).expect("its own");
        let way = adopted.memory().path().to_owned();
        assert!(
            way.starts_with("copy engine") && way.contains("mmap: "),
            "{way}"
        );
        buffer.write(5, b"by the engine").expect("in range");
        let mut back = [0; 13];
        buffer.read(5, &mut back).expect("in range");
        assert_eq!(&back, b"by the engine");
    });
}

#[test]
fn slots_are_pinned_memory_that_needs_no_copy_engine() {
    let name = "slots_are_pinned_memory_that_needs_no_copy_engine";
    under_mock(name, "slow-writes", || {
        let config = CudaConfig {
            pinned: true,
            ..CudaConfig::default()
        };
        let gpu = CudaGpu::open(config).expect("the mock GPU");
        assert!(
            gpu.describe().contains("slots: pinned memory"),
            "{}",
            gpu.describe()
        );
        conformance::check(&|| {
            let buffer = Arc::new(gpu.alloc(4 << 20).expect("memory"));
            let table = gpu.page_table(buffer.va(), buffer.len()).expect("pages");
            let (base, read, write) = (buffer.va().0, buffer.clone(), buffer);
            conformance::Subject {
                memory: gpu.memory(),
                table,
                outside: 1 << 50,
                peek: Box::new(move |va: GpuVa, into: &mut [u8]| {
                    read.read(va.0 - base, into).expect("in range")
                }),
                poke: Box::new(move |va: GpuVa, from: &[u8]| {
                    write.write(va.0 - base, from).expect("in range")
                }),
            }
        });
    });
}
