//! Tables that are replaced while frames are on their way: all nodes change, or none does.

use std::collections::BTreeSet;
use std::time::Duration;

use ringbell_mesh::{MeshConfig, MeshPort, ReplaceError};
use ringbell_net::port::impair::Faults;
use ringbell_net::port::{Arrived, Capabilities, MacAddr, Port, PortCounters};
use ringbell_net::NicTime;
use ringbell_routes::document::Document;
use ringbell_routes::route::{route_by, Algorithm};
use ringbell_routes::topology::{NodeId, Topology};

use crate::support::{Random, World};

const PATIENCE: Duration = Duration::from_secs(5);

/// Tables of a network by an algorithm, on four channels, as text, and their digest.
fn tables(topology: &Topology, algorithm: Algorithm) -> (String, u64) {
    let routes = route_by(topology, 4, algorithm).unwrap(); // the tests' networks have them
    let document = Document::of(topology, &routes.tables, &routes.proof);
    let text = serde_json::to_string(&document).unwrap(); // no map with other keys than text
    (text, routes.tables.digest())
}

fn digests(world: &World) -> BTreeSet<u64> {
    world.nodes.iter().flatten().map(MeshPort::digest).collect()
}

/// Sends between random pairs of living nodes, and steps.
fn load(world: &mut World, random: &mut Random) {
    let nodes = world.nodes.len();
    for _ in 0..nodes {
        let (from, to) = (random.below(nodes) as u16, random.below(nodes) as u16);
        if from != to {
            world.send(from, to, random.below(1_000));
        }
    }
    world.step(20_000);
}

/// Has a node replace the tables, and steps until it says how that ended.
fn replace(
    world: &mut World,
    node: u16,
    text: &str,
    patience: Duration,
    random: &mut Random,
) -> Result<(), ReplaceError> {
    let control = world.node(node).control();
    control.replace(text.to_owned(), patience);
    let end = world.now.plus(patience + Duration::from_secs(1));
    loop {
        load(world, random);
        if let Some(outcome) = control.outcome() {
            return outcome;
        }
        assert!(world.now < end, "no outcome");
    }
}

/// Steps under load until all living nodes have tables of one digest, and returns it.
fn agreed(world: &mut World, within: Duration, random: &mut Random) -> u64 {
    let end = world.now.plus(within);
    loop {
        let all = digests(world);
        if all.len() == 1 {
            return all.into_iter().next().unwrap(); // one
        }
        assert!(world.now < end, "{all:x?}");
        load(world, random);
    }
}

#[test]
fn tables_are_replaced_under_load_and_no_frame_is_lost_or_doubled() {
    for name in ["ring:4", "bus:5", "torus:3x3"] {
        let mut world = World::new(name, |_| {});
        world.seen = Some(BTreeSet::new());
        let mut random = Random(4);
        for round in 0..6u16 {
            let algorithm = match round % 2 {
                0 => Algorithm::Nue,
                _ => Algorithm::Layered,
            };
            let (text, digest) = tables(&world.topology, algorithm);
            let by = round % world.nodes.len() as u16;
            let done = replace(&mut world, by, &text, PATIENCE, &mut random);
            assert_eq!(done, Ok(()), "{name}, round {round}");
            let all = agreed(&mut world, Duration::from_millis(100), &mut random);
            assert_eq!(all, digest, "{name}, round {round}");
            (0..200).for_each(|_| load(&mut world, &mut random));
        }
        world.drain(Duration::from_secs(5));
        for node in world.nodes.iter().flatten() {
            let c = node.forwarding();
            assert_eq!(
                (c.stuck, c.unreachable, c.bad, c.old),
                (0, 0, 0, 0),
                "{name}"
            );
        }
    }
}

#[test]
fn wires_that_lose_and_change_frames_delay_a_replacement_alone() {
    let faults = Faults {
        loss: 0.05,
        reorder: 0.05,
        duplicate: 0.05,
        corrupt: 0.02,
        seed: 3,
        ..Faults::default()
    };
    let mut world = World::with("torus:2x4", faults, |_| {});
    world.seen = Some(BTreeSet::new());
    let mut random = Random(9);
    for (by, algorithm) in [
        (0, Algorithm::Nue),
        (5, Algorithm::Layered),
        (2, Algorithm::Nue),
    ] {
        let (text, digest) = tables(&world.topology, algorithm);
        assert_eq!(
            replace(&mut world, by, &text, PATIENCE, &mut random),
            Ok(())
        );
        assert_eq!(agreed(&mut world, PATIENCE, &mut random), digest);
    }
    world.drain(Duration::from_secs(3));
}

