//! NICs with several ports: the forwarding table chooses the port, and each port keeps its own MTU
//! and checksums.

use crate::transport_support;

use std::net::{Ipv4Addr, SocketAddrV4};

use ringbell_nic_abi::Status;
use ringbell_nic_core::network::{Network, NetworkError, Route, PORTS_MAX};
use ringbell_nic_core::port::mem::{mac_of, MemSwitch};
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::transport::{Transport as _, TransportEvent};
use ringbell_nic_core::types::{ConnId, NicTime};
use transport_support::{random, Side, MINUTE, PORT};

const HUB: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

fn net(ip: Ipv4Addr, ports: Vec<Box<dyn Port>>, routes: &[&str]) -> Network {
    let routes: Vec<Route> = routes.iter().map(|t| t.parse().expect("a route")).collect();
    Network::new(ip, 24, ports, &routes).expect("a network")
}

fn switch(mtu: usize, checksums: Checksums) -> MemSwitch {
    MemSwitch::private(2, mtu, checksums).expect("numbers in range")
}

fn plug(switch: &MemSwitch, n: usize) -> Box<dyn Port> {
    Box::new(switch.port(n).expect("a free port"))
}

/// NICs and the clock.
struct World {
    sides: Vec<Side>,
    now: NicTime,
}

impl World {
    fn new(nets: Vec<Network>) -> World {
        let side = |net: Network| {
            let seed = u64::from(u32::from(net.ip()));
            let config = TcpConfig {
                seed,
                ..TcpConfig::default()
            };
            let mut side = Side::over(net, config);
            side.transport.listen(PORT, 16).expect("the port is free");
            side
        };
        World {
            sides: nets.into_iter().map(side).collect(),
            now: NicTime(1_000_000),
        }
    }

    fn until<R>(&mut self, limit: u64, f: impl Fn(&mut [Side]) -> Option<R>) -> Option<R> {
        let end = self.now.0 + limit;
        while self.now.0 < end {
            if let Some(r) = f(&mut self.sides) {
                return Some(r);
            }
            let moved = self
                .sides
                .iter_mut()
                .fold(false, |m, s| m | s.step(self.now));
            let timers = self.sides.iter().filter_map(Side::next_timer).min();
            let next = self.now.0 + 10_000;
            self.now.0 = match timers {
                Some(at) if !moved => next.max(at.0),
                _ => next,
            };
        }
        None
    }

    fn start(&mut self, from: usize, to: Ipv4Addr) -> Result<ConnId, Status> {
        let (now, deadline) = (self.now, NicTime(self.now.0 + MINUTE));
        let remote = SocketAddrV4::new(to, PORT);
        self.sides[from].transport.connect(now, remote, deadline)
    }

    /// Connects two sides, and moves bytes both ways.
    #[track_caller]
    fn transfers(&mut self, from: usize, to: usize) {
        let ip = self.sides[to].net.ip();
        let a = self.start(from, ip).expect("a route");
        let up = self.until(MINUTE, |s| {
            s[from].has(TransportEvent::Connected { conn: a })
        });
        up.expect("connected");
        let b = self.until(MINUTE, |s| s[to].incoming()).expect("accepted");
        for (from, src, to, dst) in [(from, a, to, b), (to, b, from, a)] {
            let data = random(9, 200_000);
            let out = self.sides[from].dma.region(data.clone());
            let into = self.sides[to].dma.region(vec![0; data.len()]);
            self.sides[to].recv(dst, 2, into, false);
            self.sides[from].send(src, 1, out);
            let got = self.until(MINUTE, |s| s[to].received(2));
            assert_eq!(got, Some((Status::Ok, 200_000)));
            assert!(self.sides[to].dma.bytes(into) == data);
            self.until(MINUTE, |s| s[from].sent(1)).expect("sent");
        }
    }
}

/// A NIC with two ports, and a peer at each: side 0 in the middle.
fn hub(routes: &[&str]) -> World {
    let (s0, s1) = (
        switch(9_000, Checksums::Omitted),
        switch(576, Checksums::Software),
    );
    World::new(vec![
        net(HUB, vec![plug(&s0, 0), plug(&s1, 0)], routes),
        net(NEAR, vec![plug(&s0, 1)], &[]),
        net(FAR, vec![plug(&s1, 1)], &["10.0.1.0/24=0"]),
    ])
}

#[test]
fn a_nic_reaches_peers_at_each_of_its_ports() {
    let mut w = hub(&["10.0.2.0/24=1"]);
    for (from, to) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
        w.transfers(from, to);
    }
    let sent = |i: usize| w.sides[0].net.ports()[i].counters().tx_frames;
    // Ports keep their own MTU: the same bytes are many more frames at the second one.
    assert!(sent(1) > 10 * sent(0), "{} and {}", sent(0), sent(1));
    let longest = w.sides[2].net.ports()[0].counters();
    assert!(longest.tx_bytes / longest.tx_frames <= 590);
}

