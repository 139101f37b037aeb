//! The CUDA backend over the mock driver: what is wrong with a machine, memory, kernels, a lost
//! GPU.
#![cfg(feature = "cuda")]
#![allow(unsafe_code)] // Registers raw GPU pointers.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::common;
use crate::mock_driver;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use common::{pattern, result, MockNic, Queue, PATIENCE};
use cudarc::driver::CudaContext;
use mock_driver::{on_any_driver, under_driver, under_mock};
use ringbell_cuda_kernels::cuda::{find, gpu_of, CudaConfig, CudaError, CudaGpu, DeviceCopies};
use ringbell_cuda_kernels::{GpuError, GpuKind, LaunchError};
use ringbell_gtlb::testing::conformance;
use ringbell_gtlb::BusError;
use ringbell_nic_abi::{GpuVa, Status};

fn open() -> Result<CudaGpu, CudaError> {
    CudaGpu::open(CudaConfig::default())
}

#[test]
fn without_a_driver_there_is_an_error_and_no_panic() {
    match find() {
        Err(CudaError::NoDriver) => {
            let e = open().unwrap_err();
            assert_eq!(e, CudaError::NoDriver);
            assert!(e.to_string().contains("libcuda.so.1"), "{e}");
        }
        other => println!("skipped: this machine has a driver ({other:?})"),
    }
}

/// A library of the driver's name with nothing in it.
fn empty_library() -> PathBuf {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libempty.so");
    let done = std::process::Command::new("g++")
        .args(["-shared", "-x", "c++", "/dev/null", "-o"])
        .arg(&out)
        .status()
        .expect("the build has used g++");
    assert!(done.success());
    out
}

#[test]
fn a_driver_without_the_functions_is_named_with_the_first_that_lacks() {
    let name = "a_driver_without_the_functions_is_named_with_the_first_that_lacks";
    under_driver(name, empty_library, || {
        let e = open().unwrap_err();
        assert_eq!(
            e,
            CudaError::MissingSymbol {
                symbol: "cuCtxGetCurrent"
            }
        );
        assert!(e.to_string().contains("install a driver"), "{e}");
    });
}

#[test]
fn kernels_of_ptx_run_on_the_driver() {
    under_mock("kernels_of_ptx_run_on_the_driver", "", || {
        let gpu = open().unwrap();
        let ptx = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kernels/ptx_simple.ptx");
        // SAFETY: the workspace's own kernels.
        unsafe { gpu.load_module(ptx.as_ref()) }.unwrap();
        let n = 1000_usize;
        let bytes = |value: fn(usize) -> f32| -> Vec<u8> {
            (0..n).flat_map(|i| value(i).to_le_bytes()).collect()
        };
        let [x, y] = [(); 2].map(|()| gpu.alloc(4 * n as u64).unwrap());
        x.write(0, &bytes(|i| i as f32)).unwrap();
        y.write(0, &bytes(|i| 1.0 + i as f32)).unwrap();
        let args = [(n as i32).into(), 2.0_f32.into(), (&x).into(), (&y).into()];
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launched = unsafe { gpu.launch("p_saxpy", 4, 256, &args) };
        launched.unwrap().wait(PATIENCE).unwrap();
        let mut out = vec![0; 4 * n];
        y.read(0, &mut out).unwrap();
        assert_eq!(out, bytes(|i| 1.0 + 3.0 * i as f32));
    });
}

#[test]
fn an_old_driver_is_refused() {
    under_mock("an_old_driver_is_refused", "old-driver", || {
        let needed = 12_000;
        let found = 11_080;
        assert_eq!(open().unwrap_err(), CudaError::OldDriver { found, needed });
    });
}

#[test]
fn a_driver_that_does_not_start_is_named_with_its_error() {
    let name = "a_driver_that_does_not_start_is_named_with_its_error";
    under_mock(name, "broken", || {
        assert_eq!(
            open().unwrap_err(),
            CudaError::Call {
                call: "cuInit",
                code: 999,
                name: "CUDA_ERROR_UNKNOWN".into()
            }
        );
    });
}

#[test]
fn a_driver_without_a_gpu_is_refused() {
    under_mock("a_driver_without_a_gpu_is_refused", "no-device", || {
        assert_eq!(open().unwrap_err(), CudaError::NoDevice);
        assert_eq!(find().unwrap_err(), CudaError::NoDevice);
    });
}

