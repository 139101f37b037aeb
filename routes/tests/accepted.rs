//! Tables of every algorithm on generated and random networks: the checker accepts them, and they
//! have the lengths and channels that they promise.

use ringbell_routes::check::{check, check_unproved, Refused};
use ringbell_routes::load::Load;
use ringbell_routes::proof::Proof;
use ringbell_routes::route::{
    reroute, route, route_by, Algorithm, RouteError, Routes, MAX_CHANNELS,
};
use ringbell_routes::tables::{Class, Tables};
use ringbell_routes::topology::{Link, NodeId, Topology};

use crate::common::{network, random_network, Random, GENERATED};

/// Judges routes by everything that must hold of them.
fn judge(topology: &Topology, routes: &Routes, channels: usize) -> Load {
    let name = topology.name();
    let checked = check(topology, &routes.tables, &routes.proof, channels);
    let checked = checked.unwrap_or_else(|e| {
        let algorithm = routes.algorithm;
        panic!("{name} by {algorithm}: {}", e.text(topology))
    });
    let load = Load::of(topology, &routes.tables);
    assert_eq!(checked.longest, load.longest(), "{name}");
    let carried: usize = load.pairs.iter().map(|p| *p as usize).sum();
    assert_eq!(checked.hops, carried, "{name}");
    if matches!(routes.proof, Proof::Acyclic { .. }) {
        check_unproved(topology, &routes.tables, channels).expect("without the proof too");
    }
    load
}

/// Hops of the shortest way of every pair, by Floyd and Warshall.
fn shortest(topology: &Topology) -> usize {
    let n = topology.nodes().len();
    let mut hops = vec![vec![usize::MAX / 2; n]; n];
    for wire in topology.wires() {
        let [a, b] = wire.ends.map(|e| e.node.index());
        hops[a][b] = 1;
        hops[b][a] = 1;
    }
    for k in 0..n {
        for a in 0..n {
            for b in 0..n {
                hops[a][b] = hops[a][b].min(hops[a][k] + hops[k][b]);
            }
        }
    }
    let ends: Vec<usize> = topology.ends().map(NodeId::index).collect();
    let pairs = ends.iter().flat_map(|a| ends.iter().map(move |b| (*a, *b)));
    pairs.filter(|(a, b)| a != b).map(|(a, b)| hops[a][b]).sum()
}

fn total(load: &Load) -> usize {
    load.hops.iter().enumerate().map(|(hops, n)| hops * n).sum()
}

#[test]
fn every_generated_network_has_routes_by_every_algorithm_that_fits() {
    for name in GENERATED {
        let topology = network(name);
        let least = shortest(&topology);
        let layered = route_by(&topology, MAX_CHANNELS, Algorithm::Layered);
        let layered = layered.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(
            total(&judge(&topology, &layered, MAX_CHANNELS)),
            least,
            "{name}"
        );
        for channels in [2, 3, 4, 8] {
            let nue = route_by(&topology, channels, Algorithm::Nue);
            let nue = nue.unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(nue.tables.channel_count() <= channels);
            assert!(total(&judge(&topology, &nue, channels)) >= least);
            // What is chosen fits as well.
            let chosen = route(&topology, channels).unwrap_or_else(|e| panic!("{name}: {e}"));
            judge(&topology, &chosen, channels);
        }
        let bubble = route_by(&topology, 2, Algorithm::Bubble);
        match name.starts_with("ring") || name.starts_with("torus") {
            true => {
                let bubble = bubble.unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(bubble.tables.channel_count(), 2);
                assert_eq!(total(&judge(&topology, &bubble, 2)), least, "{name}");
            }
            false => assert_eq!(bubble, Err(RouteError::NoTorus), "{name}"),
        }
    }
}

