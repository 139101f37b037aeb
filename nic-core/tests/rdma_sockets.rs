//! RDMA over plain UDP sockets: faults of the network, packets from other sockets, a peer that
//! ends, and a capture. Sockets are real, time is virtual.

use crate::transport_support;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ringbell_nic_abi::status::{REASON_SHIFT, REASON_UNKNOWN_SENDER};
use ringbell_nic_abi::Status;
use ringbell_nic_core::network::Network;
use ringbell_nic_core::port::capture::Capture;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::roce::{RoceConfig, RocePort};
use ringbell_nic_core::port::{
    Arrived, Batch, Capabilities, Destination, Port, PortCounters, RefusedBy,
};
use ringbell_nic_core::transport::rdma::RdmaConfig;
use ringbell_nic_core::transport::Icrc;
use ringbell_nic_core::transport::{
    Close, Payload, RecvWork, SendWork, Target, Transport, TransportEvent, Work,
};
use ringbell_nic_core::types::{NicTime, Owner, WorkToken};
use transport_support::rdma::{config, Pair, Side};
use transport_support::{random, Flow, IP_A, IP_B, MINUTE};

fn socket(mtu: Option<usize>) -> RocePort {
    let bind = (Ipv4Addr::LOCALHOST, 0).into();
    RocePort::open(&RoceConfig { bind, mtu }).expect("loopback has free ports")
}

/// The same of IPv6. `None`, visibly: this machine has none.
fn socket_ipv6(mtu: Option<usize>) -> Option<RocePort> {
    let bind = (Ipv6Addr::LOCALHOST, 0).into();
    let port = RocePort::open(&RoceConfig { bind, mtu });
    port.inspect_err(|e| eprintln!("SKIPPED: no IPv6 here: {e}"))
        .ok()
}

fn with_icrc(seed: u64, icrc: Icrc) -> RdmaConfig {
    RdmaConfig {
        icrc,
        ..config(seed)
    }
}

type Socket = Box<dyn Port>;

fn local(port: &dyn Port) -> SocketAddr {
    let local = port.capabilities().medium.local();
    local.expect("a port of datagrams")
}

/// Two sides over ports of datagrams, each told where the other one receives.
fn over_sockets(ports: (Socket, Socket), a: RdmaConfig, b: RdmaConfig) -> Pair {
    let at = (local(&*ports.0), local(&*ports.1));
    let side = |port, ip, (other, address), config| {
        let mut net = Network::new(ip, 24, vec![port], &[]).expect("a host's address");
        net.know_host(other, address);
        Side::over(net, config)
    };
    Pair {
        a: side(ports.0, IP_A, (IP_B, at.1), a),
        b: side(ports.1, IP_B, (IP_A, at.0), b),
        now: NicTime(1_000_000),
        sockets: true,
    }
}

/// Sends both ways at once, and checks every byte.
fn carry(p: &mut Pair, bytes: usize) {
    let (a, b) = p.connect(7000);
    let mut there = Flow::new(&mut p.a, &mut p.b, (a, b), bytes, 1);
    let mut back = Flow::new(&mut p.b, &mut p.a, (b, a), bytes / 3, 2);
    p.until(10 * MINUTE, |p| {
        let done = there.drive(&mut p.a, &mut p.b) & back.drive(&mut p.b, &mut p.a);
        done.then_some(())
    });
    there.check(&p.a, &p.b);
    back.check(&p.b, &p.a);
    p.a.transport.close(a, Close::Gracefully);
    p.b.transport.close(b, Close::Gracefully);
    p.until(MINUTE, |p| {
        (p.a.transport.connections() + p.b.transport.connections() == 0).then_some(())
    });
}

