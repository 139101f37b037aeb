//! Several hosts: network namespaces, whose NICs learn each other's addresses from the bootstrap or
//! over perftest's TCP connection and use RoCEv2 in plain UDP; and what the kernel makes of those
//! packets on the wire. Skipped, visibly, where there are no namespaces.
#![allow(clippy::disallowed_methods)] // Programs are waited for.

use crate::net;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use net::{output, start, Namespace, Running};

const SECRET: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";

fn ringbell(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_ringbell"));
    c.args(args);
    c
}

/// A TCP port that is free now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("bound").port()
}

fn quiet(mut command: Command) -> Output {
    command.stdin(Stdio::null());
    output(command)
}

fn report(out: &Output) -> serde_json::Value {
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    serde_json::from_slice(&out.stdout).expect("one JSON object")
}

fn sound(report: &serde_json::Value, rows: usize) {
    carried(report, rows, "rdma");
}

fn carried(report: &serde_json::Value, rows: usize, by: &str) {
    let found = report["rows"].as_array().expect("rows");
    assert_eq!(found.len(), rows, "{report}");
    assert!(found.iter().all(|r| r["wrong"] == 0), "{report}");
    let transport = report["meta"]["transport"].as_str().expect("a name");
    assert!(transport.starts_with(by), "{transport}");
}

fn server(mut command: Command) -> Running {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut server = start(command);
    server.says("listening on TCP port");
    server
}

#[test]
fn benchmarks_of_perftest_take_the_name_of_its_servers_host() {
    // Each measures the machine's limits as well, which takes seconds: one of each kind here,
    // others below.
    for name in ["read-bw", "put-signal-lat"] {
        let port = free_port();
        let listen = format!(":{port}");
        let serves = server(ringbell(&["perf", name, "--listen", &listen]));
        let host = format!("localhost:{port}");
        let sizes: &[&str] = match name {
            "atomic-lat" => &[],
            _ => &["-b", "8", "-e", "4K", "-f", "512"],
        };
        let args = [&["perf", name, &host, "-n", "20", "--json", "-"], sizes].concat();
        let out = quiet(ringbell(&args));
        serves.succeeds();
        sound(&report(&out), if sizes.is_empty() { 1 } else { 2 });
    }
}

#[test]
fn a_server_outlives_foreign_clients_and_a_client_names_foreign_servers() {
    // A client of a host where nothing listens, and of one that is no server of ours.
    let args = |host: &str| {
        let args = ["perf", "write-bw", host, "-n", "5", "--timeout", "1"];
        quiet(ringbell(&args))
    };
    let silent = format!("127.0.0.1:{}", free_port());
    let says = |out: &Output, words: &[&str]| {
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(words.iter().all(|w| text.contains(w)), "{text}");
    };
    says(
        &args(&silent),
        &["cannot connect to 127.0.0.1", "--listen", "refused"],
    );
    let foreign = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = foreign.local_addr().expect("bound").to_string();
    let speaks = std::thread::spawn(move || {
        let (mut stream, _) = foreign.accept().expect("the client");
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").expect("room");
        let _ = stream.read(&mut [0; 512]);
    });
    says(&args(&at), &["serves no measurement", "SSH-2.0-OpenSSH"]);
    speaks.join().expect("it was asked");
    // A server that is asked by one which speaks another protocol, and by one of another version,
    // waits on.
    let port = free_port();
    let listen = format!(":{port}");
    let mut serves = server(ringbell(&["perf", "write-bw", "--listen", &listen]));
    for (said, answer) in [
        ("GET / HTTP/1.1\r\n\r\n", "is no `ringbell perf`"),
        ("{\"ringbell_perf\":99}\n", "version 99"),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.write_all(said.as_bytes()).expect("room");
        let mut heard = String::new();
        // The rest of what was said may reset the connection behind the answer.
        let _ = stream.read_to_string(&mut heard);
        assert!(heard.is_empty() || heard.contains(answer), "{heard}");
        serves.says(answer);
    }
    let host = format!("127.0.0.1:{port}");
    let flags = ["-b", "4K", "-e", "4K", "-n", "5", "--json", "-"];
    let out = quiet(ringbell(
        &[&["perf", "write-bw", &host], &flags[..]].concat(),
    ));
    serves.succeeds();
    sound(&report(&out), 1);
    // Without a client it ends in time.
    let args = ["perf", "write-bw", "--listen", &listen, "--timeout", "1"];
    says(&quiet(ringbell(&args)), &["no client came", "within 1s"]);
}

