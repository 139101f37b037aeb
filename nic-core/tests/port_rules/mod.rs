//! What every port must do, written once and run for each of them: an implementation that passes is
//! done.
#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.
#![allow(unreachable_pub)] // As of any module of tests.

#[macro_use]
pub mod packets;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ringbell_nic_core::port::{Batch, Destination, MacAddr, Port, MTU_MAX, MTU_MIN};
use ringbell_nic_core::types::NicTime;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

/// Bytes of an Ethernet header.
const HEADER: usize = 14;
/// Local experimental EtherType (IEEE 802): no host on the link sends it by itself.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// How long a frame may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Two ports that reach each other.
pub struct Link {
    pub ports: [Box<dyn Port>; 2],
    /// A reader that sleeps costs no frame: a sender without room gets `None` instead.
    pub lossless: bool,
    /// No other host sends on the link, so that counters are exact.
    pub alone: bool,
    /// Sends to the second port what no frame is; returns what that counts.
    pub malform: Option<Box<dyn FnMut() -> u64>>,
    /// What must live as long as the ports.
    pub keep: Box<dyn std::any::Any>,
}

/// A link in use: its clock, and what has arrived.
struct Run {
    ports: [Option<Box<dyn Port>>; 2],
    now: NicTime,
    early: [VecDeque<Vec<u8>>; 2],
}

/// A numbered frame of `len` bytes.
fn frame(dst: MacAddr, src: MacAddr, len: usize, number: u32) -> Vec<u8> {
    let mut f = [&dst.0[..], &src.0[..], &ETHERTYPE[..]].concat();
    f.extend(number.to_be_bytes());
    f.extend((0..len).map(|i| (i as u32).wrapping_mul(31).wrapping_add(number) as u8));
    f.truncate(len);
    f
}

fn number(f: &[u8]) -> u32 {
    u32::from_be_bytes([f[14], f[15], f[16], f[17]])
}

impl Run {
    fn new(link: Link) -> (Run, Box<dyn std::any::Any>) {
        let run = Run {
            ports: link.ports.map(Some),
            now: NicTime(1_000_000),
            early: [VecDeque::new(), VecDeque::new()],
        };
        (run, link.keep)
    }

    /// Both ports have each other's address, and any proofs have been made.
    fn met(link: Link) -> (Run, Box<dyn std::any::Any>) {
        let (mut run, keep) = Run::new(link);
        for from in [0, 1] {
            run.send_until_heard(from);
        }
        // What was sent again arrives late.
        for to in [0, 1] {
            while run.look(to).is_some() || run.wait(to, Duration::from_millis(50)) {}
            run.early[to].clear();
        }
        (run, keep)
    }

    fn port(&mut self, i: usize) -> &mut dyn Port {
        self.ports[i].as_deref_mut().expect("still open")
    }

    fn mac(&mut self, i: usize) -> MacAddr {
        self.port(i).capabilities().medium.mac()
    }

    fn mtu(&mut self, i: usize) -> usize {
        self.port(i).capabilities().mtu
    }

    /// Sends to the other port when there is room.
    fn send(&mut self, from: usize, len: usize, number: u32) -> bool {
        let dst = self.mac(1 - from);
        self.send_to(from, dst, len, number)
    }

    fn send_to(&mut self, from: usize, dst: MacAddr, len: usize, number: u32) -> bool {
        let src = self.mac(from);
        let now = self.tick();
        let Some(room) = self.port(from).tx_frame(now, dst) else {
            return false;
        };
        room[..len].copy_from_slice(&frame(dst, src, len, number));
        self.port(from).tx_commit(now, len);
        true
    }

    fn flush(&mut self, i: usize) {
        let now = self.tick();
        self.port(i).flush(now);
    }

    fn tick(&mut self) -> NicTime {
        self.now.0 += 1_000;
        self.now
    }

    /// What has arrived, without waiting.
    fn look(&mut self, at: usize) -> Option<Vec<u8>> {
        let early = self.early[at].pop_front();
        early.or_else(|| self.take(at))
    }

    /// The port's next frame. Those of other hosts are left out.
    fn take(&mut self, at: usize) -> Option<Vec<u8>> {
        let now = self.tick();
        loop {
            let f = self.port(at).receive(now)?;
            if f[12..14] == ETHERTYPE {
                return Some(f.to_vec());
            }
        }
    }

