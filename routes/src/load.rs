//! What each link carries when every end sends to every other: the pairs whose path it is on.

use crate::tables::Tables;
use crate::topology::{Link, Topology};

/// Pairs by link, and hops and delays of the paths.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// By link: pairs of source and destination whose requests it carries. It carries the
    /// acknowledgements of as many as go the other way.
    pub pairs: Vec<u32>,
    /// By hops: how many pairs are that far apart.
    pub hops: Vec<usize>,
    /// The greatest delay of a path in nanoseconds, where all its wires have one.
    pub slowest_ns: Option<f64>,
}

impl Load {
    /// Of tables that the checker has accepted.
    pub fn of(topology: &Topology, tables: &Tables) -> Load {
        let mut load = Load {
            pairs: vec![0; 2 * topology.wires().len()],
            hops: Vec::new(),
            slowest_ns: None,
        };
        for source in topology.ends() {
            for destination in topology.ends().filter(|d| *d != source) {
                let mut hops = 0;
                let mut delay = Some(0.0);
                for link in tables.path(topology, source, destination) {
                    load.pairs[link.index()] += 1;
                    hops += 1;
                    let of_wire = topology.wires()[link.wire()].delay_ns;
                    delay = delay.zip(of_wire).map(|(a, b): (f64, f64)| a + b);
                }
                if load.hops.len() <= hops {
                    load.hops.resize(hops + 1, 0);
                }
                load.hops[hops] += 1;
                if let Some(delay) = delay {
                    load.slowest_ns = Some(load.slowest_ns.map_or(delay, |s: f64| s.max(delay)));
                }
            }
        }
        load
    }

    /// The most pairs of a link.
    pub fn greatest(&self) -> u32 {
        self.pairs.iter().copied().max().unwrap_or(0)
    }

    /// Mean hops of a pair.
    pub fn mean_hops(&self) -> f64 {
        let pairs: usize = self.hops.iter().sum();
        let hops: usize = self.hops.iter().enumerate().map(|(h, n)| h * n).sum();
        hops as f64 / pairs.max(1) as f64
    }

    /// Hops of the longest path.
    pub fn longest(&self) -> usize {
        self.hops.len().saturating_sub(1)
    }

    /// The links by what they carry, most first.
    pub fn busiest(&self) -> Vec<Link> {
        let mut links: Vec<Link> = (0..self.pairs.len() as u32).map(Link).collect();
        links.sort_by_key(|l| std::cmp::Reverse(self.pairs[l.index()]));
        links
    }
}