#[test]
fn what_does_not_hold_is_refused_as_a_whole() {
    let mut world = World::new("ring:4", |_| {});
    let mut random = Random(1);
    let before = agreed(&mut world, PATIENCE, &mut random);
    let (text, _) = tables(&world.topology, Algorithm::Nue);
    let other = ringbell_routes::generate::generate("ring:5").unwrap(); // a sound name
    let wide = route_by(&world.topology, 8, Algorithm::Layered).unwrap(); // as above
    let mut wide_tables = wide.tables.clone();
    wide_tables.set_layer(NodeId(0), NodeId(1), 9);
    let no_layer = Document::of(&world.topology, &wide_tables, &wide.proof);
    for (text, why) in [
        (
            text.replacen("\"next\":[[null,1", "\"next\":[[null,0", 1),
            "depend",
        ),
        (
            serde_json::to_string(&no_layer).unwrap(),
            "layer 9, which has no channel",
        ),
        (
            tables(&other, Algorithm::Layered).0,
            "other ones than those of ring:4",
        ),
        ("{".to_owned(), "EOF"),
    ] {
        let refused = replace(&mut world, 1, &text, PATIENCE, &mut random);
        let said = refused.expect_err("refused").to_string();
        assert!(said.contains(why) && said.contains("at any node"), "{said}");
    }
    // Two sets of tables do not fit into two channels.
    let mut narrow = World::new("bus:3", |c| c.channels = 2);
    let (text, _) = tables(&narrow.topology, Algorithm::Layered);
    let refused = replace(&mut narrow, 0, &text, PATIENCE, &mut random);
    let said = refused.expect_err("refused").to_string();
    assert!(said.contains("open the NICs with more channels"), "{said}");
    // A bubble is a slot beside that of a packet.
    let mut shallow = World::new("ring:4", |c| c.depth = 1);
    let (text, _) = tables(&shallow.topology, Algorithm::Bubble);
    let refused = replace(&mut shallow, 0, &text, PATIENCE, &mut random);
    let said = refused.expect_err("refused").to_string();
    assert!(
        said.contains("need 2 slots of a channel, and it has 1"),
        "{said}"
    );
    assert_eq!(agreed(&mut world, PATIENCE, &mut random), before);
}

/// A wire that changes the text of tables.
struct Altering(Box<dyn Port>, Vec<u8>);

impl Port for Altering {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        const PART: u8 = 8;
        let Arrived::Frame(frame) = self.0.receive(now)? else {
            unreachable!("wires carry frames");
        };
        self.1 = frame.to_vec();
        if self.1[14] == PART {
            let text = String::from_utf8_lossy(&self.1).into_owned();
            if let Some(at) = text.find("\"layer\"") {
                let tail = self.1.len() - (text.len() - at);
                self.1[tail + 1] = b'L';
            }
        }
        Some(Arrived::Frame(&self.1))
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        self.0.tx_frame(now, dst)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        self.0.tx_commit(now, len);
    }
    fn flush(&mut self, now: NicTime) {
        self.0.flush(now);
    }
    fn counters(&self) -> PortCounters {
        self.0.counters()
    }
}

#[test]
fn one_node_that_refuses_keeps_all_on_their_tables_and_is_named() {
    let mut world = World::new("ring:4", |_| {});
    let mut random = Random(2);
    world.nodes[2] = None;
    let wires = world.wires(NodeId(2)).into_iter();
    let wires = wires.map(|(n, port)| (n, Box::new(Altering(port, Vec::new())) as Box<dyn Port>));
    let config = MeshConfig::new(world.topology.clone(), NodeId(2));
    world.nodes[2] = Some(MeshPort::open(config, wires.collect()).unwrap()); // as opened before
    let before = agreed(&mut world, PATIENCE, &mut random);
    let (text, _) = tables(&world.topology, Algorithm::Nue);
    let refused = replace(&mut world, 0, &text, PATIENCE, &mut random);
    let said = refused.expect_err("refused").to_string();
    assert!(said.contains("n2: ") && said.contains("layer"), "{said}");
    (0..3_000).for_each(|_| load(&mut world, &mut random));
    assert_eq!(agreed(&mut world, PATIENCE, &mut random), before);
    world.drain(Duration::from_secs(5));
}

#[test]
fn a_node_that_does_not_answer_is_named_and_nothing_changes() {
    let mut world = World::new("ring:5", |_| {});
    let mut random = Random(3);
    (0..1_000).for_each(|_| load(&mut world, &mut random));
    let before = agreed(&mut world, PATIENCE, &mut random);
    world.lossy = true;
    world.nodes[3] = None;
    let (text, digest) = tables(&world.topology, Algorithm::Nue);
    let soon = Duration::from_millis(300);
    let refused = replace(&mut world, 0, &text, soon, &mut random);
    let said = refused.expect_err("refused").to_string();
    assert!(said.ends_with("no answer in time from n3"), "{said}");
    assert_eq!(agreed(&mut world, PATIENCE, &mut random), before);
    // Once its wires are known to be down, the others go on without it. Word of the end of the
    // first attempt is there before.
    (0..1_000).for_each(|_| load(&mut world, &mut random));
    assert_eq!(replace(&mut world, 1, &text, PATIENCE, &mut random), Ok(()));
    assert_eq!(agreed(&mut world, PATIENCE, &mut random), digest);
    // It starts again, by the tables of before, and learns the others.
    world.open(3, 2);
    assert_eq!(agreed(&mut world, PATIENCE, &mut random), digest);
    (0..3_000).for_each(|_| load(&mut world, &mut random));
    (0..15_000).for_each(|_| world.step(200_000));
    world.lossy = false;
    world.received = world.sent.clone();
    world.all_to_all(10, &mut random, Duration::from_secs(20));
}

