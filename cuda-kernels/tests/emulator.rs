//! What a GPU itself does for kernels: shapes, barriers, warps, streams, modules; and, on the
//! emulated one, how kernels that go wrong end.
#![allow(unsafe_code)] // Loads kernels.

use crate::common;

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use common::test_gpu::{emulated_only, files};
use common::PATIENCE;
use ringbell_cuda_kernels::{Gpu, GpuBuffer, KernelArg, LaunchError};

fn gpu() -> Gpu {
    let gpu = common::gpu();
    common::load_selftest(&gpu);
    gpu
}

fn zeroed(gpu: &Gpu, bytes: u64) -> GpuBuffer {
    let b = gpu.alloc(bytes).unwrap();
    b.write(0, &vec![0; bytes as usize]).unwrap();
    b
}

#[test]
fn every_block_and_lane_has_its_indices() {
    let gpu = gpu();
    let out = zeroed(&gpu, 4 * 24 * 24);
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("t_indices", (2, 3, 4), (4, 3, 2), &[(&out).into()]) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    for block in 0..24u32 {
        for lane in 0..24u32 {
            let want = lane % 4
                + lane / 4 % 3 * 10
                + lane / 12 * 100
                + block % 2 * 1000
                + block / 2 % 3 * 10_000
                + block / 6 * 100_000;
            assert_eq!(
                out.load_u32(u64::from(block * 24 + lane) * 4).unwrap(),
                want
            );
        }
    }
}

#[test]
fn barriers_shuffles_and_votes_agree_with_cuda_for_full_and_partial_warps() {
    let gpu = gpu();
    for lanes in [2u32, 20, 32, 33, 64, 250, 1024] {
        let out = zeroed(&gpu, 4);
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        unsafe { gpu.launch("t_collectives", 3, lanes, &[(&out).into()]) }
            .unwrap()
            .wait(PATIENCE)
            .unwrap();
        assert_eq!(out.load_u32(0).unwrap(), 0, "{lanes} lanes");
    }
}

#[test]
fn a_spin_lock_between_lanes_makes_progress() {
    let gpu = gpu();
    let b = zeroed(&gpu, 128);
    let args = [(&b).into(), KernelArg::U64(b.va().0 + 64)];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("t_lock", 2, 256, &args) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    assert_eq!(b.load_u32(64).unwrap(), 512);
}

