//! Queue pairs alone, in virtual time: every operation, exactly once, over wires that lose, repeat,
//! reorder and delay packets; and requests that a responder must refuse.

use crate::qp_support;
use crate::transport_support;

use std::collections::BTreeMap;
use std::time::Duration;

use qp_support::*;
use ringbell_nic_abi::{NakCode, RoceOpcode};
use ringbell_nic_core::transport::rdma::qp::*;
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::wire::roce::packet::Head;
use ringbell_nic_core::wire::roce::{AtomicEth, Bth, Extended, Packet, Psn, Qpn, Reth, Syndrome};
use transport_support::Rng;

/// What an operation must have done: a model of both memories.
fn model_and_post(w: &mut Wire, count: u64, model: &mut Expected) {
    for id in 0..count {
        for side in 0..2 {
            let len = match w.rng.below(4) {
                0 => w.rng.below(3) as u32,
                1 => MTU * w.rng.below(4) as u32,
                _ => w.rng.below(3000) as u32,
            };
            let mut data = vec![0; len as usize];
            w.rng.fill(&mut data);
            // READs are of memory that nothing writes: without a fence a later WRITE may overtake
            // their answers (IBTA vol. 1 §10.8.3.3).
            let at = w.rng.below(16 << 10);
            let remote = |at: u64| Remote {
                address: BASE + at,
                key: KEY,
            };
            let peer = &mut model.memory[1 - side];
            let immediate = (w.rng.below(2) == 0).then_some(w.rng.next() as u32);
            let (request, len) = match w.rng.below(6) {
                0 => {
                    model.received[1 - side].push((data.clone(), immediate));
                    (Request::Send(immediate), len)
                }
                1 => {
                    model.received[1 - side].push((data.clone(), None));
                    model.invalidated[1 - side].push(id as u32);
                    (Request::SendInvalidate(id as u32), len)
                }
                2 => {
                    peer[at as usize..][..data.len()].copy_from_slice(&data);
                    if immediate.is_some() {
                        model.received[1 - side].push((Vec::new(), immediate));
                    }
                    (Request::Write(remote(at), immediate), len)
                }
                3 => {
                    let at = at + (32 << 10);
                    let bytes = peer[at as usize..][..data.len()].to_vec();
                    model.reads[side].insert(id, bytes);
                    (Request::Read(remote(at)), len)
                }
                kind => {
                    let at = at & !7;
                    let word = &mut peer[at as usize..][..8];
                    let old = u64::from_le_bytes((&*word).try_into().unwrap()); // 8 bytes
                    model.olds[side].insert(id, old);
                    let (new, request) = match (kind, w.rng.below(2)) {
                        (4, _) => (old.wrapping_add(id), Request::FetchAdd(remote(at), id)),
                        (_, 0) => (id, Request::CompareSwap(remote(at), old, id)),
                        _ => (old, Request::CompareSwap(remote(at), !old, id)),
                    };
                    word.copy_from_slice(&new.to_le_bytes());
                    (request, 8)
                }
            };
            if !matches!(request, Request::Read(_)) {
                w.ends[side].memory.local.insert(id, data);
            }
            assert!(w.ends[side].qp.post(Work { id, request, len }));
        }
    }
}

#[derive(Default)]
struct Expected {
    memory: [Vec<u8>; 2],
    received: [Vec<(Vec<u8>, Option<u32>)>; 2],
    invalidated: [Vec<u32>; 2],
    reads: [BTreeMap<u64, Vec<u8>>; 2],
    olds: [BTreeMap<u64, u64>; 2],
}

