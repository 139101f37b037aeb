//! Messages of the communication management (IBTA vol. 1 §12.6, annex A11 for IP addresses).
//!
//! Each is one management datagram. Of the fields, those that a reliable connection over RoCEv2
//! needs are kept; the others have the values that Linux writes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ringbell_nic_abi::status::REASON_UNKNOWN_SENDER;

use super::mad::{Mad, MAD_BYTES, MAD_HEADER};
use super::psn::{Psn, Qpn};

/// Service of a TCP port in the space of RDMA-aware IP services (annex A11 §A11.2): RDMA_PS_TCP.
const SERVICE_TCP: u64 = 0x0000_0000_0106_0000;
/// Header of the private data of a request with IP addresses (annex A11 §A11.4).
const IP_HEADER: usize = 36;
/// Bytes of private data that a program has in each message that carries them.
pub const PRIVATE_BYTES: usize = 56;
/// Private data of a DREQ that ends a connection in order.
const IN_ORDER: &[u8] = b"RBEL\x01";

const REQ: u16 = 0x10;
const REJ: u16 = 0x12;
const REP: u16 = 0x13;
const RTU: u16 = 0x14;
const DREQ: u16 = 0x15;
const DREP: u16 = 0x16;

/// Why a connection is refused (§12.6.7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// No resources for another connection.
    NoResources,
    /// The time for the answer is over.
    Timeout,
    /// Nothing listens there.
    NoService,
    /// The receiver does not know the sender by the address that the message names (an invalid
    /// GID).
    UnknownSender,
    /// A refusal of the program, or one that this NIC does not tell from it.
    Consumer,
}

impl Reason {
    /// Its code in a message.
    pub const fn code(self) -> u16 {
        match self {
            Reason::NoResources => 3,
            Reason::Timeout => 4,
            Reason::NoService => 8,
            Reason::UnknownSender => REASON_UNKNOWN_SENDER,
            Reason::Consumer => 28,
        }
    }

    const fn of(code: u16) -> Reason {
        match code {
            3 => Reason::NoResources,
            4 => Reason::Timeout,
            8 => Reason::NoService,
            REASON_UNKNOWN_SENDER => Reason::UnknownSender,
            _ => Reason::Consumer,
        }
    }
}

/// Fields of both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// The sender's number for the connection.
    pub id: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// The first number that the sender uses for its requests.
    pub psn: Psn,
    /// READs and atomic operations that the sender can serve at once.
    pub responder_resources: u8,
    /// Those that it wants to have in flight at once.
    pub initiator_depth: u8,
    /// Code of the retries when the receiver is not ready; 7 stands for no limit.
    pub rnr_retries: u8,
    /// What the sender's program adds.
    pub private: [u8; PRIVATE_BYTES],
}

/// A request for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The sender.
    pub from: Endpoint,
    /// TCP port of the service.
    pub port: u16,
    /// The sender's address.
    pub source: SocketAddr,
    /// The receiver's address, of the same version of IP.
    pub destination: IpAddr,
    /// Largest payload of a packet as a code: 1 to 5 stand for 256 to 4,096 bytes.
    pub mtu: u8,
    /// Code of the time after which a packet is sent again: 4.096 µs × 2^code (§12.6.10).
    pub timeout: u8,
    /// Retries after it, 0 to 7.
    pub retries: u8,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// REQ: asks for a connection.
    Request(Request),
    /// REP: accepts it.
    Reply {
        /// The requester's number for the connection.
        to: u32,
        /// The sender.
        from: Endpoint,
    },
    /// RTU: the reply has arrived.
    Ready {
        /// The receiver's number for the connection.
        to: u32,
        /// The sender's.
        from: u32,
    },
    /// REJ: refuses a request or a reply.
    Reject {
        /// The receiver's number for the connection.
        to: u32,
        /// The sender's, or 0.
        from: u32,
        /// Why.
        reason: Reason,
    },
    /// DREQ: ends the connection.
    Disconnect {
        /// The receiver's number for the connection.
        to: u32,
        /// The sender's.
        from: u32,
        /// The receiver's queue pair.
        qpn: Qpn,
        /// The sender has closed, and has lost nothing that the receiver sent: in the private data,
        /// by which NICs of this kind say so.
        in_order: bool,
    },
    /// DREP: confirms the end.
    Disconnected {
        /// The receiver's number for the connection.
        to: u32,
        /// The sender's.
        from: u32,
    },
}

