//! A NIC with transport `iwarp`, and a peer of the test's own over a plain socket.
#![allow(clippy::disallowed_methods)] // Real time at the edge: the kernel's TCP is the wire.
#![allow(dead_code, unreachable_pub)] // Each test file uses a part of it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ringbell_nic_abi::Status;
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::streams::StreamPort;
use ringbell_nic_core::transport::iwarp::{IwarpConfig, IwarpTransport};
use ringbell_nic_core::transport::{Close, Transport, TransportEvent};
use ringbell_nic_core::types::{ConnId, NicTime};
use ringbell_nic_core::wire::iwarp::ddp::{Header, Opcode, Place};
use ringbell_nic_core::wire::iwarp::mpa::{padding, Crc, Ready, Role, Startup, CRC_BYTES};
use ringbell_nic_core::wire::iwarp::session::{Answer, Credit, Kind, Message, Request};
use ringbell_nic_core::wire::iwarp::terminate::Reason;

use crate::transport_support::{Opened, SideOf, IP_A, IP_B, PORT};

impl Opened for IwarpTransport {
    type Config = IwarpConfig;
    fn open(net: &Network, config: IwarpConfig) -> IwarpTransport {
        IwarpTransport::new(net, config).unwrap() // a valid configuration
    }
}

pub type Side = SideOf<IwarpTransport>;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// A NIC with an iWARP transport, in real time.
pub struct Nic {
    pub side: Side,
    pub at: SocketAddr,
    pub start: Instant,
}

