//! Windows of the `local` transport that are given back to the byte, and buffers that are used
//! again.

#![allow(clippy::disallowed_methods)] // A deadline, so that a hang fails.

use crate::engine_support;
use crate::nic_support;

use engine_support::*;
use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::{SessionId, Status};
use ringbell_nic_core::engine::Direction;
use ringbell_onc_engines::stream::Registry;

const INLINE: u64 = 1024;
const EARLY: u64 = 8192;

fn hosts(dir: &TempDir) -> [Host; 2] {
    [1, 2].map(|n| {
        let mut setup = Setup::new(dir, n);
        setup.local.inline_window = INLINE as usize;
        setup.local.early_window = EARLY as usize;
        Host::new(&setup)
    })
}

/// An engine that sees what a session receives: bytes take another way through the transport.
fn tap(host: &Host, session: SessionId) {
    let engine = Registry::builtin().make("checksum").expect("a good text");
    let attached = host
        .nic
        .attach_engine(session, Direction::Receive, engine)
        .map(|_| ());
    attached.expect("attach");
}

/// A few steps: what was sent is staged.
fn quiesce_a_little(hosts: &[&Host]) {
    steps(hosts, 4);
}

fn steps(hosts: &[&Host], n: u32) {
    for _ in 0..n {
        hosts.iter().for_each(|h| {
            h.nic.step();
        });
    }
}

/// A stream of small messages whose bytes repeat.
struct Stream<'a> {
    hosts: [&'a Host; 2],
    ends: (SessionId, SessionId),
    data: Vec<u8>,
    sent: u64,
    got: u64,
}

impl Stream<'_> {
    /// Sends `n` bytes in one message, or in two where the data restarts. It ends without a
    /// receive.
    fn send(&mut self, n: u64) {
        let mut left = n;
        while left > 0 {
            let from = self.sent % self.data.len() as u64;
            let n = left.min(self.data.len() as u64 - from);
            let c = call(&self.hosts, 0, &send(self.ends.0, from, n as u32));
            assert_eq!(c.status, Status::Ok);
            self.sent += n;
            left -= n;
        }
    }

    /// Looks at the next `n` bytes, which a receive has brought.
    fn check(&mut self, n: u64) {
        let got = self.hosts[1].peek(1 << 20, n as usize);
        let len = self.data.len() as u64;
        let expected = (0..n).map(|i| self.data[((self.got + i) % len) as usize]);
        assert!(got.iter().copied().eq(expected), "behind {}", self.got);
        self.got += n;
    }

    fn waits(&self) -> u64 {
        self.sent - self.got
    }
}

#[test]
fn the_window_of_small_messages_is_given_back_at_every_staging_place() {
    for tapped in [false, true] {
        let dir = TempDir::new();
        let both = hosts(&dir);
        let hosts = [&both[0], &both[1]];
        let (s, r) = connected(&hosts, 0, 1, 7);
        if tapped {
            tap(hosts[1], r);
        }
        let data = Rng::new(3).bytes(4096);
        hosts[0].poke(0, &data);
        let mut stream = Stream {
            hosts,
            ends: (s, r),
            data,
            sent: 0,
            got: 0,
        };
        let mut rng = Rng::new(4);
        for round in 0..2000 {
            while stream.waits() < 600 {
                stream.send(1 + rng.below(40));
            }
            quiesce_a_little(&hosts);
            // Some bytes stay, or else the ring in which they wait begins anew: they lie across its
            // end in many places.
            let waits = stream.waits();
            let (n, more) = match rng.below(2) {
                0 => (waits - 20 - rng.below(40), 0),
                _ => (waits + 1, 30),
            };
            let ticket = hosts[1].post(&recv(r, 1 << 20, n as u32));
            if more > 0 {
                // Longer than what is there: the receive waits for its last byte.
                quiesce_a_little(&hosts);
                stream.send(more);
            }
            let c = settle(&hosts, &[(1, ticket)])[0];
            assert_eq!((c.status, c.bytes), (Status::Ok, n), "round {round}");
            stream.check(n);
        }
        assert!(stream.got > 500 * INLINE, "many times the window");
        let rest = stream.waits();
        let c = call(&hosts, 1, &recv(r, 1 << 20, rest as u32));
        assert_eq!((c.status, c.bytes), (Status::Ok, rest));
        stream.check(rest);
        // All credit is returned but the quarter that may still be unannounced: so much leaves
        // without a receive.
        let whole = 3 * INLINE / 4;
        (0..whole / 32).for_each(|_| stream.send(32));
        let c = call(&hosts, 1, &recv(r, 1 << 20, whole as u32));
        assert_eq!((c.status, c.bytes), (Status::Ok, whole));
    }
}

