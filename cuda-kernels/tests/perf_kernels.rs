//! The measuring kernels against the mock NIC: they move what they say, and they notice wrong
//! bytes.
#![allow(unsafe_code)] // Launches kernels.

use crate::common;

use common::{gpu, MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::perf::PerfResult;
use ringbell_cuda_kernels::{Gpu, GpuBuffer, KernelArg, Launch};
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::Status;

const T: u32 = 30_000_000;

/// A queue for each side: an operation that waits holds its slot, and a queue gets no further than
/// its depth beyond the oldest of them.
fn nics(gpu: &Gpu) -> MockNic {
    MockNic::with(
        gpu,
        (0..2)
            .map(|_| Queue::new(gpu, 7, 0, T, 1_000_000))
            .collect(),
    )
}

fn ok(launch: Launch, out: &GpuBuffer, index: u64) -> PerfResult {
    launch.wait(PATIENCE).unwrap();
    let r = PerfResult::read(out, index).unwrap();
    assert_eq!(r.status, Status::Ok, "{r:?}");
    r
}

fn start(gpu: &Gpu, name: &str, lanes: u32, args: &[KernelArg]) -> Launch {
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch(name, 1, lanes, args) }.unwrap()
}

fn at(b: &GpuBuffer, offset: u64) -> KernelArg {
    KernelArg::U64(b.va().0 + offset)
}

#[test]
fn ping_pong_of_odd_and_even_sizes() {
    let gpu = gpu();
    let nic = nics(&gpu);
    let (bufs, out, lat) = (
        gpu.alloc(1 << 20).unwrap(),
        gpu.alloc(4096).unwrap(),
        gpu.alloc(4096).unwrap(),
    );
    for (len, full) in [
        (1u64, 1u32),
        (8, 0),
        (13, 1),
        (64, 0),
        (4096, 1),
        (100_001, 0),
    ] {
        let args = |role: u32| -> Vec<KernelArg> {
            let base = u64::from(role) * (512 << 10);
            let times = if role == 0 {
                (&lat).into()
            } else {
                0u64.into()
            };
            vec![
                nic.handle_of(role as usize),
                (100 + role).into(),
                role.into(),
                at(&bufs, base),
                at(&bufs, base + (256 << 10)),
                len.into(),
                5u32.into(),
                20u32.into(),
                full.into(),
                T.into(),
                times,
                at(&out, u64::from(role) * PerfResult::BYTES),
            ]
        };
        let pong = start(&gpu, "rb_perf_pingpong", 1, &args(1));
        let ping = start(&gpu, "rb_perf_pingpong", 1, &args(0));
        for (launch, i) in [(ping, 0), (pong, 1)] {
            let r = ok(launch, &out, i);
            assert_eq!(
                (r.messages, r.bytes, r.wrong),
                (25, 20 * len, 0),
                "{len} bytes, side {i}"
            );
        }
        let mut ns = [0u8; 160];
        lat.read(0, &mut ns).unwrap();
        assert!(ns
            .chunks(8)
            .all(|c| u64::from_le_bytes(c.try_into().unwrap()) > 0));
    }
}

#[test]
fn bandwidth_of_each_shape_is_measured_and_a_wrong_seed_detected() {
    let gpu = gpu();
    let nic = nics(&gpu);
    let (a, b, out) = (
        gpu.alloc(9 << 20).unwrap(),
        gpu.alloc(9 << 20).unwrap(),
        gpu.alloc(4096).unwrap(),
    );
    for (len, window, lanes, full, seeds) in [
        (8u64, 1u32, 1u32, 0u32, (3u64, 3u64)),
        (1 << 20, 8, 1, 0, (3, 3)),
        (10_007, 16, 64, 1, (4, 4)),
        (4096, 64, 1, 0, (3, 9)),
        (4096, 4, 32, 1, (3, 9)),
    ] {
        let stride = len.next_multiple_of(64);
        let (warmup, count) = (3u32, 20u32);
        let send: Vec<KernelArg> = vec![
            nic.handle(),
            100u32.into(),
            (&a).into(),
            len.into(),
            stride.into(),
            window.into(),
            warmup.into(),
            count.into(),
            seeds.0.into(),
            full.into(),
            T.into(),
            0u64.into(),
            at(&out, 0),
        ];
        let recv: Vec<KernelArg> = vec![
            nic.handle_of(1),
            101u32.into(),
            (&b).into(),
            len.into(),
            stride.into(),
            window.into(),
            warmup.into(),
            count.into(),
            seeds.1.into(),
            full.into(),
            T.into(),
            at(&out, PerfResult::BYTES),
        ];
        let s = start(&gpu, "rb_perf_bw_send", lanes, &send);
        let r = start(&gpu, "rb_perf_bw_recv", lanes, &recv);
        let (s, r) = (ok(s, &out, 0), ok(r, &out, 1));
        assert_eq!((s.messages, s.bytes, s.wrong), (23, 20 * len, 0));
        assert_eq!((r.messages, r.bytes), (23, 20 * len));
        assert_eq!(r.wrong > 0, seeds.0 != seeds.1, "{r:?}");
        assert!(s.elapsed_ns > 0 && r.elapsed_ns > 0);
    }
}

