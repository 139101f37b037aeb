//! The race detector on the device header, against a NIC of the tests: it is silent about the
//! protocol, and it is not blind.
//!
//! Payloads are plain memory on both sides, so each order that the protocol promises is checked:
//! buffer before descriptor, received bytes before completion, elements before a stream's index.
#![allow(unsafe_code)] // Loads and launches kernels.

use crate::common;
use crate::streams::{relay, Ring};

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use common::test_gpu::{emulated_only, files, module_of};
use common::{MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::{Checks, EmulatedGpu, EmulatedGpuConfig, Gpu, KernelArg, LaunchError};

const T: u32 = 60_000_000;
/// Launches of which one shows a race at least: what a thread of the NIC has seen is a matter of
/// time.
const TRIES: usize = 20;

/// Kernels of `selftest.cu` on a GPU that looks for races, after all of `from` in their text became
/// `to`.
fn checked(from: &str, to: &str) -> Gpu {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let text = std::fs::read_to_string(module_of("selftest")).unwrap();
    assert!(text.contains(from), "no {from} in the text");
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = files().join(format!("races-{}-{number}.ptx", std::process::id()));
    std::fs::write(&file, text.replace(from, to)).unwrap();
    let gpu = EmulatedGpu::new(EmulatedGpuConfig {
        memory_bytes: 32 << 20,
        checks: Checks {
            races: true,
            ..Checks::default()
        },
        ..EmulatedGpuConfig::default()
    });
    let gpu = Gpu::from(gpu.expect("memory"));
    // SAFETY: its faults end launches, and nothing else.
    unsafe { gpu.load_module(&file) }.unwrap_or_else(|e| panic!("{e}"));
    let _ = std::fs::remove_file(file);
    gpu
}

/// A block sends what its threads have written, and receives; so does each warp.
fn messages(gpu: &Gpu) -> Result<(), LaunchError> {
    let nic = MockNic::start(gpu, Queue::new(gpu, 3, u32::MAX - 2, T, 1_000_000));
    let len = 300u64;
    let buf = gpu.alloc(2 * len + 128 * 2).unwrap();
    let wrong = gpu.alloc(4).unwrap();
    wrong.write(0, &[0; 4]).unwrap();
    let args = [nic.handle(), (&buf).into(), len.into(), (&wrong).into()];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("t_scopes", 1, 64, &args) }?.wait(PATIENCE)?;
    assert_eq!(wrong.load_u32(0).unwrap(), 0);
    Ok(())
}

/// One block pushes elements into a ring, another pops what comes back.
fn elements(gpu: &Gpu) -> Result<(), LaunchError> {
    let nic = MockNic::start(gpu, Queue::new(gpu, 3, 0, T, 1_000_000));
    let rings = [Ring::new(gpu, 6, 1 << 32), Ring::new(gpu, 6, 1 << 32)];
    let (out, wrong) = (gpu.alloc(48).unwrap(), gpu.alloc(4).unwrap());
    wrong.write(0, &[0; 4]).unwrap();
    let args = [
        nic.handle(),
        rings[0].stream().into(),
        rings[1].stream().into(),
        KernelArg::U64(300),
        4u32.into(),
        T.into(),
        (&out).into(),
        (&wrong).into(),
    ];
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| relay(&rings[0], &rings[1], 64, &stop));
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launch = unsafe { gpu.launch("t_stream", 2, 32, &args) };
        let end = launch.and_then(|l| l.wait(PATIENCE));
        stop.store(true, Ordering::Relaxed);
        end
    })
}

#[test]
fn the_protocol_of_queues_and_streams_has_no_race() {
    if emulated_only("checks are the emulated GPU's") {
        return;
    }
    let gpu = checked("fence", "fence");
    for _ in 0..3 {
        messages(&gpu).unwrap();
        elements(&gpu).unwrap();
    }
}

/// With one order taken out of the text, a race is found.
fn races(from: &str, to: &str, run: fn(&Gpu) -> Result<(), LaunchError>) {
    if emulated_only("checks are the emulated GPU's") {
        return;
    }
    let gpu = checked(from, to);
    let found = (0..TRIES).find_map(|_| match run(&gpu) {
        Err(LaunchError::Failed { reason, .. }) => Some(reason),
        Err(other) => panic!("{other}"),
        Ok(()) => None,
    });
    let reason = found.expect("no race was found");
    assert!(reason.contains("races with"), "{reason}");
}

#[test]
fn an_entry_that_is_published_without_order_is_a_race() {
    races("fence.acq_rel.sys;", "", messages);
}

#[test]
fn a_completion_that_is_not_acquired_is_a_race() {
    races(
        "ld.acquire.sys.global.b128",
        "ld.relaxed.sys.global.b128",
        messages,
    );
}

#[test]
fn a_stream_whose_index_is_stored_without_order_is_a_race() {
    races("st.release.sys.u64", "st.relaxed.sys.u64", elements);
}