#[test]
fn every_operation_is_executed_once_over_thousands_of_wires() {
    let (mut all, mut repeated, mut not_ready) = (BTreeMap::new(), 0, 0);
    for seed in 0..3_000 {
        let mut rng = Rng(seed ^ 0xfa17);
        let faults = [0; 4].map(|_| rng.below(80));
        let repair = [GO_BACK, SELECTIVE, TOO_FEW, paced()][seed as usize % 4];
        let mut w = Wire::new(seed, faults, repair);
        let mut model = Expected {
            memory: [0, 1].map(|i: usize| w.ends[i].memory.bytes.clone()),
            ..Expected::default()
        };
        for e in &mut w.ends {
            e.memory.not_ready = rng.below(4) as u32;
        }
        let count = 1 + rng.below(40);
        model_and_post(&mut w, count, &mut model);
        w.settle();
        for (side, e) in w.ends.iter().enumerate() {
            assert_eq!(e.qp.state(), State::Rts, "seed {seed}");
            let m = &e.memory;
            assert!(m.bytes == model.memory[side], "seed {seed}: memory");
            assert!(m.received == model.received[side], "seed {seed}: messages");
            assert_eq!(m.invalidated, model.invalidated[side]);
            for (id, bytes) in &model.reads[side] {
                assert!(
                    m.local.get(id).map_or(&[][..], |v| v) == bytes,
                    "seed {seed}"
                );
            }
            let done: Vec<u64> = m.done.iter().map(|d| d.0).collect();
            assert_eq!(done, (0..count).collect::<Vec<_>>(), "in order, once");
            for &(id, status) in &m.done {
                let old = model.olds[side].get(&id).copied();
                assert_eq!(status, WorkStatus::Success(old));
            }
            assert_eq!(m.stray, 0);
            repeated += e.qp.counters().repeated;
            not_ready += e.qp.counters().not_ready;
        }
        for (op, n) in w.seen {
            *all.entry(op).or_insert(0) += n;
        }
    }
    assert!(
        repeated > 1000 && not_ready > 1000,
        "{repeated} {not_ready}"
    );
    let unreliable = [RoceOpcode::DatagramSend, RoceOpcode::DatagramSendImm];
    let never: Vec<_> = RoceOpcode::ALL
        .iter()
        .filter(|op| !all.contains_key(op) && !unreliable.contains(op))
        .collect();
    assert!(never.is_empty(), "{never:?}");
}

/// Headers and payload of a packet.
type Sent = (Bth, Extended, Vec<u8>);

/// Gives a packet to a queue pair.
fn give(e: &mut End, sent: &Sent) {
    give_at(e, NicTime(0), sent);
}

fn give_at(e: &mut End, now: NicTime, (bth, extended, payload): &Sent) {
    let head = Head {
        bth: *bth,
        extended: *extended,
    };
    let mut bytes = vec![0; head.len() + payload.len() + 3];
    bytes[head.len()..][..payload.len()].copy_from_slice(payload);
    let len = head.emit(&mut bytes, payload.len());
    let packet = Packet::parse(&bytes[..len]).expect("a packet");
    e.qp.receive(now, &packet, &mut e.memory);
}

/// The acknowledgements that a queue pair sends, and how many packets it sends in all.
fn sent(e: &mut End) -> (Vec<Syndrome>, usize) {
    let (mut said, mut packets) = (Vec::new(), 0);
    let mut room = [0; 512];
    while let Transmit::Packet(len) = e.qp.transmit(NicTime(0), &mut room, &mut e.memory) {
        packets += 1;
        let answer = Packet::parse(&room[..len]).expect("ours");
        if let Extended::Aeth(aeth) | Extended::AtomicAck(aeth, _) = answer.extended {
            said.push(aeth.syndrome);
        }
    }
    (said, packets)
}

/// What a responder answers to packets, the first of which has the expected number.
fn answers(packets: &[Sent]) -> (Vec<Syndrome>, State, Memory) {
    let [_, mut e] = connected([Psn::new(100), Psn::new(200)], GO_BACK);
    let mut said = Vec::new();
    for packet in packets {
        give(&mut e, packet);
        said.extend(sent(&mut e).0);
    }
    (said, e.qp.state(), e.memory)
}

fn bth(opcode: RoceOpcode, psn: u32) -> Bth {
    Bth {
        acknowledge: true,
        ..Bth::new(opcode, Qpn::new(11), Psn::new(psn))
    }
}

