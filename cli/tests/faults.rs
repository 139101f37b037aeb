//! Tests of faults between two programs: killed peers, missing peers, names taken, readers that do
//! not read, unauthenticated peers, bad cables. Each must end in bounded time with a text that
//! names the fault.
#![allow(clippy::disallowed_methods)] // Programs are waited for, with deadlines.

use crate::net;

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use net::{start, Running};
use ringbell::abi::{Completion, Descriptor, Opcode, SessionId, Status};
use ringbell::nic::TransportSpec;
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::Checksums;
use ringbell::{HostQueue, Nic};

/// A discovery folder for the NICs of one test. Short, because names of Unix sockets are.
struct Meeting(PathBuf);

impl Meeting {
    fn new(name: &str) -> Meeting {
        let path = std::env::temp_dir().join(format!("rb-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        Meeting(path)
    }

    fn ringbell(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_ringbell"));
        c.args(args)
            .env_remove("RINGBELL_DEBUG")
            .env("XDG_RUNTIME_DIR", &self.0)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        c
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until a process has worked for `ticks` (of 10 ms), so that a transfer is running.
fn works(process: &Running, ticks: u64) {
    let deadline = Instant::now() + net::LIMIT;
    while Instant::now() < deadline {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid()))
            .expect("the process runs");
        let after_name = &stat[stat.rfind(')').expect("a name") + 2..];
        let fields: Vec<&str> = after_name.split(' ').collect();
        // Fields 14 and 15 of proc(5): user and system time.
        let used: u64 = fields[11..13]
            .iter()
            .filter_map(|f| f.parse::<u64>().ok())
            .sum();
        if used >= ticks {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("the process does not work");
}

fn free_udp_port() -> u16 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    socket.local_addr().expect("bound").port()
}

#[test]
fn a_peer_killed_in_the_middle_of_a_transfer_is_reported() {
    let meeting = Meeting::new("kill");
    let (a, b) = (free_udp_port(), free_udp_port());
    let (a, b) = (format!("127.0.0.1:{a}"), format!("127.0.0.1:{b}"));
    let (server_port, client_port) = (format!("udp:{a},{b}"), format!("udp:{b},{a}"));
    for (transport, server, client, told) in [
        // The system reports to a NIC of the same host that the process is gone.
        ("local", "none", "none", "CONNECTION_RESET"),
        // A machine that is gone sends nothing: the operation's own deadline ends it.
        ("tcp", &server_port, &client_port, "TIMED_OUT"),
    ] {
        let common = [
            "perf",
            "send-bw",
            "--transport",
            transport,
            "--timeout",
            "3",
        ];
        let mut listener = start(
            meeting.ringbell(&[&common[..], &["--listen", "10.77.3.1", "--port", server]].concat()),
        );
        listener.says("listening on");
        let long = ["-b", "64K", "-e", "64K", "-n", "2000000"];
        let sender = start(
            meeting.ringbell(
                &[
                    &common[..],
                    &[
                        "--connect",
                        "10.77.3.1",
                        "--ip",
                        "10.77.3.2/24",
                        "--port",
                        client,
                    ],
                    &long,
                ]
                .concat(),
            ),
        );
        works(&listener, 30);
        listener.child().kill().expect("it runs");
        let (code, said) = sender.ends_within(Duration::from_secs(60));
        assert_eq!(code, Some(1), "{transport}: {said}");
        assert!(
            said.contains(told) || said.contains("CONNECTION_RESET"),
            "{transport}: {said}"
        );
        assert!(said.contains("what to do"), "{transport}: {said}");
    }
}

#[test]
fn a_missing_listener_is_an_error_of_its_own() {
    let meeting = Meeting::new("missing");
    // No such NIC.
    let (code, said) = start(meeting.ringbell(&[
        "nc",
        "-d",
        "-w",
        "3",
        "--ip",
        "10.77.4.2/24",
        "10.77.4.9",
        "5000",
    ]))
    .ends();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("HOST_UNREACHABLE"), "{said}");
    // A NIC without a listener on that port.
    let mut listener = start(meeting.ringbell(&["nc", "-v", "-l", "--ip", "10.77.4.1/24", "5000"]));
    listener.says("listening on");
    let (code, said) = start(meeting.ringbell(&[
        "nc",
        "-d",
        "-w",
        "3",
        "--ip",
        "10.77.4.2/24",
        "10.77.4.1",
        "5001",
    ]))
    .ends();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("CONNECTION_REFUSED"), "{said}");
}

#[test]
fn an_address_or_port_in_use_is_named() {
    let meeting = Meeting::new("taken");
    let listen = ["nc", "-v", "-l", "5000", "--ip", "10.77.5.1/24"];
    let mut first = start(meeting.ringbell(&listen));
    first.says("listening on");
    let (code, said) = start(meeting.ringbell(&listen)).ends();
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("10.77.5.1"), "{said}");

