//! Wires of a network whose ranks' NICs forward for each other.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Result;
use ringbell::job::tunnel_of;
use ringbell::nic::{PortSpec, TransportSpec};
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::udp::{UdpConfig, UdpPort};
use ringbell::parts::nic_core::port::{Checksums, Port, MTU_MAX};
use ringbell::UniqueId;
use ringbell_mesh::port::mac_of;
use ringbell_mesh::{page, MeshConfig, MeshPort, POLL_MAX};
use ringbell_routes::check::check;
use ringbell_routes::named::{named, tables_of};
use ringbell_routes::route::{Routes, DEFAULT_CHANNELS};
use ringbell_routes::topology::{NodeId, Role, Topology};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::rand::{getrandom, GetRandomFlags};

use super::carriers::{free_sockets, path_of};
use super::forward::Forwarder;
use crate::{open, Exit, Problem};

/// The network of the ranks' NICs, on a command line.
#[derive(clap::Args, Default)]
pub(crate) struct NetworkArgs {
    /// Join the ranks' NICs by the wires of a network, over which they forward for each other: a
    /// name or a file, as `ringbell routes` takes it; --port says what carries a wire, mem or udp
    #[arg(long, value_name = "NETWORK")]
    topology: Option<String>,
    /// Tables by which the NICs forward, as `ringbell routes NETWORK --json FILE` writes them; they
    /// are checked before a rank starts [default: those that `ringbell routes NETWORK` prints]
    #[arg(long, value_name = "FILE", requires = "topology")]
    routes: Option<PathBuf>,
    /// Packets that an output takes from one queue before it looks at the next, SMI's R [default:
    /// 8]
    #[arg(long, value_name = "R", requires = "topology", value_parser = clap::value_parser!(u32).range(1..=i64::from(POLL_MAX)))]
    wire_poll: Option<u32>,
}

impl NetworkArgs {
    /// As `--topology NETWORK` alone gives it.
    #[cfg(test)]
    pub(super) fn named(network: &str) -> NetworkArgs {
        NetworkArgs {
            topology: Some(network.into()),
            ..NetworkArgs::default()
        }
    }

    /// Its name or file, where ranks have one.
    pub(super) fn name(&self) -> Option<&str> {
        self.topology.as_deref()
    }
}

/// What carries a wire.
enum Carrier {
    /// The switch lives as long as the launcher.
    Mem(MemSwitch),
    /// The sockets of both ends.
    Udp([SocketAddr; 2], Option<u16>),
}

/// A network with a carrier for each of its wires.
pub(crate) struct Mesh {
    /// The network's name, or its file's path.
    name: String,
    topology: Topology,
    /// By rank.
    nodes: Vec<NodeId>,
    carriers: Vec<Carrier>,
    /// Tables of a file, which the checker has accepted.
    tables: Option<(PathBuf, Routes)>,
    poll: Option<u32>,
}

fn refused(what: String, advice: &str) -> anyhow::Error {
    Problem::new(Exit::Usage, what, advice).into()
}

/// Tables of a file, before any rank starts: all of them have these, or none is started.
fn accepted(path: &Path, topology: &Topology) -> Result<(PathBuf, Routes)> {
    let writes = "`ringbell routes NETWORK --json FILE` writes such files";
    let given = tables_of(path, topology).map_err(|why| refused(why.to_string(), writes))?;
    let routes = Routes::given(given);
    check(topology, &routes.tables, &routes.proof, DEFAULT_CHANNELS).map_err(|why| {
        refused(
            format!("{}: {}", path.display(), why.text(topology)),
            "do not load these tables; `ringbell routes NETWORK --table FILE` checks others",
        )
    })?;
    // Ranks may have another working directory.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    Ok((path, routes))
}

impl Mesh {
    pub(super) fn new(
        name: &str,
        ranks: u32,
        transport: TransportSpec,
        port: Option<&PortSpec>,
        mtu: Option<u16>,
        args: &NetworkArgs,
    ) -> Result<Mesh> {
        let forms =
            "`ringbell routes NETWORK` prints a network; `ringbell routes --help` lists names";
        let topology = named(name).map_err(|why| refused(why.to_string(), forms))?;
        let nodes: Vec<NodeId> = topology.ends().collect();
        if nodes.len() != ranks as usize {
            let (there, name) = (nodes.len(), topology.name());
            return Err(refused(
                format!("{name} has {there} nodes with a rank, and there are {ranks} ranks"),
                &format!("give -R {there}, or a network of {ranks} nodes"),
            ));
        }
        if matches!(transport, TransportSpec::Local | TransportSpec::Iwarp) {
            let what = format!("transport {transport} does not use the wires of a network");
            return Err(refused(
                what,
                "leave --transport away, or give rdma, tcp or udp",
            ));
        }
        let tables = args.routes.as_deref();
        let tables = tables.map(|path| accepted(path, &topology)).transpose()?;
        let wires = topology.wires().len();
        let carriers = match port {
            None | Some(PortSpec::Mem) => {
                let mtu = mtu.unwrap_or(MTU_MAX as u16);
                let switch = |_| open::switch(2, Some(mtu), Checksums::Omitted).map(Carrier::Mem);
                (0..wires).map(switch).collect::<Result<_>>()?
            }
            Some(PortSpec::Udp { mtu: own, .. }) => {
                let host = (Ipv4Addr::LOCALHOST, 0).into();
                let sockets = free_sockets(host, 2 * wires as u32, transport)?;
                let pairs = sockets.chunks_exact(2);
                let carrier = |p: &[SocketAddr]| Carrier::Udp([p[0], p[1]], own.or(mtu));
                pairs.map(carrier).collect()
            }
            Some(port) => {
                let what = format!("port {port} carries no wires of a network");
                return Err(refused(
                    what,
                    "leave --port away, or give --port mem or udp",
                ));
            }
        };
        // Ranks may have another working directory.
        let path = Path::new(name).canonicalize().ok();
        let path = path.and_then(|p| p.to_str().map(str::to_owned));
        Ok(Mesh {
            name: path.unwrap_or_else(|| name.to_owned()),
            topology,
            nodes,
            carriers,
            tables,
            poll: args.wire_poll,
        })
    }

