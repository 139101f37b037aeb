//! Two TCP transports on a wire, in virtual time, with a mock of GPU memory.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of it.

pub mod live;
pub mod raw;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_gtlb::{BusSpan, Fault, Need};
use ringbell_nic_abi::{GpuVa, PdId, Rkey, Status};
use ringbell_nic_core::datapath::Datapath;
use ringbell_nic_core::dma::{DmaAccess, PeerDma, ReadStatus, RemoteMemory, WordUpdate};
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::tcp::{TcpConfig, TcpTransport};
use ringbell_nic_core::transport::{
    deliver, Payload, RecvWork, SendWork, Takers, Transport, TransportEvent,
};
use ringbell_nic_core::types::{Buffer, ConnId, ListenerId, NicTime, Owner, WorkToken};

pub const IP_A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub const IP_B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const MINUTE: u64 = 60_000_000_000;
pub const PORT: u16 = 7000;

/// A small generator for test data and decisions (SplitMix64).
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for c in bytes.chunks_mut(8) {
            c.copy_from_slice(&self.next().to_le_bytes()[..c.len()]);
        }
    }
}

/// GPU memory as plain vectors: region `r`, byte `va`.
#[derive(Default)]
pub struct MockDma {
    pub regions: Vec<Vec<u8>>,
    /// Answer every n-th read with `Pending` first.
    pub pending_every: u64,
    reads: u64,
    owed: Option<(Buffer, u64, usize)>,
    /// Refuse this region.
    pub faulty: Option<u32>,
}

impl MockDma {
    pub fn region(&mut self, bytes: Vec<u8>) -> Buffer {
        let len = bytes.len() as u32;
        self.regions.push(bytes);
        Buffer {
            region: self.regions.len() as u32 - 1,
            va: GpuVa(0),
            len,
        }
    }
    pub fn bytes(&self, b: Buffer) -> &[u8] {
        &self.regions[b.region as usize][b.va.0 as usize..][..b.len as usize]
    }
}

/// No region has a remote key, so none is ever held.
impl RemoteMemory for MockDma {
    fn remote(
        &mut self,
        _: &[PdId],
        rkey: Rkey,
        _: GpuVa,
        _: u32,
        _: Need,
    ) -> Result<Buffer, Fault> {
        Err(Fault::BadKey { key: rkey.0 })
    }
    fn remote_word(&mut self, _: &[PdId], rkey: Rkey, _: GpuVa, _: u32) -> Result<Buffer, Fault> {
        Err(Fault::BadKey { key: rkey.0 })
    }
    fn update_word(&mut self, word: &Buffer, _: WordUpdate) -> Result<u64, (Status, u64)> {
        unreachable!("{word:?} was never granted")
    }
    fn hold(&mut self, region: u32) {
        unreachable!("region {region} was never granted")
    }
    fn release(&mut self, region: u32) {
        unreachable!("region {region} was never held")
    }
}

impl DmaAccess for MockDma {
    fn read(&mut self, b: &Buffer, offset: u64, dst: &mut [u8]) -> Result<ReadStatus, Fault> {
        if self.faulty == Some(b.region) {
            return Err(Fault::NoTranslation {
                va: GpuVa(b.va.0 + offset),
            });
        }
        self.reads += 1;
        match self.owed.take() {
            Some(owed) => assert_eq!(
                owed,
                (*b, offset, dst.len()),
                "a pending read was not repeated"
            ),
            None if self.pending_every > 0 && self.reads.is_multiple_of(self.pending_every) => {
                self.owed = Some((*b, offset, dst.len()));
                return Ok(ReadStatus::Pending);
            }
            None => {}
        }
        assert!(
            offset + dst.len() as u64 <= u64::from(b.len),
            "read past the buffer"
        );
        let from = (b.va.0 + offset) as usize;
        dst.copy_from_slice(&self.regions[b.region as usize][from..from + dst.len()]);
        Ok(ReadStatus::Done)
    }
    fn write(&mut self, b: &Buffer, offset: u64, src: &[u8]) -> Result<(), Fault> {
        if self.faulty == Some(b.region) {
            return Err(Fault::NoTranslation {
                va: GpuVa(b.va.0 + offset),
            });
        }
        assert!(
            offset + src.len() as u64 <= u64::from(b.len),
            "write past the buffer"
        );
        let to = (b.va.0 + offset) as usize;
        self.regions[b.region as usize][to..to + src.len()].copy_from_slice(src);
        Ok(())
    }
    fn span(&mut self, b: &Buffer, offset: u64) -> Result<BusSpan, Fault> {
        Err(Fault::NoTranslation {
            va: GpuVa(b.va.0 + offset),
        })
    }
    fn direct(&self, _: BusSpan) -> Option<*mut u8> {
        None
    }
    fn count_copied(&mut self, _: u64) {}
    fn peers(&mut self) -> Option<&mut dyn PeerDma> {
        None
    }
}