#[test]
fn a_thousand_random_networks_have_routes_that_the_checker_accepts() {
    let mut random = Random::new(29);
    let (mut layers, mut longer) = ([0; 16], 0);
    for i in 0..1000 {
        // Small ones, and some of every size up to 64.
        let most = if i % 20 == 0 { 64 } else { 20 };
        let topology = random_network(&mut random, most);
        let least = shortest(&topology);
        let layered = route_by(&topology, MAX_CHANNELS, Algorithm::Layered);
        let layered = layered.unwrap_or_else(|e| panic!("{e}: {topology:?}"));
        assert_eq!(total(&judge(&topology, &layered, MAX_CHANNELS)), least);
        layers[layered.tables.channel_count() / 2] += 1;
        let channels = 2 + random.below(5);
        let nue = route_by(&topology, channels, Algorithm::Nue);
        let nue = nue.unwrap_or_else(|e| panic!("{e}: {topology:?}"));
        longer += usize::from(total(&judge(&topology, &nue, channels)) > least);
    }
    // The sample has both: one layer suffices, and it does not; Nue goes round, and it need not.
    assert!(layers[1] > 0 && layers[2] > 0, "{layers:?}");
    assert!(longer > 0 && longer < 1000, "{longer}");
}

#[test]
fn equal_networks_have_equal_tables_and_other_tables_another_digest() {
    for name in ["torus:3x3", "dragonfly:4x1", "random:20x3@7"] {
        let make = || route(&network(name), 4).expect(name);
        let (a, b) = (make(), make());
        assert_eq!(a, b);
        assert_eq!(a.tables.digest(), b.tables.digest());
        let mut other = a.tables.clone();
        let (node, destination) = (NodeId(1), NodeId(0));
        other.set_layer(node, destination, a.tables.layer(node, destination) ^ 1);
        assert_ne!(other.digest(), a.tables.digest());
    }
    // The number does not depend on machine or version.
    let two = route(&network("bus:2"), 2).expect("a bus");
    assert_eq!(two.tables.digest(), 15_262_734_680_411_881_085);
}

#[test]
fn shortest_paths_alone_close_a_circle_on_a_ring_and_are_refused() {
    for (name, circular) in [
        ("bus:6", false),
        ("fat-tree:2x3", false),
        ("ring:5", true),
        ("torus:5x5", true),
    ] {
        let topology = network(name);
        let made = route_by(&topology, 8, Algorithm::Shortest);
        let Err(RouteError::Circle(circle)) = made else {
            assert!(!circular, "{name}");
            judge(&topology, &made.expect(name), 8);
            continue;
        };
        assert!(circular, "{name}");
        let next = circle.0.iter().cycle().skip(1);
        for (a, b) in circle.0.iter().zip(next) {
            assert_eq!(
                topology.to(a.link).node,
                topology.from(b.link).node,
                "{name}"
            );
        }
    }
}

#[test]
fn requests_and_acknowledgements_on_one_channel_are_refused() {
    // On a bus, where the paths of each class alone depend on each other in no circle.
    let bus = network("bus:3");
    let made = route(&bus, 8).expect("a bus");
    let mut shared = Tables::new(3, [vec![0], vec![0]]);
    for node in bus.ids() {
        for destination in bus.ids() {
            shared.set_next(node, destination, made.tables.next(node, destination));
        }
    }
    let refused = check_unproved(&bus, &shared, 8).expect_err("a circle of both classes");
    let Refused::Circle(circle) = &refused else {
        panic!("{refused:?}");
    };
    // To a neighbour and back.
    assert_eq!(circle.0.len(), 2, "{}", refused.text(&bus));
    assert_eq!(circle.0[0].link.back(), circle.0[1].link);
    // The bubble condition does not help: an acknowledgement does not move on, it comes up.
    let ring = network("ring:4");
    let bubble = route_by(&ring, 2, Algorithm::Bubble).expect("a ring");
    let mut shared = Tables::new(4, [vec![0], vec![0]]);
    for node in ring.ids() {
        for destination in ring.ids() {
            shared.set_next(node, destination, bubble.tables.next(node, destination));
        }
    }
    assert!(check(&ring, &shared, &bubble.proof, 2).is_err());
}

