//! What a node knows of the whole network: which wires are down, and the routes around them.
//!
//! Each wire has a number that grows with each change; it is odd while the wire is down. A node
//! that learns a greater number passes it on, so that all know the same in the end. Routes are
//! computed from the original ones and the set of wires that are down, so equal knowledge gives
//! equal routes.

use ringbell_routes::check::check;
use ringbell_routes::part::Part;
use ringbell_routes::proof::{Proof, BUBBLE_INJECTION};
use ringbell_routes::route::{reroute, Routes};
use ringbell_routes::tables::{Channel, Class, Tables};
use ringbell_routes::topology::{NodeId, Topology};

/// The network as a node sees it.
#[derive(Debug)]
pub(crate) struct Network {
    topology: Topology,
    /// With all wires.
    original: Routes,
    channels: usize,
    me: NodeId,
    /// By wire.
    changes: Vec<u32>,
    /// Their sum: each turn asks for it.
    knows: u32,
    /// For the wires that are up; `None`: the original ones.
    part: Option<(Part, Routes)>,
}

impl Network {
    pub(crate) fn new(topology: Topology, routes: Routes, channels: usize, me: NodeId) -> Network {
        Network {
            changes: vec![0; topology.wires().len()],
            knows: 0,
            topology,
            original: routes,
            channels,
            me,
            part: None,
        }
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
        let down = |wire: usize| is_down(self.changes[wire]);
        self.part = None;
        if !(0..self.changes.len()).any(down) {
            return;
        }
        let lonely = Part {
            place: vec![None; self.topology.nodes().len()],
            topology: self.topology.clone(),
        };
        let part = Part::of(&self.topology, self.me, down).unwrap_or(lonely);
        let before = part.tables(&self.original.tables);
        let routes = reroute(&part.topology, self.channels, None, &before)
            .ok()
            .filter(|r| check(&part.topology, &r.tables, &r.proof, self.channels).is_ok());
        // Without routes that are proved, packets stay on the ones of before.
        let routes = routes.unwrap_or_else(|| Routes {
            tables: before,
            ..self.original.clone()
        });
        self.part = Some((part, routes));
    }

    /// Names of the wires that are missing on the way to a node that is not reached: they end at a
    /// node that is.
    pub(crate) fn missing(&self, to: NodeId) -> Vec<String> {
        let Some((part, _)) = &self.part else {
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
    fn wire_text(&self, wire: usize) -> String {
        let [a, b] = self.topology.wires()[wire].ends;
        let text = |end| self.topology.port_text(end);
        format!("{} -- {}", text(a), text(b))
    }

    /// A node's number in the tables in use, with these.
    fn place(&self, node: NodeId) -> Option<(&Tables, NodeId)> {
        match &self.part {
            None => Some((&self.original.tables, node)),
            Some((part, routes)) => Some((&routes.tables, part.place[node.index()]?)),
        }
    }

    /// The port towards a node.
    pub(crate) fn next(&self, to: NodeId) -> Option<u8> {
        let (tables, to) = self.place(to)?;
        let (_, me) = self.place(self.me)?;
        tables.next(me, to)
    }

    /// The channels of what this node sends to another, by class.
    pub(crate) fn channels(&self, to: NodeId) -> [u8; 2] {
        let found = self.place(to).zip(self.place(self.me));
        let Some(((tables, to), (_, me))) = found else {
            return [0; 2];
        };
        let layer = tables.layer(me, to);
        Class::ALL.map(|class| tables.channel(class, layer).unwrap_or(0))
    }

    /// Whether a packet in a channel enters a ring when it goes from one port of this node (`None`:
    /// from the node itself) to another, and what it needs for that.
    pub(crate) fn slots(&self, from: Option<u8>, to: u8, channel: u8) -> u32 {
        let (topology, routes, me) = match &self.part {
            None => (&self.topology, &self.original, Some(self.me)),
            Some((part, routes)) => (&part.topology, routes, part.place[self.me.index()]),
        };
        let (Proof::Bubble { rings }, Some(me)) = (&routes.proof, me) else {
            return 1;
        };
        let leaving = |port| topology.link(me, port);
        let ring = |link| {
            let number = channel;
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
