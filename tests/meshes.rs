//! Tests of NICs of one process that forward for each other.
#![allow(clippy::disallowed_methods)] // Threads with deadlines.

use crate::communicators;

use std::path::Path;
use std::time::{Duration, Instant};

use ringbell::abi::Status;
use ringbell::{Nic, OpenError, Wires};
use ringbell_routes::document::Document;
use ringbell_routes::named::named;
use ringbell_routes::route::{route, DEFAULT_CHANNELS};
use ringbell_routes::topology::NodeId;

const LIMIT: Duration = Duration::from_secs(60);

fn nic(wires: &Wires, network: u8, rank: u32) -> Nic {
    let nic = Nic::builder().ip(format!("10.94.{network}.{}/24", rank + 1));
    let nic = nic.gpu(communicators::gpu_choice()).wires(wires, rank);
    nic.open().expect("a NIC")
}

/// A stream goes the shorter way round a ring. The NIC there dies: it goes on the other way.
#[test]
fn a_stream_goes_on_around_a_nic_that_dies() {
    let wires = Wires::in_memory("ring:5").expect("a network");
    let mut nics: Vec<Option<Nic>> = (0..5).map(|r| Some(nic(&wires, 1, r))).collect();
    let at = |nics: &[Option<Nic>], r: usize| nics[r].clone().expect("open");
    let (server, client) = (at(&nics, 0), at(&nics, 2));
    let listener = server.listen(7000).expect("free");
    listener.set_timeout(LIMIT);
    let (to, from) = std::thread::scope(|s| {
        let connect = s.spawn(|| client.connect("10.94.1.1:7000").expect("it listens"));
        let to = listener.accept().expect("it connects");
        (to, connect.join().expect("no panic"))
    });
    let info = from.info().expect("open");
    assert_eq!(info.transport, Some("rdma"));
    [&to, &from].into_iter().for_each(|s| s.set_timeout(LIMIT));
    let (source, target) = (
        client.alloc_host(200_000).expect("memory"),
        server.alloc_host(200_000).expect("memory"),
    );
    for round in 0..20u8 {
        if round == 5 {
            let forwarded = at(&nics, 1).ports()[0].parts.join("\n");
            assert!(!forwarded.contains("forwarded 0 packets"), "{forwarded}");
            nics[1] = None;
        }
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8 ^ round).collect();
        source.write(0, &bytes).expect("inside");
        std::thread::scope(|s| {
            s.spawn(|| from.send(&source).expect("sent"));
            assert_eq!(to.recv(&target).expect("received"), 200_000);
        });
        let mut got = vec![0; bytes.len()];
        target.read(0, &mut got).expect("inside");
        assert!(got == bytes, "round {round}");
    }
    let start = Instant::now();
    let down = loop {
        let report = at(&nics, 3).ports()[0].parts.join("\n");
        if report.matches("down: ").count() == 2 {
            break report;
        }
        assert!(start.elapsed() < LIMIT, "{report}");
        std::thread::sleep(Duration::from_millis(20));
    };
    for wire in ["n0:1 -- n1:0", "n1:1 -- n2:0", "port 1 -> n4:0: up"] {
        assert!(down.contains(wire), "{wire}: {down}");
    }
}

/// The node between two ends dies: what they had posted names the wire that is missing, and so does
/// a new connection.
#[test]
fn operations_without_a_way_name_the_missing_wire() {
    let wires = Wires::in_memory("bus:3").expect("a network");
    let [client, between, server] = [0, 1, 2].map(|r| nic(&wires, 4, r));
    let listener = server.listen(7000).expect("free");
    listener.set_timeout(LIMIT);
    let (to, from) = std::thread::scope(|s| {
        let connect = s.spawn(|| client.connect("10.94.4.3:7000").expect("it listens"));
        let to = listener.accept().expect("it connects");
        (to, connect.join().expect("no panic"))
    });
    [&to, &from].into_iter().for_each(|s| s.set_timeout(LIMIT));
    drop(between);
    let ends = [
        (client, from, "no way to n2: missing n0:1 -- n1:0"),
        (server, to, "no way to n0: missing n1:1 -- n2:0"),
    ];
    for (nic, socket, why) in &ends {
        let memory = nic.alloc_host(64).expect("memory");
        let error = socket.recv(&memory).expect_err("no way");
        assert_eq!(error.status(), Some(Status::HostUnreachable), "{error}");
        assert!(error.to_string().ends_with(&format!(" ({why})")), "{error}");
        let detail = error.detail().expect("of the NIC");
        let named = nic.missing_wires(Status::HostUnreachable, detail);
        assert_eq!(named.as_deref(), Some(*why));
        assert_eq!(nic.missing_wires(Status::TimedOut, detail), None);
    }
    let error = ends[0].0.connect("10.94.4.3:7000").expect_err("no way");
    assert!(error.to_string().contains(ends[0].2), "{error}");
}

