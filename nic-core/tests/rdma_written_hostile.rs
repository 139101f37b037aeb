//! A peer whose WRITEs into exposed receives lie: keys, addresses, lengths, operations, numbers and
//! immediate data, with a right CRC.

use crate::transport_support;

use std::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

use ringbell_nic_abi::roce::ROCE_UDP_PORT;
use ringbell_nic_abi::{RoceOpcode, Status};
use ringbell_nic_core::port::{Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters};
use ringbell_nic_core::transport::{
    Close, Payload, RecvWork, SendWork, Target, Transport, TransportEvent, Work,
};
use ringbell_nic_core::types::{Buffer, NicTime, Owner, WorkToken};
use ringbell_nic_core::wire::roce::icrc::{icrc, Flow};
use ringbell_nic_core::wire::roce::packet::Head;
use ringbell_nic_core::wire::roce::{AtomicEth, Extended, Packet, Reth, ICRC_BYTES};
use ringbell_nic_core::wire::udp::{emit, IP_UDP_HEADERS, UNFRAGMENTED};
use ringbell_nic_core::wire::ETHERNET_HEADER;
use transport_support::rdma::Pair;
use transport_support::{wire, Rng, IP_A, IP_B, MINUTE};

const MTU: usize = 4_096 + 90;
/// Packets of a run that are changed, at most.
const LIES: u32 = 3;
const FRONT: usize = ETHERNET_HEADER + IP_UDP_HEADERS;

/// A port that changes WRITEs on their way out, and makes their CRC right again.
struct Forger {
    inner: Box<dyn Port>,
    frame: Vec<u8>,
    to: MacAddr,
    rng: Rng,
    lies: u32,
}

/// A number near to the right one, at an end, or any.
fn near(rng: &mut Rng, right: u64) -> u64 {
    match rng.below(8) {
        0 => right.wrapping_add(1),
        1 => right.wrapping_sub(1),
        2 => right ^ 1 << rng.below(64),
        3 => right.wrapping_add(4_096),
        4 => right.wrapping_sub(4_096),
        5 => 0,
        6 => u64::MAX - rng.below(2),
        _ => rng.next(),
    }
}

/// Headers and payload, one of them another.
fn forge(rng: &mut Rng, packet: &Packet<'_>) -> (Head, Vec<u8>) {
    use RoceOpcode as Op;
    let mut payload = packet.payload.to_vec();
    let mut head = Head {
        bth: packet.bth,
        extended: packet.extended,
    };
    let (mut reth, mut immediate) = match packet.extended {
        Extended::Reth(r) => (r, None),
        Extended::RethImmediate(r, n) => (r, Some(n)),
        // Packets of a message that the forger has begun.
        _ => (
            Reth {
                address: 0,
                key: rng.next() as u32,
                length: 1,
            },
            None,
        ),
    };
    match rng.below(8) {
        0 => reth.key = near(rng, reth.key.into()) as u32,
        1 => reth.address = near(rng, reth.address),
        2 => reth.length = near(rng, reth.length.into()) as u32,
        // The length and what it says of the packet, or not.
        3 | 4 => {
            let len = near(rng, payload.len() as u64) as usize % (MTU - 90 + 1);
            payload.resize(len, 0xee);
            if rng.below(2) == 0 {
                reth.length = len as u32;
            }
        }
        5 => immediate = Some(near(rng, immediate.unwrap_or(0).into()) as u32),
        6 => {
            let psn = near(rng, head.bth.psn.value().into());
            head.bth.psn = ringbell_nic_core::wire::roce::Psn::new(psn as u32 & 0x00ff_ffff);
        }
        _ => immediate = immediate.xor(Some(7)),
    }
    let full = Extended::Reth(reth);
    let atomic = Extended::Atomic(AtomicEth {
        address: reth.address & !7,
        key: reth.key,
        swap_or_add: 1,
        compare: 0,
    });
    // Often it stays a WRITE of one packet.
    (head.bth.opcode, head.extended) = match (rng.below(24), immediate) {
        (0, _) => (Op::WriteFirst, full),
        (1, _) => (Op::WriteMiddle, Extended::None),
        (2, None) => (Op::WriteLast, Extended::None),
        (2, Some(n)) => (Op::WriteLastImm, Extended::Immediate(n)),
        (3, _) => (Op::ReadRequest, full),
        (4, _) => (Op::FetchAdd, atomic),
        (5, _) => (Op::CompareSwap, atomic),
        (6, _) => (Op::SendOnlyInvalidate, Extended::Invalidate(reth.key)),
        (7, Some(n)) => (Op::SendOnlyImm, Extended::Immediate(n)),
        (_, None) => (Op::WriteOnly, full),
        (_, Some(n)) => (Op::WriteOnlyImm, Extended::RethImmediate(reth, n)),
    };
    if matches!(
        head.bth.opcode,
        Op::ReadRequest | Op::FetchAdd | Op::CompareSwap
    ) {
        payload.clear();
    }
    (head, payload)
}

