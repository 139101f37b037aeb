//! Ports that connect the ranks' NICs, and each rank's variables for them.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use ringbell::job::{address_of, variables};
use ringbell::nic::{PortSpec, TransportSpec};
use ringbell::parts::nic_core::port::mem::MemSwitch;
use ringbell::parts::nic_core::port::Checksums;
use ringbell::UniqueId;

use super::carriers::{free_sockets, path_of};
use super::forward::Forwarder;
use super::mesh::{Mesh, NetworkArgs};
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
    Mesh(Box<Mesh>),
}

impl Wiring {
    pub(crate) fn new(
        ranks: u32,
        transport: TransportSpec,
        port: Option<&PortSpec>,
        mtu: Option<u16>,
        network: &NetworkArgs,
    ) -> Result<Wiring> {
        if let Some(name) = network.name() {
            return Mesh::new(name, ranks, transport, port, mtu, network)
                .map(|mesh| Wiring::Mesh(Box::new(mesh)));
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
            PortSpec::Mesh { topology } => {
                Mesh::new(&topology, ranks, transport, None, mtu, network)
                    .map(|mesh| Wiring::Mesh(Box::new(mesh)))
            }
            PortSpec::Tap { name, .. } => Err(Problem::new(
                Exit::Usage,
                format!("tap:{name} leads to this machine's kernel, not to other ranks"),
                "use --port mem, udp or roce",
            )
            .into()),
        }
    }

    /// A thread that forwards for the switches of a network, where there are some.
    pub(crate) fn switches(&self, id: &UniqueId) -> Result<Option<Forwarder>> {
        match self {
            Wiring::Mesh(mesh) => mesh.switches(id),
            _ => Ok(None),
        }
    }

    /// A thread that forwards in the place of a rank that has ended, where ranks forward.
    pub(crate) fn instead_of(&self, rank: u32, id: &UniqueId) -> Result<Option<Forwarder>> {
        match self {
            Wiring::Mesh(mesh) => mesh.instead_of(rank, id).map(Some),
            _ => Ok(None),
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
                vars.extend(mesh.tables().map(|file| (variables::ROUTES, file)));
                vars.extend(mesh.poll().map(|poll| (variables::WIRE_POLL, poll)));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringbell::{Job, Nic};

    use super::*;

    /// The rank between two others ends: this process forwards in its place, over both kinds of
    /// wires.
    #[test]
    fn ranks_reach_each_other_when_the_one_between_has_ended() {
        let id: UniqueId = "rb1-000102030405060708090a0b0c0d0e0f@127.0.0.1:4711"
            .parse()
            .expect("an id");
        let bus = NetworkArgs::named("bus:3");
        for port in ["mem", "udp"] {
            let port: PortSpec = port.parse().expect("a port");
            let auto = TransportSpec::Auto;
            let wiring = Wiring::new(3, auto, Some(&port), None, &bus).expect("wires");
            let nic = |rank| {
                let vars = wiring.environment(rank, 3, auto, &id);
                let find = |name: &str| {
                    let found = vars.iter().find(|(n, _)| *n == name);
                    found.map(|(_, v)| v.clone())
                };
                let job = Job::from_variables(&find).expect("a rank");
                let nic = Nic::builder().job(&job).gpu("emulated");
                nic.gpu_memory(16 << 20).open().expect("a NIC")
            };
            let (first, between, last) = (nic(0), nic(1), nic(2));
            let listener = first.listen(7000).expect("free");
            let limit = Duration::from_secs(30);
            listener.set_timeout(limit);
            let (to, from) = std::thread::scope(|s| {
                let connect = s.spawn(|| last.connect("10.77.0.1:7000").expect("it listens"));
                let to = listener.accept().expect("it connects");
                (to, connect.join().expect("no panic"))
            });
            [&to, &from].into_iter().for_each(|s| s.set_timeout(limit));
            let buffers = [&first, &last].map(|n| n.alloc_host(100_000).expect("memory"));
            let mut between = Some(between);
            let mut forwarder = None;
            for round in 0..4_u8 {
                buffers[1].write(0, &[round; 100_000]).expect("inside");
                std::thread::scope(|s| {
                    s.spawn(|| from.send(&buffers[1]).expect("sent"));
                    assert_eq!(to.recv(&buffers[0]).expect("received"), 100_000);
                });
                let mut got = vec![0; 100_000];
                buffers[0].read(0, &mut got).expect("inside");
                assert!(got.iter().all(|b| *b == round), "{port} {round}");
                if between.take().is_some() {
                    forwarder = wiring.instead_of(1, &id).expect("its node is free");
                }
            }
            assert!(forwarder.is_some());
        }
    }
}
