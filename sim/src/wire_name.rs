//! Wires as users name them.

use ringbell_routes::topology::Topology;

use crate::{Failure, NetworkPlan};

impl NetworkPlan {
    /// The wire of a name: one of its ends as `NODE:PORT`, or both nodes as `A-B` where no other
    /// wire joins them. Over one switch, rank `i` is `ni` with port 0, and the switch `s0`.
    ///
    /// # Errors
    /// No wire has the name, or several.
    pub fn wire_named(&self, ranks: usize, text: &str) -> Result<usize, Failure> {
        let wires: Vec<_> = (0..self.wires(ranks)).map(|w| self.ends(w)).collect();
        let mut found = Vec::new();
        for (wire, [a, b]) in wires.iter().enumerate() {
            let [first, second] = [a, b].map(|end| end.rsplit_once(':').map_or("", |e| e.0));
            let joined = [format!("{first}-{second}"), format!("{second}-{first}")];
            if a == text || b == text || joined.iter().any(|j| j == text) {
                found.push(wire);
            }
        }
        match found[..] {
            [wire] => Ok(wire),
            [] => Err(Failure::NoSuchWire {
                text: text.into(),
                network: self
                    .topology
                    .as_ref()
                    .map_or("one switch", Topology::name)
                    .into(),
                example: wires.last().map_or_else(String::new, |w| w[0].clone()),
            }),
            _ => Err(Failure::SeveralWires {
                text: text.into(),
                first: wires[found[0]][0].clone(),
                second: wires[found[1]][0].clone(),
            }),
        }
    }

    /// A wire in words.
    pub fn wire_text(&self, wire: usize) -> String {
        self.ends(wire).join(" -- ")
    }

    /// How many wires there are.
    pub(crate) fn wires(&self, ranks: usize) -> usize {
        self.topology.as_ref().map_or(ranks, |t| t.wires().len())
    }

    fn ends(&self, wire: usize) -> [String; 2] {
        match &self.topology {
            Some(topology) => topology.wires()[wire].ends.map(|e| topology.port_text(e)),
            None => [format!("n{wire}:0"), format!("s0:{wire}")],
        }
    }
}
