//! The CUDA backend where a real driver waits, holds its lock, or never returns (ADR 26): the mock
//! driver does so too, and names the call that waited and the kernel.
#![cfg(feature = "cuda")]
#![allow(unsafe_code)] // Calls the driver itself, to show what the backend does not do.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::common;
use crate::mock_driver;

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{pattern, result, MockNic, Queue, PATIENCE};
use cudarc::driver::sys;
use mock_driver::{ends_under_mock, under_mock};
use ringbell_cuda_kernels::cuda::{CudaConfig, CudaError, CudaGpu};
use ringbell_cuda_kernels::{GpuBuffer, GpuError, Launch, LaunchError, ModuleError, Stream};
use ringbell_nic_abi::Status;

fn open() -> CudaGpu {
    CudaGpu::open(CudaConfig::default()).expect("the mock is a GPU")
}

fn ask(counter: &str) -> u32 {
    // SAFETY: the mock has these, of this type.
    let f = unsafe { sys::culib().get::<unsafe extern "C" fn() -> u32>(counter.as_bytes()) };
    // SAFETY: as above; it reads a counter.
    unsafe { f.expect("this is the mock")() }
}

/// Calls that had to wait for a kernel so far.
fn waits() -> u32 {
    ask("mock_implicit_waits")
}

/// A kernel that runs until the NIC is awake.
struct Waiting {
    nic: MockNic,
    out: GpuBuffer,
    launch: Launch,
}

impl Waiting {
    fn on(gpu: &CudaGpu, stream: &Stream) -> Waiting {
        let nic = MockNic::start(gpu, Queue::new(gpu, 4, 0, 60_000_000, 1_000_000));
        nic.faults.asleep.store(true, Ordering::Relaxed);
        let out = gpu.alloc(64).unwrap();
        let args = [nic.handle(), 1_u32.into(), 0_u32.into(), (&out).into()];
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launch = unsafe { stream.launch("rb_nop", 1, 1, &args) }.unwrap();
        assert_eq!(launch.poll(), None);
        Waiting { nic, out, launch }
    }

    fn end(self) {
        assert_eq!(self.launch.poll(), None, "it runs still");
        self.nic.faults.asleep.store(false, Ordering::Relaxed);
        self.launch.wait(PATIENCE).unwrap();
        assert_eq!(result(&self.out, 0).status, Status::Ok);
    }
}

