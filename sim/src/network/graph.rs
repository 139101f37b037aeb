//! Nodes, links, and the shortest ways to each rank.
//!
//! Nodes are numbered: ranks first, then hosts without a rank, then switches. Without switches all
//! are ranks. Wire `w` has the
//! links `2w` and `2w + 1`, one for each direction.

use std::collections::BTreeMap;

use ringbell_routes::topology::{NodeId, Role, Topology};

use super::link::{Link, LinkId};
use crate::timeline::LinkTrack;
use crate::{Failure, Profile};

/// The network.
#[derive(Debug)]
pub(super) struct Graph {
    links: Vec<Link>,
    /// By node.
    names: Vec<String>,
    /// By node: the links that leave it.
    leaving: Vec<Vec<LinkId>>,
    /// By rank, then by node: links on the way from there.
    hops: Vec<Vec<u16>>,
    /// By node, then by rank: the links toward it, of those that were asked for.
    ways: Vec<Vec<Option<Box<[LinkId]>>>>,
}

/// Names of nodes: the ranks', then the others.
fn names(ranks: usize, others: impl IntoIterator<Item = String>) -> Vec<String> {
    let ranks = (0..ranks).map(|rank| format!("rank {rank}"));
    ranks.chain(others).collect()
}

/// No way.
const NONE: u16 = u16::MAX;

impl Graph {
    /// One switch with a wire to each rank.
    pub(super) fn one_switch(ranks: usize, profile: &Profile) -> Graph {
        let mut graph = Graph::new(names(ranks, ["switch".into()]));
        for rank in 0..ranks {
            graph.join(
                [rank, ranks],
                profile.link_gbps,
                profile.link_delay_ns as f64,
            );
        }
        graph.find_ways(ranks);
        graph
    }

    /// A topology, whose first ends are the ranks.
    pub(super) fn of(
        topology: &Topology,
        ranks: usize,
        profile: &Profile,
    ) -> Result<Graph, Failure> {
        let name = || topology.name().to_owned();
        let ends = topology.ends().count();
        if ends < ranks {
            let topology = name();
            return Err(Failure::TooFewHosts {
                topology,
                ends,
                ranks,
            });
        }
        let nodes = topology.nodes().len();
        let is_mesh = ends == nodes;
        if is_mesh && ranks < nodes {
            return Err(Failure::NotAllRanks {
                topology: name(),
                nodes,
                ranks,
            });
        }
        let has_more = |n: &NodeId| topology.leaving(*n).count() > 1;
        if let Some(end) = topology.ends().find(has_more).filter(|_| !is_mesh) {
            return Err(Failure::Forwards {
                topology: name(),
                node: topology.nodes()[end.index()].name.clone(),
                wires: topology.leaving(end).count(),
            });
        }
        let (mut end, mut switch) = (0.., ends..);
        let places = topology.nodes().iter().map(|node| match node.role {
            Role::End => end.next(),
            Role::Switch => switch.next(),
        });
        let places: Vec<usize> = places.flatten().collect();
        let mut named: Vec<_> = topology.nodes().iter().zip(&places).collect();
        named.sort_by_key(|(_, place)| **place);
        let others = named.into_iter().skip(ranks).map(|(n, _)| n.name.clone());
        let mut graph = Graph::new(names(ranks, others));
        for wire in topology.wires() {
            let gbps = wire.gbps.unwrap_or(profile.link_gbps);
            let delay_ns = wire.delay_ns.unwrap_or(profile.link_delay_ns as f64);
            graph.join(wire.ends.map(|e| places[e.node.index()]), gbps, delay_ns);
        }
        graph.find_ways(ranks);
        Ok(graph)
    }

    fn new(names: Vec<String>) -> Graph {
        Graph {
            links: Vec::new(),
            leaving: vec![Vec::new(); names.len()],
            names,
            hops: Vec::new(),
            ways: Vec::new(),
        }
    }

