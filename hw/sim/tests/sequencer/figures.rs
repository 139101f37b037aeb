//! FpgaNIC's Fig. 7, the bus bandwidth of an all-reduce by size, in cycles of a ring of eight; and shares of it by the number of parts.

use super::ring::{start, Job, Ring, ALL_REDUCE, CARD, TYPES};
use ringbell_gtlb::testing::Rng;
use ringbell_hw_sim::figure;
use ringbell_hw_sim::stream::BEAT;
use ringbell_nic_abi::ReduceOp;

/// An all-reduce in parts of so many sixteenths, one behind the other. Its cycles, and those in which a link at one beat a cycle
/// carries its bytes.
fn all_reduce(ranks: u32, bytes: u64, parts: &[u64]) -> (u64, u64) {
    let mut ring = Ring::new(ranks as usize, CARD, 1);
    let mut rng = Rng::new(2);
    let job = |part: &u64| {
        let count = bytes / 4 * part / 16;
        Job::new(&mut rng, ALL_REDUCE, ranks, count, TYPES[0], ReduceOp::Sum)
    };
    let mut jobs: Vec<Job> = parts.iter().map(job).collect();
    start(&mut jobs, &mut ring);
    let start = ring.now;
    assert_eq!(ring.run(), vec![0; ranks as usize]);
    jobs.iter().for_each(|job| job.compare(&ring));
    let beats = bytes / u64::from(ranks) / BEAT as u64;
    (ring.now - start, 2 * u64::from(ranks - 1) * beats)
}

/// In one part Table 8 uses no network in two of its 2 N columns.
#[test]
fn a_ring_reaches_the_bandwidth_of_its_links() {
    for (ranks, parts, least) in [
        (4, &[16][..], 74.0),
        (4, &[1, 2, 2, 2, 2, 2, 2, 2, 1], 95.0),
        (8, &[16], 86.0),
        (8, &[4; 4], 95.0),
    ] {
        let (cycles, ideal) = all_reduce(ranks, 1 << 20, parts);
        let share = 100.0 * ideal as f64 / cycles as f64;
        let count = parts.len();
        println!("all-reduce of 1 MiB by {ranks} in {count}: {cycles} cycles, {share:.1}% of the bus bandwidth");
        assert!(share >= least);
    }
}

#[test]
fn figure_7() {
    let mut rows = String::new();
    let both = [("in one part", &[16][..]), ("in four parts", &[4; 4])];
    for kib in [16, 64, 256, 1_024, 4_096] {
        // The longest in one form: it takes a third of the test's time.
        for (series, parts) in both.into_iter().skip(usize::from(kib > 1_024)) {
            let (cycles, ideal) = all_reduce(8, kib << 10, parts);
            assert!(cycles >= ideal, "more than the link carries");
            rows.push_str(&format!(
                "{}\t{}\t{cycles}\t{series}\n",
                kib << 10,
                kib << 10
            ));
        }
    }
    figure::record("fig7.tsv", &rows);
}
