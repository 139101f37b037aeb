//! The checker of tables and proofs, which shares no code with what makes them.
//!
//! It walks each pair's way through the tables, collects which channel depends on which, and judges
//! that graph by `petgraph`. A proof is taken at its word only where each dependency keeps it. Only
//! the topology and the types of tables and proofs are the makers' too.

mod sums;
mod trees;

use std::collections::{BTreeMap, BTreeSet};

use petgraph::algo::{tarjan_scc, toposort};
use petgraph::graph::{DiGraph, NodeIndex};

use crate::proof::{Circle, Proof};
use crate::tables::{Channel, Class, Tables};
use crate::topology::{NodeId, Topology};

pub use self::sums::{check_sums, Places};
pub use self::trees::{check_trees, CheckedTrees};

/// What the checker has gone through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Pairs of source and destination whose way was walked.
    pub pairs: usize,
    /// Hops of the longest way.
    pub longest: usize,
    /// Sum of the hops of all pairs.
    pub hops: usize,
    /// Channels that packets use.
    pub channels: usize,
    /// Dependencies between two channels, each counted once.
    pub dependencies: usize,
}

/// Why tables are refused. Nodes and channels are those of the topology.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The tables are for another number of nodes.
    OtherNodes {
        /// Nodes of the tables.
        tables: usize,
        /// Nodes of the topology.
        topology: usize,
    },
    /// On the way of a pair, a node has no port for the destination.
    NoRoute(Way),
    /// On the way of a pair, a node forwards to a port without a wire.
    NoWire(Way, u8),
    /// The way of a pair comes to a node a second time.
    Loop(Way),
    /// A pair is in a layer that has no channel.
    NoLayer(Way, u8),
    /// A wire would need more channels than there are.
    TooManyChannels {
        /// Channels that the tables name.
        needed: usize,
        /// Channels that there are.
        available: usize,
    },
    /// Channels depend on each other in a circle.
    Circle(Circle),
    /// A dependency that the proof does not cover, or covers in the other direction.
    NotProved {
        /// What depends.
        from: Channel,
        /// On what it depends.
        on: Channel,
        /// What the proof lacks.
        why: &'static str,
    },
    /// The proof is none: a channel stands in two places or is of no wire, or does not lead to the
    /// next one of its ring.
    NoProof {
        /// The channel.
        at: Channel,
        /// What is wrong.
        why: &'static str,
    },
    /// Trees were made for bubble channels, which take none.
    BubbleTree,
    /// A root's tree is in a layer that has no channel.
    NoTreeChannel {
        /// The root.
        root: NodeId,
        /// The layer.
        layer: u8,
    },
    /// A root's tree has a channel of the tables.
    TreeInTables {
        /// The root.
        root: NodeId,
        /// The channel.
        number: u8,
    },
    /// Packets of sums wait for each other in a circle: what stands in the channel may wait for a
    /// place at the node to which it leads.
    SumCircle {
        /// The channel.
        at: Channel,
        /// Segments under way.
        granted: usize,
        /// Places of a neighbour.
        places: usize,
    },
}

/// A place on the way of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Where the pair's packets come from.
    pub source: NodeId,
    /// Where they go.
    pub destination: NodeId,
    /// Where the checker stood.
    pub at: NodeId,
}

impl Refused {
    /// In words, with the names of nodes and ports.
    pub fn text(&self, topology: &Topology) -> String {
        let name = |n: &NodeId| {
            let node = topology.nodes().get(n.index());
            node.map_or(format!("node {}", n.0), |n| n.name.clone())
        };
        let way = |w: &Way| {
            let (source, destination) = (name(&w.source), name(&w.destination));
            format!("from {source} to {destination}: {}", name(&w.at))
        };
        match self {
            Refused::OtherNodes { tables, topology } => {
                format!("tables of {tables} nodes for a network of {topology}")
            }
            Refused::NoRoute(w) => format!("{} has no route there", way(w)),
            Refused::NoWire(w, port) => {
                format!("{} forwards to port {port}, which has no wire", way(w))
            }
            Refused::Loop(w) => format!("{} is passed a second time", way(w)),
            Refused::NoLayer(w, layer) => {
                format!("{} sends in layer {layer}, which has no channel", way(w))
            }
            Refused::TooManyChannels { needed, available } => {
                format!("the tables name {needed} channels a wire, and the NIC has {available}")
            }
            Refused::Circle(circle) => format!(
                "channels depend on each other in a circle, so that packets could stop for ever: {}",
                circle.text(topology)
            ),
            Refused::NotProved { from, on, why } => format!(
                "the proof does not hold: {} depends on {}, and {why}",
                from.text(topology),
                on.text(topology)
            ),
            Refused::NoProof { at, why } => {
                format!("the proof does not hold: {} {why}", at.text(topology))
            }
            Refused::BubbleTree => {
                "bubble channels take no trees: a ring keeps one slot free, and each copy needs one"
                    .into()
            }
            Refused::NoTreeChannel { root, layer } => {
                format!("the tree of {} is in layer {layer}, which has no channel", name(root))
            }
            Refused::TreeInTables { root, number } => format!(
                "the tree of {} has channel {number}, which is one of the tables'",
                name(root)
            ),
            Refused::SumCircle { at, granted, places } => format!(
                "packets of a sum wait in {} for their partners, which may stand behind others that \
                 wait so too: a root grants {granted} segments, and a node has {places} places for \
                 each neighbour",
                at.text(topology)
            ),
        }
    }
}

