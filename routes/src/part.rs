//! What is left of a network when wires are down: the part that a node still reaches.

use crate::tables::Tables;
use crate::topology::{Builder, NodeId, Topology, TopologyError, MAX_PORTS};

/// The part of a network that holds one of its nodes, its nodes numbered anew.
#[derive(Debug, Clone)]
pub struct Part {
    /// The part by itself.
    pub topology: Topology,
    /// By node of the whole: its number in the part.
    pub place: Vec<Option<NodeId>>,
}

impl Part {
    /// The part that `node` reaches by wires that are not `down`, by their numbers.
    ///
    /// # Errors
    /// The part has less than two nodes with a rank.
    pub fn of(
        topology: &Topology,
        node: NodeId,
        down: impl Fn(usize) -> bool,
    ) -> Result<Part, TopologyError> {
        let mut reached = vec![false; topology.nodes().len()];
        reached[node.index()] = true;
        let mut open = vec![node];
        while let Some(at) = open.pop() {
            for link in topology.leaving(at).filter(|l| !down(l.wire())) {
                let next = topology.to(link).node;
                if !std::mem::replace(&mut reached[next.index()], true) {
                    open.push(next);
                }
            }
        }
        let mut builder = Builder::new(format!("part of {}", topology.name()), MAX_PORTS);
        let mut place = vec![None; reached.len()];
        for id in topology.ids().filter(|n| reached[n.index()]) {
            let whole = &topology.nodes()[id.index()];
            place[id.index()] = Some(builder.node(&whole.name, whole.role)?);
        }
        for (number, wire) in topology.wires().iter().enumerate() {
            let mut wire = *wire;
            let [a, b] = wire.ends.map(|end| place[end.node.index()]);
            if let (Some(a), Some(b), false) = (a, b, down(number)) {
                wire.ends[0].node = a;
                wire.ends[1].node = b;
                builder.wire(wire)?;
            }
        }
        let topology = builder.build()?;
        Ok(Part { topology, place })
    }

    /// The entries of tables of the whole that concern the part alone, by its numbers.
    pub fn tables(&self, whole: &Tables) -> Tables {
        let channels = crate::tables::Class::ALL.map(|c| whole.channels(c).to_vec());
        let mut tables = Tables::new(self.topology.nodes().len(), channels);
        let nodes = || (0..self.place.len() as u16).map(NodeId);
        for (a, in_part) in nodes().filter_map(|a| Some((a, self.place[a.index()]?))) {
            for (b, to) in nodes().filter_map(|b| Some((b, self.place[b.index()]?))) {
                let has_wire = |p: &u8| self.topology.link(in_part, *p).is_some();
                tables.set_next(in_part, to, whole.next(a, b).filter(has_wire));
                tables.set_layer(in_part, to, whole.layer(a, b));
            }
        }
        tables
    }
}
