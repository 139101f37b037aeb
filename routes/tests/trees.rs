//! Trees: one packet reaches all members, each wire once, and copies never stop for ever.
//!
//! What the checker says is compared with a search of everything, and with packets that are moved
//! at random in channels of one slot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ringbell_routes::check::{check_sums, check_trees, Places, Refused};
use ringbell_routes::route::{route, route_by, Algorithm, Routes, MAX_CHANNELS};
use ringbell_routes::tables::{Channel, Class};
use ringbell_routes::topology::{NodeId, Topology};
use ringbell_routes::tree::Tree;
use ringbell_routes::trees::{Trees, TreesError};

use crate::common::{network, random_network, Random, GENERATED};

/// Layered routes of a network, with the trees of all roots.
fn made(topology: &Topology) -> (Routes, Trees) {
    let routes = route_by(topology, MAX_CHANNELS, Algorithm::Layered).expect("channels suffice");
    let trees = Trees::of(topology, &routes.tables, &routes.proof, MAX_CHANNELS);
    (routes, trees.expect("channels suffice"))
}

fn judge(topology: &Topology, routes: &Routes, trees: &Trees) -> Result<(), Refused> {
    let (tables, proof) = (&routes.tables, &routes.proof);
    check_trees(topology, tables, proof, trees, MAX_CHANNELS).map(|_| ())
}

#[test]
fn every_member_has_one_copy_and_no_wire_two() {
    let mut random = Random::new(5);
    for name in GENERATED {
        let topology = network(name);
        let (routes, trees) = made(&topology);
        let checked = check_trees(
            &topology,
            &routes.tables,
            &routes.proof,
            &trees,
            MAX_CHANNELS,
        );
        let checked = checked.unwrap_or_else(|e| panic!("{name}: {}", e.text(&topology)));
        let mut wires = 0;
        for root in topology.ends() {
            for some in [false, true] {
                let members = topology.ends().filter(|_| !some || random.below(3) == 0);
                let members: BTreeSet<NodeId> = members.filter(|m| *m != root).collect();
                let tree = Tree::of(&topology, &routes.tables, root, members.iter().copied());
                // A packet goes as the tree says; each node that is reached is reached once.
                let mut reached = BTreeSet::from([root]);
                let mut crossed = BTreeSet::new();
                let mut open = vec![root];
                while let Some(at) = open.pop() {
                    for link in tree.down(&topology, at) {
                        assert!(crossed.insert(link.wire()), "{name}: a wire twice");
                        let next = topology.to(link).node;
                        assert!(reached.insert(next), "{name}: a node twice");
                        open.push(next);
                    }
                }
                assert!(members.is_subset(&reached), "{name}");
                assert_eq!(crossed.len(), tree.links().count());
                // What ends a branch is a member: no copy goes where none is wanted.
                for node in reached.iter().filter(|n| **n != root) {
                    let is_leaf = tree.down(&topology, *node).next().is_none();
                    assert!(!is_leaf || members.contains(node), "{name}");
                }
                if !some {
                    wires += crossed.len();
                }
            }
        }
        assert_eq!(
            checked.wires, wires,
            "{name}: the checker walks other trees"
        );
    }
}