#[test]
fn more_channels_than_the_nic_has_are_refused() {
    let ring = network("ring:5");
    let refused = route_by(&ring, 3, Algorithm::Layered).expect_err("two layers, two classes");
    assert!(
        refused.to_string().contains("needs 4 channels"),
        "{refused}"
    );
    let made = route_by(&ring, 4, Algorithm::Layered).expect("four channels");
    assert_eq!(made.tables.channels(Class::Acknowledgement), [2, 3]);
    let checked = check(&ring, &made.tables, &made.proof, 3);
    let (needed, available) = (4, 3);
    assert_eq!(checked, Err(Refused::TooManyChannels { needed, available }));
    for algorithm in Algorithm::ALL {
        assert!(route_by(&ring, 1, algorithm).is_err(), "{algorithm}");
    }
    assert!(route(&ring, 1).is_err());
    // With two, the ring gets bubbles; without its form, Nue.
    assert_eq!(route(&ring, 3).map(|r| r.algorithm), Ok(Algorithm::Bubble));
    let bus = ring.without(0).expect("a bus");
    assert_eq!(route(&bus, 2).map(|r| r.algorithm), Ok(Algorithm::Layered));
}

#[test]
fn a_cut_wire_changes_the_paths_that_used_it_and_no_others() {
    for name in [
        "torus:3x3",
        "torus:2x4",
        "mesh:3x4",
        "dragonfly:4x1",
        "random:20x3@7",
    ] {
        let whole = network(name);
        let before = route_by(&whole, MAX_CHANNELS, Algorithm::Layered).expect(name);
        for wire in 0..whole.wires().len() {
            let Ok(cut) = whole.without(wire) else {
                continue;
            };
            let after = reroute(&cut, MAX_CHANNELS, None, &before.tables).expect(name);
            let load = judge(&cut, &after, MAX_CHANNELS);
            assert_eq!(total(&load), shortest(&cut), "{name} without {wire}");
            for source in whole.ends() {
                for destination in whole.ends().filter(|d| *d != source) {
                    let ports = |t: &Topology, tables: &Tables| {
                        let path = tables.path(t, source, destination);
                        path.map(|l| t.from(l)).collect::<Vec<_>>()
                    };
                    let mut old = before.tables.path(&whole, source, destination);
                    if old.all(|l| l.wire() != wire) {
                        let both = [(&whole, &before.tables), (&cut, &after.tables)];
                        let [old, new] = both.map(|(t, tables)| ports(t, tables));
                        assert_eq!(old, new, "{name} without {wire}");
                    }
                }
            }
        }
    }
}

#[test]
fn rates_and_balance_decide_between_shortest_paths() {
    // Each middle node is on as many paths, within one.
    let topology = network("torus:4x4");
    let made = route_by(&topology, MAX_CHANNELS, Algorithm::Layered).expect("a torus");
    let load = Load::of(&topology, &made.tables);
    // 240 pairs of 2.13 hops on 64 links: 8 a link.
    assert!((8..=10).contains(&load.greatest()), "{}", load.greatest());
    // Of two wires, the one ten times as fast carries ten times as much, or nearly.
    let mut wires = String::new();
    for n in 0..40 {
        wires += &format!("{{\"ends\": [\"l{n}:0\", \"a:{}\"]}},", n + 2);
    }
    let text = format!(
        "{{\"wires\": [{wires} {{\"ends\": [\"a:0\", \"b:0\"], \"gbps\": 10}},
         {{\"ends\": [\"a:1\", \"b:1\"], \"gbps\": 100}}]}}"
    );
    let topology = ringbell_routes::file::parse("two", &text).expect("a network");
    let made = route(&topology, 8).expect("a tree with a double wire");
    let load = Load::of(&topology, &made.tables);
    let from_b = [Link(81), Link(83)].map(|l| load.pairs[l.index()]);
    assert_eq!(from_b.iter().sum::<u32>(), 41);
    assert!(from_b[1] >= 36 && from_b[0] >= 1, "{from_b:?}");
}
