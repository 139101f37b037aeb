//! Channels for the trees of all roots, and the order that shows that they cannot deadlock.
//!
//! A multicast holds its slot until each of its next channels has taken a copy: it depends on all
//! of them. Trees have channels of their own, after those of the tables. Each tree is put into the
//! first of them where the links of all its trees depend on each other in no circle, as DFSSSP does
//! with pairs. Packets of tables never wait for a tree, and trees wait only for acknowledgements,
//! so that the order of the trees' channels stands before the order of the tables'.

use crate::proof::Proof;
use crate::tables::{Channel, Tables};
use crate::topology::{Link, NodeId, Topology};
use crate::tree::Tree;

/// The channel of each root's tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trees {
    /// By node: the place in `channels` of the tree of which it is the root.
    pub layer: Vec<u8>,
    /// Channels of trees.
    pub channels: Vec<u8>,
    /// All channels that trees use, each before those on which it depends.
    pub order: Vec<Channel>,
}

/// Why there are no trees.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreesError {
    /// A ring keeps one slot free, and a packet that goes two ways would need two.
    #[error("bubble channels take no trees: a ring keeps one slot free, and copies need one each")]
    Bubble,
    /// The wires have too few channels.
    #[error(
        "the tables take {tables} channels a wire and trees {needed} or more, and the NIC has \
         {available}"
    )]
    TooManyChannels {
        /// Channels of the tables.
        tables: usize,
        /// Channels that trees need at least.
        needed: usize,
        /// Channels that there are.
        available: usize,
    },
}

impl Trees {
    /// The trees of all ends, for NICs with so many channels a wire.
    ///
    /// # Errors
    /// [`TreesError`]
    pub fn of(
        topology: &Topology,
        tables: &Tables,
        proof: &Proof,
        available: usize,
    ) -> Result<Trees, TreesError> {
        if let Proof::Bubble { .. } = proof {
            return Err(TreesError::Bubble);
        }
        let first = tables.channel_count();
        let mut layers: Vec<Layer> = Vec::new();
        let mut trees = Trees {
            layer: vec![0; topology.nodes().len()],
            channels: Vec::new(),
            order: Vec::new(),
        };
        for root in topology.ends() {
            let tree = Tree::of(topology, tables, root, topology.ends());
            let found = layers.iter_mut().position(|l| l.takes(topology, &tree));
            let found = found.unwrap_or_else(|| {
                let mut layer = Layer::new(topology);
                // A tree by itself has no circle.
                layer.takes(topology, &tree);
                layers.push(layer);
                layers.len() - 1
            });
            let needed = found + 1;
            if first + needed > available {
                let tables = first;
                return Err(TreesError::TooManyChannels {
                    tables,
                    needed,
                    available,
                });
            }
            trees.layer[root.index()] = found as u8;
        }
        for (number, layer) in (first..).zip(&layers) {
            let number = number as u8;
            trees.channels.push(number);
            let links = layer.order().unwrap_or_default();
            let channels = links.into_iter().map(|link| Channel { link, number });
            trees.order.extend(channels);
        }
        Ok(trees)
    }

    /// The channel of a root's tree.
    pub fn channel(&self, root: NodeId) -> Option<u8> {
        let layer = *self.layer.get(root.index())?;
        self.channels.get(usize::from(layer)).copied()
    }
}

/// The trees of one channel.
struct Layer {
    /// By link: whether a tree has it.
    used: Vec<bool>,
    /// By link: the links on which it depends.
    on: Vec<Vec<Link>>,
}

impl Layer {
    fn new(topology: &Topology) -> Layer {
        let links = 2 * topology.wires().len();
        Layer {
            used: vec![false; links],
            on: vec![Vec::new(); links],
        }
    }

    /// Adds a tree, unless a circle would close.
    fn takes(&mut self, topology: &Topology, tree: &Tree) -> bool {
        let mut added = Vec::new();
        for link in tree.links() {
            for next in tree.down(topology, topology.to(link).node) {
                let on = &mut self.on[link.index()];
                if !on.contains(&next) {
                    on.push(next);
                    added.push(link);
                }
            }
        }
        let fits = self.order().is_some();
        match fits {
            true => tree.links().for_each(|l| self.used[l.index()] = true),
            // What was added last to a link is its last one.
            false => added.iter().for_each(|l| {
                self.on[l.index()].pop();
            }),
        }
        fits
    }

    /// The links that are used, each before those on which it depends; none if there is a circle.
    fn order(&self) -> Option<Vec<Link>> {
        let mut before = vec![0usize; self.on.len()];
        self.on
            .iter()
            .flatten()
            .for_each(|l| before[l.index()] += 1);
        let mut order: Vec<Link> = (0..self.on.len() as u32).map(Link).collect();
        order.retain(|l| before[l.index()] == 0);
        let mut done = 0;
        while let Some(link) = order.get(done).copied() {
            done += 1;
            for next in &self.on[link.index()] {
                before[next.index()] -= 1;
                if before[next.index()] == 0 {
                    order.push(*next);
                }
            }
        }
        let is_whole = order.len() == self.on.len();
        order.retain(|l| self.used[l.index()]);
        is_whole.then_some(order)
    }
}
