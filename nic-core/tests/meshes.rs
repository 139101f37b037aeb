//! Transports, ports and collectives over NICs that forward for each other, at several hops.
#![allow(clippy::disallowed_methods)] // Tests at the edge: threads that forward, in real time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ringbell_mesh::{MeshConfig, MeshPort};
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::CollectiveSettings;
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_nic_core::transport::rdma::RdmaConfig;
use ringbell_nic_core::transport::tcp::TcpConfig;
use ringbell_nic_core::types::NicTime;
use ringbell_onc_engines::program::algorithms;
use ringbell_routes::generate::generate;
use ringbell_routes::topology::NodeId;

use crate::collective_ports;
use crate::collective_streamed;
use crate::collective_support::{Call, Rng, Wire, World};
use crate::collectives::{one, small};
use crate::nic_support::*;
use crate::port_rules::Link;
use crate::transport_rules::Subject;

/// How long patient nodes wait for each other, and what is above for them.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The ports of all nodes of a network, over private switches; with a share of lost frames, in
/// percent, on every wire.
pub(crate) fn mesh(network: &str, mtu: usize, loss: u8) -> Vec<MeshPort> {
    mesh_with(network, mtu, loss, |_| {})
}

/// The same of nodes with other settings.
fn mesh_with(
    network: &str,
    mtu: usize,
    loss: u8,
    change: impl Fn(&mut MeshConfig),
) -> Vec<MeshPort> {
    let topology = generate(network).expect("a network's name");
    let checksums = match loss {
        0 => Checksums::Omitted,
        _ => Checksums::Software,
    };
    let switch = |_| MemSwitch::private(2, mtu, checksums).expect("numbers in range");
    let switches: Vec<_> = (0..topology.wires().len()).map(switch).collect();
    let node = |node: NodeId| {
        let wires = topology.leaving(node).map(|link| {
            let port = switches[link.wire()].port(link.index() % 2).expect("free");
            let faults = Faults {
                loss: f64::from(loss) / 100.0,
                seed: u64::from(link.0),
                ..Faults::default()
            };
            let port: Box<dyn Port> = match loss {
                0 => Box::new(port),
                _ => Box::new(Impair::new(Box::new(port), faults).expect("a share")),
            };
            (topology.from(link).port, port)
        });
        let mut config = MeshConfig::new(topology.clone(), node);
        change(&mut config);
        MeshPort::open(config, wires.collect()).expect("the network's wires")
    };
    topology.ids().map(node).collect()
}