#[test]
fn wrong_requests_are_refused_and_touch_nothing() {
    use RoceOpcode as Op;
    let reth = |address, key, length| {
        Extended::Reth(Reth {
            address,
            key,
            length,
        })
    };
    let atomic = |address, key| {
        Extended::Atomic(AtomicEth {
            address,
            key,
            swap_or_add: 1,
            compare: 0,
        })
    };
    let end = BASE + MEMORY as u64;
    let full = vec![7; MTU as usize];
    let (access, invalid) = (NakCode::RemoteAccess, NakCode::InvalidRequest);
    let none = Extended::None;
    let cases: Vec<(NakCode, Vec<Sent>)> = vec![
        // Keys, bounds, and a length that lies.
        (
            access,
            vec![(bth(Op::WriteOnly, 100), reth(BASE, KEY + 1, 4), vec![1; 4])],
        ),
        (
            access,
            vec![(bth(Op::WriteOnly, 100), reth(end - 3, KEY, 4), vec![1; 4])],
        ),
        (
            access,
            vec![(bth(Op::WriteOnly, 100), reth(BASE - 1, KEY, 4), vec![1; 4])],
        ),
        (
            access,
            vec![(bth(Op::WriteOnly, 100), reth(u64::MAX, KEY, 4), vec![1; 4])],
        ),
        (
            invalid,
            vec![(bth(Op::WriteOnly, 100), reth(BASE, KEY, 5), vec![1; 4])],
        ),
        (
            invalid,
            vec![(bth(Op::WriteOnly, 100), reth(BASE, KEY, 3), vec![1; 4])],
        ),
        (
            invalid,
            vec![(
                bth(Op::WriteFirst, 100),
                reth(BASE, KEY, u32::MAX),
                full.clone(),
            )],
        ),
        (
            access,
            vec![(
                bth(Op::ReadRequest, 100),
                reth(BASE, KEY ^ 1 << 31, 4),
                vec![],
            )],
        ),
        (
            access,
            vec![(bth(Op::ReadRequest, 100), reth(end, KEY, 1), vec![])],
        ),
        (
            invalid,
            vec![(bth(Op::ReadRequest, 100), reth(BASE, KEY, u32::MAX), vec![])],
        ),
        (
            access,
            vec![(bth(Op::FetchAdd, 100), atomic(end, KEY), vec![])],
        ),
        (
            invalid,
            vec![(bth(Op::FetchAdd, 100), atomic(BASE + 4, KEY), vec![])],
        ),
        (
            access,
            vec![(bth(Op::CompareSwap, 100), atomic(BASE, 0), vec![])],
        ),
        // The order of packets in a message, and their lengths.
        (
            invalid,
            vec![(bth(Op::SendMiddle, 100), none, full.clone())],
        ),
        (invalid, vec![(bth(Op::SendLast, 100), none, vec![1])]),
        (invalid, vec![(bth(Op::WriteLast, 100), none, vec![1])]),
        (invalid, vec![(bth(Op::SendFirst, 100), none, vec![1; 255])]),
        (invalid, vec![(bth(Op::SendOnly, 100), none, vec![1; 257])]),
        (
            invalid,
            vec![
                (bth(Op::SendFirst, 100), none, full.clone()),
                (bth(Op::SendOnly, 101), none, vec![1]),
            ],
        ),
        (
            invalid,
            vec![
                (bth(Op::SendFirst, 100), none, full.clone()),
                (bth(Op::SendLast, 101), none, vec![]),
            ],
        ),
        (
            invalid,
            vec![
                (bth(Op::SendFirst, 100), none, full.clone()),
                (bth(Op::WriteMiddle, 101), none, full.clone()),
            ],
        ),
        (
            invalid,
            vec![
                (bth(Op::WriteFirst, 100), reth(BASE, KEY, 300), full.clone()),
                (bth(Op::SendLast, 101), none, vec![1; 44]),
            ],
        ),
        (
            invalid,
            vec![
                (bth(Op::WriteFirst, 100), reth(BASE, KEY, 300), full.clone()),
                (bth(Op::WriteLast, 101), none, vec![1; 45]),
            ],
        ),
        (
            invalid,
            vec![
                (bth(Op::WriteFirst, 100), reth(BASE, KEY, 300), full.clone()),
                (bth(Op::ReadRequest, 101), reth(BASE, KEY, 4), vec![]),
            ],
        ),
    ];
    let fresh = Memory::new(1).bytes;
    for (code, packets) in cases {
        let (said, state, memory) = answers(&packets);
        assert_eq!(said.last(), Some(&Syndrome::Nak(code)), "{packets:?}");
        assert_eq!(state, State::Err, "{packets:?}");
        assert_eq!(memory.stray, 0);
        // At most the first packet of a valid WRITE.
        assert!(memory.bytes[MTU as usize..] == fresh[MTU as usize..]);
        assert!(memory.received.is_empty());
    }
}

