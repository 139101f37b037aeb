//! What a node knows of the whole network: which wires are down, and the routes around them.
//!
//! Each wire has a number that grows with each change; it is odd while the wire is down. A node
//! that learns a greater number passes it on, so that all know the same in the end. Routes are
//! computed from the original ones and the set of wires that are down, so equal knowledge gives
//! equal routes.

use std::sync::Arc;

use ringbell_routes::check::check;
use ringbell_routes::part::Part;
use ringbell_routes::proof::{Proof, BUBBLE_INJECTION};
use ringbell_routes::route::{reroute, Routes};
use ringbell_routes::tables::{Channel, Class, Tables};
use ringbell_routes::topology::{NodeId, Role, Topology};
use ringbell_routes::tree::Tree;
use ringbell_routes::trees::Trees;

use crate::plan::Id;
use crate::sound::{trees, SoundRoutes};

/// Tables on channels of their own.
#[derive(Debug)]
struct Laid {
    id: Id,
    /// With all wires.
    original: Arc<Routes>,
    /// For the wires that are up; `None`: the original ones.
    part: Option<(Part, Routes)>,
    /// Of the routes in use; `None`: they leave no channel for trees, or have bubbles.
    trees: Option<Arc<Trees>>,
}

impl Laid {
    /// Channels of a wire that they use, with all wires and without those that are down.
    fn channels(&self) -> usize {
        let part = self
            .part
            .as_ref()
            .map_or(0, |(_, r)| r.tables.channel_count());
        part.max(self.original.tables.channel_count())
    }
}

/// The network as a node sees it.
#[derive(Debug)]
pub(crate) struct Network {
    topology: Topology,
    /// By half of the channels. Before tables were replaced, the first has all of them.
    laid: [Option<Laid>; 2],
    /// The half of what this node sends.
    used: usize,
    /// The first channel of the second half.
    split: usize,
    channels: usize,
    me: NodeId,
    /// By wire.
    changes: Vec<u32>,
    /// Their sum: each turn asks for it.
    knows: u32,
}

/// What a node does with what goes by a root's tree.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) channel: u8,
    /// The port by which it comes; none at the root.
    pub(crate) up: Option<u8>,
    /// The ports by which it leaves.
    pub(crate) down: Vec<u8>,
    /// The node takes a copy itself.
    pub(crate) ends_here: bool,
}

/// Whether requests and acknowledgements share no channel. Others could wait for each other from
/// one half to the other.
fn has_classes_apart(routes: &Routes) -> bool {
    let [requests, answers] = Class::ALL.map(|c| routes.tables.channels(c));
    requests.iter().all(|c| !answers.contains(c))
}

impl Network {
    /// With the routes of its start, of wires of so many channels.
    pub(crate) fn new(
        topology: Topology,
        sound: &SoundRoutes,
        channels: usize,
        me: NodeId,
    ) -> Network {
        Network {
            changes: vec![0; topology.wires().len()],
            knows: 0,
            laid: [
                Some(Laid {
                    id: Id::default(),
                    trees: sound.trees.clone(),
                    original: sound.routes.clone(),
                    part: None,
                }),
                None,
            ],
            topology,
            used: 0,
            split: channels,
            channels,
            me,
        }
    }

    /// The half of a channel.
    #[inline]
    pub(crate) fn half(&self, channel: usize) -> usize {
        usize::from(channel >= self.split)
    }

    /// The first channel of the second half.
    pub(crate) fn split(&self) -> usize {
        self.split
    }

    /// The digest of the tables by which this node sends, and their channels: the first, and one
    /// after the last.
    pub(crate) fn in_use(&self) -> (u64, usize, usize) {
        let digest = |laid: &Laid| laid.original.tables.digest();
        let digest = self.laid[self.used].as_ref().map_or(0, digest);
        match self.used {
            0 => (digest, 0, self.split),
            _ => (digest, self.split, self.channels),
        }
    }

    /// The half by which this node does not send.
    pub(crate) fn spare(&self) -> usize {
        1 - self.used
    }

    /// The mark of packets in a half; `None`: there are no tables for it.
    #[inline]
    pub(crate) fn mark(&self, half: usize) -> Option<u8> {
        self.laid[half].as_ref().map(|laid| laid.id.mark())
    }

    /// The mark of what this node sends.
    #[inline]
    pub(crate) fn own_mark(&self) -> u8 {
        self.mark(self.used).unwrap_or_default()
    }

    /// Channels of a half when there are two.
    fn channels_of(&self, half: usize) -> (usize, usize) {
        let split = self.channels / 2;
        match half {
            0 => (split, split),
            _ => (split, self.channels - split),
        }
    }