/// A kernel that ends at once.
fn short(stream: &Stream, out: &GpuBuffer) -> Launch {
    let args = [
        out.into(),
        out.into(),
        0_u32.into(),
        0_u32.into(),
        1000_u32.into(),
        out.into(),
        out.into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { stream.launch("rb_floor_flag", 1, 1, &args) }.unwrap()
}

#[test]
fn memory_is_given_back_beside_a_kernel_that_waits_and_goes_when_it_has_ended() {
    let name = "memory_is_given_back_beside_a_kernel_that_waits_and_goes_when_it_has_ended";
    under_mock(name, "memory=16777216,patience=3000", || {
        let gpu = open();
        let large = gpu.alloc(9 << 20).unwrap();
        let pinned = gpu.alloc_pinned(100_000).unwrap();
        let mut page = vec![0_u8; 1 << 16];
        let base = NonNull::new(page.as_mut_ptr()).unwrap();
        let exposed = gpu.memory().expose(base, page.len()).unwrap();
        let other = open();
        let (before, stream) = (waits(), gpu.stream());
        let waiting = Waiting::on(&gpu, &stream);
        // Each of these waits for all kernels in the driver, which waits for ever if one waits for
        // us.
        drop((large, pinned, exposed, other));
        assert_eq!(waits(), before);
        assert!(
            gpu.describe().contains("kernels have ended"),
            "{}",
            gpu.describe()
        );
        let full = gpu.alloc(9 << 20);
        assert!(matches!(
            full,
            Err(GpuError::Cuda(CudaError::OutOfMemory { .. }))
        ));
        waiting.end();
        assert_eq!(waits(), before);
        let again = gpu.alloc(9 << 20).unwrap();
        again.write(0, &pattern(1000, 3)).unwrap();
        assert!(!gpu.describe().contains("kernels have ended"));
        // The same place can be registered again.
        drop(gpu.memory().expose(base, page.len()).unwrap());
        drop(gpu.memory().expose(base, page.len()).unwrap());
    });
}

#[test]
fn a_place_whose_registration_waits_for_kernels_is_refused_in_time() {
    let name = "a_place_whose_registration_waits_for_kernels_is_refused_in_time";
    under_mock(name, "patience=30000", || {
        let gpu = open();
        let mut page = vec![0_u8; 1 << 16];
        let base = NonNull::new(page.as_mut_ptr()).unwrap();
        let exposed = gpu.memory().expose(base, page.len()).unwrap();
        let stream = gpu.stream();
        let waiting = Waiting::on(&gpu, &stream);
        drop(exposed);
        let before = waits();
        let e = gpu.memory().expose(base, page.len()).err().unwrap();
        assert!(e.to_string().contains("registered here before"), "{e}");
        waiting.end();
        drop(gpu.memory().expose(base, page.len()).unwrap());
        assert_eq!(waits(), before);
    });
}

#[test]
fn resources_that_may_block_are_made_ahead() {
    let name = "resources_that_may_block_are_made_ahead";
    let faults = "may-wait,lazy-launch,stack=rb_floor_flag:5000,patience=3000";
    under_mock(name, faults, || {
        let gpu = open();
        let out = gpu.alloc(4096).unwrap();
        let before = waits();
        let first = gpu.stream();
        let waiting = Waiting::on(&gpu, &first);
        // New streams, a kernel that was never launched and that needs more stack than others.
        for _ in 0..5 {
            short(&gpu.stream(), &out).wait(PATIENCE).unwrap();
        }
        out.write(64, &[7; 100]).unwrap();
        out.load_u64(0).unwrap();
        // The one thing that was new here: `Waiting` has allocated while nothing ran.
        assert_eq!(waits(), before);
        waiting.end();
    });
}

#[test]
fn a_second_nic_beside_a_gpu_loads_no_module_beside_a_kernel_that_waits() {
    let name = "a_second_nic_beside_a_gpu_loads_no_module_beside_a_kernel_that_waits";
    under_mock(name, "lazy-launch,patience=3000", || {
        let gpu = open();
        let (before, stream) = (waits(), gpu.stream());
        let waiting = Waiting::on(&gpu, &stream);
        let second = open();
        let out = second.alloc(4096).unwrap();
        short(&second.stream(), &out).wait(PATIENCE).unwrap();
        drop((out, second));
        assert_eq!(waits(), before);
        waiting.end();
    });
}

#[test]
fn a_module_is_not_loaded_beside_a_kernel_that_waits() {
    let name = "a_module_is_not_loaded_beside_a_kernel_that_waits";
    under_mock(name, "patience=5000", || {
        let gpu = open();
        let path = std::env::temp_dir().join(format!("rb-strict-{}.fatbin", std::process::id()));
        let image = ringbell_fatbin::of_ptx(&[(80, include_str!("kernels/ptx_simple.ptx"))]);
        std::fs::write(&path, image).unwrap();
        let (before, stream) = (waits(), gpu.stream());
        let waiting = Waiting::on(&gpu, &stream);
        // SAFETY: images of this test.
        match unsafe { gpu.load_module(&path) } {
            Err(ModuleError::Image { source, .. }) => {
                assert!(matches!(source, CudaError::Stuck { .. }), "{source}");
            }
            other => panic!("{other:?}"),
        }
        waiting.end();
        // SAFETY: as above.
        unsafe { gpu.load_module(&path) }.unwrap();
        gpu.find_kernel("p_saxpy").unwrap();
        let _ = std::fs::remove_file(path);
        assert_eq!(waits(), before);
    });
}

#[test]
fn more_launches_than_the_driver_takes_wait_outside_of_it() {
    let name = "more_launches_than_the_driver_takes_wait_outside_of_it";
    under_mock(name, "patience=5000", || {
        let gpu = open();
        let out = gpu.alloc(4096).unwrap();
        let (before, stream) = (waits(), gpu.stream());
        let waiting = Waiting::on(&gpu, &stream);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                waiting.nic.faults.asleep.store(false, Ordering::Relaxed);
            });
            for _ in 0..1500 {
                let _ = short(&stream, &out);
            }
        });
        stream.synchronize(PATIENCE).unwrap();
        assert_eq!(waits(), before);
    });
}

