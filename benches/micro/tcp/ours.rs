//! Two TCP transports, as the NIC drives them, with plain memory behind the DMA seam.

#[allow(dead_code, unreachable_pub)] // Tests of transports use all of it.
#[path = "../../../nic-core/tests/transport_support/memory.rs"]
mod mock;

use std::net::{Ipv4Addr, SocketAddrV4};

use mock::MockDma;
use ringbell_nic_abi::{GpuVa, Status};
use ringbell_nic_core::datapath::Datapath;
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::transport::tcp::{TcpConfig, TcpTransport};
use ringbell_nic_core::transport::{
    deliver, Payload, RecvWork, SendWork, Takers, Transport, TransportEvent, Work,
};
use ringbell_nic_core::types::{Buffer, ConnId, NicTime, Owner, WorkToken};

fn memory(region: Vec<u8>) -> MockDma {
    let mut memory = MockDma::default();
    memory.region(region);
    memory
}

/// The pair with its connections.
pub(crate) struct Ours {
    a: TcpTransport,
    b: TcpTransport,
    nets: [Network; 2],
    src: MockDma,
    dst: MockDma,
    conns: Vec<(ConnId, ConnId)>,
    now: NicTime,
    start: std::time::Instant,
}

const PORT: u16 = 7000;

impl Ours {
    pub(crate) fn new(sw: &MemSwitch, connections: usize, buffer: usize) -> Ours {
        let nets = [0, 1].map(|i| {
            let port = Box::new(sw.port(i).expect("free"));
            let ip = Ipv4Addr::new(10, 0, 0, 1 + i as u8);
            Network::new(ip, 24, vec![port], &[]).expect("valid")
        });
        let side = |i: usize| {
            let config = TcpConfig {
                rx_buffer: buffer,
                tx_buffer: buffer,
                seed: i as u64,
                ..TcpConfig::default()
            };
            TcpTransport::new(&nets[i], config).expect("valid")
        };
        let mut ours = Ours {
            a: side(0),
            b: side(1),
            nets,
            src: memory(
                (0..1usize << 20)
                    .map(|i| (i * 31 + i / 251) as u8)
                    .collect(),
            ),
            dst: memory(vec![0; 1 << 20]),
            conns: Vec::new(),
            now: NicTime(0),
            start: std::time::Instant::now(),
        };
        ours.b.listen(PORT, 16).expect("free");
        let remote = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), PORT);
        for _ in 0..connections {
            let a = ours
                .a
                .connect(ours.now, remote, NicTime(u64::MAX))
                .expect("room");
            let mut b = None;
            while b.is_none() {
                ours.step();
                while ours.a.poll_event().is_some() {}
                while let Some(e) = ours.b.poll_event() {
                    if let TransportEvent::Incoming { conn, .. } = e {
                        b = Some(conn);
                    }
                }
            }
            ours.conns.extend(b.map(|b| (a, b)));
        }
        ours
    }

    fn step(&mut self) {
        self.now = NicTime(self.start.elapsed().as_nanos() as u64);
        let [a, b] = &mut self.nets;
        let mut src = Datapath::without_engines(&mut self.src);
        let takers: &mut Takers<'_> = &mut [Some(&mut self.a), None, None, None];
        deliver(self.now, a, takers, &mut src);
        self.a.step(self.now, a, &mut src);
        let mut dst = Datapath::without_engines(&mut self.dst);
        let takers: &mut Takers<'_> = &mut [Some(&mut self.b), None, None, None];
        deliver(self.now, b, takers, &mut dst);
        self.b.step(self.now, b, &mut dst);
    }

    fn buffer(len: usize) -> Buffer {
        Buffer {
            region: 0,
            va: GpuVa(0),
            len: len as u32,
        }
    }

    fn post(&mut self, conn: usize, message: usize) {
        let (a, b) = self.conns[conn];
        let buffer = Ours::buffer(message);
        let send = SendWork {
            token: WorkToken(conn as u64),
            by: Owner::NIC,
            payload: Payload::Memory(buffer),
            push: true,
        };
        let recv = RecvWork {
            token: WorkToken(conn as u64),
            by: Owner::NIC,
            buffer,
            some: false,
        };
        self.b.post(b, Work::Receive(recv));
        self.a.post(a, Work::Send(send));
    }

    /// Keeps `messages` of these connections under way, `depth` at a time each; gives bytes and how
    /// many of the last message were wrong.
    fn run(
        &mut self,
        conns: &[usize],
        messages: usize,
        message: usize,
        depth: usize,
    ) -> (usize, usize) {
        self.dst.regions[0][..message].fill(0);
        let (mut posted, mut done) = (0, 0);
        for _ in 0..depth {
            for &c in conns.iter().take(messages - posted) {
                self.post(c, message);
                posted += 1;
            }
        }
        while done < messages {
            self.step();
            while self.a.poll_event().is_some() {}
            while let Some(e) = self.b.poll_event() {
                if let TransportEvent::RecvDone {
                    token,
                    status,
                    bytes,
                    ..
                } = e
                {
                    assert_eq!((status, bytes), (Status::Ok, message as u64));
                    done += 1;
                    if posted < messages {
                        self.post(token.0 as usize, message);
                        posted += 1;
                    }
                }
            }
        }
        let differ = |(a, b): (&u8, &u8)| a != b;
        let wrong = self.src.regions[0][..message]
            .iter()
            .zip(&self.dst.regions[0][..message])
            .map(differ);
        (messages * message, wrong.filter(|&d| d).count())
    }

    /// Streams over one connection, two messages in flight.
    pub(crate) fn stream(&mut self, conn: usize, bytes: usize, message: usize) -> (usize, usize) {
        self.run(&[conn], bytes / message, message, 2)
    }

    /// Streams over all connections at once, one message in flight on each.
    pub(crate) fn round_robin(&mut self, bytes: usize, message: usize) -> (usize, usize) {
        let all: Vec<usize> = (0..self.conns.len()).collect();
        self.run(&all, bytes / message, message, 1)
    }
}
