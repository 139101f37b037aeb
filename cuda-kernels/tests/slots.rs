//! Slots against the mock NIC, which reaches only the window.
#![allow(unsafe_code)] // Launches kernels.

use crate::common;

use common::{gpu, pattern, result, MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::perf::PerfResult;
use ringbell_cuda_kernels::{KernelArg, Slots, SlotsConfig};
use ringbell_nic_abi::{GpuVa, Opcode, Status};

const T: u32 = 60_000_000;

#[test]
fn any_length_and_shape_through_few_and_many_slots() {
    let gpu = gpu();
    // The user's arrays lie at every distance from a multiple of 16, each at another.
    for (shift, (window_bytes, slot_bytes, credit_percent, lanes, len)) in [
        (44_000u64, 1024u64, 50, 1u32, 100_003u64),
        (44_000, 4096, 0, 32, 4096),
        (1 << 20, 16, 100, 96, 5_001),
        (1 << 20, 65_536, 50, 1024, 1_000_000),
        (12_000, 4096, 50, 64, 50_000),
        (44_000, 1024, 50, 1, 0),
        (44_000, 1024, 50, 33, 10_001),
        (44_000, 1024, 50, 128, 33_000),
    ]
    .into_iter()
    .enumerate()
    {
        let nic = MockNic::with(
            &gpu,
            (0..2)
                .map(|_| Queue::new(&gpu, 6, 0, T, 1_000_000))
                .collect(),
        );
        let window = gpu.alloc(window_bytes).unwrap();
        let config = SlotsConfig {
            window_bytes,
            connections: 1,
            slot_bytes,
            credit_percent,
        };
        let slots: KernelArg = Slots::new(window.va(), config).unwrap().into();
        let (from, to, out) = (
            gpu.alloc(len + 16).unwrap(),
            gpu.alloc(len + 16).unwrap(),
            gpu.alloc(64).unwrap(),
        );
        let (from_at, to_at) = (shift as u64 * 5 % 16, shift as u64 * 3 % 16);
        let bytes = pattern(len as usize, 5);
        from.write(from_at, &bytes).unwrap();
        let launch = |kernel: &str, side: u32, user: GpuVa| {
            let at = GpuVa(out.va().0 + u64::from(side) * 24);
            let args = [
                nic.handle_of(side as usize),
                slots.clone(),
                0u32.into(),
                (100 + side).into(),
                user.into(),
                len.into(),
                T.into(),
                at.into(),
            ];
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            unsafe { gpu.launch(kernel, 1, lanes, &args) }.unwrap()
        };
        let receive = launch("rb_slots_recv", 1, GpuVa(to.va().0 + to_at));
        let send = launch("rb_slots_send", 0, GpuVa(from.va().0 + from_at));
        for (l, i) in [(send, 0), (receive, 1)] {
            l.wait(PATIENCE).unwrap();
            let r = result(&out, i);
            assert_eq!(
                (r.status, r.bytes),
                (Status::Ok, len),
                "{lanes} lanes, side {i}"
            );
        }
        let mut got = vec![0; len as usize];
        to.read(to_at, &mut got).unwrap();
        assert!(got == bytes, "{len} bytes in slots of {slot_bytes}");
        // The NIC was never given an address outside the window.
        for d in nic
            .seen
            .lock()
            .unwrap()
            .iter()
            .filter(|d| d.opcode == Opcode::Recv || d.len > 40)
        {
            let at = d.local_va.0.wrapping_sub(window.va().0);
            assert!(at < window_bytes && at + u64::from(d.len) <= window_bytes);
        }
    }
}

#[test]
fn a_stream_that_ends_early_gives_its_bytes_and_leaves_nothing_under_way() {
    let gpu = gpu();
    let nic = MockNic::with(
        &gpu,
        (0..2)
            .map(|_| Queue::new(&gpu, 4, 0, T, 1_000_000))
            .collect(),
    );
    let window = gpu.alloc(44_000).unwrap();
    let config = SlotsConfig {
        window_bytes: 44_000,
        connections: 2,
        slot_bytes: 1024,
        credit_percent: 50,
    };
    let slots: KernelArg = Slots::new(window.va(), config).unwrap().into();
    let (buf, out) = (gpu.alloc(20_000).unwrap(), gpu.alloc(64).unwrap());
    buf.write(0, &pattern(2500, 8)).unwrap();
    let args = [
        nic.handle_of(0),
        100u32.into(),
        (&buf).into(),
        2500u64.into(),
        T.into(),
        (&out).into(),
    ];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("rb_send_all", 1, 1, &args) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    let args = [nic.handle_of(0), 100u32.into(), T.into(), (&out).into()];
    // SAFETY: the kernel's own parameters, and memory that outlives it.
    unsafe { gpu.launch("rb_shutdown", 1, 1, &args) }
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    let to = GpuVa(buf.va().0 + 10_000);
    for (connection, want) in [(1u32, Status::EndOfStream), (2, Status::NoResources)] {
        let args = [
            nic.handle_of(1),
            slots.clone(),
            connection.into(),
            101u32.into(),
            to.into(),
            9000u64.into(),
            T.into(),
            (&out).into(),
        ];
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        unsafe { gpu.launch("rb_slots_recv", 1, 33, &args) }
            .unwrap()
            .wait(PATIENCE)
            .unwrap();
        let r = result(&out, 0);
        assert_eq!(
            (r.status, r.bytes),
            (want, if connection == 1 { 2500 } else { 0 })
        );
    }
    let mut got = vec![0; 2500];
    buf.read(10_000, &mut got).unwrap();
    assert!(got == pattern(2500, 8));
}

#[test]
fn the_slot_sweep_measures_and_checks() {
    let gpu = gpu();
    let nic = MockNic::with(
        &gpu,
        (0..2)
            .map(|_| Queue::new(&gpu, 6, 0, T, 1_000_000))
            .collect(),
    );
    let window = gpu.alloc(1 << 20).unwrap();
    let (buf, out) = (gpu.alloc(1 << 20).unwrap(), gpu.alloc(256).unwrap());
    for (slot_bytes, lanes, seeds) in [
        (4096u64, 1u32, (1u64, 1u64)),
        (1024, 64, (1, 1)),
        (1024, 32, (1, 2)),
    ] {
        let config = SlotsConfig {
            window_bytes: 1 << 20,
            connections: 2,
            slot_bytes,
            credit_percent: 50,
        };
        let launch = |kernel: &str, side: u64, seed: u64| {
            // Each side is a connection of its own: on one GPU they would share the buffers
            // otherwise.
            let slots: KernelArg = Slots::new(window.va(), config).unwrap().into();
            let args = [
                nic.handle_of(side as usize),
                slots,
                (side as u32).into(),
                (100 + side as u32).into(),
                GpuVa(buf.va().0 + side * (512 << 10)).into(),
                100_000u64.into(),
                2u32.into(),
                5u32.into(),
                seed.into(),
                T.into(),
                GpuVa(out.va().0 + side * PerfResult::BYTES).into(),
            ];
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            unsafe { gpu.launch(kernel, 1, lanes, &args) }.unwrap()
        };
        let r = launch("rb_perf_slots_recv", 1, seeds.1);
        let s = launch("rb_perf_slots_send", 0, seeds.0);
        s.wait(PATIENCE).unwrap();
        r.wait(PATIENCE).unwrap();
        let (s, r) = (
            PerfResult::read(&out, 0).unwrap(),
            PerfResult::read(&out, 1).unwrap(),
        );
        assert_eq!(
            (s.status, s.messages, s.bytes, s.wrong),
            (Status::Ok, 7, 500_000, 0)
        );
        assert_eq!(
            (r.status, r.messages, r.bytes, r.wrong > 0),
            (Status::Ok, 7, 500_000, seeds.0 != seeds.1)
        );
    }
}
