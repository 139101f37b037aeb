//! Reductions over meshes whose NICs combine what goes to a root: each rank sends each byte once,
//! and the result is right although a wire, a rank or a tree is lost on the way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::{CollectiveSettings, CommStatus};
use ringbell_nic_core::port::mem::MemPort;
use ringbell_nic_core::port::{Arrived, Capabilities, MacAddr, Port, PortCounters};
use ringbell_nic_core::types::NicTime;
use ringbell_routes::document::Document;
use ringbell_routes::generate::generate;
use ringbell_routes::route::{route_by, Algorithm as Routing};
use ringbell_routes::topology::Topology;

use crate::collective_support::{Call, World};
use crate::collectives::{bytes, input, one, words, IN, OUT};
use crate::meshes::{world_of, world_with};
use crate::meshes_cut::Cuttable;
use crate::meshes_trees::{ports_of, sent};

/// Elements of a reduction that is combined on its way: of several windows.
const COUNT: usize = 150_001;

/// Packets that were combined, of all NICs.
fn combined(w: &World) -> u64 {
    counted(w, "combined ", ";")
}

/// The number between two words of what meshes report, of all NICs.
fn counted(w: &World, before: &str, after: &str) -> u64 {
    let of = |r: usize| {
        let parts = w.host(r).nic.ports()[0].parts.join("; ");
        let (_, rest) = parts.split_once(before).expect("a mesh says it");
        let number = rest.split(after).next().expect("a number");
        number.parse::<u64>().expect("a number")
    };
    (0..w.ranks())
        .filter(|r| w.hosts[*r].is_some())
        .map(of)
        .sum()
}

#[test]
fn each_byte_of_a_reduction_leaves_each_rank_once() {
    for (network, loss) in [
        ("bus:2", 0),
        ("bus:3", 0),
        ("ring:5", 0),
        ("torus:2x4", 0),
        ("ring:5", 2),
    ] {
        let mut w = world_with(network, loss, &CollectiveSettings::default());
        for root in [0, 1] {
            let before = sent(&w);
            one(&mut w, K::Reduce, Algorithm::Auto, COUNT, root);
            let bytes = COUNT as u64 * 4;
            for (rank, (after, before)) in sent(&w).into_iter().zip(before).enumerate() {
                let left = after - before;
                // Heads and what the ranks say to each other.
                assert!(
                    (bytes..bytes + bytes / 10 + 20_000).contains(&left),
                    "{network} {loss}% to {root}: {left} bytes left rank {rank}"
                );
            }
        }
        assert!(combined(&w) > 0, "{network}");
    }
}

#[test]
fn short_ones_and_those_whose_order_counts_take_no_tree_by_themselves() {
    let mut w = world_with("ring:5", 0, &CollectiveSettings::default());
    one(&mut w, K::Reduce, Algorithm::Auto, 1_000, 2);
    one(&mut w, K::Reduce, Algorithm::Tree, 8 << 10, 2);
    assert_eq!(combined(&w), 0);
    let call = Call::new(K::Reduce, COUNT as u64).of(DataType::F32, ReduceOp::Sum);
    w.run(&call.at(IN, OUT));
    assert_eq!(combined(&w), 0);
    let call = Call::new(K::Reduce, COUNT as u64).of(DataType::F32, ReduceOp::Max);
    w.run(&call.at(IN, OUT));
    let by_order = combined(&w);
    assert!(by_order > 0);
    // By name: the tree's order, which is the same each time.
    one(&mut w, K::Reduce, Algorithm::Tree, COUNT, 2);
    assert!(combined(&w) > by_order);
    let off = CollectiveSettings {
        trees: false,
        ..CollectiveSettings::default()
    };
    let mut w = world_with("ring:5", 0, &off);
    one(&mut w, K::Reduce, Algorithm::Auto, COUNT, 1);
    one(&mut w, K::Reduce, Algorithm::Tree, COUNT, 1);
    assert_eq!(combined(&w), 0);
}

/// Sums of floats by a tree: the root's result.
fn floats(network: &str, root: usize, in_place: bool) -> (Vec<f32>, Vec<f64>) {
    let mut w = world_with(network, 0, &CollectiveSettings::default());
    let mut all = vec![0.0; COUNT];
    for r in 0..w.ranks() {
        let of = |x: u32| (x >> 8) as f32 / (1 << 16) as f32 - 100.0;
        let values: Vec<f32> = input(r, COUNT, 3).into_iter().map(of).collect();
        all.iter_mut()
            .zip(&values)
            .for_each(|(a, v)| *a += f64::from(*v));
        let values: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        w.host(r).poke(IN, &values);
    }
    let to = if in_place { IN } else { OUT };
    let call = Call::new(K::Reduce, COUNT as u64)
        .algo(Algorithm::Tree)
        .of(DataType::F32, ReduceOp::Sum)
        .root(root as u32)
        .at(IN, to);
    w.run(&call);
    assert!(combined(&w) > 0);
    let got = words(&w.host(root).peek(to, COUNT * 4));
    (got.into_iter().map(f32::from_bits).collect(), all)
}

