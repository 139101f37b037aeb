//! Stream-ordered sockets, the pumps of netcat and the echo server, against the mock NIC.
#![allow(unsafe_code)] // Launches kernels.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::common;

use std::time::{Duration, Instant};

use common::{gpu, pattern, MockNic, Queue, PATIENCE};
use ringbell_cuda_kernels::echo::{EchoConfig, EchoError, EchoServer};
use ringbell_cuda_kernels::pump::{Pump, PumpTimes};
use ringbell_cuda_kernels::{Gpu, SocketContext, SocketError};
use ringbell_nic_abi::{SessionId, Status};

const T: u32 = 60_000_000;

fn nic(gpu: &Gpu, queues: usize) -> MockNic {
    MockNic::with(
        gpu,
        (0..queues)
            .map(|_| Queue::new(gpu, 5, 0, T, 1_000_000))
            .collect(),
    )
}

#[test]
fn the_papers_example_runs_in_order_on_a_stream() {
    let gpu = gpu();
    let nic = nic(&gpu, 1);
    let (data, copy) = (gpu.alloc(300_000).unwrap(), gpu.alloc(300_000).unwrap());
    let bytes = pattern(300_000, 1);
    data.write(0, &bytes).unwrap();

    let mut context = SocketContext::new(&gpu, nic.queue.handle(), 2).unwrap();
    let mut s = context.socket().unwrap();
    let steps = [
        context.connect(&mut s, [10, 0, 0, 2].into(), 4791).unwrap(),
        context.send(&mut s, data.va(), data.len()).unwrap(),
        context.recv(&mut s, copy.va(), copy.len()).unwrap(),
        context.shutdown(&mut s).unwrap(),
    ];
    // Only the last is waited for: the order of the stream has done the rest.
    steps[3].wait(PATIENCE).unwrap();
    assert_eq!(steps[2].wait(PATIENCE).unwrap().bytes, 300_000);
    let mut got = vec![0; 300_000];
    copy.read(0, &mut got).unwrap();
    assert!(got == bytes);
    let _ = s.wait(PATIENCE).unwrap();
    context.close(s).unwrap().wait(PATIENCE).unwrap();

    let mut listener = context.socket().unwrap();
    context
        .listen(&mut listener, 4791, 0)
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
    let accepted = context.accept(&mut listener).unwrap();
    let peer = accepted.wait(PATIENCE).unwrap();
    assert_eq!(peer.bytes, 0x0a00_0002_u64 << 16 | 4791);
    assert!(matches!(
        context.socket(),
        Err(SocketError::Exhausted { limit: 2, .. })
    ));
}

#[test]
fn a_failed_step_fails_the_later_steps_of_its_socket_with_the_same_status() {
    let gpu = gpu();
    let nic = nic(&gpu, 1);
    let data = gpu.alloc(100).unwrap();
    let mut context = SocketContext::new(&gpu, nic.queue.handle(), 2).unwrap();
    let mut s = context.socket().unwrap();
    // The mock refuses this address.
    let refused = context.connect(&mut s, 0xdead_u32.into(), 80).unwrap();
    let sent = context.send(&mut s, data.va(), 100).unwrap();
    for step in [&sent, &refused] {
        match step.wait(PATIENCE) {
            Err(SocketError::Nic {
                status: Status::ConnectionRefused,
                bytes: 0,
                detail,
            }) => {
                assert_eq!(detail, 0xdead << 16 | 80);
            }
            other => panic!("{other:?}"),
        }
    }
    // Its session is closed all the same.
    context.close(s).unwrap().wait(PATIENCE).unwrap();
    let mut next = context.socket().unwrap();
    context
        .connect(&mut next, [10, 0, 0, 2].into(), 80)
        .unwrap()
        .wait(PATIENCE)
        .unwrap();
}

