//! What a router takes in cycles: for a packet from one application (SMI, SC'19 §5.3.3), and for a
//! hop.

use std::fmt::Write as _;

use ringbell_hw_sim::figure::{record, Signal, Wave};
use ringbell_hw_sim::router::Block;
use ringbell_routes::route::Algorithm;

use super::network::{packet, started, Network, Router};
use super::routed;

/// Cycles per packet in which a node that offers one in each cycle gets rid of them, from the 100th
/// to the 1,100th.
fn injection(poll: u64, skip: bool) -> f64 {
    let (topology, routes) = routed("bus:2", Algorithm::Layered);
    let mut network = started::<Block>(&topology, &routes, 0, poll, 1);
    network.nodes[0].poll_i(poll);
    network.nodes[0].skip_i(skip.into());
    network.to_send[0] = (0..1_200).map(|n| (0, packet(0, 1, n))).collect();
    network.run(10_000, |n| n.came[1].len() >= 100);
    let start = network.cycle;
    network.run(10_000, |n| n.came[1].len() >= 1_100);
    (network.cycle - start) as f64 / 1_000.0
}

#[test]
fn figure_injection_by_polling_parameter() {
    let mut table = String::from(
        "| R | SMI, Table 4 | a look at each queue costs a cycle | queues without a packet are skipped |\n|---|---|---|---|\n",
    );
    for (poll, paper) in [(1, "5"), (4, "2.5"), (8, "1.8"), (16, "1.69")] {
        let [looks, skips] = [false, true].map(|skip| injection(poll, skip));
        // Of five queues four have nothing: R packets in R + 4 cycles.
        let wanted = (poll + 4) as f64 / poll as f64;
        assert!((looks - wanted).abs() < 0.02, "R = {poll}: {looks} cycles");
        assert_eq!(skips, 1.0, "R = {poll}");
        let _ = writeln!(table, "| {poll} | {paper} | {looks:.2} | {skips:.2} |");
    }
    print!("{table}");
    record("injection.md", &table);
}

#[test]
fn figure_cycles_of_a_hop() {
    let (topology, routes) = routed("bus:8", Algorithm::Layered);
    let mut table = String::from(
        "| hops | first packet, cycles | 1,000 packets, cycles | SMI, Table 3, µs |\n|---|---|---|---|\n",
    );
    let mut before = None;
    for hops in 1..8usize {
        let mut network: Network<Block> = started(&topology, &routes, 0, 8, 1);
        network.to_send[0] = (0..1_000).map(|n| (0, packet(0, hops, n))).collect();
        let start = network.cycle;
        network.run(1_000, |n| !n.came[hops].is_empty());
        let first = network.cycle - start;
        network.run(10_000, |n| n.came[hops].len() == 1_000);
        let all = network.cycle - start;
        // One packet a cycle, however many hops.
        assert_eq!(all, first + 999, "{hops} hops");
        // Every hop takes the same.
        let each = before.map_or(first, |b| first - b);
        assert!(hops < 3 || each == 3, "hop {hops}: {each} cycles");
        before = Some(first);
        let paper = match hops {
            1 => "0.801",
            4 => "2.896",
            7 => "5.103",
            _ => "–",
        };
        let _ = writeln!(table, "| {hops} | {first} | {all} | {paper} |");
    }
    print!("{table}");
    record("hops.md", &table);
}

/// Cycles per packet over a wire of 8 cycles that loses some words in 1,000.
fn with_loss(loss: u64) -> f64 {
    const PACKETS: u32 = 20_000;
    let (topology, routes) = routed("bus:2", Algorithm::Layered);
    let mut network = Network::<Block>::new(&topology, 0, 1);
    network.set_latency(8);
    network.start_all(&topology, &routes, 8);
    network.loss = loss;
    network.to_send[0] = (0..PACKETS).map(|n| (0, packet(0, 1, n))).collect();
    let start = network.cycle;
    network.run(1_000_000, |n| n.came[1].len() == PACKETS as usize);
    (network.cycle - start) as f64 / f64::from(PACKETS)
}

#[test]
fn figure_packets_over_a_wire_that_loses_words() {
    let mut table = String::from("| words lost | cycles a packet |\n|---|---|\n");
    let mut before = 0.0;
    for loss in [0, 1, 10, 50] {
        let cycles = with_loss(loss);
        assert!(cycles > before, "{cycles} cycles with {loss} of 1,000 lost");
        before = cycles;
        let _ = writeln!(table, "| {:.1}% | {cycles:.2} |", loss as f64 / 10.0);
    }
    print!("{table}");
    record("loss.md", &table);
}

#[test]
fn timing_of_a_packet_over_two_hops() {
    use Signal::{Bit, Word};
    let (topology, routes) = routed("bus:3", Algorithm::Layered);
    let mut network = started::<Block>(&topology, &routes, 0, 8, 1);
    let mut wave = Wave::new(&[
        Bit("node 0: in_valid_i"),
        Bit("node 0: packet of wire_o"),
        Word("node 0: number of wire_o"),
        Bit("node 1: packet of wire_o"),
        Word("node 1: number of wire_o"),
        Bit("node 2: out_valid_o"),
    ]);
    network.to_send[0] = (0..3).map(|n| (0, packet(0, 2, n))).collect();
    for _ in 0..15 {
        let offers = u64::from(!network.to_send[0].is_empty());
        // The second node's wires lead to the first and the third.
        let [(first, number), (second, again)] = [(0, 0), (1, 1)].map(|(node, wire)| {
            let head = network.nodes[node].word(wire);
            let has = head[0] >> 2 & 1;
            (u64::from(has), (has == 1).then(|| u64::from(head[0] >> 20)))
        });
        let gives = u64::from(network.nodes[2].gives().is_some());
        let row = [
            Some(offers),
            Some(first),
            number,
            Some(second),
            again,
            Some(gives),
        ];
        wave.sample(&row);
        network.step();
    }
    assert_eq!(network.came[2].len(), 3);
    println!("{wave}");
    record("hop.txt", &wave.to_string());
}