/// A connection to NIC B must be refused long before its deadline.
fn is_refused_at_once(mut p: Pair, answer: Option<u16>, what: &str) {
    p.listen(7000);
    let deadline = NicTime(p.now.0 + MINUTE);
    let remote = SocketAddrV4::new(IP_B, 7000);
    let conn = p.a.transport.connect(p.now, remote, deadline);
    let conn = conn.expect("there is room");
    let begin = p.now;
    let status = p.until(2 * MINUTE, |p| {
        p.a.take(|e| match e {
            TransportEvent::ConnectFailed {
                conn: c,
                status,
                answer,
            } if *c == conn => Some((*status, *answer)),
            _ => None,
        })
    });
    assert_eq!(status, (Status::ConnectionRefused, answer), "{what}");
    // As a program reads it.
    let text = status
        .0
        .with_detail(u64::from(answer.unwrap_or(0)) << REASON_SHIFT);
    let names_the_peers = text.to_string().contains("name this NIC among the peers");
    assert_eq!(names_the_peers, answer.is_some(), "{what}: {text}");
    let took = p.now.0 - begin.0;
    assert!(took < 1_000_000_000, "{what}: {took} ns");
    assert_eq!(p.a.transport.connections(), 0, "{what}");
}

#[test]
fn a_nic_that_is_not_known_and_an_address_without_a_nic_are_refused_at_once() {
    for is_ipv6 in [false, true] {
        let open = || match is_ipv6 {
            true => socket_ipv6(None),
            false => Some(socket(None)),
        };
        let (Some(a), Some(b), Some(gone)) = (open(), open(), open()) else {
            return;
        };
        let pair = |a: RocePort, b: RocePort, at| {
            let mut net = Network::new(IP_A, 24, vec![Box::new(a)], &[]).expect("a host's address");
            net.know_host(IP_B, at);
            Pair {
                a: Side::over(net, config(1)),
                // It knows no NIC.
                b: Side::over(
                    Network::new(IP_B, 24, vec![Box::new(b)], &[]).expect("a host's address"),
                    config(2),
                ),
                now: NicTime(1_000_000),
                sockets: true,
            }
        };
        let at = b.local();
        let unknown = REASON_UNKNOWN_SENDER;
        is_refused_at_once(
            pair(a, b, at),
            Some(unknown),
            "the peer does not know this NIC",
        );
        let at = gone.local();
        drop(gone);
        let (Some(a), Some(b)) = (open(), open()) else {
            return;
        };
        // Nothing else may take the number of the socket that is gone in between.
        if b.local() != at && a.local() != at {
            is_refused_at_once(pair(a, b, at), None, "no NIC is there");
        }
    }
}

#[test]
fn streams_survive_loss_order_duplicates_and_flipped_bits() {
    for (seed, mtu, is_ipv6) in [
        (1, None, false),
        (2, Some(1_500), false),
        (3, Some(576), false),
        (4, Some(4_144), false),
        (5, None, true),
        (6, Some(1_500), true),
    ] {
        if is_ipv6 && socket_ipv6(mtu).is_none() {
            return;
        }
        let faulty = |seed| -> Box<dyn Port> {
            let faults = Faults {
                loss: 0.03,
                reorder: 0.03,
                duplicate: 0.03,
                corrupt: 0.03,
                seed,
                ..Faults::default()
            };
            let socket = match is_ipv6 {
                true => socket_ipv6(mtu).expect("as before"),
                false => socket(mtu),
            };
            Box::new(Impair::new(Box::new(socket), faults).expect("sound faults"))
        };
        let ports = (faulty(seed * 2), faulty(seed * 2 + 1));
        let ends = [1, 2].map(|n| with_icrc(seed * 2 + n, Icrc::Always));
        let mut p = over_sockets(ports, ends[0].clone(), ends[1].clone());
        carry(&mut p, 3_000_001);
        let counted = p.a.transport.counters();
        assert!(counted.repeated > 0, "{counted:?}");
        assert!(p.b.transport.counters().invalid > 0, "bits were flipped");
    }
}

