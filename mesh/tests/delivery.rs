//! Frames arrive in order, once and whole, on every network, however little room there is.

use std::ops::RangeInclusive;
use std::time::Duration;

use ringbell_mesh::port::mac_of;
use ringbell_net::port::impair::Faults;
use ringbell_net::port::Port;
use ringbell_net::wire::MacAddr;
use ringbell_routes::generate::generate;
use ringbell_routes::topology::NodeId;

use crate::generated::GENERATED;
use crate::support::{Random, World};

/// All pairs at once, each so many frames, on every network that can be generated with so many
/// nodes.
fn drain_with_one_slot(nodes: RangeInclusive<usize>, each: u32, channels: &[usize]) {
    let has_size = |name: &str| nodes.contains(&generate(name).unwrap().nodes().len()); // sound
    let names = GENERATED.into_iter().filter(|name| has_size(name));
    for (n, name) in names.enumerate() {
        for channels in channels {
            let mut world = World::new(name, |c| (c.depth, c.channels) = (1, *channels));
            let mut random = Random(n as u64);
            world.all_to_all(each, &mut random, Duration::from_secs(60));
            assert!(!world.sent.is_empty());
            for node in world.nodes.iter().flatten() {
                let c = node.forwarding();
                let faults = (c.stuck, c.unreachable, c.bad, c.reroutes);
                assert_eq!(faults, (0, 0, 0, 0), "{name}, {channels} channels");
            }
        }
    }
}

/// With as many channels as NICs have, and with one for each class of traffic.
#[test]
fn all_pairs_at_once_drain_with_one_slot_a_channel() {
    drain_with_one_slot(0..=16, 12, &[8, 2]);
    drain_with_one_slot(17..=40, 2, &[8, 2]);
}

#[test]
fn all_pairs_of_large_networks_drain_with_one_slot_a_channel() {
    drain_with_one_slot(41..=64, 1, &[8]);
}

/// The last slot of a channel is lost with a packet, and comes back with what confirms it.
#[test]
fn one_slot_a_channel_is_enough_on_wires_that_lose_and_reorder() {
    for (n, name) in ["bus:5", "ring:5", "torus:3x3"].into_iter().enumerate() {
        let faults = Faults {
            loss: 0.05,
            duplicate: 0.05,
            reorder: 0.05,
            corrupt: 0.05,
            seed: n as u64,
            ..Faults::default()
        };
        let mut world = World::with(name, faults, |c| {
            c.depth = 1;
            // So many losses make silences that are no deaths.
            c.silence = Duration::from_secs(30);
            c.stuck = Duration::from_secs(60);
        });
        world.all_to_all(12, &mut Random(n as u64), Duration::from_secs(60));
    }
}

#[test]
fn bubbles_keep_rings_moving_with_one_channel_a_class() {
    for name in ["ring:6", "torus:3x4", "torus:4x4"] {
        let mut world = World::new(name, |c| {
            (c.depth, c.channels) = (2, 2);
        });
        let mut random = Random(3);
        world.all_to_all(20, &mut random, Duration::from_secs(60));
        let stuck = world.nodes.iter().flatten().map(|n| n.forwarding().stuck);
        assert_eq!(stuck.sum::<u64>(), 0, "{name}");
    }
}

#[test]
fn a_node_that_takes_nothing_holds_back_its_senders_and_loses_nothing() {
    let mut world = World::new("bus:4", |c| c.depth = 4);
    let mut sent = 0;
    for _ in 0..400 {
        sent += u32::from(world.send(0, 3, 900));
        // Node 3 is not stepped.
        let away = world.nodes[3].take();
        world.step(5_000);
        world.nodes[3] = away;
    }
    // Three queues, each hop's go-back-N and the last wire hold what there is.
    assert!((4..400).contains(&sent), "{sent} frames taken");
    world.drain(Duration::from_secs(5));
}

/// Node 1 forwards what node 0 sends, and sends as much itself, by the same wire: R from each in
/// turn.
#[test]
fn an_output_takes_r_packets_from_a_queue_before_it_looks_at_the_next() {
    for poll in [1, 3, 8] {
        let mut world = World::new("bus:3", |c| c.poll = poll);
        // Node 2 is not stepped until both queues of node 1 are full.
        for _ in 0..200 {
            world.send(0, 2, 400);
            world.send(1, 2, 400);
            let away = world.nodes[2].take();
            world.step(5_000);
            world.nodes[2] = away;
        }
        world.order.clear();
        world.drain(Duration::from_secs(5));
        let runs: Vec<usize> = world
            .order
            .chunk_by(PartialEq::eq)
            .map(<[u16]>::len)
            .collect();
        // What had left node 1 before came first, and at the end one queue alone has packets.
        let r = poll as usize;
        let whole = runs.iter().filter(|n| **n == r).count();
        assert!(whole * r >= 16, "R is {poll}: {runs:?}");
        let others = runs.iter().filter(|n| **n != r).count();
        assert!(others <= 3, "R is {poll}: {runs:?}");
    }
}

#[test]
fn a_frame_to_all_comes_to_each_node_once() {
    let mut world = World::new("torus:3x3", |_| {});
    let now = world.now;
    let room = world.node(4).tx_frame(now, MacAddr::BROADCAST).unwrap(); // nothing waits yet
    room[..6].copy_from_slice(&MacAddr::BROADCAST.0);
    room[6..12].copy_from_slice(&mac_of(NodeId(4)).0);
    room[12..22].copy_from_slice(&[8, 6, 1, 2, 3, 4, 5, 6, 7, 8]);
    let len = 22;
    world.node(4).tx_commit(now, len);
    let mut got = [0; 9];
    for _ in 0..200 {
        let now = world.now;
        for (n, node) in world.nodes.iter_mut().flatten().enumerate() {
            while let Some(frame) = node.receive(now) {
                assert_eq!(frame[..6], MacAddr::BROADCAST.0);
                assert_eq!(frame[6..12], mac_of(NodeId(4)).0);
                assert_eq!(frame[12..], [8, 6, 1, 2, 3, 4, 5, 6, 7, 8]);
                got[n] += 1;
            }
            node.flush(now);
        }
        world.now.0 += 10_000;
    }
    assert_eq!(got, [1, 1, 1, 1, 0, 1, 1, 1, 1]);
}