/// The body of a datagram, read and written at the offsets of §12.6.
struct Body<'a>(&'a mut [u8]);

impl Body<'_> {
    fn u32(&mut self, at: usize, n: u32) {
        self.0[at..at + 4].copy_from_slice(&n.to_be_bytes());
    }
    fn bytes(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
    /// A number of 24 bits and the byte behind it.
    fn joined(&mut self, at: usize, high: u32, low: u8) {
        self.u32(at, high << 8 | u32::from(low));
    }
    /// An address as a GID, of IPv4 a mapped one (annex A17 §A17.4.1).
    fn gid(&mut self, at: usize, ip: IpAddr) {
        let ip = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        self.bytes(at, &ip.octets());
    }
    /// An address in the header of the private data: of IPv4 in the last 4 of 16 bytes (annex A11
    /// §A11.4).
    fn ip(&mut self, at: usize, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => self.bytes(at + 12, &ip.octets()),
            IpAddr::V6(ip) => self.bytes(at, &ip.octets()),
        }
    }
}

fn u32_at(body: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]])
}

fn private(body: &[u8], at: usize) -> [u8; PRIVATE_BYTES] {
    std::array::from_fn(|i| body[at + i])
}

impl Message {
    /// The datagram of the message.
    pub fn emit(&self, transaction: u64) -> [u8; MAD_BYTES] {
        let mut bytes = [0; MAD_BYTES];
        let (header, body) = bytes.split_at_mut(MAD_HEADER);
        debug_assert_eq!(header.len(), MAD_HEADER);
        let mut b = Body(body);
        let attribute = match self {
            Message::Request(r) => {
                emit_request(&mut b, r);
                REQ
            }
            Message::Reply { to, from } => {
                b.u32(0, from.id);
                b.u32(4, *to);
                b.joined(12, from.qpn.value(), 0);
                b.joined(20, from.psn.value(), 0);
                b.bytes(24, &[from.responder_resources, from.initiator_depth]);
                b.bytes(27, &[from.rnr_retries << 5]);
                b.bytes(36, &from.private);
                REP
            }
            Message::Ready { to, from } => {
                b.u32(0, *from);
                b.u32(4, *to);
                RTU
            }
            Message::Reject { to, from, reason } => {
                b.u32(0, *from);
                b.u32(4, *to);
                b.bytes(10, &reason.code().to_be_bytes());
                REJ
            }
            Message::Disconnect {
                to,
                from,
                qpn,
                in_order,
            } => {
                b.u32(0, *from);
                b.u32(4, *to);
                b.joined(8, qpn.value(), 0);
                if *in_order {
                    b.bytes(12, IN_ORDER);
                }
                DREQ
            }
            Message::Disconnected { to, from } => {
                b.u32(0, *from);
                b.u32(4, *to);
                DREP
            }
        };
        Mad {
            transaction,
            attribute,
        }
        .emit(&mut bytes);
        bytes
    }

    /// Reads a datagram, with its transaction. `None`: no message of communication management for
    /// IP services.
    pub fn parse(bytes: &[u8; MAD_BYTES]) -> Option<(Message, u64)> {
        let mad = Mad::parse(bytes)?;
        let body = &bytes[MAD_HEADER..];
        let (from, to) = (u32_at(body, 0), u32_at(body, 4));
        let message = match mad.attribute {
            REQ => Message::Request(parse_request(body)?),
            REP => Message::Reply {
                to,
                from: Endpoint {
                    id: from,
                    qpn: Qpn::new(u32_at(body, 12) >> 8),
                    psn: Psn::new(u32_at(body, 20) >> 8),
                    responder_resources: body[24],
                    initiator_depth: body[25],
                    rnr_retries: body[27] >> 5,
                    private: private(body, 36),
                },
            },
            RTU => Message::Ready { to, from },
            REJ => Message::Reject {
                to,
                from,
                reason: Reason::of(u16::from_be_bytes([body[10], body[11]])),
            },
            DREQ => Message::Disconnect {
                to,
                from,
                qpn: Qpn::new(u32_at(body, 8) >> 8),
                in_order: body[12..].starts_with(IN_ORDER),
            },
            DREP => Message::Disconnected { to, from },
            _ => return None,
        };
        Some((message, mad.transaction))
    }
}