    /// Whether tables fit beside those in use, on channels of their own.
    ///
    /// # Errors
    /// The reason, in words.
    pub(crate) fn fits(&self, routes: &Routes) -> Result<(), String> {
        let (spare, used) = (self.spare(), self.used);
        let in_use = self.laid[used].as_ref();
        let needs = [
            (spare, "the new tables", routes.tables.channel_count()),
            (used, "those in use", in_use.map_or(0, Laid::channels)),
        ];
        for (half, which, needed) in needs {
            let (_, there) = self.channels_of(half);
            if needed > there {
                return Err(format!(
                    "{which} need {needed} channels, and beside others there are {there} of {}; open the NICs with more channels",
                    self.channels
                ));
            }
        }
        let all_apart = in_use.is_none_or(|l| has_classes_apart(&l.original));
        match all_apart && has_classes_apart(routes) {
            true => Ok(()),
            false => Err("requests and acknowledgements share a channel in the new tables or in those in use, which cannot stand beside others".into()),
        }
    }

    /// Lays tables on the channels of a half, which hold no packet.
    pub(crate) fn lay(&mut self, id: Id, routes: Routes) {
        let half = id.half();
        (self.split, _) = self.channels_of(half);
        self.laid[half] = Some(Laid {
            id,
            original: Arc::new(routes),
            part: None,
            trees: None,
        });
        self.reroute();
    }

    /// Whether these tables have their channels.
    pub(crate) fn has(&self, id: Id) -> bool {
        self.laid[id.half()].as_ref().is_some_and(|l| l.id == id)
    }

    /// This node sends by the tables of a half from now on.
    pub(crate) fn switch(&mut self, half: usize) {
        self.used = half;
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Changes of all wires: what is compared with neighbours.
    pub(crate) fn changes(&self) -> &[u32] {
        &self.changes
    }

    /// Their sum, which is greater at the node that knows more.
    #[inline]
    pub(crate) fn knows(&self) -> u32 {
        self.knows
    }

    /// Names of the wires that are down.
    pub(crate) fn down(&self) -> impl Iterator<Item = String> + '_ {
        let down = (0..self.changes.len()).filter(|w| is_down(self.changes[*w]));
        down.map(|wire| self.wire_text(wire))
    }

    /// The wire of a port of this node is down or up. Returns whether that is new.
    pub(crate) fn set(&mut self, port: u8, down: bool) -> bool {
        let Some(link) = self.topology.link(self.me, port) else {
            return false;
        };
        let changes = &mut self.changes[link.wire()];
        let is_new = is_down(*changes) != down;
        if is_new {
            *changes = changes.wrapping_add(1);
            self.knows = self.knows.wrapping_add(1);
        }
        is_new
    }

    /// A neighbour knows this much, from a wire's number on. Returns whether that is new.
    pub(crate) fn merge(&mut self, first: usize, changes: &[u32]) -> bool {
        let own = self.changes.iter_mut().skip(first);
        let mut is_new = false;
        for (own, other) in own.zip(changes) {
            // No wire changes this often; a hostile neighbour must not exhaust the numbers.
            let ahead = other.wrapping_sub(*own);
            if (1..=1 << 20).contains(&ahead) {
                *own = *other;
                self.knows = self.knows.wrapping_add(ahead);
                is_new = true;
            }
        }
        is_new
    }

    /// Computes the routes for the wires that are up.
    pub(crate) fn reroute(&mut self) {
        let changes = &self.changes;
        let down = |wire: usize| is_down(changes[wire]);
        let is_whole = !(0..changes.len()).any(down);
        let channels = match self.split == self.channels {
            true => [self.channels; 2],
            false => [self.split, self.channels - self.split],
        };
        for (laid, channels) in self.laid.iter_mut().zip(channels) {
            let Some(laid) = laid else { continue };
            laid.part = None;
            if is_whole {
                laid.trees = trees(&self.topology, &laid.original, channels);
                continue;
            }
            let lonely = Part {
                place: vec![None; self.topology.nodes().len()],
                topology: self.topology.clone(),
            };
            let part = Part::of(&self.topology, self.me, down).unwrap_or(lonely);
            let before = part.tables(&laid.original.tables);
            let routes = reroute(&part.topology, channels, None, &before)
                .ok()
                .filter(|r| check(&part.topology, &r.tables, &r.proof, channels).is_ok());
            // Without routes that are proved, packets stay on the ones of before.
            let routes = routes.unwrap_or_else(|| Routes {
                tables: before,
                ..Routes::clone(&laid.original)
            });
            laid.trees = trees(&part.topology, &routes, channels);
            laid.part = Some((part, routes));
        }
    }

