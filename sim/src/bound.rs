//! The greatest bus bandwidth that a network allows a collective, by cuts.
//!
//! A cut parts the ranks in two groups. What must pass from one to the other takes at least its
//! bytes by the capacity between them, which a maximum flow gives, switches being on whichever side
//! makes it least. The slowest cut bounds the operation. All wires are alike in both directions, so
//! one direction stands for both.

use std::collections::BTreeSet;

use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, EdgeIndex, NodeIndex};
use petgraph::visit::EdgeRef as _;
use ringbell_nic_abi::CollectiveKind;

use crate::goal::has_blocks;

/// A wire: its nodes, ranks first, and the rate of each direction in Gb/s.
pub(crate) type Wire = ([usize; 2], f64);

/// Bytes on the wire for each byte of the size, as nccl-tests counts them.
pub(crate) fn bus_factor(kind: CollectiveKind, ranks: usize) -> f64 {
    let n = ranks as f64;
    match kind {
        CollectiveKind::AllReduce => 2.0 * (n - 1.0) / n,
        kind if has_blocks(kind) => (n - 1.0) / n,
        _ => 1.0,
    }
}

/// Bus bandwidth at best, in Gb/s on the wire, of an operation among the first nodes.
pub(crate) fn best_bus_gbps(kind: CollectiveKind, ranks: usize, wires: &[Wire]) -> f64 {
    let network = Capacities::of(ranks, wires);
    // Time for each byte of the size, were the wires 1 Gb/s.
    let cuts = network.groups().into_iter().map(|group| {
        let bytes = crossing(kind, group.len() as f64, ranks as f64);
        bytes / network.between(&group)
    });
    let slowest = cuts.fold(0.0, f64::max);
    let whole = match kind {
        // Ranks alone combine: n - 1 of n operands have to be sent, and as many results
        // (Patarasuk and Yuan, JPDC 2009).
        CollectiveKind::AllReduce => 2.0 * (ranks - 1) as f64 / network.leaving(wires),
        _ => 0.0,
    };
    bus_factor(kind, ranks) / slowest.max(whole)
}

/// What must cross from one group to the other, in either direction, by the operation's size.
fn crossing(kind: CollectiveKind, group: f64, ranks: f64) -> f64 {
    use CollectiveKind as K;
    let others = ranks - group;
    match kind {
        // A block of each rank of the larger group; the sums of as many blocks.
        K::AllGather | K::ReduceScatter => group.max(others) / ranks,
        K::AllToAll => group * others / ranks,
        // The root's bytes; a sum.
        _ => 1.0,
    }
}

/// The network as a graph of capacities in kb/s, with a source and a sink beside its nodes.
struct Capacities {
    ranks: usize,
    graph: DiGraph<(), u64>,
    /// By rank: the edges from the source and to the sink.
    ends: Vec<[EdgeIndex; 2]>,
    source: NodeIndex,
    sink: NodeIndex,
}

impl Capacities {
    fn of(ranks: usize, wires: &[Wire]) -> Capacities {
        let mut graph = DiGraph::new();
        let nodes = wires.iter().flat_map(|w| w.0).map(|n| n + 1).max();
        let nodes = nodes.unwrap_or(0).max(ranks);
        let ids: Vec<NodeIndex> = (0..nodes).map(|_| graph.add_node(())).collect();
        let (source, sink) = (graph.add_node(()), graph.add_node(()));
        for ([a, b], gbps) in wires {
            let rate = (gbps * 1e6).round() as u64;
            graph.add_edge(ids[*a], ids[*b], rate);
            graph.add_edge(ids[*b], ids[*a], rate);
        }
        let ends = ids[..ranks].iter();
        let ends = ends.map(|rank| [(source, *rank), (*rank, sink)]);
        let ends: Vec<_> = ends
            .map(|e| e.map(|(a, b)| graph.add_edge(a, b, 0)))
            .collect();
        Capacities {
            ranks,
            graph,
            ends,
            source,
            sink,
        }
    }