    /// Forwards for the network's switches; `None` where there are none.
    pub(super) fn switches(&self, id: &UniqueId) -> Result<Option<Forwarder>> {
        let nodes = self.topology.ids();
        let is_switch = |n: &NodeId| self.topology.nodes()[n.index()].role == Role::Switch;
        let nodes: Vec<NodeId> = nodes.filter(is_switch).collect();
        match nodes.is_empty() {
            true => Ok(None),
            false => self.forwards(&nodes, id).map(Some),
        }
    }

    /// Forwards for a rank whose process has ended, in its place.
    pub(super) fn instead_of(&self, rank: u32, id: &UniqueId) -> Result<Forwarder> {
        self.forwards(&[self.nodes[rank as usize]], id)
    }

    fn forwards(&self, nodes: &[NodeId], id: &UniqueId) -> Result<Forwarder> {
        let ports = nodes.iter().map(|node| self.port_of(*node, id));
        Ok(Forwarder::start(ports.collect::<Result<_>>()?)?)
    }

    /// The port of a node, in this process.
    fn port_of(&self, node: NodeId, id: &UniqueId) -> Result<MeshPort> {
        let name = &self.topology.nodes()[node.index()].name;
        let open = || -> Result<MeshPort> {
            let links = self.topology.leaving(node);
            let wires = links.map(|link| {
                let side = link.index() % 2;
                let port: Box<dyn Port> = match &self.carriers[link.wire()] {
                    Carrier::Mem(switch) => Box::new(switch.port(side)?),
                    Carrier::Udp(sockets, mtu) => {
                        let (vni, secret) = tunnel_of(id);
                        Box::new(UdpPort::open(UdpConfig {
                            bind: sockets[side],
                            peers: vec![sockets[1 - side]],
                            vni,
                            secret: Some(secret),
                            mac: mac_of(node),
                            mtu: mtu.map(usize::from),
                        })?)
                    }
                };
                Ok((self.topology.from(link).port, port))
            });
            let mut config = MeshConfig::new(self.topology.clone(), node);
            config.poll = self.poll.unwrap_or(config.poll);
            config.routes = self.tables.as_ref().map(|(_, routes)| routes.clone());
            // Another one than a rank's, which draws its own.
            let mut epoch = [0; 4];
            getrandom(&mut epoch, GetRandomFlags::empty())?;
            config.epoch = u32::from_ne_bytes(epoch);
            let mut port = MeshPort::open(config, wires.collect::<Result<_>>()?)?;
            // Without it `ringbell regs` lacks the node; it forwards.
            if let Ok(memory) = memfd_create(page::NAME, MemfdFlags::CLOEXEC) {
                port.show(page::writer(memory.into()));
            }
            Ok(port)
        };
        open().map_err(|why| {
            why.context(Problem::new(
                Exit::Environment,
                format!("cannot forward for node {name}"),
                "read the cause above; ranks whose way leads through it do not reach each other",
            ))
        })
    }

    /// The port of each rank.
    pub(super) fn port(&self) -> String {
        let topology = self.name.clone();
        PortSpec::Mesh { topology }.to_string()
    }

    /// The file of the tables, if one was given.
    pub(super) fn tables(&self) -> Option<String> {
        let (path, _) = self.tables.as_ref()?;
        Some(path.to_string_lossy().into_owned())
    }

    /// R, if one was given.
    pub(super) fn poll(&self) -> Option<String> {
        self.poll.map(|poll| poll.to_string())
    }

    /// A rank's wires, as the variable has them.
    pub(super) fn wires(&self, rank: u32) -> String {
        let links = self.topology.leaving(self.nodes[rank as usize]);
        let wire = |link: ringbell_routes::topology::Link| {
            let (number, side) = (self.topology.from(link).port, link.index() % 2);
            match &self.carriers[link.wire()] {
                Carrier::Mem(switch) => {
                    let path = switch.fd().map(path_of)?;
                    Some(format!("{number}=mem:{path}:{side}"))
                }
                Carrier::Udp(sockets, mtu) => {
                    let spec = PortSpec::Udp {
                        bind: sockets[side],
                        peers: vec![sockets[1 - side]],
                        mtu: *mtu,
                    };
                    Some(format!("{number}={spec}"))
                }
            }
        };
        let wires: Vec<String> = links.filter_map(wire).collect();
        wires.join(";")
    }
}
