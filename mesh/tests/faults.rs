//! Wires that lose, double, reorder and change frames, and neighbours that break the rules.

use std::time::Duration;

use ringbell_mesh::port::mac_of;
use ringbell_mesh::{MeshConfig, MeshPort, WireState};
use ringbell_net::port::impair::Faults;
use ringbell_net::port::mem::{MemPort, MemSwitch};
use ringbell_net::port::{Checksums, Port};
use ringbell_net::NicTime;
use ringbell_routes::generate::generate;
use ringbell_routes::topology::NodeId;

use crate::support::{Random, World, WIRE_MTU};

#[test]
fn wires_that_lose_double_reorder_and_change_frames_lose_no_packet() {
    for (n, name) in ["bus:2", "bus:5", "ring:5", "torus:2x4", "random:10x3@5"]
        .into_iter()
        .enumerate()
    {
        for share in [0.01, 0.05] {
            let faults = Faults {
                loss: share,
                duplicate: share,
                reorder: share,
                corrupt: share,
                seed: n as u64,
                ..Faults::default()
            };
            let mut world = World::with(name, faults, |c| {
                c.depth = 8;
                // Ten percent of everything makes silences that are no deaths.
                c.silence = Duration::from_secs(30);
                c.stuck = Duration::from_secs(60);
            });
            let mut random = Random(n as u64);
            world.all_to_all(20, &mut random, Duration::from_secs(300));
            let again = world.nodes.iter().flatten().flat_map(MeshPort::wires);
            let again: u64 = again.map(|w| w.counters.tx_again).sum();
            assert!(again > 0, "{name}: no frame was lost");
        }
    }
}

#[test]
fn one_seed_gives_one_run() {
    let run = || {
        let faults = Faults {
            loss: 0.05,
            seed: 9,
            ..Faults::default()
        };
        let mut world = World::with("torus:3x3", faults, |c| c.silence = Duration::from_secs(30));
        world.all_to_all(10, &mut Random(4), Duration::from_secs(100));
        let reports: Vec<_> = world.nodes.iter().flatten().map(MeshPort::wires).collect();
        (world.now, reports)
    };
    assert_eq!(run(), run());
}

/// What is wrong in a frame.
type Change = fn(&mut Vec<u8>);

/// A node of `bus:2` whose neighbour the test plays.
struct Alone {
    node: MeshPort,
    peer: MemPort,
    now: NicTime,
    template: Vec<u8>,
    _switch: MemSwitch,
}

/// Where fields lie in a frame of a wire.
const KIND: usize = 14;
const EPOCH: usize = 22;
const NUMBER: usize = 26;
const ACK: usize = 30;
const LIMIT: usize = 34;
const BODY: usize = 42;

impl Alone {
    fn new() -> Alone {
        let switch = MemSwitch::private(2, WIRE_MTU, Checksums::Omitted).unwrap(); // in range
        let topology = generate("bus:2").unwrap(); // a sound name
        let node = MeshPort::open(
            MeshConfig::new(topology, NodeId(0)),
            vec![(1, Box::new(switch.port(0).unwrap()))], // free
        );
        Alone {
            node: node.unwrap(),           // the network of the test
            peer: switch.port(1).unwrap(), // free
            now: NicTime(1),
            template: Vec::new(),
            _switch: switch,
        }
    }

    fn step(&mut self) -> usize {
        let mut got = 0;
        for _ in 0..4 {
            while self.node.receive(self.now).is_some() {
                got += 1;
            }
            self.node.flush(self.now);
            self.now.0 += 100_000;
        }
        got
    }

