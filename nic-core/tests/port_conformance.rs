//! The rules of [`port_rules`] for every port and every wrapper of one.

#![allow(clippy::disallowed_methods)] // Tests at the edge: deadlines, so that a hang fails.

use crate::port_rules;
use crate::transport_support;

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use port_rules::packets::Wired;
use port_rules::Link;
use ringbell_nic_core::network::Refused;
use ringbell_nic_core::port::capture::Capture;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::{MemPort, MemSwitch};
use ringbell_nic_core::port::roce::{RoceConfig, RocePort};
use ringbell_nic_core::port::tap::{TapConfig, TapPort};
use ringbell_nic_core::port::udp::{UdpConfig, UdpPort};
use ringbell_nic_core::port::{Batch, Checksums, MacAddr, Port};
use transport_support::live::{missing, ok, run, Namespace};

fn link(ports: [Box<dyn Port>; 2]) -> Option<Link> {
    Some(Link {
        ports,
        lossless: false,
        alone: true,
        malform: None,
        keep: Box::new(()),
    })
}

fn switched(switch: &MemSwitch, other: &MemSwitch) -> [MemPort; 2] {
    [
        switch.port(0).expect("a free port"),
        other.port(1).expect("a free port"),
    ]
}

fn mem(mtu: usize) -> [MemPort; 2] {
    let switch = MemSwitch::private(2, mtu, Checksums::Software).expect("numbers in range");
    switched(&switch, &switch)
}

fn private() -> Option<Link> {
    let [a, b] = mem(9_216);
    Some(Link {
        lossless: true,
        ..link([Box::new(a), Box::new(b)])?
    })
}

/// As two processes share it: each end has attached to the memory by itself.
fn shared() -> Option<Link> {
    let switch = MemSwitch::shared(2, 576, Checksums::Omitted).expect("numbers in range");
    let fd = switch.fd().expect("it is shared");
    let other = MemSwitch::attach(fd.try_clone_to_owned().expect("a descriptor"));
    let [a, b] = switched(&switch, &other.expect("a switch"));
    Some(Link {
        lossless: true,
        ..link([Box::new(a), Box::new(b)])?
    })
}

fn impaired() -> Option<Link> {
    let ports = mem(1_500).map(|p| Impair::new(Box::new(p), Faults::default()).expect("no faults"));
    // It keeps what leaves later itself; the ring behind it pushes back no less.
    link(ports.map(|p| Box::new(p) as Box<dyn Port>))
}

fn captured() -> Option<Link> {
    let ports = mem(1_500).map(|p| {
        let capture = Capture::new(Box::new(p), std::io::sink(), Duration::ZERO);
        Box::new(capture.expect("a sink takes it")) as Box<dyn Port>
    });
    Some(Link {
        lossless: true,
        ..link(ports)?
    })
}

/// An address of loopback that no other test binds.
fn unused() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(2);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let n = NEXT.fetch_add(1, Ordering::Relaxed) as u8;
    SocketAddr::from(([127, high | 0x80, low, n], 4789))
}

const VNI: u32 = 77;

fn tunnel(n: u32, bind: SocketAddr, peers: &[SocketAddr], secret: Option<u64>) -> UdpPort {
    let config = UdpConfig {
        bind,
        peers: peers.to_vec(),
        vni: VNI,
        secret,
        mac: MacAddr::local(n),
        mtu: None,
    };
    UdpPort::open(config).expect("an address of loopback")
}

fn udp() -> Option<Link> {
    let (a, b, c) = (unused(), unused(), unused());
    let ports: [Box<dyn Port>; 2] = [
        Box::new(tunnel(1, a, &[b], None)),
        Box::new(tunnel(2, b, &[a, c], None)),
    ];
    let third = UdpSocket::bind(c).expect("an address of loopback");
    // A header of VXLAN (RFC 7348 §5) with our number, and with another one.
    let header = |vni: u32| [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes()].concat();
    let short = [header(VNI), vec![1; 13]].concat();
    let other = [header(VNI + 1), vec![1; 60]].concat();
    let unknown = UdpSocket::bind(unused()).expect("an address of loopback");
    Some(Link {
        malform: Some(Box::new(move || {
            let garbage = [&b"x"[..], &[0xff; 70], &header(VNI), &short, &other];
            for d in garbage {
                third.send_to(d, b).expect("loopback takes it");
            }
            let stray = [header(VNI), vec![1; 60]].concat();
            unknown.send_to(&stray, b).expect("loopback takes it");
            garbage.len() as u64 + 1
        })),
        ..link(ports)?
    })
}