fn emit_request(b: &mut Body<'_>, r: &Request) {
    let from = &r.from;
    b.u32(0, from.id);
    b.bytes(8, &(SERVICE_TCP | u64::from(r.port)).to_be_bytes());
    b.joined(32, from.qpn.value(), from.responder_resources);
    b.joined(36, 0, from.initiator_depth);
    // Time for the answer: 4.096 µs × 2^20, 4 s; reliable connection.
    b.joined(40, 0, 20 << 3);
    b.joined(44, from.psn.value(), 20 << 3 | r.retries & 7);
    b.bytes(
        48,
        &[0xff, 0xff, r.mtu << 4 | from.rnr_retries & 7, 15 << 4],
    );
    // Permissive LIDs, as over Ethernet.
    b.bytes(52, &[0xff; 4]);
    b.gid(56, r.source.ip());
    b.gid(72, r.destination);
    b.bytes(92, &[0, 64, 0, r.timeout << 3]);
    let at = 140;
    b.bytes(at + 1, &[if r.source.is_ipv6() { 6 << 4 } else { 4 << 4 }]);
    b.bytes(at + 2, &r.source.port().to_be_bytes());
    b.ip(at + 4, r.source.ip());
    b.ip(at + 20, r.destination);
    b.bytes(at + IP_HEADER, &from.private);
}

fn parse_request(body: &[u8]) -> Option<Request> {
    let service = u64::from(u32_at(body, 8)) << 32 | u64::from(u32_at(body, 12));
    let at = 140;
    let ip = |at: usize| -> Option<IpAddr> {
        match body[140 + 1] >> 4 {
            4 => Some(Ipv4Addr::from(u32_at(body, at + 12)).into()),
            6 => Some(Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| body[at + i])).into()),
            _ => None,
        }
    };
    let (source, destination) = (ip(at + 4)?, ip(at + 20)?);
    let (qpn, psn) = (u32_at(body, 32), u32_at(body, 44));
    // Reliable connection, addresses in version 0 of their header.
    let valid = service & !0xffff == SERVICE_TCP && u32_at(body, 40) >> 1 & 3 == 0 && body[at] == 0;
    valid.then(|| Request {
        from: Endpoint {
            id: u32_at(body, 0),
            qpn: Qpn::new(qpn >> 8),
            psn: Psn::new(psn >> 8),
            responder_resources: qpn as u8,
            initiator_depth: u32_at(body, 36) as u8,
            rnr_retries: body[50] & 7,
            private: private(body, at + IP_HEADER),
        },
        port: service as u16,
        source: SocketAddr::new(source, u16::from_be_bytes([body[at + 2], body[at + 3]])),
        destination,
        mtu: body[50] >> 4,
        timeout: body[95] >> 3,
        retries: body[47] & 7,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            id: 0x1234_5678,
            qpn: Qpn::new(0xabcdef),
            psn: Psn::new(0xfedcba),
            responder_resources: 16,
            initiator_depth: 8,
            rnr_retries: 7,
            private: std::array::from_fn(|i| i as u8),
        }
    }

    #[test]
    fn every_message_comes_back() {
        let (to, from) = (0x9abc_def0, endpoint());
        let request = Request {
            from,
            port: 7000,
            source: ([10, 0, 0, 1], 50_000).into(),
            destination: [10, 0, 0, 2].into(),
            mtu: 5,
            timeout: 14,
            retries: 7,
        };
        let messages = [
            Message::Request(request),
            Message::Request(Request {
                source: ([0xfd00, 0, 0, 0, 0, 0, 0, 1], 50_000).into(),
                destination: [0xfd00, 0, 0, 0, 0, 0, 0, 2].into(),
                ..request
            }),
            Message::Reply { to, from },
            Message::Ready { to, from: 1 },
            Message::Reject {
                to,
                from: 1,
                reason: Reason::NoService,
            },
            Message::Reject {
                to,
                from: 0,
                reason: Reason::UnknownSender,
            },
            Message::Disconnect {
                to,
                from: 1,
                qpn: from.qpn,
                in_order: false,
            },
            Message::Disconnect {
                to,
                from: 1,
                qpn: from.qpn,
                in_order: true,
            },
            Message::Disconnected { to, from: 1 },
        ];
        for m in messages {
            assert_eq!(Message::parse(&m.emit(99)), Some((m, 99)));
            let mut other = m.emit(99);
            other[1] = 3;
            assert_eq!(Message::parse(&other), None, "another class");
        }
    }
}