#[test]
fn numbers_in_every_relation_to_the_window() {
    use RoceOpcode as Op;
    let send = |psn: u32| (bth(Op::SendOnly, psn), Extended::None, vec![psn as u8; 4]);
    let (said, state, memory) = answers(&[send(100)]);
    assert_eq!((said, state), (vec![Syndrome::ACK], State::Rts));
    assert_eq!(memory.received.len(), 1);
    // A gap is reported once, and closed by the packet that is missing.
    let gap = Syndrome::Nak(NakCode::Sequence);
    let (said, _, memory) = answers(&[send(101), send(102), send(100), send(102)]);
    assert_eq!(said, [gap, Syndrome::ACK, gap]);
    assert_eq!(memory.received.len(), 1);
    // Duplicates are acknowledged again and not executed: just before, and half of the numbers
    // before.
    for old in [99, 50, (1 << 24) - 5, 101 + (1 << 23)] {
        let (said, state, memory) = answers(&[send(100), send(old)]);
        assert_eq!((said, state), (vec![Syndrome::ACK; 2], State::Rts), "{old}");
        assert_eq!(memory.received.len(), 1, "{old}");
    }
    let (said, _, memory) = answers(&[send(100 + (1 << 23) - 1)]);
    assert_eq!((said, memory.received.len()), (vec![gap], 0));
}

fn reth(length: u32) -> Extended {
    Extended::Reth(Reth {
        address: BASE,
        key: KEY,
        length,
    })
}

#[test]
fn a_duplicate_of_a_read_that_never_was_is_not_answered() {
    use RoceOpcode as Op;
    let [_, mut e] = connected([Psn::new(100), Psn::new(200)], GO_BACK);
    for psn in 100..102 {
        let read = (bth(Op::ReadRequest, psn), reth(MTU), vec![]);
        give(&mut e, &read);
    }
    assert_eq!(sent(&mut e).1, 2);
    // One packet more than was asked for, the whole memory, the longest READ, and as many packets
    // as there are numbers.
    for length in [
        2 * MTU + 1,
        MEMORY as u32,
        1 << 31,
        (1 << 31) + MTU,
        u32::MAX,
    ] {
        give(&mut e, &(bth(Op::ReadRequest, 100), reth(length), vec![]));
        assert_eq!(sent(&mut e).1, 0, "{length}");
    }
    // What it had asked for, in one READ or in two.
    give(&mut e, &(bth(Op::ReadRequest, 100), reth(2 * MTU), vec![]));
    give(&mut e, &(bth(Op::ReadRequest, 101), reth(MTU), vec![]));
    assert_eq!((sent(&mut e).1, e.qp.state()), (2, State::Rts));
}

#[test]
fn the_reason_for_the_end_is_sent_however_many_answers_wait() {
    use RoceOpcode as Op;
    let [_, mut e] = connected([Psn::new(100), Psn::new(200)], GO_BACK);
    let send = |psn| (bth(Op::SendOnly, psn), Extended::None, vec![1; 4]);
    // Each gap is reported and each message acknowledged, and the port has no room meanwhile.
    for psn in 100..200 {
        give(&mut e, &send(psn + 1));
        give(&mut e, &send(psn));
    }
    give(&mut e, &(bth(Op::SendLast, 200), Extended::None, vec![1]));
    let (said, _) = sent(&mut e);
    assert!(said.len() < 100, "{} answers were kept", said.len());
    assert_eq!(said.last(), Some(&Syndrome::Nak(NakCode::InvalidRequest)));
    assert_eq!(e.qp.state(), State::Err);
}

