//! TCP under attack, in virtual time: SYN floods, blind resets, blind data, reused ports (RFC 4987,
//! RFC 5961).

use crate::transport_support;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use ringbell_nic_abi::Status;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::{MemPort, MemSwitch};
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::{Close, Transport, TransportEvent};
use ringbell_nic_core::types::{ConnId, NicTime};
use transport_support::raw::{drain, Hand, Raw, Segment, ACK, FIN, OPTIONS, RST, SYN};
use transport_support::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A client a and a listening NIC b with a cable of this delay each way, and an attacker beside
/// them.
struct Flood {
    p: Pair,
    attacker: MemPort,
    rng: Rng,
    /// SYNs a second.
    rate: u64,
    sent: u64,
    since: u64,
    /// What the NIC has answered to made-up addresses.
    answers: Vec<Segment>,
}

impl Flood {
    fn new(rate: u64, delay: Duration) -> Flood {
        let sw = MemSwitch::private(3, 1500, Checksums::Omitted).unwrap(); // numbers in range
        let faults = Faults {
            delay,
            ..Faults::default()
        };
        let a = Impair::new(Box::new(sw.port(0).unwrap()), faults).unwrap(); // free port, faults in range
        let b = Impair::new(Box::new(sw.port(1).unwrap()), faults).unwrap(); // free port, faults in range
        let mut p = Pair::with((Box::new(a), Box::new(b)), config(IP_A), config(IP_B));
        p.listen(PORT);
        let since = p.now.0;
        Flood {
            p,
            attacker: sw.port(2).unwrap(), // free port
            rng: Rng(rate),
            rate,
            sent: 0,
            since,
            answers: Vec::new(),
        }
    }

    fn tick(&mut self) {
        let now = self.p.now;
        let due = (now.0 - self.since) as u128 * u128::from(self.rate) / u128::from(SECOND);
        while u128::from(self.sent) < due {
            self.sent += 1;
            let host = 3 + self.rng.below(250) as u8;
            let mut syn = Segment::new(
                1024 + self.rng.below(60_000) as u16,
                SYN,
                self.rng.next() as u32,
                0,
            );
            syn.src.set_ip(Ipv4Addr::new(10, 0, 0, host));
            syn.options = OPTIONS.to_vec();
            syn.send(&mut self.attacker, 1, now);
        }
        self.p.a.step(now);
        self.p.b.step(now);
        if self.answers.len() < 10_000 {
            self.answers.extend(drain(&mut self.attacker, now));
        } else {
            drain(&mut self.attacker, now);
        }
        self.p.now.0 += 100_000;
    }

    fn run(&mut self, ns: u64) {
        let end = self.p.now.0 + ns;
        while self.p.now.0 < end {
            self.tick();
        }
    }

    #[track_caller]
    fn until<R>(&mut self, limit: u64, mut f: impl FnMut(&mut Pair) -> Option<R>) -> R {
        let end = self.p.now.0 + limit;
        loop {
            if let Some(r) = f(&mut self.p) {
                return r;
            }
            assert!(
                self.p.now.0 < end,
                "not within {limit} ns; a {:?} {:?}, b {:?} {:?}",
                self.p.a.transport,
                self.p.a.events,
                self.p.b.transport,
                self.p.b.events
            );
            self.tick();
        }
    }

    /// A client connects while the flood goes on; both ends within a second.
    #[track_caller]
    fn connect(&mut self) -> (ConnId, ConnId) {
        let deadline = NicTime(self.p.now.0 + MINUTE);
        let remote = SocketAddrV4::new(IP_B, PORT);
        let a = self
            .p
            .a
            .transport
            .connect(self.p.now, remote, deadline)
            .unwrap(); // on the same network
        self.until(SECOND, |p| {
            p.a.events
                .contains(&TransportEvent::Connected { conn: a })
                .then_some(())
        });
        let b = self.until(SECOND, |p| p.b.incoming());
        (a, b)
    }

