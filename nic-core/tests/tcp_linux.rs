//! TCP against the Linux kernel: TAP with Python peers, UDP between network namespaces, and
//! captures read by tshark. Needs root, `ip`, `python3`, `tshark`; what is missing is skipped,
//! visibly.
//!
//! `RINGBELL_TCP_LINUX_MIB` sets the size of a transfer (default 16).
#![allow(clippy::disallowed_methods)] // Real time at the edge.

use crate::{need, transport_support};

use std::fs::File;
use std::io::BufWriter;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringbell_nic_abi::Status;
use ringbell_nic_core::port::capture::Capture;
use ringbell_nic_core::port::udp::{UdpConfig, UdpPort};
use ringbell_nic_core::port::{Arrived, MacAddr, Port as _};
use ringbell_nic_core::transport::{Close, Transport, TransportEvent};
use ringbell_nic_core::types::{Buffer, NicTime};
use smoltcp::wire::{IpProtocol, Ipv4Packet, UdpPacket};
use transport_support::live::{missing, ok, run, tap, Live, Namespace, HOST, NIC, PATIENCE};
use transport_support::random;

fn mib() -> usize {
    let set = std::env::var("RINGBELL_TCP_LINUX_MIB").ok();
    set.and_then(|v| v.parse().ok()).unwrap_or(16) << 20
}

fn temp(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ringbell-{}-{name}", std::process::id()))
}

/// Sends a file, shuts its sending side, reads everything back and compares.
const CLIENT: &str = r#"
import socket, sys, threading
data = open(sys.argv[1], 'rb').read()
s = socket.create_connection((sys.argv[2], 7000), timeout=60)
def send():
    s.sendall(data); s.shutdown(socket.SHUT_WR)
t = threading.Thread(target=send); t.start()
got = bytearray()
while True:
    b = s.recv(1 << 20)
    if not b: break
    got += b
t.join()
assert bytes(got) == data, f'{len(got)} of {len(data)} bytes, or other ones'
print('equal')
"#;

/// Takes one connection, reads to its end, answers with the SHA-256 of what came.
const SERVER: &str = r#"
import socket, hashlib
l = socket.create_server(('0.0.0.0', 7001)); print('up', flush=True)
l.settimeout(60)
c, _ = l.accept()
h = hashlib.sha256(); n = 0
while True:
    b = c.recv(1 << 20)
    if not b: break
    h.update(b); n += len(b)
c.sendall(h.hexdigest().encode()); c.close()
"#;

/// Serves one echo client; gives how many bytes came.
fn echo(nic: &mut Live, client: impl FnOnce() -> Child) -> u64 {
    nic.side
        .transport
        .listen(7000, 4)
        .expect("the port is free");
    let child = client();
    let conn = nic.accept();
    let room = nic.side.dma.region(vec![0; 1 << 20]);
    let mut total = 0;
    loop {
        nic.side.recv(conn, 5, room, true);
        let (status, bytes) = nic.until(|l| l.side.received(5));
        if status == Status::EndOfStream {
            break;
        }
        assert_eq!(status, Status::Ok);
        total += bytes;
        let part = Buffer {
            len: bytes as u32,
            ..room
        };
        nic.side.send(conn, 6, part);
        assert_eq!(nic.until(|l| l.side.sent(6)), (Status::Ok, bytes));
    }
    // The peer has shut its sending side; ours went on until here.
    nic.close(conn);
    assert_eq!(nic.wait_for(child).trim(), "equal");
    total
}

#[test]
fn a_linux_client_gets_its_bytes_back_over_tap() {
    need!("ip", "python3");
    bytes_come_back(false);
}

#[test]
fn a_linux_client_gets_its_bytes_back_in_long_frames() {
    need!("ip", "python3");
    bytes_come_back(true);
}

fn bytes_come_back(offloads: bool) {
    let ns = Namespace::new();
    let mut nic = Live::new(Box::new(tap(&ns, offloads)), NIC);
    let file = temp("echo");
    std::fs::write(&file, random(1, mib())).expect("room in the temporary folder");
    let path = file.to_string_lossy().into_owned();
    let total = echo(&mut nic, || ns.python(CLIENT, &[&path, &NIC.to_string()]));
    assert_eq!(total, mib() as u64);
    let _ = std::fs::remove_file(file);
}