#[test]
fn four_hosts_on_a_bridge_find_each_other_by_the_bootstrap_alone() {
    // The way to the second host carries less, which its own interface alone shows: the bridge
    // drops what is longer.
    let hosts = match Namespace::bridged(4, |n| if n == 2 { 1_300 } else { 1_500 }) {
        Ok(hosts) => hosts,
        Err(why) => skip!("{why}"),
    };
    let bootstrap = format!("10.60.0.1:{}", free_port());
    let rank = |n: usize| {
        let flags = ["-b", "1K", "-e", "256K", "-f", "16", "-n", "10"];
        let rest = ["--no-limits", "--json", "-"];
        let mut c = hosts[n + 1].ringbell(&[&["perf", "all-reduce"], &flags[..], &rest].concat());
        c.envs([("PMI_SIZE", "4"), ("RINGBELL_SECRET", SECRET)])
            .env("PMI_RANK", n.to_string())
            .env("RINGBELL_BOOTSTRAP", &bootstrap);
        c
    };
    let others: Vec<_> = (1..4)
        .map(|n| {
            let mut c = rank(n);
            c.stdin(Stdio::null()).stdout(Stdio::null());
            start(c)
        })
        .collect();
    let out = quiet(rank(0));
    for other in others {
        other.succeeds();
    }
    let report = report(&out);
    carried(&report, 6, "iwarp");
    // Sockets between two of them, by the TCP connection of a measurement.
    let serves = server(hosts[2].ringbell(&["perf", "send-bw", "--listen"]));
    let flags = ["-b", "64", "-e", "64K", "-f", "1024", "-n", "50"];
    let args = [&["perf", "send-bw", "10.60.0.2", "--json", "-"], &flags[..]].concat();
    let out = quiet(hosts[1].ringbell(&args));
    serves.succeeds();
    sound(&self::report(&out), 2);
}

#[test]
fn a_host_reaches_itself_by_ipv6() {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        skip!("no IPv6 here");
    }
    // Between two processes of this command, and by the address alone.
    let flags = ["-b", "64", "-e", "64K", "-f", "1024", "-n", "50"];
    let flags = [&flags[..], &["--json", "-"]].concat();
    let port = [
        "perf",
        "write-bw",
        "--transport",
        "rdma",
        "--port",
        "roce:[::1]",
    ];
    let out = quiet(ringbell(&[&port[..], &flags].concat()));
    sound(&report(&out), 2);
    let tcp = free_port();
    let serves = server(ringbell(&[
        "perf",
        "send-bw",
        "--listen",
        &format!(":{tcp}"),
    ]));
    let host = format!("[::1]:{tcp}");
    let out = quiet(ringbell(
        &[&["perf", "send-bw", &host], &flags[..]].concat(),
    ));
    serves.succeeds();
    sound(&report(&out), 2);
}