/// Tables of a ring that leave its wire between nodes 2 and 3 out.
fn tables_the_long_way(file: &Path) {
    let ring = named("ring:4").expect("a name");
    let wire = ring.link(NodeId(3), 0).expect("a wire").wire();
    let bus = ring.without(wire).expect("still connected");
    let routes = route(&bus, DEFAULT_CHANNELS).expect("routes");
    let document = Document::of(&bus, &routes.tables, &routes.proof);
    let text = serde_json::to_string(&document).expect("JSON");
    std::fs::write(file, text).expect("room");
}

#[test]
fn nics_forward_by_the_tables_of_a_file() {
    let folder = std::env::temp_dir();
    let file = folder.join(format!("rb-tables-{}.json", std::process::id()));
    tables_the_long_way(&file);
    let wires = Wires::in_memory("ring:4").expect("a network");
    let open = |rank: u32| {
        let nic = Nic::builder().ip(format!("10.94.3.{}/24", rank + 1));
        let nic = nic.gpu(communicators::gpu_choice()).wires(&wires, rank);
        nic.tables(&file).wire_poll(rank + 1).open().expect("a NIC")
    };
    let nics: Vec<Nic> = (0..4).map(open).collect();
    let listener = nics[3].listen(7000).expect("free");
    listener.set_timeout(LIMIT);
    std::thread::scope(|s| {
        let connect = s.spawn(|| nics[2].connect("10.94.3.4:7000").expect("it listens"));
        let to = listener.accept().expect("it connects");
        let from = connect.join().expect("no panic");
        let (source, target) = (
            nics[2].alloc_host(5000).expect("memory"),
            nics[3].alloc_host(5000).expect("memory"),
        );
        s.spawn(move || from.send(&source).expect("sent"));
        assert_eq!(to.recv(&target).expect("received"), 5000);
    });
    for (n, nic) in nics[..2].iter().enumerate() {
        let forwarded = nic.ports()[0].parts.join("\n");
        assert!(!forwarded.contains("forwarded 0 packets"), "{forwarded}");
        assert!(
            forwarded.contains(&format!("of 8; R is {}", n + 1)),
            "{forwarded}"
        );
    }
    // Those of another network, and tables with a circle.
    let refused = |network: &str, file: &Path| {
        let wires = Wires::in_memory(network).expect("a network");
        let nic = Nic::builder().gpu(communicators::gpu_choice());
        let error = nic.wires(&wires, 0).tables(file).open();
        format!("{:#}", anyhow::Error::new(error.expect_err("refused")))
    };
    let said = refused("ring:5", &file);
    assert!(said.contains("4 nodes, other ones than those"), "{said}");
    let good = std::fs::read_to_string(&file).expect("there");
    let bad = good.replacen("\"next\":[[null,1", "\"next\":[[null,0", 1);
    assert_ne!(good, bad);
    std::fs::write(&file, bad).expect("room");
    let said = refused("ring:4", &file);
    assert!(said.contains("routes of ring:4 are refused"), "{said}");
    std::fs::remove_file(&file).expect("there");
    let said = refused("ring:4", &file);
    assert!(said.contains("cannot read"), "{said}");
}