#[test]
fn planted_faults_of_trees_are_found_and_named() {
    let topology = network("ring:5");
    let (routes, sound) = made(&topology);
    assert_eq!(judge(&topology, &routes, &sound), Ok(()));
    let refused = |change: &dyn Fn(&mut Trees)| {
        let mut trees = sound.clone();
        change(&mut trees);
        judge(&topology, &routes, &trees).expect_err("a fault was planted")
    };
    // The trees of a ring's roots in one channel: round the ring.
    let circle = refused(&|t| t.layer.fill(0));
    let Refused::Circle(circle) = circle else {
        panic!("{circle:?}");
    };
    assert_eq!(circle.0.len(), 5);
    assert!(circle.0.iter().all(|c| c.number == sound.channels[0]));
    // An order that says the contrary, and one that lacks a channel.
    for change in [(|t: &mut Trees| t.order.reverse()) as fn(&mut Trees), |t| {
        t.order.truncate(t.order.len() - 1)
    }] {
        let why = refused(&change);
        assert!(matches!(why, Refused::NotProved { .. }), "{why:?}");
    }
    let twice = refused(&|t| t.order.push(t.order[0]));
    assert!(matches!(twice, Refused::NoProof { .. }), "{twice:?}");
    // A tree on a channel of requests, on one that is not there, and on one that no NIC has.
    let root = NodeId(3);
    let shared = refused(&|t| {
        t.channels.push(0);
        t.layer[root.index()] = t.channels.len() as u8 - 1;
    });
    assert_eq!(shared, Refused::TreeInTables { root, number: 0 });
    let none = refused(&|t| t.layer[root.index()] = 9);
    assert_eq!(none, Refused::NoTreeChannel { root, layer: 9 });
    assert!(none
        .text(&topology)
        .contains("the tree of n3 is in layer 9"));
    let (needed, available) = (usize::from(u8::MAX) + 1, MAX_CHANNELS);
    let many = refused(&|t| t.channels[0] = u8::MAX);
    assert_eq!(many, Refused::TooManyChannels { needed, available });
}

#[test]
fn bubble_channels_and_wires_with_too_few_channels_take_no_trees() {
    let topology = network("torus:3x4");
    let bubble = route_by(&topology, 2, Algorithm::Bubble).expect("a torus");
    let refused = Trees::of(&topology, &bubble.tables, &bubble.proof, MAX_CHANNELS);
    assert_eq!(refused, Err(TreesError::Bubble));
    // Trees that something else has made for them: the checker refuses them, too.
    let (_, others) = made(&topology);
    assert_eq!(judge(&topology, &bubble, &others), Err(Refused::BubbleTree));
    let topology = network("ring:8");
    let routes = route(&topology, 8).expect("eight suffice");
    let trees = |channels| Trees::of(&topology, &routes.tables, &routes.proof, channels);
    assert!(trees(6).is_ok());
    let (tables, needed, available) = (4, 2, 5);
    assert_eq!(
        trees(5),
        Err(TreesError::TooManyChannels {
            tables,
            needed,
            available
        })
    );
}

#[test]
fn sums_have_a_place_for_what_is_granted_or_are_refused() {
    for name in GENERATED {
        let topology = network(name);
        let (routes, trees) = made(&topology);
        let judge = |granted, reserved| {
            let (tables, proof) = (&routes.tables, &routes.proof);
            let places = Places { granted, reserved };
            check_sums(&topology, tables, proof, &trees, MAX_CHANNELS, places)
        };
        // Each link of each tree: its own end, its partner, and the child's places.
        let links: usize = topology
            .ends()
            .map(|r| {
                Tree::of(&topology, &routes.tables, r, topology.ends())
                    .links()
                    .count()
            })
            .sum();
        assert_eq!(judge(4, 4), Ok(3 * links), "{name}");
        let refused = judge(5, 4).unwrap_err();
        assert!(
            matches!(
                refused,
                Refused::SumCircle {
                    granted: 5,
                    places: 4,
                    ..
                }
            ),
            "{name}: {}",
            refused.text(&topology)
        );
    }
    let topology = network("ring:5");
    let (routes, mut trees) = made(&topology);
    let refused = |trees: &Trees| {
        let (tables, proof) = (&routes.tables, &routes.proof);
        let places = Places {
            granted: 4,
            reserved: 4,
        };
        check_sums(&topology, tables, proof, trees, MAX_CHANNELS, places).unwrap_err()
    };
    // A sum that shares a channel with packets of the tables waits behind those.
    trees.channels[0] = 0;
    assert!(matches!(
        refused(&trees),
        Refused::TreeInTables { number: 0, .. }
    ));
}

