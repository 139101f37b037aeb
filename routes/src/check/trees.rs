//! The checker's part for trees: each end has a copy, no wire carries two, and what the copies wait
//! for keeps the order of the proof.

use std::collections::{BTreeMap, BTreeSet};

use super::{Dependency, Refused, Walked, Way};
use crate::proof::Proof;
use crate::tables::{Channel, Class, Tables};
use crate::topology::{Link, NodeId, Topology};
use crate::trees::Trees;

/// What the checker has gone through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedTrees {
    /// Roots whose trees were walked.
    pub roots: usize,
    /// Wires that all trees cross, each counted once a tree.
    pub wires: usize,
    /// Links from a root to its farthest end.
    pub deepest: usize,
    /// Channels that trees use.
    pub channels: usize,
    /// Dependencies of the tables and of the trees, each counted once.
    pub dependencies: usize,
}

/// Checks the trees of tables, for NICs with so many channels a wire, together with the tables and
/// their proof.
///
/// # Errors
/// [`Refused`], the first reason that is found.
pub fn check_trees(
    topology: &Topology,
    tables: &Tables,
    proof: &Proof,
    trees: &Trees,
    channels: usize,
) -> Result<CheckedTrees, Refused> {
    let (walked, checked) = walk(topology, tables, proof, trees, channels)?;
    let Proof::Acyclic { order } = proof else {
        return Err(Refused::BubbleTree);
    };
    // Trees wait for acknowledgements, whose channels stand in the tables' order.
    let all: Vec<Channel> = trees.order.iter().chain(order).copied().collect();
    walked.keep_order(&all)?;
    Ok(checked)
}

/// Collects what the packets of tables and the copies of trees wait for.
pub(super) fn walk(
    topology: &Topology,
    tables: &Tables,
    proof: &Proof,
    trees: &Trees,
    channels: usize,
) -> Result<(Walked, CheckedTrees), Refused> {
    if let Proof::Bubble { .. } = proof {
        return Err(Refused::BubbleTree);
    }
    let mut walked = Walked::walk(topology, tables, channels)?;
    let mut checked = CheckedTrees {
        roots: 0,
        wires: 0,
        deepest: 0,
        channels: 0,
        dependencies: 0,
    };
    let mut used = BTreeSet::new();
    for root in topology.ends() {
        let number = number(tables, trees, root, channels)?;
        let copies = copies(topology, tables, root)?;
        for (node, copy) in &copies {
            let from = Channel {
                link: copy.link,
                number,
            };
            used.insert(from);
            checked.deepest = checked.deepest.max(copy.depth);
            // The packet keeps its slot until every copy has one: it waits for all of them.
            let next = copies.values().filter(|c| c.from == *node);
            let mut on: Vec<_> = next.map(|c| (c.link, number, false)).collect();
            let is_end = topology.ends().any(|e| e == *node);
            if let (true, Some(answer)) = (is_end, answer(topology, tables, *node, root)) {
                on.push((answer.link, answer.number, true));
            }
            let on = on.into_iter().map(|(link, number, answers)| Dependency {
                from,
                on: Channel { link, number },
                answers,
            });
            walked.dependencies.extend(on);
        }
        checked.roots += 1;
        checked.wires += copies.len();
    }
    checked.channels = used.len();
    checked.dependencies = walked.dependencies.len();
    Ok((walked, checked))
}

/// The channel of a root's tree.
pub(super) fn number(
    tables: &Tables,
    trees: &Trees,
    root: NodeId,
    available: usize,
) -> Result<u8, Refused> {
    let layer = trees.layer.get(root.index()).copied().unwrap_or(u8::MAX);
    let Some(number) = trees.channels.get(usize::from(layer)).copied() else {
        return Err(Refused::NoTreeChannel { root, layer });
    };
    let needed = usize::from(number) + 1;
    if needed > available {
        return Err(Refused::TooManyChannels { needed, available });
    }
    let of_tables = Class::ALL.iter().flat_map(|c| tables.channels(*c));
    if of_tables.copied().any(|n| n == number) {
        // Unicast packets would wait behind copies, and their order says nothing of these.
        return Err(Refused::TreeInTables { root, number });
    }
    Ok(number)
}

/// The copy that comes to a node.
pub(super) struct Copy {
    pub(super) link: Link,
    pub(super) from: NodeId,
    depth: usize,
}

/// By node: how the multicast of a root comes there. Nodes that forward to the root are those that
/// it comes from.
pub(super) fn copies(
    topology: &Topology,
    tables: &Tables,
    root: NodeId,
) -> Result<BTreeMap<NodeId, Copy>, Refused> {
    let mut copies = BTreeMap::new();
    for end in topology.ends().filter(|e| *e != root) {
        let mut at = end;
        let mut way = Vec::new();
        while at != root && !copies.contains_key(&at) {
            let here = Way {
                source: end,
                destination: root,
                at,
            };
            if way.iter().any(|(passed, _, _)| *passed == at) {
                return Err(Refused::Loop(here));
            }
            let port = tables.next(at, root).ok_or(Refused::NoRoute(here))?;
            let link = topology.link(at, port);
            let link = link.ok_or(Refused::NoWire(here, port))?;
            let next = topology.to(link).node;
            way.push((at, link.back(), next));
            at = next;
        }
        let above = copies.get(&at).map_or(0, |c: &Copy| c.depth);
        for (depth, (node, link, from)) in (above + 1..).zip(way.into_iter().rev()) {
            copies.insert(node, Copy { link, from, depth });
        }
    }
    Ok(copies)
}

/// The first channel of what a member answers.
fn answer(topology: &Topology, tables: &Tables, from: NodeId, to: NodeId) -> Option<Channel> {
    let number = tables.channel(Class::Acknowledgement, tables.layer(from, to))?;
    let link = topology.link(from, tables.next(from, to)?)?;
    Some(Channel { link, number })
}