#[test]
fn hosts_with_ipv6_alone_find_each_other() {
    let hosts = match Namespace::bridged(2, |_| 1_500) {
        Ok(hosts) => hosts,
        Err(why) => skip!("{why}"),
    };
    for (n, host) in (1..).zip(&hosts[1..]) {
        let addr = format!("fd60::{n}/64");
        for args in [
            &["-4", "addr", "flush", "dev", "cable"][..],
            &["-6", "addr", "add", &addr, "dev", "cable", "nodad"],
        ] {
            let mut c = host.command("ip");
            c.args(args);
            let out = output(c);
            if !out.status.success() {
                skip!("{}", String::from_utf8_lossy(&out.stderr));
            }
        }
    }
    // Ranks, by the bootstrap.
    let bootstrap = format!("[fd60::1]:{}", free_port());
    let rank = |n: usize| {
        let flags = ["-b", "1K", "-e", "256K", "-f", "16", "-n", "10"];
        let rest = ["--no-limits", "--json", "-"];
        let mut c = hosts[n + 1].ringbell(&[&["perf", "all-reduce"], &flags[..], &rest].concat());
        c.envs([("PMI_SIZE", "2"), ("RINGBELL_SECRET", SECRET)])
            .env("PMI_RANK", n.to_string())
            .env("RINGBELL_BOOTSTRAP", &bootstrap);
        c
    };
    let mut other = rank(1);
    other.stdin(Stdio::null()).stdout(Stdio::null());
    let other = start(other);
    let out = quiet(rank(0));
    other.succeeds();
    carried(&report(&out), 6, "iwarp");
    // A measurement to a named NIC: the address in brackets, with a port and without.
    for at in ["", ":7001"] {
        let port = ["--transport", "rdma", "--port", "roce:[fd60::2]"];
        let listen = format!("10.77.0.1{at}");
        let args = [&["perf", "send-bw", "--listen", &listen], &port[..]].concat();
        let mut serves = start(hosts[2].ringbell(&args));
        serves.says("listening on");
        let to = format!("[fd60::2]{at}");
        let port = ["--transport", "rdma", "--port", "roce:[fd60::1]"];
        let flags = [
            "-b", "64", "-e", "64K", "-f", "1024", "-n", "50", "--json", "-",
        ];
        let args = [&["perf", "send-bw", "--connect", &to], &port[..], &flags].concat();
        let out = quiet(hosts[1].ringbell(&args));
        serves.succeeds();
        sound(&report(&out), 2);
    }
    // Sockets, by the peer's address of IPv6: both NICs have one address of IPv4, and the capture
    // is right.
    let folder = net::folder("ipv6");
    let (file, got, pcap) = (folder.join("file"), folder.join("got"), folder.join("pcap"));
    net::random_file(&file, 300_000, 6);
    let own = ["--ip", "10.77.0.1/24", "-v", "-w", "20"];
    let args = [
        &["nc", "-l", "7000", "-d", "--port", "roce:[fd60::2]"],
        &own[..],
    ]
    .concat();
    let mut serves = hosts[2].ringbell(&args);
    serves.stdout(std::fs::File::create(&got).expect("a file"));
    let mut serves = start(serves);
    serves.says("listening");
    let pcap_name = pcap.display().to_string();
    let port = ["--port", "roce:[fd60::1]", "--pcap", &pcap_name];
    let args = [&["nc", "fd60::2", "7000"], &port[..], &own].concat();
    let mut sends = hosts[1].ringbell(&args);
    sends.stdin(std::fs::File::open(&file).expect("just written"));
    let mut sends = start(sends);
    sends.says("connected with [fd60::2]:7000 over rdma");
    serves.says("connected with [fd60::1]:");
    sends.succeeds();
    serves.succeeds();
    assert_eq!(net::sha256(&got), net::sha256(&file));
    if !net::installed("tshark") {
        skip!("there is no tshark");
    }
    let mut shows = Command::new("tshark");
    let fields = [
        "_ws.malformed",
        "_ws.expert",
        "ipv6.src",
        "infiniband.bth.opcode",
    ];
    shows
        .args(["-n", "--disable-protocol", "rpcordma", "-T", "fields"])
        .args(["-o", "udp.check_checksum:TRUE"])
        .args(fields.iter().flat_map(|f| ["-e", f]))
        .arg("-r")
        .arg(&pcap);
    let out = output(shows);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(text.lines().count() > 200, "{text}");
    let odd = text.lines().find(|l| !l.starts_with("\t\tfd60::"));
    assert_eq!(odd, None, "malformed, an expert's remark, or not of RoCEv2");
}