    /// Bytes from one side to the other, the flood going on.
    #[track_caller]
    fn exchange(&mut self, (a, b): (ConnId, ConnId), back: bool, len: usize) {
        let (from, to) = if back { (b, a) } else { (a, b) };
        let sides = |p: &mut Pair| {
            if back {
                std::mem::swap(&mut p.a, &mut p.b);
            }
        };
        sides(&mut self.p);
        let src = self.p.a.dma.region(random(len as u64, len));
        let dst = self.p.b.dma.region(vec![0; len]);
        self.p.a.send(from, 77, src);
        self.p.b.recv(to, 78, dst, false);
        sides(&mut self.p);
        let done = self.until(MINUTE, |p| {
            sides(p);
            let done = p.b.received(78);
            sides(p);
            done
        });
        assert_eq!(done, (Status::Ok, len as u64));
        sides(&mut self.p);
        assert_eq!(self.p.a.sent(77), Some((Status::Ok, len as u64)));
        assert!(
            self.p.a.dma.bytes(src) == self.p.b.dma.bytes(dst),
            "bytes differ"
        );
        sides(&mut self.p);
    }
}

#[test]
fn a_client_gets_in_under_a_syn_flood() {
    let cable = |ms| Duration::from_millis(ms);
    for (rate, delay) in [(20, cable(0)), (10_000, cable(0)), (10_000, cable(25))] {
        let mut f = Flood::new(rate, delay);
        f.run(2 * SECOND);
        let first = f.connect();
        f.exchange(first, false, 100_000);
        f.exchange(first, true, 100_000);
        // The NIC speaks first, to a client that has said nothing but its handshake.
        let second = f.connect();
        f.exchange(second, true, 3_000);
        assert!(
            f.p.b.transport.connections() <= 2 + 16,
            "{:?}",
            f.p.b.transport
        );
    }
}

#[test]
fn a_flood_leaves_nothing_behind() {
    let mut f = Flood::new(10_000, Duration::ZERO);
    f.run(SECOND);
    f.rate = 0;
    f.run(12 * SECOND);
    assert_eq!(f.p.b.transport.connections(), 0);
    assert!(f.p.b.events.is_empty(), "{:?}", f.p.b.events);
    assert!(f.p.b.transport.counters().cookies > 9_000);
    f.connect();
}

/// Fills the backlog with half-open handshakes. Gives the NIC's next answer to a SYN from `port`.
fn cookie(w: &mut Raw, port: u16, isn: u32, options: &[u8]) -> Segment {
    for n in 0..16 {
        let mut syn = Segment::new(5000 + n, SYN, 1, 0);
        syn.src.set_ip(Ipv4Addr::new(10, 0, 0, 200));
        syn.send(&mut w.wire, 1, w.now);
    }
    w.run(MS);
    let mut syn = Segment::new(port, SYN, isn, 0);
    syn.options = options.to_vec();
    let to_us: Vec<Segment> = w.say(&syn);
    let mut to_us = to_us.into_iter().filter(|s| s.dst.port() == port);
    let answer = to_us.next().expect("an answer with a cookie");
    assert_eq!((answer.flags, answer.ack), (SYN | ACK, isn.wrapping_add(1)));
    answer
}

#[test]
fn a_syn_is_answered_alike_with_room_and_without() {
    for options in [&OPTIONS[..], &[], &[2, 4, 5, 180], &[1, 3, 3, 0]] {
        let mut with = Raw::new();
        let mut syn = Segment::new(4000, SYN, 9, 0);
        syn.options = options.to_vec();
        let want = with.say(&syn).remove(0);
        let mut without = Raw::new();
        let got = cookie(&mut without, 4000, 9, options);
        assert_eq!(without.nic.transport.counters().cookies, 1);
        assert_eq!(
            (want.flags, want.window, want.options),
            (got.flags, got.window, got.options),
            "to options {options:?}"
        );
    }
}

