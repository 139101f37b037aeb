//! Tables with one entry changed at random: what the checker accepts is valid by a search of
//! everything, and what it refuses is not.
//!
//! The search is a third program: it shares with the checker only how tables and topologies are
//! read. It closes the relation of dependencies under transitivity (Warshall).

use ringbell_routes::check::{check, check_unproved, Refused};
use ringbell_routes::proof::Proof;
use ringbell_routes::route::{route_by, Algorithm};
use ringbell_routes::tables::{Channel, Class, Tables};
use ringbell_routes::topology::{NodeId, Topology};

use crate::common::{network, random_network, Random, GENERATED};

/// A set of numbers for each of some numbers.
struct Relation {
    rows: Vec<Vec<u64>>,
}

impl Relation {
    fn new(n: usize) -> Relation {
        let rows = vec![vec![0; n.div_ceil(64)]; n];
        Relation { rows }
    }

    fn add(&mut self, a: usize, b: usize) {
        self.rows[a][b / 64] |= 1 << (b % 64);
    }

    fn has(&self, a: usize, b: usize) -> bool {
        self.rows[a][b / 64] >> (b % 64) & 1 == 1
    }

    /// Whether any number leads back to itself.
    fn has_circle(&mut self) -> bool {
        for k in 0..self.rows.len() {
            let through = self.rows[k].clone();
            for a in 0..self.rows.len() {
                if self.has(a, k) {
                    let words = self.rows[a].iter_mut().zip(&through);
                    words.for_each(|(word, more)| *word |= more);
                }
            }
        }
        (0..self.rows.len()).any(|a| self.has(a, a))
    }
}

/// What a search of all pairs and all dependencies says. `rings`: links of one straight line that
/// the bubble condition frees are taken as one.
fn is_valid(topology: &Topology, tables: &Tables, rings: bool) -> bool {
    let most = tables.channel_count().max(1);
    let mut between = Relation::new(2 * topology.wires().len() * most);
    let ends: Vec<NodeId> = topology.ends().collect();
    let mut all = Vec::new();
    for class in Class::ALL {
        for s in &ends {
            for d in ends.iter().filter(|d| *d != s) {
                let mut way = Vec::new();
                let mut at = *s;
                let Some(channel) = tables.channel(class, tables.layer(*s, *d)) else {
                    return false;
                };
                while at != *d {
                    let port = tables.next(at, *d);
                    let Some(link) = port.and_then(|p| topology.link(at, p)) else {
                        return false;
                    };
                    way.push((at, port, link.index() * most + usize::from(channel)));
                    at = topology.to(link).node;
                    if way.len() > topology.nodes().len() {
                        return false;
                    }
                }
                all.push((class, *s, *d, way));
            }
        }
    }
    // Straight on in a dimension, by the same port, is what the bubble condition frees.
    let mut group: Vec<usize> = (0..between.rows.len()).collect();
    if rings {
        for link in topology.links() {
            let to = topology.to(link).node;
            let Some(next) = topology.link(to, topology.from(link).port) else {
                return false;
            };
            for c in 0..most {
                let (a, b) = (
                    group[link.index() * most + c],
                    group[next.index() * most + c],
                );
                group.iter_mut().filter(|g| **g == b).for_each(|g| *g = a);
            }
        }
    }
    for (class, s, d, way) in &all {
        for pair in way.windows(2) {
            let (a, b) = (group[pair[0].2], group[pair[1].2]);
            let straight = rings && pair[0].1 == pair[1].1;
            if !straight {
                between.add(a, b);
            }
        }
        if *class == Class::Request {
            let back = all
                .iter()
                .find(|(c, from, to, _)| (*c, from, to) == (Class::Acknowledgement, d, s));
            let (_, _, _, answer) = back.expect("all pairs");
            between.add(group[way[way.len() - 1].2], group[answer[0].2]);
        }
    }
    !between.has_circle()
}

