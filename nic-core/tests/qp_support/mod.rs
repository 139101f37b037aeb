//! Two queue pairs with a client each, and a wire between them, in virtual time.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ringbell_nic_abi::{NakCode, RoceOpcode};
use ringbell_nic_core::transport::rdma::qp::*;
use ringbell_nic_core::types::NicTime;
use ringbell_nic_core::wire::roce::{AtomicEth, Bth, Packet, Psn, Qpn};

use super::transport_support::Rng;

pub const MTU: u32 = 256;
pub const KEY: u32 = 0x1234_5678;
pub const BASE: u64 = 0x7000_0000;
pub const MEMORY: usize = 64 << 10;

/// Memory of one side, receives of any length, and what has ended.
pub struct Memory {
    pub bytes: Vec<u8>,
    /// What requests send, and where READs go, by their id.
    pub local: BTreeMap<u64, Vec<u8>>,
    pub done: Vec<(u64, WorkStatus)>,
    pub received: Vec<(Vec<u8>, Option<u32>)>,
    pub open: Vec<u8>,
    pub invalidated: Vec<u32>,
    /// Receives that are not ready yet.
    pub not_ready: u32,
    /// Accesses outside what the key covers: must stay 0.
    pub stray: u32,
}

impl Memory {
    pub fn new(seed: u64) -> Memory {
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

    pub fn range(&mut self, at: Remote, len: usize) -> std::ops::Range<usize> {
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

pub struct End {
    pub qp: QueuePair,
    pub memory: Memory,
}

/// Two queue pairs and a wire between them.
pub struct Wire {
    pub ends: [End; 2],
    /// Packets under way: when they arrive, to whom.
    pub flying: VecDeque<(u64, usize, Vec<u8>)>,
    pub now: NicTime,
    pub rng: Rng,
    /// Of 1,000 packets, so many are lost, doubled, delayed, marked by a switch.
    pub faults: [u64; 4],
    /// How many of each operation have left.
    pub seen: BTreeMap<RoceOpcode, u64>,
}

/// How losses are repaired: packets kept, and congestion control.
#[derive(Debug, Clone, Copy)]
pub struct Repair {
    pub early: u32,
    pub congestion: Congestion,
}

/// As the standard has it.
pub const GO_BACK: Repair = Repair {
    early: 0,
    congestion: Congestion::Window,
};
pub const SELECTIVE: Repair = Repair {
    early: 32,
    congestion: Congestion::Window,
};
/// Fewer are kept than the peer sends.
pub const TOO_FEW: Repair = Repair {
    early: 8,
    congestion: Congestion::Fixed,
};

pub fn paced() -> Repair {
    Repair {
        early: 32,
        congestion: Congestion::Dcqcn(DcqcnConfig {
            line_rate: 100_000_000,
            ..DcqcnConfig::default()
        }),
    }
}

pub fn connected(first: [Psn; 2], repair: Repair) -> [End; 2] {
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
    pub fn new(seed: u64, faults: [u64; 4], repair: Repair) -> Wire {
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

    pub fn tick(&mut self) {
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
    pub fn settle(&mut self) {
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