#[test]
fn a_gpu_that_is_not_there_is_refused_by_its_number() {
    let name = "a_gpu_that_is_not_there_is_refused_by_its_number";
    under_mock(name, "", || {
        let config = CudaConfig {
            ordinal: 3,
            ..CudaConfig::default()
        };
        let (ordinal, count) = (3, 1);
        assert_eq!(
            CudaGpu::open(config).unwrap_err(),
            CudaError::NoSuchDevice { ordinal, count }
        );
    });
}

#[test]
fn kernels_come_from_nvrtc_where_the_fat_binaries_hold_none() {
    let name = "kernels_come_from_nvrtc_where_the_fat_binaries_hold_none";
    under_mock(name, "no-fatbin,no-ptx", || {
        let gpu = open().unwrap();
        assert!(gpu.describe().contains("NVRTC"), "{}", gpu.describe());
        assert!(gpu.kernels().iter().any(|k| k == "rb_send_all"));
    });
}

#[test]
fn kernels_come_from_ptx_where_there_are_no_fat_binaries() {
    let name = "kernels_come_from_ptx_where_there_are_no_fat_binaries";
    under_mock(name, "no-fatbin", || {
        let gpu = open().unwrap();
        let text = gpu.describe();
        assert!(text.contains("PTX, compiled by the driver"), "{text}");
        // It is the module's kernel that runs, and sees its arguments.
        let nic = MockNic::start(&gpu, Queue::new(&gpu, 4, 0, 20_000_000, 1_000_000));
        let out = gpu.alloc(64).unwrap();
        let args = [nic.handle(), 1_u32.into(), 0_u32.into(), (&out).into()];
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        unsafe { gpu.launch("rb_nop", 1, 1, &args) }
            .unwrap()
            .wait(PATIENCE)
            .unwrap();
        assert_eq!(result(&out, 0).status, Status::Ok);
    });
}

#[test]
fn a_gpu_without_kernels_is_an_error_with_both_reasons() {
    let name = "a_gpu_without_kernels_is_an_error_with_both_reasons";
    under_mock(name, "no-fatbin,no-ptx,no-nvrtc", || {
        let text = open().unwrap_err().to_string();
        assert!(
            text.contains("sm_90") && text.contains("Mock GPU"),
            "{text}"
        );
        assert!(text.contains("knows no such GPU"), "{text}");
    });
}

#[test]
fn a_host_without_memory_to_pin_is_an_error() {
    under_mock(
        "a_host_without_memory_to_pin_is_an_error",
        "no-pinning",
        || {
            let e = open().unwrap_err();
            let pinned =
                matches!(e, CudaError::OutOfMemory { what, .. } if what == "pinned host memory");
            assert!(pinned, "{e}");
        },
    );
}

#[test]
fn memory_is_allocated_copied_and_refused() {
    under_mock(
        "memory_is_allocated_copied_and_refused",
        "memory=16777216",
        || {
            let gpu = open().unwrap();
            assert_eq!(gpu.kind(), GpuKind::Cuda);
            // Odd sizes, on both sides of a slot of the staging memory, of a page, and of all
            // slots.
            for len in [1_u64, 511, 65_535, 65_536, 65_537, 3_000_001, 8_500_000] {
                let b = gpu.alloc(len).unwrap();
                assert_eq!(b.va().0 % 65_536, 0, "{len}");
                let bytes = pattern(len as usize, len as u8);
                b.write(0, &bytes).unwrap();
                let mut got = vec![0; len as usize];
                b.read(0, &mut got).unwrap();
                assert!(got == bytes, "{len}");
                assert!(matches!(
                    b.write(len, &[1]),
                    Err(GpuError::NotAllocated { .. })
                ));
            }
            let a = gpu.alloc(100).unwrap();
            a.store_u64(8, 0x1122_3344_5566_7788).unwrap();
            assert_eq!(a.load_u32(12).unwrap(), 0x1122_3344);
            assert!(matches!(
                a.load_u64(4),
                Err(GpuError::Misaligned { offset: 4, size: 8 })
            ));
            let e = gpu.alloc(1 << 30).unwrap_err();
            let full = matches!(
                e,
                GpuError::Cuda(CudaError::OutOfMemory { bytes, what: "GPU memory" }) if bytes == 1 << 30
            );
            assert!(full, "{e}");
            let gone = a.va();
            drop(a);
            assert!(matches!(
                gpu.read(gone, &mut [0; 4]),
                Err(GpuError::NotAllocated { .. })
            ));
        },
    );
}

