//! `router.sv` around rings and tori, by tables that `ringbell-routes` has proved: every packet
//! comes once, in order and unchanged, over wires that lose words.

mod figures;
mod hostile;
mod network;

use ringbell_hw_sim::{router, router_ring};
use ringbell_routes::check::check;
use ringbell_routes::file::parse;
use ringbell_routes::generate::generate;
use ringbell_routes::route::{route_by, Algorithm, Routes};
use ringbell_routes::topology::Topology;

use network::{started, Book, Network, Router};

/// A network and its routes, proved once more by the checker.
fn routed(name: &str, algorithm: Algorithm) -> (Topology, Routes) {
    let topology = generate(name).expect("a topology");
    let routes = route_by(&topology, 8, algorithm).expect("routes");
    check(&topology, &routes.tables, &routes.proof, 8).expect("proved");
    (topology, routes)
}

/// Random packets between all nodes, until all have come. Every node sends so many.
fn random_traffic<B: Router>(network: &mut Network<B>, routes: &Routes, each: u64) -> Book {
    let mut book = Book::default();
    let nodes = network.nodes.len();
    for from in 0..nodes {
        for _ in 0..each {
            let to = network.rng.below(nodes as u64) as usize;
            book.send(network, routes, from, to);
        }
    }
    network.run(400_000, |network| {
        book.check(network, routes);
        book.is_done()
    });
    book
}

#[test]
fn rings_deliver_each_packet_once_in_order_whatever_the_wires_lose() {
    for (nodes, loss, ready, poll, seed) in [
        (3, 0, 8, 1, 1),
        (3, 10, 6, 8, 2),
        (4, 100, 5, 4, 3),
        (5, 10, 8, 16, 4),
        (8, 20, 7, 1, 5),
    ] {
        let (topology, routes) = routed(&format!("ring:{nodes}"), Algorithm::Layered);
        let mut network = started::<router_ring::Block>(&topology, &routes, 20, poll, seed);
        (network.loss, network.ready) = (loss, ready);
        let book = random_traffic(&mut network, &routes, 400);
        assert_eq!(book.total, 400 * nodes as u64);
        let sum =
            |count: fn(&router_ring::Block) -> u64| network.nodes.iter().map(count).sum::<u64>();
        assert_eq!(
            sum(Router::resets) + sum(Router::dropped),
            0,
            "ring of {nodes}"
        );
        assert_eq!(sum(Router::again) > 0, loss > 0, "ring of {nodes}");
    }
}

#[test]
fn rings_and_tori_with_one_channel_drain_by_bubble_flow_control() {
    for (name, loss, seed) in [("ring:5", 0, 1), ("torus:3x3", 5, 2)] {
        let (topology, routes) = routed(name, Algorithm::Bubble);
        let mut network = started::<router::Block>(&topology, &routes, 10, 8, seed);
        network.loss = loss;
        let book = random_traffic(&mut network, &routes, 300);
        assert_eq!(book.total, 300 * topology.nodes().len() as u64);
    }
}

#[test]
fn a_wire_that_is_cut_and_healed_loses_only_what_was_on_it() {
    let (topology, routes) = routed("ring:3", Algorithm::Layered);
    let mut network = started::<router_ring::Block>(&topology, &routes, 12, 4, 9);
    let mut book = Book::default();
    book.lossy = true;
    for round in 0..3 {
        for from in 0..3 {
            for _ in 0..300 {
                book.send(&mut network, &routes, from, (from + 1) % 3);
            }
        }
        network.run(5_000, |n| n.came.iter().any(|c| c.len() > 20));
        if round < 2 {
            // The ends find it silent.
            network.cut(0, 0, true);
            network.run(10_000, |n| n.nodes[0].up() & 1 == 0);
            network.cut(0, 0, false);
        } else {
            // A router that has started again has lost what stood in it.
            network.start(0, &topology, &routes, 4);
        }
        network.wait_up();
        network.run(20_000, |n| n.to_send.iter().all(|s| s.is_empty()));
        for _ in 0..2_000 {
            network.step();
        }
        book.check(&mut network, &routes);
    }
    // Two wires of 64 packets at most, in each direction, and queues.
    let windows = 2 * 2 * 64;
    assert!(book.lost <= 2 * windows + 64, "{} packets lost", book.lost);
    assert!(
        book.total + book.lost <= 2_700 && book.total > 2_000,
        "{} came",
        book.total
    );
    assert!(network.nodes[1].resets() + network.nodes[2].resets() >= 3);
    // What comes now comes whole.
    book.settle();
    for from in 0..3 {
        for _ in 0..200 {
            book.send(&mut network, &routes, from, (from + 2) % 3);
        }
    }
    network.run(10_000, |network| {
        book.check(network, &routes);
        book.is_done()
    });
}

#[test]
fn queues_that_want_one_output_wait_for_its_turns_and_no_longer() {
    const POLL: u64 = 4;
    // Three leaves and the node in the middle send to the fourth leaf.
    let star = r#"{"m:0": "a:0", "m:1": "b:0", "m:2": "c:0", "m:3": "d:0"}"#;
    let topology = parse("star", star).expect("a topology");
    let routes = route_by(&topology, 8, Algorithm::Layered).expect("routes");
    let node = |name| topology.node_named(name).expect("a node").index();
    let (middle, last) = (node("m"), node("d"));
    let senders = [middle, node("a"), node("b"), node("c")];
    let mut network = started::<router::Block>(&topology, &routes, 5, POLL, 7);
    let mut book = Book::default();
    for _ in 0..1_000 {
        for from in senders {
            book.send(&mut network, &routes, from, last);
        }
    }
    let start = network.cycle;
    let mut order = Vec::new();
    network.run(20_000, |network| {
        let came = network.came[last].iter().map(|(_, p)| p[0] as usize & 0xff);
        order.extend(came);
        book.check(network, &routes);
        book.is_done()
    });
    // The wire to the last node rests in no cycle but those of the way there.
    assert!(
        network.cycle - start < 4_000 + 30,
        "{} cycles",
        network.cycle - start
    );
    // While all have packets, at most 3 R of others come before one's next.
    for from in senders {
        let places: Vec<usize> = (0..3_000).filter(|at| order[*at] == from).collect();
        let gaps = places.windows(2).map(|w| (w[1] - w[0] - 1) as u64);
        assert_eq!(gaps.max(), Some(3 * POLL), "node {from}");
        assert!(
            places.len() >= 740,
            "node {from} has {} of 3,000",
            places.len()
        );
    }
}
