//! Wires of a network whose ranks' NICs forward for each other.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Result;
use ringbell::nic::{PortSpec, TransportSpec};
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::{Checksums, MTU_MAX};
use ringbell_routes::named::named;
use ringbell_routes::topology::{NodeId, Role, Topology};

use super::carriers::{free_sockets, path_of};
use crate::{open, Exit, Problem};

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
}

fn refused(what: String, advice: &str) -> anyhow::Error {
    Problem::new(Exit::Usage, what, advice).into()
}

impl Mesh {
    pub(super) fn new(
        name: &str,
        ranks: u32,
        transport: TransportSpec,
        port: Option<&PortSpec>,
        mtu: Option<u16>,
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
        if topology.nodes().iter().any(|n| n.role == Role::Switch) {
            let what = format!(
                "{} has switches, and only ranks' NICs forward",
                topology.name()
            );
            return Err(refused(what, "take a network whose nodes all have ranks"));
        }
        if matches!(transport, TransportSpec::Local | TransportSpec::Iwarp) {
            let what = format!("transport {transport} does not use the wires of a network");
            return Err(refused(
                what,
                "leave --transport away, or give rdma, tcp or udp",
            ));
        }
        let wires = topology.wires().len();
        let carriers = match port {
            None | Some(PortSpec::Mem | PortSpec::Mesh { .. }) => {
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
        })
    }

    /// The port of each rank.
    pub(super) fn port(&self) -> String {
        let topology = self.name.clone();
        PortSpec::Mesh { topology }.to_string()
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
