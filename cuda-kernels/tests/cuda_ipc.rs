//! GPU memory of one process in another, by CUDA's handles, over the mock driver: two real
//! processes, each with a GPU of its own in its view.
#![cfg(feature = "cuda")]
#![allow(unsafe_code)] // Opens memory of another process.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::common;
use crate::mock_driver;
use crate::second_process;

use common::pattern;
use mock_driver::{on_any_driver, under_mock};
use ringbell_cuda_kernels::cuda::{CudaConfig, CudaError, CudaGpu};
use ringbell_cuda_kernels::{EmulatedGpu, EmulatedGpuConfig, GpuError, SharedMemory};
use ringbell_nic_abi::GpuVa;
use second_process::{role, Second};

fn open() -> CudaGpu {
    CudaGpu::open(CudaConfig::default()).expect("the mock's GPU")
}

/// Reads the handle that the first process has sent.
fn received() -> SharedMemory {
    let bytes = second_process::read_bytes(SharedMemory::BYTES);
    SharedMemory::from_bytes(&bytes).expect("what the other process sent")
}

#[test]
fn another_process_reads_and_writes_interior_parts_of_a_buffer() {
    let name = "another_process_reads_and_writes_interior_parts_of_a_buffer";
    on_any_driver(name, "", || {
        let gpu = open();
        if role() == Some("opener") {
            // Two parts of one allocation, and one of another of the same process.
            let [one, two, other] = [(); 3].map(|()| received());
            // SAFETY: the first process keeps the memory until this one has ended.
            let open = |s: &SharedMemory| unsafe { gpu.open_shared(s) }.expect("it is there");
            let (a, b, c) = (open(&one), open(&two), open(&other));
            assert_eq!((a.len(), b.len(), c.len()), (3001, 500, 70_001));
            assert_eq!(b.va().0 - a.va().0, 100_000 - 777, "one mapping for both");
            let mut got = vec![0; 3001];
            a.read(0, &mut got).expect("inside");
            assert!(got == pattern(1_300_000, 3)[777..3778]);
            assert!(matches!(
                a.read(1, &mut got),
                Err(GpuError::NotAllocated { .. })
            ));
            b.write(7, b"from the other process").expect("inside");
            let mut got = vec![0; 70_001];
            c.read(0, &mut got).expect("inside");
            assert!(got == pattern(70_001, 9));
            // The same part again, while the first is open and after all were closed.
            let again = open(&one);
            assert_eq!(again.va(), a.va());
            drop((a, again));
            let mut got = [0; 4];
            b.read(7, &mut got).expect("its mapping has other users");
            assert_eq!(&got, b"from");
            drop(b);
            let late = open(&two);
            late.read(7, &mut got).expect("opened anew");
            assert_eq!(&got, b"from");
            // What was opened belongs to another process: it is not shared on, nor by a plain
            // pointer.
            let refused = gpu.share(late.va(), 8).expect_err("not ours");
            assert!(
                matches!(refused, CudaError::NotExportable { .. }),
                "{refused}"
            );
            // SAFETY: as above.
            let twice = unsafe { gpu.adopt(late.va(), 8) }.expect_err("known already");
            assert!(matches!(twice, CudaError::Shared { .. }), "{twice}");
            // Kernels use it at its address: one that writes a result there is enough.
            second_process::say("done");
            return;
        }
        let large = gpu.alloc(1_300_000).expect("room");
        large.write(0, &pattern(1_300_000, 3)).expect("inside");
        let small = gpu.alloc(70_001).expect("room");
        small.write(0, &pattern(70_001, 9)).expect("inside");
        let mut second = Second::start(name, "opener");
        for part in [
            large.share(777, 3001),
            large.share(100_000, 500),
            small.share(0, 70_001),
        ] {
            second.send(&part.expect("plain memory of the GPU").to_bytes());
        }
        second.expect("done");
        let mut got = [0; 22];
        large.read(100_007, &mut got).expect("inside");
        assert_eq!(&got, b"from the other process");
    });
}