    /// What this node does with what goes by the tree of another, or by its own, in the channels of
    /// a half.
    pub(crate) fn branch(&self, half: usize, root: NodeId) -> Option<Branch> {
        let laid = self.laid[half].as_ref()?;
        let topology = match &laid.part {
            None => &self.topology,
            Some((part, _)) => &part.topology,
        };
        let (tables, root) = self.place(half, root)?;
        let (_, me) = self.place(half, self.me)?;
        let has_rank = |node: NodeId| topology.nodes()[node.index()].role == Role::End;
        let channel = laid.trees.as_ref()?.channel(root)?;
        if !has_rank(root) {
            return None;
        }
        let tree = Tree::of(topology, tables, root, topology.ends());
        let up = tree.up(me).map(|l| topology.from(l).port);
        Some(Branch {
            channel: self.first(half) + channel,
            up,
            down: tree
                .down(topology, me)
                .map(|l| topology.from(l).port)
                .collect(),
            ends_here: up.is_some() && has_rank(me),
        })
    }

    /// Names of the wires that are missing on the way to a node that is not reached: they end at a
    /// node that is.
    pub(crate) fn missing(&self, to: NodeId) -> Vec<String> {
        let used = self.laid[self.used].as_ref();
        let Some((part, _)) = used.and_then(|laid| laid.part.as_ref()) else {
            return Vec::new();
        };
        let mut seen = vec![false; self.topology.nodes().len()];
        let mut next = vec![to];
        let mut missing = Vec::new();
        while let Some(node) = next.pop() {
            if std::mem::replace(&mut seen[node.index()], true) {
                continue;
            }
            for link in self.topology.leaving(node) {
                let other = self.topology.to(link).node;
                match part.place[other.index()] {
                    Some(_) => missing.push(link.wire()),
                    // All its wires are down: its part has no places.
                    None if other == self.me => missing.push(link.wire()),
                    None => next.push(other),
                }
            }
        }
        missing.sort_unstable();
        missing.dedup();
        missing
            .into_iter()
            .map(|wire| self.wire_text(wire))
            .collect()
    }

    /// A wire's name.
    pub(crate) fn wire_text(&self, wire: usize) -> String {
        let [a, b] = self.topology.wires()[wire].ends;
        let text = |end| self.topology.port_text(end);
        format!("{} -- {}", text(a), text(b))
    }

    /// A node's number in the tables of a half, with these.
    fn place(&self, half: usize, node: NodeId) -> Option<(&Tables, NodeId)> {
        let laid = self.laid[half].as_ref()?;
        match &laid.part {
            None => Some((&laid.original.tables, node)),
            Some((part, routes)) => Some((&routes.tables, part.place[node.index()]?)),
        }
    }

    /// The port towards a node, for packets of a half.
    pub(crate) fn next_in(&self, half: usize, to: NodeId) -> Option<u8> {
        let (tables, to) = self.place(half, to)?;
        let (_, me) = self.place(half, self.me)?;
        tables.next(me, to)
    }

    /// The port towards a node.
    pub(crate) fn next(&self, to: NodeId) -> Option<u8> {
        self.next_in(self.used, to)
    }

    /// The first channel of a half.
    fn first(&self, half: usize) -> u8 {
        // At most 128.
        (half * self.split) as u8
    }

    /// The channels of what this node sends to another, by class.
    pub(crate) fn channels(&self, to: NodeId) -> [u8; 2] {
        let half = self.used;
        let found = self.place(half, to).zip(self.place(half, self.me));
        let first = self.first(half);
        let Some(((tables, to), (_, me))) = found else {
            return [first; 2];
        };
        let layer = tables.layer(me, to);
        Class::ALL.map(|class| first + tables.channel(class, layer).unwrap_or(0))
    }

    /// Whether a packet in a channel enters a ring when it goes from one port of this node (`None`:
    /// from the node itself) to another, and what it needs for that.
    pub(crate) fn slots(&self, from: Option<u8>, to: u8, channel: u8) -> u32 {
        let half = self.half(channel.into());
        let Some(laid) = &self.laid[half] else {
            return 1;
        };
        let (topology, routes, me) = match &laid.part {
            None => (&self.topology, &*laid.original, Some(self.me)),
            Some((part, routes)) => (&part.topology, routes, part.place[self.me.index()]),
        };
        let (Proof::Bubble { rings }, Some(me)) = (&routes.proof, me) else {
            return 1;
        };
        let leaving = |port| topology.link(me, port);
        let ring = |link| {
            let number = channel - self.first(half);
            rings
                .iter()
                .position(|r| r.contains(&Channel { link, number }))
        };
        let before = from.and_then(leaving).map(|l| l.back()).and_then(ring);
        let after = leaving(to).and_then(ring);
        match after.is_some() && before == after {
            true => 1,
            false => BUBBLE_INJECTION.into(),
        }
    }
}

/// Whether a wire of so many changes is down.
fn is_down(changes: u32) -> bool {
    changes % 2 == 1
}
