//! The tree by which one packet reaches many nodes, each wire once.
//!
//! A root's tree is made of the paths by which its members send to it. Tables go by destination, so
//! these paths join and never part again: each node has one link towards the root. A multicast goes
//! the same wires the other way (Dalal and Metcalfe's reverse paths, CACM 1978).

use crate::tables::Tables;
use crate::topology::{Link, NodeId, Topology};

/// A root with the links by which its members send to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    root: NodeId,
    /// By node: its link towards the root; none at the root and outside of the tree.
    up: Vec<Option<Link>>,
    members: Vec<NodeId>,
}

impl Tree {
    /// The tree of a root and of members, which need not name the root. Tables without a path from
    /// a member leave it out.
    pub fn of(
        topology: &Topology,
        tables: &Tables,
        root: NodeId,
        members: impl IntoIterator<Item = NodeId>,
    ) -> Tree {
        let mut tree = Tree {
            root,
            up: vec![None; topology.nodes().len()],
            members: Vec::new(),
        };
        let is_in = |up: &[Option<Link>], node: NodeId| node == root || up[node.index()].is_some();
        for member in members.into_iter().filter(|m| *m != root) {
            let mut at = member;
            let mut path = Vec::new();
            // From where it joins the tree the path is that of another member.
            for link in tables.path(topology, member, root) {
                if is_in(&tree.up, at) {
                    break;
                }
                path.push(link);
                at = topology.to(link).node;
            }
            if !is_in(&tree.up, at) {
                continue;
            }
            tree.members.push(member);
            for link in path {
                tree.up[topology.from(link).node.index()] = Some(link);
            }
        }
        tree
    }

    /// Where a multicast begins, and a reduction ends.
    pub fn root(&self) -> NodeId {
        self.root
    }

    /// The others, in the order in which they were named.
    pub fn members(&self) -> &[NodeId] {
        &self.members
    }

    /// A node's link towards the root.
    pub fn up(&self, node: NodeId) -> Option<Link> {
        self.up[node.index()]
    }

    /// The links away from the root, by the number of the node to which they lead.
    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        self.up.iter().flatten().map(|up| up.back())
    }

    /// The links by which a multicast leaves a node.
    pub fn down<'a>(
        &'a self,
        topology: &'a Topology,
        node: NodeId,
    ) -> impl Iterator<Item = Link> + 'a {
        let leads = move |l: &Link| self.up(topology.to(*l).node) == Some(l.back());
        topology.leaving(node).filter(leads)
    }

    /// Links from the root to a node.
    pub fn depth(&self, topology: &Topology, mut node: NodeId) -> usize {
        let mut depth = 0;
        while let Some(link) = self.up(node) {
            node = topology.to(link).node;
            depth += 1;
        }
        depth
    }
}
