//! Costs of NICs and hosts against what they must add.

use ringbell_nic_abi::{Algorithm, CollectiveKind};
use ringbell_sim::{run, Cluster, HostCosts, Plan, Profile, Report};

/// An all-reduce by `ring` with the links of `ideal` and these costs.
fn done(ranks: usize, bytes: u64, link_delay_ns: u64, host: HostCosts) -> Report {
    let mut profile = Profile::by_name("ideal").expect("it exists");
    profile.link_delay_ns = link_delay_ns;
    profile.host = host;
    let mut plan = Plan::new(
        CollectiveKind::AllReduce,
        Cluster::new(ranks, profile),
        bytes,
    );
    plan.algo = Algorithm::Ring;
    let report = run(&plan).expect("it ends");
    assert_eq!((report.sizes[0].wrong, report.counts.lost), (0, 0));
    report
}

fn time(ranks: usize, bytes: u64, link_delay_ns: u64, host: HostCosts) -> u64 {
    done(ranks, bytes, link_delay_ns, host).sizes[0].time_ns
}

#[test]
fn a_doorbell_and_a_completion_are_added_once() {
    let costs = HostCosts {
        doorbell_ns: 700,
        completion_ns: 300,
        ..HostCosts::default()
    };
    for bytes in [1 << 10, 1 << 20] {
        let ideal = time(3, bytes, 1_000, HostCosts::default());
        assert_eq!(time(3, bytes, 1_000, costs), ideal + 1_000);
    }
}

#[test]
fn delays_of_nics_are_as_long_as_those_of_links() {
    let costs = HostCosts {
        send_delay_ns: 800,
        receive_delay_ns: 400,
        ..HostCosts::default()
    };
    for bytes in [1 << 10, 1 << 20] {
        // Two links lie between two NICs.
        let longer = time(3, bytes, 1_600, HostCosts::default());
        assert_eq!(time(3, bytes, 1_000, costs), longer);
    }
}

#[test]
fn a_busy_nic_takes_as_long_as_its_frames_and_little_longer() {
    // Its link would need 0.7 us for the longest frame.
    for (frame_ns, byte_ps) in [(5_000, 0), (1_000, 1_000)] {
        let costs = HostCosts {
            frame_ns,
            byte_ps,
            ..HostCosts::default()
        };
        let report = done(2, 4 << 20, 1_000, costs);
        // Of two NICs each sends half of the frames and receives the other half.
        let work = report.counts.packets * frame_ns + report.counts.bytes * byte_ps / 1_000;
        let ratio = report.sizes[0].time_ns as f64 / work as f64;
        assert!((0.97..1.03).contains(&ratio), "{frame_ns}: {ratio}");
    }
}