/// A dependency, and how it comes about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Dependency {
    from: Channel,
    on: Channel,
    /// An arrived request waits for room for its acknowledgement; otherwise a packet moves on.
    answers: bool,
}

/// Checks tables with their proof, for NICs with so many channels a wire.
///
/// # Errors
/// [`Refused`], the first reason that is found.
pub fn check(
    topology: &Topology,
    tables: &Tables,
    proof: &Proof,
    channels: usize,
) -> Result<Checked, Refused> {
    let walked = Walked::walk(topology, tables, channels)?;
    match proof {
        Proof::Acyclic { order } => walked.keep_order(order)?,
        Proof::Bubble { rings } => walked.keep_rings(topology, rings)?,
    }
    Ok(walked.checked)
}

/// Checks tables without a proof: whether every pair has a way and no channels depend on each other
/// in a circle.
///
/// # Errors
/// [`Refused`], the first reason that is found.
pub fn check_unproved(
    topology: &Topology,
    tables: &Tables,
    channels: usize,
) -> Result<Checked, Refused> {
    let walked = Walked::walk(topology, tables, channels)?;
    walked.no_circle()?;
    Ok(walked.checked)
}

/// All ways, and what they make depend on what.
struct Walked {
    dependencies: BTreeSet<Dependency>,
    checked: Checked,
}

impl Walked {
    fn walk(topology: &Topology, tables: &Tables, available: usize) -> Result<Walked, Refused> {
        let nodes = topology.nodes().len();
        if tables.nodes() != nodes {
            return Err(Refused::OtherNodes {
                tables: tables.nodes(),
                topology: nodes,
            });
        }
        let needed = tables.channel_count();
        if needed > available {
            return Err(Refused::TooManyChannels { needed, available });
        }
        let mut dependencies = BTreeSet::new();
        let mut used = BTreeSet::new();
        let (mut longest, mut hops) = (0, 0);
        // By pair: the last channel of its request, and the first of an acknowledgement.
        let mut arrives = BTreeMap::new();
        let mut answers = BTreeMap::new();
        let ends: Vec<NodeId> = topology.ends().collect();
        for source in ends.iter().copied() {
            for destination in ends.iter().copied().filter(|d| *d != source) {
                for class in Class::ALL {
                    let way = one_way(topology, tables, source, destination, class)?;
                    let steps = way.windows(2).map(|w| (w[0], w[1]));
                    dependencies.extend(steps.map(|(from, on)| Dependency {
                        from,
                        on,
                        answers: false,
                    }));
                    used.extend(way.iter().copied());
                    match class {
                        Class::Request => {
                            longest = longest.max(way.len());
                            hops += way.len();
                            arrives.insert((source, destination), way[way.len() - 1]);
                        }
                        Class::Acknowledgement => {
                            answers.insert((source, destination), way[0]);
                        }
                    }
                }
            }
        }
        for ((source, destination), from) in &arrives {
            if let Some(on) = answers.get(&(*destination, *source)) {
                dependencies.insert(Dependency {
                    from: *from,
                    on: *on,
                    answers: true,
                });
            }
        }
        let checked = Checked {
            pairs: arrives.len(),
            longest,
            hops,
            channels: used.len(),
            dependencies: dependencies.len(),
        };
        Ok(Walked {
            dependencies,
            checked,
        })
    }

    /// Every dependency goes forward in the order.
    fn keep_order(&self, order: &[Channel]) -> Result<(), Refused> {
        let mut place = BTreeMap::new();
        for (i, channel) in order.iter().enumerate() {
            // A channel in two places would let a circle through.
            if place.insert(*channel, i).is_some() {
                let why = "stands in two places";
                return Err(Refused::NoProof { at: *channel, why });
            }
        }
        let backward = self.dependencies.iter().find(|d| {
            let (from, on) = (place.get(&d.from), place.get(&d.on));
            from.is_none() || on.is_none() || from >= on
        });
        match backward {
            None => Ok(()),
            Some(d) => {
                // The circle says more, where there is one.
                self.no_circle()?;
                Err(Refused::NotProved {
                    from: d.from,
                    on: d.on,
                    why: "its order has them the other way round or lacks one",
                })
            }
        }
    }

