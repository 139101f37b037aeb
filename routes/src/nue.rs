//! Routes for any number of layers, one too: Nue (Domke, Hoefler and Matsuoka, HPDC 2016).
//!
//! Each layer has a part of the destinations, and a graph of the dependencies that its paths have
//! made so far. Paths to a destination grow from it; a step whose dependency would close a circle
//! is not taken, so paths are shortest only where that permits. A spanning tree of the layer, whose
//! dependencies are in the graph from the beginning, is the way out where a node is not reached.
//!
//! Nue's paper first moves the choices near such a node. Here the destination is tried again with
//! as few new dependencies as possible, and then takes the tree as a whole.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::order::Ordered;
use crate::paths::{distances, Weights};
use crate::tables::Tables;
use crate::topology::{Link, NodeId, Topology};

/// Tables with at most `layers` layers, of which there is one at least.
pub(crate) fn route(topology: &Topology, layers: usize) -> Tables {
    let ends: Vec<NodeId> = topology.ends().collect();
    let layers = layers.clamp(1, ends.len()).min(64);
    let mut tables = Tables::layered(topology.nodes().len(), layers as u8);
    let mut weights = Weights::new(topology);
    for layer in 0..layers {
        let part = &ends[layer * ends.len() / layers..(layer + 1) * ends.len() / layers];
        let mut grown = Grown::new(topology, part);
        for destination in part {
            let tree = grown.tree(*destination, &mut weights);
            for node in topology.ids() {
                let port = tree[node.index()].map(|l| topology.from(l).port);
                tables.set_next(node, *destination, port);
                tables.set_layer(node, *destination, layer as u8);
            }
        }
    }
    tables
}

/// A layer in the making.
struct Grown<'a> {
    topology: &'a Topology,
    dependencies: Ordered,
    /// By node: its link towards the root of the spanning tree.
    up: Vec<Option<Link>>,
}

impl<'a> Grown<'a> {
    /// With the dependencies of the ways out.
    fn new(topology: &'a Topology, destinations: &[NodeId]) -> Grown<'a> {
        let mut grown = Grown {
            topology,
            dependencies: Ordered::new(2 * topology.wires().len()),
            up: spanning_tree(topology),
        };
        for destination in destinations {
            let tree = grown.way_out(*destination);
            for link in tree.iter().flatten() {
                if let Some(next) = tree[topology.to(*link).node.index()] {
                    let (a, b) = (link.index(), next.index());
                    if !grown.dependencies.has(a, b) {
                        // Paths within a tree depend on each other in no circle.
                        let added = grown.dependencies.add(a, b);
                        debug_assert!(added);
                    }
                }
            }
        }
        grown
    }

    /// By node: the link towards a destination within the spanning tree.
    fn way_out(&self, destination: NodeId) -> Vec<Option<Link>> {
        let mut tree = self.up.clone();
        tree[destination.index()] = None;
        // From the root down to the destination, links are turned.
        let mut at = destination;
        while let Some(up) = self.up[at.index()] {
            let above = self.topology.to(up).node;
            tree[above.index()] = Some(up.back());
            at = above;
        }
        tree
    }

    /// By node: the link towards a destination.
    fn tree(&mut self, destination: NodeId, weights: &mut Weights) -> Vec<Option<Link>> {
        let topology = self.topology;
        let grown = self.grow(destination, weights, false);
        // Paths that make few new dependencies are longer, and are hindered less.
        let grown = grown.or_else(|| self.grow(destination, weights, true));
        let (tree, order) = grown.unwrap_or_else(|| {
            let tree = self.way_out(destination);
            let order = within(topology, &tree, destination);
            (tree, order)
        });
        weights.add(topology, &tree, &order);
        tree
    }

    /// As [`Grown::tree`], with the nodes by growing distance; `None` if a node was not reached.
    /// The shortest paths come first, or with `careful` those of the fewest new dependencies.
    fn grow(
        &mut self,
        destination: NodeId,
        weights: &Weights,
        careful: bool,
    ) -> Option<(Vec<Option<Link>>, Vec<NodeId>)> {
        let topology = self.topology;
        let mut tree: Vec<Option<Link>> = vec![None; topology.nodes().len()];
        let mut reached = vec![false; tree.len()];
        let mut order = Vec::new();
        let mut added = Vec::new();
        let first = (0u32, 0u32, 0u128, destination, None::<Link>);
        let mut open = BinaryHeap::from([Reverse(first)]);
        while let Some(Reverse((new, hops, cost, node, link))) = open.pop() {
            if reached[node.index()] {
                continue;
            }
            let next = link.and_then(|l| tree[topology.to(l).node.index()]);
            if let (Some(link), Some(next)) = (link, next) {
                let (a, b) = (link.index(), next.index());
                if !self.dependencies.has(a, b) {
                    if !self.dependencies.add(a, b) {
                        continue;
                    }
                    added.push((a, b));
                }
            }
            reached[node.index()] = true;
            tree[node.index()] = link;
            order.push(node);
            for out in topology.leaving(node) {
                let from = topology.to(out).node;
                if !reached[from.index()] {
                    let back = out.back();
                    let is_new = careful
                        && link.is_some_and(|l| !self.dependencies.has(back.index(), l.index()));
                    let cost = cost + weights.of(back);
                    let new = new + u32::from(is_new);
                    open.push(Reverse((new, hops + 1, cost, from, Some(back))));
                }
            }
        }
        if order.len() == tree.len() {
            return Some((tree, order));
        }
        for (a, b) in added {
            self.dependencies.remove(a, b);
        }
        None
    }
}

/// By node: its link towards the root, a node from which the farthest is nearest.
fn spanning_tree(topology: &Topology) -> Vec<Option<Link>> {
    let farthest = |node: &NodeId| distances(topology, *node).0.into_iter().max();
    let root = topology.ids().min_by_key(farthest).unwrap_or(NodeId(0));
    let mut up = vec![None; topology.nodes().len()];
    let (hops, order) = distances(topology, root);
    for node in &order[1..] {
        let above = |l: &Link| hops[topology.to(*l).node.index()] + 1 == hops[node.index()];
        up[node.index()] = topology.leaving(*node).find(above);
    }
    up
}

/// The nodes by their distance from a destination within its tree.
fn within(topology: &Topology, tree: &[Option<Link>], destination: NodeId) -> Vec<NodeId> {
    let mut order = vec![destination];
    let mut done = 0;
    while let Some(node) = order.get(done).copied() {
        done += 1;
        for out in topology.leaving(node) {
            let from = topology.to(out).node;
            if tree[from.index()] == Some(out.back()) {
                order.push(from);
            }
        }
    }
    order
}