#[test]
fn our_streams_do_not_wait_for_null_stream() {
    let name = "our_streams_do_not_wait_for_null_stream";
    under_mock(name, "", || {
        let gpu = open();
        let out = gpu.alloc(4096).unwrap();
        out.write(0, &pattern(4096, 1)).unwrap();
        let stream = gpu.stream();
        short(&stream, &out).wait(PATIENCE).unwrap();
        assert_eq!(ask("mock_blocking_uses"), 0);
        // A kernel in the null stream, as other code may have one: ours goes on beside it.
        let nic = MockNic::start(&gpu, Queue::new(&gpu, 4, 0, 60_000_000, 1_000_000));
        nic.faults.asleep.store(true, Ordering::Relaxed);
        gpu.context().bind_to_thread().unwrap();
        let null = std::ptr::null_mut();
        extern "C" fn until_awake(nic: *mut c_void) {
            // SAFETY: the NIC lives until the function has ended, below.
            let nic = unsafe { &*nic.cast::<MockNic>() };
            while nic.faults.asleep.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let data = std::ptr::from_ref(&nic).cast_mut().cast();
        // SAFETY: the null stream; the function ends when the NIC awakes.
        let r = unsafe { sys::cuLaunchHostFunc(null, Some(until_awake), data) };
        assert_eq!(r as u32, 0);
        short(&stream, &out).wait(PATIENCE).unwrap();
        out.load_u64(0).unwrap();
        nic.faults.asleep.store(false, Ordering::Relaxed);
        // SAFETY: the null stream.
        assert_eq!(unsafe { sys::cuStreamSynchronize(null) } as u32, 0);
    });
}

#[test]
fn kernels_that_share_a_work_queue_end_by_their_deadlines() {
    let name = "kernels_that_share_a_work_queue_end_by_their_deadlines";
    under_mock(name, "patience=5000", || {
        std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "1");
        let gpu = open();
        let nic = MockNic::start(&gpu, Queue::new(&gpu, 4, 0, 20_000_000, 1_000_000));
        let (out, data) = (gpu.alloc(4096).unwrap(), gpu.alloc(64).unwrap());
        let launch = |kernel, stream: &Stream, timeout_us: u32, at: u64| {
            let to =
                ringbell_cuda_kernels::KernelArg::Ptr(ringbell_nic_abi::GpuVa(out.va().0 + at));
            let args = [
                nic.handle(),
                5_u32.into(),
                (&data).into(),
                64_u64.into(),
                timeout_us.into(),
                to,
            ];
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            unsafe { stream.launch(kernel, 1, 32, &args) }.unwrap()
        };
        let (a, b) = (gpu.stream(), gpu.stream());
        let received = launch("rb_recv_all", &a, 3_000_000, 0);
        let sent = launch("rb_send_all", &b, 20_000_000, 64);
        // Copies have a priority of their own, and with it a work queue.
        data.write(0, &[9; 64]).unwrap();
        assert_eq!(received.poll(), None);
        received.wait(PATIENCE).unwrap();
        sent.wait(PATIENCE).unwrap();
        // The receive waited for a send that stood behind it in the work queue.
        assert_eq!(result(&out, 0).status, Status::TimedOut);
        assert_eq!(result(&out, 64).status, Status::Ok);
    });
}

#[test]
fn blocks_that_wait_for_each_other_are_refused_when_they_do_not_fit() {
    let name = "blocks_that_wait_for_each_other_are_refused_when_they_do_not_fit";
    under_mock(name, "sms=2", || {
        let gpu = open();
        let nic = MockNic::start(&gpu, Queue::new(&gpu, 4, 0, 20_000_000, 1_000_000));
        let m = gpu.alloc(1 << 20).unwrap();
        let at =
            |o: u64| ringbell_cuda_kernels::KernelArg::Ptr(ringbell_nic_abi::GpuVa(m.va().0 + o));
        let args = [
            nic.handle(),
            5_u32.into(),
            at(0),
            4096_u64.into(),
            2_u32.into(),
            0_u64.into(),
            0_u32.into(),
            4_u32.into(),
            14_u32.into(),
            at(1 << 16),
            at(1 << 19),
            1_000_000_u32.into(),
            at((1 << 19) + 4096),
        ];
        // Four blocks of 512 lanes on each of two multiprocessors.
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let e = unsafe { gpu.launch("rb_hll_receive", 9, 512, &args) }.unwrap_err();
        let (blocks, lanes) = (9, 512);
        assert!(
            matches!(&e, LaunchError::Device { source, .. } if *source == CudaError::TooManyBlocks { blocks, lanes }),
            "{e}"
        );
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let fits = unsafe { gpu.launch("rb_hll_receive", 2, 64, &args) }.unwrap();
        fits.wait(PATIENCE).unwrap();
    });
}

