//! What every transport must do, written once and run for each of them, and over each memory: an
//! implementation that passes is done. The transport works under a whole NIC, so the rules speak
//! descriptors.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.
#![allow(dead_code, unreachable_pub)] // Each test uses a part of this module.

use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::Status;

use super::nic_support::driven::*;

/// Two NICs that reach each other by the transport under test.
pub struct Subject<H> {
    pub hosts: [H; 2],
    /// What must live as long as they do.
    pub keep: Box<dyn std::any::Any>,
}

pub fn bytes_arrive_exactly_for_every_cut<H: Driven>(t: &Subject<H>) {
    let hosts = &[&t.hosts[0], &t.hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let mut rng = Rng::new(21);
    let total = 600_000u64;
    let data = rng.bytes(total as usize);
    hosts[0].poke(17, &data);
    // The stream has no message boundaries: sends and receives are cut differently.
    let (mut sent, mut got, mut in_flight) = (0, 0, None);
    let mut tickets = Vec::new();
    while got < total {
        if sent < total && tickets.len() < 8 {
            let n = (1 + rng.below(40_000)).min(total - sent);
            tickets.push((0, hosts[0].post(&send(s, 17 + sent, n as u32))));
            sent += n;
        }
        let (ticket, want) = *in_flight.get_or_insert_with(|| {
            let n = (1 + rng.below(50_000)).min(total - got);
            (hosts[1].post(&recv(r, 5 + got, n as u32)), n)
        });
        for h in hosts {
            h.nic().step();
        }
        if let Some(c) = hosts[1].queue().poll(ticket) {
            assert_eq!((c.status, c.bytes), (Status::Ok, want));
            got += want;
            in_flight = None;
        }
        tickets.retain(|(h, t)| match hosts[*h].queue().poll(*t) {
            Some(c) => {
                assert_eq!(c.status, Status::Ok);
                false
            }
            None => true,
        });
    }
    settle(hosts, &tickets);
    assert!(hosts[1].peek(5, total as usize) == data);
}

pub fn receives_are_filled_in_order_and_some_takes_the_available_bytes<H: Driven>(t: &Subject<H>) {
    let hosts = &[&t.hosts[0], &t.hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let first = (1, hosts[1].post(&recv(r, 0, 5)));
    let second = (1, hosts[1].post(&recv(r, 100, 3)));
    let some = (1, hosts[1].post(&recv_some(r, 200, 1000)));
    assert_eq!(
        call(hosts, 0, &send_inline(s, b"helloabcXY")).status,
        Status::Ok
    );
    let done = settle(hosts, &[first, second, some]);
    assert!(done.iter().all(|c| c.status == Status::Ok));
    assert_eq!([done[0].bytes, done[1].bytes], [5, 3]);
    assert!((1..=2).contains(&done[2].bytes));
    assert_eq!(hosts[1].peek(0, 5), b"hello");
    assert_eq!(hosts[1].peek(100, 3), b"abc");
    assert_eq!(hosts[1].peek(200, 1), b"X");
}

pub fn both_directions_at_once<H: Driven>(t: &Subject<H>) {
    let hosts = &[&t.hosts[0], &t.hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let data = [Rng::new(1).bytes(400_000), Rng::new(2).bytes(400_000)];
    hosts[0].poke(0, &data[0]);
    hosts[1].poke(0, &data[1]);
    let tickets = [
        (0, hosts[0].post(&send(s, 0, 400_000))),
        (1, hosts[1].post(&send(r, 0, 400_000))),
        (0, hosts[0].post(&recv(s, 1 << 20, 400_000))),
        (1, hosts[1].post(&recv(r, 1 << 20, 400_000))),
    ];
    for c in settle(hosts, &tickets) {
        assert_eq!((c.status, c.bytes), (Status::Ok, 400_000));
    }
    assert!(hosts[0].peek(1 << 20, 400_000) == data[1]);
    assert!(hosts[1].peek(1 << 20, 400_000) == data[0]);
}

pub fn the_end_of_the_stream_comes_after_its_bytes<H: Driven>(t: &Subject<H>) {
    let hosts = &[&t.hosts[0], &t.hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let tr = (1, hosts[1].post(&recv(r, 0, 100_000)));
    let ts = (0, hosts[0].post(&send(s, 0, 60_000)));
    assert_eq!(call(hosts, 0, &shutdown(s)).status, Status::Ok);
    let done = settle(hosts, &[tr, ts]);
    assert_eq!(
        (done[0].status, done[0].bytes),
        (Status::EndOfStream, 60_000)
    );
    assert_eq!(done[1].status, Status::Ok);
    // The other direction is still open.
    let back = (0, hosts[0].post(&recv(s, 0, 8)));
    assert_eq!(
        call(hosts, 1, &send_inline(r, b"goodbye!")).status,
        Status::Ok
    );
    assert_eq!(settle(hosts, &[back])[0].status, Status::Ok);
    assert_eq!(call(hosts, 1, &close(r)).status, Status::Ok);
    assert_eq!(call(hosts, 0, &recv(s, 0, 8)).status, Status::EndOfStream);
    assert_eq!(call(hosts, 0, &close(s)).status, Status::Ok);
}

pub fn close_still_delivers<H: Driven>(t: &Subject<H>) {
    let hosts = &[&t.hosts[0], &t.hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let data = Rng::new(8).bytes(200_000);
    hosts[0].poke(0, &data);
    let ts = (0, hosts[0].post(&send(s, 0, 200_000)));
    assert_eq!(call(hosts, 0, &close(s)).status, Status::Ok);
    let c = call(hosts, 1, &recv(r, 0, 200_000));
    assert_eq!((c.status, c.bytes), (Status::Ok, 200_000));
    assert!(hosts[1].peek(0, 200_000) == data);
    assert_eq!(settle(hosts, &[ts])[0].status, Status::Ok);
    assert_eq!(call(hosts, 1, &recv(r, 0, 1)).status, Status::EndOfStream);
}

pub fn an_abort_is_a_reset_at_the_peer<H: Driven>(t: &Subject<H>) {
    let hosts = &[&t.hosts[0], &t.hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let waiting = (1, hosts[1].post(&recv(r, 0, 8)));
    let own = (0, hosts[0].post(&recv(s, 0, 8)));
    quiesce(hosts);
    assert_eq!(call(hosts, 0, &abort(s)).status, Status::Ok);
    let done = settle(hosts, &[waiting, own]);
    assert_eq!(done[0].status, Status::ConnectionReset);
    assert_eq!(done[1].status, Status::Aborted);
    assert_eq!(
        call(hosts, 1, &send_inline(r, b"x")).status,
        Status::ConnectionReset
    );
    assert_eq!(call(hosts, 1, &close(r)).status, Status::Ok);
}

pub fn a_connect_without_a_listener_is_refused<H: Driven>(t: &Subject<H>) {
    let hosts = &[&t.hosts[0], &t.hosts[1]];
    let ip = hosts[1].nic().config().ip;
    for _ in 0..3 {
        let s = session_of(call(hosts, 0, &socket()));
        let c = call(hosts, 0, &connect(s, ip, 4444));
        assert_eq!(c.status, Status::ConnectionRefused);
        assert_eq!(call(hosts, 0, &close(s)).status, Status::Ok);
    }
}

pub fn a_deadline_is_kept_and_reports_the_moved_bytes<H: Driven>(t: &Subject<H>) {
    let hosts = &[&t.hosts[0], &t.hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let c = call(hosts, 1, &within(recv(r, 0, 10), 3000));
    assert_eq!((c.status, c.bytes), (Status::TimedOut, 0));
    assert_eq!(call(hosts, 0, &send_inline(s, b"abcd")).status, Status::Ok);
    let c = call(hosts, 1, &within(recv(r, 0, 10), 30_000));
    assert_eq!((c.status, c.bytes), (Status::TimedOut, 4));
    assert_eq!(call(hosts, 1, &recv(r, 0, 1)).status, Status::NotConnected);
    // A send without a receive.
    let (s, _r) = connected(hosts, 0, 1, 8);
    let c = call(hosts, 0, &within(send(s, 0, 6 << 20), 30_000));
    assert_eq!(c.status, Status::TimedOut);
}

pub fn a_hundred_connections_do_not_mix<H: Driven>(t: &Subject<H>) {
    let hosts = &[&t.hosts[0], &t.hosts[1]];
    let pairs: Vec<_> = (0..100).map(|i| connected(hosts, 0, 1, 1000 + i)).collect();
    let mut tickets = Vec::new();
    for (i, (s, r)) in pairs.iter().enumerate() {
        let at = i as u64 * 4096;
        hosts[0].poke(at, &vec![i as u8 + 1; 4096]);
        tickets.push((1, hosts[1].post(&recv(*r, at, 4096))));
        tickets.push((0, hosts[0].post(&send(*s, at, 4096))));
    }
    for c in settle(hosts, &tickets) {
        assert_eq!((c.status, c.bytes), (Status::Ok, 4096));
    }
    for i in 0..100u64 {
        assert_eq!(hosts[1].peek(i * 4096, 4096), vec![i as u8 + 1; 4096]);
    }
}

/// Runs a rule, then checks that everything accepted has retired once: at the latest when the DMA
/// that was under way has ended, which memory behind a copy engine does by itself.
pub fn run<H: Driven>(t: Subject<H>, rule: fn(&Subject<H>)) {
    rule(&t);
    for h in &t.hosts {
        let nic = h.nic();
        nic.reset();
        nic.step();
        let start = std::time::Instant::now();
        while nic.counters().accepted != nic.counters().retired {
            let late = start.elapsed() > std::time::Duration::from_secs(10);
            assert!(!late, "{}", nic.describe());
            nic.step();
        }
    }
    assert_eq!(ringbell_nic_core::leaked_permits(), 0);
}

/// A test for each rule, over each subject: `name => function that makes a subject`, or none where
/// there is none.
#[macro_export]
macro_rules! conformance {
    ($($over:ident => $make:path),+ $(,)?) => {
        $(mod $over {
            $crate::conformance! { @rules $make:
                bytes_arrive_exactly_for_every_cut
                receives_are_filled_in_order_and_some_takes_the_available_bytes
                both_directions_at_once
                the_end_of_the_stream_comes_after_its_bytes
                close_still_delivers
                an_abort_is_a_reset_at_the_peer
                a_connect_without_a_listener_is_refused
                a_deadline_is_kept_and_reports_the_moved_bytes
                a_hundred_connections_do_not_mix
            }
        })+
    };
    (@rules $make:path: $($rule:ident)+) => {
        $(
            #[test]
            fn $rule() {
                if let Some(t) = $make() {
                    $crate::transport_rules::run(t, $crate::transport_rules::$rule);
                }
            }
        )+
    };
}
