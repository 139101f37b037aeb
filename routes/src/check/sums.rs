//! The checker's part for sums: nothing that is combined on its way up a tree waits in a circle.
//!
//! A combined packet waits for a slot of the channel to its parent. The places of a node wait for
//! the packets of its children, which may stand behind others in the channels from there, and for
//! what the children themselves combine. A packet that is granted has a place reserved, so that no
//! channel waits for one. With fewer places than grants it would, and the circle closes.

use std::collections::BTreeMap;

use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;

use super::trees::{copies, number, walk};
use super::Refused;
use crate::proof::Proof;
use crate::tables::{Channel, Tables};
use crate::topology::{NodeId, Topology};
use crate::trees::Trees;

/// What routers reserve for a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Segments beyond those that the root has, which may be under way.
    pub granted: usize,
    /// Packets of each neighbour that a node takes off the wire for the sum of one root.
    pub reserved: usize,
}

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    /// A packet in a channel.
    Channel(Channel),
    /// The places of a node for the sum of a root.
    Places { root: NodeId, node: NodeId },
}

/// Checks the sums that go up the trees of tables, together with all that tables and trees wait
/// for. Returns how many dependencies sums add.
///
/// # Errors
/// [`Refused`], the first reason that is found.
pub fn check_sums(
    topology: &Topology,
    tables: &Tables,
    proof: &Proof,
    trees: &Trees,
    channels: usize,
    places: Places,
) -> Result<usize, Refused> {
    let (walked, _) = walk(topology, tables, proof, trees, channels)?;
    let mut added = Vec::new();
    for root in topology.ends() {
        let number = number(tables, trees, root, channels)?;
        for (node, copy) in copies(topology, tables, root)? {
            // A sum takes the links of the copies the other way.
            let link = copy.link.back();
            let up = At::Channel(Channel { link, number });
            let at = |node| At::Places { root, node };
            let (own, parent) = (at(node), at(copy.from));
            added.extend([(own, up), (parent, up), (parent, own)]);
            if places.reserved < places.granted {
                added.push((up, parent));
            }
        }
    }
    let known = walked.dependencies.iter();
    let known = known.map(|d| (At::Channel(d.from), At::Channel(d.on)));
    let mut graph: DiGraph<At, ()> = DiGraph::new();
    let mut nodes = BTreeMap::new();
    for (from, on) in known.chain(added.iter().copied()) {
        let ends = [from, on].map(|at| *nodes.entry(at).or_insert_with(|| graph.add_node(at)));
        graph.update_edge(ends[0], ends[1], ());
    }
    let on_circle = tarjan_scc(&graph).into_iter().filter(|c| c.len() > 1);
    for at in on_circle.flatten() {
        if let At::Channel(at) = graph[at] {
            let Places { granted, reserved } = places;
            return Err(Refused::SumCircle {
                at,
                granted,
                places: reserved,
            });
        }
    }
    Ok(added.len())
}
