//! TCP judged by scapy over TAP: floods, guessed resets, SYNs and acknowledgements
//! (`tcp_scapy.py`). Needs root, `/dev/net/tun`, `ip`, and scapy, which `cargo xtask test` installs
//! below `target/venv`; what is missing is skipped, visibly.

use crate::transport_support;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ringbell_nic_abi::Status;
use ringbell_nic_core::transport::{Close, Transport, TransportEvent};
use ringbell_nic_core::types::{Buffer, ConnId};
use transport_support::live::{missing, run, tap, Live, Namespace, NIC};
use transport_support::PORT;

/// Bytes of a connection's buffer.
const ROOM: u32 = 64 << 10;

/// A Python that finds scapy: the one below `target/`, or the system's.
fn python() -> Option<PathBuf> {
    // This program lies somewhere below `target/`, wherever that is.
    let here = std::env::current_exe().ok()?;
    let ours = here.ancestors().map(|a| a.join("venv/bin/python3"));
    let mut candidates = ours.filter(|p| p.exists()).chain(["python3".into()]);
    candidates.find(|p| {
        let found = run(&p.to_string_lossy(), &["-c", "import scapy"]);
        found.is_some_and(|o| o.status.success())
    })
}

/// Sends back what comes, on each connection until its end.
#[derive(Default)]
struct Echo {
    open: HashMap<ConnId, Buffer>,
}

impl Echo {
    fn serve(&mut self, nic: &mut Live) {
        while let Some(e) = nic.side.events.pop_front() {
            match e {
                TransportEvent::Incoming { conn, .. } => {
                    let room = nic.side.dma.region(vec![0; ROOM as usize]);
                    self.open.insert(conn, room);
                    nic.side.recv(conn, 1, room, true);
                }
                TransportEvent::RecvDone {
                    conn,
                    status: Status::Ok,
                    bytes,
                    ..
                } => {
                    let part = Buffer {
                        len: bytes as u32,
                        ..self.open[&conn]
                    };
                    nic.side.send(conn, 2, part);
                }
                TransportEvent::SendDone {
                    conn,
                    status: Status::Ok,
                    ..
                } => nic.side.recv(conn, 1, self.open[&conn], true),
                // The peer's end, a reset, or what follows from one.
                TransportEvent::RecvDone { conn, .. } | TransportEvent::Reset { conn } => {
                    nic.side.transport.close(conn, Close::Gracefully);
                }
                _ => {}
            }
        }
    }
}

fn case(name: &str) {
    if let Some(why) = missing(&["ip"]) {
        eprintln!("SKIPPED {name}: {why}");
        return;
    }
    let Some(python) = python() else {
        eprintln!(
            "SKIPPED {name}: there is no scapy; `cargo xtask test` installs it below target/venv"
        );
        return;
    };
    let ns = Namespace::new();
    let mut nic = Live::new(Box::new(tap(&ns, true)), NIC);
    nic.side
        .transport
        .listen(PORT, 16)
        .expect("the port is free");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tcp_scapy.py");
    let mut child = Command::new("ip")
        .args(["netns", "exec", &ns.0])
        .args([python.as_os_str(), script.as_os_str()])
        .args([format!("t{}", ns.0), NIC.to_string(), PORT.to_string()])
        .arg(name)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ip is installed");
    let mut echo = Echo::default();
    nic.until(|l| {
        echo.serve(l);
        child.try_wait().expect("our child")
    });
    let out = child.wait_with_output().expect("our child");
    println!("{}", String::from_utf8_lossy(&out.stdout));
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{err}\n{:?}", nic.side.transport);
}

#[test]
fn scapy_resets_only_with_the_exact_number() {
    case("reset_in_window");
    case("reset_exact");
}

#[test]
fn scapy_starts_again_on_the_same_port() {
    case("syn_on_live");
}

#[test]
fn scapy_guesses_acknowledgements() {
    case("old_ack");
    case("blind_data");
}

#[test]
fn linux_and_scapy_get_in_under_a_syn_flood() {
    case("syn_flood");
}