#[test]
fn only_the_cookie_opens_a_connection_and_not_for_ever() {
    let mut w = Raw::new();
    let answer = cookie(&mut w, 4000, u32::MAX, &OPTIONS);
    let right = answer.seq.wrapping_add(1);
    let refused = |w: &mut Raw, s: &Segment| {
        let got = w.say(s);
        let got: Vec<&Segment> = got.iter().filter(|g| g.dst == s.src).collect();
        assert_eq!(got.len(), 1, "{got:?}");
        assert_eq!((got[0].flags, got[0].seq), (RST, s.ack));
        assert_eq!(w.nic.incoming(), None);
    };
    for bit in 0..32 {
        refused(&mut w, &Segment::new(4000, ACK, 0, right ^ 1 << bit));
        // Another number of the peer's, as a guesser would try.
        refused(&mut w, &Segment::new(4000, ACK, 1 << bit, right));
    }
    refused(&mut w, &Segment::new(4001, ACK, 0, right));
    let mut other = Segment::new(4000, ACK, 0, right);
    other.src.set_ip(Ipv4Addr::new(10, 0, 0, 77));
    refused(&mut w, &other);
    // The first segment that arrives has bytes: the handshake's last one was lost.
    let mut hello = Segment::new(4000, ACK, 0, right);
    hello.payload = b"hello".to_vec();
    w.say(&hello);
    let conn = w.nic.incoming().expect("the cookie is right");
    let room = w.nic.dma.region(vec![0; 5]);
    w.nic.recv(conn, 1, room, false);
    w.run(MS);
    assert_eq!(w.nic.received(1), Some((Status::Ok, 5)));
    assert_eq!(w.nic.dma.bytes(room), b"hello");

    // Minutes later the cookie is worth nothing.
    let mut w = Raw::new();
    let answer = cookie(&mut w, 4000, 7, &OPTIONS);
    w.run(SECOND);
    w.now.0 += 200 * SECOND;
    w.run(MS);
    cookie(&mut w, 4009, 7, &OPTIONS);
    refused(
        &mut w,
        &Segment::new(4000, ACK, 8, answer.seq.wrapping_add(1)),
    );
}

#[test]
fn the_backlog_bounds_connections_by_cookie() {
    let mut w = Raw::new();
    let answers: Vec<(u16, Segment)> = (0..20)
        .map(|n| (4000 + n, cookie(&mut w, 4000 + n, 7, &OPTIONS)))
        .collect();
    // No caller takes the connections that have come: `Incoming` is not polled.
    let last: Vec<Segment> = answers
        .iter()
        .map(|(port, a)| Segment::new(*port, ACK, 8, a.seq.wrapping_add(1)))
        .collect();
    for s in &last {
        s.send(&mut w.wire, 1, w.now);
    }
    for _ in 0..20 {
        w.nic.move_on(w.now);
        w.now.0 += MS;
    }
    drain(&mut w.wire, w.now);
    let came = std::iter::from_fn(|| w.nic.transport.poll_event()).count();
    assert_eq!(came, 16);
    // What was not answered is said again, and finds room.
    let answers = w.say(&last[19]);
    assert!(answers.iter().all(|a| a.flags & RST == 0), "{answers:?}");
    assert!(w.nic.incoming().is_some());
}

// ---- segments from an attacker who guesses the addresses
// --------------------------------------------

/// The one segment among these, an acknowledgement of what has arrived in order.
#[track_caller]
fn assert_challenge(got: &[Segment], hand: &Hand) {
    let [answer] = got else {
        panic!("one challenge ACK, not {got:?}")
    };
    assert_eq!(
        (answer.flags, answer.seq, answer.ack, answer.payload.len()),
        (ACK, hand.expected, hand.next, 0)
    );
    assert_eq!(answer.dst.port(), hand.port);
}

#[track_caller]
fn assert_lives(w: &mut Raw, hand: &mut Hand) {
    assert!(w.nic.events.is_empty(), "{:?}", w.nic.events);
    let room = w.nic.dma.region(vec![0; 4]);
    w.nic.recv(hand.conn, 91, room, false);
    let word = hand.data(b"ping");
    w.say(&word);
    assert_eq!(w.nic.received(91), Some((Status::Ok, 4)));
    assert_eq!(w.nic.dma.bytes(room), b"ping");
}