/// Whether copies can wait for each other in a circle: by removing, again and again, what waits for
/// nothing.
fn has_circle(topology: &Topology, routes: &Routes, trees: &Trees) -> bool {
    let mut waits: BTreeMap<(usize, u8), BTreeSet<(usize, u8)>> = BTreeMap::new();
    for root in topology.ends() {
        let number = trees.channel(root).expect("a channel");
        let tree = Tree::of(topology, &routes.tables, root, topology.ends());
        for link in tree.links() {
            let on = waits.entry((link.index(), number)).or_default();
            let down = tree.down(topology, topology.to(link).node);
            on.extend(down.map(|l| (l.index(), number)));
        }
    }
    loop {
        let free = waits.iter().find(|(_, on)| on.is_empty());
        let Some(free) = free.map(|(c, _)| *c) else {
            return !waits.is_empty();
        };
        waits.remove(&free);
        for on in waits.values_mut() {
            on.remove(&free);
        }
    }
}

#[test]
fn changed_channels_of_trees_are_refused_exactly_where_a_circle_closes() {
    let mut random = Random::new(8);
    let (mut circles, mut others) = (0, 0);
    for _ in 0..300 {
        let topology = random_network(&mut random, 14);
        let (routes, mut trees) = made(&topology);
        // One more channel, so that there is always another one.
        let next = trees.channels.last().map_or(0, |c| c + 1);
        trees.channels.push(next);
        let roots: Vec<NodeId> = topology.ends().collect();
        for _ in 0..1 + random.below(3) {
            let root = roots[random.below(roots.len())];
            trees.layer[root.index()] = random.below(trees.channels.len()) as u8;
        }
        if random.below(3) == 0 {
            trees.layer.fill(0);
        }
        let said = judge(&topology, &routes, &trees);
        let circle = has_circle(&topology, &routes, &trees);
        assert_eq!(matches!(said, Err(Refused::Circle(_))), circle, "{said:?}");
        circles += usize::from(circle);
        others += usize::from(!circle);
    }
    assert!(circles > 10 && others > 10, "{circles}, {others}");
}

/// A packet in a slot.
#[derive(Clone)]
enum Packet {
    /// The copy of a root's multicast; links that have still to take theirs.
    Copy {
        root: NodeId,
        left: Vec<Channel>,
        /// This node has taken its own, and has its acknowledgement sent.
        taken: bool,
    },
    /// An acknowledgement to a root, from a member.
    Answer(NodeId, NodeId),
}

/// Channels of one slot.
struct World<'a> {
    topology: &'a Topology,
    routes: &'a Routes,
    trees: &'a Trees,
    slots: BTreeMap<Channel, Packet>,
    /// By node: multicasts to be sent, and the links that the first of them has still to take.
    waiting: Vec<VecDeque<Vec<Channel>>>,
}