#[test]
fn the_copy_engine_passes_the_conformance_suite() {
    on_any_driver("the_copy_engine_passes_the_conformance_suite", "", || {
        conformance::check(&|| {
            let gpu = open().unwrap();
            let buffer = Arc::new(gpu.alloc(4 << 20).unwrap());
            let table = gpu.page_table(buffer.va(), buffer.len()).unwrap();
            let (base, read, write) = (buffer.va().0, buffer.clone(), buffer);
            conformance::Subject {
                memory: gpu.memory(),
                table,
                outside: 1 << 50,
                peek: Box::new(move |va: GpuVa, into: &mut [u8]| {
                    read.read(va.0 - base, into).unwrap()
                }),
                poke: Box::new(move |va: GpuVa, from: &[u8]| {
                    write.write(va.0 - base, from).unwrap()
                }),
            }
        });
    });
}

#[test]
fn a_completion_waits_for_the_copies_before_it() {
    let name = "a_completion_waits_for_the_copies_before_it";
    on_any_driver(name, "slow-writes", || {
        use ringbell_gtlb::{Access, CompletionWrite, DmaOp, Mmu, MmuConfig, Need, Submitted};
        let gpu = open().unwrap();
        let memory = gpu.memory();
        let buffer = gpu.alloc(200_000).unwrap();
        let mut mmu = Mmu::new(MmuConfig::default()).unwrap();
        let table = gpu.page_table(buffer.va(), 200_000).unwrap();
        mmu.map(&table).unwrap();
        let pd = mmu.alloc_pd().unwrap();
        let region = mmu
            .register(pd, buffer.va(), 200_000, Access::LOCAL)
            .unwrap();
        for lap in 1..4_u64 {
            let line: [AtomicU64; 4] = Default::default();
            let bytes = pattern(200_000, lap as u8);
            let mut done = 0;
            while done < bytes.len() {
                let at = GpuVa(buffer.va().0 + done as u64);
                let left = (bytes.len() - done) as u64;
                let pin = mmu.pin(pd, region.lkey, at, left, Need::Write).unwrap();
                let to = mmu.span(pin.region, at, left).unwrap();
                mmu.unpin(pin);
                let from = &bytes[done..done + to.len as usize];
                done += from.len();
                let started = memory.submit(DmaOp::Write { to, from }).unwrap();
                assert!(matches!(started, Submitted::Pending(_)));
            }
            // SAFETY: the line lives until it was stored, below.
            memory.publish(unsafe { CompletionWrite::new(line.as_ptr(), [lap, 2, 3, 4]) });
            let start = std::time::Instant::now();
            while line[0].load(Ordering::Acquire) == 0 {
                assert!(start.elapsed() < PATIENCE, "nothing was completed");
                while memory.poll().is_some() {}
            }
            let mut got = vec![0; 200_000];
            buffer.read(0, &mut got).unwrap();
            assert!(got == bytes, "completed before the bytes were there");
            let words: Vec<u64> = line.iter().map(|w| w.load(Ordering::Relaxed)).collect();
            assert_eq!(words, [lap, 2, 3, 4]);
        }
    });
}

