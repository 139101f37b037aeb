//! A network: nodes with ports, and wires that join two ports.
//!
//! A wire carries packets both ways; each direction is a [`Link`]. A node is an *end*, which has
//! a rank and sends and receives, or a *switch*, which only forwards. Ends forward too.

use std::collections::BTreeMap;

/// Ports that a NIC can have.
pub const MAX_PORTS: usize = 64;
/// Nodes of a network.
pub const MAX_NODES: usize = 16_384;
/// Nodes of one whose routes are made: tables and proofs grow with their square.
pub const MAX_ROUTED_NODES: usize = 1024;

/// A node, by its position among the nodes of its topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u16);

impl NodeId {
    /// The position, as an index.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// One direction of a wire: wire `w` from its first end to its second is link `2w`, back `2w + 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link(pub u32);

impl Link {
    /// The number, as an index.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The other direction of the wire.
    #[inline]
    #[must_use]
    pub fn back(self) -> Link {
        Link(self.0 ^ 1)
    }

    /// The wire, as an index.
    #[inline]
    pub fn wire(self) -> usize {
        self.index() / 2
    }
}

/// A port of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortOf {
    /// The node.
    pub node: NodeId,
    /// The port's number, below [`MAX_PORTS`].
    pub port: u8,
}

/// Two ports that are joined.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wire {
    /// The ports, in the order of the file.
    pub ends: [PortOf; 2],
    /// Rate of each direction in Gb/s, where it is known.
    pub gbps: Option<f64>,
    /// Delay of each direction in nanoseconds, where it is known.
    pub delay_ns: Option<f64>,
}

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It has a rank: it sends, receives and forwards.
    End,
    /// It only forwards.
    Switch,
}

/// A node's name and role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name, without a colon at its end.
    pub name: String,
    /// What it does.
    pub role: Role,
}

/// The form of a network, for pictures and for routes by dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// A grid, the last coordinate counted first; its rows are closed to rings where `wrapped`.
    /// Dimension `d` goes up by port `2d + 1` and down by port `2d`.
    Grid {
        /// Nodes in each dimension: one for a bus or a ring.
        sizes: Vec<usize>,
        /// A torus rather than a mesh, a ring rather than a bus.
        wrapped: bool,
    },
    /// Any other.
    Other,
}

/// Why a network is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Two wires end at one port.
    #[error("port {port} of {node} is used twice: by the wires to {first} and to {second}")]
    PortUsedTwice {
        /// The node's name.
        node: String,
        /// The port.
        port: u8,
        /// Where the first wire leads.
        first: String,
        /// Where the second wire leads.
        second: String,
    },
    /// A wire ends where it begins.
    #[error("a wire joins port {port} of {node} to itself")]
    WireToItself {
        /// The node's name.
        node: String,
        /// The port.
        port: u8,
    },
    /// A wire joins two ports of one node, which no path would ever take.
    #[error("a wire joins two ports of {node}: {first} and {second}")]
    Loop {
        /// The node's name.
        node: String,
        /// The ports.
        first: u8,
        /// The second port.
        second: u8,
    },
    /// A port's number is too large.
    #[error("{node} has no port {port}: ports count from 0 to {}", limit - 1)]
    NoSuchPort {
        /// The node's name.
        node: String,
        /// The number.
        port: u64,
        /// Ports that a node of this network can have.
        limit: usize,
    },
    /// There are too many nodes.
    #[error("more than {limit} nodes")]
    TooManyNodes {
        /// Nodes that this network may have.
        limit: usize,
    },
    /// Two nodes have one name.
    #[error("two nodes are named {0}")]
    NameTwice(String),
    /// A wire names a node that the file does not list.
    #[error("no node is named {0}")]
    NoSuchNode(String),
    /// Some ends reach only part of the others.
    #[error("not connected: {} of {all} nodes reach each other ({}), and {} do not ({})",
        here.len(), few(here), there.len(), few(there))]
    NotConnected {
        /// Nodes that the first one reaches, itself included.
        here: Vec<String>,
        /// The others.
        there: Vec<String>,
        /// All nodes.
        all: usize,
    },
    /// There are not two ends.
    #[error("{0} node(s) with a rank: routes need two")]
    TooFewEnds(usize),
    /// A rate or delay that no wire has.
    #[error("{what} of {value}: a finite number, {least} is expected")]
    NotANumber {
        /// `gbps` or `delay_ns`.
        what: &'static str,
        /// The value.
        value: f64,
        /// What it must be.
        least: &'static str,
    },
}

/// The first names of a list.
fn few(names: &[String]) -> String {
    match names {
        [first, second, third, _, ..] => format!("{first}, {second}, {third}, ..."),
        names => names.join(", "),
    }
}

