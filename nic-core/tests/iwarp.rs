//! iWARP against a peer of the test's own over a plain socket: every field of every header wrong in
//! turn, lengths that lie, cut connections, and captures read by tshark.
#![allow(clippy::disallowed_methods)] // Real time at the edge: the kernel's TCP is the wire.

use crate::iwarp_support;
use crate::nic_support;
use crate::transport_support;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use iwarp_support::*;
use nic_support::{iwarp_hosts, Driven, Setup, TempDir};
use ringbell_gtlb::Access;
use ringbell_nic_abi::Status;
use ringbell_nic_core::transport::{Close, RecvWork, Transport, TransportEvent};
use ringbell_nic_core::types::{Buffer, ConnId, NicTime, Owner, WorkToken};
use ringbell_nic_core::wire::iwarp::ddp::{Header, Opcode, Place};
use ringbell_nic_core::wire::iwarp::session::{Answer, Credit, Kind};
use ringbell_nic_core::wire::iwarp::terminate::Reason;
use transport_support::{random, IP_A};

/// Each is a wrong field of a unit that would otherwise be right: its place in the frame, the value
/// there, and the reason that the NIC gives.
#[test]
fn every_wrong_field_of_a_unit_ends_its_session_by_name() {
    let mut nic = Nic::new();
    let cases: [(usize, u8, Reason); 15] = [
        (2, 0x42, Reason::UntaggedVersion),
        (2, 0x45, Reason::UntaggedVersion),
        (3, 0x83, Reason::RdmapVersion),
        (3, 0x53, Reason::RdmapVersion),
        (3, 0x4f, Reason::Opcode),
        (3, 0x41, Reason::Queue),
        // A tagged unit with the opcode of a Send.
        (2, 0xc1, Reason::Opcode),
        (11, 1, Reason::Queue),
        (15, 9, Reason::Message),
        (19, 1, Reason::Offset),
        // Not the last unit of its message.
        (2, 0x01, Reason::TooLong),
        // An unknown kind, a flag, and a reserved byte of the session's header.
        (20, 9, Reason::TooLong),
        (21, 2, Reason::TooLong),
        (22, 1, Reason::TooLong),
        // A key without need.
        (27, 1, Reason::TooLong),
    ];
    for (at, value, reason) in cases {
        let (mut peer, conn) = nic.peer();
        let mut frame = peer.message(Kind::Data, Credit::default(), b"bytes");
        frame[at] = value;
        let unit = usize::from(u16::from_be_bytes([frame[0], frame[1]]));
        frame.truncate(2 + unit);
        let frame = sealed(frame, unit);
        peer.write(&frame);
        ends_by(&mut nic, &mut peer, conn, Some(reason));
    }
    nic.still_serves();
}

#[test]
fn a_wrong_crc_announces_nothing() {
    let mut nic = Nic::new();
    for bit in [0, 170, 300] {
        let (mut peer, conn) = nic.peer();
        let mut frame = peer.message(Kind::Data, Credit::default(), &[7; 40]);
        let last = frame.len() * 8 - 1;
        // In the payload, or in the CRC itself.
        let bit = if bit == 0 {
            last
        } else {
            22 * 8 + 144 + bit % 64
        };
        frame[bit / 8] ^= 1 << (bit % 8);
        peer.write(&frame);
        ends_by(&mut nic, &mut peer, conn, Some(Reason::Crc));
    }
    nic.still_serves();
}

#[test]
fn a_length_that_lies_ends_the_session_or_waits_for_what_it_says() {
    let mut nic = Nic::new();
    // Shorter than any header.
    for length in [0_u16, 1, 13, 17] {
        let (mut peer, conn) = nic.peer();
        let mut frame = peer.message(Kind::Data, Credit::default(), b"bytes");
        frame[..2].copy_from_slice(&length.to_be_bytes());
        peer.write(&frame);
        ends_by(&mut nic, &mut peer, conn, Some(Reason::Length));
    }
    // Longer than what is behind it, which then ends: nothing partial is announced.
    for length in [2_000_u16, u16::MAX] {
        let (mut peer, conn) = nic.peer();
        let mut frame = peer.message(Kind::Data, Credit::default(), b"bytes");
        frame[..2].copy_from_slice(&length.to_be_bytes());
        peer.write(&frame);
        for _ in 0..50 {
            nic.step();
        }
        peer.socket
            .shutdown(std::net::Shutdown::Write)
            .expect("connected");
        ends_by(&mut nic, &mut peer, conn, None);
    }
    nic.still_serves();
}

