//! `local` between networks: NICs that share a directory and not a network go over the wire.

#![allow(clippy::disallowed_methods)] // Deadlines, so that a hang fails.

use crate::nic_support;

use nic_support::*;
use ringbell_gtlb::testing::Rng;
use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::Status;
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::Checksums;
use ringbell_nic_core::transport::tcp::TcpConfig;

/// The network of a NIC, whether it links others by name, and whether it has a port.
#[derive(Debug, Clone, Copy)]
struct Nic {
    network: Option<u64>,
    across: bool,
    port: bool,
}

fn hosts(dir: &TempDir, nics: [Nic; 2]) -> [Host; 2] {
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let mut n = 0;
    nics.map(|nic| {
        n += 1;
        let mut setup = Setup::new(dir, n);
        setup.local.network = nic.network;
        setup.local.across_networks = nic.across;
        let port = switch.port(usize::from(n) - 1).expect("port");
        Host::with(&setup, |builder| {
            let builder = builder.local(setup.local.clone());
            match nic.port {
                true => with_tcp(&setup, builder, Box::new(port), TcpConfig::default()),
                false => builder,
            }
        })
    })
}

#[test]
fn local_is_taken_within_one_network_and_the_wire_between_two() {
    let nic = |network, across| Nic {
        network,
        across,
        port: true,
    };
    let cases = [
        // The namespace of this thread, as the system reports it.
        ([nic(None, false), nic(None, false)], "local"),
        ([nic(Some(4), false), nic(Some(4), true)], "local"),
        ([nic(Some(4), false), nic(Some(5), false)], "tcp"),
        ([nic(None, false), nic(Some(5), false)], "tcp"),
        ([nic(Some(4), true), nic(Some(5), false)], "tcp"),
        ([nic(Some(4), true), nic(Some(5), true)], "local"),
    ];
    for (nics, expected) in cases {
        let dir = TempDir::new();
        let [a, b] = &hosts(&dir, nics);
        // In both directions, and more than what a line carries.
        for (hosts, port) in [([a, b], 7), ([b, a], 8)] {
            let (s, r) = connected(&hosts, 0, 1, port);
            let data = Rng::new(5).bytes(100_000);
            hosts[0].poke(0, &data);
            let tr = hosts[1].post(&recv(r, 0, 100_000));
            let ts = hosts[0].post(&send(s, 0, 100_000));
            for c in settle(&hosts, &[(0, ts), (1, tr)]) {
                assert_eq!((c.status, c.bytes), (Status::Ok, 100_000), "{nics:?}");
            }
            assert!(hosts[1].peek(0, 100_000) == data, "{nics:?}");
            for (host, id) in [(hosts[0], s), (hosts[1], r)] {
                let all = host.nic.sessions();
                let info = all.iter().find(|i| i.id == id).expect("open");
                assert_eq!(info.transport, Some(expected), "{nics:?}");
            }
            let all = hosts[0].nic.sessions();
            let why = all.iter().find(|i| i.id == s).expect("open").why;
            // The description names the port that was skipped, and the one without a route.
            let word = match expected {
                "local" => "the port is not used",
                _ => "no NIC of this host, user and network namespace",
            };
            assert!(why.contains(word), "{why}");
        }
    }
}

#[test]
fn without_a_port_a_nic_of_another_network_is_not_reached() {
    let nic = |network| Nic {
        network: Some(network),
        across: false,
        port: false,
    };
    let dir = TempDir::new();
    let [a, b] = &hosts(&dir, [nic(4), nic(5)]);
    let hosts = [a, b];
    let l = listener(&hosts, 1, 7);
    let s = session_of(call(&hosts, 0, &socket()));
    let ip = b.nic.config().ip;
    let c = call(&hosts, 0, &connect(s, ip, 7));
    assert_eq!(c.status, Status::HostUnreachable);
    assert_eq!(call(&hosts, 1, &close(l)).status, Status::Ok);
}

/// The address of a Unix socket has 108 bytes.
#[test]
fn a_directory_with_a_long_name_works() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.path()).expect("a directory");
    let [a, b] = [1, 2].map(|n| {
        let mut setup = Setup::new(&dir, n);
        setup.local.directory = Some(dir.path().join("d".repeat(150)));
        Host::new(&setup)
    });
    let (s, r) = connected(&[&a, &b], 0, 1, 7);
    a.poke(0, b"far down");
    let tickets = [(1, b.post(&recv(r, 0, 8))), (0, a.post(&send(s, 0, 8)))];
    let ends = settle(&[&a, &b], &tickets);
    assert!(ends.iter().all(|c| c.status == Status::Ok), "{ends:?}");
    assert_eq!(b.peek(0, 8), b"far down");
    // A third one finds the address taken, though the path is long.
    let mut third = Setup::new(&dir, 2);
    third.local.directory = Some(dir.path().join("d".repeat(150)));
    let nic = ringbell_nic_core::Nic::builder(third.nic.clone(), a.memory.clone())
        .local(third.local.clone())
        .build();
    assert!(nic.is_err());
}

#[test]
fn ports_and_registers_count_what_every_port_carried() {
    let nic = |network| Nic {
        network: Some(network),
        across: false,
        port: true,
    };
    let dir = TempDir::new();
    let [a, b] = &hosts(&dir, [nic(4), nic(5)]);
    let hosts = [a, b];
    let (s, r) = connected(&hosts, 0, 1, 7);
    let tr = b.post(&recv(r, 0, 100_000));
    let ts = a.post(&send(s, 0, 100_000));
    settle(&hosts, &[(0, ts), (1, tr)]);
    for _ in 0..100 {
        for host in hosts {
            host.nic.step();
        }
    }
    let register = |h: &Host, reg: Reg| h.nic.bar_read32(reg.offset()).expect("a register");
    for host in hosts {
        let ports = host.nic.ports();
        assert_eq!((ports.len(), register(host, Reg::Ports)), (1, 1));
        let c = ports[0].counters;
        assert!(ports[0].name.starts_with("mem") && ports[0].mtu == 1500);
        assert_eq!(register(host, Reg::FramesSent), c.tx_frames as u32);
        assert_eq!(register(host, Reg::FramesReceived), c.rx_frames as u32);
        assert_eq!(register(host, Reg::FramesLost), c.tx_dropped as u32);
        assert_eq!(register(host, Reg::FramesDropped), 0);
        assert!(c.tx_frames > 1 && c.rx_frames > 1);
    }
    let sent = a.nic.ports()[0].counters;
    // Each segment has a header of 54 bytes at least, and there are more than 100,000 / 1,460 of
    // them.
    assert!(sent.tx_bytes > 100_000 + 69 * 54, "{sent:?}");
}