#[test]
fn pumps_move_a_stream_and_its_end_through_small_rings() {
    let gpu = gpu();
    let nic = nic(&gpu, 2);
    let times = PumpTimes {
        operation_us: 100_000,
        idle_limit_us: u64::from(T),
    };
    let ring = || gpu.alloc(1000).unwrap();
    let mut out = Pump::send(&gpu, handle(&nic, 0), SessionId(100), ring(), times).unwrap();
    let mut inn = Pump::receive(&gpu, handle(&nic, 1), SessionId(101), ring(), times).unwrap();
    let bytes = pattern(100_003, 9);
    let (mut sent, mut got, mut buffer) = (0, Vec::new(), [0u8; 700]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        if sent < bytes.len() {
            sent += out.put(&bytes[sent..]).unwrap();
            if sent == bytes.len() {
                out.end().unwrap();
            }
        }
        let ended = inn.ended().unwrap();
        let n = inn.take(&mut buffer).unwrap();
        got.extend_from_slice(&buffer[..n]);
        if n == 0 {
            if let Some((status, _)) = ended {
                assert_eq!(status, Status::Ok);
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        assert!(
            Instant::now() < deadline,
            "{} of {} bytes",
            got.len(),
            bytes.len()
        );
    }
    assert!(got == bytes);
    for pump in [out, inn] {
        pump.launch().wait(PATIENCE).unwrap();
        assert_eq!(pump.ended().unwrap(), Some((Status::Ok, 0)));
    }
}

fn handle(nic: &MockNic, queue: usize) -> ringbell_nic_abi::queue::QueueHandle {
    match nic.handle_of(queue) {
        ringbell_cuda_kernels::KernelArg::Queue(q) => q,
        _ => unreachable!("a queue handle"),
    }
}

#[test]
fn a_pump_ends_on_request() {
    let gpu = gpu();
    let nic = nic(&gpu, 2);
    let times = PumpTimes {
        operation_us: 20_000,
        idle_limit_us: u64::from(T),
    };
    let a = Pump::receive(
        &gpu,
        handle(&nic, 0),
        SessionId(100),
        gpu.alloc(64).unwrap(),
        times,
    )
    .unwrap();
    let b = Pump::send(
        &gpu,
        handle(&nic, 1),
        SessionId(102),
        gpu.alloc(64).unwrap(),
        times,
    )
    .unwrap();
    for pump in [a, b] {
        assert_eq!(pump.ended().unwrap(), None);
        pump.stop().unwrap();
        pump.launch().wait(PATIENCE).unwrap();
        assert_eq!(pump.ended().unwrap(), Some((Status::Aborted, 0)));
    }
}

#[test]
fn the_echo_server_serves_many_connections_beside_a_silent_one() {
    const CLIENTS: u32 = 12;
    let gpu = gpu();
    let nic = nic(&gpu, 5);
    // The server's end of client `c` is session 200 + 2c; client 0 is silent until the others are
    // done.
    *nic.faults.accepts.lock().unwrap() = Some((0..CLIENTS).map(|c| 200 + 2 * c).collect());
    let buffer = gpu.alloc(64 << 10).unwrap();
    let config = EchoConfig {
        listener: SessionId(1),
        connections: 8,
        serve: u64::from(CLIENTS),
        chunk: 4096,
        poll_us: 2_000,
        idle_limit_us: u64::from(T),
    };
    let queues: Vec<_> = (0..4).map(|q| handle(&nic, q)).collect();
    assert!(matches!(
        EchoServer::start(&gpu, &[], &buffer, config),
        Err(EchoError::NoQueue)
    ));
    let server = EchoServer::start(&gpu, &queues, &buffer, config).unwrap();

    let mut total = 0;
    for c in (1..CLIENTS).chain([0]) {
        let len = 5000 * u64::from(c) + 3;
        total += len;
        let mine = gpu.alloc(2 * len).unwrap();
        let bytes = pattern(len as usize, c as u8);
        mine.write(0, &bytes).unwrap();
        let out = gpu.alloc(64).unwrap();
        let session = 201 + 2 * c;
        let at = |offset: u64| ringbell_cuda_kernels::KernelArg::U64(mine.va().0 + offset);
        for (kernel, buffer) in [("rb_send_all", at(0)), ("rb_recv_all", at(len))] {
            let args = [
                nic.handle_of(4),
                session.into(),
                buffer,
                len.into(),
                0u32.into(),
                (&out).into(),
            ];
            // SAFETY: the kernel's own parameters, and memory that outlives it.
            unsafe { gpu.launch(kernel, 1, 1, &args) }
                .unwrap()
                .wait(PATIENCE)
                .unwrap();
            assert_eq!(
                common::result(&out, 0).status,
                Status::Ok,
                "{kernel} of client {c}"
            );
        }
        let mut got = vec![0; len as usize];
        mine.read(len, &mut got).unwrap();
        assert!(got == bytes, "client {c}");
        let args = [nic.handle_of(4), session.into(), 0u32.into(), (&out).into()];
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        unsafe { gpu.launch("rb_shutdown", 1, 1, &args) }
            .unwrap()
            .wait(PATIENCE)
            .unwrap();
    }
    let r = server.wait(PATIENCE).unwrap();
    assert_eq!(
        (r.status, r.failed, r.served, r.bytes),
        (Status::Ok, 0, u64::from(CLIENTS), total)
    );
}
