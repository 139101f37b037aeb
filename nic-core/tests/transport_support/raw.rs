//! TCP segments made and read by hand, and a peer that speaks them to one NIC's transport.

use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_nic_core::port::mem::{mac_of, MemPort, MemSwitch};
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::transport::Transport;
use ringbell_nic_core::types::{ConnId, NicTime};

use super::{config, Side, IP_A, IP_B, PORT};

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;
/// One step of [`Raw`]: 100 µs.
pub const STEP: u64 = 100_000;
/// A maximum segment size of 1,460, SACK permitted, and a window scale of 7.
pub const OPTIONS: [u8; 12] = [2, 4, 5, 180, 4, 2, 1, 3, 3, 7, 1, 1];

/// A segment, without checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub src: SocketAddrV4,
    pub dst: SocketAddrV4,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    /// A multiple of four bytes.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Segment {
    /// From the client's address to the NIC's listener.
    pub fn new(port: u16, flags: u8, seq: u32, ack: u32) -> Segment {
        Segment {
            src: SocketAddrV4::new(IP_A, port),
            dst: SocketAddrV4::new(IP_B, PORT),
            flags,
            seq,
            ack,
            window: 1000,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Sends it from `port` to the station `to`. Returns whether there was room.
    pub fn send(&self, port: &mut MemPort, to: usize, now: NicTime) -> bool {
        let header = 20 + self.options.len();
        let total = 20 + header + self.payload.len();
        let (src, dst) = (port.capabilities().medium.mac(), mac_of(to));
        let Some(f) = port.tx_frame(now, dst) else {
            return false;
        };
        f[..40].fill(0);
        f[..6].copy_from_slice(&dst.0);
        f[6..12].copy_from_slice(&src.0);
        f[12..14].copy_from_slice(&[8, 0]);
        let ip = &mut f[14..];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        ip[8] = 64;
        ip[9] = 6;
        ip[12..16].copy_from_slice(&self.src.ip().octets());
        ip[16..20].copy_from_slice(&self.dst.ip().octets());
        let tcp = &mut ip[20..];
        tcp[..2].copy_from_slice(&self.src.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.dst.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
        tcp[12] = (header as u8 / 4) << 4;
        tcp[13] = self.flags;
        tcp[14..16].copy_from_slice(&self.window.to_be_bytes());
        tcp[16..20].fill(0);
        tcp[20..header].copy_from_slice(&self.options);
        tcp[header..header + self.payload.len()].copy_from_slice(&self.payload);
        port.tx_commit(now, 14 + total);
        port.flush(now);
        true
    }

    /// Reads a frame; `None` when it is not TCP.
    pub fn parse(f: &[u8]) -> Option<Segment> {
        if f.get(12..14)? != [8, 0] || *f.get(23)? != 6 {
            return None;
        }
        let total = usize::from(u16::from_be_bytes([f[16], f[17]]));
        let tcp = f.get(34..14 + total)?;
        let header = usize::from(*tcp.get(12)? >> 4) * 4;
        let ip = |b: &[u8]| Ipv4Addr::new(b[0], b[1], b[2], b[3]);
        let word = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let half = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        Some(Segment {
            src: SocketAddrV4::new(ip(&f[26..30]), half(0)),
            dst: SocketAddrV4::new(ip(&f[30..34]), half(2)),
            flags: tcp[13],
            seq: word(4),
            ack: word(8),
            window: half(14),
            options: tcp.get(20..header)?.to_vec(),
            payload: tcp.get(header..)?.to_vec(),
        })
    }
}

/// Takes what has arrived at a port.
pub fn drain(port: &mut MemPort, now: NicTime) -> Vec<Segment> {
    let mut got = Vec::new();
    while let Some(f) = port.receive(now) {
        got.extend(Segment::parse(&f));
    }
    got
}

/// One NIC's transport and a wire at whose other end a test speaks TCP by hand.
pub struct Raw {
    pub nic: Side,
    pub wire: MemPort,
    pub now: NicTime,
}

/// A connection of [`Raw`]: what the hand-made peer would send and expects next.
#[derive(Debug, Clone, Copy)]
pub struct Hand {
    pub port: u16,
    pub conn: ConnId,
    /// The peer's next sequence number: the NIC's RCV.NXT.
    pub next: u32,
    /// The NIC's next sequence number: its SND.NXT while nothing is sent.
    pub expected: u32,
}

impl Raw {
    pub fn new() -> Raw {
        Raw::with(config(IP_B))
    }

    pub fn with(config: TcpConfig) -> Raw {
        let sw = MemSwitch::private(2, 1500, Checksums::Omitted).unwrap(); // numbers in range
        let mut nic = Side::new(Box::new(sw.port(1).unwrap()), IP_B, config); // free ports
        nic.transport.listen(PORT, 16).expect("the port is free");
        Raw {
            nic,
            wire: sw.port(0).unwrap(),
            now: NicTime(1_000_000),
        }
    }

    /// Runs for this long; gives what the NIC has said.
    pub fn run(&mut self, ns: u64) -> Vec<Segment> {
        let end = self.now.0 + ns;
        let mut got = Vec::new();
        while self.now.0 < end {
            self.nic.step(self.now);
            got.extend(drain(&mut self.wire, self.now));
            self.now.0 += STEP;
        }
        got
    }

    /// Sends this, and returns the NIC's answers within a millisecond.
    pub fn say(&mut self, segment: &Segment) -> Vec<Segment> {
        assert!(
            segment.send(&mut self.wire, 1, self.now),
            "the wire is full"
        );
        self.run(1_000_000)
    }

    /// Opens a connection from this port.
    #[track_caller]
    pub fn connect(&mut self, port: u16, isn: u32) -> Hand {
        let mut syn = Segment::new(port, SYN, isn, 0);
        syn.options = OPTIONS.to_vec();
        let answers = self.say(&syn);
        let [answer] = &answers[..] else {
            panic!("SYN: {answers:?}")
        };
        assert_eq!((answer.flags, answer.ack), (SYN | ACK, isn.wrapping_add(1)));
        let (next, expected) = (isn.wrapping_add(1), answer.seq.wrapping_add(1));
        self.say(&Segment::new(port, ACK, next, expected));
        let conn = self.nic.incoming().expect("the handshake is over");
        Hand {
            port,
            conn,
            next,
            expected,
        }
    }
}

impl Hand {
    /// A segment of this connection, in order, with other numbers by this much.
    pub fn segment(&self, flags: u8, seq_off: i64, ack_off: i64) -> Segment {
        let seq = self.next.wrapping_add(seq_off as u32);
        let ack = self.expected.wrapping_add(ack_off as u32);
        Segment::new(self.port, flags, seq, ack)
    }

    /// Bytes in order.
    pub fn data(&mut self, payload: &[u8]) -> Segment {
        let mut segment = self.segment(ACK, 0, 0);
        segment.payload = payload.to_vec();
        self.next = self.next.wrapping_add(payload.len() as u32);
        segment
    }
}
