//! Queue pairs alone, in virtual time: every operation, exactly once, over wires that lose, repeat, reorder and delay packets; and
//! requests that a responder must refuse.

mod transport_support;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ringbell_nic_abi::{NakCode, RoceOpcode};
use ringbell_nic_core::transport::rdma::qp::*;
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::wire::roce::packet::Head;
use ringbell_nic_core::wire::roce::{
    Aeth, AtomicEth, Bth, Extended, Packet, Psn, Qpn, Reth, Syndrome,
};
use transport_support::Rng;

const MTU: u32 = 256;
const KEY: u32 = 0x1234_5678;
const BASE: u64 = 0x7000_0000;
const MEMORY: usize = 64 << 10;

/// Memory of one side, receives of any length, and what has ended.
struct Memory {
    bytes: Vec<u8>,
    /// What requests send, and where READs go, by their id.
    local: BTreeMap<u64, Vec<u8>>,
    done: Vec<(u64, WorkStatus)>,
    received: Vec<(Vec<u8>, Option<u32>)>,
    open: Vec<u8>,
    invalidated: Vec<u32>,
    /// Receives that are not ready yet.
    not_ready: u32,
    /// Accesses outside what the key covers: must stay 0.
    stray: u32,
}

impl Memory {
    fn new(seed: u64) -> Memory {
        let mut bytes = vec![0; MEMORY];
        Rng(seed).fill(&mut bytes);
        Memory {
            bytes,
            local: BTreeMap::new(),
            done: Vec::new(),
            received: Vec::new(),
            open: Vec::new(),
            invalidated: Vec::new(),
            not_ready: 0,
            stray: 0,
        }
    }

    fn range(&mut self, at: Remote, len: usize) -> std::ops::Range<usize> {
        let from = at.address.wrapping_sub(BASE) as usize;
        if at.key != KEY || from.checked_add(len).is_none_or(|end| end > MEMORY) {
            self.stray += 1;
            return 0..0;
        }
        from..from + len
    }
}

impl Client for Memory {
    fn gather(&mut self, id: u64, offset: u32, to: &mut [u8]) -> Result<(), Unavailable> {
        let from = offset as usize;
        if !to.is_empty() {
            to.copy_from_slice(&self.local[&id][from..from + to.len()]);
        }
        Ok(())
    }

    fn scatter(&mut self, id: u64, offset: u32, bytes: &[u8]) -> Result<(), Unavailable> {
        let to = self.local.entry(id).or_default();
        assert_eq!(to.len(), offset as usize, "in order, each byte once");
        to.extend(bytes);
        Ok(())
    }

    fn done(&mut self, id: u64, status: WorkStatus) {
        self.done.push((id, status));
    }

    fn receive(&mut self, part: Part<'_>) -> Result<(), Refusal> {
        if self.not_ready > 0 {
            self.not_ready -= 1;
            return Err(Refusal::NotReady);
        }
        assert_eq!(part.first, self.open.is_empty() || part.bytes.is_empty());
        self.open.extend(part.bytes);
        if part.last {
            self.received
                .push((std::mem::take(&mut self.open), part.immediate));
        }
        Ok(())
    }

    fn check(&mut self, at: Remote, len: u32, _: Right) -> Result<(), Refusal> {
        let from = at.address.wrapping_sub(BASE);
        let fits = from
            .checked_add(len.into())
            .is_some_and(|end| end <= MEMORY as u64);
        match at.key == KEY && fits {
            true => Ok(()),
            false => Err(Refusal::Nak(NakCode::RemoteAccess)),
        }
    }

    fn write(&mut self, at: Remote, bytes: &[u8]) -> Result<(), Refusal> {
        let range = self.range(at, bytes.len());
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, at: Remote, to: &mut [u8]) -> Result<(), Refusal> {
        self.check(at, to.len() as u32, Right::Read)?;
        let range = self.range(at, to.len());
        to.copy_from_slice(&self.bytes[range]);
        Ok(())
    }

    fn atomic(&mut self, operation: Atomic, o: &AtomicEth) -> Result<u64, Refusal> {
        let at = Remote {
            address: o.address,
            key: o.key,
        };
        self.check(at, 8, Right::Write)?;
        let range = self.range(at, 8);
        let word = &mut self.bytes[range];
        let old = u64::from_le_bytes(word.try_into().unwrap()); // 8 bytes
        let new = match operation {
            Atomic::FetchAdd => old.wrapping_add(o.swap_or_add),
            Atomic::CompareSwap if old == o.compare => o.swap_or_add,
            Atomic::CompareSwap => old,
        };
        word.copy_from_slice(&new.to_le_bytes());
        Ok(old)
    }

    fn invalidate(&mut self, key: u32) -> Result<(), Refusal> {
        self.invalidated.push(key);
        Ok(())
    }
}

struct End {
    qp: QueuePair,
    memory: Memory,
}

/// Two queue pairs and a wire between them.
struct Wire {
    ends: [End; 2],
    /// Packets under way: when they arrive, to whom.
    flying: VecDeque<(u64, usize, Vec<u8>)>,
    now: NicTime,
    rng: Rng,
    /// Of 1,000 packets, so many are lost, doubled, delayed, marked by a switch.
    faults: [u64; 4],
    /// How many of each operation have left.
    seen: BTreeMap<RoceOpcode, u64>,
}

/// How losses are repaired: packets kept, and congestion control.
#[derive(Debug, Clone, Copy)]
struct Repair {
    early: u32,
    congestion: Congestion,
}

