//! Sums in transit: each wire of a tree carries each segment once, and the root has the right one.
//!
//! The sums are compared with those of a plain loop over all ranks.

use std::time::Duration;

use ringbell_mesh::port::mac_of;
use ringbell_mesh::MeshPort;
use ringbell_net::port::impair::Faults;
use ringbell_net::port::Port as _;
use ringbell_net::sum::{sum_to, SumHead, SUM, SUM_HEAD, WINDOW};
use ringbell_net::wire::ETHERNET_HEADER;
use ringbell_nic_abi::{DataType, ReduceOp};
use ringbell_routes::topology::{NodeId, Role};
use zerocopy::{FromBytes, IntoBytes};

use crate::support::{Random, World};

/// Elements of a segment.
const ELEMENTS: usize = 50;

/// What a rank gives to a segment.
fn given(node: u16, segment: u32, element: usize) -> u64 {
    (u64::from(node + 1) << 40) + u64::from(segment) * 1_000 + element as u64
}

/// A sum under way in a world.
struct Summing {
    root: u16,
    id: u32,
    segments: u32,
    /// By node: the next segment that it gives.
    next: Vec<u32>,
    /// Segments that the root has.
    done: u32,
    /// The root has got one that lacks ranks.
    lacks: bool,
    /// Codes of the elements' type and of the operation.
    kind: (u8, u8),
}

impl Summing {
    fn new(world: &World, root: u16, id: u32, segments: u32) -> Summing {
        Summing {
            root,
            id,
            segments,
            next: vec![0; world.nodes.len()],
            done: 0,
            lacks: false,
            kind: (DataType::U64.code(), ReduceOp::Sum.code()),
        }
    }

    /// Begins again, from what the root has.
    fn again(&mut self) {
        self.id += 1;
        self.segments -= self.done;
        self.done = 0;
        self.next.fill(0);
        self.lacks = false;
    }

    /// A node gives its next segment, if it may and there is room.
    fn give(&mut self, world: &mut World, node: u16) -> bool {
        let segment = self.next[usize::from(node)];
        let is_there = world.nodes[usize::from(node)].is_some();
        if !is_there || segment == self.segments.min(self.done + WINDOW as u32) {
            return false;
        }
        let (now, to) = (world.now, sum_to(mac_of(NodeId(self.root))));
        let Some(room) = world.node(node).tx_frame(now, to) else {
            return false;
        };
        let head = SumHead {
            kind: SUM,
            dtype: self.kind.0,
            op: self.kind.1,
            spare: 0,
            len: (8 * ELEMENTS as u16).into(),
            id: self.id.into(),
            segment: segment.into(),
            ranks: 1.into(),
        };
        room[..6].copy_from_slice(&to.0);
        room[6..12].copy_from_slice(&mac_of(NodeId(node)).0);
        room[12..14].copy_from_slice(&[0x88, 0xb5]);
        let mut at = ETHERNET_HEADER;
        room[at..at + SUM_HEAD].copy_from_slice(head.as_bytes());
        at += SUM_HEAD;
        for e in 0..ELEMENTS {
            let element = given(node, self.segments - segment, e);
            room[at..at + 8].copy_from_slice(&element.to_le_bytes());
            at += 8;
        }
        world.node(node).tx_commit(now, at);
        self.next[usize::from(node)] += 1;
        true
    }

    /// A frame has come to a node's NIC.
    fn take(&mut self, world: &World, node: u16, frame: &[u8]) {
        let (head, elements) = SumHead::read_from_prefix(&frame[ETHERNET_HEADER..]).unwrap(); // long enough
        assert_eq!((node, head.kind), (self.root, SUM));
        if head.id.get() != self.id || self.lacks {
            return;
        }
        assert_eq!(head.segment.get(), self.done, "segments come in order");
        let ends: Vec<u16> = world.topology.ends().map(|n| n.0).collect();
        if usize::from(head.ranks.get()) != ends.len() {
            assert!(usize::from(head.ranks.get()) < ends.len(), "a rank twice");
            self.lacks = true;
            return;
        }
        for (e, element) in elements.chunks_exact(8).take(ELEMENTS).enumerate() {
            let element = u64::from_le_bytes(element.try_into().unwrap()); // eight bytes
            let all = ends.iter().map(|n| given(*n, self.segments - self.done, e));
            assert_eq!(element, all.sum::<u64>(), "segment {} of {e}", self.done);
        }
        self.done += 1;
    }
}

/// Runs sums of all roots at once, ranks in random order. Each begins again where it stands.
/// Returns how often one did.
fn run(
    world: &mut World,
    segments: u32,
    random: &mut Random,
    mut at: impl FnMut(&mut World, u32),
) -> u32 {
    let ends: Vec<u16> = world.topology.ends().map(|n| n.0).collect();
    let mut sums: Vec<Summing> = ends
        .iter()
        .map(|r| Summing::new(world, *r, 7, segments))
        .collect();
    let end = world.now.plus(Duration::from_secs(600));
    let (mut steps, mut again) = (0, 0);
    let mut moved = vec![world.now; sums.len()];
    while sums.iter().any(|s| s.done < s.segments) {
        assert!(
            world.now < end,
            "sums stand: {:?}",
            sums.iter().map(|s| s.done).collect::<Vec<_>>()
        );
        for _ in 0..ends.len() * 4 {
            let (sum, node) = (random.below(sums.len()), ends[random.below(ends.len())]);
            sums[sum].give(world, node);
        }
        let before: Vec<u32> = sums.iter().map(|s| s.done).collect();
        world.step_with(5_000, |world, node, frame| {
            let sum = sums.iter_mut().find(|s| s.root == node).unwrap(); // only roots get frames
            sum.take(world, node, frame);
        });
        for (i, sum) in sums.iter_mut().enumerate() {
            if sum.done != before[i] {
                moved[i] = world.now;
            }
            let stands = world.now.0 - moved[i].0 > 30_000_000;
            if sum.done < sum.segments && (sum.lacks || stands) {
                sum.again();
                moved[i] = world.now;
                again += 1;
            }
        }
        steps += 1;
        at(world, steps);
    }
    again
}