/// A connected network.
#[derive(Debug, Clone, PartialEq)]
pub struct Topology {
    name: String,
    nodes: Vec<Node>,
    wires: Vec<Wire>,
    shape: Shape,
    /// By node and port: the link that leaves there.
    out: Vec<Vec<Option<Link>>>,
}

impl Topology {
    /// Its name: that of a generator or a file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Its wires.
    pub fn wires(&self) -> &[Wire] {
        &self.wires
    }

    /// Its form.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The nodes with a rank; the rank of each is its position here.
    pub fn ends(&self) -> impl Iterator<Item = NodeId> + Clone + '_ {
        self.ids()
            .filter(|n| self.nodes[n.index()].role == Role::End)
    }

    /// All nodes.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + Clone + '_ {
        (0..self.nodes.len()).map(|n| NodeId(n as u16))
    }

    /// All links.
    pub fn links(&self) -> impl Iterator<Item = Link> + Clone {
        (0..2 * self.wires.len() as u32).map(Link)
    }

    /// The link that leaves a node by a port.
    #[inline]
    pub fn link(&self, node: NodeId, port: u8) -> Option<Link> {
        *self.out[node.index()].get(usize::from(port))?
    }

    /// The links that leave a node, by port.
    pub fn leaving(&self, node: NodeId) -> impl Iterator<Item = Link> + Clone + '_ {
        self.out[node.index()].iter().flatten().copied()
    }

    /// The port that a link leaves.
    #[inline]
    pub fn from(&self, link: Link) -> PortOf {
        self.wires[link.wire()].ends[link.index() % 2]
    }

    /// The port that a link enters.
    #[inline]
    pub fn to(&self, link: Link) -> PortOf {
        self.from(link.back())
    }

    /// Most ports in use at one node.
    pub fn degree(&self) -> usize {
        let ports = |n| self.leaving(n).count();
        self.ids().map(ports).max().unwrap_or(0)
    }

    /// `NODE:PORT`, as files and users write it.
    pub fn port_text(&self, at: PortOf) -> String {
        format!("{}:{}", self.nodes[at.node.index()].name, at.port)
    }

    /// `NODE:PORT -> NODE:PORT`.
    pub fn link_text(&self, link: Link) -> String {
        format!(
            "{} -> {}",
            self.port_text(self.from(link)),
            self.port_text(self.to(link))
        )
    }

    /// The node of this name.
    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        self.ids().find(|n| self.nodes[n.index()].name == name)
    }

    /// The same network, whose form is known.
    pub(crate) fn shaped(mut self, shape: Shape) -> Topology {
        self.shape = shape;
        self
    }

    /// The same network without a wire; the numbers of later wires become smaller by one.
    ///
    /// # Errors
    /// The wire joined two parts.
    ///
    /// # Panics
    /// There is no such wire.
    pub fn without(&self, wire: usize) -> Result<Topology, TopologyError> {
        let at = self.port_text(self.wires[wire].ends[0]);
        let mut builder = Builder::new(format!("{} without {at}", self.name), MAX_PORTS);
        builder.nodes.clone_from(&self.nodes);
        builder.wires.clone_from(&self.wires);
        builder.wires.remove(wire);
        builder.build()
    }
}

/// A network in the making. Wires are checked one by one, so that a reader of a file can say where.
#[derive(Debug)]
pub(crate) struct Builder {
    name: String,
    ports: usize,
    nodes: Vec<Node>,
    by_name: BTreeMap<String, NodeId>,
    used: BTreeMap<PortOf, PortOf>,
    wires: Vec<Wire>,
    shape: Shape,
}

impl Builder {
    /// None yet; nodes have at most `ports` ports.
    pub(crate) fn new(name: impl Into<String>, ports: usize) -> Builder {
        Builder {
            name: name.into(),
            ports,
            nodes: Vec::new(),
            by_name: BTreeMap::new(),
            used: BTreeMap::new(),
            wires: Vec::new(),
            shape: Shape::Other,
        }
    }

    pub(crate) fn set_name(&mut self, name: String) {
        self.name = name;
    }

    pub(crate) fn set_shape(&mut self, shape: Shape) {
        self.shape = shape;
    }

    /// Adds a node.
    pub(crate) fn node(&mut self, name: &str, role: Role) -> Result<NodeId, TopologyError> {
        if self.by_name.contains_key(name) {
            return Err(TopologyError::NameTwice(name.into()));
        }
        if self.nodes.len() == MAX_NODES {
            return Err(TopologyError::TooManyNodes { limit: MAX_NODES });
        }
        let id = NodeId(self.nodes.len() as u16);
        self.by_name.insert(name.into(), id);
        let name = name.to_owned();
        self.nodes.push(Node { name, role });
        Ok(id)
    }

    /// The node of this name.
    pub(crate) fn named(&self, name: &str) -> Result<NodeId, TopologyError> {
        let known = self.by_name.get(name).copied();
        known.ok_or_else(|| TopologyError::NoSuchNode(name.into()))
    }