fn udp_with_a_secret() -> Option<Link> {
    let (a, b) = (unused(), unused());
    link([
        Box::new(tunnel(1, a, &[b], Some(5))),
        Box::new(tunnel(2, b, &[], Some(5))),
    ])
}

/// Two devices on a bridge of the kernel, in a namespace of their own.
fn tap() -> Option<Link> {
    if let Some(why) = missing(&["ip"]) {
        eprintln!("SKIPPED {}:{}: {why}", file!(), line!());
        return None;
    }
    let ns = Namespace::new();
    ns.enter();
    ok(
        "ip",
        &[
            "link",
            "add",
            "bridge",
            "type",
            "bridge",
            "mcast_snooping",
            "0",
        ],
    );
    ok("ip", &["link", "set", "bridge", "up"]);
    let device = |n: u32| {
        let name = format!("rbt{n}");
        let port = TapPort::open(&TapConfig {
            name: name.clone(),
            mac: MacAddr::local(n),
            host: None,
            mtu: Some(1_400),
            offloads: true,
        });
        ok("ip", &["link", "set", &name, "master", "bridge", "up"]);
        Box::new(port.expect("root may make it")) as Box<dyn Port>
    };
    Some(Link {
        alone: false,
        keep: Box::new(ns),
        ..link([device(1), device(2)])?
    })
}

port_conformance! {
    mem_private => super::private,
    mem_shared => super::shared,
    over_udp => super::udp,
    over_udp_with_a_secret => super::udp_with_a_secret,
    over_tap => super::tap,
    impaired_without_faults => super::impaired,
    captured_to_a_file => super::captured,
}

/// A port of datagrams with an address of loopback that no other test has.
fn datagrams(mtu: Option<usize>) -> RocePort {
    let bind = unused();
    RocePort::open(&RoceConfig { bind, mtu }).expect("an address of loopback")
}

fn roce(mtu: Option<usize>) -> Option<Wired> {
    Some(Wired::datagrams(
        [datagrams(mtu), datagrams(mtu)],
        Box::new(()),
    ))
}

fn roce_of_ipv6(mtu: Option<usize>) -> Option<Wired> {
    let bind = (Ipv6Addr::LOCALHOST, 0).into();
    let open = || RocePort::open(&RoceConfig { bind, mtu });
    match (open(), open()) {
        (Ok(a), Ok(b)) => Some(Wired::datagrams([a, b], Box::new(()))),
        (a, _) => {
            eprintln!("SKIPPED {}:{}: {a:?}", file!(), line!());
            None
        }
    }
}

fn roce_packet_by_packet() -> Option<Wired> {
    let mut wired = roce(Some(4_200))?;
    wired.segmented = false;
    Some(wired)
}

/// The cable takes packets one by one, and holds so many.
fn roce_impaired() -> Option<Wired> {
    let ports = [(); 2].map(|()| Impair::new(Box::new(datagrams(None)), Faults::default()));
    let ports = ports.map(|p| p.expect("no faults"));
    Some(Wired::datagrams(ports, Box::new(())))
}

fn roce_captured() -> Option<Wired> {
    let ports =
        [(); 2].map(|()| Capture::new(Box::new(datagrams(None)), std::io::sink(), Duration::ZERO));
    let ports = ports.map(|p| p.expect("a sink takes all"));
    Some(Wired::datagrams(ports, Box::new(())))
}

packet_conformance! {
    packets_over_mem_private => || super::private().map(super::Wired::frames),
    packets_over_mem_shared => || super::shared().map(super::Wired::frames),
    packets_over_udp => || super::udp().map(super::Wired::frames),
    packets_over_udp_with_a_secret => || super::udp_with_a_secret().map(super::Wired::frames),
    packets_over_tap => || super::tap().map(super::Wired::frames),
    packets_impaired_without_faults => || super::impaired().map(super::Wired::frames),
    packets_captured_to_a_file => || super::captured().map(super::Wired::frames),
    packets_over_roce => || super::roce(None),
    packets_over_roce_with_a_small_mtu => || super::roce(Some(1_500)),
    packets_over_roce_of_ipv6 => || super::roce_of_ipv6(None),
    packets_over_roce_of_ipv6_with_a_small_mtu => || super::roce_of_ipv6(Some(1_500)),
    packets_over_roce_packet_by_packet => super::roce_packet_by_packet,
    packets_over_roce_impaired_without_faults => super::roce_impaired,
    packets_over_roce_captured => super::roce_captured,
}