#[test]
fn a_linux_server_gets_our_bytes_over_tap() {
    need!("ip", "python3", "sha256sum");
    bytes_arrive(false);
}

#[test]
fn a_linux_server_gets_our_bytes_in_long_frames() {
    need!("ip", "python3", "sha256sum");
    bytes_arrive(true);
}

fn bytes_arrive(offloads: bool) {
    let ns = Namespace::new();
    let mut nic = Live::new(Box::new(tap(&ns, offloads)), NIC);
    let mut child = ns.python(SERVER, &[]);
    let mut line = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut line)
        .expect("it says up");
    let conn = nic.connect(SocketAddrV4::new(HOST, 7001));
    let data = random(2, mib());
    let file = temp("sum");
    std::fs::write(&file, &data).expect("room in the temporary folder");
    let sum = run("sha256sum", &[&file.to_string_lossy()])
        .expect("asked for above")
        .stdout;
    let _ = std::fs::remove_file(file);
    nic.send_all(conn, data);
    nic.side.transport.close(conn, Close::Sending);
    let answer = nic.read_to_end(conn, 1000);
    assert_eq!(answer, sum[..64]);
    nic.close(conn);
    nic.wait_for(child);
}

#[test]
fn a_linux_host_refuses_and_pings() {
    need!("ip", "python3");
    let ns = Namespace::new();
    let mut nic = Live::new(Box::new(tap(&ns, true)), NIC);
    let (now, deadline) = (nic.now(), nic.now().plus(PATIENCE));
    let conn = nic
        .side
        .transport
        .connect(now, SocketAddrV4::new(HOST, 9), deadline)
        .expect("an id");
    let refused = TransportEvent::ConnectFailed {
        conn,
        status: Status::ConnectionRefused,
        answer: Some(0),
    };
    nic.until(|l| l.side.has(refused));
    // And Linux is refused by us.
    let knock = "import socket,sys\ntry: socket.create_connection((sys.argv[1], 9), timeout=20)\nexcept ConnectionRefusedError: print('refused')";
    let child = ns.python(knock, &[&NIC.to_string()]);
    assert_eq!(nic.wait_for(child).trim(), "refused");
    if run("ping", &["-V"]).is_none() {
        eprintln!("SKIPPED ping: it is not installed");
        return;
    }
    let ping = Command::new("ip")
        .args([
            "netns",
            "exec",
            &ns.0,
            "ping",
            "-c",
            "2",
            "-i",
            "0.2",
            "-W",
            "5",
            &NIC.to_string(),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ip is installed");
    assert!(nic.wait_for(ping).contains(" 0% packet loss"));
}

#[test]
fn tshark_finds_nothing_wrong_in_a_capture() {
    need!("ip", "python3", "tshark");
    assert!(captured(false) > 1000, "a frame for each packet");
}

#[test]
fn tshark_finds_nothing_wrong_in_a_capture_of_long_frames() {
    need!("ip", "python3", "tshark");
    captured(true);
}

/// The packets of TCP in a capture of a transfer.
fn captured(offloads: bool) -> usize {
    let ns = Namespace::new();
    // Tests of one process may run at once.
    let of = |name: &str| temp(&format!("{name}-{offloads}"));
    let capture = of("capture.pcapng");
    let sink = BufWriter::new(File::create(&capture).expect("the temporary folder is writable"));
    let epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let port = Capture::new(Box::new(tap(&ns, offloads)), sink, epoch);
    let port = port.expect("a new file can be written");
    let mut nic = Live::new(Box::new(port), NIC);
    let file = of("captured");
    std::fs::write(&file, random(3, 1 << 20)).expect("room in the temporary folder");
    let path = file.to_string_lossy().into_owned();
    echo(&mut nic, || ns.python(CLIENT, &[&path, &NIC.to_string()]));
    // Dropping the transport flushes the file.
    drop(nic);
    let capture_path = capture.to_string_lossy().into_owned();
    let lines = |filter: &str| {
        let out = run(
            "tshark",
            &[
                "-r",
                &capture_path,
                "-o",
                "tcp.check_checksum:TRUE",
                "-o",
                "ip.check_checksum:TRUE",
                "-Y",
                filter,
            ],
        )
        .expect("asked for above");
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "tshark: {err}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let count = |filter: &str| lines(filter).lines().count();
    let packets = count("tcp");
    assert!(packets > 100, "the capture holds the transfer");
    let long = count("ip.len > 1500");
    assert_eq!(long > 0, offloads, "{long} of {packets} packets are long");
    assert!(count("arp") >= 1 && count("tcp.flags.fin == 1") >= 2);
    let wrong = "_ws.malformed || tcp.checksum.status == 0 || ip.checksum.status == 0 || _ws.expert.severity == 0x800000";
    // A retransmission that overlaps what came before troubles Wireshark's reassembly, not TCP
    // (RFC 9293 §3.8): a loaded machine makes the kernel send a few bytes again.
    let overlap = "New fragment overlaps old data";
    let found = lines(wrong);
    let found: Vec<&str> = found.lines().filter(|l| !l.contains(overlap)).collect();
    assert!(found.is_empty(), "{capture_path}: {found:?}");
    for f in [file, capture] {
        let _ = std::fs::remove_file(f);
    }
    packets
}

/// A UDP port of a namespace, with the other side's address where it is known.
fn udp(at: [u8; 4], peers: Vec<SocketAddr>, mtu: Option<usize>) -> Box<UdpPort> {
    let config = UdpConfig {
        bind: SocketAddr::from((at, 4789)),
        peers,
        vni: 9,
        secret: Some(42),
        mac: MacAddr::local(u32::from(at[3])),
        mtu,
    };
    Box::new(UdpPort::open(config).expect("a free port in a new namespace"))
}

/// A link between two namespaces. Each end is a namespace, an address with its prefix, and an MTU.
fn veth(ends: [(&Namespace, &str, &str); 2]) {
    let [a, b] = ["v", "w"].map(|end| format!("{end}{}", ends[0].0 .0));
    let (from, to) = (&ends[0].0 .0, &ends[1].0 .0);
    ok(
        "ip",
        &[
            "link", "add", &a, "netns", from, "type", "veth", "peer", "name", &b, "netns", to,
        ],
    );
    for ((ns, ip, mtu), dev) in ends.iter().zip([&a, &b]) {
        ok("ip", &["-n", &ns.0, "addr", "add", ip, "dev", dev]);
        ok("ip", &["-n", &ns.0, "link", "set", dev, "mtu", mtu, "up"]);
    }
}

/// Sends `data` from one namespace to another and an answer back. `during` runs in the client when
/// the connection is made. Returns the MTUs of the server's and the client's port in the end.
fn carries(
    ends: [(&Namespace, [u8; 4]); 2],
    mtus: [Option<usize>; 2],
    data: &[u8],
    during: impl FnOnce(&mut Live) + Send,
) -> [usize; 2] {
    let [(y, server), (x, client)] = ends;
    std::thread::scope(|s| {
        let server_side = s.spawn(move || {
            y.enter();
            let mut nic = Live::new(udp(server, Vec::new(), mtus[0]), NIC);
            nic.side
                .transport
                .listen(7000, 1)
                .expect("the port is free");
            let conn = nic.accept();
            let got = nic.read_to_end(conn, data.len() + 1);
            nic.send_all(conn, got.clone());
            nic.close(conn);
            (got, nic.side.port().capabilities().mtu)
        });
        let client_side = s.spawn(move || {
            x.enter();
            let peer = SocketAddr::from((server, 4789));
            let mut nic = Live::new(udp(client, vec![peer], mtus[1]), HOST);
            let conn = nic.connect(SocketAddrV4::new(NIC, 7000));
            during(&mut nic);
            nic.send_all(conn, data.to_vec());
            nic.side.transport.close(conn, Close::Sending);
            let answer = nic.read_to_end(conn, data.len() + 1);
            nic.close(conn);
            (answer, nic.side.port().capabilities().mtu)
        });
        let (answer, mtu) = client_side.join().expect("the client finished");
        let (got, other) = server_side.join().expect("the server finished");
        assert!(got == data && answer == data, "bytes differ");
        [other, mtu]
    })
}

#[test]
fn two_namespaces_talk_over_udp() {
    need!("ip");
    let (x, y) = (Namespace::new(), Namespace::new());
    let link = "1300";
    veth([(&x, "192.168.78.1/24", link), (&y, "192.168.78.2/24", link)]);
    let ends = [(&y, [192, 168, 78, 2]), (&x, [192, 168, 78, 1])];
    let data = random(4, mib());
    let discovered = carries(ends, [None, None], &data, |_| {});
    assert_eq!(
        discovered,
        [1450, 1250],
        "the client's segments bound the server's"
    );
    let set = carries(ends, [Some(1450), Some(576)], &data, |_| {});
    assert_eq!(set, [1450, 576]);
}

#[test]
fn a_smaller_mtu_on_the_route_lowers_that_of_a_connection() {
    need!("ip");
    // A router between the two; the far link carries less than the near one.
    let (x, r, y) = (Namespace::new(), Namespace::new(), Namespace::new());
    veth([
        (&x, "192.168.78.1/24", "9300"),
        (&r, "192.168.78.2/24", "9300"),
    ]);
    veth([
        (&r, "192.168.79.1/24", "2050"),
        (&y, "192.168.79.2/24", "2050"),
    ]);
    for (ns, net, via) in [
        (&x, "192.168.79.0/24", "192.168.78.2"),
        (&y, "192.168.78.0/24", "192.168.79.1"),
    ] {
        ok("ip", &["-n", &ns.0, "route", "add", net, "via", via]);
    }
    let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
    ok("ip", &["netns", "exec", &r.0, "sh", "-c", forward]);
    let data = random(5, mib());
    let ends = [(&y, [192, 168, 79, 2]), (&x, [192, 168, 78, 1])];
    // At first 9,000: the server's own link refuses more, and the router names the MTU of its far
    // link to the client.
    let set = [Some(9000), Some(9000)];
    assert_eq!(carries(ends, set, &data, |_| {}), [2000, 2000]);
    // The kernel has a route now. The MTU of its near link falls while the connection is up.
    let narrow = |_: &mut Live| {
        for (ns, end) in [(&x, "v"), (&r, "w")] {
            let dev = format!("{end}{}", x.0);
            ok("ip", &["-n", &ns.0, "link", "set", &dev, "mtu", "1050"]);
        }
    };
    let known = [Some(9000), None];
    assert_eq!(carries(ends, known, &data, narrow), [1000, 1000]);
}

const DATAGRAMS: &str = r#"
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(17, 103, 1000)  # SOL_UDP, UDP_SEGMENT
s.sendto(bytes(n % 251 for n in range(30500)), (sys.argv[1], 9))
"#;

/// The kernel cuts a long send where the device cannot, so the port's frames are the same.
#[test]
fn a_linux_sender_of_long_datagrams_is_understood() {
    need!("ip", "python3");
    for offloads in [false, true] {
        let ns = Namespace::new();
        let mut port = tap(&ns, offloads);
        let mac = port.capabilities().medium.mac().to_string();
        let (device, nic) = (format!("t{}", ns.0), NIC.to_string());
        let neighbour = ["-n", &ns.0, "neigh", "add", &nic, "lladdr", &mac];
        ok("ip", &[&neighbour[..], &["dev", &device]].concat());
        let mut child = ns.python(DATAGRAMS, &[&nic]);
        let (mut got, until) = (Vec::new(), Instant::now() + PATIENCE);
        while got.len() < 30_500 {
            assert!(Instant::now() < until, "{} bytes came", got.len());
            let Some(Arrived::Frame(frame)) = port.receive(NicTime(0)) else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let Some(ip) = Ipv4Packet::new_checked(&frame[14..]).ok() else {
                continue;
            };
            let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
            if ip.next_header() != IpProtocol::Udp || ip.dst_addr() != NIC {
                continue;
            }
            let udp = UdpPacket::new_checked(ip.payload()).expect("whole");
            assert!(udp.verify_checksum(&from, &to) && udp.payload().len() <= 1000);
            got.extend_from_slice(udp.payload());
        }
        let sent: Vec<u8> = (0..30_500u32).map(|n| (n % 251) as u8).collect();
        assert!(got == sent, "offloads {offloads}");
        assert!(child.wait().is_ok_and(|s| s.success()));
    }
}