#[test]
fn a_connection_cut_in_the_middle_of_a_unit_announces_nothing_of_it() {
    let mut nic = Nic::new();
    let bytes = random(5, 40_000);
    for cut in [1, 2, 3, 21, 30, 45, 20_000, 40_045, 40_047] {
        let (mut peer, conn) = nic.peer();
        let into = nic.side.dma.region(vec![0; 60_000]);
        nic.side.recv(conn, 2, into, false);
        peer.data(b"whole");
        let frame = peer.message(Kind::Data, Credit::default(), &bytes);
        peer.write(&frame[..cut]);
        for _ in 0..50 {
            nic.step();
        }
        drop(peer);
        let end = nic.until(|n| n.side.received(2));
        assert_eq!(end, (Status::ConnectionReset, 5), "cut at {cut}");
        nic.until(|n| n.side.has(TransportEvent::Reset { conn }));
        nic.side.transport.close(conn, Close::Now);
    }
    nic.still_serves();
}

#[test]
fn a_peer_that_sends_more_than_its_credit_is_ended() {
    let mut nic = Nic::new();
    let (mut peer, conn) = nic.peer();
    // The window is 256 KiB.
    for _ in 0..5 {
        let unit = peer.message(Kind::Data, Credit::default(), &[1; 60_000]);
        let mut sent = 0;
        while sent < unit.len() {
            match peer.socket.write(&unit[sent..]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => nic.step(),
                Err(_) => break,
            }
        }
    }
    nic.until(|n| n.side.has(TransportEvent::Reset { conn }));
    let want = Reason::NoBuffer;
    let state = nic.side.transport.conn_state(conn);
    assert_eq!(state.map(|c| c.reset.1), Some(want.detail()));
    // Credit for bytes that were never sent, or less than before.
    for credit in [(1, 0, false), (0, 0, true)] {
        let (mut peer, conn) = nic.peer();
        let credit = Credit {
            got: credit.0,
            taken: credit.1,
            has_end: credit.2,
        };
        let unit = peer.message(Kind::Credit, credit, &[]);
        peer.write(&unit);
        let into = nic.side.dma.region(vec![0; 1]);
        nic.side.recv(conn, 1, into, false);
        let end = nic.until(|n| n.side.received(1));
        assert_eq!(end, (Status::ConnectionReset, 0));
        nic.side.transport.close(conn, Close::Now);
    }
    nic.still_serves();
}

#[test]
fn a_terminate_message_of_the_peer_is_the_detail_of_what_ends_by_it() {
    let mut nic = Nic::new();
    for reason in [
        Reason::NoBuffer,
        Reason::Crc,
        Reason::Other {
            layer: 9,
            kind: 1,
            code: 77,
        },
    ] {
        let (mut peer, conn) = nic.peer();
        let mut message = Vec::new();
        reason.emit(None, &mut message);
        let unit = unit_of(&Header::whole(Opcode::Terminate, 1), &message);
        peer.write(&unit);
        nic.until(|n| n.side.has(TransportEvent::Reset { conn }));
        let state = nic.side.transport.conn_state(conn);
        assert_eq!(state.map(|c| c.reset.1), Some(reason.detail()));
        nic.side.transport.close(conn, Close::Now);
    }
    nic.still_serves();
}

/// A tagged unit with bytes for memory that was never named.
#[test]
fn memory_that_was_not_named_is_not_reached() {
    let mut nic = Nic::new();
    let (mut peer, conn) = nic.peer();
    peer.write_to(1, 4096, &[9; 28]);
    ends_by(&mut nic, &mut peer, conn, Some(Reason::Stag));
    nic.still_serves();
}