#[test]
fn a_reset_counts_at_the_exact_number_only() {
    let mut w = Raw::new();
    for (n, isn) in [(0u16, 1000u32), (1, u32::MAX - 3), (2, u32::MAX)] {
        let mut hand = w.connect(4000 + n, isn);
        assert_lives(&mut w, &mut hand);
        // RFC 5961 §3.2: in the window, a challenge; outside, silence.
        for off in [1, 2, 1000, 65_000] {
            w.run(10 * SECOND);
            let got = w.say(&hand.segment(RST, off, 0));
            assert_challenge(&got, &hand);
        }
        for off in [-1, -1000, 1 << 30, 1 << 31] {
            let got = w.say(&hand.segment(RST | ACK, off, 0));
            assert_eq!(got, [], "offset {off}");
        }
        assert_lives(&mut w, &mut hand);
        let room = w.nic.dma.region(vec![0; 4]);
        w.nic.recv(hand.conn, 5, room, false);
        assert_eq!(w.say(&hand.segment(RST, 0, 0)), []);
        assert_eq!(w.nic.received(5), Some((Status::ConnectionReset, 0)));
        w.nic
            .has(TransportEvent::Reset { conn: hand.conn })
            .expect("reset");
    }
}

#[test]
fn a_reset_is_reported_at_once_when_the_peer_has_closed_its_side() {
    for unread in [0, 4, 256 << 10] {
        let mut w = Raw::new();
        let mut hand = w.connect(4000, 77);
        let mut left = unread;
        while left > 0 {
            let n = left.min(1024);
            let data = hand.data(&vec![1; n]);
            w.say(&data);
            left -= n;
        }
        w.say(&hand.segment(FIN | ACK, 0, 0));
        w.nic
            .has(TransportEvent::PeerClosed { conn: hand.conn })
            .expect("the peer's end");
        hand.next = hand.next.wrapping_add(1);
        let got = w.say(&hand.segment(RST, 1, 0));
        assert!(
            w.nic.events.is_empty() && got.len() <= 1,
            "{unread} unread: {:?} {got:?}",
            w.nic.events
        );
        w.say(&hand.segment(RST, 0, 0));
        w.nic
            .has(TransportEvent::Reset { conn: hand.conn })
            .expect("reset, before anything is read or sent");
    }
}

#[test]
fn a_syn_on_a_live_connection_is_challenged() {
    let mut w = Raw::new();
    let mut hand = w.connect(4000, 1000);
    assert_lives(&mut w, &mut hand);
    for (flags, off) in [
        (SYN, 0),
        (SYN, 5),
        (SYN, -100_000),
        (SYN, 1 << 31),
        (SYN | ACK, 0),
        (SYN | ACK, 77),
    ] {
        w.run(10 * SECOND);
        let got = w.say(&hand.segment(flags, off, 0));
        assert_challenge(&got, &hand);
    }
    assert_lives(&mut w, &mut hand);
}

#[test]
fn a_peer_that_starts_again_reuses_its_port() {
    // Independent of the program's handling of the old connection.
    for (fin, closes, shuts) in [
        (false, false, false),
        (false, false, true),
        (false, true, false),
        (true, false, false),
        (true, true, false),
    ] {
        let mut w = Raw::new();
        let mut old = w.connect(4000, 1000);
        assert_lives(&mut w, &mut old);
        if fin {
            w.say(&old.segment(FIN | ACK, 0, 0));
            old.next = old.next.wrapping_add(1);
        }
        if closes {
            w.nic.transport.close(old.conn, Close::Gracefully);
        }
        if shuts {
            w.nic.transport.close(old.conn, Close::Sending);
        }
        w.run(MS);
        // The new program has no state of the old one, and draws a number below the old one's.
        let syn = Segment::new(4000, SYN, 500, 0);
        let got = w.say(&syn);
        let challenge = got
            .iter()
            .find(|s| s.flags == ACK)
            .expect("a challenge ACK");
        assert_eq!(challenge.ack, old.next, "fin {fin}, closes {closes}");
        // RFC 9293 §3.10.7.3: an acknowledgement of what was never sent is answered with a reset.
        w.say(&Segment::new(4000, RST, challenge.ack, 0));
        w.nic
            .events
            .retain(|e| matches!(e, TransportEvent::Incoming { .. }));
        let new = w.connect(4000, 500);
        assert_ne!(new.conn, old.conn);
        // Giving the old one back takes nothing from the new one.
        w.nic.transport.close(old.conn, Close::Gracefully);
        w.run(MS);
        w.nic.events.clear();
        let mut new = new;
        assert_lives(&mut w, &mut new);
        assert_eq!(w.nic.transport.connections(), 1);
    }
}