    /// Waits for the port's descriptors; returns whether one is readable. A port without any is
    /// looked at again soon.
    fn wait(&mut self, at: usize, time: Duration) -> bool {
        let mut fds = Vec::new();
        self.port(at).poll_fds(&mut fds);
        let mut fds: Vec<_> = fds.iter().map(|f| PollFd::new(f, PollFlags::IN)).collect();
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: time.as_nanos() as _,
        };
        poll(&mut fds, Some(&limit)).expect("valid arguments") > 0
    }

    /// The next frame of the other port.
    #[track_caller]
    fn recv(&mut self, at: usize) -> Vec<u8> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(f) = self.look(at) {
                return f;
            }
            assert!(Instant::now() < end, "no frame in {PATIENCE:?}");
            self.wait(at, Duration::from_millis(1));
            // A held batch leaves, and proofs are answered.
            if self.ports[1 - at].is_some() {
                self.flush(1 - at);
                if let Some(f) = self.take(1 - at) {
                    self.early[1 - at].push_back(f);
                }
            }
        }
    }

    /// Sends until a frame has arrived: the first ones may be lost on a link that may lose frames.
    #[track_caller]
    fn send_until_heard(&mut self, from: usize) {
        let end = Instant::now() + PATIENCE;
        loop {
            self.send(from, 60, u32::MAX);
            self.flush(from);
            self.wait(1 - from, Duration::from_millis(20));
            if self.take(1 - from).is_some() {
                return;
            }
            if let Some(f) = self.take(from) {
                self.early[from].push_back(f);
            }
            assert!(Instant::now() < end, "no frame in {PATIENCE:?}");
        }
    }
}

pub fn every_frame_arrives_once_and_whole_at_every_size(link: Link) {
    let (mut run, _keep) = Run::met(link);
    let longest = HEADER + run.mtu(0).min(run.mtu(1));
    let middle = [60, 61, 64, 127, 577, 1000, 1499];
    let sizes = [18, 19]
        .into_iter()
        .chain(middle)
        .chain([longest - 1, longest]);
    for (n, len) in sizes.filter(|&l| l <= longest).enumerate() {
        for from in [0, 1] {
            assert!(run.send(from, len, n as u32), "room for one frame");
            run.flush(from);
            let (dst, src) = (run.mac(1 - from), run.mac(from));
            assert!(
                run.recv(1 - from) == frame(dst, src, len, n as u32),
                "{len} bytes"
            );
        }
    }
    // No frame comes twice, and a header is a frame.
    assert!(run.send(0, HEADER, 0));
    run.flush(0);
    assert_eq!(run.recv(1).len(), HEADER);
    for at in [0, 1] {
        run.wait(at, Duration::from_millis(20));
        assert_eq!(run.look(at), None);
    }
}

pub fn frames_of_mixed_sizes_keep_their_order(link: Link) {
    let (mut run, _keep) = Run::met(link);
    let longest = HEADER + run.mtu(0);
    let sizes = [longest, longest, 60, 700, longest, longest, 61];
    let (mut sent, mut got) = (0, 0);
    while got < 2_000 {
        // Few at a time: a link that may lose frames loses none of these.
        while sent < (got + 32).min(2_000)
            && run.send(0, sizes[sent as usize % 7].min(longest), sent)
        {
            sent += 1;
        }
        run.flush(0);
        let f = run.recv(1);
        assert_eq!(
            (number(&f), f.len()),
            (got, sizes[got as usize % 7].min(longest))
        );
        got += 1;
    }
}

pub fn a_sender_without_room_receives_and_goes_on_later(link: Link) {
    let lossless = link.lossless;
    let (mut run, _keep) = Run::met(link);
    let mut sent = 0;
    while sent < 10_000 && run.send(0, 60, sent) {
        sent += 1;
    }
    assert!(!lossless || sent < 10_000, "it loses what finds no room");
    // Again and again `None`: nothing happens.
    if sent < 10_000 {
        assert!((0..100).all(|_| !run.send(0, 60, sent)));
    }
    assert!(run.send(1, 60, 7), "the other way is free");
    run.flush(1);
    assert_eq!(number(&run.recv(0)), 7);
    run.flush(0);
    let mut next = 0;
    while let Some(f) = run.look(1) {
        assert!(number(&f) >= next && (!lossless || number(&f) == next));
        next = number(&f) + 1;
    }
    assert!(next > 0 && (!lossless || next == sent), "{next} of {sent}");
    run.send_until_heard(0);
}

pub fn nothing_leaves_without_a_commit_and_a_batch_leaves_with_a_flush(link: Link) {
    let (mut run, _keep) = Run::met(link);
    let dst = run.mac(1);
    for n in 1..=16 {
        let now = run.tick();
        for _ in 0..3 {
            let room = run.port(0).tx_frame(now, dst).expect("room");
            room.fill(0xaa);
        }
        run.flush(0);
        for i in 0..n {
            assert!(run.send(0, 100, i));
        }
        run.flush(0);
        for i in 0..n {
            assert_eq!(number(&run.recv(1)), i);
        }
        assert_eq!(run.look(1), None);
    }
}