#[test]
fn requests_that_were_answered_too_late_are_answered_once() {
    use RoceOpcode as Op;
    let [_, mut e] = connected([Psn::new(100), Psn::new(200)], GO_BACK);
    let add = |psn| {
        let operands = AtomicEth {
            address: BASE,
            key: KEY,
            swap_or_add: 1,
            compare: 0,
        };
        (bth(Op::FetchAdd, psn), Extended::Atomic(operands), vec![])
    };
    let read = |psn, packets| (bth(Op::ReadRequest, psn), reth(packets * MTU), vec![]);
    // The port has no room, and the peer repeats all that it may have in flight: 15 additions and a
    // READ of 4 packets.
    let before = u64::from_le_bytes(e.memory.bytes[..8].try_into().unwrap()); // 8 bytes
    for _ in 0..10 {
        (100..115).for_each(|psn| give(&mut e, &add(psn)));
        give(&mut e, &read(115, 4));
    }
    // Three packets of the READ leave, and it goes back to the third.
    let mut room = [0; 512];
    for _ in 0..18 {
        let made = e.qp.transmit(NicTime(0), &mut room, &mut e.memory);
        assert!(matches!(made, Transmit::Packet(_)));
    }
    give(&mut e, &read(117, 2));
    assert_eq!((sent(&mut e).1, e.qp.state()), (2, State::Rts));
    let after = u64::from_le_bytes(e.memory.bytes[..8].try_into().unwrap()); // 8 bytes
    assert_eq!(after, before.wrapping_add(15));
    // More than it may have in flight.
    (119..136).for_each(|psn| give(&mut e, &add(psn)));
    let (said, packets) = sent(&mut e);
    assert_eq!(
        (packets, said.last()),
        (17, Some(&Syndrome::Nak(NakCode::InvalidRequest)))
    );
}

#[test]
fn a_silent_peer_and_one_that_is_never_ready_are_given_up() {
    let give_up = |not_ready: u32, lost: u64, repair| {
        let mut w = Wire::new(1, [lost, 0, 0, 0], repair);
        w.ends[1].memory.not_ready = not_ready;
        w.ends[0].memory.local.insert(1, vec![1; 600]);
        w.ends[0].memory.local.insert(2, vec![2; 6]);
        for (id, len) in [(1, 600), (2, 6)] {
            let request = Request::Send(None);
            assert!(w.ends[0].qp.post(Work { id, request, len }));
        }
        w.settle();
        assert_eq!(w.ends[0].qp.state(), State::Err);
        let ended = w.now;
        (std::mem::take(&mut w.ends[0].memory.done), ended)
    };
    for repair in [GO_BACK, SELECTIVE, paced()] {
        let (done, at) = give_up(0, 1000, repair);
        let expected = [(1, WorkStatus::RetryExceeded), (2, WorkStatus::Flushed)];
        assert_eq!(done, expected);
        assert!((1_000_000_000..2_000_000_000).contains(&at.0), "{at:?}");
        let (done, _) = give_up(u32::MAX, 0, repair);
        assert_eq!(done[0].1, WorkStatus::ReceiverNotReady);
    }
}

#[test]
fn answers_to_nothing_are_ignored() {
    let [mut e, _] = connected([Psn::new(100), Psn::new(200)], GO_BACK);
    e.memory.local.insert(1, vec![1; 600]);
    let request = Request::Send(None);
    assert!(e.qp.post(Work {
        id: 1,
        request,
        len: 600
    }));
    let mut room = [0; 1024];
    while e.qp.transmit(NicTime(0), &mut room, &mut e.memory) != Transmit::Nothing {}
    let mut rng = Rng(3);
    for _ in 0..20_000 {
        // Never the three numbers in flight.
        let psn = Psn::new(103 + rng.below((1 << 24) - 3) as u32);
        let ops = [
            RoceOpcode::Acknowledge,
            RoceOpcode::ReadResponseOnly,
            RoceOpcode::AtomicAcknowledge,
        ];
        let opcode = ops[rng.below(3) as usize];
        let mut bytes = [0; 64];
        bytes[..12].copy_from_slice(&Bth::new(opcode, Qpn::new(10), psn).bytes());
        bytes[12] = [0x1f, 0x20, 0x60, 0x61, 0x62, 0x63][rng.below(6) as usize];
        let len = match opcode {
            RoceOpcode::AtomicAcknowledge => 24,
            _ => 16,
        };
        let packet = Packet::parse(&bytes[..len]).expect("a packet");
        assert!(!e.qp.receive(NicTime(0), &packet, &mut e.memory));
    }
    assert_eq!((e.qp.state(), e.memory.done.len()), (State::Rts, 0));
}

