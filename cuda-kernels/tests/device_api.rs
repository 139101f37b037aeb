//! Every function of `ringbell.cuh` against the mock NIC, and what it does when the NIC misbehaves.
#![allow(unsafe_code)] // Launches kernels.

use crate::common;

use std::sync::atomic::Ordering;
use std::sync::Arc;

use common::{pattern, result, MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::{Gpu, KernelArg};
use ringbell_nic_abi::bar::{Reg, MAGIC};
use ringbell_nic_abi::{Flags, Opcode, Status};

const T: u32 = 60_000_000;

fn gpu() -> Gpu {
    let gpu = common::gpu();
    common::load_selftest(&gpu);
    gpu
}

fn queue(gpu: &Gpu, start: u32) -> Arc<Queue> {
    Queue::new(gpu, 3, start, T, 1_000_000)
}

fn run(gpu: &Gpu, kernel: &str, grid: u32, lanes: u32, args: &[KernelArg]) {
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch(kernel, grid, lanes, args) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
}

#[test]
fn every_call_of_the_device_api_works() {
    let gpu = gpu();
    let nic = MockNic::start(&gpu, queue(&gpu, 0));
    nic.queue.set_register(Reg::Magic.offset(), MAGIC);
    let (buf, out) = (gpu.alloc(4096).unwrap(), gpu.alloc(4096).unwrap());
    buf.write(0, &pattern(4096, 3)).unwrap();
    run(
        &gpu,
        "t_api",
        1,
        1,
        &[nic.handle(), (&buf).into(), (&out).into()],
    );

    use Status::{BadSession, ConnectionRefused, Ok, TimedOut};
    let want = [
        (Ok, 0),
        (Ok, 0),
        (Ok, 0),
        (Ok, 0x0a00_0002 << 16 | 4791),
        (Ok, 0),
        (ConnectionRefused, 0),
        (Ok, 100),
        (Ok, 39),
        (Ok, 100),
        (Ok, 39),
        (TimedOut, 0),
        (Ok, 1000),
        (Ok, 0),
        (Ok, 0),
        (BadSession, 0),
        (BadSession, 0),
        (Ok, 0),
    ];
    for (i, want) in want.into_iter().enumerate() {
        let r = result(&out, i as u64);
        assert_eq!((r.status, r.bytes), want, "call {i}: {r:?}");
    }
    assert_eq!((result(&out, 1).session, result(&out, 3).session), (1, 2));
    assert_eq!(result(&out, 5).detail, 0xdead << 16 | 80);
    let mut b = [0u8; 4096];
    buf.read(0, &mut b).unwrap();
    let p = pattern(4096, 3);
    assert_eq!(
        (&b[200..300], &b[300..339], &b[2000..2200]),
        (&p[..100], &p[1..40], &p[..200])
    );

    // What the NIC was asked for, field by field.
    let seen = nic.seen.lock().unwrap();
    let ops: Vec<Opcode> = seen.iter().map(|d| d.opcode).collect();
    use Opcode::{Abort, Accept, Close, Connect, Copy, Listen, Nop, Recv, Send, Shutdown, Socket};
    let order = [
        Nop, Socket, Listen, Accept, Connect, Connect, Send, Send, Recv, Recv, Recv, Copy,
        Shutdown, Close, Close, Abort,
    ];
    assert_eq!(ops, order);
    assert_eq!((seen[0].timeout_us, seen[4].timeout_us), (T, 123_456));
    assert_eq!(seen[2].imm, 7 << 16 | 4791);
    assert_eq!((seen[4].operand, seen[4].imm), (0x0a00_0002, 80));
    assert_eq!(
        (seen[6].lkey.0, seen[6].local_va, seen[6].len),
        (0x8000_0001, buf.va(), 100)
    );
    assert!(seen[7].flags.contains(Flags::INLINE) && seen[7].inline_len == 39);
    assert!(seen[9].flags.contains(Flags::SOME) && !seen[8].flags.contains(Flags::SOME));
    assert_eq!(
        (seen[11].imm, seen[11].remote_va.0),
        (64, buf.va().0 + 2000)
    );
    assert_eq!(seen[15].session.0, 77);
}

#[test]
fn inline_payloads_of_every_length_and_alignment() {
    let gpu = gpu();
    let nic = MockNic::start(&gpu, queue(&gpu, 0));
    let (buf, wrong) = (gpu.alloc(4096).unwrap(), gpu.alloc(8).unwrap());
    wrong.store_u64(0, 0).unwrap();
    run(
        &gpu,
        "t_inline",
        1,
        1,
        &[nic.handle(), (&buf).into(), (&wrong).into()],
    );
    assert_eq!(wrong.load_u64(0).unwrap(), 0);
    let seen = nic.seen.lock().unwrap();
    let inline = seen
        .iter()
        .filter(|d| d.flags.contains(Flags::INLINE))
        .count();
    assert_eq!(inline, 40 * 9, "up to 40 bytes go inline, 41 and 42 do not");
}

#[test]
fn requests_finish_in_any_order() {
    let gpu = gpu();
    for start in [0, u32::MAX - 6] {
        let nic = MockNic::start(&gpu, Queue::new(&gpu, 4, start, T, 1_000_000));
        let (buf, out) = (gpu.alloc(4096).unwrap(), gpu.alloc(64).unwrap());
        buf.write(0, &pattern(2048, 1)).unwrap();
        run(
            &gpu,
            "t_requests",
            1,
            1,
            &[nic.handle(), (&buf).into(), (&out).into()],
        );
        let got: Vec<u32> = (0..10).map(|i| out.load_u32(i * 4).unwrap()).collect();
        let bad = Status::BadDescriptor.code().into();
        assert_eq!(
            got,
            [0, 2, 0, 3, 1, u32::MAX, 0, 256, 0, bad],
            "first ticket {start}"
        );
    }
}

#[test]
fn a_full_queue_is_reported_at_once_or_after_the_time_out() {
    let gpu = gpu();
    for start in [0, u32::MAX - 3] {
        let nic = MockNic::start(&gpu, queue(&gpu, start));
        let (buf, out) = (gpu.alloc(64).unwrap(), gpu.alloc(64).unwrap());
        run(
            &gpu,
            "t_full",
            1,
            1,
            &[nic.handle(), (&buf).into(), (&out).into()],
        );
        let got: Vec<u32> = (0..5).map(|i| out.load_u32(i * 4).unwrap()).collect();
        let full = Status::QueueFull.code().into();
        // No ticket was taken for the refused ones: no hole is left in the ring.
        assert_eq!(got, [0, 1, full, full, start.wrapping_add(8)]);
    }
}

#[test]
fn the_device_detects_a_silent_nic() {
    let gpu = gpu();
    for mute in [false, true] {
        let nic = MockNic::start(&gpu, Queue::new(&gpu, 3, 0, 1_000, 1_000));
        if mute {
            nic.faults.mute.store(true, Ordering::Relaxed);
        } else {
            nic.faults.asleep.store(true, Ordering::Relaxed);
        }
        let out = gpu.alloc(64).unwrap();
        run(
            &gpu,
            "t_one",
            1,
            1,
            &[nic.handle(), 0u32.into(), (&out).into()],
        );
        assert_eq!(result(&out, 0).status, Status::NicSilent);
        nic.faults.mute.store(false, Ordering::Relaxed);
        nic.faults.asleep.store(false, Ordering::Relaxed);
        // The queue still works: the silent ticket only keeps its slot.
        run(
            &gpu,
            "t_one",
            1,
            1,
            &[nic.handle(), T.into(), (&out).into()],
        );
        assert_eq!(result(&out, 0).status, Status::Ok);
    }
}

#[test]
fn an_unknown_status_is_read_as_a_silent_nic() {
    let gpu = gpu();
    let nic = MockNic::start(&gpu, queue(&gpu, 0));
    nic.faults.garbage_status.store(true, Ordering::Relaxed);
    let out = gpu.alloc(64).unwrap();
    run(
        &gpu,
        "t_one",
        1,
        1,
        &[nic.handle(), 0u32.into(), (&out).into()],
    );
    assert_eq!(result(&out, 0).status, Status::NicSilent);
}

/// Completions of independent requests may come in any order.
#[test]
fn completions_may_come_in_reverse() {
    let gpu = gpu();
    let nic = MockNic::start(&gpu, queue(&gpu, u32::MAX - 2));
    nic.faults.reverse.store(4, Ordering::Relaxed);
    let ok = gpu.alloc(8).unwrap();
    ok.store_u64(0, 0).unwrap();
    // Four lanes, one command each at a time: the mock answers when it has all four, last first.
    let args = [nic.handle(), 25u32.into(), (&ok).into()];
    run(&gpu, "t_shared_queue", 1, 4, &args);
    assert_eq!(ok.load_u64(0).unwrap(), 100);
}

#[test]
fn tickets_wrap_past_two_to_the_32() {
    let gpu = gpu();
    for start in [u32::MAX - 20, u32::MAX, 1 << 31] {
        let nic = MockNic::start(&gpu, queue(&gpu, start));
        let ok = gpu.alloc(8).unwrap();
        ok.store_u64(0, 0).unwrap();
        run(
            &gpu,
            "t_shared_queue",
            1,
            1,
            &[nic.handle(), 100u32.into(), (&ok).into()],
        );
        assert_eq!(ok.load_u64(0).unwrap(), 100);
        assert_eq!(nic.queue.tail(), start.wrapping_add(100));
    }
}

#[test]
fn blocks_and_lanes_share_one_queue() {
    let gpu = gpu();
    for (blocks, lanes, rounds) in [(6u32, 1u32, 200u32), (3, 40, 10), (1, 1024, 2)] {
        let nic = MockNic::start(&gpu, queue(&gpu, u32::MAX - 100));
        let ok = gpu.alloc(8).unwrap();
        ok.store_u64(0, 0).unwrap();
        run(
            &gpu,
            "t_shared_queue",
            blocks,
            lanes,
            &[nic.handle(), rounds.into(), (&ok).into()],
        );
        let all = blocks * lanes * rounds;
        assert_eq!(ok.load_u64(0).unwrap(), u64::from(all));
        assert_eq!(
            nic.queue.tail(),
            (u32::MAX - 100).wrapping_add(all),
            "every ticket was used once"
        );
    }
}

#[test]
fn warp_and_block_scope_at_every_size() {
    let gpu = gpu();
    for (lanes, len) in [
        (1u32, 5u64),
        (32, 40),
        (33, 41),
        (96, 70_000),
        (1024, 200_000),
    ] {
        let nic = MockNic::start(&gpu, Queue::new(&gpu, 6, 0, T, 1_000_000));
        let (buf, wrong) = (gpu.alloc(2 * len + 8192).unwrap(), gpu.alloc(4).unwrap());
        wrong.store_u32(0, 0).unwrap();
        run(
            &gpu,
            "t_scopes",
            1,
            lanes,
            &[nic.handle(), (&buf).into(), len.into(), (&wrong).into()],
        );
        assert_eq!(wrong.load_u32(0).unwrap(), 0, "{lanes} lanes, {len} bytes");
    }
}

#[test]
fn a_queue_of_one_thread_takes_requests_in_any_order_and_reports_when_it_is_full() {
    for first in [0, 0u32.wrapping_sub(16)] {
        let gpu = gpu();
        let nic = MockNic::start(&gpu, queue(&gpu, first));
        let out = gpu.alloc(4096).unwrap();
        let args = [nic.handle(), 100u32.into(), (&out).into()];
        run(&gpu, "t_own_out_of_order", 1, 1, &args);
        let words: [u32; 4] = std::array::from_fn(|i| out.load_u32(i as u64 * 4).unwrap());
        let want = [0, Status::QueueFull as u32, Status::Ok as u32, 0];
        assert_eq!(
            words, want,
            "failures, one request too many, a call by the shared queue, own"
        );
        let posted: u32 = (0..100).map(|i| 1 + i % 8).sum::<u32>() + 8 + 1;
        assert_eq!(nic.queue.tail(), first.wrapping_add(posted));
    }
}
