//! RoCEv2 packets judged by scapy (headers, invariant CRC) and tshark (every field). A missing tool
//! is skipped, visibly.

use crate::scapy_support;

use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::roce::{QKEY_GSI, QPN_GSI, ROCE_UDP_PORT};
use ringbell_nic_abi::{NakCode, RoceOpcode};
use ringbell_nic_core::wire::roce::aeth::RnrTimer;
use ringbell_nic_core::wire::roce::cm::{Endpoint, Message, Reason, Request, PRIVATE_BYTES};
use ringbell_nic_core::wire::roce::icrc::{icrc, Flow};
use ringbell_nic_core::wire::roce::packet::{open, Head};
use ringbell_nic_core::wire::roce::{
    Aeth, AtomicEth, Bth, Deth, Extended, Invalid, Packet, Psn, Qpn, Reth, Syndrome,
};
use ringbell_nic_core::wire::udp::UNFRAGMENTED;
use ringbell_nic_core::wire::{emit_ethernet, udp, MacAddr, ETHERTYPE_IPV4};
use ringbell_roce::verbs::{
    self, Context, ContextConfig, Destination, Gid, Local, Modify, QpAttributes, QpLimits,
    SendFlags, SendRequest, Service,
};

const A: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 50_000);
const B: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), ROCE_UDP_PORT);
const FLOW: Flow = Flow {
    from: SocketAddr::V4(A),
    to: SocketAddr::V4(B),
    fragment: UNFRAGMENTED,
};

/// The same hosts with IPv6, which has no identification.
fn flow_v6() -> Flow {
    let at = |n, port| SocketAddrV6::new(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n), port, 0, 0);
    Flow {
        from: at(1, A.port()).into(),
        to: at(2, B.port()).into(),
        fragment: 0,
    }
}

fn random_extended(opcode: RoceOpcode, rng: &mut Rng) -> Extended {
    use RoceOpcode as Op;
    let n = rng.below(1 << 32) as u32;
    let reth = Reth {
        address: rng.below(u64::MAX),
        key: rng.below(1 << 32) as u32,
        length: n,
    };
    let syndrome = match rng.below(3) {
        0 => Syndrome::Ack {
            credits: rng.below(32) as u8,
        },
        1 => Syndrome::ReceiverNotReady(RnrTimer::new(rng.below(32) as u8)),
        _ => Syndrome::Nak(NakCode::ALL[rng.below(4) as usize]),
    };
    let aeth = Aeth {
        syndrome,
        msn: n & 0xff_ffff,
    };
    let deth = Deth {
        key: n,
        source: Qpn::new(rng.below(1 << 24) as u32),
        reserved: rng.below(1 << 8) as u8,
    };
    match opcode {
        Op::SendLastImm | Op::SendOnlyImm | Op::WriteLastImm => Extended::Immediate(n),
        Op::SendLastInvalidate | Op::SendOnlyInvalidate => Extended::Invalidate(n),
        Op::WriteFirst | Op::WriteOnly | Op::ReadRequest => Extended::Reth(reth),
        Op::WriteOnlyImm => Extended::RethImmediate(reth, n),
        Op::ReadResponseFirst | Op::ReadResponseLast | Op::ReadResponseOnly | Op::Acknowledge => {
            Extended::Aeth(aeth)
        }
        Op::AtomicAcknowledge => Extended::AtomicAck(aeth, rng.below(u64::MAX)),
        Op::CompareSwap | Op::FetchAdd => Extended::Atomic(AtomicEth {
            address: rng.below(u64::MAX),
            key: n,
            swap_or_add: rng.below(u64::MAX),
            compare: rng.below(u64::MAX),
        }),
        Op::DatagramSend => Extended::Datagram(deth),
        Op::DatagramSendImm => Extended::DatagramImmediate(deth, n),
        _ => Extended::None,
    }
}

