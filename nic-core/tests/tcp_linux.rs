//! TCP against the Linux kernel: TAP with Python peers, UDP between network namespaces, and captures
//! read by tshark. Needs root, `ip`, `python3`, `tshark`; what is missing is skipped, visibly.
//!
//! `RINGBELL_TCP_LINUX_MIB` sets the size of a transfer (default 16).
#![allow(clippy::disallowed_methods)] // Real time at the edge.

mod tcp_support;

use std::fs::File;
use std::io::BufWriter;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use ringbell_nic_abi::Status;
use ringbell_nic_core::port::capture::Capture;
use ringbell_nic_core::port::udp::{UdpConfig, UdpPort};
use ringbell_nic_core::port::MacAddr;
use ringbell_nic_core::transport::{Transport, TransportEvent};
use ringbell_nic_core::types::Buffer;
use tcp_support::live::{missing, ok, run, tap, Live, Namespace, HOST, NIC, PATIENCE};
use tcp_support::random;

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
    nic.side.tcp.listen(7000, 4).expect("the port is free");
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
    let ns = Namespace::new();
    let mut nic = Live::new(Box::new(tap(&ns)), NIC);
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
    let ns = Namespace::new();
    let mut nic = Live::new(Box::new(tap(&ns)), NIC);
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
    nic.side.tcp.shutdown(conn);
    let answer = nic.read_to_end(conn, 1000);
    assert_eq!(answer, sum[..64]);
    nic.close(conn);
    nic.wait_for(child);
}

#[test]
fn a_linux_host_refuses_and_pings() {
    need!("ip", "python3");
    let ns = Namespace::new();
    let mut nic = Live::new(Box::new(tap(&ns)), NIC);
    let (now, deadline) = (nic.now(), nic.now().plus(PATIENCE));
    let conn = nic
        .side
        .tcp
        .connect(now, SocketAddrV4::new(HOST, 9), deadline)
        .expect("an id");
    let refused = TransportEvent::ConnectFailed {
        conn,
        status: Status::ConnectionRefused,
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
    let ns = Namespace::new();
    let capture = temp("capture.pcapng");
    let sink = BufWriter::new(File::create(&capture).expect("the temporary folder is writable"));
    let epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let port = Capture::new(tap(&ns), sink, epoch).expect("a new file can be written");
    let mut nic = Live::new(Box::new(port), NIC);
    let file = temp("captured");
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
    assert!(count("tcp") > 1000, "the capture holds the transfer");
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
}

#[test]
fn two_namespaces_talk_over_udp() {
    need!("ip");
    let (x, y) = (Namespace::new(), Namespace::new());
    let (vx, vy) = (format!("v{}", x.0), format!("w{}", y.0));
    ok(
        "ip",
        &[
            "link", "add", &vx, "netns", &x.0, "type", "veth", "peer", "name", &vy, "netns", &y.0,
        ],
    );
    for (ns, dev, ip) in [(&x, &vx, "192.168.78.1/24"), (&y, &vy, "192.168.78.2/24")] {
        ok("ip", &["-n", &ns.0, "addr", "add", ip, "dev", dev]);
        ok("ip", &["-n", &ns.0, "link", "set", dev, "up"]);
    }
    let port = |n: u8, peers: Vec<SocketAddr>| {
        let config = UdpConfig {
            bind: SocketAddr::from(([192, 168, 78, n], 4789)),
            peers,
            vni: 9,
            secret: Some(42),
            mac: MacAddr::local(u32::from(n)),
            mtu: 1450,
        };
        Box::new(UdpPort::open(config).expect("a free port in a new namespace"))
    };
    let data = random(4, mib());
    std::thread::scope(|s| {
        let server = s.spawn(|| {
            y.enter();
            let mut nic = Live::new(port(2, Vec::new()), NIC);
            nic.side.tcp.listen(7000, 1).expect("the port is free");
            let conn = nic.accept();
            let got = nic.read_to_end(conn, mib() + 1);
            nic.send_all(conn, b"thanks".to_vec());
            nic.close(conn);
            got
        });
        let client = s.spawn(|| {
            x.enter();
            let peer = SocketAddr::from(([192, 168, 78, 2], 4789));
            let mut nic = Live::new(port(1, vec![peer]), HOST);
            let conn = nic.connect(SocketAddrV4::new(NIC, 7000));
            nic.send_all(conn, data.clone());
            nic.side.tcp.shutdown(conn);
            let answer = nic.read_to_end(conn, 100);
            nic.close(conn);
            answer
        });
        assert_eq!(client.join().expect("the client finished"), b"thanks");
        assert!(
            server.join().expect("the server finished") == data,
            "bytes differ"
        );
    });
}