#[test]
fn memory_that_cannot_be_pinned_is_an_error() {
    let name = "memory_that_cannot_be_pinned_is_an_error";
    under_mock(name, "", || {
        let gpu = open();
        // SAFETY: a fresh mapping touches nothing that exists.
        let page = unsafe {
            use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
            mmap_anonymous(
                std::ptr::null_mut(),
                8192,
                ProtFlags::READ,
                MapFlags::SHARED,
            )
        };
        let base = NonNull::new(page.unwrap().cast::<u8>()).unwrap();
        let e = gpu.memory().expose(base, 8192).err().unwrap();
        assert!(e.to_string().contains("cuMemHostRegister"), "{e}");
        // Two ranges that share a page: both lie behind the first boundary inside the vector.
        let mut pages = vec![0_u8; 8192];
        let to_boundary = pages.as_ptr().align_offset(4096);
        let base = NonNull::new(pages[to_boundary..].as_mut_ptr()).unwrap();
        let first = gpu.memory().expose(base, 100).unwrap();
        // SAFETY: inside the vector.
        let near = unsafe { base.add(200) };
        let e = gpu.memory().expose(near, 100).err().unwrap().to_string();
        assert!(e.contains("ALREADY_REGISTERED"), "{e}");
        drop(first);
        drop(gpu.memory().expose(near, 100).unwrap());
    });
}

#[test]
fn a_call_that_would_never_return_ends_the_test_with_both_parties_named() {
    let name = "a_call_that_would_never_return_ends_the_test_with_both_parties_named";
    let said = ["mock libcuda: cuMemFree has waited", "`rb_nop` of stream"];
    ends_under_mock(name, "patience=300", &said, || {
        let gpu = open();
        gpu.context().bind_to_thread().unwrap();
        // SAFETY: fresh memory, freed below.
        let raw = unsafe { cudarc::driver::result::malloc_sync(1000) }.unwrap();
        let stream = gpu.stream();
        let _waiting = Waiting::on(&gpu, &stream);
        // SAFETY: allocated above. It does not return.
        let _ = unsafe { cudarc::driver::result::free_sync(raw) };
    });
}

#[test]
fn other_threads_calls_wait_behind_one_that_waits_for_kernels() {
    let name = "other_threads_calls_wait_behind_one_that_waits_for_kernels";
    let said = ["mock libcuda: cuMemFree has waited", "`rb_nop` of stream"];
    ends_under_mock(name, "patience=300", &said, || {
        let gpu = open();
        gpu.context().bind_to_thread().unwrap();
        // SAFETY: fresh memory, freed below.
        let raw = unsafe { cudarc::driver::result::malloc_sync(1000) }.unwrap();
        let stream = gpu.stream();
        let waiting = Waiting::on(&gpu, &stream);
        let context = gpu.context().clone();
        std::thread::spawn(move || {
            context.bind_to_thread().unwrap();
            // SAFETY: allocated above.
            let _ = unsafe { cudarc::driver::result::free_sync(raw) };
        });
        std::thread::sleep(Duration::from_millis(50));
        // The copy that the kernel waits for, say.
        let _ = waiting.out.load_u64(0);
    });
}

#[test]
fn a_child_process_gets_an_error_after_fork() {
    let name = "a_child_process_gets_an_error_after_fork";
    under_mock(name, "", || {
        let _gpu = open();
        // SAFETY: the child looks at one error and ends without anything else.
        match unsafe { libc::fork() } {
            0 => {
                let e = ringbell_cuda_kernels::cuda::find().unwrap_err();
                let told = e.to_string().contains("fork");
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if told { 7 } else { 8 }) }
            }
            child => {
                let mut status = 0;
                // SAFETY: our child, a live integer.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(libc::WEXITSTATUS(status), 7);
            }
        }
    });
}

#[test]
fn memory_that_a_host_function_drops_goes_later() {
    let name = "memory_that_a_host_function_drops_goes_later";
    under_mock(name, "memory=16777216,patience=5000", || {
        let gpu = open();
        let before = waits();
        let stream = gpu.stream();
        for _ in 0..4 {
            // More than half of the memory: the next round needs what this one has dropped.
            let memory = gpu.alloc(9 << 20).unwrap();
            stream.host(move || drop(memory));
            stream.synchronize(PATIENCE).unwrap();
        }
        assert_eq!(waits(), before);
    });
}

#[test]
fn an_error_of_a_program_s_own_value_does_not_reach_the_nic() {
    let name = "an_error_of_a_program_s_own_value_does_not_reach_the_nic";
    under_mock(name, "", || {
        let gpu = open();
        let memory = gpu.alloc(4096).unwrap();
        let stream = gpu.context().default_stream();
        let slice = stream.clone_htod(&[1_u32, 2, 3]).unwrap();
        use cudarc::driver::DevicePtr;
        let (raw, _) = slice.device_ptr(&stream);
        // SAFETY: allocated above. Freed behind its owner's back, so that dropping it fails.
        unsafe { cudarc::driver::result::free_sync(raw) }.unwrap();
        drop(slice);
        memory.write(0, &[3; 8]).unwrap();
        assert!(gpu.context().bind_to_thread().is_err(), "it was an error");
        drop(memory);
        assert!(gpu.alloc(4096).is_ok());
    });
}