#[test]
fn each_wire_of_a_tree_carries_a_segment_once() {
    for name in [
        "bus:2",
        "bus:5",
        "ring:5",
        "torus:2x4",
        "torus:4x4",
        "hypercube:4",
        "fat-tree:2x2",
    ] {
        let mut world = World::new(name, |_| {});
        let ends: Vec<u16> = world.topology.ends().map(|n| n.0).collect();
        for root in ends.iter().copied() {
            let before = world.carried();
            let mut sum = Summing::new(&world, root, u32::from(root), 3);
            while sum.done < 3 {
                for node in &ends {
                    sum.give(&mut world, *node);
                }
                world.step_with(5_000, |world, node, frame| sum.take(world, node, frame));
            }
            // A tree of n nodes has n - 1 wires; a switch above ends is one of its nodes.
            let wires = match name {
                "fat-tree:2x2" => 6,
                _ => world.nodes.len() as u64 - 1,
            };
            assert_eq!(world.carried() - before, 3 * wires, "{name} to {root}");
        }
    }
}

#[test]
fn sums_of_all_roots_at_once_are_right_at_the_smallest_depth() {
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
        let again = run(&mut world, 50, &mut Random(n as u64), |_, _| {});
        assert_eq!(again, 0, "{name}: a sum was not whole at once");
        for node in world.nodes.iter().flatten() {
            let c = node.forwarding();
            assert_eq!(
                (c.stuck, c.unreachable, c.bad, c.late),
                (0, 0, 0, 0),
                "{name}"
            );
        }
    }
}

#[test]
fn wires_that_lose_double_reorder_and_change_frames_change_no_sum() {
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
            c.silence = Duration::from_secs(30);
            c.stuck = Duration::from_secs(60);
        });
        run(&mut world, 60, &mut Random(n as u64), |_, _| {});
        let again = world.nodes.iter().flatten().flat_map(MeshPort::wires);
        assert!(
            again.map(|w| w.counters.tx_again).sum::<u64>() > 0,
            "{name}: no frame was lost"
        );
    }
}

#[test]
fn sums_begin_again_when_nodes_are_away_and_none_that_lacks_a_rank_is_taken_for_whole() {
    let mut random = Random(11);
    for name in ["ring:5", "torus:2x4", "hypercube:3"] {
        let mut world = World::new(name, |c| c.silence = Duration::from_millis(20));
        let nodes = world.nodes.len();
        let mut away: Option<(usize, MeshPort)> = None;
        let again = run(&mut world, 300, &mut random, |world, step| {
            // Others find ways around it, and back when it has come back.
            if step % 9_000 == 50 {
                let node = (step as usize / 9_000 * 3) % nodes;
                away = world.nodes[node].take().map(|port| (node, port));
            } else if step % 9_000 == 5_000 {
                if let Some((node, port)) = away.take() {
                    world.nodes[node] = Some(port);
                }
            }
        });
        assert!(again > 0, "{name}: no sum was under way when a node went");
    }
}

#[test]
fn what_is_of_no_sum_is_dropped_and_counted() {
    let mut world = World::new("bus:3", |_| {});
    // The leaf's packets of a segment that is not the next, and of another type.
    let mut sum = Summing::new(&world, 0, 1, 8);
    assert!(sum.give(&mut world, 2));
    sum.next[2] = 5;
    assert!(sum.give(&mut world, 2));
    for _ in 0..20 {
        world.step_with(5_000, |_, _, _| panic!("a sum of one rank"));
    }
    assert_eq!(world.node(2).forwarding().late, 1);
    // More than the places of an input: those are at the node before the root.
    (sum.next[2], sum.segments, sum.done) = (1, 1_000, 900);
    while sum.next[2] < 41 {
        assert!(sum.give(&mut world, 2));
        world.step_with(5_000, |_, _, _| panic!("a sum of one rank"));
    }
    for _ in 0..20 {
        world.step_with(5_000, |_, _, _| panic!("a sum of one rank"));
    }
    assert_eq!(world.node(1).forwarding().late, 41 - WINDOW as u64);
    // Another sum begins although its own places are full.
    let mut own = Summing::new(&world, 0, 1, 1_000);
    own.done = 900;
    while own.next[1] < 50 {
        assert!(own.give(&mut world, 1));
    }
    // Kinds that do not exist, or do not go together, end it at the first node.
    let (float, and) = (DataType::F32.code(), ReduceOp::And.code());
    for (n, kind) in [(0, 1), (200, 1), (float, 0), (float, 77), (float, and)]
        .into_iter()
        .enumerate()
    {
        let mut wrong = Summing::new(&world, 0, 100 + n as u32, 1);
        wrong.kind = kind;
        assert!(wrong.give(&mut world, 2));
        for _ in 0..20 {
            world.step_with(5_000, |_, _, _| panic!("a sum of no kind"));
        }
        assert_eq!(world.node(2).forwarding().bad, n as u64 + 1, "{kind:?}");
    }
    let mut other = Summing::new(&world, 0, 2, 1);
    for node in 0..3 {
        assert!(other.give(&mut world, node));
    }
    while other.done < 1 {
        world.step_with(5_000, |world, node, frame| other.take(world, node, frame));
    }
    assert!(world.topology.nodes().iter().all(|n| n.role == Role::End));
}
