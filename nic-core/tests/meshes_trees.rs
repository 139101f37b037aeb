//! Broadcasts over meshes whose NICs copy what goes to all: each byte leaves the root once, and all
//! arrive although a wire, a rank or a frame is lost, or frames are wrong.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ringbell_mesh::{MeshConfig, MeshPort};
use ringbell_nic_abi::{Algorithm, CollectiveKind as K, DataType, ReduceOp, Status};
use ringbell_nic_core::collective::{CollectiveSettings, CommStatus};
use ringbell_nic_core::port::mem::MemSwitch;
use ringbell_nic_core::port::{Checksums, MacAddr, Port};
use ringbell_nic_core::types::NicTime;
use ringbell_routes::generate::generate;

use crate::collective_support::{Call, Rng, World};
use crate::collectives::{bytes, input, one, words, IN, OUT};
use crate::meshes::{mesh, unjoined, world_of, world_with};
use crate::meshes_cut::Cuttable;

/// Elements of a broadcast that goes by a tree: of several segments.
const COUNT: usize = 150_001;

/// Bytes of frames that each rank's NIC has sent, those that it forwards left out.
pub(crate) fn sent(w: &World) -> Vec<u64> {
    let of = |r| w.host(r).nic.ports()[0].counters.tx_bytes;
    (0..w.ranks()).map(of).collect()
}

/// Messages that went to several ranks at once, of all ranks.
fn copied(w: &World) -> u64 {
    let of = |r: usize| {
        let info = w.host(r).nic.communicator_info(w.comms[r]);
        info.expect("it is there").counters.copied
    };
    (0..w.ranks()).map(of).sum()
}

#[test]
fn each_byte_of_a_broadcast_leaves_its_root_once_and_no_other_rank() {
    for (network, loss) in [("bus:3", 0), ("ring:5", 0), ("torus:2x4", 0), ("ring:5", 2)] {
        let mut w = world_with(network, loss, &CollectiveSettings::default());
        for root in [0, 2] {
            let (before, copies) = (sent(&w), copied(&w));
            one(&mut w, K::Broadcast, Algorithm::Auto, COUNT, root);
            let bytes = COUNT as u64 * 4;
            for (rank, (after, before)) in sent(&w).into_iter().zip(before).enumerate() {
                let bytes = if rank == root { bytes } else { 0 };
                // Heads, acknowledgements and what the ranks say to each other.
                let left = after - before;
                assert!(
                    (bytes..bytes + bytes / 10 + 20_000).contains(&left),
                    "{network} {loss}% from {root}: {left} bytes left rank {rank}"
                );
            }
            let each = copied(&w) - copies;
            let segments = (COUNT as u64 * 4).div_ceil(256 << 10);
            assert_eq!(each, segments * (w.ranks() as u64 - 1), "{network}");
        }
    }
}

#[test]
fn without_trees_a_root_sends_to_each_rank() {
    let bytes = COUNT as u64 * 4;
    let off = CollectiveSettings {
        trees: false,
        ..CollectiveSettings::default()
    };
    let mut w = world_with("ring:5", 0, &off);
    let before = sent(&w)[1];
    one(&mut w, K::Broadcast, Algorithm::Flat, COUNT, 1);
    assert!(sent(&w)[1] - before >= 4 * bytes);
    // Without an algorithm's name it goes down the chain, as over any network.
    let before = sent(&w)[1];
    one(&mut w, K::Broadcast, Algorithm::Auto, COUNT, 1);
    assert!((bytes..2 * bytes).contains(&(sent(&w)[1] - before)));
    assert_eq!(copied(&w), 0);
    // Routes with bubbles have no trees: nothing is asked for that is not there.
    let topology = generate("ring:5").expect("a name");
    let ports = ports_of(&topology, |c| c.channels = 2, |_, port| Box::new(port));
    let mut w = world_of(ports, &CollectiveSettings::default());
    one(&mut w, K::Broadcast, Algorithm::Flat, COUNT, 1);
    assert_eq!(copied(&w), 0);
}

/// The ports of a network's nodes; `end` puts something before each end of a wire.
pub(crate) fn ports_of(
    topology: &ringbell_routes::topology::Topology,
    change: impl Fn(&mut MeshConfig),
    end: impl Fn(usize, ringbell_nic_core::port::mem::MemPort) -> Box<dyn Port>,
) -> Vec<MeshPort> {
    let switch = |_| MemSwitch::private(2, 4_096, Checksums::Omitted).expect("in range");
    let switches: Vec<_> = (0..topology.wires().len()).map(switch).collect();
    let node = |node| {
        let ends = topology.leaving(node).map(|link| {
            let port = switches[link.wire()].port(link.index() % 2).expect("free");
            (topology.from(link).port, end(link.wire(), port))
        });
        let mut config = MeshConfig::new(topology.clone(), node);
        change(&mut config);
        MeshPort::open(config, ends.collect()).expect("the network's wires")
    };
    topology.ids().map(node).collect()
}

/// Posts a broadcast of rank 0 on all ranks; what they must have in the end.
fn begin(w: &World, count: usize, timeout_us: u32) -> (Vec<(usize, u32)>, Vec<u32>) {
    let values = input(0, count, 77);
    w.host(0).poke(IN, &bytes(&values));
    let call = Call::new(K::Broadcast, count as u64)
        .of(DataType::U32, ReduceOp::Sum)
        .at(IN, OUT)
        .within(timeout_us);
    let posted = (0..w.ranks()).map(|r| (r, w.post(r, &call)));
    (posted.collect(), values)
}

