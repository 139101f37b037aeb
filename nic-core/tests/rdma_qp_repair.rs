//! How queue pairs repair losses and react to marks: reports of early packets, true and false, and
//! notifications of congestion.

use crate::qp_support;
use crate::transport_support;

use qp_support::*;
use ringbell_nic_abi::{NakCode, RoceOpcode};
use ringbell_nic_core::transport::rdma::qp::*;
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::wire::roce::packet::Head;
use ringbell_nic_core::wire::roce::{Aeth, Bth, Extended, Packet, Psn, Qpn, Syndrome};
use transport_support::Rng;

/// A packet of the responder `a` for the requester `b`, with these bits behind a NAK.
fn report(expected: u32, bits: &[u8]) -> Vec<u8> {
    let head = Head {
        bth: Bth::new(RoceOpcode::Acknowledge, Qpn::new(10), Psn::new(expected)),
        extended: Extended::Aeth(Aeth {
            syndrome: Syndrome::Nak(NakCode::Sequence),
            msn: 0,
        }),
    };
    let mut bytes = vec![0; head.len() + bits.len()];
    bytes[head.len()..].copy_from_slice(bits);
    head.emit(&mut bytes, bits.len());
    bytes
}

#[test]
fn a_report_brings_the_missing_packets_alone_and_a_lying_one_brings_no_harm() {
    let start = || {
        let [mut e, _] = connected([Psn::new(100), Psn::new(200)], SELECTIVE);
        e.memory.local.insert(1, vec![1; 10 * MTU as usize]);
        let request = Request::Send(None);
        let len = 10 * MTU;
        assert!(e.qp.post(Work {
            id: 1,
            request,
            len
        }));
        assert_eq!(sent(&mut e), (100..110).collect::<Vec<_>>());
        e
    };
    fn sent(e: &mut End) -> Vec<u32> {
        let mut room = [0; 512];
        let mut psns = Vec::new();
        while let Transmit::Packet(_) = e.qp.transmit(NicTime(0), &mut room, &mut e.memory) {
            psns.push(Bth::parse(&room).expect("ours").0.psn.value());
        }
        psns
    }
    fn hear(e: &mut End, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("a packet");
        e.qp.receive(NicTime(0), &packet, &mut e.memory);
    }
    // 102 and 105 are missing, and 107 to 109 are still under way.
    let mut e = start();
    hear(&mut e, &report(102, &[0b1011, 0, 0, 0]));
    assert_eq!(sent(&mut e), [102], "105 may have been overtaken");
    hear(&mut e, &report(102, &[0b0111_1011, 0, 0, 0]));
    assert_eq!(sent(&mut e), [105]);
    // The same again says nothing new: both are on their way.
    hear(&mut e, &report(102, &[0b0111_1011, 0, 0, 0]));
    assert!(sent(&mut e).is_empty());

    // Any bits, for any number: never a panic, never more than what was posted.
    let mut rng = Rng(5);
    for _ in 0..2_000 {
        let mut e = start();
        for _ in 0..20 {
            let mut bits = vec![0; 4 * rng.below(129) as usize];
            rng.fill(&mut bits);
            let expected = match rng.below(4) {
                0 => rng.next() as u32,
                _ => 98 + rng.below(14) as u32,
            };
            hear(&mut e, &report(expected, &bits));
            assert!(sent(&mut e).iter().all(|n| (100..110).contains(n)));
        }
        // What was reported and not acknowledged is sent in the end, or the peer is given up.
        let mut now = NicTime(0);
        while e.qp.state() == State::Rts && !e.qp.is_idle() {
            now = e.qp.next_timer().expect("a deadline");
            e.qp.expire(now, &mut e.memory);
            sent_at(&mut e, now);
        }
        assert!(now.0 < 3_000_000_000, "{now:?}");
    }
    fn sent_at(e: &mut End, now: NicTime) {
        let mut room = [0; 512];
        while let Transmit::Packet(_) = e.qp.transmit(now, &mut room, &mut e.memory) {}
    }
}

#[test]
fn a_responder_that_keeps_packets_reports_them_once_for_each_gap() {
    let [_, mut e] = connected([Psn::new(100), Psn::new(200)], SELECTIVE);
    let mut hear = |psn: u32| {
        let head = Head {
            bth: Bth::new(RoceOpcode::SendOnly, Qpn::new(11), Psn::new(psn)),
            extended: Extended::None,
        };
        let mut bytes = vec![0; head.len() + 4];
        bytes[head.len()..].fill(psn as u8);
        head.emit(&mut bytes, 4);
        let packet = Packet::parse(&bytes).expect("a packet");
        e.qp.receive(NicTime(0), &packet, &mut e.memory);
        let mut room = [0; 600];
        let mut said = Vec::new();
        while let Transmit::Packet(len) = e.qp.transmit(NicTime(0), &mut room, &mut e.memory) {
            let answer = Packet::parse(&room[..len]).expect("ours");
            said.push((answer.bth.psn.value(), answer.payload.to_vec()));
        }
        let received = e.memory.received.iter().map(|r| r.0[0]).collect::<Vec<_>>();
        (said, received)
    };
    assert_eq!(hear(102), (vec![(100, vec![0b10, 0, 0, 0])], vec![]));
    assert_eq!(hear(103), (vec![], vec![]), "nothing new is missing");
    let bits = vec![(100, vec![0b1_0110, 0, 0, 0])];
    assert_eq!(hear(105), (bits, vec![]));
    assert_eq!(hear(102), (vec![], vec![]), "a duplicate");
    assert_eq!(hear(100), (vec![], vec![100]));
    assert_eq!(hear(101), (vec![], vec![100, 101, 102, 103]));
    assert_eq!(hear(104).1, [100, 101, 102, 103, 104, 105]);
    // Beyond what can be kept.
    assert_eq!(hear(106 + 32), (vec![], vec![100, 101, 102, 103, 104, 105]));
}

