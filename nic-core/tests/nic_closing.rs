//! Sent bytes when a NIC ends: delivered within `linger`, or reported.

#![allow(clippy::disallowed_methods)] // Deadlines, so that a hang fails.

use crate::nic_support;

use std::time::{Duration, Instant};

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::{Completion, Descriptor, SessionId, Status};
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::ProgressMode;

/// What ends a session.
type End = fn(SessionId) -> Descriptor;

/// Bytes that are sent; a sender's buffer takes all of them at once.
const LEN: usize = 60_000;

/// Two NICs with the time that closed sessions get: the first has a thread of its own, the second
/// as given.
fn pair(loss: Option<f64>, linger: Duration, second: ProgressMode) -> ([Host; 2], TempDir) {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let host = |n: u8, progress| {
        let mut setup = Setup::new(&dir, n);
        setup.nic.progress = progress;
        setup.nic.linger = linger;
        let Some(loss) = loss else {
            return Host::new(&setup);
        };
        let faults = Faults {
            loss,
            seed: n.into(),
            ..Faults::default()
        };
        let port = switch.port(usize::from(n) - 1).expect("port");
        let port = Impair::new(Box::new(port), faults).expect("faults in range");
        let config = TcpConfig {
            rto_min: Duration::from_millis(20),
            ..TcpConfig::default()
        };
        Host::over(&setup, Box::new(port), config)
    };
    ([host(1, ProgressMode::Waiter), host(2, second)], dir)
}

/// Waits for a completion at a host that steps by itself.
fn wait(host: &Host, ticket: u32) -> Completion {
    let start = Instant::now();
    loop {
        host.nic.step();
        if let Some(c) = host.queue.poll(ticket) {
            return c;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "hung");
        std::thread::yield_now();
    }
}

#[test]
fn bytes_sent_before_a_close_or_a_half_close_arrive_after_the_nic_is_gone() {
    let ways: [&[End]; 3] = [&[shutdown, close], &[close], &[shutdown]];
    for loss in [None, Some(0.05)] {
        for (by_name, ways) in [(false, ways), (true, ways)] {
            for end in ways {
                let what = format!("loss {loss:?}, {} ends, by name: {by_name}", end.len());
                let linger = Duration::from_secs(60);
                let ([a, b], _dir) = pair(loss, linger, ProgressMode::Waiter);
                let (s, r) = connected(&[&a, &b], 0, 1, 7);
                let data = Rng::new(31).bytes(LEN);
                a.poke(0, &data);
                // One more than comes, so that it ends with the stream.
                let whole = recv(r, 0, LEN as u32 + 1);
                let received = b.post(&within(whole, 60_000_000));
                for d in [send(s, 0, LEN as u32)]
                    .into_iter()
                    .chain(end.iter().map(|e| e(s)))
                {
                    let ticket = a.post(&d);
                    assert_eq!(wait(&a, ticket).status, Status::Ok, "{what}");
                }
                if by_name {
                    a.nic.close().expect("everything arrives");
                    let late = a.post(&socket());
                    assert_eq!(wait(&a, late).status, Status::ShuttingDown, "{what}");
                }
                drop(a);
                let c = wait(&b, received);
                let whole = (Status::EndOfStream, LEN as u64);
                assert_eq!((c.status, c.bytes), whole, "{what}");
                assert!(b.peek(0, LEN) == data, "{what}");
            }
        }
    }
}

#[test]
fn undelivered_bytes_are_reported_with_their_peer() {
    // The second NIC is not stepped any more once both are connected.
    let linger = Duration::from_millis(50);
    let ([a, b], _dir) = pair(Some(0.0), linger, ProgressMode::Manual);
    let hosts = [&a, &b];
    let (closed, _) = connected(&hosts, 0, 1, 7);
    let (open, _) = connected(&hosts, 0, 1, 8);
    let (empty, _) = connected(&hosts, 0, 1, 9);
    connected(&hosts, 0, 1, 10);
    quiesce(&hosts);
    for d in [
        send(closed, 0, LEN as u32),
        close(closed),
        send(open, 0, 5000),
        shutdown(empty),
    ] {
        let ticket = a.post(&d);
        assert_eq!(wait(&a, ticket).status, Status::Ok);
    }
    let lost = a.nic.close().expect_err("the peer receives nothing");
    let mut found: Vec<_> = lost
        .streams
        .iter()
        .map(|u| (u.peer.port(), u.bytes, u.transport))
        .collect();
    found.sort_unstable();
    // The session that has sent nothing and was not closed has lost nothing.
    let expected = [(7, LEN as u64, "tcp"), (8, 5000, "tcp"), (9, 0, "tcp")];
    assert_eq!(found, expected, "{lost}");
    let text = lost.to_string();
    assert!(text.contains("10.0.0.2:7 lacks 60000 B"), "{text}");
    assert!(text.contains("10.0.0.2:9 lacks the end"), "{text}");
    assert_eq!(a.nic.close(), Ok(()), "reported once");
}