    /// Every dependency stays in its ring, from a channel to the next, or goes to a later ring.
    fn keep_rings(&self, topology: &Topology, rings: &[Vec<Channel>]) -> Result<(), Refused> {
        let mut place = BTreeMap::new();
        for (r, ring) in rings.iter().enumerate() {
            for (i, channel) in ring.iter().enumerate() {
                let at = *channel;
                if place.insert(at, (r, i)).is_some() {
                    let why = "stands in two places";
                    return Err(Refused::NoProof { at, why });
                }
                let next = ring[(i + 1) % ring.len()];
                if at.link.wire() >= topology.wires().len()
                    || next.link.wire() >= topology.wires().len()
                {
                    let why = "is of no wire";
                    return Err(Refused::NoProof { at, why });
                }
                if topology.to(at.link).node != topology.from(next.link).node {
                    let why = "does not lead to the next one of its ring";
                    return Err(Refused::NoProof { at, why });
                }
            }
        }
        for d in &self.dependencies {
            let refused = |why| Refused::NotProved {
                from: d.from,
                on: d.on,
                why,
            };
            let (Some((r, i)), Some((s, j))) = (place.get(&d.from), place.get(&d.on)) else {
                return Err(refused("one of them is in no ring"));
            };
            if r == s && d.answers {
                return Err(refused(
                    "an acknowledgement waits in the ring of its request",
                ));
            }
            if r == s && (i + 1) % rings[*r].len() != *j {
                return Err(refused("it is not the next of their ring"));
            }
            // Rings that depend on later ones alone depend on each other in no circle.
            if r > s {
                return Err(refused("its ring comes before"));
            }
        }
        Ok(())
    }

    /// No channels depend on each other in a circle.
    fn no_circle(&self) -> Result<(), Refused> {
        let mut graph: DiGraph<Channel, ()> = DiGraph::new();
        let mut nodes = BTreeMap::new();
        for d in &self.dependencies {
            let ends = [d.from, d.on].map(|c| *nodes.entry(c).or_insert_with(|| graph.add_node(c)));
            graph.update_edge(ends[0], ends[1], ());
        }
        let Err(on_circle) = toposort(&graph, None) else {
            return Ok(());
        };
        Err(Refused::Circle(circle(&graph, on_circle.node_id())))
    }
}

/// The shortest circle through a channel, or through another of its strongly connected component.
fn circle(graph: &DiGraph<Channel, ()>, at: NodeIndex) -> Circle {
    let components = tarjan_scc(graph);
    let has_circle =
        |c: &&Vec<NodeIndex>| c.len() > 1 || c.iter().any(|n| graph.contains_edge(*n, *n));
    let of_it = components.iter().filter(has_circle);
    let component = of_it
        .clone()
        .find(|c| c.contains(&at))
        .or_else(|| of_it.clone().next());
    let Some(component) = component else {
        return Circle(vec![graph[at]]);
    };
    let start = if component.contains(&at) {
        at
    } else {
        component[0]
    };
    // Breadth first, so the first way back is the shortest.
    let mut from: BTreeMap<NodeIndex, NodeIndex> = BTreeMap::new();
    let mut open = std::collections::VecDeque::from([start]);
    while let Some(node) = open.pop_front() {
        for next in graph.neighbors(node) {
            if next == start {
                let mut way = vec![graph[node]];
                let mut back = node;
                while back != start {
                    back = from[&back];
                    way.push(graph[back]);
                }
                way.reverse();
                return Circle(way);
            }
            if component.contains(&next) && !from.contains_key(&next) {
                from.insert(next, node);
                open.push_back(next);
            }
        }
    }
    Circle(vec![graph[start]])
}

/// The channels that a packet of a class takes from a source to a destination, one at least.
fn one_way(
    topology: &Topology,
    tables: &Tables,
    source: NodeId,
    destination: NodeId,
    class: Class,
) -> Result<Vec<Channel>, Refused> {
    let mut way = Vec::new();
    let mut passed = BTreeSet::from([source]);
    let mut at = source;
    let here = |at| Way {
        source,
        destination,
        at,
    };
    let layer = tables.layer(source, destination);
    let Some(number) = tables.channel(class, layer) else {
        return Err(Refused::NoLayer(here(source), layer));
    };
    while at != destination {
        let Some(port) = tables.next(at, destination) else {
            return Err(Refused::NoRoute(here(at)));
        };
        let Some(link) = topology.link(at, port) else {
            return Err(Refused::NoWire(here(at), port));
        };
        way.push(Channel { link, number });
        at = topology.to(link).node;
        if !passed.insert(at) {
            return Err(Refused::Loop(here(at)));
        }
    }
    Ok(way)
}
