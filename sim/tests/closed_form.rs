//! Times of a ring against the closed form of its links.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_sim::{run, Cluster, Plan, Profile};

/// How much longer than the closed form it may take; measured: 1.07 to 1.14. The form knows no
/// window, with 256 KiB of which the pipe is not always full.
const TOLERANCE: f64 = 1.15;

#[test]
fn a_ring_takes_as_long_as_its_links_and_little_longer() {
    let profile = Profile::by_name("ideal").expect("it exists");
    for ranks in [2, 3, 8] {
        let bytes = 8 << 20;
        let cluster = Cluster::new(ranks, profile.clone());
        let plan = Plan {
            algo: Algorithm::Ring,
            ..Plan::new(CollectiveKind::AllReduce, cluster, bytes)
        };
        let done = run(&plan).expect("it ends");
        let (steps, n) = (2.0 * (ranks - 1) as f64, ranks as f64);
        // Two links, at whose end a frame of 9,038 bytes with its gaps is stored whole.
        let hop = 2.0 * (profile.link_delay_ns as f64 + 9_038.0 * 8.0 / profile.link_gbps);
        let form = steps / n * bytes as f64 / done.payload_gbs + steps * hop;
        let ratio = done.sizes[0].time_ns as f64 / form;
        assert!((1.0..TOLERANCE).contains(&ratio), "{ranks}: {ratio}");
        assert_eq!((done.counts.lost, done.sizes[0].wrong), (0, 0));
    }
}