#[test]
fn pinned_memory_passes_the_conformance_suite_and_needs_no_copy_engine() {
    let name = "pinned_memory_passes_the_conformance_suite_and_needs_no_copy_engine";
    on_any_driver(name, "slow-writes", || {
        conformance::check(&|| {
            let gpu = open().unwrap();
            let buffer = Arc::new(gpu.alloc_pinned(4 << 20).unwrap());
            let table = gpu.page_table(buffer.va(), buffer.len()).unwrap();
            let (base, read, write) = (buffer.va().0, buffer.clone(), buffer);
            conformance::Subject {
                memory: gpu.memory(),
                table,
                outside: 1 << 50,
                peek: Box::new(move |va: GpuVa, into: &mut [u8]| {
                    read.read(va.0 - base, into).unwrap()
                }),
                poke: Box::new(move |va: GpuVa, from: &[u8]| {
                    write.write(va.0 - base, from).unwrap()
                }),
            }
        });
        let gpu = open().unwrap();
        let buffer = gpu.alloc_pinned(100_000).unwrap();
        let table = gpu.page_table(buffer.va(), 100_000).unwrap();
        let mut mmu = ringbell_gtlb::Mmu::new(ringbell_gtlb::MmuConfig::default()).unwrap();
        mmu.map(&table).unwrap();
        let pd = mmu.alloc_pd().unwrap();
        let access = ringbell_gtlb::Access::LOCAL;
        let region = mmu.register(pd, buffer.va(), 100_000, access).unwrap();
        let need = ringbell_gtlb::Need::Write;
        let pin = mmu.pin(pd, region.lkey, buffer.va(), 8, need).unwrap();
        let to = mmu.span(pin.region, buffer.va(), 8).unwrap();
        let op = ringbell_gtlb::DmaOp::Write { to, from: &[7; 8] };
        assert_eq!(gpu.memory().submit(op), Ok(ringbell_gtlb::Submitted::Done));
        assert_eq!(buffer.load_u64(0).unwrap(), 0x0707_0707_0707_0707);
    });
}

#[test]
fn kernels_send_and_receive_over_a_nic_made_of_a_thread() {
    let name = "kernels_send_and_receive_over_a_nic_made_of_a_thread";
    on_any_driver(name, "", || {
        let gpu = open().unwrap();
        let nic = MockNic::start(&gpu, Queue::new(&gpu, 4, 0, 20_000_000, 1_000_000));
        let out = gpu.alloc(4096).unwrap();
        let stream = gpu.stream();
        for (len, lanes) in [(1_u64, 1_u32), (41, 64), (100_001, 256), (3_000_001, 1024)] {
            let (from, to) = (gpu.alloc(len).unwrap(), gpu.alloc(len).unwrap());
            let bytes = pattern(len as usize, lanes as u8);
            from.write(0, &bytes).unwrap();
            let before = stream.record();
            for (kernel, buffer) in [("rb_send_all", &from), ("rb_recv_all", &to)] {
                let args = [
                    nic.handle(),
                    5_u32.into(),
                    buffer.into(),
                    len.into(),
                    0_u32.into(),
                    (&out).into(),
                ];
                // SAFETY: the kernel's own parameters, and memory that outlives it.
                let launch = unsafe { stream.launch(kernel, 1, lanes, &args) }.unwrap();
                launch.wait(PATIENCE).unwrap();
                assert_eq!(launch.poll(), Some(Ok(())));
                let r = result(&out, 0);
                assert_eq!((r.status, r.bytes), (Status::Ok, len), "{kernel} of {len}");
            }
            let after = stream.record();
            after.wait(PATIENCE).unwrap();
            assert!(after.elapsed_since(&before).is_some());
            let mut got = vec![0; len as usize];
            to.read(0, &mut got).unwrap();
            assert!(got == bytes, "{len} bytes by {lanes} lanes");
        }
    });
}

#[test]
fn a_wrong_launch_is_refused_before_the_driver_call() {
    on_any_driver(
        "a_wrong_launch_is_refused_before_the_driver_call",
        "",
        || {
            let gpu = open().unwrap();
            let refused = |name: &str, block: u32, args: &[_]| {
                // SAFETY: the kernel's own parameters, and memory that outlives it.
                unsafe { gpu.launch(name, 1, block, args) }.expect_err("refused")
            };
            assert!(matches!(
                refused("no_such_kernel", 1, &[]),
                LaunchError::UnknownKernel { .. }
            ));
            assert!(matches!(
                refused("rb_nop", 1, &[]),
                LaunchError::ArgumentCount { given: 0, .. }
            ));
            let four = [1_u32.into(), 1_u32.into(), 1_u32.into(), 1_u32.into()];
            assert!(matches!(
                refused("rb_nop", 1, &four),
                LaunchError::ArgumentSize { index: 0, .. }
            ));
            assert!(matches!(
                refused("rb_nop", 1025, &four),
                LaunchError::Shape { lanes: 1025, .. }
            ));
        },
    );
}