fn random_head(opcode: RoceOpcode, rng: &mut Rng) -> (Head, Vec<u8>) {
    use RoceOpcode as Op;
    let mut number = || rng.below(1 << 24) as u32;
    let (destination, psn) = (Qpn::new(number()), Psn::new(number()));
    let len = match opcode {
        Op::Acknowledge | Op::AtomicAcknowledge | Op::ReadRequest => 0,
        Op::CompareSwap | Op::FetchAdd => 0,
        Op::CongestionNotification => 16,
        _ => rng.below(300) as usize,
    };
    let mut payload = rng.bytes(len);
    if opcode == Op::CongestionNotification {
        payload.fill(0);
    }
    let head = Head {
        bth: Bth {
            solicited: rng.below(2) == 1,
            fecn: rng.below(2) == 1,
            becn: rng.below(2) == 1,
            acknowledge: rng.below(2) == 1,
            ..Bth::new(opcode, destination, psn)
        },
        extended: random_extended(opcode, rng),
    };
    (head, payload)
}

/// The packet without its CRC.
fn packet(head: &Head, payload: &[u8]) -> Vec<u8> {
    let mut p = vec![0; head.len() + payload.len() + 3];
    p[head.len()..][..payload.len()].copy_from_slice(payload);
    let len = head.emit(&mut p, payload.len());
    p.truncate(len);
    p
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let mut f = vec![0; 14 + udp::IP_UDP_HEADERS];
    emit_ethernet(&mut f, MacAddr::local(2), MacAddr::local(1), ETHERTYPE_IPV4);
    udp::emit(&mut f[14..], A, B, 2, packet.len() + 4);
    f.extend(packet);
    f.extend(icrc(&FLOW, packet).expect("a packet"));
    f
}

/// The packet over IPv6, with any traffic class, flow label and hop limit: routers may change them
/// (annex A17 §A17.3.3).
fn frame_v6(packet: &[u8], rng: &mut Rng) -> Vec<u8> {
    let flow = flow_v6();
    let mut f = vec![0; 14];
    emit_ethernet(&mut f, MacAddr::local(2), MacAddr::local(1), 0x86dd);
    let udp_len = (8 + packet.len() + 4) as u16;
    let changing = rng.below(1 << 28) as u32;
    let mut ip = (6 << 28 | changing).to_be_bytes().to_vec();
    ip.extend(udp_len.to_be_bytes());
    ip.extend([17, rng.below(256) as u8]);
    for at in [flow.from, flow.to] {
        if let SocketAddr::V6(at) = at {
            ip.extend(at.ip().octets());
        }
    }
    let mut udp: Vec<u8> = [flow.from.port(), flow.to.port(), udp_len, 0]
        .iter()
        .flat_map(|v| v.to_be_bytes())
        .collect();
    udp.extend(packet);
    udp.extend(icrc(&flow, packet).expect("a packet"));
    // IPv6 wants the checksum, over a pseudo header of addresses, length and protocol (RFC 8200
    // §8.1).
    let pseudo = [&ip[8..], &udp_len.to_be_bytes(), &[0, 17], &udp].concat();
    let words = pseudo.chunks(2);
    let sum: u32 = words
        .map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| u32::from(*b)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = !((folded & 0xffff) + (folded >> 16)) as u16;
    let sum = if folded == 0 { 0xffff } else { folded };
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    [f, ip, udp].concat()
}

/// Gives frames to scapy, which checks them and writes a pcap file. `None`: there is no scapy.
fn judged_by_scapy(name: &str, frames: &[Vec<u8>]) -> Option<PathBuf> {
    let Some(python) = scapy_support::python() else {
        eprintln!(
            "SKIPPED {name}: there is no scapy; `cargo xtask test` installs it below target/venv"
        );
        return None;
    };
    let pcap = std::env::temp_dir().join(format!("ringbell-{name}-{}.pcap", std::process::id()));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/roce_scapy.py");
    let mut child = Command::new(python)
        .arg(script)
        .arg(&pcap)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python runs");
    let hex = |f: &Vec<u8>| f.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let lines: Vec<String> = frames.iter().map(hex).collect();
    let mut stdin = child.stdin.take().expect("piped");
    writeln!(stdin, "{}", lines.join("\n")).expect("scapy reads");
    drop(stdin);
    let out = child.wait_with_output().expect("our child");
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}");
    let count = String::from_utf8_lossy(&out.stdout);
    assert_eq!(count.trim(), frames.len().to_string());
    Some(pcap)
}