/// Streams over a ring go on while its tables are replaced by those that leave a wire out.
#[test]
fn tables_are_replaced_while_streams_go_on() {
    let folder = std::env::temp_dir();
    let file = folder.join(format!("rb-replaced-{}.json", std::process::id()));
    tables_the_long_way(&file);
    let wires = Wires::in_memory("ring:4").expect("a network");
    let nics: Vec<Nic> = (0..4).map(|r| nic(&wires, 5, r)).collect();
    let routes = |nic: &Nic| {
        let parts = nic.ports().remove(0).parts;
        let line = parts.into_iter().find(|p| p.starts_with("routes "));
        line.expect("a line of a mesh")
    };
    let before = routes(&nics[0]);
    let listener = nics[3].listen(7000).expect("free");
    listener.set_timeout(LIMIT);
    let (to, from) = std::thread::scope(|s| {
        let connect = s.spawn(|| nics[2].connect("10.94.5.4:7000").expect("it listens"));
        let to = listener.accept().expect("it connects");
        (to, connect.join().expect("no panic"))
    });
    [&to, &from].into_iter().for_each(|s| s.set_timeout(LIMIT));
    let (source, target) = (
        nics[2].alloc_host(300_000).expect("memory"),
        nics[3].alloc_host(300_000).expect("memory"),
    );
    let mut seen = vec![before.clone()];
    for round in 0..30u8 {
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i % 241) as u8 ^ round).collect();
        source.write(0, &bytes).expect("inside");
        std::thread::scope(|s| {
            s.spawn(|| from.send(&source).expect("sent"));
            if round % 10 == 5 {
                let by = &nics[usize::from(round / 10)];
                s.spawn(|| by.replace_routes(&file, LIMIT).expect("replaced"));
            }
            assert_eq!(to.recv(&target).expect("received"), 300_000);
        });
        let mut got = vec![0; bytes.len()];
        target.read(0, &mut got).expect("inside");
        assert!(got == bytes, "round {round}");
        seen.push(routes(&nics[0]));
    }
    seen.dedup();
    assert!(
        seen.len() >= 3,
        "each time the other half of the channels: {seen:?}"
    );
    let start = Instant::now();
    while nics.iter().any(|nic| routes(nic) != routes(&nics[0])) {
        assert!(start.elapsed() < LIMIT, "the nodes differ");
        std::thread::sleep(Duration::from_millis(5));
    }
    // From node 2 to node 3 by nodes 1 and 0.
    for nic in &nics[..2] {
        let forwarded = nic.ports()[0].parts.join("\n");
        assert!(!forwarded.contains("forwarded 0 packets"), "{forwarded}");
    }
    let good = std::fs::read_to_string(&file).expect("there");
    let now = routes(&nics[1]);
    std::fs::write(
        &file,
        good.replacen("\"next\":[[null,1", "\"next\":[[null,0", 1),
    )
    .expect("room");
    let said = nics[1].replace_routes(&file, LIMIT).expect_err("refused");
    assert!(said.to_string().contains("at any node"), "{said}");
    assert_eq!(routes(&nics[1]), now);
    std::fs::remove_file(&file).expect("there");
    let said = nics[1].replace_routes(&file, LIMIT).expect_err("refused");
    assert!(
        said.to_string().contains("cannot read the tables"),
        "{said}"
    );
    let alone = Nic::builder().gpu(communicators::gpu_choice()).open();
    let said = alone.expect("a NIC").replace_routes(&file, LIMIT);
    assert!(said
        .expect_err("no mesh")
        .to_string()
        .contains("no port `mesh`"));
}

#[test]
fn what_makes_no_mesh_is_refused_with_the_reason() {
    let refused = |nic: Result<Nic, OpenError>| {
        let error = anyhow::Error::new(nic.expect_err("refused"));
        format!("{error:#}")
    };
    let wires = Wires::in_memory("ring:4").expect("a network");
    for (nic, why) in [
        (
            Nic::builder().wires(&wires, 0).wire_poll(0),
            "setting wire_poll: 0 packets from one queue in a row; give 1 to 4096",
        ),
        (
            Nic::builder().port("mesh:ring:4").node(1),
            "n1 has a wire at port 0, and none was given",
        ),
        (Nic::builder().port("mesh:star:4"), "cannot read star:4"),
        (Nic::builder().port("mesh"), "`mesh` needs a network"),
        (Nic::builder().wires(&wires, 9), "ring:4 has 4 nodes"),
        (
            Nic::builder().wires(&wires, 0).wire(7, "udp:127.0.0.1:0"),
            "no wire at port 7 of n0",
        ),
        (
            Nic::builder().wires(&wires, 0).wire(1, "roce"),
            "roce is no wire of port mesh",
        ),
    ] {
        let said = refused(nic.gpu(communicators::gpu_choice()).open());
        assert!(said.contains(why), "{said}");
    }
    let error = Wires::in_memory("ring:1").expect_err("one node");
    assert!(!error.to_string().is_empty());
}
