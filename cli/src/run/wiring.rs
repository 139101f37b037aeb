//! Ports that connect the ranks' NICs, and each rank's variables for them.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use ringbell::job::{address_of, variables};
use ringbell::nic::{PortSpec, TransportSpec};
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::Checksums;
use ringbell::UniqueId;

use super::carriers::{free_sockets, path_of};
use super::mesh::Mesh;
use crate::{open, Exit, Problem};

/// The ports of all ranks.
pub(crate) enum Wiring {
    None,
    /// The switch lives as long as the launcher.
    Mem(MemSwitch),
    /// Each rank's socket address, and the MTU.
    Udp(Vec<SocketAddr>, Option<u16>),
    /// The same for datagrams.
    Roce(Vec<SocketAddr>, Option<u16>),
    Mesh(Mesh),
}

impl Wiring {
    pub(crate) fn new(
        ranks: u32,
        transport: TransportSpec,
        port: Option<&PortSpec>,
        mtu: Option<u16>,
        topology: Option<&str>,
    ) -> Result<Wiring> {
        let named = match port {
            Some(PortSpec::Mesh { topology }) => Some(&**topology),
            _ => topology,
        };
        if let Some(name) = named {
            return Mesh::new(name, ranks, transport, port, mtu).map(Wiring::Mesh);
        }
        let port = match (port, transport) {
            (Some(port), _) => port.clone(),
            (None, named) => named.port_on_one_host(),
        };
        match port {
            PortSpec::None if transport.needs_port() => Err(Problem::new(
                Exit::Usage,
                format!("transport {transport} needs a port to carry its frames"),
                "leave --port away, or give --port mem, udp or roce",
            )
            .into()),
            PortSpec::None => Ok(Wiring::None),
            PortSpec::Mem => {
                open::switch(ranks.max(2) as usize, mtu, Checksums::Omitted).map(Wiring::Mem)
            }
            PortSpec::Udp { mtu: own, .. } => {
                let addresses = free_sockets((Ipv4Addr::LOCALHOST, 0).into(), ranks, transport)?;
                Ok(Wiring::Udp(addresses, own.or(mtu)))
            }
            PortSpec::Roce { bind, mtu: own, .. } => {
                let host = bind.unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
                let addresses = free_sockets(host, ranks, transport)?;
                Ok(Wiring::Roce(addresses, own.or(mtu)))
            }
            // Its network's name led elsewhere above.
            PortSpec::Mesh { .. } => Ok(Wiring::None),
            PortSpec::Tap { name, .. } => Err(Problem::new(
                Exit::Usage,
                format!("tap:{name} leads to this machine's kernel, not to other ranks"),
                "use --port mem, udp or roce",
            )
            .into()),
        }
    }

    /// The variables of one rank.
    pub(crate) fn environment(
        &self,
        rank: u32,
        ranks: u32,
        transport: TransportSpec,
        id: &UniqueId,
    ) -> Vec<(&'static str, String)> {
        let mut vars = vec![
            (variables::RANK, rank.to_string()),
            (variables::SIZE, ranks.to_string()),
            (variables::LOCAL_RANK, rank.to_string()),
            (variables::ID, id.to_string()),
            (variables::TRANSPORT, transport.to_string()),
        ];
        match self {
            Wiring::None => vars.push((variables::PORT, "none".into())),
            Wiring::Mem(switch) => {
                vars.push((variables::PORT, "mem".into()));
                if let Some(fd) = switch.fd() {
                    vars.push((variables::SWITCH, path_of(fd)));
                }
            }
            Wiring::Mesh(mesh) => {
                vars.push((variables::PORT, mesh.port()));
                vars.push((variables::WIRES, mesh.wires(rank)));
            }
            Wiring::Udp(addresses, mtu) => {
                let (own, peers): (Vec<_>, Vec<_>) = addresses
                    .iter()
                    .enumerate()
                    .partition(|(i, _)| *i == rank as usize);
                let port = PortSpec::Udp {
                    bind: *own[0].1,
                    peers: peers.into_iter().map(|(_, a)| *a).collect(),
                    mtu: *mtu,
                };
                vars.push((variables::PORT, port.to_string()));
            }
            Wiring::Roce(addresses, mtu) => {
                let ranks = (0..ranks).map(|r| address_of(r).ip);
                let all = ranks.zip(addresses.iter().copied());
                let port = PortSpec::Roce {
                    bind: Some(addresses[rank as usize]),
                    peers: all.filter(|(ip, _)| *ip != address_of(rank).ip).collect(),
                    mtu: *mtu,
                };
                vars.push((variables::PORT, port.to_string()));
            }
        }
        vars
    }
}
