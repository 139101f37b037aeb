//! Meshes in virtual time whose wires are cut and whose routers are killed: what is connected to a
//! node that no way leads to ends and says so, and nothing else does.

use crate::transport_support;

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ringbell_mesh::{MeshConfig, MeshPort};
use ringbell_nic_abi::Status;
use ringbell_nic_core::port::mem::{MemPort, MemSwitch};
use ringbell_nic_core::port::{Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters};
use ringbell_nic_core::transport::rdma::RdmaTransport;
use ringbell_nic_core::transport::tcp::TcpTransport;
use ringbell_nic_core::transport::udp::{UdpConfig, UdpTransport};
use ringbell_nic_core::transport::TransportEvent;
use ringbell_nic_core::types::{ConnId, NicTime};
use ringbell_routes::generate::generate;
use transport_support::{random, Flow, Opened, SideOf, IP_A, IP_B, MINUTE, PORT};

const MS: u64 = 1_000_000;
/// A wire is silent for 0.8 s before it is down, and a node is given up 1 s after that.
const SILENCE: u64 = 800 * MS;
const GRACE: u64 = 1_000 * MS;
/// What probes and word to other nodes may take.
const SMALL: u64 = 400 * MS;

/// An end of a wire that can be cut.
pub(crate) struct Cuttable {
    pub(crate) port: MemPort,
    pub(crate) is_cut: Arc<AtomicBool>,
}

impl Port for Cuttable {
    fn describe(&self) -> String {
        self.port.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        if self.is_cut.load(Ordering::Relaxed) {
            while self.port.receive(now).is_some() {}
            return None;
        }
        self.port.receive(now)
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        self.port.tx_frame(now, dst)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        self.port.tx_commit(now, len);
    }
    fn flush(&mut self, now: NicTime) {
        self.port.flush(now);
    }
    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// Two NICs at nodes of a network, and the routers at the others.
struct World<T> {
    a: SideOf<T>,
    b: SideOf<T>,
    /// By node; `None` where a NIC is, or where a router was killed.
    routers: Vec<Option<MeshPort>>,
    wires: Vec<Arc<AtomicBool>>,
    now: NicTime,
}

impl<T: Opened> World<T> {
    /// NICs at node 0 and at node `b`.
    fn new(network: &str, b: usize, config: fn(u64) -> T::Config) -> World<T> {
        let topology = generate(network).unwrap(); // the tests' names are sound
        let switch = |_| MemSwitch::private(2, 1_500, Checksums::Software).unwrap(); // in range
        let count = topology.wires().len();
        let switches: Vec<_> = (0..count).map(switch).collect();
        let wires: Vec<Arc<AtomicBool>> = (0..count).map(|_| Arc::default()).collect();
        let ports = topology.ids().map(|node| {
            let ends = topology.leaving(node).map(|link| {
                let port = switches[link.wire()].port(link.index() % 2).unwrap(); // taken once
                let is_cut = wires[link.wire()].clone();
                let port: Box<dyn Port> = Box::new(Cuttable { port, is_cut });
                (topology.from(link).port, port)
            });
            let config = MeshConfig::new(topology.clone(), node);
            Some(MeshPort::open(config, ends.collect()).unwrap()) // a sound network
        });
        let mut routers: Vec<Option<MeshPort>> = ports.collect();
        let mut side = |node: usize, ip| {
            let port: Box<dyn Port> = Box::new(routers[node].take().unwrap()); // taken once
            SideOf::new(port, ip, config(node as u64 + 1))
        };
        World {
            a: side(0, IP_A),
            b: side(b, IP_B),
            routers,
            wires,
            now: NicTime(MS),
        }
    }

    fn tick(&mut self) {
        self.a.step(self.now);
        self.b.step(self.now);
        for router in self.routers.iter_mut().flatten() {
            while router.receive(self.now).is_some() {}
            router.flush(self.now);
        }
        self.now = NicTime(self.now.0 + 50_000);
    }

    #[track_caller]
    fn until<R>(&mut self, limit: u64, mut f: impl FnMut(&mut Self) -> Option<R>) -> R {
        let end = self.now.0 + limit;
        loop {
            if let Some(r) = f(self) {
                return r;
            }
            let (a, b) = (&self.a.events, &self.b.events);
            assert!(self.now.0 < end, "nothing within {limit} ns: {a:?} {b:?}");
            self.tick();
        }
    }

    fn run(&mut self, ns: u64) {
        let end = self.now.0 + ns;
        while self.now.0 < end {
            self.tick();
        }
    }

    fn cut(&self, wire: usize, is_cut: bool) {
        self.wires[wire].store(is_cut, Ordering::Relaxed);
    }

    fn start(&mut self) -> ConnId {
        let (remote, deadline) = (SocketAddrV4::new(IP_B, PORT), self.now.0 + MINUTE);
        let transport = &mut self.a.transport;
        let conn = transport.connect(self.now, remote, NicTime(deadline));
        conn.unwrap() // the same network
    }

    #[track_caller]
    fn connect(&mut self) -> (ConnId, ConnId) {
        let _ = self.b.transport.listen(PORT, 16);
        let a = self.start();
        self.until(MINUTE, |w| w.a.has(TransportEvent::Connected { conn: a }));
        (a, self.until(MINUTE, |w| w.b.incoming()))
    }

