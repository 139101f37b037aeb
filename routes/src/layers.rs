//! Layers without a circle: DFSSSP (Domke, Hoefler and Nagel, IPDPS 2011).
//!
//! All pairs begin in one layer. While its channels depend on each other in a circle, the pairs
//! that make the circle's weakest dependency, the one of fewest pairs, move to the next layer.

use crate::tables::Tables;
use crate::topology::{Link, NodeId, Topology};

/// Puts each pair into a layer; returns how many layers there are.
///
/// The tables' paths stay as they are.
pub(crate) fn assign(topology: &Topology, tables: &mut Tables) -> usize {
    let ends: Vec<NodeId> = topology.ends().collect();
    let pairs = ends.iter().flat_map(|s| ends.iter().map(|d| (*s, *d)));
    let mut pairs: Vec<(NodeId, NodeId)> = pairs.filter(|(s, d)| s != d).collect();
    let mut layers = 0;
    while !pairs.is_empty() {
        let mut layer = Layer::new(topology, tables, &pairs);
        layer.break_circles(topology, tables, &pairs);
        for ((source, destination), moved) in pairs.iter().zip(&layer.moved) {
            if !moved {
                // More layers than any NIC has are refused by their number, later.
                let number = u8::try_from(layers).unwrap_or(u8::MAX);
                tables.set_layer(*source, *destination, number);
            }
        }
        let moved = pairs.iter().zip(&layer.moved);
        pairs = moved.filter(|(_, m)| **m).map(|(p, _)| *p).collect();
        layers += 1;
    }
    layers
}

/// A dependency of one link on the next of some path.
struct Dependency {
    to: Link,
    /// Pairs that make it and are still in this layer.
    count: u32,
    /// Those that made it at first, by their position.
    pairs: Vec<u32>,
}

/// The dependencies of one layer.
struct Layer {
    /// By link.
    from: Vec<Vec<Dependency>>,
    /// By pair: whether it has moved to the next layer.
    moved: Vec<bool>,
}

impl Layer {
    fn new(topology: &Topology, tables: &Tables, pairs: &[(NodeId, NodeId)]) -> Layer {
        let mut layer = Layer {
            from: (0..2 * topology.wires().len())
                .map(|_| Vec::new())
                .collect(),
            moved: vec![false; pairs.len()],
        };
        for (p, (source, destination)) in pairs.iter().enumerate() {
            let mut links = tables.path(topology, *source, *destination);
            let Some(mut link) = links.next() else {
                continue;
            };
            for to in links {
                let known = &mut layer.from[link.index()];
                let i = known.iter().position(|d| d.to == to);
                let i = i.unwrap_or_else(|| {
                    let (count, pairs) = (0, Vec::new());
                    known.push(Dependency { to, count, pairs });
                    known.len() - 1
                });
                known[i].count += 1;
                known[i].pairs.push(p as u32);
                link = to;
            }
        }
        layer
    }

    /// Moves pairs until no circle is left: a depth-first search that goes back to where a circle
    /// began, and on from there.
    fn break_circles(&mut self, topology: &Topology, tables: &Tables, pairs: &[(NodeId, NodeId)]) {
        #[derive(Clone, Copy, PartialEq)]
        enum Seen {
            No,
            Open,
            Done,
        }
        let mut seen = vec![Seen::No; self.from.len()];
        // Links on the way, each with its dependency that is looked at.
        let mut way: Vec<(usize, usize)> = Vec::new();
        for start in 0..self.from.len() {
            if seen[start] == Seen::No {
                seen[start] = Seen::Open;
                way.push((start, 0));
            }
            while let Some((link, d)) = way.last().copied() {
                let Some(dependency) = self.from[link].get(d) else {
                    seen[link] = Seen::Done;
                    way.pop();
                    // The one that led here is done as well.
                    if let Some((_, d)) = way.last_mut() {
                        *d += 1;
                    }
                    continue;
                };
                let to = dependency.to.index();
                match seen[to] {
                    Seen::Open if dependency.count > 0 => {
                        let known = way.iter().rposition(|(l, _)| *l == to);
                        // What is open is on the way.
                        let begin = known.unwrap_or(0);
                        let weakest = way[begin..]
                            .iter()
                            .min_by_key(|(l, d)| self.from[*l][*d].count);
                        if let Some((l, d)) = weakest.copied() {
                            self.move_pairs(topology, tables, pairs, (l, d));
                        }
                        // What lies behind the beginning is searched again.
                        for (l, _) in way.drain(begin + 1..) {
                            seen[l] = Seen::No;
                        }
                    }
                    Seen::No if dependency.count > 0 => {
                        seen[to] = Seen::Open;
                        way.push((to, 0));
                    }
                    _ => {
                        if let Some((_, d)) = way.last_mut() {
                            *d += 1;
                        }
                    }
                }
            }
        }
    }

    /// Moves the pairs that make a dependency, with all dependencies that they make.
    fn move_pairs(
        &mut self,
        topology: &Topology,
        tables: &Tables,
        pairs: &[(NodeId, NodeId)],
        (link, d): (usize, usize),
    ) {
        for p in std::mem::take(&mut self.from[link][d].pairs) {
            if std::mem::replace(&mut self.moved[p as usize], true) {
                continue;
            }
            let (source, destination) = pairs[p as usize];
            let mut links = tables.path(topology, source, destination);
            let Some(mut link) = links.next() else {
                continue;
            };
            for to in links {
                let made = self.from[link.index()].iter_mut().find(|d| d.to == to);
                if let Some(made) = made {
                    made.count -= 1;
                }
                link = to;
            }
        }
    }
}