/// Nodes between the ends, which forward until this is dropped.
pub(crate) struct Forwarders {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarders {
    fn start(mut nodes: Vec<MeshPort>) -> Forwarders {
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let thread = std::thread::spawn(move || {
            let start = Instant::now();
            while !ends.load(Ordering::Relaxed) {
                let now = NicTime(start.elapsed().as_nanos() as u64 + 1);
                for node in &mut nodes {
                    while node.receive(now).is_some() {}
                    node.flush(now);
                }
                std::thread::yield_now();
            }
        });
        let thread = Some(thread);
        Forwarders { end, thread }
    }
}

impl Drop for Forwarders {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

/// The ends of a line of nodes.
pub(crate) fn ends(hops: usize, mtu: usize, loss: u8) -> ([MeshPort; 2], Forwarders) {
    between(mesh(&format!("bus:{}", hops + 1), mtu, loss))
}

/// The same of nodes that wait a minute for each other: the thread that forwards may get no core
/// for seconds on a busy machine, and is not dead then.
pub(crate) fn patient_ends(hops: usize, mtu: usize) -> ([MeshPort; 2], Forwarders) {
    between(mesh_with(&format!("bus:{}", hops + 1), mtu, 0, |config| {
        (config.silence, config.stuck, config.grace) = (PATIENCE, PATIENCE, PATIENCE);
    }))
}

fn between(mut nodes: Vec<MeshPort>) -> ([MeshPort; 2], Forwarders) {
    let last = nodes.pop().expect("two nodes at least");
    let between = nodes.split_off(1);
    let first = nodes.pop().expect("two nodes at least");
    ([first, last], Forwarders::start(between))
}

fn rdma(hops: usize, loss: u8) -> Option<Subject<Host>> {
    let dir = TempDir::new();
    let (ports, forwarders) = ends(hops, 1_500, loss);
    let mut n = 0;
    let hosts = ports.map(|port| {
        n += 1;
        let setup = Setup::new(&dir, n);
        let config = RdmaConfig {
            seed: n.into(),
            ..RdmaConfig::default()
        };
        Host::with(&setup, |nic| with_rdma(&setup, nic, Box::new(port), config))
    });
    let keep = Box::new((dir, forwarders));
    Some(Subject { hosts, keep })
}

fn tcp_over_two_hops() -> Option<Subject<Host>> {
    let dir = TempDir::new();
    // What a node drops for a neighbour that it takes for dead costs TCP a time-out, the next one
    // twice as long.
    let (ports, forwarders) = patient_ends(2, 1_500);
    let mut n = 0;
    let hosts = ports.map(|port| {
        n += 1;
        Host::over(&Setup::new(&dir, n), Box::new(port), TcpConfig::default())
    });
    let keep = Box::new((dir, forwarders));
    Some(Subject { hosts, keep })
}

fn rdma_over_one_hop() -> Option<Subject<Host>> {
    rdma(1, 0)
}

fn rdma_over_two_hops() -> Option<Subject<Host>> {
    rdma(2, 0)
}

fn rdma_over_four_hops() -> Option<Subject<Host>> {
    rdma(4, 0)
}

fn rdma_over_two_hops_with_loss() -> Option<Subject<Host>> {
    rdma(2, 1)
}

conformance! {
    rdma_over_one_hop => super::rdma_over_one_hop,
    rdma_over_two_hops => super::rdma_over_two_hops,
    rdma_over_four_hops => super::rdma_over_four_hops,
    rdma_over_two_hops_with_loss => super::rdma_over_two_hops_with_loss,
    tcp_over_two_hops => super::tcp_over_two_hops,
}

fn link() -> Option<Link> {
    let (ports, forwarders) = ends(1, 4_096, 0);
    Some(Link {
        ports: ports.map(|p| Box::new(p) as Box<dyn Port>),
        // What found room may stand here while the reader sleeps, and goes on in a later step.
        lossless: false,
        alone: true,
        malform: None,
        keep: Box::new(forwarders),
    })
}

// Over one hop: nodes between have another clock than the rules'.
port_conformance! {
    over_a_mesh => super::link,
}

/// Ranks whose NICs are the nodes of a network.
fn world(network: &str, loss: u8) -> World {
    world_with(network, loss, &small())
}

pub(crate) fn world_with(network: &str, loss: u8, settings: &CollectiveSettings) -> World {
    world_of(mesh(network, 4_096, loss), settings)
}

/// Ranks whose NICs have these ports.
pub(crate) fn world_of(ports: Vec<MeshPort>, settings: &CollectiveSettings) -> World {
    let mut world = unjoined(ports);
    let members: Vec<_> = (0..world.ranks()).collect();
    world.comms = world.communicator(7, &members, settings);
    world
}

/// Ranks without a communicator.
pub(crate) fn unjoined(ports: Vec<MeshPort>) -> World {
    let mut ports: Vec<_> = ports.into_iter().map(Some).collect();
    let ranks = ports.len();
    let ports = std::cell::RefCell::new(&mut ports);
    World::over(
        ranks,
        Wire::Rdma,
        16 << 20,
        |_, nic| nic,
        |rank, _| {
            let port = ports.borrow_mut()[rank].take();
            Box::new(port.expect("one for each rank"))
        },
    )
}

#[test]
fn collectives_are_right_over_rings_lines_and_tori() {
    for (network, loss) in [("bus:3", 0), ("ring:5", 0), ("torus:2x4", 0), ("ring:4", 1)] {
        let mut world = world(network, loss);
        let ranks = world.hosts.len();
        for kind in K::ALL {
            for algorithm in algorithms(*kind) {
                let counts: &[usize] = match kind {
                    K::Barrier => &[0],
                    _ => &[1, 1_023],
                };
                if *algorithm == Algorithm::Direct {
                    continue; // No messages.
                }
                for count in counts {
                    one(&mut world, *kind, *algorithm, *count, ranks - 1);
                }
            }
        }
    }
}

/// Kernels' streams over several hops give what memory gives.
#[test]
fn streamed_collectives_are_right_over_lines_and_rings() {
    for (network, loss) in [("bus:4", 0), ("ring:5", 0), ("ring:3", 1)] {
        let mut world = world_with(network, loss, &collective_streamed::settings());
        let ranks = world.hosts.len() as u32;
        let mut rng = Rng(u64::from(ranks));
        for kind in collective_streamed::KINDS {
            for (i, count) in [1, 37, 130].into_iter().enumerate() {
                let call = Call::new(kind, count).of(DataType::F32, ReduceOp::Sum);
                let root = if kind.has_root() { i as u32 % ranks } else { 0 };
                collective_streamed::both(&mut world, call.root(root), &mut rng);
            }
        }
        (0..3).for_each(|_| collective_ports::several(&mut world, &mut rng));
    }
}

#[test]
fn a_nic_that_dies_ends_the_ports_of_all() {
    for network in ["bus:4", "ring:4"] {
        let mut world = world_with(network, 0, &collective_streamed::settings());
        collective_ports::dies(&mut world, network);
    }
}

/// A rank's NIC dies: its neighbours notice, and forward no more to it.
#[test]
fn a_rank_whose_nic_dies_ends_the_operation_in_time() {
    let mut world = world("ring:4", 0);
    world.hosts[2] = None;
    let call = Call::new(K::AllReduce, 100).at(0, 4_096).within(8_000_000);
    let posted: Vec<_> = [0, 1, 3].map(|r| (r, world.post(r, &call))).to_vec();
    for (done, (rank, _)) in world.settle(&posted).into_iter().zip(posted) {
        assert_ne!(done.status, Status::Ok, "rank {rank}");
    }
}