    /// What the node has sent.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some(frame) = self.peer.receive(self.now) {
            frames.push(frame.to_vec());
        }
        frames
    }

    fn send(&mut self, frame: &[u8]) {
        let room = self.peer.tx_frame(self.now, mac_of(NodeId(0))).unwrap(); // the node reads
        room[..frame.len()].copy_from_slice(frame);
        self.peer.tx_commit(self.now, frame.len());
        self.peer.flush(self.now);
    }

    /// The node's last hello; it is asked for one where it has not said any.
    fn hello(&mut self) -> Vec<u8> {
        for _ in 0..3 {
            self.step();
            let sent = self.sent();
            if let Some(hello) = sent.into_iter().rfind(|f| f[KIND] == 3) {
                self.template.clone_from(&hello);
                return hello;
            }
            let mut ask = self.template.clone();
            ask[EPOCH..EPOCH + 4].copy_from_slice(&self.now.0.to_be_bytes()[4..]);
            (ask[BODY + 1], ask[BODY + 3]) = (0, 1);
            self.send(&ask);
        }
        panic!("the node does not greet: {:?}", self.node.wires());
    }

    /// Answers the node's hello as node 1 would, its own changed by `change`.
    fn greet(&mut self, change: impl Fn(&mut Vec<u8>)) {
        let mut hello = self.hello();
        let epoch: [u8; 4] = hello[EPOCH..EPOCH + 4].try_into().unwrap(); // four bytes
        hello[EPOCH..EPOCH + 4].copy_from_slice(&7u32.to_be_bytes());
        // Port 0 of node 1, which has heard the node's epoch.
        hello[BODY + 1] = 0;
        hello[BODY + 3] = 1;
        let heard = hello.len() - 5;
        hello[heard..heard + 4].copy_from_slice(&epoch);
        change(&mut hello);
        self.send(&hello);
        self.step();
    }

    fn state(&self) -> (WireState, Option<String>) {
        let wire = &self.node.wires()[0];
        (wire.state.clone(), wire.reason.clone())
    }

    /// A packet from node 1.
    fn packet(number: u32) -> Vec<u8> {
        let mut frame = vec![0; BODY + 60];
        frame[12..14].copy_from_slice(&0x88b6u16.to_be_bytes());
        frame[KIND] = 1;
        frame[17] = 1;
        frame[20] = 9;
        frame[EPOCH..EPOCH + 4].copy_from_slice(&7u32.to_be_bytes());
        frame[NUMBER..NUMBER + 4].copy_from_slice(&number.to_be_bytes());
        frame
    }
}

#[test]
fn what_the_ends_do_not_agree_on_is_refused_by_name() {
    let cases: [(usize, u8, &str); 8] = [
        (0, 9, "version 9 of the wire's format there, 3 here"),
        (
            1,
            5,
            "the wire leads to port 5 of node 1, and the network has port 0 of node 1",
        ),
        (3, 4, "the wire leads to port 0 of node 4"),
        (4, 2, "2 channels there, 8 here"),
        (5, 2, "2 free slots to enter a ring there, 1 here"),
        (7, 99, "99 slots of a channel there, 16 here"),
        (11, 3, "3 nodes there, 2 here"),
        (12, 255, "tables ff"),
    ];
    for (at, value, why) in cases {
        let mut alone = Alone::new();
        alone.greet(|hello| hello[BODY + at] = value);
        let (state, _) = alone.state();
        let WireState::Refused(text) = state else {
            panic!("byte {at} as {value}: {state:?}");
        };
        assert!(text.contains(why), "{text}");
        // The other end learns it.
        let told = alone.sent();
        let refusal = told.iter().find(|f| f[KIND] == 4).expect("a refusal");
        assert_eq!(String::from_utf8_lossy(&refusal[BODY..]), text);
        // A neighbour that agrees later is taken.
        alone.greet(|_| {});
        assert_eq!(alone.state().0, WireState::Up);
    }
}

#[test]
fn a_neighbour_that_breaks_the_rules_is_reset_by_name() {
    let cases: [(&str, Change); 4] = [
        ("confirms packets that were not sent", |f| f[ACK + 3] = 1),
        ("more credit than a channel has slots", |f| {
            f[LIMIT + 3] = 200
        }),
        ("a channel that no wire has", |f| f[15] = 8),
        ("a length that none has", |f| f.truncate(BODY)),
    ];
    for (why, change) in cases {
        let mut alone = Alone::new();
        alone.greet(|_| {});
        let mut frame = Alone::packet(0);
        change(&mut frame);
        alone.send(&frame);
        alone.step();
        let (state, reason) = alone.state();
        assert_eq!(state, WireState::Greeting, "{why}");
        assert!(
            reason.clone().is_some_and(|r| r.contains(why)),
            "{reason:?} for {why}"
        );
        alone.greet(|hello| hello[EPOCH + 3] = 8);
        assert_eq!(alone.state().0, WireState::Up, "after {why}");
    }
    // More packets than there is credit for, none of them taken.
    let mut alone = Alone::new();
    alone.greet(|_| {});
    for number in 0..17 {
        alone.send(&Alone::packet(number));
    }
    // One turn: the node's own receives would free slots.
    alone.node.flush(alone.now);
    alone.now.0 += 1_000;
    assert!(alone.node.receive(alone.now).is_some());
    let (_, reason) = alone.state();
    assert_eq!(
        reason.as_deref(),
        Some("broken: it sends more packets than it has credit for")
    );
}