/// What tshark shows of each frame: the named fields, as numbers. `None`: there is no tshark.
fn judged_by_tshark(name: &str, pcap: &Path, fields: &[&str]) -> Option<Vec<Vec<Option<u64>>>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields"]);
    command.args([
        "-o",
        "ip.check_checksum:TRUE",
        "-o",
        "udp.check_checksum:TRUE",
    ]);
    // Random payloads look like those of other protocols now and then.
    for guessed in [
        "rpcordma",
        "smb_direct",
        "iser",
        "nvme-rdma",
        "infiniband.eoib",
    ] {
        command.args(["--disable-protocol", guessed]);
    }
    command.args([
        "-E",
        "separator=;",
        "-e",
        "_ws.malformed",
        "-e",
        "_ws.expert",
    ]);
    for f in fields {
        command.args(["-e", f]);
    }
    let Ok(out) = command.arg("-r").arg(pcap).output() else {
        eprintln!("SKIPPED {name}: there is no tshark");
        return None;
    };
    assert!(out.status.success());
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None if text == "True" => Some(1),
        None if text == "False" => Some(0),
        None => text.parse().ok(),
    };
    let text = String::from_utf8_lossy(&out.stdout);
    let rows = text.lines().enumerate().map(|(i, line)| {
        let mut cells = line.split(';');
        let (malformed, expert) = (cells.next(), cells.next());
        assert_eq!((malformed, expert), (Some(""), Some("")), "frame {}", i + 1);
        cells.map(number).collect()
    });
    Some(rows.collect())
}

fn samples() -> Vec<(Head, Vec<u8>)> {
    let mut rng = Rng::new(4791);
    let all = RoceOpcode::ALL.iter().cycle().take(800);
    all.map(|&op| random_head(op, &mut rng)).collect()
}

#[test]
fn every_packet_comes_back_and_no_cut_or_flipped_bit_does() {
    for (head, payload) in samples() {
        let bytes = packet(&head, &payload);
        let pad = (bytes.len() - head.len() - payload.len()) as u8;
        let read = Packet::parse(&bytes).expect("a packet of ours");
        let bth = Bth { pad, ..head.bth };
        assert_eq!((read.bth, read.extended), (bth, head.extended));
        assert_eq!(read.payload, payload);
        for flow in [FLOW, flow_v6()] {
            covers(&flow, &bytes);
        }
        let numbered = Flow {
            fragment: 1 << 16 | UNFRAGMENTED,
            ..FLOW
        };
        assert_ne!(icrc(&FLOW, &bytes), icrc(&numbered, &bytes));
        // Addresses of two families are of no packet.
        let mixed = Flow {
            to: flow_v6().to,
            ..FLOW
        };
        assert_eq!(icrc(&mixed, &bytes), None);
    }
}

/// Checks that the CRC of a packet covers its bytes and the flow's addresses and ports, each bit
/// that lies at the same place in a byte.
fn covers(flow: &Flow, bytes: &[u8]) {
    let mut closed = bytes.to_vec();
    closed.extend(icrc(flow, bytes).expect("a packet"));
    assert_eq!(open(&closed, Some(flow)), Ok(bytes));
    for cut in 0..closed.len() {
        assert!(open(&closed[..cut], Some(flow)).is_err());
    }
    for at in (0..closed.len()).filter(|&at| at != 4) {
        closed[at] ^= 0x10;
        assert_eq!(open(&closed, Some(flow)), Err(Invalid::Icrc), "byte {at}");
        closed[at] ^= 0x10;
    }
    // The byte of the congestion marks is not covered.
    closed[4] ^= 0xc0;
    assert!(open(&closed, Some(flow)).is_ok());
    let wrong = |flow: Flow| assert_eq!(open(&closed, Some(&flow)), Err(Invalid::Icrc), "{flow:?}");
    let (from, to) = (flow.from, flow.to);
    for at in 0..16 {
        wrong(Flow {
            from: flipped(from, at),
            to,
            ..*flow
        });
        wrong(Flow {
            from,
            to: flipped(to, at),
            ..*flow
        });
    }
    wrong(Flow {
        from: SocketAddr::new(from.ip(), from.port() ^ 1),
        ..*flow
    });
    wrong(Flow {
        to: SocketAddr::new(to.ip(), to.port() ^ 0x100),
        ..*flow
    });
    assert!(open(&closed, None).is_ok(), "not looked at");
}