#[test]
fn acknowledgements_of_another_connection_are_challenged_and_carry_no_data() {
    let mut w = Raw::new();
    let mut hand = w.connect(4000, 1000);
    let room = w.nic.dma.region(vec![0; 4]);
    w.nic.recv(hand.conn, 1, room, false);
    for off in [1i64, 1000, 1 << 30, -(1 << 20), -(1 << 30)] {
        w.run(10 * SECOND);
        let mut blind = hand.segment(ACK, 0, off);
        blind.payload = b"evil".to_vec();
        let got = w.say(&blind);
        assert_challenge(&got, &hand);
    }
    assert_eq!(w.nic.received(1), None);
    let word = hand.data(b"good");
    w.say(&word);
    assert_eq!(w.nic.received(1), Some((Status::Ok, 4)));
    assert_eq!(w.nic.dma.bytes(room), b"good");
}

#[test]
fn bytes_that_were_never_sent_cannot_be_acknowledged() {
    let mut w = Raw::new();
    let hand = w.connect(4000, 1000);
    // A closed window: these stay in the socket.
    let mut narrow = hand.segment(ACK, 0, 0);
    narrow.window = 0;
    w.say(&narrow);
    let data = w.nic.dma.region(random(3, 2000));
    w.nic.send(hand.conn, 1, data);
    w.run(MS);
    let blind = hand.segment(ACK, 0, 1000);
    let got = w.say(&blind);
    assert_challenge(&got, &hand);
    let open = hand.segment(ACK, 0, 0);
    let mut got = w.say(&open);
    got.extend(w.run(MS));
    let bytes: Vec<u8> = got.iter().flat_map(|s| s.payload.clone()).collect();
    assert!(bytes == w.nic.dma.bytes(data), "the whole stream is sent");
}

#[test]
fn bytes_with_an_overtaken_acknowledgement_count() {
    let mut w = Raw::new();
    let mut hand = w.connect(4000, 1000);
    let data = w.nic.dma.region(random(3, 2000));
    w.nic.send(hand.conn, 1, data);
    let got = w.run(MS);
    assert_eq!(got.iter().map(|s| s.payload.len()).sum::<usize>(), 2000);
    assert_eq!(w.nic.sent(1), Some((Status::Ok, 2000)));
    hand.expected = hand.expected.wrapping_add(2000);
    let ack = hand.segment(ACK, 0, 0);
    w.say(&ack);
    // Sent before that acknowledgement, and arrives behind it.
    let mut late = hand.data(b"late");
    late.ack = hand.expected.wrapping_sub(1000);
    w.say(&late);
    let room = w.nic.dma.region(vec![0; 4]);
    w.nic.recv(hand.conn, 2, room, false);
    w.run(MS);
    assert_eq!(w.nic.received(2), Some((Status::Ok, 4)));
    assert_lives(&mut w, &mut hand);
}

#[test]
fn challenges_are_rate_limited() {
    let mut w = Raw::new();
    let mut hand = w.connect(4000, 1000);
    let mut answers = 0;
    for n in 0..500 {
        let s = match n % 3 {
            0 => hand.segment(RST, 9, 0),
            1 => hand.segment(SYN, 0, 0),
            _ => hand.segment(ACK, 0, 1 << 30),
        };
        answers += w.say(&s).len();
    }
    // Half a second: RFC 5961 §7 gives ten in five seconds as an example.
    assert!((1..=10).contains(&answers), "{answers} answers");
    w.run(10 * SECOND);
    let got = w.say(&hand.segment(RST, 9, 0));
    assert_challenge(&got, &hand);
    assert_lives(&mut w, &mut hand);
}

#[test]
fn a_half_open_handshake_ends_by_the_exact_reset_only() {
    let mut w = Raw::new();
    let got = w.say(&Segment::new(4000, SYN, 99, 0));
    let expected = got[0].seq.wrapping_add(1);
    w.say(&Segment::new(4000, RST, 101, 0));
    w.say(&Segment::new(4000, ACK, 100, expected));
    assert!(w.nic.incoming().is_some(), "the guess has not ended it");
    let got = w.say(&Segment::new(4001, SYN, 99, 0));
    let expected = got[0].seq.wrapping_add(1);
    w.say(&Segment::new(4001, RST, 100, 0));
    let got = w.say(&Segment::new(4001, ACK, 100, expected));
    assert_eq!((got.len(), got[0].flags, w.nic.incoming()), (1, RST, None));
}

