//! Sequences of one-sided operations, decoded from bytes, against a plain model of both memories,
//! in virtual time.
//!
//! A record of 8 bytes is an operation: kind, fault, place (2), length (2), value (2). Every
//! operation that the model takes for valid must end with `OK` and the model's bytes; every other
//! one with an error, and no byte of it may have been written.
#![allow(dead_code, unreachable_pub)] // Each user has a part of it.

use std::time::Duration;

use ringbell_gtlb::Access;
use ringbell_nic_abi::{
    Completion, Descriptor, Flags, GpuVa, Opcode, Rkey, SessionId, Status, PUT_INLINE_MAX,
};
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::rdma::RdmaConfig;
use ringbell_nic_core::types::NicTime;

use super::nic_support::driven::*;
use super::nic_support::{with_rdma, Host, Setup, TempDir, Via};

/// Memory of each NIC.
const BYTES: usize = 2 << 20;
/// Room of an operation at the initiator.
const SLOT: usize = 16 << 10;
/// Operations under way at most.
const SLOTS: usize = 16;
const RECORD: usize = 8;
/// Longest operation.
const LEN_MAX: u16 = 9_000;
/// Virtual time in which everything must have ended: several times the default time-out.
const PATIENCE_NS: u64 = 60_000_000_000;

/// An operation under way.
struct Posted {
    ticket: u32,
    descriptor: Descriptor,
    /// What it ends with: bytes and detail. `None`: it must be refused.
    end: Option<(u64, u64)>,
}

/// Two connected NICs, and what their memories must hold.
struct Rig {
    hosts: [Host; 2],
    session: SessionId,
    rkey: Rkey,
    now: u64,
    models: [Vec<u8>; 2],
    posted: Vec<Posted>,
    /// Slots that were used since nothing was under way.
    used: usize,
    /// `ACCEPT`s that were posted.
    accepting: u64,
    _dir: TempDir,
}

impl Rig {
    /// `faults` are those of the wire of `rdma`.
    fn new(via: Via, faults: Faults) -> Rig {
        let dir = TempDir::new();
        let setup = |n: u8| Setup {
            access: Access::REMOTE,
            memory_bytes: BYTES as u64,
            ..Setup::new(&dir, n)
        };
        let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("numbers in range");
        let host = |n: u8| {
            let setup = setup(n);
            let seed = faults.seed.wrapping_mul(2).wrapping_add(n.into());
            let port = Box::new(switch.port(usize::from(n) - 1).expect("free"));
            let port = Impair::new(port, Faults { seed, ..faults }).expect("probabilities");
            let config = RdmaConfig {
                seed,
                udp_ports: 1 + (seed % 4) as u16,
                ..RdmaConfig::default()
            };
            Host::with(&setup, |nic| with_rdma(&setup, nic, Box::new(port), config))
        };
        let hosts = match via {
            Via::Rdma => [host(1), host(2)],
            via => via.hosts([setup(1), setup(2)]),
        };
        let zeroed = vec![0; BYTES];
        hosts.iter().for_each(|h| h.poke(0, &zeroed));
        let mut rig = Rig {
            rkey: hosts[1].rkey(),
            hosts,
            session: SessionId(0),
            now: 1 << 40,
            models: [zeroed.clone(), zeroed],
            posted: Vec::new(),
            used: 0,
            accepting: 0,
            _dir: dir,
        };
        let listener = session_of(rig.call(1, &socket()));
        assert_eq!(rig.call(1, &listen(listener, 7)).status, Status::Ok);
        let ip = rig.hosts[1].nic.config().ip;
        // A bad wire may lose every packet of an attempt. Operations wait until the peer has
        // accepted the connection.
        let connected = (0..8).any(|_| {
            rig.hosts[1].post(&within(accept(listener), u32::MAX));
            rig.accepting += 1;
            rig.session = session_of(rig.call(0, &socket()));
            rig.call(0, &connect(rig.session, ip, 7)).status == Status::Ok
        });
        assert!(connected, "no connection over {via:?}");
        rig
    }

    fn step(&mut self) {
        let moved = self
            .hosts
            .iter()
            .fold(false, |m, h| h.nic.step_at(NicTime(self.now)) | m);
        self.now += if moved { 10_000 } else { 500_000 };
    }

    fn wait(&mut self, host: usize, ticket: u32) -> Completion {
        let late = self.now + PATIENCE_NS;
        loop {
            if let Some(c) = self.hosts[host].queue.poll(ticket) {
                return c;
            }
            let told = || self.hosts.iter().map(|h| h.nic.describe());
            assert!(self.now < late, "hung:\n{}", told().collect::<String>());
            self.step();
        }
    }

    fn call(&mut self, host: usize, d: &Descriptor) -> Completion {
        let ticket = self.hosts[host].post(d);
        self.wait(host, ticket)
    }

    /// Waits for what is under way, and compares the ends with the model's.
    fn settle(&mut self) {
        for p in std::mem::take(&mut self.posted) {
            let c = self.wait(0, p.ticket);
            let end = (c.status == Status::Ok).then_some((c.bytes, c.detail));
            assert_eq!(end, p.end, "{:?}\n{c:?}", p.descriptor);
        }
        self.used = 0;
    }