#[test]
fn the_early_window_is_given_back_for_every_cut_of_the_receives() {
    for tapped in [false, true] {
        let dir = TempDir::new();
        let both = hosts(&dir);
        let hosts = &[&both[0], &both[1]];
        let (s, r) = connected(hosts, 0, 1, 7);
        if tapped {
            tap(hosts[1], r);
        }
        let data = Rng::new(5).bytes(EARLY as usize);
        hosts[0].poke(0, &data);
        let mut rng = Rng::new(6);
        for round in 0..100 {
            // The whole window: each send ends only when its bytes were copied early, because no
            // receive is there.
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
}

/// How the sender gets its buffer back.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Back {
    Abort,
    TimeOut,
    /// An engine fails on what the sender receives.
    EngineOfReceives,
    /// An engine fails on a later send.
    EngineOfSends,
}

/// How the receiver comes to the bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Taken {
    ByReceive,
    /// An engine sees them first.
    ByEngine,
    /// Before there is a receive.
    Early,
}

#[test]
fn a_buffer_that_was_taken_back_is_never_delivered_with_later_bytes() {
    let ways = [
        Back::Abort,
        Back::TimeOut,
        Back::EngineOfReceives,
        Back::EngineOfSends,
    ];
    for back in ways {
        for taken in [Taken::ByReceive, Taken::ByEngine, Taken::Early] {
            taken_back(back, taken);
        }
    }
}

fn taken_back(back: Back, taken: Taken) {
    let what = format!("{back:?} {taken:?}");
    let dir = TempDir::new();
    let hosts = [1, 2].map(|n| {
        let mut setup = Setup::new(&dir, n);
        // Without it references wait for their receive.
        setup.local.early_window = if taken == Taken::Early { 8192 } else { 0 };
        // Slots are used in order: the send that waits keeps those behind it.
        setup.queue.depth = 4096;
        Host::new(&setup)
    });
    let hosts = &[&hosts[0], &hosts[1]];
    let (s, r) = connected(hosts, 0, 1, 7);
    let (fill, drain) = connected(hosts, 0, 1, 8);
    if taken == Taken::ByEngine {
        tap(hosts[1], r);
    }
    if back == Back::EngineOfReceives {
        let nic = &hosts[0].nic;
        let id = nic.attach_engine(s, Direction::Receive, brittle(How::After(0)));
        id.expect("attach");
        // It waits for its receive.
        let c = call(hosts, 1, &send_inline(r, &[3; 8]));
        assert_eq!(c.status, Status::Ok);
        quiesce_a_little(hosts);
    }
    hosts[0].poke(0, &[1; 4096]);
    let sent = match back {
        Back::TimeOut => within(send(s, 0, 4096), 20_000),
        _ => send(s, 0, 4096),
    };
    // The peer stands still from here on.
    let sent = hosts[0].post(&sent);
    let sender = &hosts[..1];
    steps(sender, 4);
    // The ring to the peer is filled by another connection: no word of the end gets through.
    loop {
        let ticket = hosts[0].post(&send_inline(fill, &[9; 40]));
        steps(sender, 4);
        if hosts[0].queue.poll(ticket).is_none() {
            break;
        }
    }
    // A busy machine may take longer for this than the time-out; then the peer is notified, which
    // is correct as well.
    if back != Back::TimeOut {
        assert!(hosts[0].queue.poll(sent).is_none(), "{what}");
    }
    let expected = match back {
        Back::Abort => {
            hosts[0].post(&abort(s));
            Status::Aborted
        }
        Back::TimeOut => Status::TimedOut,
        Back::EngineOfReceives => {
            hosts[0].post(&recv(s, 8192, 8));
            Status::EngineFailed
        }
        Back::EngineOfSends => {
            let nic = &hosts[0].nic;
            let id = nic.attach_engine(s, Direction::Send, brittle(How::After(0)));
            id.expect("attach");
            hosts[0].post(&send(s, 8192, 64));
            Status::EngineFailed
        }
    };
    let start = std::time::Instant::now();
    let ended = loop {
        steps(sender, 1);
        if let Some(c) = hosts[0].queue.poll(sent) {
            break c;
        }
        assert!(start.elapsed().as_secs() < 60, "{what}: hung");
    };
    assert_eq!(ended.status, expected, "{what}");
    // From here on the buffer is the program's again.
    hosts[0].poke(0, &[2; 4096]);
    hosts[1].poke(1 << 20, &[0; 4096]);
    if taken == Taken::Early {
        // So many that it looks for bytes without a receive.
        steps(&hosts[1..], 100);
    }
    // The receive is there before the peer reads what is left in the ring.
    let received = hosts[1].post(&recv(r, 1 << 20, 4096));
    let c = settle(&[hosts[1]], &[(0, received)])[0];
    assert_eq!(c.status, Status::ConnectionReset, "{what}");
    assert_eq!(c.bytes, 0, "{what}: nothing of it was delivered");
    // The other connection goes on.
    let rest = call(hosts, 1, &recv(drain, 0, 40));
    assert_eq!(rest.status, Status::Ok, "{what}");
}
