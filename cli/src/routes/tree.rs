//! The tree of `--tree`: the wires by which one packet of a root reaches all of its members.

use std::fmt::Write as _;

use anyhow::Result;
use ringbell_mesh::PLACES;
use ringbell_routes::check::{check_sums, check_trees, CheckedTrees, Refused};
use ringbell_routes::proof::Proof;
use ringbell_routes::tables::Tables;
use ringbell_routes::topology::{Link, NodeId, Topology};
use ringbell_routes::tree::Tree;
use ringbell_routes::trees::Trees;
use serde::Serialize;

use super::args::Args;
use super::refused::refused;

/// A tree, and those of all roots, which the checker has accepted.
pub(super) struct Accepted {
    pub(super) tree: Tree,
    trees: Trees,
    checked: CheckedTrees,
    /// Dependencies of sums that go up the trees.
    sums: usize,
    /// Wires that packets to each member by itself cross.
    singly: usize,
    deepest: usize,
}

/// The JSON object of the tree.
#[derive(Serialize)]
pub(super) struct Json {
    root: String,
    members: Vec<String>,
    channel: Option<u8>,
    /// The links that a packet takes, each once: `[from, to]`.
    links: Vec<[String; 2]>,
    /// Wires that packets to each member by itself cross.
    singly: usize,
    deepest: usize,
    /// Channels of the trees of all roots, and their order, which stands before that of the tables.
    channels: Vec<u8>,
    order: Vec<String>,
    dependencies: usize,
    /// The same of sums, which go up the trees.
    sum_dependencies: usize,
}

/// The tree that was asked for, if one was.
pub(super) fn accepted(
    args: &Args,
    topology: &Topology,
    tables: &Tables,
    proof: &Proof,
) -> Result<Option<Accepted>> {
    let Some(root) = &args.tree else {
        return Ok(None);
    };
    let end = |name: &str| {
        let node = topology.node_named(name);
        node.filter(|n| topology.ends().any(|e| e == *n))
            .ok_or_else(|| {
                refused(
                    format!("no NIC of {} is named {name}", topology.name()),
                    "`ringbell routes TOPOLOGY` lists the nodes with their wires",
                )
            })
    };
    let root = end(root)?;
    let members: Vec<NodeId> = match args.members.is_empty() {
        true => topology.ends().collect(),
        false => args.members.iter().map(|m| end(m)).collect::<Result<_>>()?,
    };
    let trees = Trees::of(topology, tables, proof, args.channels).map_err(|why| {
        refused(
            format!("{}: {why}", topology.name()),
            "give more --channels, or take --algorithm layered",
        )
    })?;
    let wrong = |why: Refused| {
        refused(
            format!("{}: {}", topology.name(), why.text(topology)),
            "do not load these tables; `ringbell routes` without --table makes others",
        )
    };
    let channels = args.channels;
    let checked = check_trees(topology, tables, proof, &trees, channels).map_err(wrong)?;
    let sums = check_sums(topology, tables, proof, &trees, channels, PLACES).map_err(wrong)?;
    let tree = Tree::of(topology, tables, root, members);
    let each = |m: &NodeId| tables.path(topology, root, *m).count();
    let depth = |m: &NodeId| tree.depth(topology, *m);
    Ok(Some(Accepted {
        singly: tree.members().iter().map(each).sum(),
        deepest: tree.members().iter().map(depth).max().unwrap_or(0),
        tree,
        trees,
        checked,
        sums,
    }))
}

impl Accepted {
    /// The line that says what the tree saves.
    pub(super) fn summary(&self, t: &Topology) -> String {
        let channel = self.trees.channel(self.tree.root()).unwrap_or_default();
        format!(
            "of {} to {} members in channel {channel}: {} wires, each once, {} deep; {} when each \
             member has its own packet",
            name(t, self.tree.root()),
            self.tree.members().len(),
            self.tree.links().count(),
            self.deepest,
            self.singly
        )
    }

    /// The line of the proof for the trees of all roots.
    pub(super) fn proof(&self) -> String {
        let numbers: Vec<_> = self.trees.channels.iter().map(u8::to_string).collect();
        format!(
            "channels {} for {} roots; no circle: each of {} channels waits only for later ones",
            numbers.join(", "),
            self.checked.roots,
            self.checked.channels
        )
    }

    /// The line of the sums that go up the trees.
    pub(super) fn sums(&self) -> String {
        format!(
            "up the trees in the same channels: a place for each of {} segments of each \
             neighbour, so that none waits in a channel; no circle with {} dependencies more",
            PLACES.reserved, self.sums
        )
    }

    /// The tree, each node below the one from which it has its copy.
    pub(super) fn drawn(&self, t: &Topology, out: &mut String) {
        let mut open: Vec<(NodeId, Option<Link>, usize)> = vec![(self.tree.root(), None, 0)];
        while let Some((node, by, depth)) = open.pop() {
            let by = by.map_or(String::new(), |l| format!("  by {}", t.link_text(l)));
            // Writing to a string cannot fail.
            let _ = writeln!(out, "  {:1$}{2}{by}", "", 2 * depth, name(t, node));
            let mut down: Vec<Link> = self.tree.down(t, node).collect();
            down.reverse();
            let below = down.iter().map(|l| (t.to(*l).node, Some(*l), depth + 1));
            open.extend(below);
        }
    }

    /// Whether a wire is of the tree.
    pub(super) fn has(&self, wire: usize) -> bool {
        self.tree.links().any(|l| l.wire() == wire)
    }

    /// The JSON object.
    pub(super) fn json(&self, t: &Topology) -> Json {
        let ends = |l: Link| [t.from(l), t.to(l)].map(|p| t.port_text(p));
        Json {
            root: name(t, self.tree.root()).into(),
            members: (self.tree.members().iter())
                .map(|m| name(t, *m).into())
                .collect(),
            channel: self.trees.channel(self.tree.root()),
            links: self.tree.links().map(ends).collect(),
            singly: self.singly,
            deepest: self.deepest,
            channels: self.trees.channels.clone(),
            order: self.trees.order.iter().map(|c| c.text(t)).collect(),
            dependencies: self.checked.dependencies,
            sum_dependencies: self.sums,
        }
    }
}

fn name(t: &Topology, node: NodeId) -> &str {
    &t.nodes()[node.index()].name
}
