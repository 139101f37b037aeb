//! Shortest paths that share the links evenly: single-source shortest paths with weights that grow
//! (Hoefler, Schneider and Lumsdaine, Hot Interconnects 2009), as DFSSSP starts from.
//!
//! The paths to one destination form a tree. Among the shortest, a node takes the one that costs
//! least, each link costing the square of what it carries so far; then the tree's pairs are added.
//! A slower link carries as if more pairs used it. After the first round each destination is taken
//! out and placed again, which the paper does not do: on a torus of 8×8 the busiest link then
//! carries 71 pairs instead of 90, where 64 are the mean.

use crate::tables::Tables;
use crate::topology::{Link, NodeId, Role, Topology};

/// How often each destination is placed.
const ROUNDS: usize = 4;

/// What each link carries so far.
pub(crate) struct Weights {
    /// By link: pairs, times `share`.
    carried: Vec<u64>,
    /// By link: what one pair costs, more on slower links.
    share: Vec<u64>,
}

impl Weights {
    pub(crate) fn new(topology: &Topology) -> Weights {
        let rates = topology.wires().iter().filter_map(|w| w.gbps);
        let fastest = rates.fold(0.0, f64::max);
        let share = |link: Link| match topology.wires()[link.wire()].gbps {
            // A link a million times slower is as bad as any.
            Some(gbps) => (1000.0 * fastest / gbps).clamp(1000.0, 1e9) as u64,
            None => 1000,
        };
        Weights {
            carried: vec![0; 2 * topology.wires().len()],
            share: topology.links().map(share).collect(),
        }
    }

    /// What a path pays for a link: the square, so that one busy link is worse than two half as
    /// busy.
    #[inline]
    pub(crate) fn of(&self, link: Link) -> u128 {
        u128::from(self.carried[link.index()]).pow(2)
    }

    /// Takes them away again.
    fn remove(&mut self, topology: &Topology, tree: &[Option<Link>], order: &[NodeId]) {
        self.change(topology, tree, order, |carried, more| carried - more);
    }

    /// Adds the pairs of a destination's tree; `order` has the nodes by growing distance.
    pub(crate) fn add(&mut self, topology: &Topology, tree: &[Option<Link>], order: &[NodeId]) {
        self.change(topology, tree, order, |carried, more| carried + more);
    }

    fn change(
        &mut self,
        topology: &Topology,
        tree: &[Option<Link>],
        order: &[NodeId],
        by: impl Fn(u64, u64) -> u64,
    ) {
        let mut pairs: Vec<u64> = topology
            .nodes()
            .iter()
            .map(|n| u64::from(n.role == Role::End))
            .collect();
        for node in order.iter().rev() {
            if let Some(link) = tree[node.index()] {
                let through = pairs[node.index()];
                pairs[topology.to(link).node.index()] += through;
                let carried = &mut self.carried[link.index()];
                *carried = by(*carried, through * self.share[link.index()]);
            }
        }
    }
}

/// Hops from each node to a destination.
pub(crate) fn distances(topology: &Topology, destination: NodeId) -> (Vec<u32>, Vec<NodeId>) {
    let mut hops = vec![u32::MAX; topology.nodes().len()];
    hops[destination.index()] = 0;
    let mut order = vec![destination];
    let mut done = 0;
    while let Some(node) = order.get(done).copied() {
        done += 1;
        for link in topology.leaving(node) {
            let to = topology.to(link).node;
            if hops[to.index()] == u32::MAX {
                hops[to.index()] = hops[node.index()] + 1;
                order.push(to);
            }
        }
    }
    (hops, order)
}

/// By destination: the links towards it, by node. `keep`: tables of the same nodes, whose links are
/// taken where they are there and still on a shortest path.
pub(crate) fn trees(
    topology: &Topology,
    keep: Option<&Tables>,
) -> Vec<(NodeId, Vec<Option<Link>>)> {
    let mut weights = Weights::new(topology);
    let mut trees: Vec<(NodeId, Vec<Option<Link>>)> = Vec::new();
    for destination in topology.ends() {
        let (hops, order) = distances(topology, destination);
        let kept = kept(topology, keep, destination);
        let tree = tree(topology, &hops, &order, &weights, &kept);
        weights.add(topology, &tree, &order);
        trees.push((destination, tree));
    }
    for _ in 1..ROUNDS {
        for (destination, old) in &mut trees {
            let (hops, order) = distances(topology, *destination);
            weights.remove(topology, old, &order);
            let kept = kept(topology, keep, *destination);
            let tree = tree(topology, &hops, &order, &weights, &kept);
            weights.add(topology, &tree, &order);
            *old = tree;
        }
    }
    trees
}

/// By node: the link towards a destination in other tables, if it is there.
fn kept(topology: &Topology, keep: Option<&Tables>, destination: NodeId) -> Vec<Option<Link>> {
    let link = |node| topology.link(node, keep?.next(node, destination)?);
    topology.ids().map(link).collect()
}

/// By node: the link towards a destination, that of `kept` where it is on a shortest path.
fn tree(
    topology: &Topology,
    hops: &[u32],
    order: &[NodeId],
    weights: &Weights,
    kept: &[Option<Link>],
) -> Vec<Option<Link>> {
    let mut cost = vec![0u128; hops.len()];
    let mut tree = vec![None; hops.len()];
    for node in &order[1..] {
        let nearer = |l: &Link| hops[topology.to(*l).node.index()] < hops[node.index()];
        let total = |l: &Link| cost[topology.to(*l).node.index()] + weights.of(*l);
        let old = kept[node.index()].filter(nearer);
        let best = || topology.leaving(*node).filter(nearer).min_by_key(total);
        let chosen = old.or_else(best);
        cost[node.index()] = chosen.as_ref().map_or(0, total);
        tree[node.index()] = chosen;
    }
    tree
}