/// Changes one entry: a port, at a random place of a random way, or a layer or channel.
fn change(random: &mut Random, topology: &Topology, tables: &mut Tables) {
    let ends: Vec<NodeId> = topology.ends().collect();
    let nodes: Vec<NodeId> = topology.ids().collect();
    let before = tables.clone();
    while *tables == before {
        let destination = ends[random.below(ends.len())];
        match random.below(10) {
            0..=5 => {
                let node = nodes[random.below(nodes.len())];
                if node == destination {
                    continue;
                }
                // Mostly a port that has a wire.
                let ports = topology.leaving(node).count() + usize::from(random.below(20) == 0);
                let leaving: Vec<u8> = topology
                    .leaving(node)
                    .map(|l| topology.from(l).port)
                    .collect();
                let port = leaving.get(random.below(ports)).copied();
                tables.set_next(node, destination, port);
            }
            6..=8 => {
                let source = ends[random.below(ends.len())];
                let layers =
                    tables.channels(Class::Request).len() + usize::from(random.below(20) == 0);
                if source != destination {
                    tables.set_layer(source, destination, random.below(layers) as u8);
                }
            }
            _ => {
                let mut channels = Class::ALL.map(|c| tables.channels(c).to_vec());
                let class = &mut channels[random.below(2)];
                let layer = random.below(class.len());
                class[layer] = random.below(before.channel_count()) as u8;
                let mut other = Tables::new(tables.nodes(), channels);
                for a in topology.ids() {
                    for b in topology.ids() {
                        other.set_next(a, b, before.next(a, b));
                        other.set_layer(a, b, before.layer(a, b));
                    }
                }
                *tables = other;
            }
        }
    }
}

/// A network of at most 16 nodes and its routes; the search is of the third power.
fn small(random: &mut Random) -> Topology {
    let names: Vec<&str> = GENERATED
        .into_iter()
        .filter(|name| network(name).wires().len() <= 24)
        .collect();
    match random.below(2) {
        0 => network(names[random.below(names.len())]),
        _ => random_network(random, 10),
    }
}

#[test]
fn one_changed_entry_of_a_thousand_tables_is_refused_or_valid() {
    let mut random = Random::new(1000);
    let (mut accepted, mut refused, mut by_proof) = (0, 0, 0);
    for _ in 0..1000 {
        let topology = small(&mut random);
        let algorithm = [Algorithm::Layered, Algorithm::Nue][random.below(2)];
        let made = route_by(&topology, 8, algorithm).expect("routes");
        assert!(is_valid(&topology, &made.tables, false), "as it was made");
        let mut tables = made.tables.clone();
        change(&mut random, &topology, &mut tables);
        let valid = is_valid(&topology, &tables, false);
        // Without a proof: exactly the valid ones.
        let judged = check_unproved(&topology, &tables, 8);
        assert_eq!(
            judged.is_ok(),
            valid,
            "{judged:?} of {topology:?} {tables:?}"
        );
        // With the proof of the tables as they were: no others.
        let proved = check(&topology, &tables, &made.proof, 8);
        assert!(valid || proved.is_err());
        match (valid, proved.is_ok()) {
            (true, true) => accepted += 1,
            (true, false) => by_proof += 1,
            (false, _) => refused += 1,
        }
    }
    // The sample has each kind.
    let each = [accepted, by_proof, refused];
    assert!(each.iter().all(|n| *n > 30), "{each:?}");
}

#[test]
fn one_changed_entry_of_tables_with_bubbles_is_refused_or_valid() {
    let mut random = Random::new(1001);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..500 {
        let names = [
            "ring:4",
            "ring:5",
            "ring:8",
            "torus:2x4",
            "torus:3x3",
            "torus:2x2x2",
        ];
        let topology = network(names[random.below(names.len())]);
        let made = route_by(&topology, 2, Algorithm::Bubble).expect("routes");
        assert!(is_valid(&topology, &made.tables, true), "as it was made");
        let mut tables = made.tables.clone();
        change(&mut random, &topology, &mut tables);
        match check(&topology, &tables, &made.proof, 8) {
            Ok(_) => {
                accepted += 1;
                assert!(
                    is_valid(&topology, &tables, true),
                    "{topology:?} {tables:?}"
                );
            }
            Err(_) => refused += 1,
        }
    }
    assert!(accepted > 30 && refused > 30, "{accepted} {refused}");
}