fn has_all(w: &World, values: &[u32]) {
    for r in 0..w.ranks() {
        let got = words(&w.host(r).peek(OUT, values.len() * 4));
        let differs = got.iter().zip(values).position(|(a, b)| a != b);
        assert_eq!(differs, None, "rank {r}");
    }
}

/// A communicator of few NICs of many sends to each of them: the others would get copies for
/// nothing.
#[test]
fn few_ranks_of_many_take_no_trees() {
    let mut w = unjoined(mesh("ring:8", 4_096, 0));
    let all = w.hosts.len();
    for (members, by_tree) in [(vec![0, 2, 4], false), ((0..all - 1).collect(), true)] {
        let ctx = members.len() as u64;
        let comms = w.communicator(ctx, &members, &CollectiveSettings::default());
        let values = input(0, COUNT, 3);
        w.host(0).poke(IN, &bytes(&values));
        let call = Call::new(K::Broadcast, COUNT as u64)
            .algo(Algorithm::Flat)
            .of(DataType::U32, ReduceOp::Sum)
            .at(IN, OUT);
        let posted = members.iter().zip(&comms);
        let posted: Vec<_> = posted
            .map(|(m, comm)| (*m, w.host(*m).post(&call.descriptor(*comm))))
            .collect();
        for done in w.settle(&posted) {
            assert_eq!(done.status, Status::Ok);
        }
        for m in &members {
            let got = words(&w.host(*m).peek(OUT, COUNT * 4));
            assert!(got == values, "rank of node {m}");
        }
        let info = w
            .host(0)
            .nic
            .communicator_info(comms[0])
            .expect("it is there");
        assert_eq!(info.counters.copied > 0, by_tree, "{members:?}");
    }
}

#[test]
fn a_wire_that_is_cut_on_the_way_costs_no_byte() {
    for cut_after in [1, 3, 6] {
        let topology = generate("ring:5").expect("a name");
        let wires: Vec<Arc<AtomicBool>> = topology.wires().iter().map(|_| Arc::default()).collect();
        let ports = ports_of(
            &topology,
            |_| {},
            |wire, port| {
                let is_cut = wires[wire].clone();
                Box::new(Cuttable { port, is_cut })
            },
        );
        let mut w = world_of(ports, &CollectiveSettings::default());
        let before = sent(&w)[0];
        let (posted, values) = begin(&w, 4 * COUNT, 30_000_000);
        // Part of it has left.
        let part = before + cut_after * COUNT as u64 * 16 / 10;
        while sent(&w)[0] < part {
            w.step();
        }
        // The wire by which copies leave rank 0 for rank 1.
        wires[0].store(true, Ordering::Relaxed);
        for (done, (rank, _)) in w.settle(&posted).into_iter().zip(&posted) {
            assert_eq!(
                done.status,
                Status::Ok,
                "rank {rank}, cut after {cut_after}"
            );
        }
        has_all(&w, &values);
        assert!(w.host(0).nic.ports()[0]
            .parts
            .iter()
            .any(|p| p == "down: n0:1 -- n1:0"));
    }
}

#[test]
fn a_rank_that_dies_ends_the_broadcast_by_name() {
    let mut w = world_with("ring:5", 0, &CollectiveSettings::default());
    let part = sent(&w)[0] + COUNT as u64 * 4;
    let (posted, _) = begin(&w, 4 * COUNT, 8_000_000);
    while sent(&w)[0] < part {
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

#[test]
fn wrong_frames_to_all_change_nothing() {
    let mut ports = mesh("bus:4", 4_096, 0);
    // The node at the end is no NIC: it repeats what it hears, changed.
    let mut other = ports.pop().expect("four");
    let mut w = unjoined(ports);
    w.comms = w.begin_communicator(7, &[0, 1, 2], &CollectiveSettings::default());
    let is_ready = |w: &World, r: usize| {
        let status = w.host(r).nic.communicator_status(w.comms[r]);
        status.expect("it is there") == CommStatus::Ready
    };
    let end = w.now + 10_000_000_000;
    while !(0..3).all(|r| is_ready(&w, r)) {
        assert!(w.now < end, "no communicator");
        let now = NicTime(w.now);
        while other.receive(now).is_some() {}
        other.flush(now);
        w.step();
    }
    let mut rng = Rng(5);
    let mut heard: Vec<Vec<u8>> = Vec::new();
    for turn in 0..3 {
        let (posted, values) = begin(&w, COUNT + turn, 30_000_000);
        for _ in 0..4_000 {
            let now = NicTime(w.now);
            while let Some(frame) = other.receive(now) {
                if frame.bytes()[12..14] == [0x88, 0xb5] && heard.len() < 500 {
                    heard.push(frame.bytes().to_vec());
                }
            }
            if !heard.is_empty() {
                let mut frame = heard[rng.next() as usize % heard.len()].clone();
                let at = 14 + rng.next() as usize % 40;
                frame[at] = rng.next() as u8;
                frame.truncate(14 + rng.next() as usize % 4_000);
                if let Some(room) = other.tx_frame(now, MacAddr::BROADCAST) {
                    let len = frame.len().min(room.len());
                    room[..len].copy_from_slice(&frame[..len]);
                    other.tx_commit(now, len);
                }
            }
            other.flush(now);
            w.step();
        }
        for done in w.settle(&posted) {
            assert_eq!(done.status, Status::Ok);
        }
        has_all(&w, &values);
    }
    assert!(!heard.is_empty() && copied(&w) > 0);
}