/// The end of a NIC whose session was closed comes before its peer's close.
#[test]
fn a_nic_that_has_closed_and_ended_leaves_its_bytes_and_nothing_to_wait_for() {
    for unread in [false, true] {
        let dir = TempDir::new();
        let setups = [1, 2].map(|n| {
            let mut setup = Setup::new(&dir, n);
            setup.nic.progress = ProgressMode::Waiter;
            // Shorter than a silent peer is asked.
            setup.nic.linger = Duration::from_secs(3);
            setup
        });
        let [a, b] = Via::Rdma.hosts(setups);
        let (s, r) = connected(&[&a, &b], 0, 1, 7);
        let data = Rng::new(37).bytes(LEN);
        a.poke(0, &data);
        let whole = recv(r, 0, LEN as u32 + 1);
        let before = (!unread).then(|| b.post(&within(whole, 60_000_000)));
        for d in [send(s, 0, LEN as u32), close(s)] {
            let ticket = a.post(&d);
            assert_eq!(wait(&a, ticket).status, Status::Ok);
        }
        a.nic.close().expect("everything arrives");
        drop(a);
        let received = before.unwrap_or_else(|| b.post(&within(whole, 60_000_000)));
        let c = wait(&b, received);
        assert_eq!((c.status, c.bytes), (Status::EndOfStream, LEN as u64));
        assert!(b.peek(0, LEN) == data);
        let late = b.post(&close(r));
        assert_eq!(wait(&b, late).status, Status::Ok);
        assert_eq!(b.nic.close(), Ok(()), "unread: {unread}");
    }
}

#[test]
fn a_linger_of_zero_and_a_nic_that_the_program_steps_end_at_once() {
    for (linger, first) in [(0, ProgressMode::Waiter), (3600, ProgressMode::Manual)] {
        let dir = TempDir::new();
        let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
        let hosts = [1, 2].map(|n: u8| {
            let mut setup = Setup::new(&dir, n);
            setup.nic.linger = Duration::from_secs(linger);
            setup.nic.progress = if n == 1 { first } else { ProgressMode::Manual };
            let port = switch.port(usize::from(n) - 1).expect("port");
            Host::over(&setup, Box::new(port), TcpConfig::default())
        });
        let (s, _r) = connected(&[&hosts[0], &hosts[1]], 0, 1, 7);
        for d in [send(s, 0, LEN as u32), close(s)] {
            let ticket = hosts[0].post(&d);
            wait(&hosts[0], ticket);
        }
        let lost = hosts[0].nic.close().expect_err("the peer receives nothing");
        assert_eq!(lost.streams[0].bytes, LEN as u64);
    }
}

#[test]
fn a_send_to_a_peer_that_has_closed_ends_at_once_with_a_reset() {
    let dir = TempDir::new();
    let hosts = [1, 2].map(|n| Host::new(&Setup::new(&dir, n)));
    let hosts = &[&hosts[0], &hosts[1]];
    for len in [1, 40, 4096, 200_000] {
        let (s, r) = connected(hosts, 0, 1, 7);
        assert_eq!(call(hosts, 1, &close(r)).status, Status::Ok);
        quiesce(hosts);
        let c = call(hosts, 0, &send(s, 0, len));
        assert_eq!((c.status, c.bytes), (Status::ConnectionReset, 0), "{len}");
        assert_eq!(call(hosts, 0, &close(s)).status, Status::Ok);
    }
}
