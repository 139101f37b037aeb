//! Connections of contexts over cables that lose, swap, repeat, damage and mark packets, in virtual
//! time.

use crate::ends;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ends::{compare_with_model, virtual_pair, Clock, End, BYTES};
use ringbell_gtlb::testing::Rng;
use ringbell_net::port::impair::{Faults, Impair};
use ringbell_net::port::{
    Arrived, Batch, Capabilities, Destination, Port, PortCounters, RefusedBy,
};
use ringbell_net::wire::roce::Bth;
use ringbell_net::wire::udp::{ECT0, MARKED};
use ringbell_net::NicTime;
use ringbell_nic_abi::RoceOpcode;
use ringbell_roce::verbs::{Completion, ContextConfig, QpCounters, Request, Status};

/// Packets that have arrived, by operation and ECN bits.
type Seen = Arc<Mutex<BTreeMap<(RoceOpcode, u8), u64>>>;

/// A port that counts what arrives.
struct Watched {
    inner: Impair,
    seen: Seen,
}

impl Port for Watched {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn mtu_to(&mut self, to: IpAddr) -> usize {
        self.inner.mtu_to(to)
    }
    fn send(&mut self, now: NicTime, to: &Destination, batch: &Batch, from: usize) -> usize {
        self.inner.send(now, to, batch, from)
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        let arrived = self.inner.receive(now)?;
        if let (Arrived::Datagram(d), Ok((bth, _))) = (&arrived, Bth::parse(&arrived)) {
            let mut seen = self.seen.lock().expect("no panic");
            *seen.entry((bth.opcode, d.ecn)).or_default() += 1;
        }
        Some(arrived)
    }
    fn flush(&mut self, now: NicTime) {
        self.inner.flush(now);
    }
    fn next_timer(&self) -> Option<NicTime> {
        self.inner.next_timer()
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        self.inner.poll_fds(fds);
    }
    fn next_refused(&mut self) -> Option<RefusedBy> {
        self.inner.next_refused()
    }
    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

/// What an end is, and its cable.
type Side = (ContextConfig, Faults);

/// Two connected ends, and what arrives at each.
fn over_cables(clock: &Clock, sides: [Side; 2], mtu: u32) -> ([End; 2], [Seen; 2]) {
    let seen: [Seen; 2] = Default::default();
    let made = |n: usize| {
        let (config, faults) = &sides[n];
        clock.context(config, |port| Watched {
            inner: Impair::new(Box::new(port), *faults).expect("faults that there are"),
            seen: seen[n].clone(),
        })
    };
    (virtual_pair(clock, [made(0), made(1)], mtu), seen)
}

fn counters(ends: &[End; 2]) -> [QpCounters; 2] {
    ends.each_ref().map(|e| e.qp.counters())
}

fn selective(selective: bool) -> ContextConfig {
    ContextConfig {
        selective,
        icrc: true,
        ..ContextConfig::default()
    }
}

#[test]
fn random_operations_end_as_a_model_says_over_bad_cables() {
    let mut repeated = [0, 0];
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut up_to = |most: u64| rng.below(most + 1) as f64 / 1000.0;
        let faults = Faults {
            loss: up_to(60),
            reorder: up_to(60),
            reorder_by: Duration::from_micros(20),
            duplicate: up_to(60),
            corrupt: up_to(20),
            delay: Duration::from_micros(5),
            seed,
            ..Faults::default()
        };
        let repairs = rng.below(4) != 0;
        let mtu = [256, 1024, 4096][rng.below(3) as usize];
        let side = (selective(repairs), faults);
        let clock = Clock::default();
        let (ends, _) = over_cables(&clock, [side.clone(), side], mtu);
        compare_with_model(seed, 60, &ends);
        for c in counters(&ends) {
            repeated[usize::from(repairs)] += c.repeated;
            if repairs {
                assert_eq!(
                    c.out_of_order, 0,
                    "seed {seed}: an early packet was dropped"
                );
            }
        }
    }
    assert!(repeated[0] > 500 && repeated[1] > 500, "{repeated:?}");
}

/// WRITEs of 64 KiB from one end to the other, so many in flight, for so long.
fn write_for(ends: &[End; 2], clock: &Clock, time: Duration) -> u64 {
    const LEN: u32 = 64 << 10;
    let [a, b] = ends;
    let end = clock.now().plus(time);
    let (mut posted, mut done) = (0, 0);
    while clock.now() < end {
        while posted < done + 64 {
            let request = Request::Write(b.remote(0), None);
            a.send(posted, request, BYTES as u64 / 2, LEN);
            posted += 1;
        }
        let mut out = [Completion::EMPTY; 64];
        let n = a.cq.poll(&mut out).expect("no overrun");
        assert!(out[..n].iter().all(|c| c.status == Status::Success));
        done += n as u64;
        a.pass();
    }
    done * u64::from(LEN)
}

