//! Nodes that die and come back, wires that are cut and healed, and routes around them.

use std::time::Duration;

use ringbell_mesh::{MeshConfig, MeshError, MeshPort, SoundRoutes, WireState};
use ringbell_net::port::impair::Faults;
use ringbell_net::port::Port;
use ringbell_routes::generate::generate;
use ringbell_routes::route::{route, route_by, Algorithm};
use ringbell_routes::topology::NodeId;

use crate::support::{Random, World};

/// Steps for a time.
fn steps(world: &mut World, time: Duration) {
    let end = world.now.plus(time);
    while world.now < end {
        world.step(50_000);
    }
}

#[test]
fn a_dead_node_takes_only_its_own_streams_with_it() {
    let mut world = World::new("torus:3x3", |_| {});
    let pairs: Vec<(u16, u16)> = (0..9)
        .flat_map(|a| (0..9).map(move |b| (a, b)))
        .filter(|(a, b)| a != b && *a != 4 && *b != 4)
        .collect();
    world.all_to_all(3, &mut Random(1), Duration::from_secs(10));
    world.nodes[4] = None;
    // What is on its way through the dead node is lost: those above send it again.
    world.lossy = true;
    for _ in 0..20_000 {
        for (from, to) in &pairs {
            world.send(*from, *to, 200);
        }
        world.step(100_000);
        if world.nodes.iter().flatten().all(|n| n.down().len() == 4) {
            break;
        }
    }
    for node in world.nodes.iter().flatten() {
        assert_eq!(node.down().len(), 4, "its four wires, known everywhere");
        let reasons = node.wires().into_iter().filter_map(|w| w.reason);
        for reason in reasons {
            assert_eq!(reason, "the other end was silent for 800 ms");
        }
    }
    steps(&mut world, Duration::from_secs(3));
    // From here on nothing is lost between the living.
    world.lossy = false;
    world.received = world.sent.clone();
    for _ in 0..50 {
        for (from, to) in &pairs {
            world.send(*from, *to, 300);
        }
        world.step(20_000);
    }
    world.drain(Duration::from_secs(5));
    // What goes to the dead one is dropped, and counted.
    world.send(0, 4, 100);
    steps(&mut world, Duration::from_millis(10));
    assert_eq!(world.node(0).forwarding().unreachable, 1);
}

#[test]
fn a_node_that_starts_again_is_joined_again() {
    let mut world = World::new("ring:4", |_| {});
    world.all_to_all(2, &mut Random(1), Duration::from_secs(10));
    for epoch in 2..6 {
        world.open(2, epoch);
        steps(&mut world, Duration::from_millis(100));
        for node in world.nodes.iter().flatten() {
            assert_eq!(node.down(), Vec::<String>::new());
            let up = node.wires().into_iter().all(|w| w.state == WireState::Up);
            assert!(up, "{:?}", node.wires());
        }
        world.all_to_all(4, &mut Random(u64::from(epoch)), Duration::from_secs(10));
    }
    let reasons = world.node(1).wires().into_iter().filter_map(|w| w.reason);
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        ["the other end has started again"]
    );
}

#[test]
fn a_wire_cut_and_healed_under_load_loses_nothing_that_is_above() {
    // Each cut is longer than a silence for some, and shorter for others.
    let faults = Faults {
        loss: 0.02,
        seed: 5,
        ..Faults::default()
    };
    let mut world = World::with("ring:5", faults, |c| c.silence = Duration::from_millis(20));
    world.lossy = true;
    let mut random = Random(8);
    for round in 0..100 {
        // The whole node is away, with both its wires.
        let away = world.nodes[1].take();
        let cut = Duration::from_millis(random.below(60) as u64);
        let end = world.now.plus(cut);
        while world.now < end {
            world.send(0, 3, 100);
            world.send(2, 0, 100);
            world.step(200_000);
        }
        world.nodes[1] = away;
        steps(&mut world, Duration::from_millis(150));
        for node in world.nodes.iter().flatten() {
            assert_eq!(node.down(), Vec::<String>::new(), "round {round}");
        }
    }
    steps(&mut world, Duration::from_secs(3));
    world.lossy = false;
    world.received = world.sent.clone();
    world.all_to_all(5, &mut random, Duration::from_secs(20));
}

