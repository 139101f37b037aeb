//! Random sequences of verbs calls against a model. The fuzz target `verbs` runs the same.

#[path = "verbs_support/sequences.rs"]
mod sequences;

use ringbell_gtlb::testing::Rng;

#[test]
fn sequences_of_calls_complete_once_and_write_what_was_granted() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let records = rng.below(150) as usize;
        let bytes = rng.bytes(8 * records);
        sequences::run(&bytes);
    }
}