/// Bytes per second of virtual time over a cable of 100 Gb/s and 100 µs, when of 10,000 packets so
/// many are lost.
fn goodput(sides: [bool; 2], lost: u32) -> (f64, [QpCounters; 2]) {
    let time = Duration::from_millis(20);
    let faults = Faults {
        loss: f64::from(lost) / 10_000.0,
        delay: Duration::from_micros(50),
        rate_bps: Some(100_000_000_000),
        seed: 7,
        ..Faults::default()
    };
    let clock = Clock::default();
    let sides = sides.map(|s| (selective(s), faults));
    let (ends, _) = over_cables(&clock, sides, 1024);
    let bytes = write_for(&ends, &clock, time);
    (bytes as f64 / time.as_secs_f64(), counters(&ends))
}

#[test]
fn losses_between_our_contexts_cost_a_fraction_of_what_they_cost_a_standard_peer() {
    println!("lost, go-back-N, selective repeat in GB/s");
    for (lost, ratio) in [(0, 0.9), (10, 1.5), (100, 5.0)] {
        let (back, went_back) = goodput([false, false], lost);
        let (repaired, kept) = goodput([true, true], lost);
        println!(
            "{:.1}% {:.3} {:.3}",
            f64::from(lost) / 100.0,
            back / 1e9,
            repaired / 1e9
        );
        assert!(
            repaired >= ratio * back,
            "{lost}: {repaired} against {back}"
        );
        // What comes early is dropped, or kept.
        assert_eq!(went_back[1].out_of_order > 0, lost > 0);
        assert_eq!(kept[1].out_of_order, 0);
    }
}

#[test]
fn a_peer_that_does_not_announce_it_gets_go_back_n() {
    for sides in [[true, false], [false, true]] {
        let (_, counted) = goodput(sides, 100);
        assert!(counted[0].repeated > 0 && counted[1].out_of_order > 0);
    }
}

#[test]
fn marks_are_answered_and_slow_the_sender_and_a_standard_peer_sends_no_packets_to_be_marked() {
    let time = Duration::from_millis(10);
    let run = |selective_too: bool, mark_beyond: Option<Duration>| {
        let clock = Clock::default();
        let cable = Faults {
            delay: Duration::from_micros(5),
            rate_bps: Some(10_000_000_000),
            mark_beyond,
            ..Faults::default()
        };
        let sides = [
            (selective(true), cable),
            (selective(selective_too), Faults::default()),
        ];
        let (ends, seen) = over_cables(&clock, sides, 4096);
        let bytes = write_for(&ends, &clock, time);
        let seen = seen.map(|s| s.lock().expect("no panic").clone());
        (bytes, seen)
    };
    let told = |seen: &BTreeMap<(RoceOpcode, u8), u64>| -> u64 {
        let answers = seen.iter();
        let answers = answers.filter(|(k, _)| k.0 == RoceOpcode::CongestionNotification);
        answers.map(|(_, n)| n).sum()
    };
    let with = |seen: &BTreeMap<(RoceOpcode, u8), u64>, ecn| seen.keys().any(|k| k.1 == ecn);

    let (free, [at_a, at_b]) = run(true, None);
    assert_eq!(told(&at_a), 0);
    assert!(with(&at_b, ECT0) && !with(&at_b, MARKED));
    // A switch that marks every packet.
    let (slowed, [at_a, at_b]) = run(true, Some(Duration::ZERO));
    assert!(with(&at_b, MARKED) && !with(&at_b, ECT0));
    let most = time.as_micros() as u64 / 50 + 1;
    assert!(
        (2..=most).contains(&told(&at_a)),
        "{} were told",
        told(&at_a)
    );
    assert!(slowed < free / 3, "{slowed} bytes, {free} unmarked");

    // Between a peer of the standard and ours.
    let (same, [at_a, at_b]) = run(false, Some(Duration::ZERO));
    assert_eq!(told(&at_a), 0);
    assert!(!with(&at_b, ECT0) && !with(&at_b, MARKED));
    assert!(same > free / 2, "{same} bytes, {free} between ours");
}