#[test]
fn packets_that_no_node_can_have_sent_are_dropped_and_counted() {
    let changes: [Change; 7] = [
        // From a node that does not exist, to one, from the node itself, to another without a hop.
        |f| f[17] = 2,
        |f| f[19] = 2,
        |f| f[17] = 0,
        |f| (f[19], f[20]) = (1, 0),
        // To all, in a channel that is not the tree's, from the node itself, without a hop.
        |f| (f[18], f[19]) = (255, 255),
        |f| (f[15], f[17], f[18], f[19]) = (2, 0, 255, 255),
        |f| (f[15], f[18], f[19], f[20]) = (2, 255, 255, 0),
    ];
    let mut alone = Alone::new();
    alone.greet(|_| {});
    for (n, change) in changes.into_iter().enumerate() {
        let mut frame = Alone::packet(n as u32);
        change(&mut frame);
        alone.send(&frame);
        assert_eq!(alone.step(), 0);
        assert_eq!(alone.node.forwarding().bad, n as u64 + 1);
    }
    // The wire is as before.
    alone.send(&Alone::packet(7));
    assert_eq!((alone.step(), alone.state().0), (1, WireState::Up));
    let mut to_all = Alone::packet(8);
    (to_all[15], to_all[18], to_all[19]) = (2, 255, 255);
    alone.send(&to_all);
    assert_eq!((alone.step(), alone.state().0), (1, WireState::Up));
}

#[test]
fn numbers_out_of_order_are_never_taken_and_later_ones_asked_for_again() {
    let mut alone = Alone::new();
    alone.greet(|_| {});
    alone.sent();
    for number in [1, 2, 1 << 31, u32::MAX, 17] {
        alone.send(&Alone::packet(number));
    }
    assert_eq!(alone.step(), 0);
    let sent = alone.sent();
    let credits: Vec<_> = sent.iter().filter(|f| f[KIND] == 2).collect();
    assert!(!credits.is_empty(), "the gap is told");
    assert!(credits
        .iter()
        .all(|f| f[21] & 2 != 0 && f[ACK..ACK + 4] == [0; 4]));
    alone.send(&Alone::packet(0));
    assert_eq!(alone.step(), 1);
}

#[test]
fn any_bytes_leave_the_node_whole() {
    let mut alone = Alone::new();
    let mut random = Random(11);
    alone.greet(|_| {});
    let mut seen: Vec<Vec<u8>> = alone.sent();
    for n in 0..20_000u32 {
        // Frames as they are said, a few bytes changed, or none at all.
        let mut frame = match random.below(4) {
            0 => Alone::packet(n),
            1 => (0..14 + random.below(100))
                .map(|_| random.below(256) as u8)
                .collect(),
            _ if seen.is_empty() => Alone::packet(0),
            _ => seen[random.below(seen.len())].clone(),
        };
        for _ in 0..random.below(4) {
            let at = random.below(frame.len());
            frame[at] = random.below(256) as u8;
        }
        frame.truncate(14.max(frame.len() - random.below(3)));
        if let Some(room) = alone.peer.tx_frame(alone.now, mac_of(NodeId(0))) {
            room[..frame.len()].copy_from_slice(&frame);
            alone.peer.tx_commit(alone.now, frame.len());
            alone.peer.flush(alone.now);
        }
        if let Some(room) = alone.node.tx_frame(alone.now, mac_of(NodeId(1))) {
            room[..14].fill(0);
            alone.node.tx_commit(alone.now, 14 + random.below(50));
        }
        alone.step();
        seen.extend(alone.sent());
        let more = seen.len().saturating_sub(32);
        seen.drain(..more);
    }
    // A fresh neighbour can still come.
    alone.greet(|hello| hello[EPOCH] = 0xee);
    alone.greet(|hello| hello[EPOCH] = 0xee);
    assert_eq!(alone.state().0, WireState::Up);
}