impl World<'_> {
    fn tree(&self, root: NodeId) -> Tree {
        Tree::of(
            self.topology,
            &self.routes.tables,
            root,
            self.topology.ends(),
        )
    }

    fn down(&self, root: NodeId, at: NodeId) -> Vec<Channel> {
        let number = self.trees.channel(root).expect("a channel");
        let tree = self.tree(root);
        let down = tree.down(self.topology, at);
        down.map(|link| Channel { link, number }).collect()
    }

    fn arrive(&self, root: NodeId, channel: Channel) -> Packet {
        let at = self.topology.to(channel.link).node;
        Packet::Copy {
            root,
            left: self.down(root, at),
            taken: !self.topology.ends().any(|e| e == at),
        }
    }

    /// Puts copies into the channels that are free.
    fn spread(&mut self, root: NodeId, left: &mut Vec<Channel>) -> bool {
        let free = left.iter().position(|c| !self.slots.contains_key(c));
        let Some(free) = free else { return false };
        let channel = left.remove(free);
        let copy = self.arrive(root, channel);
        self.slots.insert(channel, copy);
        true
    }

    fn answer(&mut self, from: NodeId, at: NodeId, to: NodeId) -> bool {
        let tables = &self.routes.tables;
        let number = tables.channel(Class::Acknowledgement, tables.layer(from, to));
        let port = tables.next(at, to).expect("a route");
        let channel = Channel {
            link: self.topology.link(at, port).expect("a wire"),
            number: number.expect("a channel"),
        };
        let free = !self.slots.contains_key(&channel);
        if free {
            self.slots.insert(channel, Packet::Answer(from, to));
        }
        free
    }

    fn send(&mut self, node: NodeId) -> bool {
        let Some(mut left) = self.waiting[node.index()].pop_front() else {
            return false;
        };
        let sent = self.spread(node, &mut left);
        if !left.is_empty() {
            self.waiting[node.index()].push_front(left);
        }
        sent
    }

    /// Moves what stands in a channel, if it can.
    fn forward(&mut self, channel: Channel) -> bool {
        let Some(packet) = self.slots.get(&channel).cloned() else {
            return false;
        };
        let at = self.topology.to(channel.link).node;
        match packet {
            Packet::Answer(from, to) => {
                let moved = at == to || self.answer(from, at, to);
                if moved {
                    self.slots.remove(&channel);
                }
                moved
            }
            Packet::Copy {
                root,
                mut left,
                mut taken,
            } => {
                let mut moved = self.spread(root, &mut left);
                if !taken && self.answer(at, at, root) {
                    (taken, moved) = (true, true);
                }
                let done = left.is_empty() && taken;
                match done {
                    true => drop(self.slots.remove(&channel)),
                    false => drop(
                        self.slots
                            .insert(channel, Packet::Copy { root, left, taken }),
                    ),
                }
                moved || done
            }
        }
    }
}

/// Whether `each` multicasts of every root arrive.
fn drains(
    topology: &Topology,
    (routes, trees): (&Routes, &Trees),
    each: usize,
    random: &mut Random,
) -> bool {
    let mut world = World {
        topology,
        routes,
        trees,
        slots: BTreeMap::new(),
        waiting: vec![VecDeque::new(); topology.nodes().len()],
    };
    for root in topology.ends() {
        let down = world.down(root, root);
        world.waiting[root.index()].extend(std::iter::repeat_n(down, each));
    }
    loop {
        let mut moved = false;
        for node in topology.ends() {
            moved |= random.below(2) == 0 && world.send(node);
        }
        let mut channels: Vec<Channel> = world.slots.keys().copied().collect();
        while !channels.is_empty() {
            let channel = channels.swap_remove(random.below(channels.len()));
            moved |= world.forward(channel);
            moved |= world.send(topology.from(channel.link).node);
        }
        if !moved && !topology.ends().any(|n| world.send(n)) {
            break;
        }
    }
    world.slots.is_empty() && world.waiting.iter().all(VecDeque::is_empty)
}

#[test]
fn multicasts_of_all_roots_drain_in_one_slot_and_stop_where_a_circle_is_refused() {
    let mut random = Random::new(12);
    let small = GENERATED.iter().map(|name| network(name));
    let small = small.filter(|t| t.nodes().len() <= 20);
    let mut networks: Vec<Topology> = small.collect();
    networks.extend((0..40).map(|_| random_network(&mut random, 12)));
    for topology in networks {
        let (routes, trees) = made(&topology);
        let drained = drains(&topology, (&routes, &trees), 3, &mut random);
        assert!(drained, "{}", topology.name());
    }
    for name in ["ring:5", "ring:8"] {
        let topology = network(name);
        let (routes, mut trees) = made(&topology);
        trees.layer.fill(0);
        let stopped = (0..50).filter(|_| !drains(&topology, (&routes, &trees), 6, &mut random));
        assert!(stopped.count() > 0, "{name}");
    }
}