#[test]
fn an_address_without_a_route_is_refused_at_once() {
    let mut w = hub(&[]);
    assert_eq!(w.start(0, FAR), Err(Status::HostUnreachable));
    assert_eq!(w.start(0, HUB), Err(Status::HostUnreachable), "itself");
    assert_eq!(w.sides[0].transport.connections(), 0);
    w.transfers(0, 1);
    // The far peer has a way here, but its answer would have none.
    let conn = w.start(2, HUB).expect("its own route");
    let connected = w.until(5_000_000_000, |s| {
        s[2].has(TransportEvent::Connected { conn })
    });
    assert_eq!(connected, None);
    assert!(w.sides[0].transport.counters().overflowed > 0, "counted");
}

#[test]
fn a_handshake_through_a_port_that_does_not_lead_back_is_dropped() {
    let (s0, s1) = (
        switch(1_500, Checksums::Omitted),
        switch(1_500, Checksums::Omitted),
    );
    let impostor = Ipv4Addr::new(10, 0, 1, 7);
    let mut w = World::new(vec![
        net(HUB, vec![plug(&s0, 0), plug(&s1, 0)], &["10.0.2.0/24=1"]),
        net(impostor, vec![plug(&s1, 1)], &[]),
    ]);
    let conn = w.start(1, HUB).expect("on its network");
    let connected = w.until(5_000_000_000, |s| {
        s[1].has(TransportEvent::Connected { conn })
    });
    assert_eq!(connected, None);
    assert!(w.sides[0].transport.counters().overflowed > 0, "counted");
}

#[test]
fn a_next_hop_is_asked_for_or_given() {
    // By its hardware address: ARP asks for nothing.
    let s = switch(1_500, Checksums::Omitted);
    let route = format!("10.0.2.0/24=0,via={}", mac_of(1));
    let mut w = World::new(vec![
        net(HUB, vec![plug(&s, 0)], &[&route]),
        net(FAR, vec![plug(&s, 1)], &["10.0.1.0/24=0"]),
    ]);
    w.transfers(0, 1);
    // By its address: its host gets what is for others.
    let s = switch(1_500, Checksums::Omitted);
    let mut w = World::new(vec![
        net(HUB, vec![plug(&s, 0)], &["0.0.0.0/0=0,via=10.0.1.2"]),
        net(NEAR, vec![plug(&s, 1)], &[]),
    ]);
    w.start(0, FAR).expect("the gateway's route");
    let forwarded = w.until(5_000_000_000, |s| {
        (s[1].net.counters().not_ours > 0).then_some(())
    });
    forwarded.expect("the segment went to the gateway");
    // One that is not there: the connection fails by name.
    let s = switch(1_500, Checksums::Omitted);
    let mut w = World::new(vec![net(
        HUB,
        vec![plug(&s, 0)],
        &["0.0.0.0/0=0,via=10.0.1.9"],
    )]);
    let conn = w.start(0, FAR).expect("the gateway's route");
    let status = Status::HostUnreachable;
    let failed = TransportEvent::ConnectFailed {
        conn,
        status,
        answer: None,
    };
    w.until(5_000_000_000, |s| s[0].has(failed))
        .expect("failed");
}

#[test]
fn sixty_four_ports_work_and_one_more_is_refused() {
    let switches: Vec<_> = (0..=PORTS_MAX)
        .map(|_| switch(1_500, Checksums::Omitted))
        .collect();
    let ports = |n: usize| switches[..n].iter().map(|s| plug(s, 0)).collect::<Vec<_>>();
    let many = Network::new(HUB, 24, ports(PORTS_MAX + 1), &[]);
    let error = NetworkError::TooManyPorts {
        ports: PORTS_MAX + 1,
    };
    assert_eq!(many.err(), Some(error));
    let last = format!("10.0.2.0/24={}", PORTS_MAX - 1);
    let mut w = World::new(vec![
        net(HUB, ports(PORTS_MAX), &[&last]),
        net(
            FAR,
            vec![plug(&switches[PORTS_MAX - 1], 1)],
            &["10.0.1.0/24=0"],
        ),
    ]);
    w.transfers(0, 1);
    w.transfers(1, 0);
    for (ip, prefix_len) in [
        (Ipv4Addr::UNSPECIFIED, 24),
        (Ipv4Addr::BROADCAST, 24),
        (Ipv4Addr::new(224, 0, 0, 1), 24),
        (HUB, 0),
        (HUB, 33),
    ] {
        let wrong = Network::new(ip, prefix_len, Vec::new(), &[]);
        assert!(matches!(wrong, Err(NetworkError::Address { .. })), "{ip}");
    }
}
