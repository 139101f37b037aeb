//! Frames to all: each wire carries them once, and each node has them once and in order.

use std::time::Duration;

use ringbell_mesh::MeshPort;
use ringbell_net::port::impair::Faults;
use ringbell_routes::topology::Role;

use crate::support::{Random, World, OF_ALL, WIRE_MTU};

/// Frames to all of every node and frames of every pair, as room allows, until all have arrived.
fn all_at_once(world: &mut World, each: u32, random: &mut Random) {
    let nodes = world.nodes.len();
    let mut left = vec![each; nodes];
    let end = world.now.plus(Duration::from_secs(300));
    while left.iter().any(|n| *n > 0) {
        assert!(world.now < end, "frames that no node takes: {left:?}");
        for (from, left) in left.iter_mut().enumerate() {
            let payload = random.below(WIRE_MTU - 100);
            if *left > 0 && world.send_to_all(from as u16, payload) {
                *left -= 1;
            }
            let to = random.below(nodes);
            if to != from {
                world.send(from as u16, to as u16, payload);
            }
        }
        world.step(5_000);
    }
    world.drain(Duration::from_secs(300));
}

#[test]
fn a_frame_to_all_crosses_each_wire_of_its_tree_once() {
    for name in [
        "bus:5",
        "ring:5",
        "ring:8",
        "torus:2x4",
        "torus:4x4",
        "hypercube:4",
    ] {
        let mut world = World::new(name, |_| {});
        let others = world.nodes.len() as u64 - 1;
        for from in 0..world.nodes.len() as u16 {
            let before = world.carried();
            assert!(world.send_to_all(from, 1_000));
            world.drain(Duration::from_secs(1));
            // A tree of n nodes has n - 1 wires.
            assert_eq!(world.carried() - before, others, "{name} from {from}");
        }
        let copied = world.nodes.iter().flatten().map(|n| n.forwarding().copied);
        assert!(copied.sum::<u64>() > 0, "{name}");
    }
    // Bubble channels take no trees: a packet for each node.
    let mut world = World::new("ring:8", |c| c.channels = 2);
    assert!(world.send_to_all(0, 1_000));
    world.drain(Duration::from_secs(1));
    assert_eq!(world.carried(), 1 + 1 + 2 + 2 + 3 + 3 + 4);
}

#[test]
fn frames_to_all_of_all_nodes_drain_beside_all_pairs_at_the_smallest_depth() {
    for (n, name) in [
        "ring:5",
        "ring:8",
        "torus:4x4",
        "dragonfly:3x1",
        "random:12x3@7",
    ]
    .into_iter()
    .enumerate()
    {
        let mut world = World::new(name, |c| c.depth = 1);
        all_at_once(&mut world, 30, &mut Random(n as u64));
        for node in world.nodes.iter().flatten() {
            let c = node.forwarding();
            assert_eq!((c.stuck, c.unreachable, c.bad), (0, 0, 0), "{name}");
        }
    }
}

#[test]
fn wires_that_lose_double_reorder_and_change_frames_lose_no_copy() {
    for (n, name) in ["ring:5", "torus:2x4"].into_iter().enumerate() {
        let faults = Faults {
            loss: 0.05,
            duplicate: 0.05,
            reorder: 0.05,
            corrupt: 0.05,
            seed: n as u64,
            ..Faults::default()
        };
        let mut world = World::with(name, faults, |c| {
            c.depth = 4;
            // So many losses make silences that are no deaths.
            c.silence = Duration::from_secs(30);
            c.stuck = Duration::from_secs(60);
        });
        all_at_once(&mut world, 40, &mut Random(n as u64));
        let again = world.nodes.iter().flatten().flat_map(MeshPort::wires);
        let again: u64 = again.map(|w| w.counters.tx_again).sum();
        assert!(again > 0, "{name}: no frame was lost");
    }
}

#[test]
fn switches_pass_frames_to_all_on_and_take_none() {
    let mut world = World::new("fat-tree:2x2", |_| {});
    let is_switch = |n: usize| world.topology.nodes()[n].role == Role::Switch;
    let switches: Vec<u16> = (0..world.nodes.len())
        .filter(|n| is_switch(*n))
        .map(|n| n as u16)
        .collect();
    assert!(world.send_to_all(1, 700));
    // Switches are no receivers.
    for switch in &switches {
        world.sent.remove(&(1, *switch | OF_ALL));
    }
    world.drain(Duration::from_secs(1));
    assert_eq!(world.carried(), 6, "three ends by three switches");
}

#[test]
fn trees_go_around_a_node_that_died() {
    let mut world = World::new("ring:5", |_| {});
    all_at_once(&mut world, 5, &mut Random(1));
    world.nodes[2] = None;
    // Copies that stood in the dead node are lost, and those behind it until all know.
    world.lossy = true;
    for _ in 0..20_000 {
        world.send_to_all(0, 100);
        world.step(100_000);
        if world.nodes.iter().flatten().all(|n| n.down().len() == 2) {
            break;
        }
    }
    let end = world.now.plus(Duration::from_secs(3));
    while world.now < end {
        world.step(50_000);
    }
    // What is left is a bus of four: three wires, each once, and every node has each frame.
    world.lossy = false;
    world.received = world.sent.clone();
    for from in [0, 1, 3, 4] {
        let before = world.carried();
        assert!(world.send_to_all(from, 400));
        world.drain(Duration::from_secs(1));
        assert_eq!(world.carried() - before, 3, "from {from}");
    }
}