/// The address with one byte changed.
fn flipped(at: SocketAddr, byte: usize) -> SocketAddr {
    match at {
        SocketAddr::V4(v4) => {
            let mut octets = v4.ip().octets();
            octets[byte % 4] ^= 0x10;
            (octets, v4.port()).into()
        }
        SocketAddr::V6(v6) => {
            let mut octets = v6.ip().octets();
            octets[byte] ^= 0x10;
            (octets, v6.port()).into()
        }
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut rng = Rng::new(1);
    for _ in 0..200_000 {
        let len = rng.below(80) as usize;
        let mut bytes = rng.bytes(len);
        if let Some(first) = bytes.first_mut() {
            *first = RoceOpcode::ALL[rng.below(RoceOpcode::ALL.len() as u64) as usize].code();
        }
        if let Ok(p) = Packet::parse(&bytes) {
            assert!(p.payload.len() <= len);
        }
        assert!(icrc(&FLOW, &bytes).is_some() == (len >= 12));
    }
}

#[test]
fn scapy_and_tshark_agree_on_every_operation() {
    agreed("roce", &frame);
}

#[test]
fn scapy_and_tshark_agree_on_every_operation_over_ipv6() {
    let rng = std::cell::RefCell::new(Rng::new(6));
    agreed("roce6", &|packet| frame_v6(packet, &mut rng.borrow_mut()));
}

/// Has both judge a packet of each operation many times, over the IP that `frame` writes.
fn agreed(name: &str, frame: &dyn Fn(&[u8]) -> Vec<u8>) {
    let samples = samples();
    let frames: Vec<_> = samples.iter().map(|(h, p)| frame(&packet(h, p))).collect();
    let Some(pcap) = judged_by_scapy(name, &frames) else {
        return;
    };
    let fields = [
        "bth.opcode",
        "bth.se",
        "bth.padcnt",
        "bth.destqp",
        "bth.a",
        "bth.psn",
        "reth.va",
        "reth.r_key",
        "reth.dmalen",
        "aeth.syndrome",
        "aeth.msn",
        "deth.q_key",
        "deth.srcqp",
        "atomiceth.swapdt",
        "atomiceth.cmpdt",
        "atomicacketh.origremdt",
    ];
    let fields = fields.map(|f| format!("infiniband.{f}"));
    let names: Vec<&str> = fields.iter().map(String::as_str).collect();
    let rows = judged_by_tshark(name, &pcap, &names);
    std::fs::remove_file(&pcap).expect("scapy wrote it");
    let Some(rows) = rows else { return };
    assert_eq!(rows.len(), samples.len());
    for ((head, payload), row) in samples.iter().zip(rows) {
        let b = &head.bth;
        let pad = (payload.len().next_multiple_of(4) - payload.len()) as u64;
        let reth = match head.extended {
            Extended::Reth(r) | Extended::RethImmediate(r, _) => {
                Some([r.address, r.key.into(), r.length.into()])
            }
            Extended::Atomic(_) => None,
            _ => None,
        };
        let aeth = match head.extended {
            Extended::Aeth(a) | Extended::AtomicAck(a, _) => {
                Some([a.bytes()[0].into(), u64::from(a.msn)])
            }
            _ => None,
        };
        let deth = match head.extended {
            Extended::Datagram(d) | Extended::DatagramImmediate(d, _) => {
                Some([u64::from(d.key), d.source.value().into()])
            }
            _ => None,
        };
        let base = [
            b.opcode.code().into(),
            b.solicited.into(),
            pad,
            b.destination.value().into(),
            b.acknowledge.into(),
            b.psn.value().into(),
        ];
        assert_eq!(row[..6], base.map(Some), "{head:?}");
        if !matches!(head.extended, Extended::Atomic(_)) {
            assert_eq!(row[6..9], spread(reth), "{head:?}");
        }
        assert_eq!(row[9..11], spread(aeth), "{head:?}");
        assert_eq!(row[11..13], spread(deth), "{head:?}");
        match head.extended {
            Extended::Atomic(a) => {
                assert_eq!(row[6..8], [Some(a.address), Some(a.key.into())]);
                assert_eq!(row[13..15], [Some(a.swap_or_add), Some(a.compare)]);
            }
            Extended::AtomicAck(_, old) => assert_eq!(row[15], Some(old)),
            _ => {}
        }
    }
}

#[test]
fn scapy_and_tshark_read_the_datagrams_of_a_context() {
    // At the port by which tshark knows the protocol, at addresses of loopback that are this test's
    // own.
    let [x, y] = std::process::id().to_be_bytes()[2..] else {
        unreachable!("two bytes");
    };
    let at = |n| SocketAddrV4::new(Ipv4Addr::new(127, n, x, y.max(1)), ROCE_UDP_PORT);
    let config = ContextConfig {
        address: (*at(120).ip()).into(),
        port: ROCE_UDP_PORT,
        ..ContextConfig::default()
    };
    let context = Context::open(&config).expect("an address of loopback");
    let socket = UdpSocket::bind(at(121)).expect("another one");
    let limit = std::time::Duration::from_secs(20);
    socket.set_read_timeout(Some(limit)).expect("a limit");
    let pd = context.alloc_pd().expect("a domain");
    let cq = context.create_cq(128, None).expect("a queue");
    let qp = pd.create_qp(&QpAttributes {
        service: Service::Datagram,
        send_cq: &cq,
        receive_cq: &cq,
        shared: None,
        limits: QpLimits {
            inline: 1024,
            ..QpLimits::default()
        },
        signal_all: true,
    });
    let qp = qp.expect("a queue pair");
    for change in [
        Modify::InitDatagram(1),
        Modify::RtrDatagram,
        Modify::RtsDatagram(0xff_fff0),
    ] {
        qp.modify(change).expect("a state");
    }
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&at(121).ip().octets());
    let handle = pd.create_ah(Gid(gid)).expect("the standard's address");
    let (number, key) = (0x00ab_cdef, 0x7654_3210);
    let mut frames = Vec::new();
    for i in 0..100_u32 {
        let bytes = vec![i as u8; i as usize * 7];
        let request = SendRequest {
            id: 0,
            request: verbs::Request::Send((i % 2 == 0).then_some(i)),
            local: Local::Inline(&[&bytes]),
            flags: SendFlags {
                solicited: i % 3 == 0,
                ..SendFlags::default()
            },
        };
        let to = Destination {
            handle: &handle,
            number,
            key,
        };
        qp.post_send_to(&request, &to).expect("posted");
        let mut packet = [0; 2048];
        let (len, from) = socket.recv_from(&mut packet).expect("within the limit");
        assert_eq!(from, SocketAddr::V4(at(120)));
        let mut f = vec![0; 14 + udp::IP_UDP_HEADERS];
        emit_ethernet(&mut f, MacAddr::local(2), MacAddr::local(1), ETHERTYPE_IPV4);
        udp::emit(&mut f[14..], at(120), at(121), 0, len);
        f.extend(&packet[..len]);
        frames.push(f);
    }
    let Some(pcap) = judged_by_scapy("datagrams", &frames) else {
        return;
    };
    let fields = [
        "bth.opcode",
        "bth.se",
        "bth.padcnt",
        "bth.destqp",
        "bth.psn",
        "deth.q_key",
        "deth.srcqp",
    ];
    let fields = fields.map(|f| format!("infiniband.{f}"));
    let names: Vec<&str> = fields.iter().map(String::as_str).collect();
    let rows = judged_by_tshark("datagrams", &pcap, &names);
    std::fs::remove_file(&pcap).expect("scapy wrote it");
    for (i, row) in rows.unwrap_or_default().iter().enumerate() {
        let i = i as u64;
        let expected = [
            0x64 + u64::from(i.is_multiple_of(2)),
            u64::from(i.is_multiple_of(3)),
            (i * 7).next_multiple_of(4) - i * 7,
            number.into(),
            (0xff_fff0 + i) & 0xff_ffff,
            key.into(),
            qp.number().into(),
        ];
        assert_eq!(row[..], expected.map(Some), "datagram {i}");
    }
}

