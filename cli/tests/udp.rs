//! Tests of VXLAN over UDP: two network namespaces joined by a cable, with a NIC in each, and
//! Wireshark's check of the frames.
#![allow(clippy::disallowed_methods)] // Programs are waited for.

use crate::net;

use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};

use net::{folder, installed, random_file, sha256, start, Namespace};

const SERVER: &str = "udp:10.50.0.1,10.50.0.2";
const CLIENT: &str = "udp:10.50.0.2,10.50.0.1";

fn pair() -> Result<(Namespace, Namespace), String> {
    let server = Namespace::new()?;
    let client = server.joined("10.50.0.1/24", "10.50.0.2/24")?;
    Ok((server, client))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// Runs send-bw from one namespace to the other; its report.
fn bandwidth(server: &Namespace, client: &Namespace, extra: &[&str]) -> serde_json::Value {
    let args = [
        "perf",
        "send-bw",
        "--transport",
        "tcp",
        "--listen",
        "10.77.0.1",
        "--port",
        SERVER,
    ];
    let mut listener = start(server.ringbell(&args));
    listener.says("listening on");
    let args = [
        "perf",
        "send-bw",
        "--transport",
        "tcp",
        "--connect",
        "10.77.0.1",
        "--port",
        CLIENT,
        "-b",
        "4K",
        "-e",
        "256K",
        "-f",
        "8",
        "--json",
        "-",
    ];
    let mut command = client.ringbell(&[&args, extra].concat());
    let out = net::output({
        command.stdin(Stdio::null());
        command
    });
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    listener.succeeds();
    serde_json::from_slice(&out.stdout).expect("one JSON object")
}

/// Frames that tshark finds malformed or with a bad checksum, and the number of all frames.
fn judged(capture: &Path) -> (String, usize) {
    let tshark = |filter: &str| {
        let mut c = Command::new("tshark");
        c.args([
            "-o",
            "tcp.check_checksum:TRUE",
            "-o",
            "ip.check_checksum:TRUE",
            "-r",
        ])
        .arg(capture);
        c.args(["-Y", filter]);
        let out = net::output(c);
        assert!(out.status.success(), "{out:?}");
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let bad = tshark(
        "_ws.malformed || ip.checksum.status == \"Bad\" || tcp.checksum.status == \"Bad\" || eth.fcs.status == \"Bad\"",
    );
    // A retransmission that overlaps what came before troubles Wireshark's reassembly, not TCP.
    let overlap = "New fragment overlaps old data";
    let bad = bad.lines().filter(|l| !l.contains(overlap)).collect();
    (bad, tshark("tcp || arp").lines().count())
}

#[test]
fn bandwidth_is_measured_and_verified_between_two_namespaces() {
    let (server, client) = match pair() {
        Ok(pair) => pair,
        Err(why) => skip!("{why}"),
    };
    let report = bandwidth(&server, &client, &["-n", "32"]);
    assert_eq!(report["meta"]["transport"], "tcp");
    assert!(report["meta"]["port"]
        .as_str()
        .is_some_and(|p| p.starts_with("udp")));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!(row["wrong"], 0, "{row}");
        assert!(row["algbw_gbs"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn nc_carries_a_file_between_two_namespaces() {
    let (server, client) = match pair() {
        Ok(pair) => pair,
        Err(why) => skip!("{why}"),
    };
    let dir = folder("udp-nc");
    random_file(&dir.join("a"), net::FILE_BYTES, 11);
    let nc = ["nc", "-v", "--transport", "tcp", "--port"];
    let mut command =
        server.ringbell(&[&nc[..], &[SERVER, "--ip", "10.77.0.1/24", "-l", "6000"]].concat());
    command
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(dir.join("out")).expect("a file"));
    let mut listener = start(command);
    listener.says("listening on");
    let mut command = client.ringbell(
        &[
            &nc[..],
            &[CLIENT, "--ip", "10.77.0.2/24", "10.77.0.1", "6000"],
        ]
        .concat(),
    );
    command.stdin(std::fs::File::open(dir.join("a")).expect("it was written"));
    start(command).succeeds();
    listener.succeeds();
    assert_eq!(sha256(&dir.join("a")), sha256(&dir.join("out")));
}

/// Two NICs that see one directory, in different namespaces, and a port between them.
#[test]
fn a_shared_directory_does_not_pass_the_wire_by() {
    let (server, client) = match pair() {
        Ok(pair) => pair,
        Err(why) => skip!("{why}"),
    };
    let dir = folder("udp-auto");
    let shared = dir.join("run");
    std::fs::create_dir(&shared).expect("a folder");
    random_file(&dir.join("a"), 1 << 20, 12);
    for (transport, carrier) in [("auto", "tcp"), ("rdma", "rdma"), ("local", "local")] {
        let nc = ["nc", "-v", "--transport", transport, "--port"];
        let mut command =
            server.ringbell(&[&nc[..], &[SERVER, "--ip", "10.77.0.1/24", "-l", "6001"]].concat());
        command
            .env("XDG_RUNTIME_DIR", &shared)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(dir.join("out")).expect("a file"));
        let mut listener = start(command);
        listener.says("listening on");
        let to = [CLIENT, "--ip", "10.77.0.2/24", "10.77.0.1", "6001"];
        let mut command = client.ringbell(&[&nc[..], &to].concat());
        command
            .env("XDG_RUNTIME_DIR", &shared)
            .env("RINGBELL_DEBUG", "INFO")
            .stdin(std::fs::File::open(dir.join("a")).expect("it was written"));
        let said = start(command).succeeds();
        assert!(said.contains(&format!("over {carrier}")), "{said}");
        // Said by the NIC's own event, too, with a reason.
        let event = said.lines().find(|l| l.contains("established"));
        let event = event.unwrap_or_else(|| panic!("{said}"));
        assert!(
            event.contains(&format!("transport=\"{carrier}\"")),
            "{event}"
        );
        assert!(event.contains("why="), "{event}");
        if transport == "auto" {
            assert!(said.contains("another network namespace"), "{said}");
        }
        let heard = listener.succeeds();
        assert!(heard.contains(&format!("over {carrier}")), "{heard}");
        assert_eq!(sha256(&dir.join("a")), sha256(&dir.join("out")));
    }
}

#[test]
fn wireshark_finds_no_malformed_frame_and_no_bad_checksum() {
    if !installed("tshark") {
        skip!("tshark is not installed");
    }
    let (server, client) = match pair() {
        Ok(pair) => pair,
        Err(why) => skip!("{why}"),
    };
    let dir = folder("udp-pcap");
    let capture = dir.join("capture.pcapng");
    // Loss and reordering bring retransmissions, selective acknowledgements and window updates.
    let faults = ["--loss", "0.01", "--reorder", "0.02"];
    let report = bandwidth(
        &server,
        &client,
        &[
            &["-n", "4", "-w", "0", "--pcap", text(&capture)],
            &faults[..],
        ]
        .concat(),
    );
    assert!(report["rows"]
        .as_array()
        .is_some_and(|rows| rows.iter().all(|r| r["wrong"] == 0)));
    let (bad, frames) = judged(&capture);
    assert!(frames > 100, "only {frames} frames were captured");
    assert_eq!(bad, "");

    // The check can fail: one flipped bit in the middle of the file, inside some frame's payload.
    let mut bytes = std::fs::read(&capture).expect("it was written");
    let middle = bytes.len() / 2;
    let at = (middle..middle + 4096).find(|&i| {
        // Not in a block's own header: there the file would end instead.
        bytes[i - 32..i + 32].iter().filter(|b| **b == 0).count() < 4
    });
    bytes[at.expect("a payload in the middle")] ^= 1;
    let broken = dir.join("broken.pcapng");
    std::fs::write(&broken, bytes).expect("written");
    assert_ne!(judged(&broken).0, "");
}

/// On loopback, without namespaces: the route chooses the second port, the first one leads nowhere.
#[test]
fn a_nic_with_two_ports_reaches_the_networks_of_its_routes() {
    let free: Vec<_> = (0..3)
        .map(|_| UdpSocket::bind("127.0.0.1:0").expect("a free port"))
        .collect();
    let [far, idle, near] = [0, 1, 2].map(|i| free[i].local_addr().expect("bound"));
    drop(free);
    let dir = folder("udp-ports");
    random_file(&dir.join("a"), 1 << 20, 13);
    let nc = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringbell"));
        command
            .args(["nc", "-v", "--transport", "tcp"])
            .args(args)
            .env("RINGBELL_DEBUG", "INFO")
            .stdin(Stdio::null());
        command
    };
    let port = format!("udp:{far},{near}");
    let back = "10.79.1.0/24=0";
    let server = ["--ip", "10.79.2.2/24", "--port", &port, "--route", back];
    let mut listener = nc(&[&server[..], &["-l", "6002"]].concat());
    listener.stdout(std::fs::File::create(dir.join("out")).expect("a file"));
    let mut listener = start(listener);
    listener.says("listening on");

    let (first, second) = (format!("udp:{idle}"), format!("udp:{near},{far},mtu=1400"));
    let ports = ["--ip", "10.79.1.1/24", "--port", &first, "--port", &second];
    let to = ["10.79.2.2", "6002"];
    // No route: refused by name, and not by a time-out.
    let (code, said) = start(nc(&[&ports[..], &to].concat())).ends();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("HOST_UNREACHABLE"), "{said}");
    let route = ["--route", "10.79.2.0/24=1"];
    let mut client = nc(&[&ports[..], &route, &to].concat());
    client.stdin(std::fs::File::open(dir.join("a")).expect("it was written"));
    let said = start(client).succeeds();
    assert!(said.contains("port 1: udp"), "{said}");
    assert!(said.contains("MTU 1400"), "{said}");
    assert!(said.contains("route 10.79.2.0/24=1"), "{said}");
    listener.succeeds();
    assert_eq!(sha256(&dir.join("a")), sha256(&dir.join("out")));
}