#[test]
fn long_packets_are_received_in_place_between_others() {
    let is_there = socket_ipv6(None).is_some();
    for (seed, mtu, icrc, has_faults) in [
        (1, None, Icrc::Never, false),
        (2, None, Icrc::Always, true),
        (3, Some(9_000), Icrc::Never, false),
        (4, Some(9_000), Icrc::Always, true),
        (5, Some(20_000), Icrc::Always, false),
        // The second two over IPv6.
        (6, None, Icrc::Always, false),
        (7, Some(9_000), Icrc::Always, true),
    ] {
        let socket = |mtu| match seed > 5 {
            true => socket_ipv6(mtu).expect("as before"),
            false => socket(mtu),
        };
        if seed > 5 && !is_there {
            return;
        }
        let faults = Faults {
            loss: 0.02,
            reorder: 0.02,
            duplicate: 0.02,
            corrupt: 0.02,
            seed,
            ..Faults::default()
        };
        let sender: Socket = match has_faults {
            true => Box::new(Impair::new(Box::new(socket(mtu)), faults).expect("sound faults")),
            false => Box::new(socket(mtu)),
        };
        let ports: (Socket, Socket) = (sender, Box::new(socket(mtu)));
        let (sender, receiver) = (local(&*ports.0), local(&*ports.1));
        let ends = [1, 2].map(|n| with_icrc(seed * 2 + n, icrc));
        let mut p = over_sockets(ports, ends[0].clone(), ends[1].clone());
        (p.a.dma.mapped, p.b.dma.mapped) = (true, true);
        let foreign = UdpSocket::bind((sender.ip(), 0)).expect("a free port");
        let (a, b) = p.connect(7000);
        let mut there = Flow::new(&mut p.a, &mut p.b, (a, b), 6_000_001, seed);
        let mut back = Flow::new(&mut p.b, &mut p.a, (b, a), 2_000_001, seed + 7);
        let mut turn = 0;
        p.until(10 * MINUTE, |p| {
            turn += 1;
            // Of any length, packets as long as those of the stream among them.
            let junk = vec![0x5a; [1, 12, 28, 8_952, 20_000][turn % 5]];
            for to in [sender, receiver] {
                foreign.send_to(&junk, to).expect("the loopback");
            }
            let done = there.drive(&mut p.a, &mut p.b) & back.drive(&mut p.b, &mut p.a);
            done.then_some(())
        });
        there.check(&p.a, &p.b);
        back.check(&p.b, &p.a);
        let counted = p.b.transport.counters();
        assert!(counted.in_place > 10, "{seed}: {counted:?}");
        assert!(counted.foreign + counted.invalid > 0, "{counted:?}");
    }
}

/// The first packet of a written message is received in place, too, and the last one, which is
/// shorter.
#[test]
fn written_messages_are_received_in_place_between_foreign_packets() {
    for (seed, mtu, icrc) in [
        (1, None, Icrc::Never),
        (2, None, Icrc::Always),
        (3, Some(9_000), Icrc::Never),
        (4, Some(9_000), Icrc::Always),
        (5, Some(20_000), Icrc::Always),
    ] {
        let ports: (Socket, Socket) = (Box::new(socket(mtu)), Box::new(socket(mtu)));
        let receiver = local(&*ports.1);
        let ends = [1, 2].map(|n| with_icrc(seed * 2 + n, icrc));
        let mut p = over_sockets(ports, ends[0].clone(), ends[1].clone());
        (p.a.dma.mapped, p.b.dma.mapped) = (true, true);
        let foreign = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let (a, b) = p.connect(7000);
        for round in 0..8 {
            let data = random(seed * 100 + round, 200_000 + 4 * round as usize);
            let (from, into) = (
                p.a.dma.region(data.clone()),
                p.b.dma.region(vec![0; data.len()]),
            );
            let recv = RecvWork {
                token: WorkToken(1),
                by: Owner::NIC,
                buffer: into,
                some: false,
            };
            let key =
                p.b.transport
                    .expose(b, &recv, false)
                    .expect("an open connection");
            let work = SendWork {
                token: WorkToken(2),
                by: Owner::NIC,
                payload: Payload::Memory(from),
                push: true,
            };
            let to = Target {
                key,
                offset: 0,
                last: true,
            };
            foreign
                .send_to(&[0x5a; 9_000], receiver)
                .expect("the loopback");
            p.a.transport.post(a, Work::Write(work, to));
            let done = p.until(MINUTE, |p| p.b.received(1));
            assert_eq!(done, (Status::Ok, data.len() as u64));
            assert_eq!(p.until(MINUTE, |p| p.a.sent(2)).0, Status::Ok);
            assert!(p.b.dma.bytes(into) == data, "{seed}");
        }
        let counted = p.b.transport.counters();
        assert!(counted.in_place >= 8, "{seed}: {counted:?}");
        assert!(counted.foreign + counted.invalid > 0, "{counted:?}");
    }
}