pub fn frames_of_a_batch_arrive_and_those_of_wrong_lengths_are_counted(link: Link) {
    let (mut run, _keep) = Run::met(link);
    let longest = HEADER + run.mtu(0);
    let (dst, src) = (run.mac(1), run.mac(0));
    let mut batch = Batch::new();
    let lens = [60, longest, HEADER - 1, 61, longest + 1, 64];
    for (number, len) in (0..).zip(lens) {
        batch.put(&frame(dst, src, len, number));
        batch.end();
    }
    let before = run.port(0).counters().tx_dropped;
    // From the second one on.
    let mut next = 1;
    while next < batch.len() {
        let now = run.tick();
        let to = Destination::Link(dst);
        next += run.port(0).send(now, &to, &batch, next);
    }
    run.flush(0);
    for (number, len) in [(1, longest), (3, 61), (5, 64)] {
        assert!(run.recv(1) == frame(dst, src, len, number), "{len} bytes");
    }
    let dropped = run.port(0).counters().tx_dropped - before;
    assert_eq!(dropped, 2);
    // A port of frames reaches no socket.
    let to = Destination::Socket {
        to: ([127, 0, 0, 1], 9).into(),
        ecn: 0,
        segmented: true,
    };
    let now = run.tick();
    assert_eq!(run.port(0).send(now, &to, &batch, 0), batch.len());
    run.flush(0);
    assert_eq!(run.look(1), None);
}

pub fn a_port_that_has_a_frame_is_not_quiet(link: Link) {
    let (mut run, _keep) = Run::met(link);
    for from in [0, 1, 0] {
        let to = 1 - from;
        assert!(run.send(from, 100, 7));
        // One that is quiet has sent it already: it gets no flush.
        if !run.port(from).is_quiet() {
            run.flush(from);
        }
        let deadline = Instant::now() + PATIENCE;
        while run.port(to).is_quiet() {
            assert!(Instant::now() < deadline, "a frame has come unseen");
            run.wait(to, Duration::from_millis(1));
        }
        assert_eq!(number(&run.recv(to)), 7);
    }
}

pub fn lengths_that_no_frame_has_are_dropped_and_counted(link: Link) {
    let (mut run, _keep) = Run::met(link);
    let dst = run.mac(1);
    let before = run.port(0).counters();
    let longest = HEADER + run.mtu(0);
    let wrong = [0, 1, HEADER - 1, longest + 1, usize::MAX];
    for len in wrong {
        let now = run.tick();
        assert!(run.port(0).tx_frame(now, dst).is_some());
        run.port(0).tx_commit(now, len);
    }
    // A commit without room is none.
    let now = run.tick();
    assert!(run.port(0).tx_frame(now, dst).is_some());
    assert!(run.send(0, 60, 5));
    run.flush(0);
    assert_eq!(number(&run.recv(1)), 5);
    let after = run.port(0).counters();
    assert_eq!(after.tx_dropped - before.tx_dropped, wrong.len() as u64);
    assert_eq!(after.tx_frames - before.tx_frames, 1);
}

pub fn counters_add_up(link: Link) {
    let alone = link.alone;
    let (mut run, _keep) = Run::met(link);
    let before = [0, 1].map(|i| run.port(i).counters());
    let mut bytes = 0;
    for n in 0..300_u32 {
        let len = 18 + n as usize * 4;
        let len = len.min(HEADER + run.mtu(0));
        assert!(run.send(0, len, n));
        bytes += len as u64;
        if n % 10 == 9 {
            run.flush(0);
            for _ in 0..10 {
                run.recv(1);
            }
        }
    }
    let after = [0, 1].map(|i| run.port(i).counters());
    assert_eq!(after[0].tx_frames - before[0].tx_frames, 300);
    assert_eq!(after[0].tx_bytes - before[0].tx_bytes, bytes);
    assert_eq!(after[0].tx_dropped, before[0].tx_dropped);
    let rx = (
        after[1].rx_frames - before[1].rx_frames,
        after[1].rx_bytes - before[1].rx_bytes,
    );
    assert!(
        rx == (300, bytes) || !alone && rx.0 > 300 && rx.1 > bytes,
        "{rx:?}"
    );
    assert_eq!(after[1].rx_malformed, before[1].rx_malformed);
}

pub fn the_room_holds_a_frame_of_the_mtu(link: Link) {
    let (mut run, _keep) = Run::met(link);
    for (i, dst) in [
        (0, MacAddr::BROADCAST),
        (0, MacAddr::local(9)),
        (1, MacAddr::local(1)),
    ] {
        let mtu = run.mtu(i);
        assert!((MTU_MIN..=MTU_MAX).contains(&mtu));
        let now = run.tick();
        let room = run.port(i).tx_frame(now, dst).expect("room");
        assert!(room.len() >= HEADER + mtu);
    }
}