#[test]
fn message_rate_counts_and_checks_every_message() {
    let gpu = gpu();
    let nic = nics(&gpu);
    let (buf, out) = (gpu.alloc(1 << 20).unwrap(), gpu.alloc(4096).unwrap());
    for (count, window) in [(1u64, 1u32), (1000, 8), (5003, 32)] {
        let s = start(
            &gpu,
            "rb_perf_rate_send",
            1,
            &[
                nic.handle(),
                100u32.into(),
                at(&buf, 0),
                count.into(),
                window.into(),
                5u64.into(),
                T.into(),
                at(&out, 0),
            ],
        );
        let r = start(
            &gpu,
            "rb_perf_rate_recv",
            1,
            &[
                nic.handle_of(1),
                101u32.into(),
                at(&buf, 4096),
                4096u64.into(),
                4u32.into(),
                count.into(),
                5u64.into(),
                T.into(),
                at(&out, PerfResult::BYTES),
            ],
        );
        assert_eq!(ok(s, &out, 0).messages, count);
        let r = ok(r, &out, 1);
        assert_eq!((r.messages, r.wrong), (count, 0));
    }
}

#[test]
fn registers_nops_copies_and_many_sessions() {
    let gpu = gpu();
    let nic = nics(&gpu);
    nic.queue.set_register(Reg::Heartbeat.offset(), 7);
    let (buf, lat, out) = (
        gpu.alloc(4 << 20).unwrap(),
        gpu.alloc(4096).unwrap(),
        gpu.alloc(4096).unwrap(),
    );
    let reg = (Reg::Heartbeat.offset() as u32).into();
    let r = ok(
        start(
            &gpu,
            "rb_perf_register",
            1,
            &[
                nic.handle(),
                reg,
                50u32.into(),
                (&lat).into(),
                (&out).into(),
            ],
        ),
        &out,
        0,
    );
    assert_eq!((r.messages, r.detail), (50, 350));

    let r = ok(
        start(
            &gpu,
            "rb_perf_nop",
            1,
            &[
                nic.handle(),
                3u32.into(),
                50u32.into(),
                T.into(),
                (&lat).into(),
                (&out).into(),
            ],
        ),
        &out,
        0,
    );
    assert_eq!(r.messages, 50);

    let r = ok(
        start(
            &gpu,
            "rb_perf_copy",
            1,
            &[
                nic.handle(),
                at(&buf, 2 << 20),
                at(&buf, 0),
                70_001u64.into(),
                512u32.into(),
                4u32.into(),
                2u32.into(),
                9u32.into(),
                1u64.into(),
                T.into(),
                (&out).into(),
            ],
        ),
        &out,
        0,
    );
    assert_eq!((r.messages, r.bytes, r.wrong), (11, 9 * 70_001, 0));

    let sessions = gpu.alloc(4096).unwrap();
    for i in 0..20u32 {
        for (side, offset) in [(0, 0), (1, 1024)] {
            sessions
                .write(
                    offset + u64::from(i) * 4,
                    &(200 + 2 * i + side).to_le_bytes(),
                )
                .unwrap();
        }
    }
    let common = |side: u64, buf_at: u64| -> Vec<KernelArg> {
        vec![
            nic.handle_of(side as usize),
            at(&sessions, side * 1024),
            20u32.into(),
            at(&buf, buf_at),
            1000u64.into(),
            1024u64.into(),
            16u32.into(),
            7u32.into(),
            2u64.into(),
            T.into(),
            at(&out, side * PerfResult::BYTES),
        ]
    };
    let s = start(&gpu, "rb_perf_many_send", 1, &common(0, 0));
    let r = start(&gpu, "rb_perf_many_recv", 1, &common(1, 1 << 20));
    assert_eq!(ok(s, &out, 0).messages, 140);
    let r = ok(r, &out, 1);
    assert_eq!((r.messages, r.wrong), (140, 0));
}