#[test]
fn a_changed_proof_is_refused() {
    let topology = network("torus:5x5");
    let layered = route_by(&topology, 8, Algorithm::Layered).expect("routes");
    let Proof::Acyclic { order } = &layered.proof else {
        panic!("{:?}", layered.proof);
    };
    let changed = |change: &dyn Fn(&mut Vec<_>)| {
        let mut order = order.clone();
        change(&mut order);
        check(&topology, &layered.tables, &Proof::Acyclic { order }, 8)
    };
    assert!(changed(&|_| ()).is_ok());
    assert!(changed(&|o| o.reverse()).is_err());
    assert!(changed(&|o| o.truncate(o.len() - 1)).is_err());
    assert!(changed(&|o| o.push(o[0])).is_err());
    assert!(changed(&|o| o.clear()).is_err());
    let bubble = route_by(&topology, 8, Algorithm::Bubble).expect("routes");
    let Proof::Bubble { rings } = &bubble.proof else {
        panic!("{:?}", bubble.proof);
    };
    let changed = |change: &dyn Fn(&mut Vec<Vec<_>>)| {
        let mut rings = rings.clone();
        change(&mut rings);
        check(&topology, &bubble.tables, &Proof::Bubble { rings }, 8)
    };
    assert!(changed(&|_| ()).is_ok());
    assert!(changed(&|r| r.reverse()).is_err());
    assert!(changed(&|r| drop(r.remove(3))).is_err());
    assert!(changed(&|r| r[0].swap(1, 2)).is_err());
    assert!(changed(&|r| r[0].truncate(4)).is_err());
    assert!(changed(&|r| r.push(r[0].clone())).is_err());
    let other = rings[1][0];
    assert!(changed(&|r| r[0].push(other)).is_err());
    let outside = changed(&|r| r[0][0].link.0 = 4000).expect_err("no such wire");
    assert!(
        outside.text(&topology).contains("link 4000#0"),
        "{outside:?}"
    );
    // All channels in one list are no ring, in any order.
    assert!(changed(&|r| *r = vec![r.concat()]).is_err());
    // The proof of one kind for tables of the other.
    assert!(check(&topology, &bubble.tables, &layered.proof, 8).is_err());
    assert!(check(&topology, &layered.tables, &bubble.proof, 8).is_err());
    // A certificate of another network.
    let other = route_by(&network("torus:5x4"), 8, Algorithm::Layered).expect("routes");
    assert!(check(&topology, &other.tables, &other.proof, 8).is_err());
}

/// Channels of one number on the links that leave these nodes by these ports.
fn ring(topology: &Topology, number: u8, ports: &[(u16, u8)]) -> Vec<Channel> {
    let link = |(node, port): &(u16, u8)| topology.link(NodeId(*node), *port);
    let channel = |at| Channel {
        link: link(at).expect("a wire"),
        number,
    };
    ports.iter().map(channel).collect()
}

#[test]
fn an_acknowledgement_that_goes_on_in_the_ring_of_its_request_is_refused() {
    // Everything goes the same way round, so that each dependency is one on the next channel.
    let topology = network("ring:4");
    let up = [(0, 1), (1, 1), (2, 1), (3, 1)];
    for (answers, accepted) in [(1, true), (0, false)] {
        let mut tables = Tables::new(4, [vec![0], vec![answers]]);
        for node in topology.ids() {
            for destination in topology.ids().filter(|d| *d != node) {
                tables.set_next(node, destination, Some(1));
            }
        }
        let mut rings = vec![ring(&topology, 0, &up)];
        if answers == 1 {
            rings.push(ring(&topology, 1, &up));
        }
        let judged = check(&topology, &tables, &Proof::Bubble { rings }, 2);
        assert_eq!(judged.is_ok(), accepted, "{judged:?}");
    }
}

#[test]
fn a_ring_that_passes_a_node_twice_frees_only_its_own_turns() {
    // Three ends at a switch, and a ring through all of them: from n0 to n2 is no turn of it.
    let topology = network("fat-tree:3x1");
    let made = route_by(&topology, 2, Algorithm::Layered).expect("a star");
    let walk = [(0, 0), (3, 1), (1, 0), (3, 2), (2, 0), (3, 0)];
    let rings = [0, 1].map(|number| ring(&topology, number, &walk)).to_vec();
    let judged = check(&topology, &made.tables, &Proof::Bubble { rings }, 2);
    assert!(
        matches!(judged, Err(Refused::NotProved { .. })),
        "{judged:?}"
    );
    // Two rows as one ring are none, though no packet would notice on this torus.
    let topology = network("torus:3x3");
    let made = route_by(&topology, 2, Algorithm::Bubble).expect("a torus");
    let Proof::Bubble { mut rings } = made.proof else {
        panic!("{:?}", made.proof);
    };
    let second = rings.remove(2);
    rings[0].extend(second);
    let judged = check(&topology, &made.tables, &Proof::Bubble { rings }, 2);
    assert!(matches!(judged, Err(Refused::NoProof { .. })), "{judged:?}");
}