pub fn a_broadcast_arrives(link: Link) {
    let (mut run, _keep) = Run::met(link);
    assert!(run.send_to(0, MacAddr::BROADCAST, 60, 3));
    run.flush(0);
    let src = run.mac(0);
    assert!(run.recv(1) == frame(MacAddr::BROADCAST, src, 60, 3));
}

pub fn a_reader_that_sleeps_is_woken(link: Link) {
    let (mut run, _keep) = Run::met(link);
    let mut fds = Vec::new();
    run.port(1).poll_fds(&mut fds);
    if fds.is_empty() {
        drop(fds);
        assert!(run.port(1).next_timer().is_some(), "it must be looked at");
        return;
    }
    drop(fds);
    // Falls asleep once it has found nothing for a while: no timer soon. A wire of a mesh asks its
    // neighbour now and then, and waits for what the other port has to confirm.
    let end = Instant::now() + PATIENCE;
    let soon = |run: &mut Run| {
        let soon = NicTime(run.now.0 + 100_000_000);
        run.port(1).next_timer().is_some_and(|t| t < soon)
    };
    while soon(&mut run) || run.wait(1, Duration::ZERO) {
        run.look(0);
        run.look(1);
        run.now.0 += 1_000_000;
        assert!(Instant::now() < end, "it never sleeps");
    }
    assert!(run.send(0, 60, 1));
    run.flush(0);
    assert!(run.wait(1, Duration::from_millis(999)), "no wake-up");
    assert_eq!(number(&run.recv(1)), 1);
}

pub fn an_ended_peer_stops_no_sender(link: Link) {
    let (mut run, _keep) = Run::met(link);
    let dst = run.mac(1);
    run.ports[1] = None;
    let before = run.port(0).counters();
    let src = run.mac(0);
    let (mut sent, mut waited) = (0, 0);
    while sent < 5_000 {
        let now = run.tick();
        match run.port(0).tx_frame(now, dst) {
            Some(room) => {
                room[..60].copy_from_slice(&frame(dst, src, 60, 0));
                run.port(0).tx_commit(now, 60);
                (sent, waited) = (sent + 1, 0);
            }
            None => {
                run.now.0 += 1_000_000;
                waited += 1;
                assert!(waited < 1_000, "no room for a second");
            }
        }
        if sent % 64 == 0 {
            run.flush(0);
            run.look(0);
        }
    }
    run.flush(0);
    let after = run.port(0).counters();
    let counted = |c: ringbell_nic_core::port::PortCounters| c.tx_frames + c.tx_dropped;
    assert_eq!(
        counted(after) - counted(before),
        5_000,
        "each sent or dropped"
    );
}

pub fn malformed_frames_are_dropped_and_counted(mut link: Link) {
    let Some(mut malform) = link.malform.take() else {
        // Its link carries whole frames alone; tests beside the port damage what it shares with its
        // peer.
        return;
    };
    let (mut run, _keep) = Run::met(link);
    let bad = |run: &mut Run| {
        let c = run.port(1).counters();
        c.rx_malformed + c.rx_unauthenticated
    };
    let before = bad(&mut run);
    let expected = malform();
    // Its own frames come after, and arrive.
    run.send_until_heard(0);
    assert_eq!(bad(&mut run) - before, expected);
}

/// A test for each rule and port: `name => function that makes a link`, which gives `None`, with a
/// line of its own, where the port cannot be made.
macro_rules! port_conformance {
    ($($name:ident => $link:path,)*) => { $(
        mod $name {
            port_conformance! { @rules $link:
                every_frame_arrives_once_and_whole_at_every_size,
                frames_of_mixed_sizes_keep_their_order,
                a_sender_without_room_receives_and_goes_on_later,
                nothing_leaves_without_a_commit_and_a_batch_leaves_with_a_flush,
                frames_of_a_batch_arrive_and_those_of_wrong_lengths_are_counted,
                a_port_that_has_a_frame_is_not_quiet,
                lengths_that_no_frame_has_are_dropped_and_counted,
                counters_add_up,
                the_room_holds_a_frame_of_the_mtu,
                a_broadcast_arrives,
                a_reader_that_sleeps_is_woken,
                an_ended_peer_stops_no_sender,
                malformed_frames_are_dropped_and_counted,
            }
        }
    )* };
    (@rules $link:path: $($rule:ident,)*) => { $(
        #[test]
        fn $rule() {
            if let Some(link) = $link() {
                crate::port_rules::$rule(link);
            }
        }
    )* };
}