#[test]
fn marked_packets_slow_a_paced_requester_and_are_told_at_most_every_50_us() {
    let run = |marks: u64| {
        let mut w = Wire::new(7, [0, 0, 0, marks], paced());
        for id in 0..200 {
            w.ends[0].memory.local.insert(id, vec![3; 2560]);
            let request = Request::Send(None);
            let len = 2560;
            assert!(w.ends[0].qp.post(Work { id, request, len }));
        }
        w.settle();
        let told = w.seen.get(&RoceOpcode::CongestionNotification);
        (w.now.0, told.copied().unwrap_or(0))
    };
    let (free, none) = run(0);
    let (slowed, told) = run(1000);
    assert_eq!(none, 0);
    assert!(slowed > 10 * free, "{slowed} ns, unmarked {free} ns");
    assert!(told <= slowed / 50_000 + 1, "{told} in {slowed} ns");
}

/// Posts sends of so many packets each.
fn post_sends(w: &mut Wire, ids: std::ops::Range<u64>, packets: u32) {
    let len = packets * MTU;
    for id in ids {
        w.ends[0]
            .memory
            .local
            .insert(id, vec![id as u8; len as usize]);
        let request = Request::Send(None);
        assert!(w.ends[0].qp.post(Work { id, request, len }));
    }
}

/// As over several ways: three of ten packets take four times as long, and none is lost.
#[test]
fn packets_that_are_late_are_waited_for_once_that_was_seen() {
    let mut w = Wire::new(11, [0, 0, 300, 0], SELECTIVE);
    post_sends(&mut w, 0..50, 20);
    w.settle();
    let first = w.ends[0].qp.counters();
    post_sends(&mut w, 50..250, 20);
    w.settle();
    let all = w.ends[0].qp.counters();
    assert_eq!(all.timeouts, 0);
    // A probe may leave beside 4,000 packets.
    let repeated = all.repeated - first.repeated;
    assert!(repeated < 40, "{repeated} of 4,000, {first:?}");
}

#[test]
fn a_probe_finds_a_lost_end_long_before_the_time_out() {
    for lost in 1..5 {
        let mut w = Wire::new(13, [0; 4], SELECTIVE);
        post_sends(&mut w, 0..20, 3);
        w.settle();
        let begin = w.now.0;
        post_sends(&mut w, 20..21, 5);
        w.tick();
        // They have left and not arrived: the last ones never will.
        post_sends(&mut w, 21..22, 5);
        let mut room = [0; 512];
        let e = &mut w.ends[0];
        let mut left = Vec::new();
        while let Transmit::Packet(len) = e.qp.transmit(w.now, &mut room, &mut e.memory) {
            left.push(room[..len].to_vec());
        }
        assert_eq!(left.len(), 5);
        for bytes in left.into_iter().take(5 - lost) {
            w.flying.push_back((w.now.0 + 10_000, 1, bytes));
        }
        w.settle();
        let took = w.now.0 - begin;
        assert!(took < 250_000, "{took} ns with {lost} lost");
        assert_eq!(w.ends[0].qp.counters().timeouts, 0);
        assert_eq!(w.ends[1].memory.received.len(), 22);
    }
}

#[test]
fn a_silent_peer_is_probed_once() {
    let mut w = Wire::new(17, [0; 4], SELECTIVE);
    post_sends(&mut w, 0..20, 3);
    w.settle();
    post_sends(&mut w, 20..21, 5);
    w.faults = [1000, 0, 0, 0];
    let sent = |w: &Wire| w.seen.values().sum::<u64>();
    let before = sent(&w);
    let begin = w.now.0;
    // The first time-out is after 500 us.
    while w.now.0 < begin + 450_000 {
        w.tick();
    }
    assert_eq!(sent(&w), before + 5 + 1);
    while w.ends[0].qp.state() == State::Rts {
        w.tick();
    }
    let tries = w.ends[0].qp.counters().timeouts;
    assert!(sent(&w) <= before + 6 + 5 * tries, "{tries} time-outs");
}