#[test]
fn a_wire_without_an_answer_from_the_start_is_named_after_the_grace_until_it_is_up() {
    let mut world = World::new("ring:4", |_| {});
    world.nodes[2] = None;
    steps(&mut world, Duration::from_millis(950));
    let line = |world: &mut World| world.node(1).report().remove(1);
    let counted = "; 0 packets out (0 again), 0 in";
    assert_eq!(
        line(&mut world),
        format!("port 1 -> n2:0: no answer{counted}")
    );
    steps(&mut world, Duration::from_millis(100));
    assert_eq!(
        line(&mut world),
        format!("port 1 -> n2:0: no answer since it was opened (wire n1:1 -- n2:0){counted}")
    );
    // Nothing is given up for it: the node may start late.
    assert_eq!(world.node(1).down(), Vec::<String>::new());
    assert_eq!(world.node(1).next_refused(), None);
    world.open(2, 1);
    steps(&mut world, Duration::from_millis(200));
    assert_eq!(
        line(&mut world),
        format!("port 1 -> n2:0: up, credit for 128 packets{counted}")
    );
    // One that was up and went is down, which is another line.
    world.nodes[2] = None;
    steps(&mut world, Duration::from_secs(3));
    let line = line(&mut world);
    assert!(
        line.contains("no answer; ") && line.contains("went down 1 times"),
        "{line}"
    );
}

#[test]
fn wrong_settings_are_refused_with_the_reason() {
    let topology = generate("ring:4").unwrap(); // a sound name
    type Change = fn(&mut MeshConfig);
    let open = |change: Change| {
        let mut config = MeshConfig::new(topology.clone(), NodeId(1));
        change(&mut config);
        MeshPort::open(config, Vec::new()).map(|_| ()).unwrap_err() // no wires are given
    };
    let cases: [(Change, &str); 7] = [
        (|_| {}, "n1 has a wire at port 0, and none was given"),
        (
            |c| c.node = NodeId(7),
            "ring:4 has 4 nodes, and none of number 7",
        ),
        (
            |c| c.channels = 1,
            "channels of a wire of a mesh is 2 to 128, not 1",
        ),
        (
            |c| c.depth = 0,
            "slots of a channel of a mesh is 1 to 4096, not 0",
        ),
        (
            |c| {
                c.depth = 1;
                c.routes = route_by(&c.topology, 8, Algorithm::Bubble).ok();
            },
            "slots of a channel (its routes have bubbles) of a mesh is 2 to 4096, not 1",
        ),
        (
            |c| c.poll = 0,
            "packets from one queue in a row (R) of a mesh is 1 to 4096, not 0",
        ),
        (
            |c| {
                let other = generate("ring:5").unwrap(); // a sound name
                c.routes = route(&other, 8).ok();
            },
            "the routes of ring:4 are refused: tables of 5 nodes for a network of 4",
        ),
    ];
    for (change, why) in cases {
        let error: MeshError = open(change);
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn routes_that_were_checked_serve_all_nodes_of_their_network_and_no_other() {
    let config = |name: &str, node| MeshConfig::new(generate(name).unwrap(), NodeId(node)); // sound names
    let sound = SoundRoutes::of(&config("ring:5", 0)).unwrap(); // as the tables of `ringbell routes`
    let mut world = World::new("ring:5", |_| {});
    for node in 0..5 {
        let digest = world.node(node).digest();
        world.nodes[usize::from(node)] = None;
        let wires = world.wires(NodeId(node));
        let port = MeshPort::open_with(config("ring:5", node), &sound, wires).unwrap(); // its own network
        assert_eq!(port.digest(), digest);
        assert!(port.has_tree());
    }
    let mut few = config("ring:5", 0);
    few.channels = 6;
    for other in [config("ring:6", 0), few] {
        let error = MeshPort::open_with(other, &sound, Vec::new()).unwrap_err();
        let said = "they were checked for ring:5 with 8 channels a wire";
        assert!(error.to_string().contains(said), "{error}");
    }
}