/// Exposes a receive of so many bytes. Its key and its memory.
fn expose(nic: &mut Nic, conn: ConnId, token: u64, len: usize) -> (u32, Buffer) {
    let buffer = nic.side.dma.region(vec![0; len]);
    let work = RecvWork {
        token: WorkToken(token),
        by: Owner::NIC,
        buffer,
        some: false,
    };
    let key = nic.side.transport.expose(conn, &work, false);
    (key.expect("an open connection"), buffer)
}

#[test]
fn an_exposed_receive_is_written_beside_the_stream_and_ends_by_the_peers_word() {
    for mapped in [true, false] {
        let mut nic = Nic::new();
        nic.side.dma.mapped = mapped;
        let (mut peer, conn) = nic.peer();
        let bytes = random(8, 100_000);
        let (second, other) = expose(&mut nic, conn, 2, 3);
        let (first, into) = expose(&mut nic, conn, 1, bytes.len());
        let stream = nic.side.dma.region(vec![0; 10]);
        nic.side.recv(conn, 3, stream, false);
        peer.write_to(first, 0, &bytes[..60_001]);
        peer.data(b"01234");
        peer.write_to(second, 0, b"abc");
        peer.write_to(first, 60_001, &bytes[60_001..]);
        for _ in 0..50 {
            nic.step();
        }
        assert!(nic.side.received(1).is_none() && nic.side.received(2).is_none());
        peer.written(first);
        assert_eq!(nic.until(|n| n.side.received(1)), (Status::Ok, 100_000));
        assert!(nic.side.dma.bytes(into) == bytes);
        peer.data(b"56789");
        peer.written(second);
        assert_eq!(nic.until(|n| n.side.received(2)), (Status::Ok, 3));
        assert_eq!(nic.side.dma.bytes(other), b"abc");
        assert_eq!(nic.until(|n| n.side.received(3)), (Status::Ok, 10));
        assert_eq!(nic.side.dma.bytes(stream), b"0123456789");
    }
}

/// What the peer does, in which order, and the reason that it is given.
#[test]
fn other_accesses_to_an_exposed_receive_end_the_connection() {
    type Break = fn(&mut Peer, u32);
    let cases: [(Break, Reason); 7] = [
        (|p, key| p.write_to(key ^ 1, 0, b"12"), Reason::Stag),
        (|p, key| p.write_to(key, 1, b"12"), Reason::Bounds),
        (|p, key| p.write_to(key, 0, &[7; 65]), Reason::Bounds),
        (|p, key| p.write_to(key, u64::MAX, b"12"), Reason::Bounds),
        (|p, key| p.written(key), Reason::Bounds),
        (|p, key| p.written(key ^ 1), Reason::Stag),
        // A key serves once.
        (
            |p, key| {
                p.write_to(key, 0, &[1; 64]);
                p.written(key);
                p.write_to(key, 0, &[2; 64]);
            },
            Reason::Stag,
        ),
    ];
    let mut nic = Nic::new();
    for (act, reason) in cases {
        let (mut peer, conn) = nic.peer();
        let (key, _) = expose(&mut nic, conn, 5, 64);
        act(&mut peer, key);
        ends_by(&mut nic, &mut peer, conn, Some(reason));
        let _ = nic.side.received(5);
    }
    nic.still_serves();
}

#[test]
fn an_exposed_receive_that_was_taken_back_is_not_written() {
    let mut nic = Nic::new();
    let (mut peer, conn) = nic.peer();
    let (key, into) = expose(&mut nic, conn, 5, 50_000);
    let header = Header {
        opcode: Opcode::Write,
        last: true,
        place: Place::Tagged {
            stag: key,
            offset: 0,
        },
    };
    let unit = unit_of(&header, &[9; 50_000]);
    peer.write(&unit[..20_000]);
    for _ in 0..50 {
        nic.step();
    }
    // In the middle of a unit: nothing of it is announced, and the rest goes nowhere.
    assert_eq!(nic.side.transport.cancel(conn, WorkToken(5)), Some(0));
    nic.side.dma.regions[into.region as usize].fill(3);
    peer.write(&unit[20_000..]);
    peer.written(key);
    peer.data(b"hello");
    let stream = nic.side.dma.region(vec![0; 5]);
    nic.side.recv(conn, 6, stream, false);
    assert_eq!(nic.until(|n| n.side.received(6)), (Status::Ok, 5));
    assert!(nic.side.dma.bytes(into).iter().all(|b| *b == 3));
    assert!(nic.side.received(5).is_none());
}