    /// Groups of ranks that a network may join badly: for each node and each number of links,
    /// the ranks that are not further from it.
    fn groups(&self) -> BTreeSet<Vec<usize>> {
        let mut groups = BTreeSet::new();
        for node in self.graph.node_indices() {
            let mut hops = vec![usize::MAX; self.graph.node_count()];
            hops[node.index()] = 0;
            let mut order = vec![node];
            let mut next = 0;
            while let Some(&at) = order.get(next) {
                next += 1;
                let wired = self.graph.edges(at).filter(|e| *e.weight() > 0);
                for to in wired.map(|e| e.target()) {
                    if hops[to.index()] == usize::MAX {
                        hops[to.index()] = hops[at.index()] + 1;
                        order.push(to);
                    }
                }
            }
            let reached: BTreeSet<usize> = hops[..self.ranks].iter().copied().collect();
            for far in reached {
                let group = (0..self.ranks).filter(|r| hops[*r] <= far);
                groups.insert(group.collect());
            }
        }
        groups.retain(|g: &Vec<usize>| (1..self.ranks).contains(&g.len()));
        groups
    }

    /// Capacity from a group of ranks to all others, in Gb/s.
    fn between(&self, group: &[usize]) -> f64 {
        let mut graph = self.graph.clone();
        for (rank, ends) in self.ends.iter().enumerate() {
            let is_source = group.binary_search(&rank).is_ok();
            // More than all wires together.
            graph[ends[usize::from(!is_source)]] = u64::MAX >> 12;
        }
        let (flow, _) = dinics(&graph, self.source, self.sink);
        flow as f64 / 1e6
    }

    /// Capacity of all links that leave ranks, in Gb/s.
    fn leaving(&self, wires: &[Wire]) -> f64 {
        let ends = wires
            .iter()
            .flat_map(|(ends, gbps)| ends.map(|e| (e, gbps)));
        ends.filter(|(e, _)| *e < self.ranks)
            .map(|(_, gbps)| gbps)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CollectiveKind as K;

    fn close(value: f64, wanted: f64) {
        assert!((value / wanted - 1.0).abs() < 1e-9, "{value}: {wanted}");
    }

    /// Ranks at leaves of so many, whose uplinks together have a rate; pairs of leaves form pods
    /// with an uplink to the top.
    fn pods(ranks: usize, leaf: usize, uplink: f64, pod: f64) -> Vec<Wire> {
        let leaves = ranks / leaf;
        let (top, first_pod) = (ranks + leaves, ranks + leaves + 1);
        let mut wires: Vec<Wire> = (0..ranks).map(|r| ([r, ranks + r / leaf], 100.0)).collect();
        for l in 0..leaves {
            // Two wires that together have the rate.
            wires.extend([([ranks + l, first_pod + l / 2], uplink / 2.0); 2]);
        }
        wires.extend((0..leaves / 2).map(|p| ([first_pod + p, top], pod)));
        wires
    }

    #[test]
    fn one_switch_allows_the_rate_of_a_link() {
        for kind in [
            K::AllReduce,
            K::AllGather,
            K::ReduceScatter,
            K::Broadcast,
            K::Reduce,
            K::AllToAll,
        ] {
            for ranks in [2, 3, 8] {
                let wires: Vec<Wire> = (0..ranks).map(|r| ([r, ranks], 40.0)).collect();
                close(best_bus_gbps(kind, ranks, &wires), 40.0);
            }
        }
    }

    #[test]
    fn the_narrowest_cut_for_an_operation_bounds_it() {
        // 16 ranks at leaves of 4, with 200 Gb/s from a leaf, and 250 from each of two pods.
        let wires = pods(16, 4, 200.0, 250.0);
        let best = |kind| best_bus_gbps(kind, 16, &wires);
        // A pod's 8 ranks send half of their bytes through 250 Gb/s: 8 * 8 / 16 of the size.
        close(best(K::AllToAll), 15.0 / 16.0 * 250.0 / 4.0);
        // 15 blocks to one rank of 100 Gb/s take longer than 8 through 250 or 12 through 200.
        close(best(K::AllGather), 100.0);
        close(best(K::AllReduce), 100.0);
        close(best(K::Broadcast), 100.0);

        // From a leaf 40 Gb/s, which is less than a rank's link.
        let wires = pods(16, 4, 40.0, 250.0);
        let best = |kind| best_bus_gbps(kind, 16, &wires);
        close(best(K::AllToAll), 15.0 / 16.0 * 40.0 / 3.0);
        close(best(K::ReduceScatter), 15.0 / 12.0 * 40.0);
        close(best(K::Reduce), 40.0);
        // A sum each way, not 2 * 15 / 16 of it.
        close(best(K::AllReduce), 2.0 * 15.0 / 16.0 * 40.0);
    }
}
