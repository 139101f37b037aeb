//! NICs that know each other by their IPv6 addresses alone, and what other hosts send them. Sockets
//! are those of a network namespace, time is virtual. Skipped, visibly, where there are no
//! namespaces.

use crate::transport_support;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use ringbell_nic_abi::roce::{QKEY_GSI, QPN_GSI, ROCE_UDP_PORT};
use ringbell_nic_abi::{RoceOpcode, Status};
use ringbell_nic_core::network::{is_short_name, Network};
use ringbell_nic_core::port::roce::{RoceConfig, RocePort};
use ringbell_nic_core::transport::{Close, Transport, TransportEvent};
use ringbell_nic_core::types::{ConnId, NicTime};
use ringbell_nic_core::wire::roce::cm::{Endpoint, Message, Reason, Request, PRIVATE_BYTES};
use ringbell_nic_core::wire::roce::extended::Deth;
use ringbell_nic_core::wire::roce::icrc::{icrc, Flow as Headers};
use ringbell_nic_core::wire::roce::packet::{open, Head};
use ringbell_nic_core::wire::roce::{Bth, Extended, Packet, Psn, Qpn};
use ringbell_nic_core::wire::udp::UNFRAGMENTED;
use transport_support::live::{missing, ok, Namespace};
use transport_support::rdma::{config, Pair, Side};
use transport_support::{random, Flow, IP_A, MINUTE};

const SERVICE: u16 = 7000;

fn host(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n)
}

fn at(n: u16) -> SocketAddr {
    (host(n), ROCE_UDP_PORT).into()
}

/// Two NICs of hosts 1 and 2. Both have one address of IPv4, by which nothing finds them.
fn pair() -> Option<(Pair, Namespace)> {
    if let Some(why) = missing(&["ip"]) {
        eprintln!("SKIPPED {}: {why}", file!());
        return None;
    }
    let ns = Namespace::new();
    ns.enter();
    if !std::path::Path::new("/proc/net/if_inet6").exists() {
        eprintln!("SKIPPED {}: no IPv6 here", file!());
        return None;
    }
    for n in 1..=3 {
        let host = format!("{}/128", host(n));
        ok("ip", &["addr", "add", &host, "dev", "lo", "nodad"]);
    }
    let side = |n: u16| {
        let bind = at(n);
        let port = RocePort::open(&RoceConfig { bind, mtu: None }).expect("the host's address");
        let net = Network::new(IP_A, 24, vec![Box::new(port)], &[]).expect("a host's address");
        Side::over(net, config(n.into()))
    };
    let now = NicTime(1_000_000);
    let p = Pair {
        a: side(1),
        b: side(2),
        now,
        sockets: true,
    };
    Some((p, ns))
}

fn connect(from: &mut Side, now: NicTime, name: Ipv4Addr) -> ConnId {
    let to = SocketAddrV4::new(name, SERVICE);
    let until = NicTime(now.0 + MINUTE);
    from.transport.connect(now, to, until).expect("a route")
}

/// The IPv6 address of a connection's peer.
fn peer(of: &Side, conn: ConnId) -> Option<Ipv6Addr> {
    let peer = of.transport.conn_state(conn)?.peer;
    assert!(is_short_name(*peer.ip()));
    of.net.behind_short_name(*peer.ip())
}

#[test]
fn nics_reach_each_other_by_ipv6_addresses_and_tell_the_peers() {
    let Some((mut p, _ns)) = pair() else { return };
    p.b.transport.listen(SERVICE, 4).expect("a free port");
    let name = p.a.net.short_name(host(2)).expect("a port of IPv6");
    assert_eq!(p.a.net.short_name(host(2)), Some(name));
    let a = connect(&mut p.a, p.now, name);
    p.until(MINUTE, |p| p.a.has(TransportEvent::Connected { conn: a }));
    let b = p.until(MINUTE, |p| p.b.incoming());
    assert_eq!(
        (peer(&p.a, a), peer(&p.b, b)),
        (Some(host(2)), Some(host(1)))
    );
    let mut there = Flow::new(&mut p.a, &mut p.b, (a, b), 500_001, 1);
    let mut back = Flow::new(&mut p.b, &mut p.a, (b, a), 300_001, 2);
    p.until(10 * MINUTE, |p| {
        let done = there.drive(&mut p.a, &mut p.b) & back.drive(&mut p.b, &mut p.a);
        done.then_some(())
    });
    there.check(&p.a, &p.b);
    back.check(&p.b, &p.a);
    // By the name that its request has made here, the first one is reached as well.
    let heard = p.b.transport.conn_state(b).expect("open").peer;
    p.a.transport.listen(SERVICE, 4).expect("a free port");
    let second = connect(&mut p.b, p.now, *heard.ip());
    p.until(MINUTE, |p| {
        p.b.has(TransportEvent::Connected { conn: second })
    });
    let accepted = p.until(MINUTE, |p| p.a.incoming());
    assert_eq!(peer(&p.a, accepted), Some(host(2)));
    for conn in [a, accepted] {
        p.a.transport.close(conn, Close::Gracefully);
    }
    for conn in [b, second] {
        p.b.transport.close(conn, Close::Gracefully);
    }
    p.until(MINUTE, |p| {
        (p.a.transport.connections() + p.b.transport.connections() == 0).then_some(())
    });
}