/// The proposer dies at any moment of a replacement, a few times also another node.
#[test]
fn a_node_that_dies_between_the_phases_leaves_all_others_on_one_set_of_tables() {
    let (mut changed, mut kept) = (0, 0);
    for moment in 0..16 {
        for victim in [0u16, 2] {
            let steps = moment * 12;
            let mut world = World::new("ring:4", |_| {});
            let mut random = Random(steps);
            for _ in 0..100 {
                world.step(50_000);
            }
            let before = agreed(&mut world, PATIENCE, &mut random);
            world.lossy = true;
            let (text, digest) = tables(&world.topology, Algorithm::Nue);
            world.node(0).control().replace(text.clone(), PATIENCE);
            (0..steps).for_each(|_| load(&mut world, &mut random));
            world.nodes[usize::from(victim)] = None;
            for _ in 0..15_000 {
                world.step(200_000);
            }
            let after = agreed(&mut world, PATIENCE, &mut random);
            assert!([before, digest].contains(&after), "{steps} {victim}");
            match after == digest {
                true => changed += 1,
                false => kept += 1,
            }
            assert!(victim == 0 || after == digest, "its death is no reason");
            // The others are not held up by what was not decided.
            let (next, last) = tables(&world.topology, Algorithm::Layered);
            let done = replace(&mut world, 1, &next, PATIENCE, &mut random);
            assert_eq!(done, Ok(()), "{steps} {victim}");
            assert_eq!(agreed(&mut world, PATIENCE, &mut random), last);
        }
    }
    assert!(changed > 5 && kept > 5, "{changed} and {kept}");
}

/// Also where the first has ended for its proposer, and word of that is on its way.
#[test]
fn a_replacement_begins_when_the_one_before_has_ended() {
    for between in (1..40).step_by(3) {
        let mut world = World::new("ring:4", |_| {});
        // Packets of a pair may pass each other at a change.
        world.seen = Some(BTreeSet::new());
        let mut random = Random(between + 1);
        (0..2_000).for_each(|_| load(&mut world, &mut random));
        let (first, _) = tables(&world.topology, Algorithm::Nue);
        let (second, digest) = tables(&world.topology, Algorithm::Layered);
        let controls = [0, 2].map(|node| world.node(node).control());
        let mut ended = [false; 2];
        controls[0].replace(first, PATIENCE);
        let end = world.now.plus(PATIENCE);
        let mut steps = 0;
        while ended != [true; 2] {
            assert!(world.now < end, "{between}: no outcome");
            // At any moment of the first, and behind its end.
            if steps == 10 * between {
                controls[1].replace(second.clone(), PATIENCE);
            }
            steps += 1;
            load(&mut world, &mut random);
            for (control, ended) in controls.iter().zip(&mut ended) {
                if let Some(outcome) = control.outcome() {
                    assert_eq!(outcome, Ok(()), "{between}");
                    *ended = true;
                }
            }
        }
        let last = agreed(&mut world, PATIENCE, &mut random);
        assert_eq!(last, digest, "{between}");
    }
}

#[test]
fn a_second_replacement_waits_for_the_first() {
    let mut world = World::new("ring:4", |_| {});
    let mut random = Random(6);
    (0..2_000).for_each(|_| load(&mut world, &mut random));
    let (text, digest) = tables(&world.topology, Algorithm::Nue);
    let first = world.node(0).control();
    first.replace(text.clone(), PATIENCE);
    // Word of it has come to node 2, and no decision.
    let second = world.node(2).control();
    let said = loop {
        assert_eq!(first.outcome(), None);
        second.replace(text.clone(), Duration::from_micros(1));
        (0..10).for_each(|_| load(&mut world, &mut random));
        if let Some(Err(why @ ReplaceError::UnderWay { .. })) = second.outcome() {
            break why.to_string();
        }
    };
    assert!(said.starts_with("n0 replaces the routes already"), "{said}");
    let end = world.now.plus(PATIENCE);
    while first.outcome() != Some(Ok(())) {
        assert!(world.now < end, "no outcome");
        load(&mut world, &mut random);
    }
    assert_eq!(agreed(&mut world, PATIENCE, &mut random), digest);
}