#[test]
fn sums_of_floats_are_right_and_the_same_each_time_in_place_too() {
    for root in [0, 3] {
        let (first, want) = floats("torus:2x4", root, false);
        for (e, (got, want)) in first.iter().zip(&want).enumerate() {
            assert!(
                (f64::from(*got) - want).abs() < 1e-2,
                "{e}: {got}, not {want}"
            );
        }
        assert!(first == floats("torus:2x4", root, false).0);
        assert!(first == floats("torus:2x4", root, true).0);
    }
}

/// Tables that replace others have half of the channels, which may leave none for trees. What the
/// ranks begin as a sum is the program's then, before a rank gives a segment.
#[test]
fn tables_without_trees_reduce_by_messages() {
    let topology = generate("ring:5").expect("a name");
    let ports = ports_of(&topology, |_| {}, |_, port| Box::new(port));
    let control = ports[1].control();
    let mut w = world_of(ports, &CollectiveSettings::default());
    one(&mut w, K::Reduce, Algorithm::Auto, COUNT, 1);
    let before = combined(&w);
    assert!(before > 0);
    let routes = route_by(&topology, 4, Routing::Layered).expect("two layers");
    let document = Document::of(&topology, &routes.tables, &routes.proof);
    let text = serde_json::to_string(&document).expect("its maps have texts");
    control.replace(text, Duration::from_secs(20));
    let outcome = (0..10_000_000).find_map(|_| {
        w.step();
        control.outcome()
    });
    assert_eq!(outcome, Some(Ok(())));
    // The root is the node that has them first.
    for count in [COUNT, 3 * COUNT] {
        one(&mut w, K::Reduce, Algorithm::Auto, count, 1);
    }
    assert_eq!(combined(&w), before);
    assert_eq!(counted(&w, "of other tables, ", " late"), 0);
    one(&mut w, K::Broadcast, Algorithm::Auto, COUNT, 1);
}

/// Ranks over wires that can be cut.
fn cuttable(topology: &Topology) -> (World, Vec<Arc<AtomicBool>>) {
    let wires: Vec<Arc<AtomicBool>> = topology.wires().iter().map(|_| Arc::default()).collect();
    let end = |wire: usize, port: MemPort| -> Box<dyn Port> {
        let is_cut = wires[wire].clone();
        Box::new(Cuttable { port, is_cut })
    };
    let ports = ports_of(topology, |_| {}, end);
    (world_of(ports, &CollectiveSettings::default()), wires)
}

/// Posts a reduction to rank 0 on all ranks; what it must have in the end.
fn begin(w: &World, count: usize, timeout_us: u32) -> (Vec<(usize, u32)>, Vec<u32>) {
    let mut all = vec![0u32; count];
    for r in 0..w.ranks() {
        let values = input(r, count, 77);
        all.iter_mut()
            .zip(&values)
            .for_each(|(a, v)| *a = a.wrapping_add(*v));
        w.host(r).poke(IN, &bytes(&values));
    }
    let call = Call::new(K::Reduce, count as u64)
        .of(DataType::U32, ReduceOp::Sum)
        .at(IN, OUT)
        .within(timeout_us);
    ((0..w.ranks()).map(|r| (r, w.post(r, &call))).collect(), all)
}

/// Cuts a wire when part of a reduction is done; the result is right.
fn cut_on_the_way(topology: &Topology, wire: usize, part: u64) -> World {
    let (mut w, wires) = cuttable(topology);
    let before = combined(&w);
    let (posted, values) = begin(&w, 4 * COUNT, 30_000_000);
    while combined(&w) < before + part {
        w.step();
    }
    wires[wire].store(true, Ordering::Relaxed);
    for (done, (rank, _)) in w.settle(&posted).into_iter().zip(&posted) {
        assert_eq!(done.status, Status::Ok, "rank {rank}, {part} packets");
    }
    let got = words(&w.host(0).peek(OUT, values.len() * 4));
    let differs = got.iter().zip(&values).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{part} packets");
    w
}

#[test]
fn a_wire_that_is_cut_on_the_way_costs_no_element() {
    let topology = generate("ring:5").expect("a name");
    for part in [1, 40, 900, 2_500] {
        let w = cut_on_the_way(&topology, 0, part);
        // It began again in transit, and ended so.
        assert!(combined(&w) >= 4 * COUNT as u64 * 4 / 4_096 * 5);
    }
}

/// The end of a wire at which packets of sums come changed: none is taken.
struct Changed {
    port: MemPort,
    frame: Vec<u8>,
    is_on: Arc<AtomicBool>,
}

