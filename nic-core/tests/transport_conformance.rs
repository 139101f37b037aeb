//! The rules of [`transport_rules`] for the transports that there are, over memory of the host.

use crate::nic_support;
use crate::transport_rules;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nic_support::*;
use ringbell_nic_core::network::{Network, Protocol};
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::roce::{RoceConfig, RocePort};
use ringbell_nic_core::port::streams::StreamPort;
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::rdma::{RdmaConfig, RdmaTransport};
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::transport::udp::{UdpConfig, UdpTransport};
use ringbell_nic_core::transport::Icrc;
use transport_rules::Subject;

fn local() -> Option<Subject<Host>> {
    let dir = TempDir::new();
    Some(Subject {
        hosts: [1, 2].map(|n| Host::new(&Setup::new(&dir, n))),
        keep: Box::new(dir),
    })
}

fn tcp() -> Option<Subject<Host>> {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let host = |n: u8| {
        let setup = Setup::new(&dir, n);
        let port = switch.port(usize::from(n) - 1).expect("port");
        Host::over(&setup, Box::new(port), TcpConfig::default())
    };
    Some(Subject {
        hosts: [host(1), host(2)],
        keep: Box::new(dir),
    })
}

fn rdma() -> Option<Subject<Host>> {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let host = |n: u8| {
        let setup = Setup::new(&dir, n);
        let port = Box::new(switch.port(usize::from(n) - 1).expect("port"));
        let config = RdmaConfig {
            seed: n.into(),
            ..RdmaConfig::default()
        };
        Host::with(&setup, |nic| with_rdma(&setup, nic, port, config))
    };
    Some(Subject {
        hosts: [host(1), host(2)],
        keep: Box::new(dir),
    })
}

fn udp() -> Option<Subject<Host>> {
    let dir = TempDir::new();
    let switch = MemSwitch::private(2, 1500, Checksums::Software).expect("switch");
    let host = |n: u8| {
        let setup = Setup::new(&dir, n);
        let port = Box::new(switch.port(usize::from(n) - 1).expect("port"));
        let config = UdpConfig {
            seed: n.into(),
            ..UdpConfig::default()
        };
        Host::with(&setup, |nic| with_udp(&setup, nic, port, config))
    };
    Some(Subject {
        hosts: [host(1), host(2)],
        keep: Box::new(dir),
    })
}

fn iwarp() -> Option<Subject<Host>> {
    by_iwarp(Ipv4Addr::LOCALHOST.into(), true)
}

/// Both ends decline the CRC.
fn iwarp_without_crc() -> Option<Subject<Host>> {
    by_iwarp(Ipv4Addr::LOCALHOST.into(), false)
}

fn iwarp_of_ipv6() -> Option<Subject<Host>> {
    by_iwarp(Ipv6Addr::LOCALHOST.into(), true)
}

/// iWARP over the kernel's TCP, on the loopback.
fn by_iwarp(ip: IpAddr, crc: bool) -> Option<Subject<Host>> {
    let dir = TempDir::new();
    if let Err(e) = StreamPort::open((ip, 0).into()) {
        eprintln!("SKIPPED: {e}");
        return None;
    }
    Some(Subject {
        hosts: iwarp_hosts(ip, crc, [1, 2].map(|n| Setup::new(&dir, n))),
        keep: Box::new(dir),
    })
}

fn udp_by_sockets() -> Option<Subject<Host>> {
    over_sockets(Ipv4Addr::LOCALHOST.into(), Faults::default(), By::Udp)
}

/// Of the faults, the one that transport udp can bear.
fn udp_by_sockets_with_copies() -> Option<Subject<Host>> {
    let faults = Faults {
        duplicate: 0.05,
        ..Faults::default()
    };
    over_sockets(Ipv4Addr::LOCALHOST.into(), faults, By::Udp)
}

#[derive(PartialEq)]
enum By {
    Rdma,
    Udp,
}

fn roce() -> Option<Subject<Host>> {
    over_sockets(Ipv4Addr::LOCALHOST.into(), Faults::default(), By::Rdma)
}

fn roce_of_ipv6() -> Option<Subject<Host>> {
    over_sockets(Ipv6Addr::LOCALHOST.into(), Faults::default(), By::Rdma)
}

fn roce_with_faults() -> Option<Subject<Host>> {
    let faults = Faults {
        loss: 0.01,
        reorder: 0.01,
        duplicate: 0.01,
        corrupt: 0.01,
        ..Faults::default()
    };
    over_sockets(Ipv4Addr::LOCALHOST.into(), faults, By::Rdma)
}

/// RDMA or UDP over plain sockets of the loopback.
fn over_sockets(ip: IpAddr, faults: Faults, by: By) -> Option<Subject<Host>> {
    let dir = TempDir::new();
    let bind = (ip, 0).into();
    if let Err(e) = RocePort::open(&RoceConfig { bind, mtu: None }) {
        eprintln!("SKIPPED: {e}");
        return None;
    }
    let sockets =
        [1, 2].map(|_| RocePort::open(&RoceConfig { bind, mtu: None }).expect("a free port"));
    let at = [sockets[0].local(), sockets[1].local()];
    let setups = [1, 2].map(|n| Setup::new(&dir, n));
    let known: Vec<_> = setups.iter().map(|s| s.nic.ip).zip(at).collect();
    let mut seed = 0;
    let mut sockets = sockets.into_iter();
    let hosts = setups.each_ref().map(|setup| {
        seed += 1;
        let config = RdmaConfig {
            seed,
            icrc: Icrc::Always,
            ..RdmaConfig::default()
        };
        let faults = Faults { seed, ..faults };
        let socket = sockets.next().expect("one for each");
        let port: Box<dyn Port> =
            Box::new(Impair::new(Box::new(socket), faults).expect("sound faults"));
        Host::with(setup, |nic| {
            let net = Network::new(setup.nic.ip, 24, vec![port], &[]);
            let mut net = net.expect("a host's address");
            for (nic, address) in &known {
                net.know_host(*nic, *address);
            }
            if by == By::Udp {
                net.carry_by_datagrams(Protocol::Udp);
                let config = UdpConfig {
                    seed,
                    ..UdpConfig::default()
                };
                let udp = UdpTransport::new(&net, config).expect("a valid configuration");
                return nic.transport(Box::new(udp)).network(net);
            }
            let rdma = RdmaTransport::new(&net, config).expect("a valid configuration");
            nic.transport(Box::new(rdma)).network(net)
        })
    });
    Some(Subject {
        hosts,
        keep: Box::new(dir),
    })
}

conformance! {
    over_local => super::local,
    over_tcp => super::tcp,
    over_rdma => super::rdma,
    over_rdma_by_sockets => super::roce,
    over_rdma_by_sockets_of_ipv6 => super::roce_of_ipv6,
    over_rdma_by_sockets_with_faults => super::roce_with_faults,
    over_iwarp => super::iwarp,
    over_iwarp_without_crc => super::iwarp_without_crc,
    over_iwarp_of_ipv6 => super::iwarp_of_ipv6,
    over_udp => super::udp,
    over_udp_by_sockets => super::udp_by_sockets,
    over_udp_by_sockets_with_copies => super::udp_by_sockets_with_copies,
}
