//! OpenSM's routes of the same networks, beside ours: DFSSSP, LASH and torus-2QoS over ibsim, a
//! simulated InfiniBand subnet. Without Debian's `opensm` and `ibsim-utils` it is skipped, visibly.
//!
//! Each NIC is a switch with a host behind its last port. OpenSM's paths come as tables, whose hops
//! and loads are counted as those of ours; its layers are those that it says it needs, and they
//! also hold paths to the switches themselves.

#![allow(clippy::disallowed_methods)] // Programs are waited for, with a deadline.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringbell_routes::check::check_unproved;
use ringbell_routes::load::Load;
use ringbell_routes::route::{route_by, Algorithm, MAX_CHANNELS};
use ringbell_routes::tables::{Class, Tables};
use ringbell_routes::topology::{NodeId, Role, Shape, Topology};

use crate::common::network;

const OPENSM: &str = "/usr/sbin/opensm";
/// A run takes a fifth of a second.
const DEADLINE: Duration = Duration::from_secs(60);

/// A simulated subnet; it ends with its owner.
struct Subnet {
    ibsim: Child,
    folder: tempfile::TempDir,
    socket: String,
}

impl Drop for Subnet {
    fn drop(&mut self) {
        let _ = self.ibsim.kill();
        let _ = self.ibsim.wait();
    }
}

/// The port of a NIC behind which its host is.
fn host_port(t: &Topology) -> usize {
    let ports = t.links().map(|l| t.from(l).port);
    usize::from(ports.max().unwrap_or(0)) + 2
}

/// The network in ibsim's form. Ports count from 1 there. A switch of ours has no host.
fn net(t: &Topology) -> String {
    let (mut hosts, mut switches) = (String::new(), String::new());
    let host = host_port(t);
    for node in t.ids() {
        let i = node.index();
        let _ = writeln!(switches, "Switch {host} \"S{i}\"");
        for link in t.leaving(node) {
            let (from, to) = (t.from(link).port + 1, t.to(link));
            let _ = writeln!(
                switches,
                "[{from}] \"S{}\"[{}]",
                to.node.index(),
                to.port + 1
            );
        }
        if t.nodes()[i].role == Role::End {
            let _ = writeln!(hosts, "Hca 1 \"H{i}\"\n[1] \"S{i}\"[{host}]\n");
            let _ = writeln!(switches, "[{host}] \"H{i}\"[1]");
        }
        switches.push('\n');
    }
    hosts + &switches
}