/// One NIC's transport with its memory and what it has reported.
pub struct Side {
    pub tcp: TcpTransport,
    pub net: Network,
    pub dma: MockDma,
    pub events: VecDeque<TransportEvent>,
}

impl Side {
    /// A NIC with one port.
    pub fn new(port: Box<dyn Port>, ip: Ipv4Addr, config: TcpConfig) -> Side {
        let net = Network::new(ip, 24, vec![port], &[]);
        Side::over(net.unwrap(), config) // a host's address
    }
    pub fn over(net: Network, config: TcpConfig) -> Side {
        Side {
            tcp: TcpTransport::new(&net, config).unwrap(), // a valid configuration
            net,
            dma: MockDma::default(),
            events: VecDeque::new(),
        }
    }
    pub fn step(&mut self, now: NicTime) -> bool {
        let moved = self.move_on(now);
        while let Some(e) = self.tcp.poll_event() {
            self.events.push_back(e);
        }
        moved
    }
    /// A step that leaves the events with the transport.
    pub fn move_on(&mut self, now: NicTime) -> bool {
        let takers: &mut Takers<'_> = &mut [Some(&mut self.tcp), None];
        let data = &mut Datapath::without_engines(&mut self.dma);
        let arrived = deliver(now, &mut self.net, takers, data);
        self.tcp.step(now, &mut self.net, data) || arrived
    }
    pub fn next_timer(&self) -> Option<NicTime> {
        let timers = [self.tcp.next_timer(), self.net.next_timer()];
        timers.into_iter().flatten().min()
    }
    pub fn port(&self) -> &dyn Port {
        self.net.ports()[0].frames().unwrap() // it has one of frames
    }
    pub fn send(&mut self, conn: ConnId, token: u64, buffer: Buffer) {
        self.tcp.post_send(
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
        self.tcp.post_recv(
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
    pub fn sent(&mut self, token: u64) -> Option<(Status, u64)> {
        self.take(|e| match *e {
            TransportEvent::SendDone {
                token: t,
                status,
                bytes,
                ..
            } if t.0 == token => Some((status, bytes)),
            _ => None,
        })
    }
    pub fn received(&mut self, token: u64) -> Option<(Status, u64)> {
        self.take(|e| match *e {
            TransportEvent::RecvDone {
                token: t,
                status,
                bytes,
                ..
            } if t.0 == token => Some((status, bytes)),
            _ => None,
        })
    }
    pub fn incoming(&mut self) -> Option<ConnId> {
        self.take(|e| match *e {
            TransportEvent::Incoming { conn, .. } => Some(conn),
            _ => None,
        })
    }
    pub fn has(&mut self, want: TransportEvent) -> Option<()> {
        self.take(|e| (*e == want).then_some(()))
    }
}

/// Two sides and the clock.
pub struct Pair {
    pub a: Side,
    pub b: Side,
    pub now: NicTime,
}

pub fn config(ip: Ipv4Addr) -> TcpConfig {
    TcpConfig {
        seed: u64::from(u32::from(ip)) * 77,
        ..TcpConfig::default()
    }
}

impl Pair {
    pub fn with(ports: (Box<dyn Port>, Box<dyn Port>), a: TcpConfig, b: TcpConfig) -> Pair {
        Pair {
            a: Side::new(ports.0, IP_A, a),
            b: Side::new(ports.1, IP_B, b),
            now: NicTime(1_000_000),
        }
    }

    pub fn mem(mtu: usize, checksums: Checksums) -> Pair {
        let sw = MemSwitch::private(2, mtu, checksums).unwrap(); // numbers in range
        let ports: (Box<dyn Port>, Box<dyn Port>) =
            (Box::new(sw.port(0).unwrap()), Box::new(sw.port(1).unwrap())); // free ports
        Pair::with(ports, config(IP_A), config(IP_B))
    }

    /// One step of both; the clock moves by 10 µs while something moves, else to the next timer.
    pub fn tick(&mut self) {
        let moved = self.a.step(self.now) | self.b.step(self.now);
        let mut next = self.now.0 + 10_000;
        if !moved {
            let timers = [self.a.next_timer(), self.b.next_timer()];
            let t = timers
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(NicTime(self.now.0 + 100_000_000));
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
                self.a.tcp,
                self.a.events,
                self.b.tcp,
                self.b.events
            );
            self.tick();
        }
    }

    /// Runs for this long.
    pub fn run(&mut self, ns: u64) {
        let end = self.now.0 + ns;
        while self.now.0 < end {
            self.tick();
        }
    }

    #[track_caller]
    pub fn listen(&mut self, port: u16) -> ListenerId {
        self.b.tcp.listen(port, 16).unwrap() // the port is free
    }

    /// Connects a to b; gives both ends.
    #[track_caller]
    pub fn connect(&mut self, port: u16) -> (ConnId, ConnId) {
        let deadline = NicTime(self.now.0 + MINUTE);
        let remote = SocketAddrV4::new(IP_B, port);
        let a = self.a.tcp.connect(self.now, remote, deadline).unwrap(); // on the same network
        self.until(MINUTE, |p| p.a.has(TransportEvent::Connected { conn: a }));
        let b = self.until(MINUTE, |p| p.b.incoming());
        (a, b)
    }

    /// Sends `data` from a to b in chunks of random size and receives it in others; checks it.
    #[track_caller]
    pub fn transfer(&mut self, (a, b): (ConnId, ConnId), data: Vec<u8>, seed: u64, limit: u64) {
        let mut rng = Rng(seed);
        let total = data.len() as u32;
        let src = self.a.dma.region(data);
        let dst = self.b.dma.region(vec![0; total as usize]);
        let (mut posted, mut receiving, mut token) = (0u32, 0u32, 1u64 << 32);
        let mut part = |at: &mut u32, whole: Buffer| {
            let left = total - *at;
            let max = if rng.below(4) == 0 { 100 } else { 300_000 };
            let len = left.min(1 + rng.below(max) as u32);
            let b = Buffer {
                va: GpuVa(u64::from(*at)),
                len,
                ..whole
            };
            *at += len;
            b
        };
        let mut open = (VecDeque::new(), VecDeque::new());
        let mut done = 0u64;
        self.until(limit, |p| {
            while open.0.len() < 4 && posted < total {
                let buf = part(&mut posted, src);
                token += 1;
                open.0.push_back((token, buf.len));
                p.a.send(a, token, buf);
            }
            while open.1.len() < 3 && receiving < total {
                let buf = part(&mut receiving, dst);
                token += 1;
                open.1.push_back((token, buf.len));
                p.b.recv(b, token, buf, false);
            }
            while let Some(&(t, len)) = open.0.front() {
                let Some((status, bytes)) = p.a.sent(t) else {
                    break;
                };
                assert_eq!((status, bytes), (Status::Ok, u64::from(len)));
                open.0.pop_front();
            }
            while let Some(&(t, len)) = open.1.front() {
                let Some((status, bytes)) = p.b.received(t) else {
                    break;
                };
                assert_eq!((status, bytes), (Status::Ok, u64::from(len)));
                open.1.pop_front();
                done += bytes;
            }
            (done == u64::from(total) && open.0.is_empty()).then_some(())
        });
        assert!(
            self.b.dma.bytes(dst) == self.a.dma.bytes(src),
            "bytes differ"
        );
        self.a.dma.regions[src.region as usize] = Vec::new();
        self.b.dma.regions[dst.region as usize] = Vec::new();
    }
}

pub fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    Rng(seed).fill(&mut v);
    v
}
