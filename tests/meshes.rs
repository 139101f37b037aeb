//! Tests of NICs of one process that forward for each other.
#![allow(clippy::disallowed_methods)] // Threads with deadlines.

use crate::communicators;

use std::time::{Duration, Instant};

use ringbell::{Nic, OpenError, Wires};

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

#[test]
fn what_makes_no_mesh_is_refused_with_the_reason() {
    let refused = |nic: Result<Nic, OpenError>| {
        let error = anyhow::Error::new(nic.expect_err("refused"));
        format!("{error:#}")
    };
    let wires = Wires::in_memory("ring:4").expect("a network");
    for (nic, why) in [
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
