//! GPU memory mapped through GDRCopy, over a mock of its library and the mock driver.
#![cfg(feature = "cuda")]
#![allow(unsafe_code)] // Asks the mock how much it still holds.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::mock_driver;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gdrcopy_sys::testing::build_mock;
use mock_driver::under_mock;
use ringbell_cuda_kernels::cuda::{CudaConfig, CudaGpu};
use ringbell_cuda_kernels::gdrcopy::{GdrError, GdrMapper};
use ringbell_gtlb::testing::conformance;
use ringbell_nic_abi::GpuVa;

/// The mock of a test, in a folder of its own.
struct Mock {
    dir: PathBuf,
    library: PathBuf,
}

impl Mock {
    fn new(test: &str, arguments: &[&str]) -> Mock {
        let name = format!("gdr-{test}-{}", std::process::id());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&dir).expect("the target folder can be written");
        let library = build_mock(&dir, arguments).expect("the mock compiles");
        Mock { dir, library }
    }

    fn open(&self) -> Result<GdrMapper, GdrError> {
        GdrMapper::open_from(&self.library)
    }

    /// Handles, pins and mappings that were not given back.
    fn live(&self) -> i32 {
        // SAFETY: the mock, whose function has this type.
        unsafe {
            let library = libloading::Library::new(&self.library).expect("the mock");
            let live = library.get::<unsafe extern "C" fn() -> i32>(b"mock_gdr_live\0");
            live.expect("a function of the mock")()
        }
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn gpu(mapper: GdrMapper) -> CudaGpu {
    let config = CudaConfig {
        mapper: Some(Arc::new(mapper)),
        ..CudaConfig::default()
    };
    CudaGpu::open(config).expect("the mock GPU")
}

#[test]
fn mapped_memory_passes_the_conformance_suite_and_is_given_back() {
    let name = "mapped_memory_passes_the_conformance_suite_and_is_given_back";
    under_mock(name, "", || {
        let mock = Mock::new("suite", &[]);
        // The library stays loaded, so that what it holds can be asked.
        let mapper = mock.open().expect("the mock opens");
        assert_eq!(mapper.driver_version(), Some((2, 4)));
        conformance::check(&|| {
            let gpu = gpu(mapper.clone());
            let buffer = Arc::new(gpu.alloc(4 << 20).expect("memory"));
            let way = gpu.describe();
            assert!(way.contains("mapped for the CPU by GDRCopy 2.6"), "{way}");
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
        assert_eq!(mock.live(), 1, "the mapper alone is left");
    });
}

#[test]
fn an_old_library_maps_memory() {
    under_mock("an_old_library_maps_memory", "", || {
        let mock = Mock::new("old", &["-DMOCK_OLD"]);
        let mapper = mock.open().expect("2.0 is enough");
        let gpu = gpu(mapper.clone());
        let buffer = gpu.alloc(3 << 16).expect("memory");
        assert!(gpu.describe().contains("GDRCopy 2.0"), "{}", gpu.describe());
        let (odd, word) = ([7u8, 1, 2, 3, 4], 0x1122_3344_5566_7788u64);
        buffer.write(65_534, &odd).expect("across a page");
        buffer.write(8, &word.to_ne_bytes()).expect("a flag");
        let mut back = [0; 5];
        buffer.read(65_534, &mut back).expect("in range");
        assert_eq!(back, odd);
        let mut back = [0; 8];
        buffer.read(8, &mut back).expect("in range");
        assert_eq!(u64::from_ne_bytes(back), word);
        drop(buffer);
        assert_eq!(mock.live(), 1);
    });
}

#[test]
fn memory_that_cannot_be_mapped_uses_the_copy_engine() {
    let name = "memory_that_cannot_be_mapped_uses_the_copy_engine";
    under_mock(name, "", || {
        for (fault, said) in [("pin", "gdr_pin_buffer: Invalid"), ("map", "gdr_map: ")] {
            let mock = Mock::new(fault, &[]);
            let mapper = mock.open().expect("the mock opens");
            std::env::set_var("RINGBELL_MOCK_GDR", fault);
            let gpu = gpu(mapper.clone());
            let buffer = gpu.alloc(1 << 20).expect("memory all the same");
            std::env::remove_var("RINGBELL_MOCK_GDR");
            let way = gpu.describe();
            assert!(way.contains("copy engine") && way.contains(said), "{way}");
            buffer.write(5, b"by the engine").expect("in range");
            let mut back = [0; 13];
            buffer.read(5, &mut back).expect("in range");
            assert_eq!(&back, b"by the engine");
            drop((buffer, gpu));
            assert_eq!(mock.live(), 1, "{fault}: nothing stays pinned");
        }
    });
}

#[test]
fn without_library_or_kernel_driver_the_error_has_a_remedy() {
    let name = "without_library_or_kernel_driver_the_error_has_a_remedy";
    under_mock(name, "", || {
        let none = GdrMapper::open_from("/nonexistent/libgdrapi.so.2");
        let text = none.expect_err("there is none").to_string();
        assert!(text.contains("libgdrapi"), "{text}");
        let mock = Mock::new("driver", &[]);
        std::env::set_var("RINGBELL_MOCK_GDR", "open");
        let text = mock.open().expect_err("no gdrdrv").to_string();
        std::env::remove_var("RINGBELL_MOCK_GDR");
        assert!(
            text.contains("modprobe gdrdrv") && text.contains("2.6"),
            "{text}"
        );
    });
}