#[test]
fn names_and_hosts_that_are_not_there_are_refused_in_time() {
    let Some((mut p, _ns)) = pair() else { return };
    let nothing = Ipv4Addr::new(240, 1, 2, 3);
    let silent = p.a.net.short_name(host(3)).expect("a port of IPv6");
    let deaf = p.a.net.short_name(host(2)).expect("a port of IPv6");
    for (to, expected) in [
        (nothing, Status::HostUnreachable),
        // No address of IPv4 is behind a port of IPv6.
        (Ipv4Addr::new(10, 0, 0, 9), Status::HostUnreachable),
        (silent, Status::ConnectionRefused),
        (deaf, Status::ConnectionRefused),
    ] {
        let mut once = || {
            let conn = connect(&mut p.a, p.now, to);
            p.until(2 * MINUTE, |p| {
                p.a.take(|e| match e {
                    TransportEvent::ConnectFailed {
                        conn: c, status, ..
                    } if *c == conn => Some(*status),
                    _ => None,
                })
            })
        };
        // A loaded kernel may be slower than virtual time, in which an answer then comes too late.
        let status = (0..10).map(|_| once()).find(|s| *s == expected);
        assert_eq!(status, Some(expected), "{to}");
    }
    // Nor is a short name behind one of IPv4.
    let bind = (Ipv4Addr::LOCALHOST, 0).into();
    let port = RocePort::open(&RoceConfig { bind, mtu: None }).expect("a free port");
    let net = Network::new(IP_A, 24, vec![Box::new(port)], &[]).expect("a host's address");
    let mut side = Side::over(net, config(9));
    assert_eq!(side.net.short_name(host(2)), None);
    let conn = connect(&mut side, p.now, Ipv4Addr::new(240, 0, 0, 1));
    side.step(p.now);
    let status = Status::HostUnreachable;
    side.has(TransportEvent::ConnectFailed {
        conn,
        status,
        answer: None,
    })
    .expect("at once");
    // And none is the NIC's own.
    let own = Network::new(Ipv4Addr::new(240, 0, 0, 1), 8, Vec::new(), &[]);
    assert!(own.is_err());
}

/// Host 3, which sends what it likes.
struct Outsider {
    socket: UdpSocket,
    sent: u64,
}

fn headers(from: SocketAddr, to: SocketAddr) -> Headers {
    let fragment = UNFRAGMENTED;
    Headers { from, to, fragment }
}

impl Outsider {
    fn new() -> Outsider {
        let socket = UdpSocket::bind(at(3)).expect("a free port");
        let wait = Some(Duration::from_millis(1));
        socket.set_read_timeout(wait).expect("a socket");
        Outsider { socket, sent: 0 }
    }

    fn say(&mut self, message: &Message) {
        let gsi = Qpn::new(QPN_GSI);
        let head = Head {
            bth: Bth::new(RoceOpcode::DatagramSend, gsi, Psn::new(0)),
            extended: Extended::Datagram(Deth {
                key: QKEY_GSI,
                source: gsi,
                reserved: 0,
            }),
        };
        self.sent += 1;
        let datagram = message.emit(self.sent);
        let mut packet = vec![0; head.len() + datagram.len()];
        packet[head.len()..].copy_from_slice(&datagram);
        head.emit(&mut packet, datagram.len());
        let sum = icrc(&headers(at(3), at(2)), &packet).expect("of one family");
        packet.extend(sum);
        self.socket.send_to(&packet, at(2)).expect("the loopback");
    }

    /// What comes back.
    fn hears(&self, p: &mut Pair) -> Option<Message> {
        let mut bytes = [0; 2_000];
        for _ in 0..50 {
            let mut steps = 0;
            p.until(MINUTE, |_| {
                steps += 1;
                (steps > 2).then_some(())
            });
            if let Ok((n, from)) = self.socket.recv_from(&mut bytes) {
                assert_eq!(from.ip(), host(2));
                let flow = headers(at(2), at(3));
                let packet = open(&bytes[..n], Some(&flow)).expect("its CRC is right");
                let packet = Packet::parse(packet).expect("a packet");
                let mad = packet.payload.try_into().expect("a datagram's length");
                return Message::parse(mad).map(|(m, _)| m);
            }
        }
        None
    }
}

