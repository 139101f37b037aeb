//! Bytes of any shape from a peer of transport `iwarp`, before and after the start-up: no panic,
//! and the session ends.
//!
//! Input: a byte, odd for a right start-up first; then records of
//! `kind (1 byte), length (1 byte), bytes`. An even kind sends the bytes as they are, an odd one as
//! a unit with length and CRC. Bit 1 of the kind puts the key of an exposed receive where a Write
//! has its STag, bit 2 where a message of the session has it. Bit 3 puts the key of a region where
//! units of this opcode have it.
//!
//! The victim has put to, got from and counted in memory of the peer, whose answers these may be.
#![no_main]

#[allow(dead_code, unreachable_pub)] // Tests of transports use all of it.
#[path = "../../nic-core/tests/transport_support/memory.rs"]
mod memory;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use libfuzzer_sys::fuzz_target;
use memory::MockDma;
use ringbell_gtlb::Access;
use ringbell_nic_abi::{GpuVa, PdId, Rkey};
use ringbell_nic_core::datapath::{Datapath, Payload, RecvWork};
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::streams::StreamPort;
use ringbell_nic_core::transport::iwarp::{IwarpConfig, IwarpTransport};
use ringbell_nic_core::transport::{Close, RemoteOp, RemoteWork, Transport, TransportEvent, Work};
use ringbell_nic_core::types::{NicTime, Owner, WorkToken};
use ringbell_nic_core::wire::iwarp::ddp::Opcode;
use ringbell_nic_core::wire::iwarp::mpa::{padding, Crc, Ready, Role, Startup};
use ringbell_nic_core::wire::iwarp::session::Request;

const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 7000;
/// Of a Write's STag, and of the key of a session's message, from the unit's first byte.
const STAG_AT: usize = 2;
const KEY_AT: usize = 22;
/// A region that the peer may name.
const PD: PdId = PdId(3);
const REGION: u32 = 0x1234;

/// Where a unit has the key of a region: behind its DDP header, that of a session's message, and
/// what comes before it there.
fn region_at(unit: &[u8]) -> usize {
    let opcode = unit.get(1).map_or(0, |b| b & 15);
    match opcode {
        o if o == Opcode::ReadRequest as u8 => 18 + 16,
        o if o == Opcode::AtomicRequest as u8 => 18 + 8,
        o if o == Opcode::Send as u8 => 18 + 24 + 8,
        _ => STAG_AT,
    }
}

struct World {
    net: Network,
    victim: IwarpTransport,
    memory: MockDma,
    now: NicTime,
    /// Sessions that have come.
    sessions: usize,
    /// Of the receive that the last one has exposed.
    key: u32,
}

impl World {
    fn new() -> (World, SocketAddr) {
        let port = StreamPort::open((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let at = port.local();
        let mut net = Network::new(VICTIM, 24, vec![Box::new(port)], &[]).expect("valid");
        net.know_host(PEER, (Ipv4Addr::LOCALHOST, 1).into());
        let config = IwarpConfig {
            rx_buffer: 4096,
            ..IwarpConfig::default()
        };
        let mut victim = IwarpTransport::new(&net, config).expect("valid");
        victim.listen(PORT, 4).expect("free");
        let mut memory = MockDma::default();
        memory.mapped = true;
        let region = memory.region(vec![0; 300]);
        memory.keys.insert(REGION, (PD, region, Access::REMOTE));
        let world = World {
            net,
            victim,
            memory,
            now: NicTime(1),
            sessions: 0,
            key: 0,
        };
        (world, at)
    }

    /// A few steps; sessions that come get a receive.
    fn step(&mut self, by: u64) {
        for _ in 0..4 {
            self.now = NicTime(self.now.0 + by);
            let mut data = Datapath::without_engines(&mut self.memory);
            self.victim.step(self.now, &mut self.net, &mut data);
            while let Some(event) = self.victim.poll_event() {
                if let TransportEvent::Incoming { conn, .. } = event {
                    self.sessions += 1;
                    let [posted, exposed] = [1, 2].map(|token| RecvWork {
                        token: WorkToken(token),
                        by: Owner::NIC,
                        buffer: self.memory.region(vec![0; 300]),
                        some: false,
                    });
                    self.victim.post(conn, Work::Receive(posted));
                    self.key = self.victim.expose(conn, &exposed, false).unwrap_or(0);
                    self.victim.grant(conn, PD);
                    let [from, into] = [1, 2].map(|_| self.memory.region(vec![0; 100]));
                    let (payload, signal) = (Payload::Memory(from), None);
                    let all = [
                        RemoteOp::Get { into },
                        RemoteOp::FetchAdd { addend: 1 },
                        RemoteOp::Put { payload, signal },
                    ];
                    for (op, token) in all.into_iter().zip(3..) {
                        let work = RemoteWork {
                            token: WorkToken(token),
                            rkey: Rkey(REGION),
                            va: GpuVa(0),
                            op,
                        };
                        self.victim.post(conn, Work::Remote(work));
                    }
                } else if let TransportEvent::Reset { conn } = event {
                    self.victim.close(conn, Close::Gracefully);
                }
            }
        }
    }
}

/// Takes what the victim says.
fn read_away(peer: &mut TcpStream) {
    let mut room = [0; 4096];
    while matches!(peer.read(&mut room), Ok(1..)) {}
}

fn unit(bytes: &[u8]) -> Vec<u8> {
    let mut frame = (bytes.len() as u16).to_be_bytes().to_vec();
    frame.extend_from_slice(bytes);
    frame.resize(2 + bytes.len() + padding(bytes.len()), 0);
    let mut crc = Crc::default();
    crc.update(&frame);
    frame.extend(crc.finish());
    frame
}

fuzz_target!(|bytes: &[u8]| {
    let Some((first, mut rest)) = bytes.split_first() else {
        return;
    };
    let (mut world, at) = World::new();
    let Ok(mut peer) = TcpStream::connect(at) else {
        return;
    };
    peer.set_nonblocking(true).expect("a socket");
    if first & 1 == 1 {
        let request = Request {
            from: PEER,
            to: VICTIM,
            source_port: 9,
            port: PORT,
            window: 4096,
        };
        let startup = Startup {
            role: Role::Initiator,
            crc: true,
            rejected: false,
            inbound_reads: 4,
            outbound_reads: 4,
            ready: Ready::default(),
            private: 0,
        };
        let mut frame = Vec::new();
        startup.emit(&request.emit(), &mut frame);
        let _ = peer.write_all(&frame);
        world.step(1);
    }
    while let [kind, len, tail @ ..] = rest {
        let (record, next) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = next;
        let mut record = record.to_vec();
        for (bit, at) in [(2, STAG_AT), (4, KEY_AT)] {
            if let Some(place) = record.get_mut(at..at + 4).filter(|_| kind & bit != 0) {
                place.copy_from_slice(&world.key.to_be_bytes());
            }
        }
        let at = region_at(&record);
        if let Some(place) = record.get_mut(at..at + 4).filter(|_| kind & 8 != 0) {
            place.copy_from_slice(&REGION.to_be_bytes());
        }
        // The victim may have closed the connection.
        let _ = match kind & 1 {
            1 => peer.write_all(&unit(&record)),
            _ => peer.write_all(&record),
        };
        world.step(1);
        read_away(&mut peer);
    }
    drop(peer);
    // Later than any deadline of a start-up, or of a session that was closed.
    for _ in 0..64 {
        world.step(1 << 34);
    }
    assert!(world.victim.connections() <= world.sessions);
});
