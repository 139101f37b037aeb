//! Ports of NICs that forward for each other: the crate `mesh` over modelled links.

use ringbell_mesh::{MeshConfig, MeshError, MeshPort, SoundRoutes};
use ringbell_nic_core::port::{Checksums, Port};
use ringbell_routes::topology::{Link, NodeId, Topology};

use crate::network::{LinkPort, SharedAdapter};
use crate::node::made;
use crate::{Cluster, Failure, NetworkPlan};

/// A network without switches, and its routes, which all its NICs have.
pub(crate) struct Mesh {
    topology: Topology,
    sound: SoundRoutes,
    poll: u32,
}

impl Mesh {
    /// That of a cluster; none where the NICs are joined by switches.
    ///
    /// # Errors
    /// The network has no routes.
    pub(crate) fn of(cluster: &Cluster) -> Result<Option<Mesh>, Failure> {
        let NetworkPlan {
            topology,
            wire_poll: poll,
            ..
        } = &cluster.network;
        let Some(topology) = topology.as_ref().filter(|_| cluster.network.is_mesh()) else {
            return Ok(None);
        };
        let config = MeshConfig::new(topology.clone(), NodeId(0));
        let sound = SoundRoutes::of(&config).map_err(|why| Failure::NoRoutes {
            topology: topology.name().to_owned(),
            why: match why {
                MeshError::NoRoutes { why, .. } => why.to_string(),
                other => other.to_string(),
            },
        })?;
        Ok(Some(Mesh {
            topology: topology.clone(),
            sound,
            poll: *poll,
        }))
    }

    /// A rank's port over its links.
    ///
    /// # Errors
    /// Its node cannot be opened.
    pub(crate) fn port(
        &self,
        rank: usize,
        adapters: &[SharedAdapter],
        checksums: Checksums,
    ) -> Result<Box<dyn Port>, Failure> {
        // As many nodes as ranks, at most 4,096.
        let node = NodeId(rank as u16);
        let wires = adapters.iter().map(|adapter| {
            let link = Link(adapter.link.index() as u32);
            let port: Box<dyn Port> = Box::new(LinkPort::new(adapter, checksums));
            (self.topology.from(link).port, port)
        });
        let config = MeshConfig {
            poll: self.poll,
            ..MeshConfig::new(self.topology.clone(), node)
        };
        let port = MeshPort::open_with(config, &self.sound, wires.collect());
        Ok(Box::new(port.map_err(|e| made(rank)(&e))?))
    }
}
