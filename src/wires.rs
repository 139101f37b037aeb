//! Wires of port `mesh`, and what a job's launcher says of the memory between its ranks.
//!
//! A launcher writes wires as `0=udp:BIND,PEER;1=mem:FILE:SIDE`.

use std::path::Path;
use std::sync::Arc;

use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::{Checksums, MTU_MAX};
use ringbell_routes::named::named;
use ringbell_routes::topology::Topology;

use crate::builder::NicBuilder;
use crate::spec::{PortSpec, SpecError};
use crate::OpenError;

/// Wires in memory between NICs of this process that forward for each other.
///
/// ```
/// use ringbell::{Nic, Wires};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let wires = Wires::in_memory("ring:3")?;
/// let nic = Nic::builder().ip("10.9.8.1/24").wires(&wires, 0).open()?;
/// assert_eq!(nic.port().to_string(), "mesh:ring:3");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Wires {
    network: String,
    topology: Topology,
    switches: Vec<Arc<MemSwitch>>,
}

impl Wires {
    /// The wires of a network: a name or a file, as `ringbell routes` takes it.
    ///
    /// # Errors
    /// No such network, or no memory.
    pub fn in_memory(network: &str) -> Result<Wires, OpenError> {
        let topology = named(network)?;
        let switch = |_| MemSwitch::private(2, MTU_MAX, Checksums::Omitted).map(Arc::new);
        let switches = (0..topology.wires().len()).map(switch);
        Ok(Wires {
            network: network.into(),
            switches: switches.collect::<Result<_, _>>()?,
            topology,
        })
    }
}

impl NicBuilder {
    /// The port `mesh` of a rank's node, over wires to NICs of this process.
    pub fn wires(mut self, wires: &Wires, rank: u32) -> Self {
        self.options.port = PortSpec::Mesh {
            topology: wires.network.clone(),
        };
        let topology = &wires.topology;
        let node = topology.ends().nth(rank as usize);
        let links = node.into_iter().flat_map(|n| topology.leaving(n));
        links.fold(self.node(rank), |builder, link| {
            let switch = wires.switches[link.wire()].clone();
            builder.wire_switch(topology.from(link).port, switch, link.index() % 2)
        })
    }

    /// All wires of the NIC's node in one text, `PORT=CARRIER;PORT=CARRIER`: as the variable
    /// RINGBELL_WIRES has them. A carrier is `udp:BIND,PEER`, `tap:NAME` or, of a launcher,
    /// `mem:FILE:SIDE`. Default: none.
    pub fn wire_list(self, text: &str) -> Self {
        apply(self, "wire_list", text)
    }
}

/// Gives the builder the wires of a setting's text, by the node's ports.
pub(crate) fn apply(mut builder: NicBuilder, setting: &'static str, text: &str) -> NicBuilder {
    for part in text.split(';').filter(|p| !p.is_empty()) {
        let wire = part.split_once('=').and_then(|(number, carrier)| {
            let number: u8 = number.parse().ok()?;
            Some((number, carrier))
        });
        let Some((number, carrier)) = wire else {
            let why =
                format!("`{part}` is no wire; write PORT=udp:BIND,PEER or PORT=mem:FILE:SIDE");
            builder.wrong.get_or_insert(OpenError::Setting {
                setting,
                why: SpecError::new(why),
            });
            return builder;
        };
        let of_switch = carrier.strip_prefix("mem:");
        let of_switch = of_switch.and_then(|rest| rest.rsplit_once(':'));
        builder = match of_switch.map(|(file, side)| (file, side.parse())) {
            Some((file, Ok(side))) => match attach(file.as_ref()) {
                Ok(switch) => builder.wire_switch(number, switch, side),
                Err(why) => {
                    builder.wrong.get_or_insert(why);
                    builder
                }
            },
            _ => builder.wire(number, carrier),
        };
    }
    builder
}

/// The switch of a launcher's file.
pub(crate) fn attach(path: &Path) -> Result<Arc<MemSwitch>, OpenError> {
    let failed = |why: String| OpenError::JobSwitch {
        path: path.into(),
        why,
    };
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| failed(e.to_string()))?;
    let switch = MemSwitch::attach(file.into()).map_err(|e| failed(e.to_string()))?;
    Ok(Arc::new(switch))
}
