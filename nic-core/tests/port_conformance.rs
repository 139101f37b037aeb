//! The rules of [`port_rules`] for every port and every wrapper of one.

mod tcp_support;
#[macro_use]
mod port_rules;

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use port_rules::Link;
use ringbell_nic_core::port::capture::Capture;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::{MemPort, MemSwitch};
use ringbell_nic_core::port::tap::{TapConfig, TapPort};
use ringbell_nic_core::port::udp::{UdpConfig, UdpPort};
use ringbell_nic_core::port::{Checksums, MacAddr, Port};
use tcp_support::live::{missing, ok, Namespace};

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
    let ports = mem(1_500).map(|p| Impair::new(p, Faults::default()).expect("no faults"));
    // It keeps what leaves later itself; the ring behind it pushes back no less.
    link(ports.map(|p| Box::new(p) as Box<dyn Port>))
}

fn captured() -> Option<Link> {
    let ports = mem(1_500).map(|p| {
        let capture = Capture::new(p, std::io::sink(), Duration::ZERO);
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

conformance! {
    mem_private => super::private,
    mem_shared => super::shared,
    over_udp => super::udp,
    over_udp_with_a_secret => super::udp_with_a_secret,
    over_tap => super::tap,
    impaired_without_faults => super::impaired,
    captured_to_a_file => super::captured,
}
