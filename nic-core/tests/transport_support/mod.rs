//! Two transports on a wire, in virtual time, with a mock of GPU memory.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of it.

pub mod live;
pub mod memory;
pub mod raw;
pub mod rdma;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_nic_abi::{GpuVa, Status};
use ringbell_nic_core::datapath::Datapath;
use ringbell_nic_core::network::{Network, PROTOCOLS};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::tcp::{TcpConfig, TcpTransport};
use ringbell_nic_core::transport::{
    deliver, Payload, RecvWork, SendWork, Takers, Transport, TransportEvent, Work,
};
use ringbell_nic_core::types::{Buffer, ConnId, ListenerId, NicTime, Owner, WorkToken};

pub use memory::MockDma;

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

/// A transport as the tests open it.
pub trait Opened: Transport + Debug + Sized {
    type Config;
    fn open(net: &Network, config: Self::Config) -> Self;
}

impl Opened for TcpTransport {
    type Config = TcpConfig;
    fn open(net: &Network, config: TcpConfig) -> TcpTransport {
        TcpTransport::new(net, config).unwrap() // a valid configuration
    }
}

/// One NIC's transport with its memory and what it has reported.
pub struct SideOf<T> {
    pub transport: T,
    pub net: Network,
    pub dma: MockDma,
    pub events: VecDeque<TransportEvent>,
}