impl Forger {
    fn forged(&mut self, len: usize) -> Option<usize> {
        let frame = &self.frame[..len];
        let bytes = frame.get(FRONT..len - ICRC_BYTES)?;
        let is_ours = frame[FRONT - 6..FRONT - 4] == ROCE_UDP_PORT.to_be_bytes();
        let packet = Packet::parse(bytes).ok().filter(|_| is_ours)?;
        let is_write = matches!(
            packet.extended,
            Extended::Reth(_) | Extended::RethImmediate(..)
        );
        if !is_write || self.lies == 0 || self.rng.below(3) != 0 {
            return None;
        }
        self.lies -= 1;
        let port = u16::from_be_bytes([frame[FRONT - 8], frame[FRONT - 7]]);
        let (from, to) = (
            SocketAddrV4::new(IP_A, port),
            SocketAddrV4::new(IP_B, ROCE_UDP_PORT),
        );
        let (head, payload) = forge(&mut self.rng, &packet);
        let mut made = vec![0; head.len() + payload.len() + 3];
        made[head.len()..][..payload.len()].copy_from_slice(&payload);
        let n = head.emit(&mut made, payload.len());
        let flow = Flow {
            from: from.into(),
            to: to.into(),
            fragment: UNFRAGMENTED,
        };
        let sum = icrc(&flow, &made[..n])?;
        self.frame[FRONT..FRONT + n].copy_from_slice(&made[..n]);
        self.frame[FRONT + n..FRONT + n + ICRC_BYTES].copy_from_slice(&sum);
        emit(
            &mut self.frame[ETHERNET_HEADER..],
            from,
            to,
            2,
            n + ICRC_BYTES,
        );
        Some(FRONT + n + ICRC_BYTES)
    }
}

impl Port for Forger {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        self.inner.receive(now)
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        // There is room also for the one that is made of it.
        self.inner.tx_frame(now, dst)?;
        self.to = dst;
        Some(&mut self.frame[..ETHERNET_HEADER + MTU])
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        let len = self.forged(len).unwrap_or(len);
        if let Some(room) = self.inner.tx_frame(now, self.to) {
            room[..len].copy_from_slice(&self.frame[..len]);
            self.inner.tx_commit(now, len);
        }
    }
    fn flush(&mut self, now: NicTime) {
        self.inner.flush(now);
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        self.inner.poll_fds(fds);
    }
    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

#[test]
fn lying_writes_touch_no_byte_beside_the_receives_and_each_receive_ends_once() {
    const GUARD: usize = 64;
    let (mut ended_well, mut resets) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let (a, b) = wire(MTU, Checksums::Software);
        let forger = Forger {
            inner: a,
            frame: vec![0; ETHERNET_HEADER + 2 * MTU],
            to: MacAddr::default(),
            rng: rng.clone(),
            lies: LIES,
        };
        let mut p = Pair::new((Box::new(forger), b), seed);
        let (a, b) = p.connect(7000);
        let lens = [0; 3].map(|_| [1, 100, 4_096, 10_000, 61_440][rng.below(5) as usize]);
        let into = lens.map(|len| p.b.dma.region(vec![7; len + 2 * GUARD]));
        let keys: Vec<_> = (10..)
            .zip(into.iter().zip(lens))
            .map(|(token, (at, len))| {
                let buffer = Buffer {
                    va: ringbell_nic_abi::GpuVa(at.va.0 + GUARD as u64),
                    len: len as u32,
                    ..*at
                };
                let work = RecvWork {
                    token: WorkToken(token),
                    by: Owner::NIC,
                    buffer,
                    some: false,
                };
                let key = p.b.transport.expose(b, &work, false);
                key.expect("an open connection")
            })
            .collect();
        for (i, len) in lens.into_iter().enumerate() {
            let work = SendWork {
                token: WorkToken(20 + i as u64),
                by: Owner::NIC,
                payload: Payload::Memory(p.a.dma.region(vec![0x11; len])),
                push: true,
            };
            let to = Target {
                key: keys[i],
                offset: 0,
                last: true,
            };
            p.a.transport.post(a, Work::Write(work, to));
        }
        // One of them is cancelled on the way: from then on it is not written.
        let cancels = rng.below(3) == 0;
        for _ in 0..rng.below(6) {
            p.tick();
        }
        let cancelled = cancels
            .then(|| p.b.transport.cancel(b, WorkToken(11)))
            .flatten();
        let before = p.b.dma.bytes(into[1]).to_vec();
        p.run(MINUTE);
        resets += u32::from(p.b.has(TransportEvent::Reset { conn: b }).is_some());
        // What lies may have kept open ends with the connection.
        p.b.transport.close(b, Close::Gracefully);
        p.run(10 * MINUTE);
        for (i, (at, len)) in into.iter().zip(lens).enumerate() {
            let token = 10 + i as u64;
            let bytes = p.b.dma.bytes(*at).to_vec();
            let (front, rest) = bytes.split_at(GUARD);
            let (inside, back) = rest.split_at(len);
            let around = front.iter().chain(back);
            assert!(
                around.copied().all(|b| b == 7),
                "{seed}: beside receive {i}"
            );
            if i == 1 && cancelled.is_some() {
                assert!(bytes == before, "{seed}: a cancelled receive was written");
                assert_eq!(p.b.received(token), None, "{seed}");
                continue;
            }
            let (status, n) =
                p.b.received(token)
                    .unwrap_or_else(|| panic!("{seed}: {i} has not ended"));
            assert_eq!(p.b.received(token), None, "{seed}: it ended twice");
            if status == Status::Ok {
                ended_well += 1;
                assert_eq!(n, len as u64, "{seed}");
                assert!(!inside.contains(&7), "{seed}: a byte is missing");
            }
        }
    }
    assert!(ended_well > 100 && resets > 100, "{ended_well} {resets}");
}