impl Nic {
    pub fn new() -> Nic {
        let port = StreamPort::open((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let at = port.local();
        let mut net = Network::new(IP_B, 24, vec![Box::new(port)], &[]).expect("a host's address");
        net.know_host(IP_A, (Ipv4Addr::LOCALHOST, 1).into());
        let mut side = Side::over(net, IwarpConfig::default());
        side.dma.mapped = true;
        side.transport.listen(PORT, 4).expect("a free port");
        let start = Instant::now();
        Nic { side, at, start }
    }

    pub fn step(&mut self) {
        let now = NicTime(self.start.elapsed().as_nanos() as u64);
        self.side.step(now);
    }

    #[track_caller]
    pub fn until<R>(&mut self, mut f: impl FnMut(&mut Nic) -> Option<R>) -> R {
        let end = Instant::now() + PATIENCE;
        loop {
            self.step();
            if let Some(r) = f(self) {
                return r;
            }
            assert!(Instant::now() < end, "nothing: {:?}", self.side.events);
            std::thread::yield_now();
        }
    }

    /// A session from a peer of the test's own.
    pub fn peer(&mut self) -> (Peer, ConnId) {
        self.peer_with(&startup())
    }

    /// The same, with a start-up frame of the caller's.
    pub fn peer_with(&mut self, startup: &Startup) -> (Peer, ConnId) {
        let mut peer = Peer::connect(self.at);
        let mut frame = Vec::new();
        startup.emit(&request().emit(), &mut frame);
        peer.write(&frame);
        let conn = self.until(|n| {
            peer.hear();
            if peer.answer.is_some() && !peer.is_ready {
                peer.ready();
            }
            n.side.incoming()
        });
        assert!(matches!(peer.answer, Some(Answer::Accepted { .. })));
        (peer, conn)
    }

    /// Checks that the NIC still serves.
    pub fn still_serves(&mut self) {
        let (mut peer, conn) = self.peer();
        let into = self.side.dma.region(vec![0; 5]);
        self.side.recv(conn, 9, into, false);
        peer.data(b"hello");
        assert_eq!(self.until(|n| n.side.received(9)), (Status::Ok, 5));
        assert_eq!(self.side.dma.bytes(into), b"hello");
        self.side.transport.close(conn, Close::Now);
    }
}

pub fn request() -> Request {
    Request {
        from: IP_A,
        to: IP_B,
        source_port: 50_000,
        port: PORT,
        window: 1 << 16,
    }
}

pub fn startup() -> Startup {
    Startup {
        role: Role::Initiator,
        crc: true,
        rejected: false,
        inbound_reads: 4,
        outbound_reads: 16,
        ready: Ready {
            peer_to_peer: true,
            by_write: true,
            ..Ready::default()
        },
        private: 0,
    }
}

/// The test's own end of a connection.
pub struct Peer {
    pub socket: TcpStream,
    pub heard: Vec<u8>,
    pub answer: Option<Answer>,
    pub is_ready: bool,
    pub is_closed: bool,
    pub message: u32,
    /// Of a receive that was written.
    pub key: u32,
    /// Of units that have come.
    pub units: Vec<(Header, Vec<u8>)>,
}

impl Peer {
    pub fn connect(at: SocketAddr) -> Peer {
        let socket = TcpStream::connect(at).expect("the NIC listens");
        socket.set_nonblocking(true).expect("a socket");
        socket.set_nodelay(true).expect("a socket");
        Peer {
            socket,
            heard: Vec::new(),
            answer: None,
            is_ready: false,
            is_closed: false,
            message: 1,
            key: 0,
            units: Vec::new(),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        // The NIC may have closed the connection.
        let _ = self.socket.write_all(bytes);
    }

    /// Reads what has come.
    pub fn hear(&mut self) {
        let mut room = [0; 1 << 16];
        loop {
            match self.socket.read(&mut room) {
                Ok(0) => self.is_closed = true,
                Ok(n) => {
                    self.heard.extend_from_slice(&room[..n]);
                    continue;
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => self.is_closed = true,
            }
            break;
        }
        if self.answer.is_none() {
            let whole = Startup::length(Role::Responder, &self.heard).expect("a reply");
            let Some(whole) = whole.filter(|n| self.heard.len() >= *n) else {
                return;
            };
            let frame: Vec<u8> = self.heard.drain(..whole).collect();
            let (_, private) = Startup::parse(Role::Responder, &frame).expect("a reply");
            self.answer = Some(Answer::parse(private).expect("an answer"));
        }
        while self.heard.len() > 2 {
            let unit = usize::from(u16::from_be_bytes([self.heard[0], self.heard[1]]));
            let whole = 2 + unit + padding(unit) + CRC_BYTES;
            if self.heard.len() < whole {
                return;
            }
            let frame: Vec<u8> = self.heard.drain(..whole).collect();
            let mut crc = Crc::default();
            crc.update(&frame[..whole - CRC_BYTES]);
            assert_eq!(frame[whole - CRC_BYTES..], crc.finish());
            let header = Header::parse(&frame[2..]).expect("a header");
            let payload = frame[2 + header.bytes()..2 + unit].to_vec();
            self.units.push((header, payload));
        }
    }

    pub fn ready(&mut self) {
        let place = Place::Tagged { stag: 0, offset: 0 };
        let header = Header {
            opcode: Opcode::Write,
            last: true,
            place,
        };
        let unit = unit_of(&header, &[]);
        self.write(&unit);
        self.is_ready = true;
    }

    /// The unit of the next message.
    pub fn message(&mut self, kind: Kind, credit: Credit, bytes: &[u8]) -> Vec<u8> {
        let header = Header::whole(Opcode::Send, self.message);
        self.message += 1;
        let mut payload = self.of_kind(kind, credit).emit().to_vec();
        payload.extend_from_slice(bytes);
        unit_of(&header, &payload)
    }

    pub fn of_kind(&self, kind: Kind, credit: Credit) -> Message {
        let key = if kind == Kind::Written { self.key } else { 0 };
        Message { kind, key, credit }
    }

    /// A unit of bytes for memory of the NIC.
    pub fn write_to(&mut self, key: u32, offset: u64, bytes: &[u8]) {
        let header = Header {
            opcode: Opcode::Write,
            last: true,
            place: Place::Tagged { stag: key, offset },
        };
        self.write(&unit_of(&header, bytes));
    }

    /// Says that the receive of a key was written.
    pub fn written(&mut self, key: u32) {
        self.key = key;
        let unit = self.message(Kind::Written, Credit::default(), &[]);
        self.write(&unit);
    }

    pub fn data(&mut self, bytes: &[u8]) {
        let unit = self.message(Kind::Data, Credit::default(), bytes);
        self.write(&unit);
    }

    pub fn terminated(&self) -> Option<Reason> {
        let of = |(h, p): &(Header, Vec<u8>)| {
            (h.opcode == Opcode::Terminate).then(|| Reason::parse(p).expect("a reason"))
        };
        self.units.iter().find_map(of)
    }
}

/// A whole frame around a unit.
pub fn unit_of(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let unit = header.bytes() + payload.len();
    frame.extend((unit as u16).to_be_bytes());
    header.emit(&mut frame);
    frame.extend_from_slice(payload);
    sealed(frame, unit)
}

/// With padding and CRC.
pub fn sealed(mut frame: Vec<u8>, unit: usize) -> Vec<u8> {
    frame.resize(2 + unit + padding(unit), 0);
    let mut crc = Crc::default();
    crc.update(&frame);
    frame.extend(crc.finish());
    frame
}

/// What the receive that waited and the session end with.
#[track_caller]
pub fn ends_by(nic: &mut Nic, peer: &mut Peer, conn: ConnId, want: Option<Reason>) {
    let into = nic.side.dma.region(vec![0x55; 64]);
    nic.side.recv(conn, 1, into, false);
    let end = nic.until(|n| {
        peer.hear();
        n.side.received(1)
    });
    assert_eq!(end, (Status::ConnectionReset, 0));
    let detail = want.map_or(0, Reason::detail);
    let state = nic.side.transport.conn_state(conn);
    assert_eq!(state.map(|c| c.reset.1), Some(detail), "{want:?}");
    nic.until(|n| n.side.has(TransportEvent::Reset { conn }));
    nic.until(|_| {
        peer.hear();
        peer.is_closed.then_some(())
    });
    assert_eq!(peer.terminated(), want);
    nic.side.transport.close(conn, Close::Gracefully);
    nic.until(|n| n.side.has(TransportEvent::Closed { conn }));
    assert_eq!(nic.side.transport.connections(), 0);
}