/// Both sides step, after a packet of another socket has come, of one of five lengths.
fn receive_junk(p: &mut Pair, (foreign, receiver): (&UdpSocket, SocketAddr), turn: usize) {
    let junk = vec![0x5a; [1, 12, 28, 8_952, 20_000][turn % 5]];
    foreign.send_to(&junk, receiver).expect("the loopback");
    let mut steps = 0;
    p.until(MINUTE, |_| {
        steps += 1;
        (steps > 2).then_some(())
    });
}

#[test]
fn a_receive_that_has_not_begun_keeps_what_its_memory_holds() {
    let ports: (Socket, Socket) = (Box::new(socket(None)), Box::new(socket(None)));
    let receiver = local(&*ports.1);
    let mut p = over_sockets(ports, with_icrc(1, Icrc::Never), with_icrc(2, Icrc::Never));
    (p.a.dma.mapped, p.b.dma.mapped) = (true, true);
    let foreign = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let (a, b) = p.connect(7000);
    let len = 1_000_000;
    let sent: Vec<Vec<u8>> = (1..4).map(|seed| random(seed, len)).collect();
    let buffer = p.b.dma.region(vec![0; len]);
    // As latency tests do: two receives on one buffer, which holds a message until the next one is
    // sent.
    p.b.recv(b, 1, buffer, false);
    for (n, data) in (1..).zip(&sent) {
        p.b.recv(b, n + 1, buffer, false);
        let from = p.a.dma.region(data.clone());
        p.a.send(a, 100 + n, from);
        p.until(MINUTE, |p| p.b.received(n).map(|_| ()));
        for turn in 0..50 {
            receive_junk(&mut p, (&foreign, receiver), turn);
            assert!(p.b.dma.bytes(buffer) == data, "message {n}, {turn}");
        }
    }
    let counted = p.b.transport.counters();
    assert!(counted.in_place > 0, "{counted:?}");
}

/// Of a collective in place: its receive is announced while an earlier message still leaves from
/// the same memory.
#[test]
fn a_written_receive_in_use_keeps_what_its_memory_holds_until_it_begins() {
    for in_use in [true, false] {
        let ports: (Socket, Socket) = (Box::new(socket(None)), Box::new(socket(None)));
        let receiver = local(&*ports.1);
        let mut p = over_sockets(ports, with_icrc(1, Icrc::Never), with_icrc(2, Icrc::Never));
        (p.a.dma.mapped, p.b.dma.mapped) = (true, true);
        let foreign = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let (a, b) = p.connect(7000);
        let (held, data) = (random(7, 200_000), random(8, 200_000));
        let (from, into) = (p.a.dma.region(data.clone()), p.b.dma.region(held.clone()));
        let recv = RecvWork {
            token: WorkToken(1),
            by: Owner::NIC,
            buffer: into,
            some: false,
        };
        let key = p.b.transport.expose(b, &recv, in_use);
        let mut kept = true;
        for turn in 0..50 {
            receive_junk(&mut p, (&foreign, receiver), turn);
            kept &= p.b.dma.bytes(into) == held;
        }
        assert_eq!(
            kept, in_use,
            "its memory may be written before its first byte only where it is not in use"
        );
        let work = SendWork {
            token: WorkToken(2),
            by: Owner::NIC,
            payload: Payload::Memory(from),
            push: true,
        };
        let to = Target {
            key: key.expect("an open connection"),
            offset: 0,
            last: true,
        };
        p.a.transport.post(a, Work::Write(work, to));
        let done = p.until(MINUTE, |p| p.b.received(1));
        assert_eq!(done, (Status::Ok, data.len() as u64));
        assert!(p.b.dma.bytes(into) == data);
        assert!(p.b.transport.counters().in_place > 0);
    }
}