#[test]
fn a_destroyed_context_is_reported_by_every_later_call() {
    let name = "a_destroyed_context_is_reported_by_every_later_call";
    under_mock(name, "kill=rb_nop", || {
        let gpu = open().unwrap();
        let nic = MockNic::start(&gpu, Queue::new(&gpu, 4, 0, 20_000_000, 1_000_000));
        let out = gpu.alloc(64).unwrap();
        let table = gpu.page_table(out.va(), 64).unwrap();
        assert_eq!(table.pages, [out.va().0]);
        let args = [nic.handle(), 1_u32.into(), 0_u32.into(), (&out).into()];
        // The kernel may have died before its launch has returned, which then tells.
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launched = unsafe { gpu.launch("rb_nop", 1, 1, &args) };
        match launched.and_then(|launch| launch.wait(PATIENCE)) {
            Err(LaunchError::Failed { kernel, reason, .. }) => {
                assert_eq!(kernel, "rb_nop");
                assert!(reason.contains("CUDA_ERROR_LAUNCH_FAILED"), "{reason}");
            }
            Err(LaunchError::Device {
                source: CudaError::Lost { code: 719, .. },
                ..
            }) => {}
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            gpu.lost(),
            Some(CudaError::Lost { code: 719, .. })
        ));
        assert!(matches!(
            gpu.alloc(64),
            Err(GpuError::Cuda(CudaError::Lost { .. }))
        ));
        assert!(matches!(
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            unsafe { gpu.launch("rb_nop", 1, 1, &args) },
            Err(LaunchError::Device {
                source: CudaError::Lost { .. },
                ..
            })
        ));
        assert!(gpu.stream().synchronize(Duration::from_secs(1)).is_err());
        let mut mmu = ringbell_gtlb::Mmu::new(ringbell_gtlb::MmuConfig::default()).unwrap();
        mmu.map(&table).unwrap();
        let pd = mmu.alloc_pd().unwrap();
        let region = mmu
            .register(pd, out.va(), 64, ringbell_gtlb::Access::LOCAL)
            .unwrap();
        let need = ringbell_gtlb::Need::Write;
        let pin = mmu.pin(pd, region.lkey, out.va(), 64, need).unwrap();
        let to = mmu.span(pin.region, out.va(), 64).unwrap().prefix(8);
        let op = ringbell_gtlb::DmaOp::Write { to, from: &[1; 8] };
        assert_eq!(gpu.memory().submit(op), Err(BusError::Lost));
    });
}

#[test]
fn memory_of_others_is_adopted_or_refused_with_the_reason() {
    let name = "memory_of_others_is_adopted_or_refused_with_the_reason";
    under_mock(name, "", || {
        use cudarc::driver::result;
        let gpu = open().unwrap();
        gpu.context().bind_to_thread().unwrap();
        // SAFETY: a fresh allocation of the context, freed below.
        let raw = unsafe { result::malloc_sync(1000) }.unwrap();
        // SAFETY: lives until it is freed below.
        let adopt = |va: u64, len: u64| unsafe { gpu.adopt(GpuVa(va), len) };

        let memory = adopt(raw + 8, 992).unwrap();
        assert_ne!(
            raw % 65_536,
            0,
            "the mock's small allocations are not aligned to pages"
        );
        let table = memory.page_table();
        assert_eq!(table.base.0 % 65_536, 0);
        assert!(table.base.0 <= raw && raw + 1000 <= table.base.0 + 65_536);
        memory.write(2, b"adopted").unwrap();
        let mut got = [0; 7];
        memory.read(2, &mut got).unwrap();
        assert_eq!(&got, b"adopted");
        assert!(memory.write(990, b"long").is_err());
        assert!(matches!(
            adopt(raw + 100, 8).unwrap_err(),
            CudaError::Shared { .. }
        ));
        drop(memory);

        let base = GpuVa(raw);
        assert_eq!(
            adopt(raw + 8, 993).unwrap_err(),
            CudaError::Range {
                va: GpuVa(raw + 8),
                len: 993,
                base,
                size: 1000
            }
        );
        let host = [0_u8; 64];
        assert!(matches!(
            adopt(host.as_ptr() as u64, 64).unwrap_err(),
            CudaError::NotGpuMemory { .. }
        ));
        // SAFETY: fresh memory of the context, freed by the end of the process.
        let (managed, pinned) = unsafe {
            use cudarc::driver::sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
            (
                result::malloc_managed(4096, CU_MEM_ATTACH_GLOBAL).unwrap(),
                result::malloc_host(4096, 0).unwrap(),
            )
        };
        assert_eq!(
            adopt(managed, 64).unwrap_err(),
            CudaError::Managed { va: GpuVa(managed) }
        );
        assert!(matches!(
            adopt(pinned as u64, 64).unwrap_err(),
            CudaError::HostMemory { .. }
        ));
        // SAFETY: allocated above; nothing adopts it any more.
        unsafe { result::free_sync(raw) }.unwrap();
        assert!(matches!(
            adopt(raw, 8).unwrap_err(),
            CudaError::NotGpuMemory { .. }
        ));
    });
}

