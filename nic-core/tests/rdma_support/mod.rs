//! Two RDMA transports on a wire, in virtual time, with a mock of GPU memory.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of it.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_nic_abi::{GpuVa, Status};
use ringbell_nic_core::datapath::Datapath;
use ringbell_nic_core::network::{Network, Protocol, PROTOCOLS};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::rdma::{RdmaConfig, RdmaTransport};
use ringbell_nic_core::transport::{
    deliver, Payload, RecvWork, SendWork, Takers, Transport, TransportEvent,
};
use ringbell_nic_core::types::{Buffer, ConnId, NicTime, Owner, WorkToken};

use super::tcp_support::{MockDma, Rng, IP_A, IP_B, MINUTE};

/// One NIC's transport with its memory and what it has reported.
pub struct Side {
    pub rdma: RdmaTransport,
    pub net: Network,
    pub dma: MockDma,
    pub events: VecDeque<TransportEvent>,
}

impl Side {
    pub fn new(port: Box<dyn Port>, ip: Ipv4Addr, config: RdmaConfig) -> Side {
        let net = Network::new(ip, 24, vec![port], &[]).unwrap(); // a host's address
        Side {
            rdma: RdmaTransport::new(&net, config).unwrap(), // a valid configuration
            net,
            dma: MockDma::default(),
            events: VecDeque::new(),
        }
    }

    pub fn step(&mut self, now: NicTime) -> bool {
        let mut data = Datapath::without_engines(&mut self.dma);
        let mut takers: Takers<'_> = [const { None }; PROTOCOLS];
        takers[Protocol::Roce as usize] = self.rdma.packets();
        let mut moved = deliver(now, &mut self.net, &mut takers, &mut data);
        moved |= self.rdma.step(now, &mut self.net, &mut data);
        while let Some(e) = self.rdma.poll_event() {
            self.events.push_back(e);
        }
        moved
    }

    pub fn next_timer(&self) -> Option<NicTime> {
        let timers = [self.rdma.next_timer(), self.net.next_timer()];
        timers.into_iter().flatten().min()
    }

    pub fn send(&mut self, conn: ConnId, token: u64, buffer: Buffer) {
        self.rdma.post_send(
            conn,
            SendWork {
                token: WorkToken(token),
                by: Owner::NIC,
                payload: Payload::Memory(buffer),
                push: true,
            },
        );
    }

    pub fn recv(&mut self, conn: ConnId, token: u64, buffer: Buffer, some: bool) {
        self.rdma.post_recv(
            conn,
            RecvWork {
                token: WorkToken(token),
                by: Owner::NIC,
                buffer,
                some,
            },
        );
    }

    /// Takes the first event that `f` accepts.
    pub fn take<R>(&mut self, f: impl Fn(&TransportEvent) -> Option<R>) -> Option<R> {
        let at = self.events.iter().position(|e| f(e).is_some())?;
        self.events.remove(at).and_then(|e| f(&e))
    }

    pub fn has(&mut self, want: TransportEvent) -> Option<()> {
        self.take(|e| (*e == want).then_some(()))
    }

    pub fn done(&mut self, token: u64) -> Option<(Status, u64)> {
        self.take(|e| match *e {
            TransportEvent::SendDone {
                token: t,
                status,
                bytes,
                ..
            }
            | TransportEvent::RecvDone {
                token: t,
                status,
                bytes,
                ..
            } if t.0 == token => Some((status, bytes)),
            _ => None,
        })
    }
}

/// Two sides and the clock.
pub struct Pair {
    pub a: Side,
    pub b: Side,
    pub now: NicTime,
}

pub fn config(seed: u64) -> RdmaConfig {
    RdmaConfig {
        seed,
        ..RdmaConfig::default()
    }
}

pub type Wire = (Box<dyn Port>, Box<dyn Port>);

pub fn wire(mtu: usize, checksums: Checksums) -> Wire {
    let sw = MemSwitch::private(2, mtu, checksums).unwrap(); // numbers in range
    (Box::new(sw.port(0).unwrap()), Box::new(sw.port(1).unwrap())) // free ports
}

impl Pair {
    pub fn new(ports: Wire, seed: u64) -> Pair {
        Pair::with(ports, config(seed * 2 + 1), config(seed * 2 + 2))
    }

    pub fn with(ports: Wire, a: RdmaConfig, b: RdmaConfig) -> Pair {
        Pair {
            a: Side::new(ports.0, IP_A, a),
            b: Side::new(ports.1, IP_B, b),
            now: NicTime(1_000_000),
        }
    }

