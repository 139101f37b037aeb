//! Tests of sockets of host threads: between NICs of one process, by both transports, and with
//! bytes of a program.
#![allow(clippy::disallowed_methods)] // Threads with deadlines.

use crate::communicators;

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringbell::abi::Status;
use ringbell::nic::TransportSpec;
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::Checksums;
use ringbell::{Listener, Nic, SessionError, Socket};

const LIMIT: Duration = Duration::from_secs(60);

/// A NIC of this process, by one transport.
fn nic(transport: TransportSpec, switch: &std::sync::Arc<MemSwitch>, number: u8) -> Nic {
    let nic = Nic::builder().ip(format!("10.93.0.{number}/24"));
    let nic = nic.gpu(communicators::gpu_choice()).transport(transport);
    let nic = match transport {
        TransportSpec::Tcp | TransportSpec::Rdma => nic.switch(switch.clone(), number.into()),
        _ => nic,
    };
    nic.open().expect("a NIC")
}

/// Two NICs, a connection between them, and the listener it came by.
fn pair(transport: TransportSpec, first: u8) -> ([Nic; 2], Listener, [Socket; 2]) {
    let switch =
        std::sync::Arc::new(MemSwitch::private(16, 1500, Checksums::Software).expect("a switch"));
    let nics = [first, first + 1].map(|n| nic(transport, &switch, n));
    let listener = nics[0].listen(7000).expect("free");
    listener.set_timeout(LIMIT);
    let client = std::thread::scope(|s| {
        let to = format!("10.93.0.{first}:7000");
        let nic = &nics[1];
        let connect = s.spawn(move || nic.connect(&*to).expect("it listens"));
        let server = listener.accept().expect("it connects");
        [server, connect.join().expect("no panic")]
    });
    client.iter().for_each(|s| s.set_timeout(LIMIT));
    (nics, listener, client)
}

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 13) as u8;
    (0..len).map(byte).collect()
}

#[test]
fn bytes_of_every_kind_of_memory_arrive_and_the_end_is_reported() {
    for (transport, first) in [(TransportSpec::Local, 1), (TransportSpec::Tcp, 3)] {
        let (nics, _listener, [server, client]) = pair(transport, first);
        let want = pattern(300_001);
        let from = nics[1].alloc::<u8>(want.len() as u64).expect("memory");
        from.write(0, &want).expect("inside");
        let into = nics[0].alloc_host(want.len() + 5).expect("memory");
        std::thread::scope(|s| {
            s.spawn(|| {
                client.send(from.slice(..100)).expect("sent");
                client.send(from.slice(100..)).expect("sent");
                client.shutdown().expect("shut down");
            });
            // Longer than the data: the end of the stream ends it.
            assert_eq!(server.recv(&into).expect("received"), want.len() as u64);
        });
        let mut got = vec![0; want.len()];
        into.read(0, &mut got).expect("inside");
        assert!(got == want, "{transport}");
        assert_eq!(server.recv_some(&into).expect("the end"), 0);
        assert_eq!(client.peer().expect("known").port(), 7000);
        let info = server.info().expect("open");
        assert_eq!(info.transport, Some(transport.to_string().leak() as &str));
        assert_eq!(info.rx_bytes, want.len() as u64);
    }
}

#[test]
fn readers_and_writers_carry_a_programs_bytes_both_ways() {
    let (_nics, _listener, [server, client]) = pair(TransportSpec::Local, 5);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut words = server.reader(7).expect("memory");
            let mut all = Vec::new();
            words.read_to_end(&mut all).expect("read");
            let mut answer = server.writer(1 << 16).expect("memory");
            write!(answer, "{} bytes", all.len()).expect("written");
            answer.flush().expect("sent");
            server.shutdown().expect("shut down");
        });
        let mut out = client.writer(11).expect("memory");
        out.write_all(&pattern(1000)).expect("written");
        drop(out);
        client.shutdown().expect("shut down");
        let mut answer = String::new();
        let mut input = client.reader(64).expect("memory");
        input.read_to_string(&mut answer).expect("read");
        assert_eq!(answer, "1000 bytes");
    });
}

#[test]
fn errors_name_the_cause_and_convert_to_io_errors() {
    let (nics, listener, [server, client]) = pair(TransportSpec::Local, 7);
    let status = |e: &SessionError| e.status();
    let again = nics[0].listen(7000).expect_err("taken");
    assert_eq!(status(&again), Some(Status::AddressInUse), "{again}");
    let refused = nics[1].connect("10.93.0.7:7001").expect_err("no listener");
    assert_eq!(
        status(&refused),
        Some(Status::ConnectionRefused),
        "{refused}"
    );
    assert!(refused.to_string().contains("10.93.0.7:7001"), "{refused}");
    let kind = std::io::Error::from(refused).kind();
    assert_eq!(kind, std::io::ErrorKind::ConnectionRefused);
    for text in ["10.93.0.7", "[::1]:7000", "no such:name"] {
        let wrong = nics[1].connect(text).expect_err("no address");
        assert!(matches!(wrong, SessionError::Address { .. }), "{wrong}");
        assert!(wrong.to_string().contains(text), "{wrong}");
    }
    listener.set_timeout(Duration::from_millis(5));
    let none = listener.accept().expect_err("no connection");
    assert_eq!(status(&none), Some(Status::TimedOut), "{none}");
    // The listener stays usable.
    listener.set_timeout(LIMIT);
    let third = std::thread::scope(|s| {
        let accepted = s.spawn(|| listener.accept().expect("it connects"));
        nics[1].connect(("10.93.0.7", 7000)).expect("it listens");
        accepted.join().expect("no panic")
    });
    drop(third);
    let buffer = nics[0].alloc::<u8>(64).expect("memory");
    client.set_timeout(Duration::from_millis(5));
    let into = nics[1].alloc::<u8>(64).expect("memory");
    let late = client.recv(&into).expect_err("nothing comes");
    assert_eq!(status(&late), Some(Status::TimedOut), "{late}");
    client.set_timeout(LIMIT);
    drop(listener);
    server.send(&buffer).expect("sent");
    assert_eq!(client.recv(&into).expect("received"), 64);
    drop(server);
    assert_eq!(client.recv(&into).expect("the end"), 0);
}

