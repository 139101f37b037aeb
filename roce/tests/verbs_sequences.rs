//! Random sequences of verbs calls against a model. The fuzz target `verbs` runs the same.

#[path = "verbs_support/sequences.rs"]
mod sequences;

use std::time::Duration;

use ringbell_gtlb::testing::Rng;
use ringbell_net::port::impair::Faults;

#[test]
fn sequences_of_calls_complete_once_and_write_what_was_granted() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let records = rng.below(150) as usize;
        let bytes = rng.bytes(8 * records);
        sequences::run(&bytes);
    }
}

#[test]
fn a_write_after_a_refused_change_reaches_the_peer_it_had() {
    // RTR in state RTS is refused; then a WRITE and two polls.
    let records = [
        [7, 0, 3, 0, 0, 0, 0, 0],
        [12, 0, 0, 0x46, 1, 1, 8, 4],
        [18, 0, 0, 0, 0, 0, 0, 0],
        [18, 0, 0, 0, 0, 0, 0, 0],
    ];
    sequences::run(&records.concat());
}

#[test]
fn sequences_over_bad_cables_do_so_as_well() {
    for seed in 0..400 {
        let mut rng = Rng::new(1_000 + seed);
        let mut up_to = |most: u64| rng.below(most + 1) as f64 / 1000.0;
        let faults = Faults {
            loss: up_to(200),
            reorder: up_to(200),
            reorder_by: Duration::from_micros(50),
            duplicate: up_to(200),
            corrupt: up_to(50),
            rate_bps: Some(10_000_000_000),
            mark_beyond: Some(Duration::from_micros(5)),
            ..Faults::default()
        };
        let records = rng.below(150) as usize;
        let bytes = rng.bytes(8 * records);
        let cables = [seed, !seed].map(|seed| Faults { seed, ..faults });
        sequences::run_over(cables, &bytes);
    }
}