#[test]
fn every_wrong_byte_of_a_request_is_refused_or_closed() {
    let mut nic = Nic::new();
    let mut frame = Vec::new();
    startup().emit(&request().emit(), &mut frame);
    for at in 0..frame.len() {
        // Read limits, window and ports of the asking session may have any value here.
        if (20..24).contains(&at) || (40..42).contains(&at) || (44..48).contains(&at) {
            continue;
        }
        let mut wrong = frame.clone();
        wrong[at] ^= 0x8b;
        let mut peer = Peer::connect(nic.at);
        peer.write(&wrong);
        peer.socket
            .shutdown(std::net::Shutdown::Write)
            .expect("connected");
        nic.until(|_| {
            peer.hear();
            peer.is_closed.then_some(())
        });
        let was_refused = matches!(
            peer.answer,
            None | Some(Answer::NoListener | Answer::NoRoom)
        );
        assert!(was_refused, "byte {at}: {:?}", peer.answer);
    }
    assert!(nic.side.incoming().is_none());
    nic.still_serves();
}

#[test]
fn connections_that_do_not_ask_are_dropped_in_time_and_keep_nobody_out() {
    let mut nic = Nic::new();
    let mut silent: Vec<Peer> = (0..100).map(|_| Peer::connect(nic.at)).collect();
    silent[7].write(b"MPA ID R");
    nic.still_serves();
    // More than are kept: the oldest make room.
    for _ in 0..3 {
        silent.extend((0..100).map(|_| Peer::connect(nic.at)));
        nic.still_serves();
    }
    // 10 s later.
    nic.start -= Duration::from_secs(11);
    nic.until(|_| {
        silent.iter_mut().for_each(Peer::hear);
        silent.iter().all(|p| p.is_closed).then_some(())
    });
}

/// Something listens at the peer's address that is no NIC.
#[test]
fn a_server_that_is_no_nic_refuses_a_connect() {
    for answer in [&b""[..], b"220 mail.example.org ESMTP and more text\r\n"] {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let mut nic = Nic::new();
        let at = server.local_addr().expect("bound");
        nic.side.net.know_host(IP_A, at);
        let remote = SocketAddrV4::new(IP_A, 80);
        let (now, deadline) = (NicTime(0), NicTime(60_000_000_000));
        let conn = nic.side.transport.connect(now, remote, deadline);
        let conn = conn.expect("a route");
        server.set_nonblocking(true).expect("a socket");
        let mut taken = nic.until(|_| server.accept().ok()).0;
        taken.write_all(answer).expect("connected");
        drop(taken);
        let failed = TransportEvent::ConnectFailed {
            conn,
            status: Status::ConnectionRefused,
            answer: None,
        };
        nic.until(|n| n.side.has(failed));
        assert_eq!(nic.side.transport.connections(), 0);
    }
}

