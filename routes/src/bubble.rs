//! Rings and tori with one channel a class: order of dimensions and bubble flow control (Carrión,
//! Beivide, Gregorio and Vallejo, HiPC 1997; Puente and others, ICPP 1999).
//!
//! A packet goes along the first dimension in which it has to, the shorter way round, then along
//! the next. Within a ring it moves on into one free slot; what enters a ring, from the node itself
//! or from another dimension, needs two. So a slot of each ring stays free, and its packets move.

use crate::tables::{Channel, Class, Tables};
use crate::topology::{Link, NodeId, Shape, Topology};

/// A torus with its nodes' coordinates.
struct Torus<'a> {
    topology: &'a Topology,
    sizes: &'a [usize],
}

impl Torus<'_> {
    /// Distance of neighbours' numbers in a dimension.
    fn stride(&self, d: usize) -> usize {
        self.sizes[d + 1..].iter().product()
    }

    fn at(&self, node: NodeId, d: usize) -> usize {
        node.index() / self.stride(d) % self.sizes[d]
    }

    /// The port towards a destination.
    fn port(&self, node: NodeId, destination: NodeId) -> Option<u8> {
        let differs = |d: &usize| self.at(node, *d) != self.at(destination, *d);
        let d = (0..self.sizes.len()).find(differs)?;
        let size = self.sizes[d];
        let up = (self.at(destination, d) + size - self.at(node, d)) % size;
        let goes_up = match (2 * up).cmp(&size) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Greater => false,
            // Half way round: both are as long. Each takes half of the pairs.
            std::cmp::Ordering::Equal => {
                let others = (0..self.sizes.len()).filter(|e| *e != d);
                let others: usize = others.map(|e| self.at(destination, e)).sum();
                (self.at(node, d) + others).is_multiple_of(2)
            }
        };
        Some((2 * d + usize::from(goes_up)) as u8)
    }

    /// The rings of a dimension, each by its links.
    fn rings(&self, d: usize) -> Vec<Vec<Link>> {
        if self.sizes[d] < 2 {
            return Vec::new();
        }
        let starts = self.topology.ids().filter(|n| self.at(*n, d) == 0);
        let ports = [2 * d as u8 + 1, 2 * d as u8];
        let ring = |start: NodeId, port: u8| {
            let mut at = start;
            let step = || {
                let link = self.topology.link(at, port)?;
                at = self.topology.to(link).node;
                Some(link)
            };
            std::iter::from_fn(step).take(self.sizes[d]).collect()
        };
        let rings = starts.flat_map(|start| ports.map(|port| ring(start, port)));
        rings.collect()
    }
}

/// Tables by the order of dimensions, and the rings of their channels in the order in which packets
/// go through them; `None` if the network is neither ring nor torus.
pub(crate) fn route(topology: &Topology) -> Option<(Tables, Vec<Vec<Channel>>)> {
    let Shape::Grid {
        sizes,
        wrapped: true,
    } = topology.shape()
    else {
        return None;
    };
    let torus = Torus { topology, sizes };
    let mut tables = Tables::layered(topology.nodes().len(), 1);
    for node in topology.ids() {
        for destination in topology.ids() {
            tables.set_next(node, destination, torus.port(node, destination));
        }
    }
    let mut rings = Vec::new();
    for class in Class::ALL {
        let number = tables.channel(class, 0)?;
        for links in (0..sizes.len()).flat_map(|d| torus.rings(d)) {
            let channels = links.into_iter().map(|link| Channel { link, number });
            rings.push(channels.collect());
        }
    }
    Some((tables, rings))
}