/// Closes both sides, the NIC's first: its end is in TIME-WAIT.
fn into_time_wait(w: &mut Raw) -> Hand {
    let mut hand = w.connect(4000, 1 << 20);
    assert_lives(w, &mut hand);
    w.nic.transport.close(hand.conn, Close::Gracefully);
    let got = w.run(MS);
    assert!(got.iter().any(|s| s.flags & FIN != 0), "{got:?}");
    hand.expected = hand.expected.wrapping_add(1);
    w.say(&hand.segment(FIN | ACK, 0, 0));
    hand.next = hand.next.wrapping_add(1);
    w.run(10 * MS);
    w.nic
        .has(TransportEvent::Closed { conn: hand.conn })
        .expect("both sides have closed");
    assert_eq!(w.nic.transport.connections(), 1, "in TIME-WAIT");
    hand
}

#[test]
fn time_wait_gives_way_to_a_new_connection_and_not_to_an_old_syn() {
    // RFC 9293 §3.10.7.4, RFC 1122 §4.2.2.13: a SYN of the old connection may still be under way.
    let mut w = Raw::new();
    let hand = into_time_wait(&mut w);
    let got = w.say(&Segment::new(4000, SYN, 1 << 20, 0));
    assert_challenge(&got, &hand);
    assert_eq!(w.nic.incoming(), None);
    let got = w.say(&Segment::new(4000, SYN, hand.next.wrapping_add(1), 0));
    assert_eq!((got.len(), got[0].flags), (1, SYN | ACK));
    // The NIC's number is beyond all that the old connection has used.
    let beyond = got[0].seq.wrapping_sub(hand.expected) as i32;
    assert!(beyond > 0, "{beyond}");
    // The reset that answers a challenge ends TIME-WAIT, and the client's next SYN opens.
    let mut w = Raw::new();
    let hand = into_time_wait(&mut w);
    w.say(&Segment::new(4000, SYN, 5, 0));
    w.say(&Segment::new(4000, RST, hand.next, 0));
    assert_eq!(w.nic.transport.connections(), 0);
    w.connect(4000, 5);
}

// ---- ends of connections
// ----------------------------------------------------------------------------

fn events_of(w: &mut Raw, conn: ConnId) -> Vec<TransportEvent> {
    let of = |e: &TransportEvent| match *e {
        TransportEvent::Reset { conn: c } | TransportEvent::Closed { conn: c } => c == conn,
        TransportEvent::SendDone { conn: c, .. } | TransportEvent::RecvDone { conn: c, .. } => {
            c == conn
        }
        _ => false,
    };
    w.nic.events.drain(..).filter(of).collect()
}

#[test]
fn a_reset_while_closing_is_reported_once_and_in_order() {
    // (the peer's FIN came first, bytes that stay in the NIC)
    for (fin, len) in [
        (false, 0),
        (false, 3000),
        (true, 0),
        (true, 3000),
        (true, 1 << 20),
    ] {
        let mut w = Raw::new();
        let mut hand = w.connect(4000, 1000);
        assert_lives(&mut w, &mut hand);
        if fin {
            w.say(&hand.segment(FIN | ACK, 0, 0));
            hand.next = hand.next.wrapping_add(1);
        }
        // A closed window: nothing that is sent is taken.
        let mut shut = hand.segment(ACK, 0, 0);
        shut.window = 0;
        w.say(&shut);
        let data = w.nic.dma.region(vec![5; len]);
        if len > 0 {
            w.nic.send(hand.conn, 7, data);
        }
        w.nic.transport.close(hand.conn, Close::Gracefully);
        w.run(MS);
        w.nic
            .events
            .retain(|e| !matches!(e, TransportEvent::PeerClosed { .. }));
        w.say(&hand.segment(RST, 0, 0));
        let got = events_of(&mut w, hand.conn);
        let mut want = Vec::new();
        for e in &got {
            if let TransportEvent::SendDone { status, bytes, .. } = *e {
                // In the socket's buffer it counts as gone; the rest does not.
                let fits = len <= 256 << 10;
                assert_eq!(status == Status::Ok, fits, "{e:?}");
                assert!(fits || (status == Status::ConnectionReset && bytes < len as u64));
                want.push(*e);
            }
        }
        assert_eq!(want.len(), usize::from(len > 0));
        want.push(TransportEvent::Reset { conn: hand.conn });
        want.push(TransportEvent::Closed { conn: hand.conn });
        assert_eq!(got, want, "fin {fin}, {len} bytes");
        // It is gone: what still comes is refused, and its id names nothing.
        assert_eq!(w.nic.transport.connections(), 0);
        let got = w.say(&hand.segment(ACK, 0, 0));
        assert_eq!((got.len(), got[0].flags), (1, RST));
        w.nic.transport.close(hand.conn, Close::Gracefully);
        w.nic.transport.close(hand.conn, Close::Now);
        w.run(MS);
        assert!(w.nic.events.is_empty(), "{:?}", w.nic.events);
    }
}