fn spread<const N: usize>(values: Option<[u64; N]>) -> [Option<u64>; N] {
    std::array::from_fn(|i| values.map(|v| v[i]))
}

#[test]
fn scapy_and_tshark_agree_on_connection_management() {
    let from = Endpoint {
        id: 0x1234_5678,
        qpn: Qpn::new(0xab_cdef),
        psn: Psn::new(0xfe_dcba),
        responder_resources: 16,
        initiator_depth: 8,
        rnr_retries: 7,
        private: [7; PRIVATE_BYTES],
    };
    let (to, own) = (0x9abc_def0, from.id);
    let request = Request {
        from,
        port: 7000,
        source: A.into(),
        destination: (*B.ip()).into(),
        mtu: 5,
        timeout: 14,
        retries: 7,
    };
    let messages = [
        Message::Request(request),
        Message::Reply { to, from },
        Message::Ready { to, from: own },
        Message::Reject {
            to,
            from: own,
            reason: Reason::NoService,
        },
        Message::Disconnect {
            to,
            from: own,
            qpn: from.qpn,
            in_order: true,
        },
        Message::Disconnected { to, from: own },
        Message::Request(Request {
            source: ([0xfd00, 0, 0, 0, 0, 0, 0, 1], 50_001).into(),
            destination: [0xfd00, 0, 0, 0, 0, 0, 0, 2].into(),
            ..request
        }),
    ];
    let head = Head {
        bth: Bth::new(RoceOpcode::DatagramSend, Qpn::new(QPN_GSI), Psn::new(1)),
        extended: Extended::Datagram(Deth {
            key: QKEY_GSI,
            source: Qpn::new(QPN_GSI),
            reserved: 0,
        }),
    };
    let frames: Vec<_> = messages
        .iter()
        .map(|m| frame(&packet(&head, &m.emit(9))))
        .collect();
    let Some(pcap) = judged_by_scapy("cm", &frames) else {
        return;
    };
    let fields = [
        "infiniband.mad.attributeid",
        "infiniband.cm.req.serviceid.dport",
        "infiniband.cm.req.localqpn",
        "infiniband.cm.req.startpsn",
        "infiniband.cm.req.pppmtu",
        "infiniband.cm.req.retrcount",
        "infiniband.cm.req.rnrretrcount",
        "infiniband.cm.req.prim_localacktout",
        "infiniband.cm.req.ip_cm.sport",
        "infiniband.cm.rep.localqpn",
        "infiniband.cm.rep.startpsn",
        "infiniband.cm.rep.rnrretrcount",
        "infiniband.cm.rep.remotecommid",
        "infiniband.cm.req.ip_cm.ipv",
    ];
    let rows = judged_by_tshark("cm", &pcap, &fields);
    std::fs::remove_file(&pcap).expect("scapy wrote it");
    let Some(rows) = rows else { return };
    let (qpn, psn) = (Some(from.qpn.value().into()), Some(from.psn.value().into()));
    let n = Some;
    assert_eq!(
        rows[0][..9],
        [
            n(0x10),
            n(7000),
            qpn,
            psn,
            n(5),
            n(7),
            n(7),
            n(14),
            n(50_000)
        ]
    );
    assert_eq!(rows[1][0], n(0x13));
    assert_eq!(rows[1][9..13], [qpn, psn, n(7), n(to.into())]);
    let kinds: Vec<_> = rows[2..].iter().map(|r| r[0]).collect();
    assert_eq!(kinds, [n(0x14), n(0x12), n(0x15), n(0x16), n(0x10)]);
    let ends = [&rows[0], &rows[6]].map(|r| (r[8], r[13]));
    assert_eq!(ends, [(n(50_000), n(4)), (n(50_001), n(6))]);
}