    let port = format!("udp:127.0.0.1:{}", free_udp_port());
    let run = |ip: &str| {
        let args = [
            "nc",
            "-v",
            "-l",
            "5000",
            "--transport",
            "tcp",
            "--port",
            &port,
            "--ip",
            ip,
        ];
        start(meeting.ringbell(&args))
    };
    let mut first = run("10.77.5.2/24");
    first.says("listening on");
    let (code, said) = run("10.77.5.3/24").ends();
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("127.0.0.1") && said.contains("because"),
        "{said}"
    );
}

/// Two NICs of this process; the second listens on port 7000, the first is connected with it.
struct Pair {
    nics: [Nic; 2],
    queues: [HostQueue; 2],
    listener: SessionId,
    sessions: [SessionId; 2],
    _meeting: Meeting,
}

fn call(queue: &HostQueue, opcode: Opcode, set: impl FnOnce(&mut Descriptor)) -> Completion {
    let mut d = Descriptor::new(opcode);
    d.timeout_us = 20_000_000;
    set(&mut d);
    queue.call(&d).expect("the NIC answers")
}

fn socket(queue: &HostQueue) -> SessionId {
    SessionId(call(queue, Opcode::Socket, |_| {}).detail as u32)
}

fn pair(name: &str, transport: TransportSpec) -> Pair {
    let meeting = Meeting::new(name);
    let switch = Arc::new(MemSwitch::private(2, 9000, Checksums::Omitted).expect("a switch"));
    let nics = [0, 1].map(|i| {
        let nic = Nic::builder().ip(format!("10.77.6.{}/24", i + 1));
        let nic = nic.transport(transport).switch(switch.clone(), i);
        let nic = nic.seed(5).gpu_memory(64 << 20);
        nic.directory(meeting.0.join("nics")).open().expect("a NIC")
    });
    let queues = [0, 1].map(|i: usize| nics[i].create_queue().expect("a queue"));
    let listener = socket(&queues[1]);
    let listening = call(&queues[1], Opcode::Listen, |d| {
        d.session = listener;
        d.imm = 7000;
    });
    assert_eq!(listening.status, Status::Ok);
    let client = socket(&queues[0]);
    let connected = call(&queues[0], Opcode::Connect, |d| {
        d.session = client;
        d.operand = u64::from(u32::from(Ipv4Addr::new(10, 77, 6, 2)));
        d.imm = 7000;
    });
    assert_eq!(connected.status, Status::Ok);
    let accepted = call(&queues[1], Opcode::Accept, |d| d.session = listener);
    assert_eq!(accepted.status, Status::Ok);
    Pair {
        sessions: [client, SessionId(accepted.detail as u32)],
        nics,
        queues,
        listener,
        _meeting: meeting,
    }
}

#[test]
fn a_port_that_is_listened_on_is_in_use_until_it_is_closed() {
    let pair = pair("inuse", TransportSpec::Auto);
    let queue = &pair.queues[1];
    let second = socket(queue);
    let listen = || {
        call(queue, Opcode::Listen, |d| {
            d.session = second;
            d.imm = 7000;
        })
    };
    let refused = listen();
    assert_eq!(
        (refused.status, refused.detail),
        (Status::AddressInUse, 7000)
    );
    let closed = call(queue, Opcode::Close, |d| d.session = pair.listener);
    assert_eq!(closed.status, Status::Ok);
    assert_eq!(listen().status, Status::Ok);
}

#[test]
fn a_receiver_that_never_reads_costs_the_sender_its_deadline_and_no_more() {
    for transport in [TransportSpec::Local, TransportSpec::Tcp] {
        let pair = pair(&format!("deaf-{transport}"), transport);
        let bytes = 8 << 20;
        let buffer = pair.nics[0].alloc::<u8>(bytes).expect("memory");
        let sent = call(&pair.queues[0], Opcode::Send, |d| {
            d.session = pair.sessions[0];
            d.local_va = buffer.va();
            d.len = bytes as u32;
            d.timeout_us = 500_000;
        });
        assert_eq!(sent.status, Status::TimedOut, "{transport}");
        assert!(sent.bytes < bytes, "{transport}: {} bytes", sent.bytes);
        // The buffer is free again, and the NIC keeps serving.
        drop(buffer);
        let nop = call(&pair.queues[0], Opcode::Nop, |_| {});
        assert_eq!(nop.status, Status::Ok, "{transport}");
        // A stream that broke off in the middle moves no more bytes.
        let later = call(&pair.queues[0], Opcode::Send, |d| {
            d.session = pair.sessions[0];
            d.flags = ringbell::abi::Flags::INLINE;
            d.inline_len = 8;
            d.len = 8;
        });
        assert_ne!(later.status, Status::Ok, "{transport}");
    }
}

