//! Graphs: what was captured once is replayed with other data.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use common::{gpu, pattern, result, MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::{Gpu, LaunchError};
use ringbell_nic_abi::Status;

/// Counts its drops.
struct Counted(Arc<AtomicU32>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A send and a receive over a NIC made of a thread, captured once and replayed: more often than
/// the queue has slots, so that a ticket that was captured would be refused or lost.
fn a_send_and_a_receive(gpu: &Gpu) {
    let nic = MockNic::start(gpu, Queue::new(gpu, 2, 0, 20_000_000, 1_000_000));
    let len = 5003_u64;
    let (from, to) = (gpu.alloc(len).unwrap(), gpu.alloc(len).unwrap());
    let out = gpu.alloc(4096).unwrap();
    let stream = gpu.stream();
    stream.begin_capture().unwrap();
    assert!(stream.is_capturing());
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
        let launch = unsafe { stream.launch(kernel, 1, 32, &args) }.unwrap();
        assert!(matches!(
            launch.wait(PATIENCE),
            Err(LaunchError::Captured { .. })
        ));
    }
    let dropped = Arc::new(AtomicU32::new(0));
    stream.keep(Counted(dropped.clone()));
    let graph = stream.end_capture().unwrap();
    assert!(!stream.is_capturing());
    // Nothing has run.
    let mut got = vec![1; len as usize];
    to.write(0, &vec![0xee; len as usize]).unwrap();
    to.read(0, &mut got).unwrap();
    assert!(got.iter().all(|b| *b == 0xee));

    let other = gpu.stream();
    for round in 0..11_u8 {
        let bytes = pattern(len as usize, round);
        from.write(0, &bytes).unwrap();
        let on = if round % 3 == 2 { &other } else { &stream };
        graph.launch(on).unwrap().wait(PATIENCE).unwrap();
        let r = result(&out, 0);
        assert_eq!((r.status, r.bytes), (Status::Ok, len), "round {round}");
        to.read(0, &mut got).unwrap();
        assert!(got == bytes, "round {round}");
    }
    // Replays without waits in between, on two streams, run one after the other all the same.
    let last: Vec<_> = (0..9)
        .map(|i| graph.launch([&stream, &other][i % 2]).unwrap())
        .collect();
    let kept = graph.clone();
    drop(graph);
    for launch in &last {
        launch.wait(PATIENCE).unwrap();
    }
    assert_eq!(dropped.load(Ordering::Relaxed), 0, "a handle is left");
    let running = kept.launch(&stream).unwrap();
    drop(kept);
    running.wait(PATIENCE).unwrap();
    // Dropped at once, or with the next thing that the stream is asked to do.
    let nop = [nic.handle(), 1_u32.into(), 0_u32.into(), (&out).into()];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { stream.launch("rb_nop", 1, 1, &nop) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
}

/// What a capture refuses, and that the stream is of use afterwards.
fn refusals(gpu: &Gpu) {
    let capture = |e: LaunchError, what: &str| {
        assert!(matches!(e, LaunchError::Capture { .. }), "{e}");
        assert!(e.to_string().contains(what), "{e}");
    };
    let stream = gpu.stream();
    capture(stream.end_capture().unwrap_err(), "none was begun");
    stream.begin_capture().unwrap();
    capture(stream.begin_capture().unwrap_err(), "captures already");
    assert!(matches!(
        stream.synchronize(PATIENCE),
        Err(LaunchError::Captured { .. })
    ));
    assert!(matches!(
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        unsafe { stream.launch("no_such_kernel", 1, 1, &[]) },
        Err(LaunchError::UnknownKernel { .. })
    ));
    let dropped = Arc::new(AtomicU32::new(0));
    let counted = Counted(dropped.clone());
    stream.host(move || drop(counted));
    assert_eq!(
        dropped.load(Ordering::Relaxed),
        1,
        "dropped, not kept for ever"
    );
    capture(stream.end_capture().unwrap_err(), "host function");
    stream.synchronize(PATIENCE).unwrap();

    stream.begin_capture().unwrap();
    let empty = stream.end_capture().unwrap();
    empty.launch(&stream).unwrap().wait(PATIENCE).unwrap();
    let second = gpu.stream();
    second.begin_capture().unwrap();
    capture(empty.launch(&second).unwrap_err(), "no other graph");
    second.end_capture().unwrap();
}

#[test]
fn a_send_and_a_receive_are_captured_once_and_replayed_with_other_data() {
    a_send_and_a_receive(&gpu());
}

#[test]
fn operations_that_no_graph_can_hold_are_refused() {
    let gpu = gpu();
    refusals(&gpu);
    let stream = gpu.stream();
    stream.begin_capture().unwrap();
    let graph = stream.end_capture().unwrap();
    let elsewhere = graph.launch(&common::test_gpu::emulated().stream());
    let elsewhere = elsewhere.unwrap_err();
    assert!(elsewhere.to_string().contains("another GPU"), "{elsewhere}");
}