#[test]
fn a_divergent_barrier_is_an_error_with_names_and_not_a_hang() {
    if emulated_only("divergence at a barrier is undefined in CUDA, and a trap costs the context") {
        return;
    }
    let gpu = gpu();
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    match unsafe { gpu.launch("t_divergent", 1, 64, &[]) }
        .unwrap()
        .wait(PATIENCE)
    {
        Err(LaunchError::Failed { kernel, reason, .. }) => {
            assert_eq!(kernel, "t_divergent");
            assert!(
                reason.contains("2 wait at a barrier, 62 at a warp operation"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
    for lanes in [1u32, 40] {
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        match unsafe { gpu.launch("t_trap", 2, lanes, &[]) }
            .unwrap()
            .wait(PATIENCE)
        {
            Err(LaunchError::Failed { reason, .. }) => {
                assert!(reason.contains("__trap"), "{reason}")
            }
            other => panic!("{other:?}"),
        }
    }
    // The threads that ran them are fit for the next kernel.
    let out = zeroed(&gpu, 4);
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("t_collectives", 4, 128u32, &[(&out).into()]) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    assert_eq!(out.load_u32(0).unwrap(), 0);
}

#[test]
fn a_kernel_that_does_not_end_can_be_waited_for_with_a_deadline() {
    let gpu = gpu();
    let flag = zeroed(&gpu, 4);
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let launch = unsafe { gpu.launch("t_forever", 1, 1, &[(&flag).into()]) }.unwrap();
    assert!(matches!(
        launch.wait(Duration::from_millis(5)),
        Err(LaunchError::TimedOut { .. })
    ));
    assert_eq!(launch.poll(), None);
    flag.store_u32(0, 1).unwrap();
    launch.wait(PATIENCE).unwrap();
}

#[test]
fn blocks_that_wait_for_each_other_run_together() {
    let gpu = gpu();
    let b = zeroed(&gpu, 4);
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("t_meet", 24, 3, &[(&b).into()]) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    assert_eq!(b.load_u32(0).unwrap(), 24);
}

#[test]
fn streams_keep_order_beside_each_other() {
    let gpu = gpu();
    let flag = zeroed(&gpu, 4);
    let order = Arc::new(AtomicU32::new(0));
    let (a, b) = (gpu.stream(), gpu.stream());
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let blocked = unsafe { a.launch("t_forever", 1, 1, &[(&flag).into()]) }.unwrap();
    let (o1, o2) = (order.clone(), order.clone());
    a.host(move || o1.store(7, Ordering::SeqCst));
    let event = a.record();
    b.host(move || assert_eq!(o2.load(Ordering::SeqCst), 0, "the other stream overtook"));
    b.synchronize(PATIENCE).unwrap();
    assert!(matches!(
        event.wait(Duration::from_millis(2)),
        Err(LaunchError::TimedOut { .. })
    ));
    flag.store_u32(0, 1).unwrap();
    event.wait(PATIENCE).unwrap();
    assert_eq!(order.load(Ordering::SeqCst), 7);
    blocked.wait(PATIENCE).unwrap();
    let last = a.record();
    last.wait(PATIENCE).unwrap();
    assert!(last.elapsed_since(&event).is_some());
}

#[test]
fn launches_after_a_failure_fail_until_it_is_cleared() {
    if emulated_only("a trap destroys a real GPU's context") {
        return;
    }
    let gpu = gpu();
    let flag = zeroed(&gpu, 4);
    flag.store_u32(0, 1).unwrap();
    let a = gpu.stream();
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    let failing = unsafe { a.launch("t_trap", 1, 1, &[]) }.unwrap();
    // SAFETY: as above.
    let after = unsafe { a.launch("t_forever", 1, 1, &[(&flag).into()]) }.unwrap();
    assert!(failing.wait(PATIENCE).is_err());
    assert!(matches!(
        after.wait(PATIENCE),
        Err(LaunchError::StreamFailed { .. })
    ));
    a.clear_error();
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { a.launch("t_forever", 1, 1, &[(&flag).into()]) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
}

#[test]
fn wrong_launches_are_refused_with_the_reason() {
    if emulated_only(
        "CUDA does not report the arguments of a user's kernel; tests/cuda.rs has the SDK's",
    ) {
        return;
    }
    let gpu = gpu();
    let refuse = |name: &str, grid: u32, lanes: u32, args: &[KernelArg]| {
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        unsafe { gpu.launch(name, grid, lanes, args) }.unwrap_err()
    };
    match refuse("t_missing", 1, 1, &[]) {
        LaunchError::UnknownKernel { known, .. } => {
            assert!(known.contains("rb_send_all") && known.contains("t_api"))
        }
        other => panic!("{other}"),
    }
    assert!(matches!(
        refuse("t_trap", 0, 1, &[]),
        LaunchError::Shape { .. }
    ));
    assert!(matches!(
        refuse("t_trap", 1, 1025, &[]),
        LaunchError::Shape { .. }
    ));
    assert!(matches!(
        refuse("t_forever", 1, 1, &[]),
        LaunchError::ArgumentCount {
            expected: 1,
            given: 0,
            ..
        }
    ));
    assert!(matches!(
        refuse("t_forever", 1, 1, &[1u32.into()]),
        LaunchError::ArgumentSize {
            index: 0,
            expected: 8,
            given: 4,
            ..
        }
    ));
    // SAFETY: there is no such file, and the other is no module.
    assert!(unsafe { gpu.load_module(Path::new("/nonexistent.so")) }.is_err());
    let not_ours = files().join("garbage.so");
    std::fs::write(&not_ours, b"not an object").unwrap();
    // SAFETY: as above.
    assert!(unsafe { gpu.load_module(&not_ours) }.is_err());
}

#[test]
fn arguments_of_every_size_arrive() {
    let gpu = gpu();
    let out = zeroed(&gpu, 64);
    let mut big = vec![0u8; 320];
    big[312..].copy_from_slice(&0x1122_3344_5566_7788u64.to_le_bytes());
    let args = [
        KernelArg::Bytes(vec![65]),
        KernelArg::Bytes(big),
        21.0f32.into(),
        2.5f64.into(),
        (&out).into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("t_arguments", 1, 1, &args) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    let got: Vec<u64> = (0..4).map(|i| out.load_u64(i * 8).unwrap()).collect();
    assert_eq!(got, [65, 0x1122_3344_5566_7788, 42, 10]);
}