/// A connection to a NIC's socket in the discovery folder.
fn caller(path: &Path) -> Option<OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let fd = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).ok()?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(path).ok()?).ok()?;
    Some(fd)
}

#[test]
fn unauthenticated_peers_disturb_no_transfer() {
    let meeting = Meeting::new("door");
    let mut listener = start(meeting.ringbell(&[
        "perf",
        "send-bw",
        "--transport",
        "local",
        "--listen",
        "10.77.7.1",
        "--port",
        "none",
    ]));
    listener.says("listening on");
    let door = meeting.0.join("ringbell/10.77.7.1.sock");
    assert!(door.exists(), "{}", door.display());
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    // One that sends nothing, one that sends garbage, one that sends a byte each second; each
    // reconnects when the NIC closes it.
    let callers: Vec<_> = (0..3)
        .map(|kind| {
            let (stop, door) = (stop.clone(), door.clone());
            std::thread::spawn(move || {
                let mut visits = 0_u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let Some(fd) = caller(&door) else {
                        std::thread::sleep(Duration::from_millis(20));
                        continue;
                    };
                    visits += 1;
                    let flags = rustix::net::SendFlags::NOSIGNAL;
                    match kind {
                        0 => std::thread::sleep(Duration::from_millis(200)),
                        1 => {
                            let garbage: Vec<u8> =
                                (0..512_u64).map(|i| (i * 167 + visits) as u8).collect();
                            let _ = rustix::net::send(&fd, &garbage, flags);
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        _ => {
                            let second = Duration::from_secs(1);
                            while !stop.load(std::sync::atomic::Ordering::Relaxed)
                                && rustix::net::send(&fd, b"R", flags).is_ok()
                            {
                                std::thread::sleep(second);
                            }
                        }
                    }
                }
                visits
            })
        })
        .collect();
    let mut sender = meeting.ringbell(&[
        "perf",
        "send-bw",
        "--transport",
        "local",
        "--connect",
        "10.77.7.1",
        "--ip",
        "10.77.7.2/24",
        "-b",
        "1M",
        "-e",
        "4M",
        "-n",
        "500",
        "--json",
        "-",
    ]);
    let out = net::output({
        sender.stdout(Stdio::piped());
        sender
    });
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    listener.succeeds();
    let visits: Vec<u64> = callers
        .into_iter()
        .map(|s| s.join().expect("no panic"))
        .collect();
    assert!(visits.iter().all(|v| *v > 0), "{visits:?}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|r| r["wrong"] == 0), "{rows:?}");
}

/// Transport `udp` sends nothing twice: both ends name the peer and the message that was lost.
#[test]
fn a_loss_over_plain_udp_is_named_with_peer_and_gap() {
    let meeting = Meeting::new("gap");
    for seed in ["1", "2", "3", "4"] {
        let mut command = meeting.ringbell(&[
            "perf",
            "send-bw",
            "-b",
            "64K",
            "-e",
            "64K",
            "-n",
            "200",
            "--transport",
            "udp",
            "--port",
            "mem",
            "--loss",
            "0.01",
            "--seed",
            seed,
        ]);
        command.stderr(Stdio::piped());
        let out = net::output(command);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        let (receiver, own): (Vec<&str>, Vec<&str>) =
            said.lines().partition(|l| l.starts_with("receiver: "));
        for (side, peer) in [(own, "10.77.0.1"), (receiver, "10.77.0.2")] {
            let side = side.join("\n");
            assert!(!side.contains("detail 0x0"), "{said}");
            for word in [
                peer,
                "of the session was lost",
                "came in its place",
                "use rdma or tcp",
            ] {
                assert!(side.contains(word), "{word}: {said}");
            }
        }
    }
}

#[test]
fn a_link_that_loses_and_reorders_delivers_every_byte() {
    let meeting = Meeting::new("cable");
    let mut command = meeting.ringbell(&[
        "perf",
        "send-bw",
        "--transport",
        "tcp",
        "--loss",
        "0.05",
        "--reorder",
        "0.1",
        "--seed",
        "7",
        "-b",
        "64K",
        "-e",
        "64K",
        "-n",
        "24",
        "-w",
        "0",
        "--timeout",
        "100",
        "--json",
        "-",
    ]);
    let out = net::output({
        command.stdout(Stdio::piped());
        command
    });
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(report["meta"]["transport"], "tcp");
    assert_eq!(report["rows"][0]["count"], 24);
    assert_eq!(report["rows"][0]["wrong"], 0);
}