    fn join(&mut self, ends: [usize; 2], gbps: f64, delay_ns: f64) {
        let delay_ps = (delay_ns * 1e3).round() as u64;
        for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            self.leaving[from].push(LinkId::of(self.links.len()));
            self.links.push(Link::new(to, gbps, delay_ps));
        }
    }

    /// A rank's links take so many times as long.
    pub(super) fn slow(&mut self, rank: usize, factor: f64) {
        for leaving in self.leaving[rank].clone() {
            for link in [leaving, leaving.back()] {
                self.links[link.index()].gbps /= factor;
            }
        }
    }

    /// Finds the shortest ways to each rank.
    fn find_ways(&mut self, ranks: usize) {
        self.hops = (0..ranks).map(|rank| self.walk(rank)).collect();
        self.ways = vec![Vec::new(); self.nodes()];
    }

    /// Walks to all nodes, the nearest first; returns their distances.
    fn walk(&self, from: usize) -> Vec<u16> {
        let mut hops = vec![NONE; self.leaving.len()];
        hops[from] = 0;
        let mut order = vec![from];
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            next += 1;
            for &link in &self.leaving[node] {
                let Link { to, is_cut, .. } = self.links[link.index()];
                if hops[to] == NONE && !is_cut {
                    hops[to] = hops[node] + 1;
                    order.push(to);
                }
            }
        }
        hops
    }

    /// How many nodes there are.
    pub(super) fn nodes(&self) -> usize {
        self.names.len()
    }

    /// The nodes and the rate of each wire.
    pub(super) fn wires(&self) -> Vec<([usize; 2], f64)> {
        let wires = self.links.chunks_exact(2);
        wires.map(|w| ([w[1].to, w[0].to], w[0].gbps)).collect()
    }

    /// Cuts a wire, and finds the ways that are left.
    pub(super) fn cut(&mut self, wire: usize) {
        for link in &mut self.links[2 * wire..2 * wire + 2] {
            link.is_cut = true;
        }
        self.find_ways(self.hops.len());
    }

    #[inline]
    pub(super) fn link(&self, id: LinkId) -> &Link {
        &self.links[id.index()]
    }

    #[inline]
    pub(super) fn link_mut(&mut self, id: LinkId) -> &mut Link {
        &mut self.links[id.index()]
    }

    /// Links by name; of several between two nodes, all but the first are numbered.
    pub(super) fn tracks(&self) -> Vec<LinkTrack> {
        let mut seen: BTreeMap<[usize; 2], usize> = BTreeMap::new();
        let track = |id: usize| {
            let ends = [LinkId::of(id).back(), LinkId::of(id)].map(|l| self.link(l).to);
            let [from, to] = ends.map(|node| self.names[node].as_str());
            let number = seen.entry(ends).or_default();
            *number += 1;
            let name = match *number {
                1 => format!("{from} to {to}"),
                n => format!("{from} to {to}, {n}"),
            };
            let is_output = ends[0] >= self.hops.len();
            LinkTrack { name, is_output }
        };
        (0..self.links.len()).map(track).collect()
    }

    /// The links that end at ranks.
    pub(super) fn to_ranks(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|l| l.to < self.hops.len())
    }

    /// The links that leave a rank.
    pub(super) fn of_rank(&self, rank: usize) -> &[LinkId] {
        &self.leaving[rank]
    }

    /// The links that leave a node and bring a frame nearer to a rank.
    pub(super) fn toward(&mut self, node: usize, rank: usize) -> &[LinkId] {
        if self.ways[node].is_empty() {
            self.ways[node] = vec![None; self.hops.len()];
        }
        self.ways[node][rank].get_or_insert_with(|| {
            let hops = &self.hops[rank];
            let leaving = self.leaving[node].iter().copied();
            let nearer = leaving.filter(|l| {
                let link = &self.links[l.index()];
                hops[link.to] < hops[node] && !link.is_cut
            });
            nearer.collect()
        })
    }
}