#[test]
fn memory_that_cannot_be_shared_has_a_reason() {
    let name = "memory_that_cannot_be_shared_has_a_reason";
    under_mock(name, "", || {
        use cudarc::driver::result;
        let gpu = open();
        if role() == Some("opener") {
            // SAFETY: refused, or kept by the first process.
            let open = |s: &SharedMemory| unsafe { gpu.open_shared(s) };
            let pid = std::os::unix::process::parent_id();
            // Freed, and its place used again by an allocation of the same size.
            assert_eq!(open(&received()).unwrap_err(), CudaError::Stale { pid });
            // Its successor is another allocation, although it lies at the same address.
            let mut got = [0; 9];
            let successor = open(&received()).expect("alive");
            successor.read(0, &mut got).expect("inside");
            assert_eq!(&got, b"successor");
            drop(successor);
            second_process::say("looked");
            // Freed while it is not open anywhere: the name is stale, also with a cache.
            assert_eq!(open(&received()).unwrap_err(), CudaError::Stale { pid });
            second_process::say("done");
            return;
        }
        let buffer = gpu.alloc(1_500_000).expect("room");
        let own = buffer.share(10, 20).expect("plain memory");
        // SAFETY: refused.
        let refused = unsafe { gpu.open_shared(&own) }.unwrap_err();
        let pid = std::process::id();
        assert_eq!(refused, CudaError::SameProcess { pid });
        assert!(matches!(
            buffer.share(1_499_990, 11),
            Err(GpuError::NotAllocated { .. })
        ));
        assert!(matches!(
            buffer.share(5, 0),
            Err(GpuError::Cuda(CudaError::Range { len: 0, .. }))
        ));
        let share = |va: u64| gpu.share(GpuVa(va), 8).unwrap_err();
        gpu.context().bind_to_thread().unwrap();
        // SAFETY: fresh memory of the context, freed by the end of the process.
        let (managed, pinned) = unsafe {
            use cudarc::driver::sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
            (
                result::malloc_managed(4096, CU_MEM_ATTACH_GLOBAL).unwrap(),
                result::malloc_host(4096, 0).unwrap(),
            )
        };
        assert!(matches!(share(managed), CudaError::Managed { .. }));
        assert!(matches!(share(pinned as u64), CudaError::HostMemory { .. }));
        let host = [0_u64; 4];
        assert!(matches!(
            share(host.as_ptr() as u64),
            CudaError::NotGpuMemory { .. }
        ));
        let emulated = EmulatedGpu::new(EmulatedGpuConfig {
            memory_bytes: 2 << 20,
            ..EmulatedGpuConfig::default()
        })
        .expect("memory");
        let e = emulated.alloc(100).unwrap().share(0, 8).unwrap_err();
        assert!(matches!(e, GpuError::NotShareable), "{e}");

        let stale = buffer.share(0, 8).unwrap();
        let va = buffer.va();
        drop(buffer);
        let successor = gpu.alloc(1_500_000).expect("room");
        assert_eq!(successor.va(), va, "the mock uses the place again");
        successor.write(0, b"successor").unwrap();
        let next = successor.share(0, 9).unwrap();
        assert_ne!(next, stale);
        let mut second = Second::start(name, "opener");
        second.send(&stale.to_bytes());
        second.send(&next.to_bytes());
        second.expect("looked");
        drop(successor);
        second.send(&next.to_bytes());
        second.expect("done");
    });
}

#[test]
fn memory_of_a_process_that_has_ended_or_of_another_gpu_is_refused() {
    let name = "memory_of_a_process_that_has_ended_or_of_another_gpu_is_refused";
    under_mock(name, "", || {
        let gpu = open();
        if role() == Some("owner") {
            let buffer = gpu.alloc(4096).expect("room");
            second_process::say_bytes(&buffer.share(0, 4096).expect("plain").to_bytes());
            // Until the first process closes our input.
            second_process::read_to_end();
            return;
        }
        let mut second = Second::start(name, "owner");
        let bytes = second.receive(SharedMemory::BYTES);
        let shared = SharedMemory::from_bytes(&bytes).expect("a handle");
        assert_eq!((shared.pid(), shared.len()), (second.pid(), 4096));
        second.end();
        // SAFETY: refused.
        let refused = unsafe { gpu.open_shared(&shared) }.unwrap_err();
        let pid = shared.pid();
        assert_eq!(refused, CudaError::Stale { pid });

        let mut other = Second::start_with(name, "owner", "other-gpu");
        let bytes = other.receive(SharedMemory::BYTES);
        let shared = SharedMemory::from_bytes(&bytes).expect("a handle");
        // SAFETY: refused.
        let refused = unsafe { gpu.open_shared(&shared) }.unwrap_err();
        assert!(matches!(refused, CudaError::OtherGpu { .. }), "{refused}");
        other.end();
    });
}

#[test]
fn a_driver_without_ipc_shares_nothing_and_says_so() {
    let name = "a_driver_without_ipc_shares_nothing_and_says_so";
    under_mock(name, "no-ipc", || {
        let gpu = open();
        let buffer = gpu.alloc(4096).expect("room");
        let refused = gpu.share(buffer.va(), 4096).expect_err("no handle");
        assert!(
            refused.to_string().contains("cuIpcGetMemHandle"),
            "{refused}"
        );
    });
}