    pub(crate) fn has_wires(&self) -> bool {
        !self.wires.is_empty()
    }

    /// A port of a node that exists.
    pub(crate) fn port(&self, node: NodeId, port: u64) -> Result<PortOf, TopologyError> {
        match u8::try_from(port) {
            Ok(port) if usize::from(port) < self.ports => Ok(PortOf { node, port }),
            _ => Err(TopologyError::NoSuchPort {
                node: self.nodes[node.index()].name.clone(),
                port,
                limit: self.ports,
            }),
        }
    }

    /// Adds a wire between two ports.
    pub(crate) fn wire(&mut self, wire: Wire) -> Result<(), TopologyError> {
        let [a, b] = wire.ends;
        let name = |at: PortOf| self.nodes[at.node.index()].name.clone();
        let text = |at: PortOf| format!("{}:{}", name(at), at.port);
        if a == b {
            let (node, port) = (name(a), a.port);
            return Err(TopologyError::WireToItself { node, port });
        }
        if a.node == b.node {
            return Err(TopologyError::Loop {
                node: name(a),
                first: a.port,
                second: b.port,
            });
        }
        for (at, to) in [(a, b), (b, a)] {
            if let Some(before) = self.used.get(&at) {
                return Err(TopologyError::PortUsedTwice {
                    node: name(at),
                    port: at.port,
                    first: text(*before),
                    second: text(to),
                });
            }
        }
        let known = |value: Option<f64>, zero: bool| {
            value.filter(|v| !(v.is_finite() && (*v > 0.0 || zero && *v == 0.0)))
        };
        if let Some(value) = known(wire.gbps, false) {
            return Err(TopologyError::NotANumber {
                what: "gbps",
                value,
                least: "greater than 0,",
            });
        }
        if let Some(value) = known(wire.delay_ns, true) {
            return Err(TopologyError::NotANumber {
                what: "delay_ns",
                value,
                least: "0 or greater,",
            });
        }
        self.used.insert(a, b);
        self.used.insert(b, a);
        self.wires.push(wire);
        Ok(())
    }

    /// Adds a wire whose rate and delay are unknown, between two ports that exist.
    pub(crate) fn join(
        &mut self,
        a: (NodeId, usize),
        b: (NodeId, usize),
    ) -> Result<(), TopologyError> {
        let ends = [self.port(a.0, a.1 as u64)?, self.port(b.0, b.1 as u64)?];
        self.wire(Wire {
            ends,
            gbps: None,
            delay_ns: None,
        })
    }

    /// Numbers the nodes anew, in the order of a key of their names.
    pub(crate) fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&str) -> K) {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|n| key(&self.nodes[*n].name));
        let mut place = vec![NodeId(0); order.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old] = NodeId(new as u16);
        }
        self.nodes = order.iter().map(|n| self.nodes[*n].clone()).collect();
        for wire in &mut self.wires {
            for end in &mut wire.ends {
                end.node = place[end.node.index()];
            }
        }
    }

    /// The network.
    pub(crate) fn build(self) -> Result<Topology, TopologyError> {
        let mut out = vec![Vec::new(); self.nodes.len()];
        for (w, wire) in self.wires.iter().enumerate() {
            for (direction, end) in wire.ends.iter().enumerate() {
                let ports: &mut Vec<Option<Link>> = &mut out[end.node.index()];
                let port = usize::from(end.port);
                if ports.len() <= port {
                    ports.resize(port + 1, None);
                }
                ports[port] = Some(Link((2 * w + direction) as u32));
            }
        }
        let topology = Topology {
            name: self.name,
            nodes: self.nodes,
            wires: self.wires,
            shape: self.shape,
            out,
        };
        let ends = topology.ends().count();
        if ends < 2 {
            return Err(TopologyError::TooFewEnds(ends));
        }
        topology.connected()?;
        Ok(topology)
    }
}

impl Topology {
    /// Whether every node reaches every other.
    fn connected(&self) -> Result<(), TopologyError> {
        let mut reached = vec![false; self.nodes.len()];
        let mut open = vec![NodeId(0)];
        reached[0] = true;
        while let Some(node) = open.pop() {
            for link in self.leaving(node) {
                let next = self.to(link).node;
                if !std::mem::replace(&mut reached[next.index()], true) {
                    open.push(next);
                }
            }
        }
        let side = |want: bool| {
            let nodes = self.nodes.iter().zip(&reached);
            let nodes = nodes.filter(|(_, r)| **r == want);
            nodes.map(|(n, _)| n.name.clone()).collect::<Vec<_>>()
        };
        let there = side(false);
        if there.is_empty() {
            return Ok(());
        }
        Err(TopologyError::NotConnected {
            here: side(true),
            there,
            all: self.nodes.len(),
        })
    }
}