#[test]
fn connections_come_and_go_without_using_up_anything() {
    let (nics, listener, _first) = pair(TransportSpec::Local, 9);
    let (a, b) = (
        nics[0].alloc::<u8>(8).expect("memory"),
        nics[1].alloc::<u8>(8).expect("memory"),
    );
    // More than there are sessions.
    for round in 0..1500_u64 {
        std::thread::scope(|s| {
            let (b, nic) = (&b, &nics[1]);
            s.spawn(move || {
                let client = nic.connect("10.93.0.9:7000").expect("it listens");
                client.set_timeout(LIMIT);
                b.write(0, &round.to_le_bytes()).expect("inside");
                client.send(b).expect("sent");
            });
            let server = listener.accept().expect("it connects");
            server.set_timeout(LIMIT);
            assert_eq!(server.recv(&a).expect("received"), 8);
            let mut got = [0; 8];
            a.read(0, &mut got).expect("inside");
            assert_eq!(u64::from_le_bytes(got), round);
        });
    }
    assert!(nics[0].sessions().len() < 20);
}

/// Ties this thread, and those that it starts, to one core.
fn share_one_core() {
    let mut all = rustix::thread::sched_getaffinity(None).expect("affinity");
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|c| all.is_set(*c));
    all.clear();
    all.set(first.expect("a core"));
    rustix::thread::sched_setaffinity(None, &all).expect("tied");
}

/// Requests that are answered by a byte, each through a buffer that is freed behind it, where two
/// busy threads want the same core. Returns the steps of both NICs.
fn answered_on_a_busy_core(transport: TransportSpec, first: u8, requests: u64) -> u64 {
    let stop = AtomicBool::new(false);
    let work = || {
        share_one_core();
        let (nics, _listener, [server, client]) = pair(transport, first);
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let serve = s.spawn(|| {
                let mut from = server.reader(64)?;
                let mut request = [0; 8];
                for i in 0..requests {
                    from.read_exact(&mut request)?;
                    anyhow::ensure!(u64::from_le_bytes(request) == i, "another request");
                    server.writer(64)?.write_all(&[i as u8])?;
                }
                Ok::<(), anyhow::Error>(())
            });
            let ask = || {
                let mut answers = client.reader(64)?;
                let mut answer = [0];
                for i in 0..requests {
                    client.writer(64)?.write_all(&i.to_le_bytes())?;
                    answers.read_exact(&mut answer)?;
                    anyhow::ensure!(answer[0] == i as u8, "another answer");
                }
                Ok::<(), anyhow::Error>(())
            };
            let ended = [ask(), serve.join().expect("no panic")];
            stop.store(true, Ordering::Relaxed);
            for end in ended {
                end.expect("every answer came");
            }
            nics.iter()
                .map(|n| n.backend().progress_stats().steps)
                .sum()
        })
    };
    std::thread::scope(|s| s.spawn(work).join().expect("no panic"))
}

#[test]
fn buffers_that_are_freed_behind_short_sends_hold_up_neither_side_of_a_busy_core() {
    const REQUESTS: u64 = 400;
    answered_on_a_busy_core(TransportSpec::Rdma, 13, REQUESTS);
    let steps = answered_on_a_busy_core(TransportSpec::Local, 21, REQUESTS);
    // A NIC that looks again and again for what it waits for keeps the core from the thread that it
    // waits for: 6,000 steps a request.
    assert!(steps < 500 * REQUESTS, "{steps} steps");
}

#[test]
fn a_refusal_over_port_roce_says_that_the_peer_does_not_know_this_nic() {
    let open = |ip: &str, port: &str| {
        let nic = Nic::builder().ip(ip).port(port).transport("rdma");
        nic.gpu(communicators::gpu_choice())
            .open()
            .expect("loopback has free ports")
    };
    let server = open("10.93.1.1/24", "roce:127.0.0.1:0");
    let _listener = server.listen(7000).expect("free");
    let at = server.ports()[0].address.expect("its socket");
    let client = open("10.93.1.2/24", &format!("roce:127.0.0.1:0,10.93.1.1={at}"));
    let refused = client.connect("10.93.1.1:7000").expect_err("unknown there");
    assert_eq!(refused.status(), Some(Status::ConnectionRefused));
    let text = refused.to_string();
    assert!(
        text.contains("10.93.1.1:7000") && text.contains("name this NIC among the peers"),
        "{text}"
    );
}