#[test]
fn plain_pointers_to_gpu_memory_are_found_and_copied() {
    use cudarc::driver::{result, sys};
    let name = "plain_pointers_to_gpu_memory_are_found_and_copied";
    on_any_driver(name, "guard,slow-writes", || {
        let copies = DeviceCopies::new();
        let mut host = [0_u8; 64];
        assert_eq!(gpu_of(host.as_ptr()), None, "CUDA was not started yet");
        let context = CudaContext::new(0).unwrap();
        assert_eq!(gpu_of(host.as_ptr()), None);
        // SAFETY: fresh memory of the context, freed below.
        let raw = unsafe { result::malloc_sync(5_000_000) }.unwrap();
        let at = std::ptr::with_exposed_provenance_mut::<u8>(raw as usize);
        assert_eq!(gpu_of(at), Some(0));
        assert_eq!(gpu_of(at.wrapping_add(4_999_999)), Some(0));
        // No context is current, before and behind a copy, as on a thread that has called nothing
        // of CUDA. SAFETY: null is none.
        unsafe { result::ctx::set_current(std::ptr::null_mut()) }.unwrap();
        // In one slot of pinned memory, in several, and in more than there are.
        for (offset, len) in [(0, 1), (77, 65_536), (3, 1 << 20), (1, 4_999_999)] {
            let data = pattern(len, offset as u8);
            let mut got = vec![0; len];
            // SAFETY: inside the memory, which nothing else uses.
            unsafe {
                copies.write(at.wrapping_add(offset), &data).unwrap();
                copies.read(at.wrapping_add(offset), &mut got).unwrap();
            }
            assert!(got == data, "{len} bytes at {offset}");
        }
        assert_eq!(result::ctx::get_current().unwrap(), None);
        // SAFETY: it touches nothing: the driver refuses.
        let beyond = unsafe { copies.read(at.wrapping_add(4_999_999), &mut host) };
        assert!(matches!(beyond, Err(CudaError::Call { .. })), "{beyond:?}");
        // SAFETY: as before.
        let of_host = unsafe { copies.write(host.as_mut_ptr(), &[1]) };
        assert!(
            matches!(of_host, Err(CudaError::NotGpuMemory { .. })),
            "{of_host:?}"
        );
        context.bind_to_thread().unwrap();
        let mut managed = 0;
        // SAFETY: fresh memory, freed by the end of the process; the pointer is to a live word.
        let made = unsafe { sys::cuMemAllocManaged(&mut managed, 4096, 1) };
        assert_eq!(made, sys::CUresult::CUDA_SUCCESS);
        assert_eq!(
            gpu_of(std::ptr::with_exposed_provenance(managed as usize)),
            Some(0)
        );
        // SAFETY: allocated above.
        unsafe { result::free_sync(raw) }.unwrap();
        assert_eq!(gpu_of(at), None, "it was freed");
    });
}

#[test]
fn a_cudarc_slice_is_adopted_with_the_writes_of_its_stream() {
    let name = "a_cudarc_slice_is_adopted_with_the_writes_of_its_stream";
    on_any_driver(name, "slow-writes", || {
        let gpu = open().unwrap();
        let stream = gpu.context().default_stream();
        let numbers: Vec<u32> = (0..10_007).map(|i| i * 7).collect();
        let slice = stream.clone_htod(&numbers).unwrap();
        let adopted = gpu.adopt_slice(slice).unwrap();
        assert_eq!(adopted.memory().len(), 4 * 10_007);
        let mut got = [0; 4];
        adopted.memory().read(4 * 10_006, &mut got).unwrap();
        assert_eq!(u32::from_ne_bytes(got), 70_042);
        adopted.memory().write(0, &9_u32.to_ne_bytes()).unwrap();
        let slice = adopted.into_inner();
        let back = stream.clone_dtoh(&slice).unwrap();
        assert_eq!((back[0], &back[1..]), (9, &numbers[1..]));
    });
}
