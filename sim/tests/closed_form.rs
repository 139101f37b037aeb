//! Times of a ring against the closed form of its links.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_routes::generate::generate;
use ringbell_sim::goal::Schedule;
use ringbell_sim::{run, run_goal, Cluster, GoalPlan, Plan, Profile};

/// How many times as long as the closed form it may take; measured: 0.97 to 1.02. Segments of a
/// step leave before all of the step before has come, so it may be less.
const RATIOS: std::ops::Range<f64> = 0.95..1.03;

#[test]
fn a_ring_takes_as_long_as_its_links() {
    let profile = Profile::by_name("ideal").expect("it exists");
    // At a switch, and as a ring of wires between NICs that forward.
    for (ranks, links) in [(2, 2.0), (3, 2.0), (8, 2.0), (3, 1.0), (4, 1.0), (8, 1.0)] {
        let bytes = 8 << 20;
        let mut cluster = Cluster::new(ranks, profile.clone());
        let topology = (links == 1.0).then(|| generate(&format!("ring:{ranks}")));
        cluster.network.topology = topology.transpose().expect("a network");
        let plan = Plan {
            algo: Algorithm::Ring,
            ..Plan::new(CollectiveKind::AllReduce, cluster, bytes)
        };
        let done = run(&plan).expect("it ends");
        let (steps, n) = (2.0 * (ranks - 1) as f64, ranks as f64);
        // At the end of each link a frame of 9,038 bytes with its gaps is stored whole.
        let hop = links * (profile.link_delay_ns as f64 + 9_038.0 * 8.0 / profile.link_gbps);
        let form = steps / n * bytes as f64 / done.payload_gbs + steps * hop;
        let ratio = done.sizes[0].time_ns as f64 / form;
        assert!(RATIOS.contains(&ratio), "{ranks}, {links}: {ratio}");
        assert_eq!((done.counts.lost, done.sizes[0].wrong), (0, 0));
    }
}

/// Bytes around the payload of a frame: Ethernet, IPv4, UDP, base header and CRC; preamble, FCS and
/// gap.
const AROUND: u64 = 58 + 24;
/// Payload of a full frame.
const FULL: u64 = 8_936;
/// Of a head, which is all that a request and its answer have.
const HEAD: u64 = 40;

/// Steps of a ring in which each rank sends so many bytes to the next, when the message before has
/// come.
fn ring(ranks: usize, steps: usize, bytes: u64) -> Schedule {
    let mut text = format!("num_ranks {ranks}\n");
    for rank in 0..ranks {
        let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        text += &format!("rank {rank} {{\n");
        for step in 0..steps {
            text +=
                &format!("s{step}: send {bytes}b to {to}\nr{step}: recv {bytes}b from {from}\n");
            if step > 0 {
                text += &format!("s{step} requires r{}\n", step - 1);
            }
        }
        text += "}\n";
    }
    Schedule::parse("ring.goal", &text).expect("it is one")
}

#[test]
fn a_ring_of_messages_takes_as_long_as_its_links_and_little_longer() {
    let profile = Profile::by_name("ideal").expect("it exists");
    let on_link = |payload: u64| ((payload + AROUND) * 8) as f64 / profile.link_gbps;
    let links = 2.0 * profile.link_delay_ns as f64;
    // Two ranks send to each other. Lengths at which the last packet is short, too.
    let cases = [
        (2, 1, 262_144),
        (2, 4, 262_144),
        (2, 2, 2 << 20),
        (3, 8, 262_144),
        (3, 3, 1_398_101),
        (5, 7, 65_537),
        (7, 5, 250_209),
        (16, 30, 262_144),
    ];
    for (ranks, steps, bytes) in cases {
        let cluster = Cluster::new(ranks, profile.clone());
        let report = run_goal(&GoalPlan::new(ring(ranks, steps, bytes), cluster));
        let report = report.expect("it ends");
        assert_eq!((&report.trouble, report.wrong), (&None, 0));
        // A request, its answer, and the data behind each other; a frame is stored once.
        let heads = 2.0 * (links + 2.0 * on_link(HEAD));
        let frames = (bytes / FULL) as f64 * on_link(FULL) + on_link(bytes % FULL);
        let step = heads + links + on_link(FULL) + frames;
        // The last send ends when it is acknowledged.
        let form = steps as f64 * step + links + 2.0 * on_link(0);
        let ratio = report.time_ns as f64 / form;
        assert!(
            (1.0..1.005).contains(&ratio),
            "{ranks} ranks, {steps} steps, {bytes} bytes: {ratio}"
        );
    }
}