    fn operate(&mut self, record: &[u8; RECORD]) {
        let [kind, fault, place @ ..] = *record;
        let word = |i: usize| u16::from_le_bytes([place[i], place[i + 1]]);
        let (kind, value) = (kind % 5, u64::from(word(4)) << (fault % 48));
        let len = usize::from(word(2) % (LEN_MAX + 1));
        let under_way = self.posted.iter();
        let reads = under_way.filter(|p| p.descriptor.opcode == Opcode::Get);
        // A get is not ordered with what follows it.
        if self.used == SLOTS || (kind != 2 && reads.count() > 0) {
            self.settle();
        }
        let slot = self.used * SLOT + usize::from(fault % 7);
        self.used += 1;
        let (size, at) = match kind {
            0..=2 => (len, usize::from(word(0)) * 24 % (BYTES - len)),
            _ => (8, usize::from(word(0)) % 64 * 8),
        };
        let signal = usize::from(word(4)) % 64;
        let (s, key, from, to) = (self.session, self.rkey, slot as u64, at as u64);
        let mut d = match kind {
            0 => put(s, key, from, to, len as u32),
            1 => signalled(put(s, key, from, to, len as u32), signal as u32, value),
            2 => get(s, key, to, from, len as u32),
            3 => fetch_add(s, key, to, value),
            _ => {
                let old = self.word(at);
                // Half of them find what they look for.
                compare_swap(s, key, to, old ^ (value & 1), value)
            }
        };
        let end = BYTES as u64;
        let valid = match fault {
            200..=205 => {
                d.rkey.0 ^= 1 << (fault % 32);
                false
            }
            // A byte past the end; far past it; past the end of the address space.
            206..=211 => {
                let past =
                    [end - size as u64 + 1, end + to, u64::MAX - BASE.0][usize::from(fault % 3)];
                d.remote_va = GpuVa(BASE.0 + past);
                false
            }
            212..=215 if kind == 1 => {
                d.imm = [BYTES as u32 / 8, u32::MAX][usize::from(fault % 2)];
                false
            }
            212..=215 if kind > 2 => {
                d.remote_va.0 += u64::from(fault % 4) + 1;
                false
            }
            216..=219 if kind < 3 && len > 0 => {
                d.local_va = GpuVa(BASE.0 + end - size as u64 + 1);
                false
            }
            _ => true,
        };
        let data: Vec<u8> = (0..len)
            .map(|i| (value >> (i % 8 * 8)) as u8 ^ (i as u8).wrapping_mul(fault | 1))
            .collect();
        if kind < 2 && len <= PUT_INLINE_MAX && fault % 2 == 0 && valid {
            d.flags = d.flags.union(Flags::INLINE);
            (d.local_va, d.len, d.inline_len) = (GpuVa(0), 0, len as u8);
            d.inline[..len].copy_from_slice(&data);
        }
        if kind < 2 {
            self.hosts[0].poke(from, &data);
            self.models[0][slot..slot + len].copy_from_slice(&data);
        }
        let end = valid.then(|| (size as u64, self.apply(kind, (at, slot), &data, &d, signal)));
        self.posted.push(Posted {
            ticket: self.hosts[0].post(&d),
            descriptor: d,
            end,
        });
    }

    fn word(&self, at: usize) -> u64 {
        let bytes = &self.models[1][at..at + 8];
        u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
    }

    fn store(&mut self, at: usize, value: u64) {
        self.models[1][at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    /// Executes an operation in the model. The detail of its completion.
    fn apply(
        &mut self,
        kind: u8,
        (at, slot): (usize, usize),
        data: &[u8],
        d: &Descriptor,
        signal: usize,
    ) -> u64 {
        let [here, there] = &mut self.models;
        match kind {
            0 | 1 => there[at..at + data.len()].copy_from_slice(data),
            2 => here[slot..slot + data.len()].copy_from_slice(&there[at..at + data.len()]),
            _ => {
                let old = self.word(at);
                match kind {
                    3 => self.store(at, old.wrapping_add(d.operand)),
                    _ if old == d.operand => self.store(at, d.local_va.0),
                    _ => {}
                }
                return old;
            }
        }
        if kind == 1 {
            let new = self.word(signal * 8).wrapping_add(d.operand);
            self.store(signal * 8, new);
        }
        0
    }
}

/// Runs the sequence that `bytes` describe: 4 bytes for the faults of the wire, then records.
pub fn run(via: Via, bytes: &[u8]) {
    let Some((wire, records)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let part = |i: usize| f64::from(wire[i] % 64) / 1000.0;
    let faults = Faults {
        loss: part(0),
        duplicate: part(1),
        reorder: part(2),
        corrupt: part(3) / 2.0,
        reorder_by: Duration::from_micros(50),
        seed: u32::from_le_bytes(*wire).into(),
        ..Faults::default()
    };
    let mut rig = Rig::new(via, faults);
    for record in records.chunks_exact(RECORD) {
        rig.operate(record.try_into().expect("of this size"));
    }
    rig.settle();
    for (n, (host, model)) in rig.hosts.iter().zip(&rig.models).enumerate() {
        let got = host.peek(0, BYTES);
        let differs = got.iter().zip(model).position(|(a, b)| a != b);
        assert_eq!(differs, None, "byte of host {n} that differs");
        let c = host.nic.counters();
        let open = if n == 1 { rig.accepting } else { 0 };
        assert!(c.accepted - c.retired <= open, "one was lost: {c:?}");
    }
}