/// What tshark shows of a session: one line for each packet. `None`: it cannot capture here.
fn shown_by_tshark(
    port: u16,
    traffic: impl FnOnce(),
    fields: &[&str],
) -> Option<(Vec<String>, String)> {
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.path()).expect("a directory");
    let file = dir.path().join("lo.pcap");
    let filter = format!("tcp port {port}");
    let mut capture = Command::new("tshark")
        .args(["-q", "-i", "lo", "-f", &filter, "-w"])
        .arg(&file)
        .stderr(Stdio::piped())
        .spawn()
        .inspect_err(|e| eprintln!("SKIPPED: there is no tshark: {e}"))
        .ok()?;
    // It writes the file's header when it captures.
    let start = Instant::now();
    while std::fs::metadata(&file).map_or(0, |m| m.len()) == 0 {
        let has_ended = capture.try_wait().expect("our child").is_some();
        if has_ended || start.elapsed() > PATIENCE {
            eprintln!("SKIPPED: tshark cannot capture on the loopback here");
            let _ = capture.kill();
            let _ = capture.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    traffic();
    std::thread::sleep(Duration::from_millis(700));
    let pid = rustix::process::Pid::from_child(&capture);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("our child");
    capture.wait().expect("our child");
    // It guesses at payloads.
    let read = |more: &[&str]| {
        let mut command = Command::new("tshark");
        command.args(["--disable-protocol", "rpcordma", "-r"]);
        let out = command.arg(&file).args(more).output().expect("tshark");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let mut of_fields = vec!["-T", "fields"];
    fields.iter().for_each(|f| of_fields.extend(["-e", f]));
    let rows = read(&of_fields).lines().map(str::to_owned).collect();
    Some((rows, read(&["-V"])))
}

#[test]
fn tshark_reads_a_session_without_an_expert_error() {
    let dir = TempDir::new();
    let setups = [1, 2].map(|n| Setup {
        access: Access::REMOTE,
        ..Setup::new(&dir, n)
    });
    let hosts = iwarp_hosts(Ipv4Addr::LOCALHOST.into(), true, setups);
    let rkey = hosts[1].rkey();
    let ports = hosts.each_ref().map(|h| h.nic().ports());
    let port = ports[1][0].address.expect("of streams").port();
    let traffic = || {
        use nic_support::*;
        let pair = &[&hosts[0], &hosts[1]];
        let (s, r) = connected(pair, 0, 1, 7);
        let data = random(3, 200_003);
        hosts[0].poke(0, &data);
        let tickets = [
            (1, hosts[1].post(&recv(r, 0, 200_003))),
            (0, hosts[0].post(&send(s, 0, 200_003))),
        ];
        settle(pair, &tickets);
        assert!(hosts[1].peek(0, 200_003) == data);
        assert_eq!(call(pair, 0, &send_inline(s, b"12345")).status, Status::Ok);
        let at = 1 << 20;
        for d in [
            signalled(put(s, rkey, 0, at, 100_001), 3, 7),
            get(s, rkey, at, 2 * at, 100_001),
            fetch_add(s, rkey, 24, 1),
            compare_swap(s, rkey, 24, 8, 9),
        ] {
            assert_eq!(call(pair, 0, &d).status, Status::Ok);
        }
        let refused = call(pair, 0, &get(s, rkey, 1 << 40, 0, 8)).status;
        assert_eq!(refused, Status::OutOfBounds);
        assert!(hosts[0].peek(2 * at, 100_001) == data[..100_001]);
        assert_eq!(call(pair, 1, &recv(r, 0, 5)).status, Status::Ok);
        assert_eq!(call(pair, 0, &close(s)).status, Status::Ok);
        assert_eq!(call(pair, 1, &recv(r, 0, 1)).status, Status::EndOfStream);
        assert_eq!(call(pair, 1, &close(r)).status, Status::Ok);
    };
    let fields = ["_ws.expert.severity", "iwarp_rdma.opcode", "iwarp_ddp.msn"];
    let Some((rows, whole)) = shown_by_tshark(port, traffic, &fields) else {
        return;
    };
    // Severity of an error, as tshark numbers it; enhanced start-up (RFC 6581) is a warning.
    let error = 0x0080_0000;
    let mut opcodes = std::collections::BTreeSet::new();
    for row in &rows {
        let mut cells = row.split('\t');
        for severity in cells.next().unwrap_or_default().split(',') {
            let severity = severity.parse().unwrap_or(0);
            assert!(severity < error, "{row}\n{whole}");
        }
        for cell in cells.next().unwrap_or_default().split(',') {
            opcodes.insert(cell.to_owned());
        }
    }
    assert!(whole.contains("Request frame header") && whole.contains("Reply frame header"));
    assert!(whole.contains("Good CRC32") && !whole.contains("Bad CRC32"));
    assert!(!whole.contains("Malformed"), "{whole}");
    let has = |o: &str| opcodes.iter().any(|c| c.trim_start_matches("0x0") == o);
    for opcode in ["0", "1", "2", "3", "a", "b"] {
        assert!(has(opcode), "{opcode} of {opcodes:?}");
    }
    for shown in ["FetchAdd", "CmpSwap", "Data Source STag"] {
        assert!(whole.contains(shown), "{shown}");
    }
}