    /// Receives wait at both ends, and a send is on its way, when `what` happens: all end as
    /// unreachable, in time, and the port of a names the wire. So does what comes later.
    fn ends_with_a_name(&mut self, what: fn(&mut World<T>), missing: &str) {
        let (a, b) = self.connect();
        let at_a = self.a.dma.region(vec![0; 64]);
        let at_b = self.b.dma.region(vec![0; 64]);
        let long = self.a.dma.region(random(3, 2 << 20));
        self.a.recv(a, 1, at_a, false);
        self.b.recv(b, 2, at_b, false);
        what(self);
        let cut = self.now.0;
        self.a.send(a, 3, long);
        let status = self.until(SILENCE + GRACE + SMALL, |w| w.a.received(1));
        assert_eq!(status, (Status::HostUnreachable, 0));
        assert!(self.now.0 >= cut + GRACE, "no grace");
        let sent = self.until(SMALL, |w| w.a.sent(3));
        assert_eq!(sent.0, Status::HostUnreachable);
        let status = self.until(SMALL, |w| w.b.received(2));
        assert_eq!(status, (Status::HostUnreachable, 0));
        let report = self.a.port().report();
        let name = format!("no way to n{}: missing {missing}", self.routers.len() - 1);
        assert!(report.contains(&name), "{name}: {report:?}");
        // It stays so, and a new connection hears of it as soon as it has sent something.
        self.a.send(a, 4, at_a);
        let status = self.until(SMALL, |w| w.a.sent(4));
        assert_eq!(status, (Status::HostUnreachable, 0));
        let conn = self.start();
        let status = self.until(SMALL, |w| {
            w.a.take(|e| match *e {
                TransportEvent::ConnectFailed {
                    conn: c, status, ..
                } if c == conn => Some(status),
                _ => None,
            })
        });
        assert_eq!(status, Status::HostUnreachable);
    }

    /// Bytes are exact although `what` happens in the middle, and is taken back after `ns`.
    fn goes_on(&mut self, what: fn(&mut World<T>), ns: u64, back: fn(&mut World<T>)) {
        let conns = self.connect();
        let data = random(7, 8 << 20);
        let mut flow = Flow::of(&mut self.a, &mut self.b, conns, data, 5);
        self.until(MINUTE, |w| {
            flow.drive(&mut w.a, &mut w.b);
            (flow.done > 1 << 20).then_some(())
        });
        what(self);
        self.run(ns);
        back(self);
        assert!(flow.done < 8 << 20, "it was over before");
        self.until(MINUTE, |w| flow.drive(&mut w.a, &mut w.b).then_some(()));
        flow.check(&self.a, &self.b);
    }
}

fn udp_config(seed: u64) -> UdpConfig {
    UdpConfig {
        seed,
        ..UdpConfig::default()
    }
}

fn tcp_config(seed: u64) -> <TcpTransport as Opened>::Config {
    transport_support::config([IP_A, IP_B][(seed > 1) as usize])
}

fn rdma_config(seed: u64) -> <RdmaTransport as Opened>::Config {
    transport_support::rdma::config(seed)
}

fn cut_the_only_wire<T: Opened>(config: fn(u64) -> T::Config) {
    let mut world = World::<T>::new("bus:2", 1, config);
    world.ends_with_a_name(|w| w.cut(0, true), "n0:1 -- n1:0");
    // The wire is back: so is the way.
    world.cut(0, false);
    world.run(1_000 * MS);
    world.connect();
}

fn kill_the_router_between<T: Opened>(config: fn(u64) -> T::Config) {
    let mut world = World::<T>::new("bus:3", 2, config);
    world.ends_with_a_name(|w| w.routers[1] = None, "n0:1 -- n1:0");
}

/// Down, as far as the wire knows, and back before the grace is over.
fn cut_and_heal<T: Opened>(config: fn(u64) -> T::Config) {
    let mut world = World::<T>::new("bus:3", 2, config);
    world.goes_on(
        |w| w.cut(1, true),
        SILENCE + GRACE / 2,
        |w| {
            assert!(w.a.port().report().iter().any(|l| l.starts_with("down: ")));
            w.cut(1, false);
        },
    );
}

fn go_the_other_way_around<T: Opened>(config: fn(u64) -> T::Config) {
    let mut world = World::<T>::new("ring:4", 2, config);
    world.goes_on(
        |w| w.routers[1] = None,
        SILENCE + GRACE + SMALL,
        |w| {
            let report = w.a.port().report();
            assert!(report.iter().any(|l| l.starts_with("down: ")), "{report:?}");
        },
    );
}

#[test]
fn rdma_names_the_only_wire_when_it_is_cut() {
    cut_the_only_wire::<RdmaTransport>(rdma_config);
}

#[test]
fn tcp_names_the_only_wire_when_it_is_cut() {
    cut_the_only_wire::<TcpTransport>(tcp_config);
}

#[test]
fn udp_names_the_only_wire_when_it_is_cut() {
    cut_the_only_wire::<UdpTransport>(udp_config);
}

#[test]
fn rdma_names_the_wire_to_a_killed_router() {
    kill_the_router_between::<RdmaTransport>(rdma_config);
}

#[test]
fn tcp_names_the_wire_to_a_killed_router() {
    kill_the_router_between::<TcpTransport>(tcp_config);
}

#[test]
fn udp_names_the_wire_to_a_killed_router() {
    kill_the_router_between::<UdpTransport>(udp_config);
}

#[test]
fn rdma_goes_on_when_a_wire_is_back_in_time() {
    cut_and_heal::<RdmaTransport>(rdma_config);
}

#[test]
fn tcp_goes_on_when_a_wire_is_back_in_time() {
    cut_and_heal::<TcpTransport>(tcp_config);
}

#[test]
fn rdma_goes_the_other_way_around_a_killed_router() {
    go_the_other_way_around::<RdmaTransport>(rdma_config);
}

#[test]
fn tcp_goes_the_other_way_around_a_killed_router() {
    go_the_other_way_around::<TcpTransport>(tcp_config);
}