impl Subnet {
    fn start(t: &Topology) -> Subnet {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("net"), net(t)).expect("a file");
        let socket = format!("ringbell-{}-{}", std::process::id(), t.name());
        let ibsim = Command::new("ibsim")
            .args(["-s", "-n", "net"])
            .current_dir(folder.path())
            .env("IBSIM_SOCKNAME", &socket)
            // Its console: an end of the input would end it.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Subnet {
            ibsim: ibsim.expect("ibsim starts"),
            folder,
            socket,
        }
    }

    /// OpenSM's tables by an engine, and its layers where it says how many.
    fn route(&self, t: &Topology, engine: &str, options: &[&str]) -> (Tables, Option<usize>) {
        let at = |name: &str| self.folder.path().join(name);
        let began = Instant::now();
        // Until ibsim listens, OpenSM ends at once and has done nothing.
        while !at("opensm-lfts.dump").exists() {
            assert!(began.elapsed() < DEADLINE, "{}: no tables", t.name());
            let _ = std::fs::remove_file(at("osm.log"));
            let mut opensm = Command::new("ibsim-run")
                .args([OPENSM, "-R", engine, "-o", "-f", "osm.log", "-D", "0x43"])
                .args(options)
                .current_dir(self.folder.path())
                .envs([
                    ("OSM_TMP_DIR", "."),
                    ("OSM_CACHE_DIR", "."),
                    ("SIM_HOST", "H0"),
                ])
                .env("IBSIM_SOCKNAME", &self.socket)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("ibsim-run starts");
            while opensm.try_wait().expect("a child").is_none() {
                if began.elapsed() > DEADLINE {
                    let _ = opensm.kill();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let log = std::fs::read_to_string(at("osm.log")).expect("a log");
        assert!(!log.contains("cannot build fwd tables"), "{engine}: {log}");
        let tables = read(t, &at("opensm-lfts.dump"));
        std::fs::remove_file(at("opensm-lfts.dump")).expect("it was there");
        let needed = log.lines().find_map(|line| {
            let (_, number) = line.split_once("anes needed: ")?;
            let digits = number.split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|n| n.parse().ok())
        });
        (tables, needed)
    }
}

/// The forwarding tables that OpenSM has dumped, of paths to hosts, in one layer.
fn read(t: &Topology, dump: &Path) -> Tables {
    let text = std::fs::read_to_string(dump).expect("a dump");
    let mut tables = Tables::new(t.nodes().len(), [vec![0], vec![1]]);
    let host = host_port(t);
    let numbered = |line: &str, letter: char| {
        let (_, rest) = line.split_once(&format!("'{letter}"))?;
        rest.split_once('\'')?.0.parse().ok().map(NodeId)
    };
    let mut node = NodeId(0);
    for line in text.lines() {
        if line.starts_with("Unicast lids") {
            node = numbered(line, 'S').expect("a switch");
        } else if let Some(destination) = numbered(line, 'H') {
            let port = line.split(' ').nth(1).and_then(|p| p.parse::<usize>().ok());
            let port = port.unwrap_or_else(|| panic!("{line}"));
            assert_eq!(port == host, node == destination, "{line}");
            if port != host {
                tables.set_next(node, destination, Some(port as u8 - 1));
            }
        }
    }
    tables
}

/// torus-2QoS wants the neighbours of one switch in each dimension; ibsim numbers them in order.
fn torus_file(sizes: &[usize]) -> String {
    let mut sizes = sizes.to_vec();
    sizes.resize(3, 1);
    let mut text = format!("torus {} {} {}\n", sizes[0], sizes[1], sizes[2]);
    let mut stride = sizes.iter().product::<usize>();
    for (letter, size) in ['x', 'y', 'z'].into_iter().zip(&sizes) {
        stride /= size;
        if *size > 1 {
            let guid = |n: usize| format!("{:#x}", 0x20_0000 + n);
            let _ = writeln!(text, "{letter}p_link {} {}", guid(0), guid(stride));
            let _ = writeln!(
                text,
                "{letter}m_link {} {}",
                guid(0),
                guid(stride * (size - 1))
            );
        }
    }
    text
}

#[test]
fn our_routes_are_as_short_as_opensms_and_no_busier() {
    let found = |program: &str| {
        let mut asked = Command::new(program);
        asked.arg("-h").stdin(Stdio::null());
        asked.stdout(Stdio::null()).stderr(Stdio::null());
        asked.status().is_ok()
    };
    if !found(OPENSM) || !found("ibsim") || !found("ibsim-run") {
        println!("SKIPPED: there is no opensm or no ibsim (Debian's opensm and ibsim-utils)");
        return;
    }
    println!("network: engine layers, mean hops, busiest link");
    for name in [
        "ring:8",
        "torus:4x4",
        "torus:5x5",
        "torus:3x4x5",
        "mesh:4x4",
        "hypercube:4",
        "fat-tree:2x3",
        "dragonfly:4x1",
        "random:20x3@7",
        "random:40x4@3",
    ] {
        let t = network(name);
        let subnet = Subnet::start(&t);
        let ours = route_by(&t, MAX_CHANNELS, Algorithm::Layered).expect(name);
        let our_layers = ours.tables.channels(Class::Request).len();
        let our_load = Load::of(&t, &ours.tables);
        println!(
            "{name}: ours {our_layers}, {:.2}, {}",
            our_load.mean_hops(),
            our_load.greatest()
        );
        let mut engines = vec![("dfsssp", String::new()), ("lash", String::new())];
        if let Shape::Grid {
            sizes,
            wrapped: true,
        } = t.shape()
        {
            if sizes.len() > 1 {
                engines.push(("torus-2QoS", torus_file(sizes)));
            }
        }
        for (engine, file) in engines {
            std::fs::write(subnet.folder.path().join("torus"), &file).expect("a file");
            let options = ["--torus_config", "torus", "-Q"];
            let options = if file.is_empty() {
                &[][..]
            } else {
                &options[..]
            };
            let (tables, layers) = subnet.route(&t, engine, options);
            let judged = check_unproved(&t, &tables, MAX_CHANNELS);
            let load = Load::of(&t, &tables);
            let (mean, busiest) = (load.mean_hops(), load.greatest());
            println!(
                "{name}: {engine} {layers:?}, {mean:.2}, {busiest}, one layer {}",
                judged.is_ok()
            );
            assert_eq!(
                load.hops, our_load.hops,
                "{name}: the lengths of {engine}'s paths"
            );
            if layers == Some(1) {
                // OpenSM's word that no circle is there, and our checker's.
                assert!(judged.is_ok(), "{name} {engine}: {judged:?}");
            }
            if engine == "dfsssp" {
                assert!(our_load.greatest() <= busiest, "{name}: {busiest}");
                let theirs = layers.expect("it says so");
                assert!(
                    our_layers <= theirs + 1,
                    "{name}: {our_layers} layers, {theirs}"
                );
            }
        }
    }
}