#[test]
fn a_reset_behind_the_last_byte_takes_nothing_from_the_reader() {
    // The peer had the NIC's FIN first, so that its end is gone when its own FIN is acknowledged. A
    // later window update meets a reset (RFC 1337), which may be received together with the FIN.
    let mut w = Raw::new();
    let mut hand = w.connect(4000, 1000);
    w.nic.transport.close(hand.conn, Close::Sending);
    let got = w.run(MS);
    assert!(got.iter().any(|s| s.flags & FIN != 0), "{got:?}");
    hand.expected = hand.expected.wrapping_add(1);
    let data = hand.data(&[7; 1000]);
    let fin = hand.segment(FIN | ACK, 0, 0);
    hand.next = hand.next.wrapping_add(1);
    for segment in [data, fin, hand.segment(RST, 0, 0)] {
        assert!(segment.send(&mut w.wire, 1, w.now), "the wire is full");
    }
    w.run(MS);
    let reset = TransportEvent::Reset { conn: hand.conn };
    assert!(!w.nic.events.contains(&reset), "{:?}", w.nic.events);
    for (token, want) in [(1, (Status::Ok, 1000)), (2, (Status::EndOfStream, 0))] {
        let room = w.nic.dma.region(vec![0; 1000]);
        w.nic.recv(hand.conn, token, room, false);
        w.run(MS);
        let ended = w.nic.take(|e| match *e {
            TransportEvent::RecvDone { status, bytes, .. } => Some((status, bytes)),
            _ => None,
        });
        assert_eq!(ended, Some(want), "receive {token}");
    }
}

#[test]
fn a_segment_after_its_connection_was_removed_reaches_no_other() {
    let mut w = Raw::new();
    let mut first = w.connect(4000, 1000);
    let mut second = w.connect(4001, 2000);
    assert_lives(&mut w, &mut second);
    // The last one looked up, then removed.
    assert_lives(&mut w, &mut first);
    w.nic.transport.close(first.conn, Close::Now);
    w.run(MS);
    assert_eq!(w.nic.transport.connections(), 1);
    // In one step: a late segment, a connection in the same place, and a late segment again.
    let late = first.segment(ACK, 0, 0);
    let got = w.say(&late);
    assert_eq!((got.len(), got[0].flags, got[0].seq), (1, RST, late.ack));
    let mut third = w.connect(4002, 3000);
    assert_ne!(third.conn, first.conn);
    let got = w.say(&late);
    assert_eq!((got.len(), got[0].flags, got[0].seq), (1, RST, late.ack));
    let got = w.say(&first.segment(RST, 0, 0));
    assert_eq!(got, []);
    assert_lives(&mut w, &mut third);
    assert_lives(&mut w, &mut second);
    // The same port again, while the others live.
    let mut fourth = w.connect(4000, 1 << 30);
    assert_lives(&mut w, &mut fourth);
    assert_lives(&mut w, &mut third);
    assert_lives(&mut w, &mut second);
    // The removed one's id names neither of them.
    let room = w.nic.dma.region(vec![0; 4]);
    w.nic.recv(first.conn, 3, room, false);
    w.run(MS);
    assert_eq!(w.nic.received(3), Some((Status::NotConnected, 0)));
}