/// As the standard has it.
const GO_BACK: Repair = Repair {
    early: 0,
    congestion: Congestion::Window,
};
const SELECTIVE: Repair = Repair {
    early: 32,
    congestion: Congestion::Window,
};
/// Fewer are kept than the peer sends.
const TOO_FEW: Repair = Repair {
    early: 8,
    congestion: Congestion::Fixed,
};

fn paced() -> Repair {
    Repair {
        early: 32,
        congestion: Congestion::Dcqcn(DcqcnConfig {
            line_rate: 100_000_000,
            ..DcqcnConfig::default()
        }),
    }
}

fn connected(first: [Psn; 2], repair: Repair) -> [End; 2] {
    [0, 1].map(|i| {
        let mut qp = QueuePair::new();
        let mut memory = Memory::new(i as u64);
        let rtr = RtrAttributes {
            peer: Qpn::new(10 + (1 - i as u32)),
            expected: first[1 - i],
            mtu: MTU,
            resources: 16,
            rnr_timer: 1,
            early: repair.early,
        };
        let rts = RtsAttributes {
            first: first[i],
            depth: 4,
            retries: 7,
            rnr_retries: Some(100),
            give_up: Duration::from_secs(1),
            pace: PaceConfig {
                window: 32,
                timeout_min: Duration::from_micros(500),
                timeout_max: Duration::from_millis(50),
                congestion: repair.congestion,
            },
            selective: repair.early > 0,
        };
        for change in [Change::Init, Change::Rtr(rtr), Change::Rts(rts)] {
            qp.modify(change, &mut memory).unwrap(); // the table's order
        }
        End { qp, memory }
    })
}

impl Wire {
    fn new(seed: u64, faults: [u64; 4], repair: Repair) -> Wire {
        let mut rng = Rng(seed);
        // Close to the end of the numbers half of the time.
        let mut psn = || match rng.below(2) {
            0 => Psn::new((1 << 24) - 1 - rng.below(100) as u32),
            _ => Psn::new(rng.next() as u32),
        };
        Wire {
            ends: connected([psn(), psn()], repair),
            flying: VecDeque::new(),
            now: NicTime(0),
            rng,
            faults,
            seen: BTreeMap::new(),
        }
    }

    fn tick(&mut self) {
        for (i, e) in self.ends.iter_mut().enumerate() {
            e.qp.expire(self.now, &mut e.memory);
            let mut room = [0; 512];
            while let Transmit::Packet(len) = e.qp.transmit(self.now, &mut room, &mut e.memory) {
                let opcode = Bth::parse(&room).expect("ours").0.opcode;
                *self.seen.entry(opcode).or_default() += 1;
                let mut chance = |n: usize| self.rng.below(1000) < self.faults[n];
                if chance(0) {
                    continue;
                }
                let copies = if chance(1) { 2 } else { 1 };
                let late = if chance(2) { 30_000 } else { 0 };
                for k in 0..copies {
                    let at = self.now.0 + 10_000 + late * (k + 1);
                    self.flying.push_back((at, 1 - i, room[..len].to_vec()));
                }
            }
        }
        self.now = NicTime(self.now.0 + 10_000);
        for _ in 0..self.flying.len() {
            let Some((at, to, bytes)) = self.flying.pop_front() else {
                break;
            };
            if at > self.now.0 {
                self.flying.push_back((at, to, bytes));
                continue;
            }
            let packet = Packet::parse(&bytes).expect("ours");
            let e = &mut self.ends[to];
            e.qp.receive(self.now, &packet, &mut e.memory);
            if self.rng.below(1000) < self.faults[3] {
                e.qp.marked(self.now);
            }
        }
    }

    /// Runs until both have nothing left.
    fn settle(&mut self) {
        for _ in 0..2_000_000 {
            self.tick();
            if self.ends.iter().all(|e| e.qp.is_idle()) {
                return;
            }
        }
        panic!(
            "requests did not end: {:?}",
            self.ends.each_ref().map(|e| e.qp.state())
        );
    }
}

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
            // READs are of memory that nothing writes: without a fence a later WRITE may overtake their answers (IBTA vol. 1 §10.8.3.3).
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
fn give(e: &mut End, (bth, extended, payload): &Sent) {
    let head = Head {
        bth: *bth,
        extended: *extended,
    };
    let mut bytes = vec![0; head.len() + payload.len() + 3];
    bytes[head.len()..][..payload.len()].copy_from_slice(payload);
    let len = head.emit(&mut bytes, payload.len());
    let packet = Packet::parse(&bytes[..len]).expect("a packet");
    e.qp.receive(NicTime(0), &packet, &mut e.memory);
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
    // Duplicates are acknowledged again and not executed: just before, and half of the numbers before.
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
    // One packet more than was asked for, the whole memory, the longest READ, and as many packets as there are numbers.
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
    // The port has no room, and the peer repeats all that it may have in flight: 15 additions and a READ of 4 packets.
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
    assert_eq!(sent(&mut e), []);

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
    // With a request of its own side: behind it.
    let mut e = waiting();
    e.memory.local.insert(1, vec![1; 8]);
    let request = Request::Send(None);
    let len = 8;
    assert!(e.qp.post(Work {
        id: 1,
        request,
        len
    }));
    let mut room = [0; 512];
    let mut opcodes = Vec::new();
    while let Transmit::Packet(len) = e.qp.transmit(NicTime(0), &mut room, &mut e.memory) {
        let packet = Packet::parse(&room[..len]).expect("ours");
        opcodes.push(packet.bth.opcode);
    }
    assert_eq!(opcodes, [RoceOpcode::SendOnly, RoceOpcode::Acknowledge]);
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