impl<T: Opened> SideOf<T> {
    /// A NIC with one port.
    pub fn new(port: Box<dyn Port>, ip: Ipv4Addr, config: T::Config) -> SideOf<T> {
        let net = Network::new(ip, 24, vec![port], &[]);
        SideOf::over(net.unwrap(), config) // a host's address
    }
    pub fn over(net: Network, config: T::Config) -> SideOf<T> {
        SideOf {
            transport: T::open(&net, config),
            net,
            dma: MockDma::default(),
            events: VecDeque::new(),
        }
    }
    pub fn step(&mut self, now: NicTime) -> bool {
        let moved = self.move_on(now);
        while let Some(e) = self.transport.poll_event() {
            self.events.push_back(e);
        }
        moved
    }
    /// A step that leaves the events with the transport.
    pub fn move_on(&mut self, now: NicTime) -> bool {
        let mut takers: Takers<'_> = [const { None }; PROTOCOLS];
        let protocol = self.transport.caps().protocol.unwrap(); // it sends packets
        takers[protocol as usize] = self.transport.packets();
        let data = &mut Datapath::without_engines(&mut self.dma);
        let arrived = deliver(now, &mut self.net, &mut takers, data);
        self.transport.step(now, &mut self.net, data) || arrived
    }
    pub fn next_timer(&self) -> Option<NicTime> {
        let timers = [self.transport.next_timer(), self.net.next_timer()];
        timers.into_iter().flatten().min()
    }
    pub fn port(&self) -> &dyn Port {
        &*self.net.ports()[0]
    }
    pub fn send(&mut self, conn: ConnId, token: u64, buffer: Buffer) {
        let work = SendWork {
            token: WorkToken(token),
            by: Owner::NIC,
            payload: Payload::Memory(buffer),
            push: true,
        };
        self.transport.post(conn, Work::Send(work));
    }
    pub fn recv(&mut self, conn: ConnId, token: u64, buffer: Buffer, some: bool) {
        let work = RecvWork {
            token: WorkToken(token),
            by: Owner::NIC,
            buffer,
            some,
        };
        self.transport.post(conn, Work::Receive(work));
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
    /// The end of a send or of a receive.
    pub fn done(&mut self, token: u64) -> Option<(Status, u64)> {
        self.sent(token).or_else(|| self.received(token))
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
pub struct PairOf<T> {
    pub a: SideOf<T>,
    pub b: SideOf<T>,
    pub now: NicTime,
    /// The ports are sockets: what was sent arrives when the kernel has time, which virtual time
    /// does not overtake.
    pub sockets: bool,
}

pub fn config(ip: Ipv4Addr) -> TcpConfig {
    TcpConfig {
        seed: u64::from(u32::from(ip)) * 77,
        ..TcpConfig::default()
    }
}

pub type Side = SideOf<TcpTransport>;
pub type Pair = PairOf<TcpTransport>;
pub type Wire = (Box<dyn Port>, Box<dyn Port>);

pub fn wire(mtu: usize, checksums: Checksums) -> Wire {
    let sw = MemSwitch::private(2, mtu, checksums).unwrap(); // numbers in range
    (Box::new(sw.port(0).unwrap()), Box::new(sw.port(1).unwrap())) // free ports
}

impl Pair {
    pub fn mem(mtu: usize, checksums: Checksums) -> Pair {
        Pair::with(wire(mtu, checksums), config(IP_A), config(IP_B))
    }
}

impl<T: Opened> PairOf<T> {
    pub fn with(ports: Wire, a: T::Config, b: T::Config) -> PairOf<T> {
        PairOf {
            a: SideOf::new(ports.0, IP_A, a),
            b: SideOf::new(ports.1, IP_B, b),
            now: NicTime(1_000_000),
            sockets: false,
        }
    }

    /// One step of both; the clock moves by 10 µs while something moves, else to the next timer.
    pub fn tick(&mut self) {
        let moved = self.a.step(self.now) | self.b.step(self.now);
        let mut next = self.now.0 + 10_000;
        if !(moved || self.sockets && self.something_comes()) {
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

    /// Whether a socket of either side has something to read, or gets it within a moment of real
    /// time.
    fn something_comes(&self) -> bool {
        let (of_a, of_b) = (self.a.net.poll_fds().0, self.b.net.poll_fds().0);
        let mut fds: Vec<_> = of_a
            .iter()
            .chain(&of_b)
            .map(|fd| rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN))
            .collect();
        let moment = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 2_000_000,
        };
        rustix::event::poll(&mut fds, Some(&moment)).is_ok_and(|ready| ready > 0)
    }

    /// Runs until `f` gives something.
    ///
    /// # Panics
    /// When it has not within `limit` ns of virtual time.
    #[track_caller]
    pub fn until<R>(&mut self, limit: u64, mut f: impl FnMut(&mut Self) -> Option<R>) -> R {
        let end = self.now.0 + limit;
        loop {
            if let Some(r) = f(self) {
                return r;
            }
            assert!(
                self.now.0 < end,
                "nothing within {limit} ns of virtual time; a {:?} {:?}, b {:?} {:?}",
                self.a.transport,
                self.a.events,
                self.b.transport,
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
        self.b.transport.listen(port, 16).unwrap() // the port is free
    }

    /// Connects a to b, which listens from then on; gives both ends.
    #[track_caller]
    pub fn connect(&mut self, port: u16) -> (ConnId, ConnId) {
        // It may listen already.
        let _ = self.b.transport.listen(port, 16);
        let deadline = NicTime(self.now.0 + MINUTE);
        let remote = SocketAddrV4::new(IP_B, port);
        let a = self
            .a
            .transport
            .connect(self.now, remote, deadline)
            .unwrap(); // on the same network
        self.until(MINUTE, |p| p.a.has(TransportEvent::Connected { conn: a }));
        let b = self.until(MINUTE, |p| p.b.incoming());
        (a, b)
    }

    /// Sends `data` from a to b in chunks of random size and receives it in others; checks it.
    #[track_caller]
    pub fn transfer(&mut self, (a, b): (ConnId, ConnId), data: Vec<u8>, seed: u64, limit: u64) {
        let mut flow = Flow::of(&mut self.a, &mut self.b, (a, b), data, seed);
        self.until(limit, |p| flow.drive(&mut p.a, &mut p.b).then_some(()));
        flow.check(&self.a, &self.b);
        self.a.dma.regions[flow.src.region as usize] = Vec::new();
        self.b.dma.regions[flow.dst.region as usize] = Vec::new();
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
    pub fn new<T: Opened>(
        from: &mut SideOf<T>,
        to: &mut SideOf<T>,
        conn: (ConnId, ConnId),
        len: usize,
        seed: u64,
    ) -> Flow {
        Flow::of(from, to, conn, random(seed, len), seed)
    }

    /// Of these bytes.
    pub fn of<T: Opened>(
        from: &mut SideOf<T>,
        to: &mut SideOf<T>,
        conn: (ConnId, ConnId),
        data: Vec<u8>,
        seed: u64,
    ) -> Flow {
        let len = data.len();
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
        let max = if self.rng.below(4) == 0 { 100 } else { 300_000 };
        let len = (whole.len - at).min(1 + self.rng.below(max) as u32);
        Buffer {
            va: GpuVa(at.into()),
            len,
            ..whole
        }
    }

    /// Posts what there is room for, and collects what has ended. `true`: all of it.
    pub fn drive<T: Opened>(&mut self, from: &mut SideOf<T>, to: &mut SideOf<T>) -> bool {
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
            let Some(end) = from.sent(t) else { break };
            assert_eq!(end, (Status::Ok, u64::from(len)));
            self.open.0.pop_front();
        }
        while let Some(&(t, len)) = self.open.1.front() {
            let Some(end) = to.received(t) else { break };
            assert_eq!(end, (Status::Ok, u64::from(len)));
            self.open.1.pop_front();
            self.done += len;
        }
        self.done == total && self.open.0.is_empty()
    }

    /// Checks every byte.
    pub fn check<T>(&self, from: &SideOf<T>, to: &SideOf<T>) {
        assert!(
            to.dma.bytes(self.dst) == from.dma.bytes(self.src),
            "bytes differ"
        );
    }
}

pub fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    Rng(seed).fill(&mut v);
    v
}