/// Two ports of datagrams in a namespace of their own, whose loopback has this MTU.
fn in_a_namespace(mtu: usize) -> Option<Wired> {
    if let Some(why) = missing(&["ip", "tc"]) {
        eprintln!("SKIPPED {}:{}: {why}", file!(), line!());
        return None;
    }
    let ns = Namespace::new();
    ns.enter();
    loopback_carries(mtu);
    Some(Wired::datagrams(
        [datagrams(None), datagrams(None)],
        Box::new(ns),
    ))
}

fn loopback_carries(mtu: usize) {
    ok("ip", &["link", "set", "lo", "mtu", &mtu.to_string()]);
}

fn numbered(batch: &mut Batch, sizes: &[usize]) -> Vec<Vec<u8>> {
    let packets = sizes.iter().enumerate().map(|(n, &len)| {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
        batch.put(&bytes);
        batch.end();
        bytes
    });
    packets.collect()
}

/// Segmented and not: packets that the way no longer carries are lost and counted, the others of
/// the batch arrive.
#[test]
fn an_mtu_that_falls_during_a_batch_costs_the_longer_packets_alone() {
    for segmented in [true, false] {
        let Some(mut w) = in_a_namespace(9_000) else {
            return;
        };
        w.segmented = segmented;
        assert_eq!(w.longest(0), 9_000 - 28);
        loopback_carries(2_000);
        // The known MTU lets them through to the kernel, which refuses them.
        let sizes = [
            8_000, 8_000, 700, 1_972, 1_973, 1_000, 1_000, 1_000, 8_972, 5,
        ];
        let mut batch = Batch::new();
        let sent = numbered(&mut batch, &sizes);
        let fits: Vec<_> = sent.into_iter().filter(|p| p.len() <= 1_972).collect();
        assert!(w.carry(0, 2, &batch, fits.len()) == fits);
        assert_eq!(w.counters(0).tx_dropped, 4);
        assert_eq!(w.longest(0), 2_000 - 28);
        assert_eq!(w.nets[0].segmentation(0).packets, 64, "it still cuts");
        // It never rises.
        loopback_carries(9_000);
        assert_eq!(w.longest(0), 2_000 - 28);
    }
}

/// A queue of the kernel that is full refuses part of the messages of one call: they leave later,
/// each once.
#[test]
fn a_full_queue_of_the_kernel_takes_the_rest_later() {
    let Some(mut w) = in_a_namespace(65_536) else {
        return;
    };
    let slow = "qdisc add dev lo root tbf rate 60mbit burst 1m latency 10s";
    let args: Vec<_> = slow.split(' ').collect();
    if !run("tc", &args).is_some_and(|o| o.status.success()) {
        eprintln!("SKIPPED {}:{}: no such qdisc", file!(), line!());
        return;
    }
    let mut batch = Batch::new();
    let sizes = [4_000; 64];
    let (mut got, mut stops, mut within) = (0, 0, 0);
    // In all more than the 64 MiB that the buffer of a socket holds, within the 5 s that the queue
    // takes for the rest.
    let sent = numbered(&mut batch, &sizes);
    let end = std::time::Instant::now() + Duration::from_secs(60);
    for _ in 0..400 {
        let mut at = 0;
        while at < batch.len() {
            let n = w.send(0, 0, &batch, at);
            at += n;
            if at < batch.len() {
                stops += 1;
                within += usize::from(n > 0);
                std::thread::sleep(Duration::from_millis(1));
                w.step();
                assert!(std::time::Instant::now() < end, "no room for long");
            }
        }
        w.step();
    }
    while got < 400 * sizes.len() {
        w.step();
        for (_, _, bytes) in w.takers[1].got.drain(..) {
            assert!(bytes == sent[got % sizes.len()], "packet {got}");
            got += 1;
        }
        assert!(
            std::time::Instant::now() < end,
            "{got} arrived, {stops} stops"
        );
    }
    assert!(within > 0, "{stops} stops, none inside a batch");
    assert_eq!(w.counters(0).tx_frames, 400 * sizes.len() as u64);
}