    /// One step of both; the clock moves by 10 µs while something moves, else to the next timer.
    pub fn tick(&mut self) {
        let moved = self.a.step(self.now) | self.b.step(self.now);
        let mut next = self.now.0 + 10_000;
        if !moved {
            let timers = [self.a.next_timer(), self.b.next_timer()];
            let later = NicTime(self.now.0 + 100_000_000);
            let t = timers.into_iter().flatten().min().unwrap_or(later);
            next = next.max(t.0);
        }
        self.now = NicTime(next);
    }

    /// Runs until `f` gives something.
    ///
    /// # Panics
    /// When it has not within `limit` ns of virtual time.
    #[track_caller]
    pub fn until<R>(&mut self, limit: u64, mut f: impl FnMut(&mut Pair) -> Option<R>) -> R {
        let end = self.now.0 + limit;
        loop {
            if let Some(r) = f(self) {
                return r;
            }
            assert!(
                self.now.0 < end,
                "nothing within {limit} ns of virtual time; a {:?} {:?}, b {:?} {:?}",
                self.a.rdma,
                self.a.events,
                self.b.rdma,
                self.b.events
            );
            self.tick();
        }
    }

    pub fn run(&mut self, ns: u64) {
        let end = self.now.0 + ns;
        while self.now.0 < end {
            self.tick();
        }
    }

    /// Connects a to b; gives both ends.
    #[track_caller]
    pub fn connect(&mut self, port: u16) -> (ConnId, ConnId) {
        self.b.rdma.listen(port, 16).unwrap(); // the port is free
        let deadline = NicTime(self.now.0 + MINUTE);
        let remote = SocketAddrV4::new(IP_B, port);
        let a = self.a.rdma.connect(self.now, remote, deadline).unwrap(); // on the same network
        self.until(MINUTE, |p| p.a.has(TransportEvent::Connected { conn: a }));
        // Bytes of the requester may be what tells the listener that its reply has arrived.
        let b = self.until(MINUTE, |p| {
            p.b.take(|e| match *e {
                TransportEvent::Incoming { conn, .. } => Some(conn),
                _ => None,
            })
        });
        (a, b)
    }
}

/// Tokens and lengths of what was posted and has not ended.
type Posted = VecDeque<(u64, u32)>;

/// One direction of a transfer: bytes cut at random into sends and receives.
pub struct Flow {
    conn: (ConnId, ConnId),
    src: Buffer,
    dst: Buffer,
    posted: (u32, u32),
    open: (Posted, Posted),
    token: u64,
    rng: Rng,
    pub done: u32,
}

impl Flow {
    pub fn new(
        from: &mut Side,
        to: &mut Side,
        conn: (ConnId, ConnId),
        len: usize,
        seed: u64,
    ) -> Flow {
        let mut data = vec![0; len];
        Rng(seed).fill(&mut data);
        Flow {
            conn,
            src: from.dma.region(data),
            dst: to.dma.region(vec![0; len]),
            posted: (0, 0),
            open: (VecDeque::new(), VecDeque::new()),
            token: seed << 20,
            rng: Rng(seed ^ 0xf10),
            done: 0,
        }
    }

    fn cut(&mut self, at: u32, whole: Buffer) -> Buffer {
        let max = if self.rng.below(4) == 0 { 100 } else { 60_000 };
        let len = (whole.len - at).min(1 + self.rng.below(max) as u32);
        Buffer {
            va: GpuVa(at.into()),
            len,
            ..whole
        }
    }

    /// Posts what there is room for, and collects what has ended. `true`: all of it.
    pub fn drive(&mut self, from: &mut Side, to: &mut Side) -> bool {
        let total = self.src.len;
        while self.open.0.len() < 4 && self.posted.0 < total {
            let part = self.cut(self.posted.0, self.src);
            self.posted.0 += part.len;
            self.token += 1;
            self.open.0.push_back((self.token, part.len));
            from.send(self.conn.0, self.token, part);
        }
        while self.open.1.len() < 3 && self.posted.1 < total {
            let part = self.cut(self.posted.1, self.dst);
            self.posted.1 += part.len;
            self.token += 1;
            self.open.1.push_back((self.token, part.len));
            to.recv(self.conn.1, self.token, part, false);
        }
        while let Some(&(t, len)) = self.open.0.front() {
            let Some(end) = from.done(t) else { break };
            assert_eq!(end, (Status::Ok, u64::from(len)));
            self.open.0.pop_front();
        }
        while let Some(&(t, len)) = self.open.1.front() {
            let Some(end) = to.done(t) else { break };
            assert_eq!(end, (Status::Ok, u64::from(len)));
            self.open.1.pop_front();
            self.done += len;
        }
        self.done == total && self.open.0.is_empty()
    }

    /// Checks every byte.
    pub fn check(&self, from: &Side, to: &Side) {
        assert!(
            to.dma.bytes(self.dst) == from.dma.bytes(self.src),
            "bytes differ"
        );
    }
}