#[test]
fn the_crc_is_left_out_over_the_loopback_alone_and_when_both_agree() {
    for (a, b, left_out) in [
        (Icrc::Auto, Icrc::Auto, true),
        (Icrc::Always, Icrc::Auto, false),
        (Icrc::Never, Icrc::Always, false),
        (Icrc::Never, Icrc::Never, true),
    ] {
        let ports = (Box::new(socket(None)) as _, Box::new(socket(None)) as _);
        let mut p = over_sockets(ports, with_icrc(1, a), with_icrc(2, b));
        let (a, b) = p.connect(7000);
        for has in [p.a.transport.has_icrc(a), p.b.transport.has_icrc(b)] {
            assert_eq!(has, Some(!left_out));
        }
    }
}

/// A port that keeps a copy of each packet that it sends.
struct Spied {
    inner: RocePort,
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    spy: UdpSocket,
}

impl Spied {
    fn new(inner: RocePort) -> Spied {
        let spy = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        spy.set_nonblocking(true).expect("a socket");
        Spied {
            inner,
            seen: Arc::default(),
            spy,
        }
    }
}

impl Port for Spied {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn mtu_to(&mut self, to: IpAddr) -> usize {
        self.inner.mtu_to(to)
    }
    fn send(&mut self, now: NicTime, to: &Destination, batch: &Batch, from: usize) -> usize {
        let Destination::Socket { to, ecn, .. } = *to else {
            unreachable!("a port of datagrams");
        };
        let one_by_one = |to| Destination::Socket {
            to,
            ecn,
            segmented: false,
        };
        let spy = self.spy.local_addr().expect("bound");
        // The kernel copies them, packet by packet.
        self.inner.send(now, &one_by_one(spy), batch, from);
        let mut bytes = vec![0; 1 << 16];
        while let Ok(n) = self.spy.recv(&mut bytes) {
            let mut seen = self.seen.lock().expect("no panic");
            seen.push(bytes[..n].to_vec());
        }
        self.inner.send(now, &one_by_one(to), batch, from)
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        self.inner.receive(now)
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        self.inner.poll_fds(fds);
    }
    fn next_refused(&mut self) -> Option<RefusedBy> {
        self.inner.next_refused()
    }
    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

#[test]
fn packets_of_the_peer_from_another_socket_change_nothing() {
    let spied = Spied::new(socket(None));
    let seen = spied.seen.clone();
    let receiver = socket(None);
    let victim = receiver.local();
    let mut p = over_sockets(
        (Box::new(spied), Box::new(receiver)),
        with_icrc(1, Icrc::Always),
        with_icrc(2, Icrc::Always),
    );
    let (a, b) = p.connect(7000);
    let mut flow = Flow::new(&mut p.a, &mut p.b, (a, b), 200_000, 1);
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let tell = |bytes: &[u8]| {
        other.send_to(bytes, victim).expect("loopback");
    };
    p.until(MINUTE, |p| {
        // What the peer has sent, again, with a bit flipped, and cut.
        for mut packet in std::mem::take(&mut *seen.lock().expect("no panic")) {
            tell(&packet);
            tell(&packet[..packet.len() / 2]);
            let last = packet.len() - 1;
            packet[last] ^= 1;
            tell(&packet);
            // To a queue pair that does not exist, and too short for one.
            packet[5..8].copy_from_slice(&[0x12, 0x34, 0x56]);
            tell(&packet);
            tell(&packet[..1]);
            tell(&[]);
        }
        flow.drive(&mut p.a, &mut p.b).then_some(())
    });
    flow.check(&p.a, &p.b);
    let counted = p.b.transport.counters();
    assert!(counted.foreign > 0 && counted.invalid > 0, "{counted:?}");
    assert_eq!(
        counted.duplicates, 0,
        "a packet from another socket reached a queue pair"
    );
    assert_eq!(
        (p.a.transport.connections(), p.b.transport.connections()),
        (1, 1)
    );
}

#[test]
fn a_peer_whose_process_ends_resets_its_connections() {
    let ports = (Box::new(socket(None)) as _, Box::new(socket(None)) as _);
    let mut p = over_sockets(ports, config(1), config(2));
    let (conn, _) = p.connect(7000);
    let Pair {
        mut a, b, mut now, ..
    } = p;
    // Its socket is closed by the kernel.
    drop(b);
    let data = a.dma.region(vec![1; 10_000]);
    a.send(conn, 1, data);
    let end = now.0 + 10_000_000_000;
    while a.has(TransportEvent::Reset { conn }).is_none() {
        assert!(now.0 < end, "no reset: {:?}", a.events);
        a.step(now);
        now = NicTime(
            a.next_timer()
                .map_or(now.0 + 1_000_000, |t| t.0.max(now.0 + 10_000)),
        );
    }
}

/// Records one end, at a port by which tshark is told the protocol. Each line is what it shows of a
/// packet; `None`: there is no tshark.
fn recorded(ports: (RocePort, Box<dyn Port>)) -> Option<String> {
    let udp = ports.0.local().port();
    let path = std::env::temp_dir().join(format!("ringbell-roce-{}.pcapng", std::process::id()));
    let file = std::fs::File::create_new(&path).expect("a name of our own");
    let recorded = Capture::new(Box::new(ports.0), file, Duration::ZERO);
    let recorded = Box::new(recorded.expect("a new file can be written"));
    let ends = [1, 2].map(|n| with_icrc(n, Icrc::Always));
    let mut p = over_sockets((recorded, ports.1), ends[0].clone(), ends[1].clone());
    carry(&mut p, 300_001);
    drop(p);
    let fields = [
        "_ws.malformed",
        "_ws.expert",
        "ip.version",
        "infiniband.bth.opcode",
    ];
    let shown = std::process::Command::new("tshark")
        .args(["-n", "--disable-protocol", "rpcordma", "-T", "fields"])
        .args(["-o", "udp.check_checksum:TRUE"])
        .args(["-o", &format!("infiniband.rroce.port:{udp}")])
        .args(fields.iter().flat_map(|f| ["-e", f]))
        .arg("-r")
        .arg(&path)
        .output();
    std::fs::remove_file(&path).expect("written above");
    let shown = shown
        .inspect_err(|e| eprintln!("SKIPPED: there is no tshark: {e}"))
        .ok()?;
    Some(String::from_utf8_lossy(&shown.stdout).into_owned())
}

#[test]
fn tshark_reads_a_capture_of_datagrams() {
    let open = |is_ipv6| match is_ipv6 {
        true => socket_ipv6(Some(1_500)),
        false => Some(socket(Some(1_500))),
    };
    // The system chose the ports, and tshark remarks that one from 33434 on may be a traceroute's.
    let remark = |text: &str| !text.is_empty() && !text.contains("Possible traceroute");
    for (is_ipv6, version) in [(false, "4"), (true, "6")] {
        let (Some(a), Some(b)) = (open(is_ipv6), open(is_ipv6)) else {
            return;
        };
        let Some(text) = recorded((a, Box::new(b))) else {
            return;
        };
        assert!(text.lines().count() > 200, "{text}");
        let odd = text.lines().find(|l| {
            let fields: Vec<_> = l.split('\t').collect();
            let [malformed, expert, ip, opcode, ..] = fields[..] else {
                return true;
            };
            let is_roce = ip == version && opcode.starts_with(|c: char| c.is_ascii_digit());
            !malformed.is_empty() || remark(expert) || !is_roce
        });
        assert_eq!(odd, None, "malformed, an expert's remark, or not of RoCEv2");
    }
}