/// Where no process receives any more, the sender learns it and goes on; others are not disturbed.
#[test]
fn an_ended_peer_is_reported_and_stops_no_datagrams() {
    let (a, b, c) = (datagrams(None), datagrams(None), datagrams(None));
    let gone = b.local();
    let mut w = Wired::datagrams([a, c], Box::new(()));
    drop(b);
    let mut batch = Batch::new();
    let sent = numbered(&mut batch, &[100, 100, 100, 50]);
    let to_the_living = w.at[1];
    w.at[1] = gone;
    for _ in 0..50 {
        assert_eq!(w.send(0, 0, &batch, 0), batch.len());
        w.step();
    }
    w.at[1] = to_the_living;
    assert!(w.carry(0, 0, &batch, sent.len()) == sent);
    let by = Refused::Peer {
        port: 0,
        peer: gone,
    };
    assert!(
        w.takers[0].refused.contains(&by),
        "{:?}",
        w.takers[0].refused
    );
    assert!(w.takers[0].refused.iter().all(|r| *r == by));
    // No port is 0; the kernel's refusal of it changes nothing for others.
    w.at[1].set_port(0);
    assert_eq!(w.send(0, 0, &batch, 0), batch.len());
    w.at[1] = to_the_living;
    assert_eq!(w.nets[0].segmentation(0).packets, 64);
    // Nor does a peer that this address cannot reach.
    w.at[1] = "255.255.255.255:9".parse().expect("an address");
    assert_eq!(w.send(0, 0, &batch, 0), batch.len());
    w.at[1] = to_the_living;
    assert_eq!(w.nets[0].segmentation(0).packets, 64);
    assert!(w.carry(0, 0, &batch, sent.len()) == sent);
}

/// What any process of the host may send: empty datagrams and ones of every size, in one piece and
/// joined.
#[test]
fn datagrams_of_unknown_senders_are_received_or_counted() {
    let (a, b) = (datagrams(None), datagrams(None));
    let to = a.local();
    let mut w = Wired::datagrams([a, b], Box::new(()));
    let sender = UdpSocket::bind(unused()).expect("an address of loopback");
    for len in [0, 1, 11, 0, 1_400, 65_507, 0] {
        sender
            .send_to(&vec![7; len], to)
            .expect("loopback takes it");
    }
    let end = std::time::Instant::now() + Duration::from_secs(10);
    while w.takers[0].got.len() < 4 {
        w.step();
        assert!(std::time::Instant::now() < end, "{}", w.takers[0].got.len());
    }
    w.step();
    let lens: Vec<_> = w.takers[0].got.iter().map(|g| g.2.len()).collect();
    assert_eq!(lens, [1, 11, 1_400, 65_507]);
    assert_eq!(w.counters(0).rx_malformed, 3);
}

#[test]
fn settings_of_a_port_of_datagrams_that_cannot_work_are_refused() {
    let open = |bind: &str, mtu| {
        let bind = bind.parse().expect("an address");
        RocePort::open(&RoceConfig { bind, mtu }).map(|p| p.capabilities().mtu)
    };
    let many = ["0.0.0.0:0", "255.255.255.255:0", "224.0.0.1:0"];
    let many_ipv6 = ["[::]:0", "[ff02::1%1]:0", "[::ffff:0.0.0.0]:0"];
    for bind in many.into_iter().chain(many_ipv6) {
        let refused = open(bind, None).expect_err("no host");
        assert!(
            refused.to_string().contains("no address of this host"),
            "{refused}"
        );
    }
    for bind in ["192.0.2.1:0", "[2001:db8::1]:0", "[fe80::abcd%1]:0"] {
        let refused = open(bind, None).expect_err("another host's");
        assert!(refused.to_string().contains("cannot receive"), "{refused}");
    }
    let refused = open("[fe80::1]:0", None).expect_err("of which interface?");
    assert!(refused.to_string().contains("[fe80::1%eth0]"), "{refused}");
    assert_eq!(open("[::ffff:127.0.0.1]:0", Some(900)).ok(), Some(900));
    for mtu in [0, 575, 65_536, usize::MAX] {
        let refused = open("127.0.0.1:0", Some(mtu)).expect_err("out of range");
        assert!(refused.to_string().contains("576 to 65535"), "{refused}");
    }
    for mtu in [576, 65_535] {
        assert_eq!(open("127.0.0.1:0", Some(mtu)).ok(), Some(mtu));
    }
    let taken = datagrams(None).local();
    let first = RocePort::open(&RoceConfig {
        bind: taken,
        mtu: None,
    });
    assert!(open(&taken.to_string(), None).is_err(), "{first:?}");
}