/// A Python that finds scapy: the one below `target/`, or the system's.
fn python() -> Option<PathBuf> {
    let here = std::env::current_exe().ok()?;
    let ours = here.ancestors().map(|a| a.join("venv/bin/python3"));
    let mut candidates = ours.filter(|p| p.exists()).chain(["python3".into()]);
    candidates.find(|p| {
        let tried = Command::new(p).args(["-c", "import scapy"]).output();
        tried.is_ok_and(|o| o.status.success())
    })
}

/// Frames on an interface, as scapy judges them.
const JUDGE: &str = include_str!("hosts_scapy.py");

#[test]
fn the_kernel_numbers_the_packets_that_it_cuts_and_scapy_finds_every_icrc_right() {
    let hosts = match Namespace::bridged(2, |_| 1_500) {
        Ok(hosts) => hosts,
        Err(why) => skip!("{why}"),
    };
    let Some(python) = python() else {
        skip!("there is no scapy; `cargo xtask test` installs it below target/venv");
    };
    // The cable takes messages that the kernel has not cut, as a network card may that cuts by
    // itself. So the kernel is to do it.
    for host in &hosts[1..] {
        let mut c = host.command("ethtool");
        c.args(["-K", "cable", "tx-udp-segmentation", "off"]);
        match c.output() {
            Ok(out) if out.status.success() => {}
            other => skip!("ethtool does not turn segmentation off: {other:?}"),
        }
    }
    let judged = |benchmark: &str, size: &str, icrc: &str| {
        let mut c = hosts[2].command(&python);
        c.args(["-c", JUDGE, "cable"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut judge = start(c);
        judge.says("ready");
        let serves = server(hosts[2].ringbell(&[
            "perf",
            benchmark,
            "--listen",
            "--port",
            "roce:10.60.0.2:4791",
            "--icrc",
            icrc,
        ]));
        let out = quiet(hosts[1].ringbell(&[
            "perf",
            benchmark,
            "10.60.0.2",
            "--port",
            "roce:10.60.0.1:4791",
            "--icrc",
            icrc,
            "-b",
            size,
            "-e",
            size,
            "-n",
            "30",
            "--json",
            "-",
        ]));
        serves.succeeds();
        sound(&report(&out), 1);
        drop(judge.child().stdin.take());
        let mut text = String::new();
        let mut pipe = judge.child().stdout.take().expect("piped");
        pipe.read_to_string(&mut text).expect("text");
        judge.succeeds();
        let seen: serde_json::Value = serde_json::from_str(&text).expect("one JSON object");
        let count = |name: &str| seen[name].as_u64().expect("a count");
        assert!(count("packets") > 60, "{seen}");
        assert_eq!(count("unfragmented"), count("packets"), "{seen}");
        (
            count("packets"),
            count("identification_0"),
            count("right"),
            count("right_with_0"),
        )
    };
    // A ping-pong: packets that nothing was cut from. The CRC is that of the packet as it is.
    let (packets, zero, right, _) = judged("write-lat", "64", "on");
    assert!(zero > packets / 2, "{zero} of {packets}");
    assert_eq!(right, zero);
    // A stream: the kernel numbers the packets of each message 0, 1, 2, ...; the CRC is that of
    // packets with number 0.
    let (packets, zero, right, right_with_0) = judged("send-bw", "64K", "on");
    assert!(zero < packets / 2, "{zero} of {packets}");
    assert_eq!((right, right_with_0), (zero, packets));
    // The judge can tell: without CRC none is right.
    let (_, _, right, right_with_0) = judged("send-bw", "64K", "off");
    assert_eq!((right, right_with_0), (0, 0));
}
