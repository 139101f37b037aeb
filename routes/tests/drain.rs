//! Packets in the smallest buffers: all pairs at once drain where the checker says so, and stop
//! where it names a circle.
//!
//! A channel has one slot, or two where rings need bubbles. An arrived request leaves its slot only
//! when its acknowledgement has one. Which packet moves next is drawn at random.

use std::collections::{BTreeMap, VecDeque};

use ringbell_routes::proof::{Proof, BUBBLE_FORWARDING, BUBBLE_INJECTION};
use ringbell_routes::route::{route, route_by, Algorithm};
use ringbell_routes::tables::{Channel, Class, Tables};
use ringbell_routes::topology::{NodeId, Topology};

use crate::common::{network, random_network, Random, GENERATED};

#[derive(Clone, Copy)]
struct Packet {
    class: Class,
    source: NodeId,
    destination: NodeId,
}

struct World<'a> {
    topology: &'a Topology,
    tables: &'a Tables,
    depth: usize,
    /// Channels of rings with bubbles, each with its ring.
    ring: BTreeMap<Channel, usize>,
    slots: BTreeMap<Channel, VecDeque<Packet>>,
    /// By node: what it has still to send.
    waiting: Vec<VecDeque<Packet>>,
}

impl World<'_> {
    /// The channel that a packet wants at a node.
    fn wanted(&self, at: NodeId, packet: Packet) -> Channel {
        let layer = self.tables.layer(packet.source, packet.destination);
        let number = self.tables.channel(packet.class, layer).expect("a layer");
        let port = self.tables.next(at, packet.destination).expect("a route");
        let link = self.topology.link(at, port).expect("a wire");
        Channel { link, number }
    }

    /// Puts a packet that comes from `from` into a channel, if there is room.
    fn enter(&mut self, from: Option<Channel>, to: Channel, packet: Packet) -> bool {
        let ring = |c: &Channel| self.ring.get(c);
        let moves_on = from.is_some_and(|f| ring(&f) == ring(&to));
        let needed = match ring(&to) {
            Some(_) if !moves_on => usize::from(BUBBLE_INJECTION),
            _ => usize::from(BUBBLE_FORWARDING),
        };
        let slots = self.slots.entry(to).or_default();
        if slots.len() + needed > self.depth {
            return false;
        }
        slots.push_back(packet);
        true
    }

    /// Moves the first packet of a channel, if it can.
    fn forward(&mut self, channel: Channel) -> bool {
        let Some(packet) = self.slots[&channel].front().copied() else {
            return false;
        };
        let at = self.topology.to(channel.link).node;
        let moved = match (at == packet.destination, packet.class) {
            (true, Class::Acknowledgement) => true,
            (true, Class::Request) => {
                let answer = Packet {
                    class: Class::Acknowledgement,
                    source: packet.destination,
                    destination: packet.source,
                };
                self.enter(None, self.wanted(at, answer), answer)
            }
            (false, _) => self.enter(Some(channel), self.wanted(at, packet), packet),
        };
        if moved {
            let slots = self.slots.get_mut(&channel);
            slots.and_then(VecDeque::pop_front).expect("it stood there");
        }
        moved
    }

    fn send(&mut self, node: NodeId) -> bool {
        let Some(packet) = self.waiting[node.index()].front().copied() else {
            return false;
        };
        let sent = self.enter(None, self.wanted(node, packet), packet);
        if sent {
            self.waiting[node.index()].pop_front();
        }
        sent
    }

    fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty) && self.slots.values().all(VecDeque::is_empty)
    }
}

/// Whether all pairs' packets, `each` of every pair, arrive.
fn drains(
    topology: &Topology,
    tables: &Tables,
    proof: &Proof,
    each: usize,
    random: &mut Random,
) -> bool {
    let (rings, depth) = match proof {
        Proof::Acyclic { .. } => (&[][..], 1),
        Proof::Bubble { rings } => (&rings[..], usize::from(BUBBLE_INJECTION)),
    };
    let rings = rings.iter().enumerate();
    let ring = rings.flat_map(|(r, ring)| ring.iter().map(move |c| (*c, r)));
    let mut world = World {
        topology,
        tables,
        depth,
        ring: ring.collect(),
        slots: BTreeMap::new(),
        waiting: vec![VecDeque::new(); topology.nodes().len()],
    };
    for source in topology.ends() {
        let others = topology.ends().filter(|d| *d != source);
        let mut packets: Vec<Packet> = others
            .flat_map(|destination| std::iter::repeat_n(destination, each))
            .map(|destination| Packet {
                class: Class::Request,
                source,
                destination,
            })
            .collect();
        while !packets.is_empty() {
            let next = packets.swap_remove(random.below(packets.len()));
            world.waiting[source.index()].push_back(next);
        }
    }
    // In rounds: everything is tried in a random order, the senders more eagerly than the channels.
    while !world.is_empty() {
        let mut moved = false;
        let mut nodes: Vec<NodeId> = topology.ends().collect();
        while !nodes.is_empty() {
            let node = nodes.swap_remove(random.below(nodes.len()));
            moved |= world.send(node);
        }
        let mut channels: Vec<Channel> = world.slots.keys().copied().collect();
        while !channels.is_empty() {
            let channel = channels.swap_remove(random.below(channels.len()));
            if random.below(2) == 0 {
                moved |= world.forward(channel);
                // What has become free may be taken at once.
                moved |= world.send(topology.from(channel.link).node);
            }
        }
        if !moved {
            // The draw may have left out what can move: everything is tried once more.
            let channels: Vec<Channel> = world.slots.keys().copied().collect();
            let any = channels.into_iter().any(|c| world.forward(c));
            if !any && !topology.ends().any(|n| world.send(n)) {
                return false;
            }
        }
    }
    true
}

#[test]
fn all_pairs_at_once_drain_with_the_smallest_buffers() {
    let mut random = Random::new(3);
    for name in GENERATED {
        let topology = network(name);
        let mut all = vec![route(&topology, 2)];
        // The others move the same packets; on the large networks that takes a while.
        if topology.nodes().len() <= 36 {
            all.push(route(&topology, 8));
            all.push(route_by(&topology, 2, Algorithm::Nue));
        }
        for made in all {
            let made = made.expect(name);
            let drained = drains(&topology, &made.tables, &made.proof, 1, &mut random);
            assert!(drained, "{name} by {}", made.algorithm);
        }
    }
    for _ in 0..60 {
        let topology = random_network(&mut random, 16);
        for channels in [2, 8] {
            let made = route(&topology, channels).expect("routes");
            assert!(drains(&topology, &made.tables, &made.proof, 3, &mut random));
        }
    }
}

#[test]
fn packets_stop_where_a_circle_is_refused() {
    // Shortest paths round a ring in one layer, and classes that share a channel on a bus.
    for (name, shared) in [("ring:5", false), ("ring:8", false), ("bus:3", true)] {
        let topology = network(name);
        let made = route_by(&topology, 8, Algorithm::Layered).expect("routes");
        let channels = if shared {
            [vec![0], vec![0]]
        } else {
            [vec![0], vec![1]]
        };
        let mut tables = Tables::new(topology.nodes().len(), channels);
        for a in topology.ids() {
            for b in topology.ids() {
                tables.set_next(a, b, made.tables.next(a, b));
            }
        }
        let mut random = Random::new(4);
        let stopped = (0..50).filter(|_| {
            let order = Vec::new();
            !drains(
                &topology,
                &tables,
                &Proof::Acyclic { order },
                4,
                &mut random,
            )
        });
        assert!(stopped.count() > 0, "{name}");
    }
}