impl Port for Changed {
    fn describe(&self) -> String {
        self.port.describe()
    }
    fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        // A packet's destination in the wire's head, and the first byte of a sum's head.
        const DESTINATION: std::ops::Range<usize> = 18..20;
        const KIND: usize = 44;
        let frame = self.port.receive(now)?;
        self.frame.clear();
        self.frame.extend_from_slice(frame.bytes());
        let is_of_sum = self.frame.get(DESTINATION) == Some(&[0xff, 0xfe]);
        if is_of_sum && self.frame.len() > KIND && self.is_on.load(Ordering::Relaxed) {
            self.frame[KIND] ^= 1;
        }
        Some(Arrived::Frame(&self.frame))
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        self.port.tx_frame(now, dst)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        self.port.tx_commit(now, len);
    }
    fn flush(&mut self, now: NicTime) {
        self.port.flush(now);
    }
    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

#[test]
fn messages_end_what_a_neighbour_spoils_for_good() {
    for part in [0, 700] {
        let topology = generate("ring:5").expect("a name");
        let is_on = Arc::new(AtomicBool::new(part == 0));
        let end = |_, port: MemPort| -> Box<dyn Port> {
            Box::new(Changed {
                port,
                frame: Vec::new(),
                is_on: is_on.clone(),
            })
        };
        let mut w = world_of(
            ports_of(&topology, |_| {}, end),
            &CollectiveSettings::default(),
        );
        let (posted, values) = begin(&w, 4 * COUNT, 30_000_000);
        while combined(&w) < part {
            w.step();
        }
        is_on.store(true, Ordering::Relaxed);
        for done in w.settle(&posted) {
            assert_eq!(done.status, Status::Ok, "{part}");
        }
        assert!(words(&w.host(0).peek(OUT, values.len() * 4)) == values);
        let whole = 4 * COUNT as u64 * 4 / 4_096 * 5;
        assert!(combined(&w) < whole, "it was not spoiled");
        let counts_bad = |r: usize| {
            let parts = w.host(r).nic.ports()[0].parts.join("; ");
            !parts.contains(", 0 with a wrong head")
        };
        assert!((0..w.ranks()).any(counts_bad), "nothing was dropped");
    }
}

#[test]
fn a_rank_that_dies_ends_the_reduction_by_name() {
    for part in [0, 900] {
        let mut w = world_with("ring:5", 0, &CollectiveSettings::default());
        let (posted, _) = begin(&w, 4 * COUNT, 8_000_000);
        while combined(&w) < part {
            w.step();
        }
        w.hosts[2] = None;
        let posted: Vec<_> = posted.into_iter().filter(|(r, _)| *r != 2).collect();
        for (done, (rank, _)) in w.settle(&posted).into_iter().zip(&posted) {
            assert_ne!(done.status, Status::Ok, "rank {rank}");
        }
        for rank in [0, 1, 3, 4] {
            let status = w.host(rank).nic.communicator_status(w.comms[rank]);
            let Ok(CommStatus::Aborted { rank: by, .. }) = status else {
                panic!("rank {rank}: {status:?}");
            };
            assert_eq!(by, 2, "at rank {rank}");
        }
    }
}

#[test]
fn communicators_that_reduce_to_one_root_at_once_take_turns() {
    let mut w = world_with("ring:4", 0, &CollectiveSettings::default());
    let members: Vec<usize> = (0..w.ranks()).collect();
    let other = w.communicator(9, &members, &CollectiveSettings::default());
    let mut posted = Vec::new();
    let mut want = Vec::new();
    for (n, comms) in [w.comms.clone(), other].into_iter().enumerate() {
        let mut all = vec![0u32; COUNT];
        let at = (
            IN + n as u64 * (COUNT as u64 * 4),
            OUT + n as u64 * (COUNT as u64 * 4),
        );
        for r in 0..w.ranks() {
            let values = input(r, COUNT, n as u64);
            all.iter_mut()
                .zip(&values)
                .for_each(|(a, v)| *a = a.wrapping_add(*v));
            w.host(r).poke(at.0, &bytes(&values));
        }
        let call = Call::new(K::Reduce, COUNT as u64)
            .of(DataType::U32, ReduceOp::Sum)
            .at(at.0, at.1);
        // Ranks post them in different orders.
        for r in members.iter().map(|r| (r + n) % members.len()) {
            posted.push((r, w.host(r).post(&call.descriptor(comms[r]))));
        }
        want.push((at.1, all));
    }
    for done in w.settle(&posted) {
        assert_eq!(done.status, Status::Ok);
    }
    for (at, all) in want {
        assert!(words(&w.host(0).peek(at, COUNT * 4)) == all);
    }
    assert!(combined(&w) > 0);
}