#[test]
fn messages_of_other_hosts_are_answered_refused_or_dropped() {
    let Some((mut p, _ns)) = pair() else { return };
    p.b.transport.listen(SERVICE, 4).expect("a free port");
    let name = p.a.net.short_name(host(2)).expect("a port of IPv6");
    let a = connect(&mut p.a, p.now, name);
    let b = p.until(MINUTE, |p| p.b.incoming());
    let mut outsider = Outsider::new();
    let mut private = [0; PRIVATE_BYTES];
    private[..6].copy_from_slice(b"RBEL\x02\x02");
    private[8..12].copy_from_slice(&65_536_u32.to_be_bytes());
    private[12..16].copy_from_slice(&1_024_u32.to_be_bytes());
    let from = Endpoint {
        id: 77,
        qpn: Qpn::new(0x1234),
        psn: Psn::new(5),
        responder_resources: 0,
        initiator_depth: 0,
        rnr_retries: 7,
        private,
    };
    let request = Request {
        from,
        port: SERVICE,
        source: (host(3), 50_000).into(),
        destination: host(2).into(),
        mtu: 3,
        timeout: 13,
        retries: 7,
    };
    let v4 = |n: u8| Ipv4Addr::new(10, 0, 0, n);
    let wrong = [
        // Another sender, another receiver, and addresses that are no NIC's.
        Request {
            source: (host(1), 50_000).into(),
            ..request
        },
        Request {
            destination: host(9).into(),
            ..request
        },
        Request {
            source: (Ipv6Addr::UNSPECIFIED, 50_000).into(),
            ..request
        },
        // By names of IPv4, which this host has none of: one of the NIC's own, and a short one.
        Request {
            source: (v4(3), 50_000).into(),
            destination: v4(1).into(),
            ..request
        },
        Request {
            source: (Ipv4Addr::new(240, 0, 0, 1), 50_000).into(),
            destination: v4(1).into(),
            ..request
        },
        // Of another kind of program.
        Request {
            from: Endpoint {
                private: [0; PRIVATE_BYTES],
                ..from
            },
            ..request
        },
    ];
    let reject = |reason| {
        Some(Message::Reject {
            to: 77,
            from: 0,
            reason,
        })
    };
    for wrong in wrong {
        outsider.say(&Message::Request(wrong));
        let reason = match wrong.source.ip() == request.source.ip() {
            true => Reason::Consumer,
            false => Reason::UnknownSender,
        };
        assert_eq!(outsider.hears(&mut p), reject(reason), "{wrong:?}");
    }
    outsider.say(&Message::Request(Request {
        port: SERVICE + 1,
        ..request
    }));
    assert_eq!(outsider.hears(&mut p), reject(Reason::NoService));
    assert_eq!(p.b.transport.connections(), 1);
    // Of connections that are not this host's: with the numbers of one that is there, too.
    let theirs = p.b.transport.connections();
    for id in [0, 1, 77, u32::MAX] {
        let (to, own) = (id, 77);
        outsider.say(&Message::Ready { to, from: own });
        outsider.say(&Message::Disconnected { to, from: own });
        let reason = Reason::Consumer;
        outsider.say(&Message::Reject {
            to,
            from: own,
            reason,
        });
        assert_eq!(outsider.hears(&mut p), None);
        outsider.say(&Message::Reply { to, from });
        assert!(matches!(
            outsider.hears(&mut p),
            Some(Message::Reject { to: 77, .. })
        ));
        let qpn = from.qpn;
        outsider.say(&Message::Disconnect {
            to,
            from: own,
            qpn,
            in_order: false,
        });
        let gone = Message::Disconnected { to: own, from: to };
        assert_eq!(outsider.hears(&mut p), Some(gone));
    }
    assert_eq!(p.b.transport.connections(), theirs);
    // A right one is taken, twice said, too.
    outsider.say(&Message::Request(request));
    outsider.say(&Message::Request(request));
    let Some(Message::Reply { to: 77, from: own }) = outsider.hears(&mut p) else {
        panic!("no reply");
    };
    outsider.say(&Message::Ready {
        to: own.id,
        from: 77,
    });
    let taken = p.until(MINUTE, |p| p.b.incoming());
    assert_eq!(peer(&p.b, taken), Some(host(3)));
    assert_eq!(p.b.transport.connections(), 2);
    // The first connection has not noticed.
    let data = random(1, 100_000);
    let mut flow = Flow::new(&mut p.a, &mut p.b, (a, b), data.len(), 3);
    p.until(MINUTE, |p| flow.drive(&mut p.a, &mut p.b).then_some(()));
    flow.check(&p.a, &p.b);
}