#[test]
fn a_drained_queue_finishes_what_it_has_begun() {
    let mut w = Wire::new(4, [0; 4], GO_BACK);
    for id in 1..=2 {
        w.ends[0].memory.local.insert(id, vec![id as u8; 600]);
    }
    let request = Request::Send(None);
    assert!(w.ends[0].qp.post(Work {
        id: 1,
        request,
        len: 600
    }));
    w.tick();
    let e = &mut w.ends[0];
    e.qp.modify(Change::Sqd, &mut e.memory).unwrap(); // from RTS
    assert!(e.qp.post(Work {
        id: 2,
        request,
        len: 600
    }));
    for _ in 0..100 {
        w.tick();
    }
    assert_eq!(w.ends[0].memory.done, [(1, WorkStatus::Success(None))]);
    let e = &mut w.ends[0];
    let refused =
        e.qp.modify(Change::Init, &mut e.memory)
            .unwrap_err()
            .to_string();
    assert!(
        refused.contains("SQD") && refused.contains("INIT"),
        "{refused}"
    );
    e.qp.modify(Change::Resume, &mut e.memory).unwrap(); // from SQD
    w.settle();
    assert_eq!(w.ends[0].memory.done.len(), 2);
    let e = &mut w.ends[0];
    e.qp.modify(Change::Reset, &mut e.memory).unwrap(); // from RTS
    assert!(
        !e.qp.post(Work {
            id: 3,
            request,
            len: 6
        }),
        "RESET sends nothing"
    );
}

#[test]
fn an_acknowledgement_of_a_short_message_leaves_behind_a_request_or_in_time() {
    let patience = Duration::from_micros(20);
    let message = |psn| (bth(RoceOpcode::SendOnly, psn), Extended::None, vec![7; 8]);
    let waiting = || {
        let [_, mut e] = connected([Psn::new(100), Psn::new(200)], GO_BACK);
        e.qp.delay_acknowledgements(patience);
        give(&mut e, &message(100));
        assert_eq!(sent(&mut e), (vec![], 0), "it waits");
        assert_eq!(e.qp.next_timer(), Some(NicTime(0).plus(patience)));
        e
    };
    // With a request of its own side: behind it, when it is for three messages.
    let mut room = [0; 512];
    let mut e = waiting();
    for (psn, acknowledges) in [(100, false), (101, false), (102, true), (103, false)] {
        if psn > 100 {
            give(&mut e, &message(psn));
        }
        let id = psn.into();
        e.memory.local.insert(id, vec![1; 8]);
        let request = Request::Send(None);
        let len = 8;
        assert!(e.qp.post(Work { id, request, len }));
        let mut opcodes = Vec::new();
        while let Transmit::Packet(len) = e.qp.transmit(NicTime(0), &mut room, &mut e.memory) {
            let packet = Packet::parse(&room[..len]).expect("ours");
            opcodes.push(packet.bth.opcode);
        }
        let both = [RoceOpcode::SendOnly, RoceOpcode::Acknowledge];
        assert_eq!(opcodes, both[..1 + usize::from(acknowledges)]);
    }
    // Alone, when its time has come.
    let mut e = waiting();
    let due = NicTime(0).plus(patience);
    let made = e.qp.transmit(due, &mut room, &mut e.memory);
    assert!(matches!(made, Transmit::Packet(_)));
    assert_eq!(e.qp.next_timer(), None);
    // Of several messages one, at once; and of a message that came twice.
    let mut e = waiting();
    for psn in 101..104 {
        give(&mut e, &message(psn));
    }
    assert_eq!(sent(&mut e).1, 1);
    give(&mut e, &message(103));
    assert_eq!(sent(&mut e).1, 1);
}

