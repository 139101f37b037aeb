//! Windows of the `local` transport that are given back to the byte, and buffers that are used again.

#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

mod nic_support;

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::Status;

const INLINE: u64 = 1024;
const EARLY: u64 = 8192;

fn hosts(dir: &TempDir, early: u64) -> [Host; 2] {
    [1, 2].map(|n| {
        let mut setup = Setup::new(dir, n);
        setup.local.inline_window = INLINE as usize;
        setup.local.early_window = early as usize;
        Host::new(&setup)
    })
}

#[test]
fn the_window_of_small_messages_is_given_back_wherever_they_are_staged() {
    let dir = TempDir::new();
    let hosts = &hosts(&dir, EARLY);
    let hosts = &[&hosts[0], &hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let data = Rng::new(3).bytes(1 << 16);
    hosts[0].poke(0, &data);
    // Each round's bytes wait for their receive; their place in the staging ring goes round, and messages lie across its
    // end at every offset.
    let (mut at, mut rng) = (0u64, Rng::new(4));
    for round in 0..1500 {
        let mut sent = 0;
        let mut tickets = Vec::new();
        while sent < 700 {
            let n = 1 + rng.below(40);
            let from = (at + sent) % 60_000;
            tickets.push((0, hosts[0].post(&send(s, from, n as u32))));
            sent += n;
            if (at + sent) % 60_000 < from {
                break;
            }
        }
        for c in settle(hosts, &tickets) {
            assert_eq!(c.status, Status::Ok, "round {round}");
        }
        quiesce_a_little(hosts);
        // In one receive that is filled at once, or in two.
        let first = if round % 2 == 0 { sent } else { sent / 3 };
        for (from, n) in [(0, first), (first, sent - first)] {
            if n > 0 {
                let c = call(hosts, 1, &recv(r, (1 << 20) + from, n as u32));
                assert_eq!((c.status, c.bytes), (Status::Ok, n), "round {round}");
            }
        }
        if sent < 1000 && (at % 60_000) + sent < 60_000 {
            let from = (at % 60_000) as usize;
            let got = hosts[1].peek(1 << 20, sent as usize);
            assert!(got == data[from..from + sent as usize], "round {round}");
        }
        at += sent;
    }
    assert!(at > 500 * INLINE, "{at}: many times the window");
    // Nothing is owed but what need not be told yet, a quarter: so much leaves without a receive.
    let whole = 3 * INLINE / 4;
    let tickets: Vec<_> = (0..whole / 32)
        .map(|i| (0, hosts[0].post(&send(s, i * 32, 32))))
        .collect();
    settle(hosts, &tickets);
    let c = call(hosts, 1, &recv(r, 0, whole as u32));
    assert_eq!((c.status, c.bytes), (Status::Ok, whole));
}

/// A few steps: what was sent is staged.
fn quiesce_a_little(hosts: &[&Host]) {
    for _ in 0..4 {
        hosts.iter().for_each(|h| {
            h.nic.step();
        });
    }
}

#[test]
fn the_early_window_is_given_back_however_the_receives_are_cut() {
    let dir = TempDir::new();
    let hosts = &hosts(&dir, EARLY);
    let hosts = &[&hosts[0], &hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let data = Rng::new(5).bytes(EARLY as usize);
    hosts[0].poke(0, &data);
    let mut rng = Rng::new(6);
    for round in 0..200 {
        // The whole window: each send ends only when its bytes were copied early, because no receive is there.
        let tickets: Vec<_> = (0..4)
            .map(|i| {
                (
                    0,
                    hosts[0].post(&send(s, i * EARLY / 4, (EARLY / 4) as u32)),
                )
            })
            .collect();
        for c in settle(hosts, &tickets) {
            assert_eq!(c.status, Status::Ok, "round {round}");
        }
        let mut got = 0;
        while got < EARLY {
            let n = (1 + rng.below(EARLY / 2)).min(EARLY - got);
            let c = call(hosts, 1, &recv(r, got, n as u32));
            assert_eq!((c.status, c.bytes), (Status::Ok, n), "round {round}");
            got += n;
        }
        assert!(hosts[1].peek(0, EARLY as usize) == data, "round {round}");
    }
}

/// How the sender takes its buffer back.
#[derive(Debug, Clone, Copy)]
enum Back {
    Abort,
    TimeOut,
}

#[test]
fn a_buffer_that_was_taken_back_is_never_delivered_with_what_came_after() {
    for back in [Back::Abort, Back::TimeOut] {
        let dir = TempDir::new();
        // Nothing is copied early: references wait for their receive.
        let hosts = [1, 2].map(|n| {
            let mut setup = Setup::new(&dir, n);
            setup.local.early_window = 0;
            // Slots are used in order: the send that waits keeps those behind it.
            setup.queue.depth = 4096;
            Host::new(&setup)
        });
        let hosts = &[&hosts[0], &hosts[1]];
        let (s, r) = connected(hosts, 0, 1, 7);
        let (fill, drain) = connected(hosts, 0, 1, 8);
        hosts[0].poke(0, &[1; 4096]);
        let sent = match back {
            Back::Abort => send(s, 0, 4096),
            Back::TimeOut => within(send(s, 0, 4096), 20_000),
        };
        let sent = hosts[0].post(&sent);
        quiesce_a_little(hosts);
        // The ring to the peer, which stands still, is filled by another connection: no word of the end gets through.
        loop {
            let ticket = hosts[0].post(&send_inline(fill, &[9; 40]));
            for _ in 0..4 {
                hosts[0].nic.step();
            }
            if hosts[0].queue.poll(ticket).is_none() {
                break;
            }
        }
        if let Back::Abort = back {
            hosts[0].post(&abort(s));
        }
        let start = std::time::Instant::now();
        let ended = loop {
            hosts[0].nic.step();
            if let Some(c) = hosts[0].queue.poll(sent) {
                break c;
            }
            assert!(start.elapsed().as_secs() < 60, "hung");
        };
        let expected = match back {
            Back::Abort => Status::Aborted,
            Back::TimeOut => Status::TimedOut,
        };
        assert_eq!(ended.status, expected);
        // From here on the buffer is the program's again.
        hosts[0].poke(0, &[2; 4096]);
        hosts[1].poke(1 << 20, &[0; 4096]);
        // The receive is there before the peer reads what is left in the ring.
        let received = hosts[1].post(&recv(r, 1 << 20, 4096));
        let c = settle(&[hosts[1]], &[(0, received)])[0];
        assert_eq!(c.status, Status::ConnectionReset, "{back:?}");
        assert_eq!(c.bytes, 0, "{back:?}: nothing of it was delivered");
        // The other connection goes on.
        let rest = call(hosts, 1, &recv(drain, 0, 40));
        assert_eq!(rest.status, Status::Ok, "{back:?}");
    }
}