#[test]
fn the_end_of_a_long_message_is_acknowledged_at_once() {
    let patience = Duration::from_micros(20);
    let [_, mut e] = connected([Psn::new(100), Psn::new(200)], GO_BACK);
    e.qp.delay_acknowledgements(patience);
    let mtu = e.qp.mtu() as usize;
    let mut psn = 100;
    let mut arrive = |e: &mut End, at: NicTime, len: usize, asks: bool| {
        let mut header = bth(RoceOpcode::SendOnly, psn);
        header.acknowledge = asks;
        give_at(e, at, &(header, Extended::None, vec![7; len]));
        psn += 1;
        let mut room = [0; 512];
        let made = e.qp.transmit(at, &mut room, &mut e.memory);
        matches!(made, Transmit::Packet(_))
    };
    // Many bytes, of which the last packet asks; then what was left of them.
    let begin = NicTime(1_000_000);
    for _ in 0..16_384 / mtu {
        assert!(!arrive(&mut e, begin, mtu, false));
    }
    assert!(arrive(&mut e, begin, mtu, true));
    let soon = begin.plus(patience / 2);
    assert!(arrive(&mut e, soon, 8, true), "it is their end");
    // A message of its own waits again.
    let later = begin.plus(patience);
    assert!(!arrive(&mut e, later, 8, true));
    assert_eq!(e.qp.next_timer(), Some(later.plus(patience)));
}

#[test]
fn some_requests_leave_before_an_acknowledgement() {
    let [_, mut e] = connected([Psn::new(100), Psn::new(200)], GO_BACK);
    let at = Remote {
        address: BASE,
        key: KEY,
    };
    let write = |e: &mut End, id| {
        e.memory.local.insert(id, vec![1; 8]);
        let request = Request::Write(at, None);
        assert!(e.qp.post(Work {
            id,
            request,
            len: 8
        }));
    };
    let mut room = [0; 512];
    let mut opcodes = |e: &mut End| {
        let mut all = Vec::new();
        while let Transmit::Packet(len) = e.qp.transmit(NicTime(0), &mut room, &mut e.memory) {
            all.push(Packet::parse(&room[..len]).expect("ours").bth.opcode);
        }
        all
    };
    use RoceOpcode as Op;
    let put = |psn| (bth(Op::WriteOnly, psn), reth(8), vec![7; 8]);
    // Without a request the acknowledgement leaves at once.
    give(&mut e, &put(100));
    assert_eq!(opcodes(&mut e), [Op::Acknowledge]);
    give(&mut e, &put(101));
    (0..10).for_each(|id| write(&mut e, id));
    let mut mixed = [Op::WriteOnly; 11];
    mixed[8] = Op::Acknowledge;
    assert_eq!(opcodes(&mut e), mixed);
    // An answer that brings bytes goes first.
    give(&mut e, &(bth(Op::ReadRequest, 102), reth(8), vec![]));
    give(&mut e, &put(103));
    write(&mut e, 10);
    let answers = [Op::ReadResponseOnly, Op::WriteOnly, Op::Acknowledge];
    assert_eq!(opcodes(&mut e), answers);
}

#[test]
fn a_long_read_asks_for_no_more_than_the_window_at_once() {
    for (repair, faults) in [
        (GO_BACK, [0; 4]),
        (SELECTIVE, [0; 4]),
        (GO_BACK, [20, 20, 0, 0]),
        (SELECTIVE, [20, 20, 0, 0]),
        (TOO_FEW, [20, 0, 20, 0]),
    ] {
        let mut w = Wire::new(5, faults, repair);
        let at = Remote {
            address: BASE,
            key: KEY,
        };
        // Whole packets, and a part of one.
        let lens = [200 * MTU, 100 * MTU + 3, 1];
        for (id, len) in (0..).zip(lens) {
            let request = Request::Read(at);
            assert!(w.ends[0].qp.post(Work { id, request, len }));
        }
        let mut most = 0;
        for _ in 0..20_000 {
            w.tick();
            most = most.max(w.flying.iter().filter(|f| f.1 == 0).count());
            if w.ends[0].qp.is_idle() {
                break;
            }
        }
        let done: Vec<_> = (0..3).map(|id| (id, WorkStatus::Success(None))).collect();
        assert_eq!(w.ends[0].memory.done, done);
        for (id, len) in (0..).zip(lens) {
            let read = &w.ends[0].memory.local[&id];
            assert!(*read == w.ends[1].memory.bytes[..len as usize]);
        }
        if faults == [0; 4] {
            // The window is 32 packets, and a request asks for half of it.
            assert!(most <= 32, "{most} packets on their way at once");
            assert_eq!(w.seen[&RoceOpcode::ReadRequest], 13 + 7 + 1);
        }
    }
}
